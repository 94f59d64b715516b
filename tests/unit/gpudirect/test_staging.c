/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The staging pipeline between a simulated network and the simulated driver. */
#include "gpudirect/staging.h"
#include "tests/fixtures/cuda_unit.h"
#include "tests/fixtures/random_fill.h"
#include "tests/fixtures/rounds.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#define POOL_CHUNKS 10u
#define LARGE       ((size_t)13 * IBX_PINNED_CHUNK + 77) /* uses slots more than once */

/* A peer. Moves complete when they are reported, the latest first unless ordered. */
struct wire {
    uint8_t *bytes;
    size_t length;
    bool to_peer, in_order;
    unsigned fail_in; /* which move fails */
    unsigned open_in; /* which call of open() knows the target */
    bool refuse;      /* open() refuses */
    struct ibx_gpu_copy target;
    unsigned spread;   /* 0 means 1 */
    uint64_t first[4]; /* offsets of the first moves */
    struct move {
        bool busy;
        uint8_t *local;
        uint64_t offset;
        size_t n;
        unsigned number;
    } moves[IBX_STAGING_DEPTH];
    unsigned moved;
};

static int wire_move(void *context, unsigned slot, unsigned chunk, void *local, uint64_t offset,
                     size_t n)
{
    struct wire *wire = context;
    uint8_t *payload = ibx_pinned_payload(chunk);
    if (wire->fail_in && !--wire->fail_in)
        return -ECONNRESET;
    assert_false(wire->moves[slot].busy);
    assert_true(n && offset <= wire->length && n <= wire->length - offset);
    assert_true((uint8_t *)local >= payload);
    assert_true((uint8_t *)local + n <= payload + IBX_PINNED_CHUNK);
    if (wire->moved < 4)
        wire->first[wire->moved] = offset;
    wire->moves[slot] = (struct move){true, local, offset, n, ++wire->moved};
    return 0;
}

static int wire_arrived(void *context, bool wait, uint32_t *slots)
{
    struct wire *wire = context;
    int found = -1;
    (void)wait;
    for (int i = 0; i < (int)IBX_STAGING_DEPTH; i++) {
        if (!wire->moves[i].busy)
            continue;
        bool later = found >= 0 && wire->moves[i].number > wire->moves[found].number;
        if (found < 0 || later != wire->in_order)
            found = i;
    }
    *slots = 0;
    if (found < 0)
        return 0;
    uint8_t *peer = wire->bytes + wire->moves[found].offset, *local = wire->moves[found].local;
    memcpy(wire->to_peer ? peer : local, wire->to_peer ? local : peer, wire->moves[found].n);
    wire->moves[found].busy = false;
    *slots = 1u << found;
    return 0;
}

static int wire_open(void *context, struct ibx_gpu_copy *copy)
{
    struct wire *wire = context;
    if (wire->open_in && --wire->open_in)
        return 1;
    if (wire->refuse)
        return IBX_STAGING_REFUSED;
    *copy = wire->target;
    return 0;
}

static struct ibx_staging_wire ops_of(struct wire *wire, bool gated)
{
    return (struct ibx_staging_wire){wire, wire_move, wire_arrived, gated ? wire_open : NULL,
                                     wire->spread ? wire->spread : 1};
}

/* ------------------------------------------------------------------------ scene */

struct scene {
    struct ibx_staging *staging;
    struct wire wire;
    uint8_t *device_bytes; /* the expected contents of the device's memory */
    uint64_t device;
    size_t size;
};

static struct scene scene; /* the scene of most tests; reset() closes it */

static void scene_open(struct scene *s, size_t size)
{
    *s = (struct scene){.size = size};
    s->wire.bytes = malloc(size + 64);
    s->wire.length = size;
    s->device_bytes = malloc(size + 64);
    assert_true(s->wire.bytes && s->device_bytes);
    random_fill(s->wire.bytes, size, 1);
    random_fill(s->device_bytes, size, 2);
    assert_int_equal(app->mem_alloc(&s->device, size), 0);
    assert_true(app->poke(s->device, s->device_bytes, size));
    assert_int_equal(ibx_pinned_open(cuda, POOL_CHUNKS * IBX_PINNED_STRIDE, NULL), 0);
    assert_int_equal(ibx_staging_create(cuda, &s->staging), 0);
}

