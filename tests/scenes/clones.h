/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM, its snapshot, who serves that, and children. */
#ifndef IBX_TESTS_SCENES_CLONES_H
#define IBX_TESTS_SCENES_CLONES_H

#include "tests/scenes/mover.h"

#define CHILDREN 3
#define MIB      "mib=16"
#define CALM     MIB " doze=5000000" /* many of them run at once */
#define PRIVATE  "memory-backend-ram,id=mem0,size=64M"

extern char snapshot[160], cache[160];
extern char small[160]; /* a tmpfs, while it is mounted */
extern char made[160];  /* a folder that clone has made */
extern pid_t started;   /* a QEMU that is nobody's child */
extern struct mover server, filler, further;
extern struct vm children[CHILDREN]; /* of vms[0] */

/* For vm_tests(). */
int clones_end(void **state);

/* vms[0] has run for a while, and has a snapshot. */
void freeze_like(const struct vm_options *like);
void freeze(void);
/* Starts `serve`; mover->uri is where. */
void serve(struct mover *mover, const char *const *arguments);
#define SERVE(mover, ...) serve((mover), (const char *[]){"serve", "--json", __VA_ARGS__, NULL})

/* A QEMU that waits for a VM; `more` of its options may be NULL. */
void child_start(struct vm *child, const char *const *more);
void child_of(struct vm *child, const char *folder);
/* It goes on, and every beat from the parent's first one on is right. */
void child_is_right(struct vm *child);
/* What the children have written is not in it. Zero pages that they have looked at may be. */
void is_as_frozen(const char *path);

/* The latest number of this name that `serve --json` has printed; -1: none. */
json_int_t figure(const struct mover *mover, const char *name);
/* Until it prints this number, or more. */
void await_figure(const struct mover *mover, const char *name, json_int_t least);
unsigned lines_with(const char *path, const char *words);

#endif
