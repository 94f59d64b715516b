/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A peer that is stopped just before it copies and continued when the memory is no longer
 * registered. The linker's --wrap stops it right before its system call. Also: a peer whose
 * first thread has ended. */
#include "tests/fixtures/shm_pair.h"
#include "tests/fixtures/thread_state.h"

#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH 4096u

static struct pair pair;
static uint8_t owned[LENGTH], local[LENGTH];
static struct ibx_mr *mr;
static bool stop_here; /* stop at the next call that copies more than the nonce */
static bool crowded;   /* first use up the process's mappings */
static bool forbidden; /* such calls fail from now on */

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count,
                                const struct iovec *from, unsigned long from_count,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count,
                                const struct iovec *from, unsigned long from_count,
                                unsigned long flags);
ssize_t __real_process_vm_writev(pid_t pid, const struct iovec *from, unsigned long from_count,
                                 const struct iovec *to, unsigned long to_count,
                                 unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *from, unsigned long from_count,
                                 const struct iovec *to, unsigned long to_count,
                                 unsigned long flags);

#define CROWD ((size_t)4 << 30) /* a million pages, more mappings than most kernels allow */
#define PAGE  ibx_shm_page()

/* Makes every second page differ from the one before until no more mappings are possible. */
static uint8_t *crowd(void)
{
    uint8_t *pages =
        mmap(NULL, CROWD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(pages != MAP_FAILED);
    size_t at = PAGE;
    while (at < CROWD && !mprotect(pages + at, PAGE, PROT_READ))
        at += 2 * PAGE;
    return pages;
}

static void maybe_stopped(void)
{
    if (!stop_here)
        return;
    stop_here = false;
    uint8_t *pages = crowded ? crowd() : NULL;
    end_deregister(&pair.client, mr);
    mr = NULL;
    if (pages)
        munmap(pages, CROWD);
    memset(owned, 0x0f, sizeof(owned)); /* new data after the deregistration */
}

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count,
                                const struct iovec *from, unsigned long from_count,
                                unsigned long flags)
{
    if (to_count > 1)
        maybe_stopped();
    if (forbidden) {
        errno = EPERM;
        return -1;
    }
    return __real_process_vm_readv(pid, to, to_count, from, from_count, flags);
}

ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *from, unsigned long from_count,
                                 const struct iovec *to, unsigned long to_count,
                                 unsigned long flags)
{
    maybe_stopped();
    return __real_process_vm_writev(pid, from, from_count, to, to_count, flags);
}

static void copy(enum ibx_rdma_kind kind, int status)
{
    struct ibx_chunk chunk;
    unsigned before = pair.server.count;
    post(&pair.server, &chunk, kind, 1, local, mr, 0, LENGTH);
    await_notes(&pair.server, NULL, before + 1 + (status != 0));
    assert_int_equal(pair.server.notes[before].kind, NOTE_CHUNK);
    assert_int_equal(pair.server.notes[before].status, status);
}

static void stopped_before(enum ibx_rdma_kind kind)
{
    pair_open(&pair);
    ends_connect(&pair.server, &pair.client);
    if (!pair.server.shm->direct) {
        pair_close(&pair);
        skip();
    }
    pair.client.options.timeout_ms = 1;
    mr = end_register(&pair.client, owned, LENGTH, READ_WRITE);
    memset(owned, 0xaa, sizeof(owned));
    memset(local, 0x55, sizeof(local));
    copy(kind, 0); /* shows that direct copies work */
    assert_memory_equal(owned, local, LENGTH);
    memset(local, 0x55, sizeof(local));
    stop_here = true;
    copy(kind, -ECONNRESET);
    assert_false(stop_here);
    for (size_t i = 0; i < LENGTH; i++) {
        assert_int_equal(owned[i], 0x0f);
        assert_int_equal(local[i], 0x55);
    }
    assert_lost(&pair.server, -ECONNRESET);
    /* The owner knows that the region has ended, and does not reuse memory that the peer may
     * still copy to. */
    struct ibx_mr next = {
        .span = ibx_span_host(NULL, LENGTH), .access = READ_WRITE, .allocated = true};
    assert_int_equal(ibx_provider_shm.mr_register(pair.client.shm, &next, NULL), -ENOTCONN);
    end_turn(&pair.client);
    assert_lost(&pair.client, -ETIMEDOUT);
    pair_close(&pair);
}

static void test_stopped_before_a_write(void **state)
{
    (void)state;
    stopped_before(IBX_RDMA_WRITE);
}

static void test_stopped_before_a_read(void **state)
{
    (void)state;
    stopped_before(IBX_RDMA_READ);
}

static void test_stopped_in_a_crowd(void **state)
{
    (void)state;
    crowded = true;
    stopped_before(IBX_RDMA_WRITE);
    stopped_before(IBX_RDMA_READ);
    crowded = false;
}

/* If one process forbids direct copies, its peer may not copy directly either. */
static void test_forbidden_by_one(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair_open(&pair);
        (i ? &pair.client : &pair.server)->options.shm_direct = false;
        ends_connect(&pair.server, &pair.client);
        assert_false(pair.client.shm->direct || pair.server.shm->direct);
        assert_non_null(strstr((i ? &pair.server : &pair.client)->shm->direct_reason, "the peer"));
        pair_close(&pair);
    }
}

