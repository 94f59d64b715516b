/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Images of kernels, and bytes that are not images: nothing behind their ends is read. */
#include "frontend-glue/preload/kernels/images.h"

#include <elf.h>
#include <lz4.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <cmocka.h>

#define CHANGED 20000u /* number of changed images */

static const char ptx[] = ".version 8.4\n.target sm_90a\n.address_size 64\n"
                          ".visible .entry\tfirst(.param .u64 p)\n{\nret;\n}\n"
                          "/* .entry no */ // .entry neither\n.entry second$1(){}";
static const char ptx_variables[] =
    ".version 8.4\n.target sm_90\n.file 1 \"a { .global .u32 b;\"\n"
    ".extern .global .align 4 .u32 theirs;\n.global .align 4 .u32 one = 3;\n"
    ".visible .global .attribute(.managed) .align 16 .v4 .f32 four [2][0x3] = {1, 2};\n"
    ".const .b8 con[8];.global .texref no;.global .u8 open[] = {1};.shared .u32 shared;\n"
    ".visible .const .align 8 .u64/* .b8 */last={generic(one)};\n"
    ".func f(){ .global .u32 within; .reg .u32 r; }.global .b8 many[1099511627776][16777216];\n"
    ".entry k(.param .u64 p){ ld.global.u32 %r1, [one]; }.global .b64 unfinished[2";

/* A cubin with a kernel, a function and variables. */
struct cubin {
    Elf64_Ehdr head;
    Elf64_Shdr sections[6];
    Elf64_Sym symbols[5];
    char names[40], texts[40];
};

static struct cubin cubin(void)
{
    struct cubin c = {
        .head = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, [EI_ABIVERSION] = 8},
                 .e_flags = 100 << 8,
                 .e_shoff = offsetof(struct cubin, sections),
                 .e_shentsize = sizeof(Elf64_Shdr),
                 .e_shnum = 6,
                 .e_shstrndx = 4},
        .sections = {[1] = {.sh_name = 1, .sh_type = SHT_PROGBITS, .sh_offset = 64, .sh_size = 8},
                     [2] = {.sh_name = 9, .sh_type = SHT_NOBITS, .sh_offset = 1 << 30},
                     [3] = {.sh_type = SHT_SYMTAB,
                            .sh_offset = offsetof(struct cubin, symbols),
                            .sh_size = sizeof(c.symbols),
                            .sh_link = 5},
                     [4] = {.sh_type = SHT_STRTAB,
                            .sh_offset = offsetof(struct cubin, names),
                            .sh_size = sizeof(c.names)},
                     [5] = {.sh_type = SHT_STRTAB,
                            .sh_offset = offsetof(struct cubin, texts),
                            .sh_size = sizeof(c.texts)}},
        .symbols = {{.st_name = 1, .st_info = STT_FUNC, .st_other = 0x10, .st_shndx = 1},
                    {.st_name = 8, .st_info = STT_FUNC, .st_shndx = 1},
                    {.st_name = 12, .st_info = STT_OBJECT, .st_size = 12, .st_shndx = 2},
                    {.st_name = 16, .st_info = STT_OBJECT, .st_size = 16, .st_shndx = 1}},
    };
    memcpy(c.names, "\0.nv.constant3\0", 16);
    c.sections[1].sh_name = 1;
    memcpy(c.names + 16, ".nv.global", 11);
    c.sections[2].sh_name = 16;
    memcpy(c.texts, "\0kernel\0fun\0var\0con", 20);
    return c;
}

static void note(const char *name, size_t length, size_t n, enum ibx_image_part what,
                 void *argument)
{
    char *all = argument;
    const size_t at = strlen(all);
    assert_true(length == strnlen(name, length));
    if (at < 200)
        snprintf(all + at, 256 - at, "%.*s:%zu%s ", (int)(length < 20 ? length : 20), name, n,
                 what == IBX_IMAGE_CONSTANT  ? "c"
                 : what == IBX_IMAGE_MANAGED ? "m"
                                             : "");
    assert_true((what == IBX_IMAGE_KERNEL) == !n);
}

