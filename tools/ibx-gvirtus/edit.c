/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The texts of properties.json and gvirtus.properties, read and rewritten. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include "common/properties.h"
#include "transport/transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_ADDRESS "127.0.0.1"
#define DEFAULT_PORT    9999

/* ------------------------------------------------------------ properties.json */

static json_t *parse_config(const char *file, const char *text, struct ibx_error *err)
{
    json_error_t bad;
    json_t *root = json_loads(text, 0, &bad);
    if (!root)
        ibx_error_set(err, -EINVAL, "%s line %d is not JSON: %s", file, bad.line, bad.text);
    return root;
}

/* The object that GVirtuS makes its first communicator of; borrowed. */
static json_t *first_communicator(const json_t *root)
{
    return json_array_get(json_object_get(root, "communicator"), 0);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* What GVirtuS's own pattern takes for an address; it makes "" of any other. */
static bool dotted_quad(const char *text)
{
    struct in_addr address;
    char again[INET_ADDRSTRLEN];
    return inet_pton(AF_INET, text, &address) == 1 &&
           inet_ntop(AF_INET, &address, again, sizeof(again)) && !strcmp(text, again);
}

/* As GVirtuS reads a port: a string of digits without leading zeros, from 1 to 65535; else 0. */
static uint16_t port_of(const char *text)
{
    unsigned long value = 0;
    if (*text == '0' || strlen(text) > 5)
        return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return 0;
        value = value * 10 + (unsigned long)(*text - '0');
    }
    return value <= UINT16_MAX ? (uint16_t)value : 0;
}

static int endpoint_of(const char *file, const json_t *root, struct gvirtus_endpoint *endpoint,
                       struct ibx_error *err)
{
    const json_t *object = json_object_get(first_communicator(root), "endpoint");
    if (!json_is_object(object))
        return ibx_error_set(err, -EINVAL,
                             "%s has no communicator[0].endpoint: is it a "
                             "properties.json of GVirtuS",
                             file);
    memset(endpoint, 0, sizeof(*endpoint));
    snprintf(endpoint->suite, sizeof(endpoint->suite), "%s", text_of(object, "suite"));
    snprintf(endpoint->protocol, sizeof(endpoint->protocol), "%s", text_of(object, "protocol"));
    if (dotted_quad(text_of(object, "server_address")))
        snprintf(endpoint->address, sizeof(endpoint->address), "%s",
                 text_of(object, "server_address"));
    endpoint->port = port_of(text_of(object, "port"));
    return 0;
}

int ibx_gvirtus_endpoint_read(const char *file, struct gvirtus_endpoint *endpoint,
                              struct ibx_error *err)
{
    char *text;
    size_t length;
    int rc = ibx_gvirtus_file_read(file, &text, &length, err);
    if (rc)
        return rc;
    json_t *root = parse_config(file, text, err);
    free(text);
    rc = root ? endpoint_of(file, root, endpoint, err) : -EINVAL;
    json_decref(root);
    return rc;
}

/* What GVirtuS ships, with the plugins that a gvirtus.properties names. */
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

/* Selects our library in the first endpoint; all the rest stays as it is. */
static int edit_config(struct ibx_gvirtus_edit *edit, json_t *root, const struct ibx_uri *uri,
                       struct ibx_error *err)
{
    if (json_is_true(json_object_get(root, "secure_application")))
        return ibx_error_set(err, -EINVAL,
                             "%s says secure_application : true, with which GVirtuS "
                             "refuses every communicator but https and wss: set it to false (ibx "
                             "authenticates by rdma.key_file)",
                             edit->config_file);
    json_t *object = json_object_get(first_communicator(root), "endpoint");
    struct gvirtus_endpoint before;
    int rc = endpoint_of(edit->config_file, root, &before, err);
    if (rc)
        return rc;
    bool ib = !strcmp(edit->slot, "ib");
    const char *address = dotted_quad(uri->host) ? uri->host
                          : before.address[0]    ? before.address
                                                 : DEFAULT_ADDRESS;
    char port[8];
    snprintf(port, sizeof(port), "%u",
             uri->port     ? uri->port
             : before.port ? before.port
                           : DEFAULT_PORT);
    if (json_object_set_new(object, "suite", json_string(ib ? "infiniband-rdma" : "tcp/ip")) ||
        json_object_set_new(object, "protocol", json_string(edit->slot)) ||
        json_object_set_new(object, "server_address", json_string(address)) ||
        json_object_set_new(object, "port", json_string(port)))
        return ibx_error_set(err, -ENOMEM, "no memory to edit %s", edit->config_file);
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    if (text && (edit->config_after = malloc(strlen(text) + 2)))
        sprintf(edit->config_after, "%s\n", text);
    free(text);
    return edit->config_after
               ? 0
               : ibx_error_set(err, -ENOMEM, "no memory to edit %s", edit->config_file);
}

/* --------------------------------------------------------- gvirtus.properties */

const struct gvirtus_key ibx_gvirtus_own_keys[] = {
    {"memory", "", "900K",
     "bytes of message buffers of an idle connection; lowers slots and message"},
    {"gpu", "auto", "auto", "whether the back end's plugin runs copies itself (auto, on or off)"},
    {"gpu_memory", "64M", "64M", "bytes of pinned memory for that, in the whole back end"},
    {"gpu_threads", "0", "0",
     "threads of one connection that copy (0 to 16; 0: by the processors)"},
    {"tuning", "", "none",
     "which way copies take, as measured by ib-bw tune; without this line, ibx-tuning.properties"},
    {"log", "warn", "warn", "error, warn, info or debug"},
    {NULL, NULL, NULL, NULL},
};

