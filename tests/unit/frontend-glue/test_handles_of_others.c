/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Each extension request that names something, once with each of its handles exchanged: for that of
 * another tenant's client, for one that is gone, for one of another kind, and for numbers. CUDA
 * must not see it. The same request with the client's own handles is answered. */
#include "tests/fixtures/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* What a request may name. All nodes are of one graph, of which the executable graph is made. */
enum thing {
    GRAPH,
    EMPTY_GRAPH,
    CLONE,
    ALLOCATING,
    SET_NODE,
    OTHER_SET_NODE,
    COPYING_NODE,
    KERNEL_NODE,
    RECORDING_NODE,
    WAITING_NODE,
    CALLING_NODE,
    PARENT_NODE,
    PAIR_NODE,
    MEMORY_NODE,
    EXEC,
    CONDITION,
    ARRAY,
    MIPMAP,
    TEXTURE,
    SURFACE,
    STREAM,
    EVENT,
    POOL,
    MAPPABLE,
    RESERVED,
    MAPPED,
    DEVICE,
    QUEUE,
    THINGS
};

/* Things of one kind have one class: the back end leaves it to CUDA which of them fits. */
static const struct {
    const char *name;
    char class;
} things[THINGS] = {
    [GRAPH] = {"graph", 'g'},
    [EMPTY_GRAPH] = {"empty", 'g'},
    [CLONE] = {"clone", 'g'},
    [ALLOCATING] = {"allocating", 'g'},
    [SET_NODE] = {"set", 'n'},
    [OTHER_SET_NODE] = {"last", 'n'},
    [COPYING_NODE] = {"copy", 'n'},
    [KERNEL_NODE] = {"kernel", 'n'},
    [RECORDING_NODE] = {"record", 'n'},
    [WAITING_NODE] = {"wait", 'n'},
    [CALLING_NODE] = {"host", 'n'},
    [PARENT_NODE] = {"child", 'n'},
    [PAIR_NODE] = {"pair", 'n'},
    [MEMORY_NODE] = {"memory", 'n'},
    [EXEC] = {"exec", 'e'},
    [CONDITION] = {"condition", 'c'},
    [ARRAY] = {"array", 'a'},
    [MIPMAP] = {"mipmap", 'y'},
    [TEXTURE] = {"texture", 't'},
    [SURFACE] = {"surface", 's'},
    [STREAM] = {"stream", 'w'},
    [EVENT] = {"event", 'E'},
    [POOL] = {"pool", 'l'},
    [MAPPABLE] = {"mappable", 'm'},
    [RESERVED] = {"reserved", 'r'},
    [MAPPED] = {"mapped", 'r'},
    [DEVICE] = {"device", 'd'},
    [QUEUE] = {"queue", 'q'},
};

#define VIRTUAL 2097152u /* bytes of memory that is mapped */

static uint64_t alices[THINGS], bobs[THINGS], gone[THINGS];

/* Copies of 16 bytes: between an array and memory, within memory, and between memory and the host.
 */
#define FROM_ARRAY  "?1 array q0 q0 q0 q0 q0 q0 q0 q0 q0 q0 q0 device q64 q64 q4 q16 q1 q1 i3"
#define TO_ARRAY    "?1 q0 q0 q0 q0 device q64 q64 q4 array q0 q0 q0 q0 q0 q0 q0 q16 q1 q1 i3"
#define IN_DEVICE   "q0 q0 q0 q0 device q64 q64 q4 q0 q0 q0 q0 device q64 q64 q4 q16 q1 q1 i3"
#define TO_DEVICE   "q0 q0 q0 q0 q0 q0 q0 q0 q0 q0 q0 q0 device q64 q64 q4 q16 q1 q1 i1"
#define FROM_DEVICE "q0 q0 q0 q0 device q64 q64 q4 q0 q0 q0 q0 q0 q0 q0 q0 q16 q1 q1 i2"
#define FILL_ARRAY  "?1 q0 q0 q0 q0 q0 q0 q0 q0 array q0 q0 q0 q0 q0 q0 q0 q16 q1 q1 i1"
#define SET         "device q0 i7 i1 q64 q1"
#define LAUNCH      "q28672 i1 i1 i1 i1 i1 i1 q0 stream q24 =device =device q8"
/* Of a node: in no stream. */
#define KERNEL "q28672 i1 i1 i1 i1 i1 i1 q0 q0 q24 =device =device q8"
#define TEXTURES                                                                                   \
    "i1 i2 i3 i4 i5 i6 i7 i8 i9 i10 i11 i12 i13 i14 i15 i16 i17 i18 b0" /* as the double's */

