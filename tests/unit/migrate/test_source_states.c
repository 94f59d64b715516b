/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A transition that the source's table refuses changes nothing, above all not where the VM may
 * run. */
#include "tests/fixtures/new_source.h"
#include "tests/fixtures/openssl_memory.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* COMPARED is noted, not sent; and a comparison may be under way. */
static uint64_t told;
static bool is_busy;

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    (void)channel, (void)err;
    assert_int_equal(message->type, IBX_MIGRATE_COMPARED);
    told = message->is.compared;
    return 0;
}

bool __real_ibx_verifier_idle(struct ibx_verifier *v);
bool __wrap_ibx_verifier_idle(struct ibx_verifier *v);
bool __wrap_ibx_verifier_idle(struct ibx_verifier *v)
{
    return !is_busy && __real_ibx_verifier_idle(v);
}

static struct source source;
static const struct ibx_send_options options = {.folder = "/nonexistent"};

/* The record's QEMU does not exist, so a command to continue it would be noticed. */
static void begin(enum source_state first)
{
    is_busy = false;
    new_source(&source, &options);
    assert_int_equal(ibx_source_begin(&source, first), 0);
    source.vm.undo.touched = true;
}

/* A debug build aborts; any other build refuses. */
static void test_refused(NO_STATE)
{
    static const enum source_state from[] = {SOURCE_ASKING, SOURCE_COMMITTED, SOURCE_SERVING};
    static const enum source_state to[] = {SOURCE_COMMITTED, SOURCE_CONFIRMING, SOURCE_KEPT};
    for (unsigned i = 0; i < 3; i++) {
        int status;
        pid_t child = fork();
        if (!child) {
            struct ibx_error err = {0};
            signal(SIGABRT, SIG_DFL);
            begin(from[i]);
            int rc = ibx_source_move(&source, to[i], &err);
            _exit(rc == -EINVAL && err.message[0] && source.state.now == from[i] ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : !WEXITSTATUS(status));
    }
}

static void test_entries(NO_STATE)
{
    static const enum source_state entries[] = {SOURCE_ASKING, SOURCE_COMMITTED, SOURCE_SERVING};
    for (unsigned i = 0; i < 3; i++)
        begin(entries[i]);
    assert_int_equal(source.peer.now, PEER_LOADED);
}

/* The VM runs at the destination. Whatever fails, it is not continued here. */
static void test_never_continued_once_it_runs_there(NO_STATE)
{
    struct ibx_error err = {.message = "something went wrong"};
    begin(SOURCE_SERVING);
    assert_int_equal(ibx_source_keep(&source, -EIO, &err), -EIO);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_true(source.vm.undo.touched);
}

/* The destination has given up, but QEMU has ended here, so nothing can be continued. */
static void test_kept_without_qemu(NO_STATE)
{
    struct ibx_error err = {.message = "the destination gave up"};
    begin(SOURCE_COMMITTED);
    assert_int_equal(ibx_source_keep(&source, -ECONNABORTED, &err), -ECONNABORTED);
    assert_int_equal(source.state.now, SOURCE_STRANDED);
    assert_non_null(strstr(err.message, "could not be continued"));
    assert_non_null(strstr(err.message, "ib-migrate rollback"));
}

/* After this time without a sign of life the destination counts as gone: 60 times the
 * transport's timeout. */
static int unheard_after_s(enum source_state in, unsigned looked_s)
{
    struct ibx_error err = {0};
    const uint64_t now = ibx_now_ns(), s = 1000 * IBX_NS_PER_MS;
    begin(in);
    source.transport.timeout_ms = 1000;
    source.heard_ns = source.nobody_ns = now - 70 * s;
    source.unheard_look_ns = now - looked_s * s;
    int rc = ibx_source_check_unheard(&source, &err);
    assert_true(source.heard_ns <= ibx_now_ns() && source.nobody_ns <= ibx_now_ns());
    return rc ? rc : ibx_source_check_unheard(&source, &err);
}

/* A tool that was stopped itself does not blame the other side for its silence. */
static void test_stopped_while_nothing_is_heard(NO_STATE)
{
    static const enum source_state in[] = {SOURCE_COMMITTED, SOURCE_SERVING};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(unheard_after_s(in[i], 1), -ETIMEDOUT);
        assert_int_equal(source.state.now, SOURCE_LEFT);
        assert_int_equal(unheard_after_s(in[i], 65), 0);
        assert_int_equal(unheard_after_s(in[i], 75), 0);
        assert_int_equal(source.state.now, in[i]);
    }
}