/* Every rdma.* key as a comment with its default, from both tables. */
static void print_keys(FILE *out)
{
    fprintf(
        out,
        "\n"
        "# Keys of the rdma communicator, at their defaults, or with an example where there is\n"
        "# none; see gvirtus.properties(5).\n");
    for (const struct gvirtus_key *key = ibx_gvirtus_own_keys; key->name; key++)
        fprintf(out, "# rdma.%s: %s\n#rdma.%s : %s\n", key->name, key->meaning, key->name,
                key->example);
    char *text = NULL;
    size_t size = 0;
    FILE *described = open_memstream(&text, &size);
    if (!described)
        return;
    ibx_options_describe(described, "");
    fclose(described);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        /* "key: meaning (accepted) [default]" */
        char *colon = strchr(line, ':');
        char *bracket = strrchr(line, '[');
        if (!colon || !bracket || bracket < colon + 2)
            continue;
        fprintf(out, "# rdma.%.*s\n#rdma.%.*s : %.*s\n", (int)(bracket - 1 - line), line,
                (int)(colon - line), line, (int)strcspn(bracket + 1, "]"), bracket + 1);
    }
    free(text);
}

/* The text before, with the URI in the place of the entry that counts. */
static void print_properties(FILE *out, const struct ibx_gvirtus_edit *edit,
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
        const char *word = text + strspn(text, "# \t");
        has_keys = has_keys || !strncasecmp(word, "rdma.", 5);
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

static int edit_properties(struct ibx_gvirtus_edit *edit, const struct ibx_properties *properties,
                           struct ibx_error *err)
{
    size_t size;
    FILE *out = open_memstream(&edit->properties_after, &size);
    if (!out)
        return ibx_error_set(err, -ENOMEM, "no memory to edit %s", edit->properties_file);
    print_properties(out, edit, properties);
    if (!fclose(out))
        return 0;
    return ibx_error_set(err, -ENOMEM, "no memory to edit %s", edit->properties_file);
}

/* -------------------------------------------------------------------- the two */

/* --uri, else the communicator of gvirtus.properties, else the endpoint, else the default. */
static int choose_uri(struct ibx_gvirtus_edit *edit, const struct ibx_properties *properties,
                      const struct gvirtus_endpoint *endpoint, struct ibx_uri *uri,
                      struct ibx_error *err)
{
    const struct ibx_property *entry = ibx_properties_find(properties, "communicator");
    int rc = 0;
    if (edit->uri) {
        rc = ibx_uri_parse(edit->uri, uri, err);
        snprintf(edit->chosen, sizeof(edit->chosen), "%s", edit->uri);
        if (!rc && !uri->path[0] && !uri->port)
            return ibx_error_set(err, -EINVAL,
                                 "\"%s\" has port 0: give the back end's port, such "
                                 "as 9999",
                                 edit->uri);
    } else if (entry && !ibx_uri_parse(entry->value, uri, NULL) && strcmp(uri->scheme, "tcp")) {
        snprintf(edit->chosen, sizeof(edit->chosen), "%s", entry->value);
    } else {
        /* tcp:// there was GVirtuS's own communicator: the same place, by the best path. */
        if (!entry || ibx_uri_parse(entry->value, uri, NULL)) {
            memset(uri, 0, sizeof(*uri));
            snprintf(uri->host, sizeof(uri->host), "%s",
                     endpoint->address[0] ? endpoint->address : DEFAULT_ADDRESS);
            uri->port = endpoint->port ? endpoint->port : DEFAULT_PORT;
        }
        snprintf(uri->scheme, sizeof(uri->scheme), "rdma");
        ibx_uri_print(uri, edit->chosen, sizeof(edit->chosen));
    }
    struct ibx_options options;
    ibx_options_init(&options);
    return rc ? rc : ibx_uri_options(uri, &options, err);
}

int ibx_gvirtus_edit(struct ibx_gvirtus_edit *edit, struct ibx_error *err)
{
    struct ibx_properties properties;
    const char *before = edit->properties_before ? edit->properties_before : "";
    int rc = ibx_properties_parse(edit->properties_file, before, strlen(before), &properties, err);
    if (rc)
        return rc;
    json_t *root = edit->config_before ? parse_config(edit->config_file, edit->config_before, err)
                                       : new_config(&properties);
    struct gvirtus_endpoint endpoint;
    struct ibx_uri uri;
    rc = root ? endpoint_of(edit->config_file, root, &endpoint, err) : -EINVAL;
    if (!rc)
        rc = choose_uri(edit, &properties, &endpoint, &uri, err);
    if (!rc)
        rc = edit_config(edit, root, &uri, err);
    if (!rc)
        rc = edit_properties(edit, &properties, err);
    json_decref(root);
    ibx_properties_fini(&properties);
    return rc;
}

void ibx_gvirtus_edit_fini(struct ibx_gvirtus_edit *edit)
{
    free(edit->config_before);
    free(edit->properties_before);
    free(edit->config_after);
    free(edit->properties_after);
}
