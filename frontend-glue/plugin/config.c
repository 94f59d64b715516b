/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/config.h"

#include "common/log.h"
#include "common/properties.h"
#include "gpudirect/gpudirect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define PREFIX       "rdma."
#define PREFIX_CHARS (sizeof(PREFIX) - 1)
#define SLOTS_MIN    4u
#define MESSAGE_MIN  1024u
#define TUNING       "ibx-tuning.properties"
#define NONE         "none" /* as a value of rdma.tuning */

/* What rdma.memory has to know of the other keys. */
struct memory_bound {
    const struct ibx_property *memory;
    bool slots_given, message_given;
};

/* ------------------------------------------------------------ finding the file */

enum place { PLACE_TAKEN, PLACE_EMPTY, PLACE_BAD };

/* Puts "DIR/TAIL" into config->file if there is such a file. */
static enum place try_file(struct ibx_glue_config *config, const char *dir, size_t dir_length,
                           const char *tail, struct ibx_error *err)
{
    int n = snprintf(config->file, sizeof(config->file), "%.*s%s", (int)dir_length, dir, tail);
    if (n < 0 || (size_t)n >= sizeof(config->file)) {
        ibx_error_set(err, -ENAMETOOLONG, "the path %.64s... of gvirtus.properties is too long",
                      dir);
        return PLACE_BAD;
    }
    if (!access(config->file, F_OK))
        return PLACE_TAKEN;
    if (errno == ENOENT || errno == ENOTDIR) {
        config->file[0] = '\0';
        return PLACE_EMPTY;
    }
    ibx_error_set(err, -errno, "cannot look at %s: %s", config->file, strerror(errno));
    return PLACE_BAD;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The named file, which has to exist. */
static int take_named(struct ibx_glue_config *config, const char *variable, const char *file,
                      struct ibx_error *err)
{
    enum place place = try_file(config, file, strlen(file), "", err);
    if (place == PLACE_EMPTY)
        return ibx_error_set(err, -ENOENT,
                             "%s names %s, and there is no such file: correct it or "
                             "unset it",
                             variable, file);
    return place == PLACE_TAKEN ? 0 : -EINVAL;
}

/* `own_file`: what classic GVirtuS reads, or NULL; `beside`: properties.json, or NULL. */
static int find_file(struct ibx_glue_config *config, const char *own_file, const char *beside,
                     struct ibx_error *err)
{
    const char *named = environment("GVIRTUS_RDMA_PROPERTIES");
    if (named)
        return take_named(config, "GVIRTUS_RDMA_PROPERTIES", named, err);
    enum place place = PLACE_EMPTY;
    if (own_file)
        place = try_file(config, own_file, strlen(own_file), "", err);
    if (place == PLACE_EMPTY && beside) {
        const char *slash = strrchr(beside, '/');
        size_t dir_length = slash ? (size_t)(slash - beside) + 1 : 0;
        place = try_file(config, beside, dir_length, "gvirtus.properties", err);
    }
    const char *home = environment("GVIRTUS_HOME");
    if (place == PLACE_EMPTY && home)
        place = try_file(config, home, strlen(home), "/etc/gvirtus.properties", err);
    if (place == PLACE_EMPTY)
        place = try_file(config, "", 0, "/etc/gvirtus/gvirtus.properties", err);
    return place == PLACE_BAD ? -EINVAL : 0;
}

/* -------------------------------------------------------------------- the keys */

static int set_log(const char *value, struct ibx_error *err)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i <= IBX_LOG_DEBUG; i++) {
        if (strcmp(value, names[i]))
            continue;
        if (!environment("IBX_LOG"))
            ibx_log_set_level((enum ibx_log_level)i);
        return 0;
    }
    return ibx_error_set(err, -EINVAL,
                         "log: \"%.64s\" is not accepted: give error, warn, info or debug", value);
}

