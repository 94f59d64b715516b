/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Pages of a guest over real connections: the page server exposes them, and the fault engine
 * fetches them. */
#include "tests/fixtures/pages_scene.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"
#include "common/locked.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define MORE_MAX (5 * (2u << 20) / SMALL) /* pages that five regions hold at most */

static uint64_t data_bytes(const struct scene *s)
{
    const struct ibx_page_map *map = &s->map;
    uint64_t bytes = 0;
    for (uint64_t page = 0; page < map->pages; page++)
        if (ibx_page_map_data(map, page))
            bytes += page < map->blocks[1].first ? SMALL : s->page_size;
    return bytes;
}

static void move_all(struct scene *s, bool minor)
{
    struct toucher touchers[TOUCHERS];
    struct ibx_fault_stats stats;
    struct ibx_error err = {0};
    uint64_t before = scene_allocated(s);
    scene_connect(s);
    bool whole = ibx_conn_caps(ibx_page_reader_conn(s->readers[0]))->register_free;
    scene_expose(s);
    assert_int_equal(s->regions, whole ? 2 : s->page_size > 4096 ? 6 : 5);
    scene_fill(s, minor);
    touchers_start(touchers, s);
    assert_true(scene_waits(s, TOUCHERS));
    assert_int_equal(ibx_fault_serve(s->engine), 0);
    touchers_end(touchers);
    assert_int_equal(scene_settled(s), IBX_FAULT_COMPLETE);
    scene_check(s);
    ibx_fault_stats(s->engine, &stats);
    assert_int_equal(stats.bytes, data_bytes(s));
    assert_int_equal(ibx_page_server_failed(s->pages, &err), 0);
    assert_string_equal(ibx_page_reader_reason(s->readers[0]), "");
    assert_string_equal(ibx_page_server_path(s->pages)->provider,
                        ibx_conn_path(ibx_page_reader_conn(s->readers[0]))->provider);
    /* Even if registering allocates memory, holes far from data stay holes. */
    assert_true(scene_allocated(s) <= before + (whole ? 0 : MORE_MAX));
    scene_end(s);
}

static void test_missing(NO_STATE)
{
    struct scene s;
    assert_true(scene_make(&s, 2, false));
    move_all(&s, false);
}

static void test_minor(NO_STATE)
{
    struct scene s;
    assert_true(scene_make(&s, 2, false));
    move_all(&s, true);
}

static void test_huge(NO_STATE)
{
    struct scene s;
    if (!scene_make(&s, 1, true)) {
        print_message("SKIPPED: no 6 huge pages of 2 MiB here (vm.nr_hugepages)\n");
        skip();
    }
    move_all(&s, false);
}

/* ------------------------------------------------------------------- exposing */

/* Waits until the page server has failed, while the destination's ends continue. */
static bool server_fails(struct scene *s, int code, const char *says)
{
    struct pollfd fd = {.fd = ibx_page_server_fd(s->pages), .events = POLLIN};
    uint64_t deadline = ibx_deadline_in_ms(60000);
    struct ibx_error err = {0};
    while (!ibx_page_server_failed(s->pages, &err) && ibx_now_ns() < deadline) {
        for (unsigned i = 0; i < s->links; i++)
            if (s->readers[i])
                ibx_page_reader_regions(s->readers[i], NULL);
        poll(&fd, 1, 10);
    }
    return err.code == code && strstr(err.message, says);
}

