/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A VM that was borrowed returns. Its pages were placed here write-protected, by a tool that still
 * serves it (destination/borrow.c), so the page table of QEMU tells which of them were written
 * since. Home has all other pages as they are: so the page map is that of the stop at home, with
 * what was written here. Pages that have not come here are never read.
 *
 * A page that the guest has given back is no written page, but it is zero now: it was in its place,
 * and is a hole.
 */
#include "migrate/preflight/preflight.h"
#include "migrate/pages/digest.h"
#include "migrate/source/source.h"

#include "common/bits.h"
#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COUNTS_MOST      4u   /* tries to count the pages of the files, while pages come */
#define COMPARED_FEW     512u /* pages: comparing them after the stop takes no time */
#define COMPARED_SOON_MS 500u /* the operator is told if a comparison takes longer */
#define CANNOT                                                                                     \
    "it cannot return; ib-migrate send moves it when all of its pages are here (borrow --fill)"

static size_t words_of(const struct source *s)
{
    return (size_t)(s->vm.map.pages + 63) / 64;
}

/* The pages that are noted as in their place here. A page that has arrived, and is not noted as
 * placed, may be in its place, too. */
static const uint64_t *placed(const struct source *s)
{
    return (const uint64_t *)s->home.arrived.memory + words_of(s);
}

/* ---------------------------------------------------------------- page states */

int ibx_source_return_lost_note(const char *path, struct ibx_error *err)
{
    return ibx_error_set(err, -ESTALE,
                         "%s, which recorded the pages that the VM has here, is gone or was "
                         "replaced: the VM cannot return; ib-migrate send moves it when all of its "
                         "pages are here",
                         path);
}

static int find_state(const struct source *s, struct ibx_page_state *state, unsigned bits,
                      const char *path, struct ibx_error *err)
{
    int rc = ibx_page_state_find(state, words_of(s) * 8 * bits, path, err);
    return rc == -ESTALE ? ibx_source_return_lost_note(path, err) : rc;
}

/* Whether QEMU has this block of its record, or the record this block of QEMU. */
static bool is_the_block(const struct ibx_journal_block *noted, const struct ibx_guest_block *now)
{
    return !strcmp(noted->id, now->id) && noted->size == now->size &&
           noted->address == now->address && noted->dev == now->dev && noted->ino == now->ino;
}

static const struct ibx_guest_block *plugged_in(const struct ibx_guest_ram *ram,
                                                const struct ibx_record *came)
{
    for (size_t i = 0; i < ram->count; i++) {
        unsigned k = 0;
        while (k < came->block_count && !is_the_block(&came->blocks[k], &ram->blocks[i]))
            k++;
        if (k == came->block_count)
            return &ram->blocks[i];
    }
    return NULL;
}

static const struct ibx_journal_block *plugged_out(const struct ibx_guest_ram *ram,
                                                   const struct ibx_record *came)
{
    for (unsigned k = 0; k < came->block_count; k++) {
        size_t i = 0;
        while (i < ram->count && !is_the_block(&came->blocks[k], &ram->blocks[i]))
            i++;
        if (i == ram->count)
            return &came->blocks[k];
    }
    return NULL;
}

/* Memory that was plugged in here has pages of which neither the page states nor home know
 * anything, also when it is in the place of other memory. */
static int check_memory(const struct source *s, const struct ibx_record *came,
                        struct ibx_error *err)
{
    if (!came->block_count) /* of an earlier version */
        return 0;
    const struct ibx_guest_block *in = plugged_in(&s->vm.ram, came);
    const struct ibx_journal_block *out = plugged_out(&s->vm.ram, came);
    if (in && !out)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "guest RAM %s (%" PRIu64 " MiB) was plugged in while the VM was here, "
                             "and is not at home: the VM returns when it is plugged out "
                             "(device_del, then object-del id=%s)",
                             in->id, in->size >> 20, in->id);
    if (in)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "guest RAM %s (%" PRIu64 " MiB) was plugged in while the VM was here, "
                             "and %s (%" PRIu64 " MiB) was plugged out: " CANNOT,
                             in->id, in->size >> 20, out->id, out->size >> 20);
    return out ? ibx_error_set(err, -EOPNOTSUPP,
                               "guest RAM %s (%" PRIu64 " MiB) was plugged out while the VM was "
                               "here: " CANNOT,
                               out->id, out->size >> 20)
               : 0;
}

