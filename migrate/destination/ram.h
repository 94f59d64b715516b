/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM of the destination, its userfaultfd and the fault engine; and in arrived.c the page
 * states, which outlive the tool: which pages have come. Part of destination.h. */
#ifndef IBX_MIGRATE_DESTINATION_RAM_H
#define IBX_MIGRATE_DESTINATION_RAM_H

#include "common/state_machine.h"
#include "migrate/common/page_state.h"
#include "migrate/migrate.h"
#include "migrate/pages/digest.h"
#include "migrate/pages/pages.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: destination ram
 *   [*] -> UNTOUCHED -> OPENED -> REGISTERED     QEMU has a userfaultfd; guest RAM is on it
 *   REGISTERED -> OPENED                         unregistered; the descriptor is still in QEMU
 *   OPENED | REGISTERED -> UNTOUCHED -> [*]      closed in QEMU, or QEMU has ended
 */
enum destination_ram_state { RAM_UNTOUCHED, RAM_OPENED, RAM_REGISTERED };

struct destination_ram {
    struct ibx_state_machine state;
    struct ibx_guest_ram guest;
    struct ibx_page_map map;
    struct ibx_page_map had;    /* warm.c: pages that are here before the stop; or of 0 pages */
    uint64_t warm_bytes;        /* fetched before the stop */
    uint64_t early_bytes;       /* that came with the page map */
    uint8_t borrow;             /* enum ibx_migrate_borrow: pages are placed write-protected */
    bool unseen;                /* borrowed: a device may have changed memory without a mark */
    bool kept;                  /* home.c: guest RAM is the memory that the VM left here */
    struct ibx_page_state base; /* borrowed: which pages hold data at the source */
    struct ibx_uffd uffd;       /* fd -1 in UNTOUCHED */
    /* Minor faults: READs go into the page cache; with `kept`, over pages that are there. */
    bool minor;
    bool recovered;                      /* from a tool that ended; the engine is rebuilt */
    void *aliases[IBX_GUEST_BLOCKS_MAX]; /* minor mode */
    _Atomic uint64_t unmapped_until_ns[IBX_GUEST_BLOCKS_MAX]; /* then QEMU is asked again */
    struct ibx_page_state arrived;                            /* arrived.c; as are the next two */
    struct ibx_page_state tags;      /* when pages are verified: one a page */
    struct ibx_page_tags *page_tags; /* NULL: pages are not verified */
    struct ibx_fault *engine;
    size_t buffer_bytes;    /* of a page connection, for the engine */
    uint64_t max_bandwidth; /* bytes per second; 0: no limit */
    uint64_t holds;         /* what the VM brings: as in struct ibx_blockers */
    uint64_t waiting;       /* faults that are not answered yet */
    uint64_t discarded;     /* pages that the guest gave back before they came */
};

void ibx_destination_ram_init(struct destination_ram *ram, bool minor, uint64_t max_bandwidth);
/* Recover: finds guest RAM by the record, and makes the page map. */
int ibx_destination_ram_of_record(struct destination_ram *ram, const struct ibx_record *record,
                                  struct ibx_error *err);
/* unmapped_memory.c: whether QEMU has unmapped this block since; and what the engine calls then:
 * -ESTALE if QEMU has mapped it again. `context` is a struct destination_ram. */
bool ibx_destination_ram_unmapped(const struct destination_ram *ram, unsigned block);
int ibx_destination_ram_keep_unmapped(void *context, uint64_t page, uint64_t pages,
                                      const void *bytes, struct ibx_error *err);
/* Empties guest RAM, unless it is `kept`, and makes its userfaultfd in QEMU, which goes into the
 * record with the layout. With kept memory `minor` is a wish: it becomes false where it is not
 * possible, for instance if QEMU has mapped its pages already. */
int ibx_destination_ram_watch(struct destination_ram *ram, struct ibx_qmp *qmp,
                              struct ibx_record *record, struct ibx_error *err);
/* Recover: takes the userfaultfd that QEMU still has. -ENOENT: it has none. */
int ibx_destination_ram_take_uffd(struct destination_ram *ram, const struct ibx_record *record,
                                  struct ibx_error *err);
/* Recover: the rest, for a VM that still misses pages. -ESTALE: it is not known which pages have
 * come. */
int ibx_destination_ram_recover(struct destination_ram *ram, const struct ibx_record *record,
                                struct ibx_error *err);
/* Makes the engine for these page connections; it holds all faults. `runs`: the VM does. */
int ibx_destination_ram_engine(struct destination_ram *ram, struct ibx_page_reader **readers,
                               unsigned count, bool runs, struct ibx_error *err);
