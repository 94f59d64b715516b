/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests whose handlers would access memory outside their own. Each is made first as a front
 * end makes it, and then malformed. */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fixtures/request_body.h"

#include <elf.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>

#define HOST   32u /* where the bytes of vectors start */
#define BLOCK  4096u
#define HANDLE "0x7f0011223344"

/* Checks a copy of exactly this length, so that a sanitizer detects reads behind it. */
static bool fits(bool (*fit)(const uint8_t *, size_t), const struct body *b)
{
    uint8_t *copy = malloc(b->n ? b->n : 1);
    assert_non_null(copy);
    memcpy(copy, b->bytes, b->n);
    const bool good = fit(copy, b->n);
    free(copy);
    return good;
}

/* ---------------------------------------------------------------------- fat binaries */

static uint64_t kept; /* of the last one */

static bool fat_binary_fits(const uint8_t *body, size_t n)
{
    return ibx_fat_binary_fits(body, n, &kept);
}

/* A cubin with the parameters of one kernel. */
struct cubin {
    Elf64_Ehdr elf;
    Elf64_Shdr sections[4]; /* names, parameters, nothing */
    char names[24];
    struct {
        uint8_t format, what;
        uint16_t size;
        uint32_t index;
        uint16_t ordinal, offset;
        uint32_t rest;
    } parameters[2];
};

static struct cubin cubin(void)
{
    struct cubin c = {.elf = {.e_shoff = offsetof(struct cubin, sections),
                              .e_shentsize = sizeof(Elf64_Shdr),
                              .e_shnum = 4},
                      .names = "\0.nv.info.kernel",
                      .parameters = {{4, 0x17, 12, 0, 1, 8, 0}, {4, 0x17, 12, 0, 0, 0, 0}}};
    memcpy(c.elf.e_ident, ELFMAG, SELFMAG);
    c.sections[0] =
        (Elf64_Shdr){.sh_offset = offsetof(struct cubin, names), .sh_size = sizeof(c.names)};
    c.sections[1] = (Elf64_Shdr){.sh_name = 1,
                                 .sh_offset = offsetof(struct cubin, parameters),
                                 .sh_size = sizeof(c.parameters)};
    return c;
}

struct image {
    uint16_t kind, version;
    uint32_t head;
    uint32_t n, unknown;
    uint32_t compressed, more[9];
    uint64_t uncompressed;
};
_Static_assert(sizeof(struct image) == 64, "as in fat binaries");

static struct image image_of(size_t n)
{
    return (struct image){.kind = 2, .version = 0x101, .head = 64, .n = (uint32_t)n};
}

/* A registration of `count` copies of that image. */
static struct body registration(const struct image *image, const void *data, size_t n,
                                unsigned count)
{
    struct body b = {0};
    const uint64_t images = count * (sizeof(*image) + n);
    add(&b, sizeof(HANDLE), 8);
    add(&b, sizeof(HANDLE), 8);
    add_bytes(&b, HANDLE, sizeof(HANDLE));
    add(&b, 0x466243b1, 4);
    add(&b, 1, 4);
    add(&b, 16 + images, 8);
    add(&b, 16 + images, 8);
    add(&b, 0x00100001ba55ed50, 8);
    add(&b, images, 8);
    for (unsigned i = 0; i < count; i++) {
        add_bytes(&b, image, sizeof(*image));
        add_bytes(&b, data, n);
    }
    return b;
}

static bool registers(const struct cubin *c)
{
    const struct image image = image_of(sizeof(*c));
    const struct body b = registration(&image, c, sizeof(*c), 2);
    return fits(fat_binary_fits, &b);
}

