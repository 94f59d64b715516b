/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of a VM other than its devices: processors, memory, properties of the machine, the
 * small RAM blocks that QEMU sends itself, and back ends that have a part of their own in the
 * device state. */
#include "migrate/preflight/description.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_RAM 256

static int ask(struct describing *d, const char *command, json_t *arguments, json_t **answer)
{
    int rc = ibx_qmp_execute(d->qmp, command, arguments, answer, d->deadline_ns, d->err);
    if (rc != -EOPNOTSUPP)
        return rc;
    *answer = json_null();
    return 0;
}

static int ask_monitor(struct describing *d, const char *line, json_t **text)
{
    return ask(d, "human-monitor-command", json_pack("{s:s}", "command-line", line), text);
}

static void ask_property_ahead(struct describing *d, const char *path, const char *property)
{
    ibx_qmp_ahead(d->qmp, "qom-get", json_pack("{s:s, s:s}", "path", path, "property", property),
                  d->deadline_ns);
}

static int ask_property(struct describing *d, const char *path, const char *property,
                        json_t **value)
{
    return ibx_qmp_execute(d->qmp, "qom-get",
                           json_pack("{s:s, s:s}", "path", path, "property", property), value,
                           d->deadline_ns, NULL);
}

static void put(struct describing *d, const char *member, json_t *value)
{
    json_object_set_new(d->description, member, value);
}

/* ------------------------------------------------------------ processors */

/* {"LEAF.SUB REG": HEX} */
static json_t *features_of(const json_t *words)
{
    json_t *features = json_object(), *word;
    size_t index;
    json_array_foreach(words, index, word)
    {
        char key[64], value[32];
        json_int_t bits = json_integer_value(json_object_get(word, "features"));
        snprintf(key, sizeof(key), "%" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT " %.8s",
                 json_integer_value(json_object_get(word, "cpuid-input-eax")),
                 json_integer_value(json_object_get(word, "cpuid-input-ecx")),
                 ibx_member(word, "cpuid-register"));
        snprintf(value, sizeof(value), "%llx", (unsigned long long)bits);
        if (bits > 0)
            json_object_set_new(features, key, json_string(value));
    }
    return features;
}

/* The place of a vCPU, such as "socket-id 0 core-id 1 thread-id 0", in a fixed order. */
static json_t *place_of(const json_t *cpu)
{
    static const char *const ids[] = {"node-id",   "socket-id", "die-id",   "cluster-id",
                                      "module-id", "core-id",   "thread-id"};
    const json_t *properties = json_object_get(cpu, "props");
    char place[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        const json_t *value = json_object_get(properties, ids[i]);
        if (json_is_integer(value))
            used +=
                (size_t)snprintf(place + used, sizeof(place) - used, "%s%s %" JSON_INTEGER_FORMAT,
                                 used ? " " : "", ids[i], json_integer_value(value));
    }
    return json_string(place);
}

/* Whether the property may show in the VM. Only KVM shows what hv-... is about, whatever QEMU was
 * started with, and QEMU takes its time for each question. */
static bool shows(const struct describing *d, const struct ibx_cpu_property *property)
{
    const json_t *kvm = json_object_get(d->description, "kvm");
    return !json_is_false(kvm) || strncmp(property->name, "hv-", 3) != 0;
}

/* Adds what cpuid tells besides features, and what QEMU tells its guests about a hypervisor. */
static void put_cpu_properties(struct describing *d, const char *path)
{
    json_t *properties = json_object(), *value;
    for (size_t i = 0; i < ibx_cpu_property_count; i++)
        if (shows(d, &ibx_cpu_properties[i]))
            ask_property_ahead(d, path, ibx_cpu_properties[i].name);
    for (size_t i = 0; i < ibx_cpu_property_count; i++) {
        const struct ibx_cpu_property *property = &ibx_cpu_properties[i];
        if (shows(d, property) && !ask_property(d, path, property->name, &value))
            json_object_set_new(properties, property->name, value);
    }
    put(d, "cpu-properties", properties);
}

/* Whether a property of a vCPU is what it was when QEMU started. QEMU lets a monitor set the
 * others.
 */
static bool is_constant(const char *property)
{
    for (size_t i = 0; i < ibx_cpu_property_count; i++)
        if (!strcmp(property, ibx_cpu_properties[i].name))
            return ibx_cpu_properties[i].rule != IBX_CPU_BY_MODEL && strcmp(property, "vendor");
    return !strcmp(property, "type") || !strcmp(property, "feature-words");
}

int ibx_describe_accelerator(struct describing *d)
{
    json_t *answer;
    int rc = ask(d, "query-kvm", NULL, &answer);
    if (rc)
        return rc;
    const json_t *enabled = json_object_get(answer, "enabled");
    if (json_is_boolean(enabled))
        put(d, "kvm", json_boolean(json_is_true(enabled)));
    json_decref(answer);
    return 0;
}

#define BOARD "/machine/unattached/" /* of vCPUs that were not plugged in */

