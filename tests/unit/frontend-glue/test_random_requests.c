/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own by a client that sends anything, on doubles of CUDA that end the process at a
 * handle that is none: it harms no other tenant, and not the back end.
 */
#include "frontend-glue/session/session_internal.h"
#include "tests/scenes/own_requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define REQUESTS 15000u
#define RECENT   4u   /* handles of a kind that are remembered */
#define RENEWED  100u /* requests after which a client has all kinds again */

/* Handles and addresses that bodies are made of, by kind: those of the client that asks, and one of
 * the other's. */
enum kind { GRAPH, NODE, EXEC, ARRAY, MIPMAP, DEVICE, KINDS };
static const char kinds[] = "gneaydo";
static uint64_t own[KINDS][RECENT], others[KINDS];
static unsigned noted[KINDS];

static void note(enum kind kind, uint64_t value)
{
    own[kind][noted[kind]++ % RECENT] = value;
}

static void note_all_of(const struct client *c)
{
    note(GRAPH, c->graph);
    note(NODE, c->node);
    note(EXEC, c->exec);
    note(ARRAY, c->array);
    note(ARRAY, c->level);
    note(MIPMAP, c->mipmap);
    note(DEVICE, c->memory);
}

/* Of that kind, or of any; of one's own, mostly; beside it, or something else. */
static uint64_t handle(unsigned kind)
{
    if (kind == KINDS || own_random() % 8 == 0)
        kind = (unsigned)(own_random() % KINDS);
    const unsigned count = noted[kind] < RECENT ? noted[kind] : RECENT;
    const uint64_t mine = own[kind][own_random() % count];
    switch (own_random() % 12) {
    case 0:
        return own_random() >> own_random() % 64;
    case 1:
        return mine + own_random() % 8192;
    case 2:
        return 0;
    case 3:
    case 4:
        return others[kind];
    default:
        return mine;
    }
}

static uint64_t size(void)
{
    return own_random() % 16 ? own_random() % 65 : own_random() >> own_random() % 64;
}

/* g, n, e, a, y, d: a graph, a node, an executable graph, an array, a mipmapped one, memory; o: any
 * of these; z: a size; i, h, b: numbers of 4, 2 and 1 bytes; A: an attribute's value; p: a graph
 * and nodes that one comes behind; k: a kernel; v: a name; m, c: planes to be copied, c between
 * host and device; s: memory to be set; r, t: a resource, a texture. Not there: what makes memory
 * of any size, or graphs of graphs without end. */
