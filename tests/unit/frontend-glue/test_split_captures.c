/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The captures of a process as the preload keeps them: which end with a thread or a stream, whose
 * graph the program gets, and to whom they forbid unsafe calls. Those of which the back end tells
 * the graph stay whole, others are split. */
#include "tests/unit/frontend-glue/fake_captures.h"

/* ------------------------------------------------------------ steps */

static char stream, given;

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    is.captured = true;
    return 0;
}

/* No capture is left over, nor is one counted. */
static int end(void **state)
{
    void *on;
    (void)state;
    is.mode = CUDA_CAPTURE_GLOBAL;
    return captures_now || of_threads_now || forbidding(0, FORBIDDEN_UNSAFE, false, &on);
}

static void captures_in(void *in, int mode)
{
    assert_int_equal(cudaStreamBeginCapture(in, mode), 0);
}

/* The graph that the program gets. */
static const void *ends_in(void *in, int rc)
{
    void *graph = &is;
    assert_int_equal(cudaStreamEndCapture(in, &graph), rc);
    return graph;
}

/* The program asks for the graph of the capture. */
static int asks(void **graph)
{
    unsigned long long id;
    int status;
    return cudaStreamGetCaptureInfo_v2(&stream, &status, &id, graph, NULL, NULL);
}

static void in_thread(void *(*main)(void *argument), void *argument)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, main, argument), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ------------------------------------------------------------ tests */

static void *capture_and_end(void *unused)
{
    captures_in(CUDA_STREAM_PER_THREAD, CUDA_CAPTURE_GLOBAL);
    return unused;
}

/* Its own stream ends with it, and the capture in CUDA, before another thread goes on. That of
 * another thread is another stream. */
static void a_thread_ends(NO_STATE)
{
    assert_int_equal(cudaStreamBeginCaptureToGraph(CUDA_STREAM_PER_THREAD, &given, NULL, NULL, 0,
                                                   CUDA_CAPTURE_GLOBAL),
                     0);
    for (int rc = 0; rc <= CUDA_INVALID_VALUE; rc += CUDA_INVALID_VALUE) {
        const unsigned ended = was.ended, destroyed = was.destroyed;
        is.end = rc;
        in_thread(capture_and_end, NULL);
        assert_int_equal(was.ended, ended + 1);
        assert_int_equal(was.destroyed, destroyed + !rc); /* the graph that nobody gets */
        assert_int_equal(captures_now, 1);
        assert_int_equal(of_threads_now, 1);
    }
    is.end = 0;
    assert_ptr_equal(ends_in(CUDA_STREAM_PER_THREAD, 0), &given);
    assert_int_equal(was.rests, 1); /* nothing else was captured when it began */
}

static void it_cannot_begin(NO_STATE)
{
    is.begin = CUDA_INVALID_VALUE;
    assert_int_equal(cudaStreamBeginCapture(&stream, 0), CUDA_INVALID_VALUE);
}

/* A stream that cannot be destroyed is captured on. */
static void a_stream_is_destroyed(NO_STATE)
{
    void *graph;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks(&graph), 0);
    const unsigned before = was.destroyed;
    is.destroy = CUDA_UNKNOWN;
    assert_int_equal(ibx_frontend_stream_destroy(&stream), CUDA_UNKNOWN);
    assert_int_equal(was.stays, 1);
    assert_int_equal(captures_now, 1);
    is.destroy = 0;
    assert_int_equal(ibx_frontend_stream_destroy(&stream), 0);
    assert_int_equal(was.destroyed, before + 1); /* the graph that nobody gets */
    assert_ptr_equal(was.last_destroyed, graph);
}

static void *ask_there(void *graph)
{
    const int rc = asks(graph);
    return rc == CUDA_NOT_SUPPORTED ? NULL : graph;
}

