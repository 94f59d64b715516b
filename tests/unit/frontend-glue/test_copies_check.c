/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which copies the back end makes itself. All others are left to GVirtuS's handlers, for which
 * CUDA refuses them. This file replaces CUDA and everything around check.c. */
#include "frontend-glue/device_copies/copies.h"
#include "tests/fixtures/unit.h"

#include "frontend-glue/clients/virtual_memory.h"
#include "frontend-glue/session/extensions.h"

#define BASE   0x700000000000u /* of an allocation */
#define SIZE   65536u
#define STREAM 0x7f0012345670u

static struct {
    unsigned type, managed;
    int ordinal;
} memory;                                  /* that has BASE */
static bool known, of_others, lacks, lent; /* the stream; the memory */
static int capturing;                      /* the stream */
static unsigned asked, spared;             /* about the stream */
static uint64_t spared_stream;
static struct gpu_session x;

static int attributes_of(unsigned count, const int *attributes, void **values, uint64_t address)
{
    const uint64_t base = BASE;
    const size_t size = SIZE;
    assert_int_equal(count, 5);
    assert_int_equal(attributes[4], IBX_CUDA_POINTER_RANGE_SIZE);
    if (address < BASE || address - BASE >= SIZE)
        return 1;
    memcpy(values[0], &memory.type, sizeof(memory.type));
    memcpy(values[1], &memory.managed, sizeof(memory.managed));
    memcpy(values[2], &memory.ordinal, sizeof(memory.ordinal));
    memcpy(values[3], &base, sizeof(base));
    memcpy(values[4], &size, sizeof(size));
    return 0;
}

/* CUDA takes the handle for an address. */
static int is_capturing(void *stream, int *status)
{
    assert_true((uintptr_t)stream == STREAM && known);
    asked++;
    *status = capturing;
    return 0;
}

static const struct ibx_cuda cuda = {.pointer_get_attributes = attributes_of,
                                     .stream_is_capturing = is_capturing};

bool ibx_host_maps_hold(struct gpu_session *of, uint64_t address, uint64_t n)
{
    assert_ptr_equal(of, &x);
    return lent && address >= BASE && n <= SIZE;
}

bool ibx_isolation_allows_now(struct gpu_session *of, uint64_t address, uint64_t n)
{
    assert_ptr_equal(of, &x);
    assert_true(address >= BASE && n <= SIZE - (address - BASE));
    return !of_others;
}

bool ibx_virtual_lacks(uint64_t address, uint64_t n)
{
    (void)address, (void)n;
    return lacks;
}

bool ibx_copies_symbol(struct ibx_frame *frame)
{
    (void)frame;
    return false;
}

void ibx_held_by_copy(struct gpu_session *of, const struct ibx_frame *f)
{
    (void)of, (void)f;
}

void ibx_captures_spare(struct gpu_session *of, uint64_t stream)
{
    assert_ptr_equal(of, &x);
    spared_stream = stream;
    spared++;
}

bool ibx_named_stream(struct gpu_session *of, uint64_t stream)
{
    assert_ptr_equal(of, &x);
    return stream == STREAM && known;
}

static int begin(void **state)
{
    (void)state;
    x.cuda = &cuda;
    x.device = 1;
    memory.type = IBX_CUDA_MEMORY_DEVICE;
    memory.managed = 0;
    memory.ordinal = 1;
    known = true;
    of_others = lacks = lent = false;
    capturing = 0;
    asked = spared = 0;
    return 0;
}

static bool sound(enum ibx_frame_kind kind, uint64_t address, uint64_t n, uint64_t stream)
{
    struct ibx_frame f = {.call = IBX_FRAME_MEMCPY_ASYNC,
                          .kind = kind,
                          .dst = address,
                          .src = kind == IBX_FRAME_D2D ? BASE : address,
                          .stream = stream,
                          .dpitch = n,
                          .spitch = n,
                          .width = n,
                          .height = 1};
    return ibx_copies_sound(&x, &f);
}

/* The first and the last byte have to be in one allocation. */
static void test_bounds(NO_STATE)
{
    for (unsigned kind = IBX_FRAME_H2D; kind <= IBX_FRAME_D2D; kind++) {
        const enum ibx_frame_kind as = (enum ibx_frame_kind)kind;
        assert_true(sound(as, BASE, SIZE, 0));
        assert_true(sound(as, BASE + SIZE - 16, 16, 0));
        assert_false(sound(as, BASE + SIZE - 16, 17, 0));
        assert_false(sound(as, BASE + 1, SIZE, 0));
        assert_false(sound(as, BASE - 1, 16, 0));
        assert_false(sound(as, BASE + 1, UINT64_MAX, 0));
    }
}

