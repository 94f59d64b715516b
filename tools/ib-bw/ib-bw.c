/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-bw: what the communicator gains over GVirtuS's own; see ib-bw(1). */
#include "tools/ib-bw/ib-bw.h"

#include <signal.h>

int main(int argc, char **argv)
{
    struct bw_args args;
    signal(SIGPIPE, SIG_IGN);
    ibx_bw_args_parse(argc, argv, &args);
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