/* The VM runs there, and somebody listens there: this tool goes on however long no answer comes. */
static void test_somebody_listens_there(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    source.transport.timeout_ms = 1000;
    source.heard_ns = ibx_now_ns() - 70 * 1000 * IBX_NS_PER_MS;
    assert_int_equal(ibx_source_check_unheard(&source, &err), 0);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_true(source.unheard_ns); /* the operator was told */
}

/* With the VM stopped for 11 s, and this tool itself for as many of them. */
static int stalled_after_11_s(enum source_state in, unsigned away_s)
{
    struct ibx_error err = {0};
    const uint64_t s = 1000 * IBX_NS_PER_MS;
    begin(SOURCE_ASKING);
    for (enum source_state to = SOURCE_EXPOSING; to <= in; to++)
        if (to != SOURCE_WARMING)
            assert_int_equal(ibx_source_move(&source, to, &err), 0);
    source.transport.timeout_ms = 1000;
    source.still_ns = ibx_now_ns() - 11 * s;
    source.unheard_look_ns = ibx_now_ns() - away_s * s;
    assert_int_equal(ibx_source_check_unheard(&source, &err), 0);
    return ibx_source_check_stall(&source, &err);
}

/* Nor does it blame the other side for the time for which the VM is stopped. */
static void test_stopped_while_the_vm_is(NO_STATE)
{
    static const enum source_state in[] = {SOURCE_STOPPED, SOURCE_SENDING};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(stalled_after_11_s(in[i], 0), -ETIMEDOUT);
        assert_int_equal(stalled_after_11_s(in[i], 8), 0);
        assert_int_equal(stalled_after_11_s(in[i], 70), 0); /* it stopped within that time */
        assert_true(source.away_ns <= ibx_now_ns() - source.still_ns);
    }
}

/* The time that a host needs to resolve a name does not count as silence; otherwise the end
 * would never come. */
static void test_long_attempt_does_not_count_as_silence(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_COMMITTED);
    source.transport.timeout_ms = 1000;
    source.heard_ns = ibx_now_ns() - 70 * 1000 * IBX_NS_PER_MS;
    source.unheard_look_ns = ibx_now_ns() - 40 * 1000 * IBX_NS_PER_MS; /* before the attempt */
    source.link.retry_ns = UINT64_MAX;
    assert_int_equal(ibx_source_reconnect(&source, &err), 0);
    assert_int_equal(ibx_source_check_unheard(&source, &err), -ETIMEDOUT);
}

/* While the disk is full the epoch grows only if somebody may have seen it. The next tool starts
 * with the one on disk, and passes later ones by attempts of some seconds each. */
static void test_no_new_epoch_without_a_disk_and_an_answer(NO_STATE)
{
    static const struct ibx_send_options full = {.folder = "/dev/full/journal"};
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    source.options = &full;
    source.lost_ns = ibx_now_ns();
    ibx_options_init(&source.transport);
    source.status.record = (struct ibx_record){
        .source = true, .state = IBX_JOURNAL_MOVED, .epoch = 5, .uri = "tcp://127.0.0.1:1"};
    for (unsigned i = 0; i < 3; i++) {
        source.link.retry_ns = 0;
        assert_int_equal(ibx_source_reconnect(&source, &err), 0);
        assert_true(source.note_ns && !source_linked(&source.link));
        assert_int_equal(source.status.record.epoch, 6);
    }
    ibx_source_tried(&source, -EAGAIN, IBX_ANSWER_RUNNING); /* refused, so it was seen */
    assert_int_equal(ibx_source_note_epoch(&source, &err), 0);
    assert_int_equal(source.status.record.epoch, 7);
}

