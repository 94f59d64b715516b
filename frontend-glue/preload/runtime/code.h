/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Jumps that are written over functions of this process. Like early.h for use in the loader. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_CODE_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a jump to a function, and of one to where a word of memory points. */
#ifdef __aarch64__
#define IBX_CODE_JUMP    16
#define IBX_CODE_JUMP_BY 20
#else
#define IBX_CODE_JUMP    14
#define IBX_CODE_JUMP_BY 18
#endif

void ibx_code_jump(uint8_t bytes[IBX_CODE_JUMP], const void *function);
/* Who is jumped to finds `place` in r11; x16 with aarch64. */
void ibx_code_jump_by(uint8_t bytes[IBX_CODE_JUMP_BY], const void *place);

/* n bytes of code that may be written to, from _open() to _close(). */
struct ibx_code {
    int memory; /* the file of this process's memory; -1: the code is writable */
    uintptr_t first;
    size_t n;
    int protection;
};

/* Code that has this protection (PROT_), readable, and is executable all the while: its own
 * functions may be running. 0, or -errno: it may not be changed, and there is nothing to close. */
int ibx_code_open(struct ibx_code *code, void *at, size_t n, int protection);
bool ibx_code_write(const struct ibx_code *code, void *to, const void *bytes, size_t n);
void ibx_code_close(const struct ibx_code *code);

#endif
