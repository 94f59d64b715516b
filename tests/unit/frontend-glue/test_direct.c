/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies that the fabric alone makes. A real fabric accesses the memory of a real GPU. Here the
 * dma-bufs of the simulated driver can be mapped, and the session's requests to its connection
 * (the linker's --wrap) are carried out in that mapping.
 *
 *   test_direct PROVIDER */
#include "tests/fixtures/copies_scene.h"

#include "transport/core/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#define REGIONS 8u

/* the fabric's device */
static struct {
    atomic_bool there, refuses;
    atomic_uint registered, ever, reads, writes;
    /* breaks_in: the connection breaks during the READ or WRITE with this number; breaks: how
     * often it did */
    atomic_uint breaks_in, breaks;
    atomic_bool gone_then; /* the next connection uses another fabric */
    struct {
        struct ibx_mr *mr;
        uint8_t *mapped, *address;
        size_t length;
    } regions[REGIONS];
} nic;

const struct ibx_caps *__wrap_ibx_conn_caps(const struct ibx_conn *conn);
const struct ibx_caps *__real_ibx_conn_caps(const struct ibx_conn *conn);
int __wrap_ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                           struct ibx_mr **mr, struct ibx_error *err);
int __real_ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                           struct ibx_mr **mr, struct ibx_error *err);
void __wrap_ibx_mr_deregister(struct ibx_mr *mr);
void __real_ibx_mr_deregister(struct ibx_mr *mr);
int __wrap_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags);
int __real_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags);
int __wrap_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags);
int __real_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags);

const struct ibx_caps *__wrap_ibx_conn_caps(const struct ibx_conn *conn)
{
    static struct ibx_caps caps[64]; /* a session keeps the pointer */
    static atomic_uint next;
    struct ibx_caps *mine = &caps[next++ % 64];
    *mine = *__real_ibx_conn_caps(conn);
    mine->dmabuf = nic.there;
    return mine;
}

int __wrap_ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                           struct ibx_mr **mr, struct ibx_error *err)
{
    if (span->kind == IBX_MEMORY_HOST)
        return __real_ibx_mr_register(conn, span, access, mr, err);
    if (access != IBX_ACCESS_LOCAL || fcntl(span->dmabuf_fd, F_GETFD) < 0)
        abort(); /* no peer may get a key to GPU memory */
    if (nic.refuses)
        return ibx_error_set(err, -EOPNOTSUPP, "this device refuses");
    unsigned i = 0;
    while (nic.regions[i].mr)
        i++;
    void *mapped = mmap(NULL, span->length, PROT_READ | PROT_WRITE, MAP_SHARED, span->dmabuf_fd,
                        (off_t)span->dmabuf_offset);
    if (mapped == MAP_FAILED)
        abort();
    struct ibx_span host = ibx_span_host(mapped, span->length);
    int rc = __real_ibx_mr_register(conn, &host, access, mr, err);
    if (rc)
        return rc;
    (*mr)->span.kind = span->kind; /* no other connection can take it over */
    nic.regions[i].mr = *mr;
    nic.regions[i].mapped = mapped;
    nic.regions[i].address = span->address;
    nic.regions[i].length = span->length;
    nic.registered++;
    nic.ever++;
    return 0;
}

/* The index of the region of GPU memory, or REGIONS. */
static unsigned region_of(const struct ibx_mr *mr)
{
    unsigned i = 0;
    while (i < REGIONS && (!mr || nic.regions[i].mr != mr))
        i++;
    return i;
}

void __wrap_ibx_mr_deregister(struct ibx_mr *mr)
{
    unsigned i = region_of(mr);
    __real_ibx_mr_deregister(mr);
    if (i == REGIONS)
        return;
    munmap(nic.regions[i].mapped, nic.regions[i].length);
    nic.regions[i].mr = NULL;
    nic.registered--;
}

/* Acts as a queue pair in the error state: posted work ends with an error or has completed. */
static void break_under(struct ibx_conn *conn, unsigned region)
{
    if (region == REGIONS || !nic.breaks || --nic.breaks_in)
        return;
    nic.breaks_in = 1;
    nic.breaks--;
    if (nic.gone_then)
        nic.there = false;
    ibx_abort(conn);
}

int __wrap_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags)
{
    unsigned i = region_of(mr);
    if (i < REGIONS) {
        local = nic.regions[i].mapped + ((uint8_t *)local - (uint8_t *)nic.regions[i].address);
        nic.reads++;
    }
    int rc = __real_ibx_read(conn, mr, local, remote, offset, length, cookie, flags);
    break_under(conn, i);
    return rc;
}

