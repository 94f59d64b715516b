/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/segments.h"

#include "common/address.h"
#include "common/clock.h"
#include "common/fork_lock.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#define HOSTS       16u
#define SHORT_BYTES 1024u /* where Linux begins, too, if net.ipv4.tcp_mtu_probing is set */
#define LEAST_BYTES 536u  /* what every IPv4 host takes */
#define VALID_MS    600000u

struct host {
    struct sockaddr_storage address; /* AF_UNSPEC: none */
    unsigned limit;
    uint64_t until;
};

static struct ibx_fork_lock lock = IBX_FORK_LOCK; /* of the rest */
static struct host hosts[HOSTS];
static unsigned next;

static struct host *find(const struct sockaddr *address)
{
    for (unsigned i = 0; i < HOSTS; i++) {
        if (hosts[i].address.ss_family != AF_UNSPEC && ibx_now_ns() < hosts[i].until &&
            ibx_address_same((const struct sockaddr *)&hosts[i].address, address))
            return &hosts[i];
    }
    return NULL;
}

/* Copies an address without its port; IPv4 in IPv6 becomes IPv4. */
static void plain_address(const struct sockaddr *address, struct sockaddr_storage *plain)
{
    size_t length;
    const void *bytes = ibx_address_host(address, &length);
    memset(plain, 0, sizeof(*plain));
    if (bytes)
        ibx_address_make(plain, bytes, length, 0);
}

static unsigned limit_of(const struct sockaddr *address)
{
    struct sockaddr_storage plain;
    plain_address(address, &plain);
    ibx_fork_lock_take(&lock);
    const struct host *host = find((struct sockaddr *)&plain);
    const unsigned limit = host ? host->limit : 0;
    ibx_fork_lock_release(&lock);
    return limit;
}

void ibx_segments_lost(const struct sockaddr *peer, unsigned bytes)
{
    struct sockaddr_storage plain;
    plain_address(peer, &plain);
    if (plain.ss_family == AF_UNSPEC)
        return;
    ibx_fork_lock_take(&lock);
    struct host *host = find((struct sockaddr *)&plain);
    if (!host)
        host = &hosts[next++ % HOSTS];
    *host = (struct host){
        .address = plain,
        .limit = bytes > SHORT_BYTES ? SHORT_BYTES : LEAST_BYTES,
        .until = ibx_deadline_in_ms(VALID_MS),
    };
    ibx_fork_lock_release(&lock);
}

unsigned ibx_segments_limit(int fd, const struct sockaddr *to)
{
    const unsigned limit = limit_of(to);
    const int most = (int)limit;
    if (limit)
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &most, sizeof(most));
    return limit;
}

unsigned ibx_segments_limit_of(int fd)
{
    struct sockaddr_storage peer;
    return ibx_address_of_socket(fd, true, &peer) ? limit_of((struct sockaddr *)&peer) : 0;
}
