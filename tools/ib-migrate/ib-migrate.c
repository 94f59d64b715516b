/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate: moves a running QEMU VM by post-copy; see ib-migrate(1). */
#include "tools/ib-migrate/ib-migrate.h"

#include <errno.h>
#include <signal.h>

void ibx_cli_complain(const char *sentence)
{
    fprintf(stderr, "ib-migrate: %s\n", sentence);
}

void ibx_cli_print_json(json_t *json)
{
    if (!json || json_dumpf(json, stdout, JSON_COMPACT) || putchar('\n') == EOF || fflush(stdout))
        clearerr(stdout); /* whoever read it has gone; the move goes on */
    json_decref(json);
}

int main(int argc, char **argv)
{
    static int (*const run[MIGRATE_COMMANDS])(const struct migrate_args *) = {
        [MIGRATE_RECEIVE] = ibx_cli_receive,   [MIGRATE_SEND] = ibx_cli_send,
        [MIGRATE_STATUS] = ibx_cli_status,     [MIGRATE_CANCEL] = ibx_cli_cancel,
        [MIGRATE_SET] = ibx_cli_set,           [MIGRATE_RECOVER] = ibx_cli_recover,
        [MIGRATE_ROLLBACK] = ibx_cli_rollback, [MIGRATE_CHECK] = ibx_cli_check,
        [MIGRATE_PRUNE] = ibx_cli_prune,
    };
    static struct migrate_args args; /* of many KiB */
    struct ibx_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    int rc = ibx_cli_args_parse(argc, argv, &args, &err);
    if (rc == -ENOEXEC)
        return MIGRATE_USAGE;
    if (rc < 0) {
        ibx_cli_complain(err.message);
        return MIGRATE_FAILED;
    }
    return rc ? MIGRATE_DONE : run[args.command](&args);
}
