/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions of this library that copy between host and device for a graph or a stream:
 * host_copies.c alone, with a device whose memory is an array. */
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/begun_requests.h"
#include "tests/unit/frontend-glue/next_calls.h"

#include "common/log.h"

#define SIZE   4096u
#define DEVICE ((uintptr_t)0x100000) /* where the device's memory begins */
#define SLOT   ((uint64_t)1 << 63)
#define NUMBER 3u                /* of the slot */
#define PIECE  ((size_t)1 << 19) /* bytes of a slot in one request */
#define LONG   (PIECE + 100)     /* bytes that need two */
#define TAKEN  4096u             /* rows of SIZE bytes: as much as launches may have taken */

static uint8_t host[LONG], device[SIZE], slot[LONG];

static struct {
    int device, get_fails, set_fails, create_fails;
    unsigned made;    /* streams */
    bool knows_alone; /* the back end knows the mark of copies that come after nothing */
    bool refuses;     /* the plugin makes no copies */
    bool unplugged;   /* there is no plugin */
    int copy_fails;   /* with this, the copy that follows so many others */
    unsigned good_copies;
    int wait_fails;
    bool unsent; /* a request could not be sent */
    unsigned copies, alone, waits, sets;
    uint64_t stream;   /* of the latest copy */
    const void *whole; /* memory that is copied at once is this, by the plugin */
} is;

/* ------------------------------------------------------------ what is simulated */

static int make_copy(const struct ibx_frontend_copy *copy, int *code)
{
    uint8_t *there = (copy->device & SLOT) ? slot + (copy->device & 0xffffffff)
                                           : device + ((copy->device & ~IBX_EXT_ALONE) - DEVICE);
    if (is.refuses)
        return -1;
    assert_true(copy->async && copy->alone);
    assert_true(!(copy->device & SLOT) || (copy->device & ~SLOT) >> 32 == NUMBER);
    *code = is.copies++ >= is.good_copies ? is.copy_fails : 0;
    is.stream = copy->stream;
    is.whole = copy->host;
    if (!(copy->device & SLOT) && (copy->device & IBX_EXT_ALONE)) {
        is.alone++;
        if (!is.knows_alone)
            *code = 1;
    }
    if (*code)
        return 0;
    assert_true(there >= (copy->device & SLOT ? slot : device) && copy->n <= PIECE);
    if (copy->to_device)
        memcpy(there, copy->host, copy->n);
    else
        memcpy(copy->host, there, copy->n);
    return 0;
}
const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    static const struct ibx_frontend_calls calls = {.version = IBX_FRONTEND_VERSION,
                                                    .copy = make_copy};
    return is.unplugged ? NULL : &calls;
}
void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}
int cudaGetDevice(int *now)
{
    *now = is.device;
    return is.get_fails;
}
int cudaSetDevice(int to)
{
    is.sets++;
    if (!is.set_fails)
        is.device = to;
    return is.set_fails;
}
static int next_cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    assert_int_equal(flags, 1); /* it does not wait for the legacy stream */
    if (!is.create_fails)
        *stream = (void *)(uintptr_t)(0x10 + is.made++);
    return is.create_fails;
}
void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaStreamCreateWithFlags);
    return NULL;
}
bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    struct ibx_reader r = ibx_reader_of(e->body.data, e->body.length);
    (void)out, (void)n;
    assert_int_equal(ibx_get_u16(&r), IBX_EXT_STREAM_WAIT);
    assert_int_equal(ibx_get_u64(&r), is.stream);
    is.waits++;
    *code = is.wait_fails;
    return !is.unsent;
}

/* Each test makes its streams anew. */
static int begin(void **state)
{
    (void)state;
    ibx_frontend_graph_failure();
    ibx_frontend_graph_reset();
    memset(&is, 0, sizeof(is));
    is.good_copies = ~0u;
    is.knows_alone = true;
    for (unsigned i = 0; i < SIZE; i++) {
        host[i] = (uint8_t)(i * 7);
        device[i] = (uint8_t)(i * 5 + 1);
        slot[i] = (uint8_t)(i * 3 + 2);
    }
    return 0;
}

/* Two planes of three rows of four bytes, at (1, 2, 1) in rows of 16 and planes of 8 rows. */
static struct ibx_host_copy rows(int kind)
{
    struct ibx_host_copy copy = {.device = 1,
                                 .number = NUMBER,
                                 .parameters = {.from = {host, 16, 16, 8},
                                                .from_at = {1, 2, 1},
                                                .to = {(void *)DEVICE, 16, 16, 8},
                                                .to_at = {1, 2, 1},
                                                .extent = {4, 3, 2},
                                                .kind = kind}};
    if (kind == CUDA_MEMCPY_FROM_DEVICE) {
        const struct ibx_cuda_pitched from = copy.parameters.from;
        copy.parameters.from = copy.parameters.to;
        copy.parameters.to = from;
    }
    copy.bytes = copy.parameters;
    return copy;
}

