/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rollback: asks the destination, prints what is known, asks the operator, and only then acts. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* The destination's answer. */
struct reply {
    int rc; /* of the query */
    struct ibx_error err;
    struct ibx_migrate_answer answer;
};

static bool goes_from_here(const struct ibx_record *record)
{
    return record->source && !ibx_journal_over(record);
}

static bool comes_here(const struct ibx_record *record)
{
    return !record->source && !ibx_journal_over(record);
}

static int find(const struct migrate_args *args, struct ibx_record *record, struct ibx_error *err)
{
    int rc = ibx_journal_find(args->folder, args->qmp, goes_from_here, record, err);
    if (rc == -ENOENT && !ibx_journal_find(args->folder, args->qmp, comes_here, record, NULL))
        return ibx_error_set(err, -EINVAL,
                             "the QEMU at %s is the destination of a migration: end this QEMU, "
                             "then roll back at the source%s",
                             args->qmp, ibx_journal_restarts_if(record));
    return rc;
}

/* The same, once a watchdog that may still bring the VM back has ended. */
static int find_left(const struct migrate_args *args, struct ibx_record *record,
                     struct ibx_error *err)
{
    char state[IBX_ERROR_MAX];
    bool left = false;
    int rc = find(args, record, err);
    if (!rc)
        rc = ibx_cli_await_left(args->folder, record, &left, err);
    if (rc || !left || !ibx_journal_over(record))
        return rc;
    ibx_cli_vm_state(record, state, sizeof(state));
    return ibx_error_set(err, -EALREADY, "there is nothing to roll back any more: %s", state);
}

/* Checks that no ib-migrate works on the migration: it would continue it. */
static int check_idle(const struct migrate_args *args, const struct ibx_record *record,
                      struct ibx_error *err)
{
    struct ibx_error silent = {0};
    int lock;
    json_decref(ibx_cli_ask_status(args, record, &silent));
    if (silent.code == -ENOENT || silent.code == -ECONNREFUSED)
        return 0;
    int rc =
        ibx_journal_lock(args->folder, record, &lock, &silent); /* the error names the process */
    if (rc)
        return ibx_error_set(err, rc, "%s, and may still finish it: end it first, by two SIGTERM",
                             silent.message);
    close(lock); /* the ib-migrate has just ended */
    return 0;
}

/* ------------------------------------------------------------ what is known */

static void print_reply(const struct reply *reply)
{
    const struct ibx_migrate_answer *answer = &reply->answer;
    if (reply->rc == -EPROTOTYPE || reply->rc == -ENODATA) {
        fprintf(stderr, "An ib-migrate %s: %s.\n",
                reply->rc == -ENODATA ? "was there, and ended the connection without an answer"
                                      : "is there, and cannot tell",
                reply->err.message);
        return;
    }
    if (reply->rc) {
        fprintf(stderr, "The destination does not answer: %s.\n", reply->err.message);
        return;
    }
    fprintf(stderr, "The destination (%s) answers: ", answer->host);
    switch (answer->state) {
    case IBX_ANSWER_WAITING:
        fputs("the VM does not run there: only the commit is missing.\n", stderr);
        break;
    case IBX_ANSWER_GIVEN_UP:
        fputs("the migration ended there, and the VM has never run there.\n", stderr);
        break;
    case IBX_ANSWER_NONE:
        fputs("it does not know this migration. The VM may run there.\n", stderr);
        break;
    case IBX_ANSWER_ENDED:
        fputs("the VM's guest has shut it down there.\n", stderr);
        break;
    default:
        fputs("the VM is there: it runs, unless somebody has paused it.\n", stderr);
        break;
    }
    for (unsigned i = 0; i < answer->count; i++)
        fprintf(stderr, "  %s\n", answer->reasons[i]);
}

/* Whether it is certain that the VM has not run there. */
static bool never_ran(const struct ibx_record *record, const struct reply *reply)
{
    return record->state == IBX_JOURNAL_HERE ||
           (!reply->rc && (reply->answer.state == IBX_ANSWER_WAITING ||
                           reply->answer.state == IBX_ANSWER_GIVEN_UP));
}

static const char *rolling(const struct ibx_record *record)
{
    if (record->libvirt)
        return "ends this migration when libvirt has the VM run here (virsh resume lets it go on "
               "from where it stopped)";
    return record->was_running
               ? "restarts the VM here from where it stopped"
               : "leaves the VM here as it was when it stopped, paused as before its migration";
}

