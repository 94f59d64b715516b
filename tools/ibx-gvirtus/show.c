/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ibx-gvirtus show: what is selected, as a GVirtuS process would find it, and whether it works. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include "common/properties.h"
#include "frontend-glue/plugin/config.h"
#include "frontend-glue/session/report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 2000u /* in which a back end has to report its sessions */

static void row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(const char *name, const char *format, ...)
{
    char text[2 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ibx_gvirtus_say("%-13s %s", name, text);
}

/* Gives this process the environment of a GVirtuS process with these arguments. */
static void imitate(const struct gvirtus_args *args)
{
    int bad = 0;
    if (args->properties && access(args->properties, F_OK))
        ibx_tool_end("--properties: %s cannot be found: %s; correct the path, or give --home "
                     "alone, whose gvirtus.properties is read then",
                     args->properties, strerror(errno));
    if (args->home)
        bad |= setenv("GVIRTUS_HOME", args->home, 1);
    if (args->config)
        bad |= setenv("GVIRTUS_CONFIG", args->config, 1);
    else if (args->home_given)
        bad |= unsetenv("GVIRTUS_CONFIG");
    if (args->properties)
        bad |= setenv("GVIRTUS_RDMA_PROPERTIES", args->properties, 1);
    if (bad)
        ibx_tool_end("no memory for the environment");
}

/* Shows what GVirtuS will load. */
static struct gvirtus_endpoint show_selected(const struct gvirtus_paths *paths)
{
    char library[PATH_MAX];
    const char *config = paths->files[GVIRTUS_CONFIG];
    struct gvirtus_endpoint endpoint = ibx_gvirtus_endpoint_read(config);
    ibx_gvirtus_library_path(paths->home, endpoint.protocol, library);
    bool missing = access(library, F_OK);
    row("home", "%s", paths->home);
    row("selected", "protocol %s of suite %s in %s", endpoint.protocol, endpoint.suite, config);
    row("library", "%s (%s)", library,
        ibx_gvirtus_installed(paths, library) ? "as installed by ibx-gvirtus"
        : missing                             ? "missing"
                                              : "not installed by ibx-gvirtus");
    /* If ibx was installed, and GVirtuS was installed over it or a file edited since, install would
     * refuse without remove. */
    const char *remedy = access(paths->state, F_OK)
                             ? ": run ibx-gvirtus install"
                             : ", though ibx was installed: run ibx-gvirtus remove, then install";
    if (missing)
        ibx_tool_end("%s is selected, but there is no %s%s", endpoint.protocol, library, remedy);
    if (strcmp(endpoint.protocol, "oldtcp") && strcmp(endpoint.protocol, "ib"))
        ibx_tool_end("GVirtuS's own communicator \"%s\" is selected in %s%s", endpoint.protocol,
                     config, remedy);
    return endpoint;
}

/* The rows of keys, of which the first one has the row's name. */
struct keys {
    bool all; /* also those at their defaults */
    unsigned rows, others;
};

static const char *keys_name(struct keys *keys)
{
    return keys->rows++ ? "" : "options";
}

/* Units, and what a 0 or an empty value means, are in the key's meaning. */
static void show_meaning(const struct keys *keys, const char *meaning)
{
    if (keys->all)
        row("", "  %s", meaning);
}

static void show_key(struct keys *keys, const char *key, const char *value, const char *usual,
                     const char *meaning)
{
    const bool is_usual = !strcmp(value, usual);
    keys->others += is_usual;
    if (!keys->all && is_usual)
        return;
    row(keys_name(keys), "rdma.%s : %s%s", key, value,
        !is_usual ? ""
        : *value  ? " (default)"
                  : "(default)");
    show_meaning(keys, meaning);
}

/* A key that the communicator's query has set. */
static void show_overridden(struct keys *keys, const char *key, const char *value,
                            const char *meaning)
{
    row(keys_name(keys), "rdma.%s : %s (by the communicator, which wins)", key, value);
    show_meaning(keys, meaning);
}

static void show_others(struct keys *keys)
{
    if (keys->all || !keys->others)
        return;
    if (keys->rows)
        row("", "%u others at their defaults, see --all", keys->others);
    else
        row(keys_name(keys), "all at their defaults, see --all");
}

/* Shows the keys that are no options of the transport, as the file has them, and keys without
 * effect.
 */
static void show_own_keys(const struct ibx_glue_config *config, struct keys *keys)
{
    struct ibx_properties properties = {.text = NULL};
    struct ibx_error err;
    char name[64];
    if (config->file[0] && ibx_properties_load(config->file, &properties, &err))
        ibx_tool_end("%s", err.message);
    for (const struct gvirtus_key *key = ibx_gvirtus_own_keys; key->name; key++) {
        snprintf(name, sizeof(name), "rdma.%s", key->name);
        const struct ibx_property *entry = ibx_properties_find(&properties, name);
        const char *value = entry ? entry->value : key->usual, *counts = value;
        if (!strcmp(key->name, "pipeline"))
            counts = ibx_glue_pipeline_name(config->pipeline);
        if (strcmp(counts, value) != 0)
            show_overridden(keys, key->name, counts, key->meaning);
        else
            show_key(keys, key->name, value, key->usual, key->meaning);
    }
    show_others(keys);
    const char *level = secure_getenv("IBX_LOG");
    if (level && *level)
        row("", "IBX_LOG=%s in the environment wins over rdma.log", level);
    const struct ibx_property *ignored = &properties.ignored;
    if (ignored->key) {
        snprintf(name, sizeof(name), "%.63s", ignored->key);
        ibx_text_sanitize(name);
        row("ignored", "line %u: %s is in line %u already, which counts", ignored->line, name,
            ibx_properties_find(&properties, ignored->key)->line);
    }
    ibx_properties_fini(&properties);
}

static void show_config(const struct ibx_glue_config *config, bool all)
{
    struct keys keys = {.all = all};
    row("properties", "%s", config->file[0] ? config->file : "none found, defaults apply");
    if (config->uri_line)
        row("communicator", "%s (line %u of that file)", config->uri, config->uri_line);
    else
        row("communicator", "%s (from the endpoint)", config->uri);
    struct ibx_options defaults, asked = config->options;
    struct ibx_uri uri;
    ibx_options_init(&defaults);
    if (!ibx_uri_parse(config->uri, &uri, NULL))
        ibx_uri_options(&uri, &asked, NULL);
    const char *key;
    for (unsigned i = 0; (key = ibx_options_key(i)); i++) {
        char value[IBX_OPTION_SIZE], usual[IBX_OPTION_SIZE], counts[IBX_OPTION_SIZE];
        ibx_options_get(&config->options, key, value, sizeof(value));
        ibx_options_get(&defaults, key, usual, sizeof(usual));
        ibx_options_get(&asked, key, counts, sizeof(counts));
        if (strcmp(counts, value) != 0)
            show_overridden(&keys, key, counts, ibx_options_meaning(key));
        else
            show_key(&keys, key, value, usual, ibx_options_meaning(key));
    }
    show_own_keys(config, &keys);
}

static void show_changes(const struct ibx_session_report *session)
{
    char text[1024] = "";
    for (unsigned i = 0; i < session->count; i++) {
        const struct ibx_path_change *change = &session->changes[i];
        const size_t n = strlen(text);
        const bool same = !strcmp(change->from, change->to);
        snprintf(text + n, sizeof(text) - n, "%s%s%s%s %llu s ago, after %u ms", i ? "; " : "",
                 same ? "again by " : change->from, same ? "" : " to ", change->to,
                 (unsigned long long)(change->when / 1000), change->took_ms);
    }
    row("", "%s by %s, %u %s: %s", session->peer, session->provider, session->resumed,
        session->resumed == 1 ? "time" : "times", text);
}

/* Shows the back end's sessions, of clients with the same key, whose connections broke. */
static void show_sessions(struct ibx_conn *conn)
{
    static struct ibx_sessions_report report;
    int rc = ibx_sessions_ask(conn, ANSWER_MS, &report);
    if (rc) {
        row("sessions", "the back end does not say (%s): it may be older", strerror(-rc));
        return;
    }
    row("sessions",
        "%u that survive the loss of a connection, %u of them have gone on over a new one",
        report.sessions, report.resumed);
    for (unsigned i = 0; i < report.count; i++)
        show_changes(&report.told[i]);
    if (report.count < report.resumed)
        row("", "and %u more", report.resumed - report.count);
}

/* Connects to the back end as a front end does. */
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
    show_sessions(conn);
    ibx_close(conn);
    return 0;
}

