/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ibx-gvirtus show: what is selected, as a GVirtuS process would find it, and whether it works. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include "common/log.h"
#include "common/properties.h"
#include "frontend-glue/plugin/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%-13s ", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

/* Puts this process where a GVirtuS process with these arguments would be. */
static int imitate(const struct gvirtus_args *args, struct ibx_error *err)
{
    int bad = 0;
    if (args->properties && access(args->properties, F_OK))
        return ibx_error_set(err, -errno, "--properties: %s cannot be found: %s", args->properties,
                             strerror(errno));
    if (args->home)
        bad |= setenv("GVIRTUS_HOME", args->home, 1);
    if (args->config)
        bad |= setenv("GVIRTUS_CONFIG", args->config, 1);
    else if (args->home_given)
        bad |= unsetenv("GVIRTUS_CONFIG");
    if (args->properties)
        bad |= setenv("GVIRTUS_RDMA_PROPERTIES", args->properties, 1);
    return bad ? ibx_error_set(err, -ENOMEM, "no memory for the environment") : 0;
}

/* What GVirtuS will load. -ENODEV when it is not us. */
static int show_selected(const struct gvirtus_paths *paths, struct gvirtus_endpoint *endpoint,
                         struct ibx_error *err)
{
    char library[PATH_MAX];
    int rc = ibx_gvirtus_endpoint_read(paths->files[GVIRTUS_CONFIG], endpoint, err);
    if (!rc)
        rc = ibx_gvirtus_library_path(paths->home, endpoint->protocol, library, err);
    if (rc)
        return rc;
    bool slot_of_ours = !strcmp(endpoint->protocol, "oldtcp") || !strcmp(endpoint->protocol, "ib");
    bool ours = ibx_gvirtus_installed(paths, library);
    row("home", "%s", paths->home);
    row("selected", "protocol %s of suite %s in %s", endpoint->protocol, endpoint->suite,
        paths->files[GVIRTUS_CONFIG]);
    row("library", "%s (%s)", library,
        ours                    ? "as installed by ibx-gvirtus"
        : access(library, F_OK) ? "missing"
                                : "not installed by ibx-gvirtus");
    if (!slot_of_ours)
        return ibx_error_set(err, -ENODEV,
                             "GVirtuS's own communicator \"%s\" is selected in %s: "
                             "run ibx-gvirtus install",
                             endpoint->protocol, paths->files[GVIRTUS_CONFIG]);
    if (access(library, F_OK))
        return ibx_error_set(err, -ENOENT,
                             "%s is selected, but there is no %s: run ibx-gvirtus "
                             "install",
                             endpoint->protocol, library);
    return 0;
}

/* The communicator of gvirtus.properties wins over it, and may say another place. */
static void show_endpoint(const struct gvirtus_endpoint *endpoint,
                          const struct ibx_glue_config *config)
{
    row("endpoint", "%s port %u%s", endpoint->address[0] ? endpoint->address : "without an address",
        endpoint->port, config->uri_line ? ", not used: the communicator below wins over it" : "");
}

static void show_key(const char *name, const char *key, const char *value, const char *usual)
{
    row(name, "rdma.%s : %s%s", key, value,
        strcmp(value, usual) ? ""
        : *value             ? " (default)"
                             : "(default)");
}

/* A line that was appended, say, below one that has its key already. */
static void show_ignored(const struct ibx_properties *properties)
{
    char key[64];
    const struct ibx_property *ignored = &properties->ignored;
    if (!ignored->key)
        return;
    snprintf(key, sizeof(key), "%.63s", ignored->key);
    ibx_text_sanitize(key);
    row("ignored", "line %u: %s is in line %u already, which counts", ignored->line, key,
        ibx_properties_find(properties, ignored->key)->line);
}

/* The keys that are no options of the transport, as the file has them. */
static int show_own_keys(const struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_properties properties = {.text = NULL};
    int rc = config->file[0] ? ibx_properties_load(config->file, &properties, err) : 0;
    if (rc)
        return rc;
    for (const struct gvirtus_key *key = ibx_gvirtus_own_keys; key->name; key++) {
        char whole[32];
        snprintf(whole, sizeof(whole), "rdma.%s", key->name);
        const struct ibx_property *entry = ibx_properties_find(&properties, whole);
        show_key("", key->name, entry ? entry->value : key->usual, key->usual);
    }
    const char *level = getenv("IBX_LOG");
    if (level && *level)
        row("", "IBX_LOG=%s in the environment wins over rdma.log", level);
    show_ignored(&properties);
    ibx_properties_fini(&properties);
    return 0;
}

