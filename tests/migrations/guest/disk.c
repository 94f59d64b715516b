/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "disk.h"
#include "ports.h"

#define IDE_CLASS  0x0101u
#define COMMAND_ON 5u /* I/O and bus mastering */
#define PORTS      0xb000u
#define READ_DMA   0xc8u
#define WRITE_DMA  0xcau
#define LBA_MODE   0xe0u
#define TO_MEMORY  0x08u
#define STARTED    0x01u
#define ENDS       0x06u /* an interrupt, an error: written to clear them */
#define BUSY       0x80u

/* Ports of the first channel. */
enum { SECTORS = 0x1f2, LBA = 0x1f3, DRIVE = 0x1f6, COMMAND = 0x1f7 };
/* Bus master registers, bytes from their base. */
enum { CONTROL = 0, STATUS = 2, TABLE = 4 };

/* What the controller reads: where one transfer goes. */
static struct __attribute__((aligned(4096))) {
    uint32_t address;
    uint16_t bytes, last;
} table;

static uint16_t port; /* 0: there is none */
static uintptr_t base;
static uint32_t parts[DISK_BUFFERS]; /* that the buffers hold, and 1; 0: none */
static uint32_t started, ended, looked;
static int writes;

static uint32_t config(uint32_t function, uint32_t offset)
{
    outl(0xcf8, 0x80000000u | function << 8 | offset);
    return inl(0xcfc);
}

static uint16_t at(uint32_t reg)
{
    return (uint16_t)(port + reg);
}

void disk_init(uintptr_t from, int to_write)
{
    base = from;
    writes = to_write;
    for (uint32_t function = 0; function < 32 * 8 && !port; function++) {
        if (config(function, 8) >> 16 != IDE_CLASS || !(config(function, 0x20) & 1))
            continue;
        if (!(config(function, 0x20) & ~3u)) /* qboot leaves them to an operating system */
            outl(0xcfc, PORTS);
        port = (uint16_t)(config(function, 0x20) & ~3u);
        config(function, 4);
        outl(0xcfc, COMMAND_ON);
    }
}

static uintptr_t buffer_of(uint32_t transfer)
{
    return base + (uintptr_t)(transfer % DISK_BUFFERS) * DISK_BYTES;
}

static void fill(uint32_t buffer, uint32_t part)
{
    volatile uint32_t *words = (volatile uint32_t *)buffer_of(buffer);
    for (uint32_t i = 0; i < DISK_BYTES / 4; i++)
        words[i] = disk_word(part * (DISK_BYTES / 4) + i);
}

static void start(void)
{
    const uint8_t direction = writes ? 0 : TO_MEMORY;
    const uint32_t sector = disk_part(started) * (DISK_BYTES / DISK_SECTOR);
    table.address = (uint32_t)buffer_of(started);
    table.bytes = (uint16_t)DISK_BYTES;
    table.last = 0x8000;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    parts[started % DISK_BUFFERS] = 0;
    if (writes)
        fill(started % DISK_BUFFERS, disk_part(started));
    outl(at(TABLE), (uint32_t)(uintptr_t)&table);
    outb(at(CONTROL), direction);
    outb(at(STATUS), ENDS);
    outb(DRIVE, (uint8_t)(LBA_MODE | sector >> 24));
    outb(SECTORS, (uint8_t)(DISK_BYTES / DISK_SECTOR));
    for (uint16_t i = 0; i < 3; i++)
        outb((uint16_t)(LBA + i), (uint8_t)(sector >> 8 * i));
    outb(COMMAND, writes ? WRITE_DMA : READ_DMA);
    outb(at(CONTROL), (uint8_t)(direction | STARTED));
    started++;
}

static int has_ended(void)
{
    if (inb(at(STATUS)) & STARTED || inb(COMMAND) & BUSY)
        return 0;
    outb(at(CONTROL), 0);
    outb(at(STATUS), ENDS);
    return 1;
}

static int is_right(uint32_t buffer)
{
    const volatile uint32_t *words = (const volatile uint32_t *)buffer_of(buffer);
    const uint32_t first = (parts[buffer] - 1) * (DISK_BYTES / 4);
    for (uint32_t i = 0; parts[buffer] && i < DISK_BYTES / 4; i++)
        if (words[i] != disk_word(first + i))
            return 0;
    return 1;
}

uint32_t disk_turn(uint32_t *transfers, int *changed)
{
    *transfers = ended;
    *changed = 0;
    if (!port)
        return 0;
    if (started == ended) {
        start();
    } else if (has_ended()) {
        parts[ended % DISK_BUFFERS] = disk_part(ended) + 1;
        *transfers = ++ended;
        *changed = 1;
    }
    const uint32_t buffer = looked++ % DISK_BUFFERS;
    return is_right(buffer) ? 0 : parts[buffer];
}
