/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libibx-search.so: which CUDA libraries the loader finds (LD_AUDIT, rtld-audit(7)). Python
 * packages bring NVIDIA's libraries, and find them by a DT_RPATH, which precedes LD_LIBRARY_PATH,
 * or by absolute paths: GVirtuS's in LD_LIBRARY_PATH are ignored then. With this auditor the loader
 * takes GVirtuS's, if it has the library, whatever the path was. A process that needs no CUDA
 * library loads none.
 *
 * An auditor is in a namespace of its own, and would need a C library of its own there. So it uses
 * none (early.h).
 */
#include "frontend-glue/preload/static_runtime/early.h"
#include "frontend-glue/preload/remote_libraries.h"

#include <limits.h>
#include <link.h>

#define SEEN       __attribute__((visibility("default")))
#define VARIABLES  ((size_t)4 << 20) /* more than the kernel allows for an environment */
#define FIRST_READ ((size_t)64 << 10)
#define FOLDER     "/lib/frontend"

static const char libraries[][16] = {"libcuda.so", IBX_REMOTE_LIBRARIES};

static const char *name_in(const char *path)
{
    const char *name = path;
    for (; *path; path++)
        name = *path == '/' ? path + 1 : name;
    return name;
}

/* Accepts libcudart.so and libcudart.so.13, not libcudart.so_old. */
static bool is_of_cuda(const char *name)
{
    for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
        const size_t n = ibx_early_length(libraries[i]);
        if (ibx_early_begins(name, libraries[i]) && (!name[n] || name[n] == '.'))
            return true;
    }
    return false;
}

/* --------------------------------------------------------------------------- the variables */

static const char *variables; /* the environment as the process began */
static size_t variables_size;

