/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What survives a crash: one small JSON file a move and side, replaced as a whole (written beside,
 * fsync, rename, fsync of the directory), so that it is the old or the new one, never half of each.
 *
 * It is written *before* what it says can become true: a record that says MAY_RUN means that the VM
 * may run at the destination, one that says HERE that it certainly does not. So no disk is waited
 * for while the VM stands still.
 *
 *   source                        destination
 *   HERE       it is ours          NOT_YET   it cannot run here
 *     |  before the VM stops          |  before the end is given
 *   MAY_RUN    ask the other side  MAY_RUN   ask QEMU
 *     |                               |
 *   MOVED      it runs there       RUNNING   it runs here, pages are missing
 *     |                               |
 *     |                            COMPLETE  all pages are here, the source does not know yet
 *     |                               |
 *   DONE       confirmed           DONE      confirmed
 *   (KEPT: aborted, it stayed;     (GIVEN_UP: aborted)
 *    ROLLED_BACK: taken back)
 */
#ifndef IBX_MIGRATE_JOURNAL_JOURNAL_H
#define IBX_MIGRATE_JOURNAL_JOURNAL_H

#include "migrate/qemu/qemu.h"
#include "migrate/channel/protocol.h"

#include <limits.h>

enum ibx_journal_state {
    IBX_JOURNAL_HERE = 1,
    IBX_JOURNAL_MAY_RUN,
    IBX_JOURNAL_MOVED,
    IBX_JOURNAL_DONE,
    IBX_JOURNAL_KEPT,
    IBX_JOURNAL_ROLLED_BACK,
    IBX_JOURNAL_NOT_YET,
    IBX_JOURNAL_RUNNING,
    IBX_JOURNAL_GIVEN_UP,
    IBX_JOURNAL_COMPLETE,
};

/* Where a block of guest RAM lies, as in struct ibx_guest_block. */
struct ibx_journal_block {
    char id[IBX_GUEST_ID_MAX];
    uint64_t size, page_size, offset, address, dev, ino;
};

/* What the destination says in COMPLETE, so that a tool that comes later can say it. */
struct ibx_journal_totals {
    uint64_t pages, zero_pages, discarded_pages;
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
};

struct ibx_journal {
    uint8_t id[IBX_MIGRATE_ID_BYTES];
    bool source;    /* role: source or destination */
    uint64_t epoch; /* the highest seen */
    enum ibx_journal_state state;
    char uuid[40]; /* the VM's; all zeros when QEMU was not given one */
    char name[128];
    char qmp[PATH_MAX];   /* QEMU's monitor */
    pid_t pid;            /* QEMU */
    uint64_t pid_started; /* field 22 of /proc/PID/stat: together they name one process */
    char uri[512];        /* source: of the destination; destination: to listen at */
    char peer[128];       /* the other host, as it calls itself */
    char key_file[256];   /* "" none */
    int uffd;             /* destination: the userfaultfd's number in QEMU; -1 none */
    bool device_way;      /* it was made by /dev/userfaultfd */
    bool was_running;     /* source: the VM ran before the move, and shall when it comes back */
    /* destination, from MAY_RUN on: found again without the monitor, which does not answer while
     * QEMU's main thread waits for a page. 0: a record of before there were any */
    unsigned block_count;
    struct ibx_journal_block blocks[IBX_GUEST_BLOCKS_MAX]; /* by id */
    struct ibx_journal_totals complete; /* destination, in COMPLETE and DONE; else all zeros */
    uint64_t written_s;                 /* seconds since 1970, set by ibx_journal_write */
};

/* The folder: `given` if not NULL, else $IBX_STATE_DIR, else /var/lib/ibx for root, else
 * $XDG_STATE_HOME/ibx or ~/.local/state/ibx. Made (0700) when missing; -EPERM when others can write
 * to it. -ENAMETOOLONG when a socket in it would not fit a unix address. */
int ibx_journal_folder(const char *given, char *folder, size_t size, struct ibx_error *err);

/* Writes it durably: on return it survives the host's crash. What is on record already counts: only
 * moves in the table of record_text.c are accepted and no lower epoch (-EINVAL), so DONE never goes
 * back, and a new one is HERE or NOT_YET. When it fails the old one is still there, whole. */
int ibx_journal_write(const char *folder, struct ibx_journal *record, struct ibx_error *err);
/* All records of the folder, newest first; a .json file that is not a record is an error that names
 * it (-EBADMSG). free() `*records`. */
int ibx_journal_list(const char *folder, struct ibx_journal **records, size_t *count,
                     struct ibx_error *err);
/* This one as it is on record by now: to be asked under its lock. -ENOENT: it was removed. */
int ibx_journal_reload(const char *folder, struct ibx_journal *record, struct ibx_error *err);
/* The newest unfinished one of this role whose monitor is `qmp` (NULL: any; then it must be the
 * only one: -ENOTUNIQ). -ENOENT. */
int ibx_journal_find(const char *folder, bool source, const char *qmp, struct ibx_journal *record,
                     struct ibx_error *err);
/* Where the destination of a move in minor mode notes which pages have come: in memory, since a
 * disk could hold up the VM, and with the host all is lost anyway. */
void ibx_journal_arrived_path(const struct ibx_journal *record, char *path, size_t size);
/* With what lies beside it, and that. Its lock should be held. */
int ibx_journal_remove(const char *folder, const struct ibx_journal *record, struct ibx_error *err);

#define IBX_JOURNAL_DAYS 30u  /* that the record of a move which is over is kept, at least ... */
#define IBX_JOURNAL_KEEP 100u /* ... if it is among the newest so many */

struct ibx_journal_prune {
    const char *qmp;   /* of this monitor; NULL: any */
    bool unfinished;   /* those too that are not over but COMPLETE, or whose QEMU has ended */
    uint64_t before_s; /* of a time before this ... */
    size_t keep;       /* ... or with more newer ones that are over than this */
    /* Each that is old enough: `why` it stays, or NULL when it went. May be NULL. */
    void (*each)(void *context, const struct ibx_journal *record, const char *why);
    void *context;
};

/* Removes records that nobody needs: of moves that are over and on which no tool works, but for
 * that of a source whose QEMU lives still and must not be continued. */
int ibx_journal_prune(const char *folder, const struct ibx_journal_prune *which,
                      struct ibx_error *err);
/* The rule without being asked: by age and number as above. Before a new move. */
void ibx_journal_prune_old(const char *folder);
/* Whether the process that was the VM's QEMU has ended. */
bool ibx_journal_qemu_gone(const struct ibx_journal *record);

/* Whether the move is over for this side: DONE, KEPT, ROLLED_BACK, GIVEN_UP. */
bool ibx_journal_over(const struct ibx_journal *record);
const char *ibx_journal_state_name(enum ibx_journal_state state);
/* What is true of the VM according to it, for an operator: one sentence. */
void ibx_journal_say(const struct ibx_journal *record, char *sentence, size_t size);

/* Held by the tool that works on a move, so that no two do: flock on a file beside the record,
 * released with the process. -EBUSY names the process that holds it. */
int ibx_journal_lock(const char *folder, const struct ibx_journal *record, int *fd,
                     struct ibx_error *err);
/* The start time of a process, as in pid_started; 0 when there is none or it has ended (a zombie).
 */
uint64_t ibx_process_started(pid_t pid);
/* FOLDER/ID.source or FOLDER/ID.destination with a suffix: ".json" is the record, ".new" one being
 * written, ".lock", ".sock". */
void ibx_journal_path(const char *folder, const struct ibx_journal *record, const char *suffix,
                      char *path, size_t size);

#endif