/* Another thread may not end a capture, and would invalidate it. */
static void another_thread_asks_for_the_graph(NO_STATE)
{
    static const int modes[] = {CUDA_CAPTURE_GLOBAL, CUDA_CAPTURE_THREAD_LOCAL,
                                CUDA_CAPTURE_RELAXED};
    for (unsigned i = 0; i < COUNT(modes); i++) {
        pthread_t thread;
        void *graph = NULL, *asked = &is;
        captures_in(&stream, modes[i]);
        assert_int_equal(pthread_create(&thread, NULL, ask_there, &graph), 0);
        assert_int_equal(pthread_join(thread, &asked), 0);
        assert_int_equal(asked != NULL, modes[i] == CUDA_CAPTURE_RELAXED);
        assert_int_equal(graph != NULL, modes[i] == CUDA_CAPTURE_RELAXED);
        ends_in(&stream, 0);
    }
}

/* It was split, and CUDA has not begun it again: it counts no more, and forbids nothing. */
static void it_does_not_go_on(NO_STATE)
{
    void *graph, *on;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.begin = CUDA_UNKNOWN;
    assert_int_equal(asks(&graph), CUDA_UNKNOWN);
    assert_int_equal(captures_now, 0);
    is.mode = CUDA_CAPTURE_GLOBAL;
    assert_int_equal(forbidding(0, FORBIDDEN_UNSAFE, false, &on), 0);
    is.begin = 0;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL); /* drops it */
    assert_int_equal(captures_now, 1);
    ends_in(&stream, 0);
}

/* CUDA refuses to end a part, since a stream has joined of which nothing is known here; or the part
 * cannot be added, or the streams that have joined cannot be forked again. Nothing that was to be
 * captured may run: there is a capture again, which is invalid, as the program is told. */
static void a_part_cannot_end(NO_STATE)
{
    void *graph = NULL;
    for (unsigned i = 0; i < 2; i++) {
        captures_in(&stream, CUDA_CAPTURE_GLOBAL);
        const unsigned asked = was.asked, begun = was.begun, forked = was.forked;
        is.end = i ? 0 : 904;
        is.go_on = i ? CUDA_UNKNOWN : 0;
        assert_int_equal(asks(&graph), i ? CUDA_UNKNOWN : 904);
        assert_int_equal(was.begun - begun, 1);
        assert_int_equal(was.forked - forked, 1);
        assert_int_equal(was.asked - asked, 1); /* which invalidates it */
        assert_int_equal(captures_now, 1);
        is.end = CUDA_CAPTURE_INVALIDATED;
        assert_null(ends_in(&stream, CUDA_CAPTURE_INVALIDATED));
    }
}

/* A stream that has joined belongs to another thread, for example. */
static void it_cannot_be_split(NO_STATE)
{
    void *graph = NULL;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.split = CUDA_NOT_SUPPORTED;
    is.end = CUDA_UNKNOWN; /* is not called */
    assert_int_equal(asks(&graph), CUDA_NOT_SUPPORTED);
    assert_int_equal(was.begun, 1);
    is.end = 0;
    assert_non_null(ends_in(&stream, 0));
    assert_int_equal(was.joined, 1);
    assert_int_equal(was.asked, 0);
}

/* The program sets the dependencies of one stream: what others capture stays behind the last part,
 * unless the new node does. */
static void dependencies_with_others(NO_STATE)
{
    static char node_of_program, other;
    static const struct {
        bool others, behind_part;
        size_t count;
    } cases[] = {{true, false, 2}, {true, true, 1}, {false, false, 1}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        void *node = &node_of_program;
        captures_in(&stream, CUDA_CAPTURE_GLOBAL);
        is.joins = cases[i].others ? &other : NULL;
        dependency = cases[i].behind_part ? &made[parts % sizeof(made)] : NULL;
        void *in = cases[i].others ? (void *)&other : (void *)&stream;
        assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(in, &node, NULL, 1, 1), 0);
        ends_in(&stream, 0);
        assert_int_equal(was.behind, cases[i].count);
    }
    is.joins = NULL;
}

/* A program that asks for the data of edges reads as many as there are dependencies; the H200 gives
 * NULL only without any. */
