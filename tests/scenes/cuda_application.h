/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA as an application or the handlers of GVirtuS's back end call it, in the library that
 * IBX_LIBCUDA names; and the double's own functions, which are NULL on a real driver. */
#ifndef TESTS_CUDA_APPLICATION_H
#define TESTS_CUDA_APPLICATION_H

#include "tests/doubles/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_calls {
    int (*init)(unsigned flags);
    int (*primary_retain)(void **context, int device);
    int (*primary_reset)(int device);
    int (*ctx_set_current)(void *context);
    int (*mem_alloc)(uint64_t *device, size_t n);
    int (*mem_free)(uint64_t device);
    int (*to_device)(uint64_t to, const void *from, size_t n);
    int (*from_device)(void *to, uint64_t from, size_t n);
    int (*copy_async)(uint64_t to, uint64_t from, size_t n, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_query)(void *stream);
    int (*ctx_synchronize)(void);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*exchange_mode)(int *mode);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event);
    int (*event_destroy)(void *event);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*event_synchronize)(void *event);
    int (*host_register)(void *address, size_t n, unsigned flags);
    int (*host_unregister)(void *address);

    bool (*peek)(uint64_t device, void *to, size_t n);
    bool (*poke)(uint64_t device, const void *from, size_t n);
    void (*get_stats)(struct ibx_double_stats *stats);
    void (*inject)(const char *function, unsigned in, int code, bool sticky);
    void (*attribute)(int attribute, int value);
    void (*slow)(unsigned microseconds);
    void (*hold)(bool held);
    void (*hold_stream)(void *stream);
    void (*release_stream)(void *stream);
    void (*capture)(void *stream);
    void (*print)(const char *text);
};

/* Loads it on the first call; ends the process with a sentence when it is not there. */
const struct cuda_calls *cuda_application(void);
/* Makes device `ordinal`'s primary context current to the calling thread. */
void cuda_application_use(int ordinal);
/* The double's, now. */
struct ibx_double_stats cuda_stats(void);

#ifdef __cplusplus
}
#endif

#endif
