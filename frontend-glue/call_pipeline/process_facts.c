/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What holds for all pipelines of the process: counters of what makes earlier successes worthless;
 * whether work, captures, other devices or shared memory are left; errors that no thread was told
 * of. Any thread may call it, and need hold no lock.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/log.h"

static _Atomic unsigned outdated[IBX_OUTDATED_KINDS];
static _Atomic unsigned captures, losses, reported_losses, cuts;
static _Atomic int unreported;
static _Atomic uint64_t epoch = 1;
static _Atomic uint64_t left_behind, settled, all_settled;
static _Atomic uint64_t left_in_legacy, legacy_settled;
static atomic_bool devices, shares_memory;
#define BROKEN 1u
static _Atomic unsigned breaks; /* BROKEN, and 2 for each sticky error so far */
static atomic_int broken_by;    /* the last one of them */
#define DESTROYED 1024u
static _Atomic unsigned destroyed[DESTROYED]; /* by handle; several share a counter */

unsigned ibx_process_outdated(enum ibx_outdated what)
{
    return atomic_load_explicit(&outdated[what], memory_order_acquire);
}

void ibx_process_outdate(enum ibx_outdated what)
{
    if (what == IBX_OUTDATED_ALL) {
        ibx_allocations_clear();
        ibx_events_clear();
    }
    atomic_fetch_add(&outdated[what], 1);
}

static _Atomic unsigned *destroyed_of(uint64_t handle)
{
    return &destroyed[(handle >> 4 ^ handle >> 14 ^ handle) % DESTROYED];
}

unsigned ibx_process_destroyed(uint64_t handle)
{
    return atomic_load_explicit(destroyed_of(handle), memory_order_acquire);
}

void ibx_process_destroy(uint64_t handle)
{
    atomic_fetch_add(destroyed_of(handle), 1);
}

uint64_t ibx_process_epoch(void)
{
    return atomic_load(&epoch);
}

void ibx_process_work(enum ibx_leaves leaves)
{
    atomic_fetch_add(&epoch, 1);
    if (leaves != IBX_LEAVES_NOTHING)
        atomic_fetch_add(&left_behind, 1);
    if (leaves == IBX_LEAVES_IN_LEGACY)
        atomic_fetch_add(&left_in_legacy, 1);
}

struct ibx_left ibx_process_left(void)
{
    return (struct ibx_left){atomic_load(&left_behind), atomic_load(&left_in_legacy)};
}

static void raise_to(_Atomic uint64_t *number, uint64_t least)
{
    uint64_t before = atomic_load(number);
    while (before < least && !atomic_compare_exchange_weak(number, &before, least))
        ;
}

void ibx_process_settled(struct ibx_left left)
{
    raise_to(&settled, left.anywhere);
    ibx_process_legacy_settled(left.in_legacy);
}

void ibx_process_legacy_settled(uint64_t left)
{
    if (!ibx_process_devices())
        raise_to(&legacy_settled, left);
}

bool ibx_process_legacy_rests(void)
{
    return atomic_load(&left_in_legacy) == atomic_load(&legacy_settled);
}

bool ibx_process_rests(void)
{
    return atomic_load(&left_behind) == atomic_load(&settled);
}

void ibx_process_all_settled(struct ibx_left left)
{
    ibx_process_settled(left);
    if (!ibx_process_devices())
        raise_to(&all_settled, left.anywhere);
}

bool ibx_process_all_rests(void)
{
    return !ibx_process_devices() && atomic_load(&left_behind) == atomic_load(&all_settled);
}

bool ibx_process_shares_memory(void)
{
    return atomic_load(&shares_memory);
}

void ibx_process_share_memory(void)
{
    atomic_store(&shares_memory, true);
}

bool ibx_process_devices(void)
{
    return atomic_load(&devices);
}

void ibx_process_select(void)
{
    atomic_store(&devices, true);
}

unsigned ibx_process_breaks(void)
{
    return atomic_load_explicit(&breaks, memory_order_relaxed);
}

void ibx_process_returned(int exit_code, bool waits, unsigned before)
{
    unsigned now = atomic_load(&breaks);
    if (ibx_call_breaks_contexts(exit_code))
        atomic_store(&broken_by, exit_code);
    if (ibx_call_breaks_contexts(exit_code))
        while (!atomic_compare_exchange_weak(&breaks, &now, (now | BROKEN) + 2)) {
        }
    else if (waits && !exit_code && (before & BROKEN))
        atomic_compare_exchange_strong(&breaks, &before, before & ~BROKEN);
}

bool ibx_process_is_broken(void)
{
    return ibx_process_breaks() & BROKEN;
}

bool ibx_pipeline_broken_by(int *code)
{
    *code = atomic_load(&broken_by);
    return ibx_process_is_broken();
}

bool ibx_process_captures(void)
{
    return atomic_load(&captures);
}

void ibx_process_capture(bool begins)
{
    unsigned was = atomic_load(&captures);
    while (!atomic_compare_exchange_weak(&captures, &was, begins ? was + 1 : was ? was - 1 : 0))
        ;
}

/* 0 is a free place: no stream of a program has that handle. A stream that finds no place is only
 * counted, and its capture ends only by cudaStreamEndCapture. */
#define CAPTURED 64
static _Atomic uint64_t captured[CAPTURED]; /* streams; any thread's, without a lock */

