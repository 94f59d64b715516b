/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "balloon.h"
#include "ports.h"
#include "virtio.h"

#define PAGE_WORDS (PAGE / 4)
#define LEGACY_ID  0x10021af4u /* of the balloon: device, vendor */
#define BATCH      32u         /* pages in one request */

/* Registers, bytes from the device's port. */
enum { WANTED = VIRTIO_CONFIG, ACTUAL = VIRTIO_CONFIG + 4 };
enum { INFLATE, DEFLATE, QUEUES };

static struct virtio_queue queues[QUEUES];
static struct virtio balloon = {.queues = queues};
static uint32_t frames[BATCH]; /* page numbers of a request */
static uintptr_t base;
static uint32_t room, given, looked;

static uint16_t at(uint32_t reg)
{
    return (uint16_t)(balloon.port + reg);
}

static uint32_t word_of(uintptr_t page, uint32_t i)
{
    return (uint32_t)page ^ (i * 2654435761u) ^ 0x5bd1e995u;
}

static void fill(uintptr_t page)
{
    for (uint32_t i = 0; i < PAGE_WORDS; i++)
        ((volatile uint32_t *)page)[i] = word_of(page, i);
}

/* A page that was given back may read as zeros or as it was, but as nothing else. */
static int is_right(uintptr_t page, int was_given)
{
    const volatile uint32_t *words = (const volatile uint32_t *)page;
    const int zero = was_given && !words[0];
    for (uint32_t i = 0; i < PAGE_WORDS; i++)
        if (words[i] != (zero ? 0 : word_of(page, i)))
            return 0;
    return 1;
}

void balloon_init(uintptr_t from, uint32_t pages, uint32_t features)
{
    base = from;
    room = pages;
    virtio_begin(&balloon, LEGACY_ID, features, INFLATE, QUEUES);
    for (uint32_t i = 0; balloon.port && i < room; i++)
        fill(base + (uintptr_t)i * PAGE);
}

/* Gives or takes the first `count` pages from page `from` on. */
static void exchange(uint16_t which, uint32_t from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        frames[i] = (uint32_t)(base / PAGE) + from + i;
    virtio_put(&balloon, which, 0, frames, 4 * count, 0);
    virtio_request(&balloon, which, 1);
}

uintptr_t balloon_turn(uint32_t *now, int *changed)
{
    const uint32_t before = given, wished = balloon.port ? inl(at(WANTED)) : 0;
    const uint32_t wanted = wished < room ? wished : room;
    uintptr_t wrong = 0;
    while (balloon.port && given < wanted) {
        const uint32_t n = wanted - given < BATCH ? wanted - given : BATCH;
        exchange(INFLATE, given, n);
        given += n;
    }
    while (balloon.port && given > wanted) {
        const uint32_t n = given - wanted < BATCH ? given - wanted : BATCH;
        given -= n;
        exchange(DEFLATE, given, n);
        for (uint32_t i = 0; i < n; i++) {
            const uintptr_t page = base + (uintptr_t)(given + i) * PAGE;
            wrong = wrong || is_right(page, 1) ? wrong : page;
            fill(page);
        }
    }
    if (given != before)
        outl(at(ACTUAL), given);
    if (balloon.port && given < room) {
        const uintptr_t page = base + (uintptr_t)(given + looked++ % (room - given)) * PAGE;
        wrong = wrong || is_right(page, 0) ? wrong : page;
    }
    *now = given;
    *changed = given != before;
    return wrong;
}
