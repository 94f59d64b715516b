/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A URI that can be parsed prints as one that parses to the same; options that were set print as
 * text that sets the same. */
#include "transport/transport.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_options(const struct ibx_options *options)
{
    struct ibx_options again;
    const char *key;
    ibx_options_init(&again);
    for (unsigned i = 0; (key = ibx_options_key(i)); i++) {
        char value[IBX_OPTION_SIZE], value_again[IBX_OPTION_SIZE];
        require(!ibx_options_get(options, key, value, sizeof(value)));
        require(!ibx_options_set(&again, key, value, NULL));
        require(!ibx_options_get(&again, key, value_again, sizeof(value_again)));
        require(!strcmp(value, value_again));
    }
}

static void check_uri(const char *text)
{
    struct ibx_uri uri, again;
    struct ibx_error error = {0};
    if (ibx_uri_parse(text, &uri, &error)) {
        require(error.code < 0 && error.message[0]);
        return;
    }
    char printed[400], printed_again[400];
    ibx_uri_print(&uri, printed, sizeof(printed));
    require(!ibx_uri_parse(printed, &again, NULL));
    require(!strcmp(again.scheme, uri.scheme) && !strcmp(again.host, uri.host) &&
            !strcmp(again.path, uri.path) && again.port == uri.port);
    ibx_uri_print(&again, printed_again, sizeof(printed_again));
    require(!strcmp(printed, printed_again));

    struct ibx_options options;
    ibx_options_init(&options);
    if (!ibx_uri_options(&uri, &options, &error))
        check_options(&options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    check_uri(text);
    free(text);
    return 0;
}
