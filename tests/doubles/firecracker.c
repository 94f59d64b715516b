/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Stands for Firecracker: memory of its own, in regions that a userfaultfd watches as Firecracker's
 * does (private, missing pages, removals), and its message to the handler. It never ran beside a
 * real one. Its user drives it by lines on standard input, and each gets one line of JSON:
 *
 *   send FORM            connects and sends the message: old, kib, both, new, documented, pieces
 *   raw TEXT             connects and sends TEXT with the userfaultfd
 *   touch PAGE COUNT     reads pages, and compares them
 *   write PAGE COUNT     writes to pages
 *   remove PAGE COUNT    MADV_DONTNEED, as its balloon does
 *   reply PAGES SEED     what a guest does until its first reply: touches scattered pages
 *   check                compares all pages
 *   storm MS THREADS SEED touches, writes and removes, and compares each time
 *   close                the socket, and goes on
 *   gone                 whether the handler has closed it
 *   quit
 *
 * A page is as in the snapshot's file, or zero since it was removed, and may have been written to.
 */
#include "common/clock.h"
#include "tests/fixtures/patience.h"
#include "userfaultfd/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BLOCK       32u /* pages that one thread of a storm owns */
#define THREADS     16u
#define STORM_LEAST 1000u /* looks and removals, however slow the machine is */
#define REGIONS     2u

enum content { AS_SAVED, ZERO };

static struct {
    const char *socket;
    const uint8_t *saved;  /* the file */
    uint8_t *content;      /* a page: enum content */
    uint64_t *stamps;      /* a page: what was written to its first bytes, or 0 */
    uint64_t pages, first; /* `first`: in the first region */
    size_t page_size;
    uint8_t *regions[REGIONS];
    int uffd, connection;
    uint64_t sent_ns;
    _Atomic uint64_t wrong, checked, removed;
} vm = {.connection = -1};

