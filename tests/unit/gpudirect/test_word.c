/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Words that the GPU writes after copies: to whom they belong, and how copies without staging
 * use them. */
#include "gpudirect/completion_word.h"
#include "gpudirect/pinned.h"
#include "gpudirect/staging.h"
#include "common/clock.h"
#include "tests/fixtures/cuda_unit.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/random_fill.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LARGE     ((size_t)4 << 20)
#define SHORT     ((size_t)100000)
#define PINNED    712 /* CUresult: already registered */
#define ILLEGAL   700
#define HELD_FROM 2000 /* microseconds, more than pass before the driver is asked */

static bool spins; /* there are many processors */
bool __wrap_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void)
{
    return spins;
}

static struct ibx_word *words[IBX_WORD_COUNT];
static void *event; /* an event of context 0 */
static void *contexts[2];
static struct ibx_staging *staging;
static struct ibx_gpu_copy copy;
static uint8_t *host;

static void use(int device)
{
    cuda_application_use(device);
    assert_int_equal(cuda->ctx_get_current(&contexts[device]), 0);
}

/* Resets the device with all that set_up() created there. Earlier failures are forgotten. */
static void reset_device(void)
{
    app->inject(NULL, 0, 0, false);
    app->primary_reset(0);
    ibx_staging_forget(staging, NULL);
    use(0);
    assert_int_equal(cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING), 0);
    assert_int_equal(app->mem_alloc(&copy.device, LARGE), 0);
    assert_int_equal(app->host_register(host, LARGE, 0), 0);
}

static int set_up(void **state)
{
    (void)state;
    use(1);
    use(0);
    spins = true;
    app->attribute(IBX_CUDA_DEVICE_HOST_POINTER, 1);
    host = aligned_alloc(4096, LARGE);
    assert_non_null(host);
    assert_int_equal(app->host_register(host, LARGE, 0), 0);
    assert_int_equal(cuda->event_create(&event, IBX_CUDA_EVENT_DISABLE_TIMING), 0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    copy = (struct ibx_gpu_copy){.width = SHORT, .height = 1};
    assert_int_equal(app->mem_alloc(&copy.device, LARGE), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    app->inject(NULL, 0, 0, false);
    app->slow(0);
    app->hold(false);
    cuda_application_use(0);
    cuda->event_destroy(event);
    ibx_staging_destroy(staging);
    app->mem_free(copy.device);
    app->host_unregister(host);
    free(host);
    assert_int_equal(cuda_stats().unpinned_async, 0);
    assert_int_equal(cuda_stats().lost_events, 0);
    return 0;
}

/* ---------------------------------------------------------------------------- the words */

static unsigned take_all(void *context)
{
    unsigned count = 0;
    while (count < IBX_WORD_COUNT && (words[count] = ibx_word_take(cuda, context)))
        count++;
    if (count == IBX_WORD_COUNT)
        assert_null(ibx_word_take(cuda, context));
    return count;
}

static void give(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        ibx_word_give(words[i]);
}

/* Each context has a page of words, one in each cache line. The page is pinned once and stays
 * pinned. */
static void test_words_share_a_pinned_page(void **state)
{
    (void)state;
    unsigned long pins = 0;
    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT);
        for (unsigned i = 1; i < IBX_WORD_COUNT; i++)
            assert_int_equal((uintptr_t)words[i]->at - (uintptr_t)words[i - 1]->at, IBX_WORD_LINE);
        use(1);
        struct ibx_word *other = ibx_word_take(cuda, contexts[1]);
        assert_non_null(other);
        assert_true((uintptr_t)other->at / IBX_WORD_PAGE !=
                    (uintptr_t)words[0]->at / IBX_WORD_PAGE);
        ibx_word_give(other);
        use(0);
        give(IBX_WORD_COUNT);
        pins = pins ? pins : cuda_stats().host_pins;
        assert_int_equal(cuda_stats().host_pins, pins);
    }
    ibx_word_give(NULL);
}

/* A word is reused only when the last copy has written it, even if nobody has waited for that
 * copy. */
static void test_word_is_reused_after_its_copy(void **state)
{
    (void)state;
    struct ibx_word *word = ibx_word_take(cuda, contexts[0]);
    app->hold(true);
    assert_int_equal(ibx_word_set(cuda, word, NULL), 0);
    app->inject("cuEventQuery", 1, ILLEGAL, false);
    assert_int_equal(ibx_word_wait(cuda, word, NULL, event), ILLEGAL);
    ibx_word_give(word);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT - 1);
    for (unsigned i = 0; i < IBX_WORD_COUNT - 1; i++)
        assert_ptr_not_equal(words[i], word);
    give(IBX_WORD_COUNT - 1);
    app->hold(false);
    assert_int_equal(app->stream_synchronize(NULL), 0);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT);
    give(IBX_WORD_COUNT);
}

