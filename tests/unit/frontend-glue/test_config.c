/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The keys of gvirtus.properties: which file is read, which values are accepted, and which
 * mistakes are reported. */
#include "frontend-glue/plugin/config.h"

#include "common/log.h"
#include "tests/fixtures/in_child.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory of one test:  DIR/named  DIR/conf/gvirtus.properties
 * DIR/home/etc/gvirtus.properties */
static char dir[64];
static struct ibx_glue_config config;
static struct ibx_error error;

static const char *in_dir(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *out = fopen(in_dir(name), "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ibx-config-XXXXXX");
    if (!mkdtemp(dir) || mkdir(in_dir("conf"), 0700) || mkdir(in_dir("home"), 0700) ||
        mkdir(in_dir("home/etc"), 0700))
        return -1;
    memset(&config, 0, sizeof(config));
    memset(&error, 0, sizeof(error));
    unsetenv("GVIRTUS_CONFIG");
    unsetenv("GVIRTUS_RDMA_PROPERTIES");
    unsetenv("IBX_LOG");
    return setenv("GVIRTUS_HOME", in_dir("home"), 1);
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {"named",
                                        "conf/gvirtus.properties",
                                        "conf",
                                        "home/etc/gvirtus.properties",
                                        "home/etc/ibx-tuning.properties",
                                        "home/etc/other",
                                        "home/etc",
                                        "home",
                                        "etc/gvirtus/gvirtus.properties",
                                        "etc/gvirtus",
                                        "etc"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        remove(in_dir(files[i]));
    return rmdir(dir);
}

static int load(void)
{
    return ibx_glue_config_load("10.0.0.7", 9999, &config, &error);
}

static void expect_message(const char *text)
{
    if (!strstr(error.message, text))
        fail_msg("\"%s\" does not contain \"%s\"", error.message, text);
}

static void load_text(const char *file)
{
    write_file("home/etc/gvirtus.properties", file);
    if (load())
        fail_msg("%s", error.message);
}

static void fail_text(const char *file, const char *message)
{
    write_file("home/etc/gvirtus.properties", file);
    assert_int_equal(load(), -EINVAL);
    expect_message(message);
}

/* Loads a file that must be refused; the message contains all of the texts. */
static void expect_refused(const char *file, const char *first, const char *second)
{
    write_file("home/etc/gvirtus.properties", file);
    memset(&config, 0, sizeof(config));
    memset(&error, 0, sizeof(error));
    assert_int_equal(load(), -EINVAL);
    assert_int_equal(error.code, -EINVAL);
    assert_int_equal(config.options.slots, 0); /* outputs are set only on success */
    expect_message(in_dir("home/etc/gvirtus.properties"));
    expect_message(first);
    expect_message(second);
}

static void test_defaults(void **state)
{
    (void)state;
    if (!access("/etc/gvirtus/gvirtus.properties", F_OK))
        skip();
    assert_int_equal(load(), 0);
    assert_string_equal(config.uri, "rdma://10.0.0.7:9999");
    assert_string_equal(config.file, "");
    assert_int_equal(config.uri_line, 0);
    struct ibx_options defaults;
    ibx_options_init(&defaults);
    strcpy(defaults.purpose, "gvirtus");
    defaults.silence_ms = 60000;
    defaults.signs = true;
    defaults.unsent_max = 1 << 20;
    assert_memory_equal(&config.options, &defaults, sizeof(defaults));

    assert_int_equal(ibx_glue_config_load("::1", 1, &config, &error), 0);
    assert_string_equal(config.uri, "rdma://[::1]:1");
}

static void test_search_order(void **state)
{
    (void)state;
    load_text("communicator : rdma://home:1\n");
    assert_string_equal(config.uri, "rdma://home:1");

    /* If there is no gvirtus.properties beside properties.json, the file in the home counts. */
    setenv("GVIRTUS_CONFIG", in_dir("conf/properties.json"), 1);
    assert_int_equal(load(), 0);
    assert_string_equal(config.uri, "rdma://home:1");

    write_file("conf/gvirtus.properties", "#\ncommunicator : rdma://beside:2\n");
    assert_int_equal(load(), 0);
    assert_string_equal(config.uri, "rdma://beside:2");
    assert_string_equal(config.file, in_dir("conf/gvirtus.properties"));
    assert_int_equal(config.uri_line, 2);

    setenv("GVIRTUS_RDMA_PROPERTIES", in_dir("named"), 1);
    assert_int_equal(load(), -ENOENT);
    expect_message("GVIRTUS_RDMA_PROPERTIES");
    expect_message(in_dir("named"));
    write_file("named", "communicator : rdma://named:3\n");
    assert_int_equal(load(), 0);
    assert_string_equal(config.uri, "rdma://named:3");
}

/* In namespaces of its own, where /etc is not this host's if that is permitted. */
static int look_into_etc(void)
{
    char map[32];
    snprintf(map, sizeof(map), "0 %u 1", (unsigned)geteuid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return CHILD_SKIPS;
    FILE *out = fopen("/proc/self/uid_map", "w");
    if (!out || fputs(map, out) < 0 || fclose(out) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount(in_dir("etc"), "/etc", NULL, MS_BIND, NULL))
        return CHILD_SKIPS;
    bool last = !load() && !strcmp(config.file, "/etc/gvirtus/gvirtus.properties") &&
                !strcmp(config.uri, "rdma://etc:4");
    setenv("GVIRTUS_CONFIG", in_dir("conf/properties.json"), 1);
    bool last_again = !load() && !strcmp(config.uri, "rdma://etc:4");
    write_file("home/etc/gvirtus.properties", "communicator : rdma://home:1\n");
    bool before = !load() && !strcmp(config.uri, "rdma://home:1");
    unsetenv("GVIRTUS_HOME");
    bool without_home = !load() && !strcmp(config.uri, "rdma://etc:4");
    return last && last_again && before && without_home ? 0 : 1;
}

static void test_file_in_etc_comes_last(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("etc"), 0700) | mkdir(in_dir("etc/gvirtus"), 0700), 0);
    write_file("etc/gvirtus/gvirtus.properties", "communicator : rdma://etc:4\n");
    passes_in_child(look_into_etc);
}