/* Somebody else's QEMU may have the memory of a borrowed VM that has returned, and write to it: no
 * link is made by which the borrower could read that. */
static void test_no_link_once_the_vm_may_be_home(NO_STATE)
{
    struct ibx_error err = {0};
    struct ibx_record *record = &source.status.record;
    begin(SOURCE_SERVING);
    source.lost_ns = ibx_now_ns();
    ibx_options_init(&source.transport);
    *record = (struct ibx_record){.source = true,
                                  .state = IBX_JOURNAL_MOVED,
                                  .epoch = 5,
                                  .borrow = IBX_BORROW_FILL,
                                  .uri = "tcp://127.0.0.1:1"};
    snprintf((char *)record->id, sizeof(record->id), "%d", (int)getpid());
    assert_int_equal(ibx_journal_mark_home(options.folder, record->id, &err), 0);
    const int rc = ibx_source_reconnect(&source, &err);
    ibx_journal_unmark_home(options.folder, record->id);
    assert_int_equal(rc, 0);
    assert_int_equal(record->epoch, 5); /* which each link raises */
    source.link.retry_ns = 0;
    assert_int_equal(ibx_source_reconnect(&source, &err), 0);
    assert_int_equal(record->epoch, 6);
}

static int reset_happens(struct ibx_error *err)
{
    json_t *event = json_pack("{s:s}", "event", "RESET");
    const int rc = ibx_source_on_intruder(&source, event, err);
    json_decref(event);
    return rc;
}

/* If QEMU has answered after every page had arrived, no page can be of another VM. Pages that
 * are not compared yet cannot be compared any more, and the tool does not end with success. */
static void test_reset_when_every_page_has_come(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    ibx_source_protection_init(&source);
    source.status.record.verify = true;
    assert_int_equal(ibx_source_verified(&source, &err), -EPROTO);
    assert_int_equal(ibx_state_move(&source.protecting, PROTECTING_LAST), 0);
    assert_int_equal(ibx_state_move(&source.protecting, PROTECTING_NEEDLESS), 0);
    assert_int_equal(reset_happens(&err), 0);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_int_equal(ibx_source_verified(&source, &err), 0);
    assert_int_equal(ibx_source_verdict(&source, &err), -EBUSY);
    assert_non_null(strstr(err.message, "the last could not be compared"));
}

/* ------------------------------------------------------------ pages that are not compared */

#define RANGES 3u

static struct ibx_guest_block block = {.id = "mem0", .page_size = 4096};
static struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
static struct ibx_page_map map;

static const uint8_t key[IBX_DIGEST_KEY] = "the key of a migration of tests";

/* A VM of `size` bytes, of which the first page has data, with a file of `bytes`. */
static void begin_comparing_of(uint64_t size, off_t bytes)
{
    static const uint64_t data[RANGES * IBX_DIGEST_PAGES / 64] = {1};
    struct ibx_error err = {0};
    block.size = ram.bytes = size;
    block.fd = memfd_create("ram", MFD_CLOEXEC);
    assert_true(block.fd >= 0 && !ftruncate(block.fd, bytes));
    begin(SOURCE_SERVING);
    source.status.record.verify = true;
    assert_int_equal(ibx_page_map_init_ram(&map, &ram, &err), 0);
    ibx_page_map_put_block(&map, 0, data);
    assert_int_equal(ibx_verifier_open(&ram, &map, key, 1, &source.verifier, &err), 0);
}

/* One page. */
static void begin_comparing(off_t bytes)
{
    begin_comparing_of(4096, bytes);
}

static void compare_entry(uint64_t range, const uint8_t entry[IBX_DIGEST_ENTRY])
{
    const struct ibx_migrate_digest digest = {.first = range * IBX_DIGEST_PAGES,
                                              .entries = {entry, IBX_DIGEST_ENTRY}};
    struct pollfd wait = {.fd = ibx_verifier_fd(source.verifier), .events = POLLIN};
    assert_int_equal(ibx_source_on_digest(&source, &digest, NULL), 0);
    while (!ibx_verifier_idle(source.verifier))
        assert_true(poll(&wait, 1, -1) >= 0);
}

