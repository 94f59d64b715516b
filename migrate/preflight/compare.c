/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compares two descriptions: what differs and would break QEMU's device state, or the guest. */
#include "migrate/preflight/description.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ processors */

static void compare_processors(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "cpus"),
                 *there = json_object_get(c->destination, "cpus");
    const char *type = ibx_member(c->source, "cpu"), *other = ibx_member(c->destination, "cpu");
    const size_t count = json_array_size(here), count_there = json_array_size(there);
    if (count && count_there && count != count_there)
        ibx_blockers_add(
            c->blockers,
            "the VM has %zu vCPUs here and %zu at the destination: start the destination's "
            "QEMU with the same -smp, and with those that were plugged in since",
            count, count_there);
    if (*type && *other && strcmp(type, other))
        ibx_blockers_add(c->blockers,
                         "the vCPUs are of type %.100s here and %.100s at the destination: start "
                         "the destination's QEMU with the same -cpu",
                         type, other);
}

/* Whether one VM is under KVM and the other is not: the features of vCPUs and the devices of the
 * board then differ too, and there is no need to report them. */
static bool accelerators_differ(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "kvm"),
                 *there = json_object_get(c->destination, "kvm");
    return json_is_boolean(here) && json_is_boolean(there) && !json_equal(here, there);
}

static void compare_accelerators(const struct ibx_comparison *c)
{
    const bool here = json_is_true(json_object_get(c->source, "kvm"));
    if (accelerators_differ(c))
        ibx_blockers_add(c->blockers,
                         "the VM runs %s KVM here and %s KVM at the destination: start the "
                         "destination's QEMU with the same -accel",
                         here ? "under" : "without", here ? "without" : "under");
}

/* Writes a leaf as manuals of processors do, from "LEAF.SUB REG", which is decimal. A key of
 * another form, as a peer may send it, stays as it is. */
static void name_leaf(const char *key, char out[64])
{
    char reg[9];
    uint32_t leaf, sub;
    if (sscanf(key, "%" SCNu32 ".%" SCNu32 " %8s", &leaf, &sub, reg) == 3)
        snprintf(out, 64, "%#" PRIx32 ", %" PRIu32 ", %s", leaf, sub, reg);
    else
        snprintf(out, 64, "%.40s", key);
}

/* Reports features that the destination lacks; additional ones do no harm. */
static void compare_features(const struct ibx_comparison *c)
{
    const char *key;
    json_t *value;
    const json_t *there = json_object_get(c->destination, "cpuid");
    if (!json_is_object(there))
        return;
    json_object_foreach(json_object_get(c->source, "cpuid"), key, value)
    {
        const char *has = json_is_string(value) ? json_string_value(value) : "";
        char leaf[64];
        const unsigned long long missing =
            strtoull(has, NULL, 16) & ~strtoull(ibx_member(there, key), NULL, 16);
        if (!missing)
            continue;
        name_leaf(key, leaf);
        ibx_blockers_add(
            c->blockers,
            "the vCPUs have features here that they lack at the destination (cpuid %s, bits "
            "%#llx): start both QEMUs with a -cpu that both hosts have",
            leaf, missing);
        return;
    }
}

/* ------------------------------------------------------------ lists of texts */

static size_t count_of(const json_t *list, const char *text)
{
    size_t index, count = 0;
    json_t *item;
    json_array_foreach(list, index, item)
    {
        count += json_is_string(item) && !strcmp(json_string_value(item), text);
    }
    return count;
}

/* Collects the texts that `other` has less often than `list`. */
static void name_missing(const json_t *list, const json_t *other, struct ibx_names *missing)
{
    size_t index;
    json_t *item;
    json_array_foreach(list, index, item)
    {
        const char *text = json_is_string(item) ? json_string_value(item) : "";
        if (count_of(list, text) > count_of(other, text))
            ibx_names_add(missing, "%.120s", text);
    }
}

