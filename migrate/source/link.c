/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MIN_MS    250
#define RETRY_MAX_MS    5000
#define RETRY_FORGET_MS 10000 /* a link that lasted so long begins a new series of tries */

int ibx_source_record(struct source *s, enum ibx_journal_state state, struct ibx_error *err)
{
    struct ibx_journal record = s->status.record;
    record.state = state;
    int rc = ibx_journal_write(s->options->folder, &record, err);
    if (!rc)
        s->status.record = record;
    return rc;
}

static void hello_of(const struct source *s, enum ibx_migrate_purpose purpose,
                     struct ibx_migrate_hello *hello)
{
    const unsigned wished = s->links ? s->links : s->options->links;
    *hello =
        (struct ibx_migrate_hello){.purpose = (uint8_t)purpose, .epoch = s->status.record.epoch};
    ibx_migration_offer_links(hello, wished);
    if (!wished && purpose == IBX_PURPOSE_RESUME) /* the tool before this one has chosen */
        hello->links = IBX_MIGRATE_LINKS_MAX;
    memcpy(hello->id, s->status.record.id, sizeof(hello->id));
    ibx_migrate_hello_describe(hello, &s->ram);
}

/* As many as the destination has chosen. */
static int open_pages(struct source *s, const struct ibx_migrate_hello *hello,
                      const struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    if (answer->links < hello->links_least || answer->links > hello->links)
        return ibx_error_set(err, -EPROTO,
                             "the destination (%s) wants %u page connections where %u to %u were "
                             "offered: its ib-migrate is not like this one",
                             answer->host, answer->links, hello->links_least, hello->links);
    s->links = answer->links;
    struct ibx_page_server_config config = {
        .ram = &s->ram,
        .uri = s->status.record.uri,
        .options = &s->transport,
        .join = {.epoch = s->status.record.epoch},
        .links = s->links,
    };
    memcpy(config.join.id, s->status.record.id, sizeof(config.join.id));
    int rc = ibx_page_server_open(&config, &s->pages, err);
    if (!rc)
        memcpy(s->status.path, ibx_page_server_path(s->pages)->description, sizeof(s->status.path));
    return rc;
}

int ibx_source_link_ask(struct source *s, struct ibx_error *err)
{
    struct ibx_migrate_hello hello;
    struct ibx_migrate_answer answer;
    hello_of(s, IBX_PURPOSE_MOVE, &hello);
    int rc =
        ibx_hardware_describe(s->qmp, hello.hardware, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    rc =
        ibx_migration_greet(s->status.record.uri, &s->transport, &hello, &s->control, &answer, err);
    if (rc)
        return rc;
    memcpy(s->status.record.peer, answer.host, sizeof(s->status.record.peer));
    if (answer.accepted) {
        s->linked = true;
        return open_pages(s, &hello, &answer, err);
    }
    struct ibx_blockers refusals = {.count = answer.count};
    for (unsigned i = 0; i < answer.count && i < IBX_MIGRATE_REASONS_MAX; i++)
        memcpy(refusals.reasons[i], answer.reasons[i], sizeof(refusals.reasons[i]));
    char where[160];
    snprintf(where, sizeof(where), "the destination (%s) refuses", answer.host);
    return ibx_migration_refused(where, &refusals, err);
}

int ibx_source_find_map(struct source *s, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < s->ram.count; i++) {
        const struct ibx_guest_block *block = &s->ram.blocks[i];
        uint64_t written, *bits = malloc((block->size / block->page_size + 63) / 64 * 8);
        if (!bits)
            return ibx_error_set(err, -ENOMEM, "no memory for a page map");
        written = ibx_page_map_get_block(&s->map, i, bits);
        rc = written ? ibx_guest_block_written_since(&s->ram, block, bits, &written, err)
                     : ibx_guest_block_written(&s->ram, block, bits, &written, err);
        if (!rc)
            ibx_page_map_put_block(&s->map, i, bits);
        free(bits);
    }
    s->status.pages = s->map.pages;
    s->status.zero_pages = s->map.pages - s->map.data_pages;
    return rc;
}

int ibx_source_link_expose(struct source *s, struct ibx_error *err)
{
    s->exposing = true;
    return ibx_page_server_expose(s->pages, &s->map, err);
}