static void edges_have_data(NO_STATE)
{
    void *graph, *const *behind = NULL;
    const void *edges = &graph;
    unsigned long long id;
    size_t count = 0;
    int status;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.joins = NULL;
    assert_int_equal(
        cudaStreamGetCaptureInfo_v3(&stream, &status, &id, &graph, &behind, &edges, &count), 0);
    assert_int_equal(count, 1);
    const uint8_t plain[IBX_EXT_EDGE] = {0};
    assert_non_null(edges);
    assert_memory_equal(edges, plain, sizeof(plain));
    ends_in(&stream, 0);
}

/* The program never gets the graph of a capture that was invalidated: this library destroys what it
 * has made, and not what the program gave. */
static void it_was_invalidated(NO_STATE)
{
    void *graph;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks(&graph), 0);
    is.end = CUDA_CAPTURE_INVALIDATED;
    assert_null(ends_in(&stream, CUDA_CAPTURE_INVALIDATED));
    assert_ptr_equal(was.last_destroyed, graph);
    const unsigned before = was.destroyed;
    is.end = 0;
    assert_int_equal(
        cudaStreamBeginCaptureToGraph(&stream, &given, NULL, NULL, 0, CUDA_CAPTURE_GLOBAL), 0);
    is.end = CUDA_CAPTURE_INVALIDATED;
    assert_null(ends_in(&stream, CUDA_CAPTURE_INVALIDATED));
    assert_int_equal(was.destroyed, before);
}

/* CUDA captures into the graph: there are no parts, and no other graph. If the end fails, the graph
 * is gone. */
static void a_given_graph_gets_no_parts(NO_STATE)
{
    void *graph = NULL;
    for (unsigned i = 0; i < 2; i++) {
        void *mine = &made[parts % sizeof(made)];
        const int rc = i ? CUDA_CAPTURE_INVALIDATED : 0;
        is.into_known = is.tells = true;
        assert_int_equal(
            cudaStreamBeginCaptureToGraph(&stream, mine, NULL, NULL, 0, CUDA_CAPTURE_GLOBAL), 0);
        assert_int_equal(captures_now, 1);
        assert_int_equal(asks(&graph), 0);
        assert_ptr_equal(graph, mine);
        is.end = rc;
        assert_ptr_equal(ends_in(&stream, rc), rc ? NULL : mine);
        assert_int_equal(captures_now, 0);
        assert_true(!was.begun && !was.parts && !was.noted && !was.destroyed && was.lost == i);
    }
    is.into = CUDA_ILLEGAL_STATE;
    assert_int_equal(
        cudaStreamBeginCaptureToGraph(&stream, made, NULL, NULL, 0, CUDA_CAPTURE_GLOBAL),
        CUDA_ILLEGAL_STATE);
    assert_int_equal(captures_now, 0);
}

/* CUDA has ended the capture with the thread that began it, and takes no more calls for it. */
static void its_thread_has_ended(NO_STATE)
{
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.end = CUDA_ILLEGAL_STATE;
    assert_null(ends_in(&stream, CUDA_ILLEGAL_STATE));
    assert_int_equal(captures_now, 0);
    assert_null(ends_in(&stream, CUDA_ILLEGAL_STATE)); /* and there is none any more */
}

static void nobody_wants_the_graph(NO_STATE)
{
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(cudaStreamEndCapture(&stream, NULL), 0);
    assert_int_equal(was.destroyed, 1);
}

/* CUDA clones no graph that allocates memory: such a part becomes the child itself, and is not
 * destroyed. */
static void a_part_that_allocates_moves(NO_STATE)
{
    for (unsigned i = 0; i < 2; i++) {
        void *graph;
        memset(&was, 0, sizeof(was));
        is.memory = i;
        captures_in(&stream, CUDA_CAPTURE_GLOBAL);
        assert_int_equal(asks(&graph), 0);
        assert_int_equal(was.moved, is.memory);
        assert_int_equal(was.parts, !is.memory);
        assert_int_equal(was.destroyed, !is.memory);
        ends_in(&stream, 0);
    }
}

