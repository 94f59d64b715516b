/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory of another process, shared memory filled in place, huge pages, and memory that runs
 * out. */
#include "tests/fixtures/fault_memory.h"
#include "tests/fixtures/patience.h"
#include "userfaultfd/dirty.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
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

#define HUGE  (2u << 20)
#define HUGES 4u

static _Atomic uint64_t arrived[PAGES / 64];

static _Atomic uint64_t placed[PAGES / 64];

static bool is_placed(unsigned page)
{
    return placed[page / 64] >> page % 64 & 1;
}

static bool has_arrived(unsigned page)
{
    return arrived[page / 64] >> page % 64 & 1;
}

/* --------------------------------------------------------- another process */

/* The faulting process. It sends the number of its descriptor, then looks at its memory. */
static void child_main(int to_parent)
{
    int uffd;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* ends the child if a test fails */
    if (ibx_fault_uffd_open(0, &uffd, NULL) || ibx_fault_register(uffd, &rig.range, NULL) ||
        write(to_parent, &uffd, sizeof uffd) != sizeof uffd)
        _exit(2);
    for (uint64_t i = PAGES; i-- > 0;)
        if (!page_is_right(i * 7 % PAGES))
            _exit(1);
    _exit(0);
}

/* Starts the engine for the memory of a child that waits for its first page. */
static pid_t child_start(void)
{
    struct ibx_error err = {0};
    int fds[2], its;
    rig_map(1, -1, PAGES * PAGE, PAGE, false);
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork();
    if (!child)
        child_main(fds[1]);
    close(fds[1]);
    assert_int_equal(read(fds[0], &its, sizeof its), sizeof its);
    close(fds[0]);
    assert_int_equal(ibx_fault_uffd_take(child, 1, &rig.config.uffd, &err), -EINVAL);
    assert_non_null(strstr(err.message, "not a userfaultfd"));
    if (ibx_fault_uffd_take(child, its, &rig.config.uffd, &err))
        fail_msg("%s", err.message);
    rig_start();
    assert_true(REACHES(waiting, 1));
    return child;
}

static void test_child(void **state)
{
    (void)state;
    int status;
    pid_t child = child_start();
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_child_dies(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    int status;
    pid_t child = child_start();
    rig.readers[0]->hold = true;
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_true(reader_asked(rig.readers[0], 1));
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    rig.readers[0]->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -ESRCH);
    assert_non_null(strstr(err.message, "process is gone"));
    for (unsigned i = 0; i < PAGES; i++)
        assert_false(ibx_fault_present(rig.engine, i));
}

/* --------------------------------------------------------- shared memory */

/* Maps `length` bytes of a file, to be filled in place or by copies. */
static void map_file(int file, unsigned workers, size_t length, uint32_t page_size, bool in_place)
{
    const bool huge = page_size == HUGE;
    rig_map(workers, file, length, page_size, in_place);
    if (in_place)
        rig_register(huge ? UFFD_FEATURE_MINOR_HUGETLBFS : UFFD_FEATURE_MINOR_SHMEM);
    else
        rig_register(huge ? UFFD_FEATURE_MISSING_HUGETLBFS : 0);
}

/* Fills in place a file that has its pages, as after fallocate(2), or has none. */
static void test_minor(void **state)
{
    int file = memfd_create("ibx-test", MFD_CLOEXEC);
    struct look look;
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    if (*state)
        assert_int_equal(fallocate(file, 0, 0, PAGES * PAGE), 0);
    map_file(file, 1, PAGES * PAGE, PAGE, true);
    memset((void *)arrived, 0, sizeof(arrived));
    rig.config.arrived = arrived;
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 20, 5), 0);
    memset(rig.data.bytes + 20 * PAGE, 0, 5 * PAGE);
    rig.readers[0]->delay = 4;
    look_start(&look, 300, PAGES, 1);
    assert_true(REACHES(waiting, 1));
    for (unsigned i = 0; i < PAGES; i++)
        assert_false(has_arrived(i));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    look_sees_right(&look);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++) {
        assert_int_equal(rig.data.fetched[i], i < 20 || i >= 25);
        assert_int_equal(has_arrived(i), i < 20 || i >= 25);
    }
    uint8_t *alias = rig.range.alias, *first = rig.readers[0]->log[0].buffer;
    assert_true(first >= alias && first < alias + PAGES * PAGE);
    assert_int_equal(ibx_fault_unregister(rig.config.uffd, &rig.range, NULL), 0);
}

