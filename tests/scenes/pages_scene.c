/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/pages_scene.h"
#include "tests/scenes/patience.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#define PATIENCE_MS patience_ms(60000)
#define HUGE        (2u << 20)
#define HUGES       3u
#define STRETCH     (IBX_EXPORT_STRETCH / SMALL)
#define FIRST_PAGES (4 * STRETCH + 5)
#define LAST_PAGES  256u /* small ones */

struct ibx_injected_faults *pages_faults;
static const char *provider = "tcp", *host;

void pages_use(const char *name, const char *address)
{
    provider = name;
    host = address;
}

struct ibx_options pages_options(void)
{
    struct ibx_options options;
    ibx_options_init(&options);
    assert_int_equal(ibx_options_set(&options, "provider", provider, NULL), 0);
    options.message = IBX_MIGRATE_MESSAGE;
    options.timeout_ms = PATIENCE_MS;
    options.insecure = host != NULL;
    return options;
}

/* ------------------------------------------------------------- connections */

struct ibx_listener *pages_listen(void)
{
    struct ibx_error err = {0};
    struct ibx_listener *listener = NULL;
    struct ibx_options options = pages_options();
    struct ibx_domain *domain = NULL;
    if (ibx_domain_create(&domain, &err))
        fail_msg("%s", err.message);
    options.domain = domain;
    char uri[128];
    snprintf(uri, sizeof(uri), "rdma://%s:0", host ? host : "127.0.0.1");
    if (ibx_listen(uri, &options, &listener, &err))
        fail_msg("%s", err.message);
    ibx_domain_release(domain);
    return listener;
}

static bool join_take(struct ibx_conn *conn)
{
    struct ibx_event event = {0};
    struct ibx_migrate_any message;
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    int n = 0;
    while (!n && ibx_now_ns() < deadline) {
        ibx_wait(conn, ibx_ms_until(deadline));
        n = ibx_poll(conn, &event, 1);
    }
    bool join = n == 1 && event.type == IBX_EVENT_MESSAGE &&
                !ibx_migrate_decode(event.data, event.length, &message, NULL) &&
                message.type == IBX_MIGRATE_JOIN;
    if (n == 1 && event.type == IBX_EVENT_MESSAGE)
        ibx_message_release(conn, &event);
    return join;
}

struct joiner {
    const struct acceptor *acceptor;
    struct ibx_conn *conn;
    struct ibx_page_reader **reader;
    bool joined;
    pthread_t thread;
};

static void *join_main(void *argument)
{
    struct joiner *j = argument;
    j->joined = !ibx_establish(j->conn, NULL) &&
                (!pages_faults || !ibx_fault_injection_attach(j->conn, pages_faults, NULL)) &&
                join_take(j->conn) &&
                !ibx_page_reader_create(j->conn, j->acceptor->blocks, BLOCKS, j->reader, NULL);
    if (!j->joined)
        ibx_close(j->conn);
    return NULL;
}

/* A thread each, as a destination has it: who has come to the listener has 2 s to prove itself, in
 * which another one may still be busy with libfabric. */
static void accept_all(struct acceptor *a)
{
    struct joiner joiners[LINKS_MAX];
    unsigned n = 0;
    for (; n < a->count; n++) {
        joiners[n] = (struct joiner){.acceptor = a, .reader = &a->readers[n]};
        if (ibx_accept_wait(a->listener, (int)PATIENCE_MS, &joiners[n].conn, NULL) ||
            pthread_create(&joiners[n].thread, NULL, join_main, &joiners[n]))
            break;
    }
    while (n--) {
        pthread_join(joiners[n].thread, NULL);
        a->joined += joiners[n].joined;
    }
}

static void *acceptor_main(void *argument)
{
    struct acceptor *a = argument;
    accept_all(a);
    atomic_store(&a->over, true);
    return NULL;
}

void acceptor_start(struct acceptor *a, struct ibx_listener *listener,
                    const struct ibx_migrate_block *blocks, unsigned count)
{
    *a = (struct acceptor){.listener = listener, .blocks = blocks, .count = count};
    assert_int_equal(pthread_create(&a->thread, NULL, acceptor_main, a), 0);
}

