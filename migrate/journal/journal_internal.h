/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of journal/. */
#ifndef IBX_MIGRATE_JOURNAL_JOURNAL_INTERNAL_H
#define IBX_MIGRATE_JOURNAL_JOURNAL_INTERNAL_H

#include "common/state_machine.h"
#include "migrate/journal/journal.h"

#include <stddef.h>
#include <sys/stat.h>

#define JOURNAL_BYTES_MAX (256u << 10) /* of a file: more than a record can need */
#define NAME_BYTES        64u          /* of a file: 32 digits, the role and a suffix */
#define REMEDY_BYTES      192u         /* of the remedy at the end of a message */
#define LOCK              ".lock"
#define BASE_LOCK         ".base"
#define HOME              ".home"
#define RECORD            ".json"
#define RECORD_COPY       ".copy"

/* folder.c. Opens the folder that ibx_journal_folder() has checked. If another one is in its place,
 * the path is checked again. -EPERM: others can write to it, or decide where the path leads. */
int ibx_journal_folder_open(const char *folder, struct ibx_error *err);
/* The end of an error's sentence: `other` but for errors that have a remedy of their own. For
 * -EMFILE it says how to raise the limit of this process: a tool that tries again continues as soon
 * as it may open files. prlimit(1) raises the hard limit only if it is too low. */
const char *ibx_journal_remedy(int code, const char *other, char text[REMEDY_BYTES]);

/* The last name of ibx_journal_path(). */
void ibx_journal_name(const struct ibx_record *record, const char *suffix, char name[NAME_BYTES]);
/* A file beside the record: opened as by open(2), looked at as by lstat(2), or removed. -errno. To
 * look at it takes no descriptor: without one for the folder its path has to do. What cannot be
 * looked at may be there: only -ENOENT says that it is not. */
int ibx_journal_open_beside(const char *folder, const struct ibx_record *record, const char *suffix,
                            int flags);
int ibx_journal_look_beside(const char *folder, const struct ibx_record *record, const char *suffix,
                            struct stat *st);
void ibx_journal_unlink_beside(const char *folder, const struct ibx_record *record,
                               const char *suffix);

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
