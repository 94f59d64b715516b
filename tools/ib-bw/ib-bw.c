/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-bw: what the communicator gains over GVirtuS's own; see ib-bw(1). */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct bw_args args;
    struct ibx_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    int rc = ibx_bw_args_parse(argc, argv, &args, &err);
    if (rc == -ENOEXEC)
        return 2;
    if (rc < 0) {
        fprintf(stderr, "ib-bw: %s\n", err.message);
        return EXIT_FAILURE;
    }
    if (rc)
        return EXIT_SUCCESS;
    switch (args.command) {
    case BW_SERVE:
        return ibx_bw_serve(&args);
    case BW_RUN:
        return ibx_bw_run(&args);
    case BW_TUNE:
        return ibx_bw_tune(&args);
    case BW_SELF:
        break;
    }
    return ibx_bw_self(&args);
}
