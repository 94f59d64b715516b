/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM that returns to where it was borrowed from: which pages it has written. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_RETURN_H
#define IBX_MIGRATE_SOURCE_RETURN_H

#include "migrate/channel/protocol.h"
#include "migrate/common/page_state.h"
#include "migrate/pages/pages.h"

/*
 * What is known of the pages of a VM that returns. The tool by which it came here, and which still
 * serves it, has made the page states; this tool finds the rest. All have one bit for each page, as
 * a page map.
 */
struct source_return {
    struct ibx_page_state base;    /* with data at home when the VM left */
    struct ibx_page_state arrived; /* that have come here since */
    struct ibx_page_state tags;    /* of these; then how many are not compared with home's yet. No
                                    * memory: they are not compared */
    uint64_t compared_from_ns;     /* since when that is awaited; 0: it is not */
    uint64_t compared_ns;          /* when some were compared last, or this began */
    uint64_t compared_left;        /* how many were not, by the last look */
    bool compared_told;            /* the operator was told that this takes long */
    struct ibx_page_map have;      /* at home now */
    struct ibx_page_map gone;      /* given back here, by the last look */
    struct ibx_page_map there;     /* in the files here, by the last look at all of them */
    struct ibx_page_map written;   /* here, by the last look */
    struct ibx_page_map among;     /* that may have been written since the look before */
    bool looked;                   /* `gone` is known */
    bool have_it;                  /* all of `have` has come */
    bool early;                    /* what loading looks at has been sent ahead of the page map */
    int64_t others;                /* pages of the files beside those that were placed then */
};

struct source;
/* To be called before anything is changed. -ESTALE: the page states are gone; -EOPNOTSUPP: a device
 * may have changed memory here without a mark. */
int ibx_source_return_open(struct source *s, struct ibx_error *err);
/* -ESTALE with the sentence that this page state is gone. */
int ibx_source_return_lost_note(const char *path, struct ibx_error *err);
/* Finds which pages hold data at this moment, here or, as they were, at home. */
int ibx_source_return_find_map(struct source *s, struct ibx_error *err);
/* Finds what the VM has written here, and puts it into `written` and the page map. */
int ibx_source_return_find_written(struct source *s, struct ibx_error *err);
/* The VM has stopped: before its page map is known, sends the pages that loading devices needs, so
 * that QEMU at home can load meanwhile. */
int ibx_source_return_send_early(struct source *s, struct ibx_error *err);
/* The VM has stopped, and the page map is known: notes in the record whether all pages were here.
 */
void ibx_source_return_note(struct source *s);
/* Takes HAVE and HAVE_END. */
int ibx_source_return_on_have(struct source *s, const struct ibx_migrate_any *message,
                              struct ibx_error *err);
/* The destination is ready: puts what it has, and what was written here, into the maps of `warm`.
 * -EPROTO: it has not sent HAVE_END; -EBADMSG: it lacks pages that have not come here. */
int ibx_source_return_begin(struct source *s, struct ibx_error *err);
/* The page connections are there. -EOPNOTSUPP: their fabric would touch pages that are not here. */
int ibx_source_return_check_fabric(const struct source *s, struct ibx_error *err);
/* Home's memory must not change before its tool there has compared with it what has come here. 0:
 * that has compared all pages, or before the stop, while others come, all but a few; -EAGAIN: not
 * yet; -EBADMSG: some differ, and the VM must not go home with them; -ETIMEDOUT: it has compared
 * none for the transport's timeout. 0, too, for any other migration. */
int ibx_source_return_compared(struct source *s, struct ibx_error *err);
/* The same, before home is asked: waits until all pages are compared that have come by now. From
 * then on home's memory may change, and the VM cannot be restarted in it. -ECANCELED: a signal. */
int ibx_source_return_await_compared(struct source *s, struct ibx_error *err);
/* Removes the pages from `map` that have not been compared. */
void ibx_source_return_keep_compared(const struct source *s, struct ibx_page_map *map);
/* Whether that is awaited, which no event ends. */
static inline bool ibx_source_return_waits(const struct source_return *home)
{
    return home->compared_from_ns != 0;
}
void ibx_source_return_fini(struct source *s);

#endif
