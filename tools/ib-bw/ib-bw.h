/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-bw: cudaMemcpy as GVirtuS calls its communicator, over each path beside stock.
 *
 *   ib-bw.c         command line
 *   compare.c       run and self: opens the paths, measures, reports
 *   measure.c       the order in which cells are filled
 *   call.c          the front end's side of a call     answer.c   the back end's side
 *   stream.c        a stream over a session of ours    stock.cpp, stock-socket.c   over stock's TCP
 *   server.c        serve: listeners and clients       child.c    a process for self and tune
 *   pin.c           processors for both ends           watch.c    signals
 *   payload.c       payloads that both ends can make and check
 *   results.c       samples and their medians          table.c, json.c, plot.c, file.c   reports
 *   tune*.c         tune, see tune.h
 *
 * A *path* is a provider or stock, a *cell* one path, direction and size. A cell is filled in
 * *slices*: every path gets one slice a round, so that a machine whose speed drifts treats all
 * paths alike.
 */
#ifndef IBX_TOOLS_IB_BW_IB_BW_H
#define IBX_TOOLS_IB_BW_IB_BW_H

#include "tools/ib-bw/stream.h"
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define BW_SIZES_MAX 64
#define BW_PATHS_MAX 5          /* the providers and stock */
#define BW_CALLS_MAX (1u << 22) /* of a cell */
#define BW_STOCK     "stock"

enum bw_op { BW_H2D, BW_D2H, BW_OPS };

/* ------------------------------------------------------------- command line */

/* The bit of the provider ibx_provider_name(i) in `paths`; bit 0 is stock. */
#define BW_PATH_BIT(i) (2u << (i))

enum bw_command { BW_SERVE, BW_RUN, BW_SELF, BW_TUNE };

struct bw_args {
    const char *uri;
    struct ibx_options options;
    size_t sizes[BW_SIZES_MAX];
    unsigned size_count;
    double seconds;  /* of a cell */
    unsigned count;  /* calls of a cell; 0: as many as fit in `seconds` */
    unsigned rounds; /* slices of a cell */
    bool line_a_path;
    bool no_pin;
    const char *json, *plot;
    const char *stock;    /* where stock's server listens; NULL: stock is not measured */
    unsigned paths;       /* that self measures: BW_PATH_BIT()s; 0: all */
    size_t max_bytes;     /* of one payload that a server takes */
    unsigned max_clients; /* of a server at once */
    const char *output;   /* of tune; NULL: where a back end looks */
    const char *over;     /* of tune: a fabric over which direct copies are measured; NULL: none */
};

/* --------------------------------------------------------------------- streams */

struct ibx_session;
/* Makes a stream of a session, which it takes over, also on failure (-ENOMEM). */
int ibx_bw_stream_of_session(struct ibx_session *session, struct bw_stream **stream,
                             struct ibx_error *err);
/* Connects a new session. Fails as ibx_session_connect() does. */
int ibx_bw_session_connect(const char *uri, const struct ibx_options *options,
                           struct bw_stream **stream, struct ibx_error *err);
/* A new session that accepts others. Fails as ibx_session_serve() does. */
int ibx_bw_session_listen(const char *uri, const struct ibx_options *options,
                          struct ibx_session **session, struct ibx_error *err);

/* Stock's sockets, as blocking as its own: "HOST:PORT", "[IPv6]:PORT". Listening also takes
 * "PORT", on 127.0.0.1. -EINVAL, -EADDRNOTAVAIL or what bind(2) or connect(2) says. */
int ibx_bw_stock_listen(const char *where, int *fd, uint16_t *port, struct ibx_error *err);
int ibx_bw_stock_connect(const char *where, struct bw_stream **stream, struct ibx_error *err);

/* ----------------------------------------------------------------------- calls */

/* The calls as both ends see them; call.c has the bytes. The last two are ib-bw's own and never
 * timed. */
#define BW_CALL_MEMCPY   "cudaMemcpy"
#define BW_CALL_PREPARE  "ibBwPrepare"  /* u64 bytes, u64 seed of the next payloads; 0: free them */
#define BW_CALL_CHECKSUM "ibBwChecksum" /* nothing: u64 checksum of the last payload received */

#define BW_NAME_MAX    32u
#define BW_KIND_H2D    1u
#define BW_KIND_D2H    2u
#define BW_H2D_HEAD    16u /* dst 8, n 8 */
#define BW_H2D_TAIL    12u /* count 8, kind 4 */
#define BW_D2H_REQUEST 29u /* u64 1, NUL, src 8, count 8, kind 4 */
#define BW_D2H_HEAD    8u  /* n 8, then the payload */

enum bw_exit { BW_EXIT_OK = 0, BW_EXIT_DAMAGED = 1, BW_EXIT_TOO_LONG = 2 };

