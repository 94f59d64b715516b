/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A child's QEMU has the cache's files mapped privately, with a userfaultfd for pages that are not
 * in them. For each child a thread answers: it touches the page in this process's mapping, which
 * brings the page into the file, and wakes the child, which tries again. For pages that are zero by
 * the map it puts the kernel's zero page into the child alone. Pages that are in the file cause no
 * such faults: the kernel maps them.
 *
 * A file of the folder (child_record.c) keeps what is known of each, for the next process.
 */
#include "migrate/snapshot/cache.h"

#include "common/log.h"
#include "common/own_user.h"
#include "migrate/journal/journal.h"
#include "migrate/qemu/qemu.h"
#include "userfaultfd/fault.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define ZERO_RUN  16           /* pages: zero pages that are put at a time */
#define ZERO_PART (4ull << 20) /* bytes of them that are put between two looks for faults */
#define MESSAGES  16
#define SIGNAL    SIGUSR1 /* ends a thread's wait */
#define AGAIN_MS  500     /* until faults that could not be answered are tried again */

struct member {
    struct member *next;
    struct snapshot_children *children;
    struct snapshot_child child;
    int uffd, pidfd;
    pthread_t thread;
    _Atomic bool touching; /* its thread touches a page, for which it may have to wait */
    bool started, over;    /* `over`: the thread ends; under the lock */
};

struct snapshot_children {
    struct snapshot_children_config config;
    int folder;             /* the config's */
    int listener, whole_fd; /* `whole_fd`: an eventfd that stays readable */
    _Atomic bool whole;
    pthread_mutex_t lock;
    struct member *members;
    uint64_t so_far, asked;
    _Atomic uint64_t faults, zero_faults;
};

/* ------------------------------------------------------------ its record */

/* That of a member that is no more; another one may be of the same process. Under the lock. */
static void record_remove(const struct snapshot_children *c, pid_t pid)
{
    const struct member *m = c->members;
    while (m && (m->over || m->child.pid != pid))
        m = m->next;
    if (!m)
        ibx_snapshot_child_record_remove(c->config.folder, pid);
    else
        ibx_snapshot_child_record_write(c->config.folder, &m->child, NULL);
}

/* ------------------------------------------------------------ faults */

static bool find_page(const struct member *m, uint64_t address, unsigned *block, uint64_t *offset)
{
    for (unsigned i = 0; i < m->child.count; i++)
        if (address >= m->child.addresses[i] &&
            address - m->child.addresses[i] < m->children->config.folder->sizes[i]) {
            *block = i;
            *offset = (address - m->child.addresses[i]) / IBX_SNAPSHOT_PAGE * IBX_SNAPSHOT_PAGE;
            return true;
        }
    return false;
}

static int wake(const struct member *m, uint64_t start, uint64_t length)
{
    struct uffdio_range range = {start, length};
    return ioctl(m->uffd, UFFDIO_WAKE, &range) ? -errno : 0;
}

/* Places up to ZERO_RUN zero pages from this one on. */
static int put_zero(const struct member *m, unsigned block, uint64_t offset)
{
    const struct ibx_page_map *map = m->children->config.map;
    const uint64_t page = map->blocks[block].first + offset / IBX_SNAPSHOT_PAGE;
    uint64_t end = map->blocks[block].first + map->blocks[block].pages;
    end = end - page > ZERO_RUN ? page + ZERO_RUN : end;
    end = ibx_guest_bits_next(map->bits, page, end, true);
    const uint64_t start = m->child.addresses[block] + offset;
    struct uffdio_zeropage zero = {.range = {start, (end - page) * IBX_SNAPSHOT_PAGE}};
    atomic_fetch_add(&m->children->zero_faults, 1);
    if (!ioctl(m->uffd, UFFDIO_ZEROPAGE, &zero))
        return 0;
    /* Pages that were not placed fault again when they are needed; ENOENT: QEMU has unmapped them.
     */
    return errno == EEXIST || errno == EAGAIN || errno == ENOENT ? wake(m, start, IBX_SNAPSHOT_PAGE)
                                                                 : -errno;
}

/* Where this thread continues if the child ends for which it touches a page. */
static _Thread_local sigjmp_buf *waiting;

