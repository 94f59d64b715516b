/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The states of a record, their moves, and what each means for an operator. */
#include "migrate/journal/journal_internal.h"

#include <string.h>

/* A state may also be written again, for instance with a higher epoch. Moves may skip states, since
 * a side that was disconnected learns how far the other has come. */
static const struct ibx_state source_states[] = {
    [IBX_JOURNAL_HERE] = {"here",
                          IBX_TO(IBX_JOURNAL_MAY_RUN) | IBX_TO(IBX_JOURNAL_KEPT) |
                              IBX_TO(IBX_JOURNAL_ROLLED_BACK),
                          IBX_STATE_INITIAL},
    [IBX_JOURNAL_MAY_RUN] = {"may-run",
                             IBX_TO(IBX_JOURNAL_MOVED) | IBX_TO(IBX_JOURNAL_DONE) |
                                 IBX_TO(IBX_JOURNAL_KEPT) | IBX_TO(IBX_JOURNAL_ROLLED_BACK) |
                                 IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_MOVED] = {"moved",
                           IBX_TO(IBX_JOURNAL_DONE) | IBX_TO(IBX_JOURNAL_ROLLED_BACK) |
                               IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_ENDED),
                           0},
    [IBX_JOURNAL_ENDED] = {"ended", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_BROKEN] = {"broken", IBX_TO(IBX_JOURNAL_ROLLED_BACK), 0},
    [IBX_JOURNAL_DONE] = {"done", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_KEPT] = {"kept", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_ROLLED_BACK] = {"rolled-back", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table source_table = IBX_STATE_TABLE("source record", source_states);

static const struct ibx_state destination_states[] = {
    [IBX_JOURNAL_NOT_YET] = {"not-yet", IBX_TO(IBX_JOURNAL_MAY_RUN) | IBX_TO(IBX_JOURNAL_GIVEN_UP),
                             IBX_STATE_INITIAL},
    [IBX_JOURNAL_MAY_RUN] = {"may-run",
                             IBX_TO(IBX_JOURNAL_RUNNING) | IBX_TO(IBX_JOURNAL_COMPLETE) |
                                 IBX_TO(IBX_JOURNAL_GIVEN_UP) | IBX_TO(IBX_JOURNAL_BROKEN) |
                                 IBX_TO(IBX_JOURNAL_SHUT_DOWN) | IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_RUNNING] = {"running",
                             IBX_TO(IBX_JOURNAL_COMPLETE) | IBX_TO(IBX_JOURNAL_GIVEN_UP) |
                                 IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_SHUT_DOWN) |
                                 IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_SHUT_DOWN] = {"shut-down", IBX_TO(IBX_JOURNAL_ENDED) | IBX_TO(IBX_JOURNAL_BROKEN),
                               0},
    [IBX_JOURNAL_ENDED] = {"ended", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_COMPLETE] = {"complete", IBX_TO(IBX_JOURNAL_DONE) | IBX_TO(IBX_JOURNAL_BROKEN), 0},
    [IBX_JOURNAL_BROKEN] = {"broken", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_DONE] = {"done", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_GIVEN_UP] = {"given-up", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table destination_table =
    IBX_STATE_TABLE("destination record", destination_states);

const struct ibx_state *ibx_journal_state_of(bool source, unsigned state)
{
    const struct ibx_state_table *table = source ? &source_table : &destination_table;
    return state < table->count && table->states[state].name ? &table->states[state] : NULL;
}

bool ibx_journal_move_allowed(bool source, enum ibx_journal_state previous,
                              enum ibx_journal_state state)
{
    const struct ibx_state *to = ibx_journal_state_of(source, (unsigned)state);
    if (!previous)
        return to && to->flags & IBX_STATE_INITIAL;
    return to && (previous == state || ibx_state_allows(source ? &source_table : &destination_table,
                                                        (unsigned)previous, (unsigned)state));
}

bool ibx_journal_over(const struct ibx_record *record)
{
    const struct ibx_state *state = ibx_journal_state_of(record->source, (unsigned)record->state);
    return state && state->flags & IBX_STATE_FINAL;
}

const char *ibx_journal_state_name(enum ibx_journal_state state)
{
    const struct ibx_state *of_source = ibx_journal_state_of(true, (unsigned)state),
                           *found =
                               of_source ? of_source : ibx_journal_state_of(false, (unsigned)state);
    return found ? found->name : "unknown";
}

/* ------------------------------------------------------------ in words */

#define SENDS_ON                                                                                   \
    ": leave this QEMU as it is; " IBX_JOURNAL_UNLESS_AT_WORK                                      \
    "\"ib-migrate recover\" continues to send them"
#define FETCHES_ON                                                                                 \
    "; " IBX_JOURNAL_UNLESS_AT_WORK                                                                \
    "\"ib-migrate recover\" continues to fetch them" IBX_JOURNAL_FOR_GOOD

/* The first %s is the VM, the second the other side; @ is "runs", or what the VM does instead. */
static const char *const source_texts[] = {
    [IBX_JOURNAL_HERE] = "%s is here: its migration to %s has not come to the point where it could "
                         "run there; " IBX_JOURNAL_UNLESS_AT_WORK "\"ib-migrate recover\" ends it",
    [IBX_JOURNAL_MAY_RUN] = "%s may run at %s or still be here: " IBX_JOURNAL_UNLESS_AT_WORK
                            "\"ib-migrate recover\" finds out, from QEMU here or from the "
                            "destination, before anything is started",
    [IBX_JOURNAL_MOVED] = "%s @ at %s and not here, but this side has pages that it needs" SENDS_ON,
    [IBX_JOURNAL_DONE] = "%s @ at %s with all of its pages: this QEMU is not needed any more "
                         "and must not be continued",
    [IBX_JOURNAL_KEPT] = "%s stayed here: its migration to %s ended before it could run there",
    [IBX_JOURNAL_BROKEN] =
        "%s ran at %s with memory that is not what it was here, and is paused there when its "
        "ib-migrate knows that, which \"ib-migrate recover\" here tells it: end its QEMU there, "
        "then \"ib-migrate rollback\" here restarts it from where it stopped",
    [IBX_JOURNAL_ROLLED_BACK] = "%s was taken back from %s and runs here from where it had "
                                "stopped: it must not run there",
    [IBX_JOURNAL_ENDED] = "%s was shut down by its guest at %s, before all of its pages were "
                          "there: nothing is lost and nothing to be done, and this QEMU must not "
                          "be continued",
};
static const char *const destination_texts[] = {
    [IBX_JOURNAL_NOT_YET] = "%s does not run here yet: it is at %s",
    [IBX_JOURNAL_MAY_RUN] =
        "%s may run here or still be at %s: this QEMU knows; " IBX_JOURNAL_UNLESS_AT_WORK
        "\"ib-migrate recover\" asks it",
    [IBX_JOURNAL_RUNNING] = "%s @ here and needs pages that are still at %s: leave both QEMUs "
                            "as they are" FETCHES_ON "gone there for good (see its ib-migrate "
                            "status), end this QEMU and start the VM from its disk",
    [IBX_JOURNAL_COMPLETE] = "%s @ here with all of its pages, but %s has not confirmed it and "
                             "keeps them, too: run \"ib-migrate recover\" here, or there if its "
                             "state is done",
    [IBX_JOURNAL_DONE] = "%s @ here with all of its pages: the QEMU at %s is not needed any more",
    [IBX_JOURNAL_BROKEN] =
        "%s ran here with memory that is not what it was at %s, and was paused if QEMU answered: "
        "end this QEMU; \"ib-migrate rollback\" at the source restarts it from where it "
        "stopped" IBX_JOURNAL_UNLESS_DONE,
    [IBX_JOURNAL_GIVEN_UP] = "%s does not run here: its migration from %s was given up",
    [IBX_JOURNAL_SHUT_DOWN] = "%s was shut down by its guest here, and %s, which still keeps its "
                              "pages, does not know it: run \"ib-migrate recover\" here",
    [IBX_JOURNAL_ENDED] = "%s was shut down by its guest here, before all of its pages had come "
                          "from %s: nothing is lost and nothing to be done",
};

/* Where libvirt drives, libvirt restarts a VM, if it has not ended the source's QEMU. */
static const char *libvirt_text(const struct ibx_record *record, const char *plain)
{
    if (record->source && record->state == IBX_JOURNAL_KEPT)
        return "%s did not go to %s by this migration, which ended before it could run there: "
               "libvirt decides where it runs (virsh list)";
    if (ibx_journal_lost_there(record) && ibx_journal_migrated_on(record))
        return "%s was at %s, and its QEMU there has ended: virsh resume here continues it from "
               "where it stopped" IBX_JOURNAL_UNLESS_ON
               ", then \"ib-migrate rollback\" ends what is left of the migration";
    if (ibx_journal_lost_there(record))
        return "%s went to %s, and its QEMU there has ended: virsh resume here continues it from "
               "where it stopped, then \"ib-migrate rollback\" ends what is left of the migration";
    if (record->state != IBX_JOURNAL_BROKEN)
        return plain;
    return record->source
               ? "%s ran at %s with memory that is not what it was here, and is paused there when "
                 "its ib-migrate knows that, which \"ib-migrate recover\" here tells it: end its "
                 "QEMU there, then virsh resume here continues it from where it stopped, and "
                 "\"ib-migrate rollback\" ends what is left of the migration"
               : "%s ran here with memory that is not what it was at %s, and was paused if QEMU "
                 "answered: end this QEMU; if virsh list has it paused at the source, virsh resume "
                 "there continues it from where it stopped, otherwise start it from its disk";
}

/* Fills in a form of these tables. Not printf(3), since a compiler could not check such formats. */
static void fill_in(const char *form, const char *vm, const char *does, const char *peer, char *out,
                    size_t size)
{
    const char *names[] = {vm, peer};
    unsigned next = 0;
    for (size_t used = 0; *form && used + 1 < size; used = strlen(out)) {
        const size_t plain = strcspn(form, "%@");
        snprintf(out + used, size - used, "%.*s%s", (int)plain, form,
                 form[plain] == '@'   ? does
                 : form[plain] == '%' ? names[next++]
                                      : "");
        form += plain + (form[plain] == '@' ? 1 : form[plain] ? 2 : 0);
    }
}

#define BORROWED_END                                                                               \
    FETCHES_ON                                                                                     \
    "lost there for good, interrupt ib-migrate if it says that the VM has all of its pages; "      \
    "otherwise end this QEMU and start the VM from its disk"

/* The text for a VM that was borrowed, or that has returned. */
static const char *borrowed_text(const struct ibx_record *record)
{
    const bool back = ibx_journal_returns(record);
    if (record->source)
        return back ? "%s @ at %s again: this side keeps what it has of it for when it comes back, "
                      "and the pages that it needs" SENDS_ON
                    : "%s @ at %s, borrowed from here: this side has the memory that it returns to "
                      "and the pages that it needs" SENDS_ON;
    return back
               ? "%s @ here again, and %s keeps what it has of it for when it goes back there, and "
                 "the pages that have not come yet: leave both QEMUs as they are" BORROWED_END
               : "%s @ here, borrowed from %s, which has the pages that have not come yet: "
                 "\"ib-migrate return\" brings it home" BORROWED_END;
}

void ibx_journal_name_peer(const struct ibx_record *record, char *name, size_t size)
{
    snprintf(name, size, "%s",
             record->peer[0]                    ? record->peer
             : record->source && record->uri[0] ? record->uri
                                                : "the other side");
    ibx_text_sanitize(name);
}

void ibx_journal_say_without_ram(const struct ibx_record *record, char *text, size_t size)
{
    char path[PATH_MAX] = "";
    if (ibx_journal_memory_file(record, path))
        snprintf(
            text, size,
            "libvirt has saved the VM here while its ib-migrate and the watchdog of that stood "
            "still, and without its memory, which is in %.300s: keep that file, without which "
            "nothing can load what was saved; ib-migrate(1), MIGRATIONS BY LIBVIRT, says how "
            "that is done",
            path);
    else
        snprintf(text, size,
                 "libvirt has saved the VM here without its memory, whose file this migration had "
                 "set aside, and which is gone from there: if the VM was not loaded with it, start "
                 "it from its disk");
}

static bool was_taken_back(const struct ibx_record *record)
{
    return !record->source && record->state == IBX_JOURNAL_BROKEN &&
           !strcmp(record->vm_status, IBX_JOURNAL_TAKEN_BACK);
}

/* The text for a source whose VM is lost at the destination. */
static const char *lost_text(const struct ibx_record *record)
{
    return ibx_journal_migrated_on(record)
               ? "%s was at %s, and its QEMU there has ended: \"ib-migrate rollback\" restarts it "
                 "from where it stopped" IBX_JOURNAL_UNLESS_ON
           : record->borrow
               ? "%s was borrowed by %s, and its QEMU there has ended: \"ib-migrate rollback\" "
                 "restarts it from where it stopped, unless a return of it had begun"
               : "%s went to %s, and its QEMU there has ended: \"ib-migrate rollback\" restarts it "
                 "from where it stopped";
}

/* The text where libvirt does not drive. */
static const char *plain_text(const struct ibx_record *record)
{
    const bool lost = ibx_journal_lost_there(record);
    if (ibx_journal_only_at_home(record) && (lost || record->state == IBX_JOURNAL_BROKEN))
        return "%s had returned to %s, and is lost there; what it had not fetched here before is "
               "lost with it, so that nothing can restart it here: end its QEMUs and start it from "
               "its disk";
    if (lost)
        return lost_text(record);
    if (record->source && record->state == IBX_JOURNAL_ROLLED_BACK && !record->was_running)
        return "%s was taken back from %s and is here, paused as it was: it must not run there";
    if (!ibx_journal_state_of(record->source, (unsigned)record->state))
        return "nothing is known of %s and its migration with %s";
    return record->source ? source_texts[record->state] : destination_texts[record->state];
}

static const char *text_of(const struct ibx_record *record)
{
    if (ibx_journal_has_returned(record))
        return record->source
                   ? "%s was borrowed by %s and has returned: nothing is to be done here"
                   : "%s was borrowed here and has returned to %s: nothing is to be done";
    if (record->borrow && (record->state == IBX_JOURNAL_RUNNING ||
                           (record->state == IBX_JOURNAL_MOVED && !ibx_journal_lost_there(record))))
        return borrowed_text(record);
    if (was_taken_back(record))
        return "%s ran here, was taken back at %s since, and was paused here if QEMU answered: it "
               "must not run here, so end this QEMU";
    const char *text = plain_text(record);
    return record->libvirt ? libvirt_text(record, text) : text;
}

static void add(char *text, size_t size, const char *more)
{
    const size_t used = strlen(text);
    if (used < size)
        snprintf(text + used, size - used, "%s", more);
}

void ibx_journal_describe(const struct ibx_record *record, char *text, size_t size)
{
    char vm[256], does[96], peer[sizeof(record->uri)];
    bool uuid = record->uuid[0] && strspn(record->uuid, "0-") != strlen(record->uuid);
    if (record->name[0])
        snprintf(vm, sizeof(vm), "VM %s", record->name);
    else if (uuid)
        snprintf(vm, sizeof(vm), "VM %s", record->uuid);
    else
        snprintf(vm, sizeof(vm), "the VM of %.200s", record->qmp);
    ibx_journal_name_peer(record, peer, sizeof(peer));
    if (ibx_journal_stands(record))
        snprintf(does, sizeof(does), "was \"%s\" when QEMU was last asked, and is",
                 record->vm_status);
    else
        snprintf(does, sizeof(does), "runs");
    ibx_text_sanitize(does); /* the destination tells it */
    fill_in(text_of(record), vm, does, peer, text, size);
    if (!record->source && record->state == IBX_JOURNAL_BROKEN && !was_taken_back(record) &&
        !record->libvirt)
        add(text, size, ibx_journal_restarts_if(record));
    if (record->libvirt && !ibx_journal_over(record))
        add(text, size, " (libvirt decides where it runs: see virsh list on both hosts)");
    ibx_text_plain(text);
}
