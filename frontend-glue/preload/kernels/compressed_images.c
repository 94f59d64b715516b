/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * nvcc compresses the images of a program, since CUDA 12.8 by Zstandard, before by LZ4. GVirtuS
 * reads LZ4 at most, and refuses a module if it cannot read one of its images. So it gets images
 * decompressed. A module may have an image for each of many architectures, and both ends keep what
 * GVirtuS gets: of PyTorch's, all images take 14 GB in each.
 *
 * The two libraries are loaded only when an image needs them. This library is in every process of a
 * program that uses GVirtuS, where its dependencies would precede the program's own.
 */
#include "frontend-glue/preload/kernels/images.h"

#include "common/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#define ZSTANDARD  0x8000u /* flag of an image in Zstandard */
#define LZ4        0x2000u
#define COMPRESSED 0xf000u
#define LZ4_RATIO  255u /* the highest that LZ4 can have */

/* A function of a library that is loaded now; NULL, with a message: it is missing. */
static void *function_of(const char *library, const char *package, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *function = handle ? dlsym(handle, name) : NULL;
    if (!function)
        ibx_log(IBX_LOG_WARN,
                "the program's kernels are compressed, and %s, which reads them, cannot be loaded "
                "(%s): install it (Debian: %s), or compile with nvcc --no-compress",
                library, dlerror(), package);
    if (handle)
        dlclose(handle);
    return function;
}

/* Whether the uncompressed length in the header is plausible, before memory is allocated for it. */
static bool is_of_that_length(const struct ibx_image_entry *e, const uint8_t *image)
{
    __typeof__(&ZSTD_getFrameContentSize) length;
    if (e->compressed_n > e->n || e->uncompressed_n > INT_MAX)
        return false;
    if ((e->flags & COMPRESSED) != ZSTANDARD)
        return e->uncompressed_n / LZ4_RATIO <= e->compressed_n;
    *(void **)&length = function_of("libzstd.so.1", "libzstd1", "ZSTD_getFrameContentSize");
    return length && length(image, e->compressed_n) == e->uncompressed_n;
}

/* Decompresses into exactly `to_n` bytes. */
static bool read_zstandard(uint8_t *to, size_t to_n, const uint8_t *from, size_t n)
{
    __typeof__(&ZSTD_decompress) read_image;
    *(void **)&read_image = function_of("libzstd.so.1", "libzstd1", "ZSTD_decompress");
    return read_image && read_image(to, to_n, from, n) == to_n;
}

static bool read_lz4(uint8_t *to, size_t to_n, const uint8_t *from, size_t n)
{
    __typeof__(&LZ4_decompress_safe) read_image;
    *(void **)&read_image = function_of("liblz4.so.1", "liblz4-1", "LZ4_decompress_safe");
    return read_image && n <= INT_MAX &&
           read_image((const char *)from, (char *)to, (int)n, (int)to_n) == (int)to_n;
}

static size_t padded(uint64_t n)
{
    return (n + 7) & ~(uint64_t)7;
}

/* ------------------------------------------------------------------------ which images are used */

/* Of each target the architecture of the cubins that its driver chooses; no target: it takes all
 * images. */
struct chosen {
    unsigned count, of[IBX_IMAGE_TARGETS];
};

/* Whether a device surely loads a cubin of that architecture. Others may, too: but some cubins of
 * 9.0 and more are for that architecture alone, and embedded devices load none of others. */
static bool surely_loads(unsigned target, const struct ibx_image_entry *e)
{
    const unsigned of = e->architecture;
    return e->kind == IBX_IMAGE_OF_CUBIN &&
           (of == target || (of == 80 && target == 86) || ((of == 80 || of == 86) && target == 89));
}

/* The highest architecture of a cubin that the target surely loads; 0: there is none. */
static unsigned best_for(unsigned target, const uint8_t *fat, size_t n)
{
    struct ibx_image_entry e;
    unsigned best = 0;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n && ibx_image_next(fat, n, &at, &e);)
        if (surely_loads(target, &e) && e.architecture > best)
            best = e.architecture;
    return best;
}

static struct chosen choose(const uint8_t *fat, size_t n, const struct ibx_image_targets *targets)
{
    struct chosen c = {.count = targets->count};
    for (unsigned i = 0; i < targets->count; i++) {
        c.of[i] = best_for(targets->of[i], fat, n);
        if (!c.of[i])
            return (struct chosen){.count = 0};
    }
    return c;
}