/* The page map and all regions are there: serves faults, or continues to serve them over new page
 * connections. */
int ibx_destination_ram_serve(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, bool runs, struct ibx_error *err);
/* Marks the pages that were here before the stop (`had`) as present, in an engine that holds its
 * faults. -EBUSY, -ERANGE: of the engine. */
int ibx_destination_ram_mark_had(struct destination_ram *ram, struct ibx_error *err);
/* These pages are to come again: they do not count in `had` nor in the page states any more, and
 * are missing for the engine, if there is one. -EBUSY, -ERANGE: of the engine. */
int ibx_destination_ram_forget(struct destination_ram *ram, const struct ibx_page_map *pages,
                               struct ibx_error *err);
/* Before the stop: makes an engine that fetches these pages, and is COMPLETE then. */
int ibx_destination_ram_fetch(struct destination_ram *ram, struct ibx_page_reader **readers,
                              unsigned count, const struct ibx_page_map *pages,
                              struct ibx_error *err);
/* Kept memory in minor mode: QEMU has mapped no page of it, and sees none before the engine says
 * so, whatever is in the page cache. */
static inline bool destination_ram_covered(const struct destination_ram *ram)
{
    return ram->kept && ram->minor;
}
/* Before the stop, without a serving engine: makes holes of these pages. -EBUSY: the kernel cannot
 * take them out of a huge page; others as fallocate(2). */
int ibx_destination_ram_drop(struct destination_ram *ram, const struct ibx_page_map *pages,
                             struct ibx_error *err);
/* Every page is here, and no more comes. */
bool ibx_destination_ram_whole(const struct destination_ram *ram);
/* No engine uses page connections. */
bool ibx_destination_ram_stopped(const struct destination_ram *ram);
void ibx_destination_ram_set_bandwidth(struct destination_ram *ram, uint64_t bytes_per_second);
void ibx_destination_ram_stats(struct destination_ram *ram, struct ibx_migrate_status *status);
/* Every page is there: unregisters guest RAM, destroys the engine and closes the userfaultfd in
 * QEMU. May be repeated after a failure; while REGISTERED the VM may wait at its first touch of
 * memory. 0 also when there is nothing to do. */
int ibx_destination_ram_let_go(struct destination_ram *ram, const struct ibx_record *record,
                               struct ibx_error *err);
/* Gives up a descriptor that cannot be closed in QEMU. */
void ibx_destination_ram_abandon(struct destination_ram *ram);
/* The VM will not run here: removes the engine, and what was done to QEMU, as far as possible. */
void ibx_destination_ram_give_up(struct destination_ram *ram, const struct ibx_record *record);
void ibx_destination_ram_end_engine(struct destination_ram *ram);
void ibx_destination_ram_fini(struct destination_ram *ram);

/* arrived.c: page states: which pages have come, and their tags, when they are verified. */

/* Makes the page state that says which pages have come. Errors as ibx_page_state_make(). */
int ibx_destination_arrived_make(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err);
/* Finds the page state of the tool before this one. -ESTALE: it is gone, or another user's, and
 * cannot be done without: in minor mode, and for a VM that is borrowed or returns. */
int ibx_destination_arrived_find(struct destination_ram *ram, const struct ibx_record *record,
                                 struct ibx_error *err);
/* Deletes the file and that of ibx_destination_base_make(), which are not needed any more. They
 * stay mapped. */
void ibx_destination_arrived_remove(const struct ibx_record *record);
/* These pages are to come again: notes that they have neither come nor are in their place. */
void ibx_destination_arrived_forget(struct destination_ram *ram, const struct ibx_page_map *pages);
/* Where the engine notes which pages are in their place, in the same file. NULL: there is no such
 * file, or one of an earlier version, which did this for a borrowed VM only. */
_Atomic uint64_t *ibx_destination_placed(const struct destination_ram *ram);
/* Borrowed: makes a page state for the page map, which the return needs, and copies the map into
 * it. */
int ibx_destination_base_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err);
void ibx_destination_base_note(struct destination_ram *ram);
/* Notes that the pages of `had` have come and are in their place. */
void ibx_destination_arrived_had(struct destination_ram *ram);
/* The page state of the tags, and `page_tags`, which uses it. */
int ibx_destination_tags_make(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err);
int ibx_destination_tags_find(struct destination_ram *ram, const struct ibx_record *record,
                              struct ibx_error *err);
void ibx_destination_tags_remove(const struct ibx_record *record);

#endif