static void test_classic_order(void **state)
{
    (void)state;
    write_file("home/etc/gvirtus.properties", "rdma.slots : 5\n");
    assert_int_equal(ibx_glue_config_load_classic("rdma://a:1", NULL, &config, &error), 0);
    assert_int_equal(config.options.slots, 5);
    assert_string_equal(config.uri, "rdma://a:1");

    /* Classic GVirtuS has read its own communicator from the file, and COMMUNICATOR may override
     * it. */
    write_file("conf/gvirtus.properties", "communicator : afunix://x:1\nrdma.slots : 6\n");
    setenv("GVIRTUS_CONFIG", in_dir("conf/properties.json"), 1);
    assert_int_equal(ibx_glue_config_load_classic("rdma://a:1", in_dir("conf/gvirtus.properties"),
                                                  &config, &error),
                     0);
    assert_int_equal(config.options.slots, 6);
    assert_string_equal(config.uri, "rdma://a:1");
    assert_int_equal(config.uri_line, 0);
    assert_int_equal(ibx_glue_config_load_classic("rdma://a", NULL, &config, &error), -EINVAL);
    expect_message("has no port");
}

static void test_uris(void **state)
{
    (void)state;
    static const char *const good[] = {"rdma://gpu-1.cluster:9999", "verbs://[fe80::1%eth0]:1",
                                       "ofi://h:65535", "shm:///tmp/door",
                                       "tcp://1.2.3.4:5?lanes=2"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char text[128];
        snprintf(text, sizeof(text), "communicator: %s\n", good[i]);
        load_text(text);
        assert_string_equal(config.uri, good[i]);
    }
    /* The file's URI replaces an endpoint that GVirtuS did not understand. */
    assert_int_equal(ibx_glue_config_load("", 0, &config, &error), 0);
    load_text("communicator :\n");
    assert_string_equal(config.uri, "rdma://10.0.0.7:9999");
    assert_int_equal(ibx_glue_config_load("", 1, &config, &error), -EINVAL);
    expect_message("server_address");
    assert_int_equal(ibx_glue_config_load(NULL, 0, &config, &error), -EINVAL);
    expect_message("etc/gvirtus.properties does not name the back end");
    assert_int_equal(ibx_glue_config_load("1.2.3.4", 0, &config, &error), -EINVAL);
    expect_message("usable port");

    expect_refused("\ncommunicator : afunix:///tmp/x:0660\n", "line 2 (communicator)",
                   "use rdma, shm, verbs, ofi or tcp");
    expect_refused("communicator : rdma://host:0\n", "line 1", "port 0");
    expect_refused("communicator : rdma://host:1?chnk=1\n", "\"chnk\"", "there are provider");
    expect_refused("communicator : rdma://host:1?slots=one\n", "\"one\"", "4 to 1024");
    /* It would start where the application runs. */
    expect_refused("communicator : rdma://host:1?slots=8&key_file=k\n", "\"key_file=k\"",
                   "absolute path");
    expect_refused("communicator : rdma://host:1?shm_dir=../d&slots=8\n", "\"shm_dir=../d\"",
                   "rdma.shm_dir");
    load_text("communicator : rdma://host:1?key_file=/k&shm_dir=\n");
    assert_string_equal(config.uri, "rdma://host:1?key_file=/k&shm_dir=");
}