struct forbidden {
    unsigned long long id;
    void *on;
    enum ibx_forbidden call;
    bool others;
};

static void *look(void *found)
{
    struct forbidden *f = found;
    f->id = forbidding(0, f->call, f->others, &f->on);
    return NULL;
}

/* To whom it forbids unsafe calls, and in which stream CUDA tells of that: not in one that is
 * another thread's own. */
static void whom_it_forbids_unsafe_calls(NO_STATE)
{
    static const struct {
        int mode, of_caller;
        bool own, others;
    } cases[] = {
        {CUDA_CAPTURE_GLOBAL, CUDA_CAPTURE_GLOBAL, true, true},
        {CUDA_CAPTURE_GLOBAL, CUDA_CAPTURE_THREAD_LOCAL, true, false},
        {CUDA_CAPTURE_THREAD_LOCAL, CUDA_CAPTURE_GLOBAL, true, false},
        {CUDA_CAPTURE_RELAXED, CUDA_CAPTURE_GLOBAL, false, false},
        {CUDA_CAPTURE_GLOBAL, CUDA_CAPTURE_RELAXED, false, false},
    };
    void *const streams[] = {&stream, CUDA_STREAM_PER_THREAD};
    for (unsigned i = 0; i < 2 * COUNT(cases); i++) {
        struct forbidden here = {0}, there = {0};
        void *in = streams[i % 2];
        captures_in(in, cases[i / 2].mode);
        is.mode = cases[i / 2].of_caller;
        look(&here);
        assert_int_equal(here.id != 0, cases[i / 2].own);
        if (here.id)
            assert_ptr_equal(here.on, in);
        const unsigned before = was.asked;
        in_thread(look, &there);
        assert_int_equal(there.id != 0, cases[i / 2].others);
        if (there.id)
            assert_ptr_equal(there.on, i % 2 ? NULL : in);
        ends_in(in, 0);
        /* CUDA learns of it when the thread ends its capture. */
        assert_int_equal(was.asked - before, there.id && i % 2);
    }
}

/* Waits for the device it forbids to everybody, and those for the legacy stream, if its own stream
 * waits for that. */
static void whom_it_forbids_waits(NO_STATE)
{
    void *const streams[] = {&stream, &given, CUDA_STREAM_PER_THREAD};
    is.apart = &given;
    for (unsigned i = 0; i < 3 * COUNT(streams); i++) {
        void *in = streams[i / 3];
        captures_in(in, (int)(i % 3));
        is.mode = CUDA_CAPTURE_RELAXED;
        for (unsigned legacy = 0; legacy < 2; legacy++) {
            const enum ibx_forbidden call = legacy ? FORBIDDEN_LEGACY : FORBIDDEN_WAIT;
            const bool forbids = !legacy || in != &given;
            struct forbidden any = {.call = call}, other = {.call = call, .others = true};
            look(&any);
            look(&other);
            assert_true(!any.id == !forbids && !other.id && (!any.id || any.on == in));
            in_thread(look, &any);
            in_thread(look, &other);
            assert_true(!any.id == !forbids && any.id == other.id);
            assert_ptr_equal(other.on, forbids && i / 3 < 2 ? in : NULL);
        }
        ends_in(in, 0);
    }
}

/* A wait for another device, or for its legacy stream, encompasses no captured stream. */
static void it_forbids_no_waits_for_another_device(NO_STATE)
{
    void *const streams[] = {&stream, CUDA_STREAM_PER_THREAD};
    is.away = &stream;
    for (unsigned i = 0; i < 2 * COUNT(streams); i++) {
        struct forbidden any = {.call = i % 2 ? FORBIDDEN_LEGACY : FORBIDDEN_WAIT};
        is.device = 1;
        captures_in(streams[i / 2], CUDA_CAPTURE_THREAD_LOCAL);
        look(&any);
        assert_true(any.id);
        is.device = 0;
        look(&any);
        assert_false(any.id);
        ends_in(streams[i / 2], 0);
    }
}

