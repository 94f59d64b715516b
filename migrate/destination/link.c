/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/link.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUERY_MS 5000 /* for a query connection to take its answer and go */

static const struct ibx_state link_states[] = {
    [LINK_NONE] = {"none", IBX_TO(LINK_OPEN), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LINK_OPEN] = {"open", IBX_TO(LINK_MAPPED) | IBX_TO(LINK_NONE), 0},
    [LINK_MAPPED] = {"mapped", IBX_TO(LINK_SERVING) | IBX_TO(LINK_NONE), 0},
    [LINK_SERVING] = {"serving", IBX_TO(LINK_MAPPED) | IBX_TO(LINK_STOPPING), 0},
    [LINK_STOPPING] = {"stopping", IBX_TO(LINK_NONE), 0},
};
static const struct ibx_state_table link_table = IBX_STATE_TABLE("destination link", link_states);

void ibx_destination_link_init(struct destination_link *link)
{
    ibx_state_begin(&link->state, &link_table, LINK_NONE);
    ibx_channel_init(&link->control, NULL);
    for (unsigned i = 0; i < QUERIES_MAX; i++)
        ibx_channel_init(&link->queries[i], NULL);
}

/* ---------------------------------------------------------------- answers */

static int send_answer(struct ibx_channel *channel, const struct link_terms *terms,
                       const struct ibx_blockers *blockers)
{
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_ANSWER, .is.answer = answer};
    if (!answer)
        return -ENOMEM;
    answer->accepted = terms->accepted;
    answer->state = (uint8_t)terms->state;
    answer->links = (uint16_t)terms->links;
    answer->verify = terms->verify;
    answer->warm = terms->warm;
    ibx_migrate_host(answer->host, sizeof(answer->host));
    for (size_t i = 0; blockers && i < blockers->count && i < IBX_MIGRATE_REASONS_MAX; i++)
        if (!terms->accepted)
            memcpy(answer->reasons[answer->count++], blockers->reasons[i], IBX_ERROR_MAX);
    for (size_t i = 0; blockers && i < blockers->note_count && i < IBX_MIGRATE_REASONS_MAX; i++)
        memcpy(answer->notes[answer->note_count++], blockers->notes[i], IBX_ERROR_MAX);
    int rc = ibx_channel_send(channel, &message, NULL);
    free(answer);
    return rc;
}

int ibx_destination_link_accept(struct destination_link *link, struct ibx_conn *conn,
                                const struct link_terms *terms, const struct ibx_blockers *notes)
{
    int rc = ibx_state_move(&link->state, LINK_OPEN);
    if (rc) {
        ibx_close(conn);
        return rc;
    }
    ibx_acceptor_expect(link->acceptor, conn); /* its page connections follow */
    ibx_channel_init(&link->control, conn);
    link->count = terms->links;
    link->joined = 0;
    send_answer(&link->control, terms, notes);
    return 0;
}

/* ---------------------------------------------------------------- query connections */

static void end_query(struct destination_link *link, unsigned i)
{
    ibx_channel_fini(&link->queries[i]);
    link->query_since[i] = 0;
}

/* Uses a free slot, or that of the oldest query. */
void ibx_destination_link_answer(struct destination_link *link, struct ibx_conn *conn,
                                 const struct link_terms *terms,
                                 const struct ibx_blockers *blockers)
{
    unsigned at = 0;
    for (unsigned i = 0; i < QUERIES_MAX && link->queries[at].conn; i++)
        if (!link->queries[i].conn || link->query_since[i] < link->query_since[at])
            at = i;
    end_query(link, at);
    ibx_channel_init(&link->queries[at], conn);
    link->query_since[at] = ibx_now_ns();
    if (send_answer(&link->queries[at], terms, blockers))
        end_query(link, at);
}

void ibx_destination_link_refuse(struct destination_link *link, struct ibx_conn *conn,
                                 enum ibx_answer_state state, const char *why)
{
    struct ibx_blockers blockers = {0};
    ibx_blockers_add(&blockers, "%s", why);
    ibx_destination_link_answer(link, conn, &(struct link_terms){.state = state}, &blockers);
}

static int on_query_message(void *context, const struct ibx_migrate_any *message)
{
    (void)context, (void)message;
    return -EPROTO; /* a query is one message */
}

void ibx_destination_link_check_queries(struct destination_link *link)
{
    for (unsigned i = 0; i < QUERIES_MAX; i++)
        if (link->queries[i].conn &&
            (ibx_channel_take(&link->queries[i], on_query_message, NULL, NULL) ||
             ibx_now_ns() - link->query_since[i] > QUERY_MS * IBX_NS_PER_MS))
            end_query(link, i);
}

