/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A memory file on another host, which `ib-migrate serve` offers there: pages by READ. */
#include "migrate/firecracker/image.h"
#include "migrate/firecracker/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct remote_image {
    struct ibx_image is;
    const char *uri;
    struct ibx_options options;
    unsigned links;
    struct ibx_snapshot_reader *reader;
    bool used; /* an engine has been given `reader` */
};

/* Checks that the snapshot has one block of guest RAM, so that offsets in the image are those of
 * the reader. */
static int check(const struct remote_image *image, const struct ibx_snapshot_reader *reader,
                 struct ibx_error *err)
{
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(reader);
    if (m->ram_count != 1)
        return ibx_error_set(err, -EINVAL,
                             "the snapshot at %s has %u memory blocks, and a Firecracker snapshot "
                             "has one memory file: serve that file there",
                             image->uri, m->ram_count);
    if (!image->reader)
        return 0;
    const struct ibx_snapshot_manifest *first = ibx_snapshot_reader_manifest(image->reader);
    if (!ibx_snapshot_same(m, first))
        return ibx_error_set(err, -ESTALE,
                             "%s now serves another snapshot, or its file was changed: serve the "
                             "same one there again",
                             image->uri);
    return 0;
}

/* Connects, the first time or instead of a reader whose engine has stopped. */
static int connect_again(struct remote_image *image, struct ibx_error *err)
{
    struct ibx_snapshot_reader *reader;
    int rc = ibx_snapshot_reader_open(image->uri, &image->options, image->links, &reader, err);
    if (rc)
        return rc;
    rc = check(image, reader, err);
    if (rc) {
        ibx_snapshot_reader_close(reader);
        return rc;
    }
    ibx_snapshot_reader_close(image->reader);
    image->reader = reader;
    image->used = false;
    return 0;
}

static int remote_readers(struct ibx_image *is, unsigned count, size_t buffer_bytes,
                          struct ibx_fault_reader *as, struct ibx_error *err)
{
    struct remote_image *image = (struct remote_image *)is;
    if (count != image->links)
        return ibx_error_set(err, -EINVAL, "%u readers of %u connections", count, image->links);
    int rc = image->used ? connect_again(image, err) : 0;
    if (rc)
        return rc;
    image->used = true;
    return ibx_snapshot_reader_serve(image->reader, is->checker, buffer_bytes, as, err);
}

struct data_parts {
    int (*each)(void *context, uint64_t offset, uint64_t length);
    void *context;
    uint64_t pages; /* of the memory; the rest is device state */
};

static int part(void *context, uint64_t first, uint64_t count, bool data)
{
    const struct data_parts *parts = context;
    return data && first < parts->pages
               ? parts->each(parts->context, first * IBX_SNAPSHOT_PAGE, count * IBX_SNAPSHOT_PAGE)
               : 0;
}

static int remote_data(struct ibx_image *is,
                       int (*each)(void *context, uint64_t offset, uint64_t length), void *context,
                       struct ibx_error *err)
{
    const struct remote_image *image = (struct remote_image *)is;
    struct data_parts parts = {each, context, is->bytes / IBX_SNAPSHOT_PAGE};
    int rc = ibx_page_map_runs(ibx_snapshot_reader_map(image->reader), part, &parts);
    return rc ? ibx_error_set(err, rc, "the page map of %s: %s", image->uri, strerror(-rc)) : 0;
}

static const char *remote_reason(const struct ibx_image *is)
{
    const struct remote_image *image = (const struct remote_image *)is;
    return ibx_snapshot_reader_reason(image->reader);
}

static void remote_close(struct ibx_image *is)
{
    struct remote_image *image = (struct remote_image *)is;
    ibx_snapshot_reader_close(image->reader);
    ibx_snapshot_checker_destroy(is->checker);
    free(image);
}

static int checker_make(struct remote_image *image, struct ibx_error *err)
{
    struct ibx_snapshot_index index = ibx_snapshot_reader_take_index(image->reader);
    if (!index.hashes)
        return 0;
    const int rc = ibx_snapshot_checker_create(ibx_snapshot_reader_manifest(image->reader), &index,
                                               image->links, &image->is.checker, err);
    ibx_snapshot_index_fini(&index);
    return rc;
}

static const struct ibx_image_ops image_ops = {
    .data = remote_data, .readers = remote_readers, .reason = remote_reason, .close = remote_close};

int ibx_image_open_remote(const char *uri, const struct ibx_options *options, unsigned links,
                          struct ibx_image **out, struct ibx_error *err)
{
    struct remote_image *image = calloc(1, sizeof(*image));
    if (!image)
        return ibx_error_set(err, -ENOMEM, "no memory for a snapshot's reader");
    image->is = (struct ibx_image){.ops = &image_ops, .remote = true};
    image->uri = uri;
    image->options = *options;
    image->links = links;
    int rc = connect_again(image, err);
    if (!rc)
        rc = checker_make(image, err);
    if (rc) {
        remote_close(&image->is);
        return rc;
    }
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(image->reader);
    image->is.bytes = m->ram[0].size;
    memcpy(image->is.identity, m->id, sizeof(m->id));
    image->is.identity[IMAGE_BYTES] = m->ram[0].size;
    /* The id of a memory file is made of its times, which somebody may have reset. */
    memcpy(image->is.identity + IMAGE_BYTES + 1, m->digest, 2 * sizeof(image->is.identity[0]));
    *out = &image->is;
    return 0;
}
