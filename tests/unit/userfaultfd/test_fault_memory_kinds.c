/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory of another process, shared memory in place, huge pages, and memory that runs out. */
#include "tests/scenes/fault_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define PAGES 512u
#define HUGE  (2u << 20)
#define HUGES 4u

static struct memory_reader *reader;
static struct memory_data data;
static _Atomic uint64_t arrived[PAGES / 64];

static bool has_arrived(unsigned page)
{
    return arrived[page / 64] >> page % 64 & 1;
}

static struct ibx_fault *start(int uffd, const struct ibx_fault_range *range)
{
    struct ibx_error err = {0};
    struct ibx_fault *engine = NULL;
    reader = memory_reader_make(&data);
    struct ibx_fault_reader as = memory_reader_as(reader);
    struct ibx_fault_config config = {
        .uffd = uffd, .ranges = range, .range_count = 1, .readers = &as, .worker_count = 1};
    memset((void *)arrived, 0, sizeof(arrived));
    config.arrived = arrived;
    if (ibx_fault_create(&config, &engine, &err))
        fail_msg("%s", err.message);
    return engine;
}

static void end(struct ibx_fault *engine, int uffd)
{
    ibx_fault_destroy(engine);
    close(uffd);
    free(reader);
    memory_data_free(&data);
}

static void opened(uint64_t features, const struct ibx_fault_range *range, int *uffd)
{
    struct ibx_error err = {0};
    if (ibx_fault_uffd_open(features, uffd, &err) || ibx_fault_register(*uffd, range, &err))
        fail_msg("%s", err.message);
}

/* --------------------------------------------------------- another process */

/* The faulting process: says which descriptor it made, then looks at its memory. */
static void child_main(uint8_t *memory, int to_parent)
{
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE};
    int uffd;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* when a test fails */
    if (ibx_fault_uffd_open(0, &uffd, NULL) || ibx_fault_register(uffd, &range, NULL) ||
        write(to_parent, &uffd, sizeof uffd) != sizeof uffd)
        _exit(2);
    for (uint64_t i = PAGES; i-- > 0;)
        if (!page_is_right(&data, memory, i * 7 % PAGES))
            _exit(1);
    _exit(0);
}

static pid_t child_start(uint8_t **memory, int *uffd)
{
    struct ibx_error err = {0};
    int fds[2], its;
    memory_data_make(&data, PAGES * PAGE, PAGE);
    *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (!child)
        child_main(*memory, fds[1]);
    close(fds[1]);
    assert_int_equal(read(fds[0], &its, sizeof its), sizeof its);
    close(fds[0]);
    assert_int_equal(ibx_fault_uffd_take(child, 1, uffd, &err), -EINVAL);
    assert_non_null(strstr(err.message, "not a userfaultfd"));
    if (ibx_fault_uffd_take(child, its, uffd, &err))
        fail_msg("%s", err.message);
    return child;
}

static void test_child(void **state)
{
    (void)state;
    uint8_t *memory;
    int uffd, status;
    pid_t child = child_start(&memory, &uffd);
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE};
    struct ibx_fault *engine = start(uffd, &range);
    assert_true(REACHES(engine, waiting, 1));
    assert_int_equal(ibx_fault_serve(engine), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    end(engine, uffd);
    munmap(memory, PAGES * PAGE);
}

static void test_child_dies(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint8_t *memory;
    int uffd, status;
    pid_t child = child_start(&memory, &uffd);
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE};
    struct ibx_fault *engine = start(uffd, &range);
    reader->hold = true;
    assert_int_equal(ibx_fault_serve(engine), 0);
    assert_true(reader_asked(reader, 1));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    reader->hold = false;
    assert_int_equal(engine_settled(engine), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(engine, &err), -ESRCH);
    assert_non_null(strstr(err.message, "process is gone"));
    for (unsigned i = 0; i < PAGES; i++)
        assert_false(ibx_fault_present(engine, i));
    end(engine, uffd);
    munmap(memory, PAGES * PAGE);
}

/* --------------------------------------------------------- shared memory */

struct look {
    const uint8_t *memory;
    unsigned page, pages;
    bool right;
};