/* Makes a fat binary that contains this image. The caller frees it. */
static uint8_t *fat_of(const void *image, size_t *n)
{
    const void *code = image;
    const enum ibx_image_kind kind = ibx_image_measure(&code, *n, n);
    assert_true(kind == IBX_IMAGE_PTX || kind == IBX_IMAGE_CUBIN);
    uint8_t *fat = calloc(1, IBX_IMAGE_HEADER + ((*n + 7) & ~(size_t)7));
    assert_non_null(fat);
    const size_t head = ibx_image_head(fat, kind, image, *n);
    assert_true(head <= IBX_IMAGE_HEADER);
    memcpy(fat + head, image, *n);
    *n = head + ((*n + 7) & ~(size_t)7);
    return fat;
}

static void test_contents_of_an_image(void **state)
{
    (void)state;
    const struct cubin c = cubin();
    char found[256] = "";
    bool compressed = true;
    size_t n = sizeof(c);
    uint8_t *fat = fat_of(&c, &n);
    assert_true(ibx_image_look(fat, n, note, found, &compressed) && !compressed);
    assert_string_equal(found, "kernel:0 var:12 con:16c ");
    struct cubin managed = c;
    managed.symbols[2].st_other = 4;
    n = sizeof(c);
    uint8_t *other = fat_of(&managed, &n);
    found[0] = 0;
    assert_true(ibx_image_look(other, n, note, found, &compressed));
    assert_string_equal(found, "kernel:0 var:12m con:16c ");
    free(other);
    assert_int_equal(fat[16 + 28], 100); /* its architecture, and its ABI */
    assert_int_equal(fat[16 + 24], 8);
    const struct ibx_image_wrapper wrapper = ibx_image_wrap(fat);
    const void *code = &wrapper;
    size_t again = 0;
    assert_int_equal(ibx_image_measure(&code, SIZE_MAX, &again), IBX_IMAGE_FAT);
    assert_true(code == fat && again == n);
    free(fat);
    *found = 0;
    n = sizeof(ptx);
    fat = fat_of(ptx, &n);
    assert_true(ibx_image_look(fat, n, note, found, &compressed));
    assert_string_equal(found, "first:0 second$1:0 ");
    assert_int_equal(fat[16 + 28], 90);
    assert_true(fat[16 + 24] == 4 && fat[16 + 26] == 8);
    /* The offset of its options, as `fatbinary` writes it; the driver looks there. */
    const uint8_t options_at[4] = {64}, options[16] = {72};
    assert_memory_equal(fat + 16 + 20, options_at, sizeof(options_at));
    assert_memory_equal(fat + 16 + 64, options, sizeof(options));
    assert_int_equal(fat[16 + 4], 80);
    char variables[256] = "";
    n = sizeof(ptx_variables);
    uint8_t *more = fat_of(ptx_variables, &n);
    assert_true(ibx_image_look(more, n, note, variables, &compressed));
    assert_string_equal(variables, "one:4 four:96m con:8c last:8c k:0 ");
    free(more);
    fat[16 + 56] = 1; /* the uncompressed length */
    assert_true(!ibx_image_look(fat, n, note, found, &compressed) && compressed);
    free(fat);
}

