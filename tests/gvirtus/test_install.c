/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ibx-gvirtus install and remove on GVirtuS homes of our own making.
 *
 * usage: test_install IBX_GVIRTUS PLUGIN NO_PLUGIN CRASH MANUAL
 */
#include "frontend-glue/plugin/config.h"
#include "tests/scenes/process.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char stock_json[] =
    "{ \"communicator\": [ { \"endpoint\": { \"suite\": \"tcp/ip\", \"protocol\": \"tcp\",\n"
    "  \"server_address\": \"10.1.2.3\", \"port\": \"8888\", \"extra\": 1.5 },\n"
    "  \"plugins\": [\"cudart\", \"cublas\"] }, { \"endpoint\": {} } ],\n"
    "  \"secure_application\": false, \"mine\": [true] }";

#define OWN_KEYS 6u /* rdma.memory, .gpu, .gpu_memory, .gpu_threads, .tuning, .log */

static char tool[PATH_MAX], plugin[PATH_MAX], no_plugin[PATH_MAX], crash[PATH_MAX];
static const char *manual; /* gvirtus.properties.5 */
static char home[64];
static char mark[80];

/* ----------------------------------------------------------------------- homes */

static const char *in_home(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", home, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *out = fopen(in_home(name), "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static char *read_file(const char *name)
{
    char *text = NULL;
    size_t size = 0;
    FILE *in = fopen(in_home(name), "r");
    if (!in)
        fail_msg("there is no %s", name);
    ssize_t n = getdelim(&text, &size, '\0', in);
    fclose(in);
    assert_true(n >= 0);
    return text;
}

static bool exists(const char *name)
{
    struct stat st;
    return !lstat(in_home(name), &st);
}

/* All that a home holds: names, inodes, modes, times, contents. */
static void describe(FILE *out, const char *dir)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    assert_true(n >= 0);
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX], content[PATH_MAX];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
        assert_int_equal(lstat(path, &st), 0);
        if (S_ISDIR(st.st_mode) && names[i]->d_name[0] != '.') {
            fprintf(out, "%s/\n", path);
            describe(out, path);
        } else if (!S_ISDIR(st.st_mode)) {
            fprintf(out, "%s %lu %o %u %ld.%09ld\n", path, (unsigned long)st.st_ino, st.st_mode,
                    st.st_uid, (long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
            ssize_t length = S_ISLNK(st.st_mode) ? readlink(path, content, sizeof(content)) : 0;
            FILE *in = S_ISREG(st.st_mode) ? fopen(path, "r") : NULL;
            do {
                fwrite(content, 1, (size_t)length, out);
                length = in ? (ssize_t)fread(content, 1, sizeof(content), in) : 0;
            } while (length > 0);
            if (in)
                fclose(in);
        }
        free(names[i]);
    }
    free(names);
}

static char *snapshot(void)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    describe(out, home);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* Compares with a snapshot and frees both. */
static void expect_unchanged(char *before)
{
    char *after = snapshot();
    assert_string_equal(after, before);
    free(after);
    free(before);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(home, "/tmp/ibx-home-XXXXXX");
    if (!mkdtemp(home))
        return -1;
    snprintf(mark, sizeof(mark), "%s.mark", home);
    chmod(home, 0755);
    mkdir(in_home("lib"), 0755);
    mkdir(in_home("etc"), 0755);
    mkdir(in_home("bin"), 0755);
    write_file("lib/libgvirtus-communicators.so", "upstream");
    write_file("lib/libgvirtus-communicators-tcp.so", "upstream tcp");
    write_file("etc/properties.json", stock_json);
    unsetenv("GVIRTUS_HOME");
    unsetenv("GVIRTUS_CONFIG");
    unsetenv("GVIRTUS_RDMA_PROPERTIES");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    unlink(mark);
    snprintf(command, sizeof(command), "rm -rf %s", home);
    return system(command);
}

/* ----------------------------------------------------------------------- runs */

#define ARGS_MAX 16
static struct process last;

/* Runs the tool with the arguments (and --home) under an environment: its exit status. */
static int run_under(const char *const environment[], const char *const args[])
{
    char *argv[ARGS_MAX] = {tool, (char *)"--home", home};
    for (int i = 0; args[i]; i++) {
        assert_true(i + 4 < ARGS_MAX);
        argv[i + 3] = (char *)args[i];
    }
    process_start(&last, argv, environment);
    return process_wait(&last);
}

