/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `ib-migrate receive` with a hostile source: the test process is the source and sends something
 * wrong in each state. Both sides have real QEMUs. Afterwards the guest is alive and unharmed at
 * the source, and the destination's QEMU has never run. */
#include "migrate/pages/pages.h"
#include "migrate/preflight/preflight.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/line.h"
#include "tests/fixtures/mover.h"
#include "tests/fixtures/thread_state.h"

#include "common/clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#define LISTEN    "tcp://127.0.0.1:0?timeout_ms=10000"
#define STATE_MAX (16u << 20)

static struct ibx_options options;

static void use_key(const char *name)
{
    snprintf(options.name, sizeof(options.name), "%s", name);
}

static void start_source(void)
{
    ibx_options_init(&options);
    options.message = IBX_MIGRATE_MESSAGE;
    pair_start_source();
    snprintf(options.key_file, sizeof(options.key_file), "%s/keys", mover_folder);
    int fd = open(options.key_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && dprintf(fd, "alice:%032d\nmallory:%032d\n", 1, 2) > 0);
    close(fd);
    use_key("alice");
}

struct liar {
    struct line control, page;
    struct ibx_guest_ram ram;
    void *memory; /* the source's RAM, which the destination READs */
    struct ibx_migrate_hello hello;
    struct ibx_page_map map;
    uint64_t pages;
};

static struct liar liar;
static uint8_t *real_state; /* the complete state of the source's QEMU */
static size_t real_length;

static void serve_pages(void)
{
    if (liar.page.control.conn && !liar.page.ended)
        liar.page.ended = ibx_channel_take(&liar.page.control, line_note, &liar.page, NULL);
}

static void begin_line(struct line *line, const struct ibx_migrate_any *first)
{
    struct ibx_conn *conn;
    *line = (struct line){0};
    vm_soon();
    snprintf(options.purpose, sizeof(options.purpose), IBX_MIGRATE_PURPOSE);
    vm_ok(ibx_connect(receiver.uri, &options, &conn, &vm_error));
    ibx_channel_init(&line->control, conn);
    line_send(line, first);
}

static void send_hello(struct line *line, enum ibx_migrate_purpose purpose, uint8_t id,
                       uint64_t epoch)
{
    struct ibx_migrate_hello hello = liar.hello;
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = &hello};
    hello.purpose = (uint8_t)purpose;
    hello.id[0] = id;
    hello.epoch = epoch;
    begin_line(line, &message);
}

static void send_join(struct line *line, uint8_t id, uint64_t epoch, uint16_t number)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_JOIN};
    memcpy(message.is.join.id, liar.hello.id, sizeof(liar.hello.id));
    message.is.join.id[0] = id;
    message.is.join.epoch = epoch;
    message.is.join.link = number;
    begin_line(line, &message);
}

/* Takes the answer, which refuses with this state. */
static void refused_by(struct line *line, enum ibx_answer_state state)
{
    assert_false(line->last.is.answer->accepted);
    assert_int_equal(line->last.is.answer->state, state);
    line_close(line);
}

/* Expects a refusal with this state. */
static void refused(struct line *line, enum ibx_answer_state state)
{
    assert_true(line_receives(line, IBX_MIGRATE_ANSWER));
    refused_by(line, state);
}

/* Waits until the destination ends the connection. */
static void line_ends(struct line *line)
{
    line_closes(line);
    line_close(line);
}

static void to_joining(void)
{
    send_hello(&liar.control, IBX_PURPOSE_MOVE, 1, 1);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_ANSWER));
    assert_true(liar.control.last.is.answer->accepted);
}

static void to_ready(void)
{
    to_joining();
    send_join(&liar.page, 1, 1, 0);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_READY));
}

/* The whole page map, in messages of this type. */
static void send_page_map(enum ibx_migrate_message type)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    uint64_t from = 0;
    size_t length;
    while ((length = ibx_page_map_encode(&liar.map, &from, bytes, sizeof(bytes) - 1)) > 0)
        line_send_bytes(&liar.control, type, bytes, length);
}