/* The initial bytes of variables. */
static void test_initial_bytes(void **state)
{
    (void)state;
    struct cubin c = cubin();
    const uint8_t *begin = NULL;
    static const uint64_t outside[] = {1, 1ull << 40, UINT64_MAX - 7, UINT64_MAX};
    for (unsigned i = 0; i < 4; i++) {
        c.sections[1].sh_size = 16;
        c.symbols[3].st_value = outside[i];
        size_t n = sizeof(c);
        uint8_t *fat = fat_of(&c, &n);
        assert_false(ibx_image_begins(fat, n, "con", 16, &begin));
        assert_null(begin);
        free(fat);
    }
    c.symbols[3].st_value = 0;
    size_t n = sizeof(c);
    uint8_t *fat = fat_of(&c, &n);
    assert_true(ibx_image_begins(fat, n, "con", 16, &begin));
    assert_memory_equal(begin, (const uint8_t *)&c + 64, 16);
    assert_false(ibx_image_begins(fat, n, "con", 8, &begin));
    assert_true(ibx_image_begins(fat, n, "var", 12, &begin));
    assert_null(begin); /* zeros */
    assert_false(ibx_image_begins(fat, n, "kernel", 0, &begin));
    free(fat);
}

static void expect_parameters(const void *image, size_t n, const char *kernel, size_t expected,
                              const uint32_t (*layout)[2])
{
    size_t count = 0, all = n;
    uint8_t *fat = fat_of(image, &all);
    struct ibx_image_parameter *found = ibx_image_parameters(fat, all, kernel, &count);
    assert_non_null(found);
    assert_int_equal(count, expected);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(found[i].at, layout[i][0]);
        assert_int_equal(found[i].n, layout[i][1]);
    }
    assert_null(ibx_image_parameters(fat, all, "no_kernel", &count));
    free(found);
    free(fat);
}

/* As nvcc 13 lays out the parameters of
 *   (int *p, struct { char b[3]; } t, struct { char b[5000]; } s, short q, struct { double d;
 *   short s; } u, float4 f), without s in the short one. */
static const uint32_t big_layout[][2] = {{0, 8},    {8, 3},     {11, 5000},
                                         {5012, 2}, {5016, 16}, {5040, 16}};
static const char ptx_parameters[] =
    ".version 9.0\n.target sm_90\n// big_param\n.visible .entry big2(.param .u8 a){}\n"
    ".visible .entry big(\n\t.param .u64 .ptr .global .align 1 big_param_0,\n"
    "\t.param .align 1 .b8 big_param_1[3],\n\t.param .align 1 .b8 big_param_2[5000],\n"
    "\t.param .u16 big_param_3,\n\t.param .align 8 .b8 big_param_4[16],\n"
    "\t.param .align 16 .b8 big_param_5[16]\n)\n{\n}\n.entry none()\n{\n}\n.entry bare{}\n"
    ".entry wrong(.param .align 8 .b8 p[99999])\n{}.entry open(.param .u64 p";
static const uint8_t big_info[] = {
    4,    0x37, 4,    0,    0x82, 0,    0,    0, /* another attribute */
    4,    0x45, 0xc,  0,    0,    0,    0,    0,    5, 0, 0xb0, 0x13, 0x10, 0,    0,
    0,    4,    0x45, 0xc,  0,    0,    0,    0,    0, 4, 0,    0x98, 0x13, 0x10, 0,
    0,    0,    4,    0x45, 0xc,  0,    0,    0,    0, 0, 3,    0,    0x94, 0x13, 2,
    0,    0,    0,    4,    0x45, 0xc,  0,    0,    0, 0, 0,    2,    0,    0xb,  0,
    0x88, 0x13, 0,    0,    4,    0x17, 0xc,  0,    0, 0, 0,    0,    1,    0,    8,
    0,    0,    0xf0, 0x0d, 0,    4,    0x45, 0xc,  0, 0, 0,    0,    0,    0,    0,
    0,    0,    8,    0,    0,    0,    3,    0x50, 0, 0, 3,    0x1b, 0xff, 0};

