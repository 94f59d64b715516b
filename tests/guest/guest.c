/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A guest of our own, without an operating system: churns its memory (churn.h) on one or two vCPUs
 * for ever and prints a heartbeat a beat on the first serial port:
 *
 *     beat CPU COUNT CHECKSUM TSC        all but CPU in hexadecimal
 *
 * Command line: mib=N cpus=N beat=PAGES idle=TICKS (time-stamp ticks without touching memory after
 * every beat), beats=N (then halt).
 */
#include "churn.h"

#include <stddef.h>

#define SERIAL    0x3f8
#define LAPIC_ICR 0xfee00300u
#define LAPIC_SVR 0xfee000f0u
#define ICR_BUSY  0x1000u

struct multiboot {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline;
};

struct guest {
    uint32_t mib, cpus, beat, idle, beats;
};

extern const uint8_t trampoline[], trampoline_end[];
void guest_main(const struct multiboot *boot);
void guest_other(void);
void *memcpy(void *to, const void *from, size_t n);

static struct guest guest = {CHURN_MIB, CHURN_CPUS, CHURN_BEAT, 0, 0};
static volatile uint32_t serial_lock;

static inline void outb(uint16_t port, uint8_t value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port));
}

static inline uint8_t inb(uint16_t port)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

static inline uint64_t tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return ((uint64_t)high << 32) | low;
}

static void spin(uint32_t ticks)
{
    uint64_t from = tsc();
    while (tsc() - from < ticks)
        __asm__ volatile("pause");
}

/* The compiler may call it for a structure. */
void *memcpy(void *to, const void *from, size_t n)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    while (n--)
        *t++ = *f++;
    return to;
}

/* ------------------------------------------------------------ serial port */

static void put(char c)
{
    while (!(inb(SERIAL + 5) & 0x20))
        __asm__ volatile("pause");
    outb(SERIAL, (uint8_t)c);
}

static void put_text(const char *text)
{
    while (*text)
        put(*text++);
}

static void put_hex(uint32_t value)
{
    for (int shift = 28; shift >= 0; shift -= 4)
        put("0123456789abcdef"[(value >> shift) & 15]);
}

static void serial_init(void)
{
    outb(SERIAL + 1, 0);    /* no interrupts */
    outb(SERIAL + 3, 0x80); /* the divisor: 115200 baud */
    outb(SERIAL + 0, 1);
    outb(SERIAL + 1, 0);
    outb(SERIAL + 3, 3); /* 8N1 */
    outb(SERIAL + 2, 7);
}

static void heartbeat(uint32_t cpu, const struct churn *c)
{
    uint64_t now = tsc();
    while (__atomic_exchange_n(&serial_lock, 1, __ATOMIC_ACQUIRE))
        __asm__ volatile("pause");
    put_text("beat ");
    put((char)('0' + cpu));
    put(' ');
    put_hex(c->count);
    put(' ');
    put_hex(c->sum);
    put(' ');
    put_hex((uint32_t)(now >> 32));
    put_hex((uint32_t)now);
    put('\n');
    __atomic_store_n(&serial_lock, 0, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------ command line */

/* The number after "NAME=", wherever it stands at the start of a word; `value` without one. */
static uint32_t option(const char *line, const char *name, uint32_t value)
{
    for (const char *p = line; *p; p++) {
        if (p > line && p[-1] != ' ')
            continue;
        const char *a = p, *b = name;
        while (*b && *a == *b)
            a++, b++;
        if (*b || *a != '=')
            continue;
        for (value = 0, a++; *a >= '0' && *a <= '9'; a++)
            value = value * 10 + (uint32_t)(*a - '0');
    }
    return value;
}

/* Too little memory would wrap silently into holes: say so and stop. */
static int fits(const struct multiboot *boot)
{
    uint32_t need = (CHURN_BASE >> 10) + guest.mib * 1024;
    if (guest.mib && guest.cpus >= 1 && guest.cpus <= 2 && guest.beat &&
        (!(boot->flags & 1) || boot->mem_upper + 1024 + 512 >= need))
        return 1;
    put_text("ibx guest: the options do not fit this machine\n");
    return 0;
}

/* ------------------------------------------------------------ vCPUs */

static void run(uint32_t cpu)
{
    struct churn c;
    uint32_t pages = churn_pages(guest.mib, guest.cpus);
    uintptr_t at = CHURN_BASE + (uintptr_t)cpu * pages * 4096;
    /* Firmware leaves its scratch behind. */
    for (uint32_t i = 0; i < pages * CHURN_PAGE_WORDS; i++)
        ((volatile uint32_t *)at)[i] = 0;
    churn_init(&c, (uint32_t *)at, pages, guest.beat, cpu);
    while (!guest.beats || c.count < guest.beats) {
        churn_beat(&c);
        heartbeat(cpu, &c);
        if (guest.idle)
            spin(guest.idle);
    }
}

void guest_other(void)
{
    run(1);
}

static void lapic_write(uintptr_t address, uint32_t value)
{
    *(volatile uint32_t *)address = value;
}

static void icr(uint32_t command)
{
    lapic_write(LAPIC_ICR, command);
    while (*(volatile uint32_t *)(uintptr_t)LAPIC_ICR & ICR_BUSY)
        __asm__ volatile("pause");
}

/* INIT, then the trampoline, to all but ourselves. */
static void start_other(void)
{
    memcpy((void *)(uintptr_t)0x8000, trampoline, (size_t)(trampoline_end - trampoline));
    lapic_write(LAPIC_SVR, 0x1ff);
    icr(0x000c4500);
    spin(20000000);
    icr(0x000c4608);
}

void guest_main(const struct multiboot *boot)
{
    serial_init();
    if (boot->flags & 4) {
        const char *line = (const char *)(uintptr_t)boot->cmdline;
        guest.mib = option(line, "mib", guest.mib);
        guest.cpus = option(line, "cpus", guest.cpus);
        guest.beat = option(line, "beat", guest.beat);
        guest.idle = option(line, "idle", guest.idle);
        guest.beats = option(line, "beats", guest.beats);
    }
    if (!fits(boot))
        return;
    put_text("ibx guest\n");
    if (guest.cpus == 2)
        start_other();
    run(0);
}
