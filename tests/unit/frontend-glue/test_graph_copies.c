/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies in graphs whose bytes the preload has taken. If a back end names the function of such a
 * copy after the bytes were freed, nothing is copied. Copies in different streams do not wait for
 * each other. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/memory/device_objects.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/host_copies.h"
#include "frontend-glue/preload/streams/streams.h"

#include <limits.h>
#include <pthread.h>
#include <search.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define BYTES 64u

/* ------------------------------------------------------------ replaced functions of other files */

static struct host_node named;         /* the function that was requested last */
static struct ibx_launch_bytes *given; /* what the last launch has taken for it */
static const void *launched;           /* the last executable graph */
static unsigned copies, made;
static uint8_t seen;
static size_t length; /* of the last copy */
static struct {
    int device, error;   /* the current device; the program's last error */
    bool no_slot;        /* no node can be made */
    int launches;        /* what a launch returns */
    uint64_t number;     /* of the next function; 0: 1 */
    const void *waiting; /* a stream that waits for a host function */
    enum host_memory host;
} is = {.host = HOST_PAGEABLE};
static unsigned destroyed; /* executable graphs */
static int set_error;      /* the last error that was set */

static int copy_it(const struct ibx_frontend_copy *copy, int *exit_code)
{
    copies++;
    seen = *(const uint8_t *)copy->host;
    length = copy->n;
    *exit_code = 0;
    return 0;
}

static const struct ibx_frontend_calls calls = {.copy = copy_it};

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    return &calls;
}

uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue)
{
    named = (struct host_node){function, argument};
    *queue = 1;
    return is.number ? is.number : 1;
}

int ibx_frontend_relax(void)
{
    return 0;
}

void ibx_frontend_relax_end(int mode)
{
    (void)mode;
}

bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host)
{
    *host = named;
    return number;
}

bool ibx_frontend_slot_node(void **node, void *graph, const struct ibx_cuda_memcpy3d *copy, int *rc)
{
    uint8_t bytes[512];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    *node = graph;
    *rc = 0;
    return !is.no_slot && ibx_frontend_slot_copy(&w, copy);
}

void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    (void)known, (void)symbol;
    return (void *)&copies; /* exists, and is not called */
}

int cudaGraphCreate(void **graph, unsigned flags)
{
    (void)flags;
    *graph = &named;
    return 0;
}

int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags)
{
    static char executables[256];
    (void)graph, (void)flags;
    assert_true(made < sizeof(executables));
    *exec = executables + made++;
    return 0;
}

int cudaGetDevice(int *device)
{
    *device = is.device;
    return 0;
}

int ibx_frontend_launch_later(void *exec, void *stream, uint64_t number,
                              struct ibx_launch_copy *copy)
{
    (void)stream;
    assert_true(number);
    launched = exec;
    given = copy->taken;
    copy->taken = NULL;
    return is.launches;
}

static int nothing(void)
{
    return 0;
}

int cudaGraphDestroy(void *graph)
{
    (void)graph;
    return nothing();
}
int cudaGraphExecDestroy(void *exec)
{
    (void)exec;
    destroyed++;
    return nothing();
}
int cudaSetDevice(int device)
{
    (void)device;
    return nothing();
}
int cudaGetLastError(void)
{
    return nothing();
}
int cudaPeekAtLastError(void)
{
    return is.error;
}
int ibx_frontend_fail(int rc)
{
    set_error = rc;
    return rc;
}
bool ibx_frontend_first_begins(void)
{
    return true;
}
void ibx_frontend_first_is_over(void) {}
enum host_memory ibx_frontend_host_memory(const void *address, size_t n)
{
    (void)address, (void)n;
    return is.host;
}

void ibx_frontend_device_used(void) {}
bool ibx_frontend_host_waits(const void *stream)
{
    return is.waiting && stream == is.waiting;
}

void ibx_frontend_request_begin(struct extension_request *e, enum ibx_extension number,
                                const char *call)
{
    (void)e, (void)number, (void)call;
}
bool ibx_frontend_request_known(const struct extension_request *e, void *out, size_t n, int *rc)
{
    (void)e, (void)out, (void)n, (void)rc;
    return false;
}
bool ibx_frontend_request_try(const struct extension_request *e, void *out, size_t n, int *code)
{
    (void)e, (void)out, (void)n, (void)code;
    return false;
}

/* --------------------------------------------------------------------------- the tests */

static uint8_t memory[BYTES];

static struct ibx_cuda_memcpy3d copy_to_device(void *from, uint64_t device)
{
    return (struct ibx_cuda_memcpy3d){.from = {from, BYTES, BYTES, 1},
                                      .to = {(void *)(uintptr_t)device, BYTES, BYTES, 1},
                                      .extent = {BYTES, 1, 1},
                                      .kind = CUDA_MEMCPY_TO_DEVICE};
}

