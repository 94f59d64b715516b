/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which RDMA devices this host has, and which of its addresses lie on them. */
#include "transport/verbs/verbs.h"

#include "common/address.h"
#include "common/library_environment.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEVICES "/sys/class/infiniband"

/* --------------------------------------------------------------------- names */

unsigned ibx_verbs_mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

enum ibv_mtu ibx_verbs_mtu_code(unsigned bytes)
{
    enum ibv_mtu code = IBV_MTU_4096;
    while (code > IBV_MTU_256 && ibx_verbs_mtu_bytes(code) > bytes)
        code--;
    return code;
}

void ibx_verbs_address_print(const struct sockaddr *address, char *out, size_t size)
{
    size_t length;
    const void *host = ibx_address_host(address, &length);
    if (!host || !inet_ntop(address->sa_family, host, out, (socklen_t)size))
        snprintf(out, size, "?");
}

bool ibx_verbs_device_name(const struct ibx_options *options, unsigned n, char *name, size_t size)
{
    const char *p = options->device;
    for (; n && *p; n--) {
        p += strcspn(p, ",");
        p += *p == ',';
    }
    snprintf(name, size, "%.*s", (int)strcspn(p, ","), p);
    return name[0] != '\0';
}

/* ------------------------------------------------------------------- probing */

/* Gb/s of a port, as "200 Gb/sec (4X HDR)" in sysfs; 0: unknown. */
static double port_rate(const char *device, unsigned port)
{
    char path[128];
    double rate = 0;
    snprintf(path, sizeof(path), DEVICES "/%s/ports/%u/rate", device, port);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%lf", &rate) != 1)
        rate = 0;
    if (f)
        fclose(f);
    return rate;
}

/* Tries the file itself: if libibverbs may not open it, it looks elsewhere, and leaves the errno of
 * that. */
int ibx_verbs_file_check(const char *name, const char *module, struct ibx_error *err)
{
    char path[96];
    snprintf(path, sizeof(path), "/dev/infiniband/%s", name);
    const int fd = open(path, O_RDWR | O_CLOEXEC), code = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    if (code == ENOENT || code == ENXIO || code == ENODEV)
        return ibx_error_set(err, -code,
                             "%s: %s: modprobe %s, or give /dev/infiniband to this container", path,
                             strerror(code), module);
    if (code == EACCES || code == EPERM)
        return ibx_error_set(err, -code, "%s: %s: give this user access to it", path,
                             strerror(code));
    return code ? ibx_error_set(err, -code, "%s: %s", path, strerror(code)) : 0;
}

/* Writes "mlx5_0 port 1 active, Ethernet, 200 Gb/s, mtu 4096; " for each port. Returns how many are
 * active. */
static unsigned describe_device(struct ibv_device *device, const struct ibx_options *options,
                                char *out, size_t size)
{
    struct ibv_context *context = ibv_open_device(device);
    const char *name = ibv_get_device_name(device);
    struct ibv_device_attr attr;
    size_t n = strlen(out);
    unsigned active = 0;
    if (!context || ibv_query_device(context, &attr)) {
        struct ibx_error why;
        ibx_error_set(&why, -errno, "%s", strerror(errno));
        if (!context)
            ibx_verbs_file_check(device->dev_name, "ib_uverbs", &why);
        snprintf(out + n, size - n, "%s%s cannot be opened: %s", n ? "; " : "", name, why.message);
        attr.phys_port_cnt = 0;
    }
    for (uint8_t i = 1; i <= attr.phys_port_cnt; i++) {
        struct ibv_port_attr port;
        if ((options->port_num && options->port_num != i) || ibv_query_port(context, i, &port))
            continue;
        bool up = port.state == IBV_PORT_ACTIVE;
        active += up;
        n = strlen(out);
        snprintf(out + n, size - n, "%s%s port %u %s, %s, %g Gb/s, mtu %u", n ? "; " : "", name, i,
                 up ? "active" : ibv_port_state_str(port.state),
                 port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
                 port_rate(name, i), ibx_verbs_mtu_bytes(port.active_mtu));
    }
    if (context)
        ibv_close_device(context);
    return active;
}

/* Whether the kernel has a device, for which libibverbs may find no file. */
static bool kernel_has_device(char *name, size_t size)
{
    DIR *folder = opendir(DEVICES);
    const struct dirent *entry = NULL;
    while (folder && (entry = readdir(folder)) && entry->d_name[0] == '.')
        ;
    if (entry)
        snprintf(name, size, "%s", entry->d_name);
    if (folder)
        closedir(folder);
    return entry;
}