static void test_options(void **state)
{
    (void)state;
    load_text(
        "rdma.provider : shm,tcp\nrdma.chunk : 1M\nrdma.spin_us : 7\nrdma.insecure : yes\n"
        "rdma.key_file : /k\nrdma.gid_index : -1\nplugins : cudart\nrdmaish : 1\nfoo : bar\n");
    assert_string_equal(config.options.provider, "shm,tcp");
    assert_int_equal(config.options.chunk, 1 << 20);
    assert_int_equal(config.options.spin_us, 7);
    assert_true(config.options.insecure);
    assert_string_equal(config.options.key_file, "/k");

    load_text("rdma.key_file : ../k\nrdma.shm_dir : \n");
    char expected[128];
    snprintf(expected, sizeof(expected), "%s/home/etc/../k", dir);
    assert_string_equal(config.options.key_file, expected);
    assert_string_equal(config.options.shm_dir, "");
}

/* The value of a template whose variable is not set must not open a back end to others. */
static void test_empty_values_do_not_open_a_back_end(void **state)
{
    (void)state;
    expect_refused("rdma.key_file : /k\nrdma.allow :\n", "line 2 (rdma.allow)",
                   "allow: \"\" is empty: give a value, or leave it out");
    expect_refused("rdma.key_file : # ${KEY}\n", "line 1 (rdma.key_file)",
                   "key_file: \"\" is empty");
    expect_refused("rdma.name :\n", "line 1 (rdma.name)", "name: \"\" is empty");
    expect_refused("rdma.allow : alice\ncommunicator : rdma://host:1?allow=\n",
                   "line 2 (communicator)", "allow: \"\" is empty");
    expect_refused("communicator : rdma://host:1?key_file=&slots=8\n", "line 1",
                   "key_file: \"\" is empty");
}

