/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/static_runtime/redirect.h"

#include "frontend-glue/preload/static_runtime/early.h"
#include "frontend-glue/preload/static_runtime/elf_functions.h"

#define INTERNAL "libcudart_static_" /* the prefix of the runtime's internal functions */

/* NVIDIA's own libraries, which are left alone, though some have such a runtime with symbols. Users
 * cannot link them anew; this library makes the calls of some of them itself; and the kernels of
 * others, such as NCCL, would be hundreds of MB to send when they are loaded. The names are
 * compared as a whole. */
static const char *const of_nvidia[] = {"libcublas",
                                        "libcublasLt",
                                        "libcudart",
                                        "libcudnn",
                                        "libcudnn_adv",
                                        "libcudnn_cnn",
                                        "libcudnn_engines_precompiled",
                                        "libcudnn_ext",
                                        "libcudnn_graph",
                                        "libcudnn_engines_runtime_compiled",
                                        "libcudnn_ops",
                                        "libcudnn_heuristic",
                                        "libcudnn_engines_tensor_ir",
                                        "libcudnn_adv_infer",
                                        "libcudnn_cnn_infer",
                                        "libcudnn_ops_infer",
                                        "libcudnn_adv_train",
                                        "libcudnn_cnn_train",
                                        "libcudnn_ops_train",
                                        "libcufft",
                                        "libcufftMp",
                                        "libcufftw",
                                        "libcufile",
                                        "libcufile_rdma",
                                        "libcupti",
                                        "libcurand",
                                        "libcusolver",
                                        "libcusolverMg",
                                        "libcusolverMp",
                                        "libcusparse",
                                        "libcusparseLt",
                                        "libcutensor",
                                        "libcutensorMg",
                                        "libcutensorMp",
                                        "libcublasMp",
                                        "libnccl",
                                        "libnppc",
                                        "libnppial",
                                        "libnppicc",
                                        "libnppidei",
                                        "libnppif",
                                        "libnppig",
                                        "libnppim",
                                        "libnppist",
                                        "libnppisu",
                                        "libnppitc",
                                        "libnpps",
                                        "libnvJitLink",
                                        "libnvblas",
                                        "libnvjpeg",
                                        "libnvjpeg2k",
                                        "libnvrtc",
                                        "libnvrtc-builtins",
                                        "libnvshmem",
                                        "libnvshmem_host"};

/* Whether `end`, which follows the name of a library, is ".so", or what Python packages put before
 * it: 8 hexadecimal digits after a dash or, in NVIDIA's packages, a dot. */
static bool ends_name(const char *end)
{
    if (ibx_early_begins(end, ".so") || ibx_early_begins(end, ".alt.so"))
        return true;
    size_t n = *end == '-' || *end == '.' ? 1 : 0;
    while (n && n < 9 && ((end[n] >= '0' && end[n] <= '9') || (end[n] >= 'a' && end[n] <= 'f')))
        n++;
    return n == 9 && ibx_early_begins(end + n, ".so");
}

bool ibx_static_runtime_is_of_nvidia(const char *path)
{
    const char *name = path;
    bool is = false;
    for (const char *c = path; *c; c++)
        name = *c == '/' ? c + 1 : name;
    for (size_t i = 0; i < sizeof(of_nvidia) / sizeof(of_nvidia[0]); i++)
        is = is || (ibx_early_begins(name, of_nvidia[i]) &&
                    ends_name(name + ibx_early_length(of_nvidia[i])));
    return is;
}

/* ------------------------------------------------------------ what is seen in its memory */

struct imports {
    bool looks_up;     /* dlsym(): such a runtime looks up the driver's functions */
    bool registers;    /* __cudaRegisterFatBinary(): kernels, with a runtime in another object */
    bool is_relocated; /* its code has relocations */
};

/* The dynamic symbol table. Imported symbols come first; a program that exports nothing has only
 * these. The table has no length: it ends where the next one begins. */