static void cubins(void **state)
{
    struct cubin c = cubin();
    (void)state;
    assert_true(registers(&c));
    c.parameters[0].ordinal = 2; /* beyond the arguments */
    assert_false(registers(&c));
    c = cubin(), c.parameters[0].size = 20; /* the other one is not found */
    assert_false(registers(&c));
    c = cubin(), c.parameters[0].ordinal = 0, c.parameters[1].size = UINT16_MAX;
    assert_true(registers(&c)); /* nothing follows */
    c = cubin(), c.sections[1].sh_size--;
    assert_false(registers(&c));
    c = cubin(), c.sections[1].sh_size++;
    assert_false(registers(&c));
    c = cubin(), c.sections[1].sh_offset = UINT64_MAX - 8;
    assert_false(registers(&c));
    c = cubin(), c.sections[1].sh_name = sizeof(c.names);
    assert_false(registers(&c));
    c = cubin(), c.names[sizeof(c.names) - 1] = 'n';
    assert_false(registers(&c));
    c = cubin(), c.sections[0].sh_size = UINT64_MAX;
    assert_false(registers(&c));
    c = cubin(), c.elf.e_shstrndx = 4;
    assert_false(registers(&c));
    c = cubin(), c.elf.e_shnum = 0;
    assert_false(registers(&c));
    c = cubin(), c.elf.e_shnum = UINT16_MAX;
    assert_false(registers(&c));
    c = cubin(), c.elf.e_shentsize = 65; /* the handler's table has entries of 64 bytes */
    assert_false(registers(&c));
    c = cubin(), c.elf.e_shoff = UINT64_MAX;
    assert_false(registers(&c));
    c = cubin(), c.elf.e_ident[0] = 0;
    assert_false(registers(&c));
}

/* Attributes of a kernel that are no parameters: without a value of their own, or not all there. */
static void attributes(void **state)
{
    struct cubin c = cubin();
    (void)state;
    c.parameters[0].format = 3, c.parameters[0].what = 0x10; /* three of them follow it */
    c.parameters[0].index = c.parameters[0].rest = c.parameters[0].ordinal = 3;
    c.parameters[0].offset = 0;
    assert_true(registers(&c));
    c.parameters[1].ordinal = 1; /* of one */
    assert_false(registers(&c));
    for (unsigned format = 0; format < 256; format++) { /* G3's handler would note it for ever */
        c = cubin(), c.parameters[0].format = (uint8_t)format;
        assert_int_equal(registers(&c), format == 4);
    }
    for (unsigned less = 1; less < 4; less++) {
        c = cubin(), c.parameters[0].ordinal = 0;
        c.sections[1].sh_size = sizeof(c.parameters[0]) + less;
        assert_false(registers(&c));
    }
}

static bool takes(const struct image *image, const void *data, size_t n)
{
    const struct body b = registration(image, data, n, 1);
    return fits(fat_binary_fits, &b);
}

/* A cubin with three kernels of the same name and parameters, and with more bytes. */
struct shared_cubin {
    struct cubin c;
    char more[512];
};

static struct shared_cubin shared_cubin(void)
{
    struct shared_cubin s = {.c = cubin()};
    s.c.sections[2] = s.c.sections[3] = s.c.sections[1];
    return s;
}

static bool takes_shared(const struct shared_cubin *s)
{
    const struct image image = image_of(sizeof(*s));
    return takes(&image, s, sizeof(*s));
}

/* The handler copies the name and the parameters of each kernel, and keeps them. If kernels share
 * these, all copies together must not be longer than the cubin. */
static void shared_sections(void **state)
{
    struct shared_cubin s = shared_cubin();
    (void)state;
    assert_true(takes_shared(&s));
    const uint64_t three = kept;
    s.c.elf.e_shnum = 3;
    assert_true(takes_shared(&s));
    assert_int_equal(kept, three / 3 * 2);
    assert_true(kept > 2 * (sizeof(s.c.parameters) + strlen(".nv.info.kernel")));
    s = shared_cubin();
    s.c.sections[2].sh_size += sizeof(s.more); /* attributes of no size */
    assert_true(takes_shared(&s));
    s.c.sections[3] = s.c.sections[2];
    assert_false(takes_shared(&s));
    s = shared_cubin();
    s.c.sections[0].sh_size += sizeof(s.c.parameters) + sizeof(s.more);
    s.c.sections[2].sh_name =
        (uint32_t)(offsetof(struct shared_cubin, more) - offsetof(struct cubin, names));
    memset(s.more, 'k', sizeof(s.more) - 1);
    memcpy(s.more, ".nv.info.", 9);
    assert_true(takes_shared(&s));
    s.c.sections[3] = s.c.sections[2];
    assert_false(takes_shared(&s));
}