static int nothing_is_captured(void)
{
    void *on;
    is.mode = CUDA_CAPTURE_GLOBAL;
    return forbidding(0, FORBIDDEN_UNSAFE, false, &on) ? 1 : 0;
}

static void a_child_captures_nothing(NO_STATE)
{
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    passes_in_child(nothing_is_captured);
    ends_in(&stream, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

static int asks_of(void *of, void **graph, void *const **behind, const void **edges, size_t *count)
{
    unsigned long long id;
    int status;
    return cudaStreamGetCaptureInfo_v3(of, &status, &id, graph, behind, edges, count);
}

/* CUDA tells the graph: the capture stays whole, and ends with that graph. */
static void a_question_leaves_a_capture_whole(NO_STATE)
{
    char other;
    void *graph = NULL, *again = NULL, *node = NULL;
    void *const *behind, *const *of_other;
    const void *edges;
    size_t count;
    is.tells = true;
    is.behind = 3;
    is.joins = &other;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks_of(&stream, &graph, &behind, &edges, &count), 0);
    assert_true(graph && count == 3 && edges);
    assert_int_equal(asks_of(&other, &again, &of_other, NULL, &count), 0);
    assert_ptr_equal(again, graph);
    /* As before: each stream has its own. */
    assert_int_equal((uintptr_t)behind[2], (uintptr_t)&stream + 2);
    assert_int_equal((uintptr_t)of_other[2], (uintptr_t)&other + 2);
    is.behind = 0;
    assert_int_equal(asks_of(&stream, NULL, NULL, &edges, &count), 0);
    assert_true(count == 0 && !edges);
    assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&stream, &node, NULL, 1, 1), 0);
    assert_int_equal(was.updated, 1);
    assert_ptr_equal(ends_in(&stream, 0), graph);
    assert_true(was.begun == 1 && !was.parts && !was.destroyed && !was.lost);
    assert_int_equal(was.noted, 1); /* what is known of the graph stays after the first question */
}

/* As CUDA has it: the stream comes before the arguments. */
static void updates_are_refused(NO_STATE)
{
    void *node = &given;
    is.tells = true;
    for (unsigned flags = 1; flags < 3; flags++)
        assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&stream, &node, NULL, 1, flags),
                         CUDA_ILLEGAL_STATE);
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&stream, &node, NULL, 1, 2),
                     CUDA_INVALID_VALUE);
    assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&stream, NULL, NULL, 1, 1),
                     CUDA_INVALID_VALUE);
    is.invalid = true;
    for (unsigned flags = 1; flags < 3; flags++)
        assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&stream, &node, NULL, 1, flags),
                         CUDA_CAPTURE_INVALIDATED);
    assert_int_equal(was.updated, 0);
    ends_in(&stream, 0);
}

/* An end that fails tells no graph, also where the capture goes on. */
static void an_end_that_fails(NO_STATE)
{
    is.end = CUDA_ILLEGAL_STATE;
    assert_null(ends_in(&stream, CUDA_ILLEGAL_STATE));
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.end = CUDA_INVALID_VALUE;
    assert_null(ends_in(&stream, CUDA_INVALID_VALUE));
    assert_int_equal(captures_now, 1);
    is.end = 0;
    assert_non_null(ends_in(&stream, 0));
}

static int asks_number_of(void *of, unsigned long long *id)
{
    int status;
    return cudaStreamGetCaptureInfo_v2(of, &status, id, NULL, NULL, NULL);
}

/* A stream that has joined unseen: CUDA tells the graph, and by that which capture it is. If there
 * are several, another thread's counts as one of them only if its graph is known. */
