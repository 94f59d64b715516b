/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Streams and events that a request names while another thread of the client gives them back: that
 * waits until the request is over, or (ibx_handles_destroy()) the last request does it. */
#include "common/clock.h"
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/extensions.h"
#include "tests/fixtures/thread_state.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>

#define MANY 7u /* more than a request notes */

static struct client others[2]; /* other sessions of alice's */

static bool name(struct client *c, enum ibx_handle_kind kind, uint64_t value)
{
    return kind == IBX_HANDLE_STREAM ? ibx_named_stream(&c->x, value)
                                     : ibx_named_event(&c->x, value);
}

struct remover {
    pthread_t thread;
    struct client *client;
    enum ibx_handle_kind kind;
    uint64_t value;
    _Atomic pid_t id;
    atomic_bool over;
    bool removed;
};

static void *remove_it(void *of)
{
    struct remover *r = of;
    atomic_store(&r->id, gettid());
    r->removed = ibx_handles_remove(&r->client->x, r->kind, r->value);
    atomic_store(&r->over, true);
    return NULL;
}

static void start(struct remover *r)
{
    assert_int_equal(pthread_create(&r->thread, NULL, remove_it, r), 0);
}

static bool sleeps(struct remover *r)
{
    const pid_t id = atomic_load(&r->id);
    return id && thread_state(getpid(), id) == 'S';
}

/* The handle stays although another thread removes it, until alice's request is over. */
static void stays(enum ibx_handle_kind kind, uint64_t value)
{
    struct remover r = {.client = &others[0], .kind = kind, .value = value};
    start(&r);
    while (!sleeps(&r) && !atomic_load(&r.over))
        sched_yield();
    for (unsigned i = 0; i < 1000; i++)
        assert_true(ibx_handles_has(&alice.x, kind, value) && !atomic_load(&r.over));
    ibx_handles_let_go(&alice.x);
    assert_int_equal(pthread_join(r.thread, NULL), 0);
    assert_true(r.removed);
    assert_false(name(&alice, kind, value));
    ibx_handles_let_go(&alice.x);
}

/* The second time a request relies on what an earlier one has found. */
static void test_stays(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const enum ibx_handle_kind kind = i & 1 ? IBX_HANDLE_EVENT : IBX_HANDLE_STREAM;
        const uint64_t value = 0x7000 + 16 * i;
        assert_true(ibx_handles_add(&alice.x, kind, value));
        assert_true(name(&alice, kind, value));
        if (i & 2) {
            ibx_handles_let_go(&alice.x);
            assert_true(name(&alice, kind, value));
        }
        stays(kind, value);
    }
}

static void test_many(void **state)
{
    (void)state;
    for (unsigned last = 0; last < MANY; last++) {
        for (unsigned i = 0; i < MANY; i++) {
            ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000 + 16 * i);
            assert_true(name(&alice, IBX_HANDLE_STREAM, 0x7000 + 16 * i));
        }
        stays(IBX_HANDLE_STREAM, 0x7000 + 16 * last);
    }
    for (unsigned i = 0; i < MANY; i++)
        ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, 0x7000 + 16 * i);
}

/* Two requests name a stream that both destroy: they do not wait for each other. */
static void test_removed_twice(void **state)
{
    struct remover r[2] = {{.client = &others[0], .value = 0x7000},
                           {.client = &others[1], .value = 0x7000}};
    const uint64_t began = ibx_now_ns();
    (void)state;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    for (unsigned i = 0; i < 2; i++) {
        r[i].kind = IBX_HANDLE_STREAM;
        assert_true(name(r[i].client, IBX_HANDLE_STREAM, 0x7000));
    }
    for (unsigned i = 0; i < 2; i++)
        start(&r[i]);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(r[i].thread, NULL), 0);
    for (unsigned i = 0; i < 2; i++)
        ibx_handles_let_go(&r[i].client->x);
    assert_true(r[0].removed != r[1].removed);
    assert_true(ibx_now_ns() - began < UINT64_C(5000000000));
}

static void *use_alone(void *of)
{
    struct remover *r = of;
    atomic_store(&r->id, gettid());
    r->removed = ibx_handles_use_alone(&r->client->x, r->kind, r->value);
    atomic_store(&r->over, true);
    return NULL;
}

