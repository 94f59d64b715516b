/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Modules and kernels of several clients with the same addresses. */
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "tests/fixtures/unit.h"

#include "common/quota.h"
#include "common/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PARENT  (&users[0])
#define CHILD   (&users[1])
#define OTHER   (&users[2])
#define THIRD   (&users[3])
#define HANDLE  "0x4a0128"
#define KERNEL  UINT64_C(0x401b30)
#define NOBODYS UINT64_C(0x401c00)

static struct ibx_functions_user users[4];

struct request {
    uint8_t bytes[400];
    size_t n;
};

static void put_string(struct ibx_writer *w, const char *text)
{
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_u64(w, strlen(text) + 1);
    ibx_put_bytes(w, text, strlen(text) + 1);
}

/* Makes a request like G5's front end; `kernel` 0: that of a module. */
static struct request request(const char *handle, uint64_t kernel, const char *called)
{
    struct request q = {0};
    struct ibx_writer w = ibx_writer_of(q.bytes, sizeof(q.bytes));
    put_string(&w, handle);
    if (kernel) {
        ibx_put_u64(&w, kernel);
        put_string(&w, called);
        put_string(&w, called);
        for (unsigned i = 0; i < 5; i++)
            ibx_put_u64(&w, 0);
    }
    q.n = w.length;
    return q;
}

static struct request passed(struct ibx_functions_user *user, const char *name, const char *handle,
                             uint64_t kernel, const char *called)
{
    struct request q = request(handle, kernel, called);
    ibx_functions_name(user, name, q.bytes, q.n, 0);
    return q;
}

static const char *handle_of(const struct request *q)
{
    return (const char *)q->bytes + 16;
}

static bool is_refused(const struct request *q)
{
    struct ibx_reader r = ibx_reader_of(q->bytes + 8, 8);
    return !ibx_get_u64(&r);
}

static uint64_t take(struct ibx_functions_user *user, uint64_t address)
{
    const uint64_t name = ibx_functions_take(user, address);
    ibx_functions_let_go(user);
    return name;
}

/* Registers a module with one kernel. */
static uint64_t begin(struct ibx_functions_user *user, const char *handle, uint64_t kernel,
                      const char *called)
{
    const struct request module = passed(user, "cudaRegisterFatBinary", handle, 0, NULL);
    const struct request function = passed(user, "cudaRegisterFunction", handle, kernel, called);
    struct ibx_reader r = ibx_reader_of(function.bytes + 16 + strlen(handle) + 1, 8);
    const uint64_t name = ibx_get_u64(&r);
    assert_string_not_equal(handle_of(&module), handle);
    assert_string_equal(handle_of(&module), handle_of(&function));
    assert_int_equal(strlen(handle_of(&module)), strlen(handle));
    assert_int_not_equal(name, kernel);
    assert_true(take(user, kernel) == name);
    return name;
}

static void end(struct ibx_functions_user *user, const char *handle)
{
    passed(user, "cudaUnregisterFatBinary", handle, 0, NULL);
}

/* Must run first: no handler that this code understands has registered anything yet. */
static void unknown_forms(void **state)
{
    struct request q = passed(PARENT, "cudaRegisterFunction", HANDLE, 0, NULL);
    const struct request same = request(HANDLE, 0, NULL);
    (void)state;
    assert_memory_equal(&q, &same, sizeof(q));
    assert_true(take(PARENT, KERNEL) == KERNEL);
    /* A child whose parent had another process of the back end has to register its own modules. */
    assert_false(ibx_functions_share(CHILD, KERNEL));
    ibx_functions_ended(CHILD->client);
    /* Handlers get requests that they understand with a made-up name. */
    struct request forged = {.n = 31};
    memcpy(forged.bytes + 16, "m0000000000001", 15);
    forged.bytes[0] = 15;
    forged.bytes[8] = 1;
    struct request empty = forged;
    empty.bytes[0] = 0;
    ibx_functions_name(PARENT, "cudaRegisterFatBinary", forged.bytes, forged.n, 0);
    ibx_functions_name(PARENT, "cudaRegisterFatBinary", empty.bytes, empty.n, 0);
    assert_true(is_refused(&forged) && is_refused(&empty));
}

/* "handle", a NUL, and bytes up to `n`. */
static struct request padded(const char *handle, size_t n)
{
    struct request q = {.n = 16 + n};
    struct ibx_writer w = ibx_writer_of(q.bytes, sizeof(q.bytes));
    ibx_put_u64(&w, n);
    ibx_put_u64(&w, n);
    ibx_put_bytes(&w, handle, strlen(handle) + 1);
    return q;
}

