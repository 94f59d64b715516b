/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which records are found, and which are pruned. */
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/open_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* the time of day in whole seconds; 0: the real time */
static time_t day_s;

time_t time(time_t *out)
{
    struct timespec now = {.tv_sec = day_s};
    if (!day_s)
        clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

/* Sets the time of a record's file, which is when it was written. */
static void set_written(const struct ibx_record *r, uint64_t seconds)
{
    char from[64], to[64];
    snprintf(from, sizeof(from), "\"written\": %llu", (unsigned long long)r->written_s);
    snprintf(to, sizeof(to), "\"written\": %llu", (unsigned long long)seconds);
    change(r, from, to);
}

/* A clock that was set back in between changes nothing. */
static void newest_come_first(NO_STATE)
{
    struct ibx_record *all;
    size_t count;
    for (uint8_t i = 1; i <= 20; i++) {
        struct ibx_record r = sample(i % 2, (uint8_t)(i * 37));
        assert_int_equal(write_record(&r), 0);
        assert_int_equal(r.number, i);
        set_written(&r, 9000u - i);
    }
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 20);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(all[i].number, 20 - i);
    for (size_t i = 1; i < count; i++) {
        assert_true(ibx_journal_is_later(&all[i - 1], &all[i]));
        assert_false(ibx_journal_is_later(&all[i], &all[i - 1]));
    }
    free(all);
}

/* An earlier version began them, so only the time of writing is known. */
static void records_without_a_number_come_last(NO_STATE)
{
    struct ibx_record *all;
    size_t count;
    for (uint8_t i = 1; i <= 4; i++) {
        struct ibx_record r = sample(true, i);
        assert_int_equal(write_record(&r), 0);
        set_written(&r, 9000u - i);
        if (i < 3)
            change(&r, "\"number\": 1", "\"number\": 0");
    }
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 4);
    static const uint8_t expected[] = {4, 3, 1, 2};
    for (size_t i = 0; i < count; i++)
        assert_int_equal(all[i].id[0], expected[i]);
    assert_true(ibx_journal_is_later(&all[1], &all[2]));
    assert_true(ibx_journal_is_later(&all[2], &all[3]));
    assert_false(ibx_journal_is_later(&all[3], &all[2]));
    assert_true(ibx_journal_is_later(&all[3], &all[3])); /* within a second, each may be */
    free(all);
}

static bool goes_from_here(const struct ibx_record *r)
{
    return r->source && !ibx_journal_over(r);
}

static bool is_unfinished(const struct ibx_record *r)
{
    return !ibx_journal_over(r);
}

static void the_newest_that_fits_is_found(NO_STATE)
{
    struct ibx_record a = sample(true, 1), b = sample(true, 2), c = sample(true, 3),
                      d = sample(false, 4), found;
    strcpy(c.qmp, "/run/other");
    assert_int_equal(ibx_journal_find(folder, a.qmp, is_unfinished, &found, &error), -ENOENT);
    error_has(folder);
    assert_int_equal(write_record(&a), 0);
    assert_int_equal(write_record(&b), 0);
    assert_int_equal(write_record(&c), 0);
    assert_int_equal(write_record(&d), 0);
    set_written(&a, 3000);
    set_written(&b, 2000);
    assert_int_equal(ibx_journal_find(folder, a.qmp, goes_from_here, &found, &error), 0);
    assert_memory_equal(found.id, b.id, sizeof(b.id));
    assert_int_equal(ibx_journal_find(folder, c.qmp, goes_from_here, &found, &error), 0);
    assert_memory_equal(found.id, c.id, sizeof(c.id));
    assert_int_equal(ibx_journal_find(folder, a.qmp, is_unfinished, &found, &error), 0);
    assert_memory_equal(found.id, d.id, sizeof(d.id)); /* in either role */
    b.state = IBX_JOURNAL_KEPT;                        /* the newer one is over */
    assert_int_equal(write_record(&b), 0);
    assert_int_equal(ibx_journal_find(folder, a.qmp, goes_from_here, &found, &error), 0);
    assert_memory_equal(found.id, a.id, sizeof(a.id));
    assert_int_equal(ibx_journal_find(folder, "/run/nobody", is_unfinished, &found, &error),
                     -ENOENT);
    error_has("no unfinished migration of the QEMU at /run/nobody");
}