/* A reset removes the registration and the pending writes of the GPU, but not those of another
 * device. */
static void test_reset(void **state)
{
    (void)state;
    struct ibx_word *word = ibx_word_take(cuda, contexts[0]);
    app->inject("dma", 1, ILLEGAL, true);
    app->hold(true);
    assert_int_equal(cuda->memcpy_to_device_async(copy.device, host, SHORT, NULL), 0);
    assert_int_equal(ibx_word_set(cuda, word, NULL), 0);
    app->hold(false);
    assert_int_equal(ibx_word_wait(cuda, word, NULL, event), ILLEGAL);
    ibx_word_give(word);
    const unsigned long ever = cuda_stats().host_pinned;
    reset_device();
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT);
    assert_int_equal(cuda_stats().host_pinned, ever + 2); /* one more is `host` */
    for (unsigned i = 0; i < IBX_WORD_COUNT; i++) {
        assert_int_equal(ibx_word_set(cuda, words[i], NULL), 0);
        assert_int_equal(ibx_word_wait(cuda, words[i], NULL, event), 0);
    }
    give(IBX_WORD_COUNT);
}

static void test_refused(void **state)
{
    (void)state;
    struct ibx_cuda old = *cuda;
    old.stream_write_value32 = NULL;
    assert_null(ibx_word_take(&old, contexts[0]));
    spins = false;
    assert_null(ibx_word_take(cuda, contexts[0]));
    spins = true;
    app->attribute(IBX_CUDA_DEVICE_HOST_POINTER, 0);
    assert_null(ibx_word_take(cuda, contexts[0]));
    app->attribute(IBX_CUDA_DEVICE_HOST_POINTER, 1);
    app->inject("cuMemHostRegister", 1, ILLEGAL, false);
    assert_null(ibx_word_take(cuda, contexts[0]));
    struct ibx_word *word = ibx_word_take(cuda, contexts[0]);
    assert_non_null(word);
    ibx_word_give(word);
}

/* the driver that a forked child sees */
static int any_device(int *device)
{
    *device = 0;
    return 0;
}

static int one_address(int *value, int attribute, int device)
{
    (void)attribute, (void)device;
    *value = 1;
    return 0;
}

static int registered(void *address, size_t n, unsigned flags)
{
    (void)flags;
    memset(address, 1, n); /* in this process the memory exists */
    memset(address, 0, n);
    return PINNED;
}

static int of_child(struct ibx_word *parents)
{
    struct ibx_cuda fake = *cuda;
    fake.ctx_get_device = any_device;
    fake.device_get_attribute = one_address;
    fake.mem_host_register = registered;
    ibx_word_give(parents);
    int missing = 0;
    for (uintptr_t i = 1; i <= IBX_WORD_CONTEXTS; i++)
        missing += !ibx_word_take(&fake, (void *)i);
    return missing + !!ibx_word_take(&fake, (void *)(uintptr_t)(IBX_WORD_CONTEXTS + 1));
}

/* A forked child has neither pages nor words of its parent. Contexts beyond the number of pages
 * have no words. */
static void test_child(void **state)
{
    (void)state;
    struct ibx_word *word = ibx_word_take(cuda, contexts[0]);
    const pid_t child = fork();
    if (!child)
        _exit(of_child(word));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    ibx_word_give(word);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT);
    give(IBX_WORD_COUNT);
}

/* copies without staging */

static void expect_straight(bool to_device, bool by_word)
{
    const struct ibx_double_stats before = cuda_stats();
    assert_int_equal(ibx_staging_straight(staging, host, &copy, to_device), 0);
    assert_int_equal(cuda_stats().copies_sync, before.copies_sync + !by_word);
    if (to_device)
        assert_on_device(copy.device, host, copy.width);
}

/* The end of a copy is noticed by its word, neither too early nor never, whatever happens to the
 * stream and to the word. */