void acceptor_join(struct acceptor *a)
{
    pthread_join(a->thread, NULL);
    assert_int_equal(a->joined, a->count);
}

void scene_connect(struct scene *s)
{
    struct ibx_error err = {0};
    struct acceptor acceptor;
    struct ibx_options options = pages_options();
    struct ibx_page_server_config config = {.ram = &s->ram,
                                            .uri = ibx_listener_uri(s->listener),
                                            .options = &options,
                                            .join = {.id = {1}, .epoch = 1},
                                            .links = s->links};
    acceptor_start(&acceptor, s->listener, s->described, s->links);
    int rc = ibx_page_server_open(&config, &s->pages, &err);
    acceptor_join(&acceptor);
    if (rc)
        fail_msg("%s", err.message);
    memcpy(s->readers, acceptor.readers, sizeof(s->readers));
    s->regions = 0;
}

struct ibx_conn *scene_connect_raw(struct scene *s)
{
    struct ibx_error err = {0};
    struct acceptor acceptor;
    struct ibx_conn *conn = NULL;
    struct ibx_options options = pages_options();
    struct ibx_migrate_any join = {.type = IBX_MIGRATE_JOIN, .is.join = {.id = {1}, .epoch = 1}};
    acceptor_start(&acceptor, s->listener, s->described, 1);
    int rc = ibx_connect(ibx_listener_uri(s->listener), &options, &conn, &err);
    if (!rc)
        raw_send(conn, &join);
    /* The JOIN may need a poll to leave. */
    while (!rc && !atomic_load(&acceptor.over)) {
        struct ibx_event event;
        assert_int_equal(ibx_poll(conn, &event, 1), 0);
        sched_yield();
    }
    acceptor_join(&acceptor);
    if (rc)
        fail_msg("%s", err.message);
    s->readers[0] = acceptor.readers[0];
    return conn;
}

void raw_send(struct ibx_conn *conn, const struct ibx_migrate_any *message)
{
    uint8_t bytes[1024];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    const struct ibx_migrate_region *part = &message->is.region;
    ssize_t length;
    if (message->type == IBX_MIGRATE_REGION) { /* what is wrong with it would not be encoded */
        ibx_put_u8(&w, IBX_MIGRATE_REGION);
        ibx_put_u16(&w, part->block);
        ibx_put_u64(&w, part->offset);
        ibx_put_u64(&w, part->length);
        ibx_remote_put(&w, &part->remote);
        length = (ssize_t)w.length;
    } else {
        length = ibx_migrate_encode(message, bytes, sizeof(bytes));
    }
    assert_true(length > 0);
    struct iovec iov = {bytes, (size_t)length};
    assert_int_equal(ibx_send(conn, &iov, 1, 0, 0), 0);
}

static void regions_await(struct scene *s)
{
    struct ibx_error err = {0};
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    for (unsigned i = 0; i < s->links; i++) {
        int n = 0;
        while ((n = ibx_page_reader_regions(s->readers[i], &err)) < (int)s->regions) {
            if (n < 0 || ibx_now_ns() > deadline)
                fail_msg("%d regions of %u: %s", n, s->regions, err.message);
            ibx_wait(ibx_page_reader_conn(s->readers[i]), 1000);
        }
        assert_int_equal(n, s->regions);
    }
}

void scene_expose(struct scene *s)
{
    struct ibx_error err = {0};
    struct pollfd fd = {.fd = ibx_page_server_fd(s->pages), .events = POLLIN};
    int rc;
    if (ibx_page_server_expose(s->pages, &s->map, &err))
        fail_msg("%s", err.message);
    while ((rc = ibx_page_server_done(s->pages, &s->regions, &err)) == -EAGAIN) {
        /* A region may wait for the destination's credit, and its sleep is its own. */
        for (unsigned i = 0; i < s->links; i++)
            assert_true(ibx_page_reader_regions(s->readers[i], &err) >= 0);
        assert_true(poll(&fd, 1, 10) >= 0);
    }
    if (rc)
        fail_msg("%s", err.message);
    regions_await(s);
}

void scene_disconnect(struct scene *s)
{
    for (unsigned i = 0; i < s->links; i++) {
        ibx_page_reader_destroy(s->readers[i]);
        s->readers[i] = NULL;
    }
    ibx_page_server_close(s->pages);
    s->pages = NULL;
}

