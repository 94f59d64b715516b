/* SPDX-License-Identifier: LGPL-2.1-or-later */
#ifndef IBX_TESTS_SCENES_CHOICE_SOUND_H
#define IBX_TESTS_SCENES_CHOICE_SOUND_H

#include "frontend-glue/back_end/tuning.h"
#include "gpudirect/gpudirect.h"

static inline bool from_size_sound(uint64_t size)
{
    return size <= IBX_CHOICE_SIZE_MAX || size == IBX_CHOICE_NEVER;
}

/* Whether all numbers are within their bounds. */
static inline bool choice_sound(const struct ibx_choice *choice)
{
    bool sound = choice->chunk && choice->chunk <= IBX_PINNED_CHUNK &&
                 choice->chunk % IBX_CHOICE_CHUNK_UNIT == 0 &&
                 choice->threads <= IBX_COPY_THREADS_MAX &&
                 choice->ways[IBX_CHOICE_TO_DEVICE].inline_max <= IBX_CHOICE_TO_MAX &&
                 choice->ways[IBX_CHOICE_FROM_DEVICE].inline_max <= IBX_CHOICE_FROM_MAX;
    for (unsigned d = 0; d < 2; d++) {
        const struct ibx_choice_way *way = &choice->ways[d];
        sound = sound && from_size_sound(way->in_place_min) &&
                from_size_sound(way->copy_threads_min) && from_size_sound(way->direct_min);
    }
    return sound;
}

#endif
