/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of device_copies/ and by its tests only. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_COPIES_H

#include "frontend-glue/device_copies/client_functions.h"
#include "frontend-glue/device_copies/clients.h"
#include "frontend-glue/device_copies/device_copies.h"
#include "frontend-glue/device_copies/tenants.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/extra.h"
#include "frontend-glue/session/hooks.h"
#include "gpudirect/gpudirect.h"

/* ----------------------------------------------------------------------------- replies */

enum ibx_reply_shape {
    IBX_REPLY_UNKNOWN,
    IBX_REPLY_PLAIN, /* exit code, length */
    IBX_REPLY_TIMED, /* exit code, seconds, length */
    IBX_REPLY_ODD,   /* this back end's replies are of some other kind */
};

/* Learns the shape from the writes of the back end. */
struct ibx_reply_watch {
    enum ibx_reply_shape shape;
    unsigned count;
    size_t sizes[4];
    uint64_t second, third; /* as numbers */
    int32_t exit_code;      /* of the last one */
    uint8_t last[16];       /* the last write, up to 16 bytes of it */
    size_t last_size;
};

void ibx_reply_note_write(struct ibx_reply_watch *watch, const void *bytes, size_t n);
/* The reply is complete. */
void ibx_reply_note_sync(struct ibx_reply_watch *watch);
/* That is the shape for all sessions; and the session's own one, or else that: replies are one
 * GVirtuS's. */
void ibx_reply_know(enum ibx_reply_shape shape);
enum ibx_reply_shape ibx_reply_shape_known(const struct ibx_reply_watch *watch);
/* Whether replies of handlers can be read. */
bool ibx_reply_can_read(const struct ibx_reply_watch *watch);

#define IBX_REPLY_HEAD_MAX 20u

/* cudaError_t that requests of our own are answered with. */
#define CUDA_INVALID_VALUE     1
#define CUDA_MEMORY_ALLOCATION 2
#define CUDA_INVALID_SYMBOL    13
#define CUDA_OPERATING_SYSTEM  304
#define CUDA_INVALID_HANDLE    400
#define CUDA_NOT_SUPPORTED     801
/* Writes what precedes `out`; returns its length. The shape is PLAIN or TIMED. */
size_t ibx_reply_head(enum ibx_reply_shape shape, int32_t exit_code, double seconds,
                      uint64_t out_length, uint8_t head[IBX_REPLY_HEAD_MAX]);

static inline void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* ------------------------------------------------------------------------------ copies */

struct copies;

/* What a copy asks of a path. */
enum copy_stage {
    COPY_FROM_MESSAGE, /* to the device, the payload came with the request */
    COPY_FROM_CLIENT,  /* to the device, out of the client's memory */
    COPY_TO_CLIENT,    /* from the device into the client's memory, before the reply begins */
    COPY_TO_REPLY,     /* from the device: what is to be done before the reply begins */
    COPY_PART,         /* and then the next bytes of the reply, into the client's memory */
};

/* What fills and empties chunks. */
enum copy_wire { COPY_WIRE_FABRIC, COPY_WIRE_MESSAGE, COPY_WIRE_THREADS };

/* A way that bytes take. */
struct copy_path {
    bool holds; /* able() has the client's memory held, and the calls below release it */
    /* Whether the copy in hand can go this way. A better path that is refused leaves the reason in
     * copies->refused. */
    bool (*able)(struct copies *x);
    /* Each is for the stages that able() takes: an outcome, or as ibx_session_fail(). */
    int (*to_device)(struct copies *x);
    int (*to_client)(struct copies *x);
    int (*to_reply)(struct copies *x);
    int (*part)(struct copies *x, size_t n); /* 0, or as ibx_session_fail() */
};

/* The copy in hand. */
struct copy {
    enum copy_stage stage;
    struct ibx_frame frame;
    struct ibx_gpu_copy gpu; /* the same for the driver */
    uint64_t bytes;          /* of the payload, or of the part of it */
    bool settle;             /* it may be answered only when it has ended */
    enum copy_wire wire;
    const uint8_t *payload;   /* FROM_MESSAGE */
    uint8_t *out;             /* TO_REPLY: for a payload that goes inline */
    struct ibx_remote remote; /* the client's memory */
    uint64_t remote_at;       /* where in it the payload begins */