#define LIST(...)    ((const char *const[]){__VA_ARGS__, NULL})
#define RUN(...)     run_under((const char *const[]){"IBX_LOG=error", NULL}, LIST(__VA_ARGS__))
#define INSTALL(...) RUN("install", "--library", plugin, ##__VA_ARGS__)

static void expect_said(const char *text)
{
    if (!strstr(last.text, text))
        fail_msg("did not say \"%s\", but:\n%s", text, last.text);
}

/* The one sentence of a command that failed. */
static void expect_failure(int status, const char *text)
{
    assert_int_equal(status, 1);
    expect_said(text);
    assert_true(last.length > 0 && strchr(last.text, '\n') == last.text + last.length - 1);
}

static const char *text_at(json_t *root, const char *key)
{
    json_t *endpoint =
        json_object_get(json_array_get(json_object_get(root, "communicator"), 0), "endpoint");
    const char *text = json_string_value(json_object_get(endpoint, key));
    return text ? text : "";
}

static json_t *load_json(void)
{
    json_error_t error;
    json_t *root = json_load_file(in_home("etc/properties.json"), 0, &error);
    if (!root)
        fail_msg("%s", error.text);
    return root;
}

static void expect_endpoint(const char *suite, const char *protocol, const char *address,
                            const char *port)
{
    json_t *root = load_json();
    assert_string_equal(text_at(root, "suite"), suite);
    assert_string_equal(text_at(root, "protocol"), protocol);
    assert_string_equal(text_at(root, "server_address"), address);
    assert_string_equal(text_at(root, "port"), port);
    json_decref(root);
}

static void expect_communicator(const char *uri)
{
    struct ibx_glue_config config;
    struct ibx_error error;
    setenv("GVIRTUS_HOME", home, 1);
    if (ibx_glue_config_load("9.9.9.9", 9, &config, &error))
        fail_msg("%s", error.message);
    unsetenv("GVIRTUS_HOME");
    assert_string_equal(config.uri, uri);
    assert_string_equal(config.file, in_home("etc/gvirtus.properties"));
}

/* ----------------------------------------------------------------------- tests */

