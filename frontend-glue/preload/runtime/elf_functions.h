/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions that an ELF file of this kind of machine has by name, the hidden ones as well:
 * those of its symbol table, which a stripped file has not. Like early.h for use in the loader. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_ELF_FUNCTIONS_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_ELF_FUNCTIONS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

/* Of the file, with a zero behind it. */
struct ibx_elf_part {
    void *bytes; /* NULL: it has not been read */
    size_t n;
};

struct ibx_elf {
    ElfW(Ehdr) head;
    struct ibx_elf_part segments, sections, symbols, names;
    bool has_room; /* elf_functions.c */
};

/* The head, and what is in the file; not yet its symbols. False: it is none, or none that can be
 * read. Else, in the end, _free(), which takes whatever was read or is zeros. */
bool ibx_elf_read(int file, struct ibx_elf *elf);
/* False: they cannot be read. A file that is stripped has 0 of them. */
bool ibx_elf_read_symbols(int file, struct ibx_elf *elf);
/* Where nvcc puts them. */
bool ibx_elf_has_kernels(int file, struct ibx_elf *elf);
void ibx_elf_free(struct ibx_elf *elf);

size_t ibx_elf_count(const struct ibx_elf *elf);
const ElfW(Sym) * ibx_elf_symbol(const struct ibx_elf *elf, size_t i);
/* The name of the i-th symbol, if that is a function which the file has; else NULL. */
const char *ibx_elf_function(const struct ibx_elf *elf, size_t i);
/* The segment of this type with the address or, where that is none, the first one; else NULL. */
#define IBX_ELF_ANY ((ElfW(Addr)) - 1)
const ElfW(Phdr) * ibx_elf_segment(const struct ibx_elf *elf, ElfW(Word) type, ElfW(Addr) address);

#endif
