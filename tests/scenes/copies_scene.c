/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/copies_scene.h"

#include "frontend-glue/client_copies/client_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

const struct cuda_calls *app;

struct ibx_gpu_options gpu = {.mode = IBX_GPU_ON, .memory = POOL, .threads = 3};

struct session_pair pair;
static struct back_end back_end;
static pthread_mutex_t back_end_lock = PTHREAD_MUTEX_INITIALIZER;
static bool joined;
uint64_t device;
_Atomic int32_t handler_says = HANDLED;
void (*on_request)(const char *name);

struct back_end seen(void)
{
    pthread_mutex_lock(&back_end_lock);
    struct back_end copy = back_end;
    pthread_mutex_unlock(&back_end_lock);
    return copy;
}

/* A request that GVirtuS runs, and the end of the session. */
static void note(const struct back_end *now)
{
    pthread_mutex_lock(&back_end_lock);
    back_end = *now;
    pthread_mutex_unlock(&back_end_lock);
}

/* As GVirtuS: names byte by byte; its answers carry seconds. */
int serve(struct session_pair *p, void *argument)
{
    struct back_end now = {0}, *back = &now;
    (void)argument;
    cuda_application_use(0);
    for (;;) {
        size_t n = 0;
        ssize_t rc;
        uint64_t length;
        do
            rc = ibx_session_read(p->server, back->last_name + n, 1);
        while (rc == 1 && back->last_name[n++]);
        back->end = (int)rc;
        if (rc != 1)
            note(back);
        if (rc != 1 || ibx_session_read(p->server, &length, 8) != 8)
            return 0;
        uint8_t *body = malloc(length + 1);
        rc = ibx_session_read(p->server, body, length);
        back->last_length = length;
        memcpy(back->last_body, body, length < 64 ? length : 64);
        free(body);
        if (rc != (ssize_t)length)
            return 0;
        back->requests++;
        ibx_device_copies_count(p->server, &back->copies);
        snprintf(back->refused, sizeof(back->refused), "%s", ibx_device_copies_refused(p->server));
        note(back);
        uint64_t again = device;
        if (!strcmp(back->last_name, "cudaDeviceReset") && !app->primary_reset(0))
            app->mem_alloc(&again, DEVICE_BYTES); /* it went as well */
        if (again != device) /* the first address that is free: mostly the same one */
            device = again;
        if (on_request)
            on_request(back->last_name);
        const int32_t code = handler_says;
        const uint8_t zeros[16] = {0};
        ibx_session_write(p->server, &code, 4);
        ibx_session_write(p->server, zeros, 8);
        ibx_session_write(p->server, zeros + 8, 8);
        ibx_session_sync(p->server);
    }
}

/* ------------------------------------------------------------------- the front end */

/* Memory of the scene, the last first; a block begins with the pointer to the one before. */
static void **blocks;

void *scene_memory(size_t n)
{
    void **block = calloc(1, 64 + n);
    assert_non_null(block);
    *block = blocks;
    blocks = block;
    return (uint8_t *)block + 64;
}