    int path;               /* the last that was taken, PATH_...; -1: none */
    struct ibx_reach reach; /* of the client's memory, if it is held */
    bool held;
    struct ibx_remote part; /* what of it is held */
    bool early;             /* in place: it may be answered while it is under way */
    bool late;              /* in place: it is answered when it has ended, but the next one first */
    struct ibx_staging_begun begun; /* that one */
    bool placed;                    /* in place: the GPU itself was at the client's memory */
    bool direct;                    /* the fabric copies, in the device's memory */
    struct ibx_mr *mr;  /* direct: its registration; NULL: this connection has none yet */
    uint64_t delivered; /* direct: bytes of the reply that have been WRITten */
};

/* In the order in which a copy asks them. */
enum { PATH_INLINE, PATH_IN_PLACE, PATH_COPY_THREADS, PATH_DIRECT, PATH_STAGED, PATHS };
extern const struct copy_path *const ibx_copy_paths[PATHS];
extern const struct copy_path ibx_path_inline, ibx_path_in_place, ibx_path_copy_threads,
    ibx_path_direct, ibx_path_staged;

/* What a session's tenant is, and what the request in hand has to do with it. */
struct isolation {
    struct ibx_tenant *tenant; /* NULL: nobody has been admitted */
    bool setting_up;           /* counts as one of the tenant's connections being set up */
    bool on;                   /* memory of other tenants is refused */
    bool limited;              /* what it allocates counts against rdma.device_memory */
    bool counted;              /* as one of the tenant's sessions */
    uint64_t held;             /* bytes that GVirtuS's buffer for requests has grown to */
    struct ibx_owners_cache owned, own_memory;
    unsigned long refused; /* requests */
    bool told_crowd, told_full;

    bool copies; /* it is a copy */
    bool allocates;
    uint64_t reserved;            /* bytes for what it allocates */
    uint64_t freed, freed_number; /* what it frees, if that has an owner */
    uint64_t gone;                /* the handle or address that it gives back */
    uint64_t given, given_number; /* the memory that it gives back: ibx_memory_free_end() */
};

/* A kernel that was launched, by the function that the client names it by. */
#define LAUNCH_FUNCTIONS 64u
struct launch_function {
    uint64_t function;                /* 0: none */
    void *context;                    /* in which `kernel` is */
    void *kernel;                     /* CUfunction */
    struct ibx_client_module *module; /* it is of */
    unsigned since;                   /* of the process's registrations */
    bool refused;                     /* a launch has failed: GVirtuS runs them */
};

/* What a handler of GVirtuS's does with the kernels and variables that clients have registered. */
enum registrations_use { REGISTRATIONS_UNUSED, REGISTRATIONS_LOOKED_UP, REGISTRATIONS_CHANGED };

/* What a handler of GVirtuS's does with what clients have made. */
enum made_use { MADE_UNUSED, MADE_MAKES, MADE_ENDS };

/* What it does with captures of streams, if it succeeds; or it waits for the device; or it may add
 * work to the legacy stream. */
enum captures_use {
    CAPTURES_UNUSED,
    CAPTURES_BEGUN,
    CAPTURES_DROPPED, /* with its stream */
    CAPTURES_ENDED,
    CAPTURES_WAIT,
    CAPTURES_SPARED
};

/* So much of a tenant's that is reserved. */
struct ibx_room {
    struct ibx_quota *quota; /* NULL: nothing */
    uint64_t n;
};

/* The handler of GVirtuS's that is about to run for the request in hand, or runs. */
struct gvirtus_handler {
    enum captures_use captures;               /* about to run */
    enum captures_use captures_run;           /* runs: until it has answered */
    enum registrations_use registrations;     /* about to run */
    enum registrations_use registrations_run; /* runs: until ibx_registrations_end() */
    unsigned lookups_passed;                  /* as it began: registrations.c */
    enum made_use made;
    enum ibx_handle_kind made_kind;  /* of what it makes, or ends */
    bool makes_graph, makes_exec;    /* it returns a graph, or what can be launched */
    struct ibx_graph_size exec_size; /* of the latter */
    struct ibx_room exec_room;       /* for it, reserved */
    bool changes_kernels;            /* it registers some, or takes some away */
    bool unloads;                    /* it takes some away */
    bool launch_checked;             /* it launches, and ibx_copies_launch_check() has passed it */
    bool allocates;                  /* it is cudaMalloc */
    bool selects;                    /* it is cudaSetDevice */
    bool frees;                      /* it gives memory back: until ibx_frees_end() */
    bool may_reset;                  /* it may reset the context */
    bool takes_context;              /* it takes a context away: */
    void *taken_context;             /* this one; NULL: it is not known which */
};