#define DRIVERS_TEXTURES "i1 i2 i3 i1 i0 i0 i7 i8 i9 i10 i0 i12 i13 i14 i15 i16 i0 i0 b2"

/* Words: names of things (with =: any client may name it there), numbers of 8 (q), 4 (i), 2 (h)
 * and 1 (b) bytes, and so many zeros (0). ?: so many
 * calls of CUDA ask about an array or a node of the client's own, before the rest is checked. !: it
 * is not supported here, which is found out after that. */
static const struct {
    unsigned number;
    const char *words;
} requests[] = {
    {IBX_EXT_STREAM_GET_ATTRIBUTE, "stream i1"},
    {IBX_EXT_STREAM_SET_ATTRIBUTE, "stream i1 064"},
    {IBX_EXT_STREAM_WAIT, "stream"},
    {IBX_EXT_RECORD, "event stream i0"},
    {IBX_EXT_LAUNCH, "h0 " LAUNCH},
    {IBX_EXT_LAUNCH, "h68 i7 event 056 " LAUNCH},
    {IBX_EXT_LAUNCH_QUEUED, "h0 " LAUNCH " stream"},
    {IBX_EXT_HOST_ADD, "stream queue q1 b0"},
    {IBX_EXT_FREE_ARRAY, "array"},
    {IBX_EXT_FREE_MIPMAP, "mipmap"},
    {IBX_EXT_MIPMAP_LEVEL, "mipmap i1"},
    {IBX_EXT_TO_ARRAY, "array q0 q0 device q16"},
    {IBX_EXT_FROM_ARRAY, "device array q0 q0 q16"},
    {IBX_EXT_2D_TO_ARRAY, "array q0 q0 device q64 q16 q2"},
    {IBX_EXT_2D_FROM_ARRAY, "device q64 array q0 q0 q16 q2"},
    {IBX_EXT_MEMCPY_3D, FROM_ARRAY},
    {IBX_EXT_MEMCPY_3D, TO_ARRAY},
    {IBX_EXT_MEMCPY_3D, IN_DEVICE},
    {IBX_EXT_MEMCPY_3D_ASYNC, FROM_ARRAY " stream"},
    {IBX_EXT_MEMCPY_3D_ASYNC, TO_ARRAY " stream"},
    {IBX_EXT_MEMCPY_3D_ASYNC, IN_DEVICE " stream"},
    {IBX_EXT_CHANNEL_DESC, "array"},
    {IBX_EXT_DESTROY_TEXTURE, "texture"}, /* the double gives numbers out again */
    {IBX_EXT_CREATE_TEXTURE, "i0 array " TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i1 mipmap " TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i2 device i8 i0 i0 i0 i2 q64 " TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i3 device i8 i0 i0 i0 i2 q64 q4 q64 " TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i0 array " DRIVERS_TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i1 mipmap " DRIVERS_TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i2 device i8 i0 i0 i0 i1 q64 " DRIVERS_TEXTURES},
    {IBX_EXT_CREATE_TEXTURE, "i3 device i8 i0 i0 i0 i1 q64 q4 q64 " DRIVERS_TEXTURES},
    {IBX_EXT_CREATE_SURFACE, "i0 array"},
    {IBX_EXT_DESTROY_SURFACE, "surface"},
    {IBX_EXT_MALLOC_ASYNC, "q64 stream"},
    {IBX_EXT_MALLOC_FROM_POOL, "q64 pool stream"},
    {IBX_EXT_FREE_ASYNC, "device stream"},
    {IBX_EXT_POOL_SET, "pool i4 q0"},
    {IBX_EXT_POOL_GET, "pool i4"},
    {IBX_EXT_POOL_TRIM, "pool q0"},
    {IBX_EXT_POOL_DESTROY, "pool"},
    {IBX_EXT_POOL_SET_ACCESS, "pool i1 i3"},
    {IBX_EXT_POOL_GET_ACCESS, "pool i1"},
    {IBX_EXT_IPC_POOL, "pool"},
    {IBX_EXT_IPC_MEMORY, "device"},
    {IBX_EXT_IPC_EVENT, "event"},
    {IBX_EXT_VIRTUAL_EXPORT, "mappable"},
    {IBX_EXT_VIRTUAL_RELEASE, "mappable"},
    {IBX_EXT_VIRTUAL_FREE, "reserved q2097152"},
    {IBX_EXT_VIRTUAL_MAP, "reserved q2097152 mappable"},
    {IBX_EXT_VIRTUAL_SET_ACCESS, "mapped q2097152 i0 i3"},
    {IBX_EXT_VIRTUAL_GET_ACCESS, "mapped i0"},
    {IBX_EXT_VIRTUAL_UNMAP, "mapped q2097152"},
    {IBX_EXT_IS_CAPTURING, "stream"},
    {IBX_EXT_MEMSET, "device i7 q64 stream"},
    {IBX_EXT_MEMSET_2D, "device q64 i7 q16 q2 stream"},
    {IBX_EXT_MEMSET_ELEMENTS, "device q64 i7 i2 q16 q2 stream"},
    {IBX_EXT_STREAM_VALUE, "device q7 i2 i0 stream"},
    {IBX_EXT_RANDOM_TABLE, "! i4 device"},
    {IBX_EXT_COMPILE, "device q16 i0 i0 b0"},
    {IBX_EXT_LINK, "device q4096 h1 i1 q16"},
    {IBX_EXT_STREAM_FLAGS, "stream"},
    {IBX_EXT_STREAM_PRIORITY, "stream"},
    {IBX_EXT_STREAM_ID, "stream"},
    {IBX_EXT_STREAM_DEVICE, "stream"},
    {IBX_EXT_STREAM_COPY_ATTRIBUTES, "stream stream"},
    {IBX_EXT_CLUSTERS, "q28672 i1 i1 i1 i1 i1 i1 q0 stream"},
    {IBX_EXT_CLUSTERS, "q28672 i1 i1 i1 i1 i1 i1 q0 q0 i7 event 056"},
    {IBX_EXT_CLUSTER_SIZE, "q28672 i1 i1 i1 i1 i1 i1 q0 stream"},
    {IBX_EXT_GRAPH_CLONE, "graph"},
    {IBX_EXT_GRAPH_INSTANTIATE, "graph q0"},
    {IBX_EXT_GRAPH_NODES, "graph q0 b0"},
    {IBX_EXT_GRAPH_NODES, "graph q0 b1"},
    {IBX_EXT_GRAPH_FUNCTIONS, "graph q0"},
    {IBX_EXT_GRAPH_ORDER, "graph set last b0"},
    {IBX_EXT_GRAPH_ORDER_DATA, "graph set last b0 q0"},
    {IBX_EXT_GRAPH_DESTROY, "empty"},
    {IBX_EXT_GRAPH_CONDITION, "graph i0 i1"},
    {IBX_EXT_NODE_KERNEL, "graph h1 set " KERNEL},
    {IBX_EXT_NODE_MEMCPY, "graph h1 set " FROM_ARRAY},
    {IBX_EXT_NODE_MEMCPY, "graph h1 set " TO_ARRAY},
    {IBX_EXT_NODE_MEMCPY, "graph h1 set " IN_DEVICE},
    {IBX_EXT_NODE_MEMSET, "graph h1 set " SET},
    {IBX_EXT_NODE_HOST, "graph h1 set queue q1"},
    {IBX_EXT_NODE_EMPTY, "graph h0"},
    {IBX_EXT_NODE_EMPTY, "graph h2 set last"},
    {IBX_EXT_NODE_CHILD, "graph h1 set empty"},
    {IBX_EXT_NODE_MOVED, "graph h1 set empty"},
    {IBX_EXT_NODE_RECORD, "graph h1 set event"},
    {IBX_EXT_NODE_WAIT, "graph h1 set event"},
    {IBX_EXT_NODE_ALLOC, "graph h1 set i0 q64"},
    {IBX_EXT_NODE_FREE, "graph h1 set device"},
    {IBX_EXT_NODE_COPY, "graph h1 set queue q2 " TO_DEVICE},
    {IBX_EXT_NODE_COPY, "graph h1 set queue q3 " FROM_DEVICE},
    {IBX_EXT_NODE_COPY, "graph h1 set queue q2 " FILL_ARRAY},
    {IBX_EXT_NODE_CONDITIONAL, "graph h1 set condition i0 i1"},
    {IBX_EXT_NODE_TYPE, "set"},
    {IBX_EXT_NODE_IN_CLONE, "set clone"},
    {IBX_EXT_NODE_NEIGHBOURS, "set q0 b0"},
    {IBX_EXT_NODE_NEIGHBOURS, "set q0 b1"},
    {IBX_EXT_NODE_EDGES, "set q0 b0"},
    {IBX_EXT_NODE_EDGES, "set q0 b1"},
    {IBX_EXT_NODE_ENABLE, "exec set i1"},
    {IBX_EXT_NODE_ENABLED, "exec set"},
    {IBX_EXT_GET_MEMSET, "set"},
    {IBX_EXT_GET_KERNEL, "kernel i0"},
    {IBX_EXT_GET_ATTRIBUTE, "kernel i1"},
    {IBX_EXT_SET_ATTRIBUTE, "kernel i1 064"},
    {IBX_EXT_COPY_ATTRIBUTES, "kernel kernel"},
    {IBX_EXT_GET_EVENT, "record"},
    {IBX_EXT_GET_EVENT, "wait"},
    {IBX_EXT_GET_HOST, "host"},
    {IBX_EXT_GET_CHILD, "child"},
    {IBX_EXT_GET_MEMORY, "memory"},
    {IBX_EXT_GET_COPY, "copy"},
    {IBX_EXT_GET_COPY, "pair"},
    {IBX_EXT_SET_KERNEL, "exec kernel " KERNEL},
    {IBX_EXT_SET_KERNEL, "q0 kernel " KERNEL},
    {IBX_EXT_SET_MEMCPY, "exec copy " IN_DEVICE},
    {IBX_EXT_SET_MEMCPY, "q0 copy " FROM_ARRAY},
    {IBX_EXT_SET_MEMSET, "exec set " SET},
    {IBX_EXT_SET_MEMSET, "q0 set " SET},
    {IBX_EXT_SET_EVENT, "exec record event"},
    {IBX_EXT_SET_EVENT, "q0 wait event"},
    {IBX_EXT_SET_HOST, "?1 exec host queue q1"},
    {IBX_EXT_SET_HOST, "?1 q0 host queue q1"},
    {IBX_EXT_SET_CHILD, "exec child empty"},
    {IBX_EXT_CAPTURE_COPY, "! stream =queue q4 " TO_DEVICE},
    {IBX_EXT_CAPTURE_COPY, "! stream =queue q4 " FROM_DEVICE},
    {IBX_EXT_SET_COPY, "?7 exec pair queue q2 " TO_DEVICE},
    {IBX_EXT_SET_COPY, "?7 q0 pair queue q2 " TO_DEVICE},
    {IBX_EXT_EXEC_UPDATE, "exec graph"},
    {IBX_EXT_EXEC_REFRESH, "exec graph b0"},
    {IBX_EXT_EXEC_REFRESH, "exec graph b1"},
    {IBX_EXT_EXEC_UPLOAD, "exec stream"},
    {IBX_EXT_EXEC_FLAGS, "exec"},
    {IBX_EXT_EXEC_DESTROY, "exec"},
    {IBX_EXT_NODE_DESTROY, "last"},
};