/* Where byte x of row y of plane z is. */
static size_t at(size_t x, size_t y, size_t z)
{
    return ((1 + z) * 8 + 2 + y) * 16 + 1 + x;
}

/* The rows of `to` are those of `from`, and nothing else of it has changed. */
static void assert_rows(const uint8_t *to, const uint8_t *before, const uint8_t *from)
{
    uint8_t wanted[SIZE];
    memcpy(wanted, before, SIZE);
    for (size_t z = 0; z < 2; z++)
        for (size_t y = 0; y < 3; y++)
            memcpy(wanted + at(0, y, z), from + at(0, y, z), 4);
    assert_memory_equal(to, wanted, SIZE);
}

/* ------------------------------------------------------------ copies by CUDA */

static void rows_and_planes_are_copied(NO_STATE)
{
    uint8_t before[SIZE];
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    memcpy(before, device, SIZE);
    ibx_host_copy_make(&copy);
    assert_rows(device, before, host);
    assert_int_equal(is.copies, 6);
    assert_int_equal(is.waits, 1); /* the copies may still be under way */
    assert_int_equal(is.device, 1);
    assert_int_equal(is.stream, 0x10);
    copy = rows(CUDA_MEMCPY_FROM_DEVICE);
    memset(host, 0, SIZE);
    memset(before, 0, SIZE);
    ibx_host_copy_make(&copy);
    assert_rows(host, before, device);
    assert_int_equal(ibx_frontend_graph_failure(), 0);
}

static void copies_on_the_host_are_none_of_cudas(NO_STATE)
{
    uint8_t before[SIZE];
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_ON_HOST);
    copy.parameters.to.at = slot;
    memcpy(before, slot, SIZE);
    ibx_host_copy_make(&copy);
    assert_rows(slot, before, host);
    assert_int_equal(is.copies + is.waits + is.made, 0);
}

static void a_stream_is_made_once_for_a_device_until_a_reset(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    ibx_host_copy_make(&copy);
    ibx_host_copy_make(&copy);
    assert_int_equal(is.made, 1);
    assert_int_equal(is.sets, 1); /* the device stays selected */
    copy.device = 0;
    ibx_host_copy_make(&copy);
    assert_int_equal(is.made, 2);
    assert_int_equal(is.device, 0);
    ibx_frontend_graph_reset();
    ibx_host_copy_make(&copy);
    assert_int_equal(is.made, 3);
    assert_int_equal(is.stream, 0x12);
}

/* The graph goes on: the next call of the program that waits returns the error, once. */
static void errors_are_kept_for_a_call_that_waits(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    is.copy_fails = 11;
    is.good_copies = 1;
    ibx_host_copy_make(&copy);
    assert_int_equal(is.copies, 2); /* and no others */
    assert_int_equal(is.waits, 0);
    assert_int_equal(ibx_frontend_graph_failure(), 11);
    assert_int_equal(ibx_frontend_graph_failure(), 0);
    is.good_copies = ~0u;
    is.wait_fails = 700;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), 700);
    is.unsent = true;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
    is.unsent = false;
    is.wait_fails = 0;
    is.refuses = true;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
    is.get_fails = 3;
    is.device = 0;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), 3);
}

static void no_copy_is_made_on_another_device(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    is.set_fails = 46;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), 46);
    is.set_fails = 0;
    copy.device = IBX_HOST_COPY_DEVICES;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_INVALID_DEVICE);
    copy.device = -1;
    ibx_host_copy_make(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_INVALID_DEVICE);
    assert_int_equal(is.copies + is.made, 0);
}

static void which_functions_copy_is_known(NO_STATE)
{
    assert_true(ibx_frontend_graph_copies(ibx_host_copy_make));
    assert_true(ibx_frontend_graph_copies(ibx_host_copy_exchange));
    assert_false(ibx_frontend_graph_copies(NULL));
}

/* ------------------------------------------------------------ beside everything else */

static int beside(bool to_device)
{
    void *there = (void *)(DEVICE + 64);
    return to_device ? ibx_frontend_copy_beside(there, host, 64, CUDA_MEMCPY_TO_DEVICE, 0)
                     : ibx_frontend_copy_beside(host, there, 64, CUDA_MEMCPY_FROM_DEVICE, 0);
}

static void copies_beside_are_marked_in_both_directions(NO_STATE)
{
    assert_int_equal(beside(true), 0);
    assert_memory_equal(device + 64, host, 64);
    memset(host, 0, sizeof(host));
    assert_int_equal(beside(false), 0);
    assert_memory_equal(host, device + 64, 64);
    assert_int_equal(is.alone, 2);
    assert_int_equal(is.copies, 2);
    assert_int_equal(is.waits, 0); /* they are complete */
    assert_int_equal(is.made, 2);  /* streams: a fetch may stay in its own */
    is.unplugged = true;
    assert_int_equal(beside(true), CUDA_UNKNOWN);
}