/* A copy to the client that is answered later. */
struct late_copy {
    bool pending;
    uint64_t bytes, began; /* of the payload; when */
    struct ibx_staging_begun begun;
};

#define IBX_NAMED_STREAMS 32u

/* A capture that a session has begun. */
struct ibx_captured {
    uint64_t stream; /* 0: a free place */
    uint64_t id;     /* CUDA's, of the capture; 0: not known */
};

/* All of a session's: captures.c. */
struct session_captures {
    unsigned begun; /* and not ended */
    struct ibx_captured *list;
    unsigned room;        /* places in it */
    struct copies *next;  /* session that has begun some */
    bool listed;          /* the session is one of these */
    unsigned whole;       /* of those begun, which nobody's wait has ended */
    unsigned blocking;    /* of the latter, of streams that wait for the legacy one */
    unsigned ended_noted; /* how often all captures had been ended, as noted here last */
    bool minds_own;       /* the thread is in capture mode THREAD_LOCAL: device_copies.c */
};

/* Launches that the session makes without GVirtuS: launch.c. */
struct session_launches {
    struct launch_function known[LAUNCH_FUNCTIONS];
    /* Of the launch in hand: so many bytes, and zeros behind them. */
    _Alignas(16) uint8_t arguments[IBX_EXTRA_ARGUMENTS_MAX];
    size_t argument_bytes;
    struct ibx_functions_user user; /* of clients' functions: ibx_copies_user() */
    bool tried;                     /* whether CUDA can launch, as long as it was not found to */
};

/* held_memory.c; under its lock. */
struct held_range {
    uint64_t begin, end;
};
struct held_memory {
    struct copies *next;
    bool listed;
    struct held_range copied[2], freed;
};

/* The context of a session's hooks. */
struct copies {
    struct ibx_session *s;
    struct ibx_gpu_options options; /* its mode becomes OFF where there is no CUDA */

    struct ibx_request_watch requests;
    struct ibx_reply_watch replies;
    int selected;   /* the device that cudaSetDevice has selected, -1: none */
    bool answering; /* what is written now is ours */

    struct held_memory keeps;
    struct isolation isolation;
    struct ibx_client *client; /* NULL: it has not been asked for yet */
    bool joined;               /* it counts as a session of some client */
    bool thread_stream;        /* it uses the stream that CUDA has for its thread */

    const struct ibx_cuda *cuda; /* NULL: not loaded yet */
    int device;                  /* of the context, as ibx_copies_able() has found it */
    struct ibx_choice choice;    /* of the device `chosen_for` */
    int chosen_for;              /* -1: none yet */
    struct ibx_staging *staging; /* NULL: not made yet */
    struct ibx_turn turn;
    unsigned resets; /* of contexts of the process, that this session knows of */
    struct ibx_gpu_registrations registrations; /* GPU memory registered with the connection */
    bool not_direct;                            /* it never will be */
    struct ibx_client_pins pins; /* the client's memory, as far as it is mapped here */
    bool last_in_place;          /* the last reply with a payload went into such memory */
    /* It was logged why that is not done. */
    bool told_staging, told_direct, told_pins, told_maps;
    bool keeps_kernels;      /* those that it took away last stay: ibx_own_unload_guard() */
    struct ibx_mr **regions; /* the pool's chunks as far as registered here */
    unsigned region_count;
    struct ibx_mr **slot_regions; /* likewise the blocks of slots of graphs; NULL: none */
    struct ibx_mr *windows;       /* both ends of a long body, IBX_FRAME_WINDOW bytes each */
    uint32_t arrived;             /* a bit for each READ or WRITE that is over, by cookie - 1 */

    struct gvirtus_handler handler;
    struct session_captures capturing;
    struct session_launches launches;
    uint8_t *long_reply;    /* of a library's function: math_calls.c; NULL: there was none */
    bool tried_runtime;     /* whether there is one, as long as none was found */
    bool makes_memory;      /* between ibx_memory_make_begin() and _end() */
    bool allocates_plainly; /* GVirtuS's handler of cudaMalloc answers with the address alone */

    uint64_t named[2][IBX_NAMED_STREAMS]; /* streams, events: named_streams.c */
    unsigned named_since;

    struct handle *held[IBX_HANDLES_HELD]; /* by the request in hand */
    unsigned held_count;

    struct ibx_host_queue *host_queue; /* NULL: the session asks for no functions to call */

    struct copy copy;
    struct late_copy late;
    unsigned long ran;          /* copies so far */
    unsigned long taken[PATHS]; /* of these, by path */
    char refused[256];          /* why the last one that could not take a better path could not */
};

