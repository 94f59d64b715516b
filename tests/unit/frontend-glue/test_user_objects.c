/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When objects of graphs are released. The back end is simulated: a host function is called when
 * the test says that the event is reached for which its stream waits. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define STREAMS 4u /* of each device */
#define WORK    16u

/* Handles: streams by their device, graphs, and executable graphs. */
#define STREAM(device, i) ((void *)(uintptr_t)(64 + STREAMS * (device) + (i)))
#define GRAPH             ((void *)1000)
#define OTHER             ((void *)1001)
#define EXEC              ((void *)2000)

/* -------------------------------------------------------------------- the back end, and stubs */

static struct {
    int device, error, last_error;
    unsigned events, kept; /* events that were made; given back as reached */
    bool reached[WORK], no_memory, no_event, record_fails, refuses, rests;
    int on[WORK];    /* the device of each event */
    int event_state; /* of those that are not reached */
    unsigned waits, streams, switches;
    const void *captured;
    int relaxed;    /* by how many calls that are not over the thread's mode is another one */
    bool no_device; /* no device becomes current */
    struct {
        void (*function)(void *argument);
        void *argument;
        uintptr_t event; /* for which its stream waits; 0: none */
    } work[WORK];
    unsigned work_count;
    uintptr_t awaits; /* the event for which the stream for releases waits */
    void *used;       /* the last stream that got a function */
} gpu;

static int ended;

static void end(void *count)
{
    ++*(int *)count;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    return gpu.no_memory ? NULL : __real_malloc(n);
}

void *__real_calloc(size_t count, size_t n);
void *__wrap_calloc(size_t count, size_t n);
void *__wrap_calloc(size_t count, size_t n)
{
    return gpu.no_memory ? NULL : __real_calloc(count, n);
}

/* The event is reached, and what waits for it runs. */
static void reach(uintptr_t event)
{
    gpu.reached[event] = true;
    for (unsigned i = 0; i < gpu.work_count; i++)
        if (gpu.work[i].event == event && gpu.work[i].function) {
            void (*function)(void *argument) = gpu.work[i].function;
            gpu.work[i].function = NULL;
            function(gpu.work[i].argument);
        }
}

int ibx_frontend_fail(int code)
{
    gpu.last_error = code;
    return code;
}

int cudaPeekAtLastError(void)
{
    return gpu.last_error;
}

int cudaGetLastError(void)
{
    const int code = gpu.last_error;
    gpu.last_error = 0;
    return code;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t about, int *answer)
{
    (void)about, (void)answer;
    return fact == IBX_FRONTEND_NONE_KNOWN ? !gpu.last_error : gpu.rests;
}

int ibx_frontend_current_device(void)
{
    return gpu.device;
}

int ibx_frontend_device_of_stream(const void *stream)
{
    return (uintptr_t)stream < 64 ? gpu.device : (int)(((uintptr_t)stream - 64) / STREAMS);
}

int cudaSetDevice(int device)
{
    if (gpu.no_device)
        return ibx_frontend_fail(CUDA_UNKNOWN);
    gpu.device = device;
    gpu.switches++;
    return 0;
}

bool ibx_frontend_captures(void *stream)
{
    return stream && stream == gpu.captured;
}

int ibx_frontend_relax(void)
{
    gpu.relaxed++;
    return 7;
}

void ibx_frontend_relax_end(int mode)
{
    assert_int_equal(mode, 7);
    gpu.relaxed--;
}

int ibx_frontend_event_take(struct ibx_kept_event *own)
{
    if (gpu.no_event)
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    own->event = (void *)(uintptr_t)++gpu.events;
    own->device = gpu.device;
    gpu.on[gpu.events] = gpu.device;
    return 0;
}

void ibx_frontend_event_give_back(const struct ibx_kept_event *own, bool good)
{
    assert_non_null(own->event);
    gpu.kept += good;
}

int cudaEventRecord(void *event, void *stream)
{
    assert_int_equal(gpu.device, ibx_frontend_device_of_stream(stream));
    assert_int_equal(gpu.device, gpu.on[(uintptr_t)event]);
    gpu.reached[(uintptr_t)event] = false;
    return gpu.record_fails ? ibx_frontend_fail(CUDA_UNKNOWN) : 0;
}