static void *look_at(void *arg)
{
    struct look *l = arg;
    l->right = true;
    for (unsigned i = 0; i < l->pages; i++)
        l->right &= page_is_right(&data, l->memory, (l->page + i) % l->pages);
    return NULL;
}

/* In place, into a file that has its pages (as after fallocate) or has none. */
static void minor(bool allocated)
{
    struct ibx_error err = {0};
    int uffd, file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    if (allocated)
        assert_int_equal(fallocate(file, 0, 0, PAGES * PAGE), 0);
    memory_data_make(&data, PAGES * PAGE, PAGE);
    uint8_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *alias = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE, .alias = alias};
    opened(UFFD_FEATURE_MINOR_SHMEM, &range, &uffd);
    struct ibx_fault *engine = start(uffd, &range);
    assert_int_equal(ibx_fault_mark_zero(engine, 20, 5), 0);
    memset(data.bytes + 20 * PAGE, 0, 5 * PAGE);
    reader->delay = 4;
    struct look look = {.memory = memory, .page = 300, .pages = PAGES};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_at, &look), 0);
    assert_true(REACHES(engine, waiting, 1));
    for (unsigned i = 0; i < PAGES; i++)
        assert_false(has_arrived(i));
    assert_int_equal(ibx_fault_serve(engine), 0);
    pthread_join(thread, NULL);
    assert_true(look.right);
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(data.fetched[i], i < 20 || i >= 25);
        assert_int_equal(has_arrived(i), i < 20 || i >= 25);
    }
    assert_true((uint8_t *)reader->log[0].buffer >= (uint8_t *)alias &&
                (uint8_t *)reader->log[0].buffer < (uint8_t *)alias + PAGES * PAGE);
    assert_int_equal(ibx_fault_unregister(uffd, &range, &err), 0);
    end(engine, uffd);
    munmap(memory, PAGES * PAGE);
    munmap(alias, PAGES * PAGE);
    close(file);
}

static void test_minor(void **state)
{
    (void)state;
    minor(true);
}

static void test_minor_with_holes(void **state)
{
    (void)state;
    minor(false);
}

/* In place a page is fetched once, however long its fault waits for the worker that has claimed it:
 * what came later would overwrite what the owner of the memory has written since. */
static void test_minor_is_fetched_once(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct ibx_fault *engine = NULL;
    int uffd, file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    memory_data_make(&data, PAGES * PAGE, PAGE);
    uint8_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *alias = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = PAGES * PAGE, .page_size = PAGE, .alias = alias};
    opened(UFFD_FEATURE_MINOR_SHMEM, &range, &uffd);
    struct memory_reader *urgent = memory_reader_make(&data);
    reader = memory_reader_make(&data);
    struct ibx_fault_reader as[] = {memory_reader_as(urgent), memory_reader_as(reader)};
    struct ibx_fault_config config = {.uffd = uffd,
                                      .ranges = &range,
                                      .range_count = 1,
                                      .readers = as,
                                      .worker_count = 2,
                                      .fault_workers = 1,
                                      .chunk_min = 16 * PAGE,
                                      .chunk_max = 16 * PAGE,
                                      .depth = 1};
    reader->hold_bulk = true;
    if (ibx_fault_create(&config, &engine, &err) || ibx_fault_serve(engine))
        fail_msg("%s", err.message);
    assert_true(reader_asked(reader, 1));
    struct look look = {
        .memory = memory, .page = (unsigned)reader->log[0].page + 5, .pages = PAGES};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_at, &look), 0);
    assert_true(REACHES(engine, waiting, 1));
    assert_true(page_is_right(&data, memory, 300)); /* the other worker has seen both faults */
    reader->hold_bulk = false;
    pthread_join(thread, NULL);
    assert_true(look.right);
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(data.fetched[i], 1);
    end(engine, uffd);
    free(urgent);
    munmap(memory, PAGES * PAGE);
    munmap(alias, PAGES * PAGE);
    close(file);
}