/* The page has come to the destination. */
static void compare(void)
{
    compare_entry(0, (const uint8_t[IBX_DIGEST_ENTRY]){1});
}

/* A range has come, of which the guest has given all pages back before that. */
static void compare_range(uint64_t range)
{
    static const uint64_t no_tags[IBX_DIGEST_PAGES];
    uint8_t entry[IBX_DIGEST_ENTRY] = {0};
    struct ibx_digest_keys keys;
    const bool lacks_memory = openssl_lacks_memory;
    openssl_lacks_memory = false;
    assert_true(ibx_digest_keys_derive(&keys, key));
    assert_true(ibx_digest_range(&keys, range * IBX_DIGEST_PAGES, no_tags, IBX_DIGEST_PAGES,
                                 entry + IBX_DIGEST_PAGES / 8));
    openssl_lacks_memory = lacks_memory;
    compare_entry(range, entry);
}

static void end_comparing(void)
{
    ibx_verifier_close(source.verifier);
    ibx_page_map_fini(&map);
    close(block.fd);
}

/* The guest has shut the VM down before that. */
static void test_verdict_without_a_comparison(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing(0);
    source.status.record.state = IBX_JOURNAL_ENDED;
    assert_int_equal(ibx_source_verdict(&source, &err), 0);
    compare();
    assert_int_equal(ibx_source_verdict(&source, &err), -EIO);
    assert_non_null(strstr(err.message, "not all pages were compared; the guest has shut the VM"));
    end_comparing();
}

/* Without memory nothing is known of the page: the VM there stays as it is, and its digest comes
 * again over the next link. */
static void test_no_memory_to_compare(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing(4096);
    openssl_lacks_memory = true;
    compare();
    openssl_lacks_memory = false;
    assert_int_equal(ibx_source_check_pages(&source, &err), -ENOMEM);
    assert_non_null(strstr(err.message, "no memory to compare"));
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_false(source.untold);
    source.status.record.state = IBX_JOURNAL_ENDED; /* and no page is compared before that */
    assert_int_equal(ibx_source_verdict(&source, &err), -ENOMEM);
    end_comparing();
}

/* Over the next link the digests come again. The verdict knows that all pages that had come are the
 * same, although the guest has shut the VM down before the others came. */
static void test_compared_over_the_next_link(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing_of(RANGES * IBX_DIGEST_PAGES * 4096, RANGES * IBX_DIGEST_PAGES * 4096);
    compare_range(0);
    openssl_lacks_memory = true;
    compare_range(1);
    openssl_lacks_memory = false;
    assert_int_equal(ibx_source_check_pages(&source, &err), -ENOMEM);
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    source.status.record.state = IBX_JOURNAL_ENDED;
    compare_range(0);
    assert_int_equal(ibx_source_verdict(&source, &err), -ENOMEM);
    compare_range(1);
    assert_int_equal(ibx_source_verdict(&source, &err), 0);
    end_comparing();
}

static int completes(void)
{
    struct ibx_migrate_any complete = {.type = IBX_MIGRATE_COMPLETE};
    struct ibx_error err = {0};
    struct message_context context = {&source, &err};
    ibx_page_map_hash(&source.vm.map, complete.is.totals.hash);
    return ibx_source_on_message(&context, &complete);
}

/* ... also if COMPLETE had come: before it comes again no digest is missing. */
static void test_no_memory_to_compare_behind_complete(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing(4096);
    ibx_source_protection_init(&source);
    source.status.record.epoch = 1;
    openssl_lacks_memory = true;
    compare();
    openssl_lacks_memory = false;
    assert_int_equal(completes(), 0);
    assert_int_equal(ibx_source_check_pages(&source, &err), -ENOMEM);
    source.status.record.epoch++; /* and the link is another one */
    assert_int_equal(ibx_source_verified(&source, &err), -EAGAIN);
    assert_int_equal(completes(), 0);
    assert_int_equal(ibx_source_verified(&source, &err), -EPROTO);
    end_comparing();
}