/* Finds a library for applications: in a build tree it is beside the plugin, in an installation one
 * folder up. */
static bool find_library(const char *name, const char *plugin, char path[PATH_MAX])
{
    const char *slash = strrchr(plugin, '/');
    int folder = slash ? (int)(slash + 1 - plugin) : 0;
    char near[PATH_MAX], above[PATH_MAX];
    ibx_gvirtus_path(near, "%.*s%s", folder, plugin, name);
    ibx_gvirtus_path(above, "%.*s../%s", folder, plugin, name);
    return realpath(near, path) || realpath(above, path);
}

/* Finds the folder of the driver library in the same way. */
static bool find_driver(const char *plugin, char path[PATH_MAX])
{
    const char *slash = strrchr(plugin, '/');
    char library[PATH_MAX];
    ibx_gvirtus_path(library, "%.*sdriver/libcuda.so.1", slash ? (int)(slash + 1 - plugin) : 0,
                     plugin);
    char *end = realpath(library, path) ? strrchr(path, '/') : NULL;
    if (end)
        *end = 0;
    return end;
}

static bool same_files(const char *one, const char *other)
{
    size_t length_one = 0, length_other = 0;
    char *text_one = ibx_gvirtus_file_read(one, &length_one, NULL);
    char *text_other = ibx_gvirtus_file_read(other, &length_other, NULL);
    bool same = text_one && text_other && length_one == length_other &&
                !memcmp(text_one, text_other, length_one);
    free(text_one);
    free(text_other);
    return same;
}

