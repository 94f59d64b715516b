/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Access Control Services of the PCI bridges above RDMA devices and GPUs. Where a bridge redirects
 * requests between devices, GPUDirect goes up to the root complex and back, slower or not at all.
 * Numbers are those of PCI Express Base 4.0, 7.6.3 and 7.7.8.
 */
#include "tools/ib-doctor/ib-doctor.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_BYTES      4096
#define CONFIG_PLAIN      256 /* where the extended capabilities begin */
#define CAPABILITY_ACS    0x000d
#define ACS_CONTROL       6
#define ACS_REDIRECTS     0x1c /* of requests and of completions; upstream forwarding */
#define ADDRESS_CHARS     12   /* 0000:00:00.0 */
#define BRIDGES_MAX       64
#define CLASS_DISPLAY     0x03
#define VENDOR_NVIDIA     0x10de
#define EXTENDED_CAPS_MAX ((CONFIG_BYTES - CONFIG_PLAIN) / 4)

enum acs { ACS_NONE, ACS_OFF, ACS_ON, ACS_HIDDEN };

struct bridges {
    char address[BRIDGES_MAX][ADDRESS_CHARS + 1];
    enum acs acs[BRIDGES_MAX];
    unsigned count;
    unsigned devices; /* below these bridges, or below none */
};

static bool is_address(const char *text, size_t length)
{
    unsigned domain, bus, slot, function;
    int used = 0;
    return length == ADDRESS_CHARS &&
           sscanf(text, "%4x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &used) == 4 &&
           used == ADDRESS_CHARS;
}

static unsigned u16_at(const uint8_t *config, size_t at)
{
    return config[at] | (unsigned)config[at + 1] << 8;
}

static enum acs acs_of(const uint8_t *config, size_t length)
{
    if (length < CONFIG_PLAIN)
        return ACS_HIDDEN;
    size_t at = CONFIG_PLAIN;
    for (int i = 0; i < EXTENDED_CAPS_MAX && at >= CONFIG_PLAIN && at + 8 <= length; i++) {
        if (u16_at(config, at) == CAPABILITY_ACS)
            return u16_at(config, at + ACS_CONTROL) & ACS_REDIRECTS ? ACS_ON : ACS_OFF;
        at = u16_at(config, at + 2) >> 4 & ~3u; /* the next one; the last one has 0 */
    }
    return ACS_NONE;
}

/* Reads the setting from configuration space, of which only root gets more than 64 bytes. */
static enum acs read_acs(const char *folder)
{
    char path[PATH_MAX + 8];
    uint8_t config[CONFIG_BYTES];
    snprintf(path, sizeof(path), "%s/config", folder);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, config, sizeof(config), 0);
    if (fd >= 0)
        close(fd);
    return n < 0 ? ACS_HIDDEN : acs_of(config, (size_t)n);
}

static void add_bridge(struct bridges *bridges, const char *folder, const char *address)
{
    for (unsigned i = 0; i < bridges->count; i++) {
        if (!strcmp(bridges->address[i], address))
            return;
    }
    if (bridges->count == BRIDGES_MAX)
        return;
    memcpy(bridges->address[bridges->count], address, ADDRESS_CHARS + 1);
    bridges->acs[bridges->count++] = read_acs(folder);
}

/* Adds the bridges above a device, in whose folders the device's folder is. */
static void add_bridges_above(struct bridges *bridges, const char *device)
{
    char path[PATH_MAX], address[ADDRESS_CHARS + 1];
    if (!realpath(ibx_doctor_path(device), path))
        return;
    bool bottom = true;
    for (char *slash; (slash = strrchr(path, '/')) && is_address(slash + 1, strlen(slash + 1));) {
        memcpy(address, slash + 1, sizeof(address));
        if (bottom)
            bridges->devices++;
        else
            add_bridge(bridges, path, address);
        bottom = false;
        *slash = '\0';
    }
}

static bool is_gpu(const char *folder)
{
    char path[320];
    snprintf(path, sizeof(path), "%s/vendor", folder);
    bool nvidia = ibx_doctor_read_number(path, 0) == VENDOR_NVIDIA;
    snprintf(path, sizeof(path), "%s/class", folder);
    return nvidia && ibx_doctor_read_number(path, 0) >> 16 == CLASS_DISPLAY;
}

/* Adds what `wanted` (NULL: everything) accepts of the devices that a folder lists. */
static void add_devices(struct bridges *bridges, const char *folder, const char *tail,
                        bool (*wanted)(const char *path))
{
    char path[288], device[320];
    struct dirent **names;
    int count = ibx_doctor_list(folder, &names);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof(path), "%s/%.200s", folder, names[i]->d_name);
        snprintf(device, sizeof(device), "%s%s", path, tail);
        if (!wanted || wanted(path))
            add_bridges_above(bridges, device);
    }
    ibx_doctor_list_free(names, count);
}

static unsigned count_of(const struct bridges *bridges, enum acs acs)
{
    unsigned count = 0;
    for (unsigned i = 0; i < bridges->count; i++)
        count += bridges->acs[i] == acs;
    return count;
}

static void report(const struct bridges *bridges)
{
    char list[80] = "";
    unsigned on = count_of(bridges, ACS_ON), hidden = count_of(bridges, ACS_HIDDEN), listed = 0;
    for (unsigned i = 0; i < bridges->count && listed < 4; i++) {
        if (bridges->acs[i] != ACS_ON)
            continue;
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%s", listed++ ? ", " : "", bridges->address[i]);
    }
    if (on)
        ibx_doctor_add(
            "system", "PCI ACS", DOCTOR_LIMITED,
            "copies between adapter and GPU go through the processor: switch ACS off in the "
            "firmware, or after each boot \"setpci -s ADDRESS ECAP_ACS+6.w=0\"; not where "
            "guests get such devices",
            "redirects on %u of %u bridges: %s%s", on, bridges->count, list,
            on > listed ? ", ..." : "");
    else if (hidden)
        ibx_doctor_add("system", "PCI ACS", DOCTOR_LIMITED, "run ib-doctor as root",
                       "cannot be read on %u of %u bridges above %u devices", hidden,
                       bridges->count, bridges->devices);
    else if (!bridges->devices)
        ibx_doctor_add("system", "PCI ACS", DOCTOR_OK, NULL, "no RDMA device or GPU on PCI");
    else
        ibx_doctor_add("system", "PCI ACS", DOCTOR_OK, NULL,
                       "no redirects on %u bridges above %u devices", bridges->count,
                       bridges->devices);
}

void ibx_doctor_check_acs(void)
{
    struct bridges bridges = {.count = 0};
    add_devices(&bridges, "/sys/class/infiniband", "/device", NULL);
    add_devices(&bridges, "/sys/bus/pci/devices", "", is_gpu);
    report(&bridges);
}
