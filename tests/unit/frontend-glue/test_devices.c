/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which device a thread has selected, which ones a process uses, and waits for all of these. */
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/in_child.h"
#include "tests/unit/frontend-glue/next_calls.h"

#define MOST 16u

static struct {
    bool known;    /* which device is selected */
    int selected;  /* at the back end */
    int refused;   /* a device that cannot be selected; 0: none */
    int bad;       /* a device whose wait fails; 0: none */
    int set_fails; /* selecting device 0 does */
    unsigned ended, rested, waits, sets, runtime_uses;
    int told; /* the device that was selected at the latest, for peers.c */
    int waited[MOST];
    unsigned visits;
    int visited[MOST], visited_as[MOST];
    int error;
} is;

int ibx_frontend_fail(int code)
{
    return is.error = code;
}

void ibx_frontend_runtime_used(void)
{
    is.runtime_uses++;
}
void ibx_frontend_asks(void) {}
void ibx_frontend_asked(void) {}

void ibx_frontend_peers_selected(int device)
{
    is.told = device;
}

unsigned ibx_frontend_threads_ended(void)
{
    return is.ended;
}

void ibx_frontend_threads_rest(unsigned so_far)
{
    is.rested = so_far;
}

bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    if (fact == IBX_FRONTEND_DEVICE && is.known)
        *answer = is.selected;
    return is.known && (fact == IBX_FRONTEND_DEVICE || (int)handle == is.selected);
}

static int next_cudaGetDevice(int *device)
{
    *device = is.selected;
    return 0;
}

static int next_cudaSetDevice(int device)
{
    is.sets++;
    if (device ? device == is.refused : is.set_fails)
        return device ? 101 : is.set_fails;
    is.selected = device;
    return 0;
}

/* A thread of the program ends meanwhile. */
int ibx_frontend_own_work_wait(void)
{
    is.waited[is.waits++ % MOST] = is.selected;
    is.ended++;
    return is.bad && is.bad == is.selected ? 700 : 0;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol)
{
    (void)found;
    RETURN_NEXT(symbol, cudaGetDevice);
    RETURN_NEXT(symbol, cudaSetDevice);
    return NULL;
}

/* The devices in use are the process's: each test has a process. */
static int in_use(const int *devices)
{
    memset(&is, 0, sizeof(is));
    for (; *devices >= 0; devices++)
        if (cudaSetDevice(*devices))
            return -1;
    return 0;
}

#define USED(...) in_use((int[]){__VA_ARGS__, -1})

static void visit(int device)
{
    is.visited[is.visits % MOST] = device;
    is.visited_as[is.visits++ % MOST] = is.selected;
}

/* ------------------------------------------------------------- tests */