static void scene_close(struct scene *s)
{
    ibx_staging_destroy(s->staging);
    app->inject(NULL, 0, 0, false);
    app->slow(0);
    app->mem_free(s->device);
    free(s->wire.bytes);
    free(s->device_bytes);
    *s = (struct scene){0};
    assert_int_equal(ibx_pinned_taken(), 0);
    assert_int_equal(cuda_stats().unpinned_async, 0);
}

static int reset(void **state)
{
    (void)state;
    if (scene.staging)
        scene_close(&scene);
    return 0;
}

static void begin(size_t size)
{
    reset(NULL);
    scene_open(&scene, size);
}

static void assert_device(const uint8_t *expected, size_t n)
{
    assert_on_device(scene.device, expected, n);
}

static struct ibx_gpu_copy plain(const struct scene *s, size_t n)
{
    return (struct ibx_gpu_copy){.device = s->device, .width = n, .height = 1};
}

static int send_plain(size_t n)
{
    struct ibx_staging_wire ops = ops_of(&scene.wire, false);
    struct ibx_gpu_copy copy = plain(&scene, n);
    assert_true(ibx_staging_begin(scene.staging, n));
    int rc = ibx_staging_to_device(scene.staging, &ops, &copy);
    if (rc >= 0)
        ibx_staging_end(scene.staging);
    return rc;
}

static int fetch_plain(size_t n, size_t piece)
{
    struct ibx_staging_wire ops = ops_of(&scene.wire, false);
    struct ibx_gpu_copy copy = plain(&scene, n);
    uint8_t *all = scene.wire.bytes;
    scene.wire.to_peer = true;
    assert_true(ibx_staging_begin(scene.staging, n));
    int rc = ibx_staging_from_device(scene.staging, &copy, piece > 300000);
    for (size_t at = 0; !rc && at < n; at += piece) {
        size_t some = n - at < piece ? n - at : piece;
        scene.wire.bytes = all + at;
        scene.wire.length = some;
        rc = ibx_staging_deliver(scene.staging, &ops, some);
    }
    scene.wire.bytes = all;
    scene.wire.length = scene.size;
    scene.wire.to_peer = false;
    ibx_staging_end(scene.staging);
    return rc;
}

/* ------------------------------------------------------------------------ tests */

static const size_t sizes[] = {1, 63, 65536, 65537, 1000003, 4 * IBX_PINNED_CHUNK, LARGE};

static void test_to_device(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int in_order = 0; in_order < 2; in_order++) {
            begin(LARGE);
            scene.wire.in_order = in_order;
            assert_int_equal(send_plain(sizes[i]), 0);
            memcpy(scene.device_bytes, scene.wire.bytes, sizes[i]);
            assert_device(scene.device_bytes, LARGE);
        }
    }
}

/* Threads that move at the same time are 2 MiB apart, and nothing is left out. */
static void test_spread(void **state)
{
    (void)state;
    static const size_t far[] = {0, 2u << 20, 4u << 20, 512u << 10};
    const size_t most = (size_t)20 << 20;
    const size_t step = ROUNDS(IBX_PINNED_CHUNK / 2, 2 * IBX_PINNED_CHUNK) + 1;
    begin(most);
    for (unsigned spread = 1; spread <= 5; spread++) {
        for (size_t n = most - 3 * IBX_PINNED_CHUNK - 5; n <= most; n += step) {
            random_fill(scene.wire.bytes, n, n + spread); /* different bytes in each round */
            scene.wire.moved = 0;
            scene.wire.spread = spread;
            assert_int_equal(send_plain(n), 0);
            memcpy(scene.device_bytes, scene.wire.bytes, n);
            assert_device(scene.device_bytes, most);
            for (unsigned i = 0; i < 4 && spread == 3; i++)
                assert_int_equal(scene.wire.first[i], far[i]);
        }
    }
}

