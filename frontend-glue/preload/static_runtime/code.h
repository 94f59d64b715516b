/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Jumps that are written over functions of this process. For use in the loader, like early.h. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_CODE_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a jump to an address nearby, and of a jump through a pointer in memory. */
#ifdef __aarch64__
#define IBX_CODE_JUMP    4
#define IBX_CODE_JUMP_BY 20
#define IBX_CODE_PAD     4
#else
#define IBX_CODE_JUMP    5
#define IBX_CODE_JUMP_BY 18
#define IBX_CODE_PAD     0
#endif
#define IBX_CODE_MOST (IBX_CODE_PAD + IBX_CODE_JUMP_BY)

/* A jump from the address `at` to a function. False: it is too far away, more than 128 MiB with
 * aarch64, 2 GiB with x86-64. */
bool ibx_code_jump(uint8_t bytes[IBX_CODE_JUMP], const void *at, const void *function);
/* The bytes of a jump through memory for a function of this length, which has at least
 * IBX_CODE_JUMP_BY. With aarch64, pages may be mapped so that a call by a pointer has to find a
 * landing pad (PROT_BTI): if the function begins with one, the jump does, if there is room. */
size_t ibx_code_jump_bytes(const void *function, size_t length);
/* Such a jump, to *place. The target finds `place` in register r11, with aarch64 in x16. */
void ibx_code_jump_by(uint8_t bytes[IBX_CODE_MOST], size_t n, const void *place);

/* A range of code that can be written between _open() and _close(). */
struct ibx_code {
    int memory; /* /proc/self/mem; -1: the pages were made writable */
    uintptr_t first;
    size_t n;
    int protection;
};

/* Makes n bytes of code at `at` writable, which have this protection (PROT_*) now. They stay
 * readable and executable, because functions in the same pages may be running. 0, or -errno: it may
 * not be changed, and nothing has to be closed. */
int ibx_code_open(struct ibx_code *code, void *at, size_t n, int protection);
bool ibx_code_write(const struct ibx_code *code, void *to, const void *bytes, size_t n);
void ibx_code_close(const struct ibx_code *code);

#endif
