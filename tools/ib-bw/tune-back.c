/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The back end of `tune`: GVirtuS's, but for the handlers, of which none runs a copy. */
#include "tools/ib-bw/tune.h"

#include "common/log.h"
#include "common/wire.h"
#include "gpudirect/gpudirect.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODY_MAX    (64u << 10)        /* of what is not a copy */
#define NOT_RUN     1u                 /* exit code of a copy that reached the handlers */
#define POOL_BYTES  ((size_t)64 << 20) /* as rdma.gpu_memory without the key */
#define URI_ANYPORT "rdma://127.0.0.1:0"

/* What an application makes before it copies. */
struct maker {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*ctx_set_current)(void *context);
    int (*mem_alloc)(uint64_t *device, size_t n);
};

/* One client's. */
struct seat {
    struct ibx_session *session;
    const struct maker *maker;
    void *context;
};

/* --------------------------------------------------------------------- the GPU */

static int maker_load(struct maker *maker, struct ibx_error *err)
{
    const char *named = getenv("IBX_LIBCUDA");
    void *library = dlopen(named && *named ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!ibx_cuda_load(err))
        return -ENOENT;
    *(void **)&maker->init = library ? dlsym(library, "cuInit") : NULL;
    *(void **)&maker->device_get = library ? dlsym(library, "cuDeviceGet") : NULL;
    *(void **)&maker->primary_retain = library ? dlsym(library, "cuDevicePrimaryCtxRetain") : NULL;
    *(void **)&maker->ctx_set_current = library ? dlsym(library, "cuCtxSetCurrent") : NULL;
    *(void **)&maker->mem_alloc = library ? dlsym(library, "cuMemAlloc_v2") : NULL;
    return maker->init && maker->device_get && maker->primary_retain && maker->ctx_set_current &&
                   maker->mem_alloc
               ? 0
               : ibx_error_set(err, -ENOENT, "the CUDA driver lacks functions of its own");
}

static int gpu_failed(const char *what, int code, struct ibx_error *err)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    return ibx_error_set(err, -ENODEV, "no GPU can be used: %s says %s (%d); see nvidia-smi", what,
                         ibx_cuda_error_name(cuda, code), code);
}

/* Memory of `bytes` on GPU 0. */
static int gpu_open(struct maker *maker, size_t bytes, void **context, uint64_t *device,
                    struct ibx_error *err)
{
    int ordinal = 0;
    int rc = maker_load(maker, err);
    if (rc)
        return rc;
    rc = maker->init(0);
    if (!rc)
        rc = maker->device_get(&ordinal, 0);
    if (rc)
        return gpu_failed("cuInit", rc, err);
    rc = maker->primary_retain(context, ordinal);
    if (!rc)
        rc = maker->ctx_set_current(*context);
    if (rc)
        return gpu_failed("cuDevicePrimaryCtxRetain", rc, err);
    rc = maker->mem_alloc(device, bytes);
    return rc ? ibx_error_set(err, -ENOMEM,
                              "the GPU has no %zu bytes to spare (%s): give smaller --sizes", bytes,
                              ibx_cuda_error_name(ibx_cuda_load(NULL), rc))
              : 0;
}

/* --------------------------------------------------------------------- sessions */

static bool read_request(struct ibx_session *s, char name[BW_NAME_MAX])
{
    uint8_t length[8];
    unsigned n = 0;
    do {
        if (n == BW_NAME_MAX || ibx_session_read(s, &name[n], 1) != 1)
            return false;
    } while (name[n++]);
    if (ibx_session_read(s, length, sizeof(length)) != sizeof(length))
        return false;
    struct ibx_reader r = ibx_reader_of(length, sizeof(length));
    uint64_t left = ibx_get_u64(&r);
    uint8_t *scratch = malloc(BODY_MAX);
    bool good = scratch;
    while (good && left) {
        size_t some = left < BODY_MAX ? (size_t)left : BODY_MAX;
        good = ibx_session_read(s, scratch, some) == (ssize_t)some;
        left -= some;
    }
    free(scratch);
    return good;
}

static size_t put_counts(const struct ibx_session *s, uint8_t *out, size_t size)
{
    struct ibx_copy_counts counts;
    const char *why = ibx_session_refused_way(s);
    struct ibx_writer w = ibx_writer_of(out, size);
    ibx_session_count_copies(s, &counts);
    ibx_put_u64(&w, counts.all);
    ibx_put_u64(&w, counts.inlined);
    ibx_put_u64(&w, counts.in_place);
    ibx_put_u64(&w, counts.by_crew);
    ibx_put_u64(&w, counts.direct);
    ibx_put_bytes(&w, why, strlen(why));
    return w.length;
}

static bool reply(struct ibx_session *s, uint32_t code, const void *data, size_t n)
{
    uint8_t head[4 + 8 + 8];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    ibx_put_u32(&w, code);
    ibx_put_u64(&w, 0); /* 0.0 seconds */
    ibx_put_u64(&w, n);
    return ibx_session_write(s, head, 4) == 4 && ibx_session_write(s, head + 4, 8) == 8 &&
           ibx_session_write(s, head + 12, 8) == 8 &&
           (!n || ibx_session_write(s, data, n) == (ssize_t)n) && !ibx_session_sync(s);
}