static void send_map(uint64_t data_pages, uint32_t regions)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_MAP_END};
    send_page_map(IBX_MIGRATE_MAP);
    message.is.map_end.pages = liar.map.pages;
    message.is.map_end.data_pages = data_pages;
    message.is.map_end.regions = regions;
    ibx_page_map_hash(&liar.map, message.is.map_end.hash);
    line_send(&liar.control, &message);
}

/* Exposes all of the source's RAM correctly, because devices access it when they are loaded. */
static void send_whole_map(void)
{
    const struct ibx_guest_block *block = &liar.ram.blocks[0];
    uint64_t written, *bits = calloc((size_t)(liar.pages + 63) / 64, 8);
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    struct ibx_mr *mr;
    assert_non_null(bits);
    vm_ok(ibx_guest_block_written(&liar.ram, block, bits, &written, &vm_error));
    ibx_page_map_put_block(&liar.map, 0, bits);
    free(bits);
    liar.memory = mmap(NULL, block->size, PROT_READ, MAP_SHARED, block->fd, (off_t)block->offset);
    assert_true(liar.memory != MAP_FAILED);
    struct ibx_span span = ibx_span_host(liar.memory, block->size);
    vm_ok(ibx_mr_register(liar.page.control.conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &vm_error));
    message.is.region.length = block->size;
    vm_ok(ibx_mr_remote(mr, 0, block->size, &message.is.region.remote));
    line_send(&liar.page, &message);
    send_map(liar.map.data_pages, 1);
}

static void send_region(uint64_t offset, uint64_t length)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_REGION};
    message.is.region.offset = offset;
    message.is.region.length = length;
    message.is.region.remote.address = 1 << 20;
    message.is.region.remote.length = length;
    line_send(&liar.page, &message);
}

static void one_page_has_data(void)
{
    uint64_t *bits = calloc((size_t)(liar.pages + 63) / 64, 8);
    assert_non_null(bits);
    bits[0] = 1 << 7;
    ibx_page_map_put_block(&liar.map, 0, bits);
    free(bits);
}

/* Closes everything that the test has open. */
static void liar_ends(void)
{
    line_close(&liar.control);
    line_close(&liar.page);
    if (liar.memory)
        munmap(liar.memory, liar.ram.bytes);
    liar.memory = NULL;
}

/* Sends QEMU's real state up to its end. */
static void to_loaded(void)
{
    to_ready();
    send_whole_map();
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, real_state, real_length);
    line_send_state_end(&liar.control, real_length);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_LOADED));
}

static void lie_commit_early(void)
{
    line_send_epoch(&liar.control, IBX_MIGRATE_COMMIT, 1);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_ABORT));
}

static void lie_state_early(void)
{
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, "QEVM", 4);
}

static void lie_confirm_early(void)
{
    line_send_epoch(&liar.control, IBX_MIGRATE_CONFIRM, 1);
}

static void lie_map_garbage(void)
{
    line_send_bytes(&liar.control, IBX_MIGRATE_MAP, "\0\0\0\0\0\0\0\0\377garbage", 16);
}

static void lie_map_sum(void)
{
    send_map(5, 0);
}

static void lie_region_outside(void)
{
    send_region((uint64_t)VM_RAM_MIB << 20, 4096);
}

static void lie_regions_overlap(void)
{
    send_region(0, 8192);
    send_region(4096, 8192);
    send_map(0, 2);
}

static void lie_not_exposed(void)
{
    one_page_has_data();
    send_region(0, 4096);
    send_map(1, 1);
}

static void to_rounds(void)
{
    liar.hello.warm = true;
    to_ready();
    assert_true(liar.control.answer.warm);
}

/* Sends a round that was not requested. */
static void lie_round(void)
{
    line_send_bytes(&liar.control, IBX_MIGRATE_ROUND, "\0\0\0\0\0\0\0\0\0", 9);
}

/* Does not name the pages that were written last before the stop. */
static void lie_map_without_its_round(void)
{
    send_map(0, 0);
}

static void lie_garbage_state(void)
{
    send_map(0, 0);
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, "this is no QEMU's device state, is it?", 38);
}

/* Sends half of the state and calls it complete. */
static void lie_truncated_state(void)
{
    send_map(0, 0);
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, real_state, real_length / 2);
    line_send_state_end(&liar.control, real_length / 2);
    line_closes(&liar.control);
    assert_false(liar.control.received & 1u << IBX_MIGRATE_LOADED);
}

