/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compares what cpuid tells a guest besides features, which QEMU does not compare itself. */
#include "migrate/preflight/description.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct ibx_cpu_property ibx_cpu_properties[] = {
    {"vendor", IBX_CPU_SAME},
    {"level", IBX_CPU_LEVEL},
    {"xlevel", IBX_CPU_LEVEL},
    {"xlevel2", IBX_CPU_LEVEL},
    {"phys-bits", IBX_CPU_LEAST},
    {"family", IBX_CPU_BY_MODEL},
    {"model", IBX_CPU_BY_MODEL},
    {"stepping", IBX_CPU_BY_MODEL},
    {"model-id", IBX_CPU_BY_MODEL},
    {"l3-cache", IBX_CPU_SAME},
    {"legacy-cache", IBX_CPU_SAME},
    {"cpuid-0xb", IBX_CPU_SAME},
    {"vmware-cpuid-freq", IBX_CPU_SAME},
    {"tcg-cpuid", IBX_CPU_SAME},
    {"kvm", IBX_CPU_SAME},
    {"pmu", IBX_CPU_SAME},
    {"lmce", IBX_CPU_SAME},
    {"hv-vendor-id", IBX_CPU_SAME},
    {"hv-spinlocks", IBX_CPU_SAME},
    {"hv-relaxed", IBX_CPU_SAME},
    {"hv-vapic", IBX_CPU_SAME},
    {"hv-time", IBX_CPU_SAME},
    {"hv-crash", IBX_CPU_SAME},
    {"hv-reset", IBX_CPU_SAME},
    {"hv-vpindex", IBX_CPU_SAME},
    {"hv-runtime", IBX_CPU_SAME},
    {"hv-synic", IBX_CPU_SAME},
    {"hv-stimer", IBX_CPU_SAME},
    {"hv-stimer-direct", IBX_CPU_SAME},
    {"hv-frequencies", IBX_CPU_SAME},
    {"hv-reenlightenment", IBX_CPU_SAME},
    {"hv-tlbflush", IBX_CPU_SAME},
    {"hv-evmcs", IBX_CPU_SAME},
    {"hv-ipi", IBX_CPU_SAME},
    {"hv-avic", IBX_CPU_SAME},
    {"hv-syndbg", IBX_CPU_SAME},
    {"hv-xmm-input", IBX_CPU_SAME},
    {"hv-passthrough", IBX_CPU_SAME},
};
const size_t ibx_cpu_property_count = sizeof(ibx_cpu_properties) / sizeof(ibx_cpu_properties[0]);

static const char *text_of(const json_t *value, char out[64])
{
    if (json_is_string(value))
        snprintf(out, 64, "%.60s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(out, 64, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        snprintf(out, 64, "%s", json_is_true(value) ? "on" : "off");
    return out;
}

static bool is_lower(const json_t *here, const json_t *there)
{
    return json_is_integer(here) && json_is_integer(there) &&
           json_integer_value(there) < json_integer_value(here);
}

static bool differ(const struct ibx_cpu_property *property, const json_t *here, const json_t *there)
{
    const bool may_be_higher = property->rule == IBX_CPU_LEAST || property->rule == IBX_CPU_LEVEL;
    return here && there && (may_be_higher ? is_lower(here, there) : !json_equal(here, there));
}

/* What -cpu host shows of the host. Levels are those of its KVM, so another version of Linux has
 * others; the features of all levels are compared elsewhere. */
static bool is_by_host(const struct ibx_cpu_property *property)
{
    return property->rule == IBX_CPU_BY_MODEL || property->rule == IBX_CPU_LEVEL;
}

/* -cpu host or max: what the processor of the host is. */
static bool is_of_host(const json_t *description)
{
    const char *type = ibx_member(description, "cpu");
    return !strncmp(type, "host-", 5) || !strncmp(type, "max-", 4);
}

static void add(struct ibx_names *names, const char *name, const json_t *here, const json_t *there)
{
    char values[2][64];
    ibx_names_add(names, "%s is %s here and %s", name, text_of(here, values[0]),
                  text_of(there, values[1]));
}

/* A later version of QEMU may report what an earlier one leaves to its accelerator: between two
 * versions only what a guest certainly sees is compared. */
void ibx_compare_cpu_properties(const struct ibx_comparison *c)
{
    const json_t *from = json_object_get(c->source, "cpu-properties"),
                 *to = json_object_get(c->destination, "cpu-properties");
    const bool of_host = is_of_host(c->source) && is_of_host(c->destination);
    struct ibx_names worse = {.count = 0}, other = {.count = 0};
    char tail[32];
    if (strcmp(ibx_member(c->source, "cpu"), ibx_member(c->destination, "cpu")))
        return; /* reported, and everything is different */
    for (size_t i = 0; i < ibx_cpu_property_count; i++) {
        const struct ibx_cpu_property *property = &ibx_cpu_properties[i];
        const json_t *here = json_object_get(from, property->name),
                     *there = json_object_get(to, property->name);
        if (!differ(property, here, there) || (!c->same_version && property->rule == IBX_CPU_SAME &&
                                               strcmp(property->name, "vendor")))
            continue;
        add(of_host && is_by_host(property) ? &other : &worse, property->name, here, there);
    }
    if (worse.count)
        ibx_blockers_add(c->blockers,
                         "the vCPUs differ: %s at the destination%s: start its QEMU with the same "
                         "-cpu as here",
                         worse.text, ibx_names_more(&worse, tail));
    if (other.count)
        ibx_blockers_note(
            c->blockers,
            "the hosts' processors or their KVM differ (%s at the destination%s), and so does "
            "what -cpu host or max shows: a -cpu by name is the same everywhere",
            other.text, ibx_names_more(&other, tail));
}