static void on_ended(int number)
{
    (void)number;
    if (waiting)
        siglongjmp(*waiting, 1);
}

/* Touches a page, which waits until the engine has placed it: without an end, if no server answers.
 * False: the child has ended meanwhile. */
static bool touch(struct member *m, const uint8_t *page)
{
    sigjmp_buf back;
    if (sigsetjmp(back, 0)) {
        waiting = NULL;
        return false;
    }
    waiting = &back;
    atomic_store(&m->touching, true);
    (void)*(const volatile uint8_t *)page;
    atomic_store(&m->touching, false);
    waiting = NULL;
    return true;
}

/* Interrupts threads that touch a page for a child that has ended. Only a signal reaches a thread
 * in a page fault; one that comes too early is lost, and sent again by the next call. */
static void look_after(struct snapshot_children *c)
{
    pthread_mutex_lock(&c->lock);
    for (struct member *m = c->members; m; m = m->next) {
        struct pollfd ended = {.fd = m->pidfd, .events = POLLIN};
        if (!m->over && atomic_load(&m->touching) && poll(&ended, 1, 0) > 0)
            pthread_kill(m->thread, SIGNAL);
    }
    pthread_mutex_unlock(&c->lock);
}

static int answer(struct member *m, uint64_t address)
{
    const struct snapshot_children_config *config = &m->children->config;
    unsigned block;
    uint64_t offset;
    if (!find_page(m, address, &block, &offset))
        return 0;
    const uint64_t page = config->map->blocks[block].first + offset / IBX_SNAPSHOT_PAGE;
    if (!ibx_page_map_data(config->map, page))
        return put_zero(m, block, offset);
    atomic_fetch_add(&m->children->faults, 1);
    if (!touch(m, (const uint8_t *)config->memory[block] + offset))
        return -ESRCH;
    return wake(m, m->child.addresses[block] + offset, IBX_SNAPSHOT_PAGE);
}

static int answer_all(struct member *m)
{
    struct uffd_msg messages[MESSAGES];
    const ssize_t n = read(m->uffd, messages, sizeof(messages));
    int rc = n < 0 && errno != EAGAIN && errno != EINTR ? -errno : 0;
    for (size_t i = 0; !rc && n > 0 && i < (size_t)n / sizeof(*messages); i++)
        if (messages[i].event == UFFD_EVENT_PAGEFAULT)
            rc = answer(m, messages[i].arg.pagefault.address);
    return rc;
}

/* Places the kernel's zero page in the child for a run of pages that are zero by the map, except
 * for those that it has. Otherwise, pages that it touched later would take room in the files, and
 * there might be none (holes.c). Answers the child's faults meanwhile. */
static int put_zeros(struct member *m, unsigned block, uint64_t offset, uint64_t end)
{
    int rc = 0;
    while (!rc && offset < end) {
        const uint64_t length = end - offset < ZERO_PART ? end - offset : ZERO_PART;
        struct uffdio_zeropage zero = {.range = {m->child.addresses[block] + offset, length}};
        const int code = ioctl(m->uffd, UFFDIO_ZEROPAGE, &zero) ? errno : 0;
        if (zero.zeropage > 0)
            offset += (uint64_t)zero.zeropage;
        else if (code == EEXIST)
            offset += IBX_SNAPSHOT_PAGE;
        else if (code == ENOENT) /* the child has memory of its own there: a hole (map_holes()) */
            offset += length;
        else if (code && code != EAGAIN)
            return -code;
        rc = answer_all(m);
    }
    return rc;
}

static int put_all_zeros(struct member *m)
{
    const struct ibx_page_map *map = m->children->config.map;
    int rc = 0;
    for (unsigned i = 0; !rc && i < m->child.count; i++) {
        const uint64_t first = map->blocks[i].first, end = first + map->blocks[i].pages;
        for (uint64_t from = first, to; !rc && from < end; from = to) {
            from = ibx_guest_bits_next(map->bits, from, end, false);
            to = ibx_guest_bits_next(map->bits, from, end, true);
            rc = put_zeros(m, i, (from - first) * IBX_SNAPSHOT_PAGE,
                           (to - first) * IBX_SNAPSHOT_PAGE);
        }
    }
    return rc;
}