/* The same when not even the comparison can begin. */
static void test_no_memory_to_begin_a_comparison(NO_STATE)
{
    static const uint8_t entry[IBX_DIGEST_ENTRY] = {1};
    const struct ibx_migrate_digest digest = {.entries = {entry, sizeof(entry)}};
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    source.status.record.verify = true;
    openssl_lacks_memory = true;
    assert_int_equal(ibx_source_on_digest(&source, &digest, &err), -ENOMEM);
    openssl_lacks_memory = false;
    source.status.record.state = IBX_JOURNAL_ENDED;
    assert_int_equal(ibx_source_verdict(&source, &err), -ENOMEM);
}

/* What came then is not forgotten when the comparison of what came later has begun. */
static void test_no_memory_to_begin_and_then_enough(NO_STATE)
{
    static const uint8_t entry[IBX_DIGEST_ENTRY] = {1};
    const struct ibx_migrate_digest digest = {.first = IBX_DIGEST_PAGES,
                                              .entries = {entry, sizeof(entry)}};
    struct ibx_error err = {0};
    begin_comparing_of(RANGES * IBX_DIGEST_PAGES * 4096, RANGES * IBX_DIGEST_PAGES * 4096);
    ibx_verifier_close(source.verifier);
    source.verifier = NULL;
    source.vm.ram = ram;
    source.vm.map = map;
    memcpy(source.status.record.verify_key, key, sizeof(key));
    openssl_lacks_memory = true;
    assert_int_equal(ibx_source_on_digest(&source, &digest, &err), -ENOMEM);
    openssl_lacks_memory = false;
    assert_int_equal(
        ibx_source_on_digest(&source, &(struct ibx_migrate_digest){.first = 2 * IBX_DIGEST_PAGES},
                             &err),
        0);
    source.status.record.state = IBX_JOURNAL_ENDED;
    compare_range(0);
    assert_int_equal(ibx_source_verdict(&source, &err), -ENOMEM);
    compare_range(1);
    assert_int_equal(ibx_source_verdict(&source, &err), 0);
    end_comparing();
}

/* Whatever the order in which they came. */
static void test_missed_in_any_order(NO_STATE)
{
    static const uint8_t entries[3 * IBX_DIGEST_ENTRY];
    static const struct {
        uint64_t range, count;
    } come[] = {{1, 2}, {2, 1}, {0, 1}};
    struct ibx_error err = {0};
    begin(SOURCE_SERVING);
    openssl_lacks_memory = true;
    for (unsigned i = 0; i < COUNT(come); i++) {
        const struct ibx_migrate_digest digest = {
            .first = come[i].range * IBX_DIGEST_PAGES,
            .entries = {entries, come[i].count * IBX_DIGEST_ENTRY}};
        assert_int_equal(ibx_source_on_digest(&source, &digest, &err), -ENOMEM);
        assert_int_equal(source.missed.first + source.missed.count, 3);
    }
    openssl_lacks_memory = false;
    assert_int_equal(source.missed.first, 0);
}

/* A page differs that somebody may have changed here when every page had come: the VM there is as
 * it was. The same of a borrowed VM that may be at home: it writes to its memory there. */
static void test_page_that_may_differ(NO_STATE)
{
    struct ibx_error err = {0};
    const uint8_t id[IBX_MIGRATE_ID_BYTES] = {(uint8_t)getpid(), (uint8_t)(getpid() >> 8), 77};
    begin_comparing(4096);
    compare();
    source.uncompared = true;
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_false(source.untold);
    source.uncompared = false;
    source.status.record.source = true;
    source.status.record.borrow = IBX_BORROW_FILL;
    memcpy(source.status.record.id, id, sizeof(id));
    assert_int_equal(ibx_journal_mark_home(options.folder, id, &err), 0);
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    ibx_journal_unmark_home(options.folder, id);
    assert_false(source.untold);
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_true(source.untold); /* there is no link to tell it over */
    end_comparing();
}