struct dynamic {
    ElfW(Addr) symbols, names, next, hash;
    size_t names_size;
    bool is_relocated;
};

static ElfW(Addr) distance(ElfW(Addr) a, ElfW(Addr) b)
{
    return a < b ? b - a : a - b;
}

/* The address of an entry. The loader has relocated most of them, which ones depends on its
 * version, and none in the vDSO. The right value is the one near the object's dynamic section. */
static ElfW(Addr) address_in(const struct link_map *map, ElfW(Addr) value)
{
    const ElfW(Addr) table = (ElfW(Addr))map->l_ld, moved = value + map->l_addr;
    return distance(moved, table) < distance(value, table) ? moved : value;
}

static void read_dynamic(const struct link_map *map, struct dynamic *d)
{
    d->symbols = d->names = d->hash = d->names_size = 0;
    d->next = (ElfW(Addr)) - 1;
    d->is_relocated = false;
    for (const ElfW(Dyn) *e = map->l_ld; e->d_tag != DT_NULL; e++) {
        const ElfW(Addr) at = address_in(map, e->d_un.d_ptr);
        if (e->d_tag == DT_SYMTAB)
            d->symbols = at;
        if (e->d_tag == DT_STRTAB)
            d->names = at;
        if (e->d_tag == DT_GNU_HASH)
            d->hash = at;
        if (e->d_tag == DT_STRSZ)
            d->names_size = e->d_un.d_val;
        d->is_relocated = d->is_relocated || e->d_tag == DT_TEXTREL ||
                          (e->d_tag == DT_FLAGS && e->d_un.d_val & DF_TEXTREL);
    }
    for (const ElfW(Dyn) *e = map->l_ld; e->d_tag != DT_NULL; e++) {
        const ElfW(Addr) at = address_in(map, e->d_un.d_ptr);
        const bool is_table = e->d_tag == DT_STRTAB || e->d_tag == DT_GNU_HASH ||
                              e->d_tag == DT_HASH || e->d_tag == DT_VERSYM ||
                              e->d_tag == DT_VERNEED || e->d_tag == DT_RELA ||
                              e->d_tag == DT_JMPREL || e->d_tag == DT_INIT;
        if (is_table && at > d->symbols && at < d->next)
            d->next = at;
    }
}

static size_t count_imports(const struct dynamic *d)
{
    const size_t most = (d->next - d->symbols) / sizeof(ElfW(Sym)),
                 first = d->hash ? ((const uint32_t *)d->hash)[1]
                                 : 0; /* the first symbol that is exported */
    return first > 1 && first < most ? first : most;
}

static void look_at_imports(const struct link_map *map, struct imports *imports)
{
    static const char look_up[] = "dlsym", registration[] = "__cudaRegisterFatBinary";
    struct dynamic d;
    read_dynamic(map, &d);
    imports->looks_up = imports->registers = false;
    imports->is_relocated = d.is_relocated;
    if (!d.symbols || !d.names || d.next == (ElfW(Addr)) - 1)
        return;
    const char *names = (const char *)d.names;
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)d.symbols;
    for (size_t i = 1, n = count_imports(&d); i < n; i++) {
        const size_t at = symbols[i].st_name;
        if (symbols[i].st_shndx != SHN_UNDEF || at >= d.names_size)
            continue;
        if (d.names_size - at >= sizeof(look_up) && ibx_early_equal(names + at, look_up))
            imports->looks_up = true;
        if (d.names_size - at >= sizeof(registration) && ibx_early_equal(names + at, registration))
            imports->registers = true;
    }
}

/* ------------------------------------------------------------------- what its file says */

/* Whether the object was mapped from this file: it has the same header, and its dynamic section at
 * the same place. It has not if the loader was started with the name of another program. */
