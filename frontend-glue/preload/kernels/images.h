/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images of kernels: cubins, PTX, and fat binaries that contain both. They come from the program
 * and may contain anything: with a given length nothing beyond it is read. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_KERNELS_IMAGES_H
#define IBX_FRONTEND_GLUE_PRELOAD_KERNELS_IMAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_IMAGE_HEADER   96u /* bytes of a fat binary before its first image, at most */
#define IBX_IMAGE_FAT_HEAD 16u /* bytes before the header of its first image */

/* What nvcc's code registers (__fatBinC_Wrapper_t). */
struct ibx_image_wrapper {
    uint32_t magic, version;
    const void *data;
    void *unused;
};

enum ibx_image_kind { IBX_IMAGE_NONE, IBX_IMAGE_PTX, IBX_IMAGE_CUBIN, IBX_IMAGE_FAT };

/* Of an image in a fat binary. */
#define IBX_IMAGE_OF_PTX   1u
#define IBX_IMAGE_OF_CUBIN 2u

/* The header of an image in a fat binary, `head` bytes long. Bytes beyond this structure are not
 * interpreted. */
struct ibx_image_entry {
    uint16_t kind, version;
    uint32_t head;
    uint64_t n; /* bytes of data, with padding */
    uint32_t compressed_n, options_at;
    uint16_t minor, major;
    uint32_t architecture, name_at, name_n;
    uint64_t flags, reserved_too, uncompressed_n;
};

/* The kind and the length of the image at *code, within `most` bytes. SIZE_MAX: the length is known
 * only from the image; a wrapper is replaced by the fat binary that it points to. PTX is followed
 * by a NUL. */
enum ibx_image_kind ibx_image_measure(const void **code, size_t most, size_t *n);
/* Writes the headers with which a cubin or PTX of n bytes becomes a fat binary; returns their
 * bytes. The image is followed by zeros up to a multiple of 8. */
size_t ibx_image_head(uint8_t head[IBX_IMAGE_HEADER], enum ibx_image_kind kind, const void *image,
                      size_t n);
struct ibx_image_wrapper ibx_image_wrap(const void *fat);
/* The fat binary of a wrapper, and its length by its own header; NULL: it is no wrapper of one. */
const uint8_t *ibx_image_wrapped(const struct ibx_image_wrapper *wrapper, size_t *n);

/* Iterates over the images of a fat binary of n bytes: returns the data of the image whose header
 * is at *at, e->n bytes, and moves *at to the next header. NULL: no further image, or it is
 * malformed. */
const uint8_t *ibx_image_next(const uint8_t *fat, size_t n, size_t *at, struct ibx_image_entry *e);
/* Whether an image of a fat binary of n bytes is compressed. */
bool ibx_image_is_compressed(const uint8_t *fat, size_t n);
/* The architectures of the devices that are to load images, as images state theirs: 90 is compute
 * capability 9.0. None: not known. */
#define IBX_IMAGE_TARGETS 64u
struct ibx_image_targets {
    unsigned count, of[IBX_IMAGE_TARGETS];
};
/* Decompresses: a fat binary, *expanded bytes, which the caller frees, with the images that the
 * driver chooses for these devices; with all images, if that is not certain for each of them. NULL:
 * no image is compressed, or one cannot be decompressed, which is logged. */
uint8_t *ibx_image_expand(const uint8_t *fat, size_t n, const struct ibx_image_targets *targets,
                          size_t *expanded);
/* The same for a wrapper; returns a new one, which _free_wrapped() frees. */
struct ibx_image_wrapper *ibx_image_expand_wrapped(const void *wrapper,
                                                   const struct ibx_image_targets *targets);
void ibx_image_free_wrapped(struct ibx_image_wrapper *wrapper);

/* Whether none of the images is a cubin. GVirtuS reads kernels' arguments from cubins only. */
bool ibx_image_lacks_cubin(const struct ibx_image_wrapper *wrapper);

enum ibx_image_part { IBX_IMAGE_KERNEL, IBX_IMAGE_VARIABLE, IBX_IMAGE_CONSTANT, IBX_IMAGE_MANAGED };

/* Called for each kernel (n is 0) and each variable of n bytes. */
typedef void ibx_image_found(const char *name, size_t length, size_t n, enum ibx_image_part what,
                             void *argument);
/* Calls `found` for all kernels and variables in a fat binary of n bytes. False: it is malformed
 * or, with *compressed, an image is compressed in an unknown way. */
bool ibx_image_look(const uint8_t *fat, size_t n, ibx_image_found *found, void *argument,
                    bool *compressed);

/* The initial bytes of a variable of `bytes` bytes; NULL: zeros. False: no cubin has the variable,
 * or the driver writes addresses into it when it loads the module. */
bool ibx_image_begins(const uint8_t *fat, size_t n, const char *name, size_t bytes,
                      const uint8_t **begin);

#define IBX_IMAGE_PARAMETERS 32768u /* bytes of a kernel's parameters, at most */
struct ibx_image_parameter {
    uint32_t at, n; /* the offset among all parameters, and the length, in bytes */
    bool elsewhere; /* the driver may have it at another offset: PTX does not say where, if it or an
                       earlier one is aligned to more than the driver's area for arguments */
};
/* The parameters of a kernel in their order, *count of them, as a cubin has them, or only otherwise
 * PTX; the caller frees them. NULL: no readable image has the kernel, or there is no memory. */
struct ibx_image_parameter *ibx_image_parameters(const uint8_t *fat, size_t n, const char *kernel,
                                                 size_t *count);

#endif