#define REQUESTS (sizeof(requests) / sizeof(requests[0]))

/* ------------------------------------------------------------------------------- requests */

/* The thing of that name; THINGS: it is a number. */
static enum thing thing_of(const char *word, size_t n)
{
    unsigned i = 0;
    while (i < THINGS && (strlen(things[i].name) != n || strncmp(things[i].name, word, n) != 0))
        i++;
    return (enum thing)i;
}

static void put_number(struct ibx_writer *w, const char *word)
{
    const uint64_t number = strtoull(word + 1, NULL, 10);
    if (*word == 'q')
        ibx_put_u64(w, number);
    else if (*word == 'i')
        ibx_put_u32(w, (uint32_t)number);
    else if (*word == 'h')
        ibx_put_u16(w, (uint16_t)number);
    else if (*word == 'b')
        ibx_put_u8(w, (uint8_t)number);
    for (uint64_t i = 0; *word == '0' && i < number; i++)
        ibx_put_u8(w, 0);
}

/* What is put in place of the handles that a request names. */
struct exchange {
    unsigned at;            /* the handle of that number */
    bool all;               /* all of them */
    const uint64_t *things; /* by these; NULL: */
    uint64_t value;         /* this one */
};

/* Runs a request of bob's. *named: what the handle that was exchanged named; THINGS: there is no
 * such handle. */