/* The system forbids them for a while, whatever the option says. */
static void test_forbidden_at_present(void **state)
{
    (void)state;
    _Atomic bool not_now = true;
    pair_open(&pair);
    pair.server.options.shm_not_direct = &not_now;
    ends_connect(&pair.server, &pair.client);
    assert_false(pair.client.shm->direct || pair.server.shm->direct);
    pair_close(&pair);
    pair_open(&pair);
    ends_connect(&pair.server, &pair.client);
    const bool permitted = pair.client.shm->direct;
    pair_close(&pair);
    pair_open(&pair);
    not_now = false;
    pair.server.options.shm_not_direct = &not_now;
    ends_connect(&pair.server, &pair.client);
    assert_int_equal(pair.client.shm->direct, permitted);
    pair_close(&pair);
}

/* The peer becomes another user, or undumpable, after it was asked to copy. It still copies. */
static void test_forbidden_later(void **state)
{
    (void)state;
    struct ibx_chunk chunk;
    pair_open(&pair);
    ends_connect(&pair.server, &pair.client);
    if (!pair.server.shm->direct) {
        pair_close(&pair);
        skip();
    }
    mr = end_register(&pair.client, owned, LENGTH, READ_WRITE);
    memset(owned, 0xaa, sizeof(owned));
    memset(local, 0x55, sizeof(local));
    assert_int_equal(end_send(&pair.client, "here", 4, 0), 0);
    await_notes(&pair.server, NULL, 1); /* the peer is copying */
    post(&pair.server, &chunk, IBX_RDMA_READ, 1, local, mr, 0, LENGTH);
    end_turn(&pair.server);
    assert_true(ibx_shm_request_open(pair.server.shm));
    forbidden = true;
    while (pair.server.shm->direct && pair.server.count == 1)
        end_turn(&pair.server); /* until the peer counts as absent */
    forbidden = false;
    await_notes(&pair.server, &pair.client, 2);
    assert_int_equal(pair.server.notes[1].kind, NOTE_CHUNK);
    assert_int_equal(pair.server.notes[1].status, 0);
    assert_memory_equal(owned, local, LENGTH);
    assert_false(pair.server.shm->direct);
    end_deregister(&pair.client, mr);
    pair_close(&pair);
}

/* ------------------------------------------------------------- after the first thread has ended */

#define NO_DIRECT 77 /* exit status: direct copies are not possible here */

/* Only this end polls, so it must copy alone. */
static void copy_alone(enum ibx_rdma_kind kind)
{
    static struct ibx_chunk chunks[2];
    struct ibx_chunk *chunk = &chunks[kind == IBX_RDMA_WRITE];
    const unsigned before = pair.server.count;
    *chunk = (struct ibx_chunk){.kind = kind,
                                .lane = 1,
                                .local = local,
                                .remote_address = (uintptr_t)owned,
                                .remote_keys = mr->keys,
                                .length = LENGTH};
    memset(owned, kind == IBX_RDMA_READ ? 0xaa : 0, sizeof(owned));
    memset(local, kind == IBX_RDMA_READ ? 0 : 0x55, sizeof(local));
    MUST(ibx_provider_shm.rdma(pair.server.shm, chunk) == 0);
    MUST(end_await(&pair.server, NULL, before + 1));
    MUST(pair.server.notes[before].kind == NOTE_CHUNK && !pair.server.notes[before].status);
    MUST(!memcmp(owned, local, LENGTH) && local[0] && !end_lost(&pair.server));
    MUST(pair.server.shm->direct);
}

static void *second_thread(void *unused)
{
    const uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    (void)unused;
    while (thread_state(getpid(), getpid()) != 'Z' && ibx_now_ns() < deadline)
        sched_yield();
    MUST(thread_state(getpid(), getpid()) == 'Z');
    copy_alone(IBX_RDMA_READ);
    copy_alone(IBX_RDMA_WRITE);
    _exit(0);
}

static _Noreturn void run_without_the_first(void)
{
    pthread_t thread;
    pair_open(&pair);
    ends_connect(&pair.server, &pair.client);
    if (!pair.server.shm->direct)
        _exit(NO_DIRECT);
    mr = end_register(&pair.client, owned, LENGTH, READ_WRITE);
    copy_alone(IBX_RDMA_READ);
    MUST(pthread_create(&thread, NULL, second_thread, NULL) == 0);
    pthread_exit(NULL);
}

static void test_first_thread_ends(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    if (!child)
        run_without_the_first();
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_DIRECT)
        skip();
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_before_a_write), cmocka_unit_test(test_stopped_before_a_read),
        cmocka_unit_test(test_stopped_in_a_crowd),     cmocka_unit_test(test_forbidden_by_one),
        cmocka_unit_test(test_forbidden_at_present),   cmocka_unit_test(test_forbidden_later),
        cmocka_unit_test(test_first_thread_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
