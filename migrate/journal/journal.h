/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The journal: a folder of records, which survive a crash. A record, struct ibx_record, is one
 * small JSON file for each migration and side. It is replaced as a whole (a new file, fsync,
 * rename, fsync of the directory), and has a copy while the VM may be on the other side: the copy
 * is read when the record is damaged. The source, the destination and the tools call it.
 *
 *   folder.c     where the files are
 *   journal.c    the files: read, listed, written, removed
 *   lock.c       one tool at a time works on a migration
 *   states.c     what is in them: states, and the meaning for an operator
 *   text.c       ... and all of it as JSON
 *   prune.c      deletes those that are not needed any more
 *   guest_ram.c  the guest RAM that a record describes
 *   home.c       the marker of a borrowed VM that may run at home again
 *
 * MAY_RUN means that the VM may run at the destination, HERE that it certainly does not. A side
 * writes MAY_RUN *before* that can become true, so a stopped VM never waits for a disk.
 *
 * state machine: source record
 *   [*] -> HERE -> MAY_RUN -> MOVED -> DONE -> [*]
 *   MAY_RUN -> DONE
 *   HERE | MAY_RUN -> KEPT -> [*]                        aborted: the VM stayed
 *   MAY_RUN | MOVED -> BROKEN                            the destination's pages differ
 *   MAY_RUN | MOVED -> ENDED -> [*]                      the guest has shut down there
 *   HERE | MAY_RUN | MOVED | BROKEN -> ROLLED_BACK -> [*]  continued here by rollback
 *
 * state machine: destination record
 *   [*] -> NOT_YET -> MAY_RUN -> RUNNING -> COMPLETE -> DONE -> [*]
 *   MAY_RUN -> COMPLETE
 *   MAY_RUN | RUNNING | COMPLETE -> BROKEN -> [*]        the pages here differ from the source's
 *   MAY_RUN | RUNNING -> SHUT_DOWN | ENDED               the guest has shut down
 *   SHUT_DOWN -> ENDED -> [*]                            the source knows that, too
 *   SHUT_DOWN -> BROKEN                                  the source has found wrong pages
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
    IBX_JOURNAL_SHUT_DOWN, /* destination: the source does not know it yet */
    IBX_JOURNAL_ENDED,     /* both sides know it: nothing is left to do */
};

#define IBX_JOURNAL_SETTINGS 2048u /* bytes, with the NUL */
#define IBX_JOURNAL_FIGURES  96u   /* bytes, with the NUL */
#define IBX_BOOT_BYTES       40u   /* bytes, with the NUL */

/* Where a block of guest RAM lies, as in struct ibx_guest_block, and how to find its file when QEMU
 * has ended. */
struct ibx_journal_block {
    char id[IBX_GUEST_ID_MAX];
    uint64_t size, page_size, offset, address, dev, ino;
    struct ibx_guest_file file; /* all zeros: an earlier version wrote it */
};