/* ------------------------------------------------------------------- the RAM */

/* Every word of a page tells its place. */
static uint64_t word_of(uint64_t page, uint64_t at)
{
    return (page + 1) * 0x9e3779b97f4a7c15 ^ at;
}

static uint32_t size_of(const struct scene *s, uint64_t page)
{
    return page < FIRST_PAGES ? SMALL : s->page_size;
}

static uint64_t place_of(const struct scene *s, uint64_t page)
{
    return page < FIRST_PAGES ? page * SMALL : (page - FIRST_PAGES) * s->page_size;
}

/* Runs, single pages, a stretch that is all hole, a run through two stretches, the last page. */
static bool is_data(const struct scene *s, uint64_t page)
{
    if (page >= FIRST_PAGES)
        return s->page_size == SMALL ? page - FIRST_PAGES < 100 || page - FIRST_PAGES > 150
                                     : page != FIRST_PAGES + 1;
    return (page >= 3 && page < 300) || (page >= 300 && page < 600 && page % 7 == 0) ||
           (page >= 3 * STRETCH - 300 && page < 3 * STRETCH + 400) || page == FIRST_PAGES - 1;
}

static void data_put(const struct scene *s, uint64_t page)
{
    uint32_t size = size_of(s, page);
    int fd = s->blocks[page < FIRST_PAGES ? 0 : 1].fd;
    uint8_t *bytes =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)place_of(s, page));
    assert_true(bytes != MAP_FAILED);
    for (uint32_t i = 0; i < size; i += 8) {
        uint64_t word = word_of(page, i);
        memcpy(bytes + i, &word, 8);
    }
    munmap(bytes, size);
}

void page_write(struct scene *s, uint64_t page)
{
    data_put(s, page);
    for (unsigned b = 0; b < BLOCKS; b++) {
        uint64_t pages = s->map.blocks[b].pages, first = s->map.blocks[b].first;
        uint64_t *bits = calloc((pages + 63) / 64, sizeof(*bits));
        for (uint64_t i = 0; i < pages; i++)
            if (ibx_page_map_data(&s->map, first + i) || first + i == page)
                bits[i / 64] |= UINT64_C(1) << (i % 64);
        ibx_page_map_put_block(&s->map, b, bits);
        free(bits);
    }
}

static void block_make(struct scene *s, unsigned index, uint64_t pages, uint32_t page_size)
{
    struct ibx_guest_block *block = &s->blocks[index];
    block->size = pages * page_size;
    block->page_size = page_size;
    block->shared = true;
    snprintf(block->id, sizeof(block->id), "/objects/ram%u", index);
    assert_int_equal(ftruncate(block->fd, (off_t)block->size), 0);
    s->described[index] = (struct ibx_migrate_block){.size = block->size, .page_size = page_size};
    memcpy(s->described[index].id, block->id, sizeof(block->id));
}

static void data_make(struct scene *s)
{
    struct ibx_error err = {0};
    if (ibx_page_map_init(&s->map, s->described, BLOCKS, &err))
        fail_msg("%s", err.message);
    for (unsigned b = 0; b < BLOCKS; b++) {
        uint64_t pages = s->map.blocks[b].pages, first = s->map.blocks[b].first;
        uint64_t *bits = calloc((pages + 63) / 64, sizeof(*bits));
        for (uint64_t i = 0; i < pages; i++) {
            if (!is_data(s, first + i))
                continue;
            bits[i / 64] |= UINT64_C(1) << (i % 64);
            data_put(s, first + i);
        }
        ibx_page_map_put_block(&s->map, b, bits);
        free(bits);
    }
}

bool scene_make(struct scene *s, unsigned links, bool huge)
{
    int kind = huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0;
    memset(s, 0, sizeof(*s));
    s->page_size = huge ? HUGE : SMALL;
    s->links = links;
    s->uffd = s->file = -1;
    s->blocks[0].fd = memfd_create("ibx-test", MFD_CLOEXEC);
    s->blocks[1].fd = memfd_create("ibx-test", MFD_CLOEXEC | (unsigned)kind);
    /* As many again for the destination, and its buffers are small pages. */
    if (s->blocks[1].fd < 0 || (huge && fallocate(s->blocks[1].fd, 0, 0, 2 * HUGES * HUGE))) {
        close(s->blocks[0].fd);
        close(s->blocks[1].fd);
        return false;
    }
    block_make(s, 0, FIRST_PAGES, SMALL);
    block_make(s, 1, huge ? HUGES : LAST_PAGES, s->page_size);
    data_make(s);
    s->ram.blocks = s->blocks;
    s->ram.count = BLOCKS;
    s->bytes = (size_t)(s->blocks[0].size + s->blocks[1].size);
    s->listener = pages_listen();
    return true;
}

