/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The loaded libraries of this process, also in a forked child. */
#include "frontend-glue/preload/preload.h"

#include "common/log.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static bool forked; /* set in a child before it has another thread */

static void in_child(void)
{
    forked = true;
}

__attribute__((constructor)) static void begin(void)
{
    if (pthread_atfork(NULL, NULL, in_child))
        ibx_log(IBX_LOG_WARN, "forked children may hang: no memory");
}

bool ibx_frontend_forked(void)
{
    return forked;
}

struct walk {
    ibx_frontend_look_library *look;
    void *argument;
};

static int pass(struct dl_phdr_info *library, size_t size, void *argument)
{
    const struct walk *walk = argument;
    ElfW(Dyn) *dynamic = NULL;
    (void)size;
    for (unsigned i = 0; i < library->dlpi_phnum; i++)
        if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    return walk->look(library->dlpi_name, dynamic, walk->argument);
}

/* A child does not call dl_iterate_phdr(3): another thread of the parent may have held its lock at
 * the fork, and nobody releases it in the child. */
bool ibx_frontend_each_library(ibx_frontend_look_library *look, void *argument)
{
    struct walk walk = {look, argument};
    bool found = !forked && dl_iterate_phdr(pass, &walk);
    for (const struct link_map *l = forked ? _r_debug.r_map : NULL; l && !found; l = l->l_next)
        found = look(l->l_name, l->l_ld, argument);
    return found;
}

bool ibx_frontend_is_named(const char *path, const char *begin)
{
    const char *slash = strrchr(path, '/');
    return !strncmp(slash ? slash + 1 : path, begin, strlen(begin));
}

const char *ibx_frontend_file_of(const void *code)
{
    Dl_info info;
    return dladdr(code, &info) ? info.dli_fname : NULL;
}