static int request(unsigned i, const struct exchange *by, enum thing *named)
{
    uint8_t bytes[1024];
    unsigned handles = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), requests[i].number);
    *named = THINGS;
    for (const char *word = requests[i].words; *word; word += strspn(word, " ")) {
        const size_t n = strcspn(word, " ");
        const bool plain = *word == '=';
        const enum thing thing = thing_of(word + plain, n - plain);
        if (thing == THINGS) {
            put_number(&w, word);
        } else if (by && !plain && (by->all || by->at == handles)) {
            ibx_put_u64(&w, by->things ? by->things[thing] : by->value);
            *named = thing;
        } else {
            ibx_put_u64(&w, bobs[thing]);
        }
        handles += thing != THINGS && !plain;
        word += n;
    }
    assert_false(w.failed);
    return by && *named == THINGS ? 0 : ext_run(&bob, &w, NULL);
}

/* -------------------------------------------------------------------------------- things */

/* A request with these words. Returns the first number of its answer. */
static uint64_t make(struct client *c, const uint64_t *of, unsigned number, const char *words)
{
    uint8_t bytes[1024];
    uint64_t made = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    for (const char *word = words; *word; word += strspn(word, " ")) {
        const size_t n = strcspn(word, " ");
        const enum thing thing = thing_of(word + (*word == '='), n - (*word == '='));
        if (thing == THINGS)
            put_number(&w, word);
        else
            ibx_put_u64(&w, of[thing]);
        word += n;
    }
    const int rc = ext_run(c, &w, &made);
    if (rc)
        fail_msg("request %u \"%s\": %d", number, words, rc);
    return made;
}