/* One of the unread records may be the return of a borrowed VM. */
static void a_damaged_record_hides_those_of_borrowed_vms_alone(NO_STATE)
{
    struct ibx_record plain = sample(true, 1), lent = sample(true, 2), back = sample(false, 3),
                      found;
    char path[PATH_MAX];
    strcpy(lent.qmp, "/run/lent");
    strcpy(back.qmp, "/run/back");
    lent.borrow = IBX_BORROW_LAZY;
    memcpy(back.base, lent.id, sizeof(back.base));
    assert_int_equal(write_record(&plain), 0);
    assert_int_equal(write_record(&lent), 0);
    assert_int_equal(write_record(&back), 0);
    snprintf(path, sizeof(path), "%s/torn.json", folder);
    put_file(path, "{", 1);
    assert_int_equal(ibx_journal_find(folder, plain.qmp, is_unfinished, &found, &error), 0);
    assert_memory_equal(found.id, plain.id, sizeof(plain.id));
    const char *others[] = {lent.qmp, back.qmp, "/run/nobody"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        assert_int_equal(ibx_journal_find(folder, others[i], is_unfinished, &found, &error),
                         -EBADMSG);
        error_has(path);
    }
}

/* No kind of file with a record's name, even one that cannot be opened, hides the others. */
static void files_of_any_kind_hide_no_record(NO_STATE)
{
    struct ibx_record plain = sample(true, 1), *all;
    struct ibx_error unread;
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    char path[sizeof(place.sun_path)];
    size_t count;
    assert_int_equal(write_record(&plain), 0);
    assert_true((size_t)snprintf(path, sizeof(path), "%s/odd.json", folder) < sizeof(path));
    memcpy(place.sun_path, path, sizeof(path));
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    for (unsigned kind = 0; kind < 5; kind++) {
        unread.code = 0;
        assert_int_equal(kind == 0   ? mkdir(path, 0700)
                         : kind == 1 ? mkfifo(path, 0600)
                         : kind == 2 ? symlink("/dev/null", path)
                         : kind == 3 ? close(open(path, O_CREAT | O_WRONLY, 0600))
                                     : bind(fd, (struct sockaddr *)&place, sizeof(place)),
                         0);
        assert_int_equal(ibx_journal_list_readable(folder, &all, &count, &unread, &error), 0);
        assert_int_equal(count, 1);
        assert_non_null(strstr(unread.message, path));
        free(all);
        assert_int_not_equal(ibx_journal_list(folder, &all, &count, &error), 0);
        assert_int_equal(remove(path), 0);
    }
    close(fd);
}

/* ------------------------------------------------------------ pruning */

struct seen {
    unsigned gone, kept;
    const char *why;
};

static void see(void *context, const struct ibx_record *record, const char *why)
{
    struct seen *seen = context;
    (void)record;
    *(why ? &seen->kept : &seen->gone) += 1;
    seen->why = why;
}

static struct seen prune(struct ibx_journal_prune which)
{
    struct seen seen = {0};
    which.each = see;
    which.context = &seen;
    which.before_s = which.before_s ? which.before_s : UINT64_MAX;
    if (ibx_journal_prune(folder, &which, &error))
        fail_msg("%s", error.message);
    return seen;
}

/* Makes a record in this state, of a QEMU that lives (this process) or has ended. */
static struct ibx_record in_state(bool source, uint8_t number, enum ibx_journal_state state,
                                  bool lives)
{
    struct ibx_record r = sample(source, number);
    if (lives) {
        r.pid = getpid();
        r.pid_started = ibx_process_started(r.pid);
        r.boot[0] = '\0';
    }
    bring_to(&r, state);
    return r;
}