int ibx_source_return_open(struct source *s, struct ibx_error *err)
{
    struct source_return *home = &s->home;
    const struct ibx_record *came = s->options->returns;
    char path[128];
    if (ibx_journal_base_touched(s->options->folder, came))
        return ibx_error_set(
            err, -EOPNOTSUPP,
            "while the VM was here, a device was plugged in whose writes to its memory are not "
            "seen, such as a vhost-user device: " CANNOT);
    ibx_journal_page_state_path(came, IBX_PAGE_STATE_BASE, path, sizeof(path));
    int rc = check_memory(s, came, err);
    if (!rc)
        rc = find_state(s, &home->base, 1, path, err);
    ibx_journal_page_state_path(came, IBX_PAGE_STATE_ARRIVED, path, sizeof(path));
    if (!rc)
        rc = find_state(s, &home->arrived, 2, path, err);
    ibx_journal_page_state_path(came, IBX_PAGE_STATE_TAGS, path, sizeof(path));
    if (!rc && came->verify) {
        rc = ibx_page_state_find(&home->tags, (s->vm.map.pages + 1) * sizeof(uint64_t), path, err);
        rc = rc == -ESTALE ? ibx_source_return_lost_note(path, err) : rc;
    }
    if (!rc)
        rc = ibx_page_map_init_ram(&home->have, &s->vm.ram, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&home->gone, &s->vm.ram, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&home->there, &s->vm.ram, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&home->written, &s->vm.ram, err);
    if (!rc)
        rc = ibx_page_map_init_ram(&home->among, &s->vm.ram, err);
    return rc ? rc : ibx_tracker_attach(&s->warm.tracker, &s->vm.ram, err);
}

void ibx_source_return_note(struct source *s)
{
    if (!source_returns(s))
        return;
    const uint64_t *base = s->home.base.memory, *here = placed(s);
    s->status.record.whole = true;
    for (size_t i = 0; i < words_of(s); i++)
        s->status.record.whole &= !(base[i] & ~here[i]);
}

void ibx_source_return_fini(struct source *s)
{
    struct source_return *home = &s->home;
    ibx_page_state_fini(&home->base);
    ibx_page_state_fini(&home->arrived);
    ibx_page_state_fini(&home->tags);
    ibx_page_map_fini(&home->have);
    ibx_page_map_fini(&home->gone);
    ibx_page_map_fini(&home->there);
    ibx_page_map_fini(&home->written);
    ibx_page_map_fini(&home->among);
}

/* ---------------------------------------------------------------- pages that were compared */

static void tell_of_comparison(struct source *s, uint64_t now)
{
    struct source_return *home = &s->home;
    if (home->compared_told || now < home->compared_from_ns + COMPARED_SOON_MS * IBX_NS_PER_MS)
        return;
    home->compared_told = true;
    ibx_migration_notify(&s->options->observer,
                         "%" PRIu64 " pages that have come here are not compared with home's yet, "
                         "which the return waits for",
                         home->compared_left);
}

static int refuse_broken(const struct source *s, struct ibx_error *err)
{
    /* home counts its memory as touched once it has accepted */
    return ibx_error_set(err, -EBADMSG,
                         "the migration by which the VM was borrowed is broken, as its other "
                         "ib-migrate here says: it cannot return; %s",
                         s->state.now == SOURCE_ASKING
                             ? "ib-migrate rollback at home continues it from where it was stopped"
                             : "because its return had begun, it cannot be restarted at home "
                               "either: start it from its disk");
}

/* `left`: of so many pages this waits, as long as they become fewer from time to time. More may
 * come meanwhile. */
