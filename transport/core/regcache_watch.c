/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/regcache_watch.h"

#include "common/descriptor.h"
#include "common/fork_lock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tries of a lookup to let a change in progress finish. */
#define SETTLE_TRIES 64
#define READERS_MAX  16u /* at a time: one, and those that end */

/* A forked child closes the descriptors, at whatever moment of a reader's life it was forked: -1
 * are those that are not open. */
struct reader {
    pthread_t thread;
    _Atomic(struct reader *) next;
    _Atomic int fd;      /* the userfaultfd */
    _Atomic int stop_fd; /* readable when it is to end */
    _Atomic int pagemap_fd;
};

/* One for the process. */
static struct {
    pthread_mutex_t lock;
    sigset_t signals;                 /* the mask of the lock's holder before it blocked all */
    struct reader *reader;            /* NULL: nothing is watched */
    bool refused;                     /* userfaultfd is not available */
    bool told;                        /* the log says that userfaultfd is not available */
    _Atomic(struct reader *) readers; /* that one, if it starts already, and those that end */
    unsigned users, generation, deaths;
    struct ibx_watch_range *ranges; /* added and not removed; some have died */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A reader's descriptors are opened under this lock, without which no process forks: a child would
 * not know of one that is open and not noted yet. Nobody waits for the lock but a fork, which may
 * have locks of the program. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
IBX_FORKS_WAIT_FOR(opening);

/* The userfaultfds of readers, and 1 more; 0: none. A fork copies the descriptors first and memory
 * then: if the reader ends in between, the child has the userfaultfd, and in its memory no reader.
 * So each thread that forks looks before which there are. */
static _Atomic int userfaultfds[READERS_MAX];
static _Thread_local int before_this_fork[READERS_MAX];

static bool note_userfaultfd(int from, int to)
{
    for (unsigned i = 0; i < READERS_MAX; i++) {
        int expected = from;
        if (atomic_compare_exchange_strong(&userfaultfds[i], &expected, to))
            return true;
    }
    return false;
}

static void forks(void)
{
    for (unsigned i = 0; i < READERS_MAX; i++)
        before_this_fork[i] = userfaultfds[i];
}

/* A signal handler that unmaps watched memory waits for the reader, which may wait for the lock. So
 * it must not run in the thread that holds the lock. */
void ibx_watch_lock(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_mutex_lock(&watch.lock);
    watch.signals = before;
}

void ibx_watch_unlock(void)
{
    sigset_t before = watch.signals;
    pthread_mutex_unlock(&watch.lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

unsigned ibx_watch_generation(void)
{
    return watch.generation;
}

unsigned ibx_watch_deaths(void)
{
    return watch.deaths;
}

/* --------------------------------------------------------------------- events */

static void kill_ranges(uintptr_t start, uintptr_t end)
{
    for (struct ibx_watch_range *range = watch.ranges; range; range = range->next) {
        if (range->alive && range->start < end && start < range->end) {
            range->alive = false;
            watch.deaths++;
        }
    }
}

static void read_events(int fd)
{
    struct uffd_msg event;
    while (read(fd, &event, sizeof(event)) == (ssize_t)sizeof(event)) {
        if (event.event == UFFD_EVENT_REMAP)
            kill_ranges(event.arg.remap.from, event.arg.remap.from + event.arg.remap.len);
        else if (event.event == UFFD_EVENT_UNMAP || event.event == UFFD_EVENT_REMOVE)
            kill_ranges(event.arg.remove.start, event.arg.remove.end);
    }
}

static void *reader_run(void *argument)
{
    struct reader *reader = argument;
    struct pollfd wait[2] = {{.fd = reader->fd, .events = POLLIN},
                             {.fd = reader->stop_fd, .events = POLLIN}};
    uint64_t stopped;
    while (read(reader->stop_fd, &stopped, sizeof(stopped)) < 0) {
        /* Even if it fails, events are read and the end is noticed. */
        ibx_thread_await(wait, 2, -1);
        ibx_watch_lock();
        read_events(reader->fd);
        ibx_watch_unlock();
    }
    /* Closed here, not after the join: a thread that changes watched memory would wait for a reader
     * that is gone. */
    const int fd = reader->fd;
    close(fd);
    reader->fd = -1;
    note_userfaultfd(fd + 1, 0);
    return NULL;
}

/* Whether some thread is between changing the address space and the end of its event. The event may
 * not even be readable yet while another thread already maps new memory at the same address. But
 * the kernel counts a change before it makes it, and until its end refuses write protection with
 * EAGAIN. An empty range has no other effect (EINVAL). */
static bool changing(void)
{
    struct uffdio_writeprotect nothing = {.mode = 0};
    return ioctl(watch.reader->fd, UFFDIO_WRITEPROTECT, &nothing) && errno == EAGAIN;
}

bool ibx_watch_settle(void)
{
    for (int i = 0; watch.reader && i < SETTLE_TRIES; i++) {
        read_events(watch.reader->fd);
        if (!changing())
            return true;
        sched_yield();
    }
    return false;
}

/* ---------------------------------------------------------- starting, stopping */

static int userfaultfd_open(void)
{
    /* No faults are handled, so the unprivileged kind is enough (Linux 5.11). */
    int flags = O_CLOEXEC | O_NONBLOCK;
    int fd = (int)syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY);
    if (fd < 0 && errno == EINVAL)
        fd = (int)syscall(SYS_userfaultfd, flags);
    if (fd < 0)
        return -errno;
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP |
                                         UFFD_FEATURE_EVENT_REMOVE |
                                         UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    if (!ioctl(fd, UFFDIO_API, &api))
        return ibx_descriptor_apart(fd);
    int rc = -errno;
    close(fd);
    return rc;
}

static void close_descriptors(struct reader *reader)
{
    _Atomic int *const fds[] = {&reader->fd, &reader->stop_fd, &reader->pagemap_fd};
    for (unsigned i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        const int fd = atomic_exchange(fds[i], -1);
        if (fd >= 0)
            close(fd);
        if (fd >= 0 && fds[i] == &reader->fd)
            note_userfaultfd(fd + 1, 0);
    }
}

/* A reader that ends has closed its userfaultfd before it notes that: by then the number may be
 * another file's. It takes no lock for that, since a fork may wait for whoever waits for the
 * reader. */
static bool is_userfaultfd(int fd)
{
    char link[32], target[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, target, sizeof(target));
    return n > 0 && memmem(target, (size_t)n, "[userfaultfd]", 13);
}

/* A child has no reader, and the userfaultfd is not for its memory: it starts again. As long as it
 * had that open, threads of the parent would wait for a reader that has ended. Even the lock is
 * new, because any thread may have held it. */
static void forked(void)
{
    for (unsigned i = 0; i < READERS_MAX; i++)
        if (before_this_fork[i] && is_userfaultfd(before_this_fork[i] - 1))
            close(before_this_fork[i] - 1);
    for (struct reader *reader = watch.readers; reader; reader = reader->next) {
        if (!is_userfaultfd(reader->fd))
            reader->fd = -1;
        close_descriptors(reader);
    }
    for (unsigned i = 0; i < READERS_MAX; i++)
        userfaultfds[i] = 0;
    watch.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    watch.reader = NULL;
    watch.readers = NULL;
    watch.refused = false;
    watch.users = 0;
    watch.generation++;
    watch.ranges = NULL;
}

static void fork_handler(void)
{
    pthread_atfork(forks, NULL, forked);
}

static int open_descriptors(struct reader *reader)
{
    const int fd = userfaultfd_open();
    if (fd < 0)
        return fd;
    reader->fd = fd;
    if (!note_userfaultfd(0, fd + 1))
        return -EAGAIN;
    reader->stop_fd = ibx_descriptor_apart(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (reader->stop_fd < 0)
        return -errno;
    reader->pagemap_fd =
        ibx_descriptor_apart(open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC));
    return reader->pagemap_fd < 0 ? -errno : 0;
}

/* Takes the reader off the list. The caller has the lock. */
static void forget(const struct reader *reader)
{
    _Atomic(struct reader *) *at = &watch.readers;
    while (*at != reader)
        at = &(*at)->next;
    *at = reader->next;
}

/* -EBUSY: this process is forking. */
static int reader_start(struct reader **out)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    if (!reader)
        return -ENOMEM;
    reader->fd = reader->stop_fd = reader->pagemap_fd = -1;
    reader->next = atomic_load(&watch.readers);
    watch.readers = reader;
    int rc = -pthread_mutex_trylock(&opening);
    if (!rc) {
        rc = open_descriptors(reader);
        pthread_mutex_unlock(&opening);
    }
    /* The application's signal handlers must not run in the reader, because they might free memory.
     * It inherits the mask of the lock's holder, which has blocked all signals. */
    if (!rc)
        rc = -pthread_create(&reader->thread, NULL, reader_run, reader);
    if (!rc) {
        *out = reader;
        return 0;
    }
    close_descriptors(reader);
    forget(reader);
    free(reader);
    return rc;
}

/* Whether the error is a shortage, which may pass. */
static bool is_lack(int rc)
{
    return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -EAGAIN;
}

/* It may allocate under the lock: nothing is watched yet, so no thread waits for the reader. */
static bool start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (watch.reader || watch.refused)
        return watch.reader;
    pthread_once(&once, fork_handler);
    const int rc = reader_start(&watch.reader);
    if (!rc || rc == -EBUSY)
        return !rc;
    watch.refused = !is_lack(rc);
    if (!watch.told)
        ibx_log(IBX_LOG_INFO,
                "memory is registered anew for each call: userfaultfd is not available here (%s)",
                strerror(-rc));
    watch.told = true;
    return false;
}

