/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process of clients, in that process; client_processes.c is the process that forks it. */
#include "frontend-glue/session/client_process.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    int socket; /* to the listening process; -1: this is no such process */
    int event;
    atomic_uint sessions;
    atomic_uint idle_ms; /* how long it stays without clients */
    /* Ns; 0: it was not idle at the last look. Used by the accepting thread only. */
    uint64_t idle_since;
} own = {.socket = -1, .event = -1};

void ibx_client_process_begin(int socket, int event, unsigned idle_ms)
{
    own.socket = socket;
    own.event = event;
    atomic_store(&own.sessions, 0);
    atomic_store(&own.idle_ms, idle_ms);
    ibx_client_process_look_again(); /* the first client may never arrive */
}

bool ibx_client_process(void)
{
    return own.socket >= 0;
}

int ibx_client_process_event(void)
{
    return own.event;
}

void ibx_client_process_session_begins(void)
{
    atomic_fetch_add(&own.sessions, 1);
    own.idle_since = 0;
}

void ibx_client_process_session_ended(void)
{
    atomic_fetch_sub(&own.sessions, 1);
    ibx_client_process_look_again();
}

void ibx_client_process_look_again(void)
{
    const uint64_t one = 1;
    if (ibx_client_process() && write(own.event, &one, sizeof(one)) < 0)
        ibx_log(IBX_LOG_WARN, "a process without clients does not end: %s", strerror(errno));
}

void ibx_client_process_retire(void)
{
    const uint64_t retires = IBX_CLIENT_PROCESS_RETIRES;
    if (!ibx_client_process())
        return;
    atomic_store(&own.idle_ms, 0);
    send(own.socket, &retires, sizeof(retires), MSG_NOSIGNAL | MSG_DONTWAIT);
    ibx_client_process_look_again();
}

/* The listening process agrees by closing the socket, unless it has sent more connections than were
 * taken. What changes after the read triggers the event again. */
int ibx_client_process_look(bool (*anybody)(void), uint64_t taken)
{
    uint64_t times;
    (void)!read(own.event, &times, sizeof(times));
    if ((anybody && anybody()) || atomic_load(&own.sessions)) {
        own.idle_since = 0;
        return -1;
    }
    const uint64_t now = ibx_now_ns(), stays = atomic_load(&own.idle_ms);
    own.idle_since = own.idle_since ? own.idle_since : now;
    const uint64_t idle_ms = (now - own.idle_since) / IBX_NS_PER_MS;
    if (idle_ms < stays)
        return (int)(stays - idle_ms);
    send(own.socket, &taken, sizeof(taken), MSG_NOSIGNAL | MSG_DONTWAIT);
    return -1;
}