static int await_compared(struct source *s, uint64_t left, struct ibx_error *err)
{
    struct source_return *home = &s->home;
    const uint64_t now = ibx_now_ns();
    if (!left) {
        home->compared_from_ns = 0;
        return 0;
    }
    if (left & IBX_PAGE_TAGS_BROKEN)
        return refuse_broken(s, err);
    if (!home->compared_from_ns)
        home->compared_from_ns = home->compared_ns = now;
    else if (left < home->compared_left)
        home->compared_ns = now;
    home->compared_left = left;
    if (now >= home->compared_ns + s->transport.timeout_ms * IBX_NS_PER_MS)
        return ibx_error_set(err, -ETIMEDOUT,
                             "of %" PRIu64 " pages that have come here none was compared with "
                             "home's for %u ms: the VM stays here, and can return when its "
                             "ib-migrate at home answers",
                             left, s->transport.timeout_ms);
    tell_of_comparison(s, now);
    return -EAGAIN;
}

static uint64_t uncompared(const struct source *s)
{
    return atomic_load((const _Atomic uint64_t *)s->home.tags.memory + s->vm.map.pages);
}

int ibx_source_return_compared(struct source *s, struct ibx_error *err)
{
    if (!source_returns(s) || !s->home.tags.memory)
        return 0;
    const uint64_t left = uncompared(s);
    const bool enough = s->state.now < SOURCE_STOPPED && left <= COMPARED_FEW;
    return await_compared(s, enough ? 0 : left, err);
}

/* Keeps the pages of the map that have not been compared, or the others. */
static void keep_tagged(const struct source *s, struct ibx_page_map *map, bool open)
{
    const _Atomic uint64_t *tags = s->home.tags.memory;
    for (uint64_t i = 0; tags && i < (map->pages + 63) / 64; i++)
        for (uint64_t left = map->bits[i]; left; left &= left - 1) {
            const uint64_t page = i * 64 + (unsigned)__builtin_ctzll(left);
            if (ibx_page_tag_is_open(atomic_load(&tags[page])) != open)
                map->bits[i] &= ~(left & -left);
        }
    ibx_page_map_recount(map);
}

void ibx_source_return_keep_compared(const struct source *s, struct ibx_page_map *map)
{
    keep_tagged(s, map, false);
}

