/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Fat binaries that clients register. Handlers follow all offsets and lengths in them: those of the
 * images, of the sections of a cubin, and of the parameters of its kernels, which are the places of
 * the arguments in an array on the handler's stack.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include "common/wire.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FAT_MAGIC     0xba55ed50u
#define FAT_HEAD      16u  /* bytes of a fat binary before its first image */
#define IMAGE_HEAD    64u  /* of an image, at least */
#define CUBIN         2u   /* a kind of image */
#define LZ4_RATIO     255u /* the most that a byte becomes */
#define LZ4_LAST      64u
#define INFO          ".nv.info." /* the sections that have parameters of kernels begin so */
#define PARAMETER     0x17u       /* EIATTR_KPARAM_INFO, of PARAMETER_BYTES */
#define SIZED         4u          /* EIFMT_SVAL: a value of that size follows */
#define ATTRIBUTE     4u          /* bytes of an attribute without such a value */

#define PARAMETER_BYTES 16u
#define PARAMETERS      32768u /* more than a kernel can have */
#define KERNEL_BYTES    128u   /* of a kernel in a map of the handler's, at most */

struct bytes {
    const uint8_t *at;
    uint64_t n;
};

/* Whether `bytes` of a whole begin at `from`. */
static bool contains(const struct bytes *whole, uint64_t from, uint64_t bytes)
{
    return from <= whole->n && bytes <= whole->n - from;
}

static uint64_t number(const struct bytes *whole, uint64_t at, unsigned bytes)
{
    return ibx_body_number(whole->at, whole->n, at, bytes);
}

/* ------------------------------------------------------------------------------ cubins */

/* The parameters of a kernel: each has a place of its own among all of them. */
static bool parameters_fit(const struct bytes *section)
{
    unsigned count = 0, last = 0;
    for (uint64_t at = 0; at < section->n;) {
        if (!contains(section, at, ATTRIBUTE))
            return false;
        const uint64_t format = number(section, at, 1), what = number(section, at + 1, 1);
        if (what == PARAMETER) {
            if (format != SIZED || !contains(section, at, PARAMETER_BYTES))
                return false; /* G3's handler would note it without end */
            const unsigned ordinal = (unsigned)number(section, at + 8, 2);
            last = ordinal > last ? ordinal : last;
            count++;
        }
        at += ATTRIBUTE + (format == SIZED ? number(section, at + 2, 2) : 0);
    }
    return count <= PARAMETERS && (!count || last < count);
}

static Elf64_Shdr header_of(const struct bytes *cubin, const Elf64_Ehdr *elf, unsigned i)
{
    Elf64_Shdr header;
    memcpy(&header, cubin->at + elf->e_shoff + i * sizeof(header), sizeof(header));
    return header;
}

/* Adds the section of a kernel, and its name, to *used: bytes of the cubin. Sections and names that
 * overlap would make more of these than there are, which the handler all copies. */
static bool section_fits(const struct bytes *cubin, const struct bytes *names,
                         const Elf64_Shdr *header, uint64_t *used, uint64_t *kept)
{
    if (header->sh_name >= names->n)
        return false;
    const char *name = (const char *)names->at + header->sh_name;
    if (strncmp(name, INFO, strlen(INFO)) != 0)
        return true;
    if (!contains(cubin, header->sh_offset, header->sh_size))
        return false;
    *used += strlen(name) + header->sh_size;
    *kept += strlen(name) + header->sh_size + KERNEL_BYTES;
    const struct bytes section = {cubin->at + header->sh_offset, header->sh_size};
    return *used <= cubin->n && parameters_fit(&section);
}

