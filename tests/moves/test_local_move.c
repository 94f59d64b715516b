/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A running VM moved between two QEMUs of this host by post-copy, with memcpy as the wire: the
 * order of steps, the RAM found, the userfaultfd and the capabilities as the product uses them. One
 * thread does it all, with poll. The guest's heartbeats, joined, must be those that were computed
 * natively.
 */
#include "migrate/qemu/qemu.h"
#include "migrate/preflight/preflight.h"
#include "tests/moves/guest/churn.h"
#include "tests/scenes/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MOVES        3
#define PREFETCH     16 /* pages between two looks at the faults */
#define FAULTS_FIRST 50 /* before the prefetch begins */
#define PAGES_UNSEEN UINT64_MAX

struct move {
    struct vm *from, *to;
    struct ibx_guest_ram source, destination;
    const struct ibx_guest_block *source_block, *block;
    struct ibx_uffd uffd;
    const uint8_t *pages; /* of the source */
    uint64_t *written, *present;
    uint64_t count, done, next; /* pages; `next` is the prefetch's */
    uint64_t faults;
    uint64_t poison; /* page that arrives with one wrong bit; PAGES_UNSEEN: none */
    bool open;       /* faults are served */
    int64_t stop_us, resume_us;
};

static struct vm vms[MOVES + 1];

/* ------------------------------------------------------------ pages */

