/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The peer is killed or stopped: every post completes once, then the end, once. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH      ((size_t)8 << 20)
#define OUTSTANDING 12u
#define RW          (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)

struct scene {
    struct pair *pair;
    struct end *end;
    struct ibx_remote remote;
    uint8_t *bytes;
    struct ibx_mr *mr;
    size_t length;
};

static struct scene scene_open(enum side side)
{
    struct scene scene = {.pair = pair_open(side), .length = contract_size(LENGTH, LENGTH / 8)};
    scene.end = &scene.pair->end;
    scene.remote = pair_expose(scene.pair, 0, scene.length, RW, 1);
    scene.bytes = pages_map(scene.length);
    scene.mr = end_register(scene.end, scene.bytes, scene.length, IBX_ACCESS_LOCAL);
    return scene;
}

static void scene_close(struct scene *scene)
{
    end_check_books(scene->end);
    ibx_mr_deregister(scene->mr);
    pages_unmap(scene->bytes, scene->length);
    pair_close(scene->pair);
}

/* The end has come: nothing follows, and nothing is taken any more. */
static void check_ended(struct scene *scene)
{
    struct iovec iov = {"x", 1};
    AWAIT(scene->end, scene->end->closed);
    for (int i = 0; i < 3; i++)
        end_poll(scene->end);
    CHECK(ibx_send(scene->end->conn, &iov, 1, 0, 0) == -ENOTCONN);
    CHECK(end_try_read(scene->end, scene->mr, scene->bytes, &scene->remote, 0, 1, 0) == -ENOTCONN);
    CHECK(end_try_write(scene->end, scene->mr, scene->bytes, &scene->remote, 0, 1, IBX_URGENT) ==
          -ENOTCONN);
    CHECK(ibx_arm(scene->end->conn) == 1);
    CHECK(ibx_wait(scene->end->conn, 1000) == 1);
}

static void test_killed_while_idle(void **state)
{
    struct scene scene = scene_open(SIDE_OF(state));
    pair_kill(scene.pair);
    check_ended(&scene);
    scene_close(&scene);
}

/* Keeps posts outstanding; kills the peer after some have completed; goes on posting until told. */
static void kill_under_load(enum side side, bool reads, bool writes, bool messages)
{
    struct scene scene = scene_open(side);
    struct end *end = scene.end;
    uint64_t deadline = await_until();
    unsigned after = 0;
    while (!end->closed) {
        while (end->posted - end->completed < OUTSTANDING && (reads || writes)) {
            bool read = reads && (!writes || end->posted % 2);
            unsigned flags = end->posted % 5 ? 0 : IBX_URGENT;
            size_t length = flags ? 4096 : scene.length;
            int rc =
                read ? end_try_read(end, scene.mr, scene.bytes, &scene.remote, 0, length, flags)
                     : end_try_write(end, scene.mr, scene.bytes, &scene.remote, 0, length, flags);
            CHECK(rc == 0 || rc == -ENOTCONN);
            if (rc)
                break;
        }
        if (messages) {
            int rc = end_send_next(end, IBX_SIGNALED);
            CHECK(rc == 0 || rc == -EAGAIN || rc == -ENOTCONN);
        }
        if (scene.pair->peer && end->completed + end->sent >= 20) {
            CHECK(!(reads || writes) || end->posted > end->completed);
            after = end->completed;
            pair_kill(scene.pair);
        }
        end_poll(end);
        if (ibx_now_ns() > deadline)
            FAIL("the death goes unnoticed");
    }
    check_ended(&scene);
    /* What was outstanding at the end did not all succeed. */
    CHECK(!(reads || writes) || (end->failed > 0 && end->completed > after));
    scene_close(&scene);
}

static void test_killed_during_reads(void **state)
{
    kill_under_load(SIDE_OF(state), true, false, false);
}

static void test_killed_during_writes(void **state)
{
    kill_under_load(SIDE_OF(state), false, true, false);
}

static void test_killed_during_messages(void **state)
{
    kill_under_load(SIDE_OF(state), false, false, true);
}

static void test_killed_during_everything(void **state)
{
    kill_under_load(SIDE_OF(state), true, true, true);
}

/* Held messages stay readable after the end, until they are given back. */
static void test_killed_while_messages_are_held(void **state)
{
    struct scene scene = scene_open(SIDE_OF(state));
    scene.end->message = message_held;
    scene.end->seed_in = 5;
    pair_ask(scene.pair, (struct order){.verb = ORDER_SEND, .value = HELD_MAX, .seed = 5});
    AWAIT(scene.end, scene.end->held_count == HELD_MAX);
    pair_kill(scene.pair);
    check_ended(&scene);
    end_release_held(scene.end);
    scene_close(&scene);
}