/* A tmpfs that has room for a quarter: said, stopped, nothing marked present that is not. */
static void full(bool in_place)
{
    struct ibx_error err = {0};
    char directory[] = "/tmp/ibx-test-XXXXXX";
    int uffd;
    assert_non_null(mkdtemp(directory));
    if (mount("none", directory, "tmpfs", 0, "size=512k")) {
        print_message("SKIPPED: no tmpfs can be mounted here: %s\n", strerror(errno));
        rmdir(directory);
        skip();
    }
    char name[64];
    snprintf(name, sizeof name, "%s/ram", directory);
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    umount2(directory, MNT_DETACH);
    rmdir(directory);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    memory_data_make(&data, PAGES * PAGE, PAGE);
    uint8_t *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *alias = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct ibx_fault_range range = {.start = (uintptr_t)memory,
                                    .length = PAGES * PAGE,
                                    .page_size = PAGE,
                                    .alias = in_place ? alias : NULL};
    opened(in_place ? UFFD_FEATURE_MINOR_SHMEM : 0, &range, &uffd);
    struct ibx_fault *engine = start(uffd, &range);
    assert_int_equal(ibx_fault_serve(engine), 0);
    assert_int_equal(engine_settled(engine), IBX_FAULT_STOPPED);
    assert_true(ibx_fault_reason(engine, &err) < 0);
    assert_non_null(strstr(err.message, "make room"));
    struct ibx_fault_stats s;
    ibx_fault_stats(engine, &s);
    assert_in_range(s.present, 1, 128);
    for (unsigned i = 0; i < PAGES; i++)
        if (ibx_fault_present(engine, i))
            assert_true(page_is_right(&data, memory, i));
    end(engine, uffd);
    munmap(memory, PAGES * PAGE);
    munmap(alias, PAGES * PAGE);
    close(file);
}

static void test_full(void **state)
{
    (void)state;
    full(false);
}

static void test_full_in_place(void **state)
{
    (void)state;
    full(true);
}

/* --------------------------------------------------------- huge pages */

static void huge(bool in_place)
{
    int uffd, file = memfd_create("ibx-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    if (file < 0 || ftruncate(file, HUGES * HUGE) || fallocate(file, 0, 0, HUGES * HUGE)) {
        print_message("SKIPPED: no %u huge pages of 2 MiB here (vm.nr_hugepages)\n", HUGES);
        if (file >= 0)
            close(file);
        skip();
    }
    if (!in_place)
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGES * HUGE);
    memory_data_make(&data, HUGES * HUGE, HUGE);
    uint8_t *memory = mmap(NULL, HUGES * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    void *alias = mmap(NULL, HUGES * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct ibx_fault_range range = {.start = (uintptr_t)memory,
                                    .length = HUGES * HUGE,
                                    .page_size = HUGE,
                                    .alias = in_place ? alias : NULL};
    opened(in_place ? UFFD_FEATURE_MINOR_HUGETLBFS : UFFD_FEATURE_MISSING_HUGETLBFS, &range, &uffd);
    struct ibx_fault *engine = start(uffd, &range);
    assert_int_equal(ibx_fault_mark_zero(engine, 1, 1), 0);
    memset(data.bytes + HUGE, 0, HUGE);
    struct look look = {.memory = memory, .page = 2, .pages = HUGES};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_at, &look), 0);
    assert_true(REACHES(engine, waiting, 1));
    assert_int_equal(ibx_fault_serve(engine), 0);
    pthread_join(thread, NULL);
    assert_true(look.right);
    assert_int_equal(engine_settled(engine), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < HUGES; i++)
        assert_int_equal(data.fetched[i], i != 1);
    end(engine, uffd);
    munmap(memory, HUGES * HUGE);
    munmap(alias, HUGES * HUGE);
    close(file);
}

static void test_huge(void **state)
{
    (void)state;
    huge(false);
}

static void test_huge_in_place(void **state)
{
    (void)state;
    huge(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_child),
        cmocka_unit_test(test_child_dies),
        cmocka_unit_test(test_minor),
        cmocka_unit_test(test_minor_with_holes),
        cmocka_unit_test(test_minor_is_fetched_once),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_full_in_place),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_huge_in_place),
    };
    struct ibx_error err;
    int uffd;
    if (ibx_fault_uffd_open(0, &uffd, &err)) {
        print_message("SKIPPED: %s\n", err.message);
        return 77;
    }
    close(uffd);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