bool ibx_destination_link_has_queries(const struct destination_link *link)
{
    for (unsigned i = 0; i < QUERIES_MAX; i++)
        if (link->queries[i].conn)
            return true;
    return false;
}

/* ---------------------------------------------------------------- page connections */

int ibx_destination_link_join(struct destination_link *link, struct ibx_conn *conn, unsigned at,
                              struct ibx_error *err)
{
    int rc = ibx_page_reader_create(conn, link->blocks, link->block_count, &link->readers[at], err);
    if (rc)
        ibx_close(conn);
    else
        link->joined++;
    return rc;
}

bool ibx_destination_link_registers_free(const struct destination_link *link)
{
    for (unsigned i = 0; i < link->count; i++)
        if (!link->readers[i] ||
            !ibx_conn_caps(ibx_page_reader_conn(link->readers[i]))->register_free)
            return false;
    return true;
}

int ibx_destination_link_check_regions(struct destination_link *link, uint32_t wanted,
                                       struct ibx_error *err)
{
    bool whole = link->joined == link->count;
    link->regions = 0;
    for (unsigned i = 0; i < link->count; i++) {
        if (!link->readers[i])
            continue;
        int regions = ibx_page_reader_regions(link->readers[i], err);
        if (regions < 0)
            return regions;
        link->regions += (uint64_t)regions;
        whole = whole && (uint32_t)regions >= wanted;
    }
    return whole ? 0 : -EAGAIN;
}

int ibx_destination_link_complete(struct destination_link *link, struct ibx_error *err)
{
    int rc = ibx_destination_link_check_regions(link, link->map_end.regions, err);
    return rc || link->state.now == LINK_MAPPED ? rc : -EAGAIN;
}

void ibx_destination_link_engine_ended(struct destination_link *link)
{
    if (link->state.now == LINK_SERVING)
        ibx_state_move(&link->state, LINK_MAPPED);
    else if (link->state.now == LINK_STOPPING)
        ibx_destination_link_close(link);
}

/* ---------------------------------------------------------------- the link */

void ibx_destination_link_lose(struct destination_link *link)
{
    if (link->state.now == LINK_SERVING)
        ibx_state_move(&link->state, LINK_STOPPING);
    else
        ibx_destination_link_close(link);
}

void ibx_destination_link_close(struct destination_link *link)
{
    if (link->state.now != LINK_NONE && ibx_state_move(&link->state, LINK_NONE))
        return; /* the engine would use connections that are freed */
    for (unsigned i = 0; i < IBX_MIGRATE_LINKS_MAX; i++) {
        ibx_page_reader_destroy(link->readers[i]);
        link->readers[i] = NULL;
    }
    link->joined = 0;
    ibx_channel_fini(&link->control);
}

static unsigned poll_channel(struct ibx_channel *channel, struct pollfd *fd, bool *at_once)
{
    *fd = (struct pollfd){.fd = -1, .events = POLLIN};
    *at_once |= ibx_channel_arm(channel, &fd->fd) != 0;
    return fd->fd >= 0;
}

unsigned ibx_destination_link_poll_fds(struct destination_link *link, bool readers,
                                       struct pollfd *fds, bool *at_once)
{
    unsigned n = 0;
    fds[n++] = (struct pollfd){.fd = ibx_acceptor_fd(link->acceptor), .events = POLLIN};
    n += poll_channel(&link->control, &fds[n], at_once);
    for (unsigned i = 0; readers && destination_linked(link) && i < link->count; i++) {
        if (!link->readers[i])
            continue;
        struct ibx_conn *conn = ibx_page_reader_conn(link->readers[i]);
        *at_once |= ibx_arm(conn) != 0;
        fds[n++] = (struct pollfd){.fd = ibx_fd(conn), .events = POLLIN};
    }
    for (unsigned i = 0; i < QUERIES_MAX; i++)
        n += poll_channel(&link->queries[i], &fds[n], at_once);
    return n;
}

void ibx_destination_link_fini(struct destination_link *link, uint64_t linger_until_ns)
{
    ibx_channel_linger(&link->control, linger_until_ns);
    ibx_destination_link_close(link);
    for (unsigned i = 0; i < QUERIES_MAX; i++) {
        ibx_channel_linger(&link->queries[i], linger_until_ns);
        ibx_channel_fini(&link->queries[i]);
    }
    ibx_close(link->resume.conn);
    ibx_migrate_message_free(&link->resume.first);
    ibx_acceptor_close(link->acceptor);
}