static void compare_lists(const struct ibx_comparison *c, const char *member, const char *remedy)
{
    const json_t *here = json_object_get(c->source, member),
                 *there = json_object_get(c->destination, member);
    struct ibx_names lacks = {.count = 0}, has = {.count = 0};
    char tail[32], other_tail[32];
    if (!json_is_array(here) || !json_is_array(there))
        return;
    name_missing(here, there, &lacks);
    name_missing(there, here, &has);
    if (lacks.count && has.count)
        ibx_blockers_add(c->blockers, "the VM has %s%s here and %s%s at the destination: %s",
                         lacks.text, ibx_names_more(&lacks, tail), has.text,
                         ibx_names_more(&has, other_tail), remedy);
    else if (lacks.count)
        ibx_blockers_add(c->blockers, "the destination lacks %s%s: %s", lacks.text,
                         ibx_names_more(&lacks, tail), remedy);
    else if (has.count)
        ibx_blockers_add(c->blockers, "the destination has %s%s, which the VM here has not: %s",
                         has.text, ibx_names_more(&has, tail), remedy);
}

static const char *text_of(const json_t *item)
{
    return json_is_string(item) ? json_string_value(item) : "";
}

/* Reports two backends of equal size that are swapped between nodes or DIMMs: QEMU would refuse the
 * device state, after the stop. Backends that only one side has are reported elsewhere. */
static void compare_order(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "order"),
                 *there = json_object_get(c->destination, "order");
    struct ibx_names is = {.count = 0}, other = {.count = 0};
    char tail[32], other_tail[32];
    size_t index;
    json_t *item;
    if (!json_is_array(here) || !json_is_array(there) || json_equal(here, there))
        return;
    name_missing(here, there, &is);
    name_missing(there, here, &other);
    if (is.count || other.count || json_array_size(here) != json_array_size(there))
        return;
    json_array_foreach(here, index, item)
    {
        if (json_equal(item, json_array_get(there, index)))
            continue;
        ibx_names_add(&is, "%.60s", text_of(item));
        ibx_names_add(&other, "%.60s", text_of(json_array_get(there, index)));
    }
    ibx_blockers_add(c->blockers,
                     "guest RAM lies in the order %s%s here and %s%s at the destination: give each "
                     "node (-numa node,memdev=) and each DIMM (memdev=) the backend there that it "
                     "has here",
                     is.text, ibx_names_more(&is, tail), other.text,
                     ibx_names_more(&other, other_tail));
}

/* ------------------------------------------------------------ RAM of devices and firmware */

static uint64_t bytes_of(const json_t *block, size_t at)
{
    return (uint64_t)json_integer_value(json_array_get(block, at));
}

/* Compares RAM blocks of devices and firmware: QEMU refuses a block that it does not have, or whose
 * size does not fit. A block that may grow takes any size up to its maximum. */
static void compare_ram(const struct ibx_comparison *c)
{
    const char *id;
    json_t *here;
    const json_t *ram = json_object_get(c->destination, "ram");
    struct ibx_names missing = {.count = 0}, sizes = {.count = 0};
    char tail[32];
    json_object_foreach(json_is_object(ram) ? json_object_get(c->source, "ram") : NULL, id, here)
    {
        const json_t *there = json_object_get(ram, id);
        const uint64_t used = bytes_of(here, 0), own = bytes_of(there, 0),
                       most = bytes_of(there, 1);
        if (!there)
            ibx_names_add(&missing, "%.100s", id);
        else if (used != own && (own == most || used > most))
            ibx_names_add(&sizes, "%.100s (%" PRIu64 " bytes here and %" PRIu64 ")", id, used, own);
    }
    if (missing.count)
        ibx_blockers_add(c->blockers,
                         "the destination lacks memory of a device or of the firmware: %s%s: start "
                         "its QEMU with the same devices, ROMs and firmware as here",
                         missing.text, ibx_names_more(&missing, tail));
    if (sizes.count)
        ibx_blockers_add(c->blockers,
                         "memory of a device or of the firmware has another size at the "
                         "destination: %s%s: give both QEMUs images of one size (-bios, pflash, "
                         "romfile) and devices with the same memory",
                         sizes.text, ibx_names_more(&sizes, tail));
}

/* ------------------------------------------------------------ properties */

/* Whether the value means that QEMU chooses. A later version may report that, where an earlier one
 * reports what it has chosen. */
static bool left_to_qemu(const char *value)
{
    static const char *const values[] = {"", "-1", "4294967295", "18446744073709551615"};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        if (!strcmp(value, values[i]))
            return true;
    return false;
}