/* Pages that get data while the VM runs are exposed when it has stopped. */
static void test_later_data(NO_STATE)
{
    struct scene s;
    struct toucher touchers[TOUCHERS];
    assert_true(scene_make(&s, 2, false));
    scene_connect(&s);
    scene_expose(&s);
    uint32_t before = s.regions;
    bool whole = ibx_conn_caps(ibx_page_reader_conn(s.readers[0]))->register_free;
    /* the last page of a piece, in a stretch that was a hole */
    page_write(&s, (IBX_EXPORT_STRETCH + IBX_EXPORT_PIECE) / SMALL - 1);
    page_write(&s, 700); /* in a stretch with data */
    scene_expose(&s);
    assert_int_equal(s.regions, whole ? before : before + 1);
    struct pollfd fd = {.fd = ibx_page_server_fd(s.pages), .events = POLLIN};
    assert_int_equal(ibx_page_server_failed(s.pages, NULL), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(ibx_page_server_expose(s.pages, &s.map, NULL), 0);
    assert_int_equal(poll(&fd, 1, 0), 1); /* nothing new, so it is ready at once */
    scene_expose(&s);
    assert_int_equal(s.regions, whole ? before : before + 1);
    scene_fill(&s, false);
    touchers_start(touchers, &s);
    assert_int_equal(ibx_fault_serve(s.engine), 0);
    touchers_end(touchers);
    assert_int_equal(scene_settled(&s), IBX_FAULT_COMPLETE);
    scene_check(&s);
    scene_end(&s);
}

/* Nobody has to look before the page server tells. */
static void test_tells_when_all_is_exposed(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    assert_true(scene_make(&s, 2, false));
    scene_connect(&s);
    struct pollfd fd = {.fd = ibx_page_server_fd(s.pages), .events = POLLIN};
    assert_int_equal(ibx_page_server_expose(s.pages, &s.map, &err), 0);
    while (ibx_page_server_done(s.pages, &s.regions, &err))
        assert_int_equal(poll(&fd, 1, 60000), 1);
    scene_end(&s);
}

#define MANY 100u /* regions: more than a connection has credits */

/* A large VM: its regions wait until the destination has taken earlier ones. */
static void test_more_regions_than_credits(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    assert_true(scene_make(&s, 1, false));
    struct ibx_guest_block *block = &s.blocks[1];
    block->size = s.described[1].size = MANY * IBX_EXPORT_STRETCH;
    assert_int_equal(ftruncate(block->fd, (off_t)block->size), 0);
    s.ram.bytes = s.blocks[0].size + block->size;
    ibx_page_map_fini(&s.map);
    assert_int_equal(ibx_page_map_init(&s.map, s.described, BLOCKS, &err), 0);
    for (unsigned i = 0; i < MANY; i++)
        ibx_page_map_set(&s.map, s.map.blocks[1].first + i * (IBX_EXPORT_STRETCH / SMALL), 1);
    ibx_page_map_recount(&s.map);
    scene_connect(&s);
    const bool whole = ibx_conn_caps(ibx_page_reader_conn(s.readers[0]))->register_free;
    scene_expose(&s);
    assert_int_equal(s.regions, whole ? 2 : MANY);
    assert_int_equal(ibx_page_server_failed(s.pages, &err), 0);
    scene_end(&s);
}

/* Whoever has the keys of guest RAM may read it, and cannot write to it. */
static void test_is_not_written(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    struct ibx_remote remote;
    struct ibx_event event = {0};
    struct ibx_mr *mr = NULL;
    uint8_t page[SMALL];
    const uint64_t deadline = ibx_deadline_in_ms(60000);
    assert_true(scene_make(&s, 1, false));
    scene_connect(&s);
    scene_expose(&s);
    assert_int_equal(ibx_page_reader_arm(s.readers[0], SMALL, &s.as[0], &err), 0);
    struct ibx_conn *conn = ibx_page_reader_conn(s.readers[0]);
    assert_int_equal(ibx_page_reader_remote(s.readers[0], 700 * SMALL, SMALL, &remote), 0);
    assert_int_equal(ibx_mr_allocate(conn, SMALL, IBX_ACCESS_LOCAL, &mr, &err), 0);
    assert_int_equal(ibx_write(conn, mr, ibx_mr_address(mr), &remote, 0, SMALL, 1, 0), 0);
    while (event.type != IBX_EVENT_WRITE && ibx_now_ns() < deadline) {
        ibx_wait(conn, 10);
        if (ibx_poll(conn, &event, 1) < 1)
            event.type = IBX_EVENT_MESSAGE;
    }
    assert_int_equal(event.type, IBX_EVENT_WRITE);
    if (ibx_conn_caps(conn)->register_free) /* then the mapping there is one for reading, too */
        assert_int_equal(event.status, -EACCES);
    assert_true(event.status < 0);
    assert_int_equal(pread(s.blocks[0].fd, page, SMALL, (off_t)(s.blocks[0].offset + 700 * SMALL)),
                     SMALL);
    assert_true(bytes_right(&s, 700, page));
    scene_end(&s);
}

/* The memory that exposing pins, and in minor mode maps again, does not grow with the number of
 * connections. */
static void test_pinned_once(NO_STATE)
{
    uint64_t exposed[2], armed[2];
    for (unsigned i = 0; i < 2; i++) {
        struct scene s;
        assert_true(scene_make(&s, i ? 4 : 1, false));
        scene_connect(&s);
        const struct ibx_caps *caps = ibx_conn_caps(ibx_page_reader_conn(s.readers[0]));
        if (caps->register_free || !caps->shares) {
            scene_end(&s);
            print_message("SKIPPED: this provider pins nothing, or cannot share it\n");
            skip();
        }
        const uint64_t before = ibx_locked_now();
        scene_expose(&s);
        exposed[i] = ibx_locked_now() - before;
        if (!exposed[i] &&
            !strcmp(ibx_conn_path(ibx_page_reader_conn(s.readers[0]))->provider, "ofi")) {
            scene_end(&s);
            print_message("SKIPPED: libfabric pins nothing here\n");
            skip();
        }
        assert_true(exposed[i] >= data_bytes(&s));
        scene_fill(&s, true);
        const uint64_t buffers = s.links * ibx_fault_buffer_bytes(&s.config);
        armed[i] = ibx_locked_now() - before - exposed[i] - buffers;
        assert_true(armed[i] >= s.bytes);
        scene_end(&s);
    }
    assert_int_equal(exposed[0], exposed[1]);
    assert_int_equal(armed[0], armed[1]);
}

static void test_cpu_time(NO_STATE)
{
    struct scene s;
    assert_true(scene_make(&s, 1, false));
    scene_connect(&s);
    scene_expose(&s);
    bool drives = ibx_conn_caps(ibx_page_reader_conn(s.readers[0]))->peer_drives;
    scene_fill(&s, false);
    assert_int_equal(ibx_fault_serve(s.engine), 0);
    assert_int_equal(scene_settled(&s), IBX_FAULT_COMPLETE);
    uint64_t spent = ibx_page_server_cpu_ns(s.pages);
    assert_true(spent > 0 || !drives);
    ibx_fault_destroy(s.engine);
    s.engine = NULL;
    ibx_page_reader_destroy(s.readers[0]);
    s.readers[0] = NULL;
    assert_true(server_fails(&s, -ECONNRESET, "has ended"));
    /* Waits until the thread rests, when its processor time does not change from one look to the
     * next. */
    uint64_t deadline = ibx_deadline_in_ms(60000), last;
    do {
        last = ibx_page_server_cpu_ns(s.pages);
        sched_yield();
    } while (ibx_page_server_cpu_ns(s.pages) != last && ibx_now_ns() < deadline);
    assert_true(last >= spent && ibx_page_server_cpu_ns(s.pages) == last);
    scene_end(&s);
}

static void test_destination_speaks(NO_STATE)
{
    struct scene s;
    uint32_t regions;
    struct iovec iov = {"?", 1};
    assert_true(scene_make(&s, 2, false));
    scene_connect(&s);
    assert_int_equal(ibx_page_server_failed(s.pages, NULL), 0);
    struct ibx_conn *conn = ibx_page_reader_conn(s.readers[1]);
    assert_int_equal(ibx_send(conn, &iov, 1, 0, 0), 0);
    assert_true(server_fails(&s, -EPROTO, "which it may not"));
    assert_int_equal(ibx_page_server_done(s.pages, &regions, NULL), -EPROTO);
    assert_int_equal(ibx_page_server_expose(s.pages, &s.map, NULL), -EPROTO);
    scene_end(&s);
}

static void test_bad_config(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    struct ibx_page_server *pages = NULL;
    struct ibx_options options = pages_options();
    assert_true(scene_make(&s, 1, false));
    struct ibx_page_server_config config = {
        .ram = &s.ram, .uri = ibx_listener_uri(s.listener), .options = &options};
    assert_int_equal(ibx_page_server_open(&config, &pages, &err), -EINVAL);
    config.links = IBX_MIGRATE_LINKS_MAX + 1;
    assert_int_equal(ibx_page_server_open(&config, &pages, &err), -EINVAL);
    config.links = 1;
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_guest_ram ram = {.count = i ? IBX_GUEST_BLOCKS_MAX + 1 : 0};
        config.ram = &ram;
        assert_int_equal(ibx_page_server_open(&config, &pages, &err), -EINVAL);
        assert_non_null(strstr(err.message, "memory backends"));
    }
    config.ram = &s.ram;
    config.uri = "tcp://127.0.0.1:1";
    assert_int_equal(ibx_page_server_open(&config, &pages, &err), -ECONNREFUSED);
    assert_non_null(strstr(err.message, "page connection 0"));
    assert_null(pages);
    scene_end(&s);
}

