/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Descriptors of cuDNN that share contents at the back end, when these contents are lost: with
 * the server's process, by a reset of the device, in a forked child, or while another thread
 * looks at them. */
#include "frontend-glue/preload/math_libraries/math_contents.h"
#include "frontend-glue/preload/math_libraries/math_libraries.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define NOT_INITIALIZED 1001
#define BAD_PARAM       2000
#define NO_MEMORY       4003
#define LIBRARY         ((void *)0x7770) /* the library's handle */
#define STATES          ((void *)0x5550)
#define REMOTES         4096u
#define FIRST           0x7a5b3c2d1000u
#define WAIT_MS         20 /* at most, for another thread, which may be waiting for this one */

/* ------------------------------------------------------------------------------- memory */

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);

static atomic_int mallocs_left = -1; /* how many calls succeed before one fails; -1: all succeed */

void *__wrap_malloc(size_t n)
{
    if (atomic_load(&mallocs_left) >= 0 && !atomic_fetch_sub(&mallocs_left, 1))
        return NULL;
    return __real_malloc(n);
}

/* ------------------------------------------------------------------------------- the back end */

/* The back end's handles of descriptors, and what was set in each. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    enum { NEVER, LIVE, ENDED } state;
    uint64_t set;
} remotes[REMOTES];
static unsigned made, wrong;                 /* requests that name unknown handles */
static unsigned ended_last, again = REMOTES; /* which handle is given again; REMOTES: none */
static atomic_uint requests, networks_made, networks_ended, server_ends;
static atomic_bool racing;
/* After the request with this number (0: none) another thread resets the device, or there is
 * memory only for its answer, which is kept. */
static unsigned resets_behind, fails_behind;

static uint64_t remote_of(unsigned i)
{
    return FIRST + 16 * i;
}

static unsigned place_of(uint64_t remote)
{
    return remote >= FIRST && remote < remote_of(made) ? (unsigned)((remote - FIRST) / 16)
                                                       : REMOTES;
}

static bool is_live(uint64_t remote)
{
    const unsigned i = place_of(remote);
    return i < REMOTES && remotes[i].state == LIVE;
}

static uint64_t sum_of(const struct ibx_writer *body)
{
    uint64_t sum = 1;
    for (size_t i = IBX_CONTENTS_FIRST_AT; i < body->length; i++)
        sum = sum * 31 + body->data[i];
    return sum;
}

/* Whether every address that looks like a descriptor's is that of an existing one. */
static bool names_live(const struct ibx_writer *body)
{
    for (size_t i = IBX_CONTENTS_FIRST_AT; i + 8 <= body->length; i++) {
        struct ibx_reader r = ibx_reader_of(body->data + i, 8);
        const uint64_t value = ibx_get_u64(&r);
        if (place_of(value) < REMOTES && !is_live(value))
            return false;
    }
    return true;
}

