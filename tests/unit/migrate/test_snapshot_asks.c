/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages by messages, from a server that is a cache which has not all pages yet. */
#include "common/clock.h"
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define HUGE     (2u << 20) /* a page of a microVM with huge pages */
#define PAGES    17u        /* of them: more than there are ASKs for at once */
#define RAM_SIZE ((size_t)PAGES * HUGE)

static struct ibx_error error;
static struct ibx_snapshot_manifest manifest;
static struct ibx_page_map map;
static struct ibx_snapshot_server *server;
static struct ibx_snapshot_reader *reader;
static struct ibx_fault_reader as;
static uint8_t *ram, *to, device[IBX_SNAPSHOT_PAGE];
static void *memory[2];

static int begin(void **unused)
{
    struct ibx_options options;
    uint32_t number = 1;
    (void)unused;
    ram = malloc(RAM_SIZE);
    to = calloc(1, RAM_SIZE);
    assert_true(ram && to);
    for (size_t i = 0; i < RAM_SIZE; i += sizeof(number), number = number * 1664525 + 1013904223)
        memcpy(ram + i, &number, sizeof(number));
    manifest = (struct ibx_snapshot_manifest){.ram_count = 1, .state_bytes = 1};
    manifest.ram[0].size = RAM_SIZE;
    snprintf(manifest.ram[0].id, sizeof(manifest.ram[0].id), "memory");
    manifest.description = json_object();
    assert_int_equal(ibx_snapshot_map_init(&manifest, &map, &error), 0);
    ibx_page_map_set(&map, 0, RAM_SIZE / IBX_SNAPSHOT_PAGE);
    memory[0] = ram;
    memory[1] = device;
    ibx_options_init(&options);
    const struct ibx_snapshot_server_config config = {.uri = "tcp://127.0.0.1:0",
                                                      .options = &options,
                                                      .manifest = &manifest,
                                                      .map = &map,
                                                      .memory = memory,
                                                      .touched = true,
                                                      .share = true};
    assert_int_equal(ibx_snapshot_server_open(&config, &server, &error), 0);
    assert_int_equal(
        ibx_snapshot_reader_open(ibx_snapshot_server_uri(server), &options, 1, &reader, &error), 0);
    return ibx_snapshot_reader_serve(reader, NULL, 0, &as, &error);
}

static int end(void **unused)
{
    (void)unused;
    ibx_snapshot_reader_close(reader);
    ibx_snapshot_server_close(server);
    ibx_snapshot_manifest_fini(&manifest);
    ibx_page_map_fini(&map);
    free(ram);
    free(to);
    return 0;
}

static int ask_for(unsigned page)
{
    const struct ibx_fault_request request = {.page = page,
                                              .offset = (uint64_t)page * HUGE,
                                              .length = HUGE,
                                              .buffer = to + (size_t)page * HUGE,
                                              .cookie = 100 + page,
                                              .urgent = true};
    return as.ops->request(as.context, &request);
}

/* The page that comes next; an error of the connection. */
static int take(void)
{
    struct ibx_fault_arrival arrival;
    const uint64_t until = ibx_deadline_in_ms(patience_ms(20000));
    struct pollfd fd = {.fd = as.ops->fd(as.context), .events = POLLIN};
    int n;
    while (!(n = as.ops->poll(as.context, &arrival, 1)) && ibx_now_ns() < until)
        if (!as.ops->arm(as.context))
            poll(&fd, 1, 100);
    if (n != 1)
        return n ? n : -ETIMEDOUT;
    const unsigned page = (unsigned)arrival.cookie - 100;
    assert_true(page < PAGES && !arrival.status && arrival.length == HUGE);
    assert_memory_equal(to + (size_t)page * HUGE, ram + (size_t)page * HUGE, HUGE);
    return (int)page;
}

/* Each is longer than an ASK may be. So many are asked for as the connection takes. */
static void test_huge_pages(NO_STATE)
{
    bool came[PAGES] = {false};
    unsigned next = 0, open = 0;
    assert_int_equal(ask_for(3), 0);
    assert_int_equal(take(), 3);
    memset(to, 0, RAM_SIZE);
    while (next < PAGES || open) {
        const int rc = next < PAGES ? ask_for(next) : -EAGAIN;
        assert_true(!rc || (rc == -EAGAIN && open));
        if (!rc) {
            next++;
            open++;
            continue;
        }
        const int page = take();
        assert_true(page >= 0 && !came[page]);
        came[page] = true;
        open--;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_huge_pages, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