static void *event_make(struct client *c)
{
    void *event = NULL;
    assert_int_equal(app->event_create(&event, 6), 0);
    assert_true(ibx_handles_add(&c->x, IBX_HANDLE_EVENT, (uintptr_t)event));
    return event;
}

static void make_nodes(struct client *c, uint64_t *t)
{
    static const struct {
        enum thing thing;
        unsigned number;
        const char *words;
    } nodes[] = {
        {SET_NODE, IBX_EXT_NODE_MEMSET, "graph h0 " SET},
        {OTHER_SET_NODE, IBX_EXT_NODE_MEMSET, "graph h0 " SET},
        {COPYING_NODE, IBX_EXT_NODE_MEMCPY, "graph h0 " IN_DEVICE},
        {KERNEL_NODE, IBX_EXT_NODE_KERNEL, "graph h0 " KERNEL},
        {RECORDING_NODE, IBX_EXT_NODE_RECORD, "graph h0 event"},
        {WAITING_NODE, IBX_EXT_NODE_WAIT, "graph h0 event"},
        {CALLING_NODE, IBX_EXT_NODE_HOST, "graph h0 queue q1"},
        {PARENT_NODE, IBX_EXT_NODE_CHILD, "graph h0 empty"},
        {PAIR_NODE, IBX_EXT_NODE_COPY, "graph h0 queue q2 " TO_DEVICE},
        {MEMORY_NODE, IBX_EXT_NODE_ALLOC, "allocating h0 i0 q64"},
    };
    t[GRAPH] = ext_graph_make(c);
    t[EMPTY_GRAPH] = ext_graph_make(c);
    t[ALLOCATING] = ext_graph_make(c);
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
        t[nodes[i].thing] = make(c, t, nodes[i].number, nodes[i].words);
    t[EXEC] = ext_exec_make(c, t[GRAPH]);
    t[CLONE] = make(c, t, IBX_EXT_GRAPH_CLONE, "graph");
    t[CONDITION] = make(c, t, IBX_EXT_GRAPH_CONDITION, "graph i0 i1");
}