/* The position of EOF in the real state; its description follows. */
static size_t real_eof(void)
{
    for (size_t at = real_length - 7; at; at--)
        if (!real_state[at] && real_state[at + 1] == 6 && real_state[at + 6] == '{')
            return at;
    fail_msg("the device state has no end");
    return 0;
}

/* The last section before the end is wrong, which must be found before LOADED. */
static void lie_last_section(void)
{
    uint8_t *wrong = malloc(real_length);
    size_t at = real_eof();
    assert_non_null(wrong);
    memcpy(wrong, real_state, real_length);
    wrong[at - 1] ^= 0x55; /* the footer of the last section */
    send_whole_map();
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, wrong, real_length);
    line_send_state_end(&liar.control, real_length);
    line_closes(&liar.control);
    free(wrong);
    assert_false(liar.control.received & 1u << IBX_MIGRATE_LOADED);
}

/* Sends EOF where the tool cannot recognize it. QEMU runs, and is stopped at once. */
static void lie_end_in_the_middle(void)
{
    size_t at = real_eof();
    send_whole_map();
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, real_state, at + 1);
    line_send_bytes(&liar.control, IBX_MIGRATE_STATE, "no end", 6);
}

static void offers(struct line *line, enum ibx_migrate_purpose purpose, uint16_t least,
                   uint16_t most, unsigned taken)
{
    liar.hello.links_least = least;
    liar.hello.links = most;
    send_hello(line, purpose, 1, 1);
    assert_true(line_receives(line, IBX_MIGRATE_ANSWER));
    assert_true(line->last.is.answer->accepted);
    assert_int_equal(line->last.is.answer->links, taken);
}

static void nothing(void) {}

/* Offers more links than there are processors for. The destination takes no more than offered,
 * and no more than useful. */
static void lie_more_links_than_taken(void)
{
    const unsigned good = ibx_page_links_default();
    struct line other;
    offers(&other, IBX_PURPOSE_CHECK, 1, 2, 2);
    line_close(&other);
    offers(&other, IBX_PURPOSE_CHECK, 7, 9, 7);
    line_close(&other);
    offers(&liar.control, IBX_PURPOSE_MOVE, 1, IBX_MIGRATE_LINKS_MAX, good);
    send_join(&other, 1, 1, (uint16_t)good);
    line_ends(&other);
}

/* Other sources come while a migration runs; it continues. */
static void lie_others(void)
{
    struct line other;
    send_hello(&other, IBX_PURPOSE_MOVE, 2, 1);
    refused(&other, IBX_ANSWER_NONE);
    send_hello(&other, IBX_PURPOSE_RESUME, 2, 2);
    refused(&other, IBX_ANSWER_NONE);
    send_hello(&other, IBX_PURPOSE_RESUME, 1, 2);
    refused(&other, IBX_ANSWER_NONE);
    send_join(&other, 2, 1, 0);
    line_ends(&other);
    send_join(&other, 1, 7, 0);
    line_ends(&other);
    send_join(&liar.page, 1, 1, 0);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_READY));
    send_join(&other, 1, 1, 0);
    line_ends(&other);
    line_send(&liar.control,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "enough"});
}

/* Everything is correct until the commit, which has another epoch. */
static void lie_epochs(void)
{
    struct line other;
    line_send_epoch(&liar.control, IBX_MIGRATE_COMMIT, 2);
    line_closes(&liar.control);
    liar_ends();
    mover_await_words(&receiver, "has not run here");
    send_hello(&other, IBX_PURPOSE_RESUME, 1, 1);
    refused(&other, IBX_ANSWER_WAITING);
    liar.hello.links_least = liar.hello.links = 2;
    send_hello(&other, IBX_PURPOSE_RESUME, 1, 5);
    refused(&other, IBX_ANSWER_WAITING);
    liar.hello.links_least = 1;
    send_hello(&other, IBX_PURPOSE_RESUME, 1, 5);
    assert_true(line_receives(&other, IBX_MIGRATE_ANSWER));
    assert_true(other.last.is.answer->accepted);
    line_send(&other,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "it stays"});
    line_ends(&other);
}

