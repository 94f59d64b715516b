/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tools/options.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_KEY 256 /* of the table's options; argp has smaller ones for single letters */

struct line {
    const struct ibx_tool *tool;
    void *args;
    bool given[IBX_TOOL_OPTIONS_MAX]; /* by their index in the table */
    int command;                      /* -1: none yet */
    const char *uri;
};

static const char *tool_name = "ibx"; /* the tool whose command line was parsed */

int ibx_tool_fail(const struct ibx_error *err)
{
    fprintf(stderr, "%s: %s\n", tool_name, err->message);
    return EXIT_FAILURE;
}

int ibx_tool_flush(struct ibx_error *err)
{
    return fflush(stdout) || ferror(stdout)
               ? ibx_error_set(err, -EIO, "standard output could not be written")
               : 0;
}

void ibx_tool_print_line(FILE *out, const char *before, const char *format, va_list args)
{
    char line[4 * PATH_MAX];
    vsnprintf(line, sizeof(line), format, args);
    ibx_text_plain(line);
    fprintf(out, "%s%s\n", before, line);
}

void ibx_tool_end(const char *format, ...)
{
    char before[64];
    va_list args;
    fflush(stdout);
    snprintf(before, sizeof(before), "%s: ", tool_name);
    va_start(args, format);
    ibx_tool_print_line(stderr, before, format, args);
    va_end(args);
    exit(EXIT_FAILURE);
}

static const char *command_given; /* in this command line; NULL: none yet */

void ibx_tool_bad_usage(const struct ibx_tool *tool, const char *format, ...)
{
    char sentence[4 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof(sentence), format, args);
    va_end(args);
    ibx_text_plain(sentence);
    fprintf(stderr, "%s: %s\nTry `%s%s%s --help' for more information.\n", tool->name, sentence,
            tool->name, command_given ? " " : "", command_given ? command_given : "");
    if (tool->failed)
        tool->failed(sentence);
    exit(2);
}

/* -------------------------------------------------------------------- values */

static int take_unsigned(const struct ibx_tool_option *option, const char *text, unsigned *value,
                         struct ibx_error *err)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number < option->min || number > option->max)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not a number from %lu to %lu", text,
                             option->min, option->max);
    *value = (unsigned)number;
    return 0;
}

static int take_seconds(const struct ibx_tool_option *option, const char *text, double *seconds,
                        struct ibx_error *err)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= (double)option->max))
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not more than 0 and at most %lu seconds",
                             text, option->max);
    *seconds = value;
    return 0;
}

static int take_size(const struct ibx_tool_option *option, const char *text, size_t *size,
                     struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (!rc && (bytes < option->min || bytes > option->max))
        rc = ibx_error_set(err, -EINVAL, "\"%.64s\" is not a size from %lu to %lu bytes", text,
                           option->min, option->max);
    if (!rc)
        *size = bytes;
    return rc;
}

/* An empty value is an unset variable of a script, for instance: it must not mean no key, nor every
 * name. */
static int set_key(struct ibx_options *options, const char *key, const char *value,
                   struct ibx_error *err)
{
    return *value
               ? ibx_options_set(options, key, value, err)
               : ibx_error_set(err, -EINVAL,
                               "%.64s: \"\" is empty: give a value, or leave the option out", key);
}

static int take_set(struct ibx_options *options, const char *text, struct ibx_error *err)
{
    char key[64];
    const char *equals = strchr(text, '=');
    if (!equals || (size_t)(equals - text) >= sizeof(key))
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not KEY=VALUE", text);
    memcpy(key, text, (size_t)(equals - text));
    key[equals - text] = '\0';
    return set_key(options, key, equals + 1, err);
}

static int take_transport(const struct ibx_tool_option *option, const char *text,
                          struct ibx_options *options, struct ibx_error *err)
{
    char key[32];
    snprintf(key, sizeof(key), "%s", option->name);
    for (char *dash = key; (dash = strchr(dash, '-'));)
        *dash = '_';
    const int rc = set_key(options, key, text, err);
    const size_t named = strlen(key);
    if (rc && !strncmp(err->message, key, named) && !strncmp(err->message + named, ": ", 2))
        ibx_error_set(err, rc, "%s", err->message + named + 2); /* parse() names the option */
    return rc;
}

