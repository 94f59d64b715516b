/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The registration cache with several threads and in forked children. */
#include "tests/fixtures/regcache_fake.h"

#include "common/clock.h"
#include "transport/core/regcache_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

/* --------------------------------------------------------------------- threads */

static unsigned thread_count(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* A joined thread takes a moment to leave the kernel's list. */
static void await_threads(unsigned count)
{
    time_t end = time(NULL) + 20;
    while (thread_count() != count)
        assert_true(time(NULL) < end);
}

static void test_reader_ends(void **state)
{
    (void)state;
    unsigned before = thread_count();
    struct registrar r = {0};
    char *memory = map(1);
    for (int i = 0; i < 50; i++) {
        struct ibx_regcache *one = make(&r), *two = make(&r);
        /* the thread is started when it is first needed */
        assert_int_equal(thread_count(), before);
        get_and_put(one, memory, 1);
        get_and_put(two, memory, 1);
        assert_int_equal(thread_count(), before + 1);
        ibx_regcache_destroy(one);
        assert_int_equal(thread_count(), before + 1);
        ASSERT_HIT(r, get_and_put(two, memory, 1));
        ibx_regcache_destroy(two);
        await_threads(before);
    }
    munmap(memory, PAGE);
}

/* One thread unmaps memory that another one has cached. The other maps the same address as soon
 * as it is free, when the first has not yet returned from munmap(2). */
struct swap {
    char *where;
    _Atomic(unsigned) turn; /* even: it is the owner's turn */
    unsigned rounds;
};

static void *unmapper(void *argument)
{
    struct swap *swap = argument;
    for (unsigned turn = 1; turn < 2 * swap->rounds; turn += 2) {
        while (atomic_load(&swap->turn) != turn)
            sched_yield();
        munmap(swap->where, 16 * PAGE);
        atomic_store(&swap->turn, turn + 1);
    }
    return NULL;
}

static void test_unmapped_by_another_thread(void **state)
{
    (void)state;
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    struct swap swap = {.where = map(16), .rounds = 3000};
    pthread_t thread;
    unsigned early = 0;
    assert_int_equal(pthread_create(&thread, NULL, unmapper, &swap), 0);
    for (unsigned round = 0; round < swap.rounds; round++) {
        *(uint64_t *)swap.where = round;
        struct ibx_mr *mr = get(cache, swap.where, 16 * PAGE, LOCAL);
        assert_int_equal(mr->keys[0], round);
        ibx_regcache_put(cache, mr);
        atomic_store(&swap.turn, 2 * round + 1);
        while (mmap(swap.where, 16 * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
            ;
        early += atomic_load(&swap.turn) == 2 * round + 1;
        touch(swap.where, 16 * PAGE);
        *(uint64_t *)swap.where = round + 1;
        mr = get(cache, swap.where, 16 * PAGE, LOCAL);
        assert_int_equal(mr->keys[0], round + 1);
        ibx_regcache_put(cache, mr);
        while (atomic_load(&swap.turn) != 2 * round + 2)
            sched_yield();
    }
    pthread_join(thread, NULL);
    print_message("mapped before munmap had returned: %u of %u\n", early, swap.rounds);
    ibx_regcache_destroy(cache);
    munmap(swap.where, 16 * PAGE);
}

/* A signal handler that unmaps memory waits for the reader. If it ran while its thread holds a
 * lock that the reader needs, both would wait for ever. */
static char *handler_memory;
static volatile sig_atomic_t handled;

static void handler_unmaps(int number)
{
    (void)number;
    munmap(handler_memory, PAGE);
    handled = 1;
}

static void test_a_signal_waits_for_the_lock(void **state)
{
    (void)state;
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    struct sigaction before, unmaps = {.sa_handler = handler_unmaps};
    sigset_t mask;
    handler_memory = map(1);
    get_and_put(cache, handler_memory, PAGE);
    assert_int_equal(sigaction(SIGUSR1, &unmaps, &before), 0);
    ibx_watch_lock();
    raise(SIGUSR1);
    bool early = handled;
    ibx_watch_unlock();
    assert_false(early);
    assert_true(handled);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &mask), 0);
    assert_false(sigismember(&mask, SIGUSR1));
    map_at(handler_memory, PAGE, MAP_FIXED_NOREPLACE);
    ASSERT_MISS(r, get_and_put(cache, handler_memory, PAGE));
    sigaction(SIGUSR1, &before, NULL);
    ibx_regcache_destroy(cache);
    munmap(handler_memory, PAGE);
}

/* Several caches at once. Every thread uses the same allocator and address space. */
struct churn {
    unsigned seed, rounds;
};

static void *churn(void *argument)
{
    const struct churn *c = argument;
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    for (unsigned round = 0; round < c->rounds; round++) {
        size_t size = (c->seed * 31 + round * 17) % 60 * PAGE / 2 + 4096;
        char *heap = malloc(size), *mapped = map(4);
        memset(heap, 1, size);
        *(uint64_t *)mapped = round;
        struct ibx_mr *one = get(cache, heap, size, LOCAL);
        struct ibx_mr *two = get(cache, mapped, 4 * PAGE, LOCAL);
        assert_int_equal(two->keys[0], round);
        ibx_regcache_put(cache, one);
        free(heap);
        ibx_regcache_put(cache, two);
        munmap(mapped, 4 * PAGE);
    }
    ibx_regcache_destroy(cache);
    assert_int_equal(r.left, r.entered);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    struct churn churns[4] = {{1, 400}, {2, 400}, {3, 400}, {4, 400}};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &churns[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* ------------------------------------------------------------------------ fork */

/* Sanitizers do not work in children of processes that have threads. */
static void need_fork(bool threads_allocate)
{
#if defined(__SANITIZE_THREAD__)
    (void)threads_allocate;
    skip();
#elif defined(__SANITIZE_ADDRESS__)
    if (threads_allocate)
        skip();
#else
    (void)threads_allocate;
#endif
}

/* Runs `run` in a child. Its exit status says whether it completed; one that hangs is ended. */
static void in_child(void (*run)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        alarm(60);
        run();
        _exit(42);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

static struct registrar family;
static struct ibx_regcache *family_cache;
static char *family_memory;
static struct ibx_mr *family_held;

#define CHILD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("line %d: not true in the child: %s\n", __LINE__, #condition);             \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static bool family_has(unsigned entries)
{
    struct ibx_regcache_stats stats;
    ibx_regcache_stats(family_cache, &stats);
    return stats.entries == entries && stats.bytes == entries * PAGE;
}

static void child_with_the_parents_cache(void)
{
    unsigned entered = family.entered;
    /* This process must neither use nor end its parent's registrations. */
    get_and_put(family_cache, family_memory, PAGE);
    CHILD_CHECK(family.entered == entered + 1 && family.left == 0);
    get_and_put(family_cache, family_memory, PAGE);
    CHILD_CHECK(family.entered == entered + 1);
    /* They take no room in it either, but for the one that was in use. */
    CHILD_CHECK(family_has(2));
    ibx_regcache_put(family_cache, family_held);
    CHILD_CHECK(family.left == 0 && family_has(1));
    /* Now this process's own memory is watched. */
    munmap(family_memory, PAGE);
    map_at(family_memory, PAGE, MAP_FIXED_NOREPLACE);
    get_and_put(family_cache, family_memory, PAGE);
    CHILD_CHECK(family.entered == entered + 2 && family.left == 1);
    ibx_regcache_destroy(family_cache);
    CHILD_CHECK(family.left == 2);
}

static void child_that_destroys_only(void)
{
    ibx_regcache_put(family_cache, family_held);
    ibx_regcache_destroy(family_cache);
    CHILD_CHECK(family.left == 0);
}

static void grandchild(void)
{
    get_and_put(family_cache, family_memory, PAGE);
    CHILD_CHECK(family_has(2));
    ibx_regcache_put(family_cache, family_held);
    CHILD_CHECK(family.left == 0 && family_has(1));
}

/* The child has used the cache, too, before it forks in turn. */
static void child_with_a_child(void)
{
    get_and_put(family_cache, family_memory, PAGE);
    in_child(grandchild);
    ibx_regcache_put(family_cache, family_held);
    ibx_regcache_destroy(family_cache);
    CHILD_CHECK(family.left == 1);
}

/* A thread that is just starting has locks of the sanitizer, which nobody would release in a child.
 * Watched memory is not gone before the reader runs and has read of it. */
static void wait_for_the_reader(void)
{
    char *memory = map(1);
    get_and_put(family_cache, memory, PAGE);
    munmap(memory, PAGE);
    ibx_regcache_tidy(family_cache);
}

static void test_forked_child(void **state)
{
    (void)state;
    need_fork(false);
    family_cache = make(&family);
    wait_for_the_reader();
    family = (struct registrar){0};
    family_memory = map(2);
    get_and_put(family_cache, family_memory, PAGE);
    family_held = get(family_cache, family_memory + PAGE, PAGE, LOCAL);
    in_child(child_with_the_parents_cache);
    in_child(child_that_destroys_only);
    in_child(child_with_a_child);
    ASSERT_HIT(family, get_and_put(family_cache, family_memory, PAGE));
    munmap(family_memory, PAGE);
    map_at(family_memory, PAGE, MAP_FIXED_NOREPLACE);
    ASSERT_MISS(family, get_and_put(family_cache, family_memory, PAGE));
    ibx_regcache_put(family_cache, family_held);
    ibx_regcache_destroy(family_cache);
    munmap(family_memory, 2 * PAGE);
}

static void child_of_threads(void)
{
    struct churn few = {9, 3};
    churn(&few);
}

/* The fork comes while other threads hold the lock or wait for the reader. */
static void test_fork_amid_threads(void **state)
{
    (void)state;
    pthread_t threads[2];
    struct churn churns[2] = {{5, 1000}, {6, 1000}};
    need_fork(true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &churns[i]), 0);
    for (int i = 0; i < 100; i++)
        in_child(child_of_threads);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* ------------------------------------------------- forks in the middle of a start or an end */

/* What the wrapped functions below call in the middle of it, once. */
static void (*_Atomic in_the_middle)(void);

static void now(void)
{
    void (*const act)(void) = atomic_exchange(&in_the_middle, NULL);
    if (act)
        act();
}

int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags)
{
    now();
    return __real_eventfd(count, flags);
}

int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    now();
    return __real_pthread_join(thread, result);
}

static bool others_end; /* the reader's other descriptors may be closed or not */

/* How many descriptors of a reader this process has. */
static int readers_descriptors(void)
{
    int count = 0;
    for (int fd = 3; fd < 256; fd++) {
        char link[32], target[64] = "";
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof(target) - 1) > 0)
            count += strstr(target, "[userfaultfd]") ||
                     (!others_end && (strstr(target, "[eventfd]") || strstr(target, "/pagemap")));
    }
    return count;
}