/* A peer with another key of the file that knows the migration's number. */
static void lie_join_by_another_key(void)
{
    struct line other;
    use_key("mallory");
    send_join(&other, 1, 1, 0);
    use_key("alice");
    line_ends(&other);
    send_join(&liar.page, 1, 1, 0);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_READY));
}

static void lie_by_another_key(void)
{
    static const uint8_t purposes[] = {IBX_PURPOSE_RESUME, IBX_PURPOSE_CONFIRM, IBX_PURPOSE_QUERY,
                                       IBX_PURPOSE_CHECK};
    struct line other;
    use_key("mallory");
    for (unsigned i = 0; i < sizeof(purposes); i++) {
        send_hello(&other, purposes[i], 1, 5);
        assert_true(line_receives(&other, IBX_MIGRATE_ANSWER));
        assert_int_equal(other.last.is.answer->count, 1);
        assert_non_null(strstr(other.last.is.answer->reasons[0],
                               "authenticated with the key \"alice\", and this one does with "
                               "\"mallory\""));
        refused_by(&other, IBX_ANSWER_WAITING);
    }
    use_key("alice"); /* whose link is unchanged */
    line_send(&liar.control,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "it stays"});
}

static void lie_broken_early(void)
{
    line_send(&liar.control,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_BROKEN, .is.reason = "all wrong"});
}

/* Says that the pages there are wrong. The migration ends. */
static void lie_broken(void)
{
    line_send_epoch(&liar.control, IBX_MIGRATE_COMMIT, 1);
    assert_true(line_receives(&liar.control, IBX_MIGRATE_RUNNING));
    lie_broken_early();
}

/* Stops the receiver's main thread, but not its other threads. */
static void hold_main(void)
{
    int status;
    assert_int_equal(ptrace(PTRACE_SEIZE, receiver.pid, 0, 0), 0);
    assert_int_equal(ptrace(PTRACE_INTERRUPT, receiver.pid, 0, 0), 0);
    assert_int_equal(waitpid(receiver.pid, &status, __WALL), receiver.pid);
    assert_true(WIFSTOPPED(status));
}

/* A thread of its own notices the end of a page connection, before the ABORT. */
static void lie_abort_behind_the_end(void)
{
    const uint64_t deadline = vm_soon();
    hold_main();
    line_send_plain(&liar.page, IBX_MIGRATE_READY);
    line_closes(&liar.page);
    int asleep = 0;
    for (; asleep < 3; asleep = threads_are(receiver.pid, 'S', receiver.pid) ? asleep + 1 : 0) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, (int)patience_ms(1)); /* the data may not have arrived yet */
    }
    line_send(&liar.control,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "it stays"});
    assert_int_equal(ptrace(PTRACE_DETACH, receiver.pid, 0, 0), 0);
}

static void send_page(uint64_t page)
{
    static const uint8_t bytes[4096];
    line_send(&liar.control, &(struct ibx_migrate_any){.type = IBX_MIGRATE_PAGES,
                                                       .is.pages = {page, {bytes, sizeof(bytes)}}});
}

/* A peer with a malformed description is refused, and the next source is served. */
static void lie_garbage_description(void)
{
    static const uint8_t purposes[] = {IBX_PURPOSE_CHECK, IBX_PURPOSE_MOVE};
    for (size_t i = 0; i < sizeof(purposes); i++) {
        struct line other;
        liar.hello.description_length = 3;
        send_hello(&other, purposes[i], 7, 1);
        line_send_bytes(&other, IBX_MIGRATE_DESCRIPTION, "[1]", 3);
        refused(&other, IBX_ANSWER_NONE);
    }
    liar.hello.description_length = 0;
    to_joining();
}

static void lie_pages_early(void)
{
    send_page(0);
}

static void lie_pages_without_data(void)
{
    uint64_t hole = 0;
    send_whole_map();
    while (ibx_page_map_data(&liar.map, hole))
        hole++;
    send_page(hole);
}

/* Sends one page again and again. */
static void lie_pages_without_end(void)
{
    uint64_t page = 0;
    send_whole_map();
    while (!ibx_page_map_data(&liar.map, page))
        page++;
    for (unsigned i = 0; i <= IBX_EARLY_PAGES; i++)
        send_page(page);
}

