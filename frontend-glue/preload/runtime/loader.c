/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Libraries' constructors, which register their kernels, run before those of a library that is
 * preloaded. But this library is relocated before them, and a resolver of a function (IFUNC) that
 * it has is called then, when all that comes with the program has been mapped.
 *
 * What a program opens later the loader tells a debugger, before it calls constructors: it sets a
 * state and calls an empty function, _dl_debug_state(), whose address is known (r_brk). That one
 * becomes a jump to here, unless it is not known by its code: a debugger that has a breakpoint in
 * it keeps it. Where libc has probes for debuggers they look there instead.
 *
 * With glibc up to 2.40 new objects are not relocated at that moment, from 2.41 on they are; code
 * is changed, which no relocation does. (An auditor of the loader's, LD_AUDIT, would be told of all
 * objects, and needs a variable of its own; a dlopen(3) of ours would be the caller whose RUNPATH
 * counts.) What a program opens into a namespace of its own (dlmopen(3)) has another list, which is
 * known from glibc 2.35 on; it is left alone, and told so.
 */
#include "frontend-glue/preload/runtime/loader.h"

#include "frontend-glue/preload/runtime/early.h"

#define VECTOR "/proc/self/auxv" /* what the kernel has told the program */

static const struct r_debug *debug; /* the loader's; NULL: not known yet */
static struct link_map *last;       /* that has been looked at; NULL: nothing has */
static int state = RT_CONSISTENT;
static bool is_program_read, is_hooked, has_begun;
/* Changed by whoever has the loader's lock, and while there is one thread. */
static struct ibx_inside *all;

static void add(struct ibx_inside *inside)
{
    if (!inside)
        return;
    inside->next = all;
    all = inside;
}

/* `path`: of its file. */
static void look_at(const struct link_map *map, const char *path)
{
    add(ibx_inside_find(map, path, map->l_prev ? NULL : &is_program_read));
}

static bool is_listed(const struct link_map *map)
{
    for (const struct link_map *l = debug->r_map; l; l = l->l_next)
        if (l == map)
            return true;
    return false;
}

static void forget_gone(void)
{
    for (struct ibx_inside **at = &all; *at;) {
        struct ibx_inside *inside = *at;
        if (is_listed(inside->map)) {
            at = &inside->next;
            continue;
        }
        *at = inside->next;
        ibx_inside_free(inside);
    }
}

/* New ones come last. */
static void look_at_new(void)
{
    struct link_map *l = last ? last->l_next : debug->r_map;
    for (; l; l = l->l_next) {
        look_at(l, l->l_prev ? l->l_name : IBX_INSIDE_PROGRAM);
        last = l;
    }
}

static void find_last(void)
{
    for (struct link_map *l = debug->r_map; l; l = l->l_next)
        last = l;
}

/* -------------------------------------------------------------------- other namespaces */

#define NAMESPACES 16 /* the loader's limit */

/* As glibc has it from version 2 of the structure on. */
struct more_debug {
    struct r_debug first;
    const struct more_debug *next;
};

static const struct link_map *last_elsewhere[NAMESPACES]; /* likewise */

/* When one is gone, what is left has been looked at before. */
static void look_into(const struct r_debug *other, const struct link_map **seen)
{
    bool is_new = !*seen, is_there = is_new;
    for (const struct link_map *l = other->r_map; l; l = l->l_next)
        is_there = is_there || l == *seen;
    for (const struct link_map *l = other->r_map, *before = *seen; l; l = l->l_next) {
        if (is_new && is_there)
            add(ibx_inside_find_elsewhere(l, l->l_name));
        is_new = is_new || l == before;
        *seen = l;
    }
    if (!other->r_map)
        *seen = NULL;
}

static void look_elsewhere(void)
{
    const struct more_debug *more = (const struct more_debug *)(const void *)debug;
    if (debug->r_version < 2)
        return;
    more = more->next;
    for (size_t i = 0; more && i < NAMESPACES; i++, more = more->next)
        if (more->first.r_state == RT_CONSISTENT)
            look_into(&more->first, &last_elsewhere[i]);
}

/* -------------------------------------------------------------------- what has changed */

/* In place of _dl_debug_state(). `last` may be gone when something has been deleted. */
static void changes(void)
{
    const int before = state;
    state = (int)debug->r_state;
    if (state != RT_CONSISTENT)
        return;
    if (before == RT_DELETE) {
        forget_gone();
        find_last();
    } else {
        look_at_new();
        look_elsewhere();
        if (has_begun)
            ibx_loader_tell();
    }
}

/* -------------------------------------------------------------------- _dl_debug_state() */

#ifdef __x86_64__
/* The length of an instruction that does nothing, as stands between functions; 0: it is another. */
static size_t filler(const uint8_t *code)
{
    static const uint8_t of_mode[] = {3, 4, 7}; /* by its operand, which is not looked at */
    size_t n = 0;
    while (code[n] == 0x66 || code[n] == 0x2e)
        n++;
    if (code[n] == 0x90 || (code[n] == 0xcc && !n))
        return n + 1;
    if (code[n] != 0x0f || code[n + 1] != 0x1f || code[n + 2] >= 0xc0)
        return 0;
    return n + of_mode[code[n + 2] >> 6] + ((code[n + 2] & 7) == 4);
}

