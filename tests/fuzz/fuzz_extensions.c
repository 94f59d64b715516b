/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests from a client that sends anything in any order. What the back end makes of
 * them reaches simulations of CUDA's runtime and driver, which abort at an invalid handle.
 * Another tenant's objects stay unchanged.
 *
 * Input, request after request: its number, then what its body is made of (request_forms.c): a
 * byte for each choice, of which 255 stands for the eight bytes that follow it. RAW and a
 * number: the body is as many bytes of the input as the next byte says. CUT precedes a request
 * that is truncated. */
#include "common/log.h"
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/fuzz/require.h"
#include "tests/fixtures/request_forms.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define RAW           (IBX_EXT_REQUESTS + 1)
#define CUT           255u
#define NS            UINT64_C(1000000000)
#define REQUESTS      64u
#define MADE_MOST     (REQUESTS + 16)
#define NODES         2000u /* the greatest number of nodes at a time, also of nested graphs */
#define POOLS         8u
#define BEHIND_DOUBLE (UINT64_C(1) << 40) /* of the addresses that such memory may have */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The client reports its process, because kernels can only use memory of a known one. */
uint32_t __wrap_ibx_session_process(const struct ibx_session *s, uint64_t *process_namespace);
uint32_t __wrap_ibx_session_process(const struct ibx_session *s, uint64_t *process_namespace)
{
    (void)s;
    *process_namespace = 1;
    return (uint32_t)getpid();
}

/* What it shares. */
static int shared = -1;
int __wrap_ibx_shared_of_peer(const struct ibx_conn *conn, uint64_t *bytes);
int __wrap_ibx_shared_of_peer(const struct ibx_conn *conn, uint64_t *bytes)
{
    (void)conn;
    *bytes = MEMORY;
    return shared;
}

/* A wait for other clients ends at once, because there are none. */
static _Atomic uint64_t ahead_ns; /* relative to the real clock */
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int rc = __real_clock_gettime(clock, now);
    const uint64_t ns = (uint64_t)now->tv_nsec + ahead_ns;
    now->tv_sec += (time_t)(ns / NS);
    now->tv_nsec = (long)(ns % NS);
    return rc;
}

int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left);
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)left;
    ahead_ns += (uint64_t)wanted->tv_sec * NS + (uint64_t)wanted->tv_nsec;
    return 0;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  clockid_t clock, const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  clockid_t clock, const struct timespec *until)
{
    struct timespec now;
    (void)condition, (void)mutex;
    __wrap_clock_gettime(clock, &now);
    const int64_t left = (until->tv_sec - now.tv_sec) * (int64_t)NS + until->tv_nsec - now.tv_nsec;
    if (left > 0)
        ahead_ns += (uint64_t)left;
    return ETIMEDOUT;
}

/* ----------------------------------------------------------------------------- the input */

static struct ibx_reader input;

static uint64_t next_choice(void)
{
    if (!ibx_reader_left(&input))
        return 1;
    const uint8_t byte = ibx_get_u8(&input);
    return byte == 255 && ibx_reader_left(&input) >= 8 ? ibx_get_u64(&input) : byte;
}

/* ------------------------------------------------------------------------ what was made */

