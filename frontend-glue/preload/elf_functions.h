/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The functions that an ELF file of this kind of machine has by name, the hidden ones as well:
 * those of its symbol table, which a stripped file has not. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_ELF_FUNCTIONS_H
#define IBX_FRONTEND_GLUE_PRELOAD_ELF_FUNCTIONS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>

struct ibx_elf {
    ElfW(Ehdr) head;
    bool has_kernels; /* where nvcc puts them */
    ElfW(Sym) * symbols;
    size_t count; /* of symbols; 0: it is stripped */
    char *names;
    size_t names_size;
};

/* False: it is none, or none that can be read. Else, in the end, _free(), which takes whatever was
 * read or is zeros. */
bool ibx_elf_read(int file, struct ibx_elf *elf);
void ibx_elf_free(struct ibx_elf *elf);
/* The name of the i-th symbol, if that is a function which the file has; else NULL. */
const char *ibx_elf_function(const struct ibx_elf *elf, size_t i);

#endif
