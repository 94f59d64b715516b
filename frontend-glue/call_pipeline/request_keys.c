/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What decides whether a request succeeds, and what its reply is. */
#include "frontend-glue/call_pipeline/internal.h"

#include "frontend-glue/session/extensions.h"

#include <string.h>

#define LAUNCH_LEAST 56u         /* bytes of a launch before its arguments */
#define GRID_X_MAX   0x7fffffffu /* the limit of all devices that CUDA 8 and later support */
#define GRID_YZ_MAX  0xffffu

enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_EVENT = 7, ATTRIBUTE_COMPLETION_EVENT = 12 };

const uint8_t *ibx_request_body(const struct ibx_pipeline *p, size_t *n)
{
    const uint8_t *nul = memchr(p->staged, 0, p->staged_length);
    const uint8_t *body = nul + 9;
    *n = p->staged_length - (size_t)(body - p->staged);
    return body;
}

bool ibx_request_begins_capture(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    return call->kind == IBX_CALL_BEGIN_CAPTURE ||
           ibx_call_extension(call, body, n) == IBX_EXT_CAPTURE_INTO;
}

bool ibx_call_records(const struct ibx_call *call)
{
    return call->kind == IBX_CALL_REPEATS && !strcmp(call->name, "cudaEventRecord");
}

bool ibx_call_ends_event(const struct ibx_call *call)
{
    return call->kind == IBX_CALL_DESTROYS && !strcmp(call->name, "cudaEventDestroy");
}

uint64_t ibx_request_event(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    if (!call->event || !call->length || n != call->length)
        return 0;
    const bool waits = call->kind == IBX_CALL_REPEATS && call->stream_at == 0;
    const bool named = ibx_call_records(call) || ibx_call_ends_event(call) ||
                       (waits && !strcmp(call->name, "cudaStreamWaitEvent")) ||
                       call->kind == IBX_CALL_QUERIES;
    if (!named)
        return 0;
    struct ibx_reader r = ibx_reader_of(body + (waits ? 8 : 0), 8);
    return ibx_get_u64(&r);
}

bool ibx_call_adds_work(const struct ibx_call *call)
{
    switch (call->kind) {
    case IBX_CALL_QUERIES:
    case IBX_CALL_FREES:
    case IBX_CALL_ALLOCATES:
    case IBX_CALL_ASKS:
    case IBX_CALL_CONSTANT:
    case IBX_CALL_PUSH:
    case IBX_CALL_POP:
    case IBX_CALL_LAST_ERROR:
    case IBX_CALL_PEEK_ERROR:
    case IBX_CALL_GET_DEVICE:
        return false;
    default:
        return true;
    }
}

/* The kind of a copy that waits is its last word. A body that is too long to be here has a
 * payload. */
static int kind_of_copy(const uint8_t *body, size_t n)
{
    return n < 4 ? IBX_FRAME_H2D : (int)ibx_request_word(body + n - 4);
}

static bool stays(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    switch (call->kind) {
    case IBX_CALL_WAITS:
        return kind_of_copy(body, n) != IBX_FRAME_H2D && kind_of_copy(body, n) != IBX_FRAME_D2H;
    case IBX_CALL_REPEATS: /* a graph stays, and so does a wait for work of another stream */
        return strcmp(call->name, "cudaEventRecord") != 0;
    case IBX_CALL_DESTROYS:
    case IBX_CALL_REGISTERS:
    case IBX_CALL_RESETS:
    case IBX_CALL_SET_DEVICE:
        return false;
    default:
        return ibx_call_adds_work(call);
    }
}

/* Requests that concern all streams, and yet add no work to the legacy stream: they ask, or
 * allocate and free memory in another stream. Programs make these often. */
static bool spares_legacy(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    switch (ibx_call_extension(call, body, n)) {
    case IBX_EXT_MALLOC_ASYNC:
    case IBX_EXT_MALLOC_FROM_POOL:
    case IBX_EXT_FREE_ASYNC:
    case IBX_EXT_IS_CAPTURING:
    case IBX_EXT_STREAM_DEVICE:
    case IBX_EXT_STREAM_FLAGS:
    case IBX_EXT_POINTER:
        return true;
    default:
        return call->kind == IBX_CALL_SELECTS;
    }
}

enum ibx_leaves ibx_request_leaves(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    if (!stays(call, body, n))
        return IBX_LEAVES_NOTHING;
    return ibx_request_scope(call, body, n).all && !spares_legacy(call, body, n)
               ? IBX_LEAVES_IN_LEGACY
               : IBX_LEAVES_IN_STREAM;
}

