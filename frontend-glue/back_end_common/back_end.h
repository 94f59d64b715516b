/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What all folders of the back end use: what the files that run a session's requests keep for it,
 * and CUDA in this process.
 *
 *   runtime.c        CUDA in this process: the driver, and the runtime of GVirtuS's handlers
 *   destroyed_contexts.c  contexts that are gone
 *   replies.c        the shape of GVirtuS's replies
 *   tuning.c         which path a copy of which size takes, and the file of `ib-bw tune`
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_COMMON_BACK_END_H
#define IBX_FRONTEND_GLUE_BACK_END_COMMON_BACK_END_H

#include "frontend-glue/back_end_common/options.h"
#include "frontend-glue/back_end_common/types.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/hooks.h"
#include "gpudirect/gpudirect.h"

/* ----------------------------------------------------------------------------- replies */

enum ibx_reply_shape {
    IBX_REPLY_UNKNOWN,
    IBX_REPLY_PLAIN, /* exit code, length */
    IBX_REPLY_TIMED, /* exit code, seconds, length */
    IBX_REPLY_ODD,   /* some other kind */
};

/* Learns the shape of replies from the writes of GVirtuS's back end. */
struct ibx_reply_watch {
    enum ibx_reply_shape shape;
    unsigned count;
    size_t sizes[4];
    uint64_t second, third; /* these writes as numbers, if they have 8 bytes */
    int32_t exit_code;      /* of the last reply */
    uint8_t last[16];       /* the last write, up to 16 bytes of it */
    size_t last_size;
};

void ibx_reply_note_write(struct ibx_reply_watch *watch, const void *bytes, size_t n);
/* The reply is complete. */
void ibx_reply_note_sync(struct ibx_reply_watch *watch);
/* know(): notes the shape for all sessions, which all have the same GVirtuS. shape_known(): the
 * session's own shape, or, before its first reply, that of all. */
void ibx_reply_know(enum ibx_reply_shape shape);
enum ibx_reply_shape ibx_reply_shape_known(const struct ibx_reply_watch *watch);
/* Whether replies of handlers can be read. */
bool ibx_reply_can_read(const struct ibx_reply_watch *watch);

#define IBX_REPLY_HEAD_MAX 20u

/* cudaError_t that extension requests are answered with. */
#define CUDA_INVALID_VALUE     1
#define CUDA_MEMORY_ALLOCATION 2
#define CUDA_INVALID_SYMBOL    13
#define CUDA_OPERATING_SYSTEM  304
#define CUDA_INVALID_HANDLE    400
#define CUDA_ILLEGAL_STATE     401
#define CUDA_NOT_SUPPORTED     801
/* Writes what precedes the payload of `out_length` bytes; returns the length of that head. The
 * shape is PLAIN or TIMED. */
size_t ibx_reply_head(enum ibx_reply_shape shape, int32_t exit_code, double seconds,
                      uint64_t out_length, uint8_t head[IBX_REPLY_HEAD_MAX]);

static inline void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* ------------------------------------------------------------------------------ copies */

struct gpu_session;

/* What a path is asked to do for a copy. */
enum copy_stage {
    COPY_FROM_MESSAGE, /* to the device; the payload came with the request */
    COPY_FROM_CLIENT,  /* to the device, from the client's memory */
    COPY_TO_CLIENT,    /* from the device into the client's memory, before the reply begins */
    COPY_TO_REPLY,     /* from the device, before the reply begins */
    COPY_PART,         /* ... then the next bytes of the reply, into the client's memory */
};

/* What fills and empties chunks. */
enum copy_wire { COPY_WIRE_FABRIC, COPY_WIRE_MESSAGE, COPY_WIRE_THREADS };

/* When a copy is answered. Only copies in place are answered otherwise than at their end. */
enum copy_answered {
    COPY_ANSWERED_AT_END,
    COPY_ANSWERED_EARLY, /* while it is under way */
    COPY_ANSWERED_LATE,  /* when it has ended, before which the next copy may begin */
};

/* The copy in hand. */
struct copy {
    enum copy_stage stage;
    struct ibx_frame frame;
    struct ibx_gpu_copy gpu; /* the same for the driver */
    uint64_t bytes;          /* of the payload, or of this part */
    bool settle;             /* it may be answered only when it has ended */
    bool from_host;          /* from page-locked memory, within the device for the client */
    bool alone;              /* it comes after no work: IBX_EXT_ALONE */
    enum copy_wire wire;
    const uint8_t *payload;   /* FROM_MESSAGE */
    uint8_t *out;             /* TO_REPLY: where a payload goes that is inline */
    struct ibx_remote remote; /* the client's memory */
    uint64_t remote_at;       /* where in it the payload begins */