/* Leaves out the first round. */
static void lie_number_of_a_round(void)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ROUND_END};
    send_page_map(IBX_MIGRATE_ROUND);
    message.is.round = (struct ibx_migrate_round){.number = 2, .kind = IBX_ROUND_FETCH};
    line_send(&liar.control, &message);
}

/* While COMMIT is in flight, rollback is told that the VM does not run here. That answer must
 * stay true. */
static void lie_query_beside_the_commit(void)
{
    const uint64_t deadline = vm_soon();
    struct line other;
    hold_main();
    send_hello(&other, IBX_PURPOSE_QUERY, 1, 1);
    line_send_epoch(&liar.control, IBX_MIGRATE_COMMIT, 1);
    int asleep = 0;
    for (; asleep < 3; asleep = threads_are(receiver.pid, 'S', receiver.pid) ? asleep + 1 : 0) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, (int)patience_ms(1)); /* the data may not have arrived yet */
    }
    assert_int_equal(ptrace(PTRACE_DETACH, receiver.pid, 0, 0), 0);
    assert_true(line_receives(&other, IBX_MIGRATE_ANSWER));
    assert_true(other.last.is.answer->accepted);
    assert_int_equal(other.last.is.answer->state, IBX_ANSWER_WAITING);
    line_close(&other);
    line_closes(&liar.control);
    liar_ends();
    send_hello(&other, IBX_PURPOSE_RESUME, 1, 5);
    assert_true(line_receives(&other, IBX_MIGRATE_ANSWER));
    assert_int_equal(other.last.is.answer->state, IBX_ANSWER_WAITING);
    line_send(&other,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "it stays"});
    line_ends(&other);
}

/* Everything is correct until `after`. */
static const struct lie {
    const char *name;
    void (*after)(void);
    void (*tell)(void); /* NULL: closes */
    const char *words;  /* what `receive` prints at its end */
    bool closes;        /* the destination then ends the control connection */
    bool runs;          /* its QEMU runs for a moment */
} lies[] = {
    {"COMMIT before LOADED", to_joining, lie_commit_early, "COMMIT while", false, false},
    {"STATE before READY", to_joining, lie_state_early, "STATE while", true, false},
    {"CONFIRM early", to_ready, lie_confirm_early, "CONFIRM while", true, false},
    {"MAP of garbage", to_ready, lie_map_garbage, "page map", true, false},
    {"MAP_END does not add up", to_ready, lie_map_sum, "does not add up", true, false},
    {"a region outside", to_ready, lie_region_outside, "lies outside", true, false},
    {"regions overlap", to_ready, lie_regions_overlap, "in two regions", true, false},
    {"data that is not exposed", to_ready, lie_not_exposed, "does not expose it", true, false},
    {"a round", to_ready, lie_round, "sent ROUND while", true, false},
    {"a map without its round", to_rounds, lie_map_without_its_round, "sent MAP_END while", true,
     false},
    {"a description of garbage", nothing, lie_garbage_description, "lost", false, false},
    {"PAGES without a map", to_ready, lie_pages_early, "sent PAGES while", true, false},
    {"PAGES without data", to_ready, lie_pages_without_data, "has no data for it", true, false},
    {"PAGES without end", to_ready, lie_pages_without_end, "at most 0 more pages", true, false},
    {"a round is left out", to_rounds, lie_number_of_a_round, "round 2 does not add up", true,
     false},
    {"garbage for QEMU", to_ready, lie_garbage_state, "QEMU", true, false},
    {"half a state", to_ready, lie_truncated_state, "device state", false, false},
    {"a wrong last section", to_ready, lie_last_section, "QEMU", false, false},
    {"an end in the middle", to_ready, lie_end_in_the_middle, "ran before the commit", true, true},
    {"more links than taken", nothing, lie_more_links_than_taken, "lost", false, false},
    {"closes in JOINING", to_joining, NULL, "lost", false, false},
    {"closes when READY", to_ready, NULL, "lost", false, false},
    {"others", to_joining, lie_others, "enough", true, false},
    {"JOIN by another key", to_joining, lie_join_by_another_key, "lost", false, false},
    {"HELLO by another key", to_loaded, lie_by_another_key, "it stays", false, false},
    {"epochs", to_loaded, lie_epochs, "it stays", false, false},
    {"ABORT behind the end", to_loaded, lie_abort_behind_the_end, "it stays", true, false},
    {"BROKEN early", to_ready, lie_broken_early, "sent BROKEN while", true, false},
    {"BROKEN", to_loaded, lie_broken, "is broken: all wrong", true, true},
    {"a query beside the commit", to_loaded, lie_query_beside_the_commit, "it stays", false, false},
};

