/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The page map of the stop, noted in memory that outlives this tool. A tool that recovers must have
 * that very map: by it the destination calls the migration complete, and by it pages are compared.
 * Another look would find another map, though no byte has changed. Pages that were given back
 * between the first look and the stop are holes. A hole becomes a page of zeros when somebody reads
 * it, or when the kernel makes a huge page of what is around it. And when QEMU has ended, nobody
 * knows any more which huge pages it has written.
 */
#include "migrate/source/source.h"

#include <errno.h>
#include <string.h>

static size_t words_of(const struct source *s)
{
    return (size_t)(s->vm.map.pages + 63) / 64;
}

static void path_of(const struct source *s, char *path, size_t size)
{
    ibx_journal_page_state_path(&s->status.record, IBX_PAGE_STATE_MAP, path, size);
}

int ibx_source_stop_map_make(struct source *s, struct ibx_error *err)
{
    char path[128];
    struct ibx_error why = {0};
    path_of(s, path, sizeof(path));
    int rc = ibx_page_state_make(
        &s->stop_map.state, words_of(s) * 8, path, "the page map is noted",
        source_returns(s) ? "try again" : "ib-migrate recover may be unable to end this migration",
        &why);
    if (rc && source_returns(s))
        return ibx_error_set(err, rc, "%s", why.message);
    if (rc)
        ibx_migration_notify(&s->options->observer, "%s", why.message);
    return 0;
}

int ibx_source_stop_map_recall(struct source *s, struct ibx_error *err)
{
    struct source_stop_map *stop = &s->stop_map;
    char path[128];
    path_of(s, path, sizeof(path));
    int rc = ibx_page_state_find(&stop->state, words_of(s) * 8, path, err);
    if (rc == -ESTALE && source_returns(s))
        return ibx_source_return_lost_note(path, err);
    if (rc && rc != -ESTALE)
        return rc;
    if (!rc)
        ibx_page_map_recall(&s->vm.map, stop->state.memory);
    /* No page with data: the tool before this one ended before the stop, and no destination has a
     * map. */
    stop->looked_again = rc || (!s->vm.map.data_pages && !source_returns(s));
    return stop->looked_again ? -ENOENT : 0;
}

void ibx_source_stop_map_note(struct source *s)
{
    if (s->stop_map.state.memory)
        memcpy(s->stop_map.state.memory, s->vm.map.bits, s->stop_map.state.bytes);
}

void ibx_source_stop_map_fini(struct source *s)
{
    if (s->stop_map.state.memory && ibx_journal_over(&s->status.record))
        ibx_journal_forget_page_states(&s->status.record);
    ibx_page_state_fini(&s->stop_map.state);
}
