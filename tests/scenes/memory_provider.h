/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A provider inside one process, for tests of the core: chunks are memcpy, messages are lists under
 * a lock. Linked before the transport library it takes the place of the table of providers: "shm"
 * and "tcp" are this one, "verbs" and "ofi" are not there.
 *
 * `memory_control` makes it misbehave on command. It is read by whichever thread drives a
 * connection, so a test changes it only while nothing runs in another.
 */
#ifndef IBX_TESTS_UNIT_MEMORY_PROVIDER_H
#define IBX_TESTS_UNIT_MEMORY_PROVIDER_H

#include "transport/core/provider.h"

#define MEMORY_LOG_MAX 4096

struct memory_control {
    /* What endpoints are made like. */
    size_t chunk;
    unsigned depth, lanes;
    size_t rendezvous;

    /* Setting up "shm" fails in this call, "tcp" never does. */
    int fail_open, fail_offer, fail_join, fail_finish; /* 0 or negative errno */

    /* Chunks. */
    bool hold;          /* those taken stay where they are */
    unsigned per_round; /* so many are carried out in one round of progress; 0: all */
    unsigned room;      /* so many are taken, then -EAGAIN; 0: any number */
    unsigned lane_room; /* likewise on one lane; 0: any number */
    unsigned fail_in;   /* the n-th to be carried out from now fails with -EIO (1: the next) */
    bool survives;      /* chunks succeed, without a copy, though the peer is gone */
    int refuse;         /* rdma() answers this; 0: it takes chunks */
    bool late_abort;    /* flushed chunks are reported by progress, not from inside abort */
    int fail_register;  /* mr_register answers this; 0: it registers */
    int fail_allocate;  /* likewise for regions of its own */
    bool pins;          /* registering costs, and answers -EFAULT for memory that is not there */

    /* Progress. */
    bool busy;               /* it has always done something for the peer */
    void (*when_idle)(void); /* called once, at the end of a round that brought nothing */
};

extern struct memory_control memory_control;
void memory_control_reset(void);

/* What rdma() took, in order. */
struct memory_log_entry {
    unsigned lane;
    size_t length;
    uint64_t remote_address;
};
extern struct memory_log_entry memory_log[MEMORY_LOG_MAX];
extern unsigned memory_log_count; /* goes on beyond the maximum */
extern unsigned memory_in_flight, memory_in_flight_max;

/* Endpoints and regions that have not been given back; 0 when nothing leaked. */
int memory_live_endpoints(void);
int memory_live_regions(void);

/* A wire whose server's end nobody drives, for tests that speak the server themselves: the eight
 * bytes of its offer are this number below 1000, little-endian. */
void memory_wire_make(uint64_t id);
void memory_wire_drop(uint64_t id);

#endif
