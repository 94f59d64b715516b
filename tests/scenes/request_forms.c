/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/request_forms.h"

#include <ctype.h>
#include <string.h>

#define RECENT 4u /* handles of a kind that are remembered */

static const char kinds[] = "gneaydqwlETKo"; /* of enum form_kind, and any */
static uint64_t own[FORM_KINDS][RECENT], others[FORM_KINDS];
static unsigned noted[FORM_KINDS];

uint64_t (*form_random)(void) = own_random;

void form_note(enum form_kind kind, uint64_t value)
{
    own[kind][noted[kind]++ % RECENT] = value;
}

void form_note_all_of(const struct client *c)
{
    form_note(FORM_GRAPH, c->graph);
    form_note(FORM_NODE, c->node);
    form_note(FORM_EXEC, c->exec);
    form_note(FORM_ARRAY, c->array);
    form_note(FORM_ARRAY, c->level);
    form_note(FORM_MIPMAP, c->mipmap);
    form_note(FORM_DEVICE, c->memory);
    form_note(FORM_TEXTURE, c->texture);
}

void form_note_others(const struct client *c)
{
    others[FORM_GRAPH] = c->graph;
    others[FORM_NODE] = c->node;
    others[FORM_EXEC] = c->exec;
    others[FORM_ARRAY] = c->array;
    others[FORM_MIPMAP] = c->mipmap;
    others[FORM_DEVICE] = c->memory;
    others[FORM_TEXTURE] = c->texture;
}

void form_forget(void)
{
    memset(noted, 0, sizeof(noted));
}

