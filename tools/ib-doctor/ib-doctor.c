/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options and output of ib-doctor. */
#include "tools/ib-doctor/ib-doctor.h"
#include "tools/options.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const status_names[] = {"ok", "limited", "missing"};

/* ----------------------------------------------------------------------- paths */

struct path_answer {
    const char *provider;
    bool usable;
    char text[IBX_ERROR_MAX];
};

static void ask_path(unsigned index, struct path_answer *answer)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    answer->provider = ibx_provider_name(index);
    answer->usable =
        !ibx_provider_probe(answer->provider, &options, answer->text, sizeof(answer->text), &err);
    if (!answer->usable)
        memcpy(answer->text, err.message, sizeof(answer->text));
    ibx_text_sanitize(answer->text);
}

static const char *first_usable(const struct path_answer *answers, bool same_host)
{
    for (unsigned i = 0; i < IBX_PROVIDERS_MAX; i++) {
        if (answers[i].usable && (same_host || strcmp(answers[i].provider, "shm")))
            return answers[i].provider;
    }
    return "none";
}

/* ---------------------------------------------------------------------- output */

static const char *colour(enum doctor_status status, bool on)
{
    static const char *const codes[] = {"\033[32m", "\033[33m", "\033[31m"};
    return on ? codes[status] : "";
}

static void print_page(const struct path_answer *answers)
{
    const bool tty = ibx_tool_terminal(STDOUT_FILENO);
    const char *area = "";
    for (unsigned i = 0; i < ibx_doctor_check_count; i++) {
        const struct doctor_check *c = &ibx_doctor_checks[i];
        if (strcmp(area, c->area)) {
            printf("%s%s\n", i ? "\n" : "", c->area);
            area = c->area;
        }
        printf("  %s%-8s%s %-22s %s\n", colour(c->status, tty), status_names[c->status],
               tty ? "\033[0m" : "", c->name, c->value);
        if (c->remedy[0])
            printf("  %-8s %-22s   -> %s\n", "", "", c->remedy);
    }
    printf("\npaths of rdma://, best first\n");
    for (unsigned i = 0; i < IBX_PROVIDERS_MAX; i++)
        printf("  %s%-8s%s %-22s %s\n", colour(answers[i].usable ? DOCTOR_OK : DOCTOR_MISSING, tty),
               answers[i].usable ? "ok" : "refused", tty ? "\033[0m" : "", answers[i].provider,
               answers[i].text);
    printf("\nrdma:// uses %s on this host, and %s to other hosts that support it.\n",
           first_usable(answers, true), first_usable(answers, false));
}

/* Prints the report as JSON. False: a text is not UTF-8, or writing failed. */
static bool print_json(const struct path_answer *answers)
{
    struct utsname host;
    uname(&host);
    json_t *list = json_array(), *paths = json_array();
    for (unsigned i = 0; i < ibx_doctor_check_count; i++) {
        const struct doctor_check *c = &ibx_doctor_checks[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "area", c->area, "name",
                                              c->name, "status", status_names[c->status], "value",
                                              c->value, "remedy", c->remedy));
    }
    for (unsigned i = 0; i < IBX_PROVIDERS_MAX; i++)
        json_array_append_new(paths, json_pack("{s:s, s:b, s:s}", "provider", answers[i].provider,
                                               "usable", answers[i].usable,
                                               answers[i].usable ? "description" : "reason",
                                               answers[i].text));
    json_t *all = json_pack("{s:s, s:s, s:s, s:o, s:o, s:{s:s, s:s}}", "version", IBX_VERSION,
                            "host", host.nodename, "kernel", host.release, "checks", list, "paths",
                            paths, "chosen", "same_host", first_usable(answers, true), "other_host",
                            first_usable(answers, false));
    bool good = all && !json_dumpf(all, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(all);
    return good;
}

/* A report about a folder that is not there would say of a host what nobody has looked at. */
static void check_root(void)
{
    const char *root = ibx_doctor_root();
    if (*root && access(ibx_doctor_path("/."), X_OK))
        ibx_tool_end("IBX_DOCTOR_ROOT=%s: %s; name a folder that contains a host's /proc and /sys",
                     root, strerror(errno));
}

int main(int argc, char **argv)
{
    static const struct ibx_tool_option options[] = {
        {.name = "json", .help = "Print the report as JSON on standard output"}, {0}};
    static const struct ibx_tool tool = {
        .name = "ib-doctor",
        .help = "Reports what this host can do for ibx, and how to get what is missing.",
        .options = options};
    bool json = false; /* the only argument */
    ibx_tool_parse(&tool, argc, argv, &json, NULL, NULL);
    check_root();
    ibx_doctor_check_rdma();
    ibx_doctor_check_memory();
    ibx_doctor_check_system();
    ibx_doctor_check_acs();
    ibx_doctor_check_vm();
    ibx_doctor_check_gpu();
    struct path_answer answers[IBX_PROVIDERS_MAX];
    for (unsigned i = 0; i < IBX_PROVIDERS_MAX; i++)
        ask_path(i, &answers[i]);
    bool good = true;
    if (json)
        good = print_json(answers);
    else
        print_page(answers);
    struct ibx_error err = {0};
    if (!good)
        ibx_error_set(&err, -EILSEQ, "the report could not be written");
    return !good || ibx_tool_flush(&err) ? ibx_tool_fail(&err) : 0;
}