static void images(void **state)
{
    const struct cubin c = cubin();
    struct image image = image_of(sizeof(c));
    (void)state;
    image.n++;
    assert_false(takes(&image, &c, sizeof(c)));
    image = image_of(sizeof(c)), image.head = 0; /* the handler would loop for ever */
    assert_false(takes(&image, &c, sizeof(c)));
    image = image_of(sizeof(c)), image.head = UINT32_MAX;
    assert_false(takes(&image, &c, sizeof(c)));
    image = image_of(8), image.kind = 1;
    assert_true(takes(&image, "PTX here", 8));
    struct body b = registration(&image, "PTX here", 8, 1);
    for (size_t n = 0; n < b.n; n++) { /* the handler finds too few bytes */
        const struct body less = {.n = n};
        assert_true(fits(fat_binary_fits, &less));
    }
    const size_t fat = 16 + sizeof(HANDLE) + 24;
    b.bytes[fat + 8]++; /* images beyond the fat binary */
    assert_false(fits(fat_binary_fits, &b));
    b = registration(&image, "PTX here", 8, 1), b.bytes[fat]++;
    assert_false(fits(fat_binary_fits, &b));
    b = registration(&image, "PTX here", 8, 1), memset(b.bytes + fat - 8, 0, 8);
    assert_false(fits(fat_binary_fits, &b));
    /* not a wrapper: the handler refuses it */
    b = registration(&image, "PTX here", 8, 1), b.bytes[fat - 24]++;
    b.bytes[fat + 8]++;
    assert_true(fits(fat_binary_fits, &b));
}

/* Lengths that lie, each of them alone. */
static void fat_lengths(void **state)
{
    const size_t fat = 16 + sizeof(HANDLE) + 24;
    struct image image = image_of(8);
    struct body b;
    (void)state;
    image.kind = 1;
    image.unknown = image.more[0] = UINT32_MAX; /* what is behind them is no part of them */
    assert_true(takes(&image, "PTX here", 8));
    image.n++; /* beyond the request, as the fat binary says, too */
    b = registration(&image, "PTX here", 8, 1), b.bytes[fat + 8]++;
    assert_false(fits(fat_binary_fits, &b));
    image.n--;
    b = registration(&image, "PTX here", 8, 1), b.bytes[fat + 6] = 15; /* the header's own */
    assert_false(fits(fat_binary_fits, &b));
    for (unsigned n = 1; n < 64; n++) { /* a part of a header follows */
        static const uint8_t more[64];
        b = registration(&image, "PTX here", 8, 1);
        add_bytes(&b, more, n);
        b.bytes[fat + 8] = (uint8_t)(b.bytes[fat + 8] + n);
        b.bytes[fat - 8] = b.bytes[fat - 16] = (uint8_t)(b.bytes[fat - 8] + n);
        assert_false(fits(fat_binary_fits, &b));
    }
    for (unsigned n = 0; n < 16; n++) { /* there is no whole header of the fat binary */
        b = registration(&image, "PTX here", 8, 1);
        b.n = fat + n;
        b.bytes[fat - 8] = b.bytes[fat - 16] = (uint8_t)n;
        assert_false(fits(fat_binary_fits, &b));
    }
    b = registration(&image, "PTX here", 8, 1), memset(b.bytes, 0xff, 8); /* the handle's */
    assert_true(fits(fat_binary_fits, &b));
    image = image_of(1), image.kind = 1;
    assert_true(takes(&image, "P", 1));
}

/* G3 takes what is behind headers of the usual length for a cubin if it begins so. */
static void unmarked_cubins(void **state)
{
    struct cubin c = cubin();
    struct image image = image_of(sizeof(c));
    (void)state;
    image.kind = 1;
    assert_true(takes(&image, &c, sizeof(c)) && kept > sizeof(c.parameters));
    c.sections[1].sh_size++; /* beyond the fat binary */
    assert_false(takes(&image, &c, sizeof(c)));
    c = cubin(), c.parameters[0].ordinal = 2;
    assert_false(takes(&image, &c, sizeof(c)));
}

