/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Finds out which objects the loader (ld.so) maps, before it calls their constructors, which
 * register kernels.
 *
 * Constructors of the program's libraries run before the constructor of a preloaded library. But
 * this library is relocated before that: a function of its own with a resolver (IFUNC) has the
 * loader call the resolver when all objects of the program are mapped.
 *
 * For objects that are opened later, the loader has an interface for debuggers: before it calls
 * constructors it sets a state and calls an empty function, _dl_debug_state(), whose address is in
 * r_brk. That function becomes a jump to changes(), unless its code is not the expected one: then a
 * debugger has a breakpoint there. Debuggers that use the probes in libc are not affected. With
 * aarch64 it may have no more than its one instruction, and a branch reaches 128 MiB. The loader is
 * that near: what is preloaded is mapped next to it, before all other libraries.
 *
 * Up to glibc 2.40 new objects are not relocated at that moment, from 2.41 on they are. It does not
 * matter, because only code is changed, and code has no relocations. There are two alternatives,
 * which are worse: an auditor (LD_AUDIT) learns of all objects, but has to be set in the
 * environment; and a dlopen(3) of this library's would count as the caller, whose RUNPATH decides.
 *
 * Objects in other namespaces (dlmopen(3)) are in other lists, which glibc publishes from 2.35 on.
 * They are left as they are, with a warning.
 */
#include "frontend-glue/preload/static_runtime/loader.h"

#include "frontend-glue/preload/static_runtime/early.h"

#define VECTOR "/proc/self/auxv" /* the auxiliary vector */

static const struct r_debug *debug; /* the loader's r_debug; NULL: not known yet */
static struct link_map *last;       /* the last object of the list that was examined; NULL: none */
static int state = RT_CONSISTENT;
static bool is_program_read, is_hooked, has_begun;
/* Changed under the loader's lock, or while there is one thread. */
static struct ibx_static_runtime *all;

static void add(struct ibx_static_runtime *runtime)
{
    if (!runtime)
        return;
    runtime->next = all;
    all = runtime;
}

/* `path`: the path of the object's file. */
static void look_at(const struct link_map *map, const char *path)
{
    add(ibx_static_runtime_find(map, path, map->l_prev ? NULL : &is_program_read));
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
    for (struct ibx_static_runtime **at = &all; *at;) {
        struct ibx_static_runtime *runtime = *at;
        if (is_listed(runtime->map)) {
            at = &runtime->next;
            continue;
        }
        *at = runtime->next;
        ibx_static_runtime_free(runtime);
    }
}

/* New objects are at the end of the list. */
static void look_at_new(void)
{
    struct link_map *l = last ? last->l_next : debug->r_map;
    for (; l; l = l->l_next) {
        look_at(l, l->l_prev ? l->l_name : IBX_STATIC_RUNTIME_PROGRAM);
        last = l;
    }
}

static void find_last(void)
{
    for (struct link_map *l = debug->r_map; l; l = l->l_next)
        last = l;
}

/* -------------------------------------------------------------------- other namespaces */

#define NAMESPACES 16 /* DL_NNS of glibc */

/* struct r_debug_extended of glibc, which r_debug is from version 2 on. */
struct more_debug {
    struct r_debug first;
    const struct more_debug *next;
};

/* The last object that was examined in each. */
static const struct link_map *last_elsewhere[NAMESPACES];

/* If the object that was last examined is gone, all objects that remain were examined before. */
static void look_into(const struct r_debug *other, const struct link_map **seen)
{
    bool is_new = !*seen, is_there = is_new;
    for (const struct link_map *l = other->r_map; l; l = l->l_next)
        is_there = is_there || l == *seen;
    for (const struct link_map *l = other->r_map, *before = *seen; l; l = l->l_next) {
        if (is_new && is_there)
            add(ibx_static_runtime_find_elsewhere(l, l->l_name));
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

/* Called in place of _dl_debug_state(). After objects were unloaded `last` may be invalid. */
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
/* The length of a filler between functions (nop, int3) at `code`; 0: it is another instruction. */
static size_t filler(const uint8_t *code)
{
    static const uint8_t of_mode[] = {3, 4, 7}; /* length, by the kind of its operand */
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

/* Where the function becomes a jump: it is empty, and followed by enough filler; else NULL. */
static uint8_t *place_of_jump(uint8_t *function)
{
    size_t n = empty_function(function);
    bool good = n;
    while (good && n < IBX_CODE_JUMP) {
        good = filler(function + n);
        n += good ? filler(function + n) : 0;
    }
    return good ? function : NULL;
}
#elif defined(__aarch64__)
/* The jump is one instruction, and takes the place of the function's only one. */
static uint8_t *place_of_jump(uint8_t *function)
{
    uint32_t words[2];
    ibx_early_copy(words, function, sizeof(words));
    const size_t i = words[0] == 0xd503245f;                                /* bti c */
    return words[i] == 0xd65f03c0 ? function + i * sizeof(words[0]) : NULL; /* ret */
}
#else
static uint8_t *place_of_jump(uint8_t *function)
{
    (void)function;
    return NULL;
}
#endif

static void hook(void)
{
    uint8_t *const place = debug->r_brk ? place_of_jump((uint8_t *)debug->r_brk) : NULL;
    uint8_t bytes[IBX_CODE_JUMP];
    struct ibx_code code;
    if (!place || !ibx_code_jump(bytes, place, (const void *)(uintptr_t)changes) ||
        ibx_code_open(&code, place, sizeof(bytes), PROT_READ | PROT_EXEC))
        return;
    is_hooked = ibx_code_write(&code, place, bytes, sizeof(bytes));
    ibx_code_close(&code);
}

/* -------------------------------------------------------------------------- the start */

/* The dynamic section of the program, from the program headers that the kernel passed; NULL: the
 * loader was started by its own name. */
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

/* The address of the loader's r_debug. If the program refers to _r_debug, it may have a copy (COPY
 * relocation), which is filled only when the program is relocated, and not updated. But the
 * DT_DEBUG entry of the program has the address. */
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

#if defined(__x86_64__) || defined(__aarch64__) /* elf_functions.c reads no others */
static void nothing(void) {}

__attribute__((used)) static void (*resolve(void))(void)
{
    begin();
    return nothing;
}

static void at_relocation(void) __attribute__((ifunc("resolve")));
/* The reference for which the loader calls the resolver. */
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

struct ibx_static_runtime *ibx_loader_untold(void)
{
    for (struct ibx_static_runtime *runtime = all; runtime; runtime = runtime->next)
        if (!atomic_flag_test_and_set(&runtime->is_reported))
            return runtime;
    return NULL;
}