/* Which request destroys what another one has made; its kind, for later requests. */
static const struct maker {
    unsigned makes, takes_back;
    enum form_kind kind;
} makers[] = {
    {IBX_EXT_GRAPH_CREATE, IBX_EXT_GRAPH_DESTROY, FORM_GRAPH},
    {IBX_EXT_GRAPH_CLONE, IBX_EXT_GRAPH_DESTROY, FORM_GRAPH},
    {IBX_EXT_GET_CHILD, 0, FORM_GRAPH},
    {IBX_EXT_GRAPH_INSTANTIATE, IBX_EXT_EXEC_DESTROY, FORM_EXEC},
    {IBX_EXT_MALLOC_ARRAY, IBX_EXT_FREE_ARRAY, FORM_ARRAY},
    {IBX_EXT_MALLOC_MIPMAP, IBX_EXT_FREE_MIPMAP, FORM_MIPMAP},
    {IBX_EXT_MIPMAP_LEVEL, 0, FORM_ARRAY},
    {IBX_EXT_CREATE_TEXTURE, IBX_EXT_DESTROY_TEXTURE, FORM_TEXTURE},
    {IBX_EXT_CREATE_SURFACE, IBX_EXT_DESTROY_SURFACE, FORM_TEXTURE},
    {IBX_EXT_MALLOC_ASYNC, IBX_EXT_FREE_ASYNC, FORM_DEVICE},
    {IBX_EXT_MALLOC_FROM_POOL, IBX_EXT_FREE_ASYNC, FORM_DEVICE},
    {IBX_EXT_POOL_CREATE, IBX_EXT_POOL_DESTROY, FORM_POOL},
    {IBX_EXT_POOL_DEFAULT, 0, FORM_POOL},
    {IBX_EXT_HOST_OPEN, 0, FORM_QUEUE},
    {IBX_EXT_NODE_KERNEL, 0, FORM_NODE},
    {IBX_EXT_NODE_MEMCPY, 0, FORM_NODE},
    {IBX_EXT_NODE_MEMSET, 0, FORM_NODE},
    {IBX_EXT_NODE_HOST, 0, FORM_NODE},
    {IBX_EXT_NODE_EMPTY, 0, FORM_NODE},
    {IBX_EXT_NODE_CHILD, 0, FORM_NODE},
    {IBX_EXT_NODE_RECORD, 0, FORM_NODE},
    {IBX_EXT_NODE_WAIT, 0, FORM_NODE},
    {IBX_EXT_NODE_ALLOC, 0, FORM_NODE},
    {IBX_EXT_NODE_FREE, 0, FORM_NODE},
    {IBX_EXT_NODE_COPY, 0, FORM_NODE},
    {IBX_EXT_NODE_CONDITIONAL, 0, FORM_NODE},
    {IBX_EXT_NODE_MOVED, 0, FORM_NODE},
};

static struct made {
    unsigned takes_back;
    uint64_t handle;
} made[MADE_MOST];
static unsigned made_count;

static void keep(unsigned takes_back, uint64_t handle)
{
    require(made_count < MADE_MOST);
    made[made_count++] = (struct made){takes_back, handle};
}

static void note(unsigned number, uint64_t answer)
{
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++) {
        if (makers[i].makes != number)
            continue;
        form_note(makers[i].kind, answer);
        if (makers[i].takes_back)
            keep(makers[i].takes_back, answer);
    }
}

/* ------------------------------------------------------------------------ the requests */

static void *stream, *captured, *event; /* alice's */
static uint64_t of_kernels;             /* memory that is never freed */

/* Functions of the runtime, as a handler calls them. */
static struct {
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*destroy)(void *graph);
} capture;

/* Requests that request_forms.c does not have, of limited size. */
static void put_bounded(struct ibx_writer *w, unsigned number)
{
    static const char *const forms[IBX_EXT_REQUESTS] = {
        [IBX_EXT_MALLOC_ARRAY] = "iiiiixxxi",   [IBX_EXT_MALLOC_MIPMAP] = "iiiiixxxii",
        [IBX_EXT_MALLOC_ASYNC] = "xw",          [IBX_EXT_MALLOC_FROM_POOL] = "xlw",
        [IBX_EXT_POOL_CREATE] = "ixh",          [IBX_EXT_NODE_CHILD] = "pg",
        [IBX_EXT_NODE_ALLOC] = "pix",           [IBX_EXT_HOST_OPEN] = "",
        [IBX_EXT_CLUSTER_SIZE] = "KiiiiiizwiA",
    };
    if (number < IBX_EXT_REQUESTS && forms[number])
        form_put_as(w, forms[number]);
    if (number != IBX_EXT_HOST_MAP && number != IBX_EXT_HOST_MAP_AT)
        return;
    const uint64_t address = IBX_SHARED_FROM + BEHIND_DOUBLE + next_choice() * 4096;
    keep(IBX_EXT_HOST_UNMAP, address);
    ibx_put_u64(w, address);
    ibx_put_u64(w, next_choice() * 4096);
    ibx_put_u64(w, next_choice() % 4 ? IBX_EXT_OWN_PAGES : next_choice() * 4096);
}