static int take_value(const struct ibx_tool_option *option, const char *text, void *args,
                      struct ibx_error *err)
{
    void *at = (char *)args + option->at;
    switch (option->type) {
    case IBX_TOOL_FLAG:
        *(bool *)at = true;
        return 0;
    case IBX_TOOL_TEXT:
        *(const char **)at = text;
        return 0;
    case IBX_TOOL_UNSIGNED:
        return take_unsigned(option, text, at, err);
    case IBX_TOOL_SECONDS:
        return take_seconds(option, text, at, err);
    case IBX_TOOL_SIZE:
        return take_size(option, text, at, err);
    case IBX_TOOL_TRANSPORT:
        return take_transport(option, text, at, err);
    case IBX_TOOL_SET:
        return take_set(at, text, err);
    case IBX_TOOL_OWN:
        break;
    }
    return option->take(at, text, err);
}

/* -------------------------------------------------------- which commands there are */

/* The names of the commands in a set of bits, such as "serve, run or self"; 0: all. */
static const char *names_of(const struct ibx_tool *tool, unsigned bits, char *text, size_t size)
{
    const char *names[IBX_TOOL_COMMANDS_MAX];
    unsigned count = 0;
    int length = 0;
    for (unsigned i = 0; tool->commands[i].name; i++)
        if (!(tool->internal & 1u << i) && (!bits || bits & 1u << i))
            names[count++] = tool->commands[i].name;
    for (unsigned i = 0; i < count && length < (int)size; i++)
        length += snprintf(text + length, size - (size_t)length, "%s%s",
                           i == 0           ? ""
                           : i == count - 1 ? " or "
                                            : ", ",
                           names[i]);
    return text;
}

/* Ends the process because of an argument for which the command has no place. If the command takes
 * a URI, or a host, by an option that was not given yet, names the option: other commands take
 * theirs without one. */
static _Noreturn void too_many(const struct line *line, const char *text)
{
    const struct ibx_tool *tool = line->tool;
    const struct ibx_tool_command *command = tool->commands ? &tool->commands[line->command] : NULL;
    const char *value = strstr(text, "://") ? "URI" : "HOST";
    for (unsigned i = 0; command && !command->uri && i < IBX_TOOL_OPTIONS_MAX; i++) {
        const struct ibx_tool_option *option = &tool->options[i];
        if (!option->name && !option->help)
            break;
        if (!option->name || !option->value || strcmp(option->value, value) != 0 ||
            !(option->commands & 1u << line->command))
            continue;
        if (line->given[i])
            break;
        ibx_tool_bad_usage(tool, "\"%s\" is one argument too many: \"%s\" takes a %s by --%s", text,
                           command->name, value, option->name);
    }
    ibx_tool_bad_usage(tool, "\"%s\" is one argument too many", text);
}

/* The number of the command `text`. Ends the process if there is none. */
static int command_named(const struct ibx_tool *tool, const char *text)
{
    char names[256];
    for (int i = 0; tool->commands[i].name; i++)
        if (!strcmp(tool->commands[i].name, text))
            return i;
    ibx_tool_bad_usage(tool, "there is no command \"%s\": give %s", text,
                       names_of(tool, 0, names, sizeof(names)));
}

static void take_argument(struct line *line, const char *text)
{
    const struct ibx_tool_command *commands = line->tool->commands;
    if (commands && line->command < 0) {
        line->command = command_named(line->tool, text);
        command_given = commands[line->command].name;
        return;
    }
    if (!commands || line->uri || !commands[line->command].uri)
        too_many(line, text);
    line->uri = text;
}

