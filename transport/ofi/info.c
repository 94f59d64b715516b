/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which of libfabric's providers carries a connection.
 *
 * libfabric lists everything that can do reliable datagrams and RMA, from Slingshot to plain
 * sockets. A *native* provider has a fabric under it; the others emulate one, and rdma:// prefers
 * this project's own shm and tcp to them.
 */
#include "transport/ofi/ofi.h"

#include "common/address.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT)

/* Best first. Layered names ("verbs;ofi_rxm") count by their first part. */
static const char *const natives[] = {"cxi", "efa", "opx", "psm2", "psm3", "psm", "verbs", "usnic"};
static const char *const emulations[] = {"tcp", "net", "sockets", "udp", "shm"};

/* ------------------------------------------------------------------- names */

bool ibx_ofi_name_matches(const char *name, const char *wanted)
{
    size_t base = strcspn(name, ";");
    return !strcmp(name, wanted) || (strlen(wanted) == base && !strncmp(name, wanted, base));
}

/* A provider's position from the end of the list, so that more is better; 0: it is not in the
 * list. */
static int rank_in(const char *name, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (ibx_ofi_name_matches(name, list[i]))
            return (int)(count - i);
    }
    return 0;
}

const char *ibx_ofi_version_text(void)
{
    static _Thread_local char text[16];
    snprintf(text, sizeof(text), "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    return text;
}

static bool is_rdma_device(const char *name)
{
    char path[320];
    if (!name || !*name || strchr(name, '/'))
        return false;
    snprintf(path, sizeof(path), "/sys/class/infiniband/%s", name);
    return !access(path, F_OK);
}

/* psm3 also runs over ordinary Ethernet interfaces, by sockets. */
static bool psm3_has_device(const struct fi_info *info)
{
    const char *nic = info->nic && info->nic->device_attr ? info->nic->device_attr->name : NULL;
    return is_rdma_device(nic) || is_rdma_device(info->domain_attr->name);
}

static bool is_native(const struct fi_info *info)
{
    const char *name = info->fabric_attr->prov_name;
    if (!rank_in(name, natives, sizeof(natives) / sizeof(*natives)))
        return false;
    return !ibx_ofi_name_matches(name, "psm3") || psm3_has_device(info);
}

static bool directory_has_entries(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(dir));)
        found = entry->d_name[0] != '.';
    closedir(dir);
    return found;
}

/* The first fi_getinfo() of a process takes 50 to 200 ms. Without it, too, it is known that a host
 * without any fabric device has nothing native. */
static bool fabric_device_exists(void)
{
    return directory_has_entries("/sys/class/infiniband") ||
           directory_has_entries("/sys/class/cxi");
}

static bool emulations_allowed(const struct ibx_options *options)
{
    return options->ofi_provider[0] || !strcmp(options->provider, "ofi");
}

/* ------------------------------------------------------------------ requesting */

static struct fi_info *make_hints(const char *provider, uint64_t op_flags, bool gpu)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        return NULL;
    hints->caps = FI_MSG | FI_RMA | (gpu ? FI_HMEM : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->tx_attr->op_flags = op_flags;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode = MR_MODES | (gpu ? FI_MR_HMEM : 0);
    if (provider) {
        hints->fabric_attr->prov_name = strdup(provider);
        if (!hints->fabric_attr->prov_name) {
            fi_freeinfo(hints);
            return NULL;
        }
    }
    return hints;
}

/* A list for fi_freeinfo(), or NULL when there is nothing. Frees the hints. */
static struct fi_info *list_of(struct fi_info *hints)
{
    struct fi_info *list = NULL;
    if (hints && fi_getinfo(IBX_OFI_API, NULL, NULL, 0, hints, &list))
        list = NULL;
    fi_freeinfo(hints);
    return list;
}

static struct fi_info *getinfo(const char *provider, uint64_t op_flags, bool gpu, int extra_mr_mode)
{
    struct fi_info *hints = make_hints(provider, op_flags, gpu);
    if (hints)
        hints->domain_attr->mr_mode |= extra_mr_mode;
    return list_of(hints);
}

/* Whether one domain can serve several threads, and sharing it saves something. It saves nothing
 * where a region belongs to one endpoint. Emulations pin nothing, but have one engine for a domain,
 * in which a page fault would wait for bulk: only tests share there. */
