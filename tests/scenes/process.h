/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Programs that a test runs, and what they print. */
#ifndef IBX_TESTS_GVIRTUS_PROCESS_H
#define IBX_TESTS_GVIRTUS_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_TEXT_MAX 16384

/* One running program; standard output and error come together. */
struct process {
    pid_t pid;
    int out;
    char text[PROCESS_TEXT_MAX]; /* all so far */
    size_t length;
};

/* Starts argv[0]; `environment` are further "NAME=value", ended by NULL. */
void process_start(struct process *p, char *const argv[], const char *const environment[]);
/* Waits until it has printed `text` `times` times; fails the test after a minute or at its end. */
void process_expect(struct process *p, const char *text, unsigned times);
/* Waits for its end and the rest of its text: the exit status, or 128 + signal. */
int process_wait(struct process *p);
/* Ends it by SIGKILL, if it still runs. */
void process_kill(struct process *p);
/* A port of 127.0.0.1 that nobody listens on until who sets SO_REUSEADDR does: a socket of this
 * process stays there, so that the kernel gives it to nobody else. */
uint16_t process_free_port(void);
/* A unix socket where nobody can connect, and whoever tries waits: `place` fills its queue. */
int process_full_listener(const char *path, int *place);

#endif