static void test_parameters(void **state)
{
    size_t n = sizeof(ptx_parameters), count;
    (void)state;
    expect_parameters(ptx_parameters, sizeof(ptx_parameters), "big", 6, big_layout);
    expect_parameters(ptx_parameters, sizeof(ptx_parameters), "none", 0, NULL);
    expect_parameters(ptx_parameters, sizeof(ptx_parameters), "bare", 0, NULL);
    uint8_t *fat = fat_of(ptx_parameters, &n);
    assert_null(ibx_image_parameters(fat, n, "wrong", &count));
    assert_null(ibx_image_parameters(fat, n, "open", &count));
    assert_null(ibx_image_parameters(fat, n, "", &count));
    free(fat);
    struct {
        struct cubin c;
        uint8_t info[sizeof(big_info)];
    } with = {.c = cubin()};
    memcpy(with.info, big_info, sizeof(big_info));
    memcpy(with.c.names, "\0.nv.info.big\0.nv.info.none", 28);
    with.c.sections[1].sh_size = 0;
    with.c.sections[2] = (Elf64_Shdr){.sh_name = 14, .sh_type = 0x70000000, .sh_offset = 64};
    with.c.sections[1] = (Elf64_Shdr){.sh_name = 1,
                                      .sh_type = 0x70000000,
                                      .sh_offset = sizeof(struct cubin),
                                      .sh_size = sizeof(big_info)};
    expect_parameters(&with, sizeof(with), "big", 6, big_layout);
    expect_parameters(&with, sizeof(with), "none", 0, NULL);
    with.info[2] = 0xff; /* an entry that extends beyond the section */
    n = sizeof(with);
    fat = fat_of(&with, &n);
    assert_null(ibx_image_parameters(fat, n, "big", &count));
    free(fat);
    with.info[2] = 4;
    n = sizeof(with);
    fat = fat_of(&with, &n);
    struct cubin *in_fat = memmem(fat, n, ELFMAG, SELFMAG);
    in_fat->sections[1].sh_offset = 1u << 30; /* beyond the cubin */
    assert_null(ibx_image_parameters(fat, n, "big", &count));
    free(ibx_image_parameters(fat, n, "none", &count));
    assert_int_equal(count, 0);
    free(fat);
}

/* More than there is room for at first: in PTX, and in a cubin that tells of the last one alone. */
static void test_many_parameters(void **state)
{
    enum { MANY = 1000 };
    static char text[40 * MANY];
    static uint32_t layout[MANY][2];
    static const uint8_t last[] = {
        4, 0x45, 12, 0, 0, 0, 0, 0, (MANY - 1) % 256, (MANY - 1) / 256, 0x9c, 0x0f, 4, 0, 0, 0};
    (void)state;
    int n = sprintf(text, ".version 9.0\n.target sm_90\n.visible .entry many(.param .u32 a0");
    for (int i = 1; i < MANY; i++)
        n += sprintf(text + n, ", .param .u32 a%d", i);
    n += sprintf(text + n, ")\n{\n}\n");
    for (uint32_t i = 0; i < MANY; i++)
        layout[i][0] = 4 * i, layout[i][1] = 4;
    expect_parameters(text, (size_t)n + 1, "many", MANY, layout);
    struct {
        struct cubin c;
        uint8_t info[sizeof(last)];
    } with = {.c = cubin()};
    memcpy(with.info, last, sizeof(last));
    memcpy(with.c.names, "\0.nv.info.many", 15);
    with.c.sections[1] = (Elf64_Shdr){.sh_name = 1,
                                      .sh_type = 0x70000000,
                                      .sh_offset = sizeof(struct cubin),
                                      .sh_size = sizeof(last)};
    memset(layout, 0, sizeof(layout));
    layout[MANY - 1][0] = 0xf9c, layout[MANY - 1][1] = 4;
    expect_parameters(&with, sizeof(with), "many", MANY, layout);
}

/* Parameters with a larger alignment than the area in which the driver puts them. */
static const char ptx_aligned[] =
    ".version 9.0\n.target sm_90\n.visible .entry big(.param .u32 big_param_0)\n{\n}\n"
    ".visible .entry maps(.param .u64 maps_param_0,\n\t.param .align 128 .b8 maps_param_1[128],"
    "\n\t.param .u32 maps_param_2)\n{\n}\n.visible .entry few(.param .align 16 .b8 p[16])\n{\n}\n";