static bool can_be_shared(const struct fi_info *info, bool native)
{
    if (info->domain_attr->mr_mode & FI_MR_ENDPOINT ||
        (!native && !secure_getenv("IBX_OFI_SHARE_ALL")))
        return false;
    struct fi_info *hints = make_hints(info->fabric_attr->prov_name, 0, info->caps & FI_HMEM);
    if (hints)
        hints->domain_attr->threading = FI_THREAD_SAFE;
    struct fi_info *list = list_of(hints);
    fi_freeinfo(list);
    return list;
}

/* Whether to ask for GPU memory. That changes limits, and makes libfabric look for GPUs: so only
 * where there is a GPU and a device that could reach it. */
static bool gpu_wanted(void)
{
    return FI_VERSION_GE(fi_version(), IBX_OFI_API) && !access("/dev/nvidiactl", F_OK) &&
           fabric_device_exists();
}

/* ------------------------------------------------------------------- weighing */

static bool same_address(const struct sockaddr_storage *a, const void *other, size_t length)
{
    const struct sockaddr *b = other;
    size_t least =
        a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    return b && length >= least && ibx_address_same((const struct sockaddr *)a, b);
}

/* Whether this provider is of no use because of a fork: libfabric's verbs keep the devices open
 * that they have found. A child cannot use those: its messages never arrive. */
static bool is_parents(const char *name)
{
    return ibx_ofi_inherited() && ibx_ofi_name_matches(name, "verbs");
}

/* A provider's weight. Larger is better; negative: it is out of the question. */
static int weigh(const struct fi_info *info, const struct ibx_options *options,
                 const struct ofi_wanted *wanted, bool delivery_complete)
{
    const char *name = info->fabric_attr->prov_name;
    bool native = is_native(info);
    if ((!native && !emulations_allowed(options)) || is_parents(name) ||
        (wanted->provider && strcmp(name, wanted->provider)) ||
        (options->ofi_provider[0] && !ibx_ofi_name_matches(name, options->ofi_provider)) ||
        (wanted->addr_format && info->addr_format != wanted->addr_format) ||
        info->domain_attr->mr_key_size > sizeof(uint64_t) ||
        (!delivery_complete && !(info->tx_attr->msg_order & FI_ORDER_SAW)))
        return -1;
    int rank = native ? 100 + rank_in(name, natives, sizeof(natives) / sizeof(*natives))
                      : rank_in(name, emulations, sizeof(emulations) / sizeof(*emulations));
    int weight = rank * 1000;
    if (!strcmp(name, options->ofi_provider))
        weight += 400;
    if (wanted->local.ss_family && same_address(&wanted->local, info->src_addr, info->src_addrlen))
        weight += 200;
    if (wanted->fabric && info->fabric_attr->name &&
        !strcmp(info->fabric_attr->name, wanted->fabric))
        weight += 100;
    if (delivery_complete)
        weight += 40;
    if (info->caps & FI_HMEM)
        weight += 20;
    if (!info->domain_attr->name || strcmp(info->domain_attr->name, "lo"))
        weight += 10;
    return weight;
}

static int take_best(struct fi_info *list, const struct ibx_options *options,
                     const struct ofi_wanted *wanted, bool delivery_complete, int best,
                     struct ofi_choice *choice)
{
    struct fi_info *winner = NULL;
    for (struct fi_info *info = list; info; info = info->next) {
        int weight = weigh(info, options, wanted, delivery_complete);
        if (weight > best) {
            best = weight;
            winner = info;
        }
    }
    struct fi_info *copy = winner ? fi_dupinfo(winner) : NULL;
    if (copy) {
        fi_freeinfo(choice->info);
        *choice = (struct ofi_choice){
            .info = copy, .native = is_native(copy), .delivery_complete = delivery_complete};
    }
    return best;
}

/* ------------------------------------------------------------------- errors */

static void list_names(struct fi_info *list, char *out, size_t size)
{
    out[0] = '\0';
    for (struct fi_info *info = list; info; info = info->next) {
        const char *name = info->fabric_attr->prov_name;
        const char *known = strstr(out, name);
        size_t n = strlen(out), length = strlen(name);
        bool listed = known && (known[length] == '\0' || known[length] == ',');
        if (!listed && n + length + 3 < size)
            snprintf(out + n, size - n, "%s%s", n ? ", " : "", name);
    }
}