static void test_from_device(void **state)
{
    (void)state;
    const size_t pieces[] = {1u << 20, 300000, LARGE};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        begin(LARGE);
        scene.wire.bytes = realloc(scene.wire.bytes, LARGE + 64);
        for (size_t p = 0; p < 3; p++) {
            memset(scene.wire.bytes, 0x55, LARGE + 64);
            assert_int_equal(fetch_plain(sizes[i], pieces[p]), 0);
            assert_memory_equal(scene.wire.bytes, scene.device_bytes, sizes[i]);
            assert_int_equal(scene.wire.bytes[sizes[i]], 0x55);
        }
    }
}

/* Chunks are reused only when the GPU has read them. The simulated driver reads when a copy
 * runs. */
static void test_slow_dma(void **state)
{
    (void)state;
    begin(LARGE);
    app->slow(1000);
    assert_int_equal(send_plain(LARGE), 0);
    assert_device(scene.wire.bytes, LARGE);
    assert_true(cuda_stats().in_flight_max >= 2);
    uint8_t *sent = malloc(LARGE);
    memcpy(sent, scene.wire.bytes, LARGE);
    assert_int_equal(fetch_plain(LARGE, 1u << 20), 0);
    assert_memory_equal(scene.wire.bytes, sent, LARGE);
    free(sent);
}

/* Earlier work of the stream is waited for, and the copy has ended when the call returns. */
static void test_stream_order(void **state)
{
    (void)state;
    uint64_t other;
    void *stream;
    begin(4 << 20);
    uint8_t *old = malloc(4 << 20);
    random_fill(old, 4 << 20, 9);
    assert_int_equal(app->mem_alloc(&other, 4 << 20), 0);
    assert_true(app->poke(other, old, 4 << 20));
    assert_int_equal(app->stream_create(&stream, 0), 0);
    app->slow(20000);
    /* A slow copy in a blocking stream over the same memory, and then the tested one in the
     * legacy stream. */
    assert_int_equal(app->copy_async(scene.device, other, 4 << 20, stream), 0);
    assert_int_equal(send_plain(4 << 20), 0);
    assert_device(scene.wire.bytes, 4 << 20);
    /* The same with a copy whose result the fetch needs. */
    assert_int_equal(app->copy_async(scene.device, other, 4 << 20, stream), 0);
    assert_int_equal(fetch_plain(4 << 20, 1 << 20), 0);
    assert_memory_equal(scene.wire.bytes, old, 4 << 20);
    app->mem_free(other);
    free(old);
}

static void test_rows(void **state)
{
    (void)state;
    const size_t width = 1000, host_pitch = 1111, device_pitch = 2048, height = 3000;
    begin(device_pitch * height);
    struct ibx_staging_wire ops = ops_of(&scene.wire, false);
    struct ibx_gpu_copy copy = {.device = scene.device,
                                .width = width,
                                .height = height,
                                .host_pitch = host_pitch,
                                .device_pitch = device_pitch};
    assert_true(ibx_gpu_copy_fits(&copy));
    assert_true(ibx_gpu_copy_bytes(&copy) == host_pitch * height);
    assert_true(ibx_staging_begin(scene.staging, host_pitch * height));
    assert_int_equal(ibx_staging_to_device(scene.staging, &ops, &copy), 0);
    ibx_staging_end(scene.staging);
    for (size_t row = 0; row < height; row++)
        memcpy(scene.device_bytes + row * device_pitch, scene.wire.bytes + row * host_pitch, width);
    assert_device(scene.device_bytes, scene.size);

    scene.wire.to_peer = true;
    memset(scene.wire.bytes, 0x55, host_pitch * height);
    assert_true(ibx_staging_begin(scene.staging, host_pitch * height));
    assert_int_equal(ibx_staging_from_device(scene.staging, &copy, true), 0);
    assert_int_equal(ibx_staging_deliver(scene.staging, &ops, host_pitch * height), 0);
    ibx_staging_end(scene.staging);
    const uint8_t gap[111] = {0}; /* bytes that must not change */
    for (size_t row = 0; row < height; row++) {
        const uint8_t *got = scene.wire.bytes + row * host_pitch;
        assert_memory_equal(got, scene.device_bytes + row * device_pitch, width);
        assert_memory_equal(got + width, gap, sizeof(gap));
    }
}

