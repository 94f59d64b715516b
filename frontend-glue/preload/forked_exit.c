/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Forked children that call exit(3). log4cplus, with which GVirtuS writes its log, has threads, and
 * its end waits for them: in a child, which has none of them, for ever. exit(3) calls what the
 * program has left there, then the destructors of libraries, then what libraries have left there
 * when they began, the last one first. So in a child
 *
 * - log4cplus's own destructors are none, as its dynamic section says from then on, and
 * - this library's handler ends the process before those of objects in log4cplus, which began
 *   earlier. C++'s streams write what they hold when the last library is done with them; since
 *   log4cplus never is, the handler does that for it.
 */
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define WAITS        "liblog4cplus"
#define STREAMS_USES 65536u /* of C++'s streams: more than log4cplus has begun */

static ElfW(Dyn) * destructors; /* how many bytes of them log4cplus has; NULL: it is not there */
static void (*end_streams)(void *); /* std::ios_base::Init::~Init() */
static bool forked;

static void in_child(void)
{
    forked = true;
}

static int find_destructors(struct dl_phdr_info *library, size_t size, void *argument)
{
    const char *slash = strrchr(library->dlpi_name, '/');
    (void)size;
    (void)argument;
    if (strncmp(slash ? slash + 1 : library->dlpi_name, WAITS, strlen(WAITS)) != 0)
        return 0;
    for (unsigned i = 0; i < library->dlpi_phnum; i++) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        ElfW(Dyn) *entry = (ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
        while (entry->d_tag != DT_NULL && entry->d_tag != DT_FINI_ARRAYSZ)
            entry++;
        destructors = entry->d_tag ? entry : NULL;
    }
    return 1;
}

/* Behind all destructors. */
static void end_child(int status, void *argument)
{
    (void)argument;
    if (!forked)
        return;
    for (unsigned i = 0; end_streams && i < STREAMS_USES; i++) {
        char nobody = 0;
        end_streams(&nobody);
    }
    fflush(NULL);
    _exit(status);
}

__attribute__((constructor)) static void begin(void)
{
    dl_iterate_phdr(find_destructors, NULL);
    if (!destructors)
        return;
    void *found = dlsym(RTLD_DEFAULT, "_ZNSt8ios_base4InitD1Ev");
    memcpy(&end_streams, &found, sizeof(found));
    if (pthread_atfork(NULL, NULL, in_child) || on_exit(end_child, NULL))
        ibx_log(IBX_LOG_WARN, "forked children that call exit() may hang: no memory");
}

/* Those of libraries that this one does not depend on, log4cplus among them, come later. */
__attribute__((destructor)) static void skip_destructors(void)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!forked || !destructors)
        return;
    void *at = (void *)((uintptr_t)&destructors->d_un.d_val & ~(page - 1));
    if (mprotect(at, page, PROT_READ | PROT_WRITE)) {
        ibx_log(IBX_LOG_ERROR, "a forked child fails, which would hang in exit(): mprotect: %s",
                strerror(errno));
        _exit(EXIT_FAILURE);
    }
    destructors->d_un.d_val = 0;
}
