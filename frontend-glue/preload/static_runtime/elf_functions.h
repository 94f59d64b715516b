/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions in the symbol table of an ELF file for this machine, hidden ones included. A
 * stripped file has no such table. For use in the loader, like early.h. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_ELF_FUNCTIONS_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_ELF_FUNCTIONS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

/* A part of the file, followed by a zero byte. */
struct ibx_elf_part {
    void *bytes; /* NULL: not read */
    size_t n;
};

struct ibx_elf {
    ElfW(Ehdr) head;
    struct ibx_elf_part segments, sections, symbols, names;
    bool has_room; /* it uses the static buffer in elf_functions.c */
};

/* Reads the header and the tables of segments and sections. False: it is no such ELF file, or
 * cannot be read. In both cases _free() follows. */
bool ibx_elf_read(int file, struct ibx_elf *elf);
/* Reads the symbols and their names. False: it could not. A stripped file has 0 symbols. */
bool ibx_elf_read_symbols(int file, struct ibx_elf *elf);
/* Whether the file has the section into which nvcc puts kernels. */
bool ibx_elf_has_kernels(int file, struct ibx_elf *elf);
void ibx_elf_free(struct ibx_elf *elf);

size_t ibx_elf_count(const struct ibx_elf *elf);
const ElfW(Sym) * ibx_elf_symbol(const struct ibx_elf *elf, size_t i);
/* The name of the i-th symbol if it is a function that the file defines; else NULL. */
const char *ibx_elf_function(const struct ibx_elf *elf, size_t i);
/* The segment of this type that contains the address, or the first one of this type with
 * IBX_ELF_ANY; NULL: none. */
#define IBX_ELF_ANY ((ElfW(Addr)) - 1)
const ElfW(Phdr) * ibx_elf_segment(const struct ibx_elf *elf, ElfW(Word) type, ElfW(Addr) address);

#endif
