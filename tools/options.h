/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The command line of every tool: a table of commands and a table of options, which argp parses.
 *
 * The command is the first argument that is no option; options may precede or follow it. An option
 * of another command, a missing command and a wrong number of arguments end the process with status
 * 2; a bad value ends it with status 1; --help, --usage and --version end it with 0. --help
 * together with a command shows the help of that command. "help" as the first argument is --help.
 */
#ifndef IBX_TOOLS_OPTIONS_H
#define IBX_TOOLS_OPTIONS_H

#include "transport/transport.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define IBX_TOOL_OPTIONS_MAX  96
#define IBX_TOOL_COMMANDS_MAX 24

struct ibx_tool_command {
    const char *name;
    const char *uri; /* "URI": needed; "[URI]": optional; NULL: none. Stands in --help as it is,
                        with what may follow it, after a space. */
    const char *help;
};

/* How a value is read, and what is at the option's offset in the tool's struct of arguments. */
enum ibx_tool_type {
    IBX_TOOL_FLAG,      /* bool, which becomes true; takes no value */
    IBX_TOOL_TEXT,      /* const char *: points into argv */
    IBX_TOOL_UNSIGNED,  /* unsigned, from min to max */
    IBX_TOOL_SECONDS,   /* double, more than 0 and up to max */
    IBX_TOOL_SIZE,      /* size_t, bytes from min to max; K, M and G are powers of 1024 */
    IBX_TOOL_TRANSPORT, /* struct ibx_options: the key like the name, with _ for -; not "" */
    IBX_TOOL_SET,       /* struct ibx_options: KEY=VALUE; VALUE is not "" */
    IBX_TOOL_OWN,       /* the tool's function `take` */
};

struct ibx_tool_option {
    const char *name;  /* long name without its dashes; NULL: `help` is a heading in --help */
    const char *value; /* what --help calls the value */
    const char *help;
    unsigned commands; /* bits 1u << index of the commands that take it; 0: all */
    enum ibx_tool_type type;
    size_t at; /* offset in the struct of arguments */
    unsigned long min, max;
    /* IBX_TOOL_OWN: parses a value into the field at the offset. 0, or a negative errno with a
     * sentence in `err`, which names neither the tool nor the option. */
    int (*take)(void *at, const char *text, struct ibx_error *err);
};

/* Options that several tools have; TYPE is the struct of arguments, its member is `options`. */
#define IBX_TOOL_OPTION_KEY_FILE(TYPE, COMMANDS)                                                   \
    {                                                                                              \
        .name = "key-file", .value = "FILE", .help = "The key that both hosts share",              \
        .commands = COMMANDS, .type = IBX_TOOL_TRANSPORT, .at = offsetof(TYPE, options)            \
    }
#define IBX_TOOL_OPTION_ENCRYPTION(TYPE, COMMANDS)                                                 \
    {                                                                                              \
        .name = "encryption", .value = "WHEN",                                                     \
        .help = "required, auto (with a key, to another host) or off [auto]",                      \
        .commands = COMMANDS, .type = IBX_TOOL_TRANSPORT, .at = offsetof(TYPE, options)            \
    }
#define IBX_TOOL_OPTION_SET(TYPE, COMMANDS)                                                        \
    {                                                                                              \
        .name = "set", .value = "KEY=VALUE",                                                       \
        .help = "An option of the transport (keys below); may be repeated", .commands = COMMANDS,  \
        .type = IBX_TOOL_SET, .at = offsetof(TYPE, options)                                        \
    }

struct ibx_tool {
    const char *name;
    const char *help; /* the paragraph at the top of --help; after a \v the one at its end */
    const struct ibx_tool_command *commands; /* ended by a NULL name; NULL: the tool has none */
    unsigned internal; /* bits of the commands that a program starts and no person: neither --help
                          nor a message offers them */
    const struct ibx_tool_option *options; /* ended by one without name and help */
    bool lists_transport;                  /* --help lists what --set takes */
    /* NULL, or called with each message with which this file ends the process, before it does. */
    void (*failed)(const char *sentence);
};

/* Parses the line into `args`. Sets *command to the index in tool->commands, and *uri (NULL: none
 * was given); both pointers may be NULL for a tool without commands. Returns only if the line is
 * right, as far as the tables tell; otherwise it ends the process. */
void ibx_tool_parse(const struct ibx_tool *tool, int argc, char **argv, void *args,
                    unsigned *command, const char **uri);

/* Prints a sentence and where to find help, and ends the process with status 2. */
void ibx_tool_bad_usage(const struct ibx_tool *tool, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

/* After ibx_tool_parse(): prints "TOOL: MESSAGE" on standard error. Returns the exit status 1. */
int ibx_tool_fail(const struct ibx_error *err);
/* After ibx_tool_parse(): the same with a message of its own, and ends the process with status 1.
 */
void ibx_tool_end(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* Writes what is still to be printed on standard output. -EIO: that fails, or an earlier write
 * has. */
int ibx_tool_flush(struct ibx_error *err);
/* Whether the descriptor is a terminal on which lines can be replaced and coloured: TERM=dumb says
 * that it is none, as in an editor's window. */
bool ibx_tool_terminal(int fd);
/* Prints a line in which control characters, including those of UTF-8 (C2 80 to C2 9F), are
 * replaced by question marks. */
void ibx_tool_print_line(FILE *out, const char *before, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
