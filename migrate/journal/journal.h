/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The journal: a folder of records, which survive a crash. A record, struct ibx_record, is one
 * small JSON file for each migration and side. It is replaced as a whole (written beside, fsync,
 * rename, fsync of the directory). The source, the destination and the tools call it.
 *
 *   folder.c     where the files are
 *   journal.c    the files: read, listed, written, removed
 *   lock.c       one tool at a time works on a migration
 *   states.c     what is in them: states, and the meaning for an operator
 *   text.c       ... and all of it as JSON
 *   prune.c      deletes those that are not needed any more
 *   guest_ram.c  the guest RAM that a record describes
 *
 * A side writes a state *before* it can become true: MAY_RUN means that the VM may run at the
 * destination, HERE that it certainly does not. So a stopped VM never waits for a disk.
 *
 * state machine: source record
 *   [*] -> HERE -> MAY_RUN -> MOVED -> DONE -> [*]
 *   MAY_RUN -> DONE
 *   HERE | MAY_RUN -> KEPT -> [*]                        aborted: the VM stayed
 *   MAY_RUN | MOVED -> BROKEN                            the pages there are not those here
 *   MAY_RUN | MOVED -> ENDED -> [*]                      its guest has shut it down there
 *   HERE | MAY_RUN | MOVED | BROKEN -> ROLLED_BACK -> [*]  taken back
 *
 * state machine: destination record
 *   [*] -> NOT_YET -> MAY_RUN -> RUNNING -> COMPLETE -> DONE -> [*]
 *   MAY_RUN -> COMPLETE
 *   MAY_RUN | RUNNING | COMPLETE -> BROKEN -> [*]        the pages here are not those of the source
 *   MAY_RUN | RUNNING -> SHUT_DOWN | ENDED               its guest has shut it down
 *   SHUT_DOWN -> ENDED -> [*]                            and the source knows that, too
 *   SHUT_DOWN -> BROKEN                                  and the source has found wrong pages
 *   NOT_YET | MAY_RUN | RUNNING -> GIVEN_UP -> [*]       RUNNING: its QEMU has ended
 */
#ifndef IBX_MIGRATE_JOURNAL_JOURNAL_H
#define IBX_MIGRATE_JOURNAL_JOURNAL_H

#include "migrate/channel/channel.h"

#include <limits.h>
#include <string.h>
#include <time.h>

enum ibx_journal_state {
    IBX_JOURNAL_HERE = 1, /* source: the VM is here */
    IBX_JOURNAL_MAY_RUN,  /* it may run at the destination: ask the other side, or QEMU there */
    IBX_JOURNAL_MOVED,    /* source: it runs there and needs pages from here */
    IBX_JOURNAL_DONE,     /* complete and confirmed */
    IBX_JOURNAL_KEPT,
    IBX_JOURNAL_ROLLED_BACK,
    IBX_JOURNAL_NOT_YET, /* destination: it cannot run here */
    IBX_JOURNAL_RUNNING, /* destination: it runs here, pages are missing */
    IBX_JOURNAL_GIVEN_UP,
    IBX_JOURNAL_COMPLETE, /* destination: all pages are here, the source has not confirmed */
    IBX_JOURNAL_BROKEN,   /* pages are not the same at both ends: nobody continues it */
    /* Its guest has shut it down at the destination before all pages were there. */
    IBX_JOURNAL_SHUT_DOWN, /* destination: the source does not know it */
    IBX_JOURNAL_ENDED,     /* and both know it: nothing is left to do */
};

#define IBX_JOURNAL_SETTINGS 2048u /* bytes with the NUL */
#define IBX_JOURNAL_FIGURES  96u   /* the same */

/* Where a block of guest RAM lies, as in struct ibx_guest_block, and how to find its file when QEMU
 * has ended. */
struct ibx_journal_block {
    char id[IBX_GUEST_ID_MAX];
    uint64_t size, page_size, offset, address, dev, ino;
    struct ibx_guest_file file; /* all zeros: an earlier version wrote it */
};

/* Of the COMPLETE message, for a tool that has to send it again. */
struct ibx_journal_totals {
    uint64_t pages, zero_pages, discarded_pages;
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
};

