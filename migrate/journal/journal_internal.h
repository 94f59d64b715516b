/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of journal/. */
#ifndef IBX_MIGRATE_JOURNAL_JOURNAL_INTERNAL_H
#define IBX_MIGRATE_JOURNAL_JOURNAL_INTERNAL_H

#include "common/state_machine.h"
#include "migrate/journal/journal.h"

#include <stddef.h>

#define JOURNAL_BYTES_MAX (256u << 10) /* of a file: more than a record can need */
#define NAME_BYTES        64u          /* of a file: 32 digits, the role and a suffix */
#define REMEDY_BYTES      128u         /* of the remedy at the end of a message */
#define BASE_LOCK         ".base"
#define HOME              ".home"
#define RECORD_COPY       ".copy"

/* folder.c: -EPERM: others can write to it; -ENOTDIR. */
int ibx_journal_folder_check(int fd, const char *folder, struct ibx_error *err);

/* The table entry of a state; NULL: this side has no such state. */
const struct ibx_state *ibx_journal_state_of(bool source, unsigned state);
/* Whether a record may go from `previous` (0: there is none) to `state` on its side. */
bool ibx_journal_move_allowed(bool source, enum ibx_journal_state previous,
                              enum ibx_journal_state state);

/* The file's content, to be freed with free(). -EINVAL: a text that is not UTF-8. */
int ibx_journal_text_make(const struct ibx_record *record, char **text, size_t *length,
                          struct ibx_error *err);
/* Parses such a text; the error does not name the file. */
int ibx_journal_text_parse(const char *text, size_t length, struct ibx_record *record,
                           struct ibx_error *err);

#endif