/* ---------------------------------------------------------------- connections die */

/* Makes new connections and continues with the pages that have arrived. */
static void reconnect_and_continue(struct scene *s)
{
    struct toucher touchers[TOUCHERS];
    struct ibx_fault_stats stats;
    struct ibx_error err = {0};
    scene_disconnect(s);
    touchers_start(touchers, s);
    assert_true(scene_waits(s, 1));
    scene_connect(s);
    scene_expose(s);
    scene_arm(s);
    ibx_fault_set_bandwidth(s->engine, 0);
    if (ibx_fault_resume(s->engine, s->as, &err))
        fail_msg("%s", err.message);
    touchers_end(touchers);
    assert_int_equal(scene_settled(s), IBX_FAULT_COMPLETE);
    scene_check(s);
    ibx_fault_stats(s->engine, &stats);
    assert_int_equal(stats.bytes, data_bytes(s)); /* each byte once */
}

static void test_source_dies(NO_STATE)
{
    struct scene s;
    struct ibx_error err = {0};
    assert_true(scene_make(&s, 2, false));
    scene_connect(&s);
    scene_expose(&s);
    scene_fill(&s, false);
    ibx_fault_set_bandwidth(s.engine, 128 << 10); /* so that the link is cut before the end */
    assert_int_equal(ibx_fault_serve(s.engine), 0);
    assert_true(scene_fetched(&s, 1));
    ibx_page_server_close(s.pages);
    s.pages = NULL;
    assert_int_equal(scene_settled(&s), IBX_FAULT_STOPPED);
    assert_true(ibx_fault_reason(s.engine, &err) < 0);
    assert_non_null(strstr(err.message, "no more pages come: "));
    /* A side without work in flight may not have noticed that the other one ended. */
    assert_true(*ibx_page_reader_reason(s.readers[0]) || *ibx_page_reader_reason(s.readers[1]));
    reconnect_and_continue(&s);
    scene_end(&s);
}