int ibx_frontend_event_ask(void *event)
{
    return gpu.reached[(uintptr_t)event] ? 0 : gpu.event_state;
}

int cudaEventSynchronize(void *event)
{
    gpu.waits++;
    reach((uintptr_t)event);
    return 0;
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    assert_int_equal(flags, 1);
    *stream = STREAM((unsigned)gpu.device, STREAMS - 1);
    gpu.streams++;
    return 0;
}

int ibx_frontend_stream_destroy(void *stream)
{
    (void)stream;
    return 0;
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    assert_int_equal(flags, 0);
    assert_int_equal(gpu.device, ibx_frontend_device_of_stream(stream));
    gpu.awaits = (uintptr_t)event;
    return gpu.refuses ? ibx_frontend_fail(CUDA_UNKNOWN) : 0;
}

int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    assert_true(gpu.work_count < WORK);
    assert_int_equal(gpu.device, ibx_frontend_device_of_stream(stream));
    gpu.used = stream;
    gpu.work[gpu.work_count].function = function;
    gpu.work[gpu.work_count].argument = argument;
    gpu.work[gpu.work_count++].event = gpu.awaits;
    gpu.awaits = 0;
    return 0;
}

int cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    (void)nodes;
    *count = 0;
    return graph ? 0 : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

/* ----------------------------------------------------------------------------------- scenes */

/* A graph gets an object, and an executable graph is made of it; the graph is destroyed. */
static void *make_exec(void *exec)
{
    void *object = NULL;
    struct launched *launched;
    const int before = ended;
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 1, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 1, 1), 0);
    ibx_frontend_objects_share(GRAPH, exec);
    struct holding *taken = ibx_frontend_objects_take(GRAPH, &launched);
    assert_true(taken && !launched);
    ibx_frontend_objects_gone(taken, NULL, true);
    assert_int_equal(ended, before);
    return exec;
}

/* `gone`: the call succeeds. */
static void destroy(const void *exec, bool gone)
{
    struct launched *launched;
    struct holding *taken = ibx_frontend_objects_take(exec, &launched);
    assert_non_null(taken);
    ibx_frontend_objects_gone(taken, launched, gone);
    assert_int_equal(gpu.relaxed, 0);
}

static int begin(void **state)
{
    (void)state;
    memset(&gpu, 0, sizeof(gpu));
    gpu.event_state = CUDA_NOT_READY;
    ended = 0;
    ibx_frontend_objects_reset(0);
    ibx_frontend_objects_reset(1);
    return 0;
}

static void test_released_behind_the_launch(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    ibx_frontend_objects_launched(exec, STREAM(0, 1));
    assert_int_equal(gpu.events, 1); /* one for all launches */
    destroy(exec, true);
    assert_int_equal(ended, 0);
    assert_ptr_equal(gpu.used, STREAM(0, STREAMS - 1));
    reach(1);
    assert_int_equal(ended, 1);
    assert_int_equal(gpu.waits + gpu.kept + gpu.switches, 0);
}

/* As soon as it is known that the launch has completed, also without a request. */
static void test_released_at_once(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    reach(1);
    destroy(exec, true);
    assert_int_equal(ended, 1);
    assert_int_equal(gpu.kept, 1);
    ended = 0;
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.rests = true;
    destroy(exec, true);
    assert_int_equal(ended, 1);
    assert_int_equal(gpu.kept, 2);
    ended = 0;
    exec = make_exec(EXEC); /* of the thread's own stream that is not known by its handle */
    ibx_frontend_objects_launched(exec, CUDA_STREAM_PER_THREAD);
    destroy(exec, true);
    assert_int_equal(ended, 0);
    reach(gpu.events);
    assert_int_equal(ended, 1);
    exec = make_exec(EXEC); /* not launched */
    destroy(exec, true);
    assert_int_equal(ended, 2);
    assert_int_equal(gpu.work_count, 1);
}