/* Where programs find GVirtuS's libcudart; classic GVirtuS has no such folder. */
static void show_front_end(const char *home)
{
    char folder[PATH_MAX];
    ibx_gvirtus_path(folder, "%s/lib/frontend", home);
    if (access(folder, X_OK) == 0)
        row("",
            "LD_LIBRARY_PATH=%s:%s/lib:$LD_LIBRARY_PATH as well, where programs do not find "
            "GVirtuS's libcudart yet",
            folder, home);
}

/* Shows whether applications can use the preload: it needs the plugin on both sides, and an answer
 * of the back end shows that it has one. */
static void show_preload(const struct gvirtus_args *args, const char *home, const char *slot,
                         bool answered)
{
    char plugin[PATH_MAX], preload[PATH_MAX], installed[PATH_MAX], driver[PATH_MAX],
        search[PATH_MAX];
    ibx_gvirtus_plugin_find(args, plugin);
    ibx_gvirtus_library_path(home, slot, installed);
    if (!find_library("libibx-frontend.so", plugin, preload)) {
        row("preload",
            "there is no libibx-frontend.so with %s: copies pass through GVirtuS's "
            "buffers; install ibx, or name the plugin that it came with by --library",
            plugin);
        return;
    }
    row("preload", "LD_PRELOAD=%s program", preload);
    show_front_end(home);
    if (find_driver(plugin, driver))
        row("",
            "LD_LIBRARY_PATH=%s:$LD_LIBRARY_PATH as well, if a program that uses the driver API "
            "finds no libcuda.so.1",
            driver);
    if (find_library("libibx-search.so", plugin, search))
        row("",
            "LD_AUDIT=%s as well, if a program brings NVIDIA's libraries and finds these first, as "
            "PyTorch, CuPy and JAX do",
            search);
    if (!same_files(plugin, installed))
        row("",
            "it may not fit the plugin in the home, which is of another build than %s: "
            "ibx-gvirtus remove, then install",
            plugin);
    else
        row("", answered ? "the back end supports its copies"
                         : "whether the back end supports its copies is known when it answers");
}

void ibx_gvirtus_show(const struct gvirtus_args *args)
{
    static struct gvirtus_paths paths;
    static struct ibx_glue_config config;
    struct gvirtus_endpoint endpoint = {.port = 0};
    struct ibx_error err;
    if (args->home)
        ibx_owner_become(&ibx_gvirtus_home, args->home);
    imitate(args);
    /* A classic GVirtuS has no home: its gvirtus.properties alone has everything. */
    if (args->home || !args->properties) {
        ibx_gvirtus_paths_find(args, &paths);
        endpoint = show_selected(&paths);
    }
    const bool home = endpoint.protocol[0];
    int rc = ibx_glue_config_load(home ? endpoint.address : NULL, endpoint.port, &config, &err);
    if (home) /* the communicator of gvirtus.properties may name another back end */
        row("endpoint", "%s port %u%s",
            endpoint.address[0] ? endpoint.address : "without an address", endpoint.port,
            config.uri_line ? ", not used: the communicator below overrides it" : "");
    if (rc)
        ibx_tool_end("%s", err.message);
    show_config(&config, args->all);
    rc = show_connection(&config, &err);
    if (home)
        show_preload(args, paths.home, endpoint.protocol, !rc);
    if (rc)
        ibx_tool_end("%s", err.message);
}
