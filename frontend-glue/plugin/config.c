/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/config.h"

#include "frontend-glue/tenants/tenants.h"
#include "frontend-glue/plugin/misspelt_keys.h"

#include "common/fork_lock.h"
#include "common/log.h"
#include "common/properties.h"
#include "gpudirect/gpudirect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PREFIX       IBX_GLUE_PREFIX "."
#define PREFIX_CHARS (sizeof(PREFIX) - 1)
#define SLOTS_MIN    4u
#define MESSAGE_MIN  1024u
#define TUNING       "ibx-tuning.properties"
#define NONE         "none" /* as a value of rdma.tuning */
#define SESSIONS_MAX 1000000u
#define RESUME_MAX   86400u /* seconds */
#define IDLE_MAX     86400u /* seconds */
#define SILENCE      60u    /* seconds */
#define SILENCE_MIN  5u
#define SILENCE_MAX  86400u
#define UNSENT_MAX   (1u << 20) /* with a quarter of it some copies are slower */
#define SPARES_MAX   64u
#define NOT_GIVEN    UINT64_MAX
#define HOLD_MIN     ((size_t)1 << 20)
#define HOLD_MAX     ((size_t)1 << 50)

/* rdma.memory depends on which other keys are given. */
struct memory_bound {
    const struct ibx_property *memory;
    bool slots_given, message_given;
};

/* ------------------------------------------------------------ finding the file */

/* Sets config->file to `dir` followed by `tail`, if there is such a file; 1: there is none. */
static int try_file(struct ibx_glue_config *config, const char *dir, size_t dir_length,
                    const char *tail, struct ibx_error *err)
{
    int n = snprintf(config->file, sizeof(config->file), "%.*s%s", (int)dir_length, dir, tail);
    if (n < 0 || (size_t)n >= sizeof(config->file))
        return ibx_error_set(err, -EINVAL, "the path %.64s... of gvirtus.properties is too long",
                             dir);
    if (!access(config->file, F_OK))
        return 0;
    if (errno != ENOENT && errno != ENOTDIR)
        return ibx_error_set(err, -EINVAL, "cannot look at %s: %s", config->file, strerror(errno));
    config->file[0] = '\0';
    return 1;
}