/* The mark of a copy that comes after nothing: only between host and device, without rows, in a
 * stream that the client has made. Elsewhere it is part of the address, which is nowhere then. */
static void test_mark(NO_STATE)
{
    for (unsigned kind = IBX_FRAME_H2D; kind <= IBX_FRAME_D2H; kind++) {
        const bool to_device = kind == IBX_FRAME_H2D;
        const struct ibx_frame marked = {.call = IBX_FRAME_MEMCPY_ASYNC,
                                         .kind = (enum ibx_frame_kind)kind,
                                         .dst = to_device ? BASE | IBX_EXT_ALONE : 0,
                                         .src = to_device ? 0 : BASE | IBX_EXT_ALONE,
                                         .stream = STREAM,
                                         .dpitch = 16,
                                         .spitch = 16,
                                         .out = to_device ? 0 : 16,
                                         .width = 16,
                                         .height = 1};
        struct ibx_frame f = marked;
        assert_true(ibx_copies_sound(&x, &f) && x.copy.alone);
        assert_int_equal(to_device ? f.dst : f.src, BASE);
        assert_true(sound(marked.kind, BASE, 16, STREAM));
        assert_false(x.copy.alone);
        for (unsigned i = 0; i < 5; i++) {
            f = marked;
            f.stream = i < 3 ? i : STREAM;
            f.height = i == 3 ? 2 : 1;
            f.call = i == 4 ? IBX_FRAME_MEMCPY : f.call;
            assert_false(ibx_copies_sound(&x, &f));
            assert_false(x.copy.alone);
        }
    }
    assert_false(sound(IBX_FRAME_D2D, BASE | IBX_EXT_ALONE, 16, STREAM));
}

/* Of rows, what is between them counts, too; what would be behind the last one does not. */
static void test_rows(NO_STATE)
{
    struct ibx_frame f = {.call = IBX_FRAME_MEMCPY_2D,
                          .kind = IBX_FRAME_H2D,
                          .dst = BASE,
                          .dpitch = SIZE / 4,
                          .spitch = 100,
                          .width = 100,
                          .height = 4};
    assert_true(ibx_copies_sound(&x, &f));
    f.dst = BASE + SIZE / 4 - 100;
    assert_true(ibx_copies_sound(&x, &f));
    f.dst++;
    assert_false(ibx_copies_sound(&x, &f));
    assert_int_equal(spared, 0); /* who makes a copy that is waited for spares captures itself */
}

static void test_memory(NO_STATE)
{
    of_others = true;
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, 0));
    assert_false(sound(IBX_FRAME_D2H, BASE, 16, 0));
    of_others = false;
    lacks = true; /* nothing is mapped to a part of these addresses */
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, 0));
    lacks = false;
    memory.managed = 1;
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, 0));
    memory.managed = 0;
    memory.ordinal = 0; /* of another device than the current one */
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, 0));
    assert_true(sound(IBX_FRAME_D2D, BASE, 16, 0));
    memory.type = IBX_CUDA_MEMORY_HOST;
    assert_false(sound(IBX_FRAME_D2D, BASE, 16, 0));
    lent = true; /* the client's own, which its kernels use */
    assert_true(sound(IBX_FRAME_D2D, BASE, 16, 0));
}

/* A stream that was made up never gets to CUDA, and no copy becomes part of a capture. */
static void test_streams(NO_STATE)
{
    assert_true(sound(IBX_FRAME_H2D, BASE, 16, STREAM));
    assert_int_equal(asked, 1);
    capturing = 1;
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, STREAM));
    capturing = 0;
    known = false;
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, STREAM));
    assert_int_equal(asked, 2);
    assert_int_equal(spared, 0);
    for (unsigned legacy = 0; legacy < 2; legacy++) { /* both numbers of the legacy stream */
        assert_true(sound(IBX_FRAME_H2D, BASE, 16, legacy));
        assert_int_equal(spared, legacy + 1);
        assert_int_equal(spared_stream, legacy);
    }
    of_others = true;
    assert_false(sound(IBX_FRAME_H2D, BASE, 16, 1));
    assert_int_equal(spared, 2); /* no copy, so nothing to spare */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_bounds, begin),  cmocka_unit_test_setup(test_mark, begin),
        cmocka_unit_test_setup(test_rows, begin),    cmocka_unit_test_setup(test_memory, begin),
        cmocka_unit_test_setup(test_streams, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