static void test_bad_keys(void **state)
{
    (void)state;
    expect_refused(
        "a : b\nrdma.colour : 1M\n", "line 2 (rdma.colour)",
        "timeout_ms, memory, pipeline, resume_seconds, silence_seconds, processes, "
        "most_processes, spare_processes, idle_seconds, gpu, gpu_memory, gpu_threads, nccl, "
        "tenants, sessions, pins, requests, device_memory, tenant_share, share, tuning, log");
    expect_refused("rdma.resume_seconds : 86401\n", "\"86401\"", "0 to 86400");
    expect_refused("rdma.silence_seconds : 86401\n", "\"86401\"", "0, or 5 to 86400");
    expect_refused("rdma.silence_seconds : 4\n", "\"4\"", "0, or 5 to 86400");
    expect_refused("rdma.processes : two\n", "\"two\"", "tenant, program or one");
    expect_refused("rdma.resume_seconds : -1\n", "\"-1\"", "0 to 86400");
    expect_refused("rdma.chunk : 1T\n", "line 1 (rdma.chunk): chunk: \"1T\"", "4K to 64M");
    expect_refused("rdma.insecure : maybe\n", "\"maybe\"", "yes or no");
    expect_refused("rdma. : 1\n", "line 1 (rdma.)", "there are");
    expect_refused("RDMA.Chunk : 1M\n", "line 1 (RDMA.Chunk)", "lower case");
    expect_refused("plugins : cudart\ncommunicator = rdma://h:1\n", "line 2 (communicator = rdma)",
                   "with a colon");
    expect_refused("Communicator : rdma://h:1\n", "line 1 (Communicator)", "lower case");
    expect_refused("rdma.log : loud\n", "\"loud\"", "error, warn, info or debug");
    expect_refused("rdma.gpu : maybe\n", "line 1 (rdma.gpu): gpu: \"maybe\"", "auto, on or off");
    expect_refused("rdma.pipeline : on\n", "line 1 (rdma.pipeline): pipeline: \"on\"",
                   "all, launches or off");
    expect_refused("communicator : rdma://h:1?pipeline=some\n", "\"some\"", "launches or off");
    expect_refused("rdma.gpu_memory : 8K\n", "\"8K\"", "1M or more");
    expect_refused("rdma.gpu_threads : 17\n", "\"17\"", "0 to 16");
    expect_refused("rdma.gpu_threads : -1\n", "\"-1\"", "0 to 16");
    expect_refused("rdma.gpu_threads : 2x\n", "line 1 (rdma.gpu_threads)", "\"2x\"");
    expect_refused("rdma.gpu_memory : much\n", "line 1 (rdma.gpu_memory)", "\"much\"");
    expect_refused("rdma.spin_us\n", "line 1: \"rdma.spin_us\"", "key : value");
    char text[600];
    snprintf(text, sizeof(text), "rdma.key_file : %0500d\n", 0);
    expect_refused(text, "line 1 (rdma.key_file)", "longer than");
}

/* GVirtuS would silently ignore such keys. */
static void test_keys_that_are_almost_right(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "rmda.encryption", "rdma_encryption",  "RDMA-encryption",  "rdna.encryption",
        "rma.encryption",  "rddma.encryption", "rdmma.encryption", "drma.encryption",
        "rdam.encryption", "dma.encryption",   "rdmaa.encryption", "Rmda_encryption",
        "rdma encryption", "rdma..encryption", "rdmaencryption",   "rdmakey_file"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[96], line[96];
        snprintf(text, sizeof(text), "plugins : cudart\n\n%s : required\n", bad[i]);
        snprintf(line, sizeof(line), "line 3 (%s)", bad[i]);
        expect_refused(text, line,
                       strstr(bad[i], "key_file") ? "write rdma.key_file"
                                                  : "write rdma.encryption");
    }
    static const char *const entries[] = {
        "rdma\tencryption : required",    "rdma=encryption : required",
        "\"rdma.encryption\" : required", "\xef\xbb\xbfrdma.encryption : required",
        "RDMAEncryption : required",      "rmdaencryption : required",
        "rdmaencription : required",      "rdma:encryption : required",
        "rmda:encryption : required",     "Rdma : Encryption : required"};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++)
        expect_refused(entries[i], "line 1 (", "write rdma.encryption");
    expect_refused("rdma : 1\n", "line 1 (rdma)", "write rdma.encryption, for example");
    static const char *const ahead[] = {"\"communicator\"", "\302\240communicator",
                                        "\357\273\277communicator", "\357\273\277Comunicator"};
    for (size_t i = 0; i < sizeof(ahead) / sizeof(ahead[0]); i++) {
        char text[96];
        snprintf(text, sizeof(text), "%s : rdma://h:1?encryption=required\n", ahead[i]);
        expect_refused(text, "nothing before it", i < 2 ? "line 1 (" : "byte order mark");
    }
    expect_refused("comunicator : rdma://h:1?encryption=required\n", "line 1 (comunicator)",
                   "write communicator : ");
    load_text("communicator : rdma://h:1\nplugins : cudart\nport : 1\nserver_address : h\n"
              "ip_address : h\ndma : 1\nrmda : 1\nrdmaish : 1\nrd.a : 1\nrxya.gpu : 1\n"
              "mdra.a : 1\narmed.a : 1\nrandom.a : 1\n");
}

