/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where CUDA's libraries are found (LD_AUDIT, rtld-audit(7)). Packages of Python bring NVIDIA's
 * and find them by a DT_RPATH, which comes before LD_LIBRARY_PATH, or by their whole paths; those
 * of GVirtuS in LD_LIBRARY_PATH are never looked at then. With this library the loader takes them
 * wherever else it was to look, and nothing is loaded in a process that asks for none.
 *
 * It is in a namespace of its own, where it would have a C library of its own: it has none
 * (early.h).
 */
#include "frontend-glue/preload/runtime/early.h"
#include "frontend-glue/preload/remote_libraries.h"

#include <limits.h>
#include <link.h>

#define SEEN       __attribute__((visibility("default")))
#define VARIABLES  ((size_t)4 << 20) /* more than an argument list may have */
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

/* libcudart.so.13 is libcudart.so's, libcudart.so_old is not. */
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

static const char *variables; /* as the process began */
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

/* As the process begins: the loader goes by what they are then, too, and programs that give
 * themselves another title write that over them. */
static void read_variables(void)
{
    const int file = ibx_early_open("/proc/self/environ", O_RDONLY);
    for (size_t n = FIRST_READ; file >= 0 && n <= VARIABLES && !variables; n *= 2) {
        char *text = ibx_early_map(n);
        if (!text)
            break;
        const size_t size = read_up_to(file, text, n - 1); /* a zero is behind them */
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

/* NULL: it is not set. `name` ends with a '='. */
static const char *variable(const char *name)
{
    for (size_t at = 0; at < variables_size; at += ibx_early_length(variables + at) + 1)
        if (ibx_early_begins(variables + at, name))
            return variables + at + ibx_early_length(name);
    return NULL;
}

/* ------------------------------------------------------------------------------ the folders */

static char found[PATH_MAX]; /* the loader copies it, under its lock */

extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden"))); /* the linker's */

/* One that the loader passes over where it searches by itself (32 bits) it would not pass over
 * here, and the program could not begin. */
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

static bool find(const char *name)
{
    const char *folders = variable("LD_LIBRARY_PATH="), *home = variable("GVIRTUS_HOME=");
    while (folders && *folders) {
        size_t n = 0;
        while (folders[n] && folders[n] != ':' && folders[n] != ';')
            n++;
        if (is_in(folders, n, "", name))
            return true;
        folders += n + (folders[n] ? 1 : 0);
    }
    return home && is_in(home, ibx_early_length(home), FOLDER, name);
}

/* ---------------------------------------------------------------------- what the loader calls */

SEEN unsigned la_version(unsigned version);
SEEN char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag);

/* No version has changed these two. */
unsigned la_version(unsigned version)
{
    read_variables();
    return version;
}

/* For each name that is asked for, and for each place where it may be. */
char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag)
{
    (void)cookie, (void)flag;
    const char *last = name_in(name);
    if (!is_of_cuda(last))
        return (char *)(uintptr_t)name;
    return find(last) ? found : (char *)(uintptr_t)name;
}