static void an_older_back_end_copies_without_the_mark(NO_STATE)
{
    is.knows_alone = false;
    assert_int_equal(beside(true), 0);
    assert_memory_equal(device + 64, host, 64);
    assert_int_equal(is.copies, 2);
    assert_int_equal(is.waits, 1); /* such a copy is not complete */
    is.wait_fails = 700;
    assert_int_equal(beside(false), 700);
    is.wait_fails = 0;
    is.copy_fails = 11;
    is.good_copies = 0;
    assert_int_equal(beside(true), 11);
    assert_int_equal(ibx_frontend_graph_failure(), 0); /* who called knows it */
}

/* ------------------------------------------------------------ by slots */

/* The slot has the rows without gaps. */
static void assert_packed(const uint8_t *bytes, const uint8_t *memory)
{
    for (size_t z = 0; z < 2; z++)
        for (size_t y = 0; y < 3; y++)
            assert_memory_equal(bytes + (z * 3 + y) * 4, memory + at(0, y, z), 4);
}

static void rows_with_gaps_are_packed(NO_STATE)
{
    uint8_t before[SIZE];
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    ibx_host_copy_exchange(&copy);
    assert_packed(slot, host);
    assert_int_equal(copy.called, 1);
    copy = rows(CUDA_MEMCPY_FROM_DEVICE);
    memcpy(before, host, SIZE);
    slot[0] = 99;
    ibx_host_copy_exchange(&copy);
    assert_packed(slot, host);
    for (size_t i = 0; i < SIZE; i++) /* what is between the rows stays */
        if (i < at(0, 0, 0) || i >= at(4, 2, 1))
            assert_int_equal(host[i], before[i]);
    assert_int_equal(host[at(4, 0, 0)], before[at(4, 0, 0)]);
    assert_int_equal(is.copies, 2);
    assert_int_equal(copy.called, 1);
    assert_int_equal(ibx_frontend_graph_failure(), 0);
}

/* From the program's memory itself. In several planes it is whole only if these have no rows
 * between them. */
static void rows_without_gaps_are_copied_at_once(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    copy.bytes.from_at = (struct ibx_cuda_extent){0, 0, 0};
    copy.bytes.extent = (struct ibx_cuda_extent){16, 8, 2};
    ibx_host_copy_exchange(&copy);
    assert_ptr_equal(is.whole, host);
    assert_memory_equal(slot, host, 256);
    copy.bytes.extent = (struct ibx_cuda_extent){16, 7, 2};
    ibx_host_copy_exchange(&copy);
    assert_ptr_not_equal(is.whole, host);
    assert_memory_equal(slot, host, 7 * 16);
    assert_memory_equal(slot + 7 * 16, host + 8 * 16, 7 * 16);
    copy.bytes.extent = (struct ibx_cuda_extent){4, 1, 1}; /* a part of a row */
    ibx_host_copy_exchange(&copy);
    assert_ptr_equal(is.whole, host);
    copy.bytes.extent = (struct ibx_cuda_extent){4, 2, 1};
    ibx_host_copy_exchange(&copy);
    assert_ptr_not_equal(is.whole, host);
    assert_memory_equal(slot + 4, host + 16, 4);
}

static void long_ones_are_copied_in_pieces(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    copy.bytes.from_at = (struct ibx_cuda_extent){0, 0, 0};
    copy.bytes.extent = (struct ibx_cuda_extent){LONG, 1, 1};
    memset(host + PIECE, 99, LONG - PIECE);
    ibx_host_copy_exchange(&copy);
    assert_int_equal(is.copies, 2);
    assert_memory_equal(slot, host, LONG);
    is.copy_fails = 11;
    is.good_copies = 2;
    ibx_host_copy_exchange(&copy);
    assert_int_equal(is.copies, 3); /* and not the other piece */
    assert_int_equal(ibx_frontend_graph_failure(), 11);
}

/* What has failed has written nothing into the program's memory. */
static void errors_of_a_slot_leave_the_programs_memory(NO_STATE)
{
    uint8_t before[SIZE];
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_FROM_DEVICE);
    memcpy(before, host, SIZE);
    is.copy_fails = 11;
    is.good_copies = 0;
    ibx_host_copy_exchange(&copy);
    assert_memory_equal(host, before, SIZE);
    assert_int_equal(ibx_frontend_graph_failure(), 11);
    is.refuses = true;
    ibx_host_copy_exchange(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
    assert_memory_equal(host, before, SIZE);
    copy.bytes.to.at = NULL; /* no launch has bytes for it */
    is.refuses = false;
    ibx_host_copy_exchange(&copy);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
    assert_int_equal(copy.called, 3);
}

