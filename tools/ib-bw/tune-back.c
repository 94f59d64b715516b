/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The back end of tune: like GVirtuS's, but its handlers run no copy. */
#include "tools/ib-bw/tune.h"

#include "common/wire.h"
#include "gpudirect/gpudirect.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODY_MAX    (64u << 10)        /* bytes read at once of what is not a copy */
#define NOT_RUN     1u                 /* exit code of a copy that reached the handlers */
#define POOL_BYTES  ((size_t)64 << 20) /* as rdma.gpu_memory without the key */
#define URI_ANYPORT "rdma://127.0.0.1:0"

/* Functions of the driver with which an application prepares its copies. */
struct driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*ctx_set_current)(void *context);
    int (*mem_alloc)(uint64_t *device, size_t n);
};

struct back {
    const struct bw_args *args;
    struct tune *tune;
    struct tune_back *out;
    struct driver driver;
    void *context;
};

/* One client's. */
struct connection {
    const struct back *back;
    struct ibx_session *session;
};

/* --------------------------------------------------------------------- the GPU */

static int driver_load(struct driver *driver, struct ibx_error *err)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {{"cuInit", offsetof(struct driver, init)},
                     {"cuDeviceGet", offsetof(struct driver, device_get)},
                     {"cuDevicePrimaryCtxRetain", offsetof(struct driver, primary_retain)},
                     {"cuCtxSetCurrent", offsetof(struct driver, ctx_set_current)},
                     {"cuMemAlloc_v2", offsetof(struct driver, mem_alloc)}};
    const char *named = getenv("IBX_LIBCUDA");
    void *library = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!ibx_cuda_load(err))
        return -ENOENT;
    for (unsigned i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *symbol = library ? dlsym(library, functions[i].name) : NULL;
        if (!symbol)
            return ibx_error_set(err, -ENOENT, "the CUDA driver has no %s", functions[i].name);
        memcpy((char *)driver + functions[i].at, &symbol, sizeof(symbol));
    }
    return 0;
}

static int gpu_failed(const char *what, int code, struct ibx_error *err)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    return ibx_error_set(err, -ENODEV, "no GPU can be used: %s says %s (%d); see nvidia-smi", what,
                         ibx_cuda_error_name(cuda, code), code);
}

/* Memory of `bytes` on GPU 0. */
static int gpu_open(struct back *back, size_t bytes, uint64_t *device, struct ibx_error *err)
{
    struct driver *driver = &back->driver;
    int ordinal = 0;
    int rc = driver_load(driver, err);
    if (rc)
        return rc;
    rc = driver->init(0);
    if (!rc)
        rc = driver->device_get(&ordinal, 0);
    if (rc)
        return gpu_failed("cuInit", rc, err);
    rc = driver->primary_retain(&back->context, ordinal);
    if (!rc)
        rc = driver->ctx_set_current(back->context);
    if (rc)
        return gpu_failed("cuDevicePrimaryCtxRetain", rc, err);
    rc = driver->mem_alloc(device, bytes);
    return rc ? ibx_error_set(err, -ENOMEM,
                              "the GPU has no %zu bytes to spare (%s): give smaller --sizes", bytes,
                              ibx_cuda_error_name(ibx_cuda_load(NULL), rc))
              : 0;
}

/* --------------------------------------------------------------------- sessions */

static bool read_request(struct bw_stream *stream, char name[BW_NAME_MAX], uint8_t *scratch)
{
    uint8_t length[8];
    if (!ibx_bw_read_name(stream, name) ||
        stream->ops->read(stream, length, sizeof(length)) != sizeof(length))
        return false;
    struct ibx_reader r = ibx_reader_of(length, sizeof(length));
    for (uint64_t left = ibx_get_u64(&r); left;) {
        size_t some = left < BODY_MAX ? (size_t)left : BODY_MAX;
        if (stream->ops->read(stream, scratch, some) != (ssize_t)some)
            return false;
        left -= some;
    }
    return true;
}

static void put_counts(const struct ibx_session *s, uint8_t out[TUNE_COUNT_REPLY])
{
    struct ibx_copy_counts counts;
    struct ibx_writer w = ibx_writer_of(out, TUNE_COUNT_REPLY);
    memset(out, 0, TUNE_COUNT_REPLY);
    ibx_device_copies_count(s, &counts);
    ibx_put_u64(&w, counts.all);
    ibx_put_u64(&w, counts.inlined);
    ibx_put_u64(&w, counts.in_place);
    ibx_put_u64(&w, counts.by_threads);
    ibx_put_u64(&w, counts.direct);
    snprintf((char *)out + w.length, TUNE_COUNT_REPLY - w.length, "%s",
             ibx_device_copies_refused(s));
}

