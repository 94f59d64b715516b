/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams in the capture of the runtime's double. Each counts what it does; a stream that waits
 * for an event knows of what came before that. At the end the first one must know of all, or CUDA
 * refuses that. Called under the lock.
 */
#include "tests/doubles/cuda/internal.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS 8u
#define EVENTS  64u

struct known {
    unsigned of[STREAMS]; /* of what each stream has done */
};

static struct {
    const void *stream; /* the first one has begun the capture; NULL: a free place */
    struct known known;
} streams[STREAMS];

static struct {
    const void *event; /* NULL: a free place */
    unsigned capture;  /* in which it was recorded */
    struct known known;
} events[EVENTS];

static unsigned captures; /* so far */

static unsigned place_of(const void *stream)
{
    unsigned i = 0;
    while (i < STREAMS && streams[i].stream != stream)
        i++;
    return i;
}

void capture_streams_reset(void *stream)
{
    memset(streams, 0, sizeof(streams));
    streams[0].stream = stream;
    captures++;
}

bool capture_has(const void *stream)
{
    return stream && place_of(stream) < STREAMS;
}

void capture_streams_work(const void *stream)
{
    const unsigned i = place_of(stream);
    if (stream && i < STREAMS)
        streams[i].known.of[i]++;
}

void capture_forgets(const void *event)
{
    for (unsigned i = 0; i < EVENTS; i++)
        if (events[i].event == event)
            events[i].event = NULL;
}

void capture_records(const void *stream, const void *event)
{
    unsigned i = 0;
    capture_forgets(event);
    if (!capture_has(stream))
        return;
    while (i < EVENTS && events[i].event && events[i].capture == captures)
        i++;
    if (i == EVENTS)
        abort();
    events[i].event = event;
    events[i].capture = captures;
    events[i].known = streams[place_of(stream)].known;
}

/* Whether the capture in which the event was recorded is under way. If it is over, nobody can wait
 * for the event, as on an H200, whose graph may still exist. */
int capture_joins(const void *stream, const void *event, bool *lost)
{
    unsigned e = 0, i = place_of(stream);
    while (e < EVENTS && events[e].event != event)
        e++;
    if (e == EVENTS)
        return SUCCESS;
    if (!streams[0].stream || events[e].capture != captures) {
        *lost = capture_has(stream);
        return INVALID_VALUE;
    }
    if (i == STREAMS)
        i = place_of(NULL);
    if (i == STREAMS)
        abort();
    streams[i].stream = stream;
    for (unsigned k = 0; k < STREAMS; k++)
        if (streams[i].known.of[k] < events[e].known.of[k])
            streams[i].known.of[k] = events[e].known.of[k];
    streams[i].known.of[i]++;
    return SUCCESS;
}

bool capture_is_unjoined(void)
{
    bool unjoined = false;
    for (unsigned i = 1; i < STREAMS; i++)
        unjoined = unjoined || streams[0].known.of[i] < streams[i].known.of[i];
    return unjoined;
}