static void finished_records_can_be_pruned(NO_STATE)
{
    const struct {
        bool source;
        enum ibx_journal_state is;
        bool lives, goes, goes_unfinished;
    } cases[] = {
        {true, IBX_JOURNAL_KEPT, true, true, true},
        {true, IBX_JOURNAL_ROLLED_BACK, true, true, true},
        {true, IBX_JOURNAL_DONE, true, false, false}, /* that QEMU must not be continued */
        {true, IBX_JOURNAL_DONE, false, true, true},
        {true, IBX_JOURNAL_MAY_RUN, false, false, true},
        {true, IBX_JOURNAL_MOVED, true, false, false},
        {false, IBX_JOURNAL_DONE, true, true, true},
        {false, IBX_JOURNAL_GIVEN_UP, true, true, true},
        {false, IBX_JOURNAL_RUNNING, true, false, false},
        {false, IBX_JOURNAL_RUNNING, false, false, true},
        {false, IBX_JOURNAL_COMPLETE, true, false, true},
        {false, IBX_JOURNAL_COMPLETE, false, false, true},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        struct ibx_record r = in_state(cases[i].source, 5, cases[i].is, cases[i].lives);
        struct seen seen = prune((struct ibx_journal_prune){.qmp = r.qmp});
        if (seen.gone != cases[i].goes || seen.kept == cases[i].goes)
            fail_msg("case %u: %s", i, seen.why ? seen.why : "went");
        if (cases[i].goes)
            continue;
        seen = prune((struct ibx_journal_prune){.qmp = r.qmp, .unfinished = true});
        if (seen.gone != cases[i].goes_unfinished)
            fail_msg("case %u, unfinished too: %s", i, seen.why ? seen.why : "went");
        if (!seen.gone)
            assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    }
}

/* A destination's record of a QEMU that lives in memory that ib-migrate run has made: the folder
 * `made`, whose name this ends. */
static struct ibx_record in_run_folder(char made[])
{
    struct stat st;
    assert_non_null(mkdtemp(made));
    struct ibx_record r = sample(false, 5);
    struct ibx_journal_block *block = &r.blocks[0];
    snprintf(block->file.path, sizeof(block->file.path), "%s/mem0", made);
    int fd = open(block->file.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)(block->offset + block->size)), 0);
    assert_int_equal(fstat(fd, &st), 0);
    close(fd);
    r.block_count = 1;
    block->dev = st.st_dev;
    block->ino = st.st_ino;
    block->file.file = ibx_guest_file_hash(st.st_dev, st.st_ino);
    block->file.owner = st.st_uid;
    block->file.mode = st.st_mode;
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid);
    r.boot[0] = '\0';
    return r;
}

/* The folder that ib-migrate run makes for the VM's memory stays when the VM ends, and only the
 * record says where it is. */
static void memory_that_run_has_made_goes_with_its_record(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX";
    struct ibx_record r = in_run_folder(made);
    bring_to(&r, IBX_JOURNAL_DONE);
    const struct seen seen = prune((struct ibx_journal_prune){.remove = true});
    assert_int_equal(seen.gone, 0);
    assert_non_null(strstr(seen.why, "its QEMU lives"));
    r.pid_started++;
    assert_int_equal(write_record(&r), 0);
    day_s = (time_t)r.written_s + (IBX_JOURNAL_DAYS + 1) * 86400;
    ibx_journal_prune_old(folder, "/run/another");
    day_s = 0;
    assert_int_equal(only().state, IBX_JOURNAL_DONE);
    assert_int_equal(prune((struct ibx_journal_prune){0}).gone, 1);
    assert_int_equal(access(r.blocks[0].file.path, F_OK), 0);
    r.written_s = 0; /* another one of the same memory */
    bring_to(&r, IBX_JOURNAL_DONE);
    assert_int_equal(prune((struct ibx_journal_prune){.remove = true}).gone, 1);
    assert_int_equal(access(made, F_OK), -1);
}

