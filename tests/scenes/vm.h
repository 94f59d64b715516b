/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Real QEMUs for tests: started with the guest of tests/moves/guest, watched by their heartbeats.
 * Every failure fails the test at once; whatever still runs then ends with vm_end_all or the test
 * program.
 */
#ifndef IBX_TESTS_MIGRATE_VM_H
#define IBX_TESTS_MIGRATE_VM_H

#include "migrate/qemu/qemu.h"
#include "tests/scenes/patience.h"
#include "tests/scenes/unit.h"

#include <stdint.h>
#include <sys/types.h>

#define VM_RAM_MIB 64u
#define VM_WAIT_MS patience_ms(90000) /* for anything that is to come, on a loaded machine */
/* For vm_options.extra: the balloon that the guest knows. */
#define VM_BALLOON "-device", "virtio-balloon-pci,disable-modern=on,addr=5"

struct vm_options {
    const char *machine; /* NULL: q35 */
    const char *accel;   /* NULL: TCG with a thread for each vCPU */
    const char *ram;     /* what describes mem0, see vm_ram_*; NULL: a file in /dev/shm */
    const char *append;  /* the guest's command line; NULL or "": it dozes between its beats */
    bool two;            /* vCPUs */
    bool incoming;       /* -incoming defer */
    bool nobody;         /* as an unprivileged user */
    const char *extra[16];
};

struct vm {
    pid_t pid;
    struct ibx_qmp *qmp;
    char dir[64]; /* of everything below */
    char socket[96], serial[96], log[96];
    char tool[96]; /* a second monitor, for somebody else */
    char ram[96];  /* file in /dev/shm, made and removed here */
};

extern struct ibx_error vm_error; /* cleared by vm_soon */

/* 77 (skip) when this machine has no QEMU for us, else 0; the paths come from the environment. */
int vm_available(void);
/* A test without cmocka's state. */
struct vm_test {
    const char *name;
    void (*run)(void);
};
#define VM_TEST(function)                                                                          \
    {                                                                                              \
#function, function                                                                        \
    }
/* For main: runs those of the tests up to {0} that tests/scenes/selection.h has wanted, `end` after
 * each, where vm_available() allows it. */
int vm_tests(const struct vm_test *tests, int (*end)(void **state));
/* Starts one and connects to its monitor. */
void vm_start(struct vm *vm, const struct vm_options *options);
void vm_end(struct vm *vm);
/* Whether memory of this QEMU that is of this file, or of one below this folder, has a flag of
 * smaps: " hg" (huge pages are wanted), " nh" (none may be). */
bool vm_memory_has(const struct vm *vm, const char *file, const char *flag);
/* QEMU's own end of what is connected to its second monitor: a descriptor of this process. */
int vm_end_of_tool(const struct vm *vm);
/* SIGKILL; its files stay. */
void vm_kill(struct vm *vm);
/* Waits until it has ended by itself. */
void vm_await_end(struct vm *vm);
int vm_end_all(void **state);
/* The deadline for something that is to come. */
uint64_t vm_soon(void);

/* Complete heartbeats of the guest so far, and until there are `count` of them. */
unsigned long vm_beats(const struct vm *vm);
void vm_wait_beats(const struct vm *vm, unsigned long count);
/* Feeds the serial output of these, one after the other up to a NULL, to tests/moves/guest/expect
 * with `options`: its exit status, its sentence in `said`. */
int vm_expect(const struct vm *const *vms, const char *options, char *said, size_t size);
/* Whether the guest has printed these words, and until it has. */
bool vm_printed(const struct vm *vm, const char *words);
void vm_await_words(const struct vm *vm, const char *words);

/* A command that must succeed, its result (a reference) and, for the human monitor, its text. */
json_t *vm_run(struct vm *vm, const char *command, json_t *arguments);
void vm_do(struct vm *vm, const char *command, json_t *arguments);
void vm_hmp(struct vm *vm, const char *line, char *text, size_t size);
/* Sends a line to the human monitor that QEMU cannot execute before something else happens. */
void vm_hmp_blocks(struct vm *vm, const char *line);
/* Waits for an event with this name and, when `status` is not NULL, this data.status, and drops
 * those before it: a new reference. */
json_t *vm_event(struct vm *vm, const char *name, const char *status);
/* The balloon leaves so many bytes to the guest, and QEMU has told so. */
void vm_balloon(struct vm *vm, json_int_t bytes);
/* Whether the guest runs, by query-status. */
bool vm_runs(struct vm *vm);

/* Fails the test when rc is not 0, with vm_error's sentence. */
#define vm_ok(call) vm_check((call), #call, __FILE__, __LINE__)
void vm_check(int rc, const char *what, const char *file, int line);
/* ... when it is not this error, or its sentence lacks `words`. */
void vm_refused(int rc, int code, const char *words);

#endif