static void make_things(struct client *c, uint64_t *t, const char *texture)
{
    memset(t, 0, THINGS * sizeof(*t));
    t[STREAM] = (uintptr_t)ext_stream_make(c);
    t[EVENT] = (uintptr_t)event_make(c);
    t[DEVICE] = make(c, t, IBX_EXT_MALLOC_ASYNC, "q131072 q0");
    t[ARRAY] = ext_array_make(c);
    ext_mipmap_make(c);
    t[MIPMAP] = c->mipmap;
    t[TEXTURE] = make(c, t, IBX_EXT_CREATE_TEXTURE, texture);
    t[POOL] = make(c, t, IBX_EXT_POOL_CREATE, "i0 q0 h0");
    t[MAPPABLE] = make(c, t, IBX_EXT_VIRTUAL_CREATE, "q2097152 i0");
    t[RESERVED] = make(c, t, IBX_EXT_VIRTUAL_RESERVE, "q2097152 q0");
    t[MAPPED] = make(c, t, IBX_EXT_VIRTUAL_RESERVE, "q2097152 q0");
    make(c, t, IBX_EXT_VIRTUAL_MAP, "mapped q2097152 mappable");
    t[QUEUE] = make(c, t, IBX_EXT_HOST_OPEN, "");
    make_nodes(c, t);
}

/* What of them the last request has not given back. */
static void end_things(struct client *c, const uint64_t *t)
{
    static const struct {
        enum thing thing;
        unsigned number;
    } ends[] = {{EXEC, IBX_EXT_EXEC_DESTROY},         {GRAPH, IBX_EXT_GRAPH_DESTROY},
                {EMPTY_GRAPH, IBX_EXT_GRAPH_DESTROY}, {CLONE, IBX_EXT_GRAPH_DESTROY},
                {ALLOCATING, IBX_EXT_GRAPH_DESTROY},  {TEXTURE, IBX_EXT_DESTROY_TEXTURE},
                {SURFACE, IBX_EXT_DESTROY_SURFACE},   {ARRAY, IBX_EXT_FREE_ARRAY},
                {MIPMAP, IBX_EXT_FREE_MIPMAP},        {POOL, IBX_EXT_POOL_DESTROY},
                {MAPPABLE, IBX_EXT_VIRTUAL_RELEASE}};
    assert_int_equal(app->stream_synchronize(pointer_to(t[STREAM])), 0);
    const uint64_t mapped[] = {t[MAPPED], VIRTUAL}, reserved[] = {t[RESERVED], VIRTUAL};
    ext_call(c, IBX_EXT_VIRTUAL_UNMAP, 2, mapped, NULL);
    ext_call(c, IBX_EXT_VIRTUAL_UNMAP, 2, reserved, NULL);
    ext_call(c, IBX_EXT_VIRTUAL_FREE, 2, mapped, NULL);
    ext_call(c, IBX_EXT_VIRTUAL_FREE, 2, reserved, NULL);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        ext_call_one(c, ends[i].number, t[ends[i].thing], NULL);
    ext_call(c, IBX_EXT_FREE_ASYNC, 2, (uint64_t[]){t[DEVICE], 0}, NULL);
    assert_true(ibx_handles_remove(&c->x, IBX_HANDLE_EVENT, t[EVENT]));
    assert_int_equal(app->event_destroy(pointer_to(t[EVENT])), 0);
    assert_true(ibx_handles_remove(&c->x, IBX_HANDLE_STREAM, t[STREAM]));
    assert_int_equal(app->stream_destroy(pointer_to(t[STREAM])), 0);
}

