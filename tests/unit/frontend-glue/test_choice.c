/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies take the paths that a tuning file gives if it was measured on this GPU, and the default
 * paths otherwise. */
#include "tests/fixtures/copies_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The opposite of the defaults where that makes a difference. */
static const struct ibx_choice unusual = {
    .ways = {{.inline_max = 0,
              .in_place_min = IBX_CHOICE_NEVER,
              .copy_threads_min = 100000,
              .direct_min = IBX_CHOICE_NEVER},
             {.inline_max = 10000,
              .in_place_min = IBX_CHOICE_NEVER,
              .copy_threads_min = IBX_CHOICE_NEVER,
              .direct_min = IBX_CHOICE_NEVER}},
    .chunk = 64u << 10,
    .threads = 5, /* a value that no number of processors gives */
};

static _Atomic unsigned threads_made; /* how many were requested last */

int __real_ibx_copy_threads_create(unsigned threads, struct ibx_copy_threads **of,
                                   struct ibx_error *err);
int __wrap_ibx_copy_threads_create(unsigned threads, struct ibx_copy_threads **of,
                                   struct ibx_error *err);

int __wrap_ibx_copy_threads_create(unsigned threads, struct ibx_copy_threads **of,
                                   struct ibx_error *err)
{
    threads_made = threads;
    return __real_ibx_copy_threads_create(threads, of, err);
}

static int set_up_tuned(void **state)
{
    gpu.threads = 0;
    gpu.tuning = (struct ibx_tuning){.found = true, .choice = unusual, .file = "a file"};
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &gpu.tuning.machine);
    int rc = set_up(state);
    /* over shm it would have all memory in parts that both ends map */
    strcpy(pair.client->path.provider, "another");
    return rc;
}

static int set_up_elsewhere(void **state)
{
    int rc = set_up_tuned(state);
    strcpy(ibx_copies_of(pair.server)->options.tuning.machine.gpu, "another");
    return rc;
}

struct counts {
    unsigned long sync, async;   /* copies by CUDA */
    struct ibx_copy_counts ways; /* copies by path */
};

/* Returns what one copy adds to the counts. */
static struct counts copy(bool to_device, void *host, size_t n)
{
    struct ibx_double_stats before, after;
    struct ibx_frontend_copy wish = {
        .to_device = to_device, .device = device, .host = host, .n = n};
    struct ibx_copy_counts was = seen().copies, is;
    struct frame other = {0};
    int code = -1;
    put_u64(&other, 5);
    app->get_stats(&before);
    assert_int_equal(ibx_client_copy(pair.client, &wish, &code), 0);
    assert_int_equal(code, 0);
    app->get_stats(&after);
    expect_code("cudaOther", &other, HANDLED); /* updates seen() */
    is = seen().copies;
    assert_int_equal(is.all, was.all + 1);
    return (struct counts){
        .sync = after.copies_sync - before.copies_sync,
        .async = after.copies_async - before.copies_async,
        .ways = {.inlined = is.inlined - was.inlined,
                 .in_place = is.in_place - was.in_place,
                 .copy_threads = is.copy_threads - was.copy_threads},
    };
}

/* Copies to the device and back. */
static void both(void *host, size_t n, struct counts *to, struct counts *from)
{
    pattern_fill(host, n, n);
    *to = copy(true, host, n);
    assert_device(n, n);
    memset(host, 0, n);
    *from = copy(false, host, n);
    assert_int_equal(pattern_check(host, n, n), n);
}

/* `tuned`: the file was measured on this GPU. */
static void test_sizes(void **state)
{
    const bool tuned = *state;
    const size_t n = 800000;
    uint8_t *own = scene_memory(n), *shared = ibx_shared_allocate(n, NULL);
    struct counts to, from;
    assert_non_null(shared);
    both(own, 1000, &to, &from); /* tuned: through a chunk */
    assert_true(to.sync == !tuned && to.async == tuned && to.ways.inlined == !tuned);
    both(own, 8000, &to, &from);
    assert_true(from.sync == tuned && from.async == !tuned && from.ways.inlined == tuned);
    both(own, n, &to, &from);
    assert_true(!tuned || to.async == (n + (64u << 10) - 1) / (64u << 10));
    assert_true(to.ways.copy_threads == tuned && from.ways.copy_threads == 0);
    both(shared, n, &to, &from);
    assert_true(tuned ? to.async > 1 && from.async > 1 : to.sync == 1 && from.sync == 1);
    assert_true(to.ways.in_place == !tuned && from.ways.in_place == !tuned);
    assert_int_equal(seen().requests, 9);
    assert_true(ibx_shared_free(shared));
}

/* A module as long as a copy is sent before all copies, when it is unknown what the file says
 * about this GPU. */
static void test_threads_behind_a_long_body(void **state)
{
    (void)state;
    const size_t n = 800000;
    uint8_t *own = scene_memory(n);
    struct frame module = {.bytes = scene_memory((size_t)4 << 20), .n = (size_t)4 << 20};
    struct counts to, from;
    assert_true(own && module.bytes);
    threads_made = 0;
    expect_code("__cudaRegisterFatBinary", &module, HANDLED);
    assert_int_not_equal(threads_made, unusual.threads);
    both(own, n, &to, &from);
    assert_int_equal(to.ways.copy_threads, 1);
    assert_int_equal(threads_made, unusual.threads);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        {"test_sizes_as_tuned", test_sizes, set_up_tuned, tear_down, "tuned"},
        cmocka_unit_test_setup_teardown(test_threads_behind_a_long_body, set_up_tuned, tear_down),
        {"test_sizes_elsewhere", test_sizes, set_up_elsewhere, tear_down, NULL},
    };
    session_pair_use(argc > 1 ? argv[1] : "shm", NULL, NULL, NULL);
    app = cuda_application();
    return cmocka_run_group_tests_name("choice", tests, NULL, NULL);
}