/* The call that destroys it fails: it keeps its objects, and its launch. */
static void test_not_destroyed(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    destroy(exec, false);
    assert_int_equal(ended + (int)gpu.work_count, 0);
    destroy(exec, true);
    assert_int_equal(ended, 0);
    assert_int_equal(gpu.work_count, 1);
    reach(1);
    assert_int_equal(ended, 1);
}

/* Its launch has failed: nobody waits. The stream for releases fails: the call waits itself. */
static void test_failures(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.event_state = 700;
    destroy(exec, true);
    assert_int_equal(ended, 1);
    assert_int_equal(gpu.work_count + gpu.waits + gpu.kept, 0);
    gpu.event_state = CUDA_NOT_READY;
    gpu.refuses = true;
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    destroy(exec, true);
    assert_int_equal(ended, 2);
    assert_int_equal(gpu.waits, 1);
    assert_int_equal(cudaPeekAtLastError(), 0); /* the error is none of the program's */
    gpu.last_error = 1;
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    destroy(exec, true);
    assert_int_not_equal(cudaPeekAtLastError(), 0);
}

/* Without memory to note the launch, nothing tells when it has completed. */
static void test_launch_without_memory(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    gpu.no_memory = true;
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.no_memory = false;
    destroy(exec, false);
    destroy(exec, true);
    assert_int_equal(ended + (int)gpu.work_count, 0);
    exec = make_exec(EXEC);
    gpu.no_memory = true;
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.no_memory = false;
    ibx_frontend_objects_updated(exec, OTHER);
    assert_int_equal(ended + (int)gpu.work_count, 0);
    exec = make_exec(EXEC); /* a later launch comes after that one */
    gpu.no_memory = true;
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.no_memory = false;
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    destroy(exec, true);
    assert_int_equal(ended, 0);
    reach(1);
    assert_int_equal(ended, 1);
}

/* Without memory to note that an executable graph has the object of its graph, nothing tells when
 * that one goes. */
static void test_shared_without_memory(void **state)
{
    void *object = NULL;
    struct launched *launched;
    (void)state;
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 1, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 1, 1), 0);
    gpu.no_memory = true;
    ibx_frontend_objects_share(GRAPH, EXEC);
    gpu.no_memory = false;
    destroy(GRAPH, true);
    assert_null(ibx_frontend_objects_take(EXEC, &launched));
    assert_int_equal(ended, 0);
}

/* An executable graph that is updated has other objects; those of before go with its launch. */
static void test_updated(void **state)
{
    int other_ended = 0;
    void *object = NULL;
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    assert_int_equal(cudaUserObjectCreate(&object, &other_ended, end, 1, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(OTHER, object, 1, 1), 0);
    ibx_frontend_objects_updated(exec, OTHER);
    assert_int_equal(gpu.work_count, 1);
    assert_int_equal(ended, 0);
    reach(1);
    assert_int_equal(ended, 1);
    destroy(OTHER, true);
    assert_int_equal(other_ended, 0);
    destroy(exec, true); /* it was not launched since */
    assert_int_equal(other_ended, 1);
}

/* The event and the stream for releases are on the device of the launch, whatever is current. */
static void test_on_another_device(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    assert_int_equal(gpu.device, 0);
    destroy(exec, true);
    assert_int_equal(gpu.device, 0);
    assert_ptr_equal(gpu.used, STREAM(1, STREAMS - 1));
    ibx_frontend_objects_reset(0);
    reach(1);
    assert_int_equal(ended, 1);
    exec = make_exec(EXEC); /* launched on one and then on the other */
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    destroy(exec, true);
    assert_int_equal(ended, 1);
    assert_ptr_equal(gpu.used, STREAM(0, STREAMS - 1));
    assert_int_equal(gpu.streams, 2); /* one for each device */
    reach(gpu.events);
    assert_int_equal(ended, 2);
}

/* A reset ends the launches of its device, and the stream for releases there. */
static void test_reset(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    ibx_frontend_objects_reset(0);
    destroy(exec, true);
    assert_int_equal(ended, 0);
    reach(1);
    assert_int_equal(ended, 1);
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    ibx_frontend_objects_reset(1);
    destroy(exec, true);
    assert_int_equal(ended, 2);
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    destroy(exec, true);
    assert_int_equal(gpu.streams, 2);
    reach(gpu.events);
    assert_int_equal(ended, 3);
}

/* The event of the launch before does not stand for one behind which none could be recorded. */
static void test_event_is_not_recorded(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    gpu.record_fails = true;
    ibx_frontend_objects_launched(exec, STREAM(0, 1));
    assert_int_equal(cudaPeekAtLastError(), 0);
    reach(1);
    destroy(exec, true);
    assert_int_equal(ended, 0);
    assert_ptr_equal(gpu.used, STREAM(0, 1));
    reach(0); /* behind the launch in its own stream */
    assert_int_equal(ended, 1);
}

/* There is no stream for releases on such a device. */
static void test_device_of_high_number(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(64, 0));
    destroy(exec, true);
    assert_true(ended == 1 && gpu.waits == 1 && !gpu.streams);
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(63, 0));
    destroy(exec, true);
    assert_true(ended == 1 && gpu.waits == 1 && gpu.streams == 1);
    reach(2);
    assert_int_equal(ended, 2);
}