/* READs into places of their own: whatever completes without an error has its bytes. */
static void read_into_places(struct scene *scene, size_t place)
{
    pattern_fill(scene->bytes, scene->length, 2, 0);
    for (size_t at = 0; at + place <= scene->length; at += place)
        end_read(scene->end, scene->mr, scene->bytes + at, &scene->remote, at, place, 0);
}

static void check_places(struct scene *scene, size_t place)
{
    for (size_t i = 0; (i + 1) * place <= scene->length; i++) {
        bool complete = pattern_check(scene->bytes + i * place, place, 1, i * place) < 0;
        if (!scene->end->posts[i].status && !complete)
            FAIL("READ %zu succeeded without its bytes", i);
    }
}

/* This side ends it, but wants its memory and its completions back first. */
static void test_aborted(void **state)
{
    struct scene scene = scene_open(SIDE_OF(state));
    read_into_places(&scene, scene.length / 64);
    ibx_abort(scene.end->conn);
    check_ended(&scene);
    CHECK(scene.end->closed_status == -ECONNABORTED);
    check_places(&scene, scene.length / 64);
    ibx_abort(scene.end->conn);
    end_poll(scene.end);
    scene_close(&scene);
}

/* A stopped peer serves nothing more, so with luck it dies with all of them outstanding. */
static void test_killed_owing_reads(void **state)
{
    struct scene scene = scene_open(SIDE_OF(state));
    int status;
    CHECK(!kill(scene.pair->peer, SIGSTOP));
    CHECK(waitpid(scene.pair->peer, &status, WUNTRACED) == scene.pair->peer && WIFSTOPPED(status));
    read_into_places(&scene, scene.length / 16);
    pair_kill(scene.pair);
    check_ended(&scene);
    check_places(&scene, scene.length / 16);
    scene_close(&scene);
}

/* Several ends in one process; one peer dies, the others are none the worse. */
static void test_others_live_on(void **state)
{
    struct scene one = scene_open(SIDE_OF(state)), two = scene_open(SIDE_OF(state));
    for (int i = 0; i < 4; i++) {
        end_read(one.end, one.mr, one.bytes, &one.remote, 0, one.length, 0);
        end_read(two.end, two.mr, two.bytes, &two.remote, 0, two.length, 0);
    }
    pair_kill(one.pair);
    AWAIT(two.end, two.end->completed == 4);
    CHECK(two.end->failed == 0);
    check_ended(&one);
    end_read(two.end, two.mr, two.bytes, &two.remote, 0, two.length, 0);
    AWAIT(two.end, two.end->completed == 5);
    CHECK(two.end->failed == 0);
    scene_close(&one);
    scene_close(&two);
}

/* A peer that is stopped for a while is not dead. */
static void test_stopped_and_continued(void **state)
{
    struct scene scene = scene_open(SIDE_OF(state));
    struct end *end = scene.end;
    int status, rc;
    CHECK(!kill(scene.pair->peer, SIGSTOP));
    CHECK(waitpid(scene.pair->peer, &status, WUNTRACED) == scene.pair->peer && WIFSTOPPED(status));
    for (unsigned i = 0; i < OUTSTANDING; i++) {
        end_read(end, scene.mr, scene.bytes, &scene.remote, 0, scene.length, 0);
        end_write(end, scene.mr, scene.bytes, &scene.remote, 0, 4096, IBX_URGENT);
    }
    while (!(rc = end_send_next(end, 0)))
        ;
    CHECK(rc == -EAGAIN);
    for (int i = 0; i < 20000; i++)
        end_poll(end);
    CHECK(!end->closed);
    CHECK(!kill(scene.pair->peer, SIGCONT));
    AWAIT(end, end->completed == 2 * OUTSTANDING);
    CHECK(end->failed == 0);
    end_send_many(end, 50);
    uint64_t deadline = await_until();
    while ((uint64_t)pair_ask(scene.pair, (struct order){.verb = ORDER_COUNT}).value < end->sent) {
        CHECK(ibx_now_ns() < deadline);
        end_poll(end);
    }
    scene_close(&scene);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_killed_while_idle),
    TEST_BOTH(test_killed_during_reads),
    TEST_BOTH(test_killed_during_writes),
    TEST_BOTH(test_killed_during_messages),
    TEST_BOTH(test_killed_during_everything),
    TEST_BOTH(test_killed_while_messages_are_held),
    TEST_BOTH(test_aborted),
    TEST_BOTH(test_killed_owing_reads),
    TEST_BOTH(test_others_live_on),
    TEST_BOTH(test_stopped_and_continued),
};
GROUP(group_deaths, "deaths", tests);