/* A stream that is not captured stays at a host function until the client has called it, which
 * no client here does. */
static bool waits(unsigned number, struct ibx_writer *w)
{
    struct ibx_reader r = ibx_reader_of(w->data + 2, w->length - 2);
    if (number == IBX_EXT_HOST_ASK && w->length == 11)
        w->data[10] = 0; /* there is nothing to wait for */
    return number == IBX_EXT_HOST_ADD ||
           (number == IBX_EXT_HOST_CAPTURE && ibx_get_u64(&r) != (uintptr_t)captured);
}

/* Arrays of the simulation are ordinary memory, at addresses that may have been the client's; in
 * CUDA they have no addresses. */
static bool frees_an_array(unsigned number, const struct ibx_writer *w)
{
    struct ibx_reader r = ibx_reader_of(w->data + 2, w->length - 2);
    return number == IBX_EXT_FREE_ASYNC && !ibx_owners_number(ibx_get_u64(&r));
}

/* A kernel with wrong arguments would break the context of all clients, so it gets right ones or
 * none. */
static void tame(unsigned number, struct ibx_writer *w)
{
    const uint64_t good[] = {of_kernels, of_kernels + 64, 64};
    const size_t after = number == IBX_EXT_LAUNCH_QUEUED ? sizeof(uint64_t) : 0; /* the stream */
    if ((number == IBX_EXT_LAUNCH || after) && w->length >= 2 + sizeof(good) + after)
        memcpy(w->data + w->length - after - sizeof(good), good, sizeof(good));
}

static void rest(void)
{
    /* legacy stream, per-thread stream */
    void *const all[] = {stream, captured, NULL, (void *)1, (void *)2};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        app->stream_synchronize(all[i]);
}

/* If a stream still writes to freed memory, that is the client's fault, but the simulation would
 * abort. */
static void let_streams_rest(unsigned number)
{
    if (number == IBX_EXT_FREE_ASYNC || number == IBX_EXT_FREE_ARRAY ||
        number == IBX_EXT_FREE_MIPMAP || number == IBX_EXT_POOL_DESTROY)
        rest();
}

static void request_anything(void)
{
    uint8_t bytes[1024] = {0};
    unsigned number = ibx_get_u8(&input);
    const bool cut = number == CUT;
    if (cut)
        number = ibx_get_u8(&input);
    const bool raw = number >= RAW;
    number = raw ? number - RAW : number;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    if (raw) {
        const size_t n = ibx_get_u8(&input), left = ibx_reader_left(&input);
        ibx_put_bytes(&w, ibx_get_bytes(&input, n < left ? n : left), n < left ? n : left);
    } else if (number > IBX_EXT_REQUESTS || !form_put(&w, number)) {
        put_bounded(&w, number);
    }
    require(!w.failed);
    if (cut)
        w.length = next_choice() % (w.length + 9);
    uint64_t answer = 0;
    tame(number, &w);
    let_streams_rest(number);
    if (w.length >= 2 && !waits(number, &w) && !frees_an_array(number, &w) &&
        !ext_run(&alice, &w, &answer) && answer)
        note(number, answer);
}

/* -------------------------------------------------------------------------- the clients */

static uint8_t of_bob[MEMORY];

