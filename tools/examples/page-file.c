/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages a file into memory on demand, by the fault engine, and prints a checksum of it: the
 * smallest use of userfaultfd/fault.h. The page reader is pread(2), which answers at once. A reader
 * over a network keeps its requests and reports them in poll when their answers have arrived.
 *
 *     page-file FILE            reads all of it
 *     page-file FILE OFFSET...  reads one byte at each offset; fetches only the pages around them
 */
#include "userfaultfd/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE     4096u
#define ANSWERED 32u

/* ------------------------------------------------------------------ the source */

struct file_source {
    int fd;
    struct ibx_fault_arrival arrivals[ANSWERED]; /* not taken yet */
    int count;
};

static int file_request(void *source, const struct ibx_fault_request *request)
{
    struct file_source *f = source;
    if (f->count == (int)ANSWERED)
        return -EAGAIN;
    struct ibx_fault_arrival a = {.cookie = request->cookie, .length = request->length};
    ssize_t n = pread(f->fd, request->buffer, request->length, (off_t)request->offset);
    if (n < 0)
        a.status = -errno;
    else /* the last page is zero after the file's last byte */
        memset((char *)request->buffer + n, 0, request->length - (size_t)n);
    f->arrivals[f->count++] = a;
    return 0;
}

static int file_poll(void *source, struct ibx_fault_arrival *arrivals, int max)
{
    struct file_source *f = source;
    int n = f->count < max ? f->count : max;
    memcpy(arrivals, f->arrivals, (size_t)n * sizeof *arrivals);
    f->count -= n;
    memmove(f->arrivals, f->arrivals + n, (size_t)f->count * sizeof *arrivals);
    return n;
}

/* More than 0: poll would return an arrival, so the engine must not sleep. */
static int file_arm(void *source)
{
    return ((struct file_source *)source)->count > 0;
}

/* ------------------------------------------------------------------- its use */

static uint64_t checksum(const unsigned char *bytes, uint64_t length)
{
    uint64_t sum = 0xcbf29ce484222325ull; /* FNV-1a */
    for (uint64_t i = 0; i < length; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3ull;
    return sum;
}

static int look(const unsigned char *bytes, uint64_t length, int count, char **offsets)
{
    if (!count)
        printf("checksum %016" PRIx64 "\n", checksum(bytes, length));
    for (int i = 0; i < count; i++) {
        char *end;
        errno = 0;
        uint64_t at = strtoull(offsets[i], &end, 0);
        if (errno || *end || end == offsets[i] || offsets[i][0] == '-' || at >= length) {
            fprintf(stderr, "page-file: %s is not an offset below %" PRIu64 "\n", offsets[i],
                    length);
            return 1;
        }
        printf("%" PRIu64 ": 0x%02x\n", at, bytes[at]);
    }
    return 0;
}

/* Waits until the engine has counted the last pages, which can be visible earlier. */
static void await_end(struct ibx_fault *engine)
{
    struct pollfd end = {.fd = ibx_fault_event_fd(engine), .events = POLLIN};
    while (poll(&end, 1, -1) < 0 && errno == EINTR)
        ;
}

static void report(struct ibx_fault *engine)
{
    struct ibx_fault_stats s;
    ibx_fault_stats(engine, &s);
    printf("%" PRIu64 " of %" PRIu64 " pages present: %" PRIu64 " by fault, %" PRIu64
           " by prefetch, %" PRIu64 " in the background; %" PRIu64
           " faults, p50 %.1f us, p99 %.1f us, max %.1f us\n",
           s.present, s.pages, s.by_cause[IBX_FAULT_BY_FAULT], s.by_cause[IBX_FAULT_BY_PREFETCH],
           s.by_cause[IBX_FAULT_BY_BACKGROUND], s.faults, (double)s.latency_p50 / 1e3,
           (double)s.latency_p99 / 1e3, (double)s.latency_max / 1e3);
}

static int page_in(int fd, uint64_t length, int count, char **offsets, struct ibx_error *err)
{
    static const struct ibx_fault_reader_ops ops = {
        .request = file_request, .poll = file_poll, .arm = file_arm};
    uint64_t mapped = (length + PAGE - 1) / PAGE * PAGE;
    void *memory = mmap(NULL, mapped, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ibx_error_set(err, -errno, "%" PRIu64 " bytes of memory: %s", mapped,
                             strerror(errno));
    struct file_source file = {.fd = fd};
    struct ibx_fault_reader reader = {.ops = &ops, .context = &file};
    struct ibx_fault_range range = {
        .start = (uintptr_t)memory, .length = mapped, .page_size = PAGE};
    struct ibx_fault_config config = {.ranges = &range,
                                      .range_count = 1,
                                      .readers = &reader,
                                      .worker_count = 1,
                                      .no_background = count > 0};
    struct ibx_fault *engine = NULL;
    int rc = ibx_fault_uffd_open(0, &config.uffd, err);
    if (rc)
        goto unmap;
    rc = ibx_fault_register(config.uffd, &range, err);
    if (!rc)
        rc = ibx_fault_create(&config, &engine, err);
    if (rc)
        goto close;
    rc = ibx_fault_serve(engine);
    if (!rc)
        rc = look(memory, length, count, offsets);
    if (!rc && !count)
        await_end(engine);
    report(engine);
    ibx_fault_destroy(engine);
close:
    close(config.uffd);
unmap:
    munmap(memory, mapped);
    return rc;
}

int main(int argc, char **argv)
{
    struct ibx_error err = {.message = ""};
    struct stat is;
    if (argc < 2) {
        fprintf(stderr, "usage: page-file FILE [OFFSET]...\n");
        return 2;
    }
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &is)) {
        fprintf(stderr, "page-file: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    if (!S_ISREG(is.st_mode) || !is.st_size) {
        fprintf(stderr, "page-file: %s is not a file with anything in it\n", argv[1]);
        return 1;
    }
    int rc = page_in(fd, (uint64_t)is.st_size, argc - 2, argv + 2, &err);
    if (rc < 0)
        fprintf(stderr, "page-file: %s\n", err.message);
    close(fd);
    return rc != 0;
}