static void print_loss(const struct ibx_record *record, const struct reply *reply)
{
    char when[64];
    ibx_cli_time(record->written_s, when, sizeof(when));
    fprintf(stderr, "Rolling back %s; the migration was last recorded at %s.\n", rolling(record),
            when);
    if (never_ran(record, reply)) {
        fputs("Nothing is lost: the VM has not run there.\n", stderr);
        return;
    }
    if (ibx_journal_returns(record) && !record->whole)
        fputs(
            "If it has run there, pages that it had not fetched here are other ones by now, and it "
            "must not\nrun here.\n",
            stderr);
    fprintf(stderr, "Everything that the VM did at the destination since that stop is lost%s.\n",
            record->state == IBX_JOURNAL_MOVED ? "" : ", if it ran there");
    if (ibx_journal_migrated_on(record))
        fputs("Another client of QEMU was migrating it on from there: make sure that it does not "
              "run where\nthat went.\n",
              stderr);
    fputs(
        "If its QEMU still exists there, the VM then runs twice and destroys its disks. Make sure "
        "that\nthat QEMU has ended, or that its host is off.\n",
        stderr);
}

/* ------------------------------------------------------------ asking */

bool ibx_cli_agreed(const struct migrate_args *args, const char *command, const char *vm,
                    const char *purpose)
{
    char line[PATH_MAX];
    if (args->yes)
        return true;
    if (!isatty(STDIN_FILENO)) {
        snprintf(line, sizeof(line), "nothing was done: without a terminal, %s needs --yes",
                 command);
        ibx_cli_fail(line);
        return false;
    }
    if (vm)
        fprintf(stderr, "Type the VM's name (%s) or yes to %s: ", vm, purpose);
    else
        fprintf(stderr, "Type yes to %s the VM at %s: ", purpose, args->qmp);
    if (!fgets(line, sizeof(line), stdin))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (line[0] && (!strcmp(line, "yes") || (vm && !strcmp(line, vm))))
        return true;
    ibx_cli_fail("nothing was done");
    return false;
}

/* Prints that the VM is here again, with its present status: it may have been paused before the
 * stop, or since. */
static void print_done(const char *vm, const struct ibx_record *record)
{
    const char *status = record->vm_status;
    char text[256] = "is here again", state[IBX_ERROR_MAX];
    if (ibx_journal_qemu_gone(record)) { /* it has ended after a rollback that was killed */
        ibx_cli_vm_state(record, state, sizeof(state));
        printf("%s\n", state);
        return;
    }
    if (!strcmp(status, "running"))
        snprintf(text, sizeof(text), "runs here again");
    else if (!strcmp(status, "io-error"))
        snprintf(text, sizeof(text), "is here again, and is stopped");
    else if (!record->was_running)
        snprintf(text, sizeof(text), "is here again, paused as it was");
    else if (*status)
        snprintf(text, sizeof(text),
                 "is here again, and does not run (QEMU says \"%.64s\"): cont in QEMU's monitor "
                 "lets it run",
                 status);
    printf("%s: rolled back, it %s\n", vm, text);
}

static void say_that_it_waits(const struct ibx_record *record, const struct ibx_error *why)
{
    char text[IBX_ERROR_MAX];
    snprintf(text, sizeof(text),
             "the destination, which waits for the VM, could not be told that it does not come "
             "(%.600s): interrupt the ib-migrate at %.200s",
             why->message, record->uri);
    ibx_cli_message(text);
}

bool ibx_cli_has_heard(int rc, enum ibx_answer_state there)
{
    return !rc || (rc == -EBUSY && there != IBX_ANSWER_NONE);
}

void ibx_cli_say_disowned(const struct ibx_record *record, enum ibx_answer_state there, int rc,
                          const struct ibx_error *err)
{
    char text[IBX_ERROR_MAX];
    const bool ran =
        there != IBX_ANSWER_NONE && there != IBX_ANSWER_WAITING && there != IBX_ANSWER_GIVEN_UP;
    if (!ran)
        return;
    if (rc)
        snprintf(text, sizeof(text),
                 "an ib-migrate is at %.200s again, and has not paused the VM, which it has "
                 "(%.600s): end its QEMU there",
                 record->uri, err->message);
    else
        snprintf(text, sizeof(text),
                 "an ib-migrate is at %.200s again, and has %s: end its QEMU there", record->uri,
                 there == IBX_ANSWER_ENDED ? "learnt that the VM was taken back"
                                           : "paused the VM there");
    ibx_cli_message(text);
}

#define BACK_MS       1000 /* for a `recover` that has been called there meanwhile to be there */
#define BACK_AGAIN_MS 100

/* The VM runs here by now. If nobody was there at first, an ib-migrate may be since. Returns
 * whether the destination knows. */