static void bound(struct client *c)
{
    struct ibx_tenant *tenant = c->x.isolation.tenant;
    atomic_store(&ibx_tenant_quota(tenant, IBX_HOLD_GRAPHS)->most, NODES);
    atomic_store(&ibx_tenant_quota(tenant, IBX_HOLD_EXECS)->most, NODES);
    atomic_store(&ibx_tenant_quota(tenant, IBX_HOLD_POOLS)->most, POOLS);
    atomic_store(&ibx_tenant_quota(tenant, IBX_HOLD_PINS)->most, 16u << 20);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    setenv("IBX_LIBCUDA", LIBCUDA_DOUBLE, 1);
    setenv("IBX_TEST_CUDART", LIBCUDART_DOUBLE, 1);
    require(!ext_set_up(NULL));
    bound(&alice);
    ibx_clients_join(&alice.x);
    ibx_clients_join(&bob.x);
    memset(of_bob, 'b', sizeof(of_bob));
    require(!app->mem_alloc(&of_kernels, 128));
    require(!app->to_device(bob.memory, of_bob, MEMORY));
    *(void **)&capture.begin = ibx_back_end_runtime("cudaStreamBeginCapture");
    *(void **)&capture.end = ibx_back_end_runtime("cudaStreamEndCapture");
    *(void **)&capture.destroy = ibx_back_end_runtime("cudaGraphDestroy");
    require(capture.begin && capture.end && capture.destroy);
    shared = memfd_create("shared", MFD_CLOEXEC);
    require(write(shared, of_bob, MEMORY) == MEMORY);
    form_note_others(&bob);
    form_random = next_choice;
    return 0;
}

/* Each input starts with the same objects of alice. */
static void begin(void)
{
    ext_make_all(&alice);
    form_forget();
    form_note_all_of(&alice);
    form_note(FORM_KERNEL, IBX_DOUBLE_KERNEL);
    require(!app->stream_create(&stream, 1) && !app->stream_create(&captured, 1));
    require(!app->event_create(&event, 0));
    require(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream));
    require(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)captured));
    require(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, (uintptr_t)event));
    require(!capture.begin(captured, IBX_CUDA_CAPTURE_RELAXED));
    form_note(FORM_STREAM, (uintptr_t)stream);
    form_note(FORM_STREAM, (uintptr_t)captured);
    form_note(FORM_EVENT, (uintptr_t)event);
    keep(IBX_EXT_GRAPH_DESTROY, alice.graph);
    keep(IBX_EXT_EXEC_DESTROY, alice.exec);
    keep(IBX_EXT_DESTROY_TEXTURE, alice.texture);
}

static void end(void)
{
    void *graph = NULL;
    if (!capture.end(captured, &graph) && graph)
        require(!capture.destroy(graph));
    rest();
    require(!app->ctx_synchronize());
    while (made_count) {
        const struct made *m = &made[--made_count];
        if (m->takes_back == IBX_EXT_FREE_ASYNC)
            ext_call(&alice, m->takes_back, 2, (uint64_t[]){m->handle, 0}, NULL);
        else
            ext_call_one(&alice, m->takes_back, m->handle, NULL);
    }
    ibx_host_work_end(&alice.x);
    ibx_ipc_forget(NULL);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)stream);
    ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, (uintptr_t)captured);
    ext_event_destroy(event);
    require(!app->stream_destroy(stream) && !app->stream_destroy(captured));
}

static void check_bob(void)
{
    uint8_t now[MEMORY];
    uint64_t answer;
    require(!app->from_device(now, bob.memory, MEMORY) && !memcmp(now, of_bob, MEMORY));
    require(ext_nodes_count(&bob, bob.graph) == 1);
    require(!ext_call_one(&bob, IBX_EXT_NODE_TYPE, bob.node, &answer));
    require(!ext_call_one(&bob, IBX_EXT_CHANNEL_DESC, bob.array, &answer));
    require(!ext_call_one(&bob, IBX_EXT_EXEC_FLAGS, bob.exec, &answer));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = ibx_reader_of(data, size);
    begin();
    for (unsigned i = 0; i < REQUESTS && ibx_reader_left(&input); i++)
        request_anything();
    end();
    check_bob();
    return 0;
}
