/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the command lines of ib-bw, ib-fault and ib-migrate have in common. A bad value is -EINVAL
 * with a sentence in `err`. */
#ifndef IBX_TOOLS_ARGS_H
#define IBX_TOOLS_ARGS_H

#include "transport/transport.h"

/* Whose command line it is: "ib-bw", and what stands before the help, each line ended. */
struct args_tool {
    const char *name, *usage, *help;
};

/* One sentence about `what`, and the usage, on standard error. -ENOEXEC: exit with status 2. */
int ibx_args_bad_usage(const struct args_tool *tool, const char *format, const char *what);
/* Options of every tool: 'h' and 'V' print and return 1; '?' (getopt has said what is wrong) prints
 * the usage, -ENOEXEC; 0: another one. */
int ibx_args_common(const struct args_tool *tool, int option);
/* Takes the command, the first argument, off the line: 1, and its index among `names` is in
 * *command; 0 where an option comes first, as --help may; -ENOEXEC, said. Then getopt is to have
 * argc and argv from that many arguments on. */
int ibx_args_begin(const struct args_tool *tool, const char *const *names, unsigned count, int argc,
                   char **argv, int *command);

/* `name` is the option's, for the sentence. Decimal digits, from `min` to `max`. */
int ibx_args_number(const char *name, const char *text, unsigned long min, unsigned long max,
                    unsigned long *value, struct ibx_error *err);
int ibx_args_unsigned(const char *name, const char *text, unsigned min, unsigned max,
                      unsigned *value, struct ibx_error *err);
/* More than 0, up to `max`. */
int ibx_args_seconds(const char *name, const char *text, double max, double *seconds,
                     struct ibx_error *err);
/* --set KEY=VALUE */
int ibx_args_set(struct ibx_options *options, const char *text, struct ibx_error *err);

#endif
