/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which path a copy takes, by its direction and size:
 *
 *   inline        between a message and the driver, without a chunk   up to inline_max
 *   in_place      the GPU reads or writes memory that both ends map   from in_place_min
 *   copy_threads  through pinned chunks, by several threads           from copy_threads_min
 *   direct        the fabric reads or writes the GPU's memory         from direct_min
 *   staged        through pinned chunks, by the fabric                all others
 *
 * A path that a copy cannot take is passed over: only a copy inside a message is inline, and only
 * one from memory that both ends map is in_place. An asynchronous copy that may outlive its call is
 * in_place whatever its size, since no other path allows that, and so is any asynchronous one from
 * such memory to the device, which earlier work of its stream may still fill.
 *
 * `ib-bw tune` measures the sizes and stores them in the syntax of gvirtus.properties:
 *
 *   gpu, driver, host     where it was measured; one that is left out is not compared
 *   h2d.inline            bytes; the same with d2h
 *   h2d.in_place          bytes, or "never"; the same with h2d.copy_threads, h2d.direct and d2h
 *   chunk, threads
 *
 * What is left out keeps its default.
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_COMMON_TUNING_H
#define IBX_FRONTEND_GLUE_BACK_END_COMMON_TUNING_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define IBX_CHOICE_NEVER      UINT64_MAX           /* as a `_min` */
#define IBX_CHOICE_SIZE_MAX   (1ull << 40)         /* the largest other size */
#define IBX_CHOICE_TO_MAX     ((uint64_t)1 << 20)  /* most for inline_max to the device */
#define IBX_CHOICE_FROM_MAX   ((uint64_t)64 << 10) /* most for inline_max from the device */
#define IBX_CHOICE_CHUNK_UNIT ((size_t)64 << 10)   /* a chunk is a multiple of it */
#define IBX_TUNING_NAME_MAX   128

enum ibx_choice_direction { IBX_CHOICE_TO_DEVICE, IBX_CHOICE_FROM_DEVICE };

/* Bytes. */
struct ibx_choice_way {
    uint64_t inline_max;
    uint64_t in_place_min, copy_threads_min, direct_min;
};

struct ibx_choice {
    struct ibx_choice_way ways[2]; /* by direction */
    size_t chunk;                  /* bytes of a long copy in one chunk */
    unsigned threads;              /* copy threads; 0: by the number of processors */
};

extern const struct ibx_choice ibx_choice_default;

struct ibx_cuda;

/* A GPU of this host, in characters that the file can hold; "": not known. */
struct ibx_tuning_machine {
    char gpu[IBX_TUNING_NAME_MAX];
    char driver[16]; /* the CUDA version that it supports: "12.8" */
    char host[IBX_TUNING_NAME_MAX];
};

struct ibx_tuning {
    bool found; /* false: nothing below counts */
    struct ibx_choice choice;
    struct ibx_tuning_machine machine; /* "": any */
    char file[256];                    /* for messages; cut if it is longer */
};

/* Reads `length` bytes of a file called `name`. -EINVAL names file, line, value and what is
 * accepted; -ENOMEM. Set on success only. */
int ibx_tuning_parse(const char *name, const char *text, size_t length, struct ibx_tuning *tuning,
                     struct ibx_error *err);
/* Reads a file; also -ENOENT and other errors of open(2) and read(2). */
int ibx_tuning_load(const char *file, struct ibx_tuning *tuning, struct ibx_error *err);
/* Writes what ibx_tuning_parse() reads back as the same; errors are the stream's. */
void ibx_tuning_print(const struct ibx_tuning *tuning, FILE *out);

/* For people: the paths of copies in one direction. `threads` is the number of copy threads, 0 or 1
 * for none; `direct`: that path is possible. Cut if `text` is too short. */
void ibx_tuning_describe(const struct ibx_choice *choice, enum ibx_choice_direction direction,
                         unsigned threads, bool direct, char *text, size_t size);

/* The machine of a device of this driver, as far as the driver tells. */
void ibx_tuning_machine_of(const struct ibx_cuda *cuda, int device,
                           struct ibx_tuning_machine *machine);
/* 0: the measurement holds on that machine; otherwise -EXDEV. */
int ibx_tuning_fits(const struct ibx_tuning *tuning, const struct ibx_tuning_machine *machine,
                    struct ibx_error *err);

#endif