int __wrap_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags)
{
    unsigned i = region_of(mr);
    if (i < REGIONS) {
        local = nic.regions[i].mapped + ((const uint8_t *)local - nic.regions[i].address);
        nic.writes++;
    }
    int rc = __real_ibx_write(conn, mr, local, remote, offset, length, cookie, flags);
    break_under(conn, i);
    return rc;
}

/* ------------------------------------------------------------------------- tests */

static int set_up_direct(void **state)
{
    nic.there = true;
    nic.refuses = false;
    nic.ever = nic.reads = nic.writes = 0;
    nic.breaks = 0;
    nic.gone_then = false;
    on_request = NULL;
    gpu.threads = 1;
    return set_up(state);
}

/* How many copies the fabric has made so far. */
static unsigned long by_fabric(void)
{
    struct frame other = {0};
    put_u64(&other, 5);
    expect_code("cudaOther", &other, HANDLED);
    return seen().copies.direct;
}

static struct ibx_double_stats stats(void)
{
    struct ibx_double_stats now;
    app->get_stats(&now);
    return now;
}

static void round_trip(size_t n, bool apart)
{
    uint8_t *bytes = pattern(n, n), *out = scene_memory(n + 8);
    struct frame request = to_device(bytes, n), back = from_device(n);
    if (apart)
        send_apart("cudaMemcpy", &request, n);
    else
        send_frame("cudaMemcpy", &request);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(receive_reply(NULL, 0), 0);
    assert_device(n, n);
    expect_out("cudaMemcpy", &back, out, n + 8, 0);
    assert_memory_equal(out + 8, bytes, n);
}

/* One READ, one WRITE and one registration; neither this host's processors nor a copy engine
 * copy. */
static void test_both_ways(void **state)
{
    (void)state;
    unsigned long copies = stats().copies_async;
    unsigned rounds = 0;
    for (size_t n = 1000000; n <= DEVICE_BYTES; n = n * 2 + 7) {
        round_trip(n, false);
        round_trip(n, true);
        rounds += 2;
        assert_int_equal(by_fabric(), 2 * rounds);
    }
    assert_int_equal(stats().copies_async, copies);
    assert_true(nic.reads == rounds && nic.writes >= rounds && nic.ever == 1);
    ibx_session_close(pair.client);
    join_server();
    assert_int_equal(nic.registered, 0);
}

/* The device refuses. Copies go through chunks, and one message says so. */
static void test_refused(void **state)
{
    (void)state;
    nic.refuses = true;
    unsigned long copies = stats().copies_async;
    round_trip(1000000, false);
    round_trip(2000000, true);
    assert_int_equal(by_fabric(), 0);
    assert_int_equal(seen().requests, 2); /* not run by GVirtuS */
    assert_non_null(strstr(seen().refused, "this device refuses"));
    assert_true(stats().copies_async > copies && !nic.ever);
}

/* Data that the fabric has written is flushed if the GPU does not order it. If that is
 * impossible, nothing is written directly. */
static void test_flush(void **state)
{
    (void)state;
    app->attribute(IBX_CUDA_DEVICE_RDMA_ORDERING, 0);
    app->attribute(IBX_CUDA_DEVICE_RDMA_FLUSH, IBX_CUDA_FLUSH_BY_HOST);
    unsigned long flushes = stats().flushes;
    round_trip(1000000, false);
    assert_int_equal(by_fabric(), 2);
    assert_int_equal(stats().flushes, flushes + 1);
    tear_down(state);
    app->attribute(IBX_CUDA_DEVICE_RDMA_FLUSH, 0);
    set_up_direct(state);
    round_trip(1000000, false);
    assert_int_equal(by_fabric(), 0);
    app->attribute(IBX_CUDA_DEVICE_RDMA_ORDERING, IBX_CUDA_ORDERING_OWNER);
}

/* Memory is deregistered before the handler frees it. A reset deregisters all. */
static atomic_uint registered_then;

static void note_registered(const char *name)
{
    if (!strcmp(name, "cudaFree") || !strcmp(name, "cudaDeviceReset"))
        registered_then = nic.registered;
}