static void test_copies(void **state)
{
    (void)state;
    void *stream;
    assert_int_equal(app->stream_create(&stream, 0), 0);
    for (unsigned round = 0; round < 8; round++) {
        copy.stream = round % 2 ? stream : NULL;
        app->slow(round < 4 ? HELD_FROM : 0);
        random_fill(host, SHORT, round);
        expect_straight(true, true);
        memset(host, 0, SHORT);
        expect_straight(false, true);
        assert_on_device(copy.device, host, SHORT);
    }
    copy.stream = NULL;
    copy.width = LARGE; /* in one piece */
    expect_straight(true, true);
    copy.width = SHORT;
    app->inject("cuMemcpyHtoDAsync", 1, ILLEGAL, false);
    assert_int_equal(ibx_staging_straight(staging, host, &copy, true), ILLEGAL);
    expect_straight(true, true);
    app->inject("dma", 1, ILLEGAL, true); /* the copy and its predecessor fail */
    assert_int_equal(ibx_staging_straight(staging, host, &copy, true), ILLEGAL);
    reset_device();
    expect_straight(true, true);
    app->inject("cuEventQuery", 1, ILLEGAL, false); /* the driver's answer fails */
    app->slow(10 * HELD_FROM);
    assert_int_equal(ibx_staging_straight(staging, host, &copy, true), ILLEGAL);
    app->slow(0);
    expect_straight(true, true);
}

/* words that staged copies had the GPU write; how often the driver was asked */
static unsigned long set;
static atomic_ulong asked;

static int count_words(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    const int rc = cuda->stream_write_value32(stream, address, value, flags);
    set += !rc;
    return rc;
}

static int count_events(void *of)
{
    asked++;
    return cuda->event_query(of);
}

static int count_streams(void *of)
{
    asked++;
    return cuda->stream_query(of);
}

static int keep(void *into, unsigned slot, unsigned chunk, void *local, uint64_t offset, size_t n)
{
    (void)slot, (void)chunk;
    memcpy((uint8_t *)into + offset, local, n);
    return 0;
}

static int at_once(void *into, bool wait, uint32_t *slots)
{
    (void)into, (void)wait;
    *slots = UINT32_MAX;
    return 0;
}

static void expect_staged(uint64_t width, bool by_word)
{
    struct ibx_staging_wire wire = {host, keep, at_once, NULL, 1};
    copy.width = width;
    set = 0;
    memset(host, 0, width);
    assert_true(ibx_staging_begin(staging, width));
    assert_int_equal(ibx_staging_from_device(staging, &copy, true), 0);
    assert_int_equal(ibx_staging_deliver(staging, &wire, width), 0);
    ibx_staging_end(staging);
    assert_int_equal(set, by_word);
    assert_on_device(copy.device, host, width);
}

/* Counts what the staging does. */
static void count(void)
{
    static struct ibx_cuda counts;
    counts = *cuda;
    counts.stream_write_value32 = count_words;
    counts.event_query = count_events;
    counts.stream_query = count_streams;
    ibx_staging_destroy(staging);
    assert_int_equal(ibx_staging_create(&counts, &staging), 0);
}

/* The same for a copy from the device that fits into one chunk. */
static void test_copy_of_one_chunk(void **state)
{
    (void)state;
    count();
    assert_int_equal(ibx_pinned_open(cuda, (size_t)8 * IBX_PINNED_STRIDE, NULL), 0);
    copy.width = SHORT;
    random_fill(host, SHORT, 9);
    expect_straight(true, true);
    app->slow(HELD_FROM);
    for (uint64_t width = 4; width <= SHORT; width *= 4)
        expect_staged(width, true);
    app->slow(0);
    expect_staged(IBX_PINNED_CHUNK + 4, false);
    app->inject("cuStreamWriteValue32", 1, 801, false); /* not supported */
    expect_staged(4, false);
    expect_staged(4, false);
    ibx_staging_drop_events(staging);
    app->inject("dma", 1, ILLEGAL, true);
    assert_true(ibx_staging_begin(staging, 4));
    assert_int_equal(ibx_staging_from_device(staging, &copy, true), ILLEGAL);
    ibx_staging_end(staging);
    reset_device();
}

static void *copy_straight(void *rc)
{
    use(0);
    int before = ibx_cuda_capture_relax(cuda);
    *(int *)rc = ibx_staging_straight(staging, host, &copy, true);
    ibx_cuda_capture_restore(cuda, before);
    return NULL;
}

static void await_asked(unsigned long times)
{
    const unsigned long before = asked;
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(60000));
    while (asked < before + times && ibx_now_ns() < deadline)
        sched_yield();
    assert_true(asked >= before + times);
}

/* A copy that waits long in the legacy stream allows others to capture, and does not fail
 * because of that. */
static void test_other_clients_capture(void **state)
{
    (void)state;
    void *stream, *graph;
    int rc = -1;
    count();
    assert_int_equal(app->stream_create(&stream, 0), 0); /* waits for the legacy stream */
    for (unsigned i = 0; i < 3; i++) {
        pthread_t thread;
        random_fill(host, SHORT, i);
        app->hold(true);
        assert_int_equal(pthread_create(&thread, NULL, copy_straight, &rc), 0);
        await_asked(1);
        assert_int_equal(app->begin_capture(stream, IBX_CUDA_CAPTURE_GLOBAL), 0);
        await_asked(3);
        assert_int_equal(app->end_capture(stream, &graph), 0);
        app->hold(false);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(rc, 0);
        assert_on_device(copy.device, host, SHORT);
    }
}