/* As when the back end names the function. */
static void call(struct host_node function)
{
    if (given)
        ibx_frontend_graph_give(function.argument, given);
    else
        function.function(function.argument);
    ibx_launch_bytes_free(given);
    given = NULL;
}

/* Whether the named function copies data that starts with this byte. */
static bool copies_byte(uint8_t byte)
{
    const unsigned before = copies;
    call(named);
    return copies != before && seen == byte;
}

static void freed_bytes_are_not_copied(void **state)
{
    (void)state;
    const struct ibx_cuda_memcpy3d copy = copy_to_device(memory, 0x1000);
    int rc = -1;
    memset(memory, 5, sizeof(memory));
    assert_true(ibx_frontend_graph_copy_behind(&copy, true, NULL, &rc));
    assert_int_equal(rc, 0);
    const struct host_node taken = named;
    memset(memory, 6, sizeof(memory)); /* the call has returned */
    assert_true(copies_byte(5));
    ibx_frontend_graph_reset();
    const struct ibx_cuda_memcpy3d other = copy_to_device(memory, 0x2000);
    assert_true(ibx_frontend_graph_copy_behind(&other, false, NULL, &rc));
    named = taken;
    const unsigned before = copies;
    call(named);
    assert_int_equal(copies, before);
    assert_int_equal(ibx_frontend_graph_failure(), CUDA_UNKNOWN);
}

/* Memory that the program has named is still copied after one of the graphs that named it was
 * destroyed. */
static void memory_of_the_program(void **state)
{
    (void)state;
    const struct ibx_cuda_memcpy3d copy = copy_to_device(memory, 0x3000);
    int rc = -1;
    memset(memory, 7, sizeof(memory));
    assert_true(ibx_frontend_graph_copy_behind(&copy, false, NULL, &rc));
    const struct host_node own = named;
    assert_true(copies_byte(7));
    ibx_frontend_graph_reset();
    const struct ibx_cuda_memcpy3d other = copy_to_device(memory, 0x4000);
    assert_true(ibx_frontend_graph_copy_behind(&other, false, NULL, &rc));
    named = own;
    assert_true(copies_byte(7));
}

/* The executable graph in which this copy is launched. */
static const void *launched_for(bool takes, void *stream)
{
    const struct ibx_cuda_memcpy3d copy = copy_to_device(memory, 0x8000);
    int rc = -1;
    assert_true(ibx_frontend_graph_copy_behind(&copy, takes, stream, &rc));
    assert_int_equal(rc, 0);
    ibx_launch_bytes_free(given);
    given = NULL;
    return launched;
}

static void *launch_in_own(void *takes)
{
    return (void *)(uintptr_t)launched_for(takes, CUDA_STREAM_PER_THREAD);
}

/* CUDA runs the launches of one executable graph one after the other, in whatever streams. */
static void streams_have_graphs_apart(void **state)
{
    char one, other;
    (void)state;
    for (unsigned takes = 0; takes < 2; takes++) {
        pthread_t thread;
        void *of_other = NULL;
        const void *first = launched_for(takes, &one);
        assert_ptr_equal(launched_for(takes, &one), first);
        assert_ptr_not_equal(launched_for(takes, &other), first);
        assert_ptr_equal(launched_for(takes, &one), first);
        first = launched_for(takes, CUDA_STREAM_PER_THREAD);
        assert_int_equal(pthread_create(&thread, NULL, launch_in_own, takes ? &one : NULL), 0);
        assert_int_equal(pthread_join(thread, &of_other), 0);
        assert_ptr_not_equal(of_other, first);
    }
}

#define MANY (64u << 10) /* bytes of a copy */

/* When launches have taken as much as they may, another copy is not made this way until some of it
 * is free. It needs no more graphs for copies that wait at once. */
static void takes_no_more_than_there_is_room(void **state)
{
    static uint8_t much[MANY];
    static struct ibx_launch_bytes *all[1024];
    struct ibx_cuda_memcpy3d copy = copy_to_device(much, 0x9000);
    const unsigned before = made;
    unsigned n = 0;
    int rc = -1;
    (void)state;
    copy.extent.width = MANY;
    for (; n < 1024 && ibx_frontend_graph_copy_behind(&copy, true, NULL, &rc); n++) {
        all[n] = given;
        assert_non_null(given);
        assert_int_equal(rc, 0);
        assert_int_equal(made, before + 1);
    }
    assert_int_equal(n, (16u << 20) / MANY);
    ibx_launch_bytes_free(all[--n]);
    assert_true(ibx_frontend_graph_copy_behind(&copy, true, NULL, &rc));
    ibx_launch_bytes_free(given);
    given = NULL;
    while (n)
        ibx_launch_bytes_free(all[--n]);
}

