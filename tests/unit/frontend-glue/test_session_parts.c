/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client's long copies in parts (client_stage.c) with a back end without a GPU, which serves
 * one request after the other like GVirtuS's handlers. */
#include "tests/fixtures/session_pair.h"

#include "frontend-glue/client_copies/client_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DEVICE  0x1000u /* the address of device memory that the client uses */
#define LONGEST ((size_t)33 << 20)

static struct session_pair pair;
static uint8_t *device;     /* LONGEST bytes */
static unsigned ends_after; /* after this many requests; 0: never */

/* Serves one request. Returns false if the stream has ended. */
static bool serve_one(struct ibx_session *s, uint8_t *body)
{
    char name[32];
    size_t i = 0;
    do {
        if (ibx_session_read(s, name + i, 1) != 1)
            return false;
    } while (name[i++] && i < sizeof(name));
    uint64_t length, at, n;
    int32_t kind, code = 0;
    const size_t tail = strcmp(name, "cudaMemcpy") ? 20 : 12;
    if (ibx_session_read(s, &length, 8) != 8 ||
        ibx_session_read(s, body, length) != (ssize_t)length)
        return false;
    memcpy(&n, body + length - tail, 8);
    memcpy(&kind, body + length - tail + 8, 4);
    memcpy(&at, body + (kind == 1 ? 0 : 9), 8);
    if (kind == 1)
        memcpy(device + at - DEVICE, body + 16, n);
    const double seconds = 0;
    const uint64_t out = kind == 1 ? 0 : n + 8;
    ibx_session_write(s, &code, 4);
    ibx_session_write(s, &seconds, 8);
    ibx_session_write(s, &out, 8);
    if (out) {
        ibx_session_write(s, &n, 8);
        ibx_session_write(s, device + at - DEVICE, n);
    }
    return !ibx_session_sync(s);
}

static int serve(struct session_pair *p, void *argument)
{
    uint8_t *body = malloc(LONGEST + 64);
    (void)argument;
    for (unsigned served = 0; body && serve_one(p->server, body);)
        if (++served == ends_after)
            break;
    free(body);
    ibx_session_close(p->server);
    return 0;
}

static int copy(bool to_device, uint8_t *host, size_t n)
{
    int code = -1;
    struct ibx_frontend_copy wish = {
        .to_device = to_device, .device = DEVICE, .host = host, .n = n};
    assert_int_equal(ibx_client_copy(pair.client, &wish, &code), 0);
    return code;
}

static void begin(const char *slots)
{
    session_pair_use("shm", NULL, "slots", slots);
    session_pair_open(&pair);
    ibx_client_stage_at_once(pair.client);
    session_pair_start(&pair, serve, NULL);
}

static void end(void)
{
    ibx_session_close(pair.client);
    session_pair_join(&pair);
    session_pair_close(&pair);
}

/* However few messages may be in flight, parts that are sent ahead leave room for what the reply
 * to the first of them needs. */
static void test_few_messages(void **state)
{
    (void)state;
    static const char *const slots[] = {"4", "5", "8", "16"};
    static const size_t sizes[] = {512u << 10, (4u << 20) + 1, LONGEST - 5};
    uint8_t *host = malloc(LONGEST);
    assert_non_null(host);
    for (size_t i = 0; i < 12; i++) {
        begin(slots[i / 3]);
        const size_t n = sizes[i % 3];
        pattern_fill(host, n, i);
        assert_int_equal(copy(true, host, n), 0);
        assert_int_equal(pattern_check(device, n, i), n);
        memset(host, 0, n);
        assert_int_equal(copy(false, host, n), 0);
        assert_int_equal(pattern_check(host, n, i), n);
        end();
    }
    free(host);
}

/* A copy succeeds once all of its answers have arrived, whatever happens to the back end then. */
static void test_back_end_ends_after_the_last_answer(void **state)
{
    (void)state;
    const size_t n = 3u << 20;
    uint8_t *host = malloc(n);
    assert_non_null(host);
    ends_after = 6; /* the number of parts of such a copy */
    for (unsigned i = 0; i < 100; i++) {
        begin("16");
        pattern_fill(host, n, i);
        assert_int_equal(copy(true, host, n), 0);
        assert_int_equal(pattern_check(device, n, i), n);
        end();
    }
    ends_after = 0;
    free(host);
}

/* A forked child that uses its parent's session does not affect the parent. */
static void test_child_uses_its_parents_session(void **state)
{
    (void)state;
    const size_t n = 1u << 20;
    uint8_t *host = malloc(n);
    int status = -1;
    assert_non_null(host);
    begin("16");
    for (unsigned i = 0; i < 3; i++) {
        pattern_fill(host, n, i);
        assert_int_equal(copy(true, host, n), 0);
        assert_int_equal(pattern_check(device, n, i), n);
        pid_t child = fork();
        if (!child) {
            ibx_session_close(pair.client);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    end();
    free(host);
}

int main(void)
{
    device = malloc(LONGEST);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_messages),
        cmocka_unit_test(test_back_end_ends_after_the_last_answer),
        cmocka_unit_test(test_child_uses_its_parents_session),
    };
    int rc = device ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
    free(device);
    return rc;
}
