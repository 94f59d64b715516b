/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The captures of a process as the preload keeps them: which end with a thread or a stream, whose
 * graph the program gets, and to whom they forbid unsafe calls. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"

#include <pthread.h>
#include <string.h>

/* ------------------------------------------------------------ replaced functions of other files */

static int captures_now;   /* that are counted as under way */
static int of_threads_now; /* ... of streams of threads */
static struct {
    int begin, end, destroy, mode; /* what GVirtuS's functions return; the calling thread's mode */
    bool captured;                 /* what CUDA says of any stream */
    int split, go_on;              /* what the streams that have joined say */
    const void *joins;             /* the stream that has joined */
    bool memory;                   /* whether a captured node allocates memory */
} is;
static struct {
    unsigned asked, rests, stays, destroyed, parts, begun, forked, joined, moved;
    const void *last_destroyed;
    size_t behind; /* so many nodes the last part came */
} was;
static char made[16]; /* graphs: parts of captures */
static char own[16];  /* ... and those that this library makes to name them */
static unsigned parts, owns;
static unsigned long long (*forbidding)(unsigned long long last, void **stream);

static int next_begin(void *stream, int mode)
{
    (void)stream, (void)mode;
    was.begun++;
    return is.begin;
}

static int next_end(void *stream, void **graph)
{
    (void)stream;
    *graph = is.end ? NULL : &made[parts++ % sizeof(made)];
    return is.end;
}

static int next_destroy(void *stream)
{
    (void)stream;
    return is.destroy;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    return !strcmp(symbol, "cudaStreamBeginCapture") ? (void *)next_begin
           : !strcmp(symbol, "cudaStreamEndCapture") ? (void *)next_end
                                                     : (void *)next_destroy;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}
void ibx_frontend_first_is_over(void) {}

int ibx_frontend_fail(int code)
{
    return code;
}

void ibx_frontend_capture_begins(void)
{
    captures_now++;
}
void ibx_frontend_capture_gone(void)
{
    captures_now--;
}
bool ibx_frontend_capturing(void)
{
    return captures_now > 0;
}
int ibx_frontend_capture_mode(void)
{
    return is.mode;
}
bool ibx_frontend_captures(void *stream)
{
    (void)stream;
    return false;
}
void ibx_frontend_captures_forbid(unsigned long long (*next)(unsigned long long last,
                                                             void **stream))
{
    forbidding = next;
}
void ibx_frontend_thread_capture_begins(bool rested)
{
    (void)rested;
    of_threads_now++;
}
void ibx_frontend_thread_capture_ends(bool rested)
{
    (void)rested;
    of_threads_now--;
}

bool ibx_frontend_edges_are_known(const void *edges, size_t count)
{
    (void)edges, (void)count;
    return true;
}
void ibx_frontend_managed_rests(void) {}
void ibx_frontend_objects_made(const void *graph)
{
    (void)graph;
}
void ibx_frontend_objects_stream_gone(const void *stream)
{
    (void)stream;
}
int ibx_frontend_stream_ask(void *stream)
{
    (void)stream;
    was.asked++;
    return 0;
}
bool ibx_frontend_stream_gone(const void *stream, struct range *range)
{
    (void)stream, (void)range;
    return true;
}
void ibx_frontend_stream_stays(const struct range *range)
{
    (void)range;
    was.stays++;
}
void ibx_frontend_stream_rests(const void *stream)
{
    (void)stream;
    was.rests++;
}
void ibx_frontend_stream_used(const void *stream)
{
    (void)stream;
}

int cudaStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    *status = is.captured;
    return 0;
}
int cudaGraphCreate(void **graph, unsigned flags)
{
    (void)flags;
    *graph = &own[owns++ % sizeof(own)];
    return 0;
}
int cudaGraphDestroy(void *graph)
{
    was.destroyed++;
    was.last_destroyed = graph;
    return 0;
}
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    (void)graph;
    if (nodes)
        *nodes = NULL;
    *count = 1;
    return 0;
}
bool ibx_frontend_captured_memory(void)
{
    return true;
}
int cudaGraphNodeGetType(void *node, int *type)
{
    (void)node;
    *type = is.memory ? IBX_FRONTEND_NODE_ALLOCATION : IBX_FRONTEND_NODE_EMPTY;
    return 0;
}
int ibx_frontend_graph_move(void **node, void *graph, void *const *behind, size_t count,
                            void *child)
{
    (void)graph, (void)behind, (void)count;
    was.moved++;
    *node = child;
    return 0;
}
int cudaGraphAddChildGraphNode(void **node, void *graph, void *const *behind, size_t count,
                               void *child)
{
    (void)graph, (void)behind;
    was.behind = count;
    was.parts++;
    *node = child;
    return 0;
}

static void *dependency; /* of any node */

int cudaGraphNodeGetDependencies_v2(void *node, void **nodes, void *edges, size_t *count)
{
    (void)node, (void)edges;
    nodes[0] = dependency;
    *count = dependency != NULL;
    return 0;
}

/* What has joined the only capture. */
struct ibx_forks {
    const void *stream;
} forks;

uint64_t ibx_frontend_thread_number(void)
{
    return (uint64_t)pthread_self();
}
struct ibx_forks *ibx_frontend_forks_begin(const void *stream)
{
    forks.stream = stream;
    return &forks;
}
void ibx_frontend_forks_end(struct ibx_forks *f)
{
    (void)f;
}
void ibx_frontend_forks_lose_root(struct ibx_forks *f)
{
    (void)f;
}
const struct ibx_forks *ibx_frontend_forks_of(const void *stream)
{
    return stream == is.joins ? &forks : NULL;
}
bool ibx_frontend_forks_any(const struct ibx_forks *f)
{
    return f && is.joins;
}
int ibx_frontend_forks_split(struct ibx_forks *f)
{
    (void)f;
    return is.split;
}
int ibx_frontend_forks_go_on(struct ibx_forks *f)
{
    (void)f;
    was.forked++;
    return is.go_on;
}
int ibx_frontend_forks_join(struct ibx_forks *f)
{
    (void)f;
    was.joined++;
    return 0;
}
void ibx_frontend_forks_stream_gone(const void *stream)
{
    (void)stream;
}

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
    return captures_now || of_threads_now || forbidding(0, &on);
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

/* Its own stream ends with it. That of another thread is another stream. */
static void a_thread_ends(NO_STATE)
{
    assert_int_equal(cudaStreamBeginCaptureToGraph(CUDA_STREAM_PER_THREAD, &given, NULL, NULL, 0,
                                                   CUDA_CAPTURE_GLOBAL),
                     0);
    in_thread(capture_and_end, NULL);
    assert_int_equal(captures_now, 1);
    assert_int_equal(of_threads_now, 1);
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
    assert_int_equal(forbidding(0, &on), 0);
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
    const uint8_t plain[IBX_EDGE_BYTES] = {0};
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

/* CUDA has ended the capture with the thread that began it, and takes no more calls for it. */
static void its_thread_has_ended(NO_STATE)
{
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    is.end = CUDA_ILLEGAL_STATE;
    assert_null(ends_in(&stream, CUDA_ILLEGAL_STATE));
    assert_int_equal(captures_now, 0);
    void *graph = &is; /* and of a stream that is not captured nothing changes */
    assert_int_equal(cudaStreamEndCapture(&stream, &graph), CUDA_ILLEGAL_STATE);
    assert_ptr_equal(graph, &is);
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
};

static void *look(void *found)
{
    struct forbidden *f = found;
    f->id = forbidding(0, &f->on);
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

static int nothing_is_captured(void)
{
    void *on;
    is.mode = CUDA_CAPTURE_GLOBAL;
    return forbidding(0, &on) ? 1 : 0;
}

static void a_child_captures_nothing(NO_STATE)
{
    captures_in(&stream, CUDA_CAPTURE_GLOBAL);
    passes_in_child(nothing_is_captured);
    ends_in(&stream, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

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
        TEST(its_thread_has_ended),
        TEST(nobody_wants_the_graph),
        TEST(a_part_that_allocates_moves),
        TEST(whom_it_forbids_unsafe_calls),
        TEST(a_child_captures_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
