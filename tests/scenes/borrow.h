/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A VM that ib-migrate borrow brought from vms[0] to vms[1], and that returns to `home`. */
#ifndef IBX_TESTS_MIGRATE_BORROW_H
#define IBX_TESTS_MIGRATE_BORROW_H

#include "tests/scenes/mover.h"

#define TCP "tcp://127.0.0.1:0"

extern struct vm home;                   /* the QEMU that it returns to */
extern struct mover lender, bringer;     /* receive --home, return */
extern struct vm_options borrow_options; /* of every QEMU, set before borrow_tools */

/* ------------------------------------------------------------ steps */

/* Of both QEMUs, which run, the tools: until the VM runs at vms[1]. `more` may be NULL. */
void borrow_tools(const char *uri, const char *const *more);
/* Both QEMUs with borrow_options, and the tools: what the VM has not needed yet is at vms[0]. */
void borrowed(const struct vm_options *options, const char *uri, const char *const *more);
/* The same for a VM that needs little memory. */
void borrowed_small(void);
/* The QEMU at home, with one more option or NULL. */
void home_start(const char *extra);
void home_receives(const char *uri, const char *more);
/* `return`, with one more option or NULL. */
void bring(const char *more);
/* The three of them, and so until one of the tools has stopped itself at this state, which is
 * returned. */
void home_and_bring(void);
struct mover *bring_to(const char *state);

/* ------------------------------------------------------------ ends */

/* Both tools of the return end well. */
void brought(void);
/* It is paused at home, with every byte that it left there or wrote where it was borrowed to; how
 * many pages were written. */
unsigned home_with_every_byte(const char *uri);
/* It runs at home, all that it ever printed is right, and nothing is left over. */
void is_home(void);
/* All four tools end well, and it is home. */
void returned(void);
/* The VM runs on where it was borrowed to. */
void stays_away(void);
/* No tool left anything beside its record but those that were killed and never recovered. */
void no_notes(void);

#endif
