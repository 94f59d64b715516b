/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Beside fake_frontend.c: streams whose work is over at once, and devices that reach all memory. */
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

bool ibx_frontend_stream_gone(const void *stream, struct range *was)
{
    (void)stream, (void)was;
    return false;
}
int ibx_frontend_stream_device(const void *stream)
{
    (void)stream;
    return 0;
}

bool ibx_frontend_stream_blocks(const void *stream)
{
    return (uintptr_t)stream % 2 == 0;
}
int ibx_frontend_wait_in_order(void *stream)
{
    (void)stream;
    return 0;
}
int ibx_frontend_wait_for_work(void *stream)
{
    (void)stream;
    return 0;
}
int ibx_frontend_streams_rest(bool all_work)
{
    (void)all_work;
    return 0;
}
int ibx_frontend_before_host(const void *memory, size_t n, void *stream)
{
    (void)memory, (void)n, (void)stream;
    return 0;
}
int ibx_frontend_before_on_host(const struct ibx_cuda_memcpy3d *copy, void *stream)
{
    (void)copy, (void)stream;
    return 0;
}
int ibx_frontend_stream_ask(void *stream)
{
    (void)stream;
    return CUDA_CAPTURE_UNSUPPORTED;
}
void ibx_frontend_stream_rests(const void *stream)
{
    (void)stream;
}
void ibx_frontend_stream_stays(const struct range *was)
{
    (void)was;
}
void ibx_frontend_stream_used(const void *stream)
{
    (void)stream;
}
void ibx_frontend_stream_worked(void *stream)
{
    (void)stream;
}
int ibx_frontend_are_devices(int one, int other)
{
    (void)one, (void)other;
    return 0;
}
bool ibx_frontend_peers_apart(const void *to, const void *from)
{
    (void)to, (void)from;
    return false;
}
int ibx_frontend_peers_captured(void *to, int to_device, const void *from, int from_device,
                                size_t n, void *stream)
{
    (void)to, (void)to_device, (void)from, (void)from_device, (void)n, (void)stream;
    return 900;
}
int ibx_frontend_peers_begin(const void *to, const void *from, const void *stream, int *back)
{
    (void)to, (void)from, (void)stream;
    *back = -1;
    return 0;
}
int ibx_frontend_peers_end(int rc, void *stream, int back)
{
    (void)stream, (void)back;
    return rc;
}
bool ibx_frontend_peers_reach(int device)
{
    (void)device;
    return true;
}
void ibx_frontend_peers_reset(int device)
{
    (void)device;
}
void ibx_frontend_kept_events_reset(int device)
{
    (void)device;
}
void ibx_frontend_streams_reset(void) {}
bool ibx_frontend_is_child(void)
{
    return false;
}

/* No stream joins a capture. */
uint64_t ibx_frontend_thread_number(void)
{
    return 1;
}
struct ibx_forks *ibx_frontend_forks_begin(const void *stream)
{
    (void)stream;
    return NULL;
}
void ibx_frontend_forks_end(struct ibx_forks *f)
{
    (void)f;
}
void ibx_frontend_forks_lose_root(struct ibx_forks *f)
{
    (void)f;
}
const struct ibx_forks *ibx_frontend_forks_of(const void *stream)
{
    (void)stream;
    return NULL;
}
bool ibx_frontend_forks_any(const struct ibx_forks *f)
{
    return f;
}
int ibx_frontend_forks_split(struct ibx_forks *f)
{
    (void)f;
    return 0;
}
int ibx_frontend_forks_go_on(struct ibx_forks *f)
{
    (void)f;
    return 0;
}
int ibx_frontend_forks_join(struct ibx_forks *f)
{
    (void)f;
    return 0;
}
void ibx_frontend_forks_recorded(const void *event, const void *stream)
{
    (void)event, (void)stream;
}
void ibx_frontend_forks_event_gone(const void *event)
{
    (void)event;
}
void ibx_frontend_forks_stream_gone(const void *stream)
{
    (void)stream;
}