/* The contents of the COMPLETE message, for a tool that has to send it again. */
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
    uint64_t pid_started;      /* field 22 of /proc/PID/stat: with it they name one process ... */
    char boot[IBX_BOOT_BYTES]; /* ... of this boot of the host (boot_id of random(4)); "": not
                                  known, as in a record of an earlier version */
    char uri[IBX_URI_MAX + 2]; /* source: of the destination; destination: to listen at. One that is
                                  too long is cut here, but is still too long to be accepted */
    char peer[128];            /* the other host, as it calls itself */
    /* The fields of struct ibx_options by which this side authenticates and accepts peers. */
    char key_file[256]; /* "" none */
    char key_name[IBX_NAME_MAX + 1], allow[512];
    enum ibx_encryption encryption;
    bool insecure;
    /* The key by which the source has authenticated: no other source may continue. False: an
     * earlier version wrote the record. */
    bool source_key_known;
    char source_key[IBX_NAME_MAX + 1]; /* the key's name; "": a key without a name, or no key */
    int uffd;                          /* destination: the userfaultfd's number in QEMU; -1 none */
    bool device_way;                   /* the userfaultfd was made by /dev/userfaultfd */
    bool libvirt;                      /* libvirt drives QEMU's migration, and decides where the VM
                                          runs (migrate/common/libvirt.h) */
    uint8_t borrow;                    /* enum ibx_migrate_borrow */
    /* When a borrowed VM returns: the id of the migration by which it was borrowed; else zeros. */
    uint8_t base[IBX_MIGRATE_ID_BYTES];
    bool whole;       /* source, with a base: all pages were here at the stop */
    bool was_running; /* source: the VM ran before, and runs again if it comes back */
    uint64_t hold;    /* source: keeps QEMU's migration open (common/return_path.h); 0: none */
    uint64_t stream;  /* ... and QEMU's end of that stream, which it has as long; 0: not known */
    /* Source ("guarded" in the file): all of its RAM has been protected against writes since before
     * anybody could write to it (migrate/common/write_protection.h). */
    bool all_protected;
    bool verify; /* pages are verified, with verify_key, which a finished record no longer has */
    uint8_t verify_key[IBX_SECRET_BYTES];
    /* Guest RAM. Destination, from MAY_RUN on: to find it without the monitor, which does not
     * answer while QEMU's main thread waits for a page. Source: to find its files when QEMU has
     * ended. 0: an earlier version wrote the record. */
    unsigned block_count;
    struct ibx_journal_block blocks[IBX_GUEST_BLOCKS_MAX]; /* by id */
    struct ibx_journal_totals totals; /* destination, in COMPLETE and DONE; else all zeros */
    /* QEMU's status at the destination when the record was written ("running", "paused", ...). If
     * that QEMU has ended, the reason that it gave ("host-signal", ...). "": not known. */
    char vm_status[IBX_MIGRATE_STATUS];
    /* QEMU's migration settings that have to be restored (JSON by ibx_settings_plan()); "": none.
     */
    char settings[IBX_JOURNAL_SETTINGS];
    /* Source, where libvirt drives: the figures that QEMU reports of this migration, which has
     * ended for QEMU (ibx_return_path_last()). Different figures show that a later migration has
     * taken place.
     * "": not known. */
    char qemu_migration[IBX_JOURNAL_FIGURES];
    /* Counts the migrations of this folder; set by the first ibx_journal_write(). 0: an earlier
     * version began the record, so it is older than all that have a number. */
    uint64_t number;
    uint64_t written_s; /* seconds since 1970, set by ibx_journal_write */
    struct timespec
        changed; /* st_mtim of its file when it was read: orders records of one second */
    bool copied; /* its file is damaged, and this was read from its copy */
};

/* Chooses the folder: `given` if not NULL, else $IBX_STATE_DIR, else /var/lib/ibx for root, else
 * $XDG_STATE_HOME/ibx or ~/.local/state/ibx. If it is missing, it is made with `make` (0700);
 * without, it counts as a folder without records. -EPERM: others can write to it; -ENAMETOOLONG: a
 * socket in it would not fit a unix address. */
int ibx_journal_folder(const char *given, bool make, char *folder, size_t size,
                       struct ibx_error *err);
/* Notes the folder that was given by --state-dir, for ibx_journal_options(); NULL: none was. */
void ibx_journal_note_given_folder(const char *given);
/* The options by which a command finds the migrations of this monitor, for a message that tells a
 * person to call one: --qmp, and --state-dir if its folder was noted. To be used within one
 * expression: ibx_journal_options(path).text. */
struct ibx_journal_options {
    char text[2 * PATH_MAX + 32];
};
struct ibx_journal_options ibx_journal_options(const char *qmp);
/* Whether this process may make records there, and the folder if it is missing; changes nothing.
 * Errors as faccessat(2); -EFBIG: its files may not have the size of a record. */
int ibx_journal_folder_check_writable(const char *folder, struct ibx_error *err);