/* `more`: bytes of the image behind those that are compressed. */
static bool takes_compressed(const struct cubin *c, uint64_t uncompressed, uint32_t less,
                             size_t more)
{
    char data[1024] = {0};
    const int n = LZ4_compress_default((const char *)c, data, (int)sizeof(*c), 512);
    assert_true(n > 0);
    struct image image = image_of((size_t)n + more);
    image.uncompressed = uncompressed;
    image.compressed = (uint32_t)n - less;
    return takes(&image, data, (size_t)n + more);
}

static void compressed_images(void **state)
{
    struct cubin c = cubin();
    (void)state;
    assert_true(takes_compressed(&c, sizeof(c), 0, 0));
    assert_true(kept > sizeof(c.parameters));
    /* the last byte would be of an earlier image */
    assert_false(takes_compressed(&c, sizeof(c) + 1, 0, 0));
    assert_false(takes_compressed(&c, (UINT64_C(1) << 32) + sizeof(c), 0, 0));
    assert_true(takes_compressed(&c, sizeof(c) - 1, 0, 0));       /* the handler gives up */
    assert_false(takes_compressed(&c, sizeof(c), UINT32_MAX, 0)); /* one byte more than was sent */
    assert_true(takes_compressed(&c, sizeof(c), 0, 7));
    c.parameters[0].ordinal = 2;
    assert_false(takes_compressed(&c, sizeof(c), 0, 0));
    assert_false(takes_compressed(&c, sizeof(c), 0, 7)); /* without what is behind it */
}

/* The handler makes room for as much as an image says, also if nothing else in it is right. */
static void unpacked(void **state)
{
    const size_t first = 16 + sizeof(HANDLE) + 24 + 16, second = first + 64 + 8;
    struct image image = image_of(8);
    struct body b = registration(&image, "PTX here", 8, 2);
    (void)state;
    assert_int_equal(ibx_fat_binary_unpacked(b.bytes, b.n), 0);
    memset(b.bytes + second + 56, 0xff, 5);
    assert_int_equal(ibx_fat_binary_unpacked(b.bytes, b.n), 2 * 0xffffffffff);
    memset(b.bytes + first + 56, 0xff, 6);
    assert_int_equal(ibx_fat_binary_unpacked(b.bytes, b.n), 2 * 0xffffffffffff);
    memset(b.bytes + first + 56, 0xff, 8);
    assert_int_equal(ibx_fat_binary_unpacked(b.bytes, b.n), UINT64_MAX);
    b.bytes[first + 4] = 0; /* the handler would not come to the second one */
    assert_int_equal(ibx_fat_binary_unpacked(b.bytes, b.n), 0);
    for (size_t n = 0; n < b.n; n++)
        assert_int_equal(ibx_fat_binary_unpacked(b.bytes, n), 0);
}

/* ------------------------------------------------------------------ images of the driver */

static bool image_fits(const void *bytes, size_t n, uint64_t length)
{
    struct body b = {0};
    add(&b, length, 8);
    add(&b, length, 8);
    add_bytes(&b, bytes, n);
    return fits(ibx_image_string_fits, &b);
}

static void driver_images(void **state)
{
    struct cubin c = cubin(), far;
    uint32_t fat[6] = {0xba55ed50, 0x00100001, 8, 0, 7, 7}, wrapper[6] = {0x466243b1, 1, 7};
    (void)state;
    c.sections[0].sh_type = c.sections[1].sh_type = SHT_PROGBITS;
    far = c;
    assert_true(image_fits(".version 7.0", 13, 13) && image_fits("", 1, 1));
    assert_false(image_fits(".version 7.0", 12, 12)); /* the compiler reads to the NUL */
    assert_false(image_fits(".version 7.0", 13, 14));
    assert_true(image_fits("", 0, 0)); /* CUDA gets NULL */
    assert_true(image_fits(&c, sizeof(c), sizeof(c)));
    for (size_t n = 0; n < sizeof(c); n++)
        assert_false(image_fits(&c, n, n) && n > 4);
    far.sections[1].sh_size++;
    assert_false(image_fits(&far, sizeof(far), sizeof(far)));
    assert_true(image_fits(fat, sizeof(fat), sizeof(fat)));
    fat[2]++;
    assert_false(image_fits(fat, sizeof(fat), sizeof(fat)));
    assert_false(image_fits(wrapper, sizeof(wrapper), sizeof(wrapper))); /* it is followed */
    assert_true(image_fits("abc", 4, 4) && image_fits("ab", 3, 3));
    c.elf.e_phnum = 1, c.elf.e_phentsize = sizeof(Elf64_Phdr);
    assert_true(image_fits(&c, sizeof(c), sizeof(c)));
    c.elf.e_phentsize++;
    assert_false(image_fits(&c, sizeof(c), sizeof(c)));
    c.elf.e_phentsize--, c.elf.e_phoff = sizeof(c) - sizeof(Elf64_Phdr) + 1;
    assert_false(image_fits(&c, sizeof(c), sizeof(c)));
    c.elf.e_phoff = 0, c.elf.e_shentsize++;
    assert_false(image_fits(&c, sizeof(c), sizeof(c)));
}

