/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The memory file of a snapshot, from which pages are read. */
#ifndef IBX_MIGRATE_FIRECRACKER_IMAGE_H
#define IBX_MIGRATE_FIRECRACKER_IMAGE_H

#include "migrate/firecracker/firecracker.h"
#include "migrate/snapshot/snapshot.h"

struct ibx_image;

struct ibx_image_ops {
    /* Calls `each` for each part of the image that holds data; the others are zero. */
    int (*data)(struct ibx_image *image,
                int (*each)(void *context, uint64_t offset, uint64_t length), void *context,
                struct ibx_error *err);
    /* Makes readers for the engine, with offsets in the image and buffers of `buffer_bytes`. Each
     * is used by one worker until this is called again or the image is closed. */
    int (*readers)(struct ibx_image *image, unsigned count, size_t buffer_bytes,
                   struct ibx_fault_reader *as, struct ibx_error *err);
    /* Why one of the readers has ended; "": none has. To be called after the engine has stopped. */
    const char *(*reason)(const struct ibx_image *image);
    void (*close)(struct ibx_image *image);
};

struct ibx_image {
    const struct ibx_image_ops *ops;
    uint64_t bytes;
    uint64_t identity[IBX_IMAGE_IDENTITY]; /* differs if the pages may differ */
    bool remote;                           /* readers may end; then ops->readers makes new ones */
    struct ibx_snapshot_checker *checker;  /* checks pages that arrive; NULL: there are no hashes */
};

/* `peer`: the user who gets the pages. -EPERM: a folder or link of the path belongs to another user
 * than this process's or root, and the file does not belong to `peer`. */
int ibx_image_open_file(const char *path, uid_t peer, struct ibx_image **image,
                        struct ibx_error *err);
/* Opens the image at a server, with one connection for each reader. The caller keeps `uri` and the
 * strings in `options` until close. */
int ibx_image_open_remote(const char *uri, const struct ibx_options *options, unsigned links,
                          struct ibx_image **image, struct ibx_error *err);

#endif