/* Without the prefix, GVirtuS would ignore the keys too, and everything would run unencrypted. */
static void test_keys_without_the_prefix(void **state)
{
    (void)state;
    expect_refused("plugins : cudart\nencryption : required\n", "line 2 (encryption)",
                   "write rdma.encryption");
    expect_refused("Key_File : /etc/ibx.key\n", "line 1 (Key_File)", "write rdma.key_file");
    expect_refused("\"device_memory\" : 1G\n", "line 1 (", "write rdma.device_memory");
    load_text("name : a\nlog : b\ndevice : c\nmemory : 1\nencrypted : 1\nkey_files : d\n");
}

/* For a misspelt key, the list of all keys would be too long. */
static void test_misspelt_keys_with_the_prefix(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"rdma.key_fil", "rdma.key_file"},
                                           {"rdma.encyrption", "rdma.encryption"},
                                           {"rdma.gpu_memmory", "rdma.gpu_memory"},
                                           {"rdma.device_memroy", "rdma.device_memory"},
                                           {"rdma.Encryption", "rdma.encryption"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[96], wanted[96];
        snprintf(text, sizeof(text), "%s : 1\n", cases[i][0]);
        snprintf(wanted, sizeof(wanted), "\": write %s", cases[i][1]);
        expect_refused(text, "line 1 (rdma.", wanted);
        assert_null(strstr(error.message, "there are"));
    }
    expect_refused("rdma.colour : 1\n", "line 1 (rdma.colour)", "there are");
}

/* Every key of gvirtus.properties(5), without the dot. */
static void test_keys_without_a_dot(void **state)
{
    (void)state;
    static const char *const ours[] = {
        "memory",        "processes",    "pipeline", "resume_seconds", "gpu",  "gpu_memory",
        "gpu_threads",   "nccl",         "tenants",  "sessions",       "pins", "requests",
        "device_memory", "tenant_share", "share",    "tuning",         "log",  "silence_seconds"};
    const unsigned count = sizeof(ours) / sizeof(ours[0]);
    unsigned options = 0;
    while (ibx_options_key(options))
        options++;
    for (unsigned i = 0; i < count + options; i++) {
        const char *key = i < count ? ours[i] : ibx_options_key(i - count);
        char text[96], wanted[96];
        snprintf(wanted, sizeof(wanted), "write rdma.%s", key);
        snprintf(text, sizeof(text), "rdma%s : 1\n", key);
        expect_refused(text, "line 1 (rdma", wanted);
        snprintf(text, sizeof(text), "rmda : %s : 1\n", key);
        expect_refused(text, "line 1 (rmda)", wanted);
    }
}

