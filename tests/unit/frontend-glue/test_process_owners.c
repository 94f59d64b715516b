/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To which client's process a connection belongs. */
#include "frontend-glue/back_end_processes/process_owners.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* user -1: unknown; number 0: none */
static struct ibx_process_client client(const char *name, int user, unsigned number)
{
    struct ibx_process_client c = {.has_user = user >= 0, .user = user < 0 ? 0 : (unsigned)user};
    snprintf(c.name, sizeof(c.name), "%s", name);
    memcpy(c.number, &number, sizeof(number));
    return c;
}

static void test_connections_of_one_client(void **state)
{
    static const struct {
        const char *names[2];
        int users[2];
        unsigned numbers[2];
        bool owner, tenant, program;
    } cases[] = {
        {{"alice", "alice"}, {1, 1}, {7, 7}, true, true, true},
        {{"alice", "bob"}, {1, 1}, {7, 7}, false, false, false},
        {{"alice", "alice"}, {1, 1}, {7, 8}, true, true, false},
        {{"alice", "alice"}, {1, 2}, {7, 7}, false, false, false},
        {{"alice", "alice"}, {1, -1}, {7, 7}, true, false, true},
        {{"alice", "alice"}, {1, -1}, {0, 0}, true, false, false},
        {{"", ""}, {-1, -1}, {0, 0}, true, true, true},
        {{"", ""}, {-1, -1}, {7, 8}, true, true, false},
        {{"", ""}, {0, 1000}, {0, 0}, false, false, false},
        {{"", "alice"}, {-1, -1}, {7, 7}, false, false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int turned = 0; turned < 2; turned++) {
            const struct ibx_process_client a = client(cases[i].names[turned],
                                                       cases[i].users[turned],
                                                       cases[i].numbers[turned]),
                                            b = client(cases[i].names[!turned],
                                                       cases[i].users[!turned],
                                                       cases[i].numbers[!turned]);
            assert_int_equal(ibx_process_one_owner(&a, &b), cases[i].owner);
            assert_int_equal(ibx_process_same_tenant(&a, &b), cases[i].tenant);
            assert_int_equal(ibx_process_same_program(&a, &b), cases[i].program);
        }
    }
}

/* The program was on this host and has moved, so its next thread has no known user. */
static void test_client_that_has_moved(void **state)
{
    struct ibx_process_clients of = {.first = client("alice", 1, 7)};
    const struct ibx_process_client moved = client("alice", -1, 7), other = client("alice", -1, 8),
                                    bob = client("bob", -1, 7), second = client("alice", 2, 7);
    (void)state;
    assert_false(ibx_process_clients_have(&of, &of.first));
    ibx_process_clients_note(&of, &of.first);
    assert_true(ibx_process_clients_have(&of, &of.first));
    assert_true(ibx_process_clients_have(&of, &moved));
    assert_false(ibx_process_clients_have(&of, &other));
    assert_false(ibx_process_clients_have(&of, &bob));
    assert_false(ibx_process_clients_have(&of, &second));
    ibx_process_clients_forget(&of);
}

static void test_numbers(void **state)
{
    struct ibx_process_clients of = {.first = client("", -1, 0)};
    (void)state;
    ibx_process_clients_note(&of, &of.first);
    assert_false(ibx_process_clients_have(&of, &of.first)); /* this client has no number */
    for (unsigned i = 1; i <= IBX_PROCESS_NUMBERS + 1; i++) {
        const struct ibx_process_client c = client("", -1, i), last = client("", -1, i - 1);
        ibx_process_clients_note(&of, &c);
        ibx_process_clients_note(&of, &c);
        assert_true(ibx_process_clients_have(&of, &c));
        assert_true(i == 1 || ibx_process_clients_have(&of, &last));
        assert_int_equal(of.count, i < IBX_PROCESS_NUMBERS ? i : IBX_PROCESS_NUMBERS);
    }
    const struct ibx_process_client oldest = client("", -1, 1), second = client("", -1, 2);
    assert_false(ibx_process_clients_have(&of, &oldest));
    assert_true(ibx_process_clients_have(&of, &second));
    ibx_process_clients_forget(&of);
    assert_false(ibx_process_clients_have(&of, &second));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections_of_one_client),
        cmocka_unit_test(test_client_that_has_moved),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