static bool is_mapped(const struct link_map *map, const struct ibx_elf *elf)
{
    const ElfW(Phdr) *dynamic = ibx_elf_segment(elf, PT_DYNAMIC, IBX_ELF_ANY);
    if (!dynamic || map->l_addr + dynamic->p_vaddr != (ElfW(Addr))map->l_ld)
        return false;
    const ElfW(Phdr) *all = elf->segments.bytes;
    for (size_t i = 0; i < elf->head.e_phnum; i++)
        if (all[i].p_type == PT_LOAD && !all[i].p_offset && all[i].p_filesz >= sizeof(elf->head))
            return ibx_early_same((const void *)(map->l_addr + all[i].p_vaddr), &elf->head,
                                  sizeof(elf->head));
    return false;
}

/* The libcudart of the same version as the runtime, judged by functions that were added or removed
 * between versions; NULL: there is no runtime. *at: the address of one of its functions. */
static const char *libcudart_of(const struct ibx_elf *elf, ElfW(Addr) * at)
{
    bool is_there = false, of_12 = false, of_13 = false;
    for (size_t i = 0, n = ibx_elf_count(elf); i < n; i++) {
        const char *name = ibx_elf_function(elf, i);
        if (!name)
            continue;
        if (ibx_early_begins(name, INTERNAL)) {
            is_there = true;
            *at = ibx_elf_symbol(elf, i)->st_value;
        }
        of_12 = of_12 || ibx_early_equal(name, "cudaGetDeviceProperties_v2");
        of_13 = of_13 || ibx_early_equal(name, "cudaMemcpyBatchAsync");
    }
    return !is_there ? NULL
           : of_12   ? "libcudart.so.12"
           : of_13   ? "libcudart.so.13"
                     : "libcudart.so.11.0";
}

/* The name of the i-th symbol if it may be a function of the runtime and is long enough for a jump;
 * else NULL. The functions that nvcc generates with -rdc=true are the program's. */
static const char *runtimes(const struct ibx_elf *elf, size_t i, const ElfW(Phdr) * code)
{
    const char *name = ibx_elf_function(elf, i);
    const ElfW(Sym) *s = ibx_elf_symbol(elf, i);
    const ElfW(Addr) offset = s->st_value - code->p_vaddr;
    if (!name || (!ibx_early_begins(name, "cuda") && !ibx_early_begins(name, "__cuda")) ||
        ibx_early_begins(name, "__cudaRegisterLinkedBinary") || s->st_size < IBX_CODE_JUMP_BY ||
        offset >= code->p_filesz || code->p_filesz - offset < IBX_CODE_JUMP_BY)
        return NULL;
    for (const char *c = name; *c; c++)
        if (*c == '.') /* a part of a function that the compiler has split off */
            return NULL;
    return name;
}

/* ------------------------------------------------------------- which are the program's own */

/* A program may have functions of its own whose names begin with "cuda"; these must not change. The
 * runtime is contiguous. It has internal functions (INTERNAL), and begins and ends with some of
 * them. So a candidate between two internal functions is the runtime's, whatever its name is (a
 * later version may have more functions than are known here), and one between two of the program's
 * functions is the program's. At an edge, where another linker or version may have put the pieces
 * in another order, it is the runtime's if this library exports a function of that name. */
struct candidate {
    ElfW(Addr) at;
    size_t symbol;
};

/* The functions between a candidate and the one before it. */
struct gap {
    ElfW(Addr) lowest, highest;
    bool has_any, lowest_is_internal, highest_is_internal;
};

struct candidates {
    size_t bytes, count;
    struct gap *gaps; /* count + 1 */
    struct candidate all[];
};

