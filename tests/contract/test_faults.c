/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fault injection over the real provider: each fault reaches the user as promised. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEED 61u
#define RW   (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)

struct scene {
    struct pair *pair;
    struct end *end;
    struct ibx_remote remote;
    uint8_t *bytes;
    struct ibx_mr *mr;
    size_t length; /* four chunks and a bit */
};

static struct scene scene_open(enum side side, struct ibx_injected_faults *faults)
{
    struct pair_options with = {.faults = faults};
    struct scene scene = {.pair = pair_open_with(side, &with)};
    scene.end = &scene.pair->end;
    scene.length = 4 * scene.end->caps->chunk + 100;
    scene.remote = pair_expose(scene.pair, 0, scene.length, RW, SEED);
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

static int read_all(struct scene *scene)
{
    unsigned post =
        end_read(scene->end, scene->mr, scene->bytes, &scene->remote, 0, scene->length, 0);
    AWAIT(scene->end, scene->end->posts[post].times);
    return scene->end->posts[post].status;
}

static void echo_mode(struct scene *scene)
{
    pair_ask(scene->pair, (struct order){.verb = ORDER_MODE, .value = MODE_ECHO});
}

static void test_fail(void **state)
{
    struct ibx_injected_faults faults = {0};
    struct scene scene = scene_open(SIDE_OF(state), &faults);
    CHECK(read_all(&scene) == 0);
    for (unsigned nth = 1; nth <= 5; nth++) {
        faults.fail_in = nth;
        CHECK(read_all(&scene) == -EIO);
        CHECK(faults.fail_in == 0);
        AWAIT(scene.end, scene.end->completed == scene.end->posted);
        CHECK(read_all(&scene) == 0);
        CHECK(pattern_check(scene.bytes, scene.length, SEED, 0) < 0);
    }
    faults.fail_in = 3;
    unsigned first = scene.end->posted;
    for (int i = 0; i < 5; i++)
        end_write(scene.end, scene.mr, scene.bytes, &scene.remote, 0, 100, i ? 0 : IBX_URGENT);
    AWAIT(scene.end, scene.end->completed == scene.end->posted);
    int failed = 0;
    for (int i = 0; i < 5; i++)
        failed += scene.end->posts[first + (unsigned)i].status == -EIO;
    CHECK(failed == 1);
    scene_close(&scene);
}

static void test_corrupt_read(void **state)
{
    struct ibx_injected_faults faults = {.corrupt_in = 3};
    struct scene scene = scene_open(SIDE_OF(state), &faults);
    CHECK(read_all(&scene) == 0);
    ssize_t at = pattern_check(scene.bytes, scene.length, SEED, 0);
    CHECK(at >= 0);
    scene.bytes[at] ^= 1;
    CHECK(pattern_check(scene.bytes, scene.length, SEED, 0) < 0);
    CHECK(read_all(&scene) == 0);
    CHECK(pattern_check(scene.bytes, scene.length, SEED, 0) < 0);
    scene_close(&scene);
}

/* Echoes come back here: one character each, in order. */
static void message_noted(struct end *end, const struct ibx_event *event)
{
    char *text = end->owner;
    CHECK(event->length == 1 && end->received < 15);
    text[end->received++] = *(const char *)event->data;
    text[end->received] = '\0';
    ibx_message_release(end->conn, event);
}

static void send_text(struct scene *scene, const char *text)
{
    for (; *text; text++) {
        struct iovec iov = {(void *)(uintptr_t)text, 1};
        end_push(scene->end, &iov, 1, 0, 0);
    }
}

static struct scene open_chat(enum side side, struct ibx_injected_faults *faults, char *echoed)
{
    struct scene scene = scene_open(side, faults);
    echo_mode(&scene);
    scene.end->message = message_noted;
    scene.end->owner = echoed;
    return scene;
}

static void test_drop(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct scene scene = open_chat(SIDE_OF(state), &faults, echoed);
    faults.drop_in = 2; /* the second one that leaves */
    send_text(&scene, "abc");
    AWAIT(scene.end, scene.end->received == 2);
    CHECK(!strcmp(echoed, "ac"));
    send_text(&scene, "d");
    AWAIT(scene.end, scene.end->received == 3);
    faults.drop_in = 2; /* "e" leaves, and does not come back */
    send_text(&scene, "e");
    uint64_t deadline = await_until();
    while (faults.drop_in) { /* which is no event to sleep for */
        end_poll(scene.end);
        CHECK(ibx_now_ns() < deadline);
    }
    send_text(&scene, "f");
    AWAIT(scene.end, scene.end->received == 4);
    CHECK(!strcmp(echoed, "acdf"));
    scene_close(&scene);
}

static void test_corrupt_messages(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct scene scene = open_chat(SIDE_OF(state), &faults, echoed);
    faults.corrupt_in = 2;
    send_text(&scene, "bbb");
    AWAIT(scene.end, scene.end->received == 3);
    CHECK(!strcmp(echoed, "bcb"));
    faults.corrupt_in = 2; /* the echo */
    send_text(&scene, "b");
    AWAIT(scene.end, scene.end->received == 4);
    CHECK(!strcmp(echoed, "bcbc"));
    scene_close(&scene);
}

static void test_delay(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct scene scene = open_chat(SIDE_OF(state), &faults, echoed);
    faults.delay_polls = UINT32_MAX;
    send_text(&scene, "xyz");
    end_read(scene.end, scene.mr, scene.bytes, &scene.remote, 0, 1000, 0);
    uint64_t deadline = await_until();
    while (pair_ask(scene.pair, (struct order){.verb = ORDER_COUNT}).value < 3) {
        CHECK(end_poll(scene.end) == 0);
        CHECK(ibx_now_ns() < deadline);
    }
    for (int i = 0; i < 1000; i++)
        CHECK(end_poll(scene.end) == 0);
    faults.delay_polls = 5;
    AWAIT(scene.end, scene.end->received == 3 && scene.end->completed == 1);
    CHECK(!strcmp(echoed, "xyz"));
    CHECK(pattern_check(scene.bytes, 1000, SEED, 0) < 0);
    scene_close(&scene);
}

static void check_cut(struct scene *scene)
{
    AWAIT(scene->end, scene->end->closed);
    CHECK(scene->end->closed_status == -ECONNRESET);
    CHECK(strstr(ibx_conn_reason(scene->end->conn), "fault"));
    ibx_close(scene->end->conn);
    scene->end->conn = NULL;
    uint64_t deadline = await_until();
    while (!pair_ask(scene->pair, (struct order){.verb = ORDER_STATUS}).value)
        CHECK(ibx_now_ns() < deadline);
    scene->mr = NULL; /* went with the connection */
    scene_close(scene);
}

static void test_disconnect_by_chunk(void **state)
{
    struct ibx_injected_faults faults = {0};
    struct scene scene = scene_open(SIDE_OF(state), &faults);
    faults.disconnect_in = 8;
    for (int i = 0; i < 4; i++)
        end_read(scene.end, scene.mr, scene.bytes, &scene.remote, 0, scene.length, 0);
    AWAIT(scene.end, scene.end->completed == 4);
    CHECK(scene.end->failed >= 3);
    check_cut(&scene);
}

static void test_disconnect_by_message(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct scene scene = open_chat(SIDE_OF(state), &faults, echoed);
    send_text(&scene, "a");
    AWAIT(scene.end, scene.end->received == 1);
    faults.disconnect_in = 2; /* the echo of the next */
    send_text(&scene, "b");
    check_cut(&scene);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_fail),
    TEST_BOTH(test_corrupt_read),
    TEST_BOTH(test_drop),
    TEST_BOTH(test_corrupt_messages),
    TEST_BOTH(test_delay),
    TEST_BOTH(test_disconnect_by_chunk),
    TEST_BOTH(test_disconnect_by_message),
};
GROUP(group_faults, "faults", tests);