/* `*out` ends with NULL; for ibv_free_device_list(). */
static int device_list(struct ibv_device ***out, struct ibx_error *err)
{
    const int unsafe = ibx_library_environment_check(err);
    if (unsafe)
        return unsafe;
    struct ibv_device **list = ibv_get_device_list(NULL);
    if (list && list[0]) {
        *out = list;
        return 0;
    }
    if (list)
        ibv_free_device_list(list);
    char name[64];
    if (kernel_has_device(name, sizeof(name)))
        ibx_error_set(err, -ENODEV,
                      "the kernel has the RDMA device %s, but /dev/infiniband has no file for it: "
                      "modprobe ib_uverbs, or give /dev/infiniband to this container",
                      name);
    else
        ibx_error_set(
            err, -ENODEV,
            "no RDMA device (rdma_rxe can emulate one: modprobe rdma_rxe; rdma link add rxe0 "
            "type rxe netdev ETHERNET)");
    return -ENODEV;
}

int ibx_verbs_device_any(struct ibx_error *err)
{
    struct ibv_device **list = NULL;
    int rc = device_list(&list, err);
    if (!rc)
        ibv_free_device_list(list);
    return rc;
}

static bool named(const struct ibx_options *options, const char *device)
{
    char name[64];
    for (unsigned i = 0; ibx_verbs_device_name(options, i, name, sizeof(name)); i++) {
        if (!strcmp(name, device))
            return true;
    }
    return !options->device[0];
}

int ibx_verbs_probe(const struct ibx_options *options, char *description, size_t size,
                    struct ibx_error *err)
{
    unsigned active = 0, seen = 0;
    struct ibv_device **list = NULL;
    int rc = device_list(&list, err);
    if (rc)
        return rc;
    char text[512] = "";
    for (unsigned i = 0; list[i]; i++) {
        if (!named(options, ibv_get_device_name(list[i])))
            continue;
        seen++;
        active += describe_device(list[i], options, text, sizeof(text));
    }
    const char *first = ibv_get_device_name(list[0]);
    rc = seen && active ? ibx_verbs_file_check("rdma_cm", "rdma_ucm", err) : 0;
    if (!seen)
        rc = ibx_error_set(err, -ENODEV, "there is no RDMA device %s here; there is %s",
                           options->device, first);
    else if (!active)
        rc = ibx_error_set(err, -ENETDOWN, "no port can be used: %s", text);
    else if (!rc)
        snprintf(description, size, "%s", text);
    ibv_free_device_list(list);
    return rc;
}

/* ----------------------------------------------------------------- addresses */

/* The address behind GID `index` of a RoCE port: RoCE's GIDs are the interface's addresses. */
static int gid_address(struct ibv_context *context, uint8_t port, int index,
                       struct sockaddr_storage *address)
{
    union ibv_gid gid;
    struct ibv_port_attr attr;
    if (ibv_query_port(context, port, &attr) || attr.link_layer != IBV_LINK_LAYER_ETHERNET ||
        ibv_query_gid(context, port, index, &gid))
        return -ENOENT;
    ibx_address_make(address, gid.raw, sizeof(gid.raw), 0);
    return 0;
}

/* What an address of this host has to fit. */
struct wanted {
    const struct ibx_options *options;
    const char *device;       /* "" any */
    struct verbs_port *ports; /* taken by other rails, and one more to be filled */
    unsigned count;
};

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool taken_already(const struct wanted *wanted, const struct verbs_port *port)
{
    for (unsigned i = 0; i < wanted->count; i++) {
        if (!strcmp(wanted->ports[i].device, port->device) &&
            wanted->ports[i].port_num == port->port_num)
            return true;
    }
    return false;
}

/* Whether binding to `address` leads to the wanted device, port and GID, and if so, a copy in *out.
 * rdma_cm binds alike for RoCE and for IP over InfiniBand. */