static int forks_status = -1;
static _Atomic bool forks, has_forked;
static _Atomic bool takes_number; /* of the userfaultfd that is closed next */
static _Atomic int forks_before;  /* microseconds before that is closed; 0: none does */
static int taken = -1;

static void note_fork(void)
{
    forks = true;
}

static void *fork_aside(void *unused)
{
    const pid_t child = fork();
    if (!child)
        _exit(10 + readers_descriptors() + (taken >= 0 && fcntl(taken, F_GETFD) < 0));
    has_forked = true;
    waitpid(child, &forks_status, 0);
    return unused;
}

static pthread_t forker;

static void begin_fork(void)
{
    assert_int_equal(pthread_create(&forker, NULL, fork_aside, NULL), 0);
    while (!forks)
        sched_yield();
}

/* Another thread forks. */
static void fork_in_another_thread(void)
{
    begin_fork();
    while (!has_forked)
        usleep(1000);
}

/* Another thread wants to fork, and has to wait for this one, which it does after note_fork(). */
static void fork_waits_in_another_thread(void)
{
    begin_fork();
    for (int i = 0; i < 100 && !has_forked; i++)
        usleep(1000);
}

/* Another thread opens a file, and forks, when the reader has closed its userfaultfd. */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    char link[32], target[64] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const bool is_userfaultfd = (takes_number || forks_before) &&
                                readlink(link, target, sizeof(target) - 1) > 0 &&
                                strstr(target, "[userfaultfd]");
    const bool takes = takes_number && is_userfaultfd;
    const int before = is_userfaultfd ? atomic_exchange(&forks_before, 0) : 0;
    if (before) {
        begin_fork();
        for (const uint64_t until = ibx_now_ns() + (uint64_t)before * 1000; ibx_now_ns() < until;)
            ;
    }
    const int rc = __real_close(fd);
    if (takes) {
        takes_number = false;
        taken = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, fd);
        assert_int_equal(taken, fd);
        fork_in_another_thread();
    }
    return rc;
}

