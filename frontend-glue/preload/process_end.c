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
 *
 * The same where other threads may be in calls of CUDA's: these go on until the process ends.
 * GVirtuS's own destructors, which free what such calls use, are none then either. The
 * handler closes the connections that no thread is using.
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

#define STREAMS_USES  65536u /* of C++'s streams: more than log4cplus has begun */
#define LIBRARIES_MAX 8u

/* log4cplus, and what is GVirtuS's: not looked for without the former. */
static const char *const names[] = {"liblog4cplus", "libgvirtus-", "libcudart.so"};

/* How many bytes of destructors each library has; log4cplus is the first. */
static ElfW(Dyn) * destructors[LIBRARIES_MAX];
static unsigned libraries;
static void (*end_streams)(void *); /* std::ios_base::Init::~Init() */
static bool forked;
static bool threads; /* others may be in calls */

static void in_child(void)
{
    forked = true;
}

/* `name`: that the library's begins with. */
static int find_destructors(struct dl_phdr_info *library, size_t size, void *name)
{
    const char *slash = strrchr(library->dlpi_name, '/');
    (void)size;
    if (strncmp(slash ? slash + 1 : library->dlpi_name, name, strlen(name)) != 0)
        return 0;
    for (unsigned i = 0; i < library->dlpi_phnum; i++) {
        if (library->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        ElfW(Dyn) *entry = (ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
        while (entry->d_tag != DT_NULL && entry->d_tag != DT_FINI_ARRAYSZ)
            entry++;
        if (entry->d_tag && libraries < LIBRARIES_MAX)
            destructors[libraries++] = entry;
    }
    return 0;
}

/* Behind all destructors. */
static void end_process(int status, void *argument)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    (void)argument;
    if (!forked && !threads)
        return;
    if (threads && calls)
        calls->leave();
    for (unsigned i = 0; end_streams && i < STREAMS_USES; i++) {
        char nobody = 0;
        end_streams(&nobody);
    }
    fcloseall(); /* as exit(3), without the locks of streams that other threads wait in */
    _exit(status);
}

__attribute__((constructor)) static void begin(void)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && (!i || libraries); i++)
        dl_iterate_phdr(find_destructors, (void *)(uintptr_t)names[i]);
    if (!libraries)
        return;
    void *found = dlsym(RTLD_DEFAULT, "_ZNSt8ios_base4InitD1Ev");
    memcpy(&end_streams, &found, sizeof(found));
    if (pthread_atfork(NULL, NULL, in_child) || on_exit(end_process, NULL))
        ibx_log(IBX_LOG_WARN, "forked children that call exit() may hang: no memory");
}

static bool skip(ElfW(Dyn) * bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *at = (void *)((uintptr_t)&bytes->d_un.d_val & ~(page - 1));
    if (mprotect(at, page, PROT_READ | PROT_WRITE))
        return false;
    bytes->d_un.d_val = 0;
    return true;
}

/* Those of libraries that this one does not depend on, log4cplus among them, come later. */
__attribute__((destructor)) static void skip_destructors(void)
{
    if (!libraries)
        return;
    threads = !ibx_frontend_close();
    if (forked && !skip(destructors[0])) {
        ibx_log(IBX_LOG_ERROR, "a forked child fails, which would hang in exit(): mprotect: %s",
                strerror(errno));
        _exit(EXIT_FAILURE);
    }
    for (unsigned i = 0; threads && i < libraries; i++)
        skip(destructors[i]);
}