static void check_line(const struct line *line)
{
    const struct ibx_tool *tool = line->tool;
    char names[256];
    if (!tool->commands)
        return;
    if (line->command < 0)
        ibx_tool_bad_usage(tool, "a command is needed: give %s",
                           names_of(tool, 0, names, sizeof(names)));
    const struct ibx_tool_command *command = &tool->commands[line->command];
    for (unsigned i = 0; i < IBX_TOOL_OPTIONS_MAX; i++) {
        const struct ibx_tool_option *option = &tool->options[i];
        if (line->given[i] && option->commands && !(option->commands & 1u << line->command))
            ibx_tool_bad_usage(tool, "--%s does not go with \"%s\", but with %s", option->name,
                               command->name,
                               names_of(tool, option->commands, names, sizeof(names)));
    }
    if (command->uri && *command->uri != '[' && !line->uri)
        ibx_tool_bad_usage(tool, "\"%s\" needs a %.*s%s", command->name,
                           (int)strcspn(command->uri, " "), command->uri,
                           strcmp(command->uri, "URI") ? ""
                                                       : ": give rdma://host:port, for example");
}

/* ---------------------------------------------------------------------- argp */

static bool parsed;

/* Called by exit(3), with which argp ends the process after --help and --version. */
static void check_printed(int status, void *nothing)
{
    struct ibx_error err = {0};
    (void)nothing;
    if (!parsed && !status && ibx_tool_flush(&err))
        _exit(ibx_tool_fail(&err));
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct line *line = state->input;
    struct ibx_error err = {0};
    if (key == 'h')
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
    if (key == ARGP_KEY_ARG)
        take_argument(line, text);
    if (key == ARGP_KEY_END)
        check_line(line);
    if (key < FIRST_KEY || key >= FIRST_KEY + IBX_TOOL_OPTIONS_MAX)
        return key == ARGP_KEY_ARG ? 0 : ARGP_ERR_UNKNOWN;
    const struct ibx_tool_option *option = &line->tool->options[key - FIRST_KEY];
    line->given[key - FIRST_KEY] = true;
    if (!take_value(option, text, line->args, &err))
        return 0;
    struct ibx_error whole = err;
    ibx_error_prefix(&whole, err.code, "--%s", option->name);
    fprintf(stderr, "%s: %s\n", line->tool->name, whole.message);
    if (line->tool->failed)
        line->tool->failed(whole.message);
    exit(1);
}

static bool takes_value(const struct ibx_tool *tool, const char *argument)
{
    for (unsigned i = 0; tool->options[i].help; i++) {
        const struct ibx_tool_option *o = &tool->options[i];
        if (o->name && o->value && !strcmp(argument + 2, o->name))
            return true;
    }
    return false;
}

/* The command in a line that asks for help: argp would print the help before it comes to the
 * command. NULL: there is no command, or the line does not ask for help. */
static const struct ibx_tool_command *asked_about(const struct ibx_tool *tool, int argc,
                                                  char *const *argv)
{
    const struct ibx_tool_command *command = NULL;
    bool asks = false;
    for (int i = 1; tool->commands && i < argc; i++) {
        asks |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h") || !strcmp(argv[i], "-?");
        if (!strncmp(argv[i], "--", 2))
            i += takes_value(tool, argv[i]);
        else if (*argv[i] != '-' && !command)
            for (command = tool->commands; command->name && strcmp(command->name, argv[i]);)
                command++;
    }
    return asks && command && command->name ? command : NULL;
}

/* Makes the usage text "serve URI\nrun URI", of which argp prints a line each, and the entries of
 * the list of commands; or the usage of `only`. */
static char *describe_commands(const struct ibx_tool *tool, const struct ibx_tool_command *only,
                               struct argp_option **next)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    if (!only)
        *(*next)++ = (struct argp_option){.doc = "Commands:"};
    for (const struct ibx_tool_command *c = only ? only : tool->commands; c->name; c++) {
        if (!only && tool->internal & 1u << (c - tool->commands))
            continue;
        fprintf(out, "%s%s%s%s", only || c == tool->commands ? "" : "\n", c->name,
                c->uri ? " " : "", c->uri ? c->uri : "");
        if (only)
            break;
        *(*next)++ = (struct argp_option){
            .name = c->name, .flags = OPTION_DOC | OPTION_NO_USAGE, .doc = c->help};
    }
    fclose(out);
    return text;
}

/* Makes the entries of all options, with their headings; or with `only` of those that it takes,
 * under two headings. */
