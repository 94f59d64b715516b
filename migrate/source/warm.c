/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages that go to the destination while the VM still runs here, by parts: each part is named by
 * ROUND messages and fetched as pages always are. What is written meanwhile is noted (migrate/qemu/
 * tracker.c) and goes again, until another pass through guest RAM does not pay. Right before the
 * stop the destination drops those of its pages that were written since they were sent; after the
 * stop it drops the rest of these. All others are fetched by post-copy.
 *
 * A page costs the VM a page fault only where it is written after it was sent: the pages of a part
 * are protected right before it, and none is protected again that is not sent again. Each page that
 * holds data is at any time
 * - `wanted`: it goes again, or after the stop, whatever is written to it; or
 * - protected, and `held` or in the part that is fetched now; or
 * - held and written since, of which the page table has a mark until the page is `wanted`.
 * That is so by the order of these steps, for each part: scan, choose, protect, wait for devices,
 * send.
 * - A write before its page is protected is there before the READ, which comes after that.
 * - A write after that first takes the protection away. The READ may bring it, or half of it: the
 *   next scan, or the one after the stop, finds the page without protection.
 * - Protecting removes marks, also of some pages besides the part. Those that have been written
 *   since the scan become `wanted` in the same step.
 * - A device writes to pages that the kernel pins for it, which counts as a write when it begins.
 *   What was pinned before the page was protected is waited for; what is pinned later has a mark.
 * - A scan by itself changes nothing and may come at any time.
 * A page that was never protected counts as written. It is `wanted` from the beginning, or was a
 * hole then; the file tells which holes are none any more.
 */
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SETTLE_MS      3000 /* for devices to end their requests */
#define DROP_ENOUGH    64u  /* pages */
#define DROP_ENOUGH_NS 200000u
#define DROPS_MOST     4u
#define OPEN_MS        2000
#define RATE_MOST      1e15 /* bytes per second, whatever the destination says */

