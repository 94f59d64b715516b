/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * plugin/: libgvirtus-communicators-rdma.so, the communicator that GVirtuS (generations G2 to G5)
 * loads. It puts a session, the client's copies and the back end's copies together.
 *
 *   communicator.cpp  GVirtuS's C++ interface, translated to session.h
 *   attach.c          which connection a thread has; what GVirtuS sends over it
 *   attached_calls.c  the table that the preload gets
 *   attached_copies.c the preload's copies over the thread's connection
 *   host_memory.c     copies of the application's memory, and where it has page-locked memory
 *   config.c          gvirtus.properties; the header that other folders include
 *   misspelt_keys.c   its keys that are almost ours
 *   gvirtus_launch.cpp  GVirtuS's cudaLaunchKernel, and its exceptions
 *   uncaught.cpp      exceptions that a handler of GVirtuS's does not catch, missing results
 *
 * The URI and options of a communicator come from gvirtus.properties. The file is the first of
 * these that exists:
 *
 *   1. the one that GVIRTUS_RDMA_PROPERTIES names (which must exist)
 *   2. G2 and later: gvirtus.properties beside the file that GVIRTUS_CONFIG names;
 *      G1: the file that classic GVirtuS itself reads
 *   3. $GVIRTUS_HOME/etc/gvirtus.properties
 *   4. /etc/gvirtus/gvirtus.properties
 *
 * Its key `communicator` holds the URI. Keys that begin with "rdma." are those of ibx: the options
 * of transport.h ("rdma.chunk") and those of set_key() in config.c, which gvirtus.properties(5)
 * describes. All other keys belong to GVirtuS and are ignored.
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_CONFIG_H
#define IBX_FRONTEND_GLUE_PLUGIN_CONFIG_H

#include "frontend-glue/device_copies/device_copies.h"

#include "frontend-glue/call_pipeline/pipeline.h"

#include <limits.h>

#define IBX_GLUE_URI_MAX        904
#define IBX_GLUE_RESUME_SECONDS 30u
#define IBX_GLUE_IDLE_SECONDS   60u
#define IBX_GLUE_GPU_MEMORY     (64u << 20)
#define IBX_GLUE_GPU_MEMORY_MIN (1u << 20)

struct ibx_glue_config {
    char uri[IBX_GLUE_URI_MAX];
    struct ibx_options options;
    size_t memory;                    /* rdma.memory, 0: not given */
    enum ibx_pipeline_mode pipeline;  /* rdma.pipeline [all] */
    uint64_t resume_seconds;          /* rdma.resume_seconds [IBX_GLUE_RESUME_SECONDS] */
    enum ibx_processes_for processes; /* rdma.processes [program] */
    bool processes_given;
    uint64_t most_processes;    /* rdma.most_processes [IBX_PROCESSES_MOST] */
    uint64_t spare_processes;   /* rdma.spare_processes [1 with rdma.processes : program, else 0] */
    uint64_t idle_seconds;      /* rdma.idle_seconds [IBX_GLUE_IDLE_SECONDS] */
    struct ibx_gpu_options gpu; /* [auto, IBX_GLUE_GPU_MEMORY, 0] */
    char file[PATH_MAX];        /* the properties file, "" when there is none */
    char tuning[PATH_MAX];      /* rdma.tuning, "": not given */
    unsigned uri_line;          /* of its key `communicator`, 0 when the URI came from the caller */
};

/* For G2 and later. The endpoint is that of properties.json; host NULL: there is none. A host "" or
 * a port 0 is one that GVirtuS did not understand: then the file must give the URI. It is no error
 * if no file exists. -EINVAL: the error names file, line, value and what is accepted; -EPERM: the
 * file, or that of rdma.tuning, belongs to another user or can be changed by others (file_check.h);
 * -ENOENT: only for GVIRTUS_RDMA_PROPERTIES; -ENOMEM. Reads the environment: not to be called
 * during a setenv(3). */
int ibx_glue_config_load(const char *endpoint_host, uint16_t endpoint_port,
                         struct ibx_glue_config *config, struct ibx_error *err);
/* What that has loaded last in this process; the first time, the same. Needs no descriptor then. */
int ibx_glue_config_load_again(const char *endpoint_host, uint16_t endpoint_port,
                               struct ibx_glue_config *config, struct ibx_error *err);

/* For G1, which has read its `communicator` already. `own_file` is the file that it read, NULL if
 * not known. Errors as above. */
int ibx_glue_config_load_classic(const char *communicator, const char *own_file,
                                 struct ibx_glue_config *config, struct ibx_error *err);

/* Whether GVirtuS would start with these entries of `file`, and `uri` as the communicator. Errors
 * as above. */
struct ibx_properties;
int ibx_glue_config_check(const char *file, const struct ibx_properties *properties,
                          const char *uri, struct ibx_error *err);

/* The value of rdma.pipeline that stands for it. */
const char *ibx_glue_pipeline_name(enum ibx_pipeline_mode mode);
/* Takes pipeline=... out of a URI's query, since it is not an option of a connection: `rest` is the
 * URI without it, and *pipeline its value if there is one. -EINVAL: the value is not accepted. */
int ibx_glue_uri_pipeline(const char *uri, char rest[IBX_GLUE_URI_MAX],
                          enum ibx_pipeline_mode *pipeline, struct ibx_error *err);

/* -EINVAL: a path in the URI's query is relative: it would start where the application runs. */
int ibx_glue_uri_paths(const char *uri, struct ibx_error *err);

/* Finds the file that rdma.tuning names, or its default, which need not exist; "": the key is
 * "none". Looks at no other key. Errors as above, and -ENAMETOOLONG. */
int ibx_glue_tuning_file(char file[PATH_MAX], struct ibx_error *err);

#endif