/* ------------------------------------------------------------------ options of modules */

static struct body load(uint32_t count, uint64_t bytes, const uint32_t *options, uint64_t present)
{
    struct body b = {0};
    add(&b, count, 4);
    add(&b, bytes, 8);
    add_bytes(&b, options, count * sizeof(*options));
    add(&b, 4, 8);
    add(&b, 4, 8);
    add_bytes(&b, "PTX", 4);
    for (uint32_t i = 0; i < count; i++) {
        add(&b, present, 8);
        add(&b, 32 + i, 8);
    }
    return b;
}

static void load_options(void **state)
{
    static const uint32_t numbers[] = {0, 7}; /* registers, level of optimization */
    static const uint32_t memory[] = {3, 5, 17, 18, 25, 27}, many[IBX_LOAD_OPTIONS + 1];
    struct body b = load(2, 8, numbers, 8);
    (void)state;
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(0, 0, numbers, 8);
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(2, 4, numbers, 8); /* the handler reads as many options as it is told */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 0); /* the handler follows NULL */
    assert_false(fits(ibx_load_options_fit, &b));
    b.n = 3;
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), b.bytes[12 + 8 + 16 + 3] = 'X'; /* PTX without an end */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), b.bytes[12 + 8] = 255; /* PTX beyond the request */
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(IBX_LOAD_OPTIONS, 4 * IBX_LOAD_OPTIONS, many, 8);
    assert_true(fits(ibx_load_options_fit, &b));
    b = load(IBX_LOAD_OPTIONS + 1, 4 * (IBX_LOAD_OPTIONS + 1), many, 8);
    assert_false(fits(ibx_load_options_fit, &b));
    b = load(2, 8, numbers, 8), memset(b.bytes, 0xff, 4);
    assert_false(fits(ibx_load_options_fit, &b));
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        b = load(1, 4, memory + i, 8);
        assert_false(fits(ibx_load_options_fit, &b));
    }
}

static void ends_in_zeros(struct ibx_reader *r)
{
    while (ibx_reader_left(r))
        assert_int_equal(ibx_get_u8(r), 0);
}

/* What GVirtuS's front end reads of a reply. */
static void reads_empty_logs(const uint8_t *payload, size_t n, const uint32_t *options,
                             uint32_t count)
{
    struct ibx_reader r = ibx_reader_of(payload, n);
    assert_int_equal(ibx_get_u64(&r), 7); /* the module */
    for (uint32_t i = 0; i + 1 < count; i++) {
        if (options[i] == 3) {
            assert_int_equal(ibx_get_u32(&r), 0);
        } else if (options[i] == 5) {
            assert_int_equal(ibx_get_u64(&r), 1);
            assert_int_equal(ibx_get_u64(&r), 1);
            assert_int_equal(ibx_get_u8(&r), 0);
        } else {
            assert_int_equal(ibx_get_u64(&r), 4);
            assert_int_equal(ibx_get_u32(&r), options[i] == 2 ? 9 + i : 0);
        }
    }
    assert_false(r.failed);
    ends_in_zeros(&r);
}