/* prune --unfinished ends such a migration, and the record stays as long as the QEMU lives. */
static void memory_that_run_has_made_outlives_an_unconfirmed_migration(NO_STATE)
{
    const enum ibx_journal_state is[] = {IBX_JOURNAL_COMPLETE, IBX_JOURNAL_SHUT_DOWN,
                                         IBX_JOURNAL_BROKEN},
                                 becomes[] = {IBX_JOURNAL_DONE, IBX_JOURNAL_ENDED,
                                              IBX_JOURNAL_BROKEN};
    for (unsigned i = 0; i < COUNT(is); i++) {
        char made[] = "/dev/shm/ibx-run-XXXXXX";
        struct ibx_record r = in_run_folder(made);
        bring_to(&r, is[i]);
        char note[PATH_MAX];
        ibx_journal_page_state_path(&r, IBX_PAGE_STATE_ARRIVED, note, sizeof(note));
        put_file(note, "1", 1);
        const struct seen seen = prune((struct ibx_journal_prune){.unfinished = true});
        assert_int_equal(access(note, F_OK), -1);
        assert_int_equal(seen.kept, 1);
        assert_non_null(strstr(seen.why, "its QEMU lives, in memory"));
        assert_int_equal(access(r.blocks[0].file.path, F_OK), 0);
        r = only();
        assert_int_equal(r.state, becomes[i]);
        r.pid_started++;
        assert_int_equal(write_record(&r), 0);
        assert_int_equal(prune((struct ibx_journal_prune){.remove = true}).gone, 1);
        assert_int_equal(access(made, F_OK), -1);
    }
}

/* The VM was lost there before all of its pages came. */
static void memory_of_a_lost_vm_goes_with_its_record(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX";
    struct ibx_record r = in_run_folder(made);
    r.pid_started++;
    bring_to(&r, IBX_JOURNAL_RUNNING);
    assert_int_equal(prune((struct ibx_journal_prune){.unfinished = true, .remove = true}).gone, 1);
    assert_int_equal(access(made, F_OK), -1);
}

/* The VM came here, and then went on: as long as that is not over, its memory here has pages that
 * no other host has, also if its QEMU and the tools here were killed. */
static void memory_stays_for_a_vm_that_went_on(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX";
    struct ibx_record came = in_run_folder(made), went = sample(true, 6);
    came.pid_started++;
    bring_to(&came, IBX_JOURNAL_DONE);
    went.block_count = came.block_count;
    went.blocks[0] = came.blocks[0];
    went.pid = came.pid;
    went.pid_started = came.pid_started;
    bring_to(&went, IBX_JOURNAL_MOVED);
    for (unsigned flags = 0; flags < 4; flags++) {
        const struct seen seen =
            prune((struct ibx_journal_prune){.remove = flags & 1, .unfinished = flags & 2});
        assert_int_equal(seen.gone, 0);
        assert_int_equal(seen.kept, 2);
        assert_int_equal(access(came.blocks[0].file.path, F_OK), 0);
    }
    strcpy(went.vm_status, IBX_JOURNAL_QEMU_ENDED); /* nobody needs it any more */
    assert_int_equal(write_record(&went), 0);
    assert_int_equal(prune((struct ibx_journal_prune){.remove = true}).gone, 1);
    assert_int_equal(access(made, F_OK), -1);
}

/* The VM left, came back into the same file, and left again: the record of the first time, which is
 * over, does not take the memory away that the last one still needs. */
static void memory_stays_for_a_vm_that_left_again(NO_STATE)
{
    char made[] = "/dev/shm/ibx-again-XXXXXX";
    struct ibx_record before = in_run_folder(made), now;
    before.source = true;
    before.pid_started++;
    now = before;
    now.id[0]++;
    bring_to(&before, IBX_JOURNAL_DONE);
    bring_to(&now, IBX_JOURNAL_MOVED);
    for (unsigned flags = 0; flags < 4; flags++) {
        const struct seen seen =
            prune((struct ibx_journal_prune){.remove = flags & 1, .unfinished = flags & 2});
        assert_int_equal(seen.gone, 0);
        assert_int_equal(seen.kept, 2);
        assert_int_equal(access(before.blocks[0].file.path, F_OK), 0);
    }
    now.state = IBX_JOURNAL_DONE;
    assert_int_equal(write_record(&now), 0);
    assert_int_equal(prune((struct ibx_journal_prune){.remove = true}).gone, 2);
    assert_int_equal(access(before.blocks[0].file.path, F_OK), -1);
    assert_int_equal(rmdir(made), 0);
}

