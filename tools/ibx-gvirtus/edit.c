/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The texts of properties.json and gvirtus.properties, read and rewritten. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include "frontend-glue/plugin/config.h"
#include "common/properties.h"
#include "transport/transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_ADDRESS "127.0.0.1"
#define DEFAULT_PORT    9999

/* ------------------------------------------------------------ properties.json */

static json_t *parse_config(const char *file, const char *text)
{
    json_error_t bad;
    json_t *root = json_loads(text, 0, &bad);
    if (!root)
        ibx_tool_end("%s line %d is not JSON: %s", file, bad.line, bad.text);
    return root;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Whether GVirtuS's own pattern accepts this address; it turns any other into "". */
static bool dotted_quad(const char *text)
{
    struct in_addr address;
    char again[INET_ADDRSTRLEN];
    return inet_pton(AF_INET, text, &address) == 1 &&
           inet_ntop(AF_INET, &address, again, sizeof(again)) && !strcmp(text, again);
}

/* Reads a port as GVirtuS does: digits without leading zeros, from 1 to 65535; 0: it is none. */
static uint16_t port_of(const char *text)
{
    if (*text == '0' || strlen(text) > 5 || text[strspn(text, "0123456789")])
        return 0;
    unsigned long value = strtoul(text, NULL, 10);
    return value <= UINT16_MAX ? (uint16_t)value : 0;
}

/* The first endpoint, a borrowed reference. */
static json_t *endpoint_object(const char *file, const json_t *root)
{
    json_t *first = json_array_get(json_object_get(root, "communicator"), 0);
    json_t *object = json_object_get(first, "endpoint");
    if (!json_is_object(object))
        ibx_tool_end("%s has no communicator[0].endpoint: is it a properties.json of GVirtuS",
                     file);
    return object;
}

static struct gvirtus_endpoint endpoint_of(const json_t *object)
{
    struct gvirtus_endpoint endpoint = {.port = port_of(text_of(object, "port"))};
    const char *address = text_of(object, "server_address");
    snprintf(endpoint.suite, sizeof(endpoint.suite), "%s", text_of(object, "suite"));
    snprintf(endpoint.protocol, sizeof(endpoint.protocol), "%s", text_of(object, "protocol"));
    if (dotted_quad(address))
        snprintf(endpoint.address, sizeof(endpoint.address), "%s", address);
    return endpoint;
}

static void check_security(const char *file, const json_t *root)
{
    if (json_is_true(json_object_get(root, "secure_application")))
        ibx_tool_end("%s says secure_application : true, with which GVirtuS refuses every "
                     "communicator but https and wss: set it to false (ibx authenticates by "
                     "rdma.key_file)",
                     file);
}

/* Ends the process if the endpoint is one with which no generation of GVirtuS starts. */
static void check_endpoint(const char *file, const json_t *object)
{
    static const char *const keys[] = {"suite", "protocol", "server_address", "port"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *value = json_object_get(object, keys[i]);
        if (!json_is_string(value))
            ibx_tool_end("%s: \"%s\" of the first endpoint is %s, with which GVirtuS does not "
                         "start: write it as text, in quotes",
                         file, keys[i], value ? "no text" : "missing");
    }
    const char *suite = text_of(object, "suite");
    if (strcmp(suite, "tcp/ip") != 0 && strcmp(suite, "infiniband-rdma") != 0)
        ibx_tool_end("%s: GVirtuS has no suite \"%s\", and does not start: write tcp/ip (for "
                     "protocol ib, infiniband-rdma)",
                     file, suite);
}

struct gvirtus_endpoint ibx_gvirtus_endpoint_read(const char *file)
{
    char *text = ibx_gvirtus_text_read(file);
    if (!text)
        ibx_tool_end("cannot open %s: %s", file, strerror(ENOENT));
    json_t *root = parse_config(file, text);
    const json_t *object = endpoint_object(file, root);
    check_security(file, root);
    check_endpoint(file, object);
    struct gvirtus_endpoint endpoint = endpoint_of(object);
    free(text);
    json_decref(root);
    return endpoint;
}

/* A properties.json as GVirtuS ships it, with the plugins that gvirtus.properties names. */
static json_t *new_config(const struct ibx_properties *properties)
{
    const struct ibx_property *entry = ibx_properties_find(properties, "plugins");
    json_t *plugins = json_array();
    const char *rest = entry ? entry->value : "cudart", *item;
    size_t length;
    while (ibx_properties_item(&rest, &item, &length))
        json_array_append_new(plugins, json_stringn(item, length));
    return json_pack("{s:[{s:{}, s:o}], s:b}", "communicator", "endpoint", "plugins", plugins,
                     "secure_application", 0);
}

/* Selects the plugin in the first endpoint; all the rest stays as it is. */
static void edit_config(struct gvirtus_edit *edit, json_t *root, const struct ibx_uri *uri)
{
    check_security(edit->config_file, root);
    json_t *object = endpoint_object(edit->config_file, root);
    struct gvirtus_endpoint before = endpoint_of(object);
    const char *address = dotted_quad(uri->host) ? uri->host
                          : before.address[0]    ? before.address
                                                 : DEFAULT_ADDRESS;
    char port[8];
    snprintf(port, sizeof(port), "%u",
             uri->port     ? uri->port
             : before.port ? before.port
                           : DEFAULT_PORT);
    json_t *changes = json_pack("{s:s, s:s, s:s, s:s}", "suite",
                                strcmp(edit->slot, "ib") ? "tcp/ip" : "infiniband-rdma", "protocol",
                                edit->slot, "server_address", address, "port", port);
    json_object_update(object, changes);
    json_decref(changes);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    if (!text || asprintf(&edit->config_after, "%s\n", text) < 0)
        ibx_tool_end("no memory to edit %s", edit->config_file);
    free(text);
}

/* --------------------------------------------------------- gvirtus.properties */

const struct gvirtus_key ibx_gvirtus_own_keys[] = {
    {"memory", "", "1050K",
     "bytes of message buffers of an idle connection; lowers rdma.slots and rdma.message"},
    {"pipeline", "all", "all",
     "CUDA calls that return before the back end has run them (all, launches or off)"},
    {"resume_seconds", "30", "30",
     "seconds for which both ends keep a session whose connection has broken (0: not at all)"},
    {"silence_seconds", "60", "60",
     "over TCP, seconds for which a front end waits for a back end that gives no sign of life "
     "(0: for ever, or 5 to 86400)"},
    {"processes", "program", "program",
     "processes of the back end: one for each program, one for each tenant, or one for all "
     "(program, tenant or one)"},
    {"idle_seconds", "60", "60", "seconds for which a tenant's process outlives its last program"},
    {"most_processes", "1024", "1024", "how many processes the back end may have"},
    {"spare_processes", "", "1",
     "spare processes, which have a CUDA context before a program or tenant comes"},
    {"gpu", "auto", "auto", "whether the back end's plugin runs copies itself (auto, on or off)"},
    {"gpu_memory", "64M", "64M",
     "bytes of pinned memory for these copies, in each process of the back end"},
    {"gpu_threads", "0", "0",
     "threads that copy for one connection (0 to 16; 0: depends on the processors)"},
    {"nccl", "off", "off",
     "whether clients may call NCCL, by which a client makes the back end connect to addresses of "
     "the client's choice (on or off)"},
    {"tenants", "isolated", "isolated",
     "whether copies may name device memory that a client with another name has allocated "
     "(isolated: no, or shared)"},
    {"sessions", "4096", "4096", "connections that the back end serves at once"},
    {"pins", "", "64G",
     "bytes of clients' memory that the back end pins; without this line, as much as the host has"},
    {"requests", "", "16G",
     "bytes of GVirtuS's buffers for requests; without this line, half of the host's memory"},
    {"device_memory", "", "64G",
     "bytes of the GPUs that clients may allocate; without this line, no limit"},
    {"tenant_share", "75", "75",
     "percent of each of these limits that the clients with one key's name, or without keys those "
     "of one user, may hold; without this line the back end's own user may hold all"},
    {"share", "100", "100",
     "weights of the clients that copy at the same time: of all, and NAME=WEIGHT"},
    {"tuning", "", "none",
     "file of ib-bw tune, with the path that copies take; without this line, "
     "ibx-tuning.properties"},
    {"log", "warn", "warn", "error, warn, info or debug"},
    {NULL, NULL, NULL, NULL},
};

#define COMMENT_COLUMNS 98

/* Prints a comment, broken into lines. */
static void print_comment(FILE *out, const char *text)
{
    int column = fprintf(out, "#");
    while (*text) {
        const int length = (int)strcspn(text, " ");
        if (column > 1 && column + 1 + length > COMMENT_COLUMNS)
            column = fprintf(out, "\n#  ") - 1;
        column += fprintf(out, " %.*s", length, text);
        text += length + (text[length] == ' ');
    }
    fprintf(out, "\n");
}

static void print_key(FILE *out, const char *name, const char *meaning, const char *example)
{
    char text[1024];
    snprintf(text, sizeof(text), "rdma.%s: %s", name, meaning);
    print_comment(out, text);
    fprintf(out, "#rdma.%s : %s\n", name, example);
}

/* For keys of the transport whose default, none, cannot be written down as an empty value. */
static const char *example_of(const char *name, const char *otherwise)
{
    static const char *const examples[][2] = {
        {"key_file", "ibx.key"}, {"name", "alice"}, {"allow", "alice,bob"}};
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++)
        if (!strcmp(name, examples[i][0]))
            return examples[i][1];
    return otherwise;
}