static void wait_for_more(atomic_uint *count, unsigned than)
{
    for (int ms = 0; ms < WAIT_MS && atomic_load(count) <= than; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Two threads make a network at once. A thread that looks into one continues when another
 * network has ended. */
static void race(const struct ibx_math_function *f)
{
    if (f->number == IBX_MATH_cudnnCreateRNNDescriptor) {
        const unsigned before = atomic_fetch_add(&networks_made, 1);
        wait_for_more(&networks_made, before - before % 2 + 1);
    } else if (f->number == IBX_MATH_cudnnGetRNNWeightSpaceSize) {
        wait_for_more(&networks_ended, atomic_load(&networks_ended));
    }
}

static int make(uint8_t *out)
{
    struct ibx_writer w = ibx_writer_of(out, 8);
    const unsigned i = again < REMOTES ? again : made++;
    remotes[i].state = LIVE;
    remotes[i].set = 0;
    again = REMOTES;
    ibx_put_u64(&w, remote_of(i));
    return 0;
}

/* What a request names after its handle. */
static void fill_named(const struct ibx_writer *body)
{
    for (size_t i = IBX_CONTENTS_FIRST_AT; i + 8 <= body->length; i++) {
        struct ibx_reader r = ibx_reader_of(body->data + i, 8);
        const unsigned place = place_of(ibx_get_u64(&r));
        if (place < REMOTES)
            remotes[place].set = sum_of(body);
    }
}

static int run(const struct ibx_math_function *f, uint64_t handle, const struct ibx_writer *body,
               uint8_t *out, size_t n)
{
    const unsigned i = place_of(handle);
    const bool own = handle == (uintptr_t)LIBRARY || !handle;
    if (f->arguments[0].kind == IBX_MATH_MAKES)
        return made < REMOTES ? make(out) : BAD_PARAM;
    if ((!own && !is_live(handle)) || !names_live(body)) {
        wrong++;
        return BAD_PARAM;
    }
    if (f->use == IBX_MATH_USE_ENDS)
        remotes[ended_last = i].state = ENDED;
    else if (f->number == IBX_MATH_cudnnGetRNNWeightParams)
        fill_named(body);
    else if (f->use == IBX_MATH_USE_SETS_UP)
        remotes[i].set = sum_of(body);
    else if (out && n == 8)
        memcpy(out, own ? &handle : &remotes[i].set, 8);
    return 0;
}

static void lose_all(void)
{
    for (unsigned i = 0; i < made; i++)
        remotes[i].state = ENDED;
}

static void reset_device(void)
{
    resets_behind = 0;
    lose_all();
    ibx_math_contents_lose();
}

bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    struct ibx_reader r = ibx_reader_of(e->body.data, e->body.length);
    const uint64_t handle = ibx_get_u64(&r);
    const struct ibx_math_function *f = ibx_math_find(ibx_get_u16(&r));
    atomic_fetch_add(&requests, 1);
    if (atomic_load(&racing))
        race(f);
    pthread_mutex_lock(&lock);
    *code = run(f, handle, &e->body, out, n);
    pthread_mutex_unlock(&lock);
    if (f->number == IBX_MATH_cudnnDestroyRNNDescriptor)
        atomic_fetch_add(&networks_ended, 1);
    if (f->number == resets_behind)
        reset_device();
    if (f->number == fails_behind) {
        fails_behind = 0;
        atomic_store(&mallocs_left, 1);
    }
    return true;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    (void)handle;
    assert_int_equal(fact, IBX_FRONTEND_LOSSES);
    *answer = (int)atomic_load(&server_ends);
    return true;
}

/* ------------------------------------------------------------------------------- the program */

static void *made_by(unsigned number)
{
    void *descriptor = NULL;
    const union ibx_math_value values[] = {{.p = &descriptor}};
    assert_int_equal(ibx_frontend_math(number, values), 0);
    return descriptor;
}

static int end_by(unsigned number, void *descriptor)
{
    const union ibx_math_value values[] = {{.p = descriptor}};
    return ibx_frontend_math(number, values);
}

static void *tensor(void)
{
    return made_by(IBX_MATH_cudnnCreateTensorDescriptor);
}

static int set_tensor(void *of, int size)
{
    const union ibx_math_value values[] = {{.p = of}, {.i = 0}, {.i = 0}, {.i = size},
                                           {.i = 3},  {.i = 4}, {.i = 5}};
    return ibx_frontend_math(IBX_MATH_cudnnSetTensor4dDescriptor, values);
}

static int end_tensor(void *of)
{
    return end_by(IBX_MATH_cudnnDestroyTensorDescriptor, of);
}

/* Returns 0 after an error. */
static uint64_t size_of(void *of)
{
    uint64_t size = 0;
    const union ibx_math_value values[] = {{.p = of}, {.p = &size}};
    return ibx_frontend_math(IBX_MATH_cudnnGetTensorSizeInBytes, values) ? 0 : size;
}

static int set_dropout(void *of, void *states)
{
    const union ibx_math_value values[] = {{.p = of},     {.p = LIBRARY}, {.i = 0},
                                           {.p = states}, {.l = 4},       {.l = 7}};
    return ibx_frontend_math(IBX_MATH_cudnnSetDropoutDescriptor, values);
}

static int set_network(void *of, int size, void *dropout)
{
    union ibx_math_value values[15] = {{.p = of}};
    for (unsigned i = 1; i < 13; i++)
        values[i].i = size;
    values[13].p = dropout;
    values[14].i = 0;
    return ibx_frontend_math(IBX_MATH_cudnnSetRNNDescriptor_v8, values);
}

static int ask_network(void *of)
{
    uint64_t size = 0;
    const union ibx_math_value values[] = {{.p = LIBRARY}, {.p = of}, {.p = &size}};
    return ibx_frontend_math(IBX_MATH_cudnnGetRNNWeightSpaceSize, values);
}

/* Fills that tensor. */
static int find_matrix(void *of, void *matrix)
{
    void *at = NULL;
    const union ibx_math_value values[] = {{.p = LIBRARY}, {.p = of},  {.i = 0},      {.l = 100},
                                           {.p = STATES},  {.i = 4},   {.p = matrix}, {.p = &at},
                                           {.p = NULL},    {.p = NULL}};
    return ibx_frontend_math(IBX_MATH_cudnnGetRNNWeightParams, values);
}

/* With this many dimensions the answer is longer than most. */
static int dimensions_of(void *of)
{
    int type, n, sizes[80], steps[80];
    const union ibx_math_value values[] = {{.p = of}, {.i = 80},    {.p = &type},
                                           {.p = &n}, {.p = sizes}, {.p = steps}};
    return ibx_frontend_math(IBX_MATH_cudnnGetTensorNdDescriptor, values);
}

/* With this many sequences the request is longer than most. */
static int set_sequences(void *of)
{
    int lengths[2000] = {0};
    const union ibx_math_value values[] = {{.p = of},   {.i = 0}, {.i = 0},       {.i = 1},
                                           {.i = 2000}, {.i = 1}, {.p = lengths}, {.p = NULL}};
    return ibx_frontend_math(IBX_MATH_cudnnSetRNNDataDescriptor, values);
}

/* ------------------------------------------------------------------------------- cases */

static int begin(void **state)
{
    (void)state;
    wrong = resets_behind = fails_behind = 0;
    return 0;
}

static void equal_contents_are_requested_once(void **state)
{
    void *one = tensor(), *other = tensor();
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    const uint64_t size = size_of(one);
    const unsigned before = atomic_load(&requests);
    assert_int_equal(set_tensor(other, 1), 0);
    assert_int_equal(size_of(other), size);
    assert_int_equal(end_tensor(other), 0);
    assert_int_equal(atomic_load(&requests), before);
    assert_int_equal(set_tensor(one, 2), 0);
    assert_true(size_of(one) && size_of(one) != size);
    assert_int_equal(end_tensor(one), 0);
    assert_int_equal(wrong, 0);
}

/* The back end is not asked, because it may use the same number for another handle. */
static void destroyed_descriptor_is_invalid(void **state)
{
    void *one = tensor(), *network = made_by(IBX_MATH_cudnnCreateRNNDescriptor);
    void *dropout = made_by(IBX_MATH_cudnnCreateDropoutDescriptor);
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    assert_int_equal(set_network(network, 1, NULL), 0);
    assert_int_equal(end_tensor(one), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyDropoutDescriptor, dropout), 0);
    const unsigned before = atomic_load(&requests);
    assert_int_equal(size_of(one), 0);
    assert_int_equal(set_tensor(one, 2), NOT_INITIALIZED);
    assert_int_equal(end_tensor(one), NOT_INITIALIZED);
    assert_int_equal(set_network(network, 1, dropout), BAD_PARAM);
    assert_int_equal(find_matrix(network, one), BAD_PARAM);
    assert_int_equal(atomic_load(&requests), before);
    assert_int_equal(ask_network(network), 0); /* unchanged */
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDescriptor, network), 0);
    assert_int_equal(wrong, 0);
}