/* During many READs, the connection breaks or one READ fails. */
static void broken(unsigned disconnect_in, unsigned fail_in, int code)
{
    struct ibx_injected_faults faults = {0};
    struct scene s;
    struct ibx_error err = {0};
    pages_faults = &faults;
    assert_true(scene_make(&s, 1, false));
    scene_connect(&s);
    scene_expose(&s);
    faults.disconnect_in = disconnect_in;
    faults.fail_in = fail_in;
    scene_fill(&s, false);
    assert_int_equal(ibx_fault_serve(s.engine), 0);
    assert_int_equal(scene_settled(&s), IBX_FAULT_STOPPED);
    assert_int_equal(ibx_fault_reason(s.engine, &err), code);
    assert_true(*ibx_page_reader_reason(s.readers[0]));
    faults = (struct ibx_injected_faults){0};
    reconnect_and_continue(&s);
    pages_faults = NULL;
    scene_end(&s);
}

static void test_disconnect(NO_STATE)
{
    broken(5, 0, -ECONNRESET);
}

static void test_read_fails(NO_STATE)
{
    broken(0, 5, -EIO);
}

/* ---------------------------------------------------------------- one request */

static atomic_uint reads_until_none = UINT_MAX; /* then there is no memory for another one */
static atomic_uint read_flags;                  /* of the last one */