/* Whether the kernel tells which pages were written: Linux 6.7 does. */
static bool has_dirty(void)
{
    struct ibx_error err;
    int uffd;
    if (ibx_fault_uffd_open(IBX_FAULT_DIRTY, &uffd, &err))
        return false;
    close(uffd);
    return true;
}

/* Pages are placed write-protected. Pages that were only read, zero pages included, do not count
 * as written. */
static void test_protected(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint64_t bits[PAGES / 64] = {0};
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int file = memfd_create("ibx-test", MFD_CLOEXEC);
    if (!has_dirty())
        skip();
    assert_true(pagemap >= 0 && !ftruncate(file, PAGES * PAGE));
    rig_map(1, file, PAGES * PAGE, PAGE, false);
    rig.range.protect = true;
    rig_register(IBX_FAULT_DIRTY | IBX_FAULT_EVENT_REMOVE);
    memset((void *)arrived, 0, sizeof(arrived));
    memset((void *)placed, 0, sizeof(placed));
    rig.config.arrived = arrived;
    rig.config.placed = placed;
    rig.config.no_background = true;
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 20, 5), 0);
    memset(rig.data.bytes + 20 * PAGE, 0, 5 * PAGE);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    for (unsigned i = 0; i < PAGES / 2; i++)
        assert_true(page_is_right(i));
    rig.memory[3 * PAGE] = rig.memory[21 * PAGE] = rig.memory[700 * PAGE] = 1;
    /* A page that had come and was discarded is zero now, which is no longer what came. */
    assert_int_equal(madvise(rig.memory + 40 * PAGE, PAGE, MADV_REMOVE), 0);
    assert_true(page_is_zero(40));
    /* A page that was fetched ahead has arrived before it is placed. Missing pages count as
     * written. */
    rig_destroy_engine();
    const struct ibx_dirty_range range = {pagemap, rig.range.start, PAGES * PAGE, PAGE};
    assert_int_equal(ibx_dirty_scan(&range, false, bits, &err), 0);
    for (unsigned i = 0; i < PAGES; i++) {
        const bool written = bits[i / 64] >> i % 64 & 1;
        assert_int_equal(written && has_arrived(i), i == 3 || i == 21 || i == 40 || i == 700);
        assert_true(has_arrived(i) || i >= PAGES / 2);
    }
    assert_false(has_arrived(PAGES - 1));
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(is_placed(i), has_arrived(i));
    /* Memory of which the kernel does not note what is written is no memory without writes. */
    struct ibx_fault_range first = rig.range;
    first.length = PAGE;
    assert_int_equal(ibx_fault_unregister(rig.config.uffd, &first, &err), 0);
    assert_int_equal(ibx_dirty_scan(&range, false, bits, &err), -EPERM);
    assert_int_equal(ibx_dirty_scan(&range, true, bits, &err), -EPERM);
    close(pagemap);
}

enum { IN_PLACE, EXCLUSIVE, PROTECTED, PLAIN };

/* Shared memory that is filled by two workers in one of these ways. */
static void map_as(int way)
{
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(2, file, PAGES * PAGE, PAGE, way == IN_PLACE);
    rig.range.protect = way == PROTECTED;
    rig.config.exclusive = way == EXCLUSIVE;
    rig_register(way == IN_PLACE    ? UFFD_FEATURE_MINOR_SHMEM
                 : way == PROTECTED ? IBX_FAULT_DIRTY
                                    : 0);
}

/* A page is fetched only once, however long its fault waits for the worker that has claimed it. In
 * place, a second arrival would overwrite what the owner of the memory has written since; the
 * source of a borrowed VM may drop a page that it has sent; and in memory that others have, too, a
 * second one could not be told from somebody else's. */