/* A payload that is determined by a seed, and its checksum. A mark distinguishes a call's payload
 * from the previous one: `token` in the first and last eight bytes, or in as many as there are. */
void ibx_bw_payload_fill(uint8_t *payload, size_t n, uint64_t seed);
uint64_t ibx_bw_payload_sum(const uint8_t *payload, size_t n);
void ibx_bw_payload_mark(uint8_t *payload, size_t n, uint64_t token);
bool ibx_bw_payload_marked(const uint8_t *payload, size_t n, uint64_t token);

/* A buffer that only grows, as GVirtuS's do. */
struct bw_buffer {
    uint8_t *data;
    size_t room;
};
/* Makes the buffer at least `bytes` long; its contents may be lost. -ENOMEM. */
int ibx_bw_buffer_room(struct bw_buffer *buffer, size_t bytes);
void ibx_bw_buffer_fini(struct bw_buffer *buffer);

struct bw_call {
    const char *name;
    const void *body;
    size_t length;
    void *reply; /* of exactly `reply_length` bytes */
    size_t reply_length;
};
/* Makes a call as the front end; *ns: from the first write to the last read. */
int ibx_bw_call(struct bw_stream *s, const struct bw_call *call, uint64_t *ns,
                struct ibx_error *err);
/* The back end's parts: reading a call's name, and replying with an exit code. False: the stream
 * has ended, or the name is too long, which is logged. */
bool ibx_bw_read_name(struct bw_stream *s, char name[BW_NAME_MAX]);
bool ibx_bw_reply(struct bw_stream *s, uint32_t code, const void *data, size_t n);
/* Answers a client's calls until it leaves, and destroys the stream. Logs malformed calls. */
void ibx_bw_answer(struct bw_stream *stream, size_t max_bytes);

/* -------------------------------------------------------------------- results */

struct bw_cell {
    double *us; /* a sample for each call, unsorted until ibx_bw_results_summary() */
    size_t samples, room;
};

struct bw_summary {
    size_t calls; /* 0: nothing measured, the rest is 0 too */
    double median_us, p99_us;
    double gbps;  /* 10^9 bytes a second, of the median call */
    double ratio; /* stock's median over this one; 0: no stock */
};

/* The processors of both ends, one or several each. `client` and `server` are the first of them;
 * -1: the scheduler chooses. */
struct bw_pins {
    int client, server;
    cpu_set_t client_set, server_set;
};
enum bw_end { BW_CLIENT, BW_SERVER };
void ibx_bw_pins_choose(struct bw_pins *pins);
/* Restricts the calling thread, and those that it starts, to that end's processors. */
void ibx_bw_pin(const struct bw_pins *pins, enum bw_end end);

struct bw_refusal {
    char path[16];
    char reason[512];
};

struct bw_results {
    char host[256];
    char paths[BW_PATHS_MAX][16];
    bool encrypted[BW_PATHS_MAX]; /* all of the path in TLS */
    unsigned path_count;
    int stock;           /* its index in `paths`; -1: not measured */
    const size_t *sizes; /* borrowed from the arguments */
    unsigned size_count;
    struct bw_cell *cells; /* ibx_bw_results_cell() */
    struct bw_refusal refused[2 * BW_PATHS_MAX];
    unsigned refused_count;
    struct ibx_path chosen; /* the path that rdma:// chooses between these ends; "": not known */
    struct ibx_caps chosen_caps;
    struct bw_pins pins;
    double memcpy_gbps;   /* of one thread; 0: not measured */
    atomic_bool stopped;  /* a signal ended the measurement */
    pthread_mutex_t lock; /* around changes, since a signal may ask for a report at any time */
};

/* -ENOMEM. */
int ibx_bw_results_init(struct bw_results *results, const struct bw_args *args,
                        struct ibx_error *err);
void ibx_bw_results_fini(struct bw_results *results);
struct bw_cell *ibx_bw_results_cell(const struct bw_results *results, unsigned path, enum bw_op op,
                                    unsigned size);
/* Whether any path has a sample for any of `count` sizes, beginning with size number `from`. */
bool ibx_bw_results_measured(const struct bw_results *results, enum bw_op op, unsigned from,
                             unsigned count);
void ibx_bw_results_refuse(struct bw_results *results, const char *path, const char *reason);
/* Adds one call of `ns`. False when the cell is full. */
bool ibx_bw_cell_add(struct bw_results *results, struct bw_cell *cell, uint64_t ns);
struct bw_summary ibx_bw_results_summary(const struct bw_results *results, unsigned path,
                                         enum bw_op op, unsigned size);
/* Sorts the samples. 0 without any. */
double ibx_bw_median(double *samples, size_t n);

/* -------------------------------------------------------------------- reports */