/* Prints every rdma.* key of both tables as a comment, with its default. */
static void print_keys(FILE *out)
{
    fprintf(
        out,
        "\n"
        "# Keys of the rdma communicator, at their defaults, or with an example where there is\n"
        "# none; see gvirtus.properties(5).\n");
    for (const struct gvirtus_key *key = ibx_gvirtus_own_keys; key->name; key++)
        print_key(out, key->name, key->meaning, key->example);
    char *text = NULL;
    size_t size = 0;
    FILE *described = open_memstream(&text, &size);
    if (!described)
        return;
    ibx_options_describe(described);
    fclose(described);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        /* "key: meaning (accepted) [default]" */
        char *colon = strchr(line, ':');
        char *bracket = strrchr(line, '[');
        if (!colon || !bracket || bracket < colon + 3)
            continue;
        *colon = bracket[-1] = '\0';
        bracket[strcspn(bracket, "]")] = '\0';
        print_key(out, line, colon + 2, example_of(line, bracket + 1));
    }
    free(text);
}

/* Prints the old text with the new URI in the entry that is effective. */
static void print_properties(FILE *out, const struct gvirtus_edit *edit,
                             const struct ibx_properties *properties)
{
    const struct ibx_property *entry = ibx_properties_find(properties, "communicator");
    const char *text = edit->properties_before;
    bool has_keys = false;
    for (unsigned line = 1; text && *text; line++) {
        int length = (int)strcspn(text, "\n");
        if (entry && line == entry->line && strcmp(entry->value, edit->chosen))
            fprintf(out, "# %.*s\ncommunicator : %s\n", length, text, edit->chosen);
        else
            fprintf(out, "%.*s\n", length, text);
        const char *key = text + strspn(text, "# \t");
        has_keys = has_keys || !strncasecmp(key, "rdma.", 5);
        text += length + (text[length] == '\n');
    }
    if (!edit->properties_before)
        fprintf(out, "# Configuration of GVirtuS, written by ibx-gvirtus.\n");
    if (!entry)
        fprintf(out,
                "\n# Where the back end listens and front ends connect: rdma:// chooses the path;\n"
                "# verbs://, ofi://, shm:// and tcp:// force one.\ncommunicator : %s\n",
                edit->chosen);
    if (!has_keys)
        print_keys(out);
}