static const char *const forms[IBX_EXTRAS + 1] = {
    [IBX_EXTRA_LAUNCH] = "hk",
    [IBX_EXTRA_STREAM_SET_ATTRIBUTE] = "oiA",
    [IBX_EXTRA_STREAM_GET_ATTRIBUTE] = "oi",
    [IBX_EXTRA_GET_LIMIT] = "i",
    [IBX_EXTRA_SYMBOL_ADDRESS] = "o",
    [IBX_EXTRA_SYMBOL_SIZE] = "o",
    [IBX_EXTRA_FREE_ARRAY] = "a",
    [IBX_EXTRA_FREE_MIPMAP] = "y",
    [IBX_EXTRA_MIPMAP_LEVEL] = "yi",
    [IBX_EXTRA_TO_ARRAY] = "azzdz",
    [IBX_EXTRA_FROM_ARRAY] = "dazzz",
    [IBX_EXTRA_2D_TO_ARRAY] = "azzdzzz",
    [IBX_EXTRA_2D_FROM_ARRAY] = "dzazzzz",
    [IBX_EXTRA_MEMCPY_3D] = "m",
    [IBX_EXTRA_MEMCPY_3D_ASYNC] = "mo",
    [IBX_EXTRA_CHANNEL_DESC] = "a",
    [IBX_EXTRA_CREATE_TEXTURE] = "rt",
    [IBX_EXTRA_DESTROY_TEXTURE] = "o",
    [IBX_EXTRA_CREATE_SURFACE] = "r",
    [IBX_EXTRA_DESTROY_SURFACE] = "o",
    [IBX_EXTRA_FREE_ASYNC] = "do",
    [IBX_EXTRA_POOL_DEFAULT] = "i",
    [IBX_EXTRA_POOL_SET] = "oiz",
    [IBX_EXTRA_POOL_GET] = "oi",
    [IBX_EXTRA_POOL_TRIM] = "oz",
    [IBX_EXTRA_HOST_ADD] = "ooob",
    [IBX_EXTRA_HOST_ASK] = "ob",
    [IBX_EXTRA_IS_CAPTURING] = "o",
    [IBX_EXTRA_HOST_CAPTURE] = "ooo",
    [IBX_EXTRA_MEMSET] = "dizo",
    [IBX_EXTRA_MEMSET_2D] = "dzizzo",
    [IBX_EXTRA_GRAPH_CREATE] = "i",
    [IBX_EXTRA_GRAPH_DESTROY] = "g",
    [IBX_EXTRA_GRAPH_CLONE] = "g",
    [IBX_EXTRA_GRAPH_INSTANTIATE] = "gz",
    [IBX_EXTRA_GRAPH_NODES] = "gzb",
    [IBX_EXTRA_GRAPH_FUNCTIONS] = "gz",
    [IBX_EXTRA_GRAPH_ORDER] = "gnnb",
    [IBX_EXTRA_NODE_KERNEL] = "pk",
    [IBX_EXTRA_NODE_MEMCPY] = "pm",
    [IBX_EXTRA_NODE_MEMSET] = "ps",
    [IBX_EXTRA_NODE_HOST] = "poo",
    [IBX_EXTRA_NODE_EMPTY] = "p",
    [IBX_EXTRA_NODE_RECORD] = "po",
    [IBX_EXTRA_NODE_WAIT] = "po",
    [IBX_EXTRA_NODE_FREE] = "pd",
    [IBX_EXTRA_NODE_TYPE] = "n",
    [IBX_EXTRA_NODE_DESTROY] = "n",
    [IBX_EXTRA_SET_KERNEL] = "enk",
    [IBX_EXTRA_SET_MEMCPY] = "enm",
    [IBX_EXTRA_SET_MEMSET] = "ens",
    [IBX_EXTRA_EXEC_UPDATE] = "eg",
    [IBX_EXTRA_EXEC_DESTROY] = "e",
    [IBX_EXTRA_EXEC_UPLOAD] = "eo",
    [IBX_EXTRA_GET_KERNEL] = "ni",
    [IBX_EXTRA_GET_ATTRIBUTE] = "ni",
    [IBX_EXTRA_SET_ATTRIBUTE] = "niA",
    [IBX_EXTRA_COPY_ATTRIBUTES] = "nn",
    [IBX_EXTRA_GET_EVENT] = "n",
    [IBX_EXTRA_SET_EVENT] = "eno",
    [IBX_EXTRA_GET_HOST] = "n",
    [IBX_EXTRA_SET_HOST] = "enoo",
    [IBX_EXTRA_GET_CHILD] = "n",
    [IBX_EXTRA_SET_CHILD] = "eng",
    [IBX_EXTRA_GET_MEMORY] = "n",
    [IBX_EXTRA_SET_GRAPH_MEMORY] = "iiz",
    [IBX_EXTRA_POINTER] = "d",
    [IBX_EXTRA_NODE_IN_CLONE] = "ng",
    [IBX_EXTRA_EXEC_FLAGS] = "e",
    [IBX_EXTRA_GET_MEMSET] = "n",
    [IBX_EXTRA_GRAPH_MEMORY] = "ii",
    [IBX_EXTRA_GRAPH_TRIM] = "i",
    [IBX_EXTRA_STREAM_WAIT] = "o",
    [IBX_EXTRA_STREAM_FLAGS] = "o",
    [IBX_EXTRA_STREAM_PRIORITY] = "o",
    [IBX_EXTRA_IPC_MEMORY] = "d",
    [IBX_EXTRA_IPC_OPEN_MEMORY] = "A",
    [IBX_EXTRA_IPC_EVENT] = "o",
    [IBX_EXTRA_IPC_OPEN_EVENT] = "A",
    [IBX_EXTRA_NODE_COPY] = "pooc",
    [IBX_EXTRA_CAPTURE_COPY] = "oooc",
    [IBX_EXTRA_SET_COPY] = "enooc",
    [IBX_EXTRA_GET_COPY] = "n",
    [IBX_EXTRA_PRINTED] = "b",
    [IBX_EXTRA_IPC_CLOSE] = "bo",
    [IBX_EXTRA_PARAMETERS] = "oi",
    [IBX_EXTRA_SHARE_MODULES] = "o",
    [IBX_EXTRA_RESET_L2] = "",
    [IBX_EXTRA_POOL_CURRENT] = "i",
    [IBX_EXTRA_POOL_DESTROY] = "o",
    [IBX_EXTRA_POOL_SET_ACCESS] = "oii",
    [IBX_EXTRA_POOL_GET_ACCESS] = "oi",
    [IBX_EXTRA_IPC_POOL] = "o",
    [IBX_EXTRA_IPC_OPEN_POOL] = "A",
    [IBX_EXTRA_IPC_OPEN_POINTER] = "oA",
    [IBX_EXTRA_GRAPH_CONDITION] = "gii",
    [IBX_EXTRA_NODE_CONDITIONAL] = "poii",
    [IBX_EXTRA_NODE_NEIGHBOURS] = "nzb",
    [IBX_EXTRA_NODE_ENABLE] = "eni",
    [IBX_EXTRA_NODE_ENABLED] = "en",
    [IBX_EXTRA_STREAM_ID] = "o",
    [IBX_EXTRA_STREAM_DEVICE] = "o",
    [IBX_EXTRA_STREAM_COPY_ATTRIBUTES] = "oo",
    [IBX_EXTRA_DEVICE_FLAGS] = "",
    [IBX_EXTRA_DEVICE_CACHE] = "",
    [IBX_EXTRA_BETWEEN_DEVICES] = "iii",
    [IBX_EXTRA_TEXTURE_WIDTH] = "iiiiii",
    [IBX_EXTRA_CLUSTERS] = "oiiiiiizoiA",
    [IBX_EXTRA_SHARED_MEMORY] = "oii",
    [IBX_EXTRA_PARAMETER] = "oz",
    [IBX_EXTRA_VARIABLE] = "ov",
    [IBX_EXTRA_HOST_UNMAP] = "o",
    [IBX_EXTRAS] = "o",
};