static void die(const char *what)
{
    fprintf(stderr, "firecracker: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint8_t *page_at(uint64_t page)
{
    return page < vm.first ? vm.regions[0] + page * vm.page_size
                           : vm.regions[1] + (page - vm.first) * vm.page_size;
}

/* ------------------------------------------------------------ memory */

static void region_make(unsigned i, uint64_t pages, bool huge, const char *in)
{
    const size_t bytes = pages * vm.page_size;
    const struct ibx_fault_range range = {.length = bytes, .page_size = (uint32_t)vm.page_size};
    struct ibx_fault_range at = range;
    struct ibx_error err = {0};
    const int fd = in ? open(in, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    const int kind = in ? 0 : MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0);
    vm.regions[i] =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | kind, fd, 0);
    if (vm.regions[i] == MAP_FAILED)
        die("mmap");
    if (fd >= 0)
        close(fd);
    madvise(vm.regions[i], bytes, MADV_NOHUGEPAGE);
    at.start = (uintptr_t)vm.regions[i];
    if (ibx_fault_register(vm.uffd, &at, &err)) {
        fprintf(stderr, "firecracker: %s\n", err.message);
        exit(1);
    }
}

/* `in`: NULL, or a file of huge pages, whose filesystem may have few of them. */
static void memory_make(const char *path, bool huge, const char *in)
{
    struct stat st;
    struct ibx_error err = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        die(path);
    vm.page_size = huge ? 2u << 20 : 4096;
    vm.pages = (uint64_t)st.st_size / vm.page_size;
    vm.first = vm.pages / 4 * 3 / (huge ? 1 : BLOCK) * (huge ? 1 : BLOCK); /* whole blocks */
    vm.saved = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    vm.content = calloc(vm.pages, sizeof(*vm.content));
    vm.stamps = calloc(vm.pages, sizeof(*vm.stamps));
    if (vm.saved == MAP_FAILED || !vm.content || !vm.stamps)
        die("memory");
    if (ibx_fault_uffd_open(IBX_FAULT_EVENT_REMOVE, &vm.uffd, &err)) {
        printf("{\"skip\": \"%s\"}\n", err.message);
        exit(77);
    }
    region_make(0, vm.first, huge, in);
    region_make(1, vm.pages - vm.first, huge, in);
}

/* ------------------------------------------------------------ the message */

static void region_text(char *out, size_t size, unsigned i, const char *form)
{
    const uint64_t start = (uintptr_t)vm.regions[i];
    const uint64_t offset = i ? vm.first * vm.page_size : 0;
    const uint64_t length = (i ? vm.pages - vm.first : vm.first) * vm.page_size;
    int n = snprintf(
        out, size, "{\"base_host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64 ",\"offset\":%" PRIu64,
        start, length, offset);
    const bool both = !strcmp(form, "both") || !strcmp(form, "pieces");
    if (both || !strcmp(form, "new"))
        n += snprintf(out + n, size - (size_t)n, ",\"page_size\":%zu", vm.page_size);
    if (both || !strcmp(form, "kib"))
        n += snprintf(out + n, size - (size_t)n, ",\"page_size_kib\":%zu", vm.page_size);
    if (!strcmp(form, "documented"))
        n += snprintf(out + n, size - (size_t)n, ",\"page_size_kib\":%zu", vm.page_size / 1024);
    snprintf(out + n, size - (size_t)n, "}");
}

static void connect_to_handler(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", vm.socket);
    vm.connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    vm.sent_ns = ibx_now_ns();
    if (connect(vm.connection, (const struct sockaddr *)&address, sizeof(address)))
        die("connect");
}

static void send_with_fd(const char *text, size_t length, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {(char *)(uintptr_t)text, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    }
    if (sendmsg(vm.connection, &message, MSG_NOSIGNAL) != (ssize_t)length)
        die("sendmsg");
}

static void message_send(const char *form)
{
    char one[256], two[256], text[600];
    region_text(one, sizeof(one), 0, form);
    region_text(two, sizeof(two), 1, form);
    snprintf(text, sizeof(text), "[%s,%s]", one, two);
    connect_to_handler();
    const size_t first = !strcmp(form, "pieces") ? 7 : strlen(text);
    send_with_fd(text, first, vm.uffd);
    for (size_t i = first; i < strlen(text); i++)
        send_with_fd(text + i, 1, -1);
}

/* ------------------------------------------------------------ pages */

static bool page_is_right(uint64_t page)
{
    const uint8_t *at = page_at(page), *saved = vm.saved + page * vm.page_size;
    uint64_t stamp = 0;
    atomic_fetch_add(&vm.checked, 1);
    if (vm.stamps[page]) {
        memcpy(&stamp, at, sizeof(stamp));
        if (stamp != vm.stamps[page])
            return false;
    }
    const size_t from = vm.stamps[page] ? sizeof(stamp) : 0;
    if (vm.content[page] == AS_SAVED)
        return !memcmp(at + from, saved + from, vm.page_size - from);
    for (size_t i = from; i < vm.page_size; i++)
        if (at[i])
            return false;
    return true;
}

static void page_check(uint64_t page)
{
    if (page_is_right(page))
        return;
    atomic_fetch_add(&vm.wrong, 1);
    const uint8_t *at = page_at(page);
    uint64_t is = 0;
    size_t zeros = 0;
    memcpy(&is, at, sizeof(is));
    for (size_t i = 0; i < vm.page_size; i++)
        zeros += !at[i];
    fprintf(stderr,
            "firecracker: page %" PRIu64 " is wrong: %s, stamp %" PRIx64 ", is %" PRIx64
            ", %zu bytes are zero\n",
            page, vm.content[page] == AS_SAVED ? "as saved" : "zero", vm.stamps[page], is, zeros);
}

static void page_write(uint64_t page, uint64_t stamp)
{
    memcpy(page_at(page), &stamp, sizeof(stamp));
    vm.stamps[page] = stamp;
}

/* Of one region. */
static void pages_remove(uint64_t page, uint64_t count)
{
    if (madvise(page_at(page), count * vm.page_size, MADV_DONTNEED))
        die("madvise");
    atomic_fetch_add(&vm.removed, count);
    for (uint64_t i = page; i < page + count; i++) {
        vm.content[i] = ZERO;
        vm.stamps[i] = 0;
    }
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Groups of one to four pages, as a guest's code and data are. */
static uint64_t reply(uint64_t pages, uint64_t seed)
{
    uint64_t sum = 0;
    for (uint64_t n = 0; n < pages;) {
        const uint64_t at = next_random(&seed) % vm.pages;
        for (uint64_t i = 0, count = 1 + next_random(&seed) % 4;
             i < count && at + i < vm.pages && n < pages; i++, n++)
            sum += *(volatile uint8_t *)page_at(at + i);
    }
    return sum;
}

/* ------------------------------------------------------------ the storm */

struct rider {
    pthread_t thread;
    uint64_t seed, until_ns;
    unsigned index, count;
};

/* A block of pages of this thread, within one region; the last eighth belongs to nobody, is never
 * changed, and is read by all. */
static void ride(struct rider *r)
{
    const uint64_t blocks = vm.pages / BLOCK, owned = blocks - blocks / 8;
    const uint64_t dice = next_random(&r->seed);
    uint64_t block = next_random(&r->seed) % owned / r->count * r->count + r->index;
    if (dice % 8 == 0 || block >= owned) { /* everybody's */
        page_check(owned * BLOCK + next_random(&r->seed) % (vm.pages - owned * BLOCK));
        return;
    }
    const uint64_t at = next_random(&r->seed) % BLOCK, page = block * BLOCK + at;
    const uint64_t count = 1 + next_random(&r->seed) % (BLOCK - at);
    if (dice % 8 < 3) {
        pages_remove(page, count);
        if (dice % 2)
            page_check(page);
    } else if (dice % 8 < 5) {
        page_check(page);
        page_write(page, dice | 1);
    } else {
        page_check(page);
    }
}

/* Meanwhile the handler is killed: on a slow machine that alone takes the storm's time. */
static bool is_short(void)
{
    return atomic_load(&vm.checked) <= STORM_LEAST || atomic_load(&vm.removed) <= STORM_LEAST;
}

static void *ride_main(void *argument)
{
    struct rider *r = argument;
    while (ibx_now_ns() < r->until_ns || is_short())
        for (unsigned i = 0; i < 64; i++)
            ride(r);
    return NULL;
}

static void storm(uint64_t ms, unsigned threads, uint64_t seed)
{
    static struct rider riders[THREADS];
    const uint64_t until = ibx_deadline_in_ms(ms);
    threads = threads < THREADS ? threads : THREADS;
    for (unsigned i = 0; i < threads; i++) {
        riders[i] = (struct rider){.seed = (seed + i) * 0x9e3779b97f4a7c15ull | 1,
                                   .until_ns = until,
                                   .index = i,
                                   .count = threads};
        if (pthread_create(&riders[i].thread, NULL, ride_main, &riders[i]))
            die("pthread_create");
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(riders[i].thread, NULL);
}

/* ------------------------------------------------------------ its user */

static bool handler_is_gone(void)
{
    char byte;
    struct pollfd look = {.fd = vm.connection, .events = POLLIN};
    return poll(&look, 1, (int)patience_ms(20000)) == 1 && recv(vm.connection, &byte, 1, 0) <= 0;
}

static void answer(const char *extra)
{
    printf("{\"wrong\": %" PRIu64 ", \"checked\": %" PRIu64 ", \"removed\": %" PRIu64
           ", \"us\": %" PRIu64 "%s}\n",
           atomic_load(&vm.wrong), atomic_load(&vm.checked), atomic_load(&vm.removed),
           (ibx_now_ns() - vm.sent_ns) / 1000, extra);
    fflush(stdout);
}

static bool obey(char *line)
{
    char word[32], text[16000];
    uint64_t a = 0, b = 0, c = 0;
    const char *extra = "";
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%31s", word) != 1)
        return true;
    sscanf(line, "%*s %" SCNu64 " %" SCNu64 " %" SCNu64, &a, &b, &c);
    snprintf(text, sizeof(text), "%s", strchr(line, ' ') ? strchr(line, ' ') + 1 : "");
    if (!strcmp(word, "send")) {
        message_send(text);
    } else if (!strcmp(word, "raw")) {
        connect_to_handler();
        send_with_fd(text, strlen(text), vm.uffd);
    } else if (!strcmp(word, "touch") || !strcmp(word, "check")) {
        const uint64_t end = *word == 'c' ? vm.pages : a + b;
        for (uint64_t i = *word == 'c' ? 0 : a; i < end; i++)
            page_check(i);
    } else if (!strcmp(word, "write")) {
        for (uint64_t i = a; i < a + b; i++)
            page_write(i, i + 1);
    } else if (!strcmp(word, "remove")) {
        pages_remove(a, b);
    } else if (!strcmp(word, "reply")) {
        reply(a, b * 0x9e3779b97f4a7c15ull | 1);
    } else if (!strcmp(word, "storm")) {
        storm(a, (unsigned)b, c);
    } else if (!strcmp(word, "close")) {
        close(vm.connection);
    } else if (!strcmp(word, "gone")) {
        extra = handler_is_gone() ? ", \"gone\": true" : ", \"gone\": false";
    } else {
        return false;
    }
    answer(extra);
    return true;
}

int main(int argc, char **argv)
{
    static char line[16384];
    if (argc < 3) {
        fprintf(stderr, "usage: firecracker SOCKET MEMORY_FILE [huge [IN_FILE]]\n");
        return 2;
    }
    vm.socket = argv[1];
    memory_make(argv[2], argc > 3, argc > 4 ? argv[4] : NULL);
    answer("");
    while (fgets(line, sizeof(line), stdin) && obey(line))
        ;
    return 0;
}