/* Must run second: a module without a kernel, which other clients name. */
static void names_of_others(void **state)
{
    static const char *const calls[] = {"cudaRegisterFatBinary", "cudaRegisterFatBinaryEn",
                                        "cudaRegisterFunction", "cudaUnregisterFatBinary",
                                        "cudaRegisterVar"};
    const struct request own = passed(PARENT, "cudaRegisterFatBinary", "0x7f0011223344", 0, NULL);
    const char *const given = handle_of(&own);
    (void)state;
    assert_int_equal(given[0], 'm');
    assert_true(!take(OTHER, NOBODYS));
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (size_t n = strlen(given) + 2; n < 40; n++) {
            struct request longer = padded(given, n);
            ibx_functions_name(OTHER, calls[i], longer.bytes, longer.n, 0);
            assert_true(is_refused(&longer));
        }
        const struct request named = passed(OTHER, calls[i], given, KERNEL, "sum"),
                             mine = passed(PARENT, calls[i], given, KERNEL, "sum");
        assert_true(is_refused(&named) || strcmp(handle_of(&named), given) != 0);
        assert_true(is_refused(&mine) || strcmp(handle_of(&mine), given) != 0);
    }
    struct request longer = padded("0x7f0011223344", 300);
    ibx_functions_name(PARENT, "cudaRegisterFatBinaryEn", longer.bytes, longer.n, 0);
    assert_true(is_refused(&longer));
    const struct request end_of =
        passed(PARENT, "cudaRegisterFatBinaryEn", "0x7f0011223344", 0, NULL);
    assert_string_equal(handle_of(&end_of), given);
    end(PARENT, "0x7f0011223344");
}

static void same_addresses(void **state)
{
    (void)state;
    const uint64_t first = begin(PARENT, HANDLE, KERNEL, "sum"),
                   other = begin(OTHER, HANDLE, KERNEL, "product");
    assert_true(first != other && take(PARENT, KERNEL) == first && take(OTHER, KERNEL) == other);
    assert_true(!take(PARENT, NOBODYS));
    /* In the other direction a name belongs only to the client that has it. */
    assert_true(ibx_functions_address(PARENT, first) == KERNEL);
    assert_true(ibx_functions_address(OTHER, other) == KERNEL);
    assert_true(!ibx_functions_address(OTHER, first) && !ibx_functions_address(PARENT, other));
    assert_true(!ibx_functions_address(PARENT, KERNEL) && !ibx_functions_address(PARENT, 0));
    end(OTHER, HANDLE);
    assert_true(!ibx_functions_address(OTHER, other));
    assert_true(take(PARENT, KERNEL) == first);
    end(PARENT, HANDLE);
    assert_true(!take(PARENT, KERNEL) && !take(OTHER, KERNEL));
    end(PARENT, HANDLE); /* a second time */
}

/* Two libraries of a client have the same template at one address. Either may be closed first. */
static void shared_addresses(void **state)
{
    (void)state;
    const uint64_t first = begin(PARENT, HANDLE, KERNEL, "sum"),
                   second = begin(PARENT, "0x7f0055667788", KERNEL, "sum"),
                   third = begin(PARENT, "0x7f0099aabbcc", KERNEL, "sum"),
                   again = begin(OTHER, HANDLE, KERNEL, "product");
    assert_true(first != second && second != third && take(PARENT, KERNEL) == third);
    assert_true(ibx_functions_address(PARENT, third) == KERNEL);
    assert_true(ibx_functions_address(PARENT, first) == KERNEL); /* although it is hidden */
    assert_true(!ibx_functions_address(OTHER, first));
    end(PARENT, "0x7f0055667788");
    assert_true(take(PARENT, KERNEL) == third);
    end(PARENT, "0x7f0099aabbcc");
    assert_true(take(PARENT, KERNEL) == first && take(OTHER, KERNEL) == again);
    passed(PARENT, "cudaRegisterFunction", HANDLE, KERNEL, "sum"); /* a second time */
    assert_true(take(PARENT, KERNEL) > again);
    end(PARENT, HANDLE);
    assert_true(take(PARENT, KERNEL) != first && take(OTHER, KERNEL) == again);
    end(OTHER, HANDLE);
    assert_true(!take(PARENT, KERNEL) && !take(OTHER, KERNEL));
}

