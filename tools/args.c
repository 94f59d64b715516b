/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tools/args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ibx_args_bad_usage(const struct args_tool *tool, const char *format, const char *what)
{
    fprintf(stderr, "%s: ", tool->name);
    fprintf(stderr, format, what);
    fprintf(stderr, "\n%s", tool->usage);
    return -ENOEXEC;
}

int ibx_args_common(const struct args_tool *tool, int option)
{
    switch (option) {
    case 'h':
        printf("%s%s", tool->usage, tool->help);
        ibx_options_describe(stdout, "  ");
        return 1;
    case 'V':
        printf("%s " IBX_VERSION "\n", tool->name);
        return 1;
    case '?':
        fputs(tool->usage, stderr);
        return -ENOEXEC;
    default:
        return 0;
    }
}

int ibx_args_begin(const struct args_tool *tool, const char *const *names, unsigned count, int argc,
                   char **argv, int *command)
{
    if (argc < 2)
        return ibx_args_bad_usage(tool, "%s", "a command is needed");
    if (argv[1][0] == '-')
        return 0;
    for (unsigned i = 0; i < count; i++) {
        if (!strcmp(argv[1], names[i])) {
            *command = (int)i;
            argv[1] = argv[0]; /* what getopt's messages begin with */
            return 1;
        }
    }
    return ibx_args_bad_usage(tool, "there is no command \"%s\"", argv[1]);
}

int ibx_args_number(const char *name, const char *text, unsigned long min, unsigned long max,
                    unsigned long *value, struct ibx_error *err)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number < min || number > max)
        return ibx_error_set(err, -EINVAL, "%s: \"%.64s\" is not a number from %lu to %lu", name,
                             text, min, max);
    *value = number;
    return 0;
}

int ibx_args_unsigned(const char *name, const char *text, unsigned min, unsigned max,
                      unsigned *value, struct ibx_error *err)
{
    unsigned long number = 0;
    int rc = ibx_args_number(name, text, min, max, &number, err);
    if (!rc)
        *value = (unsigned)number;
    return rc;
}

int ibx_args_seconds(const char *name, const char *text, double max, double *seconds,
                     struct ibx_error *err)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= max))
        return ibx_error_set(err, -EINVAL, "%s: \"%.64s\" is not a number of seconds up to %.0f",
                             name, text, max);
    *seconds = value;
    return 0;
}

int ibx_args_set(struct ibx_options *options, const char *text, struct ibx_error *err)
{
    char key[64];
    const char *equals = strchr(text, '=');
    if (!equals || (size_t)(equals - text) >= sizeof(key))
        return ibx_error_set(err, -EINVAL, "--set: \"%.64s\" is not KEY=VALUE", text);
    memcpy(key, text, (size_t)(equals - text));
    key[equals - text] = '\0';
    int rc = ibx_options_set(options, key, equals + 1, err);
    return rc ? ibx_error_prefix(err, rc, "--set") : 0;
}
