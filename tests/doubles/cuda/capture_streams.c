/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams in the capture of the runtime's double. Each counts what it does; a stream that waits
 * for an event knows of what came before that. At the end the first one must know of all, or CUDA
 * refuses that. Each has the nodes behind which its next one comes, as an event has those of its
 * stream; a node that the program makes these knows of what came before it. Called under the lock.
 */
#include "tests/doubles/cuda/internal.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS 8u
#define EVENTS  64u
#define NODES   64u

struct known {
    unsigned of[STREAMS]; /* of what each stream has done */
    void *behind[NODES];  /* nodes */
    size_t count;
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

static struct {
    const void *node; /* NULL: a free place */
    struct known known;
} nodes[NODES]; /* that were captured */

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
    memset(nodes, 0, sizeof(nodes));
    streams[0].stream = stream;
    captures++;
}

static void add_behind(struct known *k, void *node)
{
    size_t i = 0;
    while (i < k->count && k->behind[i] != node)
        i++;
    if (i == NODES)
        abort();
    k->behind[i] = node;
    k->count += i == k->count;
}

/* What is known by what comes behind `from`, too. */
static void learn(struct known *k, const struct known *from)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (k->of[i] < from->of[i])
            k->of[i] = from->of[i];
}

static struct known *known_to(const void *node)
{
    unsigned i = 0;
    while (i < NODES && nodes[i].node && nodes[i].node != node)
        i++;
    if (i == NODES)
        abort();
    return nodes[i].node ? &nodes[i].known : NULL;
}

static void note_node(const void *node, const struct known *known)
{
    unsigned i = 0;
    while (i < NODES && nodes[i].node)
        i++;
    if (i == NODES)
        abort();
    nodes[i].node = node;
    nodes[i].known = *known;
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

void capture_streams_node(const void *stream, void *node)
{
    const unsigned i = place_of(stream);
    if (!stream || i == STREAMS)
        return;
    streams[i].known.of[i]++;
    streams[i].known.behind[0] = node;
    streams[i].known.count = 1;
    note_node(node, &streams[i].known);
}

size_t capture_streams_behind(const void *stream, void **behind)
{
    const unsigned i = place_of(stream);
    if (!stream || i == STREAMS)
        return 0;
    memcpy(behind, streams[i].known.behind, streams[i].known.count * sizeof(*behind));
    return streams[i].known.count;
}

/* A node that the program has added to the graph comes behind nodes of the capture, of which this
 * double does not know: but who names it, has asked, and its stream has joined by that. */
void capture_streams_set(const void *stream, void *const *made, size_t count, bool adds)
{
    const unsigned i = place_of(stream);
    if (!stream || i == STREAMS)
        return;
    struct known *k = &streams[i].known;
    k->count = adds ? k->count : 0;
    for (size_t n = 0; n < count; n++) {
        const struct known *known = known_to(made[n]);
        if (known)
            learn(k, known);
        add_behind(k, made[n]);
    }
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

bool capture_has_event(const void *event)
{
    unsigned e = 0;
    while (e < EVENTS && events[e].event != event)
        e++;
    return e < EVENTS && streams[0].stream && events[e].capture == captures;
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
    learn(&streams[i].known, &events[e].known);
    for (size_t n = 0; n < events[e].known.count; n++)
        add_behind(&streams[i].known, events[e].known.behind[n]);
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
