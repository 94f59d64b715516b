/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/memory_pair.h"

#include <errno.h>
#include <pthread.h>

static void *establish(void *argument)
{
    struct memory_pair *pair = argument;
    if (!ibx_accept_wait(pair->listener, 10000, &pair->server, NULL) &&
        ibx_establish(pair->server, NULL)) {
        ibx_close(pair->server);
        pair->server = NULL;
    }
    return NULL;
}

static int connect_both(struct memory_pair *pair, const struct ibx_options *options,
                        struct ibx_error *err)
{
    pthread_t thread;
    pthread_create(&thread, NULL, establish, pair);
    int rc = ibx_connect(ibx_listener_uri(pair->listener), options, &pair->client, err);
    pthread_join(thread, NULL);
    if (!rc && !pair->server)
        rc = ibx_error_set(err, -EPROTO, "the server's end is not established");
    if (rc)
        memory_pair_close(pair);
    return rc;
}

int memory_pair_open(struct memory_pair *pair, const struct ibx_options *options,
                     struct ibx_error *err)
{
    *pair = (struct memory_pair){0};
    int rc = ibx_listen("rdma://127.0.0.1:0", options, &pair->listener, err);
    return rc ? rc : connect_both(pair, options, err);
}

int memory_pair_again(struct memory_pair *pair, const struct ibx_options *options,
                      struct ibx_error *err)
{
    ibx_close(pair->client);
    ibx_close(pair->server);
    pair->client = pair->server = NULL;
    return connect_both(pair, options, err);
}

void memory_pair_close(struct memory_pair *pair)
{
    ibx_close(pair->client);
    ibx_close(pair->server);
    ibx_listener_close(pair->listener);
    *pair = (struct memory_pair){0};
}