/* Writes an image of `kind` with this head and the first `n` bytes, which expand to
 * `uncompressed`. */
static size_t put_image(uint8_t *to, uint16_t kind, uint64_t flags, const void *bytes, size_t n,
                        size_t uncompressed)
{
    const size_t room = (n + 7) & ~(size_t)7;
    struct ibx_image_entry e = {.kind = kind,
                                .version = 0x0101,
                                .head = sizeof(e),
                                .n = room,
                                .compressed_n = uncompressed ? (uint32_t)n : 0,
                                .flags = 0x11 | flags,
                                .uncompressed_n = uncompressed};
    memcpy(to, &e, sizeof(e));
    memset(to + sizeof(e), 0, room);
    memcpy(to + sizeof(e), bytes, n);
    return sizeof(e) + room;
}

static void test_places(void **state)
{
    (void)state;
    struct {
        struct cubin c;
        uint8_t info[sizeof(big_info)];
    } with = {.c = cubin()};
    uint8_t fat[6000];
    size_t count = 0, at = 16;
    memcpy(with.info, big_info, sizeof(big_info));
    memcpy(with.c.names, "\0.nv.info.big", 14);
    with.c.sections[1] = (Elf64_Shdr){.sh_name = 1,
                                      .sh_type = 0x70000000,
                                      .sh_offset = sizeof(struct cubin),
                                      .sh_size = sizeof(big_info)};
    with.c.sections[2].sh_name = 0;
    /* nvcc writes the PTX of some architectures before the cubin, which has more information. */
    at += put_image(fat + at, 1, 0, ptx_aligned, sizeof(ptx_aligned), 0);
    at += put_image(fat + at, 2, 0, &with, sizeof(with), 0);
    struct ibx_image_parameter *found = ibx_image_parameters(fat, at, "big", &count);
    assert_non_null(found);
    assert_int_equal(count, 6);
    for (size_t i = 0; i < count; i++)
        assert_true(found[i].at == big_layout[i][0] && !found[i].elsewhere);
    free(found);
    found = ibx_image_parameters(fat, at, "maps", &count);
    assert_non_null(found);
    assert_true(count == 3 && !found[0].elsewhere && found[1].elsewhere && found[2].elsewhere);
    assert_true(found[0].n == 8 && found[1].n == 128 && found[2].n == 4);
    free(found);
    found = ibx_image_parameters(fat, at, "few", &count);
    assert_true(found && count == 1 && !found->at && !found->elsewhere);
    free(found);
}

/* Makes a fat binary of an uncompressed cubin and of the text twice: compressed by Zstandard,
 * and by LZ4. */
static size_t compressed_fat(uint8_t *fat)
{
    const struct cubin c = cubin();
    uint8_t packed[2][1000];
    const size_t n = sizeof(ptx);
    const size_t zstandard = ZSTD_compress(packed[0], sizeof(packed[0]), ptx, n, 19);
    const int lz4 = LZ4_compress_default(ptx, (char *)packed[1], (int)n, sizeof(packed[1]));
    const uint64_t begin = 0x00100001ba55ed50;
    assert_true(!ZSTD_isError(zstandard) && lz4 > 0);
    size_t at = 16;
    at += put_image(fat + at, 2, 0, &c, sizeof(c), 0);
    at += put_image(fat + at, 1, 0x8000, packed[0], zstandard, n);
    at += put_image(fat + at, 1, 0x2000, packed[1], (size_t)lz4, n);
    const uint64_t length = at - 16;
    memcpy(fat, &begin, sizeof(begin));
    memcpy(fat + 8, &length, sizeof(length));
    return at;
}

static const struct ibx_image_targets any;