static const char *plain_word(const char *value)
{
    return !strcmp(value, "true") ? "on" : !strcmp(value, "false") ? "off" : value;
}

/* Whether two values differ. "auto" may mean any value. Between two versions of QEMU a property may
 * also have changed its type. */
static bool differ(const char *here, const char *there, bool same_version)
{
    if (!strcmp(here, there) || !strcmp(here, "auto") || !strcmp(there, "auto"))
        return false;
    return same_version || (!left_to_qemu(here) && !left_to_qemu(there) &&
                            strcmp(plain_word(here), plain_word(there)) != 0);
}

/* A property whose value is an object, as JSON text (smp): only the members that differ. False: it
 * is none. */
static bool name_members(const char *key, const char *here, const char *there,
                         struct ibx_names *names)
{
    json_t *from = json_loads(here, 0, NULL), *to = json_loads(there, 0, NULL), *is;
    const unsigned before = names->count;
    const char *member;
    json_object_foreach(from, member, is)
    {
        const json_t *other = json_object_get(to, member);
        if (json_is_integer(is) && json_is_integer(other) && !json_equal(is, other))
            ibx_names_add(names, "%.20s %.30s is %lld here and %lld", key, member,
                          (long long)json_integer_value(is), (long long)json_integer_value(other));
    }
    json_decref(from);
    json_decref(to);
    return names->count > before;
}

/* Collects properties that differ; one that only one side has belongs to another version of QEMU.
 * `remedy` gets the source's values, in the form in which the destination needs them. */
static unsigned differences(const json_t *source, const json_t *destination, bool same_version,
                            struct ibx_names *names, struct ibx_names *remedy)
{
    const char *key;
    json_t *value;
    unsigned count = 0;
    json_object_foreach((json_t *)(uintptr_t)source, key, value)
    {
        const json_t *other = json_object_get(destination, key);
        const char *here = json_is_string(value) ? json_string_value(value) : "";
        if (!json_is_string(other) || !differ(here, json_string_value(other), same_version))
            continue;
        count++;
        if (names && !name_members(key, here, json_string_value(other), names))
            ibx_names_add(names, "%.60s is %.60s here and %.60s", key, *here ? here : "\"\"",
                          *json_string_value(other) ? json_string_value(other) : "\"\"");
        if (remedy)
            ibx_names_add(remedy, "%.60s=%.60s", key, here);
    }
    return count;
}

static void compare_machine(const struct ibx_comparison *c)
{
    struct ibx_names names = {.count = 0};
    char tail[32];
    differences(json_object_get(c->source, "machine"), json_object_get(c->destination, "machine"),
                true, &names, NULL);
    if (names.count)
        ibx_blockers_add(c->blockers,
                         "the machine differs: %s at the destination%s: start its QEMU with the "
                         "same -M, -m and -smp as here",
                         names.text, ibx_names_more(&names, tail));
}

void ibx_compare_machines(const struct ibx_comparison *c)
{
    compare_accelerators(c);
    compare_processors(c);
    if (!accelerators_differ(c)) { /* features follow from the accelerator */
        compare_features(c);
        ibx_compare_cpu_properties(c);
    }
    if (json_array_size(json_object_get(c->source, "cpus")) ==
        json_array_size(json_object_get(c->destination, "cpus")))
        compare_lists(c, "cpus", "plug in the same vCPUs as here");
    compare_lists(c, "numa", "start its QEMU with the same -numa as here");
    compare_lists(
        c, "memory",
        "start its QEMU with the same memory devices (addr=, slot=, node=, block-size=) as "
        "here, also those that were plugged in since");
    compare_order(c);
    compare_lists(c, "backends",
                  "it has a part of its own in the device state, so both QEMUs need it, or none");
    compare_ram(c);
    if (!c->same_version)
        return;
    compare_machine(c);
    if (json_array_size(json_object_get(c->source, "user-networks")) ==
        json_array_size(json_object_get(c->destination, "user-networks")))
        compare_lists(
            c, "user-networks",
            "start its QEMU with the same -netdev user as here, since the guest keeps its "
            "address and gateway");
}

/* ------------------------------------------------------------ devices */