int __real_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags);
int __wrap_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags);
int __wrap_ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags)
{
    const unsigned left = atomic_load(&reads_until_none); /* counted by one thread */
    if (!left)
        return -ENOMEM;
    if (left < UINT_MAX)
        atomic_store(&reads_until_none, left - 1);
    atomic_store(&read_flags, flags);
    return __real_ibx_read(conn, mr, local, remote, offset, length, cookie, flags);
}

struct asked {
    struct scene scene;
    uint8_t *buffer;
    size_t each; /* bytes of it for each cookie */
};

static void ask_make(struct asked *a, size_t each)
{
    struct ibx_error err = {0};
    struct scene *s = &a->scene;
    assert_true(scene_make(s, 1, false));
    scene_connect(s);
    scene_expose(s);
    if (ibx_page_reader_arm(s->readers[0], 120 * each, &s->as[0], &err))
        fail_msg("%s", err.message);
    a->buffer = s->as[0].buffer;
    a->each = each;
}

static int ask(struct asked *a, uint64_t offset, uint64_t length, uint64_t cookie, bool urgent)
{
    struct ibx_fault_request request = {.offset = offset,
                                        .length = length,
                                        .buffer = a->buffer + cookie * a->each,
                                        .cookie = cookie,
                                        .urgent = urgent};
    return a->scene.as[0].ops->request(a->scene.as[0].context, &request);
}

/* Waits until `count` have arrived or the source has ended. Returns the last result of poll(). */
static int arrive(struct asked *a, struct ibx_fault_arrival *arrivals, int count)
{
    const struct ibx_fault_reader *as = &a->scene.as[0];
    uint64_t deadline = ibx_deadline_in_ms(60000);
    int got = 0;
    while (got < count && ibx_now_ns() < deadline) {
        struct pollfd fd = {.fd = as->ops->fd(as->context), .events = POLLIN};
        int n = as->ops->poll(as->context, arrivals + got, count - got);
        if (n < 0)
            return n;
        got += n;
        if (!n && !as->ops->arm(as->context))
            assert_int_equal(poll(&fd, 1, 60000), 1);
    }
    return got;
}

/* A request that crosses two regions arrives once. */
static void test_request_is_cut(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrivals[2];
    ask_make(&a, SMALL);
    uint64_t last = a.scene.map.blocks[1].first - 1;
    assert_int_equal(ask(&a, last * SMALL, 3 * SMALL, 7, false), 0);
    assert_int_equal(arrive(&a, arrivals, 1), 1);
    assert_int_equal(arrivals[0].cookie, 7);
    assert_int_equal(arrivals[0].status, 0);
    assert_int_equal(arrivals[0].length, 3 * SMALL);
    for (unsigned i = 0; i < 3; i++)
        assert_true(bytes_right(&a.scene, last + i, a.buffer + (7 + i) * SMALL));
    assert_int_equal(a.scene.as[0].ops->poll(a.scene.as[0].context, arrivals, 2), 0);
    scene_end(&a.scene);
}

/* A request of which only the first READ could be made has not brought its pages. */
static void test_request_is_made_in_part(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrival;
    ask_make(&a, SMALL);
    const uint64_t last = a.scene.map.blocks[1].first - 1;
    reads_until_none = 1;
    const int rc = ask(&a, last * SMALL, 3 * SMALL, 7, false);
    reads_until_none = UINT_MAX;
    assert_int_equal(rc, 0);
    assert_int_equal(arrive(&a, &arrival, 1), 1);
    assert_int_equal(arrival.cookie, 7);
    assert_int_equal(arrival.status, -ENOMEM);
    assert_int_equal(arrival.length, 0);
    scene_end(&a.scene);
}

/* Pages that are not adjacent, on both sides of a border of regions, in any order, arrive as one
 * request in this order. The source must expose each of them. */
