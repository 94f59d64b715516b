/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies from the device that the GPU does not begin, once or more often. This file replaces the
 * pipeline through chunks, and what staged.c asks of the session. */
#include "frontend-glue/device_copies/copies.h"
#include "gpudirect/staging.h"
#include "tests/fixtures/unit.h"

#include <stdlib.h>

#define SIZE 1000u

static struct gpu_session x;
static struct ibx_staging *const pipeline = (struct ibx_staging *)&x;
static unsigned overdue; /* so often the GPU does not begin */
static unsigned begun;   /* so often there were chunks */
static unsigned chunks;  /* so often there are some */
static bool has_chunks;

bool __wrap_ibx_staging_begin(struct ibx_staging *staging, uint64_t bytes);
bool __wrap_ibx_staging_begin(struct ibx_staging *staging, uint64_t bytes)
{
    assert_true(staging == pipeline && bytes == SIZE && !has_chunks);
    has_chunks = begun < chunks;
    begun += has_chunks;
    return has_chunks;
}

int __wrap_ibx_staging_from_device(struct ibx_staging *staging, const struct ibx_gpu_copy *copy,
                                   bool ahead);
int __wrap_ibx_staging_from_device(struct ibx_staging *staging, const struct ibx_gpu_copy *copy,
                                   bool ahead)
{
    assert_true(staging == pipeline && copy == &x.copy.gpu && has_chunks);
    (void)ahead;
    if (!overdue)
        return 0;
    overdue--;
    has_chunks = false;
    return IBX_STAGING_OVERDUE;
}

void __wrap_ibx_staging_end(struct ibx_staging *staging);
void __wrap_ibx_staging_end(struct ibx_staging *staging)
{
    assert_ptr_equal(staging, pipeline);
    has_chunks = false;
}

int __wrap_ibx_copies_outcome(const struct gpu_session *of, int rc);
int __wrap_ibx_copies_outcome(const struct gpu_session *of, int rc)
{
    assert_ptr_equal(of, &x);
    assert_true(!rc || rc == IBX_STAGING_REFUSED);
    return rc ? IBX_REQUEST_PASS : IBX_REQUEST_DONE;
}

/* ------------------------------------------------------------------------- not in question */

const struct ibx_caps *__wrap_ibx_session_caps(const struct ibx_session *s);
const struct ibx_caps *__wrap_ibx_session_caps(const struct ibx_session *s)
{
    static const struct ibx_caps caps = {.rendezvous = 2 * SIZE};
    (void)s;
    return &caps;
}

int __wrap_ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err);
int __wrap_ibx_pinned_open(const struct ibx_cuda *cuda, size_t bytes, struct ibx_error *err)
{
    (void)cuda, (void)bytes, (void)err;
    return 0;
}

void __wrap_ibx_staging_set_turn(struct ibx_staging *staging, struct ibx_turn *turn);
void __wrap_ibx_staging_set_turn(struct ibx_staging *staging, struct ibx_turn *turn)
{
    (void)staging, (void)turn;
}

void __wrap_ibx_staging_set_chunk(struct ibx_staging *staging, size_t bytes);
void __wrap_ibx_staging_set_chunk(struct ibx_staging *staging, size_t bytes)
{
    (void)staging, (void)bytes;
}

unsigned __wrap_ibx_staging_chunks(const struct ibx_staging *staging);
unsigned __wrap_ibx_staging_chunks(const struct ibx_staging *staging)
{
    (void)staging;
    return has_chunks;
}

void __wrap_ibx_back_end_handle_resets(struct gpu_session *of);
void __wrap_ibx_back_end_handle_resets(struct gpu_session *of)
{
    (void)of;
}

/* ---------------------------------------------------------------------------------- tests */

static int begin(void **state)
{
    (void)state;
    x = (struct gpu_session){.staging = pipeline, .copy.bytes = SIZE};
    has_chunks = false;
    begun = 0;
    return 0;
}

/* Each time the GPU keeps the chunks, and the copy is begun again with others. It may be overdue
 * again: when the GPU has made the first ones, it gets to the stream by itself once more. */
static void test_overdue_again(NO_STATE)
{
    for (unsigned times = 0; times < 4; times++) {
        begin(state);
        overdue = times;
        chunks = times + 1;
        assert_int_equal(ibx_path_staged.to_reply(&x), IBX_REQUEST_DONE);
        assert_true(has_chunks && begun == times + 1 && !overdue);
    }
}

/* There are no others. */
static void test_no_more_chunks(NO_STATE)
{
    for (unsigned times = 1; times < 3; times++) {
        begin(state);
        overdue = chunks = times;
        assert_int_equal(ibx_path_staged.to_reply(&x), IBX_REQUEST_PASS);
        assert_true(!has_chunks && begun == times && !overdue);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_overdue_again),
                                       cmocka_unit_test(test_no_more_chunks)};
    return cmocka_run_group_tests_name("copies-staged", tests, NULL, NULL);
}
