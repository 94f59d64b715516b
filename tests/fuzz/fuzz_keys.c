/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Any text as a key file gives keys with valid names, or an error that names the file. */
#include "transport/handshake/handshake.h"
#include "tests/fuzz/require.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_keys *keys = NULL;
    struct ibx_error err = {0};
    struct ibx_options options;
    const struct ibx_key *key = NULL;
    int rc = ibx_keys_parse("/a/file", (const char *)data, size, &keys, &err);
    require((rc == 0) == (keys != NULL));
    if (rc) {
        require(err.code == rc && strstr(err.message, "/a/file") && !strchr(err.message, '\n'));
        return 0;
    }
    ibx_options_init(&options);
    require(ibx_keys_own(keys, &options, &key, NULL) == 0 && key);
    require(!key->name[0] || ibx_key_name_valid(key->name, strlen(key->name)));
    require(ibx_keys_find(keys, key->name) == key);
    ibx_keys_release(keys);
    return 0;
}
