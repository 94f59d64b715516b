/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Preloaded in front of libibverbs: one device with three ports, of which the last does not answer.
 * Only who asks first sees it, which is ib-doctor itself: libfabric would go on to use it.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

static struct ibv_device device = {.name = "fake0"};

static int query_port(struct ibv_context *context, uint8_t number, struct ibv_port_attr *port,
                      size_t size)
{
    (void)context;
    memset(port, 0, size);
    if (number < 1 || number > 2)
        return EINVAL;
    port->active_mtu = number == 1 ? IBV_MTU_4096 : IBV_MTU_1024;
    return 0;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *in,
                           struct ibv_device_attr_ex *attr, size_t size)
{
    (void)context;
    (void)in;
    memset(attr, 0, size);
    attr->orig_attr.phys_port_cnt = 3;
    attr->orig_attr.max_qp = 77;
    return 0;
}

static struct verbs_context fake = {
    .query_port = query_port,
    .query_device_ex = query_device_ex,
    .sz = sizeof(fake),
    .context = {.device = &device, .abi_compat = __VERBS_ABI_IS_EXTENDED},
};

EXPORTED struct ibv_device **ibv_get_device_list(int *count)
{
    static bool asked;
    struct ibv_device **list = calloc(2, sizeof(struct ibv_device *));
    bool there = list && !asked;
    asked = true;
    if (there)
        list[0] = &device;
    if (count)
        *count = there;
    return list;
}

EXPORTED void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

EXPORTED const char *ibv_get_device_name(struct ibv_device *of)
{
    return of->name;
}

EXPORTED struct ibv_context *ibv_open_device(struct ibv_device *of)
{
    (void)of;
    return &fake.context;
}

EXPORTED int ibv_close_device(struct ibv_context *context)
{
    (void)context;
    return 0;
}