static void test_compressed(void **state)
{
    (void)state;
    uint8_t fat[4000];
    char found[256] = "";
    bool compressed = true;
    const size_t n = compressed_fat(fat);
    size_t all = 0, again;
    uint8_t *plain = ibx_image_expand(fat, n, &any, &all);
    assert_non_null(plain);
    assert_true(ibx_image_look(plain, all, note, found, &compressed) && !compressed);
    assert_string_equal(found, "kernel:0 var:12 con:16c first:0 second$1:0 first:0 second$1:0 ");
    const void *code = plain;
    assert_int_equal(ibx_image_measure(&code, all, &again), IBX_IMAGE_FAT);
    assert_int_equal(again, all);
    assert_null(ibx_image_expand(plain, all, &any, &again)); /* nothing is compressed */
    free(plain);
    const struct ibx_image_wrapper wrapper = ibx_image_wrap(fat);
    struct ibx_image_wrapper *wrapped = ibx_image_expand_wrapped(&wrapper, &any);
    assert_non_null(wrapped);
    assert_true(wrapped->magic == wrapper.magic && wrapped->data != fat);
    assert_false(ibx_image_lacks_cubin(wrapped));
    ibx_image_free_wrapped(wrapped);
    /* A wrong length, another kind of compression, and bytes that are not compressed. */
    const size_t at = 16 + sizeof(struct ibx_image_entry) + ((sizeof(struct cubin) + 7) & ~7ul);
    fat[at + 56]++;
    assert_null(ibx_image_expand(fat, n, &any, &all));
    fat[at + 56]--;
    fat[at + 41] = 0x40;
    assert_null(ibx_image_expand(fat, n, &any, &all));
    fat[at + 41] = 0x80;
    fat[at + 64]++;
    assert_null(ibx_image_expand(fat, n, &any, &all));
}

/* Makes an image for each of these architectures: cubins, then PTX, all compressed. */
static size_t fat_for(uint8_t *fat, const unsigned *architectures, unsigned count)
{
    const struct cubin c = cubin();
    uint8_t packed[2][1000];
    const uint64_t begin = 0x00100001ba55ed50;
    const size_t of_cubin = ZSTD_compress(packed[0], sizeof(packed[0]), &c, sizeof(c), 19);
    const size_t of_ptx = ZSTD_compress(packed[1], sizeof(packed[1]), ptx, sizeof(ptx), 19);
    size_t at = 16;
    assert_true(!ZSTD_isError(of_cubin) && !ZSTD_isError(of_ptx));
    for (unsigned i = 0; i < 2 * count; i++) {
        const uint32_t architecture = architectures[i % count];
        const size_t here = at;
        at += i < count ? put_image(fat + at, 2, 0x8000, packed[0], of_cubin, sizeof(c))
                        : put_image(fat + at, 1, 0x8000, packed[1], of_ptx, sizeof(ptx));
        memcpy(fat + here + 28, &architecture, sizeof(architecture));
    }
    const uint64_t length = at - 16;
    memcpy(fat, &begin, sizeof(begin));
    memcpy(fat + 8, &length, sizeof(length));
    return at;
}

/* Checks the images, as "cubin's architecture " or "pARCHITECTURE ", of a fat binary for these
 * devices. */
static void expect_for(const uint8_t *fat, size_t n, struct ibx_image_targets targets,
                       const char *expected)
{
    struct ibx_image_entry e;
    char found[256] = "";
    size_t all = 0;
    uint8_t *plain = ibx_image_expand(fat, n, &targets, &all);
    assert_non_null(plain);
    for (size_t at = IBX_IMAGE_FAT_HEAD; at < all;) {
        assert_non_null(ibx_image_next(plain, all, &at, &e));
        assert_true(!e.uncompressed_n && strlen(found) < 200);
        snprintf(found + strlen(found), 20, "%s%u ", e.kind == 1 ? "p" : "", e.architecture);
    }
    assert_string_equal(found, expected);
    free(plain);
}

