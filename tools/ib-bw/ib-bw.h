/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-bw: the communicator's calls against those of GVirtuS's own TCP
 * communicator. Private to the files tools/ib-bw*.
 *
 * A *path* is a way from the front end to the back end: one of the transport's
 * providers, or `stock`. A *cell* is one operation of one size over one path.
 * Cells are filled in *slices*: every path gets one slice a round, so that a
 * machine whose speed drifts treats all paths alike.
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
#define BW_OPS_MAX   3          /* of one run */
#define BW_CALLS_MAX (1u << 22) /* a cell */
#define BW_STOCK     "stock"

/* Before the reason when not even the first request was answered: the likeliest mistake. */
#define BW_NO_ANSWER                                                                               \
    "the server did not take the first request: give --raw to both ends or to neither"

enum bw_op {
    BW_H2D,   /* cudaMemcpy to the device, as GVirtuS's front end calls it */
    BW_D2H,   /* and from it */
    BW_READ,  /* transport: the server READs the client's memory */
    BW_WRITE, /* transport: the server WRITEs it */
    BW_PING,  /* transport: half of a message's way there and back */
};
const char *ibx_bw_op_name(enum bw_op op);

/* ------------------------------------------------------------- command line */

enum bw_command { BW_SERVE, BW_RUN, BW_SELF, BW_TUNE };

struct bw_args {
    enum bw_command command;
    const char *uri;
    struct ibx_options options;
    size_t sizes[BW_SIZES_MAX];
    unsigned size_count;
    double seconds;         /* a cell */
    unsigned count;         /* calls a cell; 0: as many as fit in `seconds` */
    unsigned rounds;        /* slices a cell */
    unsigned depth;         /* READs or WRITEs in flight with `raw` */
    bool raw, iperf, plain; /* plain: the long table */
    bool loose;             /* self: the scheduler places the ends */
    const char *json, *plot;
    const char *stock;    /* where its server listens, NULL: without */
    const char *paths;    /* wanted by self, comma separated; NULL: all */
    size_t max_bytes;     /* of one payload that a server takes */
    unsigned max_clients; /* of a server at once */
    const char *output;   /* of tune, NULL: where a back end looks */
    const char *over;     /* of tune, a fabric to measure direct copies on; NULL: none */
};

/* Fills `args`; ends the process where the line is wrong or asks for help. */
void ibx_bw_args_parse(int argc, char **argv, struct bw_args *args);

/* ------------------------------------------------------------------- streams */

struct ibx_session;
/* Takes a session over, also when it fails (-ENOMEM). */
int ibx_bw_stream_of_session(struct ibx_session *session, struct bw_stream **stream,
                             struct ibx_error *err);

/* Stock's sockets, as blocking as its own: "HOST:PORT", "[IPv6]:PORT". */
int ibx_bw_stock_listen(const char *where, int *fd, uint16_t *port, struct ibx_error *err);
int ibx_bw_stock_connect(const char *where, struct bw_stream **stream, struct ibx_error *err);

/* --------------------------------------------------------------------- calls */

/* The calls as both ends see them; ib-bw-call.c has the bytes. The last two are the bench's own
 * and never timed. */
#define BW_CALL_MEMCPY   "cudaMemcpy"
#define BW_CALL_PREPARE  "ibBwPrepare"  /* u64 bytes, u64 seed: the next payloads; 0: let go */
#define BW_CALL_CHECKSUM "ibBwChecksum" /* nothing: u64 checksum of the last payload received */

#define BW_NAME_MAX    32u
#define BW_KIND_H2D    1u
#define BW_KIND_D2H    2u
#define BW_H2D_HEAD    16u /* dst 8, n 8 */
#define BW_H2D_TAIL    12u /* count 8, kind 4 */
#define BW_D2H_REQUEST 29u /* u64 1, NUL, src 8, count 8, kind 4 */
#define BW_D2H_HEAD    8u  /* n 8, then the payload */

enum bw_exit { BW_EXIT_OK = 0, BW_EXIT_DAMAGED = 1, BW_EXIT_TOO_LONG = 2 };

/* A payload that a seed determines, its checksum, and the mark by which a call's payload is told
 * from the previous one's: `token` in its first and last eight bytes (or what there is). */
void ibx_bw_payload_fill(uint8_t *payload, size_t n, uint64_t seed);
uint64_t ibx_bw_payload_sum(const uint8_t *payload, size_t n);
void ibx_bw_payload_mark(uint8_t *payload, size_t n, uint64_t token);
bool ibx_bw_payload_marked(const uint8_t *payload, size_t n, uint64_t token);

/* A buffer that grows and keeps what it has, as GVirtuS's do. */
struct bw_buffer {
    uint8_t *data;
    size_t room;
};
/* Its old contents may be lost. -ENOMEM. */
int ibx_bw_buffer_room(struct bw_buffer *buffer, size_t bytes);
void ibx_bw_buffer_fini(struct bw_buffer *buffer);

/* Answers a client's calls until it leaves, and destroys the stream; logs what is wrong with
 * them. */
void ibx_bw_answer(struct bw_stream *stream, size_t max_bytes);