/* A line that is wrong. */
#define CHECK(condition)                                                                           \
    do                                                                                             \
        if (!(condition)) {                                                                        \
            print_error("%s:%d: %s\n", __FILE__, __LINE__, #condition);                            \
            return 1;                                                                              \
        }                                                                                          \
    while (0)

static int selects(void)
{
    int device = -1;
    CHECK(!USED(2));
    CHECK(ibx_frontend_current_device() == 2);
    CHECK(!cudaGetDevice(&device) && device == 2);
    CHECK(is.told == 2);
    CHECK(ibx_frontend_device_in_use(2) && !ibx_frontend_device_in_use(0));
    CHECK(!ibx_frontend_device_in_use(2 - 64) && !ibx_frontend_device_in_use(2 + 64));
    is.refused = 3;
    CHECK(cudaSetDevice(3) == 101 && ibx_frontend_current_device() == 2 && is.told == 2);
    CHECK(!ibx_frontend_device_in_use(3) && ibx_frontend_one_device());
    CHECK(cudaGetDevice(NULL) == CUDA_INVALID_VALUE && is.error == CUDA_INVALID_VALUE);
    is.known = true;
    is.selected = 5;
    CHECK(!cudaGetDevice(&device) && device == 5);
    CHECK(!cudaSetDevice(5) && ibx_frontend_current_device() == 2); /* as it is there already */
    return 0;
}

static void a_device_is_selected(NO_STATE)
{
    passes_in_child(selects);
}

static int uses(void)
{
    CHECK(ibx_frontend_one_device());
    ibx_frontend_device_used();
    CHECK(is.runtime_uses == 1);
    CHECK(ibx_frontend_device_in_use(0) && ibx_frontend_one_device());
    CHECK(!USED(1) && !ibx_frontend_one_device());
    return 0;
}

static void a_device_is_used_by_selecting_or_using_it(NO_STATE)
{
    passes_in_child(uses);
}

static int visits_all(void)
{
    CHECK(!USED(3, 1));
    ibx_frontend_each_device(visit);
    CHECK(is.visits == 3);
    CHECK(is.visited[0] == 1 && is.visited[1] == 0 && is.visited[2] == 3);
    for (unsigned i = 0; i < is.visits; i++)
        CHECK(is.visited[i] == is.visited_as[i]);
    CHECK(is.selected == 1);
    return 0;
}

/* The thread's own one first, once, and it is selected at the end. */
static void each_device_is_visited_once(NO_STATE)
{
    passes_in_child(visits_all);
}

static int visits_one(void)
{
    CHECK(!USED(0));
    is.sets = 0;
    ibx_frontend_each_device(visit);
    CHECK(is.visits == 1 && !is.visited[0] && !ibx_frontend_current_device());
    CHECK(!is.sets); /* no call selects what is selected */
    return 0;
}

static void a_single_device_is_visited_once(NO_STATE)
{
    passes_in_child(visits_one);
}

static int visits_others(void)
{
    CHECK(!USED(3, 1));
    is.refused = 3;
    ibx_frontend_each_device(visit);
    CHECK(is.visits == 2 && is.visited[0] == 1 && is.visited[1] == 0);
    CHECK(is.selected == 1);
    return 0;
}

static void a_device_that_cannot_be_selected_is_not_visited(NO_STATE)
{
    passes_in_child(visits_others);
}

static int waits_for_all(void)
{
    CHECK(!USED(3, 1));
    is.ended = 7;
    CHECK(!ibx_frontend_devices_wait());
    CHECK(is.waits == 2 && is.waited[0] == 1 && is.waited[1] == 3);
    CHECK(is.selected == 1);
    CHECK(is.rested == 7); /* threads that ended later may have left work */
    return 0;
}

/* Device 0, which nobody uses, is left out: a wait would make a context there. */
static void devices_in_use_are_waited_for(NO_STATE)
{
    passes_in_child(waits_for_all);
}

static int waits_for_one(void)
{
    CHECK(!USED(0));
    is.ended = 7;
    is.sets = 0;
    CHECK(!ibx_frontend_devices_wait());
    CHECK(is.waits == 1 && is.rested == 7 && !is.sets);
    return 0;
}

static void a_single_device_stays_selected(NO_STATE)
{
    passes_in_child(waits_for_one);
}

static int waits_in_vain(void)
{
    CHECK(!USED(3, 4, 1));
    is.ended = 7;
    is.bad = 3;
    CHECK(ibx_frontend_devices_wait() == 700);
    CHECK(is.waits == 3 && is.selected == 1);
    CHECK(!is.rested);
    is.bad = 0;
    is.refused = 4;
    CHECK(ibx_frontend_devices_wait() == 101);
    CHECK(!is.rested && is.selected == 1);
    return 0;
}

/* The others are waited for; work of threads that have ended may be left. */
static void a_wait_that_fails_is_told(NO_STATE)
{
    passes_in_child(waits_in_vain);
}

static int cannot_go_back(void)
{
    CHECK(!USED(3, 0));
    is.set_fails = 999;
    CHECK(ibx_frontend_devices_wait() == 999);
    return 0;
}

static void a_thread_that_cannot_go_back_is_told(NO_STATE)
{
    passes_in_child(cannot_go_back);
}

static int child_of_a_child(void)
{
    is.selected = 0; /* its new connection's */
    CHECK(ibx_frontend_current_device() == 0);
    CHECK(!ibx_frontend_device_in_use(3) && ibx_frontend_one_device());
    ibx_frontend_each_device(visit);
    CHECK(is.visits == 1 && !is.visited[0]);
    return 0;
}

static int forks(void)
{
    CHECK(!USED(1, 3));
    int status = 1;
    const pid_t child = fork();
    if (!child)
        _exit(child_of_a_child());
    CHECK(waitpid(child, &status, 0) == child && !status);
    CHECK(ibx_frontend_current_device() == 3);
    return 0;
}

static void a_child_has_selected_no_device(NO_STATE)
{
    passes_in_child(forks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_selected),
        cmocka_unit_test(a_device_is_used_by_selecting_or_using_it),
        cmocka_unit_test(each_device_is_visited_once),
        cmocka_unit_test(a_single_device_is_visited_once),
        cmocka_unit_test(a_device_that_cannot_be_selected_is_not_visited),
        cmocka_unit_test(devices_in_use_are_waited_for),
        cmocka_unit_test(a_single_device_stays_selected),
        cmocka_unit_test(a_wait_that_fails_is_told),
        cmocka_unit_test(a_thread_that_cannot_go_back_is_told),
        cmocka_unit_test(a_child_has_selected_no_device)};
    return cmocka_run_group_tests_name("devices", tests, NULL, NULL);
}
