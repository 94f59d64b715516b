/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Firecracker's message, or the file of a working set, as the first byte says. */
#include "migrate/firecracker/firecracker.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void message(const char *text, size_t length)
{
    static struct ibx_firecracker_layout layout;
    struct ibx_error err = {0};
    int rc = ibx_firecracker_layout_parse(text, length, &layout, &err);
    if (rc) {
        require(err.code == rc && err.message[0] && !strchr(err.message, '\n'));
        return;
    }
    uint64_t pages = 0;
    require(layout.count && layout.count <= IBX_FIRECRACKER_REGIONS_MAX);
    require(layout.page_size == 4096 || layout.page_size == 2097152);
    for (unsigned i = 0; i < layout.count; i++) {
        const struct ibx_firecracker_region *r = &layout.regions[i];
        require(r->length && r->offset + r->length <= layout.end);
        require(!((r->start | r->length | r->offset) % layout.page_size));
        pages += r->length / layout.page_size;
    }
    require(pages == layout.pages);
}

static void working_set(const uint8_t *bytes, size_t length)
{
    struct ibx_working_set set = {0};
    struct ibx_error err = {0};
    size_t again;
    if (ibx_working_set_decode(bytes, length, &set, &err)) {
        require(err.message[0] && !set.runs);
        return;
    }
    for (size_t i = 0; i < set.count; i++)
        require(set.runs[i].pages && set.runs[i].page + set.runs[i].pages <= set.image_pages);
    uint8_t *copy = ibx_working_set_encode(&set, &again);
    require(copy && again <= length); /* adjacent runs become one */
    free(copy);
    ibx_working_set_fini(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (*data == 'w')
        working_set(data + 1, size - 1);
    else
        message((const char *)data + 1, size - 1);
    return 0;
}