/* Adds what the handler keeps of its kernels to *kept. */
static bool cubin_fits(const struct bytes *cubin, uint64_t *kept)
{
    uint64_t used = 0;
    Elf64_Ehdr elf;
    if (!contains(cubin, 0, sizeof(elf)) || memcmp(cubin->at, ELFMAG, SELFMAG) != 0)
        return false;
    memcpy(&elf, cubin->at, sizeof(elf));
    if (elf.e_shentsize != sizeof(Elf64_Shdr) || elf.e_shstrndx >= elf.e_shnum ||
        !contains(cubin, elf.e_shoff, elf.e_shnum * sizeof(Elf64_Shdr)))
        return false;
    const Elf64_Shdr strings = header_of(cubin, &elf, elf.e_shstrndx);
    if (!contains(cubin, strings.sh_offset, strings.sh_size))
        return false;
    const struct bytes names = {cubin->at + strings.sh_offset, strings.sh_size};
    if (!names.n || names.at[names.n - 1])
        return false;
    for (unsigned i = 0; i < elf.e_shnum; i++) {
        const Elf64_Shdr header = header_of(cubin, &elf, i);
        if (!section_fits(cubin, &names, &header, &used, kept))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------ images */

/* G5's handler decompresses a cubin by LZ4, whatever it was compressed with. It gives up if LZ4
 * fails, and parses the whole buffer if LZ4 fills only a part. G3's does not look into it. */
static bool compressed_fits(const struct bytes *image, uint64_t uncompressed, uint64_t *kept)
{
    const uint64_t most = image->n * LZ4_RATIO + LZ4_LAST;
    const uint64_t room = uncompressed < most ? uncompressed : most;
    __typeof__(&LZ4_decompress_safe) expand = NULL;
    void *library = dlopen("liblz4.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return true; /* then the handler has not got it either */
    *(void **)&expand = dlsym(library, "LZ4_decompress_safe");
    uint8_t *to = expand ? malloc(room) : NULL;
    bool fits = false;
    if (to) {
        const struct bytes whole = {to, uncompressed};
        const int made = expand((const char *)image->at, (char *)to, (int)image->n, (int)room);
        fits = made < 0 || ((uint64_t)made == uncompressed && cubin_fits(&whole, kept));
    }
    free(to);
    dlclose(library);
    return fits;
}

struct image {
    uint64_t kind, uncompressed, compressed;
    struct bytes bytes;
};

/* Reads the header at *at, and moves *at behind its image. */
static bool next_image(const struct bytes *fat, uint64_t *at, struct image *image)
{
    if (!contains(fat, *at, IMAGE_HEAD))
        return false;
    const uint64_t head = number(fat, *at + 4, 4), n = number(fat, *at + 8, 4);
    if (head < IMAGE_HEAD || !contains(fat, *at, head + n))
        return false;
    *image = (struct image){.kind = number(fat, *at, 2),
                            .compressed = number(fat, *at + 16, 4),
                            .uncompressed = number(fat, *at + 56, 8),
                            .bytes = {fat->at + *at + head, n}};
    *at += head + n;
    return true;
}

static bool image_fits(struct image *image, uint64_t *kept)
{
    if (!image->uncompressed)
        return image->kind != CUBIN || cubin_fits(&image->bytes, kept);
    if (image->compressed > image->bytes.n || image->compressed > INT_MAX ||
        image->uncompressed > INT_MAX)
        return false;
    image->bytes.n = image->compressed;
    return image->kind != CUBIN || compressed_fits(&image->bytes, image->uncompressed, kept);
}

/* Its header, and all of its images; *at: where these begin. */
static bool find_images(const struct bytes *all, struct bytes *fat, uint64_t *at)
{
    if (!contains(all, 0, FAT_HEAD) || number(all, 0, 4) != FAT_MAGIC)
        return false;
    const uint64_t head = number(all, 6, 2), n = number(all, 8, 8);
    if (head < FAT_HEAD || !contains(all, head, n))
        return false;
    *fat = (struct bytes){all->at, head + n};
    *at = head;
    return true;
}

static bool fat_fits(const struct bytes *all, uint64_t *kept)
{
    struct bytes fat;
    struct image image;
    uint64_t at, by_g3 = 0;
    if (!find_images(all, &fat, &at))
        return false;
    while (at < fat.n) {
        if (!next_image(&fat, &at, &image) || !image_fits(&image, kept))
            return false;
    }
    if (fat.n <= FAT_HEAD + IMAGE_HEAD + SELFMAG)
        return true;
    /* G3 looks for a cubin behind headers of the usual length only. */
    const struct bytes first = {fat.at + FAT_HEAD + IMAGE_HEAD, fat.n - FAT_HEAD - IMAGE_HEAD};
    const bool fits = memcmp(first.at, ELFMAG, SELFMAG) != 0 || cubin_fits(&first, &by_g3);
    *kept = by_g3 > *kept ? by_g3 : *kept;
    return fits;
}

/* ------------------------------------------------------------------- images of the driver */

/* Whether all of it that the headers name is there. What is in it is up to CUDA. */
static bool elf_fits(const struct bytes *image)
{
    Elf64_Ehdr elf;
    if (!contains(image, 0, sizeof(elf)))
        return false;
    memcpy(&elf, image->at, sizeof(elf));
    if ((elf.e_shnum && elf.e_shentsize != sizeof(Elf64_Shdr)) ||
        (elf.e_phnum && elf.e_phentsize != sizeof(Elf64_Phdr)) ||
        !contains(image, elf.e_shoff, elf.e_shnum * sizeof(Elf64_Shdr)) ||
        !contains(image, elf.e_phoff, elf.e_phnum * sizeof(Elf64_Phdr)))
        return false;
    for (unsigned i = 0; i < elf.e_shnum; i++) {
        const Elf64_Shdr header = header_of(image, &elf, i);
        if (header.sh_type != SHT_NOBITS && header.sh_type != SHT_NULL &&
            !contains(image, header.sh_offset, header.sh_size))
            return false;
    }
    return true;
}

bool ibx_image_fits(const uint8_t *bytes, size_t n)
{
    const struct bytes image = {bytes, n};
    const uint64_t magic = n < 4 ? 0 : number(&image, 0, 4);
    if (n >= SELFMAG && !memcmp(bytes, ELFMAG, SELFMAG))
        return elf_fits(&image);
    if (magic == FAT_MAGIC)
        return contains(&image, 0, FAT_HEAD) &&
               contains(&image, number(&image, 6, 2), number(&image, 8, 8));
    return magic != WRAPPER_MAGIC && n && !bytes[n - 1];
}

bool ibx_image_string_fits(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t length = ibx_get_u64(&r), again = ibx_get_u64(&r);
    if (r.failed || !again) /* the handler finds too few bytes, or CUDA gets NULL */
        return true;
    return length <= ibx_reader_left(&r) && ibx_image_fits(body + r.position, (size_t)length);
}

/* --------------------------------------------------------------------------- registrations */

/* A string, which a handler skips only if its second length is not 0, two u32 of the wrapper, the
 * length, and that once more before the bytes. False: the handler finds too few bytes, or refuses
 * the wrapper. all->at NULL: it follows NULL. */
static bool find_fat(const uint8_t *body, size_t n, struct bytes *all)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t name = ibx_get_u64(&r), again = ibx_get_u64(&r);
    if (again && (name > ibx_reader_left(&r) || !ibx_get_bytes(&r, (size_t)name)))
        return false;
    const uint32_t magic = ibx_get_u32(&r);
    ibx_get_u32(&r);
    all->n = ibx_get_u64(&r);
    all->at = ibx_get_u64(&r) ? body + r.position : NULL;
    return !r.failed && magic == WRAPPER_MAGIC && (!all->at || all->n <= ibx_reader_left(&r));
}

/* Whether the sum of the name's length and of what is before it wraps around: the handler would
 * move back, and find the wrapper elsewhere. */
static bool moves_back(const uint8_t *body, size_t n)
{
    return ibx_body_number(body, n, 8, 8) && ibx_body_number(body, n, 0, 8) > UINT64_MAX - 16;
}

bool ibx_fat_binary_fits(const uint8_t *body, size_t n, uint64_t *kept)
{
    struct bytes all;
    *kept = 0;
    if (moves_back(body, n))
        return false;
    return !find_fat(body, n, &all) || (all.at && fat_fits(&all, kept));
}

uint64_t ibx_fat_binary_unpacked(const uint8_t *body, size_t n)
{
    struct bytes all, fat;
    struct image image;
    uint64_t at, most = 0;
    if (!find_fat(body, n, &all) || !all.at || !find_images(&all, &fat, &at))
        return 0;
    while (at < fat.n && next_image(&fat, &at, &image))
        most = image.uncompressed > most ? image.uncompressed : most;
    return most > UINT64_MAX / 2 ? UINT64_MAX : 2 * most;
}