static void check_fork(void)
{
    assert_int_equal(__real_pthread_join(forker, NULL), 0);
    assert_true(WIFEXITED(forks_status));
    assert_int_equal(WEXITSTATUS(forks_status), 10);
    forks = has_forked = false;
    forks_status = -1;
}

/* A thread of the parent that unmaps watched memory waits as long as anybody has the userfaultfd
 * open, if nobody reads its events. */
static void test_a_child_inherits_no_descriptors(void **state)
{
    (void)state;
    need_fork(true);
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    char *memory = map(1);
    assert_int_equal(readers_descriptors(), 0);
    assert_int_equal(pthread_atfork(note_fork, NULL, NULL), 0);
    in_the_middle = fork_waits_in_another_thread;
    get_and_put(cache, memory, PAGE);
    check_fork();
    assert_int_equal(readers_descriptors(), 3);
    in_the_middle = fork_in_another_thread;
    ibx_regcache_destroy(cache);
    check_fork();
    assert_int_equal(readers_descriptors(), 0);
    munmap(memory, PAGE);
}

/* The file that has the number of the userfaultfd by then stays open in a child. */
static void test_a_child_keeps_other_descriptors(void **state)
{
    (void)state;
    need_fork(true);
    struct registrar r = {0};
    struct ibx_regcache *cache = make(&r);
    char *memory = map(1);
    get_and_put(cache, memory, PAGE);
    takes_number = true;
    ibx_regcache_destroy(cache);
    assert_false(takes_number);
    check_fork();
    assert_int_equal(readers_descriptors(), 0);
    __real_close(taken);
    taken = -1;
    munmap(memory, PAGE);
}