static bool exchange(uint64_t before, uint64_t now)
{
    for (unsigned i = 0; i < CAPTURED; i++) {
        uint64_t there = before;
        if (atomic_load(&captured[i]) == before &&
            atomic_compare_exchange_strong(&captured[i], &there, now))
            return true;
    }
    return false;
}

bool ibx_process_captured_ends(uint64_t stream)
{
    return stream && exchange(stream, 0);
}

/* cudaStreamPerThread is another stream in each thread: its capture ends only by
 * cudaStreamEndCapture. */
void ibx_process_captured(uint64_t stream)
{
    if (stream <= STREAM_THREAD)
        return;
    if (ibx_process_captured_ends(stream)) /* a capture that ended with its thread */
        ibx_process_capture(false);
    exchange(0, stream);
}

void ibx_process_captured_reset(void)
{
    for (unsigned i = 0; i < CAPTURED; i++) {
        if (atomic_exchange(&captured[i], 0))
            ibx_process_capture(false);
    }
}

void ibx_process_lose(uint64_t requests)
{
    ibx_log(IBX_LOG_ERROR,
            "%llu CUDA calls that had returned 0 were lost with their thread's connection: in each "
            "thread, the next call that waits for the device returns CUDA error %d",
            (unsigned long long)requests, IBX_CUDA_ERROR_UNKNOWN);
    atomic_fetch_add(&losses, 1);
}

/* The last server process whose end was noticed, and how many ends there were. Each thread has a
 * session with that process, and the next one may have the same number, as in a container. */
static struct {
    pthread_mutex_t lock;
    uint64_t server, its_namespace;
    unsigned ends;
} gone = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ibx_process_cut(void)
{
    atomic_fetch_add(&cuts, 1);
}

/* What a server process has made for this one is gone with it, and may be gone with a session. */
unsigned ibx_process_server(const struct ibx_pipeline *p)
{
    static uint64_t server, its_namespace; /* of the last session that was asked about */
    static unsigned ends, cut, number;
    uint64_t now_namespace = 0;
    const uint64_t now = ibx_session_process(p->session, &now_namespace);
    pthread_mutex_lock(&gone.lock);
    const unsigned cut_now = atomic_load(&cuts);
    number +=
        now != server || now_namespace != its_namespace || gone.ends != ends || cut_now != cut;
    server = now;
    its_namespace = now_namespace;
    ends = gone.ends;
    cut = cut_now;
    const unsigned answer = number;
    pthread_mutex_unlock(&gone.lock);
    return answer;
}

unsigned ibx_process_ends(void)
{
    pthread_mutex_lock(&gone.lock);
    const unsigned ends = gone.ends;
    pthread_mutex_unlock(&gone.lock);
    return ends;
}

/* Whether no other session with that server process has noticed its end before. */
static bool is_news(const struct ibx_pipeline *p)
{
    uint64_t its_namespace = 0;
    const uint64_t server = ibx_session_process(p->session, &its_namespace);
    pthread_mutex_lock(&gone.lock);
    const bool known =
        server == gone.server && its_namespace == gone.its_namespace && p->server_ends < gone.ends;
    if (!known) {
        gone.server = server;
        gone.its_namespace = its_namespace;
        gone.ends++;
    }
    pthread_mutex_unlock(&gone.lock);
    return !known;
}

void ibx_process_lose_all(const struct ibx_pipeline *p, bool told)
{
    ibx_process_outdate(IBX_OUTDATED_ALL);
    ibx_library_clear();
    if (!is_news(p) || told)
        return;
    ibx_log(IBX_LOG_ERROR,
            "the back end's process is gone, and with it everything that this program has there: "
            "in each thread, the next call that waits for the device returns CUDA error %d",
            IBX_CUDA_ERROR_UNKNOWN);
    atomic_fetch_add(&losses, 1);
}

unsigned ibx_process_losses(void)
{
    return atomic_load(&losses);
}

unsigned ibx_process_reported_losses(void)
{
    return atomic_load(&reported_losses);
}

void ibx_process_tell_losses(unsigned n)
{
    unsigned before = atomic_load(&reported_losses);
    while (before < n && !atomic_compare_exchange_weak(&reported_losses, &before, n))
        ;
}

void ibx_process_leave_failure(int code)
{
    int none = 0;
    if (code)
        atomic_compare_exchange_strong(&unreported, &none, code);
}

int ibx_process_take_failure(int code)
{
    int left = atomic_load(&unreported);
    const bool wanted = left && (!code || left == code);
    return wanted && atomic_compare_exchange_strong(&unreported, &left, 0) ? left : 0;
}

/* ------------------------------------------------------------------------------ fork */

void ibx_process_facts_lock(void)
{
    pthread_mutex_lock(&gone.lock);
}

void ibx_process_facts_unlock(void)
{
    pthread_mutex_unlock(&gone.lock);
}

void ibx_process_facts_clear(void)
{
    atomic_store(&captures, 0);
    for (unsigned i = 0; i < CAPTURED; i++)
        atomic_store(&captured[i], 0);
    atomic_store(&devices, false);
    atomic_store(&shares_memory, false);
    atomic_store(&breaks, 0);
    atomic_store(&settled, atomic_load(&left_behind));
    atomic_store(&all_settled, atomic_load(&left_behind));
    atomic_store(&legacy_settled, atomic_load(&left_in_legacy));
    atomic_store(&losses, 0);
    atomic_store(&reported_losses, 0);
    atomic_store(&unreported, 0);
}