/* Of the contents that no descriptor uses, the most recently used ones are kept. */
static void recently_used_contents_are_kept(void **state)
{
    void *one = tensor(), *other = tensor();
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    for (int i = 0; i < 900; i++) {
        assert_int_equal(set_tensor(other, 100 + i), 0);
        if (i % 100)
            continue;
        const unsigned before = atomic_load(&requests);
        assert_int_equal(set_tensor(one, 2 + i % 200 / 100), 0);
        assert_int_equal(set_tensor(one, 1), 0);
        assert_true(i < 200 || atomic_load(&requests) == before);
    }
    const unsigned before = atomic_load(&requests);
    assert_int_equal(set_tensor(other, 700), 0); /* 300 others were set since then */
    assert_int_equal(atomic_load(&requests), before);
    assert_int_equal(set_tensor(other, 100), 0); /* 900 others */
    assert_true(atomic_load(&requests) > before);
    assert_int_equal(end_tensor(one), 0);
    assert_int_equal(end_tensor(other), 0);
    assert_int_equal(wrong, 0);
}

/* Existing contents are made again, and the back end is not asked to destroy them twice. */
static bool is_made_again(void *before, uint64_t size)
{
    void *one = tensor();
    bool good = !set_tensor(one, 1) && size_of(one) == size;
    good = good && !set_tensor(before, 1) && size_of(before) == size;
    good = good && !end_tensor(one) && !end_tensor(before);
    for (int i = 0; good && i < 600; i++) { /* more than are kept */
        one = tensor();
        good = !set_tensor(one, 100 + i) && !end_tensor(one);
    }
    return good && !wrong;
}