/* Bits of copies->arrived. */
#define COPIES_SLOTS   ((1u << IBX_STAGING_DEPTH) - 1)
#define COPIES_HEAD    (1u << IBX_STAGING_DEPTH)
#define COPIES_TAIL    (COPIES_HEAD << 1)
#define COPIES_WINDOWS (COPIES_HEAD | COPIES_TAIL)

/* device_copies.c */

/* The context of the session's hooks, or NULL. */
struct copies *ibx_copies_of(const struct ibx_session *s);
/* Sets ibx_end_hooks_set(), for a session that nothing is attached to. */
void ibx_copies_set_end_hooks(void);

/* to_device.c, from_device.c: an outcome, or as ibx_session_fail(). From the device DONE means
 * answered, too. */

bool ibx_copies_parse(const struct ibx_request *q, struct ibx_frame *frame);
int ibx_copies_to_device(struct copies *x, const struct ibx_request *q);
int ibx_copies_from_device(struct copies *x, const struct ibx_request *q, uint64_t began);
/* The beginning of a reply, with `out` bytes behind it; likewise. */
int ibx_copies_write_head(struct copies *x, int exit_code, uint64_t began, uint64_t out);
/* The reply up to its payload of n bytes, which is where the client wants it; likewise. */
int ibx_copies_reply_early(struct copies *x, uint64_t began, uint64_t n);
/* A whole reply, as ibx_session_fail(). */
int ibx_copies_answer(struct copies *x, uint64_t began, const void *out, size_t n);
int ibx_copies_deliver(void *context, const struct ibx_remote *remote, size_t n);

/* choice.c */

/* Which paths copies take from now on, to and from the current device: its number. */
void ibx_copies_choose(struct copies *x, int device);
/* The sizes that count for copies in the direction of the copy in hand. */
const struct ibx_choice_way *ibx_copies_way(const struct copies *x);
/* For ibx_device_copies_refused(). */
void ibx_copies_note_refusal(struct copies *x, const char *why);
/* What a copy's end means: DONE, PASS, or as ibx_session_fail(). */
int ibx_copies_outcome(const struct copies *x, int rc);
/* The GPU has failed while a reply is on its way; as ibx_session_fail(). */
int ibx_copies_broke_off(struct copies *x, int code);

/* paths.c */

/* Begins a stage of the copy in hand, whose frame is known: `bytes` are to move. */
void ibx_copies_begin(struct copies *x, enum copy_stage stage, uint64_t bytes);
/* The first path of the table that is able; NULL: none is. */
const struct copy_path *ibx_copies_path(struct copies *x);

/* late.c: as ibx_session_fail() */

/* The copy in hand, which is `late`, is answered later; that before is now. */
int ibx_copies_delay(struct copies *x, const struct ibx_request *q, uint64_t began);
/* Hook: answers it, once it has ended. */
int ibx_copies_answer_late(void *context);

/* in_place.c */

/* Hook: pins memory of the client's that copies are about to name. */
int ibx_copies_prepare(void *context, const struct ibx_remote *remote);

/* staged.c */

/* The staging pipeline, with no chunks; NULL: there is no memory for it. */
struct ibx_staging *ibx_copies_staging(struct copies *x);
/* Takes the chunks for a copy of `bytes`, for the fabric or not. */
bool ibx_copies_take_chunks(struct copies *x, uint64_t bytes, bool fabric);
struct ibx_staging_wire ibx_copies_wire(struct copies *x, enum copy_wire wire);
/* After a call of ibx_staging_*, with its result: gives the chunks back; an outcome. */
int ibx_copies_staged_outcome(struct copies *x, int rc);
/* The next n bytes of a reply, into its message; as ibx_session_fail(). */
int ibx_copies_write_staged(struct copies *x, size_t n);

/* direct.c */

/* Whether this connection reaches GPU memory, as far as that is known. */
bool ibx_copies_direct_likely(struct copies *x);

/* check.c */

/* Whether all that the frame names is what it should be: device memory of one allocation, of the
 * current device unless the copy is between two, no other tenant's, and a stream that is not being
 * captured. Fills in
 * where a symbol is. */
bool ibx_copies_sound(struct copies *x, struct ibx_frame *frame);
/* process_memory.c */

/* Whether [address, address + n) begins or ends in memory of this process, or is no range: CUDA may
 * take what a client calls memory of the device for what it is here. Of the device's, managed and
 * the client's own page-locked memory, and where nothing can be read here, CUDA judges. */