static void test_refusals_of_cuda(void **state)
{
    (void)state;
    begin(LARGE + 8);
    for (unsigned in = 1; in < 4; in++) {
        app->inject("cuMemcpyHtoDAsync", in, 1, false);
        assert_int_equal(send_plain(LARGE), 1);
        app->inject("cuMemcpyDtoHAsync", in, 2, false);
        assert_int_equal(fetch_plain(LARGE, LARGE + 8), 2);
        app->inject("dma", in, 700, true);
        assert_int_equal(send_plain(LARGE), 700);
        assert_int_equal(send_plain(LARGE), 700); /* the error is sticky */
        app->inject(NULL, 0, 0, false);
        for (unsigned i = 0; i < IBX_STAGING_DEPTH; i++)
            assert_false(scene.wire.moves[i].busy);
        random_fill(scene.wire.bytes, LARGE, 40 + in);
        assert_int_equal(send_plain(LARGE), 0);
        assert_device(scene.wire.bytes, LARGE);
    }
}

/* Writes this byte into the chunk that was returned last, as its next user would, and checks
 * what happens to it. */
static void use_chunk(uint8_t byte)
{
    int chunk = ibx_pinned_take(NULL, 0);
    assert_true(chunk >= 0);
    uint8_t *payload = ibx_pinned_payload((unsigned)chunk);
    memset(payload, byte, IBX_PINNED_CHUNK);
    assert_int_equal(app->stream_synchronize(IBX_CUDA_STREAM_LEGACY), 0);
    for (size_t i = 0; i < scene.size; i++)
        assert_int_equal(payload[i], byte);
    ibx_pinned_give(NULL, (unsigned)chunk);
}

/* CUDA copies in a stream of another device, but records no event there. The copy has started,
 * and its chunk may be reused only when the copy has ended. A wait for the stream replaces the
 * event, but does not hide other errors. */
static void test_event_refused(void **state)
{
    (void)state;
    begin(65536);
    app->slow(100000);
    for (unsigned i = 0; i < 2; i++) {
        const int code = i ? 700 : 400;
        random_fill(scene.wire.bytes, scene.size, i);
        app->inject("cuEventRecord", 1, code, false);
        assert_int_equal(send_plain(scene.size), i ? code : 0);
        use_chunk(0xee);
        assert_device(scene.wire.bytes, scene.size);
        app->inject("cuEventRecord", 1, code, false);
        assert_int_equal(fetch_plain(scene.size, scene.size + 8), i ? code : 0);
        use_chunk(0xdd);
        assert_device(scene.wire.bytes, scene.size);
    }
}

static void test_wire_fails(void **state)
{
    (void)state;
    for (unsigned in = 1; in < 14; in += 4) {
        begin(LARGE);
        app->slow(200);
        scene.wire.fail_in = in;
        assert_int_equal(send_plain(LARGE), -ECONNRESET);
    }
}

static void test_target_is_known_late(void **state)
{
    (void)state;
    for (unsigned in = 1; in < 8; in++) {
        begin(LARGE);
        struct ibx_staging_wire ops = ops_of(&scene.wire, true);
        struct ibx_gpu_copy size_only = {.width = LARGE, .height = 1};
        scene.wire.target = size_only;
        scene.wire.target.device = scene.device;
        scene.wire.open_in = in;
        scene.wire.refuse = true;
        assert_true(ibx_staging_begin(scene.staging, LARGE));
        assert_int_equal(ibx_staging_to_device(scene.staging, &ops, &size_only),
                         IBX_STAGING_REFUSED);
        assert_device(scene.device_bytes, LARGE);
        scene.wire.open_in = in;
        scene.wire.refuse = false;
        assert_int_equal(ibx_staging_to_device(scene.staging, &ops, &size_only), 0);
        assert_device(scene.wire.bytes, LARGE);
    }
}