/* While the VM runs, others come all the time. */
int ibx_source_return_await_compared(struct source *s, struct ibx_error *err)
{
    struct ibx_page_map *open = &s->home.among;
    struct pollfd fds[1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    int rc = -EAGAIN;
    if (!source_returns(s) || !s->home.tags.memory)
        return 0;
    ibx_page_map_set(open, 0, open->pages);
    while (rc == -EAGAIN) {
        keep_tagged(s, open, true);
        rc = await_compared(s, open->data_pages | (uncompared(s) & IBX_PAGE_TAGS_BROKEN), err);
        if (rc != -EAGAIN)
            break;
        fds[0] = (struct pollfd){.fd = s->signals.fd, .events = POLLIN};
        const unsigned n = 1 + ibx_control_socket_poll_fds(s->socket, fds + 1);
        if (poll(fds, n, 1) > 0)
            ibx_control_socket_serve(s->socket);
        const int over = ibx_source_check_interrupts(s, err);
        rc = over ? over : rc;
    }
    ibx_page_map_restart(open);
    return rc;
}

/* ---------------------------------------------------------------- the page map */

static uint64_t placed_pages(const struct source *s)
{
    return ibx_bits_count(placed(s), words_of(s));
}

static int64_t pages_of_files(const struct source *s)
{
    int64_t pages = 0;
    for (size_t i = 0; i < s->vm.ram.count; i++) {
        struct stat st;
        if (fstat(s->vm.ram.blocks[i].fd, &st))
            return INT64_MIN / 2;
        pages += (int64_t)((uint64_t)st.st_blocks * 512 / s->vm.ram.blocks[i].page_size);
    }
    return pages;
}

/* Finds the pages of a block that are in its file: those that QEMU has mapped, or all. */
static int find_block(struct source *s, unsigned i, bool mapped, struct ibx_error *err)
{
    struct ibx_page_map *there = &s->home.there;
    uint64_t data, *bits = ibx_guest_bits_make(&s->vm.ram.blocks[i], err);
    if (!bits)
        return -ENOMEM;
    int rc = mapped ? ibx_tracker_mapped(&s->warm.tracker, i, bits, &data, err)
                    : ibx_guest_block_written(&s->vm.ram, &s->vm.ram.blocks[i], bits, &data, err);
    if (!rc)
        ibx_page_map_put_block(there, i, bits);
    free(bits);
    return rc;
}

/* Finds which pages are in the files. The kernel takes microseconds for each piece of a file to
 * tell that, and much less to tell which pages QEMU has mapped: mostly these are all. While the VM
 * runs, pages that come after the count may hide one that is not mapped. When the VM has stopped,
 * which is when the result matters, they are counted again. */
static int find_there(struct source *s, struct ibx_error *err)
{
    const bool stopped = s->state.now == SOURCE_STOPPED;
    const int64_t before = pages_of_files(s);
    int rc = 0;
    for (unsigned i = 0; !rc && i < s->vm.ram.count; i++)
        rc = find_block(s, i, true, err);
    const int64_t mapped = (int64_t)s->home.there.data_pages;
    if (rc || (before >= 0 && mapped >= before && (!stopped || mapped == pages_of_files(s))))
        return rc;
    for (unsigned i = 0; !rc && i < s->vm.ram.count; i++)
        rc = find_block(s, i, false, err);
    return rc;
}

/* Whether pages are being placed: these may be in the files already, and written, before they are
 * noted as placed. In the counts below such a page would make up for one that was given back. */
static bool some_are_coming(const struct source *s)
{
    const uint64_t *arrived = s->home.arrived.memory, *here = placed(s);
    uint64_t coming = 0;
    for (size_t i = 0; i < words_of(s); i++)
        coming |= arrived[i] & ~here[i];
    return coming != 0;
}

/* `*others`: how many pages of the files are not placed. True: that number is exact. A page that
 * comes between the two counts would be in one of them only. A page in the files has arrived
 * before; if after the counts no page is being placed, it is placed. False: the number may be too
 * high, not too low. */
static bool count_others(const struct source *s, int64_t *others)
{
    for (unsigned i = 0; i < COUNTS_MOST; i++) {
        const uint64_t before = placed_pages(s);
        *others = pages_of_files(s) - (int64_t)before;
        if (some_are_coming(s))
            return false;
        atomic_thread_fence(memory_order_seq_cst); /* another process writes what is counted */
        if (placed_pages(s) == before)
            return true;
    }
    return false;
}

/* Finds which pages were given back: those that had come before this look, and are holes. At the
 * stop the files are looked at only if the counts show such pages. */
static int look_for_given_back(struct source *s, struct ibx_error *err)
{
    struct source_return *home = &s->home;
    int64_t others;
    const bool counted = count_others(s, &others);
    if (home->looked && !home->gone.data_pages && counted && others >= home->others)
        return 0;
    ibx_page_map_recall(&home->gone, placed(s));
    int rc = find_there(s, err);
    if (!rc)
        ibx_page_map_remove(&home->gone, &home->there);
    home->others = others;
    home->looked = !rc;
    return rc;
}

/* Whether the files may have pages that were not placed: they are being placed, or somebody has
 * read a hole, as registering memory does with all holes around a page. Such a page is zero, and
 * the VM writes to it without a fault. */
static bool may_have_others(const struct source *s)
{
    if (some_are_coming(s))
        return true;
    const int64_t known = (int64_t)placed_pages(s); /* first: more are placed meanwhile */
    const int64_t others = pages_of_files(s) - known;
    return others + (int64_t)s->home.gone.data_pages > 0 || others < INT64_MIN / 4;
}

/* `written` has the pages that are not protected. Keeps those that are here: they were written. */
static int keep(struct source *s, struct ibx_page_map *written, struct ibx_error *err)
{
    const uint64_t *here = placed(s);
    if (may_have_others(s)) {
        int rc = find_there(s, err);
        ibx_page_map_keep(written, &s->home.there);
        return rc;
    }
    for (size_t i = 0; i < words_of(s); i++)
        written->bits[i] &= here[i] & ~s->home.gone.bits[i];
    ibx_page_map_recount(written);
    return 0;
}

/* For a block whose bits begin within a word of the map. */
static int scan_shifted(struct source *s, struct ibx_page_map *written, unsigned block,
                        struct ibx_error *err)
{
    uint64_t *bits = ibx_guest_bits_make(&s->vm.ram.blocks[block], err);
    int rc = bits ? ibx_tracker_scan_last(&s->warm.tracker, block, NULL, bits, err) : -ENOMEM;
    if (!rc)
        ibx_page_map_put_block(written, block, bits);
    free(bits);
    return rc;
}

/* A written page stays written, and a page that has not come cannot be written. So, unless `all`,
 * only pages are looked at that have come and are not known to be written. */
static int scan_block(struct source *s, struct ibx_page_map *written, unsigned block, bool all,
                      struct ibx_error *err)
{
    const size_t first = written->blocks[block].first / 64,
                 words = (written->blocks[block].pages + 63) / 64;
    const uint64_t *here = placed(s) + first;
    uint64_t *bits = written->bits + first, *among = s->home.among.bits + first;
    if (written->blocks[block].first % 64)
        return scan_shifted(s, written, block, err);
    for (size_t i = 0; i < words; i++)
        among[i] = here[i] & ~bits[i];
    return ibx_tracker_scan_last(&s->warm.tracker, block, all ? NULL : among, bits, err);
}

static int scan_blocks(struct source *s, struct ibx_page_map *written, bool all,
                       struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < s->vm.ram.count; i++)
        rc = scan_block(s, written, i, all, err);
    return rc;
}