uint64_t scene_allocated(const struct scene *s)
{
    uint64_t blocks = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct stat is;
        assert_int_equal(fstat(s->blocks[i].fd, &is), 0);
        blocks += (uint64_t)is.st_blocks;
    }
    return blocks * 512 / SMALL;
}

/* ------------------------------------------------------------------- the engine */

static uint8_t *map_memory(size_t length, int flags, int fd, size_t offset)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* One stretch of memory for both blocks, and with that one range of the engine, where it can be. */
static uint64_t memory_make(struct scene *s, bool minor)
{
    size_t first = (size_t)s->blocks[0].size, last = s->bytes - first;
    bool huge = s->page_size == HUGE;
    if (minor) {
        s->file = memfd_create("ibx-test", MFD_CLOEXEC);
        assert_int_equal(ftruncate(s->file, (off_t)s->bytes), 0);
        s->alias = map_memory(s->bytes, MAP_SHARED, s->file, 0);
        s->memory = map_memory(s->bytes, MAP_SHARED, s->file, 0);
    } else {
        s->memory = map_memory(s->bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(s->memory, s->bytes, MADV_NOHUGEPAGE);
    }
    s->last = huge ? map_memory(last, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0)
                   : s->memory + first;
    return minor ? UFFD_FEATURE_MINOR_SHMEM : huge ? UFFD_FEATURE_MISSING_HUGETLBFS : 0;
}

static void ranges_make(struct scene *s)
{
    bool one = !s->alias && s->page_size == SMALL;
    size_t first = (size_t)s->blocks[0].size;
    s->ranges[0] = (struct ibx_fault_range){.start = (uintptr_t)s->memory,
                                            .length = one ? s->bytes : first,
                                            .page_size = SMALL,
                                            .alias = s->alias};
    s->ranges[1] = (struct ibx_fault_range){.start = (uintptr_t)s->last,
                                            .length = s->bytes - first,
                                            .page_size = s->page_size,
                                            .first_page = FIRST_PAGES,
                                            .reader_offset = first,
                                            .alias = s->alias ? s->alias + first : NULL};
    s->config = (struct ibx_fault_config){.uffd = s->uffd,
                                          .ranges = s->ranges,
                                          .range_count = one ? 1 : 2,
                                          .readers = s->as,
                                          .worker_count = s->links,
                                          .chunk_max = 256u << 10};
}

void scene_arm(struct scene *s)
{
    struct ibx_error err = {0};
    size_t bytes = ibx_fault_buffer_bytes(&s->config);
    void *aliases[BLOCKS] = {s->alias, s->alias ? s->alias + s->blocks[0].size : NULL};
    for (unsigned i = 0; i < s->links; i++)
        if (ibx_page_reader_arm(s->readers[i], bytes, &s->as[i], &err) ||
            ibx_page_reader_aliases(s->readers[i], i ? s->readers[0] : NULL, aliases, &err) ||
            ibx_page_reader_covers(s->readers[i], &s->map, &err))
            fail_msg("%s", err.message);
}

static int zero_mark(void *context, uint64_t first, uint64_t count, bool data)
{
    struct scene *s = context;
    return data ? 0 : ibx_fault_mark_zero(s->engine, first, count);
}

void scene_fill(struct scene *s, bool minor)
{
    struct ibx_error err = {0};
    uint64_t features = memory_make(s, minor);
    if (ibx_fault_uffd_open(features, &s->uffd, &err))
        fail_msg("%s", err.message);
    ranges_make(s);
    for (unsigned i = 0; i < s->config.range_count; i++)
        if (ibx_fault_register(s->uffd, &s->ranges[i], &err))
            fail_msg("%s", err.message);
    scene_arm(s);
    if (ibx_fault_create(&s->config, &s->engine, &err))
        fail_msg("%s", err.message);
    assert_int_equal(ibx_page_map_runs(&s->map, zero_mark, s), 0);
}

void scene_end(struct scene *s)
{
    ibx_fault_destroy(s->engine);
    scene_disconnect(s);
    ibx_listener_close(s->listener);
    if (s->uffd >= 0)
        close(s->uffd);
    if (s->last && s->page_size == HUGE)
        munmap(s->last, s->bytes - s->blocks[0].size);
    if (s->memory)
        munmap(s->memory, s->bytes);
    if (s->alias)
        munmap(s->alias, s->bytes);
    if (s->file >= 0)
        close(s->file);
    for (unsigned i = 0; i < BLOCKS; i++)
        close(s->blocks[i].fd);
    ibx_page_map_fini(&s->map);
}

enum ibx_fault_state scene_settled(struct scene *s)
{
    struct pollfd fd = {.fd = ibx_fault_event_fd(s->engine), .events = POLLIN};
    uint64_t n;
    if (poll(&fd, 1, (int)PATIENCE_MS) == 1 && read(fd.fd, &n, sizeof(n)) < 0)
        return IBX_FAULT_HELD;
    return ibx_fault_state(s->engine);
}

static bool figure_reaches(struct scene *s, size_t figure, uint64_t value)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS), now = 0;
    while (now < value && ibx_now_ns() < deadline) {
        struct ibx_fault_stats stats;
        ibx_fault_stats(s->engine, &stats);
        memcpy(&now, (char *)&stats + figure, sizeof(now));
        sched_yield();
    }
    return now >= value;
}