static void test_no_free_chunk(void **state)
{
    (void)state;
    struct ibx_staging *second, *third;
    begin(LARGE);
    assert_int_equal(ibx_pinned_count(), POOL_CHUNKS);
    assert_int_equal(ibx_staging_create(cuda, &second), 0);
    assert_int_equal(ibx_staging_create(cuda, &third), 0);
    assert_true(ibx_staging_begin(scene.staging, LARGE));
    assert_int_equal(ibx_staging_chunks(scene.staging), IBX_STAGING_DEPTH);
    assert_true(ibx_staging_begin(second, LARGE));
    assert_int_equal(ibx_staging_chunks(second), POOL_CHUNKS - IBX_STAGING_DEPTH);
    assert_false(ibx_staging_begin(third, LARGE));
    ibx_staging_end(second);
    assert_true(ibx_staging_begin(third, 4));
    assert_int_equal(ibx_staging_chunks(third), 1);
    ibx_staging_destroy(second);
    ibx_staging_destroy(third);
    ibx_staging_end(scene.staging);
}

/* Ends a copy of one tenant while another tenant waits for a chunk. */
static void *end_soon(void *argument)
{
    app->stream_synchronize(IBX_CUDA_STREAM_LEGACY);
    ibx_staging_end(argument);
    return NULL;
}

/* Endless copies of one tenant leave chunks to the others. */
static void test_quota(void **state)
{
    (void)state;
    struct ibx_quota greedy = {.most = POOL_CHUNKS - 3}, other = {.most = POOL_CHUNKS - 3};
    struct ibx_staging *second, *third;
    pthread_t thread;
    begin(LARGE);
    assert_int_equal(ibx_staging_create(cuda, &second), 0);
    assert_int_equal(ibx_staging_create(cuda, &third), 0);
    ibx_staging_set_quota(scene.staging, &greedy);
    ibx_staging_set_quota(second, &greedy);
    ibx_staging_set_quota(third, &other);
    assert_true(ibx_staging_begin(scene.staging, LARGE));
    assert_int_equal(ibx_staging_chunks(scene.staging), POOL_CHUNKS - 3);
    assert_false(ibx_staging_begin(second, 4));
    assert_true(ibx_staging_begin(third, LARGE));
    assert_int_equal(ibx_staging_chunks(third), 3);
    ibx_staging_end(third);
    assert_int_equal(other.used, 0);
    /* The copy waits for a chunk of its own tenant, and gets the first one. */
    pthread_create(&thread, NULL, end_soon, scene.staging);
    while (!ibx_staging_begin(second, 4))
        ;
    pthread_join(thread, NULL);
    assert_int_equal(greedy.used, 1);
    ibx_staging_destroy(second);
    ibx_staging_destroy(third);
    assert_int_equal(greedy.used, 0);
    ibx_staging_set_quota(scene.staging, NULL);
}

static void *client(void *argument)
{
    struct scene *s = argument;
    cuda_application_use(0);
    for (int i = 0; i < 6; i++) {
        struct ibx_gpu_copy copy = plain(s, LARGE);
        struct ibx_staging_wire ops = ops_of(&s->wire, false);
        while (!ibx_staging_begin(s->staging, LARGE))
            ;
        int rc = ibx_staging_to_device(s->staging, &ops, &copy);
        ibx_staging_end(s->staging);
        if (rc)
            return s;
    }
    return NULL;
}

/* There are more connections than chunks. All finish, and none waits while it holds a chunk. */
static void test_many_clients(void **state)
{
    (void)state;
    enum { CLIENTS = 6 };
    struct scene scenes[CLIENTS];
    pthread_t threads[CLIENTS];
    app->slow(50);
    for (int i = 0; i < CLIENTS; i++) {
        scene_open(&scenes[i], LARGE);
        random_fill(scenes[i].wire.bytes, LARGE, 100 + (uint64_t)i);
    }
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, &scenes[i]), 0);
    for (int i = 0; i < CLIENTS; i++) {
        void *failed = &i;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    for (int i = 0; i < CLIENTS; i++) {
        assert_on_device(scenes[i].device, scenes[i].wire.bytes, LARGE);
        scene_close(&scenes[i]);
    }
}