/* ------------------------------------------------------------------- results */

struct bw_cell {
    uint64_t *ns; /* samples, in the order taken until they are summed up */
    size_t samples, room;
    uint64_t calls;     /* of which samples were kept */
    uint64_t window_ns; /* READ and WRITE: time during which `calls` were made; otherwise 0 */
};

struct bw_summary {
    uint64_t calls; /* 0: nothing measured, the rest is 0 too */
    double median_us, p99_us;
    double gbps;  /* 1e9 bytes a second: of the median call, of the whole window if there is one */
    double ratio; /* stock's median over this one; 0: no stock */
};

/* Processors of the two ends, one or several each; the first ones are -1: any. */
struct bw_pins {
    int client, server;
    cpu_set_t client_set, server_set;
};
enum bw_end { BW_CLIENT, BW_SERVER };
void ibx_bw_pins_choose(struct bw_pins *pins);
/* The calling thread, and those that it starts, run on that end's. */
void ibx_bw_pin(const struct bw_pins *pins, enum bw_end end);

struct bw_refusal {
    char path[16];
    char reason[512];
};

struct bw_results {
    char host[256];
    char paths[BW_PATHS_MAX][16];
    unsigned path_count;
    enum bw_op ops[BW_OPS_MAX];
    unsigned op_count;
    const size_t *sizes; /* borrowed from the arguments */
    unsigned size_count;
    struct bw_cell *cells; /* ibx_bw_results_cell() */
    struct bw_refusal refused[2 * BW_PATHS_MAX];
    unsigned refused_count;
    struct ibx_path chosen; /* what rdma:// takes between these ends; "" when not known */
    struct ibx_caps chosen_caps;
    double iperf_gbps[2]; /* before and after, 0: not measured */
    struct bw_pins pins;
    double memcpy_gbps;   /* of one thread, 0: not measured */
    pthread_mutex_t lock; /* round changes, since a signal may ask for a report at any time */
};

int ibx_bw_results_init(struct bw_results *results, const struct bw_args *args);
void ibx_bw_results_fini(struct bw_results *results);
/* Adds a path and makes its cells: its index, or -ENOMEM. */
int ibx_bw_results_path(struct bw_results *results, const char *name);
struct bw_cell *ibx_bw_results_cell(const struct bw_results *results, unsigned path, unsigned op,
                                    unsigned size);
void ibx_bw_results_refuse(struct bw_results *results, const char *path, const char *reason);
/* Adds one call of `ns`. False when the cell is full. */
bool ibx_bw_cell_add(struct bw_results *results, struct bw_cell *cell, uint64_t ns);
/* Adds calls of which there are no samples, and the time that these and others took together. */
void ibx_bw_cell_add_window(struct bw_results *results, struct bw_cell *cell, uint64_t calls,
                            uint64_t window_ns);
struct bw_summary ibx_bw_results_summary(const struct bw_results *results, unsigned path,
                                         unsigned op, unsigned size);
/* Median over the sizes from..to of the ratio to stock; 0: there is none. */
double ibx_bw_results_ratio(const struct bw_results *results, unsigned path, unsigned op,
                            size_t from, size_t to);

/* ------------------------------------------------------------------- reports */

/* "64 KiB"; in a buffer of the caller's, which is returned. */
#define BW_SIZE_TEXT 32
const char *ibx_bw_size_print(size_t bytes, char text[BW_SIZE_TEXT]);
void ibx_bw_table_print(const struct bw_results *results, bool plain, FILE *out);
/* "-": standard output. */
int ibx_bw_json_write(const struct bw_results *results, const char *file, struct ibx_error *err);
/* Whether ibx_bw_plot_write() can work: the file's ending and gnuplot. */
int ibx_bw_plot_check(const char *file, struct ibx_error *err);
int ibx_bw_plot_write(const struct bw_results *results, const char *file, struct ibx_error *err);

/* A file that appears under its name when it is whole. */
struct bw_file {
    char name[4096];
    char temporary[4096 + 8];
    int fd;
};
/* Whether it could be made; leaves nothing. */
int ibx_bw_file_check(const char *name, struct ibx_error *err);
int ibx_bw_file_open(struct bw_file *file, const char *name, struct ibx_error *err);
/* Renames it into place, or removes it if `rc` is an error; closes. Returns rc or its own error. */
int ibx_bw_file_close(struct bw_file *file, int rc, struct ibx_error *err);

/* ----------------------------------------------------------------- measuring */

struct bw_slice {
    enum bw_op op;
    size_t bytes;
    uint64_t seed;  /* of the payload */
    uint64_t count; /* calls, 0: until `budget_ns` is over */
    uint64_t budget_ns;
    unsigned warmup; /* calls before the first that counts */
};

/* An open path to measure: of calls (ib-bw-call.c) or raw (ib-bw-raw.c). */
struct bw_path {
    unsigned index; /* in the results */
    int (*run)(struct bw_path *path, const struct bw_slice *slice, struct bw_results *results,
               struct bw_cell *cell, struct ibx_error *err);
    void (*destroy)(struct bw_path *path);
};

