/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/choice.h"

#include "gpudirect/copy_threads.h"
#include "gpudirect/pinned.h"

/* Measured on an H200. To the device the driver has short pageable memory in its commands, from it
 * pinned memory is always faster. */
const struct ibx_choice ibx_choice_default = {
    .ways = {[IBX_CHOICE_TO_DEVICE] = {.inline_max = 16u << 10, .crew_min = 4u << 20},
             [IBX_CHOICE_FROM_DEVICE] = {.inline_max = 0, .crew_min = 1u << 20}},
    .chunk = IBX_PINNED_CHUNK,
};

static bool size_sound(uint64_t size)
{
    return size <= IBX_CHOICE_SIZE_MAX || size == IBX_CHOICE_NEVER;
}

static bool way_sound(const struct ibx_choice_way *way, uint64_t inline_most)
{
    return way->inline_max <= inline_most && size_sound(way->in_place_min) &&
           size_sound(way->crew_min) && size_sound(way->direct_min);
}

bool ibx_choice_sound(const struct ibx_choice *choice)
{
    return way_sound(&choice->ways[IBX_CHOICE_TO_DEVICE], IBX_CHOICE_TO_MAX) &&
           way_sound(&choice->ways[IBX_CHOICE_FROM_DEVICE], IBX_CHOICE_FROM_MAX) && choice->chunk &&
           choice->chunk <= IBX_PINNED_CHUNK && choice->chunk % IBX_CHOICE_CHUNK_UNIT == 0 &&
           choice->threads <= IBX_COPY_THREADS_THREADS_MAX;
}
