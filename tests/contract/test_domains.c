/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory that is registered with one connection and shared with another, with and without a
 * common domain. */
#include "tests/contract/harness.h"

#include <errno.h>
#include <string.h>

#define LENGTH      (128 * 1024u)
#define SEED_SHARED 51u
#define SEED_OTHER  52u

/* Two pairs, with a common domain or without. This side has registered memory with the first one
 * and shares it with the second. */
struct scene {
    struct ibx_domain *domain;
    struct pair *pairs[2];
    uint8_t *bytes;
    struct ibx_mr *mrs[2];
    struct ibx_remote remotes[2];
};

static struct scene scene_open(enum side side, bool domain, unsigned access)
{
    struct scene s = {0};
    struct ibx_error err = {0};
    if (domain)
        CHECK_OK(ibx_domain_create(&s.domain, &err), err);
    for (int i = 0; i < 2; i++)
        s.pairs[i] = pair_open_with(side, &(struct pair_options){.domain = s.domain});
    ibx_domain_release(s.domain); /* the connections keep the domain */
    s.bytes = pages_map(LENGTH);
    pattern_fill(s.bytes, LENGTH, SEED_SHARED, 0);
    s.mrs[0] = end_register(&s.pairs[0]->end, s.bytes, LENGTH, access);
    CHECK_OK(ibx_mr_share(s.pairs[1]->end.conn, s.mrs[0], &s.mrs[1], &err), err);
    for (int i = 0; i < 2; i++) {
        CHECK(ibx_mr_address(s.mrs[i]) == s.bytes && ibx_mr_length(s.mrs[i]) == LENGTH);
        CHECK(ibx_mr_remote(s.mrs[i], 0, LENGTH, &s.remotes[i]) == (access ? 0 : -EACCES));
    }
    return s;
}

static void scene_close(struct scene *s)
{
    for (int i = 0; i < 2; i++)
        if (s->pairs[i])
            pair_close(s->pairs[i]);
    pages_unmap(s->bytes, LENGTH);
}

/* The result of a READ by the peer of pair `i`. */
static int64_t peer_reads(struct scene *s, int i, const struct ibx_remote *remote)
{
    struct order order = {.verb = ORDER_READ, .remote = *remote, .seed = SEED_SHARED};
    pair_tell(s->pairs[i], &order);
    return pair_answer_polling(s->pairs[i]).value;
}

static bool registers_once(const struct scene *s)
{
    const struct ibx_caps *caps = ibx_conn_caps(s->pairs[1]->end.conn);
    return caps->shares && !caps->register_free;
}

/* Each handle is valid until it is deregistered or its connection closed, whatever happens to
 * the other one. */
static void test_shared_regions(void **state)
{
    struct scene s = scene_open(SIDE_OF(state), true, IBX_ACCESS_REMOTE_READ);
    if (registers_once(&s))
        CHECK(!memcmp(&s.remotes[0], &s.remotes[1], sizeof(s.remotes[0])));
    for (int i = 0; i < 2; i++)
        CHECK(peer_reads(&s, i, &s.remotes[i]) == -1);
    ibx_mr_deregister(s.mrs[0]);
    CHECK(peer_reads(&s, 1, &s.remotes[1]) == -1);
    pair_close(s.pairs[0]);
    s.pairs[0] = NULL;
    CHECK(peer_reads(&s, 1, &s.remotes[1]) == -1);
    ibx_mr_deregister(s.mrs[1]);
    CHECK(peer_reads(&s, 1, &s.remotes[1]) == -2);
    scene_close(&s);
}

/* The same in the other order, and by closing only. */
static void test_shared_regions_of_closed_connections(void **state)
{
    struct scene s = scene_open(SIDE_OF(state), true, IBX_ACCESS_REMOTE_READ);
    pair_close(s.pairs[1]);
    s.pairs[1] = NULL;
    CHECK(peer_reads(&s, 0, &s.remotes[0]) == -1);
    scene_close(&s);
}

/* The shared memory as the local side; a part of it through either connection. */
static void test_shared_local_memory(void **state)
{
    struct scene s = scene_open(SIDE_OF(state), true, IBX_ACCESS_LOCAL);
    for (unsigned i = 0; i < 2; i++) {
        struct end *end = &s.pairs[i]->end;
        struct ibx_remote remote =
            pair_expose(s.pairs[i], 0, LENGTH, IBX_ACCESS_REMOTE_READ, SEED_OTHER + i);
        size_t half = i * (LENGTH / 2);
        end_read(end, s.mrs[i], s.bytes + half, &remote, half, LENGTH / 2, 0);
        AWAIT(end, end->completed == 1);
        CHECK(end->failed == 0);
        CHECK(pattern_check(s.bytes + half, LENGTH / 2, SEED_OTHER + i, half) < 0);
    }
    scene_close(&s);
}

/* Without a common domain it is as if it were registered twice. Each key is valid for one
 * connection. */
static void test_shared_without_a_domain(void **state)
{
    struct scene s = scene_open(SIDE_OF(state), false, IBX_ACCESS_REMOTE_READ);
    for (int i = 0; i < 2; i++)
        CHECK(peer_reads(&s, i, &s.remotes[i]) == -1);
    CHECK(peer_reads(&s, 1, &s.remotes[0]) == -2);
    scene_close(&s);
}

static void test_shared_of_a_shared_one(void **state)
{
    struct scene s = scene_open(SIDE_OF(state), true, IBX_ACCESS_REMOTE_READ);
    struct ibx_error err = {0};
    struct ibx_mr *third;
    struct ibx_remote remote;
    CHECK_OK(ibx_mr_share(s.pairs[0]->end.conn, s.mrs[1], &third, &err), err);
    ibx_mr_deregister(s.mrs[0]);
    ibx_mr_deregister(s.mrs[1]);
    CHECK(!ibx_mr_remote(third, 0, LENGTH, &remote));
    CHECK(peer_reads(&s, 0, &remote) == -1);
    scene_close(&s);
}

static void test_what_is_not_shared(void **state)
{
    (void)state;
    struct scene s = scene_open(SIDE_SERVER, true, IBX_ACCESS_LOCAL);
    struct ibx_error err = {0};
    struct ibx_mr *own, *shared = NULL;
    CHECK_OK(ibx_mr_allocate(s.pairs[0]->end.conn, LENGTH, IBX_ACCESS_LOCAL, &own, &err), err);
    CHECK(ibx_mr_share(s.pairs[1]->end.conn, own, &shared, &err) == -EINVAL);
    CHECK(!shared && err.message[0]);
    scene_close(&s);
    ibx_domain_release(NULL);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_shared_regions),         TEST_BOTH(test_shared_regions_of_closed_connections),
    TEST_BOTH(test_shared_local_memory),    TEST_BOTH(test_shared_without_a_domain),
    TEST_BOTH(test_shared_of_a_shared_one), TEST(test_what_is_not_shared),
};
GROUP(group_domains, "domains", tests);