struct ibx_record {
    uint8_t id[IBX_MIGRATE_ID_BYTES];
    bool source;    /* role: source or destination */
    uint64_t epoch; /* the highest seen */
    enum ibx_journal_state state;
    char uuid[40]; /* the VM's; all zeros when QEMU was not given one */
    char name[128];
    char machine[64];          /* its type; "": an earlier version wrote the record */
    char qmp[PATH_MAX];        /* QEMU's monitor */
    pid_t pid;                 /* QEMU */
    uint64_t pid_started;      /* field 22 of /proc/PID/stat: together they name one process */
    char uri[IBX_URI_MAX + 2]; /* source: of the destination; destination: to listen at. What is
                                  too long for one stays so */
    char peer[128];            /* the other host, as it calls itself */
    /* How this side proves itself and whom it takes: of struct ibx_options. */
    char key_file[256]; /* "" none */
    char key_name[IBX_NAME_MAX + 1], allow[512];
    enum ibx_encryption encryption;
    bool insecure;
    /* By which key the source has proven itself: nobody else goes on in its place. Not known: an
     * earlier version wrote the record. */
    bool source_key_known;
    char source_key[IBX_NAME_MAX + 1]; /* its name; "" one without, or none */
    int uffd;                          /* destination: the userfaultfd's number in QEMU; -1 none */
    bool device_way;                   /* it was made by /dev/userfaultfd */
    bool libvirt;                      /* drives QEMU's migration, and decides where the VM runs
                                          (migrate/common/libvirt.h) */
    uint8_t borrow;                    /* enum ibx_migrate_borrow */
    /* Of the migration by which this VM was borrowed, from which it returns; all zeros: none. */
    uint8_t base[IBX_MIGRATE_ID_BYTES];
    bool whole;       /* source, with a base: all pages were here at the stop */
    bool was_running; /* source: the VM ran before, and runs again if it comes back */
    uint64_t hold; /* source: what holds QEMU's migration open (migrate/common/hold.h); 0: none */
    uint64_t
        stream; /* ... and QEMU's end of its stream, which it has while that lasts; 0: not known */
    bool guarded; /* source: all of its RAM is protected against writes, and was before anybody
                     wrote to it (migrate/common/guard.h) */
    bool verify;  /* pages are verified, with this key, which a finished record forgets */
    uint8_t verify_key[IBX_SECRET_BYTES];
    /* Destination, from MAY_RUN on: to find guest RAM without the monitor, which does not answer
     * while QEMU's main thread waits for a page. Source: to find its files when QEMU has ended. 0:
     * an earlier version wrote it. */
    unsigned block_count;
    struct ibx_journal_block blocks[IBX_GUEST_BLOCKS_MAX]; /* by id */
    struct ibx_journal_totals totals; /* destination, in COMPLETE and DONE; else all zeros */
    /* QEMU's status at the destination, when this was written ("running", "paused", ...), or, when
     * that QEMU has ended, its reason if it gave one ("host-signal", ...); "": not known. */
    char vm_status[IBX_MIGRATE_STATUS];
    /* QEMU's migration settings that are to be put back (of ibx_settings_plan(), JSON); "": none.
     */
    char settings[IBX_JOURNAL_SETTINGS];
    /* Source, where libvirt drives: what QEMU tells of this migration, which is over for it
     * (ibx_hold_last()): a later one, whoever makes that, has other figures. "": not known. */
    char qemu_migration[IBX_JOURNAL_FIGURES];
    /* Of the migrations that this folder has seen; set by ibx_journal_write, once. 0: an earlier
     * version began it, before all that have a number. */
    uint64_t number;
    uint64_t written_s;      /* seconds since 1970, set by ibx_journal_write */
    struct timespec changed; /* of its file, as it was read: orders those of one second */
};

/* The folder: `given` if not NULL, else $IBX_STATE_DIR, else /var/lib/ibx for root, else
 * $XDG_STATE_HOME/ibx or ~/.local/state/ibx. When it is missing, `make` has it made (0700);
 * otherwise it is one without records. -EPERM: others can write to it; -ENAMETOOLONG: a socket in
 * it would not fit a unix address. */
int ibx_journal_folder(const char *given, bool make, char *folder, size_t size,
                       struct ibx_error *err);

/* Writes it durably: on return it survives the host's crash. -EINVAL: from the state on disk its
 * state machine has no such move, or the epoch is lower. After a failure the old file is whole. One
 * that was written before, and that somebody has removed since, is there again; if nobody has its
 * lock, this process has it until it ends. */