static int show_config(const struct ibx_glue_config *config, struct ibx_error *err)
{
    row("properties", "%s", config->file[0] ? config->file : "none found, defaults apply");
    if (config->uri_line)
        row("communicator", "%s (line %u of it)", config->uri, config->uri_line);
    else
        row("communicator", "%s (from the endpoint)", config->uri);
    struct ibx_options defaults, asked = config->options;
    struct ibx_uri uri;
    ibx_options_init(&defaults);
    if (!ibx_uri_parse(config->uri, &uri, NULL))
        ibx_uri_options(&uri, &asked, NULL);
    const char *key;
    for (unsigned i = 0; (key = ibx_options_key(i)); i++) {
        char value[256], usual[256], counts[256];
        ibx_options_get(&config->options, key, value, sizeof(value));
        ibx_options_get(&defaults, key, usual, sizeof(usual));
        ibx_options_get(&asked, key, counts, sizeof(counts));
        if (strcmp(counts, value) != 0)
            row(i ? "" : "options", "rdma.%s : %s (by the communicator, which wins)", key, counts);
        else
            show_key(i ? "" : "options", key, value, usual);
    }
    return show_own_keys(config, err);
}

/* Knocks at the back end as a front end would. */
static int show_connection(const struct ibx_glue_config *config, struct ibx_error *err)
{
    struct ibx_conn *conn;
    int rc = ibx_connect(config->uri, &config->options, &conn, err);
    if (rc)
        return ibx_error_prefix(err, rc, "the back end at %s is not reachable", config->uri);
    const struct ibx_path *path = ibx_conn_path(conn);
    row("connection", "%s, to %s", path->description, path->peer);
    for (unsigned i = 0; i < path->refused_count; i++)
        row(i ? "" : "refused", "%s: %s", path->refused[i].provider, path->refused[i].reason);
    ibx_close(conn);
    return 0;
}

/* The library that is preloaded lies beside the plugin in a build tree, one folder up where both
 * are installed. */
static bool find_preload(const char *plugin, char path[PATH_MAX])
{
    static const char *const places[] = {"", "../"};
    const char *slash = strrchr(plugin, '/');
    char place[PATH_MAX];
    for (size_t i = 0; i < 2; i++) {
        int folder = slash ? (int)(slash + 1 - plugin) : 0;
        if (!ibx_gvirtus_path(place, NULL, "%.*s%slibibx-frontend.so", folder, plugin, places[i]) &&
            realpath(place, path))
            return true;
    }
    return false;
}

static bool same_files(const char *one, const char *other)
{
    char *texts[2] = {NULL, NULL};
    size_t lengths[2];
    bool same = !ibx_gvirtus_file_read(one, &texts[0], &lengths[0], NULL) &&
                !ibx_gvirtus_file_read(other, &texts[1], &lengths[1], NULL) &&
                lengths[0] == lengths[1] && !memcmp(texts[0], texts[1], lengths[0]);
    free(texts[0]);
    free(texts[1]);
    return same;
}

/* Copies from the application's own memory: they need nothing but the plugin on both sides, which
 * is what has answered. */
static void show_preload(const struct gvirtus_args *args, const char *home, const char *slot,
                         bool answered)
{
    char plugin[PATH_MAX], preload[PATH_MAX], installed[PATH_MAX];
    if (ibx_gvirtus_plugin_find(args, plugin, NULL) ||
        ibx_gvirtus_library_path(home, slot, installed, NULL))
        return;
    if (!find_preload(plugin, preload)) {
        row("preload",
            "there is no libibx-frontend.so with %s: copies pass through GVirtuS's "
            "buffers; install ibx, or name the plugin that it came with by --library",
            plugin);
        return;
    }
    row("preload", "LD_PRELOAD=%s program", preload);
    if (!same_files(plugin, installed))
        row("",
            "it may not fit the plugin in the home, which is of another build than %s: "
            "ibx-gvirtus remove, then install",
            plugin);
    else
        row("", answered ? "the back end takes its copies"
                         : "whether the back end takes its copies shows when it answers");
}

int ibx_gvirtus_show(const struct gvirtus_args *args, struct ibx_error *err)
{
    struct gvirtus_endpoint endpoint = {.port = 0};
    struct gvirtus_paths *paths = calloc(1, sizeof(*paths));
    struct ibx_glue_config *config = calloc(1, sizeof(*config));
    int rc = paths && config ? imitate(args, err) : ibx_error_set(err, -ENOMEM, "no memory");
    /* A classic GVirtuS has no home: its gvirtus.properties alone says all. */
    if (!rc && (args->home || !args->properties)) {
        rc = ibx_gvirtus_paths_find(args, paths, err);
        if (!rc)
            rc = show_selected(paths, &endpoint, err);
    }
    if (!rc)
        rc = ibx_glue_config_load(endpoint.protocol[0] ? endpoint.address : NULL, endpoint.port,
                                  config, err);
    if (endpoint.protocol[0])
        show_endpoint(&endpoint, config);
    if (!rc)
        rc = show_config(config, err);
    if (!rc) {
        rc = show_connection(config, err);
        if (endpoint.protocol[0])
            show_preload(args, paths->home, endpoint.protocol, !rc);
    }
    free(paths);
    free(config);
    return rc;
}
