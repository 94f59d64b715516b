/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A guest of our own, without an operating system: churns its memory (churn.h) on one or two vCPUs
 * for ever and prints a heartbeat for each beat on the first serial port:
 *
 *     beat CPU COUNT CHECKSUM TSC        all but CPU in hexadecimal
 *
 * Command line: mib=N cpus=N beat=PAGES scattered=1 (churn.h), idle=TICKS (time-stamp ticks without
 * touching memory after every beat), beats=N (then halt), button=1 (the ACPI power button shuts the
 * machine down), 2 (it is a panic, for a pvpanic device) or 3 (the machine sleeps, S3),
 * doze=NANOSECONDS (a halted processor after every beat, which costs its host nothing),
 * balloon=PAGES (behind the working set: balloon.h; prints "balloon PAGES" when it has another
 * size, "balloon wrong PAGE" when memory is not right), poison=1 (the balloon is told that pages
 * are cleared as they are freed), disk=1 (disk.h: reads; 2: writes; prints "disk COUNT" after each,
 * "disk wrong PART"), host=1 (fw_cfg.h; prints "host NAME" when the name is another one than at the
 * last beat), net=1 (network.h: sends a frame a beat; prints "link N" when its carrier has come or
 * gone, and "mac MAC" when it has set the one that fw_cfg names, opt/ibx/mac).
 */
#include "balloon.h"
#include "churn.h"
#include "disk.h"
#include "fw_cfg.h"
#include "network.h"
#include "ports.h"

#include <stddef.h>

#define SERIAL           0x3f8
#define LAPIC_ICR        0xfee00300u
#define LAPIC_SVR        0xfee000f0u
#define ICR_BUSY         0x1000u
#define LAPIC_SVR_ON     0x1ffu
#define LAPIC_TIMER      0xfee00320u
#define LAPIC_DIVIDE     0xfee003e0u
#define LAPIC_DIVIDE_ONE 0xbu
#define WAKE_VECTOR      0x40u

#define LARGE       0x200000u       /* bytes of a page in the tables */
#define HIGH        0x100000000ull  /* RAM above the devices begins here */
#define WORK        0x1000000000ull /* where the working set is mapped, in one piece */
#define WORK_GIB    64u
#define PM1_STATUS  0x600 /* where SeaBIOS puts the ACPI registers */
#define PM1_ENABLE  0x602
#define PM1_CONTROL 0x604
#define PM1_BUTTON  0x100u
#define PM1_OFF     0x2000u /* sleep, S5 */
#define PM1_SLEEP   0x2400u /* sleep, S3 */
#define PVPANIC     0x505
#define PIC_MASK_1  0x21
#define PIC_MASK_2  0xa1

#define GENERAL_PROTECTION 13u
#define CODE_64            24u     /* of boot.S */
#define INTERRUPT_GATE     0x8e00u /* present */

#define PRESENT 7u /* writable, and for all levels */
#define PAGE_2M (PRESENT | 0x80u)

struct multiboot {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, modules[2], symbols[4], map_length,
        map;
};

struct __attribute__((packed)) multiboot_range {
    uint32_t size; /* of what follows it */
    uint64_t start, length;
    uint32_t type; /* 1: RAM */
};

struct guest {
    uint32_t mib, cpus, beat, idle, beats, balloon, poison, scattered, button, doze, disk, host,
        net;
};

extern const uint8_t trampoline[], trampoline_end[], guest_wake[], guest_halt[];
void guest_main(const struct multiboot *boot);
void guest_other(void);
void *memcpy(void *to, const void *from, size_t n);

/* Page tables; boot.S fills the first, and enters it into the second. */
uint64_t guest_low[4 * 512] __attribute__((aligned(4096)));
uint64_t guest_directories[512] __attribute__((aligned(4096)));
static uint64_t guest_work[WORK_GIB][512] __attribute__((aligned(4096)));