static size_t count_up_to(const struct candidates *c, ElfW(Addr) at)
{
    size_t low = 0, high = c->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (c->all[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void note_other(struct candidates *c, const char *name, ElfW(Addr) at)
{
    struct gap *gap = &c->gaps[count_up_to(c, at)];
    const bool is_internal = ibx_early_begins(name, INTERNAL);
    if (!gap->has_any || at < gap->lowest || (at == gap->lowest && is_internal)) {
        gap->lowest = at;
        gap->lowest_is_internal = is_internal;
    }
    if (!gap->has_any || at > gap->highest || (at == gap->highest && is_internal)) {
        gap->highest = at;
        gap->highest_is_internal = is_internal;
    }
    gap->has_any = true;
}

/* Insertion sort: there are some hundreds. */
static void add_candidate(struct candidates *c, ElfW(Addr) at, size_t symbol)
{
    size_t i = c->count++;
    for (; i && c->all[i - 1].at > at; i--)
        c->all[i] = c->all[i - 1];
    c->all[i] = (struct candidate){at, symbol};
}

/* This library's entry in the loader's list. `map`: any entry. */
static const struct link_map *find_ourselves(const struct link_map *map)
{
    const struct link_map *l = map;
    while (l->l_prev)
        l = l->l_prev;
    while (l && l->l_ld != _DYNAMIC)
        l = l->l_next;
    return l;
}

/* Whether this library exports a function of this name (DT_GNU_HASH). */
static bool has_function(const struct link_map *us, const char *name)
{
    struct dynamic d;
    uint32_t wanted = 5381;
    if (!us)
        return false;
    read_dynamic(us, &d);
    if (!d.hash || !d.symbols || !d.names)
        return false;
    for (const char *c = name; *c; c++)
        wanted = wanted * 33 + (uint8_t)*c;
    /* Number of buckets, first symbol, words of the Bloom filter. */
    const uint32_t *head = (const uint32_t *)d.hash;
    const uint32_t *buckets = head + 4 + head[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t)),
                   *chain = buckets + head[0];
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)d.symbols;
    for (size_t i = buckets[wanted % head[0]]; i >= head[1]; i++) {
        const uint32_t hash = chain[i - head[1]];
        if ((hash | 1) == (wanted | 1) &&
            ibx_early_equal((const char *)d.names + symbols[i].st_name, name))
            return true;
        if (hash & 1) /* end of the chain */
            return false;
    }
    return false;
}

/* Removes the candidates that are the program's. */
static void drop_programs(struct candidates *c, const struct ibx_elf *elf,
                          const struct link_map *map)
{
    const struct link_map *us = find_ourselves(map);
    size_t kept = 0;
    for (size_t begin = 0, end; begin < c->count; begin = end) {
        end = begin + 1;
        while (end < c->count && !c->gaps[end].has_any)
            end++;
        const int sides = (c->gaps[begin].highest_is_internal ? 1 : 0) +
                          (c->gaps[end].lowest_is_internal ? 1 : 0);
        for (size_t i = begin; i < end; i++)
            if (sides == 2 || (sides && has_function(us, ibx_elf_function(elf, c->all[i].symbol))))
                c->all[kept++] = c->all[i];
    }
    c->count = kept;
}

/* The functions of the runtime, sorted by address; NULL: there is no memory. */
static struct candidates *find_functions(const struct ibx_elf *elf, const ElfW(Phdr) * code,
                                         const struct link_map *map)
{
    size_t most = 0;
    const size_t n = ibx_elf_count(elf);
    for (size_t i = 0; i < n; i++)
        most += runtimes(elf, i, code) != NULL;
    const size_t gaps_at = sizeof(struct candidates) + most * sizeof(struct candidate),
                 bytes = gaps_at + (most + 1) * sizeof(struct gap);
    struct candidates *c = ibx_early_map(bytes);
    if (!c)
        return NULL;
    c->bytes = bytes;
    c->gaps = (struct gap *)(void *)((char *)c + gaps_at);
    for (size_t i = 0; i < n; i++)
        if (runtimes(elf, i, code))
            add_candidate(c, ibx_elf_symbol(elf, i)->st_value, i);
    for (size_t i = 0; i < n; i++) {
        const char *name = ibx_elf_function(elf, i);
        if (name && !ibx_early_begins(name, "cuda") && !ibx_early_begins(name, "__cuda"))
            note_other(c, name, ibx_elf_symbol(elf, i)->st_value);
    }
    drop_programs(c, elf, map);
    return c;
}

/* ------------------------------------------------------------------------------ jumps */

/* Returns how many jumps were written. */
static size_t write_each(const struct ibx_static_runtime *runtime, const struct ibx_code *code)
{
    uint8_t bytes[IBX_CODE_MOST];
    for (size_t i = 0; i < runtime->count; i++) {
        const struct ibx_static_function *f = &runtime->functions[i];
        ibx_code_jump_by(bytes, f->bytes, f);
        if (!ibx_code_write(code, f->code, bytes, f->bytes))
            return i;
    }
    return runtime->count;
}

/* Writes all jumps, or none. */
static void write_jumps(struct ibx_static_runtime *runtime)
{
    struct ibx_code code;
    runtime->error = -ibx_code_open(&code, runtime->code, runtime->code_bytes, runtime->protection);
    runtime->state = runtime->error ? IBX_STATIC_RUNTIME_REFUSED : IBX_STATIC_RUNTIME_JUMPS;
    if (runtime->error)
        return;
    size_t done = write_each(runtime, &code);
    if (done < runtime->count) {
        runtime->error = EIO;
        runtime->state = IBX_STATIC_RUNTIME_REFUSED;
        while (done--)
            ibx_code_write(&code, runtime->functions[done].code, runtime->functions[done].before,
                           runtime->functions[done].bytes);
    }
    ibx_code_close(&code);
}

static struct ibx_static_runtime *make(const struct link_map *map, const char *path, size_t count,
                                       size_t names)
{
    const size_t functions = count * sizeof(struct ibx_static_function),
                 path_size = ibx_early_length(path) + 1,
                 all = sizeof(struct ibx_static_runtime) + functions + names + path_size;
    struct ibx_static_runtime *runtime = ibx_early_map(all);
    if (!runtime)
        return NULL;
    char *text = (char *)runtime + sizeof(*runtime) + functions + names;
    ibx_early_copy(text, path, path_size);
    runtime->bytes = all;
    runtime->map = map;
    runtime->path = text;
    return runtime;
}

/* No more than the segment has left. */
static size_t length_of(const struct ibx_static_runtime *runtime, const struct ibx_elf *elf,
                        const struct candidate *c)
{
    const size_t left = (size_t)(runtime->code + runtime->code_bytes -
                                 (char *)(runtime->map->l_addr + c->at)),
                 length = ibx_elf_symbol(elf, c->symbol)->st_size;
    return length < left ? length : left;
}

static void add_functions(struct ibx_static_runtime *runtime, const struct ibx_elf *elf,
                          const struct candidates *found)
{
    char *text = (char *)&runtime->functions[found->count];
    for (size_t i = 0; i < found->count; i++) {
        const char *name = ibx_elf_function(elf, found->all[i].symbol);
        struct ibx_static_function *f = &runtime->functions[runtime->count++];
        const size_t size = ibx_early_length(name) + 1;
        ibx_early_copy(text, name, size);
        f->name = text;
        f->of = runtime;
        f->code = (void *)(runtime->map->l_addr + found->all[i].at);
        f->bytes = ibx_code_jump_bytes(f->code, length_of(runtime, elf, &found->all[i]));
        ibx_early_copy(f->before, f->code, f->bytes);
        atomic_init(&f->target, (void *)(uintptr_t)ibx_static_runtime_first);
        text += size;
    }
}

/* Makes the runtime's functions in this object jumps; or its state says why not. NULL: there is no
 * memory. */
static struct ibx_static_runtime *redirect(const struct link_map *map, const char *path,
                                           const struct ibx_elf *elf, const ElfW(Phdr) * code,
                                           bool is_relocated)
{
    size_t names = 0;
    const bool good = !is_relocated && code && code->p_flags & PF_R;
    struct candidates *found = good ? find_functions(elf, code, map) : NULL;
    for (size_t i = 0; found && i < found->count; i++)
        names += ibx_early_length(ibx_elf_function(elf, found->all[i].symbol)) + 1;
    struct ibx_static_runtime *runtime =
        good && !found ? NULL : make(map, path, found ? found->count : 0, names);
    if (runtime && !good) {
        runtime->state = is_relocated ? IBX_STATIC_RUNTIME_RELOCATED : IBX_STATIC_RUNTIME_REFUSED;
        runtime->error = EACCES;
    } else if (runtime) {
        runtime->code = (char *)(map->l_addr + code->p_vaddr);
        runtime->code_bytes = code->p_filesz;
        runtime->protection = PROT_READ | (code->p_flags & PF_W ? PROT_WRITE : 0) |
                              (code->p_flags & PF_X ? PROT_EXEC : 0);
        add_functions(runtime, elf, found);
        write_jumps(runtime);
    }
    ibx_early_unmap(found, found ? found->bytes : 0);
    return runtime;
}

static struct ibx_static_runtime *leave(const struct link_map *map, const char *path,
                                        enum ibx_static_runtime_state state)
{
    struct ibx_static_runtime *runtime = make(map, path, 0, 0);
    if (runtime)
        runtime->state = state;
    return runtime;
}

static struct ibx_static_runtime *look(const struct link_map *map, const char *path, int file,
                                       struct ibx_elf *elf, const struct imports *imports,
                                       bool is_elsewhere)
{
    ElfW(Addr) at = 0;
    const bool has_symbols = ibx_elf_read_symbols(file, elf);
    const char *version = has_symbols ? libcudart_of(elf, &at) : NULL;
    struct ibx_static_runtime *runtime = NULL;
    if (version && is_elsewhere)
        return leave(map, path, IBX_STATIC_RUNTIME_ELSEWHERE);
    if (version) {
        runtime =
            redirect(map, path, elf, ibx_elf_segment(elf, PT_LOAD, at), imports->is_relocated);
        if (runtime)
            runtime->version = version;
    } else if (has_symbols && !ibx_elf_count(elf) && !imports->registers &&
               ibx_elf_has_kernels(file, elf)) {
        runtime = leave(map, path,
                        is_elsewhere ? IBX_STATIC_RUNTIME_ELSEWHERE : IBX_STATIC_RUNTIME_NAMELESS);
    }
    return runtime;
}

static struct ibx_static_runtime *find(const struct link_map *map, const char *path, bool *is_file,
                                       bool is_elsewhere)
{
    struct imports imports;
    struct ibx_elf elf;
    struct ibx_static_runtime *runtime = NULL;
    if (ibx_static_runtime_is_of_nvidia(path))
        return NULL;
    look_at_imports(map, &imports);
    if (is_file)
        *is_file = !imports.looks_up;
    const int file = imports.looks_up ? ibx_early_open(path, O_RDONLY) : -1;
    if (file < 0)
        return NULL;
    if (ibx_elf_read(file, &elf) && is_mapped(map, &elf)) {
        runtime = look(map, path, file, &elf, &imports, is_elsewhere);
        if (is_file)
            *is_file = true;
    }
    ibx_elf_free(&elf);
    ibx_early_close(file);
    return runtime;
}

struct ibx_static_runtime *ibx_static_runtime_find(const struct link_map *map, const char *path,
                                                   bool *is_file)
{
    return find(map, path, is_file, false);
}

struct ibx_static_runtime *ibx_static_runtime_find_elsewhere(const struct link_map *map,
                                                             const char *path)
{
    return find(map, path, NULL, true);
}

void ibx_static_runtime_free(struct ibx_static_runtime *runtime)
{
    ibx_early_unmap(runtime, runtime->bytes);
}
