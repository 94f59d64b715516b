/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A page state: what a tool records of each page for the tool that takes over, in a file in
 * /dev/shm. A disk could delay the VM, and the VM does not survive the host anyway. */
#ifndef IBX_MIGRATE_COMMON_PAGE_STATE_H
#define IBX_MIGRATE_COMMON_PAGE_STATE_H

#include "common/error.h"

#include <stddef.h>

struct ibx_page_state {
    void *memory; /* the mapped file: 64-bit words; NULL: none */
    size_t bytes;
};

/* Makes the file, filled with zeros, and maps it. For the sentence of an error, `what` says what is
 * noted there, and `without` how to do without it. What another user has made there gets another
 * name, or is removed, if this user may do so. -EEXIST: there is such a file, or another user's;
 * others as open(2), posix_fallocate(3) and mmap(2). */
int ibx_page_state_make(struct ibx_page_state *state, size_t bytes, const char *path,
                        const char *what, const char *without, struct ibx_error *err);
/* Maps the page state that an earlier tool has made. -ESTALE, without a sentence: it is gone, has
 * another size or several names, or another user owns it or may write to it. Other errors do not
 * say that: it could not be opened or mapped. */
int ibx_page_state_find(struct ibx_page_state *state, size_t bytes, const char *path,
                        struct ibx_error *err);
/* Unmaps it. The file stays. */
void ibx_page_state_fini(struct ibx_page_state *state);

#endif