static bool bit(const uint64_t *bits, uint64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

static void place_copy(const struct move *m, uint64_t at, const uint8_t *page)
{
    struct uffdio_copy copy = {.dst = m->block->address + at * m->block->page_size,
                               .src = (uintptr_t)page,
                               .len = m->block->page_size};
    while (ioctl(m->uffd.fd, UFFDIO_COPY, &copy)) {
        assert_int_equal(errno, EAGAIN);
        copy.copy = 0;
    }
}

static void place_zeros(const struct move *m, uint64_t at)
{
    struct uffdio_zeropage zero = {
        .range = {m->block->address + at * m->block->page_size, m->block->page_size}};
    while (ioctl(m->uffd.fd, UFFDIO_ZEROPAGE, &zero)) {
        assert_int_equal(errno, EAGAIN);
        zero.zeropage = 0;
    }
}

static void place(struct move *m, uint64_t at)
{
    assert_true(at < m->count);
    if (bit(m->present, at))
        return;
    uint8_t page[4096];
    if (bit(m->written, at)) {
        memcpy(page, m->pages + at * sizeof(page), sizeof(page));
        page[17] = (uint8_t)(page[17] ^ (at == m->poison ? 4 : 0));
        place_copy(m, at, page);
    } else {
        place_zeros(m, at);
    }
    m->present[at / 64] |= 1ull << (at % 64);
    m->done++;
}

static void serve_faults(struct move *m)
{
    struct uffd_msg messages[16];
    ssize_t n = read(m->uffd.fd, messages, sizeof(messages));
    for (ssize_t i = 0; i < n / (ssize_t)sizeof(messages[0]); i++) {
        assert_int_equal(messages[i].event, UFFD_EVENT_PAGEFAULT);
        uint64_t at = messages[i].arg.pagefault.address - m->block->address;
        m->faults++;
        place(m, at / m->block->page_size);
    }
}

/* ------------------------------------------------------------ events */

static int64_t time_of(json_t *event)
{
    json_int_t seconds = 0, micro = 0;
    json_unpack(event, "{s:{s:I,s:I}}", "timestamp", "seconds", &seconds, "microseconds", &micro);
    return seconds * 1000000 + micro;
}

/* The source is quiet: what it holds is final, and the destination may have it. */
static void begin(struct move *m)
{
    uint64_t written;
    vm_ok(ibx_guest_block_written(&m->source, m->source_block, m->written, &written, &vm_error));
    m->open = true;
}

static void take_events(struct move *m)
{
    json_t *event;
    vm_ok(ibx_qmp_pump(m->from->qmp, &vm_error));
    while ((event = ibx_qmp_event_next(m->from->qmp))) {
        assert_false(vm_is_event(event, "MIGRATION", "failed"));
        if (vm_is_event(event, "STOP", NULL))
            m->stop_us = time_of(event);
        if (m->stop_us && !m->open && vm_is_event(event, "MIGRATION_PASS", NULL))
            begin(m);
        json_decref(event);
    }
    vm_ok(ibx_qmp_pump(m->to->qmp, &vm_error));
    while ((event = ibx_qmp_event_next(m->to->qmp))) {
        assert_false(vm_is_event(event, "MIGRATION", "failed"));
        if (vm_is_event(event, "RESUME", NULL))
            m->resume_us = time_of(event);
        json_decref(event);
    }
}

/* ------------------------------------------------------------ the move */

static void check_sides(struct move *m)
{
    struct ibx_blockers refusals = {0};
    vm_ok(ibx_guest_ram_find(m->from->qmp, 0, false, &m->source, vm_soon(), &vm_error));
    vm_ok(ibx_guest_ram_find(m->to->qmp, 0, true, &m->destination, vm_soon(), &vm_error));
    vm_ok(ibx_preflight_side(m->from->qmp, &m->source, IBX_MIGRATE_SOURCE, &refusals, vm_soon(),
                             &vm_error));
    vm_ok(ibx_preflight_side(m->to->qmp, &m->destination, IBX_MIGRATE_DESTINATION, &refusals,
                             vm_soon(), &vm_error));
    ibx_preflight_pair(&m->source, &m->destination, &refusals);
    if (refusals.count)
        fail_msg("%s", refusals.reasons[0]);
}

static void watch_block(struct move *m)
{
    m->source_block = &m->source.blocks[0];
    m->block = &m->destination.blocks[0];
    m->count = m->block->size / m->block->page_size;
    m->written = calloc((size_t)(m->count + 63) / 64, sizeof(uint64_t));
    m->present = calloc((size_t)(m->count + 63) / 64, sizeof(uint64_t));
    m->pages = mmap(NULL, (size_t)m->block->size, PROT_READ, MAP_SHARED, m->source_block->fd,
                    (off_t)m->source_block->offset);
    assert_true(m->pages != MAP_FAILED);
    struct uffdio_api api = {.api = UFFD_API};
    assert_int_equal(ioctl(m->uffd.fd, UFFDIO_API, &api), 0);
    assert_int_equal(fallocate(m->block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               (off_t)m->block->offset, (off_t)m->block->size),
                     0);
    struct uffdio_register range = {.range = {m->block->address, m->block->size},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(ioctl(m->uffd.fd, UFFDIO_REGISTER, &range), 0);
}

static void start_migration(struct move *m)
{
    json_t *before;
    char uri[128];
    vm_ok(ibx_capabilities_set(m->from->qmp, &before, vm_soon(), &vm_error));
    json_decref(before);
    vm_ok(ibx_capabilities_set(m->to->qmp, &before, vm_soon(), &vm_error));
    json_decref(before);
    snprintf(uri, sizeof(uri), "unix:%s.state", m->to->socket);
    vm_do(m->to, "migrate-incoming", json_pack("{s:s}", "uri", uri));
    vm_do(m->from, "migrate", json_pack("{s:s}", "uri", uri));
}

/* Serves until `pages` are there and the destination runs. The prefetch waits for faults of the
 * running guest: on a loaded machine it would be done before the first. */
static void transfer(struct move *m, uint64_t pages)
{
    uint64_t deadline = vm_soon();
    while (m->done < pages || !m->resume_us) {
        const bool busy = m->resume_us && m->faults >= FAULTS_FIRST && m->done < pages;
        struct pollfd fds[3] = {{.fd = ibx_qmp_fd(m->from->qmp), .events = POLLIN},
                                {.fd = ibx_qmp_fd(m->to->qmp), .events = POLLIN},
                                {.fd = m->open ? m->uffd.fd : -1, .events = POLLIN}};
        assert_true(poll(fds, 3, busy ? 0 : ibx_ms_until(deadline)) >= 0);
        if (ibx_now_ns() >= deadline)
            fail_msg("%s after %lu pages", m->resume_us ? "stuck" : "not resumed",
                     (unsigned long)m->done);
        take_events(m);
        if (m->open)
            serve_faults(m);
        for (unsigned i = 0; i < PREFETCH && busy && m->next < m->count && m->done < pages; i++)
            place(m, m->next++);
    }
}

static void prepare(struct move *m, struct vm *from, struct vm *to)
{
    *m = (struct move){.from = from, .to = to, .poison = PAGES_UNSEEN};
    check_sides(m);
    vm_ok(ibx_uffd_make(m->destination.pid, to->qmp, IBX_UFFD_ANY, &m->uffd, vm_soon(), &vm_error));
    watch_block(m);
    start_migration(m);
}

static void release(struct move *m)
{
    munmap((void *)(uintptr_t)m->pages, (size_t)m->block->size);
    free(m->written);
    free(m->present);
    ibx_guest_ram_fini(&m->source);
    ibx_guest_ram_fini(&m->destination);
}

static void finish(struct move *m)
{
    struct uffdio_range range = {m->block->address, m->block->size};
    assert_int_equal(m->done, m->count);
    assert_int_equal(ioctl(m->uffd.fd, UFFDIO_UNREGISTER, &range), 0);
    vm_ok(ibx_uffd_close_in_qemu(&m->uffd, vm_soon(), &vm_error));
    print_message("STOP to RESUME %.1f ms, %lu faults, QEMU stood still %.3f ms at the close\n",
                  (double)(m->resume_us - m->stop_us) / 1e3, (unsigned long)m->faults,
                  (double)m->uffd.stopped_ns / 1e6);
    assert_true(m->faults >= FAULTS_FIRST);
    release(m);
}

/* ------------------------------------------------------------ tests */

static void heartbeats(const struct vm *const *of, const char *options, bool right)
{
    char said[256];
    int rc = vm_expect(of, options, said, sizeof(said));
    if (rc != (right ? 0 : 1))
        fail_msg("expect: %d %s", rc, said);
}

/* Starts a VM and its destination, and moves it when it has run a while. */
static void moved(const struct vm_options *like, uint64_t poison)
{
    struct vm_options options = *like;
    struct move m;
    vm_start(&vms[0], &options);
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], 40);
    prepare(&m, &vms[0], &vms[1]);
    m.poison = poison;
    transfer(&m, m.count);
    finish(&m);
    vm_wait_beats(&vms[1], 80);
    assert_true(vm_beats(&vms[1]) >= 80);
    heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, like->append, poison == PAGES_UNSEEN);
    vm_end(&vms[0]);
    vm_end(&vms[1]);
}