/* Ends the process if another communicator would be read from the new text: in that file # begins a
 * comment, a line ends a value, and white space around it does not count. */
static void check_properties(const struct gvirtus_edit *edit)
{
    struct ibx_properties now;
    struct ibx_error err;
    const char *text = edit->properties_after;
    if (ibx_properties_parse(edit->properties_file, text, strlen(text), &now, &err))
        ibx_tool_end("\"%s\" cannot be written to %s: %s", edit->chosen, edit->properties_file,
                     err.message);
    const struct ibx_property *entry = ibx_properties_find(&now, "communicator");
    if (!entry || strcmp(entry->value, edit->chosen) != 0)
        ibx_tool_end(
            "\"%s\" cannot be written to %s, from which it would be read as \"%s\": give a "
            "path without #, and without white space at its end",
            edit->chosen, edit->properties_file, entry ? entry->value : "");
    ibx_properties_fini(&now);
}

static void edit_properties(struct gvirtus_edit *edit, const struct ibx_properties *properties)
{
    size_t size;
    FILE *out = open_memstream(&edit->properties_after, &size);
    if (out)
        print_properties(out, edit, properties);
    if (!out || fclose(out))
        ibx_tool_end("no memory to edit %s", edit->properties_file);
    check_properties(edit);
}

/* -------------------------------------------------------------------- the two */