/* What several letters stand for. */
static const char *longer(char letter)
{
    static const char *const resources[] = {"a", "y", "diiiiiz", "diiiiizzz"};
    switch (letter) {
    case 'm':
        return own_random() & 1   ? "azzz0zzz0zzzdzzzzzz3"
               : own_random() & 1 ? "0zzzdzzz0zzzdzzzzzz3"
                                  : "0zzzdzzzazzz0zzzzzz3";
    case 'c':
        return own_random() & 1 ? "0zzz0zzz0zzzdzzzzzz1" : "0zzzdzzz0zzz0zzzzzz2";
    case 's':
        return "dziizz";
    case 't':
        return "iiiiiiiiiiiiiiiiiib";
    case 'k':
        return "oiiiiiizozzz";
    case 'r':
        return resources[own_random() % 4];
    default:
        return NULL;
    }
}

static void put_any(struct ibx_writer *w, const char *form)
{
    uint8_t bytes[IBX_EXTRA_ATTRIBUTE] = {0};
    for (; *form; form++) {
        const char *kind = strchr(kinds, *form), *more = longer(*form);
        const uint32_t few = (uint32_t)(own_random() % 4);
        if (*form == 'r')
            ibx_put_u32(w, few);
        if (more)
            put_any(w, more);
        else if (kind)
            ibx_put_u64(w, handle((unsigned)(kind - kinds)));
        else if (*form == 'z' || *form == '0')
            ibx_put_u64(w, *form == 'z' ? size() : 0);
        else if (*form == 'i' || *form == '3')
            ibx_put_u32(w, *form == 'i' ? few : 3);
        else if (*form == 'h')
            ibx_put_u16(w, (uint16_t)(few & 1 ? 68 * few : 0));
        else if (*form == 'b')
            ibx_put_u8(w, few & 1);
        else if (*form == 'v')
            ibx_put_u16(w, 2), ibx_put_u16(w, 'x' << 8 | 'y');
        else if (*form == 'A')
            ibx_put_bytes(w, bytes, sizeof(bytes));
        if (*form != 'p')
            continue;
        ibx_put_u64(w, handle(GRAPH));
        ibx_put_u16(w, (uint16_t)(few / 2));
        for (uint32_t i = 0; i < few / 2; i++)
            ibx_put_u64(w, handle(NODE));
    }
}