/* A program that wants logs gets empty ones, and its other options are passed on. */
static void logs(void **state)
{
    static const uint32_t wanted[][6] = {{0, 3, 4, 5, 6, 2}, {2, 5, 5, 5, 3, 0}, {5, 2, 3}, {4}};
    static const uint32_t counts[] = {6, 6, 3, 1};
    (void)state;
    for (unsigned k = 0; k < 4; k++) {
        struct ibx_load_options options;
        struct body b = load(counts[k], 4 * counts[k], wanted[k], 8), reply = {0};
        ibx_load_options_mend(b.bytes, b.n, &options);
        assert_true(fits(ibx_load_options_fit, &b));
        struct ibx_reader r = ibx_reader_of(b.bytes + 12, b.n - 12);
        for (uint32_t i = 0; i < counts[k]; i++) {
            const uint32_t kind = wanted[k][i];
            assert_int_equal(ibx_get_u32(&r), kind >= 3 && kind <= 6 ? 2 : kind);
        }
        ibx_get_bytes(&r, 20);
        add(&reply, 7, 8);
        for (uint32_t i = 0; i < counts[k]; i++) {
            assert_int_equal(ibx_get_u64(&r), 4);
            assert_int_equal(ibx_get_u32(&r), 32 + i);
            add(&reply, 8, 8); /* an address of the handler's, or a time */
            add(&reply, 9 + i, 8);
        }
        assert_false(r.failed);
        ends_in_zeros(&r);
        const struct body other = reply;
        ibx_load_options_answer(&options, reply.bytes, reply.n - 1); /* of another length */
        assert_memory_equal(reply.bytes, other.bytes, reply.n);
        ibx_load_options_answer(&options, reply.bytes, reply.n);
        reads_empty_logs(reply.bytes, reply.n, wanted[k], counts[k]);
    }
    struct ibx_load_options options = {.count = 1};
    struct body b = load(2, 8, wanted[0], 4); /* not as GVirtuS's front end sends it */
    const struct body same = b;
    ibx_load_options_mend(b.bytes, b.n, &options);
    assert_memory_equal(b.bytes, same.bytes, b.n);
    assert_int_equal(options.count, 0);
}

/* ---------------------------------------------------------------- vectors and numbers */

static struct body numbers(unsigned count, const uint32_t *values, size_t more)
{
    struct body b = {0};
    for (unsigned i = 0; i < count; i++)
        add(&b, values[i], 4);
    b.n += more;
    return b;
}

/* Whether the request is unchanged; otherwise its elements get a size of 0 bytes. */
static bool good(const char *name, struct body b, uint64_t longest, unsigned element)
{
    const struct body before = b;
    uint32_t bytes;
    ibx_library_shapes_mend(name, b.bytes, b.n, longest);
    memcpy(&bytes, b.bytes + element, 4);
    const bool same = !memcmp(b.bytes, before.bytes, b.n);
    assert_true(same || !bytes);
    return same;
}

static bool sets_vector(uint32_t n, uint32_t element, uint32_t step, uint32_t come)
{
    const uint32_t values[] = {n, element, step, 1, 7, 7, come, 0};
    return good("cublasSetVector", numbers(8, values, 64), 0, 4);
}

static bool sets_matrix(uint32_t rows, uint32_t columns, uint32_t step, uint32_t come)
{
    const uint32_t values[] = {rows, columns, 4, 7, 7, rows, step, come, 0};
    return good("cublasSetMatrix", numbers(9, values, 64), 0, 8);
}

static bool gets_vector(uint32_t n, uint32_t element, uint32_t step, uint64_t longest)
{
    const uint32_t values[] = {n, element, 1, step, 7, 7, 1, 0};
    return good("cublasGetVector", numbers(8, values, 1), longest, 4);
}

static bool gets_matrix(uint32_t rows, uint32_t columns, uint32_t step, uint64_t longest)
{
    const uint32_t values[] = {rows, columns, 4, 7, 7, rows, 1, 0};
    struct body b = numbers(8, values, 1);
    add(&b, step, 4);
    return good("cublasGetMatrix", b, longest, 8);
}