/* ---------------------------------------------------------------------------------- tests */

static unsigned long (*calls_of_cuda)(void);
static unsigned bad;

/* Whether the request was refused before CUDA got it, or names nothing that could be exchanged.
 * `what`: in which way. */
static enum thing refused(unsigned i, const struct exchange *by, const char *what)
{
    enum thing named;
    const unsigned long before = calls_of_cuda();
    const int rc = request(i, by, &named);
    const unsigned long calls = calls_of_cuda() - before;
    const char *asks = strchr(requests[i].words, '?');
    if (named == THINGS || ((rc == CUDA_INVALID_VALUE || rc == CUDA_INVALID_HANDLE) &&
                            calls <= (asks ? strtoul(asks + 1, NULL, 10) : 0)))
        return named;
    print_error("request %u \"%s\", %s in place of %s: %d after %lu calls of CUDA\n",
                requests[i].number, requests[i].words, what, things[named].name, rc, calls);
    bad++;
    return named;
}

/* Handles of bob's own, of other kinds. */
static void refuses_other_kinds(unsigned i, unsigned at, enum thing named)
{
    for (unsigned k = 0; k < THINGS; k++) {
        const struct exchange by = {.at = at, .value = bobs[k]};
        /* The first numbers are streams that each thread has. */
        if (things[k].class != things[named].class && bobs[k] > 2)
            refused(i, &by, things[k].name);
    }
}

static void refuses_all(unsigned i)
{
    static uint64_t zeros[512];
    const uint64_t numbers[] = {(uintptr_t)zeros, 0x10, UINT64_MAX - 7};
    const struct exchange all = {.all = true, .things = alices};
    enum thing named = GRAPH;
    refused(i, &all, "alice's");
    for (unsigned at = 0; named != THINGS; at++) {
        const struct exchange other = {.at = at, .things = alices},
                              old = {.at = at, .things = gone};
        named = refused(i, &other, "alice's");
        /* Of memory that is nobody's it is not known whose it is. */
        if (named == THINGS || named == DEVICE)
            continue;
        refused(i, &old, "a former one");
        refuses_other_kinds(i, at, named);
        for (unsigned k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
            refused(i, &(struct exchange){.at = at, .value = numbers[k]}, "a number");
    }
}

static void test_all(void **state)
{
    static const char *const textures[] = {"i0 array " TEXTURES, "i1 mipmap " TEXTURES,
                                           "i2 device i8 i0 i0 i0 i2 q64 " TEXTURES};
    (void)state;
    *(void **)&calls_of_cuda = ibx_back_end_runtime("ibx_double_runtime_calls");
    make_things(&alice, alices, textures[0]);
    for (unsigned i = 0; i < REQUESTS; i++) {
        enum thing named;
        make_things(&bob, gone, textures[2]);
        ibx_host_work_end(&bob.x);
        make_things(&bob, bobs, textures[1]);
        bobs[SURFACE] = make(&bob, bobs, IBX_EXT_CREATE_SURFACE, "i0 array");
        end_things(&bob, gone);
        refuses_all(i);
        const int rc = request(i, NULL, &named);
        const bool good = rc == (*requests[i].words == '!' ? CUDA_NOT_SUPPORTED : 0);
        if (!good)
            print_error("request %u \"%s\": %d\n", requests[i].number, requests[i].words, rc);
        bad += !good;
        ibx_host_work_end(&bob.x);
        end_things(&bob, bobs);
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