/* What can be done about a folder that takes no files: a new migration can have another one. A
 * migration that has begun, and the return of a borrowed VM, need the records that are in it. */
#define IBX_JOURNAL_ANOTHER_FOLDER "choose another with --state-dir"
#define IBX_JOURNAL_COPY_FOLDER                                                                    \
    "copy the folder elsewhere (cp -a), and give the copy with --state-dir from then on"
const char *ibx_journal_other_folder(const struct ibx_record *record);

/* Writes the record durably: on return it survives a crash of the host. -EINVAL: its state machine
 * has no move from the state on disk to this one, or the epoch is lower than on disk. After a
 * failure the old file is intact. If somebody has removed or damaged the record since it was last
 * written, it is written anew, and unless its lock is held, this process takes it until it ends;
 * -EBADMSG: it is damaged, and this one was never written (written_s is 0). */
int ibx_journal_write(const char *folder, struct ibx_record *record, struct ibx_error *err);
/* Lists all records of the folder, the newest migration first. -EBADMSG names a .json file that is
 * no record, -EPROTONOSUPPORT one that a later ib-migrate has written. The caller frees `*records`
 * by free(); it may be NULL if there are none. */
int ibx_journal_list(const char *folder, struct ibx_record **records, size_t *count,
                     struct ibx_error *err);
/* The same, but passes over such files, and others that cannot be opened: `unread` is the error of
 * one of them (code 0: there are none). */
int ibx_journal_list_readable(const char *folder, struct ibx_record **records, size_t *count,
                              struct ibx_error *unread, struct ibx_error *err);
/* Reads a record again; the caller holds its lock. -ENOENT: it was removed. */
int ibx_journal_reload(const char *folder, struct ibx_record *record, struct ibx_error *err);
/* Looks at the record's own file. -ENOENT: it was removed; -EBADMSG: it is damaged, or its disk
 * cannot read it. */
int ibx_journal_check(const char *folder, const struct ibx_record *record, struct ibx_error *err);
/* Whether `record` was begun later than `than`, even if the clock was set back between. */
bool ibx_journal_is_later(const struct ibx_record *record, const struct ibx_record *than);
/* Finds the newest record whose monitor is `qmp` and for which `fits` is true. -ENOENT, with a
 * message that no migration is unfinished. Another record that cannot be read is an error only if
 * none was found, or that of a borrowed VM or its return. */
int ibx_journal_find(const char *folder, const char *qmp,
                     bool (*fits)(const struct ibx_record *record), struct ibx_record *record,
                     struct ibx_error *err);
/* What a tool records of each page for a tool that takes over, in files in memory, since a
 * disk could delay the VM, and the VM does not survive the host anyway. */
enum ibx_journal_page_state {
    IBX_PAGE_STATE_ARRIVED, /* destination: which pages have arrived, and which have been placed */
    IBX_PAGE_STATE_TAGS, /* destination: the tag of each page that has arrived (pages/digest.h) */
    IBX_PAGE_STATE_BASE, /* destination of a borrowed VM: which pages hold data at the source */
    IBX_PAGE_STATE_MAP,  /* source: which pages held data when the VM had stopped */
    IBX_PAGE_STATE_KINDS,
};
void ibx_journal_page_state_path(const struct ibx_record *record, enum ibx_journal_page_state kind,
                                 char *path, size_t size);
/* At home: the marker (an empty file) that the VM borrowed by migration `id` may run here again,
 * which changes the memory that it left. It is made before the VM runs, and removed if it never
 * did. Functions: its path; making it (durable only as long as the host runs); whether it exists.
 */
void ibx_journal_home_path(const uint8_t id[IBX_MIGRATE_ID_BYTES], char *path, size_t size);
int ibx_journal_mark_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES],
                          struct ibx_error *err);
