/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* RDMA devices as sysfs shows them and, where libibverbs opens them, their limits. */
#include "tools/ib-doctor/ib-doctor.h"

#include "common/library_environment.h"

#include <stdio.h>
#include <string.h>

#ifdef IBX_WITH_VERBS
#include <infiniband/verbs.h>
#endif

#define DEVICES "/sys/class/infiniband"

/* GIDs that are set; an unset one is all zeros. */
static int count_gids(const char *port)
{
    char path[576], gid[64];
    struct dirent **names;
    snprintf(path, sizeof(path), "%s/gids", port);
    int total = ibx_doctor_list(path, &names), set = 0;
    for (int i = 0; i < total; i++) {
        snprintf(path, sizeof(path), "%s/gids/%s", port, names[i]->d_name);
        if (ibx_doctor_read(path, gid, sizeof(gid)))
            set += strspn(gid, "0:") != strlen(gid);
    }
    ibx_doctor_list_free(names, total);
    return set;
}

static void check_port(const char *device, const char *port)
{
    static const char *const files[] = {"state", "rate", "link_layer"};
    char base[256], path[320], found[3][64], label[48];
    snprintf(base, sizeof(base), DEVICES "/%.64s/ports/%.16s", device, port);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", base, files[i]);
        ibx_doctor_read(path, found[i], sizeof(found[i]));
    }
    snprintf(label, sizeof(label), "%.30s port %.8s", device, port);
    int gids = count_gids(base);
    const char *remedy = NULL;
    if (!strstr(found[0], "ACTIVE"))
        remedy = !strcmp(found[2], "InfiniBand") ? "plug the cable, start a subnet manager (opensm)"
                                                 : "plug the cable, bring its interface up";
    else if (!gids)
        remedy = "give its network interface an address";
    ibx_doctor_add("rdma", label, remedy ? DOCTOR_LIMITED : DOCTOR_OK, remedy,
                   "%s, %s, %s, %d GIDs", found[0], found[2], found[1], gids);
}

static void check_ports(const char *device)
{
    char path[320];
    struct dirent **ports;
    snprintf(path, sizeof(path), DEVICES "/%.64s/ports", device);
    int count = ibx_doctor_list(path, &ports);
    for (int i = 0; i < count; i++)
        check_port(device, ports[i]->d_name);
    ibx_doctor_list_free(ports, count);
}

#ifdef IBX_WITH_VERBS
/* The MTU in bytes of each port: "4096, 1024"; "?" for a port that does not answer. */
static void print_mtus(struct ibv_context *context, unsigned ports, char *out, size_t size)
{
    out[0] = '\0';
    for (unsigned i = 1; i <= ports; i++) {
        struct ibv_port_attr port = {0};
        size_t n = strlen(out);
        if (ibv_query_port(context, (uint8_t)i, &port))
            snprintf(out + n, size - n, "%s?", n ? ", " : "");
        else
            snprintf(out + n, size - n, "%s%u", n ? ", " : "", 128u << port.active_mtu);
    }
}

static void check_limits(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr_ex all = {0};
    const char *name = ibv_get_device_name(device);
    char mtus[48];
    if (!context || ibv_query_device_ex(context, NULL, &all)) {
        ibx_doctor_add("rdma", name, DOCTOR_MISSING,
                       "give this user access to /dev/infiniband/uverbs*", "cannot be opened");
    } else {
        const struct ibv_device_attr *a = &all.orig_attr;
        print_mtus(context, a->phys_port_cnt, mtus, sizeof(mtus));
        ibx_doctor_add("rdma", name, DOCTOR_OK, NULL,
                       "MTU %s, regions to %llu GiB, %d queue pairs, %d READs at once, ODP %s",
                       mtus, (unsigned long long)(a->max_mr_size >> 30), a->max_qp,
                       a->max_qp_rd_atom,
                       all.odp_caps.general_caps & IBV_ODP_SUPPORT ? "yes" : "no");
    }
    if (context)
        ibv_close_device(context);
}

static void check_all_limits(void)
{
    int count = 0;
    if (ibx_library_environment_check(NULL)) /* as the line of verbs says */
        return;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (int i = 0; list && i < count; i++)
        check_limits(list[i]);
    if (list)
        ibv_free_device_list(list);
}
#else
static void check_all_limits(void)
{
    ibx_doctor_add("rdma", "verbs", DOCTOR_MISSING, "build with libibverbs and librdmacm",
                   "not in this build");
}
#endif

void ibx_doctor_check_rdma(void)
{
    struct dirent **devices;
    int count = ibx_doctor_list(DEVICES, &devices);
    for (int i = 0; i < count; i++)
        check_ports(devices[i]->d_name);
    ibx_doctor_list_free(devices, count);
    if (!count)
        ibx_doctor_add("rdma", "devices", DOCTOR_MISSING,
                       "with an adapter: install rdma-core and its driver; without: \"modprobe "
                       "rdma_rxe; rdma link add rxe0 type rxe netdev ETHERNET\" emulates one",
                       "none");
    if (!ibx_doctor_root()[0])
        check_all_limits();
    if (count && !ibx_doctor_exists("/dev/infiniband/rdma_cm"))
        ibx_doctor_add("rdma", "rdma_cm", DOCTOR_MISSING,
                       "modprobe rdma_ucm, or give /dev/infiniband to this container",
                       "/dev/infiniband/rdma_cm is not there");
}