/* An array gets the number of one that had shorter elements: a copy to it has more bytes. */
static void arrays_of_one_number(void **state)
{
    struct ibx_frontend_array array = {.array = (void *)0x7000, .extent = {16, 0, 0}};
    const struct ibx_cuda_memcpy3d copy = {.from = {memory, BYTES, BYTES, 1},
                                           .to_array = (void *)0x7000,
                                           .extent = {16, 1, 1},
                                           .kind = CUDA_MEMCPY_TO_DEVICE};
    (void)state;
    for (int element = 1; element <= 4; element *= 2) {
        uint8_t bytes[512];
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        array.channel = (struct ibx_cuda_channel){.x = 8 * element};
        ibx_frontend_array_made(&array);
        assert_true(ibx_frontend_slot_copy(&w, &copy));
        named.function(named.argument);
        assert_int_equal(length, 16 * element);
    }
    ibx_frontend_array_gone(array.array);
}

void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));

static atomic_bool stays, changes, went_on;

/* While the tree changes it is not usable. The thread stops here until another thread has forked
 * or waits for it. */
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *))
{
    void *const before = *root;
    if (atomic_exchange(&stays, false)) {
        *root = NULL;
        atomic_store(&changes, true);
        for (int ms = 0; ms < 200 && !atomic_load(&went_on); ms++)
            usleep(1000);
        *root = before;
    }
    return __real_tsearch(key, root, compare);
}

static void *copy_another(void *unused)
{
    static uint8_t more[BYTES];
    const struct ibx_cuda_memcpy3d copy = copy_to_device(more, 0x6000);
    int rc;
    ibx_frontend_graph_copy_behind(&copy, false, NULL, &rc);
    return unused;
}