static void a_stream_has_joined_unseen(NO_STATE)
{
    void *graph, *const *behind;
    unsigned long long id, same;
    size_t count;
    is.tells = true;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks_number_of(&stream, &id), 0);
    assert_int_equal(asks_of(&is, &graph, &behind, NULL, &count), 0);
    assert_ptr_equal(graph, &made[parts % sizeof(made)]);
    assert_int_equal(cudaStreamUpdateCaptureDependencies_v2(&is, behind, NULL, 0, 1), 0);
    assert_int_equal(was.updated, 1);
    captures_in(&given, CUDA_CAPTURE_GLOBAL); /* its graph is another one */
    is.other = &given;
    assert_int_equal(asks_number_of(&is, &same), 0);
    assert_int_equal(same, id);
    assert_int_equal(asks_number_of(&given, &same), 0);
    assert_int_not_equal(same, id);
    is.tells = false;
    assert_int_equal(asks_number_of(&is, &same), CUDA_NOT_SUPPORTED);
    assert_int_equal(asks_of(&is, &graph, &behind, NULL, &count), CUDA_NOT_SUPPORTED);
    assert_true(was.begun == 2 && !was.parts);
    ends_in(&given, 0);
    ends_in(&stream, 0);
}

/* A caller that asks for the nodes, without room for the data of edges, is told that there is some.
 */
static void data_of_edges_is_not_lost(NO_STATE)
{
    void *graph, *const *behind;
    const void *edges;
    size_t count;
    is.tells = true;
    is.behind = 1;
    is.edge = 1;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks_of(&stream, &graph, &behind, NULL, &count), CUDA_LOSSY_QUERY);
    assert_int_equal(asks_of(&stream, &graph, NULL, NULL, &count), 0);
    assert_int_equal(asks_of(&stream, &graph, &behind, &edges, &count), 0);
    assert_int_equal(*(const uint8_t *)edges, 1);
    ends_in(&stream, 0);
}

/* The graph ends with the capture, for which no request is made. */
static void a_lost_graph_is_forgotten(NO_STATE)
{
    void *graph;
    is.tells = true;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks(&graph), 0);
    is.end = CUDA_CAPTURE_UNSUPPORTED + 1;
    assert_null(ends_in(&stream, is.end));
    assert_true(was.lost == 1 && !was.destroyed && was.last_destroyed == graph);
    is.end = 0;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks(&graph), 0);
    assert_int_equal(ibx_frontend_stream_destroy(&stream), 0);
    assert_true(was.lost == 2 && !was.destroyed && was.last_destroyed == graph);
}

/* A capture of which CUDA has told the graph is never split, and one that was split stays so. */
static void a_capture_is_whole_or_split(NO_STATE)
{
    void *graph;
    is.tells = true;
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.told = CUDA_INVALID_VALUE;
    assert_int_equal(asks(&graph), CUDA_INVALID_VALUE);
    is.told = 0;
    assert_int_equal(asks(&graph), 0);
    is.tells = false;
    assert_int_equal(asks(&graph), CUDA_NOT_SUPPORTED);
    assert_true(was.begun == 1 && !was.parts);
    ends_in(&stream, 0);
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    assert_int_equal(asks(&graph), 0);
    is.tells = true;
    assert_int_equal(asks(&graph), 0);
    assert_true(was.begun == 4 && was.parts == 2);
    assert_ptr_equal(ends_in(&stream, 0), graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_thread_ends),
        TEST(it_cannot_begin),
        TEST(a_stream_is_destroyed),
        TEST(another_thread_asks_for_the_graph),
        TEST(it_does_not_go_on),
        TEST(a_part_cannot_end),
        TEST(it_cannot_be_split),
        TEST(dependencies_with_others),
        TEST(edges_have_data),
        TEST(it_was_invalidated),
        TEST(updates_are_refused),
        TEST(an_end_that_fails),
        TEST(a_stream_has_joined_unseen),
        TEST(a_given_graph_gets_no_parts),
        TEST(its_thread_has_ended),
        TEST(nobody_wants_the_graph),
        TEST(a_part_that_allocates_moves),
        TEST(whom_it_forbids_unsafe_calls),
        TEST(whom_it_forbids_waits),
        TEST(it_forbids_no_waits_for_another_device),
        TEST(a_child_captures_nothing),
        TEST(a_question_leaves_a_capture_whole),
        TEST(data_of_edges_is_not_lost),
        TEST(a_lost_graph_is_forgotten),
        TEST(a_capture_is_whole_or_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
