/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/borrow.h"
#include "tests/scenes/ram_file.h"

struct vm home;
struct mover lender, bringer;
struct vm_options borrow_options;

/* ------------------------------------------------------------ steps */

void borrow_tools(const char *uri, const char *const *more)
{
    const char *arguments[16] = {"borrow", receiver.uri, "--qmp", vms[0].tool,
                                 "--json", "--yes",      TIMED};
    mover_receive(&receiver, &vms[1], uri, NULL);
    for (unsigned n = 8; more && *more; more++)
        arguments[n++] = *more;
    mover_start(&sender, arguments);
    mover_await(&sender, "filling", 0);
}

void borrowed(const struct vm_options *options, const char *uri, const char *const *more)
{
    borrow_options = *options;
    pair_start(options);
    if (!strstr(options->append, "balloon"))
        ram_leave_data(vms[0].ram);
    borrow_tools(uri, more);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
}

void borrowed_small(void)
{
    borrowed(&(struct vm_options){.append = "mib=4"}, TCP, NULL);
}

void home_start(const char *extra)
{
    struct vm_options options = borrow_options;
    unsigned n = 0;
    while (options.extra[n])
        n++;
    options.extra[n] = extra;
    options.incoming = true;
    vm_start(&home, &options);
}

void home_receives(const char *uri, const char *more)
{
    char whole[96];
    snprintf(whole, sizeof(whole), "%s%c%s", uri, strchr(uri, '?') ? '&' : '?', pair_timeout);
    mover_receive(&lender, &home, whole, (const char *[]){"--home", more, NULL});
}

void bring(const char *more)
{
    mover_start(&bringer, (const char *[]){"return", lender.uri, "--qmp", vms[1].tool, "--json",
                                           TIMED, more, NULL});
}

void home_and_bring(void)
{
    home_start(NULL);
    home_receives(TCP, NULL);
    bring(NULL);
}

struct mover *bring_to(const char *state)
{
    struct mover *which = strncmp(state, "source", 6) ? &lender : &bringer;
    mover_stop_next(state);
    home_and_bring();
    mover_await_stop(which);
    return which;
}

/* ------------------------------------------------------------ ends */

static bool is_unfinished(const char *path)
{
    json_t *record = json_load_file(path, 0, NULL);
    const char *state = json_string_value(json_object_get(record, "state"));
    assert_non_null(state);
    const bool unfinished = !strcmp(state, "may-run") || !strcmp(state, "not-yet");
    json_decref(record);
    return unfinished;
}

static void no_note(const char *record, const char *note)
{
    if (!access(note, F_OK) && !is_unfinished(record))
        fail_msg("%s is left over", note);
}

void no_notes(void)
{
    assert_true(mover_each_note(no_note) > 0);
}

void brought(void)
{
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
}

unsigned home_with_every_byte(const char *uri)
{
    uint8_t *wanted = ram_copy(vms[0].ram);
    home_start("-S");
    home_receives(uri, "--paused");
    bring(NULL);
    brought();
    const unsigned written = ram_overlay(wanted, vms[1].ram);
    ram_is(home.ram, wanted);
    ram_free(wanted);
    return written;
}

void is_home(void)
{
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    MOVER_RUN(0, "check", "--qmp", home.tool); /* it can go again */
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, borrow_options.append);
    no_notes();
}

void returned(void)
{
    brought();
    pair_done();
    is_home();
}

void stays_away(void)
{
    assert_int_equal(vm_beats(&home), 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], NULL}, borrow_options.append);
}
