/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Forked children that call exit(3). log4cplus, with which GVirtuS writes its log, has threads, and
 * its destructor waits for them to end: in a child, which has none of them, for ever. So a child
 * ends before that destructor is called: behind its own handlers of exit(3) and its destructors,
 * but before those of libraries that it is linked with.
 */
#include "frontend-glue/preload/internal.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define WAITS "liblog4cplus"

static bool exits; /* a child is in exit(3) */
static int status;

static void note_status(int code, void *argument)
{
    (void)argument;
    exits = true;
    status = code;
}

static void in_child(void)
{
    on_exit(note_status, NULL);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static int waits(struct dl_phdr_info *library, size_t size, void *argument)
{
    const char *slash = strrchr(library->dlpi_name, '/');
    (void)size;
    (void)argument;
    return !strncmp(slash ? slash + 1 : library->dlpi_name, WAITS, strlen(WAITS));
}

/* Those of libraries that this one does not depend on, log4cplus among them, come later. */
__attribute__((destructor)) static void end_child(void)
{
    if (!exits || !dl_iterate_phdr(waits, NULL))
        return;
    fflush(NULL);
    _exit(status);
}
