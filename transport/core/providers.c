/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table of providers in this build, in the order in which rdma:// prefers them; path_choice.c
 * chooses from it. */
#include "transport/core/provider.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    const struct ibx_provider *provider; /* NULL: not in this build */
} table[IBX_PROVIDERS_MAX] = {
#ifdef IBX_WITH_SHM
    {"shm", &ibx_provider_shm},
#else
    {"shm", NULL},
#endif
#ifdef IBX_WITH_VERBS
    {"verbs", &ibx_provider_verbs},
#else
    {"verbs", NULL},
#endif
#ifdef IBX_WITH_OFI
    {"ofi", &ibx_provider_ofi},
#else
    {"ofi", NULL},
#endif
#ifdef IBX_WITH_TCP
    {"tcp", &ibx_provider_tcp},
#else
    {"tcp", NULL},
#endif
};

const struct ibx_provider *ibx_provider_find(const char *name)
{
    for (int i = 0; i < IBX_PROVIDERS_MAX; i++) {
        if (!strcmp(table[i].name, name))
            return table[i].provider;
    }
    return NULL;
}

const char *ibx_provider_name(unsigned index)
{
    return index < IBX_PROVIDERS_MAX ? table[index].name : NULL;
}

size_t ibx_options_message_memory(const struct ibx_options *options)
{
    size_t most = 0;
    bool any = !strcmp(options->provider, "auto");
    for (int i = 0; i < IBX_PROVIDERS_MAX; i++) {
        /* No name is a part of another. */
        bool wanted = any || strstr(options->provider, table[i].name);
        size_t bytes = wanted && table[i].provider && table[i].provider->message_memory
                           ? table[i].provider->message_memory(options)
                           : 0;
        if (bytes > most)
            most = bytes;
    }
    return most;
}

int ibx_provider_probe(const char *name, const struct ibx_options *options, char *description,
                       size_t size, struct ibx_error *err)
{
    const struct ibx_provider *provider = ibx_provider_find(name);
    if (!provider)
        return ibx_error_set(err, -ENOSYS, "%s is not in this build", name);
    return provider->probe(options, description, size, err);
}