static void vectors(void **state)
{
    (void)state;
    assert_true(sets_vector(16, 4, 1, 64) && sets_vector(0, 4, 1, 0));
    assert_false(sets_vector(17, 4, 1, 64) || sets_vector(16, 4, 2, 64));
    assert_false(sets_vector(1, 4, 1, 65) || sets_vector(UINT32_MAX, UINT32_MAX, 1, 64));
    assert_true(sets_vector(8, 4, 2, 60) && !sets_vector(8, 4, 2, 59));
    assert_true(sets_matrix(4, 4, 4, 64) && sets_matrix(3, 4, 4, 60));
    assert_false(sets_matrix(4, 4, 5, 64) || sets_matrix(4, 5, 4, 64));
    assert_false(sets_matrix(INT32_MAX, INT32_MAX, 1, 64));
    assert_true(sets_matrix(0, 4, 4, 0) && sets_matrix(4, 0, 1, 0)); /* nothing */
    /* cuBLAS refuses numbers below 0, and steps of 0 */
    assert_false(sets_matrix(16, UINT32_MAX, 1, 64) || sets_vector(16, 4, UINT32_MAX, 64));
    assert_false(sets_vector(16, 4, 0, 64));
}

/* Results are written to GVirtuS's buffer for requests. */
static void results(void **state)
{
    (void)state;
    assert_true(gets_vector(BLOCK - HOST, 1, 1, 0));
    assert_false(gets_vector(BLOCK - HOST + 1, 1, 1, 0));
    assert_true(gets_vector(BLOCK - HOST + 1, 1, 1, BLOCK)); /* after a request this long */
    assert_false(gets_vector(BLOCK / 4, 4, 1, 0) || gets_vector(BLOCK / 2, 1, 2, 0));
    assert_false(gets_vector(UINT32_MAX, 4, 1, 0) || gets_vector(1, UINT32_MAX, 1, 0));
    assert_true(gets_vector(INT32_MAX, 1, 1, UINT32_MAX));
    assert_false(gets_vector(1u << 30, 4, 1, UINT32_MAX)); /* more than an int */
    assert_false(gets_matrix(1u << 15, 1u << 14, 1u << 15, UINT32_MAX));
    assert_true(gets_matrix((BLOCK - HOST) / 4, 1, BLOCK, 0));
    assert_false(gets_matrix((BLOCK - HOST) / 4 + 1, 1, BLOCK, 0));
    assert_true(gets_matrix(16, 16, 16, 0) && !gets_matrix(16, 16, 1024, 0));
    assert_true(gets_matrix(16, 16, 1024, 65536) && !gets_matrix(64, 64, 64, 0));
}

static bool has_handle(const char *name)
{
    struct body b = {.n = 0};
    uint64_t handle;
    add(&b, 0x7000, 8);
    add(&b, 0, 8); /* triangle, rows */
    ibx_library_shapes_mend(name, b.bytes, b.n, 0);
    memcpy(&handle, b.bytes, 8);
    assert_true(handle == 0x7000 || !handle);
    return handle;
}

/* cuBLAS reads scalars by instructions that end the process if they are not aligned. */
static void scalars_that_are_not_aligned(void **state)
{
    (void)state;
    assert_true(has_handle("cublasZhemv_v2") && has_handle("cublasChpmv_v2"));
    assert_false(has_handle("cublasZhpmv_v2"));
}

static uint64_t mended(const char *name, unsigned at, unsigned bytes, uint64_t value)
{
    struct body b = {.n = at};
    uint64_t after = 0;
    add(&b, value, bytes);
    ibx_library_shapes_mend(name, b.bytes, b.n, 0);
    memcpy(&after, b.bytes + at, bytes);
    return after;
}

