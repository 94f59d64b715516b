/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* rollback: asks the destination, says what is true, asks the operator, and only then acts. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ASK_MS 10000

/* What the destination said, or that it said nothing. */
struct heard {
    int rc; /* of the query */
    struct ibx_error err;
    struct ibx_migrate_answer answer;
};

static int find(const struct migrate_args *args, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_error silent;
    struct ibx_journal other;
    int rc = ibx_journal_find(args->folder, true, args->qmp, record, err);
    if (rc != -ENOENT)
        return rc;
    if (!ibx_journal_find(args->folder, false, args->qmp, &other, &silent))
        return ibx_error_set(err, -EINVAL,
                             "the QEMU at %s is a move's destination: roll back at its source, "
                             "and end this QEMU before",
                             args->qmp);
    return ibx_error_set(err, rc,
                         "there is no unfinished move from the QEMU at %s on record in %s: "
                         "\"ib-migrate status\" shows those that are",
                         args->qmp, args->folder);
}

/* A tool that works on it would go on moving what is taken back. */
static int nobody_at_work(const struct migrate_args *args, const struct ibx_journal *record,
                          struct ibx_error *err)
{
    char path[PATH_MAX];
    json_t *answer = NULL;
    struct ibx_error silent = {0};
    ibx_journal_path(args->folder, record, ".sock", path, sizeof(path));
    int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "status"), &answer,
                                    ibx_deadline_in_ms(ASK_MS), &silent);
    json_decref(answer);
    if (rc == -ENOENT || rc == -ECONNREFUSED)
        return 0;
    int lock;
    rc = ibx_journal_lock(args->folder, record, &lock, &silent); /* names the process */
    if (rc)
        return ibx_error_set(err, rc, "%s, and may yet finish it: end it first, by two SIGTERM",
                             silent.message);
    close(lock); /* it has just ended */
    return 0;
}

/* ------------------------------------------------------------ what is true */

static void say_answer(const struct heard *heard)
{
    const struct ibx_migrate_answer *answer = &heard->answer;
    if (heard->rc) {
        fprintf(stderr, "The destination does not answer: %s.\n", heard->err.message);
        return;
    }
    fprintf(stderr, "The destination (%s) answers: ", answer->host);
    switch (answer->state) {
    case IBX_ANSWER_WAITING:
        fputs("everything but the word to run has come, and the VM does not run there.\n", stderr);
        break;
    case IBX_ANSWER_GIVEN_UP:
        fputs("the move ended there without the VM ever running.\n", stderr);
        break;
    case IBX_ANSWER_NONE:
        fputs("it knows nothing of this move, which proves nothing.\n", stderr);
        break;
    default:
        fputs("the VM runs there.\n", stderr);
        break;
    }
    for (unsigned i = 0; i < answer->count; i++)
        fprintf(stderr, "  %s\n", answer->reasons[i]);
}

/* Whether it is certain that the VM has not run there. */
static bool never_ran(const struct ibx_journal *record, const struct heard *heard)
{
    return record->state == IBX_JOURNAL_HERE ||
           (!heard->rc && (heard->answer.state == IBX_ANSWER_WAITING ||
                           heard->answer.state == IBX_ANSWER_GIVEN_UP));
}

static void say_loss(const struct ibx_journal *record, const struct heard *heard)
{
    char when[64] = "an unknown time";
    time_t written = (time_t)record->written_s;
    struct tm local;
    if (localtime_r(&written, &local))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %z", &local);
    fprintf(stderr,
            "Rolling back restarts the VM here from its stop; the move was last recorded "
            "at %s.\n",
            when);
    if (never_ran(record, heard)) {
        fputs("Nothing is lost by it: the VM has not run there.\n", stderr);
        return;
    }
    fprintf(stderr, "Lost is all that the VM did at the destination since that stop%s.\n",
            record->state == IBX_JOURNAL_MOVED ? "" : ", if it came to run there");
    fputs("If its QEMU is alive there after all, the VM then runs twice, on the same disks: make "
          "sure\nthat it has ended, or that its host is off.\n",
          stderr);
}

/* ------------------------------------------------------------ asking */

static bool agreed(const struct migrate_args *args, const char *vm)
{
    char line[PATH_MAX];
    if (args->yes)
        return true;
    if (!isatty(STDIN_FILENO)) {
        ibx_cli_complain("nothing was done: without a terminal rollback needs --yes");
        return false;
    }
    fprintf(stderr, "Type the VM's name (%s) or yes to roll back: ", vm);
    if (!fgets(line, sizeof(line), stdin))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (line[0] && (!strcmp(line, "yes") || !strcmp(line, vm)))
        return true;
    ibx_cli_complain("nothing was done");
    return false;
}

static int complain(const struct ibx_error *err)
{
    ibx_cli_complain(err->message);
    return MIGRATE_FAILED;
}

int ibx_cli_rollback(const struct migrate_args *args)
{
    static struct heard heard;
    struct ibx_journal record;
    struct ibx_error err = {0};
    struct ibx_options options = args->options;
    char vm[PATH_MAX], said[IBX_ERROR_MAX];
    if (find(args, &record, &err) || nobody_at_work(args, &record, &err))
        return complain(&err);
    if (!options.key_file[0])
        snprintf(options.key_file, sizeof(options.key_file), "%s", record.key_file);
    ibx_cli_vm(&record, vm, sizeof(vm));
    ibx_journal_say(&record, said, sizeof(said));
    ibx_text_sanitize(said);
    fprintf(stderr, "%s, moved to %s: %s.\n", vm, record.uri, said);
    heard.rc = ibx_migrate_query(&record, &options, &heard.answer, &heard.err);
    say_answer(&heard);
    if (!heard.rc &&
        (heard.answer.state == IBX_ANSWER_RUNNING || heard.answer.state == IBX_ANSWER_COMPLETE)) {
        ibx_cli_complain("not rolled back, since the VM would run twice: \"ib-migrate recover\" "
                         "goes on with the move; to give up what it did there, end its QEMU first");
        return MIGRATE_FAILED;
    }
    say_loss(&record, &heard);
    if (!agreed(args, vm))
        return MIGRATE_FAILED;
    if (ibx_migrate_rollback(args->folder, &record, &options, &err))
        return complain(&err);
    printf("%s: rolled back, it runs here again\n", vm);
    return MIGRATE_DONE;
}