static void fetched_once(int way)
{
    struct look look;
    map_as(way);
    rig.config.fault_workers = 1;
    rig.config.chunk_min = rig.config.chunk_max = 16 * PAGE;
    rig.config.depth = 1;
    struct memory_reader *background = rig.readers[1];
    background->hold_bulk = true;
    rig_serve();
    assert_true(reader_asked(background, 1));
    look_start(&look, background->log[0].page + 5, PAGES, 1);
    assert_true(REACHES(waiting, 1));
    assert_true(page_is_right(300)); /* the other worker has seen both faults */
    background->hold_bulk = false;
    look_sees_right(&look);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(rig.data.fetched[i], 1);
}

static void test_minor_is_fetched_once(void **state)
{
    (void)state;
    fetched_once(IN_PLACE);
}

static void test_exclusive_is_fetched_once(void **state)
{
    (void)state;
    fetched_once(EXCLUSIVE);
}

static void test_protected_is_fetched_once(void **state)
{
    (void)state;
    if (!has_dirty())
        skip();
    fetched_once(PROTECTED);
}

/* Where only the engine makes pages, one that somebody else has written is not taken for one that
 * has come. */
static void test_exclusive_page_of_somebody_else(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    map_as(EXCLUSIVE);
    rig_start();
    assert_int_equal(pwrite(rig.file, "x", 1, 7 * PAGE), 1);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -EEXIST);
    assert_non_null(strstr(err.message, "somebody else has written to it"));
    assert_false(ibx_fault_present(rig.engine, 7));
}

/* Elsewhere it is: the kernel places nothing then, and wakes nobody who waits for the page. */
static void test_page_of_somebody_else_wakes(void **state)
{
    struct look look;
    (void)state;
    map_as(PLAIN);
    rig.config.no_background = true;
    rig_start();
    look_at(&look, 7);
    assert_true(REACHES(faults, 1));
    assert_int_equal(pwrite(rig.file, rig.data.bytes + 7 * PAGE, PAGE, 7 * PAGE), PAGE);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (!atomic_load(&look.looked) && ibx_now_ns() < deadline)
        sched_yield();
    assert_int_equal(atomic_load(&look.looked), 1);
    look_sees_right(&look);
}

/* A file in a new filesystem of this type, or skips the test. */
static int file_in(const char *type, const char *options)
{
    char directory[] = "/tmp/ibx-test-XXXXXX";
    assert_non_null(mkdtemp(directory));
    if (mount("none", directory, type, 0, options)) {
        print_message("SKIPPED: no %s can be mounted here: %s\n", type, strerror(errno));
        rmdir(directory);
        skip();
    }
    char name[64];
    snprintf(name, sizeof name, "%s/ram", directory);
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    umount2(directory, MNT_DETACH);
    rmdir(directory);
    return file;
}

/* The engine stops with a reason, and no page is marked present that is not. */
static void stops_for_room(unsigned pages, unsigned room)
{
    struct ibx_error err = {0};
    rig_serve();
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_true(ibx_fault_reason(rig.engine, &err) < 0);
    assert_non_null(strstr(err.message, "make room"));
    assert_in_range(stats_now().present, 1, room);
    for (unsigned i = 0; i < pages; i++)
        if (ibx_fault_present(rig.engine, i))
            assert_true(page_is_right(i));
}

/* A tmpfs with room for an eighth of the pages. */
static void test_memory_runs_out(void **state)
{
    int file = file_in("tmpfs", "size=512k");
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    map_file(file, 1, PAGES * PAGE, PAGE, *state);
    stops_for_room(PAGES, 128);
}

/* --------------------------------------------------------- huge pages */

/* Returns a file of huge pages, or skips the test. */
static int huge_file(void)
{
    int file = memfd_create("ibx-test", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);
    if (file < 0 || ftruncate(file, HUGES * HUGE) || fallocate(file, 0, 0, HUGES * HUGE)) {
        print_message("SKIPPED: no %u huge pages of 2 MiB here (vm.nr_hugepages)\n", HUGES);
        if (file >= 0)
            close(file);
        skip();
    }
    return file;
}

