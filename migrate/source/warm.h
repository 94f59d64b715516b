/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages that are fetched while the VM still runs at the source. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_WARM_H
#define IBX_MIGRATE_SOURCE_WARM_H

#include "common/state_machine.h"
#include "migrate/channel/protocol.h"
#include "migrate/pages/pages.h"
#include "migrate/qemu/qemu.h"

/* ---------------------------------------------------------------- warm.c */

/*
 * state machine: source warm
 *   [*] -> OFF                          not asked for, or not possible
 *   OFF -> BETWEEN                      written pages are noted; no part is at the destination
 *   BETWEEN -> EXPOSING -> FETCHING     a part is registered, then the destination fetches it
 *   FETCHING -> BETWEEN                 the destination has all of it
 *   BETWEEN -> EMPTYING -> DROPPING     a return: home drops what was given back here
 *   BETWEEN -> DROPPING -> OVER         the destination drops what was written since; QEMU may stop
 *   OVER -> STOPPED                     the VM is stopped, and what was written last is named
 *   BETWEEN | EXPOSING | FETCHING | EMPTYING | DROPPING -> ENDED          no writes are noted
 *   OVER | STOPPED -> ENDED
 *   OFF | ENDED -> [*]
 */
enum source_warm_state {
    WARM_OFF,
    WARM_BETWEEN,
    WARM_EXPOSING,
    WARM_FETCHING,
    WARM_EMPTYING,
    WARM_DROPPING,
    WARM_OVER,
    WARM_STOPPED,
    WARM_ENDED
};

/*
 * state machine: written pages
 *   [*] -> KNOWN -> LOST -> [*]
 *   KNOWN -> [*]
 *
 * LOST: pages may have changed unseen, so that nothing that the destination has is known to be
 * right. For good.
 */
enum source_writes { WRITES_KNOWN, WRITES_LOST };

struct source_warm {
    struct ibx_state_machine state;
    struct ibx_state_machine writes;
    struct ibx_tracker tracker;
    struct ibx_page_map written; /* by the last scan */
    struct ibx_page_map wanted;  /* not at the destination, or not as they are here */
    struct ibx_page_map held;    /* at the destination, as they are or were here */
    struct ibx_page_map part;    /* the pages that the next ROUNDs name */
    uint64_t cursor;             /* the next place of a pass to be considered */
    uint64_t pass_pages;         /* wanted when this pass through guest RAM began */
    uint64_t pass_sent;          /* pages that have been fetched in it */
    uint64_t rate;               /* bytes per second, of the last part; 0: not known */
    uint64_t began_ns;
    uint64_t part_ns;                     /* when the last part began */
    uint64_t look_ns;                     /* when to look again what others do to the VM */
    uint64_t overhead_ns;                 /* time that it took besides fetching its pages */
    unsigned drops;                       /* rounds in DROPPING */
    uint32_t number;                      /* of the last round that was sent */
    int64_t others[IBX_GUEST_BLOCKS_MAX]; /* pages of a block's file beside those with data */
    char disks_told[IBX_ERROR_MAX];       /* what the operator was told of other images, or users */
    bool nests;                           /* its guest may run VMs under KVM */
    struct ibx_error why;                 /* of WRITES_LOST */
};

struct source;
void ibx_source_warm_init(struct source_warm *warm);
/* The destination is ready. Afterwards still OFF where it does not fetch before the stop. */
int ibx_source_warm_begin(struct source *s, struct ibx_error *err);
/* The next part, if the destination waits for one. */
int ibx_source_warm_step(struct source *s, struct ibx_error *err);
/* If an event of QEMU means that pages change without a mark: LOST. */
void ibx_source_warm_on_event(struct source *s, json_t *event);
/* Takes ROUND_DONE. -EPROTO: it does not answer the last round. */
int ibx_source_warm_on_done(struct source *s, const struct ibx_migrate_round_done *done,
                            struct ibx_error *err);
/* Nothing writes to guest RAM any more, and the page map is made: names what the destination must
 * not keep. */
int ibx_source_warm_stopped(struct source *s, struct ibx_error *err);
/* Before the commit. An error: what the destination keeps is not known to be right. */
int ibx_source_warm_check(const struct source *s, struct ibx_error *err);
/* Removes the protection and frees the maps. May be repeated. */
void ibx_source_warm_end(struct source *s);

/* ---------------------------------------------------------------- warm_parts.c */

/* The pages [*first, *end) are those from `place` on in its piece, in the order of a pass; *first
 * >= *end: none are left in it. False: the pass is over. */
bool ibx_warm_piece(const struct ibx_page_map *map, uint64_t place, uint64_t *first, uint64_t *end);
/* The next part: pages that are wanted, from the cursor on. */
void ibx_source_warm_choose(struct source *s);
/* At the beginning of a part: whether no further part pays. May begin another pass. */
bool ibx_source_warm_is_enough(struct source *s);

/* Whether writes of the VM may have gone unnoticed: no page that was fetched before the stop can be
 * kept. */
static inline bool source_warm_lost(const struct source_warm *warm)
{
    return warm->writes.now == WRITES_LOST;
}

#endif
