/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options and output of ib-doctor; the looking is done in ib-doctor-*.c. */
#include "tools/ib-doctor/ib-doctor.h"

#include "transport/transport.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define CHECKS_MAX 256u

static struct doctor_check checks[CHECKS_MAX];
static unsigned check_count;

static const char *const status_names[] = {"ok", "limited", "missing"};

void ibx_doctor_add(const char *area, const char *name, enum doctor_status status,
                    const char *remedy, const char *value_format, ...)
{
    if (check_count == CHECKS_MAX)
        return;
    struct doctor_check *check = &checks[check_count++];
    *check = (struct doctor_check){.area = area, .status = status};
    snprintf(check->name, sizeof(check->name), "%s", name);
    snprintf(check->remedy, sizeof(check->remedy), "%s", remedy ? remedy : "");
    va_list args;
    va_start(args, value_format);
    vsnprintf(check->value, sizeof(check->value), value_format, args);
    va_end(args);
}

/* ----------------------------------------------------------------------- files */

const char *ibx_doctor_root(void)
{
    const char *root = getenv("IBX_DOCTOR_ROOT");
    return root ? root : "";
}

bool ibx_doctor_read(const char *path, char *out, size_t size)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s%s", ibx_doctor_root(), path);
    FILE *file = fopen(whole, "re");
    bool good = file && fgets(out, (int)size, file);
    if (file)
        fclose(file);
    if (!good)
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return good;
}

long long ibx_doctor_read_number(const char *path, long long fallback)
{
    char text[64], *end;
    if (!ibx_doctor_read(path, text, sizeof(text)))
        return fallback;
    long long value = strtoll(text, &end, 0);
    return end == text ? fallback : value;
}

bool ibx_doctor_exists(const char *path)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s%s", ibx_doctor_root(), path);
    return access(whole, F_OK) == 0;
}

/* ----------------------------------------------------------------------- paths */

struct path_answer {
    const char *provider;
    bool usable;
    char text[IBX_ERROR_MAX];
};

/* What rdma:// could take between this host and another one, and on this host. */
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
    bool tty = isatty(STDOUT_FILENO);
    const char *area = "";
    for (unsigned i = 0; i < check_count; i++) {
        const struct doctor_check *c = &checks[i];
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
    printf(
        "\nFrom here rdma:// takes %s to this host and %s to others, where they can do the same.\n",
        first_usable(answers, true), first_usable(answers, false));
}

static int print_json(const struct path_answer *answers)
{
    struct utsname host;
    uname(&host);
    json_t *list = json_array(), *paths = json_array();
    for (unsigned i = 0; i < check_count; i++) {
        const struct doctor_check *c = &checks[i];
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
    int rc = all ? json_dumpf(all, stdout, JSON_INDENT(2)) : -1;
    json_decref(all);
    if (rc || putchar('\n') == EOF || fflush(stdout)) {
        fprintf(stderr, "ib-doctor: the report could not be written\n");
        return 1;
    }
    return 0;
}

static const char usage[] =
    "usage: ib-doctor [--json]\n"
    "       ib-doctor --help | --version\n"
    "\n"
    "One page of what this host can do for ibx, and how to get what is missing.\n"
    "\n"
    "  --json   the same as JSON on standard output\n";

int main(int argc, char **argv)
{
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            fputs(usage, stdout);
            return 0;
        }
        if (!strcmp(argv[i], "--version")) {
            puts("ib-doctor " IBX_VERSION);
            return 0;
        }
        if (strcmp(argv[i], "--json")) {
            fprintf(stderr, "ib-doctor: \"%s\" is not an option\n%s", argv[i], usage);
            return 2;
        }
        json = true;
    }
    ibx_doctor_check_rdma();
    ibx_doctor_check_memory();
    ibx_doctor_check_system();
    ibx_doctor_check_gpu();
    struct path_answer answers[IBX_PROVIDERS_MAX];
    for (unsigned i = 0; i < IBX_PROVIDERS_MAX; i++)
        ask_path(i, &answers[i]);
    if (json)
        return print_json(answers);
    print_page(answers);
    return fflush(stdout) || ferror(stdout) ? 1 : 0;
}