/* After a touch the guest goes on behind the touched page, and the background too, instead of
 * where it was. */
static void test_huge_goes_on_behind_a_fault(void **state)
{
    (void)state;
    struct look look;
    int file = huge_file();
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGES * HUGE);
    map_file(file, 2, HUGES * HUGE, HUGE, false);
    rig.config.fault_workers = 1;
    rig.config.depth = 1;
    struct memory_reader *background = rig.readers[1];
    background->hold = true;
    rig_serve();
    assert_true(reader_asked(background, 1));
    look_start(&look, 2, 1, 1);
    look_sees_right(&look);
    background->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_int_equal(background->accepted, HUGES - 1);
    assert_int_equal(background->log[1].page, 3);
    for (unsigned i = 0; i < HUGES; i++)
        assert_int_equal(rig.data.fetched[i], 1);
}

/* A page that the background is fetching, while the background makes no progress, is fetched at
 * once. */
static void test_huge_fetched_twice(void **state)
{
    (void)state;
    struct look look;
    int file = huge_file();
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGES * HUGE);
    map_file(file, 2, HUGES * HUGE, HUGE, false);
    rig.config.fault_workers = 1;
    struct memory_reader *background = rig.readers[1];
    background->hold = true;
    rig_serve();
    assert_true(reader_asked(background, 1));
    look_start(&look, background->log[0].page, 1, 1);
    assert_true(reader_asked(rig.readers[0], 1));
    look_sees_right(&look);
    background->hold = false;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < HUGES; i++)
        assert_int_equal(rig.data.fetched[i], 1 + (i == rig.readers[0]->log[0].page));
}

static void test_huge(void **state)
{
    const bool in_place = *state;
    struct look look;
    int file = huge_file();
    if (!in_place)
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGES * HUGE);
    map_file(file, 1, HUGES * HUGE, HUGE, in_place);
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 1, 1), 0);
    memset(rig.data.bytes + HUGE, 0, HUGE);
    look_start(&look, 2, HUGES, 1);
    assert_true(REACHES(waiting, 1));
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    look_sees_right(&look);
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    for (unsigned i = 0; i < HUGES; i++)
        assert_int_equal(rig.data.fetched[i], i != 1);
}

/* Where no huge page is left, the kernel says that the page is there already (EEXIST). The engine
 * must not believe that: the owner of the memory would get zeros. */
static void test_huge_pages_run_out(void **state)
{
    (void)state;
    close(huge_file());
    int file = file_in("hugetlbfs", "pagesize=2M,size=4M");
    assert_int_equal(ftruncate(file, HUGES * HUGE), 0);
    rig.unreserved = true;
    map_file(file, 1, HUGES * HUGE, HUGE, false);
    stops_for_room(HUGES, 2);
}

/* The same for a page of zeros: the engine must not wake its thread without end. It goes on when
 * there is room. So it is also when every page has come. */
static void test_huge_pages_run_out_for_zeros(void **state)
{
    const bool complete = *state;
    struct ibx_error err = {0};
    struct look first, second;
    close(huge_file());
    int file = file_in("hugetlbfs", "pagesize=2M,size=2M");
    assert_int_equal(ftruncate(file, HUGES * HUGE), 0);
    rig.unreserved = true;
    map_file(file, 1, HUGES * HUGE, HUGE, false);
    rig.readers[0]->hold = true; /* the engine keeps on serving */
    rig_start();
    assert_int_equal(ibx_fault_mark_zero(rig.engine, 0, complete ? HUGES : 2), 0);
    assert_int_equal(ibx_fault_serve(rig.engine), 0);
    if (complete)
        assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    look_at(&first, 0);
    look_sees_zero(&first);
    look_at(&second, 1);
    assert_int_equal(engine_settled(), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(rig.engine, &err), -ENOMEM);
    assert_non_null(strstr(err.message, "make room"));
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE);
    assert_int_equal(ibx_fault_resume(rig.engine, rig.as, &err), 0);
    look_sees_zero(&second);
}