bool ibx_copies_is_own(struct copies *x, uint64_t address, uint64_t n);

/* calls.c: an outcome, or as ibx_session_fail() */

/* `own` runs requests of our own: ibx_copies_extra() */
int ibx_copies_call(struct copies *x, const struct ibx_request *q,
                    int (*own)(struct copies *x, const struct ibx_request *q,
                               struct ibx_writer *out));
/* GVirtuS has begun to read a request of that name; and has answered it. */
void ibx_copies_call_read(struct copies *x, const char *name);
void ibx_copies_call_answered(struct copies *x);

/* captures.c */

/* Whether a client captures a stream. */
bool ibx_copies_captures(void);
/* Whether the stream's work comes into a capture; CUDA's number of it, 0: not known. */
bool ibx_captures_active(struct copies *x, uint64_t stream, uint64_t *id);
/* The same of any stream whose capture the session has begun, and not ended; 0 also if there are
 * several. */
bool ibx_captures_own(struct copies *x, uint64_t *id);
/* Around a wait for the device, which ends all captures: the former stays until no other client
 * captures, for a bounded time, and until the latter none begins, likewise. */
void ibx_captures_wait_begin(struct copies *x);
void ibx_captures_wait_end(void);
/* The same, at once or not at all: a client captures. */
bool ibx_captures_wait_try(void);
#define IBX_STREAM_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING, cudaStreamNonBlocking */
/* Before work is added to that stream, and before the legacy one is waited for: where that would
 * end other clients' captures it stays until there are none, for a bounded time. */
void ibx_captures_spare(struct copies *x, uint64_t stream);
/* Around a copy in the legacy stream: the same, and until the latter none begins, likewise. */
void ibx_captures_legacy_begin(struct copies *x);
void ibx_captures_legacy_end(void);
/* What GVirtuS's handler does, by its request's name; before it runs; when it has returned, or its
 * session has ended; when it has answered. */
enum captures_use ibx_captures_use(const char *name, enum ibx_call_kind kind);
void ibx_captures_run(struct copies *x);
void ibx_captures_ran(struct copies *x);
void ibx_captures_answered(struct copies *x, int exit_code);
/* The session has ended, and what it captured is nobody's. */
void ibx_captures_end(struct copies *x);

/* launch.c */

/* 0; otherwise GVirtuS has to launch it. */
int ibx_copies_launch(struct copies *x, const uint8_t *body, size_t n);
/* A kernel of a graph, of the body of a launch: adds it behind others, or sets the parameters of
 * one, where `exec` is set in what was made of the graph. What the driver returns. */
struct ibx_kernel_node {
    void *graph, **behind; /* to add it */
    size_t count;
    void *node, *exec; /* to set them; or what was added */
};
int ibx_copies_kernel_node(struct copies *x, const uint8_t *body, size_t n,
                           struct ibx_kernel_node *node);
/* The same with `count` attributes (extra.h), and what CUDA returns. */
int ibx_copies_launch_as(struct copies *x, const uint8_t *body, size_t n, const uint8_t *attributes,
                         size_t count);
/* Before GVirtuS launches it: 0; CUDA's error where there is no such function, or where its handler
 * would read more than the launch brings. */
int ibx_copies_launch_check(struct copies *x, const uint8_t *body, size_t n);
/* Behind that, by the runtime, and what it returns; `tried`: behind ibx_copies_launch(), too. -1:
 * GVirtuS has to. */
int ibx_copies_launch_by_runtime(struct copies *x, const uint8_t *body, size_t n, bool tried);
/* Parameters of a kernel from the first-th on, *count at most, which becomes how many there are.
 * What CUDA returns. */
struct ibx_parameter {
    size_t at, bytes;
};
int ibx_copies_parameters(struct copies *x, uint64_t function, size_t first,
                          struct ibx_parameter *parameters, size_t *count);
/* The arguments of a node of that kernel's, as CUDA says where they are, one behind the other as
 * the kernel has them: to be freed. */
int ibx_copies_arguments(struct copies *x, uint64_t function, void *const *arguments,
                         void *const *extra, uint8_t **bytes, size_t *n);
/* GVirtuS is about to launch what has come in pieces, or is long, and was not looked at: if its
 * handler would read on from there it is a launch of no function then. */
void ibx_copies_launch_spare(struct copies *x, uint8_t *body, size_t n);

/* extra.c */

/* A request of our own: its exit code, and what it answers beside that. */
int ibx_copies_extra(struct copies *x, const struct ibx_request *q, struct ibx_writer *out);