static size_t empty_function(const uint8_t *code)
{
    static const uint8_t branch[] = {0xf3, 0x0f, 0x1e, 0xfa}; /* endbr64 */
    const size_t n = ibx_early_same(code, branch, sizeof(branch)) ? sizeof(branch) : 0;
    return code[n] == 0xc3 ? n + 1 : 0;
}
#elif defined(__aarch64__)
static uint32_t word(const uint8_t *code)
{
    uint32_t w;
    ibx_early_copy(&w, code, sizeof(w));
    return w;
}

static size_t filler(const uint8_t *code)
{
    return word(code) == 0xd503201f || !word(code) ? 4 : 0; /* nop */
}

static size_t empty_function(const uint8_t *code)
{
    const size_t n = word(code) == 0xd503245f ? 4 : 0; /* bti c */
    return word(code + n) == 0xd65f03c0 ? n + 4 : 0;   /* ret */
}
#else
static size_t filler(const uint8_t *code)
{
    (void)code;
    return 0;
}

static size_t empty_function(const uint8_t *code)
{
    (void)code;
    return 0;
}
#endif

/* Its one instruction, and then nothing that anybody runs. */
static bool has_room(const uint8_t *code)
{
    size_t n = empty_function(code);
    bool good = n;
    while (good && n < IBX_CODE_JUMP) {
        good = filler(code + n);
        n += good ? filler(code + n) : 0;
    }
    return good;
}

static void hook(void)
{
    uint8_t *function = (uint8_t *)debug->r_brk, bytes[IBX_CODE_JUMP];
    struct ibx_code code;
    if (!function || !has_room(function) ||
        ibx_code_open(&code, function, sizeof(bytes), PROT_READ | PROT_EXEC))
        return;
    ibx_code_jump(bytes, (const void *)(uintptr_t)changes);
    is_hooked = ibx_code_write(&code, function, bytes, sizeof(bytes));
    ibx_code_close(&code);
}

/* -------------------------------------------------------------------------- the start */

/* A table of the program's for the loader, by the program's own head; NULL: it was called by a
 * loader's name. */
static const ElfW(Dyn) * table_of_program(void)
{
    const ElfW(Phdr) *segments = NULL, *head = NULL, *table = NULL;
    ElfW(auxv_t) entry;
    size_t count = 0;
    const int file = ibx_early_open(VECTOR, O_RDONLY);
    for (uint64_t at = 0;
         file >= 0 && ibx_early_read(file, &entry, sizeof(entry), at) && entry.a_type != AT_NULL;
         at += sizeof(entry)) {
        if (entry.a_type == AT_PHDR)
            segments = (const ElfW(Phdr) *)entry.a_un.a_val;
        if (entry.a_type == AT_PHNUM)
            count = entry.a_un.a_val;
    }
    if (file >= 0)
        ibx_early_close(file);
    for (size_t i = 0; segments && i < count; i++) {
        if (segments[i].p_type == PT_PHDR)
            head = &segments[i];
        if (segments[i].p_type == PT_DYNAMIC)
            table = &segments[i];
    }
    return table && head
               ? (const ElfW(Dyn) *)((ElfW(Addr))segments - head->p_vaddr + table->p_vaddr)
               : NULL;
}

/* A program that names _r_debug may have a copy of it, which is not filled before the program is
 * relocated, nor changed later. It is told where the loader's is. */
static const struct r_debug *find_debug(void)
{
    const ElfW(Dyn) *d = _r_debug.r_map ? _r_debug.r_map->l_ld : table_of_program();
    for (; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_DEBUG && d->d_un.d_ptr)
            return (const struct r_debug *)d->d_un.d_ptr;
    return &_r_debug;
}

static void begin(void)
{
    debug = find_debug();
    if (last || !debug->r_map)
        return;
    state = (int)debug->r_state;
    look_at_new();
    hook();
}

#if defined(__x86_64__) || defined(__aarch64__) /* of others no file is read */
static void nothing(void) {}

__attribute__((used)) static void (*resolve(void))(void)
{
    begin();
    return nothing;
}

static void at_relocation(void) __attribute__((ifunc("resolve")));
/* What has the loader call the resolver. */
__attribute__((used)) static void (*const volatile relocated)(void) = at_relocation;
#endif

bool ibx_loader_begin(const char *name)
{
    begin();
    const struct link_map *program = debug->r_map;
    bool has_slash = false;
    for (const char *c = name; *c; c++)
        has_slash = has_slash || *c == '/';
    if (program && !is_program_read && has_slash)
        look_at(program, name);
    has_begun = true;
    return is_hooked;
}

struct ibx_inside *ibx_loader_untold(void)
{
    for (struct ibx_inside *inside = all; inside; inside = inside->next)
        if (!atomic_flag_test_and_set(&inside->is_told))
            return inside;
    return NULL;
}