/* If the driver does not write words, or does not pin them, ibx waits by an event or asks the
 * driver. */
static void test_driver_without_words(void **state)
{
    (void)state;
    const unsigned long waited = cuda_stats().copies_async;
    random_fill(host, SHORT, 5);
    expect_straight(true, true);
    app->inject("cuStreamWriteValue32", 1, 801, false); /* not supported */
    random_fill(host, SHORT, 6);
    app->slow(HELD_FROM);
    expect_straight(true, true); /* the copy had started already and uses an event */
    assert_int_equal(cuda_stats().copies_async, waited + 2);
    expect_straight(true, false); /* not tried again */
    ibx_staging_drop_events(staging);
    expect_straight(true, true);
    app->inject("cuMemHostRegister", 1, ILLEGAL, false);
    ibx_staging_drop_events(staging);
    expect_straight(true, false);
    app->inject(NULL, 0, 0, false);
    ibx_staging_drop_events(staging);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT); /* others have all words */
    expect_straight(true, false);
    give(IBX_WORD_COUNT);
    expect_straight(true, false); /* not tried again */
}

/* Copies right behind another session's copy, which counts for IBX_TURN_BUSY_NS: the copy is tried
 * again if a loaded machine took longer in between. */
static void expect_pieces_beside(struct ibx_turn *other)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(60000));
    for (;;) {
        const uint64_t began = ibx_now_ns();
        ibx_turn_take(other, 4096);
        expect_straight(true, true); /* in pieces that are followed by events */
        const unsigned left = take_all(contexts[0]);
        give(left);
        if (left == IBX_WORD_COUNT)
            return;
        assert_true(ibx_now_ns() - began >= IBX_TURN_BUSY_NS && ibx_now_ns() < deadline);
        ibx_staging_drop_events(staging);
    }
}

/* Beside other sessions, and graphs that wait for their client, the GPU is only given copies to
 * do. */
static void test_other_sessions_copy(void **state)
{
    (void)state;
    struct ibx_turn mine, other;
    ibx_turn_join(&mine, NULL, 100);
    ibx_turn_join(&other, NULL, 100);
    ibx_staging_set_turn(staging, &mine);
    for (unsigned i = 0; i < 2; i++)
        expect_pieces_beside(&other);
    ibx_turn_leave(&other);
    copy.beside_graphs = true;
    expect_straight(true, true);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT);
    give(IBX_WORD_COUNT);
    copy.beside_graphs = false;
    expect_straight(true, true);
    assert_int_equal(take_all(contexts[0]), IBX_WORD_COUNT - 1);
    give(IBX_WORD_COUNT - 1);
    ibx_staging_set_turn(staging, NULL);
    ibx_turn_leave(&mine);
}

/* Each context has its own words. A context or session that ends leaves them to others. */
static void test_contexts(void **state)
{
    (void)state;
    uint64_t devices[2] = {copy.device};
    use(1);
    assert_int_equal(app->mem_alloc(&devices[1], LARGE), 0);
    const unsigned long pins = cuda_stats().host_pins;
    for (int i = 0; i < 6; i++) {
        use(i % 2);
        copy.device = devices[i % 2];
        expect_straight(true, true);
        assert_int_equal(take_all(contexts[i % 2]), IBX_WORD_COUNT - 1);
        give(IBX_WORD_COUNT - 1);
    }
    assert_in_range(cuda_stats().host_pins, pins, pins + 2);
    ibx_staging_destroy(staging);
    staging = NULL;
    assert_int_equal(take_all(contexts[1]), IBX_WORD_COUNT);
    give(IBX_WORD_COUNT);
    assert_int_equal(app->mem_free(devices[1]), 0);
    assert_in_range(cuda_stats().host_pins, pins, pins + 2); /* never unpinned */
    copy.device = devices[0];
    use(0);
    assert_int_equal(ibx_staging_create(cuda, &staging), 0);
    expect_straight(true, true);
    reset_device();
    expect_straight(true, true);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_words_share_a_pinned_page),
        TEST(test_word_is_reused_after_its_copy),
        TEST(test_reset),
        TEST(test_refused),
        TEST(test_child),
        TEST(test_copies),
        TEST(test_driver_without_words),
        TEST(test_other_sessions_copy),
        TEST(test_other_clients_capture),
        TEST(test_contexts),
        TEST(test_copy_of_one_chunk),
    };
    return cmocka_run_group_tests_name("word", tests, find_cuda, NULL);
}