/* Finds everything that was written since the VM came: no scan protects a page again. */
static int find_written(struct source *s, struct ibx_page_map *written, struct ibx_error *err)
{
    const bool others = may_have_others(s);
    int rc = scan_blocks(s, written, others, err);
    if (!rc && !others && may_have_others(s)) /* others have come since: it is not known which */
        rc = scan_blocks(s, written, true, err);
    return rc ? rc : keep(s, written, err);
}

int ibx_source_return_find_written(struct source *s, struct ibx_error *err)
{
    int rc = find_written(s, &s->home.written, err);
    if (!rc)
        ibx_page_map_add(&s->vm.map, &s->home.written); /* holes that have got data */
    return rc;
}

int ibx_source_return_find_map(struct source *s, struct ibx_error *err)
{
    int rc = look_for_given_back(s, err);
    if (!rc)
        rc = find_written(s, &s->home.written, err);
    if (rc)
        return rc;
    const uint64_t *base = s->home.base.memory;
    for (size_t i = 0; i < words_of(s); i++)
        s->vm.map.bits[i] = (base[i] & ~s->home.gone.bits[i]) | s->home.written.bits[i];
    ibx_page_map_recount(&s->vm.map);
    return 0;
}

/* Sends the pages that loading devices needs, before it is known what else was written. Only pages
 * that are certain to be in the map: they held data when the VM came, and are in their place. Not
 * over a wire: there they would delay the map, for which QEMU's state waits. */
