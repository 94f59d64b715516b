/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "network.h"
#include "ports.h"

#define PAGE       4096u
#define LEGACY_ID  0x10001af4u /* of the card: device, vendor */
#define QUEUE_MAX  256u
#define COMMAND_ON 5u /* I/O and bus mastering */
#define DRIVER     3u /* acknowledged, and driven */
#define DRIVER_OK  7u
/* MAC and link in the configuration, a control queue, and a MAC that the driver sets. */
#define WANTED     (1u << 5 | 1u << 16 | 1u << 17 | 1u << 23)
#define ETHERTYPE  0x88b5u /* for experiments */
#define HEAD_BYTES 10u
#define FRAME      60u
#define NEXT       1u /* a descriptor follows */
#define WRITABLE   2u

/* Registers, bytes from the base of the first BAR. */
enum {
    OFFERED = 0,
    FEATURES = 4,
    QUEUE_PAGE = 8,
    QUEUE_SIZE = 12,
    SELECT = 14,
    NOTIFY = 16,
    STATUS = 18,
    MAC = 20,
    LINK = 26
};
enum { SEND = 1, CONTROL = 2, QUEUES };

struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};

/* Descriptors and the available ring, then the used ring on a page of its own. */
static struct {
    uint8_t bytes[4 * PAGE];
} __attribute__((aligned(4096))) queues[QUEUES];

static uint16_t sizes[QUEUES], turns[QUEUES];
static uint16_t port; /* 0: there is none */
static uint8_t own[6], head[HEAD_BYTES], frame[FRAME], command[2], acknowledged;
static uint32_t last_link = 1;

static uint32_t config(uint32_t slot, uint32_t offset)
{
    outl(0xcf8, 0x80000000u | slot << 11 | offset);
    return inl(0xcfc);
}

static uint16_t at(uint32_t reg)
{
    return (uint16_t)(port + reg);
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

void network_init(void)
{
    find();
    if (!port)
        return;
    outb(at(STATUS), DRIVER);
    outl(at(FEATURES), inl(at(OFFERED)) & WANTED);
    for (uint16_t i = SEND; i < QUEUES; i++) {
        outw(at(SELECT), i);
        sizes[i] = inw(at(QUEUE_SIZE));
        if (!sizes[i] || sizes[i] > QUEUE_MAX) {
            port = 0;
            return;
        }
        outl(at(QUEUE_PAGE), (uint32_t)((uintptr_t)&queues[i] / PAGE));
    }
    outb(at(STATUS), DRIVER_OK);
    for (uint32_t i = 0; i < sizeof(own); i++)
        own[i] = inb(at(MAC + i));
}

/* One request of so many descriptors, which are there, and its end. */
static void request(uint16_t which, uint16_t count)
{
    const uint32_t size = sizes[which], rings = 16 * size;
    const uint32_t used_at = (rings + 6 + 2 * size + PAGE - 1) / PAGE * PAGE;
    struct descriptor *all = (struct descriptor *)queues[which].bytes;
    volatile uint16_t *available = (volatile uint16_t *)(queues[which].bytes + rings);
    const volatile uint16_t *used = (const volatile uint16_t *)(queues[which].bytes + used_at);
    for (uint16_t i = 0; i + 1 < count; i++) {
        all[i].flags |= NEXT;
        all[i].next = (uint16_t)(i + 1);
    }
    available[2 + turns[which] % size] = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    available[1] = ++turns[which];
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    outw(at(NOTIFY), which);
    while (used[1] != turns[which])
        __asm__ volatile("pause");
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void put(uint16_t which, uint32_t i, void *memory, uint32_t length, uint16_t flags)
{
    struct descriptor *all = (struct descriptor *)queues[which].bytes;
    all[i] = (struct descriptor){(uintptr_t)memory, length, flags, 0};
}

int network_link(uint32_t *link)
{
    *link = port ? inw(at(LINK)) & 1u : last_link;
    const int changed = *link != last_link;
    last_link = *link;
    return changed;
}

static uint8_t digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

int network_take(const char *mac)
{
    int same = 1;
    for (uint32_t i = 0; i < sizeof(own); i++) {
        const uint8_t byte = (uint8_t)(digit(mac[3 * i]) << 4 | digit(mac[3 * i + 1]));
        same = same && own[i] == byte;
        own[i] = byte;
    }
    if (same || !port)
        return 0;
    command[0] = command[1] = 1; /* the MAC: set it */
    acknowledged = 0xff;
    put(CONTROL, 0, command, sizeof(command), 0);
    put(CONTROL, 1, own, sizeof(own), 0);
    put(CONTROL, 2, &acknowledged, 1, WRITABLE);
    request(CONTROL, 3);
    return !acknowledged;
}

void network_send(void)
{
    if (!port)
        return;
    for (uint32_t i = 0; i < sizeof(own); i++) {
        frame[i] = 0xff;
        frame[sizeof(own) + i] = own[i];
    }
    frame[12] = ETHERTYPE >> 8;
    frame[13] = ETHERTYPE & 0xff;
    put(SEND, 0, head, sizeof(head), 0);
    put(SEND, 1, frame, sizeof(frame), 0);
    request(SEND, 2);
}