static void test_request_of_scattered_pages(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrivals[2];
    uint64_t pages[64];
    ask_make(&a, SMALL);
    const uint64_t first = a.scene.map.blocks[1].first;
    for (unsigned i = 0; i < 64; i++)
        pages[i] = i % 2 ? first + 4 * i : 9 + 3 * (64 - i);
    struct ibx_fault_request request = {.page = pages[0],
                                        .offset = pages[0] * SMALL,
                                        .length = sizeof(pages) / sizeof(*pages) * SMALL,
                                        .buffer = a.buffer,
                                        .cookie = 5,
                                        .pages = pages,
                                        .page_count = 64};
    const struct ibx_fault_reader *as = &a.scene.as[0];
    assert_true(as->ops->scatters);
    if (as->ops->request(as->context, &request))
        fail_msg("%s", ibx_page_reader_reason(a.scene.readers[0]));
    assert_int_equal(arrive(&a, arrivals, 1), 1);
    assert_int_equal(arrivals[0].cookie, 5);
    assert_int_equal(arrivals[0].status, 0);
    assert_int_equal(arrivals[0].length, 64 * SMALL);
    for (unsigned i = 0; i < 64; i++)
        assert_true(bytes_right(&a.scene, pages[i], a.buffer + i * SMALL));
    pages[40] = a.scene.bytes / SMALL;
    assert_int_equal(as->ops->request(as->context, &request), -EAGAIN);
    assert_true(arrive(&a, arrivals, 1) < 0);
    assert_non_null(strstr(ibx_page_reader_reason(a.scene.readers[0]), "does not expose"));
    scene_end(&a.scene);
}

