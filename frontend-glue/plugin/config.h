/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where a communicator's URI and options come from: gvirtus.properties.
 *
 * The file is the first of these that there is:
 *
 *   1. the one that GVIRTUS_RDMA_PROPERTIES names (which must exist)
 *   2. G2 and later: gvirtus.properties beside the file that GVIRTUS_CONFIG names;
 *      G1: the file that classic GVirtuS itself reads
 *   3. $GVIRTUS_HOME/etc/gvirtus.properties
 *   4. /etc/gvirtus/gvirtus.properties
 *
 * Its key `communicator` holds the URI. Keys that begin with "rdma." are ours:
 * each option of transport.h ("rdma.chunk"), and some of the glue's own:
 *
 *   rdma.memory  bytes of message buffers that an idle connection may hold on any
 *                fabric: lowers slots and message as far as needed
 *   rdma.gpu     auto, on or off: whether the back end's plugin runs copies itself
 *   rdma.gpu_memory  bytes of pinned memory for that, in the whole back end
 *   rdma.gpu_threads  threads of one connection that copy, 0: by the processors
 *   rdma.tuning  the file of tuning.h, or none; without the key ibx-tuning.properties
 *                in the folder of the properties file, or of the third place above
 *                where there is none, if there is such a file
 *   rdma.log     error, warn, info or debug, unless IBX_LOG is set
 *
 * Keys of other kinds belong to GVirtuS and are left alone.
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_CONFIG_H
#define IBX_FRONTEND_GLUE_PLUGIN_CONFIG_H

#include "frontend-glue/session/session.h"

#include <limits.h>

#define IBX_GLUE_URI_MAX        904
#define IBX_GLUE_GPU_MEMORY     (64u << 20)
#define IBX_GLUE_GPU_MEMORY_MIN (1u << 20)

struct ibx_glue_config {
    char uri[IBX_GLUE_URI_MAX];
    struct ibx_options options;
    size_t memory;              /* rdma.memory, 0: not given */
    struct ibx_gpu_options gpu; /* [off, IBX_GLUE_GPU_MEMORY, 0] */
    char file[PATH_MAX];        /* the properties file, "" when there is none */
    char tuning[PATH_MAX];      /* rdma.tuning, "": not given */
    unsigned uri_line;          /* of its key `communicator`, 0 when the URI came from the caller */
};

/* For G2 and later. The endpoint is the one of properties.json, or a NULL host where there is none;
 * its host may be "" and its port 0, as GVirtuS leaves them when it does not understand them. Then
 * the file must say where. -EINVAL names file, line, value and what is accepted; -ENOENT only for
 * GVIRTUS_RDMA_PROPERTIES. No file at all is fine. Reads the environment; not for concurrent use
 * with setenv(3). */
int ibx_glue_config_load(const char *endpoint_host, uint16_t endpoint_port,
                         struct ibx_glue_config *config, struct ibx_error *err);

/* For G1, which has read its `communicator` already. `own_file` is what it read it from, NULL when
 * that is not known. */
int ibx_glue_config_load_classic(const char *communicator, const char *own_file,
                                 struct ibx_glue_config *config, struct ibx_error *err);

/* The file that rdma.tuning names, or the one that stands for it, whether it is there or not. "":
 * the key says none. Of the properties file only that key is looked at. */
int ibx_glue_tuning_file(char file[PATH_MAX], struct ibx_error *err);

#endif