/* --uri, else the communicator of gvirtus.properties, else the endpoint, else the default. */
static void choose_uri(struct gvirtus_edit *edit, const struct ibx_properties *properties,
                       const struct gvirtus_endpoint *endpoint, struct ibx_uri *uri)
{
    const struct ibx_property *entry = ibx_properties_find(properties, "communicator");
    struct ibx_options options;
    struct ibx_error err;
    char rest[IBX_GLUE_URI_MAX];
    enum ibx_pipeline_mode pipeline;
    if (edit->uri) {
        if (ibx_glue_uri_pipeline(edit->uri, rest, &pipeline, &err) ||
            ibx_glue_uri_paths(rest, &err) || ibx_uri_parse(rest, uri, &err))
            ibx_tool_end("%s", err.message);
        if (!uri->path[0] && !uri->port)
            ibx_tool_end("\"%s\" has port 0: give the back end's port, such as 9999", edit->uri);
        snprintf(edit->chosen, sizeof(edit->chosen), "%s", edit->uri);
    } else if (entry && !ibx_glue_uri_pipeline(entry->value, rest, &pipeline, NULL) &&
               !ibx_uri_parse(rest, uri, NULL) && strcmp(uri->scheme, "tcp")) {
        snprintf(edit->chosen, sizeof(edit->chosen), "%s", entry->value);
    } else {
        /* tcp:// there was GVirtuS's own communicator: the same back end, by the best path. */
        if (!entry || ibx_uri_parse(entry->value, uri, NULL)) {
            *uri = (struct ibx_uri){.port = endpoint->port ? endpoint->port : DEFAULT_PORT};
            snprintf(uri->host, sizeof(uri->host), "%s",
                     endpoint->address[0] ? endpoint->address : DEFAULT_ADDRESS);
        }
        snprintf(uri->scheme, sizeof(uri->scheme), "rdma");
        ibx_uri_print(uri, edit->chosen, sizeof(edit->chosen));
    }
    ibx_options_init(&options);
    if (ibx_uri_options(uri, &options, &err))
        ibx_tool_end("%s", err.message);
}

void ibx_gvirtus_edit(struct gvirtus_edit *edit)
{
    struct ibx_properties properties;
    struct ibx_error err;
    struct ibx_uri uri;
    const char *before = edit->properties_before ? edit->properties_before : "";
    if (ibx_properties_parse(edit->properties_file, before, strlen(before), &properties, &err))
        ibx_tool_end("%s", err.message);
    json_t *root = edit->config_before ? parse_config(edit->config_file, edit->config_before)
                                       : new_config(&properties);
    struct gvirtus_endpoint endpoint = endpoint_of(endpoint_object(edit->config_file, root));
    choose_uri(edit, &properties, &endpoint, &uri);
    if (ibx_glue_config_check(edit->properties_file, &properties, edit->chosen, &err))
        ibx_tool_end("%s", err.message);
    edit_config(edit, root, &uri);
    edit_properties(edit, &properties);
    json_decref(root);
    ibx_properties_fini(&properties);
}