/* One in eight is cut off somewhere, or has more bytes than it should. */
static void request_anything(struct client *c)
{
    uint8_t bytes[1024] = {0};
    const unsigned number = (unsigned)(own_random() % (IBX_EXTRAS + 1));
    struct ibx_writer w = own_body(bytes, sizeof(bytes), number);
    uint64_t answer;
    if (!forms[number])
        return;
    put_any(&w, forms[number]);
    assert_false(w.failed);
    if (own_random() % 8 == 0)
        w.length = own_random() % (w.length + 9);
    if (own_run(c, &w, &answer) || !answer)
        return;
    if (number == IBX_EXTRA_GRAPH_CREATE || number == IBX_EXTRA_GRAPH_CLONE ||
        number == IBX_EXTRA_GET_CHILD)
        note(GRAPH, answer);
    if (number >= IBX_EXTRA_NODE_KERNEL && number <= IBX_EXTRA_NODE_FREE)
        note(NODE, answer);
    if (number == IBX_EXTRA_GRAPH_INSTANTIATE)
        note(EXEC, answer);
}

static void test_anything(void **state)
{
    (void)state;
    uint8_t before[MEMORY], after[MEMORY];
    uint64_t answer;
    memset(before, 'b', sizeof(before));
    assert_int_equal(app->to_device(bob.memory, before, MEMORY), 0);
    const uint64_t of_bob[KINDS] = {bob.graph, bob.node,   bob.exec,
                                    bob.array, bob.mipmap, bob.memory};
    memcpy(others, of_bob, sizeof(others));
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (i % RENEWED == 0) {
            own_make_all(&alice);
            note_all_of(&alice);
        }
        request_anything(&alice);
    }
    /* All that is the other tenant's is as it was. */
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(after, bob.memory, MEMORY), 0);
    assert_memory_equal(after, before, MEMORY);
    assert_int_equal(own_nodes_count(&bob, bob.graph), 1);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_NODE_TYPE, bob.node, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_CHANNEL_DESC, bob.array, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_FREE_ARRAY, bob.array, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_FREE_MIPMAP, bob.mipmap, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_EXEC_DESTROY, bob.exec, &answer), 0);
    assert_int_equal(own_call_one(&bob, IBX_EXTRA_GRAPH_DESTROY, bob.graph, &answer), 0);
    assert_int_equal(own_call(&bob, IBX_EXTRA_FREE_ASYNC, 2, (uint64_t[]){bob.memory, 0}, &answer),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_anything)};
    return cmocka_run_group_tests(tests, own_set_up, own_tear_down);
}