bool ibx_journal_home_marked(const char *folder, const struct ibx_record *record);
void ibx_journal_unmark_home(const char *folder, const uint8_t id[IBX_MIGRATE_ID_BYTES]);
/* Removes the page states of a migration that is over. */
void ibx_journal_forget_page_states(const struct ibx_record *record);
/* Finds the newest record on this host of the return of a borrowed VM (at the borrower the source's
 * record, at home the destination's) for which `fits` is true. -ENOENT: there is none; others: as
 * ibx_journal_list(). */
int ibx_journal_find_return(const char *folder, const struct ibx_record *borrowed,
                            bool (*fits)(const struct ibx_record *record),
                            struct ibx_record *record);
/* At home: locks the memory that the VM left, until `*fd` is closed. Only one at a time may use it:
 * a QEMU to which the VM returns, or a rollback, which restarts the VM in it. -EBUSY: it is locked.
 */
int ibx_journal_lock_base(const char *folder, const struct ibx_record *record, int *fd,
                          struct ibx_error *err);
/* At home: marks durably that the base of this borrowed VM is no longer what it was at its stop. */
int ibx_journal_touch_base(const char *folder, const struct ibx_record *record,
                           struct ibx_error *err);
bool ibx_journal_base_touched(const char *folder, const struct ibx_record *record);
/* Source: the marker that a rollback may have continued the VM here, although the record does not
 * say so. A rollback makes it durably before it continues the VM, and it goes when the record is
 * written, or when a tool has found that the VM was not continued. */
int ibx_journal_mark_back(const char *folder, const struct ibx_record *record,
                          struct ibx_error *err);
bool ibx_journal_back_marked(const char *folder, const struct ibx_record *record);
void ibx_journal_unmark_back(const char *folder, const struct ibx_record *record);
/* Whether this migration is the return of a borrowed VM. */
static inline bool ibx_journal_returns(const struct ibx_record *record)
{
    static const uint8_t none[IBX_MIGRATE_ID_BYTES];
    return memcmp(record->base, none, sizeof(none)) != 0;
}
/* Destination: whether the VM runs or ran here by this migration. */
static inline bool ibx_journal_ran_here(const struct ibx_record *record)
{
    return !record->source && record->state != IBX_JOURNAL_NOT_YET &&
           record->state != IBX_JOURNAL_MAY_RUN && record->state != IBX_JOURNAL_GIVEN_UP;
}
/* Deletes a record, the files beside it and its page states; the caller holds its lock. */
int ibx_journal_remove(const char *folder, const struct ibx_record *record, struct ibx_error *err);

/* A finished record is kept for DAYS days, provided that it is among the newest KEEP. */
#define IBX_JOURNAL_DAYS 30u
#define IBX_JOURNAL_KEEP 100u
/* How many records in KEPT or GIVEN_UP are kept; none of a monitor whose VM is migrated again. */
#define IBX_JOURNAL_KEEP_FAILED 10u

struct ibx_journal_prune {
    const char *qmp;   /* of this monitor; NULL: any */
    bool unfinished;   /* also records in COMPLETE, or whose QEMU and memory are gone */
    bool remove;       /* remove the files of guest RAM that a completed migration left, too */
    bool keep_memory;  /* keep records that say where memory is that ib-migrate run has made */
    uint64_t before_s; /* delete records written before this time, ... */
    size_t keep;       /* ... and those beyond this number of newer finished ones */
    /* Also those in KEPT or GIVEN_UP of this monitor, or beyond KEEP_FAILED; NULL: no. */
    const char *superseded;
    /* NULL, or called for each record that is old enough: `why` says why it stays; NULL: it was
     * deleted. */
    void (*each)(void *context, const struct ibx_record *record, const char *why);
    void *context;
};

/* Deletes records that are not needed any more: finished ones on which no tool works. The record
 * of a source in DONE or ENDED stays while its QEMU lives, because that QEMU must not be continued,
 * and that of a return while the migration by which the VM was borrowed is not over. So does that
 * of a destination with memory that ib-migrate run has made, while its QEMU lives, while a
 * migration by which the VM left that memory is not over or, with `keep_memory`, as long as that
 * memory is there: only the record says where it is. */
