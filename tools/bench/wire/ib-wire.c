/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-wire RATE RTT [FILE]: a wire between two network namespaces of this host, RATE Mbit/s in each
 * direction, and a round trip time of RTT microseconds. Prints "PID PID ADDRESS ADDRESS" and runs
 * until its standard input ends; `nsenter --net=/proc/PID/ns/net COMMAND` runs a command at one
 * end. Needs root and /dev/net/tun.
 *
 * Each end is a TUN device that takes segments of up to 64 KiB, as network cards with TSO do. For
 * each direction one thread reads packets and computes when they arrive: their bits pass one after
 * the other at the rate, then half of the round trip time passes. Another thread writes them when
 * they are due. As in a switch, a packet is dropped if the queue is full, which has room for what
 * passes in QUEUE_MS, or in a round trip time if that is longer.
 *
 * FILE gets a line for each TCP packet: the time when it came, in microseconds since the first
 * packet; > or < (> from the first end); bytes; both ports; and TCP's flags (S, F, R), or -, or
 * "dropped" in their place. If there are more than TRACE_MAX packets, or FILE cannot be written,
 * ib-wire says so at its end, with the exit status 1.
 */
#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PACKET_BYTES (65536u + 64u) /* with the header of TSO */
#define PACKETS      4096u          /* on their way in one direction */
#define QUEUE_MS     20u            /* at the rate */
#define EARLY_NS     60000u         /* sleep to so long before the time, then wait busily */
#define MTU          9000
#define TRACE_MAX    2000000u /* packets */
#define HEADER       10u      /* of TSO */

struct packet {
    uint64_t due_ns;
    size_t length;
    uint8_t *bytes;
};

struct traced {
    uint64_t at_ns;
    uint32_t bytes;
    uint16_t from, to; /* ports */
    uint8_t flags;
    bool back, dropped;
};

static struct traced *trace; /* NULL: no FILE was given */
static FILE *trace_file;
static _Atomic unsigned traced;