static void forked_children(void **state)
{
    (void)state;
    const uint64_t name = begin(PARENT, HANDLE, KERNEL, "sum");
    assert_true(take(CHILD, KERNEL) == name);
    const struct request left = passed(CHILD, "cudaUnregisterFatBinary", HANDLE, 0, NULL);
    assert_true(is_refused(&left));
    assert_true(take(PARENT, KERNEL) == name && take(CHILD, KERNEL) == name);
    /* The parent has ended, and another program has the same addresses: it is unclear whose the
     * child is. */
    ibx_functions_orphan(PARENT->client);
    assert_true(take(CHILD, KERNEL) == name);
    const uint64_t others = begin(OTHER, HANDLE, KERNEL, "product");
    ibx_functions_orphan(OTHER->client);
    assert_true(take(OTHER, KERNEL) == others && !take(CHILD, KERNEL));
    end(OTHER, HANDLE);
    assert_true(take(CHILD, KERNEL) == name);
    /* Clients of another tenant do not count. */
    const struct ibx_tenant *const elsewhere = (const struct ibx_tenant *)&name;
    CHILD->tenant = elsewhere;
    assert_true(!take(CHILD, KERNEL));
    CHILD->tenant = NULL;
    end(PARENT, HANDLE);
    assert_true(!take(CHILD, KERNEL));
}

/* There are two possible parents, ended or running. A third program gets variables of neither. */
static void doubtful_parents(void **state)
{
    (void)state;
    const uint64_t first = begin(PARENT, HANDLE, KERNEL, "sum");
    assert_true(take(CHILD, KERNEL) == first);
    const uint64_t other = begin(OTHER, HANDLE, KERNEL, "sum");
    assert_true(!take(CHILD, KERNEL) && take(PARENT, KERNEL) == first);
    CHILD->parent = PARENT->client;
    assert_true(take(CHILD, KERNEL) == first);
    CHILD->parent = 0;
    ibx_functions_orphan(PARENT->client); /* one after the other */
    assert_true(take(CHILD, KERNEL) == other && take(OTHER, KERNEL) == other);
    assert_true(take(PARENT, KERNEL) == first); /* it comes again */
    assert_true(!take(CHILD, KERNEL));
    end(OTHER, HANDLE);
    ibx_functions_orphan(PARENT->client);
    const uint64_t product = begin(THIRD, "0x4b0128", KERNEL, "sum");
    assert_true(take(THIRD, KERNEL) == product && !take(CHILD, KERNEL));
    assert_true(ibx_functions_any(PARENT->client) && !ibx_functions_any(OTHER->client));
    end(THIRD, "0x4b0128");
    assert_true(take(CHILD, KERNEL) == first);
    end(PARENT, HANDLE);
    assert_false(ibx_functions_any(PARENT->client));
}

/* Functions where handlers read them, which is not where a longer or shorter request has one. */
static void functions_elsewhere(void **state)
{
    static const struct {
        const char *call;
        size_t n, at, other;
        uint8_t first; /* byte: a length that is not 0 */
    } calls[] = {{"cudaFuncGetAttributes", 200, 152, 192, 144},
                 {"cudaFuncGetAttributes", 200, 152, 192, 1},
                 {"cudaOccupancyMaxActiveB", 60, 8, 12, 0},
                 {"cudaOccupancyMaxActiveB", 60, 12, 52, 1}};
    begin(PARENT, HANDLE, KERNEL, "sum");
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        uint8_t body[200] = {calls[i].first};
        struct ibx_writer w = ibx_writer_of(body + calls[i].other, 8);
        ibx_put_u64(&w, KERNEL);
        w = ibx_writer_of(body + calls[i].at, 8);
        ibx_put_u64(&w, NOBODYS);
        ibx_functions_name(PARENT, calls[i].call, body, calls[i].n, 0);
        ibx_functions_let_go(PARENT);
        struct ibx_reader r = ibx_reader_of(body + calls[i].at, 8);
        assert_int_equal(ibx_get_u64(&r), 0);
    }
    end(PARENT, HANDLE);
}

