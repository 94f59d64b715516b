/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A page reader out of memory that can be slow, out of order, short, full, failing or dead; the
 * memory that is filled from it; and a fault engine that fills it, of which a test has one. */
#ifndef IBX_TESTS_FAULT_MEMORY_H
#define IBX_TESTS_FAULT_MEMORY_H

#include "userfaultfd/fault.h"

#include <pthread.h>
#include <stdatomic.h>

#define PAGE       4096u
#define PAGES      1024u
#define READERS    4u
#define LOG_MAX    4096u
#define FLYING_MAX 64u

struct memory_flight {
    struct ibx_fault_request request;
    unsigned polls_left;
    uint64_t pages[64]; /* of a request that has such */
};

/* What all fetches of one memory add up to. */
struct memory_data {
    uint8_t *bytes;
    size_t length;
    uint32_t page_size;
    _Atomic unsigned *fetched; /* a page: how often */
};

struct memory_reader {
    struct memory_data *data;
    _Atomic bool hold;        /* nothing arrives */
    _Atomic bool hold_bulk;   /* nothing arrives that is not urgent */
    unsigned hold_bulk_from;  /* sets hold_bulk when so many were accepted; 0: never */
    _Atomic int dead;         /* poll's error */
    _Atomic unsigned fail_in; /* the n-th arrival from now fails with -EIO */
    _Atomic unsigned delay; /* polls at most that an arrival takes; and they overtake each other */
    _Atomic unsigned short_every, again_every; /* every n-th arrival */
    unsigned room;                             /* requests in flight, at most */
    bool says_zero;                            /* everything is zero */
    _Atomic unsigned accepted, cancelled;
    struct ibx_fault_request log[LOG_MAX]; /* of the accepted */
    struct memory_flight flying[FLYING_MAX];
    unsigned count, arrivals, seed;
};

extern const struct ibx_fault_reader_ops memory_reader_ops;

/* Nothing odd, room for 32. */
struct memory_reader *memory_reader_make(struct memory_data *data);
struct ibx_fault_reader memory_reader_as(struct memory_reader *reader);
/* Waits (20 s at most) until the reader was asked `n` times; then its log may be read so far. */
bool reader_asked(const struct memory_reader *reader, unsigned n);
uint32_t next_random(uint32_t *seed);

/* ------------------------------------------------------------ the engine */

extern struct fault_rig {
    struct memory_data data;
    struct memory_reader *readers[READERS]; /* one a worker */
    struct ibx_fault_reader as[READERS];
    struct ibx_fault_range range;
    struct ibx_fault_config config; /* a test changes it before rig_start() */
    struct ibx_fault *engine;
    uint8_t *memory;
    int file; /* that is mapped; -1: private memory */
} rig;

/* A main() returns this unless it is 0: userfaultfd is not to be had here. */
int rig_skipped(uint64_t features);
/* PAGES pages of private memory, registered on a descriptor with these features. */
void rig_make(unsigned workers, uint64_t features);
/* The same in two steps. `file`: shared memory instead, with an alias if it is filled in place. */
void rig_map(unsigned workers, int file, size_t length, uint32_t page_size, bool in_place);
void rig_register(uint64_t features);
/* For a setup: two workers, of which the first is for faults and the second for the rest. */
int rig_make_pair(void **state);
void rig_start(void);
/* Started and serving. */
void rig_serve(void);
void rig_destroy_engine(void);
/* For a teardown. */
int rig_end(void **state);

/* Of page `page`, all bytes. */
bool page_is_right(uint64_t page);
bool page_is_zero(uint64_t page);
struct ibx_fault_stats stats_now(void);
/* Waits for COMPLETE or STOPPED (20 s at most), then returns the state. */
enum ibx_fault_state engine_settled(void);
/* Waits (20 s at most) until `figure` of the statistics is at least `value`. */
bool engine_reaches(size_t figure, uint64_t value);
#define REACHES(field, value) engine_reaches(offsetof(struct ibx_fault_stats, field), value)

/* All pages have come, each of them for one reason. */
void everything_is_right(void);

/* A thread that looks at `count` pages, each `step` behind the one before, modulo all. */
struct look {
    pthread_t thread;
    uint64_t page, count, step;
    _Atomic unsigned looked, right, zero;
};
void look_start(struct look *look, uint64_t page, uint64_t count, uint64_t step);
void look_at(struct look *look, uint64_t page);
/* Joins it. All that it saw was right, or zero. */
void look_sees_right(struct look *look);
void look_sees_zero(struct look *look);
/* A fault, served. */
void touch(uint64_t page);

#endif
