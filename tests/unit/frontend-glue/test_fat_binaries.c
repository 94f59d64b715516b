/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fat binaries and cubins whose handlers would access memory outside their own. Each is made first
 * as a front end makes it, and then malformed. */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fixtures/request_body.h"

#include <elf.h>
#include <lz4.h>
#include <string.h>

#define HANDLE "0x7f0011223344"

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

/* The sum of the name's length and of what is before it wraps around: the handler moves back, and
 * takes the second length for the wrapper's magic. */
static void wrapped_names(void **state)
{
    (void)state;
    for (uint64_t back = 1; back <= 16; back++) {
        struct body b = {0};
        add(&b, 0 - back, 8);
        add(&b, UINT64_C(1) << 32 | 0x466243b1, 8);
        add(&b, 16, 8);
        add(&b, 16, 8);
        add(&b, 0x00100001ba55ed50, 8);
        add(&b, UINT32_MAX, 8);
        assert_false(fits(fat_binary_fits, &b));
    }
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
    b = registration(&image, "PTX here", 8, 1), memset(b.bytes, 0xff, 7); /* the handle's */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cubins),          cmocka_unit_test(attributes),
        cmocka_unit_test(shared_sections), cmocka_unit_test(images),
        cmocka_unit_test(fat_lengths),     cmocka_unit_test(wrapped_names),
        cmocka_unit_test(unmarked_cubins), cmocka_unit_test(compressed_images),
        cmocka_unit_test(unpacked),        cmocka_unit_test(driver_images),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