/* The key, and the URI's query, which overrides it and keeps its other options. */
static void test_pipeline(void **state)
{
    (void)state;
    load_text("rdma.slots : 8\n");
    assert_int_equal(config.pipeline, IBX_PIPELINE_ALL);
    assert_int_equal(config.resume_seconds, 30);
    assert_int_equal(config.options.silence_ms, 60000);
    assert_true(config.options.signs);
    assert_int_equal(config.processes, IBX_PROCESSES_PROGRAM);
    assert_false(config.processes_given);
    assert_int_equal(config.most_processes, 1024);
    assert_int_equal(config.spare_processes, 1);
    assert_int_equal(config.idle_seconds, 60);
    load_text("rdma.processes : program\nrdma.spare_processes : 0\n");
    assert_int_equal(config.processes, IBX_PROCESSES_PROGRAM);
    assert_true(config.processes_given);
    assert_int_equal(config.spare_processes, 0);
    load_text("rdma.processes : one\nrdma.idle_seconds : 0\n");
    assert_int_equal(config.processes, IBX_PROCESSES_ONE);
    assert_int_equal(config.spare_processes, 0);
    assert_int_equal(config.idle_seconds, 0);
    load_text("rdma.processes : tenant\n");
    assert_int_equal(config.processes, IBX_PROCESSES_TENANT);
    assert_int_equal(config.spare_processes, 0);
    load_text("rdma.spare_processes : 3\nrdma.processes : tenant\n");
    assert_int_equal(config.spare_processes, 3);
    expect_refused("a : b\nrdma.processes : two\n", "line 2 (rdma.processes)",
                   "tenant, program or one");
    expect_refused("a : b\nrdma.idle_seconds : 86401\n", "line 2 (rdma.idle_seconds)", "86400");
    load_text("rdma.most_processes : 20\n");
    assert_int_equal(config.most_processes, 20);
    expect_refused("a : b\nrdma.most_processes : 0\n", "line 2 (rdma.most_processes)", "1024");
    expect_refused("a : b\nrdma.most_processes : 1025\n", "line 2 (rdma.most_processes)", "1024");
    expect_refused("a : b\nrdma.spare_processes : 65\n", "line 2 (rdma.spare_processes)", "64");
    load_text("rdma.resume_seconds : 0\nrdma.silence_seconds : 0\n");
    assert_int_equal(config.resume_seconds, 0);
    assert_int_equal(config.options.silence_ms, 0);
    load_text("rdma.silence_seconds : 5\n");
    assert_int_equal(config.options.silence_ms, 5000);
    load_text("rdma.pipeline : launches\n");
    assert_int_equal(config.pipeline, IBX_PIPELINE_LAUNCHES);
    load_text("rdma.pipeline : all\ncommunicator : rdma://h:1?pipeline=off\n");
    assert_int_equal(config.pipeline, IBX_PIPELINE_OFF);
    assert_string_equal(config.uri, "rdma://h:1");
    load_text("communicator : rdma://h:1?slots=8&pipeline=launches&depth=2\n");
    assert_int_equal(config.pipeline, IBX_PIPELINE_LAUNCHES);
    assert_string_equal(config.uri, "rdma://h:1?slots=8&depth=2");
    load_text("communicator : rdma://h:1?pipeline=off&slots=8\n");
    assert_string_equal(config.uri, "rdma://h:1?slots=8");
}

static void expect_bound(const char *file, unsigned slots, size_t message)
{
    load_text(file);
    assert_int_equal(config.options.slots, slots);
    assert_int_equal(config.options.message, message);
}

static void test_memory(void **state)
{
    (void)state;
    /* tcp needs (2 x slots + 1) x message, plus room for a long message: 32 x message but at
     * most 512K, or else 8 x message; plus 4K. */
#define TCP "rdma.provider : tcp\n"
    expect_bound("rdma.memory : 2M\n" TCP, 16, 16384); /* large enough: nothing changes */
    expect_bound("rdma.memory : 1069056\n" TCP, 16, 16384);
    expect_bound("rdma.memory : 1069055\n" TCP, 15, 16384);
    expect_bound("rdma.memory : 256K\n" TCP, 4, 6272);
    expect_bound("rdma.memory : 100000\n" TCP, 4, 2304);
    expect_bound("rdma.memory : 256K\nrdma.slots : 16\n" TCP, 16, 3968);
    expect_bound("rdma.message : 32K\nrdma.memory : 1M\n" TCP, 7, 32768);
    expect_refused("rdma.memory : 8000\n" TCP, "line 1 (rdma.memory): memory: \"8000\"",
                   "46080 or more");
    expect_refused("rdma.memory : 8000\n" TCP, "4 messages (rdma.slots)",
                   "(rdma.message) each way");
    expect_refused("rdma.message : 64K\nrdma.memory : 256K\n" TCP, "line 2",
                   "give 1118208 or more");
    expect_refused("rdma.memory : lots\n", "\"lots\"", "64K, 1M");
    /* What the query asks for counts as the user's wish too. */
    expect_bound("rdma.memory : 2M\n" TCP "communicator : tcp://host:9999?slots=8\n", 16, 16384);
    expect_refused("rdma.memory : 1M\n" TCP "communicator : tcp://host:9999?slots=64\n",
                   "line 3 (communicator)", "rdma.memory");
}

