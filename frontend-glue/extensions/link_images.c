/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The driver's linker, for several images. The client has put them into memory of the device, since
 * a request holds too little, and finds there what they are linked to.
 */
#include "frontend-glue/extensions/linker.h"

#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "gpudirect/cuda.h"

enum { IS_PTX = 1, IS_LIBRARY = 4, IS_NVVM }; /* CUjitInputType */

#define INVALID_IMAGE 200

struct linked {
    uint64_t at, room; /* in memory of the device */
    unsigned count;
    int kinds[IBX_EXT_LINKED]; /* CUjitInputType */
    size_t lengths[IBX_EXT_LINKED];
    size_t bytes; /* of all, with what is between them */
    uint8_t *images;
    struct ibx_linker driver;
    int result;    /* by the driver */
    uint64_t made; /* bytes of the result; 0: it has no room */
};

/* Whether the image ends where it says. The driver reads PTX up to a NUL, follows the lengths that
 * a cubin and a fat binary have in them, and addresses. */
static bool fits(int kind, const uint8_t *image, size_t n)
{
    if (kind == IS_LIBRARY || kind == IS_NVVM)
        return true;
    return ibx_image_fits(image, n) && (kind != IS_PTX || !image[n - 1]);
}

/* Returns what the driver returns for the first image that it refuses, or for all. */
static int add_images(const struct linked *l, void *state)
{
    size_t at = 0;
    int rc = 0;
    for (unsigned i = 0; i < l->count && !rc; i++) {
        uint8_t *image = l->images + at;
        if (!fits(l->kinds[i], image, l->lengths[i]))
            return INVALID_IMAGE;
        rc = l->driver.add(state, l->kinds[i], image, l->lengths[i], "the client's image", 0, NULL,
                           NULL);
        at += ibx_extension_linked_room(l->lengths[i]);
    }
    return rc;
}

/* Copies the images from the device, links them, and copies the result to the device. The linker
 * takes its time, in which another session of the client's could free the memory. 0, or CUDA's
 * error of a copy. */
static int link_images(struct extension_request *e, void *of, uint8_t *host)
{
    const struct ibx_cuda *cuda = e->x->cuda;
    struct linked *l = of;
    void *state = NULL, *image = NULL;
    size_t n = 0;
    l->images = host;
    int rc = cuda->memcpy_from_device(host, l->at, l->bytes);
    if (rc || (l->result = l->driver.create(0, NULL, NULL, &state)))
        return rc;
    l->result = add_images(l, state);
    if (!l->result)
        l->result = l->driver.complete(state, &image, &n);
    if (!l->result && n <= l->room) {
        l->made = n;
        rc = cuda->memcpy_to_device(l->at, image, n);
    }
    l->driver.destroy(state);
    return rc;
}

static bool get_images(struct extension_request *e, struct linked *l)
{
    bool good = true;
    l->at = ibx_get_u64(&e->in);
    l->room = ibx_get_u64(&e->in);
    l->count = ibx_get_u16(&e->in);
    if (!l->count || l->count > IBX_EXT_LINKED)
        return false;
    for (unsigned i = 0; i < l->count && good; i++) {
        l->kinds[i] = (int)ibx_get_u32(&e->in);
        l->lengths[i] = ibx_get_u64(&e->in);
        good = l->lengths[i] && l->lengths[i] <= IBX_EXT_LINK_MOST;
        l->bytes += ibx_extension_linked_room(l->lengths[i]);
    }
    return good && whole(e) && l->bytes <= IBX_EXT_LINK_MOST && l->bytes <= l->room &&
           mine(e, pointer_to(l->at), l->room);
}

static int link_them(struct extension_request *e)
{
    struct linked l = {.count = 0};
    if (!get_images(e, &l))
        return CUDA_INVALID_VALUE;
    if (!ready(e) || !ibx_linker_find(&l.driver))
        return CUDA_NOT_SUPPORTED;
    const int rc = ibx_linker_run(e, l.at, l.room, l.bytes, link_images, &l);
    ibx_put_u32(&e->out, (uint32_t)l.result);
    ibx_put_u64(&e->out, l.made);
    return rc;
}

const struct extension_call ibx_link_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_LINK] = {NULL, link_them},
};