static void the_server_ends(void **state)
{
    void *one = tensor();
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    const uint64_t size = size_of(one);
    lose_all();
    atomic_fetch_add(&server_ends, 1);
    assert_true(is_made_again(one, size));
}

static void the_device_is_reset(void **state)
{
    void *one = tensor();
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    const uint64_t size = size_of(one);
    reset_device();
    assert_int_equal(size_of(one), size); /* without GVirtuS it is in memory of the host */
    reset_device();
    assert_true(is_made_again(one, size));
}

/* Contents that were made before the reset and belong to no descriptor yet are not given to
 * another one. */
static void the_device_is_reset_meanwhile(void **state)
{
    static const unsigned behind[] = {IBX_MATH_cudnnCreateTensorDescriptor,
                                      IBX_MATH_cudnnSetTensor4dDescriptor};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        reset_device();
        resets_behind = behind[i];
        void *one = tensor();
        assert_int_equal(set_tensor(one, 1), 0);
        assert_int_equal(resets_behind, 0);
        const uint64_t size = size_of(one);
        assert_true(size && is_made_again(one, size));
    }
    void *network = made_by(IBX_MATH_cudnnCreateRNNDescriptor), *matrix = tensor();
    assert_int_equal(set_network(network, 1, NULL), 0);
    resets_behind = IBX_MATH_cudnnGetRNNWeightParams;
    assert_int_equal(find_matrix(network, matrix), 0);
    assert_int_equal(resets_behind, 0);
    assert_int_equal(size_of(matrix), 0); /* it depends on the network */
    assert_int_equal(find_matrix(network, matrix), 0);
    wrong = 0;
    assert_true(size_of(matrix));
    assert_int_equal(end_tensor(matrix), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDescriptor, network), 0);
    assert_int_equal(wrong, 0);
}

/* Contents that the back end has filled cannot be kept, and are destroyed there. Another
 * descriptor gets their number, and an identical request fills it. */
static void no_memory_to_keep_contents(void **state)
{
    void *network = made_by(IBX_MATH_cudnnCreateRNNDescriptor), *matrix = tensor();
    (void)state;
    assert_int_equal(set_network(network, 2, NULL), 0);
    fails_behind = IBX_MATH_cudnnGetRNNWeightParams;
    assert_int_equal(find_matrix(network, matrix), NO_MEMORY);
    assert_int_equal(fails_behind, 0);
    again = ended_last;
    assert_int_equal(find_matrix(network, matrix), 0);
    assert_int_equal(again, REMOTES);
    assert_true(size_of(matrix));
    assert_int_equal(end_tensor(matrix), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDescriptor, network), 0);
    assert_int_equal(wrong, 0);
}