/* Whichever fabric is chosen, and no less than that one needs. */
static void test_memory_on_every_fabric(void **state)
{
    (void)state;
    static const char *const fabrics[] = {"auto", "shm", "shm,tcp", "tcp"};
    for (size_t i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++) {
        for (size_t limit = 64 << 10; limit <= 2 << 20; limit += 64 << 10) {
            char file[128];
            snprintf(file, sizeof(file), "rdma.provider : %s\nrdma.memory : %zu\n", fabrics[i],
                     limit);
            load_text(file);
            assert_true(ibx_options_message_memory(&config.options) <= limit);
            struct ibx_options more = config.options;
            if (more.message < 16384)
                more.message += 64;
            else
                more.slots++;
            assert_true(more.slots > 16 || ibx_options_message_memory(&more) > limit);
        }
    }
}

static void test_log(void **state)
{
    (void)state;
    ibx_log_set_level(IBX_LOG_WARN);
    write_file("home/etc/gvirtus.properties", "rdma.log : info\n");
    setenv("IBX_LOG", "warn", 1);
    assert_int_equal(load(), 0);
    assert_false(ibx_log_enabled(IBX_LOG_INFO));
    unsetenv("IBX_LOG");
    assert_int_equal(load(), 0);
    assert_true(ibx_log_enabled(IBX_LOG_INFO));
    assert_false(ibx_log_enabled(IBX_LOG_DEBUG));
    ibx_log_set_level(IBX_LOG_WARN);
}

static void test_unreadable(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("home/etc/gvirtus.properties"), 0700), 0);
    assert_int_equal(load(), -EINVAL);
    expect_message("is not a regular file");
    char *deep = calloc(1, 2 * PATH_MAX);
    assert_non_null(deep);
    memset(deep, 'x', 2 * PATH_MAX - 1);
    setenv("GVIRTUS_RDMA_PROPERTIES", deep, 1);
    free(deep);
    assert_int_equal(load(), -EINVAL);
    expect_message("too long");
}

static void test_gpu(void **state)
{
    (void)state;
    load_text("# nothing\n");
    assert_int_equal(config.gpu.mode, IBX_GPU_AUTO);
    assert_int_equal(config.gpu.memory, 64 << 20);
    assert_int_equal(config.gpu.threads, 0);
    assert_false(config.gpu.nccl);
    expect_refused("rdma.nccl : maybe\n", "line 1 (rdma.nccl): nccl: \"maybe\"", "on or off");
    static const char *const words[] = {"off", "on", "no", "yes", "false", "true", "0", "1"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char line[32];
        snprintf(line, sizeof(line), "rdma.nccl : %s\n", words[i]);
        load_text(line);
        assert_int_equal(config.gpu.nccl, i % 2);
    }
    load_text("rdma.gpu : off\nrdma.gpu_memory : 8M\nrdma.gpu_threads : 16\nrdma.nccl : on\n");
    assert_true(config.gpu.nccl);
    assert_int_equal(config.gpu.mode, IBX_GPU_OFF);
    assert_int_equal(config.gpu.memory, 8 << 20);
    assert_int_equal(config.gpu.threads, 16);
    write_file("home/etc/gvirtus.properties", "rdma.gpu : on\n");
    assert_int_equal(ibx_glue_config_load_classic("rdma://a:1", NULL, &config, &error), 0);
    assert_int_equal(config.gpu.mode, IBX_GPU_ON);
}

static void test_share(void **state)
{
    (void)state;
    load_text("rdma.share : 50, alice=300 ,bob=7\n");
    assert_string_equal(config.gpu.limits.weights, "50, alice=300 ,bob=7");
    expect_refused("rdma.share : 0\n", "\"0\"", "1 to 10000");
    expect_refused("rdma.share : bob =5\n", "\"bob =5\"", "NAME=WEIGHT");
    expect_refused("rdma.share : 100, alice=\n", "\"alice=\"", "NAME=WEIGHT");
    expect_refused("rdma.share : =5\n", "\"=5\"", "NAME=WEIGHT");
    expect_refused("rdma.share : 5,bob=10001,carol=1\n", "\"bob=10001\"", "1 to 10000");
    expect_refused("rdma.share : much\n", "\"much\"", "1 to 10000");
}

