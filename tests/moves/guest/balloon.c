/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "balloon.h"
#include "ports.h"

#define PAGE       4096u
#define PAGE_WORDS (PAGE / 4)
#define LEGACY_ID  0x10021af4u /* of the balloon: device, vendor */
#define QUEUE_MAX  256u
#define BATCH      32u /* pages in one request */
#define COMMAND_ON 5u  /* I/O and bus mastering */
#define DRIVER     3u  /* acknowledged, and driven */
#define DRIVER_OK  7u

/* Registers, bytes from the base of the first BAR. */
enum {
    FEATURES = 4,
    QUEUE_PAGE = 8,
    QUEUE_SIZE = 12,
    SELECT = 14,
    NOTIFY = 16,
    STATUS = 18,
    WANTED = 20,
    ACTUAL = 24
};

struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};

/* Descriptors and the available ring, then the used ring on a page of its own. */
struct queue {
    uint8_t bytes[4 * PAGE];
} __attribute__((aligned(4096)));

static struct queue queues[2]; /* inflate, deflate */
static uint16_t sizes[2], turns[2];
static uint32_t frames[BATCH]; /* page numbers of a request */
static uint16_t port;          /* 0: there is none */
static uintptr_t base;
static uint32_t room, given, looked;

static uint32_t config(uint32_t slot, uint32_t offset)
{
    outl(0xcf8, 0x80000000u | slot << 11 | offset);
    return inl(0xcfc);
}

static uint16_t at(uint32_t reg)
{
    return (uint16_t)(port + reg);
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

/* What was given back may read as zeros or as it was, but as nothing else. */
static int is_right(uintptr_t page, int was_given)
{
    const volatile uint32_t *words = (const volatile uint32_t *)page;
    const int zero = was_given && !words[0];
    for (uint32_t i = 0; i < PAGE_WORDS; i++)
        if (words[i] != (zero ? 0 : word_of(page, i)))
            return 0;
    return 1;
}

static void find(void)
{
    for (uint32_t slot = 0; slot < 32; slot++) {
        if (config(slot, 0) != LEGACY_ID || !(config(slot, 0x10) & 1))
            continue;
        port = (uint16_t)(config(slot, 0x10) & ~3u);
        config(slot, 4);
        outl(0xcfc, COMMAND_ON);
        return;
    }
}

void balloon_init(uintptr_t from, uint32_t pages)
{
    base = from;
    room = pages;
    find();
    if (!port)
        return;
    for (uint32_t i = 0; i < room; i++)
        fill(base + (uintptr_t)i * PAGE);
    outb(at(STATUS), DRIVER);
    outl(at(FEATURES), 0);
    for (uint16_t i = 0; i < 2; i++) {
        outw(at(SELECT), i);
        sizes[i] = inw(at(QUEUE_SIZE));
        if (!sizes[i] || sizes[i] > QUEUE_MAX) {
            port = 0;
            return;
        }
        outl(at(QUEUE_PAGE), (uint32_t)((uintptr_t)&queues[i] / PAGE));
    }
    outb(at(STATUS), DRIVER_OK);
}

/* One request, and its end. */
static void request(uint16_t which, uint32_t pages)
{
    const uint32_t size = sizes[which], rings = 16 * size;
    const uint32_t used_at = (rings + 6 + 2 * size + PAGE - 1) / PAGE * PAGE;
    struct descriptor *first = (struct descriptor *)queues[which].bytes;
    volatile uint16_t *available = (volatile uint16_t *)(queues[which].bytes + rings);
    const volatile uint16_t *used = (const volatile uint16_t *)(queues[which].bytes + used_at);
    *first = (struct descriptor){(uintptr_t)frames, 4 * pages, 0, 0};
    available[2 + turns[which] % size] = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    available[1] = ++turns[which];
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    outw(at(NOTIFY), which);
    while (used[1] != turns[which])
        __asm__ volatile("pause");
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* The first `count` of those from page `from` on. */
static void exchange(uint16_t which, uint32_t from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        frames[i] = (uint32_t)(base / PAGE) + from + i;
    request(which, count);
}

uintptr_t balloon_turn(uint32_t *now, int *changed)
{
    const uint32_t before = given, wished = port ? inl(at(WANTED)) : 0;
    const uint32_t wanted = wished < room ? wished : room;
    uintptr_t wrong = 0;
    while (port && given < wanted) {
        const uint32_t n = wanted - given < BATCH ? wanted - given : BATCH;
        exchange(0, given, n);
        given += n;
    }
    while (port && given > wanted) {
        const uint32_t n = given - wanted < BATCH ? given - wanted : BATCH;
        given -= n;
        exchange(1, given, n);
        for (uint32_t i = 0; i < n; i++) {
            const uintptr_t page = base + (uintptr_t)(given + i) * PAGE;
            wrong = wrong || is_right(page, 1) ? wrong : page;
            fill(page);
        }
    }
    if (given != before)
        outl(at(ACTUAL), given);
    if (port && given < room) {
        const uintptr_t page = base + (uintptr_t)(given + looked++ % (room - given)) * PAGE;
        wrong = wrong || is_right(page, 0) ? wrong : page;
    }
    *now = given;
    *changed = given != before;
    return wrong;
}