static void describe_options(const struct ibx_tool *tool, const struct ibx_tool_command *only,
                             struct argp_option **next)
{
    const unsigned bit = only ? 1u << (only - tool->commands) : 0;
    for (unsigned own = 0; own < (only ? 2 : 1); own++) {
        if (only)
            *(*next)++ = (struct argp_option){.doc = own ? "Options of this command:"
                                                         : "Options of all commands:"};
        for (unsigned i = 0; tool->options[i].help; i++) {
            const struct ibx_tool_option *o = &tool->options[i];
            if (only && (!o->name || own != (o->commands != 0)))
                continue;
            *(*next)++ = (struct argp_option){
                .name = o->name,
                .key = o->name ? FIRST_KEY + (int)i : 0,
                .arg = o->value,
                .flags = only && o->commands && !(o->commands & bit) ? OPTION_HIDDEN : 0,
                .doc = o->help};
        }
    }
}

static bool sets_transport(const struct ibx_tool *tool, const struct ibx_tool_command *only)
{
    bool takes = tool->lists_transport && !only;
    for (unsigned i = 0; tool->lists_transport && only && tool->options[i].help; i++)
        takes |= tool->options[i].type == IBX_TOOL_SET &&
                 (!tool->options[i].commands ||
                  tool->options[i].commands & 1u << (only - tool->commands));
    return takes;
}

/* Makes an entry of --help for each option of the transport. */
static char *describe_transport(struct argp_option **next)
{
    char *text = NULL, *rest;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    ibx_options_describe(out);
    fclose(out);
    *(*next)++ = (struct argp_option){.doc = "Keys of --set, options of the transport:"};
    for (char *key = strtok_r(text, ":", &rest); key; key = strtok_r(NULL, ":", &rest)) {
        const char *meaning = strtok_r(NULL, "\n", &rest);
        *(*next)++ = (struct argp_option){
            .name = key, .flags = OPTION_DOC | OPTION_NO_USAGE, .doc = meaning + 1};
    }
    return text;
}

/* Opens placeholders for standard descriptors that are closed. Otherwise a file that is opened
 * later, a VM's memory for instance, would get such a number, and output would go there. Using a
 * placeholder fails, as using the closed descriptor did. */
static void hold_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            ibx_tool_end("descriptor %d is closed, and /dev/null cannot be opened in its place: %s",
                         fd, strerror(errno));
}

void ibx_tool_parse(const struct ibx_tool *tool, int argc, char **argv, void *args,
                    unsigned *command, const char **uri)
{
    static char version[64];
    struct argp_option options[IBX_TOOL_OPTIONS_MAX + IBX_TOOL_COMMANDS_MAX + 64] = {
        {.key = 'h', .flags = OPTION_HIDDEN, .doc = ""}};
    struct argp_option *next = options + 1;
    struct line line = {.tool = tool, .args = args, .command = -1};
    tool_name = tool->name;
    hold_standard_descriptors();
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, waitpid(2) reports no child's status */
    signal(SIGXFSZ, SIG_IGN); /* write(2) then fails with EFBIG, and the message names the file */
    snprintf(version, sizeof(version), "%s " IBX_VERSION, tool->name);
    argp_program_version = version;
    argp_err_exit_status = 2;
    argv[0] = (char *)tool->name; /* what the messages of getopt begin with */
    if (argc > 1 && !strcmp(argv[1], "help")) {
        argv[1] = (char *)"--help";
        if (tool->commands && argc > 2 && *argv[2] != '-')
            command_named(tool, argv[2]);
    }
    const struct ibx_tool_command *only = asked_about(tool, argc, argv);
    char *usage = tool->commands ? describe_commands(tool, only, &next) : NULL;
    describe_options(tool, only, &next);
    char *keys = sets_transport(tool, only) ? describe_transport(&next) : NULL;
    const struct argp argp = {.options = options,
                              .parser = parse,
                              .args_doc = usage,
                              .doc = only ? only->help : tool->help};
    on_exit(check_printed, NULL);
    argp_parse(&argp, argc, argv, 0, NULL, &line);
    parsed = true;
    free(usage);
    free(keys);
    if (command)
        *command = (unsigned)line.command;
    if (uri)
        *uri = line.uri;
}

bool ibx_tool_terminal(int fd)
{
    const char *kind = secure_getenv("TERM");
    return isatty(fd) && !(kind && !strcmp(kind, "dumb"));
}