static void *serve(void *argument)
{
    struct seat *seat = argument;
    struct ibx_session *s = seat->session;
    char name[BW_NAME_MAX];
    uint8_t counts[5 * 8 + 256];
    seat->maker->ctx_set_current(seat->context);
    bool good = true;
    while (good && read_request(s, name)) {
        bool wanted = !strcmp(name, TUNE_COUNT);
        size_t n = wanted ? put_counts(s, counts, sizeof(counts)) : 0;
        good = reply(s, wanted ? 0 : NOT_RUN, counts, n);
    }
    ibx_session_destroy(s);
    free(seat);
    return NULL;
}

/* The next client, for a way. */
static int seat_one(struct ibx_session *door, const struct tune_way *way, const struct maker *maker,
                    void *context)
{
    struct ibx_gpu_options gpu = {.mode = IBX_GPU_ON, .memory = POOL_BYTES};
    struct seat *seat = malloc(sizeof(*seat));
    pthread_t thread;
    if (!seat || ibx_session_accept(door, &seat->session, NULL))
        return -ENOMEM;
    gpu.tuning.found = true;
    gpu.tuning.choice = way->choice;
    ibx_session_set_gpu(seat->session, &gpu);
    seat->maker = maker;
    seat->context = context;
    return -pthread_create(&thread, NULL, serve, seat);
}

/* ---------------------------------------------------------------------- the process */

static size_t largest(const struct tune *tune)
{
    return tune->sizes[tune->size_count - 1];
}

static int door_open(const char *uri, const struct bw_args *args, struct ibx_session **door,
                     struct ibx_error *err)
{
    int rc = ibx_session_create(uri, &args->options, door, err);
    return rc ? rc : ibx_session_serve(*door, err);
}

/* Tells a line each: its URIs, the memory, the GPU, the driver, the host; or "error SENTENCE". */
static _Noreturn void back_main(const struct bw_args *args, const struct tune *tune, int fd)
{
    static struct maker maker;
    struct ibx_session *door = NULL, *far = NULL;
    struct ibx_tuning_machine place;
    struct ibx_error err = {0};
    void *context = NULL;
    uint64_t device = 0;
    int rc = gpu_open(&maker, largest(tune), &context, &device, &err);
    if (!rc)
        rc = door_open(URI_ANYPORT, args, &door, &err);
    if (!rc && args->over && (rc = door_open(args->over, args, &far, &err)))
        ibx_error_prefix(&err, rc, "--over");
    if (rc) {
        dprintf(fd, "error %s\n", err.message);
        _exit(EXIT_FAILURE);
    }
    ibx_tuning_machine_of(ibx_cuda_load(NULL), 0, &place);
    dprintf(fd, "%s\n%s\n%llu\n%s\n%s\n%s\n", ibx_session_uri(door),
            far ? ibx_session_uri(far) : "", (unsigned long long)device, place.gpu, place.driver,
            place.host);
    close(fd);
    for (unsigned i = 0; i < tune->way_count; i++) {
        if (seat_one(ibx_tune_way_far(&tune->ways[i]) ? far : door, &tune->ways[i], &maker,
                     context))
            _exit(EXIT_FAILURE);
    }
    for (;;)
        pause();
}

static bool take_line(FILE *in, char *out, size_t size)
{
    if (!fgets(out, (int)size, in))
        return false;
    out[strcspn(out, "\n")] = '\0';
    return true;
}

static int learn(int fd, struct tune *tune, struct tune_back *back, struct ibx_error *err)
{
    struct ibx_tuning_machine *place = &tune->result.machine;
    char first[IBX_ERROR_MAX + 16], number[32];
    FILE *in = fdopen(fd, "r");
    if (!in) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "no memory for a stream");
    }
    int rc = -EIO;
    if (!take_line(in, first, sizeof(first))) {
        ibx_error_set(err, rc, "the back end died at its start");
    } else if (!strncmp(first, "error ", 6)) {
        ibx_error_set(err, rc, "%s", first + 6);
    } else if (take_line(in, back->far_uri, sizeof(back->far_uri)) &&
               take_line(in, number, sizeof(number)) &&
               take_line(in, place->gpu, sizeof(place->gpu)) &&
               take_line(in, place->driver, sizeof(place->driver)) &&
               take_line(in, place->host, sizeof(place->host))) {
        snprintf(back->uri, sizeof(back->uri), "%.299s", first);
        back->device = strtoull(number, NULL, 10);
        rc = 0;
    } else {
        ibx_error_set(err, rc, "the back end died at its start");
    }
    fclose(in);
    return rc;
}

int ibx_tune_back_start(const struct bw_args *args, struct tune *tune, struct tune_back *back,
                        struct ibx_error *err)
{
    int fd;
    pid_t pid = ibx_bw_fork("the back end", &fd, err);
    if (pid < 0)
        return pid;
    if (!pid)
        back_main(args, tune, fd);
    back->pid = pid;
    return learn(fd, tune, back, err);
}

void ibx_tune_back_stop(struct tune_back *back)
{
    ibx_bw_reap(&back->pid);
}