static void pruning_keeps_other_files(NO_STATE)
{
    struct ibx_record *all, a = in_state(true, 1, IBX_JOURNAL_KEPT, false),
                            b = in_state(true, 2, IBX_JOURNAL_KEPT, false);
    size_t count;
    int lock;
    assert_int_equal(prune((struct ibx_journal_prune){.qmp = "/run/other"}).gone, 0);
    assert_int_equal(prune((struct ibx_journal_prune){.before_s = a.written_s, .keep = 2}).gone, 0);
    assert_int_equal(ibx_journal_lock(folder, &a, &lock, &error), 0); /* a tool is working on it */
    struct seen seen = prune((struct ibx_journal_prune){0});
    assert_int_equal(seen.gone, 1);
    assert_int_equal(seen.kept, 1);
    assert_memory_equal(only().id, a.id, sizeof(a.id));
    close(lock);
    const uint64_t number = b.number;
    assert_int_equal(write_record(&b), 0); /* by a tool that still has it */
    assert_int_equal(ibx_journal_reload(folder, &b, &error), 0);
    assert_int_equal(b.number, number);
    assert_int_equal(ibx_journal_remove(folder, &b, &error), 0);
    b.written_s = 0;
    assert_int_equal(write_record(&b), -EINVAL); /* a new record cannot be in a final state */
    b = in_state(true, 2, IBX_JOURNAL_KEPT, false);
    set_written(&a, 1000);
    /* Young records are pruned if there are too many, old ones always. */
    assert_int_equal(prune((struct ibx_journal_prune){.before_s = 500, .keep = 1}).gone, 1);
    assert_memory_equal(only().id, b.id, sizeof(b.id));
    set_written(&b, 1000);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 0);
    free(all);
    b = in_state(true, 3, IBX_JOURNAL_KEPT, false);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(only().state, IBX_JOURNAL_KEPT);
    assert_int_equal(ibx_journal_remove(folder, &b, &error), 0);
}

/* A tool that serves a VM for days reads its record again and again. */
static void no_descriptor_is_left_open(NO_STATE)
{
    char given[64], found[PATH_MAX];
    struct ibx_record *all, r = in_state(true, 1, IBX_JOURNAL_MOVED, true);
    size_t count;
    int lock, another;
    in_state(true, 2, IBX_JOURNAL_KEPT, false);
    snprintf(given, sizeof(given), "%s", folder);
    const int fds = open_fds();
    assert_int_equal(ibx_journal_folder(given, false, found, sizeof(found), &error), 0);
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(ibx_journal_reload(folder, &r, &error), 0);
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    free(all);
    assert_int_equal(ibx_journal_lock(folder, &r, &lock, &error), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &another, &error), -EBUSY);
    close(lock);
    assert_int_equal(ibx_journal_worker(folder, &r), 0);
    assert_int_equal(ibx_journal_mark_home(folder, r.id, &error), 0);
    ibx_journal_unmark_home(folder, r.id);
    assert_int_equal(prune((struct ibx_journal_prune){0}).gone, 1);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    assert_int_equal(ibx_journal_reload(folder, &r, &error), -ENOENT);
    assert_int_equal(open_fds(), fds);
}

/* Otherwise the borrower could send the VM back a second time, into the memory in which it runs. */
static void a_return_is_known_until_the_borrowing_is_over(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_DONE, IBX_JOURNAL_ENDED,
                                                    IBX_JOURNAL_COMPLETE, IBX_JOURNAL_BROKEN};
    for (uint8_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        struct ibx_record away = sample(true, 1), back = sample(false, 2);
        away.borrow = IBX_BORROW_LAZY;
        bring_to(&away, IBX_JOURNAL_MOVED);
        memcpy(back.base, away.id, sizeof(away.id));
        strcpy(back.qmp, "/run/back");
        bring_to(&back, states[i]);
        struct seen seen = prune((struct ibx_journal_prune){.qmp = back.qmp, .unfinished = true});
        assert_int_equal(seen.gone, 0);
        assert_non_null(strstr(seen.why, "by which it was borrowed is not over"));
        ibx_journal_prune_old(folder, back.qmp);
        assert_int_equal(ibx_journal_reload(folder, &back, &error), 0);
        struct ibx_record other = sample(false, 3); /* it has returned from another borrowing */
        other.base[0] = (uint8_t)(away.id[0] + 1);
        strcpy(other.qmp, "/run/other");
        bring_to(&other, states[i]);
        seen = prune((struct ibx_journal_prune){.qmp = other.qmp, .unfinished = true});
        assert_int_equal(seen.gone, 1);
        away.state = IBX_JOURNAL_ENDED;
        assert_int_equal(write_record(&away), 0);
        seen = prune((struct ibx_journal_prune){.qmp = back.qmp, .unfinished = true});
        assert_int_equal(seen.gone, 1);
        assert_int_equal(ibx_journal_remove(folder, &away, &error), 0);
    }
}