/* math_calls.c */

/* One for a function of cuBLAS and the like: the library's status, or IBX_MATH_ABSENT. */
int ibx_copies_math(struct copies *x, const struct ibx_request *q, struct ibx_writer *out);
/* Of struct ibx_end_hooks: has the library end what is of that type. */
void ibx_math_end(unsigned type, uint64_t handle);

/* extra_ipc.c: what a client has shared with other processes. Two are of struct ibx_end_hooks. */

/* This memory was given back, or this event destroyed. */
void ibx_ipc_gone(uint64_t value);
/* The context is gone, and what was in it; NULL: it is not known which. */
void ibx_ipc_forget(const void *context);
/* The session has ended. What it has shared stays, as its memory does in GVirtuS. */
void ibx_ipc_end(const struct copies *x);

/* named_streams.c */

/* Whether CUDA may get that handle: of one of the tenant's that is there, or that each thread has,
 * or 0. */
bool ibx_named_stream(struct copies *x, uint64_t stream);
bool ibx_named_event(struct copies *x, uint64_t event);
bool ibx_named_array(struct copies *x, uint64_t array);
/* The log says so once. */
void ibx_named_tell(const struct copies *x);
/* Whether such a request's streams are known here, by its name. */
bool ibx_named_knows(const char *name);
/* Puts 0 in place of others in the body of a request that GVirtuS is about to run. */
void ibx_named_spoil(struct copies *x, uint8_t *body, size_t n);
/* A handler has returned a stream or an event, and it was not seen which: all may be named. The
 * same of a graph, or of what was made of one to be launched. */
void ibx_named_unseen(void);
bool ibx_named_any_unseen(void);
void ibx_named_graph_unseen(void);

/* host_maps.c: what kernels of the client, which is no more, have reached: who maps anything there
 * from now on waits until ibx_host_maps_end() has given it back. */
struct ibx_host_map *ibx_host_maps_take(uint64_t client);
/* Whether all n bytes (not 0) are in one piece of page-locked memory of the session's client that
 * is mapped for kernels. */
bool ibx_host_maps_hold(struct copies *x, uint64_t address, uint64_t n);
void ibx_host_maps_end(struct copies *x, struct ibx_host_map *taken);
/* `length` bytes of the session's client at that address, by the file that both ends map, at
 * `offset` in it; or pages of this process's own. And what begins there, or holds it, is given
 * back. cudaError_t */
struct ibx_host_map_wish {
    uint64_t address, length, offset;
    bool own; /* in no file: pages of this process's */
};
int ibx_host_maps_make(struct copies *x, const struct ibx_host_map_wish *wish);
void ibx_host_maps_give_back(struct copies *x, uint64_t address);

/* held_memory.c: the session is about to copy, before that is checked; or to free, before anything
 * of it. Each waits for the other, of other sessions. Its end; nothing, if there is none. */
void ibx_held_by_copy(struct copies *x, const struct ibx_frame *f);
void ibx_held_by_free(struct copies *x, uint64_t address);
void ibx_held_by_unmap(struct copies *x, uint64_t address, uint64_t n); /* as by_free */
void ibx_held_end(struct copies *x);

/* frees.c: around what gives memory back, and waits for the device in CUDA. `address`: which
 * memory; 0: none of a pool. */
void ibx_frees_begin(struct copies *x, uint64_t address);
void ibx_frees_end(void);
/* Likewise around the first look-up of a kernel on a device, with which the driver may load it.
 * False: it was looked up before, and no ibx_frees_end_load() is to follow. */
bool ibx_frees_begin_load(struct copies *x, uint64_t function);
void ibx_frees_end_load(struct copies *x, uint64_t function);
/* Kernels were unloaded, or a context went with its own. */
void ibx_frees_unloaded(void);
/* Launches a graph, when no memory is being given back. */
int ibx_frees_launch(struct copies *x, int (*launch)(void *graph, void *stream), void *graph,
                     void *stream);
/* Before an executable graph is given back: waits for its last launch. */
void ibx_frees_exec(struct copies *x, const void *exec);
/* A context was reset, with its events, as far as the last launches of executable graphs are
 * behind these; NULL: unknown which. */
void ibx_frees_forget(const void *context);

/* graph_limits.c */

