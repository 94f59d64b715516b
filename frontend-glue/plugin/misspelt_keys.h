/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds keys of gvirtus.properties that are meant for ibx and are not keys of ibx. GVirtuS would
 * ignore them: "rmda.encryption : required" would encrypt nothing. */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_MISSPELT_KEYS_H
#define IBX_FRONTEND_GLUE_PLUGIN_MISSPELT_KEYS_H

#include "common/error.h"

#include <stdbool.h>

#define IBX_GLUE_PREFIX "rdma" /* of our keys, followed by a dot */
/* Our keys that are not options of a connection. */
#define IBX_GLUE_KEYS                                                                              \
    "memory, pipeline, resume_seconds, silence_seconds, processes, most_processes, "               \
    "spare_processes, idle_seconds, gpu, gpu_memory, gpu_threads, nccl, "                          \
    "tenants, sessions, pins, requests, device_memory, tenant_share, share, tuning, log"

/* Returns -EINVAL, and the error says what to write, for a key that is almost one of ours, for one
 * of ours without "rdma." that is too long to be anybody else's, and for one that is almost
 * `communicator`. A key that begins with "rdma." passes. */
int ibx_glue_key_check(const char *key, const char *value, struct ibx_error *err);
/* Whether a word that follows "rdma.", and is none of our keys, is almost one of them; `key`:
 * which. */
bool ibx_glue_key_nearly(const char *word, char key[32]);

#endif