static bool is_chosen(const struct chosen *c, const struct ibx_image_entry *e)
{
    bool is = !c->count;
    for (unsigned i = 0; i < c->count && !is; i++)
        is = e->kind == IBX_IMAGE_OF_CUBIN && e->architecture == c->of[i];
    return is;
}

/* -------------------------------------------------------------------------------- decompression */

/* The length of the chosen images when decompressed, with headers; 0: no image is compressed, or
 * one is malformed. */
static size_t measure(const uint8_t *fat, size_t n, const struct chosen *chosen)
{
    struct ibx_image_entry e;
    size_t all = IBX_IMAGE_FAT_HEAD;
    bool any = false;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n;) {
        const uint8_t *image = ibx_image_next(fat, n, &at, &e);
        if (!image)
            return 0;
        any = any || e.uncompressed_n;
        if (!is_chosen(chosen, &e))
            continue;
        if (e.uncompressed_n && !is_of_that_length(&e, image))
            return 0;
        if (__builtin_add_overflow(
                all, e.head + (e.uncompressed_n ? padded(e.uncompressed_n) : e.n), &all))
            return 0;
    }
    return any ? all : 0;
}

/* Writes one image with its header, decompressed. */
static bool expand_one(uint8_t *to, const uint8_t *head, const uint8_t *image,
                       struct ibx_image_entry *e)
{
    const size_t n = e->uncompressed_n;
    const uint64_t how = e->flags & COMPRESSED;
    memcpy(to, head, e->head);
    if (!n) {
        memcpy(to + e->head, image, e->n);
        return true;
    }
    if (!(how == ZSTANDARD ? read_zstandard(to + e->head, n, image, e->compressed_n)
          : how == LZ4     ? read_lz4(to + e->head, n, image, e->compressed_n)
                           : false))
        return false;
    memset(to + e->head + n, 0, padded(n) - n);
    e->n = padded(n);
    e->compressed_n = 0;
    e->uncompressed_n = 0;
    e->flags &= ~(uint64_t)COMPRESSED;
    memcpy(to, e, sizeof(*e));
    return true;
}

bool ibx_image_is_compressed(const uint8_t *fat, size_t n)
{
    struct ibx_image_entry e;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n && ibx_image_next(fat, n, &at, &e);)
        if (e.uncompressed_n)
            return true;
    return false;
}

uint8_t *ibx_image_expand(const uint8_t *fat, size_t n, const struct ibx_image_targets *targets,
                          size_t *expanded)
{
    struct ibx_image_entry e;
    const struct chosen chosen = choose(fat, n, targets);
    const size_t all = measure(fat, n, &chosen);
    uint8_t *to = all ? malloc(all) : NULL;
    if (!to)
        return NULL;
    memcpy(to, fat, IBX_IMAGE_FAT_HEAD);
    for (size_t at = IBX_IMAGE_FAT_HEAD, done = IBX_IMAGE_FAT_HEAD; at < n;) {
        const uint8_t *head = fat + at, *image = ibx_image_next(fat, n, &at, &e);
        if (!is_chosen(&chosen, &e))
            continue;
        if (!expand_one(to + done, head, image, &e)) {
            free(to);
            return NULL;
        }
        done += e.head + e.n;
    }
    const uint64_t length = all - IBX_IMAGE_FAT_HEAD;
    memcpy(to + 8, &length, sizeof(length));
    *expanded = all;
    return to;
}

struct ibx_image_wrapper *ibx_image_expand_wrapped(const void *wrapper,
                                                   const struct ibx_image_targets *targets)
{
    size_t n, expanded;
    const uint8_t *fat = ibx_image_wrapped(wrapper, &n);
    uint8_t *to = fat ? ibx_image_expand(fat, n, targets, &expanded) : NULL;
    struct ibx_image_wrapper *w = to ? malloc(sizeof(*w)) : NULL;
    if (!w) {
        free(to);
        return NULL;
    }
    memcpy(w, wrapper, sizeof(*w));
    w->data = to;
    return w;
}

void ibx_image_free_wrapped(struct ibx_image_wrapper *wrapper)
{
    if (wrapper)
        free((void *)(uintptr_t)wrapper->data);
    free(wrapper);
}