    int path;               /* the last one that was taken, PATH_...; -1: none */
    struct ibx_reach reach; /* of the client's memory, if it is held */
    bool held;
    struct ibx_remote part; /* the part that is held */
    enum copy_answered answered;
    struct ibx_unpinned_stream *behind; /* in place, EARLY: it is not pinned, and goes by a chunk */
    struct ibx_staging_begun begun;     /* the copy that is answered LATE */
    bool placed;                        /* in place: the GPU itself has used the client's memory */
    bool direct;                        /* the fabric reads or writes the device's memory */
    struct ibx_mr *mr;  /* direct: its registration; NULL: this connection has none yet */
    uint64_t delivered; /* direct: bytes of the reply that have been WRITten */
};

/* In the order in which a copy tries them. */
enum { PATH_INLINE, PATH_IN_PLACE, PATH_COPY_THREADS, PATH_DIRECT, PATH_STAGED, PATHS };

/* A session's tenant, and what the request in hand does with the tenant's memory. */
struct isolation {
    struct ibx_tenant *tenant; /* NULL: the client has not been admitted yet */
    bool setting_up;           /* counts as one of the tenant's connections being set up */
    bool on;                   /* memory of other tenants is refused */
    bool limited;              /* what it allocates counts against rdma.device_memory */
    bool counted;              /* as one of the tenant's sessions */
    uint64_t held;             /* bytes that GVirtuS's buffer for requests has grown to */
    uint64_t unpacked;         /* bytes that count while a handler decompresses images */
    uint64_t reply;            /* bytes that count until a handler's reply has been sent */
    struct ibx_owners_cache owned, own_memory;
    unsigned pushed;       /* configurations of launches that the runtime keeps */
    unsigned long refused; /* requests that were refused */
    bool logged_crowd, logged_full;

    bool sends_unset; /* the handler of the request may send what nothing has set if it fails */
    unsigned rest;    /* enum ibx_library_rest, of its reply */
    bool pops;        /* ... pops a configuration of a launch */
    bool allocates;
    uint64_t reserved;            /* bytes that are counted for what it allocates */
    uint64_t freed, freed_number; /* what it frees, if that has an owner */
    uint64_t gone;                /* the handle or address that it gives back */
    uint64_t given, given_number; /* the memory that it frees, for ibx_memory_free_end() */
};

/* Where a kernel's parameters are among its arguments. */
#define LAYOUT_MOST 32u
struct launch_layout {
    enum { LAYOUT_NOT_ASKED, LAYOUT_KNOWN, LAYOUT_LONG } state; /* LONG: there are more */
    uint16_t count, end, at[LAYOUT_MOST];
};

/* A kernel that was launched, and the function by which the client names it. */
#define LAUNCH_FUNCTIONS 64u
struct launch_function {
    uint64_t function;                /* 0: none */
    void *context;                    /* in which `kernel` is */
    void *kernel;                     /* CUfunction */
    struct ibx_client_module *module; /* that it is of */
    unsigned since;                   /* the count of the process's registrations then */
    bool refused;                     /* a launch has failed: GVirtuS launches it from then on */
    struct launch_layout layout;      /* asked for when a node of a graph gets the kernel */
};

/* What a handler of GVirtuS's does with the kernels and variables that clients have registered. */
enum registrations_use { REGISTRATIONS_UNUSED, REGISTRATIONS_LOOKED_UP, REGISTRATIONS_CHANGED };

/* What a handler of GVirtuS's does with what clients have made. */
enum made_use { MADE_UNUSED, MADE_MAKES, MADE_ENDS };

/* What a handler does: with captures of streams, if it succeeds; or it waits for the device; or it
 * may add work to the legacy stream. */
enum captures_use {
    CAPTURES_UNUSED,
    CAPTURES_BEGUN,
    CAPTURES_DROPPED, /* its stream was destroyed */
    CAPTURES_ENDED,
    CAPTURES_WAIT,
    CAPTURES_SPARED
};

/* What a handler does, where that matters when it has answered. */
enum handler_task {
    TASK_OTHER,
    TASK_ALLOCATES, /* cudaMalloc */
    TASK_SELECTS,   /* cudaSetDevice */
    TASK_GRAPH,     /* returns a graph */
    TASK_EXEC,      /* returns an executable graph */
    TASK_REGISTERS, /* registers kernels, or resets the context, which has them */
    TASK_UNLOADS    /* unregisters kernels */
};