/* Whether a provider in this list, of this name ("": any), would do if there had been no fork. */
static bool has_parents(const struct fi_info *list, const char *name)
{
    for (const struct fi_info *info = list; info; info = info->next) {
        const char *its = info->fabric_attr->prov_name;
        if (is_parents(its) && (!*name || ibx_ofi_name_matches(its, name)))
            return true;
    }
    return false;
}

/* Why nothing was chosen. */
static int none_error(const struct ibx_options *options, const struct ofi_wanted *wanted,
                      struct ibx_error *err)
{
    const char *name = wanted->provider ? wanted->provider : options->ofi_provider;
    struct fi_info *raw = *name ? getinfo(name, 0, false, FI_MR_RAW) : NULL;
    struct fi_info *usable = *name ? getinfo(name, 0, false, 0) : NULL;
    struct fi_info *all = getinfo(NULL, 0, false, 0);
    char names[256];
    list_names(all, names, sizeof(names));
    int rc;
    if (has_parents(all, name))
        rc = ibx_error_set(err, -EOPNOTSUPP,
                           "the process that this one was forked from has used libfabric, whose "
                           "verbs a child cannot use then: start it anew (exec), or choose another "
                           "one by ofi_provider");
    else if (raw && !usable)
        rc = ibx_error_set(err, -EOPNOTSUPP,
                           "libfabric's %s has memory keys of more than 8 bytes (FI_MR_RAW), which "
                           "are not supported; choose another one by ofi_provider",
                           name);
    else if (*name)
        rc = ibx_error_set(err, -ENODEV,
                           "libfabric %s has no provider \"%s\" with reliable datagrams and RMA "
                           "here; it has %s",
                           ibx_ofi_version_text(), name, *names ? names : "none at all");
    else if (!emulations_allowed(options))
        rc =
            ibx_error_set(err, -ENODEV,
                          "libfabric %s has only emulations here (%s), which rdma:// does not use; "
                          "ofi:// or ofi_provider= would",
                          ibx_ofi_version_text(), *names ? names : "none");
    else
        rc = ibx_error_set(err, -ENODEV,
                           "libfabric %s has no provider with reliable datagrams and "
                           "RMA here",
                           ibx_ofi_version_text());
    fi_freeinfo(raw);
    fi_freeinfo(usable);
    fi_freeinfo(all);
    return rc;
}

/* ------------------------------------------------------------------- choosing */

int ibx_ofi_info_choose(const struct ibx_options *options, const struct ofi_wanted *wanted,
                        struct ofi_choice *choice, struct ibx_error *err)
{
    if (!emulations_allowed(options) && !fabric_device_exists())
        return ibx_error_set(
            err, -ENODEV,
            "there is no fabric device (/sys/class/infiniband and /sys/class/cxi "
            "are empty); ofi:// or ofi_provider= would use libfabric's emulations");
    if (ibx_ofi_library(err))
        return -ENOSYS;
    struct ofi_choice chosen = {0};
    int best = -1;
    for (int gpu = gpu_wanted(); gpu >= 0; gpu--) {
        for (int complete = 1; complete >= 0; complete--) {
            struct fi_info *list =
                getinfo(wanted->provider, complete ? FI_DELIVERY_COMPLETE : 0, gpu, 0);
            best = take_best(list, options, wanted, complete, best, &chosen);
            fi_freeinfo(list);
        }
    }
    if (!chosen.info)
        return none_error(options, wanted, err);
    /* The flag was requested to find out whether it is there; only WRITEs wait for it. */
    chosen.info->tx_attr->op_flags &= ~(uint64_t)FI_DELIVERY_COMPLETE;
    chosen.shareable = can_be_shared(chosen.info, chosen.native);
    *choice = chosen;
    return 0;
}

int ibx_ofi_probe(const struct ibx_options *options, char *description, size_t size,
                  struct ibx_error *err)
{
    struct ofi_choice choice;
    int rc = ibx_ofi_info_choose(options, &(struct ofi_wanted){0}, &choice, err);
    if (rc)
        return rc;
    const char *domain = choice.info->domain_attr->name;
    struct fi_info *all = getinfo(NULL, 0, false, 0);
    char names[128];
    list_names(all, names, sizeof(names));
    snprintf(description, size, "libfabric %s %s%s%s%s, of %s", ibx_ofi_version_text(),
             choice.info->fabric_attr->prov_name, domain ? " on " : "", domain ? domain : "",
             choice.native ? "" : " (an emulation)", names);
    fi_freeinfo(all);
    fi_freeinfo(choice.info);
    return 0;
}
