/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether a listener could serve anybody. */
#include "transport/core/conn.h"

int ibx_listen_check(const char *text, const struct ibx_options *options, struct ibx_error *err)
{
    char description[128];
    const char *name;
    struct ibx_uri uri;
    struct ibx_error why = {0};
    struct ibx_options named = *options;
    int rc = ibx_uri_parse(text, &uri, err);
    if (!rc)
        rc = ibx_uri_options(&uri, &named, err);
    if (rc)
        return rc;
    for (unsigned i = 0; (name = ibx_provider_name(i)); i++) {
        if (!ibx_path_allowed(&named, name))
            continue;
        rc = ibx_provider_probe(name, &named, description, sizeof(description), &why);
        if (!rc)
            return 0;
    }
    return ibx_error_set(err, rc, "nobody could be served at %s: %s", text, why.message);
}