/* Pinned memory outside the pool: whole copies out of it, and parts of a copy into it, between
 * parts that are staged. */
static void test_pinned_memory_outside_the_pool(void **state)
{
    (void)state;
    const size_t parts[] = {70000, 1, 3 * IBX_PINNED_CHUNK, 65536, LARGE};
    begin(LARGE);
    uint8_t *host = scene.wire.bytes, *again = malloc(LARGE);
    struct ibx_gpu_copy copy = plain(&scene, LARGE);
    assert_int_equal(app->host_register(host, LARGE, 0), 0);
    void *stream;
    assert_int_equal(app->stream_create(&stream, 0), 0);
    for (unsigned own = 0; own < 2; own++) { /* in the default stream the driver needs one call */
        copy.stream = own ? stream : NULL;
        memset(host, (int)own + 1, LARGE / 2);
        const struct ibx_double_stats before = cuda_stats();
        assert_int_equal(ibx_staging_straight(scene.staging, host, &copy, true), 0);
        assert_int_equal(cuda_stats().copies_async, before.copies_async + own);
        assert_int_equal(cuda_stats().copies_sync, before.copies_sync + !own);
        assert_device(host, LARGE);
    }
    for (unsigned first = 0; first < 2; first++) {
        uint64_t at = 0;
        memcpy(again, host, LARGE);
        memset(host, 0x55, LARGE);
        scene.wire.to_peer = true;
        struct ibx_staging_wire ops = ops_of(&scene.wire, false);
        assert_true(ibx_staging_begin(scene.staging, LARGE));
        assert_int_equal(ibx_staging_from_device(scene.staging, &copy, first), 0);
        for (unsigned i = 0; i < 5; i++) {
            size_t n = LARGE - at < parts[i] ? LARGE - at : parts[i];
            scene.wire.bytes = host + at;
            if (i % 2 == first)
                assert_int_equal(ibx_staging_deliver_straight(scene.staging, host + at, n), 0);
            else
                assert_int_equal(ibx_staging_deliver(scene.staging, &ops, n), 0);
            at += n;
        }
        assert_int_equal(ibx_staging_deliver_straight(scene.staging, host, 1), -ERANGE);
        assert_int_equal(ibx_staging_deliver(scene.staging, &ops, 1), -ERANGE);
        ibx_staging_end(scene.staging);
        assert_memory_equal(host, again, LARGE);
    }
    for (unsigned i = 0; i < 2; i++) {
        app->inject(i ? "dma" : "cuMemcpyHtoDAsync", 1, 700, i);
        assert_int_equal(ibx_staging_straight(scene.staging, host, &copy, true), 700);
        app->inject(NULL, 0, 0, false);
    }
    assert_int_equal(ibx_staging_straight(scene.staging, host, &copy, true), 0);
    assert_int_equal(app->host_unregister(host), 0);
    scene.wire.bytes = host;
    free(again);
}

static void test_context_reset(void **state)
{
    (void)state;
    begin(LARGE);
    assert_int_equal(send_plain(LARGE), 0);
    app->primary_reset(0);
    ibx_staging_forget(scene.staging, NULL);
    assert_int_equal(app->mem_alloc(&scene.device, LARGE), 0); /* the reset has freed it */
    assert_int_equal(ibx_pinned_open(cuda, 1, NULL), 0);
    random_fill(scene.wire.bytes, LARGE, 77);
    assert_int_equal(send_plain(LARGE), 0);
    assert_device(scene.wire.bytes, LARGE);
}

