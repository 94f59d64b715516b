/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/own_requests.h"

#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/session/session_internal.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

struct client alice, bob;
const struct cuda_calls *app;
struct ibx_session *session;

struct ibx_writer own_body(uint8_t *bytes, size_t n, unsigned number)
{
    struct ibx_writer w = ibx_writer_of(bytes, n);
    ibx_put_u16(&w, (uint16_t)number);
    return w;
}

int own_run(struct client *c, const struct ibx_writer *body, uint64_t *answer)
{
    uint8_t out[IBX_OWN_OUT_MAX] = {0};
    struct ibx_writer w = ibx_writer_of(out, sizeof(out));
    const struct ibx_request q = {.body = body->data, .length = body->length};
    const int code = ibx_own_request_run(&c->x, &q, &w);
    struct ibx_reader r = ibx_reader_of(out, w.length);
    assert_false(w.failed);
    if (answer)
        *answer = code ? 0 : ibx_get_u64(&r);
    return code;
}

int own_call(struct client *c, unsigned number, unsigned n, const uint64_t *numbers,
             uint64_t *answer)
{
    uint8_t bytes[256];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), number);
    for (unsigned i = 0; i < n; i++)
        ibx_put_u64(&w, numbers[i]);
    return own_run(c, &w, answer);
}

int own_call_one(struct client *c, unsigned number, uint64_t handle, uint64_t *answer)
{
    return own_call(c, number, 1, &handle, answer);
}

int own_graph_create(struct client *c, uint64_t *graph)
{
    uint8_t bytes[8];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_GRAPH_CREATE);
    ibx_put_u32(&w, 0);
    return own_run(c, &w, graph);
}

int own_memset_add(struct client *c, uint64_t graph, uint64_t at, uint64_t *node)
{
    uint8_t bytes[64];
    const struct ibx_cuda_memset set = {(void *)(uintptr_t)at, 0, 1, 1, 64, 1};
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_NODE_MEMSET);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, 0);
    ibx_layout_put(&w, IBX_LAYOUT_MEMSET, &set);
    return own_run(c, &w, node);
}

uint64_t own_nodes_count(struct client *c, uint64_t graph)
{
    uint8_t bytes[64];
    uint64_t count = UINT64_MAX;
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_GRAPH_NODES);
    ibx_put_u64(&w, graph);
    ibx_put_u64(&w, 0);
    ibx_put_u8(&w, 0);
    assert_int_equal(own_run(c, &w, &count), 0);
    return count;
}

int own_level_of(struct client *c, uint64_t mipmap, unsigned number, uint64_t *level)
{
    uint8_t bytes[64];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_MIPMAP_LEVEL);
    ibx_put_u64(&w, mipmap);
    ibx_put_u32(&w, number);
    return own_run(c, &w, level);
}

void own_mipmap_make(struct client *c)
{
    const struct ibx_cuda_channel channel = {8, 0, 0, 0, 1};
    const struct ibx_cuda_extent extent = {64, 4, 0};
    uint8_t bytes[256];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_MALLOC_MIPMAP);
    ibx_layout_put(&w, IBX_LAYOUT_CHANNEL, &channel);
    ibx_layout_put(&w, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&w, 2);
    ibx_put_u32(&w, 0);
    assert_int_equal(own_run(c, &w, &c->mipmap), 0);
    assert_int_equal(own_level_of(c, c->mipmap, 1, &c->level), 0);
}

static void make_array(struct client *c)
{
    const struct ibx_cuda_channel channel = {8, 0, 0, 0, 1};
    const struct ibx_cuda_extent extent = {64, 4, 0};
    struct ibx_cuda_texture how;
    uint8_t bytes[256];
    struct ibx_writer w = own_body(bytes, sizeof(bytes), IBX_OWN_MALLOC_ARRAY);
    ibx_layout_put(&w, IBX_LAYOUT_CHANNEL, &channel);
    ibx_layout_put(&w, IBX_LAYOUT_EXTENT, &extent);
    ibx_put_u32(&w, 0);
    assert_int_equal(own_run(c, &w, &c->array), 0);
    const struct ibx_cuda_resource resource = {.kind = IBX_RESOURCE_ARRAY,
                                               .of = {.array = (void *)(uintptr_t)c->array}};
    w = own_body(bytes, sizeof(bytes), IBX_OWN_CREATE_TEXTURE);
    for (int i = 0; i < 18; i++) /* as the double wants it */
        how.words[i] = i + 1;
    ibx_resource_put(&w, &resource);
    ibx_layout_put(&w, IBX_LAYOUT_TEXTURE, &how);
    ibx_put_u8(&w, 0);
    assert_int_equal(own_run(c, &w, &c->texture), 0);
}

void own_make_all(struct client *c)
{
    if (c->memory)
        own_call(c, IBX_OWN_FREE_ASYNC, 2, (uint64_t[]){c->memory, 0}, NULL);
    if (c->array)
        own_call_one(c, IBX_OWN_FREE_ARRAY, c->array, NULL);
    if (c->mipmap)
        own_call_one(c, IBX_OWN_FREE_MIPMAP, c->mipmap, NULL);
    assert_int_equal(own_call(c, IBX_OWN_MALLOC_ASYNC, 2, (uint64_t[]){MEMORY, 0}, &c->memory), 0);
    assert_int_equal(own_graph_create(c, &c->graph), 0);
    assert_int_equal(own_memset_add(c, c->graph, c->memory, &c->node), 0);
    assert_int_equal(own_call(c, IBX_OWN_GRAPH_INSTANTIATE, 2, (uint64_t[]){c->graph, 0}, &c->exec),
                     0);
    make_array(c);
    own_mipmap_make(c);
}

static void begin(struct client *c, const char *name)
{
    const struct ibx_tenant_limits none = {.shared = false};
    c->x.s = session;
    c->x.options.mode = IBX_GPU_ON;
    c->x.chosen_for = 0;
    c->x.replies.shape = IBX_REPLY_TIMED;
    ibx_request_watch_init(&c->x.requests);
    ibx_copies_set_end_hooks();
    c->x.isolation.tenant = ibx_tenant_get(name, &none, 2);
    c->x.isolation.on = true;
    own_make_all(c);
}

int own_set_up(void **state)
{
    struct ibx_options options;
    const char *runtime = getenv("IBX_TEST_CUDART");
    (void)state;
    app = cuda_application();
    cuda_application_use(0);
    ibx_options_init(&options);
    assert_true(runtime && dlopen(runtime, RTLD_LAZY));
    assert_int_equal(ibx_session_create("rdma://127.0.0.1:1", &options, &session, NULL), 0);
    begin(&alice, "alice");
    begin(&bob, "bob");
    return 0;
}

int own_tear_down(void **state)
{
    (void)state;
    ibx_session_destroy(session);
    return 0;
}

/* As the handler that does so: the same address may be another thing's then. */
void own_event_destroy(void *event)
{
    ibx_handles_remove(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event);
    assert_int_equal(app->event_destroy(event), 0);
}

/* splitmix64 */
uint64_t own_random(void)
{
    static uint64_t seed = 5;
    uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