static const struct ibx_state warm_states[] = {
    [WARM_OFF] = {"off", IBX_TO(WARM_BETWEEN), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [WARM_BETWEEN] = {"between",
                      IBX_TO(WARM_EXPOSING) | IBX_TO(WARM_EMPTYING) | IBX_TO(WARM_DROPPING) |
                          IBX_TO(WARM_ENDED),
                      0},
    [WARM_EXPOSING] = {"exposing", IBX_TO(WARM_FETCHING) | IBX_TO(WARM_ENDED), 0},
    [WARM_FETCHING] = {"fetching", IBX_TO(WARM_BETWEEN) | IBX_TO(WARM_ENDED), 0},
    [WARM_EMPTYING] = {"emptying", IBX_TO(WARM_DROPPING) | IBX_TO(WARM_ENDED), 0},
    [WARM_DROPPING] = {"dropping", IBX_TO(WARM_OVER) | IBX_TO(WARM_ENDED), 0},
    [WARM_OVER] = {"over", IBX_TO(WARM_STOPPED) | IBX_TO(WARM_ENDED), 0},
    [WARM_STOPPED] = {"stopped", IBX_TO(WARM_ENDED), 0},
    [WARM_ENDED] = {"ended", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table warm_table = IBX_STATE_TABLE("source warm", warm_states);

static const struct ibx_state writes_states[] = {
    [WRITES_KNOWN] = {"known", IBX_TO(WRITES_LOST), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [WRITES_LOST] = {"lost", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table writes_table = IBX_STATE_TABLE("written pages", writes_states);

void ibx_source_warm_init(struct source_warm *warm)
{
    ibx_state_begin(&warm->writes, &writes_table, WRITES_KNOWN);
    ibx_tracker_init(&warm->tracker);
    ibx_state_begin(&warm->state, &warm_table, WARM_OFF);
}

/* ---------------------------------------------------------------- what was written */

static void add(struct source *s)
{
    ibx_page_map_add(&s->warm.wanted, &s->warm.written);
    ibx_page_map_add(&s->vm.map, &s->warm.written); /* holes that have got data */
}

/* At the stop (`last`) these pages have been found with the page map. */
static int scan_return(struct source *s, bool last, struct ibx_error *err)
{
    int rc = last ? 0 : ibx_source_return_find_written(s, err);
    if (!rc)
        ibx_page_map_add(&s->warm.wanted, &s->home.written);
    return rc;
}

/* Finds what was written of a block, and protects `which` of its pages, if any. */
static int scan_block(struct source *s, unsigned i, const struct ibx_page_map *which, bool last,
                      struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    const size_t words = (warm->written.blocks[i].pages + 63) / 64;
    uint64_t *bits = calloc(words, 8), *these = calloc(words, 8);
    int rc = bits && these ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a page map");
    if (!rc && which && ibx_page_map_get_block(which, i, these))
        rc = ibx_tracker_protect(&warm->tracker, i, these, bits, err);
    if (!rc && !which)
        rc = ibx_tracker_scan(&warm->tracker, i, last, bits, err);
    if (!rc)
        rc = ibx_source_vm_keep_data(&s->vm, i, !which && !last, bits, err);
    if (!rc)
        ibx_page_map_put_block(&warm->written, i, bits);
    free(bits);
    free(these);
    return rc;
}

static int scan(struct source *s, const struct ibx_page_map *which, bool last,
                struct ibx_error *err)
{
    int rc = 0;
    if (source_returns(s))
        return scan_return(s, last, err);
    for (unsigned i = 0; !rc && i < s->vm.ram.count; i++)
        rc = scan_block(s, i, which, last, err);
    if (!rc)
        add(s);
    return rc;
}

/* The pages that the destination has are not known to be right any more: all of them go again. */
static void lose(struct source *s, const struct ibx_error *why)
{
    if (!source_returns(s)) /* a return cannot do without: its next step fails */
        ibx_migration_notify(&s->options->observer,
                             "which pages the VM writes is not known any more (%s): all of them "
                             "are fetched after the stop",
                             why->message);
    s->warm.why = *why;
    ibx_state_move(&s->warm.writes, WRITES_LOST);
}

/* An error if a guest that can run VMs of its own does so, as far as that can be seen. */
static int check_nested(const struct source *s, struct ibx_error *err)
{
    return s->warm.nests && s->vm.qmp && !source_warm_lost(&s->warm)
               ? ibx_preflight_nested(s->vm.qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS), err)
               : 0;
}

/* `last`: QEMU does not answer now, and is asked at the commit. */
static void look(struct source *s, bool last)
{
    struct ibx_error why = {0};
    if (!source_warm_lost(&s->warm) &&
        (scan(s, NULL, last, &why) || (!last && check_nested(s, &why))))
        lose(s, &why);
}

int ibx_source_warm_check(const struct source *s, struct ibx_error *err)
{
    int rc = s->warm.state.now == WARM_STOPPED ? check_nested(s, err) : 0;
    const char *then = s->options->returns  ? "it stays here, and can return when that is over"
                       : s->options->borrow ? "it stays here, and can be borrowed when that is over"
                                            : "migrate without --warm";
    return rc ? ibx_error_set(err, rc, "%s: %s", err->message, then) : 0;
}

/* -EBUSY: a VM that returns finds at home only the pages that it has not written here, so these
 * must be known. */
static int check_lost(const struct source *s, struct ibx_error *err)
{
    if (!source_warm_lost(&s->warm) || !source_returns(s))
        return 0;
    return ibx_error_set(err, -EBUSY,
                         "it is no longer known which pages the VM has written (%s): it stays "
                         "here, and can return when that is over",
                         s->warm.why.message);
}

/* How many pages the file of a block has beside those with data by the map: fewer than before if
 * some of these were given back, which is not a write. */
static int64_t others(const struct source *s, unsigned block, uint64_t data)
{
    const struct ibx_guest_block *of = &s->vm.ram.blocks[block];
    struct stat st;
    return fstat(of->fd, &st)
               ? INT64_MIN
               : (int64_t)((uint64_t)st.st_blocks * 512 / of->page_size) - (int64_t)data;
}

/* To be called right after the page map was made: removes the pages that were given back from it.
 * While the VM runs, the first number of others may be too high, which costs a look at the file,
 * but must not be too low: pages of the map that are given back before fstat() do not count. */
static int look_for_given_back(struct source *s, bool first, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < s->vm.ram.count; i++) {
        uint64_t data, *bits = ibx_guest_bits_make(&s->vm.ram.blocks[i], err);
        if (!bits)
            return -ENOMEM;
        data = ibx_page_map_get_block(&s->vm.map, i, bits);
        const int64_t now = others(s, i, data);
        if (first)
            s->warm.others[i] = now > 0 ? now : 0;
        else if (now < s->warm.others[i])
            rc = ibx_guest_block_written(&s->vm.ram, &s->vm.ram.blocks[i], bits, &data, err);
        if (!rc && now < s->warm.others[i])
            ibx_page_map_put_block(&s->vm.map, i, bits);
        free(bits);
    }
    return rc;
}

void ibx_source_warm_on_event(struct source *s, json_t *event)
{
    struct ibx_error why = {0};
    const bool noted = s->warm.state.now >= WARM_BETWEEN && s->warm.state.now <= WARM_OVER;
    if (!noted || source_warm_lost(&s->warm) || !ibx_vm_event_is(event, "BALLOON_CHANGE", NULL))
        return;
    ibx_error_set(&why, -EBUSY, "its balloon has another size");
    lose(s, &why);
}

/* ---------------------------------------------------------------- beginning */

static int make_maps(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    struct ibx_page_map *maps[] = {&warm->written, &warm->wanted, &warm->held, &warm->part};
    int rc = 0;
    for (unsigned i = 0; !rc && i < sizeof(maps) / sizeof(maps[0]); i++)
        rc = ibx_page_map_init_ram(maps[i], &s->vm.ram, err);
    return rc;
}

static int begin(struct source *s, struct ibx_error *err)
{
    int rc = ibx_preflight_warm(s->vm.qmp, &s->vm.ram, &s->warm.nests,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    return rc ? rc
              : ibx_tracker_open(&s->warm.tracker, &s->vm.ram, s->vm.qmp,
                                 ibx_deadline_in_ms(OPEN_MS), err);
}

static void cannot(const struct source *s, const char *why)
{
    ibx_migration_notify(&s->options->observer,
                         "no page can be fetched before the VM stops (%s): all of them are fetched "
                         "after it",
                         why);
}

/* A destination that has agreed expects at least the rounds around the stop. */
int ibx_source_warm_begin(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    struct ibx_error why = {0};
    if (s->link.hello.warm && !s->link.answer.warm)
        cannot(s, "the destination receives with --minor");
    if (!s->link.answer.warm)
        return 0;
    int rc = make_maps(s, err);
    if (!rc)
        rc = ibx_state_move(&warm->state, WARM_BETWEEN);
    if (rc)
        return rc;
    warm->began_ns = ibx_now_ns();
    if (source_returns(s))
        return ibx_source_return_begin(s, err);
    if (begin(s, &why)) {
        cannot(s, why.message);
        warm->why = why;
        return ibx_state_move(&warm->writes, WRITES_LOST);
    }
    rc = ibx_page_map_search(&s->vm.map, &s->vm.ram, err);
    if (!rc)
        rc = look_for_given_back(s, true, err);
    if (rc)
        return rc;
    ibx_page_map_add(&warm->wanted, &s->vm.map);
    warm->pass_pages = warm->wanted.data_pages;
    s->status.warm_rounds = 1;
    return 0;
}

/* ---------------------------------------------------------------- parts */

static int send_round(struct source *s, enum ibx_round_kind kind, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ROUND};
    const size_t room = ibx_channel_room(&s->link.control);
    size_t length;
    uint64_t from = 0;
    int rc = 0;
    while (!rc && (length = ibx_page_map_encode(&s->warm.part, &from, bytes, room)) > 0) {
        message.is.map.bytes = bytes;
        message.is.map.length = length;
        rc = ibx_channel_send(&s->link.control, &message, err);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_ROUND_END};
    message.is.round = (struct ibx_migrate_round){.number = ++s->warm.number,
                                                  .kind = (uint8_t)kind,
                                                  .pages = s->warm.part.data_pages,
                                                  .regions = s->link.regions};
    return rc ? rc : ibx_channel_send(&s->link.control, &message, err);
}

/* `part` becomes the pages that the destination has and must not keep. */
static void choose_stale(struct source *s)
{
    struct source_warm *warm = &s->warm;
    struct ibx_page_map *part = &warm->part;
    ibx_page_map_copy(part, &warm->held);
    if (source_warm_lost(warm))
        return;
    for (uint64_t i = 0; i < (part->pages + 63) / 64; i++) /* zero now, or wanted */
        part->bits[i] &= ~s->vm.map.bits[i] | warm->wanted.bits[i];
    ibx_page_map_recount(part);
    if (s->warm.state.now < WARM_OVER)
        ibx_source_return_keep_compared(s, part); /* the others are dropped after the stop */
}

static int send_stale(struct source *s, enum ibx_round_kind kind, struct ibx_error *err)
{
    ibx_page_map_remove(&s->warm.held, &s->warm.part);
    return send_round(s, kind, err);
}

/* The destination takes microseconds to drop a page, and meanwhile others are written. So this is
 * repeated until few are left to be dropped while the VM stands still, or until the last ones took
 * hardly any time. */
static int drop_more(struct source *s, uint64_t last_ns, struct ibx_error *err)
{
    if (last_ns < DROP_ENOUGH_NS)
        return ibx_state_move(&s->warm.state, WARM_OVER);
    look(s, false);
    choose_stale(s);
    if (s->warm.part.data_pages <= DROP_ENOUGH || ++s->warm.drops == DROPS_MOST)
        return ibx_state_move(&s->warm.state, WARM_OVER);
    return send_stale(s, IBX_ROUND_STALE, err);
}

static int drop_first(struct source *s, struct ibx_error *err)
{
    int rc = ibx_state_move(&s->warm.state, WARM_DROPPING);
    choose_stale(s);
    return rc ? rc : send_stale(s, IBX_ROUND_STALE, err);
}

/* Pages that were given back are dropped in a round of their own. Home may keep the bytes of other
 * pages until they come again, and has less to do for these while the VM stands still. */
static int begin_dropping(struct source *s, struct ibx_error *err)
{
    struct ibx_page_map *part = &s->warm.part;
    ibx_page_map_restart(part);
    if (source_returns(s))
        ibx_page_map_add(part, &s->warm.held);
    ibx_page_map_remove(part, &s->vm.map);
    ibx_source_return_keep_compared(s, part);
    if (!part->data_pages)
        return drop_first(s, err);
    int rc = ibx_state_move(&s->warm.state, WARM_EMPTYING);
    return rc ? rc : send_stale(s, IBX_ROUND_DROP, err);
}

static int next_part(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    struct ibx_error why = {0};
    int rc = ibx_source_return_compared(s, err); /* so that little is left to do after the stop */
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    warm->part_ns = ibx_now_ns();
    look(s, false);
    if (ibx_source_warm_is_enough(s))
        return begin_dropping(s, err);
    ibx_source_warm_choose(s);
    if (scan(s, &warm->part, false, &why) ||
        ibx_tracker_settle(s->vm.qmp, ibx_deadline_in_ms(SETTLE_MS), &why)) {
        lose(s, &why); /* what devices write now may come after the pages were fetched */
        return 0;
    }
    ibx_page_map_remove(&warm->wanted, &warm->part);
    rc = ibx_state_move(&warm->state, WARM_EXPOSING);
    return rc ? rc : ibx_source_link_expose(&s->link, err);
}

int ibx_source_warm_step(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    int rc = warm->state.now == WARM_BETWEEN ? next_part(s, err) : 0;
    if (!rc)
        rc = check_lost(s, err);
    if (rc || warm->state.now != WARM_EXPOSING)
        return rc;
    rc = ibx_source_link_exposed(&s->link, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc;
    rc = ibx_state_move(&warm->state, WARM_FETCHING);
    return rc ? rc : send_round(s, IBX_ROUND_FETCH, err);
}

int ibx_source_warm_on_done(struct source *s, const struct ibx_migrate_round_done *done,
                            struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    const bool dropping = warm->state.now == WARM_DROPPING,
               emptying = warm->state.now == WARM_EMPTYING;
    if ((!dropping && !emptying && warm->state.now != WARM_FETCHING) ||
        done->number != warm->number)
        return ibx_error_set(err, -EPROTO,
                             "the destination has done round %u, and round %u of this migration is "
                             "%s",
                             done->number, warm->number,
                             ibx_state_name(&warm_table, warm->state.now));
    if (emptying)
        return drop_first(s, err);
    if (dropping)
        return drop_more(s, done->ns, err);
    const double rate = done->ns ? (double)done->bytes * 1e9 / (double)done->ns : 0;
    if (rate >= 1)
        warm->rate = rate < RATE_MOST ? (uint64_t)rate : (uint64_t)RATE_MOST;
    const uint64_t took_ns = ibx_now_ns() - warm->part_ns,
                   overhead_ns = took_ns > done->ns ? took_ns - done->ns : 0;
    warm->overhead_ns = warm->overhead_ns ? (warm->overhead_ns * 3 + overhead_ns) / 4 : overhead_ns;
    s->status.warm_bytes += done->bytes;
    warm->pass_sent += warm->part.data_pages;
    ibx_page_map_add(&warm->held, &warm->part);
    return ibx_state_move(&warm->state, WARM_BETWEEN);
}

/* ---------------------------------------------------------------- the stop */

int ibx_source_warm_stopped(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    if (warm->state.now != WARM_OVER)
        return 0;
    look(s, true);
    int rc = check_lost(s, err);
    if (!rc && !source_warm_lost(warm) && !source_returns(s))
        rc = look_for_given_back(s, false, err);
    if (rc)
        return rc;
    choose_stale(s);
    s->status.warm_pages = warm->held.data_pages - warm->part.data_pages;
    rc = ibx_state_move(&warm->state, WARM_STOPPED);
    return rc ? rc : send_stale(s, IBX_ROUND_LAST, err);
}

void ibx_source_warm_end(struct source *s)
{
    struct source_warm *warm = &s->warm;
    ibx_tracker_close(&warm->tracker);
    ibx_page_map_fini(&warm->written);
    ibx_page_map_fini(&warm->wanted);
    ibx_page_map_fini(&warm->held);
    ibx_page_map_fini(&warm->part);
    if (warm->state.now != WARM_OFF && warm->state.now != WARM_ENDED)
        ibx_state_move(&warm->state, WARM_ENDED);
}