/* The tuning file: beside the properties file, or where the key says. */
static void test_tuning(void **state)
{
    (void)state;
    char file[PATH_MAX];
    load_text("# nothing\n");
    assert_false(config.gpu.tuning.found);
    assert_int_equal(ibx_glue_tuning_file(file, &error), 0);
    assert_string_equal(file, in_dir("home/etc/ibx-tuning.properties"));
    write_file("home/etc/ibx-tuning.properties", "chunk : 128K\n");
    assert_int_equal(load(), 0);
    assert_true(config.gpu.tuning.found && config.gpu.tuning.choice.chunk == 128 << 10);
    assert_string_equal(config.gpu.tuning.file, file);
    /* Also without a properties file. */
    assert_int_equal(unlink(in_dir("home/etc/gvirtus.properties")), 0);
    assert_int_equal(load(), 0);
    assert_true(config.gpu.tuning.found);
    write_file("home/etc/ibx-tuning.properties", "\nchunk : 100K\n");
    assert_int_equal(load(), 0); /* nobody named the file, so there is only a line in the log */
    assert_false(config.gpu.tuning.found);
    fail_text("rdma.tuning : ibx-tuning.properties\n",
              "ibx-tuning.properties line 2 (chunk): \"100K\" is not accepted");
    /* Another file, relative to the properties file; and no file. */
    fail_text("\nrdma.tuning : other\n",
              "gvirtus.properties line 2 (rdma.tuning): tuning: there is no file");
    expect_message("home/etc/other: ");
    assert_int_equal(ibx_glue_tuning_file(file, &error), 0);
    assert_string_equal(file, in_dir("home/etc/other"));
    write_file("home/etc/other", "threads : 5\n");
    assert_int_equal(load(), 0);
    assert_int_equal(config.gpu.tuning.choice.threads, 5);
    load_text("rdma.tuning : none\n");
    assert_false(config.gpu.tuning.found);
    assert_int_equal(ibx_glue_tuning_file(file, &error), 0);
    assert_string_equal(file, "");
    fail_text("rdma.tuning :\n", "give a file, or none");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* The file, and files that it names, are refused under the same conditions as key files. */
static void test_files_of_others(void **state)
{
    (void)state;
    write_file("home/etc/gvirtus.properties", "rdma.tuning : ibx-tuning.properties\n");
    write_file("home/etc/ibx-tuning.properties", "chunk : 128K\n");
    assert_int_equal(load(), 0);
    assert_int_equal(chmod(in_dir("home/etc/ibx-tuning.properties"), 0664), 0);
    assert_int_equal(load(), -EPERM);
    expect_message("home/etc/ibx-tuning.properties has mode 0664, so others can change it: chmod");
    write_file("home/etc/gvirtus.properties", "");
    assert_int_equal(load(), 0); /* a file that nobody named is ignored */
    assert_false(config.gpu.tuning.found);
    assert_int_equal(chmod(in_dir("home/etc/gvirtus.properties"), 0646), 0);
    assert_int_equal(load(), -EPERM);
    expect_message("home/etc/gvirtus.properties has mode 0646, so others can change it: chmod");
    char file[PATH_MAX];
    assert_int_equal(ibx_glue_tuning_file(file, &error), -EPERM);
    if (!geteuid()) {
        assert_int_equal(chmod(in_dir("home/etc/gvirtus.properties"), 0644), 0);
        assert_int_equal(chown(in_dir("home/etc/gvirtus.properties"), 12345, 0), 0);
        assert_int_equal(load(), -EPERM);
        expect_message("belongs to user 12345, not to user 0 or root: chown it");
    }
}

int main(void)
{
    umask(022);
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_search_order),
        TEST(test_file_in_etc_comes_last),
        TEST(test_classic_order),
        TEST(test_uris),
        TEST(test_options),
        TEST(test_empty_values_do_not_open_a_back_end),
        TEST(test_bad_keys),
        TEST(test_keys_that_are_almost_right),
        TEST(test_keys_without_the_prefix),
        TEST(test_misspelt_keys_with_the_prefix),
        TEST(test_keys_without_a_dot),
        TEST(test_pipeline),
        TEST(test_memory),
        TEST(test_memory_on_every_fabric),
        TEST(test_log),
        TEST(test_unreadable),
        TEST(test_gpu),
        TEST(test_share),
        TEST(test_tuning),
        TEST(test_files_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