static void bytes_that_a_launch_has_taken_are_given(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    struct ibx_launch_bytes *taken = ibx_launch_bytes_take(&copy);
    uint8_t before[SIZE];
    assert_non_null(taken);
    memcpy(before, host, SIZE);
    memset(host, 0, SIZE); /* the program goes on */
    ibx_frontend_graph_give(&copy, taken);
    assert_packed(slot, before);
    assert_int_equal(copy.called, 1);
    assert_int_equal(ibx_frontend_graph_failure(), 0);
    is.copy_fails = 11;
    is.good_copies = 0;
    ibx_frontend_graph_give(&copy, taken);
    assert_int_equal(ibx_frontend_graph_failure(), 11);
    is.refuses = true;
    ibx_frontend_graph_give(&copy, taken);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
    assert_int_equal(copy.called, 3);
    ibx_launch_bytes_free(taken);
}

static struct ibx_launch_bytes *taken_of(size_t height)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    copy.bytes.from.pitch = 0; /* it is always the same row */
    copy.bytes.extent = (struct ibx_cuda_extent){SIZE, height, 1};
    copy.bytes.from_at = (struct ibx_cuda_extent){0, 0, 0};
    return ibx_launch_bytes_take(&copy);
}

static int child_takes_bytes(void)
{
    return taken_of(1) ? 0 : 1;
}

/* Altogether, until they are freed. Those of a parent do not count. */
static void launches_take_so_many_bytes_only(NO_STATE)
{
    assert_null(taken_of(TAKEN + 1));
    struct ibx_launch_bytes *all = taken_of(TAKEN);
    assert_non_null(all);
    assert_null(taken_of(1));
    passes_in_child(child_takes_bytes);
    ibx_launch_bytes_free(all);
    all = taken_of(TAKEN);
    assert_non_null(all);
    ibx_launch_bytes_free(all);
}

/* With the message that the function is to be called: only where they are what it copies. */
static void bytes_that_come_with_the_call_are_taken(NO_STATE)
{
    uint8_t bytes[24];
    struct ibx_host_copy from = rows(CUDA_MEMCPY_FROM_DEVICE), to = rows(CUDA_MEMCPY_TO_DEVICE);
    uint8_t before[SIZE];
    memcpy(before, host, SIZE);
    memset(bytes, 99, sizeof(bytes));
    assert_false(ibx_frontend_graph_copied(ibx_host_copy_make, &from, bytes, 24));
    assert_false(ibx_frontend_graph_copied(ibx_host_copy_exchange, &to, bytes, 24));
    assert_false(ibx_frontend_graph_copied(ibx_host_copy_exchange, &from, bytes, 23));
    assert_memory_equal(host, before, SIZE);
    assert_true(ibx_frontend_graph_copied(ibx_host_copy_exchange, &from, bytes, 24));
    assert_packed(bytes, host);
}

static int child_begins_anew(void)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    if (ibx_frontend_graph_failure() || ibx_frontend_graph_takes_bytes())
        return 1;
    is.made = 0;
    is.good_copies = ~0u;
    ibx_host_copy_make(&copy);
    return is.made == 1 ? 0 : 2;
}

static void a_child_has_neither_streams_nor_errors(NO_STATE)
{
    struct ibx_host_copy copy = rows(CUDA_MEMCPY_TO_DEVICE);
    ibx_host_copies_by_slots();
    is.copy_fails = 11;
    is.good_copies = 0;
    ibx_host_copy_make(&copy);
    passes_in_child(child_begins_anew);
    assert_true(ibx_frontend_graph_takes_bytes());
    assert_int_equal(ibx_frontend_graph_failure(), 11);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(rows_and_planes_are_copied),
                                       TEST(copies_on_the_host_are_none_of_cudas),
                                       TEST(a_stream_is_made_once_for_a_device_until_a_reset),
                                       TEST(errors_are_kept_for_a_call_that_waits),
                                       TEST(no_copy_is_made_on_another_device),
                                       TEST(which_functions_copy_is_known),
                                       TEST(copies_beside_are_marked_in_both_directions),
                                       TEST(an_older_back_end_copies_without_the_mark),
                                       TEST(rows_with_gaps_are_packed),
                                       TEST(rows_without_gaps_are_copied_at_once),
                                       TEST(long_ones_are_copied_in_pieces),
                                       TEST(errors_of_a_slot_leave_the_programs_memory),
                                       TEST(bytes_that_a_launch_has_taken_are_given),
                                       TEST(launches_take_so_many_bytes_only),
                                       TEST(bytes_that_come_with_the_call_are_taken),
                                       TEST(a_child_has_neither_streams_nor_errors)};
    return cmocka_run_group_tests_name("host copies", tests, NULL, NULL);
}
