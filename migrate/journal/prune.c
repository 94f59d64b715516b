/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Deletes journals that are not needed any more. */
#include "migrate/journal/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool ibx_journal_qemu_gone(const struct ibx_journal *journal)
{
    return journal->pid > 0 && journal->pid_started &&
           ibx_process_started(journal->pid) != journal->pid_started;
}

/* Why it stays; NULL: it may go. */
static const char *needed(const struct ibx_journal *journal, bool unfinished)
{
    const bool gone = ibx_journal_qemu_gone(journal);
    if (!ibx_journal_over(journal) && !unfinished)
        return "it is not over";
    if (!ibx_journal_over(journal) && journal->state != IBX_JOURNAL_COMPLETE && !gone)
        return "it is not over, and its QEMU lives";
    if (journal->source && journal->state == IBX_JOURNAL_DONE && !gone)
        return "its QEMU lives and must not be continued";
    return NULL;
}

static bool too_young(const struct ibx_journal_prune *which, const struct ibx_journal *journal,
                      size_t over)
{
    return journal->written_s >= which->before_s && over <= which->keep;
}

/* Takes its lock, so no tool is at work on it, and reads it again: a tool may have changed it since
 * it was listed. */
static const char *remove_one(const char *folder, const struct ibx_journal_prune *which,
                              struct ibx_journal *journal, size_t over, struct ibx_error *err)
{
    char lock[PATH_MAX];
    int lock_fd;
    if (ibx_journal_lock(folder, journal, &lock_fd, err))
        return err->message;
    int rc = ibx_journal_reload(folder, journal, err);
    const char *why = rc ? NULL : needed(journal, which->unfinished);
    if (!rc && !why && too_young(which, journal, over))
        why = "it has just been written";
    if (rc == -ENOENT) { /* another process was faster, and the lock's file is new */
        ibx_journal_path(folder, journal, ".lock", lock, sizeof(lock));
        unlink(lock);
        rc = 0;
    } else if (!rc && !why) {
        rc = ibx_journal_remove(folder, journal, err);
    }
    close(lock_fd);
    return rc ? err->message : why;
}

int ibx_journal_prune(const char *folder, const struct ibx_journal_prune *which,
                      struct ibx_error *err)
{
    struct ibx_journal *journals;
    size_t count, over = 0;
    int rc = ibx_journal_list(folder, &journals, &count, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < count; i++) {
        struct ibx_error silent = {0};
        over += ibx_journal_over(&journals[i]);
        if ((which->qmp && strcmp(which->qmp, journals[i].qmp)) ||
            too_young(which, &journals[i], over))
            continue;
        const char *why = needed(&journals[i], which->unfinished);
        if (!why)
            why = remove_one(folder, which, &journals[i], over, &silent);
        if (which->each)
            which->each(which->context, &journals[i], why);
    }
    free(journals);
    return 0;
}

void ibx_journal_prune_old(const char *folder)
{
    const struct ibx_journal_prune old = {
        .before_s = (uint64_t)time(NULL) - IBX_JOURNAL_DAYS * 86400ull, .keep = IBX_JOURNAL_KEEP};
    ibx_journal_prune(folder, &old, NULL);
}