/* Wakes all of the child's threads, so that faults that were read but not answered, by this process
 * or an earlier one, are reported again. */
static void report_again(const struct member *m)
{
    for (unsigned i = 0; i < m->child.count; i++)
        wake(m, m->child.addresses[i], m->children->config.folder->sizes[i]);
}

/* Pauses, then has faults that could not be answered reported again: an unanswered child would wait
 * for ever, and the host may have memory later. `others`: descriptors that end the pause. */
static void try_again(const struct member *m, int why, bool *told, struct pollfd *others,
                      nfds_t count)
{
    if (!*told)
        ibx_log(IBX_LOG_ERROR,
                "QEMU (process %d) waits for its memory: a page fault of it cannot be answered: "
                "%s; it is tried again: free memory on this host, or end that QEMU",
                (int)m->child.pid, strerror(-why));
    *told = true;
    poll(others, count, AGAIN_MS);
    report_again(m);
}

/* Releases a child: every page is in the files, or zero. First all zero pages are placed, since
 * pages that it touched later might find no room in the files; if this process lacks memory for
 * that, it tries again. */
static void let_go(struct member *m, struct pollfd *ended)
{
    bool told = false;
    int rc;
    while ((rc = put_all_zeros(m)) == -ENOMEM && !ended->revents) {
        try_again(m, rc, &told, ended, 1);
        answer_all(m); /* other faults may be answered all the same */
    }
    if (rc && rc != -ESRCH && !ended->revents)
        ibx_log(IBX_LOG_WARN, "QEMU (process %d) has not all its pages of zeros: %s",
                (int)m->child.pid, strerror(-rc));
    for (unsigned i = 0; i < m->child.count; i++) {
        const struct ibx_fault_range range = {.start = m->child.addresses[i],
                                              .length = m->children->config.folder->sizes[i]};
        ibx_fault_unregister(m->uffd, &range, NULL);
    }
}

static void *member_main(void *argument)
{
    struct member *m = argument;
    bool told = false;
    struct pollfd fds[3] = {{.fd = m->uffd, .events = POLLIN},
                            {.fd = m->pidfd, .events = POLLIN},
                            {.fd = m->children->whole_fd, .events = POLLIN}};
    int rc = 0;
    pthread_setname_np(pthread_self(), "ibx-child");
    report_again(m);
    while (rc != -ESRCH && !fds[1].revents && !fds[2].revents) {
        poll(fds, 3, -1);
        rc = fds[0].revents ? answer_all(m) : 0;
        if (rc && rc != -ESRCH)
            try_again(m, rc, &told, fds + 1, 2);
        else if (fds[0].revents)
            told = false;
    }
    if (fds[2].revents)
        let_go(m, fds + 1);
    close(m->uffd);
    close(m->pidfd);
    pthread_mutex_lock(&m->children->lock);
    m->over = true;
    record_remove(m->children, m->child.pid);
    pthread_mutex_unlock(&m->children->lock);
    return NULL;
}

/* ------------------------------------------------------------ members */

static void reap(struct snapshot_children *c, bool all)
{
    struct member *gone = NULL, **link = &c->members;
    pthread_mutex_lock(&c->lock);
    while (*link) {
        struct member *m = *link;
        if (m->over || all) {
            *link = m->next;
            m->next = gone;
            gone = m;
        } else {
            link = &m->next;
        }
    }
    pthread_mutex_unlock(&c->lock);
    while (gone) {
        struct member *m = gone;
        gone = m->next;
        pthread_join(m->thread, NULL);
        free(m);
    }
}

/* Ends the search (true) at a mapping of one of the folder's files, where the child is said to have
 * it. */
static bool is_of_folder(void *context, const struct ibx_proc_mapping *mapping)
{
    const struct member *m = context;
    const struct ibx_snapshot_folder *folder = m->children->config.folder;
    for (unsigned i = 0; i < m->child.count; i++) {
        const uint64_t start = m->child.addresses[i];
        struct stat st;
        if (mapping->start < start + folder->sizes[i] && start < mapping->end &&
            !fstat(folder->fds[i], &st) && mapping->ino == st.st_ino && mapping->dev == st.st_dev)
            return true;
    }
    return false;
}