/* The queue is full for bulk requests before it is full for urgent ones. All arrive once. */
static void test_full_queue(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrivals[120];
    unsigned bulk = 0, all, seen[120] = {0};
    int rc = 0;
    ask_make(&a, SMALL);
    while (bulk < 120 && !(rc = ask(&a, (3 + bulk) * SMALL, SMALL, bulk, false)))
        bulk++;
    assert_int_equal(rc, -EAGAIN);
    for (all = bulk; all < 120 && !(rc = ask(&a, (3 + all) * SMALL, SMALL, all, true)); all++)
        ;
    assert_int_equal(rc, -EAGAIN);
    assert_in_range(bulk, 8, 64);
    assert_true(all >= bulk + 48); /* places for faults of the engine and for pages ahead of them */
    assert_int_equal(arrive(&a, arrivals, (int)all), all);
    for (unsigned i = 0; i < all; i++) {
        assert_int_equal(arrivals[i].status, 0);
        seen[arrivals[i].cookie]++;
        assert_true(
            bytes_right(&a.scene, 3 + arrivals[i].cookie, a.buffer + arrivals[i].cookie * SMALL));
    }
    for (unsigned i = 0; i < all; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(ask(&a, 3 * SMALL, SMALL, 0, false), 0); /* there is room again */
    assert_int_equal(arrive(&a, arrivals, 1), 1);
    scene_end(&a.scene);
}

/* More requests than any fabric has in flight, then an urgent one. */
static void test_urgent(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrivals[80];
    const size_t each = 1u << 20;
    unsigned bulk = 0, place = 0;
    int rc = 0;
    ask_make(&a, each);
    uint64_t run = 3 * IBX_EXPORT_STRETCH - 300ull * SMALL;
    while (!rc && bulk < 79 && !(rc = ask(&a, run, each, bulk, false)))
        bulk++;
    assert_int_equal(ask(&a, 3 * SMALL, SMALL, bulk, true), 0);
    assert_int_equal(arrive(&a, arrivals, (int)bulk + 1), bulk + 1);
    while (arrivals[place].cookie != bulk)
        place++;
    assert_true(place < bulk); /* not after all of the others */
    assert_true(bytes_right(&a.scene, 3, a.buffer + bulk * each));
    scene_end(&a.scene);
}

/* What may wait for others is posted so, and nothing else: somebody may wait for it. */
static void test_others_follow(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrival;
    ask_make(&a, SMALL);
    for (unsigned kind = 0; kind < 4; kind++) {
        const struct ibx_fault_request request = {.offset = 3 * SMALL,
                                                  .length = SMALL,
                                                  .buffer = a.buffer,
                                                  .urgent = kind & 1,
                                                  .more = kind & 2};
        assert_int_equal(a.scene.as[0].ops->request(a.scene.as[0].context, &request), 0);
        assert_int_equal(read_flags, (kind & 1 ? IBX_URGENT : 0) | (kind & 2 ? IBX_MORE : 0));
        assert_int_equal(arrive(&a, &arrival, 1), 1);
    }
    scene_end(&a.scene);
}

/* Nothing behind the end is exposed. The reader ends with a message. */
static void test_not_exposed(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrival;
    ask_make(&a, SMALL);
    assert_int_equal(ask(&a, a.scene.bytes - SMALL, 2 * SMALL, 1, true), -EAGAIN);
    assert_true(arrive(&a, &arrival, 1) < 0);
    assert_non_null(strstr(ibx_page_reader_reason(a.scene.readers[0]), "does not expose"));
    assert_true(ask(&a, 3 * SMALL, SMALL, 1, true) < 0);
    scene_end(&a.scene);
}

/* After a cancel the requests in flight complete, and then the source has ended. */
static void test_cancel(NO_STATE)
{
    struct asked a;
    struct ibx_fault_arrival arrivals[4];
    ask_make(&a, SMALL);
    assert_int_equal(ask(&a, 3 * SMALL, SMALL, 1, false), 0);
    a.scene.as[0].ops->cancel(a.scene.as[0].context, 1);
    int rc = arrive(&a, arrivals, 1);
    if (rc == 1) { /* with its data, or without */
        assert_int_equal(arrivals[0].cookie, 1);
        assert_true(arrivals[0].status == 0 || arrivals[0].status == -ECANCELED);
        rc = arrive(&a, arrivals, 1);
    }
    assert_true(rc < 0);
    scene_end(&a.scene);
}

/* A source that sends a region when it must be silent. */
static void test_late_region(NO_STATE)
{
    struct asked a;
    struct ibx_error err = {0};
    struct ibx_fault_arrival arrival;
    struct scene *s = &a.scene;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    message.is.region =
        (struct ibx_migrate_region){1, 0, SMALL, {.address = 1u << 20, .length = SMALL}};
    assert_true(scene_make(s, 1, false));
    struct ibx_conn *conn = scene_connect_raw(s);
    assert_int_equal(ibx_page_reader_arm(s->readers[0], SMALL, &s->as[0], &err), 0);
    assert_int_equal(ibx_page_reader_regions(s->readers[0], &err), -EBUSY);
    raw_send(conn, &message);
    struct ibx_event event;
    ibx_poll(conn, &event, 1);
    assert_true(arrive(&a, &arrival, 1) < 0);
    assert_non_null(strstr(ibx_page_reader_reason(s->readers[0]), "where pages are expected"));
    ibx_close(conn);
    scene_end(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_minor),
        cmocka_unit_test(test_huge),
        cmocka_unit_test(test_later_data),
        cmocka_unit_test(test_tells_when_all_is_exposed),
        cmocka_unit_test(test_more_regions_than_credits),
        cmocka_unit_test(test_is_not_written),
        cmocka_unit_test(test_pinned_once),
        cmocka_unit_test(test_cpu_time),
        cmocka_unit_test(test_destination_speaks),
        cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_source_dies),
        cmocka_unit_test(test_disconnect),
        cmocka_unit_test(test_read_fails),
        cmocka_unit_test(test_request_is_cut),
        cmocka_unit_test(test_request_is_made_in_part),
        cmocka_unit_test(test_request_of_scattered_pages),
        cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_urgent),
        cmocka_unit_test(test_others_follow),
        cmocka_unit_test(test_not_exposed),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_late_region),
    };
    struct ibx_error err = {0};
    char description[256];
    int uffd;
    pages_use(argc > 1 ? argv[1] : "tcp", argc > 2 ? argv[2] : NULL);
    struct ibx_options options = pages_options();
    if (ibx_fault_uffd_open(0, &uffd, &err) ||
        (!close(uffd) &&
         ibx_provider_probe(options.provider, &options, description, sizeof(description), &err))) {
        print_message("SKIPPED: %s\n", err.message);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