static void a_call_has_no_memory(void **state)
{
    void *one = tensor(), *data = made_by(IBX_MATH_cudnnCreateRNNDataDescriptor);
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    atomic_store(&mallocs_left, 0);
    assert_int_equal(dimensions_of(one), NO_MEMORY);
    assert_int_equal(dimensions_of(one), 0);
    assert_int_equal(set_sequences(data), 0); /* now it has one of its own */
    atomic_store(&mallocs_left, 0);
    assert_int_equal(set_sequences(data), NO_MEMORY);
    assert_int_equal(set_sequences(data), 0);
    assert_int_equal(end_tensor(one), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDataDescriptor, data), 0);
    assert_int_equal(wrong, 0);
}

/* The contents at the back end belong to the parent, and stay for it. */
static void a_child_makes_its_own(void **state)
{
    void *one = tensor(), *network = made_by(IBX_MATH_cudnnCreateRNNDescriptor);
    int status = -1;
    (void)state;
    assert_int_equal(set_tensor(one, 1), 0);
    assert_int_equal(set_network(network, 1, NULL), 0);
    const uint64_t size = size_of(one);
    const pid_t child = fork();
    if (!child) {
        lose_all();
        void *new_one = made_by(IBX_MATH_cudnnCreateRNNDescriptor); /* newly made */
        const bool good = !ask_network(new_one);
        _exit(good && is_made_again(one, size) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    const unsigned before = atomic_load(&requests);
    assert_int_equal(set_tensor(one, 1), 0);
    assert_int_equal(size_of(one), size);
    assert_int_equal(atomic_load(&requests), before);
    assert_int_equal(end_tensor(one), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDescriptor, network), 0);
    assert_int_equal(wrong, 0);
}

static void *use_network(void *network)
{
    return ask_network(network) ? "refused" : NULL;
}

/* The network is set again, because its dropout has changed: once, and the contents that a
 * thread has found stay as long as it uses them. */
static void threads_use_one_network(void **state)
{
    void *network = made_by(IBX_MATH_cudnnCreateRNNDescriptor);
    void *dropout = made_by(IBX_MATH_cudnnCreateDropoutDescriptor), *said;
    (void)state;
    assert_int_equal(set_network(network, 1, dropout), 0);
    for (unsigned i = 0; i < 6; i++) {
        pthread_t threads[2];
        assert_int_equal(set_dropout(dropout, i % 2 ? NULL : STATES), 0);
        atomic_store(&networks_made, 0);
        atomic_store(&racing, true);
        for (unsigned t = 0; t < 2; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, use_network, network), 0);
        for (unsigned t = 0; t < 2; t++) {
            assert_int_equal(pthread_join(threads[t], &said), 0);
            assert_null(said);
        }
        atomic_store(&racing, false);
    }
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyRNNDescriptor, network), 0);
    assert_int_equal(end_by(IBX_MATH_cudnnDestroyDropoutDescriptor, dropout), 0);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(equal_contents_are_requested_once, begin),
        cmocka_unit_test_setup(destroyed_descriptor_is_invalid, begin),
        cmocka_unit_test_setup(recently_used_contents_are_kept, begin),
        cmocka_unit_test_setup(the_server_ends, begin),
        cmocka_unit_test_setup(the_device_is_reset, begin),
        cmocka_unit_test_setup(the_device_is_reset_meanwhile, begin),
        cmocka_unit_test_setup(no_memory_to_keep_contents, begin),
        cmocka_unit_test_setup(a_call_has_no_memory, begin),
        cmocka_unit_test_setup(a_child_makes_its_own, begin),
        cmocka_unit_test_setup(threads_use_one_network, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
