/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "virtio.h"
#include "ports.h"

#define QUEUE_MAX  256u
#define COMMAND_ON 5u /* I/O and bus mastering */
#define PORTS      0xc000u
#define PORTS_EACH 0x100u
#define DRIVER     3u /* acknowledged, and driven */
#define DRIVER_OK  7u
#define NEXT       1u /* a descriptor follows */

/* Registers, bytes from the base of the first BAR. */
enum {
    OFFERED = 0,
    FEATURES = 4,
    QUEUE_PAGE = 8,
    QUEUE_SIZE = 12,
    SELECT = 14,
    NOTIFY = 16,
    STATUS = 18
};

struct descriptor {
    uint64_t address;
    uint32_t length;
    uint16_t flags, next;
};

static uint32_t config(uint32_t slot, uint32_t offset)
{
    outl(0xcf8, 0x80000000u | slot << 11 | offset);
    return inl(0xcfc);
}

/* Where the device's registers are. SeaBIOS has chosen; qboot leaves that to an operating system.
 */
static uint16_t ports(uint32_t slot)
{
    if (!(config(slot, 0x10) & ~3u))
        outl(0xcfc, PORTS + slot * PORTS_EACH);
    return (uint16_t)(config(slot, 0x10) & ~3u);
}

static uint16_t at(const struct virtio *v, uint32_t reg)
{
    return (uint16_t)(v->port + reg);
}

static void find(struct virtio *v, uint32_t identity)
{
    for (uint32_t slot = 0; slot < 32; slot++) {
        if (config(slot, 0) != identity || !(config(slot, 0x10) & 1))
            continue;
        v->port = ports(slot);
        config(slot, 4);
        outl(0xcfc, COMMAND_ON);
        return;
    }
}

void virtio_begin(struct virtio *v, uint32_t identity, uint32_t features, uint16_t first,
                  uint16_t end)
{
    find(v, identity);
    if (!v->port)
        return;
    outb(at(v, STATUS), DRIVER);
    outl(at(v, FEATURES), inl(at(v, OFFERED)) & features);
    for (uint16_t i = first; i < end; i++) {
        outw(at(v, SELECT), i);
        v->sizes[i] = inw(at(v, QUEUE_SIZE));
        if (!v->sizes[i] || v->sizes[i] > QUEUE_MAX) {
            v->port = 0;
            return;
        }
        outl(at(v, QUEUE_PAGE), (uint32_t)((uintptr_t)&v->queues[i] / PAGE));
    }
    outb(at(v, STATUS), DRIVER_OK);
}

void virtio_put(struct virtio *v, uint16_t which, uint32_t i, void *memory, uint32_t length,
                uint16_t flags)
{
    struct descriptor *all = (struct descriptor *)v->queues[which].bytes;
    all[i] = (struct descriptor){(uintptr_t)memory, length, flags, 0};
}

void virtio_request(struct virtio *v, uint16_t which, uint16_t count)
{
    const uint32_t size = v->sizes[which], rings = 16 * size;
    const uint32_t used_at = (rings + 6 + 2 * size + PAGE - 1) / PAGE * PAGE;
    uint8_t *bytes = v->queues[which].bytes;
    struct descriptor *all = (struct descriptor *)bytes;
    volatile uint16_t *available = (volatile uint16_t *)(bytes + rings);
    const volatile uint16_t *used = (const volatile uint16_t *)(bytes + used_at);
    for (uint16_t i = 0; i + 1 < count; i++) {
        all[i].flags |= NEXT;
        all[i].next = (uint16_t)(i + 1);
    }
    available[2 + v->turns[which] % size] = 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    available[1] = ++v->turns[which];
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    outw(at(v, NOTIFY), which);
    while (used[1] != v->turns[which])
        __asm__ volatile("pause");
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