/* Of that kind, or of any; of one's own, mostly; beside it, or something else. */
static uint64_t handle(unsigned kind)
{
    if (kind == FORM_KINDS || form_random() % 8 == 0)
        kind = (unsigned)(form_random() % FORM_KINDS);
    const unsigned count = noted[kind] < RECENT ? noted[kind] : RECENT;
    const uint64_t mine = count ? own[kind][form_random() % count] : 0;
    switch (form_random() % 12) {
    case 0:
        return form_random() >> form_random() % 64;
    case 1:
        return mine + form_random() % 8192;
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
    return form_random() % 16 ? form_random() % 65 : form_random() >> form_random() % 64;
}

/* g, n, e, a, y, d, q, w, l, E, T: a graph, a node, an executable graph, an array, a mipmapped one,
 * memory, a queue of functions, a stream, a pool, an event, a texture; K: a kernel's name; o: any
 * of these; z: a size; x: a small one; N: of a launch's arguments; i, h, b: numbers of 4, 2 and 1
 * bytes; A: an attribute's value; p: a graph and nodes that one comes behind; k: a kernel; v: a
 * name; m, c: planes to be copied, c between host and device; s: memory to be set; r, t: a
 * resource, a texture. Not there: what makes memory of any size, or graphs of graphs without end.
 */
static const char *const forms[IBX_OWN_REQUESTS + 1] = {
    [IBX_OWN_LAUNCH] = "hk",
    [IBX_OWN_STREAM_SET_ATTRIBUTE] = "wiA",
    [IBX_OWN_STREAM_GET_ATTRIBUTE] = "wi",
    [IBX_OWN_GET_LIMIT] = "i",
    [IBX_OWN_SYMBOL_ADDRESS] = "o",
    [IBX_OWN_SYMBOL_SIZE] = "o",
    [IBX_OWN_FREE_ARRAY] = "a",
    [IBX_OWN_FREE_MIPMAP] = "y",
    [IBX_OWN_MIPMAP_LEVEL] = "yi",
    [IBX_OWN_TO_ARRAY] = "azzdz",
    [IBX_OWN_FROM_ARRAY] = "dazzz",
    [IBX_OWN_2D_TO_ARRAY] = "azzdzzz",
    [IBX_OWN_2D_FROM_ARRAY] = "dzazzzz",
    [IBX_OWN_MEMCPY_3D] = "m",
    [IBX_OWN_MEMCPY_3D_ASYNC] = "mw",
    [IBX_OWN_CHANNEL_DESC] = "a",
    [IBX_OWN_CREATE_TEXTURE] = "rt",
    [IBX_OWN_DESTROY_TEXTURE] = "T",
    [IBX_OWN_CREATE_SURFACE] = "r",
    [IBX_OWN_DESTROY_SURFACE] = "T",
    [IBX_OWN_FREE_ASYNC] = "dw",
    [IBX_OWN_POOL_DEFAULT] = "i",
    [IBX_OWN_POOL_SET] = "liz",
    [IBX_OWN_POOL_GET] = "li",
    [IBX_OWN_POOL_TRIM] = "lz",
    [IBX_OWN_HOST_ADD] = "woob",
    [IBX_OWN_HOST_ASK] = "ob",
    [IBX_OWN_IS_CAPTURING] = "w",
    [IBX_OWN_HOST_CAPTURE] = "wqo",
    [IBX_OWN_MEMSET] = "dizw",
    [IBX_OWN_MEMSET_2D] = "dzizzw",
    [IBX_OWN_MEMSET_ELEMENTS] = "dziizzw",
    [IBX_OWN_VIRTUAL_GRANULARITY] = "ii",
    [IBX_OWN_VIRTUAL_FREE] = "dz",
    [IBX_OWN_VIRTUAL_RELEASE] = "o",
    [IBX_OWN_VIRTUAL_MAP] = "dzo",
    [IBX_OWN_VIRTUAL_UNMAP] = "dz",
    [IBX_OWN_VIRTUAL_SET_ACCESS] = "dzii",
    [IBX_OWN_VIRTUAL_GET_ACCESS] = "di",
    [IBX_OWN_TENSOR_MAP] = "iiidzzzzzzzzziiiiiiiiiiiiiiiiiiiiii",
    [IBX_OWN_TENSOR_ADDRESS] = "dzzzzzzzzzzzzzzzz",
    [IBX_OWN_GRAPH_CREATE] = "i",
    [IBX_OWN_GRAPH_DESTROY] = "g",
    [IBX_OWN_GRAPH_CLONE] = "g",
    [IBX_OWN_GRAPH_INSTANTIATE] = "gz",
    [IBX_OWN_GRAPH_NODES] = "gzb",
    [IBX_OWN_GRAPH_FUNCTIONS] = "gz",
    [IBX_OWN_GRAPH_ORDER] = "gnnb",
    [IBX_OWN_NODE_KERNEL] = "pk",
    [IBX_OWN_NODE_MEMCPY] = "pm",
    [IBX_OWN_NODE_MEMSET] = "ps",
    [IBX_OWN_NODE_HOST] = "pqo",
    [IBX_OWN_NODE_EMPTY] = "p",
    [IBX_OWN_NODE_RECORD] = "pE",
    [IBX_OWN_NODE_WAIT] = "pE",
    [IBX_OWN_NODE_FREE] = "pd",
    [IBX_OWN_NODE_TYPE] = "n",
    [IBX_OWN_NODE_DESTROY] = "n",
    [IBX_OWN_SET_KERNEL] = "enk",
    [IBX_OWN_SET_MEMCPY] = "enm",
    [IBX_OWN_SET_MEMSET] = "ens",
    [IBX_OWN_EXEC_UPDATE] = "eg",
    [IBX_OWN_EXEC_DESTROY] = "e",
    [IBX_OWN_EXEC_UPLOAD] = "ew",
    [IBX_OWN_GET_KERNEL] = "ni",
    [IBX_OWN_GET_ATTRIBUTE] = "ni",
    [IBX_OWN_SET_ATTRIBUTE] = "niA",
    [IBX_OWN_COPY_ATTRIBUTES] = "nn",
    [IBX_OWN_GET_EVENT] = "n",
    [IBX_OWN_SET_EVENT] = "enE",
    [IBX_OWN_GET_HOST] = "n",
    [IBX_OWN_SET_HOST] = "enqo",
    [IBX_OWN_GET_CHILD] = "n",
    [IBX_OWN_SET_CHILD] = "eng",
    [IBX_OWN_GET_MEMORY] = "n",
    [IBX_OWN_SET_GRAPH_MEMORY] = "iiz",
    [IBX_OWN_POINTER] = "d",
    [IBX_OWN_NODE_IN_CLONE] = "ng",
    [IBX_OWN_EXEC_FLAGS] = "e",
    [IBX_OWN_GET_MEMSET] = "n",
    [IBX_OWN_GRAPH_MEMORY] = "ii",
    [IBX_OWN_GRAPH_TRIM] = "i",
    [IBX_OWN_STREAM_WAIT] = "w",
    [IBX_OWN_STREAM_FLAGS] = "w",
    [IBX_OWN_STREAM_PRIORITY] = "w",
    [IBX_OWN_IPC_MEMORY] = "d",
    [IBX_OWN_IPC_OPEN_MEMORY] = "A",
    [IBX_OWN_IPC_EVENT] = "E",
    [IBX_OWN_IPC_OPEN_EVENT] = "A",
    [IBX_OWN_NODE_COPY] = "pqoc",
    [IBX_OWN_CAPTURE_COPY] = "wqoc",
    [IBX_OWN_SET_COPY] = "enqoc",
    [IBX_OWN_GET_COPY] = "n",
    [IBX_OWN_PRINTED] = "b",
    [IBX_OWN_IPC_CLOSE] = "bo",
    [IBX_OWN_PARAMETERS] = "Ki",
    [IBX_OWN_SHARE_MODULES] = "K",
    [IBX_OWN_RESET_L2] = "",
    [IBX_OWN_POOL_CURRENT] = "i",
    [IBX_OWN_POOL_DESTROY] = "l",
    [IBX_OWN_POOL_SET_ACCESS] = "lii",
    [IBX_OWN_POOL_GET_ACCESS] = "li",
    [IBX_OWN_IPC_POOL] = "l",
    [IBX_OWN_IPC_OPEN_POOL] = "A",
    [IBX_OWN_IPC_OPEN_POINTER] = "lA",
    [IBX_OWN_GRAPH_CONDITION] = "gii",
    [IBX_OWN_NODE_CONDITIONAL] = "poii",
    [IBX_OWN_NODE_NEIGHBOURS] = "nzb",
    [IBX_OWN_NODE_ENABLE] = "eni",
    [IBX_OWN_NODE_ENABLED] = "en",
    [IBX_OWN_STREAM_ID] = "w",
    [IBX_OWN_STREAM_DEVICE] = "w",
    [IBX_OWN_STREAM_COPY_ATTRIBUTES] = "ww",
    [IBX_OWN_DEVICE_FLAGS] = "",
    [IBX_OWN_DEVICE_CACHE] = "",
    [IBX_OWN_BETWEEN_DEVICES] = "iii",
    [IBX_OWN_TEXTURE_WIDTH] = "iiiiii",
    [IBX_OWN_CLUSTERS] = "KiiiiiizwiA",
    [IBX_OWN_SHARED_MEMORY] = "Kii",
    [IBX_OWN_PARAMETER] = "Kz",
    [IBX_OWN_VARIABLE] = "Kv",
    [IBX_OWN_HOST_UNMAP] = "o",
    [IBX_OWN_REQUESTS] = "o",
};

/* What several letters stand for. */
static const char *longer(char letter)
{
    static const char *const resources[] = {"a", "y", "diiiiiz", "diiiiizzz"};
    switch (letter) {
    case 'm':
        return form_random() & 1   ? "azzz0zzz0zzzdzzzzzz3"
               : form_random() & 1 ? "0zzzdzzz0zzzdzzzzzz3"
                                   : "0zzzdzzzazzz0zzzzzz3";
    case 'c':
        return form_random() & 1 ? "0zzz0zzz0zzzdzzzzzz1" : "0zzzdzzz0zzz0zzzzzz2";
    case 's':
        return "dziizz";
    case 't':
        return "iiiiiiiiiiiiiiiiiib";
    case 'k':
        return "KiiiiiizwNddz";
    case 'r':
        return resources[form_random() % 4];
    default:
        return NULL;
    }
}

void form_put_as(struct ibx_writer *w, const char *form)
{
    uint8_t bytes[IBX_OWN_ATTRIBUTE] = {0};
    for (; *form; form++) {
        const char *kind = strchr(kinds, *form), *more = longer(*form);
        const uint32_t few = (uint32_t)(form_random() % 4);
        if (*form == 'r')
            ibx_put_u32(w, few);
        if (more)
            form_put_as(w, more);
        else if (kind)
            ibx_put_u64(w, handle((unsigned)(kind - kinds)));
        else if (*form == 'z' || *form == '0')
            ibx_put_u64(w, *form == 'z' ? size() : 0);
        else if (*form == 'N')
            ibx_put_u64(w, 24);
        else if (*form == 'x')
            ibx_put_u64(w, form_random() % 65);
        else if (*form == 'i' || isdigit((unsigned char)*form))
            ibx_put_u32(w, *form == 'i' ? few : (uint32_t)(*form - '0'));
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
        ibx_put_u64(w, handle(FORM_GRAPH));
        ibx_put_u16(w, (uint16_t)(few / 2));
        for (uint32_t i = 0; i < few / 2; i++)
            ibx_put_u64(w, handle(FORM_NODE));
    }
}

bool form_put(struct ibx_writer *w, unsigned number)
{
    if (!forms[number])
        return false;
    form_put_as(w, forms[number]);
    return true;
}