static int set_gpu(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    static const char *const names[] = {
        [IBX_GPU_OFF] = "off", [IBX_GPU_AUTO] = "auto", [IBX_GPU_ON] = "on"};
    for (int i = IBX_GPU_OFF; i <= IBX_GPU_ON; i++) {
        if (strcmp(value, names[i]))
            continue;
        config->gpu.mode = (enum ibx_gpu_mode)i;
        return 0;
    }
    return ibx_error_set(err, -EINVAL, "gpu: \"%.64s\" is not accepted: give auto, on or off",
                         value);
}

static int set_gpu_memory(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(value, &bytes, err);
    if (rc)
        return rc;
    if (bytes < IBX_GLUE_GPU_MEMORY_MIN)
        return ibx_error_set(err, -EINVAL, "gpu_memory: \"%.64s\" is too little: give 1M or more",
                             value);
    config->gpu.memory = bytes;
    return 0;
}

static int set_gpu_threads(struct ibx_glue_config *config, const char *value, struct ibx_error *err)
{
    char *end;
    errno = 0;
    unsigned long threads = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || threads > IBX_COPY_THREADS_MAX)
        return ibx_error_set(err, -EINVAL, "gpu_threads: \"%.64s\" is not accepted: give 0 to %u",
                             value, IBX_COPY_THREADS_MAX);
    config->gpu.threads = (unsigned)threads;
    return 0;
}

/* A relative path counts from the properties file, since applications run anywhere. */
static void resolve(const struct ibx_glue_config *config, const char *value,
                    char path[2 * PATH_MAX])
{
    const char *slash = strrchr(config->file, '/');
    if (!*value || *value == '/' || !slash)
        snprintf(path, 2 * PATH_MAX, "%s", value);
    else
        snprintf(path, 2 * PATH_MAX, "%.*s/%s", (int)(slash - config->file), config->file, value);
}

static int set_path(struct ibx_glue_config *config, const char *key, const char *value,
                    struct ibx_error *err)
{
    char path[2 * PATH_MAX];
    resolve(config, value, path);
    return ibx_options_set(&config->options, key, path, err);
}

/* What it says is read when all keys have been. */
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

/* To our callers -ENOENT means a missing file; an option that does not exist is bad input. */
static int unknown_is_bad(int rc, struct ibx_error *err)
{
    if (rc != -ENOENT)
        return rc;
    if (err)
        err->code = -EINVAL;
    return -EINVAL;
}

/* One entry whose key is "rdma.KEY". */
static int apply_key(struct ibx_glue_config *config, const char *key, const char *value,
                     struct ibx_error *err)
{
    if (!strcmp(key, "log"))
        return set_log(value, err);
    if (!strcmp(key, "gpu"))
        return set_gpu(config, value, err);
    if (!strcmp(key, "gpu_memory"))
        return set_gpu_memory(config, value, err);
    if (!strcmp(key, "gpu_threads"))
        return set_gpu_threads(config, value, err);
    if (!strcmp(key, "tuning"))
        return set_tuning(config, value, err);
    if (!strcmp(key, "key_file") || !strcmp(key, "shm_dir"))
        return set_path(config, key, value, err);
    int rc = ibx_options_set(&config->options, key, value, err);
    if (rc == -ENOENT && err) {
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof(err->message) - n,
                 ", memory, gpu, gpu_memory, gpu_threads, tuning, log");
    }
    return unknown_is_bad(rc, err);
}

/* Lowers slots, then message, until no provider's message buffers take more than the limit; not
 * those given by the user. */
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
        "memory: \"%.64s\" is less than the buffers for %u slots of messages of "
        "%zu bytes each way: give %zu or more, or lower rdma.slots and rdma.message",
        bound->memory->value, options->slots, options->message, least);
}

static int blame(const struct ibx_glue_config *config, const struct ibx_property *entry, int rc,
                 struct ibx_error *err)
{
    return ibx_properties_prefix(config->file, entry, rc, err);
}