/* A host whose clock has no battery starts in 1970. No record counts as old then. */
static void unset_clock_prunes_nothing(NO_STATE)
{
    const struct ibx_record r = in_state(true, 4, IBX_JOURNAL_KEPT, false);
    day_s = 1000;
    ibx_journal_prune_old(folder, "/run/another");
    day_s = 0;
    assert_int_equal(only().state, IBX_JOURNAL_KEPT);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
}

/* Somebody has emptied the folder, locks included. A tool that still works on a migration keeps
 * others from it once they find its rewritten record. */
static void rewritten_record_is_locked(NO_STATE)
{
    struct ibx_record r = in_state(true, 6, IBX_JOURNAL_MAY_RUN, true);
    char path[PATH_MAX];
    int lock, another = -1;
    assert_int_equal(ibx_journal_lock(folder, &r, &lock, &error), 0);
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    assert_int_equal(unlink(path), 0);
    r.state = IBX_JOURNAL_MOVED;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &another, &error), -EBUSY);
    assert_int_equal(ibx_journal_worker(folder, &r), getpid());
    close(lock);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
}

/* Stands in for usleep(3) of a tool that waits for those who look: they look no longer then. */
static int looks = -1;
int __wrap_usleep(useconds_t us);
int __real_usleep(useconds_t us);
int __wrap_usleep(useconds_t us)
{
    if (looks >= 0)
        flock(looks, LOCK_UN);
    return looks >= 0 ? 0 : __real_usleep(us);
}

/* ib-migrate status, for instance, takes a shared lock for a moment to see who works on a
 * migration. A recover or rollback of that moment has to succeed all the same. */
static void a_look_at_the_lock_keeps_nobody_out(NO_STATE)
{
    struct ibx_record r = in_state(true, 6, IBX_JOURNAL_MAY_RUN, true);
    char path[PATH_MAX];
    int lock = -1, other;
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    int look = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(flock(look, LOCK_SH), 0);
    looks = look;
    assert_int_equal(ibx_journal_lock(folder, &r, &lock, &error), 0);
    looks = -1;
    assert_int_equal(ibx_journal_lock(folder, &r, &other, &error), -EBUSY);
    assert_int_equal(ibx_journal_worker(folder, &r), getpid());
    close(lock);
    assert_int_equal(flock(look, LOCK_SH), 0); /* by a process that is stopped there */
    assert_int_equal(ibx_journal_lock(folder, &r, &lock, &error), -EBUSY);
    assert_non_null(strstr(error.message, "looks"));
    close(look);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
}

static size_t records(void)
{
    struct ibx_record *all;
    size_t count;
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    free(all);
    return count;
}

/* A script that repeats a failing migration leaves one record; different migrations leave one
 * each. */
static void failed_migrations_leave_one_record(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    for (uint8_t i = 1; i <= 15; i++)
        in_state(i % 2, i, i % 2 ? IBX_JOURNAL_KEPT : IBX_JOURNAL_GIVEN_UP, false);
    in_state(true, 20, IBX_JOURNAL_ROLLED_BACK, false);
    in_state(false, 21, IBX_JOURNAL_DONE, false);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(records(), IBX_JOURNAL_KEEP_FAILED + 2);
    ibx_journal_prune_old(folder, r.qmp);
    assert_int_equal(records(), 2);
}