extern const char *const ibx_bw_op_names[BW_OPS], *const ibx_bw_op_titles[BW_OPS];
/* "64 KiB"; in a buffer of the caller's, which is returned. */
#define BW_SIZE_TEXT 32
const char *ibx_bw_size_print(size_t bytes, char text[BW_SIZE_TEXT]);
/* The path as reports for people name it: "tcp+TLS"; in a buffer of the caller's, which is
 * returned. */
#define BW_LABEL_TEXT 24
const char *ibx_bw_path_label(const struct bw_results *results, unsigned path,
                              char text[BW_LABEL_TEXT]);
void ibx_bw_table_print(const struct bw_results *results, bool line_a_path, FILE *out);
/* "-": standard output. */
int ibx_bw_json_write(const struct bw_results *results, const char *file, struct ibx_error *err);
/* Whether ibx_bw_plot_write() can work: the file's ending and gnuplot. */
int ibx_bw_plot_check(const char *file, struct ibx_error *err);
int ibx_bw_plot_write(const struct bw_results *results, const char *file, struct ibx_error *err);

/* A file that appears under its name when it is complete. */
struct bw_file {
    char name[4096];
    char temporary[4096 + 8];
    FILE *out;
};
/* Checks that the file could be made; leaves nothing behind. */
int ibx_bw_file_check(const char *name, struct ibx_error *err);
int ibx_bw_file_open(struct bw_file *file, const char *name, struct ibx_error *err);
/* Closes it and renames it into place, or removes it if `rc` is an error. Returns rc or its own
 * error. */
int ibx_bw_file_close(struct bw_file *file, int rc, struct ibx_error *err);

/* ------------------------------------------------------------------- measuring */

struct bw_slice {
    enum bw_op op;
    size_t bytes;
    uint64_t seed;  /* of the payload */
    uint64_t count; /* calls; 0: until `budget_ns` is over */
    uint64_t budget_ns;
    unsigned warmup; /* calls before the first that counts */
};

/* The state of `run` and `self`. */
struct bw_bench {
    const struct bw_args *args;
    struct bw_results results;
    struct bw_buffer request, reply;         /* the front end's, shared by all paths */
    struct bw_stream *streams[BW_PATHS_MAX]; /* of the paths in the results; NULL: given up */
    uint64_t token;                          /* of the last call */
    pid_t server;                            /* of self; 0: none */
};
/* One slice of one path. */
int ibx_bw_slice_run(struct bw_bench *bench, struct bw_stream *stream, const struct bw_slice *slice,
                     struct bw_cell *cell, struct ibx_error *err);
/* Fills the cells. A path that fails is closed and listed among the refused; the others go on.
 * Returns the first such error. */
int ibx_bw_bench_measure(struct bw_bench *bench, struct ibx_error *err);
/* Shows what is being measured where standard error is a terminal; an empty text clears it. */
void ibx_bw_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The rate in GB/s at which one thread copies memory that is in no cache; 0: no memory for it. */
double ibx_bw_memcpy_rate(void);

/* From now on a signal sets *stopped, which ends the measurement. If the current call does not
 * return soon, the process calls `report` and ends with status 130. */
int ibx_bw_watch_start(atomic_bool *stopped, void (*report)(void), struct ibx_error *err);
void ibx_bw_watch_end(void);

/* --------------------------------------------------------------------- servers */

/* The server of this process: listeners, each with a thread, and a thread for every client, as in
 * GVirtuS's back end. It lives until the process ends, and keeps `args`. */
void ibx_bw_server_init(const struct bw_args *args);
/* Starts one more listener; *real is its URI with the real port and stays valid. */
int ibx_bw_server_open(const char *uri, const char **real, struct ibx_error *err);
int ibx_bw_server_open_stock(const char *where, uint16_t *port, struct ibx_error *err);

/* Forks a process that is killed when this one ends. `child_main` runs in it, must not return, and
 * calls ibx_bw_child_report() once it is ready or has failed. This function waits for that report,
 * of `size` bytes, and stores it in `report`. `what` names the process in messages. *pid is set as
 * soon as there is a process, also on errors; 0: there is none. */
int ibx_bw_child_start(const char *what, void (*child_main)(FILE *to_parent), void *report,
                       size_t size, pid_t *pid, struct ibx_error *err);
/* Sends the report. `failure` without a message: the child is ready. Closes `to_parent`. */
void ibx_bw_child_report(FILE *to_parent, const struct ibx_error *failure, const void *report,
                         size_t size);
/* Kills the process and waits for its end; *pid may be 0. */
void ibx_bw_child_stop(pid_t *pid);

/* -------------------------------------------------------------------- commands */

/* The commands; each returns the exit status. */
int ibx_bw_serve(const struct bw_args *args);
int ibx_bw_run(const struct bw_args *args);
int ibx_bw_self(const struct bw_args *args);
int ibx_bw_tune(const struct bw_args *args);

#endif