int ibx_journal_prune(const char *folder, const struct ibx_journal_prune *which,
                      struct ibx_error *err);
/* Deletes records by age and number as above. To be called before a new migration of the QEMU at
 * `qmp`. */
void ibx_journal_prune_old(const char *folder, const char *qmp);
/* Whether the process that was the VM's QEMU has ended. */
bool ibx_journal_qemu_gone(const struct ibx_record *record);

/* ------------------------------------------------------------ guest_ram.c */

/* Copies the description of guest RAM, found in a running QEMU, and the machine type to the record.
 */
void ibx_journal_note_ram(struct ibx_record *record, const struct ibx_guest_ram *ram);
/* The reverse: a description whose files are not open, for the next two or
 * ibx_journal_open_files(). -ENOMEM. */
int ibx_journal_recall_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* ibx_guest_ram_reopen_unmapped() with the files of the record, for the source: for reading only if
 * it may do no more. -ENOENT: the file of an unmapped block is gone. */
int ibx_journal_reopen_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* -ESTALE: a file of the record has its name and was cut short, so that its VM cannot be continued.
 * Opens nothing. A file that cannot be looked at is no error, nor is one that QEMU does not have
 * mapped any more. */
int ibx_journal_check_sizes(const struct ibx_record *record, struct ibx_error *err);
/* ibx_journal_reopen_ram() for the destination, which writes to all of them. If the file of a block
 * that is left is gone, nobody can see what becomes of its pages: an empty file takes its place. */
int ibx_journal_reopen_to_fill(const struct ibx_record *record, struct ibx_guest_ram *ram,
                               struct ibx_error *err);
/* Opens the memory of a borrowed VM at home, whether its QEMU there lives or has ended. Unlike the
 * next call it does not mind the tool that serves it. */
int ibx_journal_open_base(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err);
/* Renames the files of that memory to the paths in `instead` (one a block; "": not this one), whose
 * files are replaced. These have to be regular files with one name that belong to the owner of the
 * memory, or symbolic links to such files; otherwise -EPERM. Puts the names that the files have
 * then into `own`, the record of the QEMU that has the memory now. Goes on after a failure and
 * returns the first one. */
int ibx_journal_rename_base(const struct ibx_record *record, char (*instead)[IBX_GUEST_FILE_PATH],
                            struct ibx_record *own, struct ibx_error *err);
/* Opens the files of guest RAM whose QEMU has ended, as ibx_guest_ram_open_files(). -ENOENT also
 * for a record of an earlier version. */
int ibx_journal_open_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err);
/* Calls ibx_guest_file_set_aside() for all blocks: renames the files to FILE.ibx-ID. Goes on after
 * a failure and returns the first one. */
int ibx_journal_set_aside(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err);
/* For migrations that libvirt drives: libvirt removes the folder of the files when it ends the
 * source's QEMU. Gives FOLDER/file a second name FOLDER.file.ibx-ID and puts that into the record.
 */
int ibx_journal_link_files(struct ibx_record *record, struct ibx_error *err);
/* Removes those names; also for a record from before they were made. */
void ibx_journal_unlink_files(const struct ibx_record *record);
/* Sets `path` to the first of the files that still exists, under its name or as FILE.ibx-ID. False:
 * none does. */
bool ibx_journal_memory_file(const struct ibx_record *record, char path[PATH_MAX]);
/* Whether a process has such a file open for writing or mapped, for instance the QEMU of a VM that
 * came back into it. */
bool ibx_journal_memory_used(const struct ibx_record *record);
/* Whether ib-migrate run has made this folder, by all that can be seen: it belongs to this user,
 * who alone may enter it, and its name is "ibx-run-" and six letters or digits. */
bool ibx_journal_run_made(const char *folder);
/* Whether the folder of this file, which need not exist, is such a folder. */
bool ibx_journal_in_run_folder(const char *file);
/* Removes the files of guest RAM, provided that QEMU has ended and no process uses them, and the
 * folder of ib-migrate run if it is empty then. 0 also if there are no files. */