/* Chunks that the GPU was to fill never were: none of the copy is delivered as if it had been. */
static void reset_during_a_copy(size_t n, bool straight)
{
    begin(LARGE);
    struct ibx_staging_wire ops = ops_of(&scene.wire, false);
    struct ibx_gpu_copy copy = plain(&scene, n);
    scene.wire.to_peer = true;
    assert_true(ibx_staging_begin(scene.staging, n));
    assert_int_equal(ibx_staging_from_device(scene.staging, &copy, true), 0);
    app->primary_reset(0);
    ibx_staging_forget(scene.staging, NULL);
    assert_int_equal(app->mem_alloc(&scene.device, LARGE), 0);
    assert_int_equal(ibx_pinned_open(cuda, 1, NULL), 0);
    assert_int_equal(straight ? ibx_staging_deliver_straight(scene.staging, scene.wire.bytes, n)
                              : ibx_staging_deliver(scene.staging, &ops, n),
                     709);
    ibx_staging_end(scene.staging);
}

static void test_context_reset_during_a_copy(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        reset_during_a_copy(i % 2 ? LARGE : 4 * IBX_PINNED_CHUNK, i > 1);
}

/* A client that alternates between devices leaves no events behind. */
static void test_devices_in_turn(void **state)
{
    (void)state;
    begin(LARGE);
    const struct ibx_double_stats before = cuda_stats();
    for (int i = 0; i < 20; i++) {
        cuda_application_use(i % 2);
        assert_int_equal(send_plain(LARGE), 0);
        assert_device(scene.wire.bytes, LARGE);
        assert_in_range(cuda_stats().events, before.events, before.events + IBX_STAGING_DEPTH);
    }
    cuda_application_use(0); /* it ends on another device than that of its last copy */
    reset(NULL);
    assert_int_equal(cuda_stats().events, before.events);
    assert_int_equal(cuda_stats().lost_events, before.lost_events);
}

static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t driver_changed = PTHREAD_COND_INITIALIZER;
static bool asked, answers;

/* Blocks like a driver that works for another client. */
static int flags_later(unsigned *flags, void *address)
{
    pthread_mutex_lock(&driver);
    asked = true;
    pthread_cond_broadcast(&driver_changed);
    while (!answers)
        pthread_cond_wait(&driver_changed, &driver);
    pthread_mutex_unlock(&driver);
    return cuda->mem_host_get_flags(flags, address);
}

static void *open_late(void *argument)
{
    struct ibx_cuda late = *cuda;
    late.mem_host_get_flags = flags_later;
    cuda_application_use(0);
    *(int *)argument = ibx_pinned_open(&late, 1, NULL);
    return NULL;
}

/* While the driver blocks one client, all others continue. */
static void test_driver_blocks_one_client(void **state)
{
    (void)state;
    pthread_t thread;
    int rc = 1;
    begin(LARGE);
    asked = answers = false;
    assert_int_equal(pthread_create(&thread, NULL, open_late, &rc), 0);
    pthread_mutex_lock(&driver);
    while (!asked)
        pthread_cond_wait(&driver_changed, &driver);
    pthread_mutex_unlock(&driver);
    assert_int_equal(ibx_pinned_open(cuda, 1, NULL), 0);
    assert_int_equal(send_plain(LARGE), 0);
    assert_device(scene.wire.bytes, LARGE);
    pthread_mutex_lock(&driver);
    answers = true;
    pthread_cond_broadcast(&driver_changed);
    pthread_mutex_unlock(&driver);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
}

#define TEST(name) cmocka_unit_test_teardown(name, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_to_device),
        TEST(test_from_device),
        TEST(test_slow_dma),
        TEST(test_stream_order),
        TEST(test_rows),
        TEST(test_refusals_of_cuda),
        TEST(test_wire_fails),
        TEST(test_target_is_known_late),
        TEST(test_no_free_chunk),
        TEST(test_quota),
        TEST(test_many_clients),
        TEST(test_context_reset),
        TEST(test_context_reset_during_a_copy),
        TEST(test_event_refused),
        TEST(test_pinned_memory_outside_the_pool),
        TEST(test_spread),
        TEST(test_devices_in_turn),
        TEST(test_driver_blocks_one_client),
    };
    return cmocka_run_group_tests_name("staging", tests, find_cuda, NULL);
}