int ibx_journal_write(const char *folder, struct ibx_record *record, struct ibx_error *err);
/* All records of the folder, those that were begun last first. -EBADMSG names a .json file that is
 * no record, -EPROTONOSUPPORT one that a later ib-migrate has written. free() `*records`, which may
 * be NULL when there are none. */
int ibx_journal_list(const char *folder, struct ibx_record **records, size_t *count,
                     struct ibx_error *err);
/* Reads it again; the caller holds its lock. -ENOENT: it was removed. */
int ibx_journal_reload(const char *folder, struct ibx_record *record, struct ibx_error *err);
/* Whether this one was begun later, whatever the clock said then. */
bool ibx_journal_is_later(const struct ibx_record *record, const struct ibx_record *than);
/* The newest one that fits, of those whose monitor is `qmp`. -ENOENT, with the sentence that no
 * migration is unfinished. */
int ibx_journal_find(const char *folder, const char *qmp,
                     bool (*fits)(const struct ibx_record *record), struct ibx_record *record,
                     struct ibx_error *err);
/* What a tool notes of each page for the next one: in memory, since a disk could delay the VM, and
 * the VM does not survive the host anyway. */
enum ibx_journal_note {
    IBX_NOTE_ARRIVED, /* a destination: which pages have come, and are in their place */
    IBX_NOTE_TAGS,    /* a destination: what has come in each (pages/digest.h) */
    IBX_NOTE_BASE,    /* the destination of a borrowed VM: which hold data at the source */
    IBX_NOTE_MAP,     /* a source: which did when the VM had stopped */
    IBX_NOTE_KINDS,
};
void ibx_journal_note_path(const struct ibx_record *record, enum ibx_journal_note note, char *path,
                           size_t size);
/* Home: where it is noted that a borrowed VM, of the migration `id`, may run here again, which
 * changes the memory that it left. Made before it does, and gone if it never did. */
void ibx_journal_home_path(const uint8_t id[IBX_MIGRATE_ID_BYTES], char *path, size_t size);
int ibx_journal_note_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES],
                          struct ibx_error *err);
bool ibx_journal_noted_home(const char *folder, const struct ibx_record *record);
void ibx_journal_forget_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES]);
/* Removes what they name, which nobody needs when the migration is over. */
void ibx_journal_forget_notes(const struct ibx_record *record);
/* The newest record of the return of this borrowed VM, on the side that the record is of: the
 * borrower's source or home's destination, in a state that `fits`. -ENOENT. */
int ibx_journal_find_return(const char *folder, const struct ibx_record *borrowed,
                            bool (*fits)(const struct ibx_record *record),
                            struct ibx_record *record, struct ibx_error *err);
/* Home: the memory that the VM left is for one at a time, a QEMU that takes it for the VM's return
 * or a rollback, which restarts the VM in it; until `*fd` is closed. -EBUSY. */
int ibx_journal_lock_base(const char *folder, const struct ibx_record *record, int *fd,
                          struct ibx_error *err);
/* Home, durably: from here on the base of this borrowed VM is not what it was at its stop. */
int ibx_journal_touch_base(const char *folder, const struct ibx_record *record,
                           struct ibx_error *err);
bool ibx_journal_base_touched(const char *folder, const struct ibx_record *record);
/* This VM returns from where it was borrowed to. */
static inline bool ibx_journal_returns(const struct ibx_record *record)
{
    static const uint8_t none[IBX_MIGRATE_ID_BYTES];
    return memcmp(record->base, none, sizeof(none)) != 0;
}
/* Destination: the VM runs here by it, or did. */
static inline bool ibx_journal_ran_here(const struct ibx_record *record)
{
    return !record->source && record->state != IBX_JOURNAL_NOT_YET &&
           record->state != IBX_JOURNAL_MAY_RUN && record->state != IBX_JOURNAL_GIVEN_UP;
}
/* Deletes it and the files beside it; the caller holds its lock. */
int ibx_journal_remove(const char *folder, const struct ibx_record *record, struct ibx_error *err);

/* A finished record is kept for DAYS days if it is among the newest KEEP. */
#define IBX_JOURNAL_DAYS 30u
#define IBX_JOURNAL_KEEP 100u
/* Of migrations that ended in KEPT or GIVEN_UP so many are kept, and none of a monitor whose VM is
 * migrated again. */