int ibx_journal_remove_files(const struct ibx_record *record, struct ibx_error *err);
/* Whether `path` is a name that ibx_journal_set_aside() gives. */
bool ibx_journal_is_aside(const struct ibx_record *record, const char *path);

/* ------------------------------------------------------------ all */

/* Finished for this side: DONE, ENDED, KEPT, ROLLED_BACK or GIVEN_UP; for a destination also
 * BROKEN. */
bool ibx_journal_over(const struct ibx_record *record);
const char *ibx_journal_state_name(enum ibx_journal_state state);
/* Whether a borrowed VM has returned and needs nothing more of this migration. */
#define IBX_JOURNAL_RETURNED "returned" /* vm_status in SHUT_DOWN and ENDED */
static inline bool ibx_journal_has_returned(const struct ibx_record *record)
{
    return record->borrow && !strcmp(record->vm_status, IBX_JOURNAL_RETURNED);
}
/* Source: whether the VM went to the destination, whose tool has reported that its QEMU has ended.
 */
#define IBX_JOURNAL_QEMU_ENDED  "ended"       /* vm_status */
#define IBX_JOURNAL_MIGRATED_ON "migrated-on" /* ... when another client had migrated it on */
#define IBX_JOURNAL_TAKEN_BACK                                                                     \
    "taken-back" /* destination, BROKEN: the source runs the VM again                              \
                  */
static inline bool ibx_journal_lost_there(const struct ibx_record *record)
{
    return record->source && record->state == IBX_JOURNAL_MOVED &&
           (!strcmp(record->vm_status, IBX_JOURNAL_QEMU_ENDED) ||
            !strcmp(record->vm_status, IBX_JOURNAL_MIGRATED_ON));
}
/* Source, where libvirt drives: whether libvirt has saved the VM here without its memory, which is
 * in the file that the migration has kept. */
#define IBX_JOURNAL_WITHOUT_RAM "saved-without-memory" /* vm_status */
static inline bool ibx_journal_without_ram(const struct ibx_record *record)
{
    return record->source && record->libvirt && !ibx_journal_over(record) &&
           !strcmp(record->vm_status, IBX_JOURNAL_WITHOUT_RAM);
}
/* Says what to do about that. */
void ibx_journal_say_without_ram(const struct ibx_record *record, char *text, size_t size);
/* Whether another client of the destination's QEMU has migrated the VM on, or was about to, by the
 * last status of that QEMU. The VM may run on the third host. */
static inline bool ibx_journal_is_migrated_on(const char *vm_status)
{
    return !strcmp(vm_status, "postmigrate") || !strcmp(vm_status, "finish-migrate") ||
           !strcmp(vm_status, IBX_JOURNAL_MIGRATED_ON);
}
static inline bool ibx_journal_migrated_on(const struct ibx_record *record)
{
    return ibx_journal_is_migrated_on(record->vm_status);
}
/* In texts of ibx_journal_describe(), which a tool that knows more shortens. The second one goes on
 * with "lost there for good", or "gone". */
#define IBX_JOURNAL_UNLESS_AT_WORK "if no ib-migrate is at work, "
#define IBX_JOURNAL_FOR_GOOD       "; if they are "
/* Behind the advice to roll back: nobody may have been there to learn of a rollback. */
#define IBX_JOURNAL_UNLESS_DONE " (unless ib-migrate status there says that this was done)"
#define IBX_JOURNAL_UNLESS_ON   ", unless it runs where another client of QEMU has migrated it"
/* Of a VM whose QEMU another client, such as libvirt, may have ended on purpose. */
#define IBX_JOURNAL_UNLESS_SAVED                                                                   \
    ", and see QEMU's log; but if it was saved (virsh save, virsh managedsave), restore it from "  \
    "that"