static void launches_use_modules(void **state)
{
    const uint64_t name = begin(PARENT, HANDLE, KERNEL, "sum");
    static const struct {
        const char *call;
        size_t n, at;
        uint8_t first; /* byte: a length that is not 0 */
    } calls[] = {{"cudaLaunchKernel", 60, 0, 0},         {"cudaFuncGetAttributes", 160, 152, 144},
                 {"cudaFuncSetAttribute", 16, 0, 0},     {"cudaFuncSetCacheConfig", 12, 0, 0},
                 {"cudaOccupancyMaxActiveB", 32, 12, 4}, {"cudaOccupancyMaxActiveB", 28, 8, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (unsigned good = 0; good < 2; good++) {
            uint8_t body[200] = {calls[i].first};
            struct ibx_writer w = ibx_writer_of(body + calls[i].at, 8);
            ibx_put_u64(&w, good ? KERNEL : NOBODYS);
            ibx_functions_name(PARENT, calls[i].call, body, calls[i].n, 0);
            ibx_functions_let_go(PARENT);
            struct ibx_reader r = ibx_reader_of(body + calls[i].at, 8);
            assert_true(ibx_get_u64(&r) == (good ? name : 0));
        }
        uint8_t none = 0;
        ibx_functions_name(PARENT, calls[i].call, &none, 0, 0);
        ibx_functions_name(PARENT, calls[i].call, &none, 1, 0);
    }
    end(PARENT, HANDLE);
}

/* No handler gets strings without an end, or strings longer than their request. */
static void malformed(void **state)
{
    begin(PARENT, HANDLE, KERNEL, "sum");
    const struct request good = request(HANDLE, KERNEL + 16, "sum");
    unsigned refused = 0;
    (void)state;
    for (size_t n = 0; n < good.n - 40; n++) {
        struct request q = good;
        ibx_functions_name(PARENT, "cudaRegisterFunction", q.bytes, n, 0);
        refused += n >= 16 && is_refused(&q);
        assert_true(!take(PARENT, KERNEL + 16));
    }
    assert_int_equal(refused, good.n - 40 - 16);
    const struct request variable = passed(PARENT, "cudaRegisterVar", HANDLE, KERNEL, "sum");
    assert_true(is_refused(&variable));
    end(PARENT, HANDLE);
}

static atomic_bool ended;

static void *end_it(void *argument)
{
    (void)argument;
    end(PARENT, HANDLE);
    atomic_store(&ended, true);
    return NULL;
}

/* A module in use by a launch is removed after that launch. */
static void module_in_use_is_removed_later(void **state)
{
    char name[IBX_FUNCTIONS_MODULE];
    pthread_t ending;
    (void)state;
    begin(PARENT, HANDLE, KERNEL, "sum");
    assert_true(ibx_functions_take(CHILD, KERNEL));
    struct ibx_client_module *const module = CHILD->held;
    assert_int_equal(pthread_create(&ending, NULL, end_it, NULL), 0);
    while (take(PARENT, KERNEL))
        sched_yield();
    assert_false(atomic_load(&ended));
    ibx_functions_let_go(CHILD);
    pthread_join(ending, NULL);
    assert_false(ibx_functions_hold(CHILD, module));
    assert_null(CHILD->held);
    assert_true(ibx_functions_hold(CHILD, NULL));
    /* The launch does not return, so the module stays until it has. */
    begin(PARENT, HANDLE, KERNEL, "sum");
    assert_true(ibx_functions_take(CHILD, KERNEL));
    const struct request left = passed(PARENT, "cudaUnregisterFatBinary", HANDLE, 0, NULL);
    assert_true(is_refused(&left) && !take(PARENT, KERNEL));
    assert_false(ibx_functions_any_over());
    ibx_functions_let_go(CHILD);
    assert_true(ibx_functions_any_over());
    assert_int_equal(ibx_functions_next_over(name), strlen(HANDLE) + 1);
    assert_false(ibx_functions_any_over());
}

/* Processor time of this thread, in seconds, for a client of many modules with one kernel each. */
static double seconds_to_begin(uint64_t client)
{
    struct ibx_functions_user user = {.client = client};
    struct timespec begun, done;
    char handle[24];
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (unsigned i = 0; i < 500; i++) {
        snprintf(handle, sizeof(handle), "0x%x", 0x500000 + 64 * i);
        passed(&user, "cudaRegisterFatBinary", handle, 0, NULL);
        passed(&user, "cudaRegisterFunction", handle, 0x600000 + 64 * i, "k");
        assert_true(take(&user, 0x600000 + 64 * i));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* Processor time of this thread for 100 clients that come and go. */
static double seconds_to_leave(uint64_t first)
{
    struct timespec begun, done;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
    for (uint64_t client = first; client < first + 100; client++) {
        ibx_functions_orphan(client);
        assert_false(ibx_functions_any(client));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &done);
    return (double)(done.tv_sec - begun.tv_sec) + 1e-9 * (double)(done.tv_nsec - begun.tv_nsec);
}

/* A client registers without end and leaves everything behind. Others come and go as fast as
 * before. */
static void a_client_of_very_many_modules(void **state)
{
    struct ibx_functions_user many = {.client = 100};
    (void)state;
    seconds_to_begin(101);
    const double alone = seconds_to_begin(102);
    for (unsigned i = 0; i < 100000; i++) {
        passed(&many, "cudaRegisterFatBinary", HANDLE, 0, NULL);
        passed(&many, "cudaRegisterFunction", HANDLE, 0x600000 + 64 * (i % 500), "k");
    }
    ibx_functions_orphan(many.client);
    const double beside = seconds_to_begin(103), leaving = seconds_to_leave(104);
    if (leaving > 0.05)
        fail_msg("100 clients leave in %f s beside 100000 modules of another one", leaving);
    if (beside > 10 * alone + 0.05)
        fail_msg("%f s beside 100000 modules of another client, %f s before", beside, alone);
    /* It has its own modules, those that were registered last. */
    assert_true(take(&many, 0x600000));
    end(&many, HANDLE);
}

/* A tenant's registrations are limited. Those of a module no longer count after its end, except
 * for its entry, which stays. */
static void registrations_count_for_the_tenant(void **state)
{
    struct ibx_quota quota = {.most = 8000};
    struct ibx_functions_user user = {.client = 200, .quota = &quota};
    struct request module = request(HANDLE, 0, NULL), function = request(HANDLE, KERNEL, "k");
    unsigned n = 0;
    (void)state;
    assert_true(ibx_functions_name(&user, "cudaRegisterFatBinary", module.bytes, module.n, 0));
    const uint64_t one = atomic_load(&quota.used);
    assert_true(one > module.n);
    while (ibx_functions_name(&user, "cudaRegisterFunction", function.bytes, function.n, 0) &&
           n < 100)
        function = request(HANDLE, KERNEL + 16 * ++n, "k");
    assert_true(n > 5 && n < 16 && is_refused(&function));
    module = request("0x4a0200", 0, NULL);
    assert_false(ibx_functions_name(&user, "cudaRegisterFatBinary", module.bytes, module.n, 0));
    assert_true(is_refused(&module));
    assert_true(take(&user, KERNEL)); /* existing ones still work */
    end(&user, HANDLE);
    assert_true(atomic_load(&quota.used) > 0 && atomic_load(&quota.used) < 200);
    module = request(HANDLE, 0, NULL);
    assert_false(ibx_functions_name(&user, "cudaRegisterFatBinary", module.bytes, module.n, 8000));
    module = request(HANDLE, 0, NULL);
    assert_true(ibx_functions_name(&user, "cudaRegisterFatBinary", module.bytes, module.n, 5000));
    assert_in_range(atomic_load(&quota.used), 5000 + one, 5200 + one);
    end(&user, HANDLE);
    assert_true(atomic_load(&quota.used) < 400);
    for (n = 0; n < 1000; n++) { /* but not without limit */
        module = request(HANDLE, 0, NULL);
        if (!ibx_functions_name(&user, "cudaRegisterFatBinary", module.bytes, module.n, 0))
            break;
        end(&user, HANDLE);
    }
    assert_true(n > 20 && n < 1000);
}

/* If a fat binary is refused, the handler skips the two lengths of its name only. It must not take
 * the name itself for a fat binary, which nobody has checked. */
static void names_hide_no_fat_binary(void **state)
{
    struct ibx_functions_user user = {.client = 210};
    uint8_t hidden[64] = {0};
    struct request q = {0};
    (void)state;
    struct ibx_writer name = ibx_writer_of(hidden, sizeof(hidden));
    ibx_put_u32(&name, 0x466243b1); /* the wrapper's magic number */
    ibx_put_u32(&name, 1);
    ibx_put_u64(&name, sizeof(hidden) - 24);
    ibx_put_u64(&name, sizeof(hidden) - 24);
    hidden[sizeof(hidden) - 1] = 'x'; /* not the end of a string */
    struct ibx_writer w = ibx_writer_of(q.bytes, sizeof(q.bytes));
    ibx_put_u64(&w, sizeof(hidden));
    ibx_put_u64(&w, sizeof(hidden));
    ibx_put_bytes(&w, hidden, sizeof(hidden));
    assert_true(ibx_functions_name(&user, "cudaRegisterFatBinary", q.bytes, w.length, 0));
    assert_true(is_refused(&q));
    struct ibx_reader r = ibx_reader_of(q.bytes + 24, 16);
    const uint64_t length = ibx_get_u64(&r), present = ibx_get_u64(&r);
    assert_true(length > sizeof(q.bytes) && present);
}

/* The client's next module to end is this one. */
static void expect_removal(const char *given)
{
    char name[IBX_FUNCTIONS_MODULE];
    assert_int_equal(ibx_functions_next_over(name), strlen(given) + 1);
    assert_string_equal(name, given);
}

static void none_goes(void)
{
    char name[IBX_FUNCTIONS_MODULE];
    assert_int_equal(ibx_functions_next_over(name), 0);
}

/* A module of an ended process is removed when its children have said that they ask for their
 * modules, and none uses it. */
static void modules_of_ended(void **state)
{
    struct ibx_quota quota = {.most = 100000};
    struct ibx_functions_user of[4] = {{.client = 300, .quota = &quota},
                                       {.client = 301, .quota = &quota},
                                       {.client = 302, .quota = &quota},
                                       {.client = 303, .quota = &quota}};
    struct ibx_functions_user *const parent = &of[0], *const child = &of[1],
                                     *const grandchild = &of[2];
    (void)state;
    const struct request first = passed(parent, "cudaRegisterFatBinary", HANDLE, 0, NULL);
    passed(parent, "cudaRegisterFunction", HANDLE, KERNEL, "sum");
    const uint64_t name = take(parent, KERNEL), used = atomic_load(&quota.used);
    assert_true(name && !ibx_functions_end(300) && !ibx_functions_share(parent, 0));
    assert_true(ibx_functions_end(300) && !ibx_functions_share(child, NOBODYS));
    assert_true(ibx_functions_share(child, KERNEL) && ibx_functions_share(child, KERNEL));
    const struct request second = passed(child, "cudaRegisterFatBinary", "0x4a0200", 0, NULL);
    ibx_functions_ended(300);
    none_goes();
    /* The child of a child asks after its parent has ended. Another program exists too. */
    passed(&of[3], "cudaRegisterFatBinary", HANDLE, 0, NULL);
    passed(&of[3], "cudaRegisterFunction", HANDLE, KERNEL, "product");
    assert_true(take(child, KERNEL) == name && !take(grandchild, KERNEL));
    grandchild->parent = 301;
    assert_true(ibx_functions_share(grandchild, KERNEL));
    grandchild->parent = 0;
    ibx_functions_ended(301);
    expect_removal(handle_of(&second));
    none_goes();
    assert_true(take(grandchild, KERNEL) == name);
    ibx_functions_ended(302);
    end(&of[3], HANDLE);
    assert_true(atomic_load(&quota.used) > used);
    expect_removal(handle_of(&first));
    none_goes();
    assert_true(atomic_load(&quota.used) < used && !take(grandchild, KERNEL));
    assert_true(!ibx_functions_share(grandchild, KERNEL));
    ibx_functions_ended(302);
    assert_true(!ibx_functions_any(300) && !ibx_functions_end(300) && !ibx_functions_end(302));
    /* A process that has not said so: an unknown child may still come. */
    passed(&of[3], "cudaRegisterFatBinary", HANDLE, 0, NULL);
    ibx_functions_ended(303);
    none_goes();
    end(&of[3], HANDLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_forms),
        cmocka_unit_test(names_of_others),
        cmocka_unit_test(same_addresses),
        cmocka_unit_test(shared_addresses),
        cmocka_unit_test(forked_children),
        cmocka_unit_test(doubtful_parents),
        cmocka_unit_test(launches_use_modules),
        cmocka_unit_test(functions_elsewhere),
        cmocka_unit_test(malformed),
        cmocka_unit_test(module_in_use_is_removed_later),
        cmocka_unit_test(a_client_of_very_many_modules),
        cmocka_unit_test(registrations_count_for_the_tenant),
        cmocka_unit_test(names_hide_no_fat_binary),
        cmocka_unit_test(modules_of_ended),
    };
    for (unsigned i = 0; i < sizeof(users) / sizeof(users[0]); i++)
        users[i].client = i + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