/* The destination is told what was compared when all that has come was, and nothing is missed: from
 * then on the VM may change these pages here. */
static void test_told_when_compared(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing_of(RANGES * IBX_DIGEST_PAGES * 4096, RANGES * IBX_DIGEST_PAGES * 4096);
    ibx_verifier_close(source.verifier);
    source.verifier = NULL;
    source.vm.ram = ram;
    source.vm.map = map;
    memcpy(source.status.record.verify_key, key, sizeof(key));
    source.status.record.borrow = IBX_BORROW_FILL;
    source.link.state.now = LINK_MAPPED;
    told = 0;
    for (uint64_t range = 0; range < RANGES; range++) {
        const struct ibx_migrate_digest none = {.first = range * IBX_DIGEST_PAGES};
        assert_int_equal(ibx_source_on_digest(&source, &none, &err), 0);
        compare_range(range);
    }
    is_busy = true;
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_int_equal(told, 0);
    is_busy = false;
    ibx_verifier_miss(source.verifier, 1, 1);
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_int_equal(told, 0);
    ibx_source_verify_anew(&source); /* over a new link */
    assert_false(ibx_verifier_missed(source.verifier));
    compare_range(1);
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_int_equal(told, 1);
    assert_int_equal(ibx_verifier_result(source.verifier, &err), -EAGAIN); /* more may come */
    source.link.state.now = LINK_NONE;
    end_comparing();
}

/* Each link of a borrowed VM counts its digests from 0 on, as the destination does. */
static void test_answers_begin_anew(NO_STATE)
{
    begin_comparing_of(RANGES * IBX_DIGEST_PAGES * 4096, RANGES * IBX_DIGEST_PAGES * 4096);
    ibx_verifier_compare_parts(source.verifier);
    source.status.record.borrow = IBX_BORROW_FILL;
    compare_range(0);
    assert_int_equal(source.parts.heard, 1);
    source.parts.told = 1;
    ibx_source_verify_anew(&source);
    assert_int_equal(source.parts.heard, 0);
    assert_int_equal(source.parts.told, 0);
    end_comparing();
}

/* When the guest has shut the VM down there is no next link: what was compared stays known. */
static void test_no_memory_to_compare_at_the_end(NO_STATE)
{
    struct ibx_error err = {0};
    begin_comparing(4096);
    source.status.record.state = IBX_JOURNAL_ENDED;
    assert_int_equal(ibx_state_move(&source.state, SOURCE_CONFIRMING), 0);
    openssl_lacks_memory = true;
    compare();
    openssl_lacks_memory = false;
    assert_int_equal(ibx_source_check_pages(&source, &err), 0);
    assert_int_equal(ibx_source_verdict(&source, &err), -ENOMEM);
    end_comparing();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_never_continued_once_it_runs_there),
        cmocka_unit_test(test_kept_without_qemu),
        cmocka_unit_test(test_stopped_while_nothing_is_heard),
        cmocka_unit_test(test_stopped_while_the_vm_is),
        cmocka_unit_test(test_somebody_listens_there),
        cmocka_unit_test(test_long_attempt_does_not_count_as_silence),
        cmocka_unit_test(test_no_new_epoch_without_a_disk_and_an_answer),
        cmocka_unit_test(test_no_link_once_the_vm_may_be_home),
        cmocka_unit_test(test_reset_when_every_page_has_come),
        cmocka_unit_test(test_verdict_without_a_comparison),
        cmocka_unit_test(test_no_memory_to_compare),
        cmocka_unit_test(test_compared_over_the_next_link),
        cmocka_unit_test(test_no_memory_to_compare_behind_complete),
        cmocka_unit_test(test_no_memory_to_begin_a_comparison),
        cmocka_unit_test(test_no_memory_to_begin_and_then_enough),
        cmocka_unit_test(test_missed_in_any_order),
        cmocka_unit_test(test_page_that_may_differ),
        cmocka_unit_test(test_told_when_compared),
        cmocka_unit_test(test_answers_begin_anew),
        cmocka_unit_test(test_no_memory_to_compare_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