/* Room that is reserved for a tenant. */
struct ibx_room {
    struct ibx_quota *quota; /* NULL: nothing */
    uint64_t n;
};

/* The handler of GVirtuS's that is about to run for the request in hand, or runs. */
struct gvirtus_handler {
    enum handler_task task;                   /* TASK_OTHER again once it has answered */
    enum captures_use captures;               /* about to run */
    enum captures_use captures_run;           /* runs: until it has answered */
    bool ends_capture;                        /* runs: until it has returned */
    bool ends_graphs;                         /* ... may end a capture's graph: captures.c */
    uint64_t ended_graph;                     /* ... has, and has not answered; 0: none */
    unsigned captures_before;                 /* as it began: ibx_captures_over_so_far() */
    enum registrations_use registrations;     /* about to run */
    enum registrations_use registrations_run; /* runs: until ibx_registrations_end() */
    unsigned lookups_passed;                  /* when it began: registrations.c */
    enum made_use made;
    enum ibx_handle_kind made_kind;  /* of what it makes, or ends */
    uint64_t made_of;                /* a module, of which it returns a function */
    enum ibx_handle_maker maker;     /* of what it makes, if that is a library's */
    struct ibx_load_options load;    /* with which it loads a module */
    struct ibx_graph_size exec_size; /* of the executable graph that it returns */
    struct ibx_room exec_room;       /* for it, reserved */
    bool launch_checked;             /* it launches, and has passed ibx_device_launch_check() */
    uint64_t launched;               /* a function of the driver's API that it launches: */
    bool launches_exec;              /* no, an executable graph; 0: neither */
    bool frees;                      /* it gives memory back: until ibx_frees_end() */
    bool may_reset;                  /* it may reset the context */
    bool changes_graphs;             /* it may: ibx_graphs_changed() */
    bool takes_context;              /* it resets or destroys a context: */
    void *taken_context;             /* this one; NULL: it is not known which */
};

/* A copy to the client that is answered later. */
struct late_copy {
    bool pending;
    uint64_t bytes, began; /* bytes of the payload; when it began */
    struct ibx_staging_begun begun;
};

#define IBX_NAMED_STREAMS 32u

/* A capture that a session has begun. */
struct ibx_captured {
    uint64_t stream; /* 0: a free place */
    uint64_t id;     /* CUDA's, of the capture; 0: not known */
    uint64_t graph;  /* that the client has asked for, or given; 0: neither */
    bool given;      /* it was the client's before */
};

/* All captures of a session: captures.c. */
struct session_captures {
    unsigned begun; /* and not ended */
    struct ibx_captured *list;
    unsigned room;            /* places in it */
    struct gpu_session *next; /* next session that has begun some */
    bool listed;              /* the session is in that list */
    unsigned whole;           /* of those begun: which no wait has ended */
    unsigned blocking;        /* of the latter: of streams that wait for the legacy one */
    unsigned ended_noted;     /* how often all captures had been ended, as noted here last */
    bool minds_own;           /* the thread is in capture mode THREAD_LOCAL: captures.c */
    uint64_t joins, behind;   /* of the request in hand: graph_limits.c; 0: none */
};

/* A module with a function in a capture of that number. */
#define CAPTURED_MODULES 16u
struct captured_module {
    const struct ibx_client_module *module;
    uint64_t id;
};

/* Launches that the session makes without GVirtuS: launch.c. */
struct session_launches {
    struct launch_function known[LAUNCH_FUNCTIONS];
    struct captured_module captured[CAPTURED_MODULES]; /* graph_kernels.c */
    /* Arguments of the launch in hand: argument_bytes, and zeros behind them. */
    _Alignas(16) uint8_t arguments[IBX_EXT_ARGUMENTS_MAX];
    size_t argument_bytes;
    struct ibx_functions_user user; /* of clients' functions: ibx_functions_user_of() */
    int failure;                    /* cudaError_t: why the last kernel was not found */
    bool tried;                     /* functions to launch were looked up, and not found */
};