static void *name_it(void *of)
{
    struct remover *r = of;
    atomic_store(&r->id, gettid());
    r->removed = name(r->client, r->kind, r->value);
    atomic_store(&r->over, true);
    return NULL;
}

static void run(struct remover *r, void *(*does)(void *of))
{
    assert_int_equal(pthread_create(&r->thread, NULL, does, r), 0);
    while (!sleeps(r) && !atomic_load(&r->over))
        sched_yield();
    for (unsigned i = 0; i < 1000; i++)
        assert_false(atomic_load(&r->over) || (sched_yield(), false));
}

static void end(struct remover *r)
{
    assert_int_equal(pthread_join(r->thread, NULL), 0);
    assert_true(r->removed);
}

/* One request has the stream alone, behind those that named it before, and before those that name
 * it later, or remember it. */
static void test_alone(void **state)
{
    struct remover first = {.client = &others[0], .kind = IBX_HANDLE_STREAM, .value = 0x7000};
    struct remover second = first, third = first;
    (void)state;
    second.client = &others[1];
    third.client = &alice;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    assert_true(name(&others[0], IBX_HANDLE_STREAM, 0x7000));
    assert_true(name(&alice, IBX_HANDLE_STREAM, 0x7000));
    run(&first, use_alone);
    ibx_handles_let_go(&alice.x);
    end(&first);
    run(&third, name_it);
    run(&second, use_alone);
    ibx_handles_let_go(&others[0].x);
    for (unsigned done = 0; !done;) {
        if (atomic_load(&second.over))
            ibx_handles_let_go(&others[1].x), done = 1;
        else if (atomic_load(&third.over))
            ibx_handles_let_go(&alice.x), done = 1;
    }
    end(&second);
    end(&third);
    ibx_handles_let_go(&others[1].x);
    ibx_handles_let_go(&alice.x);
    assert_false(ibx_handles_use_alone(&alice.x, IBX_HANDLE_STREAM, 0x8000));
    assert_true(ibx_handles_remove(&alice.x, IBX_HANDLE_STREAM, 0x7000));
}

/* A reset, or the end of the client, leaves it, too. */
static void test_taken(void **state)
{
    struct gpu_session owner = {.s = session, .joined = true, .options = alice.x.options};
    struct ibx_taken taken = {.value = 0};
    void *context = NULL;
    (void)state;
    owner.isolation.tenant = alice.x.isolation.tenant;
    session->path.provider[0] = '?';
    const uint64_t client = ibx_clients_number(&owner);
    assert_true(client);
    assert_true(ibx_handles_add(&owner, IBX_HANDLE_STREAM, 0x7000));
    assert_int_equal(owner.cuda->ctx_get_current(&context), 0);
    assert_true(name(&alice, IBX_HANDLE_STREAM, 0x7000));
    for (size_t left = 0; left < 2; left++) {
        assert_int_equal(ibx_handles_take_some(client, IBX_HANDLE_STREAM, context, &taken, 1),
                         left);
        ibx_handles_let_go(&alice.x);
    }
    assert_true(taken.value == 0x7000);
    ibx_clients_leave(&owner);
    session->path.provider[0] = 0;
}

/* ----------------------------------------------------------------------- by the last user */

static atomic_uint destroyed;
static _Atomic uint64_t last_destroyed;

static void note_destroyed(const struct ibx_taken *taken)
{
    atomic_store(&last_destroyed, taken->value);
    atomic_fetch_add(&destroyed, 1);
}

static bool destroy(struct client *c, enum ibx_handle_kind kind, uint64_t value, bool *later)
{
    const bool gone = ibx_handles_destroy(&c->x, kind, value, note_destroyed, later);
    ibx_handles_let_go(&c->x);
    return gone;
}

/* Nobody can name it any more; it counts, and is there, until the last user is over. */
static void is_destroyed_later(enum ibx_handle_kind kind, uint64_t value)
{
    bool later = false;
    const unsigned before = atomic_load(&destroyed);
    assert_true(destroy(&others[0], kind, value, &later) && later);
    assert_true(ibx_handles_there(kind, value));
    assert_false(name(&others[1], kind, value) || ibx_handles_has(&alice.x, kind, value));
    assert_false(ibx_handles_use_alone(&others[1].x, kind, value));
    assert_false(destroy(&others[1], kind, value, &later) || later);
    assert_false(ibx_handles_remove(&others[1].x, kind, value));
    ibx_handles_let_go(&others[1].x);
    assert_int_equal(atomic_load(&destroyed), before);
    ibx_handles_let_go(&alice.x);
    assert_int_equal(atomic_load(&destroyed), before + 1);
    assert_true(atomic_load(&last_destroyed) == value && !ibx_handles_there(kind, value));
}