/* Takes the stream over, also when it fails. `front` is shared by all paths of a run. */
struct bw_front {
    struct bw_buffer request, reply;
};
int ibx_bw_path_of_stream(struct bw_stream *stream, struct bw_front *front, struct bw_path **path,
                          struct ibx_error *err);

#define BW_DOORS_MAX 8

/* A server in a process of its own that ends with this one. */
struct bw_child {
    pid_t pid;                    /* 0: there is none */
    char uris[BW_DOORS_MAX][300]; /* rdma:// at the loopback first */
    unsigned uri_count;
    char stock[64]; /* HOST:PORT */
};

/* Everything a run holds. */
struct bw_bench {
    const struct bw_args *args;
    struct bw_results results;
    struct bw_front front;
    struct bw_path *open[BW_PATHS_MAX];
    unsigned open_count;
    struct bw_child child;
};
int ibx_bw_bench_init(struct bw_bench *bench, const struct bw_args *args);
void ibx_bw_bench_fini(struct bw_bench *bench);
/* Takes an open path over. */
int ibx_bw_bench_add(struct bw_bench *bench, struct bw_path *path, const char *name);
/* Connects by `uri` with the provider of `options` and adds what came of it. */
int ibx_bw_bench_connect(struct bw_bench *bench, const char *uri, const struct ibx_options *options,
                         struct ibx_error *err);
int ibx_bw_bench_connect_stock(struct bw_bench *bench, const char *where, struct ibx_error *err);
/* Asks what rdma:// takes to a server. */
int ibx_bw_bench_choose(struct bw_bench *bench, const char *uri, struct ibx_error *err);
/* Fills the cells. A path that fails is given up, told on standard error and among the refused;
 * the others go on. The first such error is returned. */
int ibx_bw_bench_measure(struct bw_bench *bench, struct ibx_error *err);
/* Table, JSON and plot as wanted. */
int ibx_bw_bench_report(struct bw_bench *bench, struct ibx_error *err);

/* Set by SIGINT and SIGTERM once ibx_bw_watch_start() was called. */
extern atomic_bool ibx_bw_stop;
/* From now on a signal ends the measurement, or the process (exit 130, after a report) when the
 * call in hand does not come back soon. */
int ibx_bw_watch_start(struct bw_bench *bench, struct ibx_error *err);
void ibx_bw_watch_end(void);

/* ----------------------------------------------------------------------- raw */

/* What both ends say: docs are in ib-bw-raw.c. */
enum bw_raw_message { BW_RAW_MOVE = 1, BW_RAW_MOVED, BW_RAW_PING };
#define BW_RAW_MOVED_HEAD 33u /* bytes before the samples of MOVED */
#define BW_DEPTH_MAX      256u
#define BW_WARMUP_MAX     64u

int ibx_bw_raw_connect(const char *uri, const struct bw_args *args,
                       const struct ibx_options *options, struct bw_front *front,
                       struct bw_path **path, char provider[16], struct ibx_error *err);
/* Serves one freshly accepted connection until its end and closes it. */
void ibx_bw_raw_answer(struct ibx_conn *conn, size_t max_bytes);

/* ------------------------------------------------------------------- servers */

/* Listeners and the threads that serve whoever comes. */
struct bw_server;
int ibx_bw_server_create(const struct bw_args *args, struct bw_server **server,
                         struct ibx_error *err);
/* Opens one more door; its URI, with the real port, is the server's. */
int ibx_bw_server_open(struct bw_server *server, const char *uri, const char **real,
                       struct ibx_error *err);
int ibx_bw_server_open_stock(struct bw_server *server, const char *where, uint16_t *port,
                             struct ibx_error *err);
/* Starts a thread for every door. */
int ibx_bw_server_start(struct bw_server *server, struct ibx_error *err);
/* Before the end of the process: removes what would outlive it. */
void ibx_bw_server_leave(struct bw_server *server);

/* The commands: exit status. */
int ibx_bw_serve(const struct bw_args *args);
int ibx_bw_run(const struct bw_args *args);
int ibx_bw_self(const struct bw_args *args);
int ibx_bw_tune(const struct bw_args *args);

/* A process of its own, which is killed when this one ends, and a pipe from it: its pid, and where
 * to read; in it 0, and where to write. A negative errno with a sentence about `what`. */
pid_t ibx_bw_fork(const char *what, int *fd, struct ibx_error *err);
/* Kills it and waits for its end; 0: there is none. */
void ibx_bw_reap(pid_t *pid);

int ibx_bw_child_start(const struct bw_args *args, const struct bw_pins *pins,
                       struct bw_child *child, struct ibx_error *err);
void ibx_bw_child_stop(struct bw_child *child);

/* ---------------------------------------------------------------- yardsticks */

/* GB/s of one iperf3 stream over loopback. -ENOENT: not installed. */
int ibx_bw_iperf_run(double seconds, const struct bw_pins *pins, double *gbps,
                     struct ibx_error *err);
/* GB/s that one thread copies of memory that no cache holds; 0 without memory for it. */
double ibx_bw_memcpy_rate(void);

#endif