int ibx_describe_processors(struct describing *d)
{
    json_t *list, *cpu, *value, *places = json_array();
    size_t index;
    int rc = ask(d, "query-cpus-fast", NULL, &list);
    const char *path = ibx_member(json_array_get(rc ? NULL : list, 0), "qom-path");
    put(d, "cpus", places);
    if (rc)
        return rc;
    json_array_foreach(list, index, cpu)
    {
        json_array_append_new(places, place_of(cpu));
    }
    if (!strncmp(path, BOARD, strlen(BOARD))) /* and the first one is not unplugged */
        ibx_qmp_fix(d->qmp, path, is_constant);
    if (*path) {
        ask_property_ahead(d, path, "type");
        ask_property_ahead(d, path, "feature-words");
    }
    if (*path && !ask_property(d, path, "type", &value)) {
        put(d, "cpu", value);
    }
    if (*path && !ask_property(d, path, "feature-words", &value)) {
        put(d, "cpuid", features_of(value));
        json_decref(value);
    }
    if (*path)
        put_cpu_properties(d, path);
    json_decref(list);
    return 0;
}

/* ------------------------------------------------------------ memory */

json_t *ibx_ram_of_ramblock(const char *text)
{
    json_t *ram = json_object();
    for (; ram && *text; text += strcspn(text, "\n"), text += *text == '\n') {
        char name[NAME_MAX_RAM], line[2 * NAME_MAX_RAM];
        uint64_t used, most;
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\r\n"), text);
        /* NAME, page size and its unit, offset, used, most; a block without a name is not sent. */
        if (sscanf(line, "%255s %*u %*s 0x%*x 0x%" SCNx64 " 0x%" SCNx64, name, &used, &most) == 3)
            json_object_set_new(ram, name, json_pack("[I,I]", (json_int_t)used, (json_int_t)most));
    }
    return ram;
}

/* Adds "ram", without guest RAM, which is compared elsewhere. */
static int put_ram(struct describing *d)
{
    json_t *text;
    int rc = ask_monitor(d, "info ramblock", &text);
    if (rc)
        return rc;
    const char *lines = json_string_value(text);
    json_t *ram = ibx_ram_of_ramblock(lines ? lines : "");
    for (size_t i = 0; i < d->ram->count; i++)
        json_object_del(ram, d->ram->blocks[i].id);
    put(d, "ram", ram);
    json_decref(text);
    return 0;
}

/* Subtracts plugged memory from a node's size; it is compared by "memory". Of virtio-mem devices
 * the guest takes memory and gives it back while it runs, which is part of the device state, so a
 * QEMU that waits for the VM has none plugged yet. Both lines of a node come from one answer of
 * QEMU, so they count the same memory. */
json_t *ibx_numa_of_info(const char *text)
{
    json_t *lines = json_array();
    const char *line = text;
    for (; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        char one[512], other[512] = "";
        uint64_t node, mib, same, plugged;
        const char *next = line + strcspn(line, "\n");
        snprintf(one, sizeof(one), "%.*s", (int)strcspn(line, "\r\n"), line);
        if (*next)
            snprintf(other, sizeof(other), "%.*s", (int)strcspn(next + 1, "\r\n"), next + 1);
        if (sscanf(one, "node %" SCNu64 " size: %" SCNu64 " MB", &node, &mib) == 2 &&
            sscanf(other, "node %" SCNu64 " plugged: %" SCNu64 " MB", &same, &plugged) == 2 &&
            same == node && plugged <= mib)
            snprintf(one, sizeof(one), "node %" PRIu64 " size: %" PRIu64 " MB", node,
                     mib - plugged);
        if (*one && !strstr(one, "plugged"))
            json_array_append_new(lines, ibx_json_text(one));
    }
    return lines;
}

/* Includes the address of each DIMM, which QEMU itself does not compare: it decides where the guest
 * has that memory. */
json_t *ibx_memory_of_devices(const json_t *devices)
{
    const json_t *item;
    json_t *out = json_array();
    size_t index;
    json_array_foreach(devices, index, item)
    {
        const json_t *data = json_object_get(item, "data");
        const json_t *most = json_object_get(data, "max-size"); /* of virtio-mem */
        const json_int_t block = json_integer_value(json_object_get(data, "block-size"));
        char one[256], blocks[64] = "";
        json_int_t address = json_integer_value(json_object_get(data, "addr"));
        json_int_t size = json_integer_value(most ? most : json_object_get(data, "size"));
        if (!address)
            address = json_integer_value(json_object_get(data, "memaddr"));
        if (block) /* QEMU compares the block size when it loads the device state */
            snprintf(blocks, sizeof(blocks), " (block-size=%" JSON_INTEGER_FORMAT "K)",
                     block >> 10);
        snprintf(one, sizeof(one),
                 "%.32s of %" JSON_INTEGER_FORMAT " MiB%s at %#llx, slot %" JSON_INTEGER_FORMAT
                 ", node %" JSON_INTEGER_FORMAT,
                 ibx_member(item, "type"), size >> 20, blocks, (unsigned long long)address,
                 json_integer_value(json_object_get(data, "slot")),
                 json_integer_value(json_object_get(data, "node")));
        json_array_append_new(out, ibx_json_text(one));
    }
    return out;
}

