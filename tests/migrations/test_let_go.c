/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a move releases QEMU's memory in two ways, and one is enough: ranges are unregistered,
 * and the last descriptor is closed. Here a process stands for QEMU, with memory whose faults
 * nobody answers.
 */
#include "migrate/destination/destination.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE  4096u
#define BYTES (16 * PAGE)

static unsigned patience; /* ms, for what is to come: main() sets it */
static pid_t qemu;
static char *memory;
static int memory_fd;     /* its file */
static int asks, answers; /* pipes: a byte asks it to read its memory, a byte reports that it has */
static struct destination_ram ram;
static struct ibx_record record;
static struct ibx_guest_block block;

/* The process's main thread waits for a byte, and then reads its memory in place of another
 * process. */
static void be_qemu(int in, int out)
{
    struct ibx_fault_range range = {.start = (uintptr_t)memory, .length = BYTES, .page_size = PAGE};
    char byte = 'r';
    int uffd;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ibx_fault_uffd_open(0, &uffd, NULL) || ibx_fault_register(uffd, &range, NULL) ||
        write(out, &byte, 1) != 1)
        _exit(2);
    while (read(in, &byte, 1) == 1) {
        byte = ((volatile char *)memory)[5 * PAGE];
        if (write(out, &byte, 1) != 1)
            break;
    }
    _exit(0);
}

static bool answers_within(int ms)
{
    struct pollfd p = {.fd = answers, .events = POLLIN};
    char byte;
    return poll(&p, 1, ms) == 1 && read(answers, &byte, 1) == 1;
}

/* Begins with guest RAM that the tool believes to be at `address`. Its file is mapped in any
 * case. */
static void begin(uintptr_t address)
{
    int to[2], from[2];
    struct stat st;
    assert_int_equal(ftruncate(memory_fd, 0), 0); /* no page of an earlier test */
    assert_int_equal(ftruncate(memory_fd, BYTES), 0);
    assert_int_equal(fstat(memory_fd, &st), 0);
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    qemu = fork();
    assert_true(qemu >= 0);
    if (!qemu)
        be_qemu(to[0], from[1]);
    close(to[0]);
    close(from[1]);
    asks = to[1];
    answers = from[0];
    if (!answers_within((int)patience))
        skip(); /* no userfaultfd here */
    block = (struct ibx_guest_block){.size = BYTES,
                                     .page_size = PAGE,
                                     .address = address,
                                     .dev = st.st_dev,
                                     .ino = st.st_ino,
                                     .fd = -1};
    record = (struct ibx_record){.pid = qemu, .pid_started = ibx_process_started(qemu), .uffd = -1};
    ibx_destination_ram_init(&ram, false, 0);
    ram.guest.pid = qemu;
    ram.guest.blocks = &block;
    ram.guest.count = 1;
    struct ibx_error err = {0};
    if (ibx_destination_ram_take_uffd(&ram, &record, &err))
        fail_msg("%s", err.message);
}

static int end(NO_STATE)
{
    if (qemu > 0) {
        kill(qemu, SIGKILL);
        waitpid(qemu, NULL, 0);
    }
    close(asks);
    close(answers);
    if (ram.uffd.fd >= 0)
        close(ram.uffd.fd);
    return 0;
}

/* The process reads its memory, which nobody fills any more, without waiting. */
static void is_free(void)
{
    struct ibx_uffd uffd;
    assert_int_equal(ram.uffd.fd, -1);
    assert_int_not_equal(ram.state.now, RAM_REGISTERED);
    assert_int_equal(ibx_uffd_take(qemu, -1, &uffd, NULL), -ENOENT);
    assert_int_equal(write(asks, "a", 1), 1);
    assert_true(answers_within((int)patience));
}

static void test_both_ways(NO_STATE)
{
    struct ibx_error err = {0};
    begin((uintptr_t)memory);
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    is_free();
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err),
                     0); /* there is nothing any more */
}

/* Closing the descriptor releases everything. */
static void test_not_unregistered(NO_STATE)
{
    struct ibx_error err = {0};
    begin(PAGE);
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    is_free();
}

/* A QEMU that is stopped: its memory is released now, and the descriptor when it goes on. */
static void test_not_closed(NO_STATE)
{
    struct ibx_error err = {0};
    begin((uintptr_t)memory);
    kill(qemu, SIGSTOP);
    waitpid(qemu, NULL, WUNTRACED);
    assert_int_not_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    assert_true(err.message[0] && ram.uffd.fd >= 0);
    assert_int_not_equal(ram.state.now, RAM_REGISTERED);
    kill(qemu, SIGCONT);
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    is_free();
}

/* Neither: nothing is given up, and both are tried again. */
static void test_neither(NO_STATE)
{
    struct ibx_error err = {0};
    begin(PAGE);
    kill(qemu, SIGSTOP);
    waitpid(qemu, NULL, WUNTRACED);
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
        assert_true(ram.uffd.fd >= 0 && ram.state.now == RAM_REGISTERED);
    }
    kill(qemu, SIGCONT);
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    is_free();
}

/* Nothing is left to release. */
static void test_qemu_has_ended(NO_STATE)
{
    struct ibx_error err = {0};
    begin((uintptr_t)memory);
    kill(qemu, SIGKILL);
    waitpid(qemu, NULL, 0);
    assert_int_equal(ibx_destination_ram_let_go(&ram, &record, &err), 0);
    assert_int_equal(ram.uffd.fd, -1);
    qemu = 0;
}

int main(void)
{
    patience = patience_ms(20000);
    memory_fd = memfd_create("guest RAM", MFD_CLOEXEC);
    if (memory_fd < 0 || ftruncate(memory_fd, BYTES))
        return 1;
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
    if (memory == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_both_ways, end),
        cmocka_unit_test_teardown(test_not_unregistered, end),
        cmocka_unit_test_teardown(test_not_closed, end),
        cmocka_unit_test_teardown(test_neither, end),
        cmocka_unit_test_teardown(test_qemu_has_ended, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