/* Reserves room for n more of the tenant's, and gives it back: when it counts otherwise. */
bool ibx_room_take(struct copies *x, enum ibx_hold hold, uint64_t n);
void ibx_room_give(struct copies *x, enum ibx_hold hold, uint64_t n);
/* The same of IBX_HOLD_EXECS, of the GPU whose context the thread has: which that is. */
bool ibx_room_take_execs(struct copies *x, uint64_t n, struct ibx_room *room);
void ibx_room_end(struct ibx_room *room);
int ibx_room_gpu(struct copies *x);
/* A new graph has what a capture has made of it. False: there are too many graphs within each
 * other. */
bool ibx_graph_measure(struct copies *x, uint64_t graph);
/* A request runs, which may add to what is captured; or is about to launch into that stream. False:
 * it is too much. */
bool ibx_graph_captures(struct copies *x, const struct ibx_call *call, const uint8_t *body,
                        size_t n);
bool ibx_graph_captures_in(struct copies *x, uint64_t stream);
bool ibx_graph_launches(struct copies *x, uint64_t exec, uint64_t stream);
/* The capture of that number is over, and counts as a graph, if it has become one; all of the
 * tenant's are. */
void ibx_graph_capture_over(struct ibx_tenant *tenant, uint64_t id);
void ibx_graph_captures_over(struct ibx_tenant *tenant);
/* It ends the session. */
int ibx_captures_full(struct copies *x);
/* A graph, or what was made of one, is the tenant's from now on; false: no memory. */
bool ibx_graph_note(struct copies *x, enum ibx_handle_kind kind, uint64_t handle);
/* The nodes of a graph by a function like cudaGraphGetNodes; NULL: *rc says why not. To be freed.
 */
void **ibx_graph_nodes_of(void *function, void *graph, size_t *count, int *rc);
#define CHILD_NODE 4 /* enum cudaGraphNodeType */
/* Before a node is made that is behind so many, with a graph of `inner` nodes in it, `depth` of
 * them within each other: 0 when its room is reserved, *weight of IBX_HOLD_GRAPHS, until the next
 * call.
 */
int ibx_graph_node_room(struct copies *x, const void *graph, size_t behind, uint64_t inner,
                        unsigned depth, uint64_t *weight);
#define IBX_GRAPHS_DEEP 128u /* one within the other */

/* graph_room.c: before a launch of a graph with so many functions of clients, which stays until
 * there is room for them; so many were called, or will not be. */
void ibx_graph_room_take(unsigned functions);
void ibx_graph_room_give(unsigned functions);

/* registrations.c: what a handler of GVirtuS's does, by its request's name. */
enum registrations_use ibx_registrations_use(const char *name);
/* Around it; the former when all of the request has been read. One that changes them waits for
 * those that look up, for a bounded time. */
void ibx_registrations_begin(struct copies *x);
void ibx_registrations_end(struct copies *x);
/* Kernels were registered, or are no more; how often. */
void ibx_registrations_changed(void);
unsigned ibx_registrations_changes(void);

/* host_work.c: cudaError_t */
/* Whether graphs of clients may call functions of theirs. */
bool ibx_host_work_repeats(void);

/* A queue of the session's own, by whose id all of the client's threads name it. */
int ibx_host_work_open(struct copies *x, uint64_t *id);
struct ibx_host_work {
    uint64_t stream, queue, number; /* number: the client's, not 0 */
    bool callback;
};
/* `enqueue` is the runtime's cudaLaunchHostFunc, or cudaStreamAddCallback. */
int ibx_host_work_add(struct copies *x, const struct ibx_host_work *work, void *enqueue);
/* A function that a graph calls, as often as it is launched: what CUDA is to call it by. The same
 * number is the same function. It is known until it has been released as often, which CUDA may do
 * itself. NULL: *rc says why not. */
void *ibx_host_work_repeat(struct copies *x, uint64_t queue, uint64_t number, int *rc);
void ibx_host_work_release(void *repeated);
/* Likewise until its queue's session ends. */
void ibx_host_work_for_good(const void *repeated);
void ibx_host_work_call(void *repeated);
/* The same of one that copies n bytes between the client and a slot, which is held once more for
 * the graph, and said. */
struct ibx_host_copy {
    uint64_t slot; /* 0: it is another function */
    size_t n;
    bool to_device;
};
void *ibx_host_work_copy(struct copies *x, uint64_t queue, uint64_t number,
                         struct ibx_host_copy *copy, int *rc);
