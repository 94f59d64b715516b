/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The addresses of a host. For a client whose connection has broken, a thread looks them up: if the
 * network is gone, its resolver often is too, and getaddrinfo(3) then waits for many seconds. The
 * thread ends by itself if nobody waits for the answer any more. */
#include "transport/handshake/handshake.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ibx_handshake_resolve(const struct ibx_uri *uri, int flags, struct addrinfo **list,
                          struct ibx_error *err)
{
    char service[8];
    snprintf(service, sizeof(service), "%u", uri->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = flags | AI_NUMERICSERV,
    };
    int rc = getaddrinfo(uri->host, service, &hints, list);
    if (!rc)
        return 0;
    const char *zone = strchr(uri->host, ':') ? strchr(uri->host, '%') : NULL;
    if (zone &&
        !if_nametoindex(zone + 1)) /* the other host's, in an address that was copied from there */
        return ibx_error_set(err, -EADDRNOTAVAIL,
                             "this host has no interface \"%s\" for %s: write the name, behind the "
                             "%%, of its own interface that leads there (look at `ip address`)",
                             zone + 1, uri->host);
    return ibx_error_set(err, -EADDRNOTAVAIL,
                         "host \"%s\" cannot be resolved: %s; correct the name, write an "
                         "address, or add it to DNS or /etc/hosts",
                         uri->host, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
}

unsigned ibx_handshake_hosts(const struct addrinfo *list)
{
    unsigned of_v4 = 0, others = 0;
    for (; list; list = list->ai_next)
        ++*(list->ai_family == AF_INET ? &of_v4 : &others);
    return of_v4 > others ? of_v4 : others;
}

struct ibx_lookup {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned holders; /* the caller, and the thread */
    bool over;
    struct ibx_uri uri;
    int rc;
    struct ibx_error err;
    struct addrinfo *list;
};

static void release(struct ibx_lookup *lookup)
{
    pthread_mutex_lock(&lookup->lock);
    const unsigned left = --lookup->holders;
    pthread_mutex_unlock(&lookup->lock);
    if (left)
        return;
    if (lookup->list)
        freeaddrinfo(lookup->list);
    pthread_cond_destroy(&lookup->changed);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

static void *look_up(void *argument)
{
    struct ibx_lookup *lookup = argument;
    struct addrinfo *list = NULL;
    struct ibx_error err = {0};
    const int rc = ibx_handshake_resolve(&lookup->uri, 0, &list, &err);
    pthread_mutex_lock(&lookup->lock);
    lookup->list = list;
    lookup->err = err;
    lookup->rc = rc;
    lookup->over = true;
    pthread_cond_broadcast(&lookup->changed);
    pthread_mutex_unlock(&lookup->lock);
    release(lookup);
    return NULL;
}

int ibx_lookup_begin(const struct ibx_uri *uri, struct ibx_lookup **out, struct ibx_error *err)
{
    struct ibx_lookup *lookup = calloc(1, sizeof(*lookup));
    if (!lookup)
        return ibx_error_set(err, -ENOMEM, "no memory for looking up a name");
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_cond_init(&lookup->changed, NULL);
    lookup->uri = *uri;
    lookup->holders = 1;
    lookup->over = !ibx_handshake_resolve(uri, AI_NUMERICHOST, &lookup->list, NULL);
    lookup->holders += !lookup->over;
    const int rc = lookup->over ? 0 : ibx_thread_begin(NULL, look_up, lookup);
    if (rc) {
        lookup->holders = 1;
        release(lookup);
        return ibx_error_set_task(err, rc, "no thread for looking up \"%s\"", uri->host);
    }
    *out = lookup;
    return 0;
}

int ibx_lookup_wait(struct ibx_lookup *lookup, unsigned ms, struct ibx_error *err)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(ms));
    int rc = 0;
    pthread_mutex_lock(&lookup->lock);
    while (!lookup->over && !rc)
        rc = pthread_cond_clockwait(&lookup->changed, &lookup->lock, CLOCK_MONOTONIC, &until);
    const bool over = lookup->over;
    pthread_mutex_unlock(&lookup->lock);
    if (!over)
        return ibx_error_set(err, -EAGAIN, "no resolver has answered yet what \"%s\" is",
                             lookup->uri.host);
    return lookup->rc ? ibx_error_set(err, lookup->rc, "%s", lookup->err.message) : 0;
}

unsigned ibx_lookup_hosts(const struct ibx_lookup *lookup)
{
    return ibx_handshake_hosts(lookup->list);
}

const struct addrinfo *ibx_handshake_looked_up(const struct ibx_lookup *lookup,
                                               const struct ibx_uri *uri)
{
    const bool is_of = lookup && lookup->uri.port == uri->port;
    return is_of && !strcmp(lookup->uri.host, uri->host) ? lookup->list : NULL;
}

void ibx_lookup_end(struct ibx_lookup *lookup)
{
    if (lookup)
        release(lookup);
}