static void test_destroyed(void **state)
{
    bool later = true;
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const enum ibx_handle_kind kind = i & 1 ? IBX_HANDLE_EVENT : IBX_HANDLE_STREAM;
        const uint64_t value = 0x7000 + 16 * i;
        assert_true(ibx_handles_add(&alice.x, kind, value));
        assert_true(name(&alice, kind, value));
        if (i & 2) /* more than it notes: it holds this one */
            for (unsigned k = 0; k < MANY; k++)
                assert_true(ibx_handles_know(&alice.x, kind, value));
        is_destroyed_later(kind, value);
    }
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_EVENT, 0x7000));
    assert_true(name(&others[0], IBX_HANDLE_EVENT, 0x7000)); /* its own use is none of another's */
    const unsigned before = atomic_load(&destroyed);
    assert_true(destroy(&others[0], IBX_HANDLE_EVENT, 0x7000, &later) && !later);
    assert_int_equal(atomic_load(&destroyed), before); /* it is the caller's to destroy */
    assert_true(destroy(&others[0], IBX_HANDLE_EVENT, 0x7000, &later) && !later); /* unknown */
}

/* It is held by a thread that looks at all streams, too. Who has named it before cannot either. */
static void test_destroyed_while_held(void **state)
{
    void *context = NULL;
    size_t count = 0;
    bool later = false;
    (void)state;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    assert_true(name(&others[1], IBX_HANDLE_STREAM, 0x7000));
    ibx_handles_let_go(&others[1].x);
    assert_int_equal(alice.x.cuda->ctx_get_current(&context), 0);
    struct handle **held = ibx_handles_hold_streams(0, context, &count);
    const unsigned before = atomic_load(&destroyed);
    assert_true(held && count && name(&alice, IBX_HANDLE_STREAM, 0x7000));
    assert_true(destroy(&others[0], IBX_HANDLE_STREAM, 0x7000, &later) && later);
    const bool named = name(&others[1], IBX_HANDLE_STREAM, 0x7000);
    ibx_handles_let_go(&others[1].x);
    ibx_handles_let_go(&alice.x);
    assert_true(atomic_load(&destroyed) == before && !named);
    ibx_handles_release(held, count);
    assert_int_equal(atomic_load(&destroyed), before + 1);
}

/* Both threads that use it destroy it, too: one of them does. */
static void test_destroyed_twice(void **state)
{
    bool later[2];
    (void)state;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    for (unsigned i = 0; i < 2; i++)
        assert_true(name(&others[i], IBX_HANDLE_STREAM, 0x7000));
    const unsigned before = atomic_load(&destroyed);
    assert_true(destroy(&others[0], IBX_HANDLE_STREAM, 0x7000, &later[0]) && later[0]);
    assert_int_equal(atomic_load(&destroyed), before);
    assert_false(destroy(&others[1], IBX_HANDLE_STREAM, 0x7000, &later[1]) || later[1]);
    assert_int_equal(atomic_load(&destroyed), before + 1);
}

/* Likewise if the second one is a call that waits: no handler gets the stream, which is destroyed
 * when that call does not use it any more. */
static void test_destroyed_before_it_is_removed(void **state)
{
    bool later = false;
    (void)state;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    assert_true(name(&others[1], IBX_HANDLE_STREAM, 0x7000));
    const unsigned before = atomic_load(&destroyed);
    assert_true(destroy(&others[0], IBX_HANDLE_STREAM, 0x7000, &later) && later);
    const bool gone = ibx_handles_gone(&others[1].x, IBX_HANDLE_STREAM, 0x7000);
    ibx_handles_let_go(&others[1].x);
    assert_false(gone);
    assert_int_equal(atomic_load(&destroyed), before + 1);
}

