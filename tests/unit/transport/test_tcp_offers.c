/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a server of the tcp provider offers, and what a client makes of an offer. */
#include "tests/fixtures/tcp_end.h"

#include "common/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct end server, client;

/* How many lanes a server offers, if the user asks for none. */
static unsigned lanes_offered(unsigned threads, bool encrypts, bool in_domain)
{
    int door[2];
    struct raw_client raw;
    struct ibx_tls *const some = (struct ibx_tls *)door; /* nobody looks into these two */
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 0, 4);
    server.tcp->threads_max = threads;
    server.tls = encrypts ? some : NULL;
    server.options.domain = in_domain ? (struct ibx_domain *)door : NULL;
    raw_begin(&raw, &server);
    server.tls = NULL;
    end_close(&server);
    close(door[1]);
    return raw.terms.lanes;
}

static void test_lanes_by_default(void **state)
{
    (void)state;
    assert_int_equal(lanes_offered(16, false, false), 1);
    assert_int_equal(lanes_offered(1, true, false), 1);
    assert_int_equal(lanes_offered(6, true, false), 3);
    assert_int_equal(lanes_offered(64, true, false), 4);
    assert_int_equal(lanes_offered(64, true, true), 1); /* its connections have a thread each */
}

/* Calls join() of the client with an offer: one that is cut off or changed. */
static int join(const uint8_t *offered, size_t n, struct ibx_writer *answer)
{
    struct ibx_reader r = ibx_reader_of(offered, n);
    return ibx_provider_tcp.join(client.tcp, &r, answer, &client.err);
}

/* Packets to the port of the lanes are dropped: the client gives up long before its time-out. */
static void test_lanes_at_a_port_that_is_silent(void **state)
{
    (void)state;
    int door[2], ahead[8];
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    sockets_tcp(door);
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
    assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
    assert_int_equal(listen(server.tcp->listener, 0), 0); /* has room for one connection */
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    assert_int_equal(getsockname(server.tcp->listener, (struct sockaddr *)&address, &length), 0);
    for (unsigned i = 0; i < 8; i++) {
        ahead[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(ahead[i], (struct sockaddr *)&address, length);
    }
    const uint64_t deadline = ibx_deadline_in_ms(client.options.timeout_ms / 2);
    assert_int_equal(join(offered, offer.length, &answer), 0);
    assert_true(ibx_now_ns() < deadline);
    assert_int_equal(client.tcp->lane_count, 0);
    for (unsigned i = 0; i < 8; i++)
        close(ahead[i]);
    ends_close(&server, &client);
}

/* An earlier server, whose offer ends with the address, is not told that frames have places. */
static void test_places_only_if_offered(void **state)
{
    (void)state;
    for (unsigned earlier = 0; earlier < 2; earlier++) {
        int door[2];
        uint8_t offered[64], answered[64];
        struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
        struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
        sockets_tcp(door);
        end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
        end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
        assert_int_equal(ibx_provider_tcp.offer(server.tcp, &offer, NULL), 0);
        assert_int_equal(join(offered, offer.length - earlier, &answer), 0);
        assert_int_equal(answer.length, IBX_TCP_TERMS_BYTES + 1);
        assert_int_equal(answered[IBX_TCP_TERMS_BYTES], earlier ? 0 : IBX_TCP_PLACES);
        ends_close(&server, &client);
    }
}

/* The addresses of lanes in these offers are none: a port 0, a kind that there is not, and names of
 * no byte or of more than a unix socket's. */
static void test_malformed_addresses_are_refused(void **state)
{
    (void)state;
    static const uint8_t ports[][3] = {{1, 0, 0}, {0, 1, 0}, {3, 1, 0}};
    uint8_t offered[IBX_TCP_TERMS_BYTES + 3 + 300] = {0}, answered[64];
    const struct ibx_tcp_terms terms = {.lanes = 1, .slots = 4, .depth = 8, .message = 1024};
    for (unsigned by_name = 0; by_name < 2; by_name++) {
        int door[2];
        (by_name ? sockets_unix : sockets_tcp)(door);
        end_init(&client, IBX_ROLE_CLIENT, door[1], 1, 4);
        struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
        ibx_tcp_terms_put(&terms, &offer);
        for (unsigned i = 0; i < 3; i++) {
            const uint8_t name[3] = {2, i ? (uint8_t)(64 + i) : 0, i > 1};
            struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
            memcpy(offered + offer.length, by_name ? name : ports[i], 3);
            assert_int_equal(join(offered, sizeof(offered), &answer), -EPROTO);
        }
        end_close(&client);
        close(door[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_by_default),
        cmocka_unit_test(test_lanes_at_a_port_that_is_silent),
        cmocka_unit_test(test_places_only_if_offered),
        cmocka_unit_test(test_malformed_addresses_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