static const char *environment(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

/* `own_file`: what classic GVirtuS reads, or NULL; `beside`: properties.json, or NULL. No file at
 * all is fine. */
static int find_file(struct ibx_glue_config *config, const char *own_file, const char *beside,
                     struct ibx_error *err)
{
    const char *named = environment("GVIRTUS_RDMA_PROPERTIES");
    const char *home = environment("GVIRTUS_HOME");
    int rc = 1;
    if (named) {
        rc = try_file(config, named, strlen(named), "", err);
        return rc <= 0 ? rc
                       : ibx_error_set(err, -ENOENT,
                                       "GVIRTUS_RDMA_PROPERTIES names %s, and there is no such "
                                       "file: correct it or unset it",
                                       named);
    }
    if (own_file)
        rc = try_file(config, own_file, strlen(own_file), "", err);
    if (rc > 0 && beside) {
        const char *slash = strrchr(beside, '/');
        size_t dir_length = slash ? (size_t)(slash - beside) + 1 : 0;
        rc = try_file(config, beside, dir_length, "gvirtus.properties", err);
    }
    if (rc > 0 && home)
        rc = try_file(config, home, strlen(home), "/etc/gvirtus.properties", err);
    if (rc > 0)
        rc = try_file(config, "", 0, "/etc/gvirtus/gvirtus.properties", err);
    return rc > 0 ? 0 : rc;
}

/* -------------------------------------------------------------------- the keys */

/* The index of `value` among `names`. */
static int one_of(const char *const *names, unsigned count, const char *key, const char *value,
                  const char *accepted, struct ibx_error *err)
{
    for (unsigned i = 0; i < count; i++) {
        if (!strcmp(value, names[i]))
            return (int)i;
    }
    return ibx_error_set(err, -EINVAL, "%s: \"%.64s\" is not accepted: give %s", key, value,
                         accepted);
}

static int set_log(const char *value, struct ibx_error *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    int level = one_of(names, 4, "log", value, "error, warn, info or debug", err);
    if (level >= 0 && !environment("IBX_LOG"))
        ibx_log_set_level((enum ibx_log_level)level);
    return level < 0 ? level : 0;
}

static int set_gpu(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    static const char *const names[] = {
        [IBX_GPU_OFF] = "off", [IBX_GPU_AUTO] = "auto", [IBX_GPU_ON] = "on"};
    int mode = one_of(names, 3, "gpu", value, "auto, on or off", err);
    if (mode >= 0)
        config->gpu.mode = (enum ibx_gpu_mode)mode;
    return mode < 0 ? mode : 0;
}

static const char *const pipelines[] = {
    [IBX_PIPELINE_OFF] = "off", [IBX_PIPELINE_LAUNCHES] = "launches", [IBX_PIPELINE_ALL] = "all"};

const char *ibx_glue_pipeline_name(enum ibx_pipeline_mode mode)
{
    return pipelines[mode];
}

static int set_pipeline(enum ibx_pipeline_mode *pipeline, const char *value, struct ibx_error *err)
{
    int mode = one_of(pipelines, 3, "pipeline", value, "all, launches or off", err);
    if (mode >= 0)
        *pipeline = (enum ibx_pipeline_mode)mode;
    return mode < 0 ? mode : 0;
}

static int set_processes(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    static const char *const names[] = {[IBX_PROCESSES_ONE] = "one",
                                        [IBX_PROCESSES_TENANT] = "tenant",
                                        [IBX_PROCESSES_PROGRAM] = "program"};
    const int processes = one_of(names, 3, "processes", value, "tenant, program or one", err);
    if (processes >= 0)
        config->processes = (enum ibx_processes_for)processes;
    config->processes_given = true;
    return processes < 0 ? processes : 0;
}

static int set_gpu_memory(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(value, &bytes, err);
    if (rc)
        return rc;
    if (bytes < IBX_GLUE_GPU_MEMORY_MIN)
        return ibx_error_set(err, -EINVAL, "gpu_memory: \"%.64s\" is too small: give 1M or more",
                             value);
    config->gpu.memory = bytes;
    return 0;
}

static int set_gpu_threads(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    size_t threads;
    if (ibx_size_parse(value, &threads, NULL) || threads > IBX_COPY_THREADS_MAX)
        return ibx_error_set(err, -EINVAL, "gpu_threads: \"%.64s\" is not accepted: give 0 to %u",
                             value, IBX_COPY_THREADS_MAX);
    config->gpu.threads = (unsigned)threads;
    return 0;
}

static int set_tenants(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    static const char *const names[] = {"isolated", "shared"};
    int shared = one_of(names, 2, "tenants", value, "isolated or shared", err);
    if (shared >= 0)
        config->gpu.limits.shared = shared;
    return shared < 0 ? shared : 0;
}

static int set_nccl(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    return ibx_yes_no_parse(value, &config->gpu.nccl)
               ? ibx_error_set(err, -EINVAL, "nccl: \"%.64s\" is not accepted: give on or off",
                               value)
               : 0;
}

/* Sets *number to the value, which has to be from `least` to `most`. */
static int set_limit(const char *key, const char *value, size_t least, size_t most,
                     uint64_t *number, struct ibx_error *err)
{
    size_t found;
    if (ibx_size_parse(value, &found, NULL) || found < least || found > most)
        return ibx_error_set(err, -EINVAL, "%s: \"%.64s\" is not accepted: give %zu to %zu", key,
                             value, least, most);
    *number = found;
    return 0;
}

/* Signs of life come each second. */
static int set_silence(struct ibx_options *options, const char *value, struct ibx_error *err)
{
    size_t found;
    if (ibx_size_parse(value, &found, NULL) || found > SILENCE_MAX ||
        (found && found < SILENCE_MIN))
        return ibx_error_set(err, -EINVAL,
                             "silence_seconds: \"%.64s\" is not accepted: give 0, or %u to %u",
                             value, SILENCE_MIN, SILENCE_MAX);
    options->silence_ms = (unsigned)found * 1000;
    return 0;
}

static int set_spares(struct ibx_glue_config *config, const char *key, const char *value,
                      struct ibx_error *err)
{
    return set_limit(key, value, 0, SPARES_MAX, &config->spare_processes, err);
}

static int set_share(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    int rc = ibx_shares_check(value, err);
    if (!rc)
        snprintf(config->gpu.limits.weights, sizeof(config->gpu.limits.weights), "%s", value);
    return rc;
}

/* A relative path starts at the properties file, since applications run in any directory. */
static void resolve(const struct ibx_glue_config *config, const char *value,
                    char path[2 * PATH_MAX])
{
    const char *slash = strrchr(config->file, '/');
    if (!*value || *value == '/' || !slash)
        snprintf(path, 2 * PATH_MAX, "%s", value);
    else
        snprintf(path, 2 * PATH_MAX, "%.*s/%s", (int)(slash - config->file), config->file, value);
}

/* Whether the value of the option with this name of n characters is a path. */
static bool is_path(const char *name, size_t n)
{
    static const char *const paths[] = {"key_file", "shm_dir"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        if (strlen(paths[i]) == n && !memcmp(paths[i], name, n))
            return true;
    return false;
}

static int set_path(struct ibx_glue_config *config, const char *key, const char *value,
                    struct ibx_error *err)
{
    char path[2 * PATH_MAX];
    resolve(config, value, path);
    return ibx_options_set_given(&config->options, key, path, err);
}

/* The file is read after all keys. */
static int set_tuning(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    char path[2 * PATH_MAX];
    if (!*value)
        return ibx_error_set(err, -EINVAL, "tuning: \"\" is not accepted: give a file, or none");
    if (!strcmp(value, NONE))
        snprintf(path, sizeof(path), NONE);
    else
        resolve(config, value, path);
    if (strlen(path) >= sizeof(config->tuning))
        return ibx_error_set(err, -ENAMETOOLONG, "tuning: the path \"%.64s...\" is too long", path);
    snprintf(config->tuning, sizeof(config->tuning), "%s", path);
    return 0;
}

/* To our callers -ENOENT means a missing file; an unknown option is bad input. */
static int unknown_is_bad(int rc, struct ibx_error *err)
{
    if (rc != -ENOENT)
        return rc;
    if (err)
        err->code = -EINVAL;
    return -EINVAL;
}

/* One entry whose key is "rdma.KEY"; IBX_GLUE_KEYS lists those that are not the transport's. */
static int set_key(struct ibx_glue_config *config, const char *key, const char *value,
                   struct ibx_error *err)
{
    if (!strcmp(key, "log"))
        return set_log(value, err);
    if (!strcmp(key, "gpu"))
        return set_gpu(config, value, err);
    if (!strcmp(key, "pipeline"))
        return set_pipeline(&config->pipeline, value, err);
    if (!strcmp(key, "resume_seconds"))
        return set_limit(key, value, 0, RESUME_MAX, &config->resume_seconds, err);
    if (!strcmp(key, "silence_seconds"))
        return set_silence(&config->options, value, err);
    if (!strcmp(key, "processes"))
        return set_processes(config, value, err);
    if (!strcmp(key, "spare_processes"))
        return set_spares(config, key, value, err);
    if (!strcmp(key, "most_processes"))
        return set_limit(key, value, 1, IBX_PROCESSES_MOST, &config->most_processes, err);
    if (!strcmp(key, "idle_seconds"))
        return set_limit(key, value, 0, IDLE_MAX, &config->idle_seconds, err);
    if (!strcmp(key, "gpu_memory"))
        return set_gpu_memory(config, value, err);
    if (!strcmp(key, "gpu_threads"))
        return set_gpu_threads(config, value, err);
    if (!strcmp(key, "nccl"))
        return set_nccl(config, value, err);
    if (!strcmp(key, "tenants"))
        return set_tenants(config, value, err);
    if (!strcmp(key, "sessions"))
        return set_limit(key, value, 1, SESSIONS_MAX, &config->gpu.limits.sessions, err);
    if (!strcmp(key, "pins"))
        return set_limit(key, value, HOLD_MIN, HOLD_MAX, &config->gpu.limits.pins, err);
    if (!strcmp(key, "requests"))
        return set_limit(key, value, HOLD_MIN, HOLD_MAX, &config->gpu.limits.requests, err);
    if (!strcmp(key, "device_memory"))
        return set_limit(key, value, HOLD_MIN, HOLD_MAX, &config->gpu.limits.device, err);
    if (!strcmp(key, "tenant_share"))
        return set_limit(key, value, 1, 100, &config->gpu.limits.share, err);
    if (!strcmp(key, "share"))
        return set_share(config, value, err);
    if (!strcmp(key, "tuning"))
        return set_tuning(config, value, err);
    if (is_path(key, strlen(key)))
        return set_path(config, key, value, err);
    int rc = ibx_options_set_given(&config->options, key, value, err);
    char meant[32];
    if (rc == -ENOENT && ibx_glue_key_nearly(key, meant))
        ibx_error_set(err, rc, "there is no option \"%.64s\": write " PREFIX "%s", key, meant);
    else if (rc == -ENOENT && err) {
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof(err->message) - n, ", " IBX_GLUE_KEYS);
    }
    return unknown_is_bad(rc, err);
}

/* Lowers slots, then message, until no provider's message buffers exceed the limit. A number that
 * the user has given stays. */
static int bound_memory(struct ibx_glue_config *config, const struct memory_bound *bound,
                        struct ibx_error *err)
{
    struct ibx_options *options = &config->options;
    size_t limit;
    int rc = ibx_size_parse(bound->memory->value, &limit, err);
    if (rc)
        return rc;
    while (ibx_options_message_memory(options) > limit && !bound->slots_given &&
           options->slots > SLOTS_MIN)
        options->slots--;
    while (ibx_options_message_memory(options) > limit && !bound->message_given &&
           options->message > MESSAGE_MIN)
        options->message = (options->message - 1) & ~(size_t)63;
    size_t least = ibx_options_message_memory(options);
    config->memory = limit;
    if (least <= limit)
        return 0;
    return ibx_error_set(
        err, -EINVAL,
        "memory: \"%.64s\" is less than the buffers for %u messages (rdma.slots) of %zu bytes "
        "(rdma.message) each way: give %zu or more, or lower these two",
        bound->memory->value, options->slots, options->message, least);
}

static int apply_entries(struct ibx_glue_config *config, const struct ibx_properties *properties,
                         struct ibx_error *err)
{
    struct memory_bound bound = {0};
    for (size_t i = 0; i < properties->count; i++) {
        const struct ibx_property *entry = &properties->items[i];
        int rc = ibx_glue_key_check(entry->key, entry->value, err);
        if (rc)
            return ibx_properties_prefix(config->file, entry, rc, err);
        if (strncasecmp(entry->key, PREFIX, PREFIX_CHARS))
            continue;
        const char *key = entry->key + PREFIX_CHARS;
        if (strncmp(entry->key, PREFIX, PREFIX_CHARS))
            rc = ibx_error_set(err, -EINVAL, "keys are written in lower case: rdma.%.64s", key);
        else if (!strcmp(key, "memory"))
            bound.memory = entry;
        else
            rc = set_key(config, key, entry->value, err);
        if (rc)
            return ibx_properties_prefix(config->file, entry, rc, err);
        bound.slots_given |= !strcmp(key, "slots");
        bound.message_given |= !strcmp(key, "message");
    }
    int rc = bound.memory ? bound_memory(config, &bound, err) : 0;
    return rc ? ibx_properties_prefix(config->file, bound.memory, rc, err) : 0;
}

/* --------------------------------------------------------------------- the URI */

int ibx_glue_uri_pipeline(const char *text, char rest[IBX_GLUE_URI_MAX],
                          enum ibx_pipeline_mode *pipeline, struct ibx_error *err)
{
    static const char key[] = "pipeline=";
    size_t base = strcspn(text, "?"), length = base;
    int rc = 0;
    snprintf(rest, IBX_GLUE_URI_MAX, "%.*s", (int)base, text);
    for (const char *at = text + base; *at && !rc;) {
        size_t n = strcspn(++at, "&");
        if (!strncmp(at, key, sizeof(key) - 1)) {
            char value[65];
            snprintf(value, sizeof(value), "%.*s", (int)(n - (sizeof(key) - 1)),
                     at + sizeof(key) - 1);
            rc = set_pipeline(pipeline, value, err);
        } else if (length < IBX_GLUE_URI_MAX) {
            length += (size_t)snprintf(rest + length, IBX_GLUE_URI_MAX - length, "%c%.*s",
                                       length == base ? '?' : '&', (int)n, at);
        }
        at += n;
    }
    return rc;
}

int ibx_glue_uri_paths(const char *text, struct ibx_error *err)
{
    for (const char *at = text + strcspn(text, "?"); *at; at += strcspn(at, "&")) {
        const size_t key = strcspn(++at, "=&");
        if (is_path(at, key) && at[key] == '=' && !strchr("/&", at[key + 1]))
            return ibx_error_set(err, -EINVAL,
                                 "\"%.*s\" in the URI: give an absolute path, or the key " PREFIX
                                 "%.*s, whose path starts at the properties file",
                                 (int)strcspn(at, "&"), at, (int)key, at);
    }
    return 0;
}

/* Checks every part of the URI, its query too. */
static int set_uri(struct ibx_glue_config *config, const char *whole, struct ibx_error *err)
{
    char text[IBX_GLUE_URI_MAX];
    struct ibx_uri uri;
    int rc = ibx_glue_uri_pipeline(whole, text, &config->pipeline, err);
    if (!rc)
        rc = ibx_glue_uri_paths(text, err);
    if (!rc)
        rc = ibx_uri_parse(strlen(whole) < sizeof(text) ? text : whole, &uri, err);
    if (rc)
        return rc;
    if (!uri.path[0] && !uri.port)
        return ibx_error_set(err, -EINVAL,
                             "\"%.64s\" has port 0: give the port that the back end "
                             "listens on, such as 9999",
                             text);
    struct ibx_options scratch = config->options;
    rc = ibx_uri_options(&uri, &scratch, err);
    if (rc)
        return unknown_is_bad(rc, err);
    size_t bytes = ibx_options_message_memory(&scratch);
    if (config->memory && bytes > config->memory)
        return ibx_error_set(err, -EINVAL,
                             "\"%.300s\" makes %zu bytes of message buffers, rdma.memory allows "
                             "%zu: lower slots or message in the query, or raise rdma.memory",
                             text, bytes, config->memory);
    snprintf(config->uri, sizeof(config->uri), "%s", text);
    return 0;
}

static int set_endpoint(struct ibx_glue_config *config, const char *host, uint16_t port,
                        struct ibx_error *err)
{
    if (!host)
        return ibx_error_set(err, -EINVAL,
                             "%s does not name the back end: write \"communicator : "
                             "rdma://host:port\" into it",
                             config->file[0] ? config->file : "gvirtus.properties");
    if (!*host || !port)
        return ibx_error_set(
            err, -EINVAL,
            "the endpoint in properties.json has no usable %s (GVirtuS takes dotted "
            "IPv4 addresses and ports from 1): correct it, or write \"communicator : "
            "rdma://host:port\" into gvirtus.properties",
            *host ? "port" : "server_address");
    char text[IBX_GLUE_URI_MAX];
    snprintf(text, sizeof(text), strchr(host, ':') ? "rdma://[%.500s]:%u" : "rdma://%.500s:%u",
             host, port);
    return set_uri(config, text, err);
}

/* ------------------------------------------------------------------- rdma.tuning */

/* May be NONE. */
static void tuning_path(const struct ibx_glue_config *config, char file[2 * PATH_MAX])
{
    const char *home = environment("GVIRTUS_HOME");
    if (config->tuning[0])
        snprintf(file, 2 * PATH_MAX, "%s", config->tuning);
    else if (config->file[0])
        resolve(config, TUNING, file);
    else
        snprintf(file, 2 * PATH_MAX, "%s%s/" TUNING, home ? home : "",
                 home ? "/etc" : "/etc/gvirtus");
}

/* `entry` is that of rdma.tuning; NULL: there is none, and the file may be missing. */
static int take_tuning(struct ibx_glue_config *config, const struct ibx_property *entry,
                       struct ibx_error *err)
{
    char file[2 * PATH_MAX];
    struct ibx_error why = {0};
    tuning_path(config, file);
    int rc = strcmp(file, NONE) ? ibx_tuning_load(file, &config->gpu.tuning, &why) : 0;
    if (!rc)
        return 0;
    if (!entry) { /* it is not asked for, and front ends do not need it */
        if (rc != -ENOENT && rc != -ENOTDIR)
            ibx_log(IBX_LOG_WARN, "copies take the usual paths: %s", why.message);
        return 0;
    }
    ibx_error_set(err, rc, "%s", why.message);
    if (rc != -ENOENT)
        return rc;
    ibx_error_set(err, -EINVAL,
                  "tuning: there is no file %.256s: correct it, or measure by \"ib-bw tune\"",
                  file);
    return ibx_properties_prefix(config->file, entry, -EINVAL, err);
}

int ibx_glue_tuning_file(char out[PATH_MAX], struct ibx_error *err)
{
    struct ibx_glue_config config = {0};
    struct ibx_properties properties = {0};
    char file[2 * PATH_MAX];
    int rc = find_file(&config, NULL, environment("GVIRTUS_CONFIG"), err);
    if (!rc && config.file[0])
        rc = ibx_properties_load(config.file, &properties, err);
    const struct ibx_property *entry =
        rc ? NULL : ibx_properties_find(&properties, PREFIX "tuning");
    if (entry) {
        rc = set_tuning(&config, entry->value, err);
        if (rc)
            ibx_properties_prefix(config.file, entry, rc, err);
    }
    ibx_properties_fini(&properties);
    if (rc)
        return rc;
    tuning_path(&config, file);
    if (strlen(file) >= PATH_MAX)
        return ibx_error_set(err, -ENAMETOOLONG, "the path %.64s... of " TUNING " is too long",
                             file);
    snprintf(out, PATH_MAX, "%s", strcmp(file, NONE) ? file : "");
    return 0;
}

/* ------------------------------------------------------------------- the whole */

/* Fills options from the file; with `with_uri` the URI too, if the file has one. */
static int read_file(struct ibx_glue_config *config, bool with_uri, struct ibx_error *err)
{
    struct ibx_properties properties;
    int rc = ibx_properties_load(config->file, &properties, err);
    if (rc)
        return rc;
    rc = apply_entries(config, &properties, err);
    const struct ibx_property *entry = ibx_properties_find(&properties, "communicator");
    if (!rc && with_uri && entry && *entry->value) {
        rc = set_uri(config, entry->value, err);
        if (rc)
            ibx_properties_prefix(config->file, entry, rc, err);
        config->uri_line = entry->line;
    }
    if (!rc)
        rc = take_tuning(config, ibx_properties_find(&properties, PREFIX "tuning"), err);
    ibx_properties_fini(&properties);
    return rc;
}

static void set_defaults(struct ibx_glue_config *config)
{
    *config =
        (struct ibx_glue_config){.pipeline = IBX_PIPELINE_ALL,
                                 .resume_seconds = IBX_GLUE_RESUME_SECONDS,
                                 .processes = IBX_PROCESSES_PROGRAM,
                                 .most_processes = IBX_PROCESSES_MOST,
                                 .spare_processes = NOT_GIVEN,
                                 .idle_seconds = IBX_GLUE_IDLE_SECONDS,
                                 .gpu = {.mode = IBX_GPU_AUTO, .memory = IBX_GLUE_GPU_MEMORY}};
    ibx_options_init(&config->options);
    config->options.silence_ms = SILENCE * 1000;
    config->options.signs = true;
    config->options.unsent_max = UNSENT_MAX;
    snprintf(config->options.purpose, sizeof(config->options.purpose), "gvirtus");
}

int ibx_glue_config_check(const char *file, const struct ibx_properties *properties,
                          const char *uri, struct ibx_error *err)
{
    struct ibx_glue_config config;
    set_defaults(&config);
    snprintf(config.file, sizeof(config.file), "%s", file);
    int rc = apply_entries(&config, properties, err);
    if (!rc)
        rc = set_uri(&config, uri, err);
    return rc ? rc : take_tuning(&config, ibx_properties_find(properties, PREFIX "tuning"), err);
}

/* `communicator`: what classic GVirtuS has read, NULL: the file's or the endpoint's counts. */
static int load(struct ibx_glue_config *config, const char *own_file, const char *beside,
                const char *communicator, struct ibx_error *err)
{
    set_defaults(config);
    int rc = find_file(config, own_file, beside, err);
    if (rc)
        return rc;
    rc = config->file[0] ? read_file(config, !communicator, err) : take_tuning(config, NULL, err);
    if (config->spare_processes == NOT_GIVEN)
        config->spare_processes = config->processes == IBX_PROCESSES_PROGRAM;
    return rc || !communicator ? rc : set_uri(config, communicator, err);
}

/* The last one that was loaded in this process. */
static struct {
    struct ibx_fork_lock lock;
    bool any; /* false again while it changes */
    struct ibx_glue_config config;
} last = {.lock = IBX_FORK_LOCK};

int ibx_glue_config_load(const char *endpoint_host, uint16_t endpoint_port,
                         struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_glue_config found;
    int rc = load(&found, NULL, environment("GVIRTUS_CONFIG"), NULL, err);
    if (!rc && !found.uri[0])
        rc = set_endpoint(&found, endpoint_host, endpoint_port, err);
    if (rc)
        return rc;
    *config = found;
    ibx_fork_lock_take(&last.lock);
    last.any = false;
    last.config = found;
    last.any = true;
    ibx_fork_lock_release(&last.lock);
    return 0;
}

int ibx_glue_config_load_again(const char *endpoint_host, uint16_t endpoint_port,
                               struct ibx_glue_config *config, struct ibx_error *err)
{
    ibx_fork_lock_take(&last.lock);
    const bool any = last.any;
    if (any)
        *config = last.config;
    ibx_fork_lock_release(&last.lock);
    return any ? 0 : ibx_glue_config_load(endpoint_host, endpoint_port, config, err);
}

int ibx_glue_config_load_classic(const char *communicator, const char *own_file,
                                 struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_glue_config found;
    int rc = load(&found, own_file, NULL, communicator, err);
    if (!rc)
        *config = found;
    return rc;
}
