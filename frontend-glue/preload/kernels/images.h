/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images of kernels: cubin, PTX, and fat binaries of both. They are the program's, and may be
 * anything: what is read of one with a length stays within it. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_KERNELS_IMAGES_H
#define IBX_FRONTEND_GLUE_PRELOAD_KERNELS_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_IMAGE_HEADER   96u /* bytes of a fat binary before the first of its images, at most */
#define IBX_IMAGE_FAT_HEAD 16u /* ... and before the head of that one */

/* Behind what nvcc's code registers. */
struct ibx_image_wrapper {
    uint32_t magic, version;
    const void *data;
    void *unused;
};

enum ibx_image_kind { IBX_IMAGE_NONE, IBX_IMAGE_PTX, IBX_IMAGE_CUBIN, IBX_IMAGE_FAT };

/* The head of an image in a fat binary, of `head` bytes: what they are behind these is its own. */
struct ibx_image_entry {
    uint16_t kind, version;
    uint32_t head;
    uint64_t n; /* with what it is padded by */
    uint32_t compressed_n, options_at;
    uint16_t minor, major;
    uint32_t architecture, name_at, name_n;
    uint64_t flags, reserved_too, uncompressed_n;
};

/* What begins there, and its bytes, of which there are `most`; SIZE_MAX: no more is known than what
 * it says itself, and a wrapper is what it wraps. PTX has a NUL behind it. */
enum ibx_image_kind ibx_image_measure(const void **code, size_t most, size_t *n);
/* Writes what stands before a cubin or PTX that is to be in a fat binary, and how many bytes that
 * are; `n` those of the image, which are followed by zeros up to a multiple of 8. */
size_t ibx_image_head(uint8_t head[IBX_IMAGE_HEADER], enum ibx_image_kind kind, const void *image,
                      size_t n);
struct ibx_image_wrapper ibx_image_wrap(const void *fat);
/* The fat binary, of n bytes as it says itself. NULL: it is the wrapper of none. */
const uint8_t *ibx_image_wrapped(const struct ibx_image_wrapper *wrapper, size_t *n);

/* The image whose head is at *at of a fat binary of n bytes, which then is where the next one's is:
 * e->n bytes. NULL: there is none, or it is not sound. */
const uint8_t *ibx_image_next(const uint8_t *fat, size_t n, size_t *at, struct ibx_image_entry *e);
/* A fat binary of the same images, as they were before they were compressed, of *expanded bytes, to
 * be freed. NULL: none is compressed, or not all of them can be read; the log has why. */
uint8_t *ibx_image_expand(const uint8_t *fat, size_t n, size_t *expanded);
/* Likewise of what nvcc's code registers, with a wrapper of its own. */
struct ibx_image_wrapper *ibx_image_expand_wrapped(const void *wrapper);
void ibx_image_free_wrapped(struct ibx_image_wrapper *wrapper);

/* Whether it is of a fat binary of which no image is a cubin, of which GVirtuS knows the arguments
 * of kernels. */
bool ibx_image_lacks_cubin(const struct ibx_image_wrapper *wrapper);

/* What is in it: each kernel, with n = 0, and each variable of n bytes. */
typedef void ibx_image_found(const char *name, size_t length, size_t n, bool constant,
                             void *argument);
/* False: it is no sound fat binary; or (*compressed) some of it is compressed. */
bool ibx_image_look(const uint8_t *fat, size_t n, ibx_image_found *found, void *argument,
                    bool *compressed);

/* Where the bytes are with which a variable of so many bytes begins; NULL: they are zeros. False:
 * no cubin has it, or the driver writes addresses into it. */
bool ibx_image_begins(const uint8_t *fat, size_t n, const char *name, size_t bytes,
                      const uint8_t **begin);

#define IBX_IMAGE_PARAMETERS 32768u /* of a kernel, at most */
struct ibx_image_parameter {
    uint32_t at, n; /* bytes among those of all */
};
/* The parameters of the kernel of that name, in their order, *count of them, to be freed. NULL: no
 * image that can be read has it, or there is no memory. */
struct ibx_image_parameter *ibx_image_parameters(const uint8_t *fat, size_t n, const char *kernel,
                                                 size_t *count);

#endif