/* No graph has that slot any more, nor calls that function, of a copy. */
void ibx_host_work_unused(const void *repeated, uint64_t slot);
/* The copy of the function that the client is calling now. */
struct ibx_host_copy ibx_host_work_taken(const struct copies *x, uint64_t number);
/* The number of one of the tenant's; 0: it is none. */
uint64_t ibx_host_work_number(const struct copies *x, const void *repeated);
/* Whether it copies by a slot: nothing that needs CUDA is waited for then. */
bool ibx_host_work_is_copy(const void *repeated);
struct ibx_host_copy ibx_host_work_copy_of(const void *repeated);
/* `over` was called (0: none was). What is to be called now; `wait`: for a few milliseconds. */
struct ibx_host_called {
    uint64_t number; /* 0: nothing is */
    int status;      /* for a callback */
    struct ibx_host_copy copy;
};
int ibx_host_work_ask(struct copies *x, uint64_t over, bool wait, struct ibx_host_called *called);
/* The session has ended. */
void ibx_host_work_end(struct copies *x);

/* runtime.c */

/* A function of the runtime that GVirtuS's handlers call; NULL: it has none, or which runtime that
 * is cannot be told. */
void *ibx_copies_runtime(const char *name);
/* Takes the thread's last error of the runtime away. */
void ibx_copies_forget_error(void);
/* Calls the runtime's function of that name with what was made and cannot be noted. */
void ibx_copies_undo(const char *name, uint64_t made);
/* Whether CUDA is there. */
bool ibx_copies_have_cuda(struct copies *x);
/* Whether this thread can run calls and copies now: CUDA is there, and the context that the runtime
 * would use is current. Notes its device. */
bool ibx_copies_able(struct copies *x);
/* The same, and makes the context that the thread's first call makes. */
bool ibx_copies_begin_context(struct copies *x);

/* symbol.c */

/* Fills in where the symbol is that the frame names: false when this process does not know, or its
 * memory is not what it should be. */
bool ibx_copies_symbol(struct ibx_frame *frame);

/* resets.c */

/* How many contexts have gone so far. */
unsigned ibx_copies_resets(void);
/* Contexts that went before are none of this session's. */
void ibx_copies_resets_begin(struct copies *x);
/* Forgets what the session had in contexts that have gone since the last call. */
void ibx_copies_handle_resets(struct copies *x);
/* A request takes a context away: before its handler runs, and when that has answered. */
void ibx_copies_lose_context(struct copies *x);
void ibx_copies_lost_context(struct copies *x, int exit_code);

/* broken_context.c */

/* A call was answered with that code. */
void ibx_copies_note_error(const struct copies *x, int code);
/* Whether such an error has broken this process. */
bool ibx_copies_broken(void);
/* A session has begun. */
void ibx_copies_tell_broken(const struct copies *x);
/* A client comes. Does not return in a process that is about to be replaced. */
void ibx_copies_hold_back(void);

/* ready_context.c */

/* In a spare process: begins to make a context in the background. */
void ibx_ready_context_make(const struct copies *x);
/* A client comes. */
void ibx_ready_context_taken(void);
/* A thread of the client's program has selected that device; -1: none yet. */
void ibx_ready_context_selected(int device);

/* isolation.c */

/* The session's client has proven itself: -EDQUOT if too many others are being set up, -ENOMEM. The
 * session has begun: as ibx_session_fail(). And it has ended. */
int ibx_isolation_admit(struct copies *x, const struct ibx_path *path, struct ibx_error *err);
int ibx_isolation_begin(struct copies *x);
void ibx_isolation_end(struct copies *x);
/* Whether none of [address, address + n) is another tenant's, or another program's. */
bool ibx_isolation_allows(struct copies *x, uint64_t address, uint64_t n);
/* The same for a call that is made now: ibx_memory_not_there(). */
bool ibx_isolation_allows_now(struct copies *x, uint64_t address, uint64_t n);
/* Handles that GVirtuS's handlers take: other tenants' are refused as their memory is. False: it
 * cannot be noted whose it is. Before it is given back: for ibx_owners_remove() behind that. */
bool ibx_isolation_own(struct copies *x, uint64_t handle);
uint64_t ibx_isolation_owned(const struct copies *x, uint64_t handle);
/* What GVirtuS is about to get, before and after x->requests notes it: as ibx_session_fail(). The
 * bytes may change. */
int ibx_isolation_before_read(struct copies *x, uint8_t *bytes, size_t n);
int ibx_isolation_after_read(struct copies *x, enum ibx_request_stage before);
/* Whether zeros leave instead of the last write, which x->replies has noted. */
bool ibx_isolation_withholds(const struct copies *x);
/* The reply is complete. */
void ibx_isolation_replied(struct copies *x);

#endif