/* Whoever made the folder may have put a record into it of any process: only one that has the
 * folder's files mapped gets pages of them. A child that has none of them left, since all of its
 * memory is zero (map_holes()), waits for none. */
static int check_memory(struct member *m, struct ibx_error *err)
{
    const pid_t pid = m->child.pid;
    const int rc = ibx_proc_find_mapping(pid, is_of_folder, m);
    if (rc < 0)
        return ibx_error_set(err, rc, "cannot read /proc/%d/maps: %s%s", (int)pid, strerror(-rc),
                             ibx_proc_remedy(rc));
    return rc ? 0
              : ibx_error_set(err, -ESRCH, "QEMU (process %d) has no memory of %s", (int)pid,
                              m->children->config.folder->path);
}

static int take_descriptors(struct member *m, struct ibx_error *err)
{
    const struct snapshot_child *child = &m->child;
    m->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    const int code = m->pidfd < 0 ? errno : 0;
    if (code == ESRCH || ibx_process_ended(child->pid, child->started))
        return ibx_error_set(err, -ESRCH, "QEMU (process %d) has ended", (int)child->pid);
    if (code)
        return ibx_error_set(err, -code, "QEMU (process %d) cannot be watched: %s", (int)child->pid,
                             strerror(code));
    const int rc = check_memory(m, err);
    return rc ? rc : ibx_fault_uffd_take(child->pid, child->remote, &m->uffd, err);
}

/* If there is no thread, the child is refused, and its record is removed unless it was `known`. */
static int start_thread(struct snapshot_children *c, struct member *m, bool known,
                        struct ibx_error *err)
{
    const int rc = -pthread_create(&m->thread, NULL, member_main, m);
    if (rc && !known)
        record_remove(c, m->child.pid);
    if (rc)
        return ibx_error_set_task(err, rc, "no thread for a child");
    m->next = c->members;
    c->members = m;
    c->so_far++;
    return 0;
}

/* Adds a child. `known`: its record exists already, and is not rewritten, since the tmpfs may be
 * full. */
static int add(struct snapshot_children *c, const struct snapshot_child *child, bool known,
               struct ibx_error *err)
{
    struct member *m = calloc(1, sizeof(*m));
    if (!m)
        return ibx_error_set(err, -ENOMEM, "no memory for a child");
    *m = (struct member){.children = c, .child = *child, .uffd = -1, .pidfd = -1};
    int rc = take_descriptors(m, err);
    if (!rc) {
        pthread_mutex_lock(&c->lock);
        rc = known ? 0 : ibx_snapshot_child_record_write(c->config.folder, child, err);
        if (!rc)
            rc = start_thread(c, m, known, err);
        pthread_mutex_unlock(&c->lock);
    }
    if (!rc)
        return 0;
    if (m->uffd >= 0)
        close(m->uffd);
    if (m->pidfd >= 0)
        close(m->pidfd);
    free(m);
    return rc;
}

/* One of a process before this one. */
static bool take_back(void *context, const struct snapshot_child *child)
{
    struct snapshot_children *c = context;
    struct ibx_error err = {0};
    const int rc = add(c, child, true, &err);
    if (rc == -ESRCH)
        ibx_snapshot_child_record_remove(c->config.folder, child->pid);
    else if (rc)
        ibx_log(IBX_LOG_ERROR, "a child, QEMU (process %d), cannot be served: %s", (int)child->pid,
                err.message);
    return false;
}

/* ------------------------------------------------------------ the socket */

static int make_socket(struct snapshot_children *c, struct ibx_error *err)
{
    const struct sockaddr_un address = ibx_snapshot_child_address(c->folder);
    const char *path = c->config.folder->path;
    const int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const bool used =
        probe >= 0 && !connect(probe, (const struct sockaddr *)&address, sizeof(address));
    if (probe >= 0)
        close(probe);
    if (used)
        return ibx_error_set(err, -EBUSY, "another ib-migrate serves %s", path);
    unlinkat(c->folder, SNAPSHOT_SOCKET, 0);
    c->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listener < 0 || bind(c->listener, (const struct sockaddr *)&address, sizeof(address)) ||
        listen(c->listener, 128))
        return ibx_error_set(err, -errno, "no socket for children in %s: %s", path,
                             strerror(errno));
    return 0;
}