struct direction {
    int from, to; /* TUN devices */
    bool back;    /* from the second end */
    uint64_t ns_per_megabyte, delay_ns, queue_ns;
    struct packet packets[PACKETS];
    _Atomic uint64_t arrived, left;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "ib-wire: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---------------------------------------------------------------- the wire */

static uint16_t port_at(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void trace_packet(const struct direction *d, const uint8_t *packet, size_t length,
                         uint64_t now, bool dropped)
{
    const uint8_t *ip = packet + HEADER, *tcp = ip + (ip[0] & 15) * 4u;
    if (!trace || length < HEADER + 40 || ip[9] != IPPROTO_TCP)
        return;
    const unsigned i = atomic_fetch_add(&traced, 1);
    if (i < TRACE_MAX)
        trace[i] = (struct traced){.at_ns = now,
                                   .bytes = (uint32_t)(length - HEADER),
                                   .from = port_at(tcp),
                                   .to = port_at(tcp + 2),
                                   .flags = tcp[13],
                                   .back = d->back,
                                   .dropped = dropped};
}

static void trace_open(const char *name)
{
    trace = calloc(TRACE_MAX, sizeof(*trace));
    trace_file = fopen(name, "we");
    if (!trace || !trace_file)
        die(name);
}

/* Exit status. */
static int trace_write(const char *name)
{
    const unsigned all = traced, count = all < TRACE_MAX ? all : TRACE_MAX;
    for (unsigned i = 0; i < count; i++) {
        const struct traced *t = &trace[i];
        fprintf(trace_file, "%lld %c %u %u %u ", (long long)(t->at_ns - trace[0].at_ns) / 1000,
                t->back ? '<' : '>', t->bytes, t->from, t->to);
        fprintf(trace_file, t->dropped ? "dropped\n" : "%s%s%s%s\n", t->flags & 2 ? "S" : "",
                t->flags & 1 ? "F" : "", t->flags & 4 ? "R" : "", t->flags & 7 ? "" : "-");
    }
    if (fflush(trace_file) || ferror(trace_file))
        die(name);
    fclose(trace_file);
    if (all > count)
        fprintf(stderr, "ib-wire: %s has only the first %u of %u TCP packets\n", name, count, all);
    return all > count;
}

static void *reads(void *argument)
{
    struct direction *d = argument;
    uint64_t free_ns = 0; /* when the wire takes the next bit */
    while (true) {
        const uint64_t at = atomic_load(&d->arrived);
        struct packet *p = &d->packets[at % PACKETS];
        const ssize_t n = read(d->from, p->bytes, PACKET_BYTES);
        if (n <= 0)
            return NULL;
        const uint64_t now = ibx_now_ns(), begin = free_ns > now ? free_ns : now;
        const bool full = begin - now > d->queue_ns || at + 1 - atomic_load(&d->left) == PACKETS;
        trace_packet(d, p->bytes, (size_t)n, now, full);
        if (full)
            continue; /* dropped */
        free_ns = begin + (uint64_t)n * d->ns_per_megabyte / 1000000;
        p->length = (size_t)n;
        p->due_ns = free_ns + d->delay_ns;
        atomic_store(&d->arrived, at + 1);
    }
}

static void wait_until(uint64_t due_ns)
{
    uint64_t now = ibx_now_ns();
    if (due_ns > now + EARLY_NS) {
        const uint64_t sleep_ns = due_ns - now - EARLY_NS;
        const struct timespec t = {(time_t)(sleep_ns / 1000000000), (long)(sleep_ns % 1000000000)};
        nanosleep(&t, NULL);
    }
    while (ibx_now_ns() < due_ns)
        sched_yield();
}

static void *writes(void *argument)
{
    struct direction *d = argument;
    uint64_t idle_ns = 0;
    for (;;) {
        const uint64_t at = atomic_load(&d->left);
        if (at == atomic_load(&d->arrived)) {
            /* There is time: a packet that arrives now is due later. */
            if (ibx_now_ns() - idle_ns > IBX_NS_PER_MS)
                usleep(d->delay_ns > 200000 ? 50 : 5);
            else
                sched_yield();
            continue;
        }
        const struct packet *p = &d->packets[at % PACKETS];
        wait_until(p->due_ns);
        if (write(d->to, p->bytes, p->length) < 0 && errno != EINVAL && errno != EIO)
            die("a packet cannot be delivered");
        idle_ns = ibx_now_ns();
        atomic_store(&d->left, at + 1);
    }
}

static void direction_start(int from, int to, bool back, uint64_t rate, uint64_t rtt_us)
{
    struct direction *d = calloc(1, sizeof(*d));
    uint8_t *memory = malloc((size_t)PACKETS * PACKET_BYTES);
    pthread_t threads[2];
    if (!d || !memory)
        die("memory for packets");
    memset(memory, 0, (size_t)PACKETS * PACKET_BYTES); /* so that no packet causes page faults */
    for (size_t i = 0; i < PACKETS; i++)
        d->packets[i].bytes = memory + i * PACKET_BYTES;
    d->from = from;
    d->to = to;
    d->ns_per_megabyte = 8000000000 / rate;
    d->back = back;
    d->delay_ns = rtt_us * 500;
    d->queue_ns = rtt_us > QUEUE_MS * 1000 ? rtt_us * 1000 : QUEUE_MS * IBX_NS_PER_MS;
    if (pthread_create(&threads[0], NULL, reads, d) || pthread_create(&threads[1], NULL, writes, d))
        die("threads");
}

/* ---------------------------------------------------------------- the ends */

static void set_address(const char *device, const char *address)
{
    const int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {0};
    struct sockaddr_in in = {.sin_family = AF_INET};
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", device);
    inet_pton(AF_INET, address, &in.sin_addr);
    memcpy(&request.ifr_addr, &in, sizeof(in));
    if (s < 0 || ioctl(s, SIOCSIFADDR, &request))
        die("the address");
    inet_pton(AF_INET, "255.255.255.0", &in.sin_addr);
    memcpy(&request.ifr_netmask, &in, sizeof(in));
    if (ioctl(s, SIOCSIFNETMASK, &request))
        die("the netmask");
    request.ifr_mtu = MTU;
    if (ioctl(s, SIOCSIFMTU, &request))
        die("the MTU");
    request.ifr_qlen = 10000;
    ioctl(s, SIOCSIFTXQLEN, &request);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(s, SIOCSIFFLAGS, &request))
        die("the device does not come up");
    snprintf(request.ifr_name, sizeof(request.ifr_name), "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    ioctl(s, SIOCSIFFLAGS, &request);
    close(s);
}

/* Makes a TUN device in a new network namespace, in which the calling thread stays. */
static int end_make(const char *address)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    if (unshare(CLONE_NEWNET))
        die("a network namespace");
    const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC); /* belongs to this namespace */
    if (fd < 0)
        die("/dev/net/tun");
    snprintf(request.ifr_name, sizeof(request.ifr_name), "wire0");
    if (ioctl(fd, TUNSETIFF, &request))
        die("a TUN device");
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
        die("segments of 64 KiB");
    set_address("wire0", address);
    return fd;
}

/* Starts a process that keeps the caller's namespace in existence. */
static pid_t keeper(void)
{
    const pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (true)
            pause();
    }
    return pid;
}

int main(int argc, char **argv)
{
    static const char *const addresses[] = {"10.99.0.1", "10.99.0.2"};
    const bool whole = argc == 3 || argc == 4;
    const uint64_t rate = whole ? strtoull(argv[1], NULL, 10) : 0;
    const uint64_t rtt_us = whole ? strtoull(argv[2], NULL, 10) : 0;
    pid_t pids[2];
    int ends[2];
    char byte;
    if (!rate || rate > 1000000 || rtt_us > 10000000) {
        fprintf(stderr, "usage: ib-wire RATE RTT [FILE]: Mbit/s, microseconds of a round trip, and "
                        "a file for a list of the packets\n");
        return 2;
    }
    for (unsigned i = 0; i < 2; i++) {
        ends[i] = end_make(addresses[i]);
        pids[i] = keeper();
    }
    if (argc == 4)
        trace_open(argv[3]);
    direction_start(ends[0], ends[1], false, rate, rtt_us);
    direction_start(ends[1], ends[0], true, rate, rtt_us);
    printf("%d %d %s %s\n", (int)pids[0], (int)pids[1], addresses[0], addresses[1]);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    for (unsigned i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    return trace ? trace_write(argv[3]) : 0;
}
