/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/elf_functions.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNELS   ".nv_fatbin"
#define TABLE_MAX ((size_t)1 << 30) /* bytes, of names and of symbols */

#ifdef __x86_64__
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_NONE
#endif

/* With a zero behind it. NULL: it is not there, too much, or there is no memory. */
static void *read_part(int file, size_t at, size_t n)
{
    char *bytes = n <= TABLE_MAX ? malloc(n + 1) : NULL;
    size_t done = 0;
    while (bytes && done < n) {
        const ssize_t got = pread(file, bytes + done, n - done, (off_t)(at + done));
        if (got <= 0) {
            free(bytes);
            return NULL;
        }
        done += (size_t)got;
    }
    if (bytes)
        bytes[n] = 0;
    return bytes;
}

static bool read_symbols(int file, struct ibx_elf *elf, const ElfW(Shdr) * sections,
                         const ElfW(Shdr) * table)
{
    if (table->sh_entsize != sizeof(ElfW(Sym)) || table->sh_link >= elf->head.e_shnum)
        return false;
    const ElfW(Shdr) *names = &sections[table->sh_link];
    elf->symbols = read_part(file, table->sh_offset, table->sh_size);
    elf->names = elf->symbols ? read_part(file, names->sh_offset, names->sh_size) : NULL;
    elf->names_size = names->sh_size;
    elf->count = elf->names ? table->sh_size / sizeof(ElfW(Sym)) : 0;
    return elf->names;
}

static bool read_sections(int file, struct ibx_elf *elf, const ElfW(Shdr) * sections)
{
    const ElfW(Shdr) *names = &sections[elf->head.e_shstrndx];
    char *text = read_part(file, names->sh_offset, names->sh_size);
    bool good = text;
    for (size_t i = 0; i < elf->head.e_shnum && good; i++) {
        if (sections[i].sh_name < names->sh_size && !strcmp(text + sections[i].sh_name, KERNELS))
            elf->has_kernels = true;
        if (sections[i].sh_type == SHT_SYMTAB && !elf->symbols)
            good = read_symbols(file, elf, sections, &sections[i]);
    }
    free(text);
    return good;
}

bool ibx_elf_read(int file, struct ibx_elf *elf)
{
    const ElfW(Ehdr) *head = &elf->head;
    *elf = (struct ibx_elf){.count = 0};
    if (pread(file, &elf->head, sizeof(elf->head), 0) != (ssize_t)sizeof(elf->head) ||
        memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
        head->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        head->e_machine != MACHINE || head->e_shentsize != sizeof(ElfW(Shdr)) ||
        head->e_shstrndx >= head->e_shnum)
        return false;
    ElfW(Shdr) *sections = read_part(file, head->e_shoff, head->e_shnum * sizeof(*sections));
    const bool good = sections && read_sections(file, elf, sections);
    free(sections);
    return good;
}

void ibx_elf_free(struct ibx_elf *elf)
{
    free(elf->symbols);
    free(elf->names);
    *elf = (struct ibx_elf){.count = 0};
}

const char *ibx_elf_function(const struct ibx_elf *elf, size_t i)
{
    const ElfW(Sym) *s = &elf->symbols[i];
    return (s->st_info & 15) == STT_FUNC && s->st_shndx != SHN_UNDEF && s->st_name < elf->names_size
               ? elf->names + s->st_name
               : NULL;
}