/* The context is gone first, and the stream with it. */
static void test_destroyed_with_its_context(void **state)
{
    void *context = NULL;
    bool later = false;
    (void)state;
    assert_true(ibx_handles_add(&alice.x, IBX_HANDLE_STREAM, 0x7000));
    assert_true(name(&alice, IBX_HANDLE_STREAM, 0x7000));
    const unsigned before = atomic_load(&destroyed);
    assert_true(destroy(&others[0], IBX_HANDLE_STREAM, 0x7000, &later) && later);
    assert_int_equal(alice.x.cuda->ctx_get_current(&context), 0);
    ibx_handles_forget(context);
    ibx_handles_let_go(&alice.x);
    assert_int_equal(atomic_load(&destroyed), before);
}

/* ----------------------------------------------------------------------- at the same time */

#define STREAMS 8u
#define ROUNDS  20000u

static atomic_bool alive[STREAMS], made_all;
static unsigned rounds; /* that the thread has made */
static atomic_uint ended;

static void end_one(const struct ibx_taken *taken)
{
    atomic_store(&alive[taken->value >> 4 & (STREAMS - 1)], false);
    atomic_fetch_add(&ended, 1);
}

/* Makes and destroys streams. Each is ended once: by this thread, or by one that uses it. */
static void *make_and_destroy(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < ROUNDS; i++, rounds++) {
        const uint64_t value = 0x7000 + 16 * (i % STREAMS);
        const struct ibx_taken taken = {.value = value};
        bool later = false;
        while (atomic_load(&alive[i % STREAMS]))
            sched_yield();
        atomic_store(&alive[i % STREAMS], true);
        if (!ibx_handles_add(&others[0].x, IBX_HANDLE_STREAM, value) ||
            !ibx_handles_destroy(&others[0].x, IBX_HANDLE_STREAM, value, end_one, &later))
            break;
        if (!later)
            end_one(&taken);
    }
    atomic_store(&made_all, true);
    return NULL;
}

/* Makes and gives back streams. Those that were given back are gone. */
static void *make_and_remove(void *unused)
{
    (void)unused;
    for (unsigned i = 0; i < ROUNDS; i++, rounds++) {
        const uint64_t value = 0x7000 + 16 * (i % STREAMS);
        atomic_store(&alive[i % STREAMS], true);
        if (!ibx_handles_add(&others[0].x, IBX_HANDLE_STREAM, value) ||
            !ibx_handles_remove(&others[0].x, IBX_HANDLE_STREAM, value))
            break;
        atomic_store(&alive[i % STREAMS], false);
    }
    atomic_store(&made_all, true);
    return NULL;
}

static void use_while(void *(*does)(void *unused))
{
    pthread_t thread;
    unsigned long named = 0;
    rounds = 0;
    atomic_store(&made_all, false);
    assert_int_equal(pthread_create(&thread, NULL, does, NULL), 0);
    for (unsigned i = 0; !atomic_load(&made_all); i++) {
        const uint64_t value = 0x7000 + 16 * (i % STREAMS);
        if (name(&alice, IBX_HANDLE_STREAM, value)) {
            named++;
            for (unsigned k = 0; k < 10; k++)
                assert_true(atomic_load(&alive[i % STREAMS]));
        }
        ibx_handles_let_go(&alice.x);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(rounds, ROUNDS);
    print_message("%lu streams were named while they were given back\n", named);
}

static void test_at_once(void **state)
{
    (void)state;
    use_while(make_and_remove);
    use_while(make_and_destroy);
    assert_int_equal(atomic_load(&ended), ROUNDS);
    for (unsigned i = 0; i < STREAMS; i++)
        assert_false(ibx_handles_there(IBX_HANDLE_STREAM, 0x7000 + 16 * i));
}

static int set_up(void **state)
{
    const int rc = ext_set_up(state);
    for (unsigned i = 0; i < 2; i++) {
        others[i].x.s = session;
        others[i].x.options.mode = IBX_GPU_ON;
        others[i].x.chosen_for = 0;
        others[i].x.replies.shape = IBX_REPLY_TIMED;
        others[i].x.isolation = alice.x.isolation;
    }
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stays),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_removed_twice),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_destroyed),
        cmocka_unit_test(test_destroyed_while_held),
        cmocka_unit_test(test_destroyed_twice),
        cmocka_unit_test(test_destroyed_before_it_is_removed),
        cmocka_unit_test(test_destroyed_with_its_context),
        cmocka_unit_test(test_at_once),
    };
    return cmocka_run_group_tests(tests, set_up, ext_tear_down);
}