int ibx_source_link_exposed(struct source *s, struct ibx_error *err)
{
    if (!s->exposing)
        return 0;
    int rc = ibx_page_server_done(s->pages, &s->regions, err);
    s->exposing = rc == -EAGAIN;
    return rc;
}

void ibx_source_link_close(struct source *s)
{
    if (s->pages)
        s->status.source_cpu_ns += ibx_page_server_cpu_ns(s->pages);
    ibx_page_server_close(s->pages);
    s->pages = NULL;
    ibx_channel_fini(&s->control);
    s->linked = s->map_sent = s->exposing = false;
}

void ibx_source_link_disown(struct source *s, const char *why)
{
    struct ibx_migrate_hello hello;
    struct ibx_migrate_answer answer;
    const struct ibx_options options = ibx_migration_retry_options(&s->transport);
    ibx_source_link_close(s);
    s->status.record.epoch++;
    hello_of(s, IBX_PURPOSE_RESUME, &hello);
    if (ibx_migration_greet(s->status.record.uri, &options, &hello, &s->control, &answer, NULL))
        return;
    if (answer.accepted && !ibx_channel_send_abort(&s->control, why))
        ibx_channel_linger(&s->control, ibx_deadline_in_ms(options.timeout_ms));
    ibx_channel_fini(&s->control);
}

/* What the destination's standing means for a source that has committed. */
static int heed_standing(struct source *s, const struct ibx_migrate_answer *answer,
                         struct ibx_error *err)
{
    const char *why = answer->count ? answer->reasons[0] : "it gave no reason";
    switch (answer->state) {
    case IBX_ANSWER_GIVEN_UP:
        return ibx_error_set(err, -ECANCELED,
                             "the destination (%s) has given up before the VM "
                             "ran there: %s",
                             answer->host, why);
    case IBX_ANSWER_WAITING:
        break;
    case IBX_ANSWER_RUNNING:
    case IBX_ANSWER_COMPLETE:
        if (s->state == SOURCE_COMMITTED)
            ibx_source_move(s, SOURCE_SERVING);
        break;
    default:
        return ibx_error_set(err, -EAGAIN,
                             "who answers at %s (%s) knows nothing of this move: start ib-migrate "
                             "recover there, or take the VM back with ib-migrate rollback here",
                             s->status.record.uri, answer->host);
    }
    if (!answer->accepted)
        return ibx_error_set(err, -EAGAIN, "the destination (%s) says: %s", answer->host, why);
    return 0;
}

static int try_again(struct source *s, struct ibx_error *err)
{
    struct ibx_migrate_hello hello;
    struct ibx_migrate_answer answer;
    const struct ibx_options options = ibx_migration_retry_options(&s->transport);
    hello_of(s, IBX_PURPOSE_RESUME, &hello);
    int rc = ibx_migration_greet(s->status.record.uri, &options, &hello, &s->control, &answer, err);
    if (!rc)
        rc = heed_standing(s, &answer, err);
    if (rc)
        return rc;
    s->linked = true;
    if (answer.state == IBX_ANSWER_COMPLETE)
        return 0;
    rc = open_pages(s, &hello, &answer, err);
    return rc ? rc : ibx_source_link_expose(s, err);
}

int ibx_source_link_again(struct source *s, struct ibx_error *err)
{
    if (ibx_now_ns() < s->retry_ns)
        return -EAGAIN;
    if (ibx_now_ns() - s->linked_ns > RETRY_FORGET_MS * IBX_NS_PER_MS)
        s->retry_pause_ms = 0;
    s->status.record.epoch++;
    int rc = ibx_source_record(s, s->status.record.state, err);
    if (!rc)
        rc = try_again(s, err);
    /* Also after success: a link that breaks again at once is not made again at once. */
    s->retry_pause_ms = s->retry_pause_ms ? s->retry_pause_ms * 2 : RETRY_MIN_MS;
    if (s->retry_pause_ms > RETRY_MAX_MS)
        s->retry_pause_ms = RETRY_MAX_MS;
    s->retry_ns = ibx_deadline_in_ms(s->retry_pause_ms);
    s->linked_ns = ibx_now_ns();
    if (!rc || rc == -ECANCELED) {
        s->status.reconnects += !rc;
        return rc;
    }
    ibx_source_link_close(s);
    return -EAGAIN;
}