void ibx_watch_retain(void)
{
    watch.users++;
}

void ibx_watch_release_unlock(void)
{
    struct reader *reader = --watch.users ? NULL : watch.reader;
    if (reader)
        watch.reader = NULL;
    ibx_watch_unlock();
    if (!reader)
        return;
    uint64_t one = 1;
    if (write(reader->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one))
        pthread_join(reader->thread, NULL);
    close_descriptors(reader);
    ibx_watch_lock();
    forget(reader);
    ibx_watch_unlock();
    free(reader);
}

/* --------------------------------------------------------------------- ranges */

bool ibx_watch_add(struct ibx_watch_range *range)
{
    struct uffdio_register request = {
        .range = {.start = range->start, .len = range->end - range->start},
        .mode = UFFDIO_REGISTER_MODE_WP};
    if (!start() || !ibx_watch_settle() || ioctl(watch.reader->fd, UFFDIO_REGISTER, &request))
        return false;
    range->alive = true;
    range->prev = NULL;
    range->next = watch.ranges;
    if (range->next)
        range->next->prev = range;
    watch.ranges = range;
    return true;
}

/* If another range overlaps, all of this one stays registered: that costs events only. Dead memory
 * is left alone, because others may have mapped there since. */
static void unregister(const struct ibx_watch_range *range)
{
    for (struct ibx_watch_range *other = watch.ranges; other; other = other->next) {
        if (other->alive && other->start < range->end && range->start < other->end)
            return;
    }
    struct uffdio_range request = {.start = range->start, .len = range->end - range->start};
    ioctl(watch.reader->fd, UFFDIO_UNREGISTER, &request);
}

void ibx_watch_remove(struct ibx_watch_range *range)
{
    if (watch.reader)
        read_events(watch.reader->fd);
    *(range->prev ? &range->prev->next : &watch.ranges) = range->next;
    if (range->next)
        range->next->prev = range->prev;
    if (range->alive && watch.reader)
        unregister(range);
    range->alive = false;
}

bool ibx_watch_anonymous(uintptr_t start_at, uintptr_t end)
{
    const uint64_t present = 3ull << 62, shared_or_file = 1ull << 61; /* admin-guide/mm/pagemap */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const int pagemap = watch.reader->pagemap_fd;
    uint64_t map[256];
    for (uintptr_t at = start_at; at < end; at += sizeof(map) / sizeof(map[0]) * page) {
        size_t count = (end - at) / page;
        if (count > sizeof(map) / sizeof(map[0]))
            count = sizeof(map) / sizeof(map[0]);
        if (pread(pagemap, map, count * 8, (off_t)(at / page * 8)) != (ssize_t)count * 8)
            return false;
        for (size_t i = 0; i < count; i++) {
            if (!(map[i] & present) || (map[i] & shared_or_file))
                return false;
        }
    }
    return true;
}
