/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compares what two command lines give to the guest, and that QEMU does not compare itself. */
#include "migrate/preflight/description.h"

#include <stdio.h>
#include <string.h>

static const char *icount(const json_t *value, char out[64])
{
    const char *text = json_string_value(value);
    snprintf(out, 64, *text ? "by -icount %.40s" : "without -icount", text);
    return out;
}

/* The guest would have another clock from then on, or one that has jumped. */
static void compare_clocks(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "icount"),
                 *there = json_object_get(c->destination, "icount");
    const char *clock = ibx_member(c->source, "rtc-clock"),
               *other = ibx_member(c->destination, "rtc-clock");
    char text[2][64];
    if (json_is_string(here) && json_is_string(there) && !json_equal(here, there))
        ibx_blockers_add(c->blockers,
                         "the guest's clock goes %s here and %s at the destination: start its QEMU "
                         "with the same -icount as here",
                         icount(here, text[0]), icount(there, text[1]));
    if (*clock && *other && strcmp(clock, other))
        ibx_blockers_add(c->blockers,
                         "the real-time clock goes by -rtc clock=%.32s here and by clock=%.32s at "
                         "the destination, where it would show another time: start its QEMU with "
                         "-rtc clock=%.32s",
                         clock, other, clock);
}

/* A guest knows these files by numbers, which are those of other files if one is missing. */
static void compare_files(const struct ibx_comparison *c)
{
    json_t *here = json_object_get(c->source, "fw_cfg"),
           *there = json_object_get(c->destination, "fw_cfg");
    struct ibx_names lacks = {.count = 0}, has = {.count = 0}, differ = {.count = 0};
    char tail[32];
    const char *name;
    json_t *value;
    if (!json_is_object(here) || !json_is_object(there))
        return;
    json_object_foreach(here, name, value)
    {
        const char *digest = ibx_member(here, name), *other = ibx_member(there, name);
        if (!json_object_get(there, name))
            ibx_names_add(&lacks, "%.60s", name);
        else if (*digest && *other && strcmp(digest, other))
            ibx_names_add(&differ, "%.60s", name);
    }
    json_object_foreach(there, name, value)
    {
        if (!json_object_get(here, name))
            ibx_names_add(&has, "%.60s", name);
    }
    if (lacks.count)
        ibx_blockers_add(c->blockers,
                         "the destination lacks %s%s: start its QEMU with the same -fw_cfg as here",
                         lacks.text, ibx_names_more(&lacks, tail));
    if (has.count)
        ibx_blockers_add(c->blockers,
                         "the destination has %s%s, which the VM here has not: start its QEMU with "
                         "the same -fw_cfg as here",
                         has.text, ibx_names_more(&has, tail));
    if (differ.count)
        ibx_blockers_add(c->blockers,
                         "the destination has another text in %s%s: start its QEMU with the same "
                         "-fw_cfg string= as here",
                         differ.text, ibx_names_more(&differ, tail));
}

static bool has_equal(const json_t *list, const json_t *wanted)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        if (json_equal(item, wanted))
            return true;
    }
    return false;
}

/* The guest sees these tables only when it boots, and some differ between hosts on purpose. */
static void note_smbios(const struct ibx_comparison *c)
{
    const json_t *lists[] = {json_object_get(c->source, "smbios"),
                             json_object_get(c->destination, "smbios")};
    size_t i;
    json_t *item;
    if (!json_is_array(lists[0]) || !json_is_array(lists[1]))
        return;
    for (unsigned side = 0; side < 2; side++) {
        json_array_foreach(lists[side], i, item)
        {
            const char *type = json_string_value(json_array_get(item, 0));
            if (has_equal(lists[!side], item))
                continue;
            ibx_blockers_note(c->blockers,
                              "-smbios type=%.16s differs at the destination, which the guest "
                              "would see when it boots again: start that QEMU with the same "
                              "-smbios as here, unless this is on purpose",
                              type ? type : "?");
            return;
        }
    }
}

/* Some differ on purpose: whoever manages the VM here may not be there. A change by a monitor
 * (set-action) is not seen. */
static void note_actions(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "actions"),
                 *there = json_object_get(c->destination, "actions");
    if (!json_is_object(here) || !json_is_object(there))
        return;
    for (size_t i = 0; i < IBX_ACTIONS; i++) {
        const char *event = ibx_actions[i].event, *usual = ibx_actions[i].usual;
        const char *own = ibx_member(here, event), *other = ibx_member(there, event);
        own = *own ? own : usual;
        other = *other ? other : usual;
        if (strcmp(own, other) != 0)
            ibx_blockers_note(c->blockers,
                              "QEMU has -action %s=%.16s here and %s=%.16s at the destination, "
                              "where that may end the VM, or not end it: start that QEMU with the "
                              "same -action, -no-reboot and -no-shutdown as here, unless this is "
                              "on purpose",
                              event, own, event, other);
    }
}

void ibx_compare_options(const struct ibx_comparison *c)
{
    compare_clocks(c);
    compare_files(c);
    note_smbios(c);
    note_actions(c);
}