/* A child has none of the parent's objects to release. */
static void test_child(void **state)
{
    struct launched *launched;
    int status = -1;
    (void)state;
    void *exec = make_exec(EXEC);
    const pid_t child = fork();
    if (!child)
        _exit(ibx_frontend_objects_take(exec, &launched) ? 1 : 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    destroy(exec, true);
    assert_int_equal(ended, 1);
}

/* Without an event the launch is still one of its device. */
static void test_reset_without_event(void **state)
{
    (void)state;
    for (unsigned reset = 0; reset < 2; reset++) {
        void *exec = make_exec(EXEC);
        ended = 0;
        gpu.no_event = true;
        ibx_frontend_objects_launched(exec, STREAM(1, 0));
        gpu.no_event = false;
        assert_int_equal(cudaPeekAtLastError(), 0);
        ibx_frontend_objects_reset((int)reset);
        gpu.device = 1;
        destroy(exec, true);
        gpu.device = 0;
        assert_int_equal(ended, reset); /* nothing is launched any more where it was reset */
        assert_int_equal(gpu.work_count, 1);
        reach(0); /* behind the launch in its own stream */
        assert_int_equal(ended, 1);
        assert_ptr_equal(gpu.used, STREAM(1, 0));
    }
}

/* The device of the launch cannot be made the current one: the call waits itself. */
static void test_a_device_that_does_not_answer(void **state)
{
    (void)state;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(1, 0));
    assert_int_equal(gpu.device, 0);
    gpu.no_device = true;
    destroy(exec, true);
    assert_int_equal(ended, 1);
    assert_int_equal(gpu.waits, 1);
    assert_int_equal(gpu.work_count + gpu.streams, 0);
    assert_int_equal(cudaPeekAtLastError(), 0);
}

/* The stream is gone or captured, and there is no event. */
static void test_unseen(void **state)
{
    (void)state;
    gpu.no_event = true;
    void *exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 0));
    ibx_frontend_objects_stream_gone(STREAM(0, 1));
    ibx_frontend_objects_stream_gone(STREAM(0, 0));
    destroy(exec, true);
    exec = make_exec(EXEC);
    ibx_frontend_objects_launched(exec, STREAM(0, 1));
    gpu.captured = STREAM(0, 1);
    destroy(exec, true);
    assert_int_equal(ended + (int)gpu.work_count, 0);
    exec = make_exec(EXEC); /* the launch becomes a part of the capture, and runs nowhere */
    ibx_frontend_objects_launched(exec, STREAM(0, 1));
    destroy(exec, true);
    assert_int_equal(ended, 1);
}

/* -------------------------------------------------------------------------------- references */

