/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One session of a back end, as the files know it that run its requests: what they keep of it, and
 * CUDA in this process.
 *
 *   runtime.c        CUDA in this process: driver, and runtime as GVirtuS's handlers have it
 *   gone_contexts.c  contexts that are gone
 *   replies.c        the shape of GVirtuS's replies
 *   tuning.c         which path from which size, and the file of `ib-bw tune`
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_BACK_END_H
#define IBX_FRONTEND_GLUE_BACK_END_BACK_END_H

#include "frontend-glue/back_end/options.h"
#include "frontend-glue/back_end/types.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/own_requests.h"
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

struct gpu_session;

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
    bool launch_checked;             /* it launches, and ibx_device_launch_check() has passed it */
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
    unsigned room;            /* places in it */
    struct gpu_session *next; /* session that has begun some */
    bool listed;              /* the session is one of these */
    unsigned whole;           /* of those begun, which nobody's wait has ended */
    unsigned blocking;        /* of the latter, of streams that wait for the legacy one */
    unsigned ended_noted;     /* how often all captures had been ended, as noted here last */
    bool minds_own;           /* the thread is in capture mode THREAD_LOCAL: device_copies.c */
};

/* Launches that the session makes without GVirtuS: launch.c. */
struct session_launches {
    struct launch_function known[LAUNCH_FUNCTIONS];
    /* Of the launch in hand: so many bytes, and zeros behind them. */
    _Alignas(16) uint8_t arguments[IBX_OWN_ARGUMENTS_MAX];
    size_t argument_bytes;
    struct ibx_functions_user user; /* of clients' functions: ibx_functions_user_of() */
    bool tried;                     /* whether CUDA can launch, as long as it was not found to */
};

/* held_memory.c; under its lock. */
struct held_range {
    uint64_t begin, end;
};
struct held_memory {
    struct gpu_session *next;
    bool listed;
    struct held_range copied[2], freed;
};

/* The context of a session's hooks. */
struct gpu_session {
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
    int device;                  /* of the context, as ibx_back_end_able() has found it */
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
    uint8_t *long_arrays;   /* that such a one is given, likewise */
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

/* runtime.c */

/* A function of the runtime that GVirtuS's handlers call; NULL: it has none, or which runtime that
 * is cannot be told. */
void *ibx_back_end_runtime(const char *name);
/* Takes the thread's last error of the runtime away. */
void ibx_back_end_forget_error(void);
/* Calls the runtime's function of that name with what was made and cannot be noted. */
void ibx_back_end_undo(const char *name, uint64_t made);
/* Whether CUDA is there. */
bool ibx_back_end_have_cuda(struct gpu_session *x);
/* Whether this thread can run calls and copies now: CUDA is there, and the context that the runtime
 * would use is current. Notes its device. */
bool ibx_back_end_able(struct gpu_session *x);
/* The same, and makes the context that the thread's first call makes. */
bool ibx_back_end_begin_context(struct gpu_session *x);

/* gone_contexts.c */

/* How many contexts have gone so far. */
unsigned ibx_back_end_resets(void);
/* Contexts that went before are none of this session's. */
void ibx_back_end_resets_begin(struct gpu_session *x);
/* Forgets what the session had in contexts that have gone since the last call. */
void ibx_back_end_handle_resets(struct gpu_session *x);
/* The context has gone, NULL: it is not known which; `forget_all`, which is called meanwhile,
 * forgets what is no session's. */
void ibx_back_end_note_reset(void *context, void (*forget_all)(const void *context));

#endif