/* Interrupts: all vCPUs' gates, which doze_init() fills. */
static struct {
    uint16_t low, selector, type, middle;
    uint32_t high, zero;
} gates[256];
extern const struct __attribute__((packed)) table {
    uint16_t limit;
    uint64_t base;
} guest_idt_pointer;
const struct table guest_idt_pointer = {sizeof(gates) - 1, (uintptr_t)gates};

static struct guest guest = {CHURN_MIB, CHURN_CPUS, CHURN_BEAT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
static volatile uint32_t serial_lock;

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

/* ------------------------------------------------------------ memory */

/* Bytes of RAM from 4 GiB on. */
static uint64_t high_bytes(const struct multiboot *boot)
{
    uint64_t at = boot->map, end = at + boot->map_length;
    while (boot->flags & 0x40 && at < end) {
        const struct multiboot_range *range = (const struct multiboot_range *)at;
        if (range->type == 1 && range->start == HIGH)
            return range->length;
        at += range->size + sizeof(range->size);
    }
    return 0;
}

/* The working set begins at CHURN_BASE, and what does not fit below the devices goes on at 4 GiB.
 * Too little memory would wrap silently into holes: say so and stop. */
static int map_work(const struct multiboot *boot)
{
    uint64_t bytes = (uint64_t)guest.mib << 20, low_end = UINT64_MAX;
    uint64_t low = ((uint64_t)boot->mem_upper + 1024) << 10, tables = 512 << 10;
    if (boot->flags & 1 && CHURN_BASE + bytes > low + tables)
        low_end = low & ~(uint64_t)(LARGE - 1);
    if (!guest.mib || guest.mib > WORK_GIB * 1024 || guest.cpus < 1 || guest.cpus > 2 ||
        !guest.beat || low_end <= CHURN_BASE ||
        (low_end != UINT64_MAX && CHURN_BASE + bytes - low_end > high_bytes(boot))) {
        put_text("ibx guest: the options do not fit this machine\n");
        return 0;
    }
    for (uint64_t i = 0; i * LARGE < bytes; i++) {
        uint64_t at = CHURN_BASE + i * LARGE;
        guest_work[i / 512][i % 512] = (at < low_end ? at : at - low_end + HIGH) | PAGE_2M;
        guest_directories[WORK / (1 << 30) + i / 512] = (uintptr_t)guest_work[i / 512] | PRESENT;
    }
    return 1;
}

/* ------------------------------------------------------------ vCPUs */

static void say_number(const char *what, uint32_t number)
{
    while (__atomic_exchange_n(&serial_lock, 1, __ATOMIC_ACQUIRE))
        __asm__ volatile("pause");
    put_text(what);
    put_hex(number);
    put('\n');
    __atomic_store_n(&serial_lock, 0, __ATOMIC_RELEASE);
}

static void say_text(const char *what, const char *text)
{
    while (__atomic_exchange_n(&serial_lock, 1, __ATOMIC_ACQUIRE))
        __asm__ volatile("pause");
    put_text(what);
    put_text(text);
    put('\n');
    __atomic_store_n(&serial_lock, 0, __ATOMIC_RELEASE);
}

static void turn_balloon(void)
{
    uint32_t pages;
    int changed;
    const uintptr_t wrong = balloon_turn(&pages, &changed);
    if (changed)
        say_number("balloon ", pages);
    if (wrong)
        say_number("balloon wrong ", (uint32_t)wrong);
}

static void turn_disk(void)
{
    uint32_t reads;
    int changed;
    const uint32_t wrong = disk_turn(&reads, &changed);
    if (changed)
        say_number("disk ", reads);
    if (wrong)
        say_number("disk wrong ", wrong - 1);
}

static void look_at_button(void)
{
    outw(PM1_ENABLE, PM1_BUTTON);
    if (!(inw(PM1_STATUS) & PM1_BUTTON))
        return;
    outw(PM1_STATUS, PM1_BUTTON);
    if (guest.button == 1)
        outw(PM1_CONTROL, PM1_OFF);
    else if (guest.button == 3)
        outw(PM1_CONTROL, PM1_SLEEP);
    else
        outb(PVPANIC, 1);
}

static void lapic_write(uintptr_t address, uint32_t value)
{
    *(volatile uint32_t *)address = value;
}

/* Every vector only wakes a processor that is halted. */
static void doze_init(void)
{
    for (unsigned i = 0; i < 256; i++) {
        const uintptr_t wake = (uintptr_t)(i == GENERAL_PROTECTION ? guest_halt : guest_wake);
        gates[i].low = (uint16_t)wake;
        gates[i].selector = CODE_64;
        gates[i].type = INTERRUPT_GATE;
        gates[i].middle = (uint16_t)(wake >> 16);
        gates[i].high = (uint32_t)(wake >> 32);
    }
    outb(PIC_MASK_1, 0xff);
    outb(PIC_MASK_2, 0xff);
    lapic_write(LAPIC_SVR, LAPIC_SVR_ON);
    lapic_write(LAPIC_DIVIDE, LAPIC_DIVIDE_ONE);
    lapic_write(LAPIC_TIMER, WAKE_VECTOR);
}

static void look_at_name(void)
{
    static char last[64];
    char name[sizeof(last)];
    int same = 1;
    if (!fw_cfg_text("opt/ibx/host", name, sizeof(name)))
        return;
    for (unsigned i = 0; i < sizeof(last) && same; i++) {
        same = name[i] == last[i];
        if (!name[i])
            break;
    }
    if (same)
        return;
    memcpy(last, name, sizeof(last));
    say_text("host ", name);
}

static void turn_network(void)
{
    char mac[NETWORK_MAC_TEXT];
    uint32_t link;
    if (network_link(&link))
        say_number("link ", link);
    if (fw_cfg_text("opt/ibx/mac", mac, sizeof(mac)) && network_take(mac))
        say_text("mac ", mac);
    network_send();
}

static void doze(void)
{
    __asm__ volatile("hlt" ::"D"(guest.doze) : "memory");
}

static void run(uint32_t cpu)
{
    struct churn c;
    uint32_t pages = churn_pages(guest.mib, guest.cpus);
    uintptr_t at = WORK + (uintptr_t)cpu * pages * 4096;
    /* Firmware leaves its working data behind. */
    for (uint64_t i = 0; i < (uint64_t)pages * CHURN_PAGE_WORDS / 2; i++)
        ((volatile uint64_t *)at)[i] = 0;
    churn_init(&c, (uint32_t *)at, pages, guest.beat, cpu, guest.scattered);
    if (guest.doze)
        doze_init();
    while (!guest.beats || c.count < guest.beats) {
        churn_beat(&c);
        heartbeat(cpu, &c);
        if (!cpu && guest.balloon)
            turn_balloon();
        if (!cpu && guest.disk)
            turn_disk();
        if (!cpu && guest.host)
            look_at_name();
        if (!cpu && guest.net)
            turn_network();
        if (!cpu && guest.button)
            look_at_button();
        if (guest.idle)
            spin(guest.idle);
        if (guest.doze)
            doze();
    }
}

void guest_other(void)
{
    run(1);
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
    lapic_write(LAPIC_SVR, LAPIC_SVR_ON);
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
        guest.balloon = option(line, "balloon", guest.balloon);
        guest.poison = option(line, "poison", guest.poison);
        guest.scattered = option(line, "scattered", guest.scattered);
        guest.button = option(line, "button", guest.button);
        guest.disk = option(line, "disk", guest.disk);
        guest.host = option(line, "host", guest.host);
        guest.net = option(line, "net", guest.net);
        guest.doze = option(line, "doze", guest.doze);
    }
    if (!map_work(boot))
        return;
    put_text("ibx guest\n");
    if (guest.balloon)
        balloon_init(CHURN_BASE + ((uintptr_t)guest.mib << 20), guest.balloon,
                     guest.poison ? BALLOON_POISON : 0);
    if (guest.disk)
        disk_init(CHURN_BASE + ((uintptr_t)guest.mib << 20), guest.disk == 2);
    if (guest.net)
        network_init();
    if (guest.cpus == 2)
        start_other();
    run(0);
}