static void test_q35(void **state)
{
    (void)state;
    moved(&(struct vm_options){.append = "mib=32"}, PAGES_UNSEEN);
}

static void test_two_vcpus(void **state)
{
    (void)state;
    moved(&(struct vm_options){.machine = "pc", .two = true, .append = "cpus=2"}, PAGES_UNSEEN);
}

static void test_microvm(void **state)
{
    (void)state;
    moved(&(struct vm_options){.machine = "microvm", .append = "beat=64"}, PAGES_UNSEEN);
}

/* From 8.1 on QEMU would send a memfd itself, and it is refused. */
static void test_memfd(void **state)
{
    (void)state;
    const struct vm_options options = {.ram = "memory-backend-memfd,id=mem0,size=64M,share=on",
                                       .append = "beat=64"};
    vm_start(&vms[0], &options);
    if (ibx_qmp_at_least(vms[0].qmp, 8, 1))
        skip();
    vm_end(&vms[0]);
    moved(&options, PAGES_UNSEEN);
}

static void test_sandboxed(void **state)
{
    (void)state;
    if (access("/dev/userfaultfd", R_OK | W_OK))
        skip();
    moved(&(struct vm_options){.nobody = true, .append = "mib=16", .extra = {"-sandbox", "on"}},
          PAGES_UNSEEN);
}

/* The test can fail: one bit of one page, and the heartbeats say so. */
static void test_one_wrong_bit_shows(void **state)
{
    (void)state;
    moved(&(struct vm_options){.append = "mib=16"}, (CHURN_BASE >> 12) + 1234);
}

/* The destination of one move is the source of the next. */
static void test_again_and_again(void **state)
{
    (void)state;
    struct vm_options options = {.two = true, .append = "cpus=2 beat=64"};
    vm_start(&vms[0], &options);
    options.incoming = true;
    for (unsigned i = 0; i < MOVES; i++) {
        struct move m;
        vm_start(&vms[i + 1], &options);
        vm_wait_beats(&vms[i], 20);
        prepare(&m, &vms[i], &vms[i + 1]);
        transfer(&m, m.count);
        finish(&m);
    }
    vm_wait_beats(&vms[MOVES], 200);
    heartbeats((const struct vm *[]){&vms[0], &vms[1], &vms[2], &vms[3], NULL}, options.append,
               true);
}

/* The destination dies with half of the pages: the source goes on from its stop. */
static void test_back_to_the_source(void **state)
{
    (void)state;
    struct vm_options options = {.append = ""};
    struct move m;
    vm_start(&vms[0], &options);
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], 40);
    prepare(&m, &vms[0], &vms[1]);
    transfer(&m, m.count / 2);
    kill(vms[1].pid, SIGKILL);
    waitpid(vms[1].pid, NULL, 0);
    vms[1].pid = 0;
    close(m.uffd.fd);
    release(&m);
    unsigned long before = vm_beats(&vms[0]);
    vm_do(&vms[0], "cont", NULL);
    vm_wait_beats(&vms[0], before + 80);
    heartbeats((const struct vm *[]){&vms[0], NULL}, options.append, true);
}

int main(void)
{
    int skipped = vm_available();
    if (skipped)
        return skipped;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_q35, vm_end_all),
        cmocka_unit_test_teardown(test_two_vcpus, vm_end_all),
        cmocka_unit_test_teardown(test_microvm, vm_end_all),
        cmocka_unit_test_teardown(test_memfd, vm_end_all),
        cmocka_unit_test_teardown(test_sandboxed, vm_end_all),
        cmocka_unit_test_teardown(test_one_wrong_bit_shows, vm_end_all),
        cmocka_unit_test_teardown(test_again_and_again, vm_end_all),
        cmocka_unit_test_teardown(test_back_to_the_source, vm_end_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