struct place {
    const char *id;
    uint64_t address;
};

static int by_address(const void *a, const void *b)
{
    const struct place *one = a, *other = b;
    return one->address < other->address ? -1 : one->address > other->address;
}

json_t *ibx_order_of_mtree(const char *tree, const struct ibx_guest_ram *ram)
{
    struct place places[IBX_GUEST_BLOCKS_MAX];
    json_t *order = json_array();
    uint64_t into;
    size_t count = 0;
    for (size_t i = 0; i < ram->count && count < IBX_GUEST_BLOCKS_MAX; i++) {
        places[count].id = ram->blocks[i].id;
        count += ibx_guest_physical_find(tree, places[count].id, &places[count].address, &into);
    }
    qsort(places, count, sizeof(*places), by_address);
    for (size_t i = 0; i < count; i++)
        json_array_append_new(order, ibx_json_text(places[i].id));
    return order;
}

static int put_order(struct describing *d)
{
    json_t *text;
    int rc = d->ram->count > 1 ? ask_monitor(d, "info mtree -f", &text) : -ENODATA;
    if (rc)
        return rc == -ENODATA ? 0 : rc;
    if (json_is_string(text))
        put(d, "order", ibx_order_of_mtree(json_string_value(text), d->ram));
    json_decref(text);
    return 0;
}

static int put_nodes_and_plugged_memory(struct describing *d)
{
    json_t *text, *devices;
    int rc = ask_monitor(d, "info numa", &text);
    if (rc)
        return rc;
    rc = ask(d, "query-memory-devices", NULL, &devices);
    if (!rc) {
        put(d, "numa", ibx_numa_of_info(json_string_value(text)));
        put(d, "memory", ibx_memory_of_devices(devices));
        json_decref(devices);
    }
    json_decref(text);
    return rc;
}

/* ------------------------------------------------------------ the machine, back ends */

int ibx_describe_board(struct describing *d)
{
    json_t *properties = json_object(), *value;
    int rc = ibx_describe_properties(d, "/machine", properties);
    if (!rc && !ask_property(d, "/machine", "smp", &value)) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
        if (text)
            json_object_set_new(properties, "smp", ibx_json_text(text));
        free(text);
        json_decref(value);
    }
    put(d, "machine", properties);
    return rc;
}

#define TPM "TPM ("

bool ibx_description_has_tpm(const json_t *description)
{
    json_t *one;
    size_t i;
    json_array_foreach(json_object_get(description, "backends"), i, one)
    {
        if (json_is_string(one) && !strncmp(json_string_value(one), TPM, strlen(TPM)))
            return true;
    }
    return false;
}

/* From QEMU's "info network": "-netdev user,net=ADDRESS,restrict=off", with what else QEMU reports
 * of each. NULL: no memory. */
static json_t *user_networks(const char *text)
{
    static const char type[] = "type=user";
    json_t *networks = json_array();
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *at = memmem(line, strcspn(line, "\n"), type, strlen(type));
        char one[128];
        if (!at)
            continue;
        at += strlen(type);
        snprintf(one, sizeof(one), "-netdev user%.*s", (int)strcspn(at, "\r\n"), at);
        json_array_append_new(networks, ibx_json_text(one));
    }
    return networks;
}

/* Adds back ends that save state of their own: QEMU's user-mode network, and an emulated TPM. An
 * earlier release compares only whether there is such a network. */
static int put_back_ends(struct describing *d)
{
    json_t *text, *list, *item, *out = json_array();
    size_t index;
    int rc = ask_monitor(d, "info network", &text);
    if (!rc) {
        const char *lines = json_string_value(text);
        json_t *networks = user_networks(lines ? lines : "");
        for (size_t i = 0; i < json_array_size(networks); i++)
            json_array_append_new(out, json_string("user-mode network (-netdev user)"));
        put(d, "user-networks", networks);
        json_decref(text);
    }
    put(d, "backends", out);
    if (!rc)
        rc = ask(d, "query-tpm", NULL, &list);
    json_array_foreach(rc ? NULL : list, index, item)
    {
        char one[128];
        snprintf(one, sizeof(one), TPM "%.32s, %.32s)", ibx_member(item, "model"),
                 ibx_member(json_object_get(item, "options"), "type"));
        json_array_append_new(out, ibx_json_text(one));
    }
    if (!rc)
        json_decref(list);
    return rc;
}

int ibx_describe_machine(struct describing *d)
{
    int rc = ibx_describe_accelerator(d);
    if (!rc)
        rc = ibx_describe_processors(d);
    if (!rc)
        rc = put_ram(d);
    if (!rc)
        rc = put_nodes_and_plugged_memory(d);
    if (!rc)
        rc = put_order(d);
    if (!rc)
        rc = ibx_describe_board(d);
    return rc ? rc : put_back_ends(d);
}