/* A copy of no bytes may return without a wait. */
static bool brings_bytes(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    struct ibx_frame frame;
    size_t name;
    const size_t window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    if (kind_of_copy(body, n) != IBX_FRAME_D2H)
        return false;
    const struct ibx_frame_body bytes = {body, body + n - window, n};
    const enum ibx_frame_call copy =
        ibx_frame_name((const uint8_t *)call->name, strlen(call->name) + 1, &name);
    return ibx_frame_parse(copy, &bytes, &frame);
}

enum ibx_settles ibx_request_settles(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    switch (call->kind) {
    case IBX_CALL_WAITS:
        return brings_bytes(call, body, n) ? IBX_SETTLES_ORDERED : IBX_SETTLES_NOTHING;
    case IBX_CALL_QUERIES:
        return call->stream_at == IBX_CALL_ALL_STREAMS ? IBX_SETTLES_ALL
               : ibx_request_scope(call, body, n).all  ? IBX_SETTLES_LEGACY
                                                       : IBX_SETTLES_NOTHING;
    default:
        return IBX_SETTLES_NOTHING;
    }
}

/* Whether the call makes an event. It has to come after destructions of events in other threads,
 * which make room below limits and whose handles it may return. */
static bool makes_event(const struct ibx_call *call)
{
    return call->kind == IBX_CALL_ASKS && !strncmp(call->name, "cudaEventCreate", 15);
}

struct ibx_scope ibx_request_scope(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    uint64_t stream = 0;
    bool one =
        (ibx_call_stream(call, body, n, &stream) || ibx_library_stream(call, body, n, &stream)) &&
        stream > STREAM_LEGACY;
    bool none = call->stream_at == IBX_CALL_NO_STREAM;
    bool memory = call->kind == IBX_CALL_ALLOCATES || makes_event(call);
    struct ibx_queued_launch launch;
    bool events =
        call->event || (ibx_request_queued_launch(call, body, n, &launch) && launch.records);
    return (struct ibx_scope){.any = !none || events || memory,
                              .all = !none && !one,
                              .stream = one ? stream : STREAMS_NONE,
                              .events = events,
                              .event = ibx_request_event(call, body, n),
                              .memory = memory};
}

bool ibx_request_sets_node(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    return ibx_call_extension(call, body, n) == IBX_EXT_SET_KERNEL &&
           n >= IBX_EXT_SET_LAUNCH + LAUNCH_LEAST &&
           ibx_launch_is_plain(body + IBX_EXT_SET_LAUNCH, n - IBX_EXT_SET_LAUNCH);
}

bool ibx_launch_is_plain(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body + LAUNCH_LEAST - 8, n < LAUNCH_LEAST ? 0 : 8);
    if (n < LAUNCH_LEAST || ibx_get_u64(&r) != n - LAUNCH_LEAST)
        return false;
    const uint32_t x = ibx_request_word(body + 8), y = ibx_request_word(body + 12),
                   z = ibx_request_word(body + 16);
    return x && x <= GRID_X_MAX && y && y <= GRID_YZ_MAX && z && z <= GRID_YZ_MAX;
}

/* By which numbers from 2 to 16 a number can be divided, as bits of their factors. Clusters have at
 * most 16 blocks, and a kernel that is declared to have clusters takes only grids of whole
 * clusters. */
static uint32_t divisors(uint32_t number)
{
    const uint32_t twos = (number | 16u) & -(number | 16u);
    return number == 1
               ? 1
               : twos | (uint32_t)(number % 3 == 0) << 5 | (uint32_t)(number % 9 == 0) << 6 |
                     (uint32_t)(number % 5 == 0) << 7 | (uint32_t)(number % 7 == 0) << 8 |
                     (uint32_t)(number % 11 == 0) << 9 | (uint32_t)(number % 13 == 0) << 10;
}

uint64_t ibx_launch_key(const struct ibx_pipeline *p, const uint8_t *body)
{
    uint8_t key[44];
    memcpy(key, body, 8);
    memcpy(key + 8, body + 20, 20);
    memcpy(key + 28, p->device.body, 4);
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t grid = divisors(ibx_request_word(body + 8 + (size_t)4 * i));
        memcpy(key + 32 + (size_t)4 * i, &grid, 4);
    }
    return ibx_request_hash(1, key, sizeof(key));
}

