/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which way a copy takes, by its direction and size:
 *
 *   inline     between a message and the driver, without a chunk   up to inline_max
 *   in place   the GPU reads or writes memory that both ends map   from in_place_min
 *   crew       through pinned chunks, by several threads           from crew_min
 *   direct     the fabric reads or writes the GPU's memory         from direct_min
 *   staged     through pinned chunks                               all others
 *
 * An asynchronous copy that may be under way still when it is answered is in
 * place whatever its size, for only so can it be.
 * A way that a copy cannot take is passed over, whatever its size: so only a
 * copy inside a message is ever inline, and only one from memory that both ends
 * map in place. The numbers are measured by `ib-bw tune`.
 */
#ifndef IBX_GPUDIRECT_CHOICE_H
#define IBX_GPUDIRECT_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IBX_CHOICE_NEVER      UINT64_MAX          /* of a smallest size */
#define IBX_CHOICE_SIZE_MAX   (1ull << 40)        /* of all others */
#define IBX_CHOICE_TO_MAX     ((uint64_t)1 << 20) /* inline_max to the device: the longest message */
#define IBX_CHOICE_FROM_MAX   ((uint64_t)64 << 10) /* ... and from it */
#define IBX_CHOICE_CHUNK_UNIT ((size_t)64 << 10)   /* a chunk is a multiple of it */

enum ibx_choice_direction { IBX_CHOICE_TO_DEVICE, IBX_CHOICE_FROM_DEVICE };

/* Bytes. */
struct ibx_choice_way {
    uint64_t inline_max;
    uint64_t in_place_min, crew_min, direct_min;
};

struct ibx_choice {
    struct ibx_choice_way ways[2]; /* by direction */
    size_t chunk;                  /* bytes of a long copy in one chunk */
    unsigned threads;              /* of a crew, 0: by the processors */
};

/* What holds where nothing was measured. */
extern const struct ibx_choice ibx_choice_default;

/* Whether all numbers are within their bounds. */
bool ibx_choice_sound(const struct ibx_choice *choice);

#endif
