/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/static_runtime/elf_functions.h"

#include "frontend-glue/preload/static_runtime/early.h"

#include <stdatomic.h>

#define KERNELS   ".nv_fatbin"
#define TABLE_MAX ((size_t)1 << 30) /* bytes, of the names and of the symbols each */

#ifdef __x86_64__
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#else
#define MACHINE EM_NONE
#endif

/* A static buffer that is large enough for most files. It saves the kernel from mapping and
 * unmapping memory for each. Only one file at a time uses it. */
static char room[1 << 16];
static size_t taken;
static atomic_flag is_in_use = ATOMIC_FLAG_INIT;

static char *take(struct ibx_elf *elf, size_t n)
{
    const size_t rounded = (n + 15) & ~(size_t)15;
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    elf->has_room = false;
#endif
    if (!elf->has_room || rounded > sizeof(room) - taken)
        return ibx_early_map(n);
    taken += rounded;
    return room + taken - rounded;
}

static void give_back(char *bytes, size_t n)
{
    if (bytes && (bytes < room || bytes >= room + sizeof(room)))
        ibx_early_unmap(bytes, n);
}

/* Reads n bytes at offset `at`. False: the file has fewer, n is too large, or there is no memory.
 */
static bool read_part(int file, struct ibx_elf *elf, uint64_t at, uint64_t n,
                      struct ibx_elf_part *part)
{
    char *bytes = n <= TABLE_MAX ? take(elf, n + 1) : NULL;
    if (!bytes)
        return false;
    if (!ibx_early_read(file, bytes, n, at)) {
        give_back(bytes, n + 1);
        return false;
    }
    bytes[n] = 0;
    part->bytes = bytes;
    part->n = n;
    return true;
}

static void free_part(struct ibx_elf_part *part)
{
    give_back(part->bytes, part->n + 1);
    part->bytes = NULL;
    part->n = 0;
}

static const ElfW(Shdr) * section(const struct ibx_elf *elf, size_t i)
{
    return (const ElfW(Shdr) *)elf->sections.bytes + i;
}

bool ibx_elf_has_kernels(int file, struct ibx_elf *elf)
{
    const ElfW(Shdr) *names = section(elf, elf->head.e_shstrndx);
    struct ibx_elf_part text;
    bool has = false;
    if (!read_part(file, elf, names->sh_offset, names->sh_size, &text))
        return false;
    for (size_t i = 0; i < elf->head.e_shnum; i++)
        has =
            has || (section(elf, i)->sh_name < text.n &&
                    ibx_early_equal((const char *)text.bytes + section(elf, i)->sh_name, KERNELS));
    free_part(&text);
    return has;
}

bool ibx_elf_read(int file, struct ibx_elf *elf)
{
    const ElfW(Ehdr) *head = &elf->head;
    elf->segments = elf->sections = elf->symbols = elf->names = (struct ibx_elf_part){.n = 0};
    elf->has_room = !atomic_flag_test_and_set(&is_in_use);
    if (elf->has_room)
        taken = 0;
    return ibx_early_read(file, &elf->head, sizeof(elf->head), 0) &&
           ibx_early_same(head->e_ident, ELFMAG, SELFMAG) &&
           head->e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) &&
           head->e_machine == MACHINE && head->e_phentsize == sizeof(ElfW(Phdr)) &&
           head->e_shentsize == sizeof(ElfW(Shdr)) && head->e_shstrndx < head->e_shnum &&
           read_part(file, elf, head->e_phoff, head->e_phnum * sizeof(ElfW(Phdr)),
                     &elf->segments) &&
           read_part(file, elf, head->e_shoff, head->e_shnum * sizeof(ElfW(Shdr)), &elf->sections);
}

bool ibx_elf_read_symbols(int file, struct ibx_elf *elf)
{
    for (size_t i = 0; i < elf->head.e_shnum; i++) {
        const ElfW(Shdr) *table = section(elf, i);
        if (table->sh_type != SHT_SYMTAB)
            continue;
        if (table->sh_entsize != sizeof(ElfW(Sym)) || table->sh_link >= elf->head.e_shnum)
            return false;
        const ElfW(Shdr) *names = section(elf, table->sh_link);
        return read_part(file, elf, table->sh_offset, table->sh_size, &elf->symbols) &&
               read_part(file, elf, names->sh_offset, names->sh_size, &elf->names);
    }
    return true;
}

void ibx_elf_free(struct ibx_elf *elf)
{
    free_part(&elf->segments);
    free_part(&elf->sections);
    free_part(&elf->symbols);
    free_part(&elf->names);
    if (elf->has_room)
        atomic_flag_clear(&is_in_use);
    elf->has_room = false;
}

size_t ibx_elf_count(const struct ibx_elf *elf)
{
    return elf->names.bytes ? elf->symbols.n / sizeof(ElfW(Sym)) : 0;
}

const ElfW(Sym) * ibx_elf_symbol(const struct ibx_elf *elf, size_t i)
{
    return (const ElfW(Sym) *)elf->symbols.bytes + i;
}

const char *ibx_elf_function(const struct ibx_elf *elf, size_t i)
{
    const ElfW(Sym) *s = ibx_elf_symbol(elf, i);
    return (s->st_info & 15) == STT_FUNC && s->st_shndx != SHN_UNDEF && s->st_name < elf->names.n
               ? (const char *)elf->names.bytes + s->st_name
               : NULL;
}

const ElfW(Phdr) * ibx_elf_segment(const struct ibx_elf *elf, ElfW(Word) type, ElfW(Addr) address)
{
    const ElfW(Phdr) *all = elf->segments.bytes;
    for (size_t i = 0; i < elf->head.e_phnum; i++)
        if (all[i].p_type == type &&
            (address == IBX_ELF_ANY || address - all[i].p_vaddr < all[i].p_filesz))
            return &all[i];
    return NULL;
}