/* A fork copies the descriptors first and memory then. The reader ends in between: the child has
 * its userfaultfd and no reader. */
static void test_a_reader_ends_within_a_fork(void **state)
{
    (void)state;
    need_fork(true);
    const size_t length = (size_t)64 << 20; /* to copy its page tables takes a while */
    void *much = mmap(NULL, length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    assert_true(much != MAP_FAILED);
    others_end = true;
    for (int i = 1; i <= 100; i++) {
        struct registrar r = {0};
        struct ibx_regcache *cache = make(&r);
        char *memory = map(1);
        get_and_put(cache, memory, PAGE);
        forks_before = 10 * i;
        ibx_regcache_destroy(cache);
        assert_int_equal(forks_before, 0);
        check_fork();
        munmap(memory, PAGE);
    }
    others_end = false;
    munmap(much, length);
}

static struct ibx_regcache *early_cache;
static char *early_memory;

static void *get_early(void *registrar)
{
    struct registrar *r = registrar;
    const unsigned before = r->entered;
    get_and_put(early_cache, early_memory, PAGE);
    return r->entered == before + 1 ? registrar : NULL;
}

static pthread_t early;
static bool runs_at_forks;

/* A fork waits for a lock of the program, whose holder registers memory. */
static void register_at_fork(void)
{
    void *result;
    if (!runs_at_forks)
        return;
    runs_at_forks = false;
    assert_int_equal(pthread_create(&early, NULL, get_early, &family), 0);
    assert_int_equal(__real_pthread_join(early, &result), 0);
    assert_ptr_equal(result, &family);
}

static void test_a_start_does_not_wait_for_a_fork(void **state)
{
    (void)state;
    need_fork(true);
    early_cache = make(&family);
    early_memory = map(1);
    runs_at_forks = true;
    const pid_t child = fork();
    if (!child)
        _exit(10 + readers_descriptors());
    assert_int_equal(waitpid(child, &forks_status, 0), child);
    assert_int_equal(WEXITSTATUS(forks_status), 10);
    get_and_put(early_cache, early_memory, PAGE);
    ASSERT_HIT(family, get_and_put(early_cache, early_memory, PAGE));
    ibx_regcache_destroy(early_cache);
    munmap(early_memory, PAGE);
}

/* Runs before the constructors of the product, so that the product's handlers run first at a fork.
 */
__attribute__((constructor(101))) static void before_the_products(void)
{
    pthread_atfork(register_at_fork, NULL, NULL);
}

/* Without userfaultfd, here for lack of descriptors, everything works without a cache. */
static void without_userfaultfd(void)
{
    struct rlimit none = {3, 3};
    char *memory = map(4);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    check_uncached(memory, PAGE);
}

static void test_without_userfaultfd(void **state)
{
    (void)state;
    in_child(without_userfaultfd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_userfaultfd),
        cmocka_unit_test(test_reader_ends),
        cmocka_unit_test(test_unmapped_by_another_thread),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_a_signal_waits_for_the_lock),
        cmocka_unit_test(test_forked_child),
        cmocka_unit_test(test_fork_amid_threads),
        cmocka_unit_test(test_a_child_inherits_no_descriptors),
        cmocka_unit_test(test_a_child_keeps_other_descriptors),
        cmocka_unit_test(test_a_reader_ends_within_a_fork),
        cmocka_unit_test(test_a_start_does_not_wait_for_a_fork),
    };
    if (!watch_works()) {
        print_message("SKIPPED: userfaultfd is not available here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