static void test_freed(void **state)
{
    (void)state;
    struct frame request = {0}, other = {0}, nothing = {0};
    on_request = note_registered;
    round_trip(1000000, false);
    assert_int_equal(nic.registered, 1);
    put_u64(&other, device - 4096);
    expect_code("cudaFree", &other, HANDLED);
    assert_int_equal(registered_then, 1);
    put_u64(&request, device);
    expect_code("cudaFree", &request, HANDLED);
    assert_int_equal(registered_then, 0);
    round_trip(1000000, false); /* in this test the handler did not free it */
    assert_int_equal(nic.registered, 1);
    expect_code("cudaDeviceReset", &nothing, HANDLED);
    assert_int_equal(registered_then, 0);
}

/* Another session frees memory while this one waits for its client: between two requests, and
 * between parts of a reply. */
static void test_freed_by_another_session(void **state)
{
    (void)state;
    const size_t n = 5000000, part = 1250000;
    uint8_t *bytes = pattern(n, 4), *out = scene_memory(n), head[28];
    struct frame request = to_device(bytes, n), back = from_device(n);
    expect_code("cudaMemcpy", &request, 0);
    assert_int_equal(nic.registered, 1);
    ibx_gpu_registrations_freed(NULL, device);
    assert_int_equal(nic.registered, 0);
    send_frame("cudaMemcpy", &back);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(ibx_session_read(pair.client, head, sizeof(head)), sizeof(head));
    for (size_t at = 0; at < n; at += part) {
        assert_int_equal(ibx_session_read(pair.client, out + at, part), part);
        ibx_gpu_registrations_freed(NULL, device);
        assert_int_equal(nic.registered, 0);
    }
    assert_memory_equal(out, bytes, n);
    assert_int_equal(nic.ever, 1 + n / part);
    assert_int_equal(by_fabric(), 2);
}

/* Earlier work of all blocking streams comes first, and the copy returns its errors. */
static void test_order(void **state)
{
    (void)state;
    const size_t n = 2000000;
    uint8_t *bytes = pattern(n, 5), *out = scene_memory(n + 8);
    struct frame back = from_device(n), request = to_device(bytes, n);
    uint64_t other;
    void *stream;
    round_trip(n, false);
    assert_int_equal(app->mem_alloc(&other, n), 0);
    assert_true(app->poke(other, bytes, n));
    assert_int_equal(app->stream_create(&stream, 0), 0);
    app->slow(50000);
    assert_int_equal(app->copy_async(device, other, n, stream), 0);
    expect_out("cudaMemcpy", &back, out, n + 8, 0);
    assert_memory_equal(out + 8, bytes, n);
    /* An earlier copy over the same memory that has not started yet must not overwrite later
     * data. */
    memset(bytes, 0x77, n);
    request = to_device(bytes, n);
    assert_int_equal(app->copy_async(device, other, n, stream), 0);
    expect_code("cudaMemcpy", &request, 0);
    assert_int_equal(app->stream_synchronize(stream), 0);
    assert_true(app->peek(device, out, n));
    assert_memory_equal(out, bytes, n);
    assert_int_equal(by_fabric(), 4);
    app->slow(0);
    app->inject("dma", 1, 700, true);
    assert_int_equal(app->copy_async(device, other, n, stream), 0);
    expect_out("cudaMemcpy", &back, out, n + 8, HANDLED); /* so that the error is the runtime's */
    app->inject(NULL, 0, 0, false);
    app->mem_free(other);
}

/* Direct copies start at the size in the tuning file. */
static void test_size_from_the_tuning_file(void **state)
{
    (void)state;
    round_trip(1000000, false);
    assert_int_equal(by_fabric(), 1); /* to the device */
    round_trip(3000000, true);
    assert_int_equal(by_fabric(), 3);
    round_trip(1999999, true);
    assert_int_equal(by_fabric(), 4);
}

static int set_up_chosen(void **state)
{
    gpu.tuning = (struct ibx_tuning){.found = true, .choice = ibx_choice_default};
    gpu.tuning.choice.ways[IBX_CHOICE_FROM_DEVICE].direct_min = 2000000;
    int rc = set_up_direct(state);
    gpu.tuning.found = false;
    return rc;
}

/* -------------------------------------------------- connections that break during a direct copy */

static int set_up_kept(void **state)
{
    session_keeps = 30;
    int rc = set_up_direct(state);
    session_keeps = 0;
    return rc;
}

static void break_in(unsigned n, unsigned times)
{
    nic.breaks_in = n;
    nic.breaks = times;
}

