/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * counting ADDRESS PORT: the only program of the Linux guest of tests/libvirt. It tests all that a
 * migration has to bring along, for ever and at once:
 *
 *   disk     a ring of 4 KiB blocks on /dev/vda. Each turn reads the oldest block, which has to be
 *            what was written there, replaces it, calls fdatasync(2) and reads it again.
 *   memory   each page has to be what this program left there a round before.
 *   network  one TCP connection to counter.py, which has to answer each line with that line.
 *
 * A line is "N DISK MEMORY WRONG": the number of the line, of the ring's turns, of pages seen, and
 * of what was wrong. What was wrong is printed on the console, too.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include <arpa/inet.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK        4096
#define WORDS        (BLOCK / 8)
#define RING         512 /* blocks */
#define MEMORY_PAGES (32 * 1024 * 1024 / BLOCK)
#define LINE_US      1000 /* between an answer and the next line */
#define SAY_LINES    500  /* between two lines on the console */

static _Atomic uint64_t disk_turns, pages_seen, wrong;

static void is_wrong(const char *what, uint64_t where)
{
    atomic_fetch_add(&wrong, 1);
    printf("wrong: %s %" PRIu64 "\n", what, where);
}

static void give_up(const char *what)
{
    perror(what);
    is_wrong(what, 0);
    for (;;)
        pause();
}

/* What a block or page has after its `round`; round 0 is all zeros. */
static uint64_t word_of(uint64_t where, uint64_t round, uint64_t i)
{
    uint64_t x = (where * 0x9e3779b97f4a7c15ull) ^ (round << 20) ^ i;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
    return round ? x | 1 : 0;
}

static int is(const uint64_t *words, uint64_t where, uint64_t round)
{
    for (uint64_t i = 0; i < WORDS; i++)
        if (words[i] != word_of(where, round, i))
            return 0;
    return 1;
}

static void fill(uint64_t *words, uint64_t where, uint64_t round)
{
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = word_of(where, round, i);
}

static void *ring(void *unused)
{
    uint64_t *words = aligned_alloc(BLOCK, BLOCK);
    int fd = open("/dev/vda", O_RDWR | O_DIRECT);
    if (fd < 0 || !words)
        give_up("no /dev/vda");
    for (uint64_t turn = 0;; turn++) {
        const uint64_t slot = turn % RING, round = turn / RING;
        const off_t at = (off_t)(slot * BLOCK);
        if (pread(fd, words, BLOCK, at) != BLOCK || !is(words, slot, round))
            is_wrong("disk, before turn", turn);
        fill(words, slot, round + 1);
        if (pwrite(fd, words, BLOCK, at) != BLOCK || fdatasync(fd))
            is_wrong("disk, writing in turn", turn);
        memset(words, 0, BLOCK);
        if (pread(fd, words, BLOCK, at) != BLOCK || !is(words, slot, round + 1))
            is_wrong("disk, after turn", turn);
        atomic_store(&disk_turns, turn + 1);
    }
    return unused;
}

static void *memory(void *unused)
{
    uint64_t *pages = aligned_alloc(BLOCK, (size_t)MEMORY_PAGES * BLOCK);
    if (!pages)
        give_up("no memory");
    memset(pages, 0, (size_t)MEMORY_PAGES * BLOCK);
    for (uint64_t round = 0;; round++) {
        for (uint64_t page = 0; page < MEMORY_PAGES; page++) {
            if (!is(pages + page * WORDS, page, round))
                is_wrong("memory, page", page);
            fill(pages + page * WORDS, page, round + 1);
            atomic_fetch_add(&pages_seen, 1);
        }
    }
    return unused;
}

static int connect_to(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, address, &to.sin_addr);
    for (int i = 0; connect(fd, (struct sockaddr *)&to, sizeof(to)); i++) {
        if (i > 100)
            give_up("no connection");
        close(fd);
        usleep(100000);
        fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

int main(int argc, char **argv)
{
    char line[128], answer[128];
    pthread_t thread;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const int fd = connect_to(argc > 2 ? argv[1] : "", argc > 2 ? atoi(argv[2]) : 0);
    if (pthread_create(&thread, NULL, ring, NULL) || pthread_create(&thread, NULL, memory, NULL))
        give_up("no thread");
    for (uint64_t n = 1;; n++) {
        const int length =
            snprintf(line, sizeof(line), "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", n,
                     disk_turns, pages_seen, wrong);
        if (write(fd, line, (size_t)length) != length)
            give_up("the connection has ended");
        for (int got = 0; got < length;) {
            ssize_t some = read(fd, answer + got, (size_t)(length - got));
            if (some <= 0)
                give_up("the connection has ended");
            got += (int)some;
        }
        if (memcmp(line, answer, (size_t)length))
            is_wrong("the answer to line", n);
        if (n % SAY_LINES == 0)
            printf("counted %s", line);
        usleep(LINE_US);
    }
}