static bool has_attribute(const struct ibx_queued_launch *launch, uint32_t id)
{
    struct ibx_reader r = ibx_reader_of(launch->attributes, launch->attributes_n);
    while (!r.failed && ibx_reader_left(&r)) {
        if (ibx_get_u32(&r) == id)
            return true;
        ibx_get_bytes(&r, IBX_EXT_ATTRIBUTE);
    }
    return false;
}

bool ibx_request_queued_launch(const struct ibx_call *call, const uint8_t *body, size_t n,
                               struct ibx_queued_launch *launch)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    if (call->kind != IBX_CALL_ENQUEUES || strcmp(call->name, IBX_EXT_QUEUE) != 0 ||
        ibx_get_u16(&r) != IBX_EXT_LAUNCH_QUEUED)
        return false;
    launch->attributes_n = ibx_get_u16(&r);
    launch->attributes = ibx_get_bytes(&r, launch->attributes_n);
    const size_t left = ibx_reader_left(&r);
    launch->body = body + (n - left);
    launch->records = !r.failed && (has_attribute(launch, ATTRIBUTE_EVENT) ||
                                    has_attribute(launch, ATTRIBUTE_COMPLETION_EVENT));
    launch->plain =
        !r.failed && !launch->records && left > 8 && ibx_launch_is_plain(launch->body, left - 8);
    return true;
}

/* A cooperative launch of more blocks may have too many. */
uint64_t ibx_queued_launch_key(const struct ibx_pipeline *p, const struct ibx_queued_launch *launch)
{
    const uint64_t key =
        ibx_request_hash(ibx_launch_key(p, launch->body), launch->attributes, launch->attributes_n);
    return has_attribute(launch, ATTRIBUTE_COOPERATIVE)
               ? ibx_request_hash(key, launch->body + 8, 12)
               : key;
}

/* A number that changes when the handle is destroyed. `event`: it is an event's. */
static uint64_t lifetime(uint64_t handle, bool event)
{
    const uint64_t made = event ? ibx_events_made(handle) : 0;
    return made ? made : (uint64_t)ibx_process_destroyed(handle) << 32;
}

static uint64_t handle_key(const struct ibx_pipeline *p, uint64_t seed, uint64_t handle, bool event)
{
    uint8_t key[20];
    const uint64_t life = lifetime(handle, event);
    memcpy(key, &handle, 8);
    memcpy(key + 8, p->device.body, 4);
    memcpy(key + 12, &life, 8);
    return ibx_request_hash(seed, key, sizeof(key));
}

uint64_t ibx_stream_key(const struct ibx_pipeline *p, uint64_t stream)
{
    return handle_key(p, 3, stream, false);
}

uint64_t ibx_event_key(const struct ibx_pipeline *p, uint64_t event)
{
    return handle_key(p, 4, event, true);
}

uint64_t ibx_launch_stream_key(const struct ibx_pipeline *p, const uint8_t *body)
{
    struct ibx_reader r = ibx_reader_of(body + 40, 8);
    return ibx_stream_key(p, ibx_get_u64(&r));
}

/* The key has the count of destroyed graphs, handles, function, grid, block and shared memory: a
 * node that has taken these takes them with any arguments of that length, while it exists. */
uint64_t ibx_node_key(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    uint8_t key[8 + IBX_EXT_SET_LAUNCH + LAUNCH_LEAST] = {0};
    struct ibx_writer w = ibx_writer_of(key, 8);
    ibx_put_u32(&w, ibx_process_outdated(IBX_OUTDATED_NODES));
    ibx_put_u32(&w, (uint32_t)n);
    memcpy(key + 8, body, IBX_EXT_SET_LAUNCH + LAUNCH_LEAST);
    return ibx_request_hash(5 ^ (uint64_t)ibx_request_word(p->device.body) << 8, key, sizeof(key));
}

/* A success: no result, no nodes, no functions, and a graph of which that holds until it is
 * changed.
 */
const uint8_t ibx_refresh_answer[] = {[12] = IBX_EXT_REFRESHED,
                                      [IBX_REPLY_HEAD + IBX_EXT_REFRESHED - 4] = 1};

bool ibx_request_refreshes(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    return n == IBX_EXT_REFRESH && ibx_call_extension(call, body, n) == IBX_EXT_EXEC_REFRESH;
}

uint64_t ibx_refresh_key(const struct ibx_pipeline *p, const uint8_t *body)
{
    uint8_t key[4 + IBX_EXT_REFRESH] = {0};
    struct ibx_writer w = ibx_writer_of(key, 4);
    ibx_put_u32(&w, ibx_process_outdated(IBX_OUTDATED_GRAPHS));
    memcpy(key + 4, body, IBX_EXT_REFRESH - 1);
    return ibx_request_hash(6 ^ (uint64_t)ibx_request_word(p->device.body) << 8, key, sizeof(key));
}