static bool address_fits(const struct wanted *wanted, struct rdma_event_channel *channel,
                         const struct sockaddr *address, struct sockaddr_storage *out)
{
    struct rdma_cm_id *id;
    struct verbs_port port = {.device = ""};
    if (is_loopback(address) || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
        return false;
    bool fits = !rdma_bind_addr(id, (struct sockaddr *)(uintptr_t)address) && id->verbs;
    if (fits) {
        snprintf(port.device, sizeof(port.device), "%s", ibv_get_device_name(id->verbs->device));
        port.port_num = id->port_num;
        fits = !taken_already(wanted, &port);
    }
    if (fits && wanted->device[0])
        fits = !strcmp(port.device, wanted->device);
    if (fits && wanted->options->port_num)
        fits = id->port_num == wanted->options->port_num;
    struct ibv_port_attr attr;
    if (fits)
        fits = !ibv_query_port(id->verbs, id->port_num, &attr) && attr.state == IBV_PORT_ACTIVE;
    struct sockaddr_storage gid;
    if (fits && wanted->options->gid_index >= 0 &&
        !gid_address(id->verbs, id->port_num, wanted->options->gid_index, &gid))
        fits = ibx_address_same((const struct sockaddr *)&gid, address);
    rdma_destroy_id(id);
    if (!fits)
        return false;
    wanted->ports[wanted->count] = port;
    memset(out, 0, sizeof(*out));
    memcpy(out, address,
           address->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                         : sizeof(struct sockaddr_in6));
    return true;
}

/* A link-local address means nothing to a peer that does not know which of its links it is on. */
static bool is_link_local(const struct sockaddr *address)
{
    return address->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

static bool find_address(const struct wanted *wanted, sa_family_t family, bool link_local,
                         struct rdma_event_channel *channel, const struct ifaddrs *all,
                         struct sockaddr_storage *address)
{
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP))
            continue;
        sa_family_t found = i->ifa_addr->sa_family;
        if ((found == AF_INET || found == AF_INET6) && (!family || found == family) &&
            is_link_local(i->ifa_addr) == link_local &&
            address_fits(wanted, channel, i->ifa_addr, address))
            return true;
    }
    return false;
}

static int no_address(const struct wanted *wanted, struct ibx_error *err)
{
    char detail[64] = "";
    if (wanted->options->gid_index >= 0)
        snprintf(detail, sizeof(detail), " with GID index %d", wanted->options->gid_index);
    return ibx_error_set(err, -ENODEV,
                         "no address of this host lies on an active port of %s%s%s: give its "
                         "network interface an address, or choose another device",
                         wanted->device[0] ? wanted->device : "an RDMA device", detail,
                         wanted->count ? " that no other rail has" : "");
}

int ibx_verbs_device_address(const struct ibx_options *options, const char *device,
                             const struct sockaddr *prefer, struct verbs_port *ports,
                             unsigned count, struct sockaddr_storage *address,
                             struct ibx_error *err)
{
    struct wanted wanted = {options, device, ports, count};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct ifaddrs *all = NULL;
    if (!channel || getifaddrs(&all)) {
        int code = errno;
        if (channel)
            rdma_destroy_event_channel(channel);
        return ibx_error_set(err, -code, "cannot look up an RDMA device's address: %s",
                             strerror(code));
    }
    bool found =
        (prefer && address_fits(&wanted, channel, prefer, address)) ||
        (prefer && find_address(&wanted, prefer->sa_family, false, channel, all, address)) ||
        find_address(&wanted, AF_UNSPEC, false, channel, all, address) ||
        find_address(&wanted, AF_UNSPEC, true, channel, all, address);
    freeifaddrs(all);
    rdma_destroy_event_channel(channel);
    return found ? 0 : no_address(&wanted, err);
}

int ibx_verbs_device_check(const struct ibx_options *options, unsigned rail,
                           const struct rdma_cm_id *id, struct ibx_error *err)
{
    const char *name = ibv_get_device_name(id->verbs->device);
    char wanted[64];
    if (id->verbs->device->transport_type != IBV_TRANSPORT_IB)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "%s is neither an InfiniBand nor a RoCE device: use ofi or tcp", name);
    if (ibx_verbs_device_name(options, rail, wanted, sizeof(wanted)) && strcmp(wanted, name))
        return ibx_error_set(err, -EINVAL,
                             "device %s was asked for but the route leads through %s: change "
                             "device, or the route",
                             wanted, name);
    if (options->port_num && options->port_num != id->port_num)
        return ibx_error_set(err, -EINVAL,
                             "port_num %u was asked for but the route leads through port %u of %s",
                             options->port_num, id->port_num, name);
    struct ibv_port_attr port;
    unsigned mtu = 0;
    if (!ibv_query_port(id->verbs, id->port_num, &port))
        mtu = ibx_verbs_mtu_bytes(port.active_mtu);
    if (options->mtu > mtu)
        return ibx_error_set(err, -EINVAL,
                             "mtu %u was asked for but port %u of %s carries %u bytes: raise the "
                             "MTU of its network interface, or leave mtu out",
                             options->mtu, id->port_num, name, mtu);
    return 0;
}
