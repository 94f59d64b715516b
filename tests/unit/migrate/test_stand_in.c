/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When a watchdog acts for a tool that stands still, and what it takes for the answer. This process
 * is QEMU and the watchdog; the time and the state of the tool are the test's. */
#include "migrate/common/stand_in.h"
#include "migrate/journal/journal.h"
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/unit.h"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STILL_MS  3000u
#define HELD_MS   100u
#define AGAIN_MS  1000u
#define UNSEEN_MS 3000u

#define DONE    "{\"return\": {}, \"id\": \"" IBX_QMP_STAND_IN "\"}\r\n"
#define REFUSED "{\"id\": \"" IBX_QMP_STAND_IN "\", \"error\": {\"class\": \"GenericError\"}}\r\n"
#define EVENT   "{\"event\": \"STOP\"}\r\n"

char __wrap_ibx_process_state(pid_t pid);
uint64_t __wrap_ibx_process_turns(pid_t pid);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

static struct ibx_stand_in stand_in;
static atomic_uint beats;
static json_t *before;
static unsigned now_ms;
static char tool; /* its state */
static uint64_t turns;
static int qemu;

char __wrap_ibx_process_state(pid_t pid)
{
    assert_int_equal(pid, getppid());
    return tool;
}

uint64_t __wrap_ibx_process_turns(pid_t pid)
{
    assert_int_equal(pid, getppid());
    return turns;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){now_ms / 1000, now_ms % 1000 * 1000000l};
    return 0;
}

static int begin(void **state)
{
    int pair[2];
    (void)state;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return -1;
    qemu = pair[1];
    now_ms = 1000000;
    tool = 'S';
    atomic_store(&beats, 1);
    before = json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 0);
    ibx_stand_in_init(&stand_in, pair[0], &beats);
    return !before;
}

static int end(void **state)
{
    (void)state;
    ibx_stand_in_end(&stand_in);
    json_decref(before);
    return close(qemu);
}

/* How many questions QEMU gets when the watchdog has looked. */
static unsigned asks(void)
{
    char text[4096];
    unsigned n = 0;
    ibx_stand_in_look(&stand_in, before);
    const ssize_t got = recv(qemu, text, sizeof(text) - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = text, *next; (next = strchr(line, '\n')); line = next + 1, n++) {
        *next = '\0';
        json_t *command = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(command, "execute"));
        assert_string_equal(name ? name : line, "migrate-set-capabilities");
        json_decref(command);
    }
    return n;
}

static void qemu_says(const char *text)
{
    assert_int_equal(send(qemu, text, strlen(text), 0), strlen(text));
}

static void stop(void)
{
    tool = 'T';
    assert_int_equal(asks(), 1);
    assert_int_equal(stand_in.state.now, STAND_IN_ASKED);
}

/* ------------------------------------------------------------ who stands still */

static void test_beats(NO_STATE)
{
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(asks(), 0);
        atomic_fetch_add(&beats, 1);
        now_ms += STILL_MS - 1;
    }
    assert_int_equal(asks(), 0);
    now_ms += STILL_MS;
    assert_int_equal(asks(), 0);
    now_ms++;
    assert_int_equal(asks(), 1);
}

/* It has not got to its loop, and may take its time. */
static void test_no_beat_yet(NO_STATE)
{
    atomic_store(&beats, 0);
    assert_int_equal(asks(), 0);
    now_ms += 10 * STILL_MS;
    assert_int_equal(asks(), 0);
}

static void test_stopped(NO_STATE)
{
    assert_int_equal(asks(), 0);
    tool = 'T';
    assert_int_equal(asks(), 1);
}

/* A tracer holds it for moments, a debugger at one place. */
static void test_traced(NO_STATE)
{
    tool = 't';
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(asks(), 0);
        now_ms += HELD_MS - 1;
        assert_int_equal(asks(), 0);
        turns++;
        now_ms += HELD_MS;
    }
    assert_int_equal(asks(), 0);
    now_ms += HELD_MS;
    assert_int_equal(asks(), 1);
}

/* ------------------------------------------------------------ answers */

static void test_done(NO_STATE)
{
    stop();
    qemu_says(EVENT);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_ASKED);
    qemu_says(DONE);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_DONE);
    now_ms += 10 * UNSEEN_MS;
    qemu_says(EVENT);
    assert_int_equal(asks(), 0);
}

/* The tool has read the beginning of a message. */
static void test_part_of_a_message(NO_STATE)
{
    qemu_says("\"timestamp\": {\"seconds\": 1}}\r\n");
    stop();
    qemu_says(DONE);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_DONE);
}

/* Another question has another answer, though the tool has not read the first one. */
static void test_stops_again(NO_STATE)
{
    stop();
    qemu_says(DONE);
    assert_int_equal(asks(), 0);
    tool = 'S';
    atomic_fetch_add(&beats, 1);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_IDLE);
    stop();
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_ASKED);
    qemu_says(REFUSED);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_REFUSED);
}

/* Then QEMU is asked again when it reports something, or after a while. */
static void test_refused(NO_STATE)
{
    stop();
    qemu_says(REFUSED);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_REFUSED);
    now_ms += AGAIN_MS - 1;
    assert_int_equal(asks(), 0);
    now_ms++;
    assert_int_equal(asks(), 1);
    qemu_says(REFUSED);
    assert_int_equal(asks(), 0);
    qemu_says(EVENT);
    assert_int_equal(asks(), 1);
    assert_int_equal(asks(), 0);
    qemu_says(DONE);
    assert_int_equal(asks(), 0);
    assert_int_equal(stand_in.state.now, STAND_IN_DONE);
}

static void test_no_answer_is_seen(NO_STATE)
{
    stop();
    now_ms += UNSEEN_MS - 1;
    assert_int_equal(asks(), 0);
    now_ms++;
    assert_int_equal(asks(), 1);
}

/* ------------------------------------------------------------ the monitor */

static void test_without_work(NO_STATE)
{
    json_t *on = json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 1);
    assert_true(ibx_stand_in_has_work(&stand_in, before));
    assert_false(ibx_stand_in_has_work(&stand_in, on)); /* it was on before */
    assert_false(ibx_stand_in_has_work(&stand_in, NULL));
    ibx_stand_in_end(&stand_in);
    assert_false(ibx_stand_in_has_work(&stand_in, before));
    json_decref(on);
}

static void test_monitor_is_left(NO_STATE)
{
    const int monitor = ibx_stand_in_leave(&stand_in);
    ibx_stand_in_end(&stand_in);
    assert_false(ibx_stand_in_has_work(&stand_in, before));
    assert_int_equal(close(monitor), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_beats, begin, end),
        cmocka_unit_test_setup_teardown(test_no_beat_yet, begin, end),
        cmocka_unit_test_setup_teardown(test_stopped, begin, end),
        cmocka_unit_test_setup_teardown(test_traced, begin, end),
        cmocka_unit_test_setup_teardown(test_done, begin, end),
        cmocka_unit_test_setup_teardown(test_part_of_a_message, begin, end),
        cmocka_unit_test_setup_teardown(test_stops_again, begin, end),
        cmocka_unit_test_setup_teardown(test_refused, begin, end),
        cmocka_unit_test_setup_teardown(test_no_answer_is_seen, begin, end),
        cmocka_unit_test_setup_teardown(test_without_work, begin, end),
        cmocka_unit_test_setup_teardown(test_monitor_is_left, begin, end),
    };
    return cmocka_run_group_tests_name("stand-in", tests, NULL, NULL);
}
