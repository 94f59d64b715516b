/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the driver's compiler says of PTX. The client has put the PTX into memory of the device,
 * with room for the logs behind it, since a request holds too little. The driver's linker compiles
 * it, and loads nothing; GVirtuS loads the client's module.
 */
#include "frontend-glue/extensions/linker.h"

#include "gpudirect/cuda.h"

#define IS_PTX 1 /* CU_JIT_INPUT_PTX */

/* CUjit_option */
enum { WALL_TIME = 2, INFO_LOG, INFO_BYTES, ERROR_LOG, ERROR_BYTES, VERBOSE = 12 };

/* A copy of what is in the device's memory: PTX, here with a NUL, and behind it the logs. */
struct text {
    uint64_t at; /* in memory of the device, without the NUL */
    size_t n, info, error;
    bool verbose, adds; /* IBX_COMPILE_VERBOSE, IBX_COMPILE_ADDS */
    char *ptx, *logs;
    struct ibx_linker driver;
    int result; /* by the driver, of the PTX */
    float time; /* milliseconds */
    uint32_t info_length, error_length;
};

struct options {
    int kinds[6];
    void *values[6];
    unsigned count;
};

/* Returns where the value is, which the driver may replace. */
static void **add_option(struct options *o, int kind, void *value)
{
    o->kinds[o->count] = kind;
    o->values[o->count] = value;
    return &o->values[o->count++];
}

/* Returns where the driver says the length. NULL: there is no room, and so no log. */
static void **add_log(struct options *o, int kind, char *log, size_t room)
{
    if (!room)
        return NULL;
    add_option(o, kind, log);
    return add_option(o, kind + 1, pointer_to(room));
}

/* The length of a log, as the driver says: the room, if the log is cut. */
static uint32_t length_of(void *const *said, const char *log, size_t room)
{
    const size_t n = strnlen(log, room);
    return (uint32_t)(said && n + 1 == room && (uint32_t)(uintptr_t)*said == room ? room : n);
}

/* Returns what the driver returns. The logs are filled even if it fails. */
static int link_text(struct text *t)
{
    struct options o = {.count = 0};
    const struct ibx_linker *driver = &t->driver;
    void *state = NULL, *image;
    size_t n;
    void **time = add_option(&o, WALL_TIME, NULL);
    void **info = add_log(&o, INFO_LOG, t->logs, t->info);
    void **error = add_log(&o, ERROR_LOG, t->logs + t->info, t->error);
    if (t->verbose)
        add_option(&o, VERBOSE, pointer_to(1));
    int rc = driver->create(o.count, o.kinds, o.values, &state);
    if (rc)
        return rc;
    rc = driver->add(state, IS_PTX, t->ptx, t->n + 1, "the client's PTX", 0, NULL, NULL);
    if (!rc && !t->adds)
        rc = driver->complete(state, &image, &n);
    memcpy(&t->time, time, sizeof(t->time));
    t->info_length = length_of(info, t->logs, t->info);
    t->error_length = length_of(error, t->logs + t->info, t->error);
    driver->destroy(state);
    return rc;
}

/* Copies the PTX from the device, compiles it, and copies the logs to the device. The compiler
 * takes its time, in which another session of the client's could free the memory. 0, or CUDA's
 * error of a copy. */
static int compile_text(struct extension_request *e, void *of, uint8_t *host)
{
    const struct ibx_cuda *cuda = e->x->cuda;
    struct text *t = of;
    t->ptx = (char *)host;
    t->logs = t->ptx + t->n + 1;
    const int rc = cuda->memcpy_from_device(t->ptx, t->at, t->n);
    if (rc)
        return rc;
    t->result = link_text(t);
    return t->info + t->error ? cuda->memcpy_to_device(t->at + t->n, t->logs, t->info + t->error)
                              : 0;
}

static void put_result(struct extension_request *e, const struct text *t)
{
    uint32_t time;
    memcpy(&time, &t->time, sizeof(time));
    ibx_put_u32(&e->out, (uint32_t)t->result);
    ibx_put_u32(&e->out, time);
    ibx_put_u32(&e->out, t->info_length);
    ibx_put_u32(&e->out, t->error_length);
}

static bool get_text(struct extension_request *e, struct text *t)
{
    t->at = ibx_get_u64(&e->in);
    t->n = ibx_get_u64(&e->in);
    t->info = ibx_get_u32(&e->in);
    t->error = ibx_get_u32(&e->in);
    const uint8_t how = ibx_get_u8(&e->in);
    t->verbose = how & IBX_COMPILE_VERBOSE;
    t->adds = how & IBX_COMPILE_ADDS;
    return whole(e) && how <= (IBX_COMPILE_VERBOSE | IBX_COMPILE_ADDS) && t->n &&
           t->n <= IBX_EXT_PTX_MOST && t->info <= IBX_EXT_LOG_MOST &&
           t->error <= IBX_EXT_LOG_MOST && mine(e, pointer_to(t->at), t->n + t->info + t->error);
}

static int compile(struct extension_request *e)
{
    struct text t = {.n = 0};
    if (!get_text(e, &t))
        return CUDA_INVALID_VALUE;
    if (!ready(e) || !ibx_linker_find(&t.driver))
        return CUDA_NOT_SUPPORTED;
    const size_t there = t.n + t.info + t.error;
    const int rc = ibx_linker_run(e, t.at, there, there + 1, compile_text, &t);
    put_result(e, &t);
    return rc;
}

const struct extension_call ibx_compile_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_COMPILE] = {NULL, compile},
};