static bool tell_destination(const struct ibx_record *record, const struct ibx_options *options,
                             const struct reply *reply)
{
    enum ibx_answer_state there = IBX_ANSWER_NONE;
    struct ibx_error err = {0};
    int rc;
    if (reply->rc ? reply->rc != -ECONNREFUSED : reply->answer.state == IBX_ANSWER_GIVEN_UP)
        return !reply->rc;
    const uint64_t deadline = ibx_deadline_in_ms(reply->rc ? BACK_MS : 0);
    while ((rc = ibx_migrate_disown(record, options, &there, &err)) == -ECONNREFUSED &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, BACK_AGAIN_MS);
    if (rc && !reply->rc && reply->answer.state == IBX_ANSWER_WAITING)
        say_that_it_waits(record, &err);
    else
        ibx_cli_say_disowned(record, there, rc, &err);
    return ibx_cli_has_heard(rc, there);
}

#define MAY_RUN "not rolled back, because the VM may run there: "
#define BY_THAT_VERSION                                                                            \
    "call rollback by an ib-migrate of that version, or first end the one there and the VM's QEMU"

static const char of_another_version[] = MAY_RUN BY_THAT_VERSION;

/* The destination's tool is asked once only. If it were asked again and had ended meanwhile, it
 * would no longer forbid the rollback, although whether the VM runs there is as unknown as before.
 * So the operator is told to decide. */
static const char without_an_answer[] =
    MAY_RUN "the ib-migrate there may just be ending, so call rollback again in a second; one that "
            "does the same then is of an earlier release: " BY_THAT_VERSION;

/* Why the destination's answer forbids to roll back; NULL: it does not. */
static const char *forbidden(const struct reply *reply)
{
    if (reply->rc == -EPROTOTYPE)
        return of_another_version;
    if (reply->rc == -ENODATA)
        return without_an_answer;
    if (reply->rc)
        return NULL;
    if (reply->answer.state == IBX_ANSWER_RUNNING || reply->answer.state == IBX_ANSWER_COMPLETE)
        return "not rolled back, because the VM would run twice: \"ib-migrate recover\" "
               "continues the migration; to give up what the VM did there, end its QEMU "
               "first";
    if (reply->answer.state == IBX_ANSWER_ENDED)
        return "not rolled back, because its disks are newer than its memory here: "
               "\"ib-migrate recover\" ends the migration, and the VM can be started "
               "from its disks";
    return NULL;
}

/* Rolls back, if the destination and the operator agree. */
static int roll_back(const struct migrate_args *args, struct ibx_record *record,
                     const struct ibx_options *options, const struct reply *reply, const char *vm)
{
    struct ibx_error err = {0};
    const char *why = forbidden(reply);
    if (why)
        return ibx_cli_fail(why);
    print_loss(record, reply);
    if (!ibx_cli_agreed(args, "rollback", record->name[0] ? vm : NULL, "roll back"))
        return MIGRATE_FAILED;
    if (ibx_migrate_rollback(args->folder, record, options, &err))
        return ibx_cli_fail(err.message);
    record->state = IBX_JOURNAL_ROLLED_BACK;
    return MIGRATE_DONE;
}

int ibx_cli_rollback(const struct migrate_args *args)
{
    static struct reply reply;
    struct ibx_record record;
    struct ibx_error err = {0};
    struct ibx_options options = args->options;
    char vm[PATH_MAX], state[IBX_ERROR_MAX], copied[2 * PATH_MAX];
    bool back;
    if (find_left(args, &record, &err) || check_idle(args, &record, &err) ||
        ibx_migrate_was_taken_back(args->folder, &record, &back, &err))
        return ibx_cli_fail(err.message);
    ibx_cli_use_record(&options, &record);
    if (ibx_cli_copied(args, &record, copied, sizeof(copied)))
        ibx_cli_message(copied);
    ibx_cli_vm_name(&record, vm, sizeof(vm));
    ibx_journal_describe(&record, state, sizeof(state));
    fprintf(stderr, "%s, migrated to %s: %s.\n", vm, record.uri, state);
    reply.rc = ibx_migrate_query(&record, &options, &reply.answer, &reply.err);
    print_reply(&reply);
    /* What the destination answers forbids nothing if the VM runs here already. */
    const int status = back ? MIGRATE_DONE : roll_back(args, &record, &options, &reply, vm);
    if (status != MIGRATE_DONE)
        return status;
    if (tell_destination(&record, &options, &reply)) /* otherwise recover here may have to */
        ibx_cli_forget_key(args->folder, &record);
    if (!args->json)
        print_done(vm, &record);
    return ibx_cli_done();
}