#define IBX_JOURNAL_KEEP_FAILED 10u

struct ibx_journal_prune {
    const char *qmp;   /* of this monitor; NULL: any */
    bool unfinished;   /* also those in COMPLETE, and those whose QEMU and memory have ended */
    bool remove;       /* with the files of guest RAM that a completed migration left behind */
    uint64_t before_s; /* written before this, or */
    size_t keep;       /* with more newer finished ones than this */
    /* Also those in KEPT or GIVEN_UP of this monitor, or beyond KEEP_FAILED; NULL: no. */
    const char *superseded;
    /* Called for each that is old enough: `why` it stays, or NULL: it was deleted. May be NULL. */
    void (*each)(void *context, const struct ibx_record *record, const char *why);
    void *context;
};

/* Deletes records that are not needed any more: finished ones on which no tool works. The record
 * of a source in DONE or ENDED stays while its QEMU lives, because that QEMU must not be continued,
 * and that of a return while the migration by which the VM was borrowed is not over. */
int ibx_journal_prune(const char *folder, const struct ibx_journal_prune *which,
                      struct ibx_error *err);
/* By age and number as above; before a new migration of the QEMU at `qmp`. */
void ibx_journal_prune_old(const char *folder, const char *qmp);
/* Whether the process that was the VM's QEMU has ended. */
bool ibx_journal_qemu_gone(const struct ibx_record *record);

/* ------------------------------------------------------------ guest_ram.c */

/* Notes guest RAM, which has been found in a QEMU that lives, and the machine type. */
void ibx_journal_note_ram(struct ibx_record *record, const struct ibx_guest_ram *ram);
/* The reverse: a description whose files are not open, for ibx_journal_reopen_ram() or
 * ibx_journal_open_files(). -ENOMEM. */
int ibx_journal_recall_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* ibx_guest_ram_reopen_left() with the files of the record; for reading only if the source may do
 * no more. */
int ibx_journal_reopen_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* Opens the memory of a borrowed VM at home, whether its QEMU there lives or has ended. Unlike the
 * next call it does not mind the tool that serves it. */
int ibx_journal_open_base(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err);
/* Gives the files of that memory the names of those that `instead` has, which are replaced: regular
 * files of one name, of the user who has the memory, or links that lead to such ones, or -EPERM. */
int ibx_journal_rename_base(const struct ibx_record *record, char (*instead)[IBX_GUEST_FILE_PATH],
                            struct ibx_error *err);
/* Opens the files of guest RAM whose QEMU has ended; as ibx_guest_ram_open_files(). -ENOENT also of
 * a record of an earlier version. */
int ibx_journal_open_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* ibx_guest_file_set_aside() of all blocks: as FILE.ibx-ID. The first failure, after all others. */
int ibx_journal_set_aside(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err);
/* Where libvirt drives: it removes the folder of the files when it ends the source's QEMU. Gives
 * FOLDER/file a second name FOLDER.file.ibx-ID, and has the record name that. */
int ibx_journal_link_files(struct ibx_record *record, struct ibx_error *err);
/* Removes those names; also for a record from before they were made. */
void ibx_journal_unlink_files(const struct ibx_record *record);
/* The first of the files that still has its name, or that of FILE.ibx-ID; false: there is none. */
bool ibx_journal_memory_file(const struct ibx_record *record, char path[PATH_MAX]);
/* Whether this is a folder as ib-migrate run makes them: of this user, who alone may enter it, and
 * with such a name ("ibx-run-" and six letters or digits). */
bool ibx_journal_run_made(const char *folder);
/* The same for the folder that this file is in, whether the file is there or not. */
bool ibx_journal_in_run_folder(const char *file);
/* Removes them all, once QEMU has ended and no process uses them, and a folder of ib-migrate run
 * that is empty then. 0 also without any. */
int ibx_journal_remove_files(const struct ibx_record *record, struct ibx_error *err);
/* Whether that name says that the file was set aside. */
bool ibx_journal_is_aside(const struct ibx_record *record, const char *path);

/* ------------------------------------------------------------ all */

/* Finished for this side: DONE, ENDED, KEPT, ROLLED_BACK or GIVEN_UP; for a destination also
 * BROKEN. */