static int apply_entries(struct ibx_glue_config *config, const struct ibx_properties *properties,
                         struct ibx_error *err)
{
    struct memory_bound bound = {0};
    for (size_t i = 0; i < properties->count; i++) {
        const struct ibx_property *entry = &properties->items[i];
        if (strncasecmp(entry->key, PREFIX, PREFIX_CHARS))
            continue;
        const char *key = entry->key + PREFIX_CHARS;
        int rc = 0;
        if (strncmp(entry->key, PREFIX, PREFIX_CHARS))
            rc = ibx_error_set(err, -EINVAL, "keys are written in lower case: rdma.%.64s", key);
        else if (!strcmp(key, "memory"))
            bound.memory = entry;
        else
            rc = apply_key(config, key, entry->value, err);
        if (rc)
            return blame(config, entry, rc, err);
        bound.slots_given |= !strcmp(key, "slots");
        bound.message_given |= !strcmp(key, "message");
    }
    int rc = bound.memory ? bound_memory(config, &bound, err) : 0;
    return rc ? blame(config, bound.memory, rc, err) : 0;
}

/* --------------------------------------------------------------------- the URI */

/* Takes a URI that has been checked in every part, its query too. */
static int set_uri(struct ibx_glue_config *config, const char *text, struct ibx_error *err)
{
    struct ibx_uri uri;
    int rc = ibx_uri_parse(text, &uri, err);
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
                             "%s does not say where the back end is: write \"communicator : "
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

/* ------------------------------------------------------------------- the choices */

/* NONE too. */
static void tuning_place(const struct ibx_glue_config *config, char file[2 * PATH_MAX])
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

/* `entry` is the key's, or NULL: then there need be no file. */
static int take_tuning(struct ibx_glue_config *config, const struct ibx_property *entry,
                       struct ibx_error *err)
{
    char file[2 * PATH_MAX];
    struct ibx_error why = {0};
    tuning_place(config, file);
    int rc = strcmp(file, NONE) ? ibx_tuning_load(file, &config->gpu.tuning, &why) : 0;
    if (!rc)
        return 0;
    if (!entry) { /* nobody asked for it here, and front ends do without */
        if (rc != -ENOENT && rc != -ENOTDIR)
            ibx_log(IBX_LOG_WARN, "copies take the usual ways: %s", why.message);
        return 0;
    }
    ibx_error_set(err, rc, "%s", why.message);
    if (rc != -ENOENT)
        return rc;
    ibx_error_set(err, -EINVAL,
                  "tuning: there is no file %.256s: correct it, or measure by \"ib-bw tune\"",
                  file);
    return blame(config, entry, -EINVAL, err);
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
            blame(&config, entry, rc, err);
    }
    ibx_properties_fini(&properties);
    if (rc)
        return rc;
    tuning_place(&config, file);
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
            blame(config, entry, rc, err);
        config->uri_line = entry->line;
    }
    if (!rc)
        rc = take_tuning(config, ibx_properties_find(&properties, PREFIX "tuning"), err);
    ibx_properties_fini(&properties);
    return rc;
}

int ibx_glue_config_load(const char *endpoint_host, uint16_t endpoint_port,
                         struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_glue_config found = {.gpu = {.mode = IBX_GPU_AUTO, .memory = IBX_GLUE_GPU_MEMORY}};
    ibx_options_init(&found.options);
    int rc = find_file(&found, NULL, environment("GVIRTUS_CONFIG"), err);
    if (!rc)
        rc = found.file[0] ? read_file(&found, true, err) : take_tuning(&found, NULL, err);
    if (!rc && !found.uri[0])
        rc = set_endpoint(&found, endpoint_host, endpoint_port, err);
    if (!rc)
        *config = found;
    return rc;
}

int ibx_glue_config_load_classic(const char *communicator, const char *own_file,
                                 struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_glue_config found = {.gpu = {.mode = IBX_GPU_AUTO, .memory = IBX_GLUE_GPU_MEMORY}};
    ibx_options_init(&found.options);
    int rc = find_file(&found, own_file, NULL, err);
    if (!rc)
        rc = found.file[0] ? read_file(&found, false, err) : take_tuning(&found, NULL, err);
    if (!rc)
        rc = set_uri(&found, communicator, err);
    if (!rc)
        *config = found;
    return rc;
}