static void test_install_and_remove(void **state)
{
    (void)state;
    char *before = snapshot();
    assert_int_equal(INSTALL(), 0);
    expect_endpoint("tcp/ip", "oldtcp", "10.1.2.3", "8888");
    expect_communicator("rdma://10.1.2.3:8888");
    json_t *now = load_json(), *stock = json_loads(stock_json, 0, NULL);
    json_t *endpoint =
        json_object_get(json_array_get(json_object_get(now, "communicator"), 0), "endpoint");
    json_object_set_new(endpoint, "protocol", json_string("tcp"));
    assert_true(json_equal(now, stock)); /* nothing else was touched */
    json_decref(now);
    json_decref(stock);

    struct stat st;
    assert_int_equal(stat(in_home("lib/libgvirtus-communicators-oldtcp.so"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0755);
    assert_int_equal(RUN("remove"), 0);
    expect_said("properties.json: restored\n");
    expect_said("gvirtus.properties: removed\n");
    expect_unchanged(before);
    expect_failure(RUN("remove"), "nothing is installed");
}

/* Uncommenting any line that was generated gives a file that works as before. */
static void test_generated_keys(void **state)
{
    (void)state;
    assert_int_equal(INSTALL(), 0);
    char *text = read_file("etc/gvirtus.properties");
    unsigned keys = 0;
    for (char *at = text; (at = strstr(at, "\n#rdma.")); keys++)
        at[1] = ' ';
    write_file("etc/gvirtus.properties", text);
    free(text);
    unsigned options = 0;
    while (ibx_options_key(options))
        options++;
    assert_int_equal(keys, options + OWN_KEYS);
    expect_communicator("rdma://10.1.2.3:8888");
    assert_int_equal(RUN("remove"), 0);
    expect_said("gvirtus.properties: removed; what was changed since");
    assert_true(exists("etc/gvirtus.properties.with-ibx"));
    assert_false(exists("etc/gvirtus.properties"));
}

static void test_keeps_what_was_there(void **state)
{
    (void)state;
    write_file("lib/libgvirtus-communicators-ib.so.1", "upstream ib");
    assert_int_equal(
        symlink("libgvirtus-communicators-ib.so.1", in_home("lib/libgvirtus-communicators-ib.so")),
        0);
    write_file("etc/gvirtus.properties", "# mine\ncommunicator : tcp://gpu-1:7\nfoo : bar\n"
                                         "rdma.slots : 5\ncommunicator : second");
    chmod(in_home("etc/gvirtus.properties"), 0640);
    char *before = snapshot();
    assert_int_equal(INSTALL("--slot", "ib"), 0);
    expect_endpoint("infiniband-rdma", "ib", "10.1.2.3", "7");
    expect_communicator("rdma://gpu-1:7"); /* the same place, no longer GVirtuS's own tcp */
    char *text = read_file("etc/gvirtus.properties");
    assert_string_equal(text,
                        "# mine\n# communicator : tcp://gpu-1:7\ncommunicator : rdma://gpu-1:7\n"
                        "foo : bar\nrdma.slots : 5\ncommunicator : second\n");
    free(text);
    struct stat st;
    assert_int_equal(stat(in_home("etc/gvirtus.properties"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    text = read_file("lib/libgvirtus-communicators-ib.so.1");
    assert_string_equal(text, "upstream ib"); /* the link was replaced, not what it led to */
    free(text);
    assert_int_equal(RUN("remove"), 0);
    expect_unchanged(before);
}

static void test_uris(void **state)
{
    (void)state;
    assert_int_equal(INSTALL("--uri", "verbs://[fe80::1]:4321"), 0);
    expect_endpoint("tcp/ip", "oldtcp", "10.1.2.3", "4321");
    expect_communicator("verbs://[fe80::1]:4321");
    assert_int_equal(RUN("remove"), 0);
    assert_int_equal(INSTALL("--uri", "rdma://192.0.2.9:1?chunk=1M"), 0);
    expect_endpoint("tcp/ip", "oldtcp", "192.0.2.9", "1");
    expect_communicator("rdma://192.0.2.9:1?chunk=1M");
    assert_int_equal(RUN("remove"), 0);

    /* Who has chosen a path already keeps it. */
    write_file("etc/gvirtus.properties", "communicator : verbs://gpu-1:7?rails=2");
    assert_int_equal(INSTALL(), 0);
    expect_communicator("verbs://gpu-1:7?rails=2");
    assert_int_equal(RUN("remove"), 0);
    unlink(in_home("etc/gvirtus.properties"));

    char *before = snapshot();
    expect_failure(INSTALL("--uri", "rdma://host"), "has no port");
    expect_failure(INSTALL("--uri", "rdma://host:0"), "port 0");
    expect_failure(INSTALL("--uri", "ucx://host:1"), "use rdma, shm, verbs, ofi or tcp");
    expect_failure(INSTALL("--uri", "rdma://host:1?slots=x"), "slots: \"x\"");
    expect_unchanged(before);

    /* Nothing is configured yet: GVirtuS's defaults, and the plugins of a gvirtus.properties. */
    assert_int_equal(unlink(in_home("etc/properties.json")), 0);
    write_file("etc/gvirtus.properties", "plugins : cudart,cufft\n");
    assert_int_equal(INSTALL(), 0);
    expect_endpoint("tcp/ip", "oldtcp", "127.0.0.1", "9999");
    expect_communicator("rdma://127.0.0.1:9999");
    char *text = read_file("etc/properties.json");
    assert_non_null(strstr(text, "\"cufft\""));
    free(text);
    assert_int_equal(RUN("remove"), 0);
    assert_false(exists("etc/properties.json"));
}

static void test_other_places(void **state)
{
    (void)state;
    mkdir(in_home("conf"), 0755);
    write_file("conf/gpu.json", stock_json);
    char *before = snapshot();
    char config[256], properties[256];
    snprintf(config, sizeof(config), "%s", in_home("bin/../conf/gpu.json"));
    snprintf(properties, sizeof(properties), "%s", in_home("bin/p"));
    assert_int_equal(INSTALL("--config", config, "--properties", properties), 0);
    expect_said("GVIRTUS_RDMA_PROPERTIES=");
    assert_true(exists("bin/p"));
    assert_true(exists("conf/gpu.json.before-ibx"));
    assert_int_equal(RUN("remove"), 0);
    expect_unchanged(before);
    before = snapshot();
    expect_failure(INSTALL("--config", "/nonexistent/x.json"),
                   "/nonexistent/x.json has no directory: ");
    expect_unchanged(before);
}

static void test_refusals(void **state)
{
    (void)state;
    char *before = snapshot();
    expect_failure(RUN("install", "--library", no_plugin), "has no create_communicator");
    expect_failure(RUN("install", "--library", in_home("etc/properties.json")),
                   "cannot be loaded here");
    expect_failure(RUN("install", "--library", "/nonexistent"), "cannot be found");
    expect_unchanged(before);

    write_file("lib/libgvirtus-communicators-oldtcp.so.before-ibx", "precious");
    before = snapshot();
    expect_failure(INSTALL(), "is a backup that would be overwritten");
    expect_unchanged(before);
    assert_int_equal(unlink(in_home("lib/libgvirtus-communicators-oldtcp.so.before-ibx")), 0);

    assert_int_equal(INSTALL(), 0);
    before = snapshot();
    expect_failure(INSTALL("--slot", "ib"), "installed there already, in the slot \"oldtcp\"");
    expect_unchanged(before);
    assert_int_equal(RUN("remove"), 0);

    write_file("etc/properties.json", "{\n\"communicator\": oops\n}");
    expect_failure(INSTALL(), "etc/properties.json line 2 is not JSON");
    write_file("etc/properties.json", "{\"communicator\": {}}");
    expect_failure(INSTALL(), "no communicator[0].endpoint");
    write_file("etc/properties.json",
               "{\"communicator\":[{\"endpoint\":{}}],\"secure_application\":true}");
    expect_failure(INSTALL(), "secure_application");
    write_file("etc/properties.json", stock_json);
    write_file("etc/gvirtus.properties", "communicator\n");
    expect_failure(INSTALL(), "gvirtus.properties line 1");
}

static void test_homes(void **state)
{
    (void)state;
    write_file("lib/libgvirtus-communicators-ucx.so", "");
    expect_failure(INSTALL(), "UCX");
    unlink(in_home("lib/libgvirtus-communicators-ucx.so"));
    unlink(in_home("lib/libgvirtus-communicators.so"));
    unlink(in_home("lib/libgvirtus-communicators-tcp.so"));
    expect_failure(INSTALL(), "is not a GVirtuS home");
    write_file("bin/gvirtus-backend", "");
    expect_failure(INSTALL(), "classic GVirtuS");
    char real[64];
    strcpy(real, home);
    snprintf(home, sizeof(home), "%s/bin/gvirtus-backend", real);
    expect_failure(INSTALL(), "is not a directory");
    snprintf(home, sizeof(home), "%s/none", real);
    expect_failure(RUN("remove"), "none: No such file or directory");
    strcpy(home, real);
}

/* As nobody, in a home of root's. */
static void test_permission(void **state)
{
    (void)state;
    char *const trial[] = {(char *)"/usr/bin/setpriv", (char *)"--reuid=65534",
                           (char *)"--clear-groups",   tool,
                           (char *)"--version",        NULL};
    const char *const nothing[] = {NULL};
    if (geteuid() || access(trial[0], X_OK))
        skip();
    process_start(&last, trial, nothing);
    if (process_wait(&last))
        skip();
    char *before = snapshot();
    char *const argv[] = {
        trial[0], trial[1],         trial[2], tool, (char *)"install", (char *)"--library",
        plugin,   (char *)"--home", home,     NULL};
    process_start(&last, argv, nothing);
    expect_failure(process_wait(&last), "Permission denied: run it as the owner, or with sudo");
    expect_unchanged(before);
}

static void test_edited_since(void **state)
{
    (void)state;
    char *before = snapshot();
    assert_int_equal(INSTALL(), 0);
    write_file("etc/properties.json", "{\"mine\": 1}");
    assert_int_equal(rename(in_home("etc/properties.json.before-ibx"), in_home("bin/b")), 0);
    expect_failure(RUN("remove"), "before-ibx is gone");
    assert_true(exists("lib/libgvirtus-communicators-oldtcp.so")); /* nothing was begun */
    assert_int_equal(rename(in_home("bin/b"), in_home("etc/properties.json.before-ibx")), 0);

    assert_int_equal(RUN("remove"), 0);
    expect_said("properties.json: restored; what was changed since");
    char *text = read_file("etc/properties.json.with-ibx");
    assert_string_equal(text, "{\"mine\": 1}");
    free(text);
    unlink(in_home("etc/properties.json.with-ibx"));
    expect_unchanged(before);
}

/* What each of several installations was edited to is kept. */
static void test_edited_again(void **state)
{
    (void)state;
    static const char *const names[] = {"gvirtus.properties.with-ibx",
                                        "gvirtus.properties.with-ibx.2",
                                        "gvirtus.properties.with-ibx.3"};
    char *before = snapshot();
    for (int i = 0; i < 3; i++) {
        char edit[32], said[128];
        snprintf(edit, sizeof(edit), "rdma.slots : %d\n", 10 + i);
        assert_int_equal(INSTALL(), 0);
        write_file("etc/gvirtus.properties", edit);
        assert_int_equal(RUN("remove"), 0);
        snprintf(
            said, sizeof(said),
            "gvirtus.properties: removed; what was changed since is in the file ending in %s\n",
            strchr(names[i], '.') + strlen(".properties"));
        expect_said(said);
    }
    for (int i = 0; i < 3; i++) {
        char name[64], edit[32];
        snprintf(name, sizeof(name), "etc/%s", names[i]);
        snprintf(edit, sizeof(edit), "rdma.slots : %d\n", 10 + i);
        char *text = read_file(name);
        assert_string_equal(text, edit);
        free(text);
        assert_int_equal(unlink(in_home(name)), 0);
    }
    expect_unchanged(before);
}

static void test_bad_state(void **state)
{
    (void)state;
    assert_int_equal(INSTALL(), 0);
    static const char no_digest[] = "{\"version\": 1, \"phase\": \"installed\", \"slot\": \"ib\","
                                    "\"files\": [{\"path\": \"/x\", \"existed\": true}]}";
    static const char *const bad[] = {"", "[]", "{\"version\": 2}", no_digest};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_file("lib/ibx-gvirtus.json", bad[i]);
        expect_failure(RUN("remove"), "is not a state file");
        expect_failure(INSTALL(), "is not a state file");
    }
}

/* ---------------------------------------------------------------------- crashes */

/* Runs a command that is struck at its n-th change of the file system; false when it has fewer. */
static bool struck(const char *mode, int n, const char *command, const char *uri, int *status)
{
    char at[32], mode_text[32], mark_text[96], preload[PATH_MAX + 16];
    snprintf(at, sizeof(at), "CRASH_AT=%d", n);
    snprintf(mode_text, sizeof(mode_text), "CRASH_MODE=%s", mode);
    snprintf(mark_text, sizeof(mark_text), "CRASH_MARK=%s", mark);
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", crash);
    unlink(mark);
    *status = run_under(LIST(at, mode_text, mark_text, preload, "IBX_LOG=error",
                             "ASAN_OPTIONS=verify_asan_link_order=0"),
                        LIST(command, "--library", plugin, uri ? "--uri" : NULL, uri));
    return !access(mark, F_OK);
}

/* A home where one file is replaced, one edited and one made. */
static char *home_for_crashes(void)
{
    write_file("lib/libgvirtus-communicators-oldtcp.so", "somebody's");
    return snapshot();
}

static void test_failing_install(void **state)
{
    (void)state;
    char *before = home_for_crashes();
    int status, n = 1;
    for (; struck("fail", n, "install", NULL, &status); n++) {
        if (!status) { /* it did not need that one */
            assert_int_equal(RUN("remove"), 0);
        } else {
            assert_int_equal(status, 1);
            expect_said("Input/output error");
        }
        expect_unchanged(strdup(before));
    }
    assert_int_equal(status, 0);
    assert_true(n > 20);
    free(before);
}

static void test_killed_install(void **state)
{
    (void)state;
    char *before = home_for_crashes();
    int status, n = 1;
    for (; struck("kill", n, "install", "rdma://9.8.7.6:5555", &status); n++) {
        assert_int_equal(status, 128 + 9);
        if (n & 1) { /* either command mends it */
            status = INSTALL();
            if (status) /* struck after the very last file */
                expect_failure(status, "installed there already");
            else /* nothing is left of what the other was told */
                expect_endpoint("tcp/ip", "oldtcp", "10.1.2.3", "8888");
        }
        status = RUN("remove");
        if (status)
            expect_failure(status, "nothing is installed");
        expect_unchanged(strdup(before));
    }
    assert_true(n > 20);
    free(before);
}

static void test_killed_remove(void **state)
{
    (void)state;
    char *before = home_for_crashes();
    int status, n = 1;
    for (;; n++) {
        assert_int_equal(INSTALL(), 0);
        write_file("etc/gvirtus.properties", "rdma.slots : 7\n");
        if (!struck("kill", n, "remove", NULL, &status))
            break;
        status = RUN("remove");
        if (status)
            expect_failure(status, "nothing is installed");
        char *kept = read_file("etc/gvirtus.properties.with-ibx");
        assert_string_equal(kept, "rdma.slots : 7\n");
        free(kept);
        assert_int_equal(unlink(in_home("etc/gvirtus.properties.with-ibx")), 0);
        expect_unchanged(strdup(before));
    }
    assert_int_equal(status, 0);
    assert_true(n > 8);
    free(before);
}

static void test_without_hard_links(void **state)
{
    (void)state;
    char *before = home_for_crashes();
    int status;
    assert_false(struck("nolink", 1000, "install", NULL, &status));
    assert_int_equal(status, 0);
    expect_endpoint("tcp/ip", "oldtcp", "10.1.2.3", "8888");
    assert_int_equal(RUN("remove"), 0);
    expect_unchanged(before);
}

/* ------------------------------------------------------------------------ usage */

static void expect_usage(const char *const args[], const char *text)
{
    assert_int_equal(run_under((const char *const[]){NULL}, args), 2);
    expect_said(text);
}

static void test_usage(void **state)
{
    (void)state;
    expect_usage((const char *const[]){NULL}, "give install, remove or show");
    expect_usage(LIST("install", "remove"), "\"remove\" is one argument too many");
    expect_usage(LIST("instal"), "no command \"instal\"");
    expect_usage(LIST("install", "--slot", "ucx"), "no slot \"ucx\": give oldtcp or ib");
    expect_usage(LIST("install", "--frob"), "unrecognized option '--frob'");
    expect_usage(LIST("install", "--uri"), "option '--uri' requires an argument");
    assert_int_equal(RUN("--help"), 0);
    expect_said("Usage: ibx-gvirtus [OPTION...] install\n");
    assert_int_equal(RUN("--version"), 0);
    expect_said("ibx-gvirtus " IBX_VERSION "\n");

    char *const bare[] = {tool, (char *)"install", NULL};
    process_start(&last, bare, (const char *const[]){NULL});
    expect_failure(process_wait(&last), "Give --home DIR or set GVIRTUS_HOME");
}

/* The manual page has an item for each key, and none for others. */
static void test_manual(void **state)
{
    (void)state;
    static char text[64 * 1024];
    FILE *in = fopen(manual, "r");
    assert_non_null(in);
    text[fread(text, 1, sizeof(text) - 1, in)] = '\0';
    fclose(in);
    const char *key;
    unsigned known = OWN_KEYS, items = 0;
    for (unsigned i = 0; (key = ibx_options_key(i)); i++, known++) {
        char item[80];
        snprintf(item, sizeof(item), "\n.It Cm rdma.%s\n", key);
        if (!strstr(text, item))
            fail_msg("%s has no item for rdma.%s", manual, key);
    }
    assert_non_null(strstr(text, "\n.It Cm rdma.memory\n"));
    assert_non_null(strstr(text, "\n.It Cm rdma.gpu\n"));
    assert_non_null(strstr(text, "\n.It Cm rdma.gpu_memory\n"));
    assert_non_null(strstr(text, "\n.It Cm rdma.log\n"));
    for (const char *at = text; (at = strstr(at, "\n.It Cm rdma.")); at++)
        items++;
    assert_int_equal(items, known);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    if (argc != 6 || !realpath(argv[1], tool) || !realpath(argv[2], plugin) ||
        !realpath(argv[3], no_plugin) || !realpath(argv[4], crash))
        return 2;
    manual = argv[5];
    const struct CMUnitTest tests[] = {
        TEST(test_install_and_remove),
        TEST(test_generated_keys),
        TEST(test_keeps_what_was_there),
        TEST(test_uris),
        TEST(test_other_places),
        TEST(test_refusals),
        TEST(test_homes),
        TEST(test_permission),
        TEST(test_edited_since),
        TEST(test_edited_again),
        TEST(test_bad_state),
        TEST(test_failing_install),
        TEST(test_killed_install),
        TEST(test_killed_remove),
        TEST(test_without_hard_links),
        TEST(test_usage),
        TEST(test_manual),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