int ibx_source_return_send_early(struct source *s, struct ibx_error *err)
{
    const uint64_t first = IBX_EARLY_AT / IBX_EARLY_PAGE, word = first / 64, shift = first % 64;
    _Static_assert(IBX_EARLY_AT / IBX_EARLY_PAGE % 64 + IBX_EARLY_PAGES <= 64, "of one word");
    const uint64_t *base = s->home.base.memory;
    uint64_t mapped = 0;
    struct ibx_error later = {0}; /* the page map waits for the same, and tells */
    if (s->warm.state.now != WARM_OVER || !ibx_source_link_has_early(&s->link) ||
        ibx_source_return_compared(s, &later) || ibx_conn_path(s->link.control.conn)->remote)
        return 0;
    int rc = ibx_tracker_mapped_part(&s->warm.tracker, 0, first, IBX_EARLY_PAGES, &mapped, err);
    mapped &= (base[word] & placed(s)[word]) >> shift;
    if (!rc)
        rc = ibx_source_link_send_early(&s->link, (uint32_t)mapped, err);
    s->home.early = !rc;
    return rc;
}

/* ---------------------------------------------------------------- what home has */

int ibx_source_return_on_have(struct source *s, const struct ibx_migrate_any *message,
                              struct ibx_error *err)
{
    struct ibx_page_map *have = &s->home.have;
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    if (message->type == IBX_MIGRATE_HAVE)
        return ibx_page_map_decode(have, message->is.map.bytes, message->is.map.length, err);
    ibx_page_map_hash(have, hash);
    if (have->next != have->pages || message->is.map_end.pages != have->pages ||
        message->is.map_end.data_pages != have->data_pages ||
        memcmp(hash, message->is.map_end.hash, sizeof(hash)))
        return ibx_error_set(err, -EPROTO,
                             "the map of the pages that home has does not add up: %" PRIu64
                             " of %" PRIu64 " pages, %" PRIu64 " with data, announced %" PRIu64,
                             have->next, have->pages, have->data_pages,
                             message->is.map_end.data_pages);
    s->home.have_it = true;
    return 0;
}

/* Pages that home had at the stop and has not any more must be here. */
static int check_have(struct source *s, struct ibx_error *err)
{
    struct ibx_page_map lacks = {0};
    int rc = ibx_page_map_init_ram(&lacks, &s->vm.ram, err);
    if (rc)
        return rc;
    ibx_page_map_recall(&lacks, s->home.base.memory);
    ibx_page_map_remove(&lacks, &s->home.have);
    ibx_page_map_remove(&lacks, &s->warm.wanted);
    ibx_page_map_keep(&lacks, &s->vm.map); /* nor those that were given back */
    for (size_t i = 0; i < words_of(s); i++)
        lacks.bits[i] &= ~placed(s)[i];
    ibx_page_map_recount(&lacks);
    const uint64_t pages = lacks.data_pages;
    ibx_page_map_fini(&lacks);
    if (!pages)
        return 0;
    return ibx_error_set(
        err, -EBADMSG,
        "home lacks %" PRIu64
        " pages that it had when the VM left and that have not come here: somebody has changed the "
        "VM's memory there; the VM runs on here, but pages that it has not fetched are lost",
        pages);
}

int ibx_source_return_begin(struct source *s, struct ibx_error *err)
{
    struct source_warm *warm = &s->warm;
    if (!s->home.have_it)
        return ibx_error_set(err, -EPROTO,
                             "home did not report which pages of the VM's memory it has");
    ibx_page_map_add(&warm->held, &s->home.have);
    ibx_page_map_add(&warm->wanted, &s->home.written);
    return check_have(s, err);
}

int ibx_source_return_check_fabric(const struct source *s, struct ibx_error *err)
{
    const uint64_t *base = s->home.base.memory, *here = placed(s);
    uint64_t missing = 0;
    if (!ibx_page_server_keeps(s->link.pages))
        return 0;
    for (size_t i = 0; i < words_of(s); i++)
        missing += (uint64_t)__builtin_popcountll(base[i] & ~here[i]);
    if (!missing)
        return 0;
    return ibx_error_set(err, -EOPNOTSUPP,
                         "%" PRIu64 " pages of the VM are not here yet, and %s registers memory, "
                         "which would turn them into zero pages: let the VM return over "
                         "tcp:// or, on one host, shm://, or borrow it with --fill",
                         missing, ibx_page_server_path(s->link.pages)->description);
}
