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
    /* Readers for the engine, which count offsets in the image; `buffer_bytes` each. They are used
     * by one worker each until _readers is called again or the image is closed. */
    int (*readers)(struct ibx_image *image, unsigned count, size_t buffer_bytes,
                   struct ibx_fault_reader *as, struct ibx_error *err);
    /* Why one of the readers has ended; "": none has. After the engine has stopped. */
    const char *(*reason)(const struct ibx_image *image);
    void (*close)(struct ibx_image *image);
};

struct ibx_image {
    const struct ibx_image_ops *ops;
    uint64_t bytes;
    uint64_t identity[IBX_IMAGE_IDENTITY]; /* another one: these are other pages */
    bool remote;                           /* a reader may end, and _readers makes new ones */
    struct ibx_snapshot_checker *checker;  /* of pages that arrive; NULL: they are not hashed */
};

/* `peer`: the user who gets the pages. -EPERM: another user than this process's decides which file
 * that is, and it is not the peer's own. */
int ibx_image_open_file(const char *path, uid_t peer, struct ibx_image **image,
                        struct ibx_error *err);
/* `uri` and the names in `options` are kept by the caller. One connection a reader. */
int ibx_image_open_remote(const char *uri, const struct ibx_options *options, unsigned links,
                          struct ibx_image **image, struct ibx_error *err);

#endif
