/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a tool notes of each page in memory that outlives it: a file in /dev/shm, for the tool that
 * takes over. A disk could delay the VM, and the VM does not survive the host anyway. */
#ifndef IBX_MIGRATE_COMMON_NOTE_H
#define IBX_MIGRATE_COMMON_NOTE_H

#include "common/error.h"

#include <stddef.h>

struct ibx_note {
    void *memory; /* of 64-bit words; NULL: none */
    size_t bytes;
};

/* Makes the file, all zeros. `what` is noted there, and `without` says how to do without it.
 * -EEXIST and others, with what is in the way. */
int ibx_note_make(struct ibx_note *note, size_t bytes, const char *path, const char *what,
                  const char *without, struct ibx_error *err);
/* Finds that of the tool before this one. -ESTALE, without a sentence: it is gone, or is another
 * one's. */
int ibx_note_find(struct ibx_note *note, size_t bytes, const char *path, struct ibx_error *err);
/* The file stays. */
void ibx_note_fini(struct ibx_note *note);

#endif
