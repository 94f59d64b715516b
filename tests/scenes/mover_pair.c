/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What most tests of migrations have: a source, a destination and their tools. */
#include "tests/scenes/mover.h"

struct vm vms[2];
struct mover receiver, sender;
unsigned long pair_beats = 20;
const char *pair_timeout = PAIR_TIMEOUT;

void pair_start_source(void)
{
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = ""});
    vm_wait_beats(&vms[0], pair_beats);
}

void pair_start(const struct vm_options *like)
{
    struct vm_options options = {.append = ""};
    if (like)
        options = *like;
    mover_begin();
    vm_start(&vms[0], &options);
    options.incoming = true;
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], pair_beats);
}

void pair_receive(const char *const *more)
{
    char uri[64];
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:0?%s", pair_timeout);
    mover_receive(&receiver, &vms[1], uri, more);
}

void pair_send(const char *const *more)
{
    const char *options[16] = {TIMED};
    for (unsigned n = 2; more && *more; more++)
        options[n++] = *more;
    mover_send(&sender, &vms[0], receiver.uri, options);
}

void pair_run(const char *const *more)
{
    pair_receive(more);
    pair_send(NULL);
}

struct mover *pair_run_to(const char *state, const char *const *more)
{
    struct mover *which = strncmp(state, "source", 6) ? &receiver : &sender;
    mover_stop_next(state);
    pair_run(more);
    mover_await_stop(which);
    return which;
}

void pair_filling(const struct vm_options *like, const char *option)
{
    pair_start(like);
    pair_run((const char *[]){"--max-bandwidth", "64K", option, NULL});
    mover_await(&receiver, "filling", 0);
}

void pair_filled(void)
{
    MOVER_RUN(0, "set", "--max-bandwidth", "0", "--qmp", vms[1].tool);
    pair_done();
    pair_moved("");
}

void pair_recover(struct mover *m)
{
    mover_recover(m, &vms[m == &sender ? 0 : 1]);
}

void pair_done(void)
{
    mover_ends(&sender, 0);
    mover_ends(&receiver, 0);
}

void pair_moved(const char *options)
{
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, options);
    assert_false(vms[0].pid && vm_runs(&vms[0]));
}

void pair_runs_at_the_source(void)
{
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
}

void pair_stays(void)
{
    assert_false(mover_resumed(&vms[1]));
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    assert_int_equal(vm_beats(&vms[1]), 0);
}

void pair_stayed(void)
{
    pair_stays();
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
}