/* A checker of pages in minor mode. Meanwhile the owner of the memory empties one of the pages. */
static struct {
    bool in_check;        /* the event comes while the page is checked, or after it is placed */
    bool behind;          /* the page is emptied after its check, without an event */
    bool fails;           /* there is no memory to note the page after that one */
    _Atomic bool emptied; /* page EMPTIED was emptied, and then checked */
    pthread_t thread;
    _Atomic int noted[PAGES]; /* 1: checked, and right; 2: checked, and not what was sent */
} checker;

#define EMPTIED 40u

static void *discard_emptied(void *unused)
{
    assert_int_equal(madvise(rig.memory + EMPTIED * PAGE, PAGE, MADV_DONTNEED), 0);
    return unused;
}

/* This makes no event. */
static void empty(void)
{
    fallocate(rig.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, EMPTIED * PAGE, PAGE);
}

static int note_checked(void *context, unsigned worker, uint64_t page, uint32_t pages,
                        const void *bytes, struct ibx_error *err)
{
    (void)context, (void)worker;
    for (uint64_t i = page; i < page + pages; i++) {
        if (i == EMPTIED && !checker.behind) {
            empty();
            if (checker.in_check)
                pthread_create(&checker.thread, NULL, discard_emptied, NULL);
            while (checker.in_check && !stats_now().removes)
                sched_yield(); /* until another worker has read the event */
        }
        const uint8_t *is = (const uint8_t *)bytes + (i - page) * PAGE;
        checker.noted[i] = memcmp(is, rig.data.bytes + i * PAGE, PAGE) ? 2 : 1;
        if (i == EMPTIED && checker.behind)
            empty();
        checker.emptied |= i == EMPTIED;
        if (i == EMPTIED && checker.fails)
            return ibx_error_set(err, -ENOMEM, "no memory");
    }
    return 0;
}

static void note_removed(void *context, uint64_t page, uint64_t pages)
{
    (void)context;
    for (uint64_t i = page; i < page + pages; i++)
        checker.noted[i] = 0;
}

static void serve_checked(void)
{
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(2, file, PAGES * PAGE, PAGE, true);
    rig_register(UFFD_FEATURE_MINOR_SHMEM | IBX_FAULT_EVENT_REMOVE);
    rig.config.fault_workers = 1; /* it reads events while the other worker checks */
    rig.config.check = note_checked;
    rig.config.removed = note_removed;
    rig_serve();
    assert_int_equal(engine_settled(), checker.fails ? IBX_FAULT_STOPPED : IBX_FAULT_COMPLETE);
    assert_true(checker.emptied);
}

/* If the owner emptied a page before the check's result was noted, the result is taken back. */
static void test_minor_emptied(void **state)
{
    memset(&checker, 0, sizeof(checker));
    checker.in_check = *state;
    serve_checked();
    if (checker.in_check)
        pthread_join(checker.thread, NULL);
    else
        discard_emptied(NULL);
    assert_true(REACHES(removes, 1));
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(checker.noted[i], i != EMPTIED);
}

/* A page that is gone when it is to be placed was given back, although no event has said so yet. */
static void test_minor_emptied_behind_check(void **state)
{
    static const uint8_t zeros[PAGE];
    (void)state;
    memset(&checker, 0, sizeof(checker));
    checker.behind = true;
    serve_checked();
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(checker.noted[i], i != EMPTIED);
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REMOVE], 1);
    assert_memory_equal(rig.memory + EMPTIED * PAGE, zeros, PAGE);
}

/* The engine stops between the check and the placing: what was noted of the page is taken back,
 * too. */
static void test_minor_discarded_and_checked(void **state)
{
    (void)state;
    memset(&checker, 0, sizeof(checker));
    checker.in_check = checker.fails = true;
    serve_checked();
    pthread_join(checker.thread, NULL);
    assert_int_equal(checker.noted[EMPTIED], 0);
}