static bool fits(const json_t *a, const json_t *b)
{
    return !strcmp(ibx_member(a, "type"), ibx_member(b, "type")) &&
           !strcmp(ibx_member(a, "at"), ibx_member(b, "at"));
}

/* Finds a device of the same type in the same place that is not taken yet; with `alike` it must
 * have the same properties. */
static const json_t *take_partner(const json_t *others, char *taken, const json_t *device,
                                  bool alike)
{
    size_t index;
    json_t *other;
    json_array_foreach(others, index, other)
    {
        if (taken[index] || !fits(device, other) ||
            (alike && differences(json_object_get(device, "properties"),
                                  json_object_get(other, "properties"), true, NULL, NULL)))
            continue;
        taken[index] = 1;
        return other;
    }
    return NULL;
}

static void name_device(struct ibx_names *names, const json_t *device)
{
    ibx_names_add(names, "%.50s @ %.70s", ibx_member(device, "type"), ibx_member(device, "at"));
}

/* Whether a device is compared. Between two versions of QEMU only plugged ones are: those of the
 * board differ, and QEMU can convert their state. */
static bool counts(const json_t *device, bool same_version)
{
    return same_version || json_is_true(json_object_get(device, "plugged"));
}

static void compare_pair(const json_t *device, const json_t *other, bool same_version,
                         struct ibx_blockers *blockers)
{
    struct ibx_names names = {.count = 0}, remedy = {.count = 0};
    char tail[32];
    differences(json_object_get(device, "properties"), json_object_get(other, "properties"),
                same_version, &names, &remedy);
    /* This property of the board follows from -m, and cannot be set otherwise. */
    const bool memory = strstr(remedy.text, "-4g-mem-size=");
    if (names.count)
        ibx_blockers_add(blockers,
                         "device %.60s @ %.90s differs: %s at the destination%s: start its QEMU "
                         "with %s%s",
                         ibx_member(device, "type"), ibx_member(device, "at"), names.text,
                         ibx_names_more(&names, tail), memory ? "the same -m as here" : remedy.text,
                         memory ? "" : " for it");
}

static void report_missing(const struct ibx_names *lacks, const struct ibx_names *has,
                           struct ibx_blockers *blockers)
{
    char tail[32];
    if (lacks->count)
        ibx_blockers_add(blockers,
                         "the destination lacks %s%s: start its QEMU with the same devices in the "
                         "same places as here, also those that were plugged in since",
                         lacks->text, ibx_names_more(lacks, tail));
    if (has->count)
        ibx_blockers_add(blockers,
                         "the destination has %s%s, which the VM here has not: start its QEMU "
                         "with the same devices in the same places as here",
                         has->text, ibx_names_more(has, tail));
}

/* Pairs devices of both lists and compares them. Devices of the board have no distinct places, so
 * those that are alike are paired first. */
static void compare_lists_of_devices(const json_t *here, const json_t *there, char *done,
                                     char *taken, bool same_version, struct ibx_blockers *blockers)
{
    struct ibx_names lacks = {.count = 0}, has = {.count = 0};
    size_t index;
    json_t *device;
    json_array_foreach(here, index, device)
    {
        done[index] = take_partner(there, taken, device, true) != NULL;
    }
    json_array_foreach(here, index, device)
    {
        const json_t *other = done[index] ? NULL : take_partner(there, taken, device, false);
        if (done[index] || !counts(device, same_version))
            continue;
        if (other)
            compare_pair(device, other, same_version, blockers);
        else
            name_device(&lacks, device);
    }
    json_array_foreach(there, index, device)
    {
        if (!taken[index] && counts(device, same_version))
            name_device(&has, device);
    }
    report_missing(&lacks, &has, blockers);
}

void ibx_compare_devices(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "devices"),
                 *there = json_object_get(c->destination, "devices");
    if (!json_is_array(here) || !json_is_array(there))
        return;
    char *done = calloc(json_array_size(here) + 1, 1);
    char *taken = calloc(json_array_size(there) + 1, 1);
    /* KVM has timers and interrupt controllers of its own. */
    const bool same_board = c->same_version && !accelerators_differ(c);
    if (done && taken)
        compare_lists_of_devices(here, there, done, taken, same_board, c->blockers);
    free(done);
    free(taken);
}