static void *serve(void *argument)
{
    struct connection connection = *(struct connection *)argument;
    struct bw_stream *stream;
    char name[BW_NAME_MAX];
    uint8_t counts[TUNE_COUNT_REPLY], *scratch = malloc(BODY_MAX);
    free(argument);
    if (ibx_bw_stream_of_session(connection.session, &stream, NULL))
        return NULL;
    connection.back->driver.ctx_set_current(connection.back->context);
    bool good = scratch;
    while (good && read_request(stream, name, scratch)) {
        bool counted = !strcmp(name, TUNE_COUNT);
        if (counted)
            put_counts(connection.session, counts);
        good = ibx_bw_reply(stream, counted ? 0 : NOT_RUN, counts, counted ? sizeof(counts) : 0);
    }
    stream->ops->destroy(stream);
    free(scratch);
    return NULL;
}

/* The next client, whose copies take a way. */
static int accept_one(const struct back *back, struct ibx_session *listener,
                      const struct tune_way *way)
{
    struct ibx_gpu_options gpu = {.mode = IBX_GPU_ON, .memory = POOL_BYTES};
    struct connection *connection = malloc(sizeof(*connection));
    pthread_t thread;
    gpu.tuning.found = true;
    gpu.tuning.choice = way->choice;
    if (!connection || ibx_session_accept(listener, &connection->session, NULL) ||
        ibx_device_copies_attach(connection->session, &gpu, NULL))
        return -ENOMEM;
    connection->back = back;
    return -pthread_create(&thread, NULL, serve, connection);
}

/* ---------------------------------------------------------------------- the process */

static void back_main(void *argument, FILE *out)
{
    struct back *back = argument;
    const struct tune *tune = back->tune;
    const struct ibx_options *options = &back->args->options;
    const char *over = back->args->over;
    struct ibx_session *near = NULL, *far = NULL;
    struct ibx_tuning_machine machine;
    struct ibx_error err = {0};
    uint64_t device = 0;
    int rc = gpu_open(back, tune->sizes[tune->size_count - 1], &device, &err);
    if (!rc)
        rc = ibx_bw_session_listen(URI_ANYPORT, options, &near, &err);
    if (!rc && over && (rc = ibx_bw_session_listen(over, options, &far, &err)))
        ibx_error_prefix(&err, rc, "--over");
    if (rc) {
        fprintf(out, "error %s\n", err.message);
        fclose(out);
        return;
    }
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &machine);
    fprintf(out, "uri %s\nfar %s\ndevice %llu\ngpu %s\ndriver %s\nhost %s\nready\n",
            ibx_session_uri(near), far ? ibx_session_uri(far) : "", (unsigned long long)device,
            machine.gpu, machine.driver, machine.host);
    fclose(out);
    for (unsigned i = 0; i < tune->way_count; i++) {
        if (accept_one(back, tune->ways[i].far ? far : near, &tune->ways[i]))
            return;
    }
    for (;;)
        pause();
}

static void learn(void *argument, const char *key, const char *value)
{
    const struct back *back = argument;
    struct ibx_tuning_machine *machine = &back->tune->result.machine;
    if (!strcmp(key, "uri"))
        snprintf(back->out->uri, sizeof(back->out->uri), "%.299s", value);
    else if (!strcmp(key, "far"))
        snprintf(back->out->far_uri, sizeof(back->out->far_uri), "%.299s", value);
    else if (!strcmp(key, "device"))
        back->out->device = strtoull(value, NULL, 10);
    else if (!strcmp(key, "gpu"))
        snprintf(machine->gpu, sizeof(machine->gpu), "%s", value);
    else if (!strcmp(key, "driver"))
        snprintf(machine->driver, sizeof(machine->driver), "%s", value);
    else if (!strcmp(key, "host"))
        snprintf(machine->host, sizeof(machine->host), "%s", value);
}

int ibx_tune_back_start(const struct bw_args *args, struct tune *tune, struct tune_back *out,
                        struct ibx_error *err)
{
    struct back back = {.args = args, .tune = tune, .out = out};
    return ibx_bw_child_start("the back end", back_main, learn, &back, &out->pid, err);
}