static void test_chosen(void **state)
{
    (void)state;
    static const unsigned architectures[] = {75, 80, 86, 90, 90, 100};
    static const char all[] = "75 80 86 90 90 100 p75 p80 p86 p90 p90 p100 ";
    uint8_t fat[16000];
    const size_t n = fat_for(fat, architectures, 6);
    assert_true(ibx_image_is_compressed(fat, n));
    expect_for(fat, n, any, all);
    expect_for(fat, n, (struct ibx_image_targets){1, {90}}, "90 90 ");
    expect_for(fat, n, (struct ibx_image_targets){1, {80}}, "80 ");
    expect_for(fat, n, (struct ibx_image_targets){3, {90, 75, 90}}, "75 90 90 ");
    expect_for(fat, n, (struct ibx_image_targets){1, {89}}, "86 "); /* Ada loads images of Ampere */
    /* It is unknown whether these devices load any of the cubins, which may be for others only. */
    for (const unsigned *of = (const unsigned[]){70, 72, 87, 103, 120, 0}; *of; of++) {
        expect_for(fat, n, (struct ibx_image_targets){1, {*of}}, all);
        expect_for(fat, n, (struct ibx_image_targets){2, {90, *of}}, all);
    }
    const size_t few = fat_for(fat, architectures, 2);
    expect_for(fat, few, (struct ibx_image_targets){2, {86, 89}}, "80 ");
    expect_for(fat, few, (struct ibx_image_targets){1, {90}}, "75 80 p75 p80 ");
}

static void test_bytes_that_are_not_images(void **state)
{
    (void)state;
    size_t n;
    const char *const none[] = {"", "junk", ".target sm_90", "\177ELF"};
    for (unsigned i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        const void *code = none[i];
        assert_int_equal(ibx_image_measure(&code, strlen(none[i]) + 1, &n), IBX_IMAGE_NONE);
    }
    const void *code = ptx; /* without its NUL */
    assert_int_equal(ibx_image_measure(&code, sizeof(ptx) - 1, &n), IBX_IMAGE_NONE);
}

/* Some of its bytes are changed, and its end may be missing. */
static void change(const uint8_t *image, size_t all)
{
    char found[256] = "";
    bool compressed;
    const struct ibx_image_targets some = {.count = (unsigned)rand() % 2, .of = {100}};
    size_t n = rand() % 4 ? all : (size_t)rand() % all, measured;
    uint8_t *changed = malloc(n + !n);
    assert_non_null(changed);
    memcpy(changed, image, n);
    for (int i = rand() % 4; n && i >= 0; i--)
        changed[(size_t)rand() % n] = (uint8_t)(rand() % 3 ? rand() : rand() % 2 ? 0 : 255);
    ibx_image_look(changed, n, note, found, &compressed);
    free(ibx_image_expand(changed, n, &some, &measured));
    const void *code = changed;
    if (n)
        ibx_image_measure(&code, n, &measured);
    if (n > IBX_IMAGE_HEADER) {
        code = changed + IBX_IMAGE_HEADER;
        ibx_image_measure(&code, n - IBX_IMAGE_HEADER, &measured);
    }
    free(changed);
}

static void test_changed_images(void **state)
{
    (void)state;
    const struct cubin c = cubin();
    size_t cubin_n = sizeof(c), ptx_n = sizeof(ptx), variables_n = sizeof(ptx_variables);
    uint8_t *of_cubin = fat_of(&c, &cubin_n), *of_ptx = fat_of(ptx, &ptx_n);
    uint8_t of_compressed[4000];
    const size_t compressed_n = compressed_fat(of_compressed);
    uint8_t *of_variables = fat_of(ptx_variables, &variables_n);
    srand(29);
    for (unsigned i = 0; i < CHANGED; i++) {
        change(of_cubin, cubin_n);
        change(of_ptx, ptx_n);
        change(of_variables, variables_n);
        change(of_compressed, compressed_n);
    }
    free(of_cubin);
    free(of_ptx);
    free(of_variables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contents_of_an_image),
        cmocka_unit_test(test_initial_bytes),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_many_parameters),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_bytes_that_are_not_images),
        cmocka_unit_test(test_changed_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
