/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Addresses of hosts: making them from bytes or from a socket, and comparing them. An IPv4
 * address that is mapped into IPv6 counts as IPv4. */
#include "common/address.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct sockaddr *plain(const struct sockaddr_storage *address)
{
    return (const struct sockaddr *)address;
}

/* The text of a host's address, and the address and family that ibx makes of it. */
static const struct {
    const char *text;
    int family, made;
    const char *same; /* the resulting address as text */
} hosts[] = {
    {"10.1.2.3", AF_INET, AF_INET, "10.1.2.3"},
    {"fe80::17", AF_INET6, AF_INET6, "fe80::17"},
    {"::ffff:10.1.2.3", AF_INET6, AF_INET, "10.1.2.3"},
    {"::1", AF_INET6, AF_INET6, "::1"},
    {"a01:203::", AF_INET6, AF_INET6, "a01:203::"}, /* begins with the bytes of the first one */
};

#define HOSTS (sizeof(hosts) / sizeof(hosts[0]))

static struct sockaddr_storage make(size_t i, in_port_t port)
{
    struct sockaddr_storage address;
    uint8_t bytes[16];
    assert_int_equal(inet_pton(hosts[i].family, hosts[i].text, bytes), 1);
    ibx_address_make(&address, bytes, hosts[i].family == AF_INET ? 4 : 16, port);
    return address;
}

static void test_addresses_made_from_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < HOSTS; i++) {
        struct sockaddr_storage address = make(i, htons(99));
        char text[64];
        size_t length = 0;
        const void *host = ibx_address_host(plain(&address), &length);
        assert_int_equal(address.ss_family, hosts[i].made);
        assert_int_equal(length, hosts[i].made == AF_INET ? 4 : 16);
        assert_string_equal(inet_ntop(hosts[i].made, host, text, sizeof(text)), hosts[i].same);
        assert_int_equal(*ibx_address_port(&address), htons(99));
    }
    struct sockaddr_storage other = {.ss_family = AF_UNIX};
    size_t length;
    assert_null(ibx_address_host(plain(&other), &length));
    assert_null(ibx_address_port(&other));
}

static void test_comparison_of_hosts(void **state)
{
    (void)state;
    for (size_t i = 0; i < HOSTS; i++) {
        for (size_t j = 0; j < HOSTS; j++) {
            struct sockaddr_storage a = make(i, 1), b = make(j, 2);
            bool same = !strcmp(hosts[i].same, hosts[j].same);
            assert_int_equal(ibx_address_same(plain(&a), plain(&b)), same);
        }
    }
    struct sockaddr_storage none = {.ss_family = AF_UNSPEC};
    assert_false(ibx_address_same(plain(&none), plain(&none)));
}

/* A listener for both families sees an IPv4 peer; a unix socket has no address. */
static void test_addresses_of_sockets(void **state)
{
    (void)state;
    struct sockaddr_storage own, peer;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    socklen_t length = sizeof(any);
    int pair[2], zero = 0;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_false(ibx_address_of_socket(pair[0], false, &own));
    assert_int_equal(own.ss_family, AF_UNSPEC);
    close(pair[0]);
    close(pair[1]);
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) ||
        bind(listener, (struct sockaddr *)&any, length) || listen(listener, 1))
        skip(); /* this host has no IPv6 */
    assert_int_equal(getsockname(listener, (struct sockaddr *)&any, &length), 0);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = any.sin6_port,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_false(ibx_address_of_socket(client, true, &peer));
    assert_int_equal(connect(client, (struct sockaddr *)&to, sizeof(to)), 0);
    int server = accept(listener, NULL, NULL);
    assert_true(ibx_address_of_socket(server, true, &peer));
    assert_true(ibx_address_of_socket(client, false, &own));
    assert_int_equal(peer.ss_family, AF_INET);
    assert_true(ibx_address_same(plain(&own), plain(&peer)));
    assert_int_equal(*ibx_address_port(&own), *ibx_address_port(&peer));
    close(server);
    close(client);
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_made_from_bytes),
        cmocka_unit_test(test_comparison_of_hosts),
        cmocka_unit_test(test_addresses_of_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
