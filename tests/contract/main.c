/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* contract PROVIDER [options]: runs the contract tests against one provider. */
#include "tests/contract/harness.h"

#include <fnmatch.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESON_SKIP 77

static const struct group *const groups[] = {
    &group_connect, &group_auth,   &group_messages, &group_rdma,    &group_regions,
    &group_sleep,   &group_deaths, &group_faults,   &group_domains,
};

static void usage(FILE *out)
{
    fprintf(out,
            "usage: contract PROVIDER [--host ADDRESS] [--set KEY=VALUE]...\n"
            "                [--server-set KEY=VALUE]... [--client-set KEY=VALUE]...\n"
            "                [--only PATTERN] [--skip PATTERN] [--group NAME] [--fault-injection]\n"
            "                [--key]\n"
            "\n"
            "Runs the same tests against any provider (shm, verbs, ofi, tcp).\n"
            "  --host ADDRESS   where servers listen [127.0.0.1]\n"
            "  --set            an option of both sides, of servers or of clients only\n"
            "  --only PATTERN   tests whose name matches (* and ?)\n"
            "  --skip PATTERN   none of these\n"
            "  --group NAME     one group: ");
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        fprintf(out, "%s%s", i ? ", " : "", groups[i]->name);
    fprintf(out, "\n"
                 "  --fault-injection  with idle fault injection\n"
                 "  --key            both sides have a key, so that messages carry MACs\n"
                 "IBX_CONTRACT_SMALL=1 moves less data, for emulators and sanitizers.\n");
}

static const char *only;

static bool any_wanted(const struct group *group)
{
    for (size_t i = 0; i < group->count; i++) {
        if (!only || !fnmatch(only, group->tests[i].name, 0))
            return true;
    }
    return false;
}

static void add_setting(char side, const char *key_value)
{
    if (contract.setting_count == sizeof(contract.settings) / sizeof(contract.settings[0]) ||
        !strchr(key_value, '=')) {
        fprintf(stderr, "contract: \"%s\" is not key=value, or one too many\n", key_value);
        exit(2);
    }
    contract.settings[contract.setting_count].side = side;
    contract.settings[contract.setting_count++].key_value = key_value;
}

/* A key file for both sides. The process that created it removes it. */
static char key_setting[64] = "key_file=/tmp/ibx-contract-both-XXXXXX";
static pid_t key_owner;

static void remove_key(void)
{
    if (getpid() == key_owner)
        unlink(strchr(key_setting, '/'));
}

static void make_key(void)
{
    static const char hex[] = "c0a7ac70000000000000000000000000c0a7ac70000000000000000000000001\n";
    int fd = mkstemp(strchr(key_setting, '/'));
    if (fd < 0 || write(fd, hex, sizeof(hex) - 1) != sizeof(hex) - 1) {
        fprintf(stderr, "contract: no key file can be made\n");
        exit(2);
    }
    close(fd);
    key_owner = getpid();
    contract.key = true;
    atexit(remove_key);
    add_setting('b', key_setting);
}

static const char *parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"host", required_argument, NULL, 'h'},
        {"set", required_argument, NULL, 'b'},
        {"server-set", required_argument, NULL, 's'},
        {"client-set", required_argument, NULL, 'c'},
        {"only", required_argument, NULL, 'o'},
        {"skip", required_argument, NULL, 'k'},
        {"group", required_argument, NULL, 'g'},
        {"fault-injection", no_argument, NULL, 'f'},
        {"key", no_argument, NULL, 'y'},
        {"help", no_argument, NULL, '?'},
        {0},
    };
    const char *group = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h') {
            contract.host = optarg;
        } else if (c == 'b' || c == 's' || c == 'c') {
            add_setting((char)c, optarg);
        } else if (c == 'o') {
            only = optarg;
            cmocka_set_test_filter(optarg);
        } else if (c == 'k') {
            cmocka_set_skip_filter(optarg);
        } else if (c == 'g') {
            group = optarg;
        } else if (c == 'f') {
            contract.fault_injection = true;
        } else if (c == 'y') {
            make_key();
        } else {
            usage(stderr);
            exit(2);
        }
    }
    if (optind != argc - 1) {
        usage(stderr);
        exit(2);
    }
    contract.provider = argv[optind];
    return group;
}

/* Exits with status 77, meson's "skipped", if this host cannot use the provider. */
static void check_usable(void)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    char description[256];
    contract_options(&options, 'b');
    /* no other provider is tried */
    snprintf(options.provider, sizeof(options.provider), "%s", contract.provider);
    int rc =
        ibx_provider_probe(contract.provider, &options, description, sizeof(description), &err);
    if (rc) {
        fprintf(stderr, "SKIPPED: %s cannot be used here: %s\n", contract.provider, err.message);
        exit(MESON_SKIP);
    }
    print_message("%s: %s%s%s\n", contract.provider, description,
                  contract.fault_injection ? ", with idle fault injection" : "",
                  contract.small ? ", small sizes" : "");
}

int main(int argc, char **argv)
{
    const char *small = getenv("IBX_CONTRACT_SMALL");
    contract.host = "127.0.0.1";
    contract.small = small && *small && strcmp(small, "0") != 0;
    const char *group = parse(argc, argv);
    int failed = 0, run = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    check_usable();
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        if ((group && strcmp(group, groups[i]->name)) || !any_wanted(groups[i]))
            continue;
        run++;
        failed += _cmocka_run_group_tests(groups[i]->name, groups[i]->tests, groups[i]->count, NULL,
                                          NULL);
    }
    if (!run)
        fprintf(stderr, "contract: no such test\n");
    return failed || !run;
}