static void test_counts(void **state)
{
    void *object = NULL;
    (void)state;
    assert_int_equal(cudaUserObjectCreate(NULL, &ended, end, 1, 1), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, NULL, 1, 1), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 0, 1), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 1, 0), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 2, 1), 0);
    assert_int_equal(cudaUserObjectRetain(object, 0), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectRetain(object, 1u << 31), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectRetain(object, 1), 0);
    assert_int_equal(cudaUserObjectRelease(object, 4), CUDA_INVALID_VALUE);
    assert_int_equal(cudaUserObjectRelease(object, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(NULL, object, 1, 0), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 1, 2), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 3, 1), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 2, 1), 0);
    assert_int_equal(cudaUserObjectRelease(object, 1), CUDA_INVALID_VALUE); /* the graph's */
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 1, 0), 0);
    assert_int_equal(cudaGraphReleaseUserObject(GRAPH, object, 4), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphReleaseUserObject(OTHER, object, 1), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphReleaseUserObject(GRAPH, object, 2), 0);
    assert_int_equal(ended, 0);
    assert_int_equal(cudaGraphReleaseUserObject(GRAPH, object, 1), 0);
    assert_int_equal(ended, 1);
    assert_int_equal(cudaUserObjectRetain(object, 1), CUDA_INVALID_VALUE);
}

/* A graph that is moved into another one: its objects are the other's, with their counts. */
static void test_moved(void **state)
{
    struct launched *launched;
    void *object = NULL;
    (void)state;
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 5, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(GRAPH, object, 2, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(OTHER, object, 3, 1), 0);
    ibx_frontend_objects_share(OTHER, EXEC);
    ibx_frontend_objects_move(OTHER, GRAPH);
    assert_null(ibx_frontend_objects_take(OTHER, &launched));
    destroy(EXEC, true);
    assert_int_equal(cudaGraphReleaseUserObject(GRAPH, object, 4), 0);
    assert_int_equal(ended, 0);
    destroy(GRAPH, true);
    assert_int_equal(ended, 1);
}

/* What a graph within another one gets, the other one has, until a new graph has its handle. */
static void test_within(void **state)
{
    struct launched *launched;
    void *object = NULL;
    (void)state;
    ibx_frontend_objects_within(OTHER, GRAPH);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 2, 1), 0);
    assert_int_equal(cudaGraphRetainUserObject(OTHER, object, 1, 1), 0);
    assert_null(ibx_frontend_objects_take(OTHER, &launched));
    destroy(GRAPH, true); /* OTHER ends with it */
    assert_int_equal(cudaGraphRetainUserObject(OTHER, object, 1, 1), 0);
    assert_int_equal(ended, 0);
    ibx_frontend_objects_within(OTHER, GRAPH);
    ibx_frontend_objects_made(OTHER);
    destroy(OTHER, true);
    assert_int_equal(ended, 1);
    assert_int_equal(cudaUserObjectCreate(&object, &ended, end, 1, 1), 0);
    ibx_frontend_objects_within(EXEC, OTHER); /* and what is within that */
    ibx_frontend_objects_within(OTHER, GRAPH);
    assert_null(ibx_frontend_objects_take(GRAPH, &launched));
    assert_int_equal(cudaGraphRetainUserObject(EXEC, object, 1, 1), 0);
    destroy(EXEC, true);
    assert_int_equal(ended, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_released_behind_the_launch, begin),
        cmocka_unit_test_setup(test_released_at_once, begin),
        cmocka_unit_test_setup(test_not_destroyed, begin),
        cmocka_unit_test_setup(test_failures, begin),
        cmocka_unit_test_setup(test_launch_without_memory, begin),
        cmocka_unit_test_setup(test_shared_without_memory, begin),
        cmocka_unit_test_setup(test_updated, begin),
        cmocka_unit_test_setup(test_on_another_device, begin),
        cmocka_unit_test_setup(test_reset, begin),
        cmocka_unit_test_setup(test_reset_without_event, begin),
        cmocka_unit_test_setup(test_event_is_not_recorded, begin),
        cmocka_unit_test_setup(test_device_of_high_number, begin),
        cmocka_unit_test_setup(test_child, begin),
        cmocka_unit_test_setup(test_a_device_that_does_not_answer, begin),
        cmocka_unit_test_setup(test_unseen, begin),
        cmocka_unit_test_setup(test_counts, begin),
        cmocka_unit_test_setup(test_moved, begin),
        cmocka_unit_test_setup(test_within, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
