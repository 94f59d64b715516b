/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Time that a test makes pass: linked by --wrap=clock_gettime,--wrap=poll, so that time limits of
 * minutes are over at once and those who act in time need not hurry on a busy host. */
#ifndef IBX_TESTS_UNIT_FORWARD_CLOCK_H
#define IBX_TESTS_UNIT_FORWARD_CLOCK_H

#include <stdatomic.h>
#include <stdbool.h>

/* Puts the clock forward; returns when somebody who waits in poll(2) has seen that and waits on, or
 * `over` is true. */
void forward_clock(unsigned ms, const atomic_bool *over);
/* Again and again, until `over` is true; fails the test when it does not come to that. */
void forward_clock_until(const atomic_bool *over, unsigned step_ms);
/* It stands still, but for forward_clock(), an hour ahead, so that no timer of the kernel's goes
 * off by it; then it goes on as if that had not been. Whoever waits in poll(2) meanwhile waits for
 * a descriptor alone. */
void forward_clock_hold(bool held);

#endif