void put(struct frame *f, const void *bytes, size_t n)
{
    if (f->n + n > f->room) {
        f->room = f->n + n + 64;
        uint8_t *more = scene_memory(f->room);
        if (f->n)
            memcpy(more, f->bytes, f->n);
        f->bytes = more;
    }
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

void put_u64(struct frame *f, uint64_t value)
{
    put(f, &value, 8);
}

void put_i32(struct frame *f, int32_t value)
{
    put(f, &value, 4);
}

struct frame to_device(const uint8_t *payload, size_t n)
{
    struct frame f = {0};
    put_u64(&f, device);
    put_u64(&f, n);
    put(&f, payload, n);
    put_u64(&f, n);
    put_i32(&f, 1);
    return f;
}

struct frame from_device(size_t n)
{
    struct frame f = {0};
    put_u64(&f, 1);
    put(&f, "", 1);
    put_u64(&f, device);
    put_u64(&f, n);
    put_i32(&f, 2);
    return f;
}

void send_frame(const char *name, const struct frame *f)
{
    uint64_t length = f->n;
    assert_true(ibx_session_write(pair.client, name, strlen(name) + 1) > 0);
    assert_true(ibx_session_write(pair.client, &length, 8) == 8);
    if (f->n)
        assert_true(ibx_session_write(pair.client, f->bytes, f->n) > 0);
    assert_int_equal(ibx_session_sync(pair.client), 0);
}

void send_payload(const char *name, const struct frame *f, const uint8_t *payload, size_t n)
{
    uint64_t length = f->n;
    size_t tail = f->n - 16 - n;
    assert_true(ibx_session_write(pair.client, name, strlen(name) + 1) > 0);
    assert_true(ibx_session_write(pair.client, &length, 8) == 8);
    assert_true(ibx_session_write(pair.client, f->bytes, 16) == 16);
    assert_true(ibx_session_write(pair.client, payload, n) == (ssize_t)n);
    assert_true(ibx_session_write(pair.client, f->bytes + 16 + n, tail) == (ssize_t)tail);
}

void send_apart(const char *name, const struct frame *f, size_t n)
{
    send_payload(name, f, f->bytes + 16, n);
}

int receive_reply(void *out, size_t out_length)
{
    int32_t code;
    double seconds;
    uint64_t length;
    if (ibx_session_read(pair.client, &code, 4) != 4)
        return -1;
    assert_int_equal(ibx_session_read(pair.client, &seconds, 8), 8);
    assert_int_equal(ibx_session_read(pair.client, &length, 8), 8);
    assert_true(length == (code ? 0 : out_length));
    if (length && ibx_session_read(pair.client, out, length) != (ssize_t)length)
        return -1;
    return code;
}

void expect_code(const char *name, const struct frame *f, int code)
{
    send_frame(name, f);
    assert_int_equal(receive_reply(NULL, 0), code);
}

void expect_apart(const char *name, const struct frame *f, size_t n, int code)
{
    send_apart(name, f, n);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(receive_reply(NULL, 0), code);
}

void expect_out(const char *name, const struct frame *f, void *out, size_t n, int code)
{
    send_frame(name, f);
    assert_int_equal(receive_reply(out, n), code);
}

int copy_by_client(struct ibx_frontend_copy wish)
{
    int code = -1;
    wish.device += device;
    assert_int_equal(ibx_client_copy(pair.client, &wish, &code), 0);
    return code;
}

void join_server(void)
{
    if (!joined)
        session_pair_join(&pair);
    joined = true;
}

bool scene_stage_at_once = true;

int set_up(void **state)
{
    (void)state;
    struct frame nothing = {0};
    cuda_application_use(0);
    ibx_named_unseen(); /* tests make streams without a handler */
    assert_int_equal(app->mem_alloc(&device, DEVICE_BYTES), 0);
    session_pair_open(&pair);
    if (scene_stage_at_once)
        ibx_client_stage_at_once(pair.client);
    assert_int_equal(ibx_device_copies_attach(pair.server, &gpu, NULL), 0);
    note(&(struct back_end){0});
    joined = false;
    session_pair_start(&pair, serve, NULL);
    send_frame("first", &nothing);
    assert_int_equal(receive_reply(NULL, 0), HANDLED);
    ibx_pinned_settle(); /* the pool is there, and what is counted from now on is the test's */
    assert_int_equal(seen().requests, 1);
    return 0;
}

int tear_down(void **state)
{
    (void)state;
    struct ibx_double_stats stats;
    ibx_session_close(pair.client);
    join_server();
    session_pair_close(&pair);
    session_faults_server = NULL;
    app->inject(NULL, 0, 0, false);
    app->slow(0);
    app->mem_free(device);
    app->get_stats(&stats);
    for (void **block = blocks, **before; block; block = before) {
        before = *block;
        free(block);
    }
    blocks = NULL;
    return ibx_pinned_taken() || stats.unpinned_async || stats.lost_events || stats.busy_unpins;
}

uint8_t *pattern(size_t n, uint64_t seed)
{
    uint8_t *bytes = scene_memory(n);
    pattern_fill(bytes, n, seed);
    return bytes;
}

void assert_device(size_t n, uint64_t seed)
{
    uint8_t *got = scene_memory(n);
    assert_true(app->peek(device, got, n));
    assert_int_equal(pattern_check(got, n, seed), n);
}