/* A page that was discarded while it was filled in place is zero and takes no memory, even if its
 * request then fails. */
static void test_minor_discarded(void **state)
{
    unsigned char there[PAGES];
    const int file = memfd_create("ibx-test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(file, PAGES * PAGE), 0);
    rig_map(1, file, PAGES * PAGE, PAGE, true);
    rig_register(UFFD_FEATURE_MINOR_SHMEM | IBX_FAULT_EVENT_REMOVE);
    rig.readers[0]->hold = true;
    rig.config.chunk_min = 16 * PAGE;
    rig_serve();
    assert_true(reader_asked(rig.readers[0], 2)); /* at least 2 x 16 pages are in flight */
    assert_int_equal(madvise(rig.memory + 8 * PAGE, 16 * PAGE, MADV_REMOVE), 0);
    if (*state) { /* all but the last bytes have come by then */
        memcpy((uint8_t *)rig.range.alias + 8 * PAGE, rig.data.bytes + 8 * PAGE, 16 * PAGE - 1);
        rig.readers[0]->again_every = 1;
    }
    rig.readers[0]->hold = false;
    while (rig.readers[0]->again_every && stats_now().retries < 2)
        sched_yield();
    rig.readers[0]->again_every = 0;
    assert_int_equal(engine_settled(), IBX_FAULT_COMPLETE);
    assert_int_equal(mincore(rig.range.alias, PAGES * PAGE, there), 0);
    for (unsigned i = 0; i < PAGES; i++) {
        const bool discarded = i >= 8 && i < 24;
        assert_int_equal(there[i] & 1, !discarded);
        assert_true(discarded ? page_is_zero(i) : page_is_right(i));
    }
    assert_int_equal(stats_now().by_cause[IBX_FAULT_BY_REMOVE], 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_child, rig_end),
        cmocka_unit_test_teardown(test_child_dies, rig_end),
        {"test_minor", test_minor, NULL, rig_end, &rig},
        {"test_minor_with_holes", test_minor, NULL, rig_end, NULL},
        cmocka_unit_test_teardown(test_protected, rig_end),
        cmocka_unit_test_teardown(test_minor_is_fetched_once, rig_end),
        cmocka_unit_test_teardown(test_exclusive_is_fetched_once, rig_end),
        cmocka_unit_test_teardown(test_protected_is_fetched_once, rig_end),
        cmocka_unit_test_teardown(test_exclusive_page_of_somebody_else, rig_end),
        cmocka_unit_test_teardown(test_page_of_somebody_else_wakes, rig_end),
        {"test_minor_emptied", test_minor_emptied, NULL, rig_end, NULL},
        {"test_minor_emptied_in_check", test_minor_emptied, NULL, rig_end, &rig},
        cmocka_unit_test_teardown(test_minor_emptied_behind_check, rig_end),
        cmocka_unit_test_teardown(test_minor_discarded_and_checked, rig_end),
        {"test_minor_discarded", test_minor_discarded, NULL, rig_end, NULL},
        {"test_minor_discarded_and_given_back", test_minor_discarded, NULL, rig_end, &rig},
        {"test_memory_runs_out", test_memory_runs_out, NULL, rig_end, NULL},
        {"test_full_in_place", test_memory_runs_out, NULL, rig_end, &rig},
        {"test_huge", test_huge, NULL, rig_end, NULL},
        {"test_huge_in_place", test_huge, NULL, rig_end, &rig},
        cmocka_unit_test_teardown(test_huge_goes_on_behind_a_fault, rig_end),
        cmocka_unit_test_teardown(test_huge_fetched_twice, rig_end),
        cmocka_unit_test_teardown(test_huge_pages_run_out, rig_end),
        {"test_huge_pages_run_out_for_zeros", test_huge_pages_run_out_for_zeros, NULL, rig_end,
         NULL},
        {"test_huge_pages_run_out_when_complete", test_huge_pages_run_out_for_zeros, NULL, rig_end,
         &rig},
    };
    int skipped = rig_skipped(0);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