/* Of held_memory.c, under its lock. */
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
    bool answering; /* what is written now is a reply of ours, not of GVirtuS */

    struct held_memory keeps;
    struct isolation isolation;
    struct ibx_client *client; /* NULL: not known yet: ibx_clients_number() */
    bool joined;               /* it counts as a session of some client */
    bool thread_stream;        /* it uses the stream that CUDA has for its thread */

    const struct ibx_cuda *cuda; /* NULL: not loaded yet */
    int device;                  /* of the context, as ibx_back_end_able() has found it */
    struct ibx_choice choice;    /* of the device `chosen_for` */
    int chosen_for;              /* -1: none yet */
    struct ibx_staging *staging; /* NULL: not made yet */
    struct ibx_turn turn;
    unsigned resets; /* contexts of the process that have gone, as far as this session knows */
    struct ibx_gpu_registrations registrations; /* GPU memory registered with the connection */
    bool not_direct;                            /* no direct copies in this session, for good */
    struct ibx_client_pins pins; /* the client's memory, as far as it is mapped here */
    bool last_in_place;          /* the last reply with a payload was written into such memory */
    /* It was logged why this is not done. */
    bool logged_staging, logged_direct, logged_pins, logged_maps;
    unsigned maps_in_the_way; /* how often a client has named an address that was taken here */
    bool keeps_kernels;       /* kernels that it unregistered last stay: ibx_own_unload_guard() */
    struct ibx_mr **regions;  /* the pool's chunks as far as registered here */
    unsigned region_count;
    /* the blocks of graphs' slots that are registered here; NULL: none */
    struct ibx_mr **slot_regions;
    struct ibx_mr *windows; /* both ends of a long body, IBX_FRAME_WINDOW bytes each */
    uint32_t arrived;       /* a bit for each READ or WRITE that has completed: cookie - 1 */

    struct gvirtus_handler handler;
    struct session_captures capturing;
    struct session_launches launches;
    uint8_t *long_reply;    /* reply of a library's function: math_calls.c; NULL: none so far */
    uint8_t *long_arrays;   /* arrays for a library's function; NULL: none so far */
    bool tried_runtime;     /* a runtime was looked for, and there was none */
    bool makes_memory;      /* between ibx_memory_make_begin() and _end() */
    bool allocates_plainly; /* GVirtuS's handler of cudaMalloc answers with the address alone */

    uint64_t named[2][IBX_NAMED_STREAMS]; /* streams; events: named_streams.c */
    unsigned named_since;
    struct ibx_uses *uses; /* of the request in hand: handle_uses.c; NULL: none so far */
    unsigned use_count;

    struct handle *held[IBX_HANDLES_HELD]; /* by the request in hand */
    unsigned held_count;
    struct ibx_graph_events graph_events; /* of the request in hand: handle_events.c */

    struct ibx_host_queue *host_queue; /* NULL: the session asks for no functions to call */

    struct copy copy;
    struct late_copy late;
    unsigned long ran;          /* copies so far */
    unsigned long taken[PATHS]; /* of these, by path */
    char refused[256];          /* why the last copy that could not take a better path could not */
};

/* Bits of gpu_session.arrived. */
#define COPIES_SLOTS   ((1u << IBX_STAGING_DEPTH) - 1)
#define COPIES_HEAD    (1u << IBX_STAGING_DEPTH)
#define COPIES_TAIL    (COPIES_HEAD << 1)
#define COPIES_WINDOWS (COPIES_HEAD | COPIES_TAIL)

/* runtime.c */

/* A function of the runtime that GVirtuS's handlers call; NULL: it has no such function, or it is
 * not clear which runtime that is. */
void *ibx_back_end_runtime(const char *name);
/* The thread's last error in the runtime: whether there is one, and clears it. An error of a call
 * of our own is not the client's, and is cleared, unless one of the client's was pending before,
 * which would be lost. */
bool ibx_back_end_has_error(void);
void ibx_back_end_forget_error(void);
/* Calls the runtime's function of that name to destroy what was made and cannot be noted. */
void ibx_back_end_undo(const char *name, uint64_t made);
/* Makes *x one that no client has, with which the back end itself makes calls of CUDA. */
void ibx_back_end_own_session(struct gpu_session *x);
/* Whether the CUDA driver is there, which the first call loads. */
bool ibx_back_end_have_cuda(struct gpu_session *x);
/* Whether this thread can run calls and copies now: CUDA is there, and the context that the runtime
 * would use is current. Notes its device in x->device. */
bool ibx_back_end_able(struct gpu_session *x);
/* The same, but first makes the context, as a thread's first call of the runtime would. */
bool ibx_back_end_begin_context(struct gpu_session *x);

/* destroyed_contexts.c */

/* How many contexts have gone so far. */
unsigned ibx_back_end_resets(void);
/* The session begins: contexts that have gone before do not matter to it. */
void ibx_back_end_resets_begin(struct gpu_session *x);
/* Forgets what the session had in contexts that have gone since the last call. */
void ibx_back_end_handle_resets(struct gpu_session *x);
/* The context has gone; NULL: it is not known which. `forget_all` is called to forget what belongs
 * to no session. */
void ibx_back_end_note_reset(void *context, void (*forget_all)(const void *context));

#endif