static void take_real_state(void)
{
    struct ibx_vm_undo vm = {.was_running = true, .touched = true};
    int stream, theirs;
    uint64_t deadline = vm_soon();
    real_state = malloc(STATE_MAX);
    real_length = 0;
    assert_non_null(real_state);
    struct ibx_settings settings;
    vm_ok(ibx_settings_plan(vms[0].qmp, &settings, deadline, &vm_error));
    vm_ok(ibx_settings_set(vms[0].qmp, &settings, deadline, &vm_error));
    vm.before = json_incref(settings.before);
    ibx_settings_fini(&settings);
    vm_ok(ibx_vm_stream(&stream, &theirs, &vm_error));
    vm_ok(ibx_vm_migrate(vms[0].qmp, false, theirs, deadline, &vm_error));
    close(theirs);
    for (ssize_t n = -1; n && ibx_now_ns() < deadline;) {
        struct pollfd wait = {.fd = stream, .events = POLLIN};
        poll(&wait, 1, 100);
        while ((n = read(stream, real_state + real_length, STATE_MAX - real_length)) > 0)
            real_length += (size_t)n;
    }
    close(stream);
    vm_ok(ibx_vm_stay(vms[0].qmp, &vm, vm_soon(), &vm_error));
}

static void describe(void)
{
    memset(&liar, 0, sizeof(liar));
    vm_ok(ibx_guest_ram_find(vms[0].qmp, false, &liar.ram, vm_soon(), &vm_error));
    liar.hello.links_least = liar.hello.links = 1;
    liar.hello.verify = true;
    ibx_migrate_hello_describe(&liar.hello, &liar.ram);
    liar.pages = liar.ram.bytes / 4096;
    vm_ok(ibx_page_map_init(&liar.map, liar.hello.blocks, liar.hello.block_count, &vm_error));
}

/* The destination's QEMU has not run; or, where that cannot be prevented, it was stopped. */
static void lie_came_to_nothing(const struct lie *lie)
{
    struct ibx_error silent;
    json_t *status;
    if (!lie->runs) {
        assert_false(mover_resumed(&vms[1]));
        assert_int_equal(vm_beats(&vms[1]), 0);
    } else if (!ibx_qmp_execute(vms[1].qmp, "query-status", NULL, &status, vm_soon(), &silent)) {
        assert_false(json_is_true(json_object_get(status, "running")));
        json_decref(status);
    }
}

static void test_sources_that_lie(void)
{
    start_source();
    take_real_state();
    for (unsigned i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        print_message("%s\n", lies[i].name);
        describe();
        liar.hello.id[1] = (uint8_t)i; /* a migration's id is used once */
        /* A guest whose RAM is all zeros soon fails, and QEMU must not end with it. */
        vm_start(&vms[1],
                 &(struct vm_options){.append = "", .incoming = true, .extra = {"-no-shutdown"}});
        mover_receive(&receiver, &vms[1], LISTEN,
                      (const char *[]){"--key-file", options.key_file, NULL});
        lies[i].after();
        if (lies[i].tell)
            lies[i].tell();
        if (lies[i].closes)
            line_closes(&liar.control);
        liar_ends();
        mover_ends(&receiver, 1);
        mover_must_print(&receiver, lies[i].words);
        lie_came_to_nothing(&lies[i]);
        ibx_page_map_fini(&liar.map);
        ibx_guest_ram_fini(&liar.ram);
        vm_end(&vms[1]);
    }
    free(real_state);
    pair_runs_at_the_source();
}

int main(void)
{
    line_meanwhile = serve_pages;
    static const struct vm_test tests[] = {VM_TEST(test_sources_that_lie), {0}};
    return vm_tests(tests, mover_end_all);
}