/* Copies in both directions; the READ or WRITE with this number breaks the connection. */
static void test_broken_connection(void **state)
{
    (void)state;
    unsigned resumed = 0;
    for (unsigned n = 1; n <= 2; n++) {
        for (unsigned apart = 0; apart < 2; apart++) {
            break_in(n, 1);
            round_trip(1000000 + n, apart);
            assert_int_equal(ibx_session_resumed(pair.client), ++resumed);
        }
    }
    assert_int_equal(by_fabric(), 8);
    assert_int_equal(seen().requests, 2);
    assert_true(nic.reads == 4 + 2 && nic.ever == 1 + 4);
}

/* The same with an EARLY_CTS, which the preload's copies have. */
static void test_broken_connection_with_early_cts(void **state)
{
    (void)state;
    const size_t n = 3000000;
    uint8_t *bytes = pattern(n, 9), *out = scene_memory(n);
    struct ibx_frontend_copy there = {.to_device = true, .host = bytes, .n = n, .whole = true},
                             back = {.host = out, .n = n, .whole = true};
    break_in(1, 1);
    assert_int_equal(copy_by_client(there), 0);
    assert_device(n, 9);
    break_in(1, 1);
    assert_int_equal(copy_by_client(back), 0);
    assert_memory_equal(out, bytes, n);
    assert_int_equal(ibx_session_resumed(pair.client), 2);
    assert_int_equal(by_fabric(), 2);
    memset(out, 0, n);
    nic.gone_then = true;
    break_in(1, 1);
    assert_int_equal(copy_by_client(back), 0);
    assert_memory_equal(out, bytes, n);
    assert_int_equal(by_fabric(), 2);
}

/* The next connection does not reach GPU memory; the one after that does. */
static void test_next_connection_on_another_fabric(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        for (unsigned apart = 0; apart < 2; apart++) {
            nic.there = nic.gone_then = true;
            if (apart || n > 1)
                ibx_abort(pair.client->conn);
            break_in(n, 1);
            round_trip(4000000 + n, apart);
        }
    }
    assert_int_equal(by_fabric(), 2);
    assert_int_equal(seen().requests, 2);
    assert_int_equal(nic.registered, 0);
}

/* The connection breaks in a reply that the client takes in pieces. */
static void test_broken_connection_within_a_reply(void **state)
{
    (void)state;
    const size_t n = 5000000, piece = 1250002;
    uint8_t *bytes = pattern(n, 3), *out = scene_memory(n);
    struct frame request = to_device(bytes, n), back = from_device(n);
    for (unsigned gone = 0; gone < 2; gone++) {
        nic.there = true;
        nic.gone_then = gone;
        expect_code("cudaMemcpy", &request, 0);
        memset(out, 0, n);
        send_frame("cudaMemcpy", &back);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        uint8_t head[28];
        assert_int_equal(ibx_session_read(pair.client, head, sizeof(head)), sizeof(head));
        break_in(3, 1);
        for (size_t at = 0; at < n; at += piece)
            assert_int_equal(
                ibx_session_read(pair.client, out + at, n - at < piece ? n - at : piece),
                n - at < piece ? n - at : piece);
        assert_memory_equal(out, bytes, n);
    }
    assert_int_equal(ibx_session_resumed(pair.client), 2);
}

/* If a direct READ breaks the connection every time, the copy goes through chunks. */
static void test_reads_that_always_break_the_connection(void **state)
{
    (void)state;
    break_in(1, 3);
    round_trip(1000000, false);
    assert_int_equal(ibx_session_resumed(pair.client), 3);
    assert_int_equal(by_fabric(), 1);
    assert_int_equal(seen().requests, 2);
}

#define TEST(name)      cmocka_unit_test_setup_teardown(name, set_up_direct, tear_down)
#define TEST_KEPT(name) cmocka_unit_test_setup_teardown(name, set_up_kept, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_both_ways),
        TEST(test_refused),
        TEST(test_flush),
        TEST(test_freed),
        TEST(test_freed_by_another_session),
        TEST(test_order),
        cmocka_unit_test_setup_teardown(test_size_from_the_tuning_file, set_up_chosen, tear_down),
        TEST_KEPT(test_broken_connection),
        TEST_KEPT(test_broken_connection_with_early_cts),
        TEST_KEPT(test_next_connection_on_another_fabric),
        TEST_KEPT(test_broken_connection_within_a_reply),
        TEST_KEPT(test_reads_that_always_break_the_connection),
    };
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests_name("direct", tests, NULL, NULL);
}
