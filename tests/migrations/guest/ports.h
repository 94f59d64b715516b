/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guest's way to devices: x86's ports, and PCI's configuration by them. */
#ifndef TESTS_GUEST_PORTS_H
#define TESTS_GUEST_PORTS_H

#include <stdint.h>

static inline void outl(uint16_t at, uint32_t value)
{
    __asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(at));
}

static inline void outw(uint16_t at, uint16_t value)
{
    __asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(at));
}

static inline void outb(uint16_t at, uint8_t value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(at));
}

static inline uint32_t inl(uint16_t at)
{
    uint32_t value;
    __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(at));
    return value;
}

static inline uint16_t inw(uint16_t at)
{
    uint16_t value;
    __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(at));
    return value;
}

static inline uint8_t inb(uint16_t at)
{
    uint8_t value;
    __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(at));
    return value;
}

#endif