static bool has_notes(const struct ibx_record *record)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_MAP, path, sizeof(path));
    return !access(path, F_OK);
}

static void make_notes(const struct ibx_record *record)
{
    char path[128];
    ibx_journal_page_state_path(record, IBX_PAGE_STATE_MAP, path, sizeof(path));
    close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    assert_true(has_notes(record));
}

/* A killed tool leaves notes. The next tool needs them unless the migration is over. */
static void notes_of_finished_migrations_are_removed(NO_STATE)
{
    struct ibx_record over = in_state(true, 1, IBX_JOURNAL_DONE, true),
                      open_yet = in_state(true, 2, IBX_JOURNAL_MOVED, true);
    make_notes(&over);
    make_notes(&open_yet);
    ibx_journal_prune_old(folder, "/run/another");
    assert_int_equal(records(), 2);
    assert_false(has_notes(&over));
    assert_true(has_notes(&open_yet));
    assert_int_equal(ibx_journal_remove(folder, &over, &error), 0);
    assert_int_equal(ibx_journal_remove(folder, &open_yet, &error), 0);
    assert_false(has_notes(&open_yet));
}

/* While the newest record is pruned, another tool starts to work on the next one or removes it. */
struct meddling {
    struct ibx_record next;
    bool removes;
    unsigned seen;
    const char *why;
};

static void meddle(void *context, const struct ibx_record *record, const char *why)
{
    struct meddling *m = context;
    m->why = why;
    if (m->seen++)
        return;
    assert_memory_not_equal(record->id, m->next.id, sizeof(m->next.id));
    if (m->removes)
        assert_int_equal(ibx_journal_remove(folder, &m->next, &error), 0);
    else
        assert_int_equal(write_record(&m->next), 0);
}

static void record_is_read_again_under_the_lock(NO_STATE)
{
    for (int removes = 0; removes < 2; removes++) {
        struct meddling m = {.next = in_state(false, 2, IBX_JOURNAL_RUNNING, false),
                             .removes = removes};
        in_state(true, 1, IBX_JOURNAL_KEPT, false); /* the newest */
        const struct ibx_journal_prune which = {
            .unfinished = true, .before_s = UINT64_MAX, .each = meddle, .context = &m};
        char lock[PATH_MAX];
        m.next.pid = getpid(); /* its QEMU lives, so the record must stay */
        m.next.pid_started = ibx_process_started(m.next.pid);
        m.next.boot[0] = '\0';
        assert_int_equal(ibx_journal_prune(folder, &which, &error), 0);
        assert_int_equal(m.seen, 2);
        ibx_journal_path(folder, &m.next, ".lock", lock, sizeof(lock));
        if (removes) {
            assert_null(m.why);
            assert_int_equal(access(lock, F_OK), -1);
            continue;
        }
        assert_non_null(m.why);
        assert_non_null(strstr(m.why, "its QEMU lives"));
        assert_memory_equal(only().id, m.next.id, sizeof(m.next.id));
        assert_int_equal(ibx_journal_remove(folder, &m.next, &error), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(newest_come_first),
        TEST(records_without_a_number_come_last),
        TEST(the_newest_that_fits_is_found),
        TEST(a_damaged_record_hides_those_of_borrowed_vms_alone),
        TEST(files_of_any_kind_hide_no_record),
        TEST(finished_records_can_be_pruned),
        TEST(memory_that_run_has_made_goes_with_its_record),
        TEST(memory_that_run_has_made_outlives_an_unconfirmed_migration),
        TEST(memory_of_a_lost_vm_goes_with_its_record),
        TEST(memory_stays_for_a_vm_that_went_on),
        TEST(memory_stays_for_a_vm_that_left_again),
        TEST(no_descriptor_is_left_open),
        TEST(a_return_is_known_until_the_borrowing_is_over),
        TEST(failed_migrations_leave_one_record),
        TEST(notes_of_finished_migrations_are_removed),
        TEST(record_is_read_again_under_the_lock),
        TEST(pruning_keeps_other_files),
        TEST(unset_clock_prunes_nothing),
        TEST(rewritten_record_is_locked),
        TEST(a_look_at_the_lock_keeps_nobody_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