static void take_one(struct snapshot_children *c, int fd)
{
    char text[SNAPSHOT_CHILD_TEXT];
    struct snapshot_child child;
    struct ibx_error err = {0};
    ibx_snapshot_child_limit(fd);
    const ssize_t n = ibx_is_own_users_socket(fd) ? recv(fd, text, sizeof(text), 0) : -1;
    if (n <= 0)
        return;
    int rc = ibx_snapshot_child_read(text, (size_t)n, c->config.folder->manifest.ram_count, &child,
                                     &err);
    const bool whole = c->whole;
    if (!rc && !whole)
        rc = add(c, &child, false, &err);
    json_t *json = rc ? json_pack("{s:s}", "error", err.message)
                      : json_pack("{s:b, s:o}", "whole", (int)whole, "zeros",
                                  ibx_snapshot_holes_json(c->config.map,
                                                          c->config.folder->manifest.ram_count));
    char *reply = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (reply)
        send(fd, reply, strlen(reply), MSG_NOSIGNAL);
    free(reply);
    json_decref(json);
}

void ibx_snapshot_children_step(struct snapshot_children *c)
{
    int fd;
    look_after(c);
    reap(c, false);
    while ((fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        c->asked++;
        take_one(c, fd);
        close(fd);
    }
}

int ibx_snapshot_children_fd(const struct snapshot_children *c)
{
    return c->listener;
}

/* ------------------------------------------------------------ all of them */

static int make(const struct snapshot_children_config *config, struct snapshot_children **out,
                struct ibx_error *err)
{
    struct snapshot_children *c = calloc(1, sizeof(*c));
    if (!c)
        return ibx_error_set(err, -ENOMEM, "no memory for children");
    *c =
        (struct snapshot_children){.config = *config, .folder = config->folder->at, .listener = -1};
    pthread_mutex_init(&c->lock, NULL);
    c->whole = config->folder->manifest.complete;
    c->whole_fd = eventfd(c->whole, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = c;
    return c->whole_fd < 0 ? ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno))
                           : 0;
}

int ibx_snapshot_children_open(const struct snapshot_children_config *config,
                               struct snapshot_children **out, struct ibx_error *err)
{
    /* SA_NODEFER: the handler jumps out instead of returning, so the signal must not be blocked. */
    const struct sigaction action = {.sa_handler = on_ended, .sa_flags = SA_NODEFER};
    struct snapshot_children *c = NULL;
    int rc = make(config, &c, err);
    sigaction(SIGNAL, &action, NULL);
    if (!rc)
        rc = make_socket(c, err);
    if (rc) {
        ibx_snapshot_children_close(c);
        return rc;
    }
    ibx_snapshot_child_records(config->folder, take_back, c);
    *out = c;
    return 0;
}

int ibx_snapshot_children_release(const struct snapshot_children_config *config,
                                  struct ibx_error *err)
{
    struct snapshot_children *c = NULL;
    int rc = make(config, &c, err);
    if (!rc)
        ibx_snapshot_child_records(config->folder, take_back, c);
    ibx_snapshot_children_close(c);
    return rc;
}

void ibx_snapshot_children_whole(struct snapshot_children *c)
{
    c->whole = true;
    eventfd_write(c->whole_fd, 1);
}

void ibx_snapshot_children_stats(struct snapshot_children *c, struct snapshot_children_stats *stats)
{
    *stats = (struct snapshot_children_stats){
        .faults = c->faults, .zero_faults = c->zero_faults, .asked = c->asked};
    pthread_mutex_lock(&c->lock);
    stats->so_far = c->so_far;
    for (const struct member *m = c->members; m; m = m->next)
        stats->children += !m->over;
    pthread_mutex_unlock(&c->lock);
}

void ibx_snapshot_children_close(struct snapshot_children *c)
{
    if (!c)
        return;
    reap(c, true);
    if (c->listener >= 0) {
        close(c->listener);
        unlinkat(c->folder, SNAPSHOT_SOCKET, 0);
    }
    if (c->whole_fd >= 0)
        close(c->whole_fd);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
