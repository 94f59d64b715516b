/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* borrow and return: a VM goes away for a while, and comes back with what it has written. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define LEND_MS      5000
#define AWAY_LOOK_MS 50 /* between two looks whether the other side is back */

static bool is_borrowed(const struct ibx_record *record)
{
    return !record->source && record->borrow && record->state == IBX_JOURNAL_RUNNING;
}

static int ask_to_lend(const char *path, struct ibx_error *err)
{
    json_t *answer;
    int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "lend"), &answer,
                                    ibx_deadline_in_ms(LEND_MS), err);
    if (!rc)
        json_decref(answer);
    return rc;
}

/* Asks the ib-migrate that serves the VM to leave the monitor to this one. Right after a rollback,
 * or an interruption of the network, its link is being made anew, so this waits for that. */
static int take_monitor(const struct migrate_args *args, const struct ibx_record *came,
                        struct ibx_error *err)
{
    char path[PATH_MAX];
    const uint64_t deadline = ibx_deadline_in_ms(args->options.timeout_ms);
    ibx_journal_path(args->folder, came, ".sock", path, sizeof(path));
    int rc = ask_to_lend(path, err);
    if (rc == -ENOTCONN)
        ibx_cli_message("the other side of the borrowed VM is not connected: waiting for it");
    while (rc == -ENOTCONN && ibx_now_ns() < deadline) {
        poll(NULL, 0, AWAY_LOOK_MS);
        rc = ask_to_lend(path, err);
    }
    if (rc == -ENOENT || rc == -ECONNREFUSED)
        return ibx_error_set(err, rc,
                             "no ib-migrate serves the borrowed VM at %s: ib-migrate recover "
                             "%s, then return",
                             args->qmp, ibx_journal_options(args->qmp).text);
    return rc;
}

/* Returns a VM that was borrowed to the host that has kept its memory. */
static int send_back(const struct migrate_args *args)
{
    static struct ibx_record came;
    struct ibx_error err = {0};
    if (ibx_journal_find(args->folder, args->qmp, is_borrowed, &came, NULL))
        return ibx_cli_send(args);
    return take_monitor(args, &came, &err) ? ibx_cli_fail(err.message)
                                           : ibx_cli_send_home(args, &came);
}

int ibx_cli_borrow(const struct migrate_args *given)
{
    static struct migrate_args args;
    args = *given;
    args.borrow = true;
    fputs("While it is away, the VM needs this host and that one: its memory stays here.\nIf that "
          "host is lost, what the VM did there is lost, and ib-migrate rollback restarts it "
          "here\nfrom where it stopped, until its return begins.\n",
          stderr);
    return ibx_cli_agreed(&args, "borrow", NULL, "borrow") ? send_back(&args) : MIGRATE_FAILED;
}

int ibx_cli_return(const struct migrate_args *given)
{
    static struct migrate_args args;
    static struct ibx_record came;
    struct ibx_error err = {0};
    args = *given;
    int rc = ibx_journal_find(args.folder, args.qmp, is_borrowed, &came, &err);
    if (rc == -ENOENT)
        rc = ibx_error_set(&err, rc,
                           "the records in %s have no VM that runs at %s and was borrowed: "
                           "\"ib-migrate status\" shows where VMs are, and by which monitor",
                           args.folder, args.qmp);
    if (!rc)
        rc = take_monitor(&args, &came, &err);
    return rc ? ibx_cli_fail(err.message) : ibx_cli_send_home(&args, &came);
}
