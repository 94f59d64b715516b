/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To be preloaded: a host that has no process for the second child of each. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

__attribute__((visibility("default"))) pid_t fork(void)
{
    static _Atomic int so_far;
    pid_t (*real)(void) = NULL;
    void *found = dlsym(RTLD_NEXT, "fork");
    memcpy(&real, &found, sizeof(real));
    if (atomic_fetch_add(&so_far, 1) != 1)
        return real();
    errno = EAGAIN;
    return -1;
}