/* By as many characters of their names as are known. */
static void lengths(void **state)
{
    static const struct {
        const char *name;
        unsigned at, bytes;
        uint64_t most, instead;
    } calls[] = {
        {"cublasLtMatmulAlgoGetHe", 56, 4, 512, 0},
        {"cudnnBackendGetAttribut", 16, 8, INT32_MAX, 0},
        {"cudnnBackendSetAttribut", 16, 8, INT32_MAX, 0},
        {"cudnnGetConvolutionNdFo", 24, 4, 64, 0},
        {"cudnnGetLastErrorString", 0, 8, 65536, 65536},
        {"cudnnGetRNNDataDescript", 8, 4, 960, 0},
        {"cudnnGetTensorNdDescrip", 8, 4, 64, 0},
        {"nvmlDeviceGetName", 16, 4, 256, 0},
        {"nvmlSystemGetDriverVers", 0, 4, 256, 0},
        {"curandGenerate", 8, 8, UINT64_C(1) << 40, 0},
        {"curandGenerateUniformDo", 8, 8, UINT64_C(1) << 40, 0},
        {"cuLaunchKernel", 52, 8, 0, UINT64_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char *name = calls[i].name;
        const unsigned at = calls[i].at, bytes = calls[i].bytes;
        const uint64_t most = calls[i].most, largest = bytes == 4 ? UINT32_MAX : UINT64_MAX;
        assert_true(mended(name, at, bytes, most) == most);
        assert_true(mended(name, at, bytes, most + 1) == calls[i].instead);
        assert_true(mended(name, at, bytes, largest) == calls[i].instead);
    }
}

/* Of a request that ends early nothing behind its end is read, or changed. */
static void short_vectors(void **state)
{
    static const char *const names[] = {"cublasSetVector", "cublasSetMatrix", "cublasGetVector",
                                        "cublasGetMatrix"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n <= 40; n++) {
            uint8_t *body = malloc(n + 1), whole[41];
            assert_non_null(body);
            memset(whole, 0x41, sizeof(whole));
            memcpy(body, whole, n + 1);
            ibx_library_shapes_mend(names[i], body, n, 0);
            if (n < 32 || (i == 3 && n < 37)) /* the handler finds too few bytes */
                assert_memory_equal(body, whole, n);
            assert_int_equal(body[n], 0x41);
            free(body);
        }
    }
}

/* Where there is a number of the client's for cuRAND to write to, the handler is one that has no
 * more memory than that. */
static void random_numbers(void **state)
{
    static const struct {
        const char *name;
        unsigned others, element; /* bytes */
    } calls[] = {
        {"curandGenerate", 0, 4},          {"curandGenerateLongLong", 0, 8},
        {"curandGenerateUniform", 0, 4},   {"curandGenerateUniformDouble", 0, 8},
        {"curandGenerateNormal", 8, 4},    {"curandGenerateNormalDouble", 16, 8},
        {"curandGenerateLogNormal", 8, 4}, {"curandGenerateLogNormalDouble", 16, 8},
        {"curandGeneratePoisson", 8, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const size_t host = 16 + calls[i].others, device = host + 8;
        const size_t inside = host + 8 + calls[i].element;
        for (size_t n = host; n <= inside; n++) {
            struct body b = {.n = n};
            memset(b.bytes, 1, n);
            ibx_library_shapes_mend(calls[i].name, b.bytes, n, 0);
            assert_int_equal(b.bytes[0] || b.bytes[7], n <= device);
        }
        for (unsigned count = 0; count < 2; count++) { /* 0: in G3's requests that is NULL */
            struct body b = {.n = device};
            memset(b.bytes, 1, device);
            memset(b.bytes + 8, 0, 8);
            b.bytes[8] = (uint8_t)count;
            ibx_library_shapes_mend(calls[i].name, b.bytes, device, 0);
            assert_true(b.bytes[0] && b.bytes[7] && b.bytes[8] == count);
            for (size_t at = 16; at < device; at++)
                assert_int_equal(b.bytes[at], count || at >= 24);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cubins),
        cmocka_unit_test(attributes),
        cmocka_unit_test(shared_sections),
        cmocka_unit_test(images),
        cmocka_unit_test(fat_lengths),
        cmocka_unit_test(unmarked_cubins),
        cmocka_unit_test(compressed_images),
        cmocka_unit_test(unpacked),
        cmocka_unit_test(driver_images),
        cmocka_unit_test(load_options),
        cmocka_unit_test(logs),
        cmocka_unit_test(vectors),
        cmocka_unit_test(random_numbers),
        cmocka_unit_test(short_vectors),
        cmocka_unit_test(results),
        cmocka_unit_test(scalars_that_are_not_aligned),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