void ibx_request_refreshes_late(struct ibx_pipeline *p)
{
    p->staged[p->staged_length - 1] = 1;
}

/* Whether a call with an unknown name is about graphs. */
static bool is_about_graphs(const struct ibx_pipeline *p)
{
    const char *name = (const char *)p->staged;
    return !memchr(name, 0, p->staged_length) || strstr(name, "Graph") || strstr(name, "Capture");
}

bool ibx_request_changes_graphs(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const struct ibx_call *call = p->call;
    const unsigned number = ibx_call_extension(call, body, n);
    switch (call->kind) {
    case IBX_CALL_OTHER:
        return is_about_graphs(p);
    case IBX_CALL_RESETS:
    case IBX_CALL_BEGIN_CAPTURE:
    case IBX_CALL_END_CAPTURE:
        return true;
    case IBX_CALL_DESTROYS:
        return !strcmp(call->name, "cudaGraphExecDestroy");
    case IBX_CALL_EXTENSION:
        return number == IBX_EXT_SET_KERNEL || number == IBX_EXT_SET_MEMSET ||
               !ibx_extension_keeps_graphs(number);
    default:
        return false;
    }
}

uint64_t ibx_call_key(const struct ibx_call *call, size_t out)
{
    return ibx_request_hash(2 ^ (uint64_t)out << 8, &call, sizeof(call));
}

uint64_t ibx_form_key(const struct ibx_call *call, const uint8_t *body, size_t n)
{
    const uint64_t key = ibx_call_key(call, 0);
    return ibx_extension_is(call->name) && n >= 2 ? ibx_request_hash(key, body, 2) : key;
}

/* The first two numbers of such a body are handles, one of which may be an event. */
uint64_t ibx_request_key(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t first = ibx_get_u64(&r), second = ibx_get_u64(&r);
    const uint64_t event = ibx_request_event(p->call, body, n);
    const uint64_t lives[] = {lifetime(first, event && event == first),
                              lifetime(second, event && event == second)};
    return ibx_request_hash(ibx_call_key(p->call, 0) ^ ibx_request_word(p->device.body) ^
                                ibx_request_hash(0, lives, sizeof(lives)),
                            body, n);
}

void ibx_pipeline_forget(struct ibx_pipeline *p)
{
    ibx_successes_clear(&p->launches);
    ibx_successes_clear(&p->others);
    ibx_successes_clear(&p->libraries);
    ibx_replies_clear(&p->replies);
    memset(p->device.body, 0xff, sizeof(p->device.body));
    p->device.known = false;
    p->device.before = 0;
    p->device.current = -1;
}

/* 0: it is none of the first 64. */
static uint64_t device_bit(const uint8_t *body, size_t n)
{
    const uint32_t device = n == 4 ? ibx_request_word(body) : UINT32_MAX;
    return device < 64 ? (uint64_t)1 << device : 0;
}

void ibx_pipeline_selects(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    memcpy(p->device.body, body, sizeof(p->device.body));
    p->device.known = true;
    p->device.before |= device_bit(body, n);
}

bool ibx_pipeline_may_select(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return (p->device.before & device_bit(body, n)) != 0;
}

void ibx_pipeline_forget_old(struct ibx_pipeline *p)
{
    const unsigned resets = ibx_process_outdated(IBX_OUTDATED_ALL),
                   handles = ibx_process_outdated(IBX_OUTDATED_STREAMS);
    const unsigned set_ups = ibx_process_outdated(IBX_OUTDATED_LIBRARIES);
    if (p->launches_from != resets)
        ibx_pipeline_forget(p);
    if (p->others_from != handles)
        ibx_successes_clear(&p->others);
    if (p->libraries_from != set_ups)
        ibx_successes_clear(&p->libraries);
    p->launches_from = resets;
    p->others_from = handles;
    p->libraries_from = set_ups;
}

size_t ibx_reply_key(const struct ibx_pipeline *p, uint8_t key[sizeof(p->staged)])
{
    size_t body, n = p->staged_length;
    const uint8_t *from = ibx_request_body(p, &body);
    memcpy(key, p->staged, n);
    if (p->call->blind)
        memset(key + (from - p->staged), 0, body);
    if (n + sizeof(p->device.body) > sizeof(p->staged))
        return n; /* no such request is that long */
    memcpy(key + n, p->device.body, sizeof(p->device.body));
    return n + sizeof(p->device.body);
}