bool scene_fetched(struct scene *s, uint64_t bytes)
{
    return figure_reaches(s, offsetof(struct ibx_fault_stats, bytes), bytes);
}

bool scene_waits(struct scene *s, uint64_t faults)
{
    return figure_reaches(s, offsetof(struct ibx_fault_stats, waiting), faults);
}

/* ------------------------------------------------------------------ touching */

bool bytes_right(const struct scene *s, uint64_t page, const uint8_t *bytes)
{
    bool data = ibx_page_map_data(&s->map, page), right = true;
    for (uint32_t i = 0; i < size_of(s, page) && right; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        right = word == (data ? word_of(page, i) : 0);
    }
    return right;
}

static bool page_right(const struct scene *s, uint64_t page)
{
    return bytes_right(s, page, (page < FIRST_PAGES ? s->memory : s->last) + place_of(s, page));
}

/* All data, and some of the zeros. */
static bool is_looked_at(const struct scene *s, uint64_t page)
{
    return ibx_page_map_data(&s->map, page) || page % 32 == 0;
}

/* Steps of a prime number visit all pages. */
static void *touch(void *arg)
{
    struct toucher *t = arg;
    const struct scene *s = t->scene;
    for (uint64_t i = 0; i < s->map.pages; i++) {
        uint64_t page = (t->start + i * t->step) % s->map.pages;
        if (!is_looked_at(s, page))
            continue;
        atomic_fetch_add(&t->wrong, !page_right(s, page));
        atomic_fetch_add(&t->touched, 1);
    }
    return NULL;
}

void touchers_start(struct toucher *t, const struct scene *s)
{
    static const uint64_t primes[TOUCHERS] = {1009, 1013, 1019};
    for (unsigned i = 0; i < TOUCHERS; i++) {
        t[i] = (struct toucher){.scene = s, .start = 100 + i * 3 * STRETCH / 2, .step = primes[i]};
        assert_int_equal(pthread_create(&t[i].thread, NULL, touch, &t[i]), 0);
    }
}

void touchers_end(struct toucher *t)
{
    for (unsigned i = 0; i < TOUCHERS; i++) {
        pthread_join(t[i].thread, NULL);
        assert_int_equal(t[i].wrong, 0);
        assert_true(t[i].touched > 0);
    }
}

void scene_check(const struct scene *s)
{
    for (uint64_t page = 0; page < s->map.pages; page++)
        if (is_looked_at(s, page) && !page_right(s, page))
            fail_msg("page %llu is wrong", (unsigned long long)page);
}
