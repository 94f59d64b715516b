/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A page reader out of memory that can be slow, out of order, short, full, failing or dead; and the
 * memory that is filled from it. */
#ifndef IBX_TESTS_FAULT_MEMORY_H
#define IBX_TESTS_FAULT_MEMORY_H

#include "userfaultfd/fault.h"

#include <stdatomic.h>

#define PAGE       4096u
#define LOG_MAX    4096u
#define FLYING_MAX 64u

struct memory_flight {
    struct ibx_fault_request request;
    unsigned polls_left;
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

void memory_data_make(struct memory_data *data, size_t length, uint32_t page_size);
void memory_data_free(struct memory_data *data);
/* Nothing odd, room for 32. */
struct memory_reader *memory_reader_make(struct memory_data *data);
struct ibx_fault_reader memory_reader_as(struct memory_reader *reader);

/* Of page `page`, all bytes. */
bool page_is_right(const struct memory_data *data, const uint8_t *memory, uint64_t page);
bool page_is_zero(const uint8_t *memory, uint64_t page, uint32_t page_size);
uint32_t next_random(uint32_t *seed);

/* Waits (20 s at most) until the reader was asked `n` times; then its log may be read so far. */
bool reader_asked(const struct memory_reader *reader, unsigned n);
/* Waits for COMPLETE or STOPPED (20 s at most), then returns the state. */
enum ibx_fault_state engine_settled(struct ibx_fault *engine);
/* Waits (20 s at most) until `figure` of the statistics is at least `value`. */
bool engine_reaches(struct ibx_fault *engine, size_t figure, uint64_t value);
#define REACHES(engine, field, value)                                                              \
    engine_reaches(engine, offsetof(struct ibx_fault_stats, field), value)

#endif