/* Source of a return: whether the VM can no longer be restarted here, because it has run at home or
 * may have. Pages that were not here at the stop are only in its memory there, which has changed.
 */
static inline bool ibx_journal_only_at_home(const struct ibx_record *record)
{
    return record->source && ibx_journal_returns(record) && !record->whole &&
           (record->state == IBX_JOURNAL_MOVED || record->state == IBX_JOURNAL_BROKEN);
}
/* Destination: the end of a sentence that recommends rollback at the source. */
static inline const char *ibx_journal_restarts_if(const struct ibx_record *record)
{
    return ibx_journal_migrated_on(record) ? IBX_JOURNAL_UNLESS_ON
           : ibx_journal_returns(record)
               ? ", if it had all of its pages there, else start it from its disk"
               : "";
}
/* Whether the VM is known not to run at the destination, by QEMU's status there. */
static inline bool ibx_journal_stands(const struct ibx_record *record)
{
    return record->vm_status[0] && strcmp(record->vm_status, "running") != 0;
}
/* The other host, for an operator: as it calls itself, or where it was to be found. */
void ibx_journal_name_peer(const struct ibx_record *record, char *name, size_t size);
/* What the record means for the VM: one sentence for an operator. */
void ibx_journal_describe(const struct ibx_record *record, char *text, size_t size);

/* Locks a migration, on which only one tool at a time may work: flock(2) on a file beside the
 * record, which the kernel releases when the process ends. -EBUSY names the process that has it. */
int ibx_journal_lock(const char *folder, const struct ibx_record *record, int *fd,
                     struct ibx_error *err);
/* The living process that works on the migration; 0: none, or only the watchdog of one that has
 * ended. */
pid_t ibx_journal_worker(const char *folder, const struct ibx_record *record);
/* Unlocks a migration; `fd` may be -1. If its record was never written, the lock file is removed,
 * because nothing else would remove it. */
void ibx_journal_unlock(const char *folder, const struct ibx_record *record, int fd);
/* The start time of a process, as in pid_started; 0: there is none, it is a zombie, or its start
 * time cannot be read. */
uint64_t ibx_process_started(pid_t pid);
/* The same of a QEMU, or an error that says why it cannot be read. */
int ibx_process_find_start(pid_t pid, uint64_t *started, struct ibx_error *err);
/* Whether the process that started then has ended for certain. */
bool ibx_process_ended(pid_t pid, uint64_t started);
/* The letter of its state in /proc/PID/stat (proc(5)): 'T' is stopped. '\0': not known. */
char ibx_process_state(pid_t pid);
/* How often it has been given a processor so far (proc(5), schedstat); 0: not known. */
uint64_t ibx_process_turns(pid_t pid);
/* Which boot of this host it is, as in struct ibx_record; "" if /proc does not show it. */
void ibx_process_boot(char boot[IBX_BOOT_BYTES]);
/* Whether the process of the record has ended for certain: also if the host was booted since, where
 * another process can have its number and start time. */
bool ibx_journal_process_ended(const struct ibx_record *record);
/* Whether two records name the same process. */
bool ibx_journal_same_process(const struct ibx_record *one, const struct ibx_record *other);
/* Whether the QEMU of the record is known, and has not ended for certain; see also
 * ibx_journal_qemu_gone(). */
static inline bool ibx_journal_qemu_lives(const struct ibx_record *record)
{
    return record->pid_started && !ibx_journal_process_ended(record);
}
/* FOLDER/ID.source or FOLDER/ID.destination with a suffix: ".json" the record, ".new" one that is
 * being written, ".lock", ".sock". */
void ibx_journal_path(const char *folder, const struct ibx_record *record, const char *suffix,
                      char *path, size_t size);
/* A JSON string, a new reference. If `text` is not UTF-8, only its ASCII characters are kept. NULL:
 * no memory. */
json_t *ibx_json_text(const char *text);
/* Writes two hex digits for each byte, and a NUL. */
void ibx_hex_text(const uint8_t *bytes, size_t count, char *text);

#endif