bool ibx_journal_over(const struct ibx_record *record);
const char *ibx_journal_state_name(enum ibx_journal_state state);
/* A VM that was borrowed has returned, and needs nothing more of this migration. */
#define IBX_JOURNAL_RETURNED "returned" /* vm_status in SHUT_DOWN and ENDED */
static inline bool ibx_journal_has_returned(const struct ibx_record *record)
{
    return record->borrow && !strcmp(record->vm_status, IBX_JOURNAL_RETURNED);
}
/* Source: the VM ran at the destination, which has said that its QEMU has ended. */
#define IBX_JOURNAL_QEMU_ENDED  "ended"       /* vm_status */
#define IBX_JOURNAL_MIGRATED_ON "migrated-on" /* ... when another client had migrated it on */
static inline bool ibx_journal_lost_there(const struct ibx_record *record)
{
    return record->source && record->state == IBX_JOURNAL_MOVED &&
           (!strcmp(record->vm_status, IBX_JOURNAL_QEMU_ENDED) ||
            !strcmp(record->vm_status, IBX_JOURNAL_MIGRATED_ON));
}
/* Another client of QEMU at the destination has migrated the VM on from there, or was about to: by
 * what that QEMU said last. It may run where that went. */
static inline bool ibx_journal_is_migrated_on(const char *vm_status)
{
    return !strcmp(vm_status, "postmigrate") || !strcmp(vm_status, "finish-migrate") ||
           !strcmp(vm_status, IBX_JOURNAL_MIGRATED_ON);
}
static inline bool ibx_journal_migrated_on(const struct ibx_record *record)
{
    return ibx_journal_is_migrated_on(record->vm_status);
}
#define IBX_JOURNAL_UNLESS_ON ", unless it runs where another client of QEMU has migrated it"
/* Source of a return that has run at home, or may have: pages that were not here at its stop are
 * only in its memory there, which is newer by now. So nothing can restart it here. */
static inline bool ibx_journal_only_at_home(const struct ibx_record *record)
{
    return record->source && ibx_journal_returns(record) && !record->whole &&
           (record->state == IBX_JOURNAL_MOVED || record->state == IBX_JOURNAL_BROKEN);
}
/* Destination, for the end of a sentence that tells of rollback at the source. */
static inline const char *ibx_journal_restarts_if(const struct ibx_record *record)
{
    return ibx_journal_migrated_on(record) ? IBX_JOURNAL_UNLESS_ON
           : ibx_journal_returns(record)
               ? ", if it had all of its pages there, else start it from its disk"
               : "";
}
/* Whether QEMU's status at the destination is known, and is not that the VM runs. */
static inline bool ibx_journal_stands(const struct ibx_record *record)
{
    return record->vm_status[0] && strcmp(record->vm_status, "running") != 0;
}
/* What it means for the VM: one sentence for an operator. */
void ibx_journal_describe(const struct ibx_record *record, char *text, size_t size);

/* One tool at a time works on a migration: flock on a file beside the record, released with the
 * process. -EBUSY names the process that holds it. */
int ibx_journal_lock(const char *folder, const struct ibx_record *record, int *fd,
                     struct ibx_error *err);
/* The process that works on it, and lives; 0: none, or only the watchdog of one that has ended. */
pid_t ibx_journal_worker(const char *folder, const struct ibx_record *record);
/* Closes it; -1: there is none. The file of a record that was never written goes, too: nobody would
 * find it. */
void ibx_journal_unlock(const char *folder, const struct ibx_record *record, int fd);
/* The start time of a process, as in pid_started; 0: there is none, or it is a zombie. */
uint64_t ibx_process_started(pid_t pid);
/* The QEMU of the record lives, for certain; see ibx_journal_qemu_gone(). */
static inline bool ibx_journal_qemu_lives(const struct ibx_record *record)
{
    return record->pid_started && ibx_process_started(record->pid) == record->pid_started;
}
/* FOLDER/ID.source or FOLDER/ID.destination with a suffix: ".json" the record, ".new" one that is
 * being written, ".lock", ".sock". */
void ibx_journal_path(const char *folder, const struct ibx_record *record, const char *suffix,
                      char *path, size_t size);
/* A JSON string of any bytes: of a text that is not UTF-8, only what is ASCII. NULL: no memory. */
json_t *ibx_json_text(const char *text);
/* Two digits a byte, and a NUL. */
void ibx_hex_text(const uint8_t *bytes, size_t count, char *text);

#endif