static size_t read_up_to(int file, char *to, size_t n)
{
    size_t done = 0;
    while (done < n) {
        const long got = ibx_early_call(SYS_pread64, file, (long)(to + done), (long)(n - done),
                                        (long)done, 0, 0);
        if (got == -EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    return done;
}

/* Reads the environment at the start of the process, as the loader does: programs that change their
 * title overwrite it later. */
static void read_variables(void)
{
    const int file = ibx_early_open("/proc/self/environ", O_RDONLY);
    for (size_t n = FIRST_READ; file >= 0 && n <= VARIABLES && !variables; n *= 2) {
        char *text = ibx_early_map(n);
        if (!text)
            break;
        const size_t size = read_up_to(file, text, n - 1); /* a zero byte follows */
        if (size < n - 1) {
            variables = text;
            variables_size = size;
        } else {
            ibx_early_unmap(text, n);
        }
    }
    if (file >= 0)
        ibx_early_close(file);
}

/* The value of a variable; NULL: it is not set. `name` ends with a '='. */
static const char *variable(const char *name)
{
    for (size_t at = 0; at < variables_size; at += ibx_early_length(variables + at) + 1)
        if (ibx_early_begins(variables + at, name))
            return variables + at + ibx_early_length(name);
    return NULL;
}

/* ------------------------------------------------------------------------------ the folders */

static char found[PATH_MAX]; /* returned to the loader, which copies it under its lock */

/* Defined by the linker. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

/* Whether the file is for this machine. The loader skips others in its own search (32 bits, say),
 * but not what an auditor returns: the program would fail to start. */
static bool is_loadable(const char *path)
{
    ElfW(Ehdr) head;
    const int file = ibx_early_open(path, O_RDONLY);
    const bool is_read = file >= 0 && ibx_early_read(file, &head, sizeof(head), 0);
    if (file >= 0)
        ibx_early_close(file);
    return is_read && ibx_early_same(head.e_ident, __ehdr_start.e_ident, EI_VERSION + 1) &&
           head.e_machine == __ehdr_start.e_machine;
}

/* What the loader replaces in LD_LIBRARY_PATH (ld.so(8), "Dynamic string tokens"). It does not tell
 * which values $LIB and $PLATFORM have on this host. So all values that exist are tried, the most
 * specific one first. */
struct token {
    const char *name;
    const char *values[3]; /* NULL: it has no more */
};

enum { ORIGIN, LIB, PLATFORM };

static struct token tokens[] = {
    [ORIGIN] = {"ORIGIN", {NULL}},
#ifdef __x86_64__
    [LIB] = {"LIB", {"lib/x86_64-linux-gnu", "lib64", "lib"}},
    [PLATFORM] = {"PLATFORM", {"haswell", "xeon_phi", NULL}},
#else
    [LIB] = {"LIB", {"lib/aarch64-linux-gnu", "lib64", "lib"}},
    [PLATFORM] = {"PLATFORM", {NULL}},
#endif
};

#define TOKENS (sizeof(tokens) / sizeof(tokens[0]))
#define VALUES (sizeof(tokens[0].values) / sizeof(tokens[0].values[0]))

static void add_value(struct token *token, const char *value)
{
    size_t i = 0;
    while (i < VALUES && token->values[i])
        i++;
    if (i < VALUES)
        token->values[i] = value;
}

/* Whether the program has rights that its caller lacks: then the caller's variables must not choose
 * its libraries. The loader has removed them, but they are still in /proc. */
static bool secure = true;

/* The folder of the program, the processor's name, and `secure`, as the kernel tells them. */
static void read_values(void)
{
    static char program[PATH_MAX];
    const long n = ibx_early_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/exe", (long)program,
                                  sizeof(program) - 1, 0, 0);
    const int file = ibx_early_open("/proc/self/auxv", O_RDONLY);
    ElfW(auxv_t) entry;
    const char *slash = name_in(program);
    if (n > 0 && slash > program) {
        program[slash - program - (slash - program > 1)] = 0;
        add_value(&tokens[ORIGIN], program);
    }
    for (uint64_t at = 0;
         file >= 0 && ibx_early_read(file, &entry, sizeof(entry), at) && entry.a_type != AT_NULL;
         at += sizeof(entry)) {
        if (entry.a_type == AT_PLATFORM && entry.a_un.a_val)
            add_value(&tokens[PLATFORM], (const char *)entry.a_un.a_val);
        if (entry.a_type == AT_SECURE)
            secure = entry.a_un.a_val;
    }
    if (file >= 0)
        ibx_early_close(file);
}

static bool is_of_name(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* How many of the n bytes, behind a '$', are that token's name; 0: they are something else. */
static size_t names(const char *text, size_t n, const struct token *token)
{
    const size_t length = ibx_early_length(token->name), braces = n && *text == '{' ? 1 : 0;
    if (n < length + 2 * braces || !ibx_early_same(text + braces, token->name, length))
        return 0;
    if (braces ? text[1 + length] != '}' : n > length && is_of_name(text[length]))
        return 0;
    return length + 2 * braces;
}

static bool append(char to[PATH_MAX], size_t *at, const char *from, size_t n)
{
    if (n >= PATH_MAX - *at)
        return false;
    ibx_early_copy(to + *at, from, n);
    *at += n;
    return true;
}

/* A folder's n bytes, each token by the value of that number; false: it has none, or there is no
 * room. */
static bool expand(char to[PATH_MAX], size_t *length, const char *folder, size_t n,
                   const size_t which[TOKENS])
{
    *length = 0;
    for (size_t i = 0; i < n;) {
        const struct token *token = tokens;
        size_t named = 0;
        if (folder[i] == '$')
            while (token < tokens + TOKENS && !(named = names(folder + i + 1, n - i - 1, token)))
                token++;
        const char *value = named ? token->values[which[token - tokens]] : folder + i;
        if (!value || !append(to, length, value, named ? ibx_early_length(value) : 1))
            return false;
        i += 1 + named;
    }
    return true;
}

/* Whether the folder, whose name has n bytes, has it: then it is in `found`. */
static bool is_in(const char *folder, size_t n, const char *below, const char *name)
{
    const size_t more = ibx_early_length(below), length = ibx_early_length(name);
    if (!n || n + more + length + 2 > sizeof(found))
        return false;
    ibx_early_copy(found, folder, n);
    ibx_early_copy(found + n, below, more);
    found[n + more] = '/';
    ibx_early_copy(found + n + more + 1, name, length + 1);
    return is_loadable(found);
}

/* Likewise one of LD_LIBRARY_PATH. */
static bool is_in_listed(const char *folder, size_t n, const char *name)
{
    static char expanded[PATH_MAX];
    bool has_token = false;
    for (size_t i = 0; i < n; i++)
        has_token = has_token || folder[i] == '$';
    if (!has_token)
        return is_in(folder, n, "", name);
    for (size_t i = 0; i < VALUES * VALUES; i++) {
        const size_t which[TOKENS] = {[LIB] = i % VALUES, [PLATFORM] = i / VALUES};
        size_t length;
        if (expand(expanded, &length, folder, n, which) && is_in(expanded, length, "", name))
            return true;
    }
    return false;
}

static bool find(const char *name)
{
    const char *folders = variable("LD_LIBRARY_PATH="), *home = variable("GVIRTUS_HOME=");
    while (folders && *folders) {
        size_t n = 0;
        while (folders[n] && folders[n] != ':' && folders[n] != ';')
            n++;
        if (is_in_listed(folders, n, name))
            return true;
        folders += n + (folders[n] ? 1 : 0);
    }
    return home && is_in(home, ibx_early_length(home), FOLDER, name);
}

/* ---------------------------------------------------------------------- what the loader calls */

SEEN unsigned la_version(unsigned version);
SEEN char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

/* All versions of the interface have these two functions. */
unsigned la_version(unsigned version)
{
    read_values();
    if (!secure)
        read_variables();
    return version;
}

/* Called for each library that is requested, and for each path that the loader would try. */
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
    (void)cookie, (void)flag;
    const char *last = name_in(name);
    if (!is_of_cuda(last))
        return (char *)(uintptr_t)name;
    return find(last) ? found : (char *)(uintptr_t)name;
}