/* The process forks while another thread makes a copy. */
static void a_child_has_the_copies(void **state)
{
    const struct ibx_cuda_memcpy3d copy = copy_to_device(memory, 0x5000);
    pthread_t thread;
    int rc = -1, status = -1;
    (void)state;
    assert_true(ibx_frontend_graph_copy_behind(&copy, false, NULL, &rc));
    void *const argument = named.argument;
    atomic_store(&stays, true);
    assert_int_equal(pthread_create(&thread, NULL, copy_another, NULL), 0);
    while (!atomic_load(&changes))
        usleep(100);
    const pid_t child = fork();
    if (!child) {
        alarm(60);
        const unsigned before = made; /* the graphs are the parent's */
        const bool known = ibx_frontend_graph_copy_behind(&copy, false, NULL, &rc);
        _exit(known && named.argument == argument && made == before + 1 ? 0 : 1);
    }
    atomic_store(&went_on, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Which device memory is on is what the back end has said: any number. */
static void devices_that_are_not_there(void **state)
{
    static const int none[] = {-1, INT_MIN, 64, 100000, INT_MAX};
    (void)state;
    copies = 0;
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(
            ibx_frontend_copy_beside((void *)0x5000, memory, BYTES, CUDA_MEMCPY_TO_DEVICE, none[i]),
            CUDA_INVALID_DEVICE);
    assert_int_equal(copies, 0);
}

/* ----------------------------------------------------- graphs of copies behind a function */

#define LARGE ((size_t)200 << 20) /* bytes: there is room for one such copy */

static char queue; /* a stream */

/* A copy of this program's memory, which is page-locked, behind a host function. */
static bool behind(uint64_t device, size_t bytes)
{
    struct ibx_cuda_memcpy3d copy = copy_to_device(memory, device);
    int rc = -1;
    copy.extent.width = copy.from.pitch = copy.to.pitch = bytes;
    const bool goes = ibx_frontend_graph_copy_behind(&copy, false, &queue, &rc);
    assert_int_equal(goes ? rc : is.launches, is.launches);
    return goes;
}

/* As when the back end has called the function, of whose bytes this program has one. */
static void was_called(struct host_node function)
{
    atomic_fetch_add(&((struct ibx_host_copy *)function.argument)->called, 1);
}

/* Nothing is left of an earlier test. */
static void begin_behind(void)
{
    ibx_frontend_graph_reset();
    assert_true(behind(0x100, 1));
    destroyed = 0;
}

/* A graph whose launch may not have come to its copy is not destroyed: the copy would be lost. */
static void graphs_go_when_their_launches_are_complete(void **state)
{
    (void)state;
    begin_behind();
    assert_true(behind(0x10000, LARGE));
    const struct host_node first = named;
    assert_true(behind(0x10000, LARGE));
    assert_false(behind(0x20000, LARGE));
    was_called(first);
    assert_false(behind(0x20000, LARGE)); /* its second launch has not come to it */
    was_called(first);
    is.waiting = &queue;
    assert_false(behind(0x20000, LARGE));
    is.waiting = NULL;
    assert_int_equal(destroyed, 0);
    assert_true(behind(0x20000, LARGE));
    assert_int_equal(destroyed, 1);
}

/* A launch that failed never comes to its copy. */
static void a_failed_launch_is_not_waited_for(void **state)
{
    (void)state;
    begin_behind();
    is.launches = CUDA_UNKNOWN;
    assert_true(behind(0x10000, LARGE));
    is.launches = 0;
    assert_true(behind(0x20000, LARGE));
    assert_int_equal(destroyed, 1);
}

/* A reset has destroyed all graphs. A function of before it is called for none that came later. */
static void a_reset_takes_the_graphs(void **state)
{
    (void)state;
    begin_behind();
    assert_true(behind(0x10000, LARGE));
    const struct host_node before = named;
    const void *graph = launched;
    was_called(before);
    ibx_frontend_graph_reset();
    ibx_frontend_graph_behind_trim();
    assert_true(behind(0x10000, LARGE));
    assert_ptr_not_equal(launched, graph);
    assert_ptr_not_equal(named.argument, before.argument);
    assert_int_equal(destroyed, 0);
}

/* The driver's memory for them is given back while there is time. */
static void many_graphs_are_trimmed(void **state)
{
    (void)state;
    begin_behind();
    for (unsigned i = 0; i < 31; i++) {
        assert_true(behind(0x30000 + i, 1));
        was_called(named);
    }
    ibx_frontend_graph_behind_trim();
    assert_int_equal(destroyed, 0);
    assert_true(behind(0x40000, 1));
    ibx_frontend_graph_behind_trim();
    assert_int_equal(destroyed, 31); /* the first one and the last one are not complete */
}

/* The program asked for a copy, and not for this way of it. */
static void a_graph_that_cannot_be_made_leaves_no_error(void **state)
{
    (void)state;
    begin_behind();
    is.no_slot = true;
    is.error = CUDA_UNKNOWN;
    set_error = 0;
    assert_false(behind(0x10000, 1));
    assert_int_equal(set_error, CUDA_UNKNOWN);
    is.error = set_error = 0;
    assert_false(behind(0x10000, 1));
    assert_int_equal(set_error, 0);
    is.no_slot = false;
}

/* A function copies for the device that was current, and in the way that the memory needs. */
static void copies_of_other_devices_and_memory_are_others(void **state)
{
    const struct ibx_cuda_memcpy3d copy = copy_to_device(memory, 0x50000);
    const struct ibx_host_copy *first, *other;
    struct ibx_writer w;
    uint8_t bytes[512];
    (void)state;
    w = ibx_writer_of(bytes, sizeof(bytes));
    assert_true(ibx_frontend_slot_copy(&w, &copy));
    first = named.argument;
    assert_true(first->pageable && first->device == 0 && first->number == 1);
    is.device = 1;
    w = ibx_writer_of(bytes, sizeof(bytes));
    assert_true(ibx_frontend_slot_copy(&w, &copy));
    other = named.argument;
    assert_true(other != first && other->device == 1);
    is.device = 64;
    w = ibx_writer_of(bytes, sizeof(bytes));
    assert_int_equal(ibx_frontend_slot_copy(&w, &copy), 0);
    is.device = 0;
    is.host = HOST_ALLOCATED;
    w = ibx_writer_of(bytes, sizeof(bytes));
    assert_true(ibx_frontend_slot_copy(&w, &copy));
    other = named.argument;
    assert_true(other != first && !other->pageable);
    is.host = HOST_PAGEABLE;
    is.number = (uint64_t)1 << 31; /* no back end could name it with its slot */
    w = ibx_writer_of(bytes, sizeof(bytes));
    assert_int_equal(ibx_frontend_slot_copy(&w, &copy), 0);
    is.number = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_that_are_not_there),
        cmocka_unit_test(freed_bytes_are_not_copied),
        cmocka_unit_test(memory_of_the_program),
        cmocka_unit_test(arrays_of_one_number),
        cmocka_unit_test(a_child_has_the_copies),
        cmocka_unit_test(streams_have_graphs_apart),
        cmocka_unit_test(takes_no_more_than_there_is_room),
        cmocka_unit_test(graphs_go_when_their_launches_are_complete),
        cmocka_unit_test(a_failed_launch_is_not_waited_for),
        cmocka_unit_test(a_reset_takes_the_graphs),
        cmocka_unit_test(many_graphs_are_trimmed),
        cmocka_unit_test(a_graph_that_cannot_be_made_leaves_no_error),
        cmocka_unit_test(copies_of_other_devices_and_memory_are_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
