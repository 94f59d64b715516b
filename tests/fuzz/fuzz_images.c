/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images of kernels that a program loads: cubin, PTX, and fat binaries, also compressed ones.
 * What is found in an image lies within it. An expanded image contains nothing compressed, and
 * the same images. */
#include "frontend-glue/preload/kernels/images.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bounds {
    const uint8_t *begin;
    size_t n;
    unsigned kernels, variables;
};

static void measure_parameters(const char *name, size_t length, const uint8_t *fat, size_t n);
static void find_bytes(const char *name, size_t length, size_t bytes, const struct bounds *b);

static void note(const char *name, size_t length, size_t n, enum ibx_image_part what,
                 void *argument)
{
    struct bounds *b = argument;
    const uint8_t *at = (const uint8_t *)name;
    require(length && at >= b->begin && length <= b->n && at + length <= b->begin + b->n);
    require((what == IBX_IMAGE_KERNEL) == !n);
    if (!n && !b->kernels++)
        measure_parameters(name, length, b->begin, b->n);
    if (n && b->variables++ < 4)
        find_bytes(name, length, n, b);
}

/* A kernel's parameters, for anything that is a name. */
static void measure_parameters(const char *name, size_t length, const uint8_t *fat, size_t n)
{
    size_t count = 0;
    char *kernel = strndup(name, length);
    require(kernel != NULL);
    struct ibx_image_parameter *all = ibx_image_parameters(fat, n, kernel, &count);
    require(count <= IBX_IMAGE_PARAMETERS);
    for (size_t i = 0; all && i < count; i++)
        require(all[i].at <= UINT16_MAX + UINT32_C(65536) && all[i].n <= UINT16_MAX);
    free(all);
    free(kernel);
}

/* The initial bytes of a variable: all of them can be read. */
static void find_bytes(const char *name, size_t length, size_t bytes, const struct bounds *b)
{
    const uint8_t *at = NULL;
    char *variable = strndup(name, length);
    require(variable != NULL);
    if (ibx_image_begins(b->begin, b->n, variable, bytes, &at) && at)
        require(at >= b->begin && bytes <= b->n && at + bytes <= b->begin + b->n);
    free(variable);
}

static bool look(const uint8_t *fat, size_t n, bool *compressed)
{
    struct bounds b = {fat, n, 0, 0};
    return ibx_image_look(fat, n, note, &b, compressed);
}

static size_t images_of(const uint8_t *fat, size_t n)
{
    struct ibx_image_entry e;
    size_t count = 0;
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < n && ibx_image_next(fat, n, &at, &e);)
        count++;
    return count;
}

static void expand_for(const uint8_t *fat, size_t n, const struct ibx_image_targets *targets)
{
    bool compressed = false;
    size_t all, again;
    uint8_t *plain = ibx_image_expand(fat, n, targets, &all);
    if (!plain)
        return;
    require(ibx_image_is_compressed(fat, n) && !ibx_image_is_compressed(plain, all));
    require(targets->count ? images_of(plain, all) && images_of(plain, all) <= images_of(fat, n)
                           : images_of(plain, all) == images_of(fat, n));
    require(look(plain, all, &compressed) || !compressed);
    require(!ibx_image_expand(plain, all, targets, &again));
    free(plain);
}

static void expand(const uint8_t *fat, size_t n)
{
    expand_for(fat, n, &(struct ibx_image_targets){.count = 0});
    expand_for(fat, n, &(struct ibx_image_targets){2, {90, 89}});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[IBX_IMAGE_HEADER];
    const void *code = data;
    size_t n = 0;
    bool compressed;
    if (size < sizeof(uint64_t))
        return 0;
    const enum ibx_image_kind kind = ibx_image_measure(&code, size, &n);
    if (kind == IBX_IMAGE_NONE)
        return 0;
    require(code == data && n <= size);
    if (kind == IBX_IMAGE_FAT) {
        look(data, n, &compressed);
        expand(data, n);
        return 0;
    }
    const size_t before = ibx_image_head(head, kind, data, n), rest = (n + 7) & ~(size_t)7;
    require(before <= sizeof(head));
    uint8_t *fat = calloc(1, before + rest);
    require(fat != NULL);
    memcpy(fat, head, before);
    memcpy(fat + before, data, n);
    look(fat, before + rest, &compressed);
    require(images_of(fat, before + rest) == 1);
    free(fat);
    return 0;
}
