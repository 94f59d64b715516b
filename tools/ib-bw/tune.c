/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command tune: measures every way, then prints and stores which one copies should take. */
#include "tools/ib-bw/tune.h"
#include "tools/options.h"
#include "tools/owner.h"

#include "common/clock.h"
#include "common/thread.h"
#include "frontend-glue/plugin/config.h"
#include "gpudirect/gpudirect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SAMPLES_MAX  4096u /* of a cell */
#define PATTERN_SEED 1u

struct bench {
    const struct bw_args *args;
    struct tune tune;
    struct tune_back back;
    pid_t back_pid;
    struct bw_stream *streams[TUNE_WAYS_MAX]; /* one a way */
    uint8_t *own, *shared; /* memory for the longest copy; `shared` may be NULL */
    size_t longest;
    double samples[TUNE_WAYS_MAX][SAMPLES_MAX]; /* of the cell being measured */
    unsigned sample_count[TUNE_WAYS_MAX];
    bool closed[TUNE_WAYS_MAX]; /* copies of the present size do not take the way */
    uint64_t token;
};

/* ---------------------------------------------------------------------------- ways */

static struct tune_way *add(struct tune *tune, enum tune_kind kind, const char *name)
{
    struct tune_way *way = &tune->ways[tune->way_count++];
    *way = (struct tune_way){
        .kind = kind, .far = kind == TUNE_FAR || kind == TUNE_DIRECT, .choice = ibx_choice_default};
    for (unsigned d = 0; d < 2; d++)
        way->choice.ways[d] = (struct ibx_choice_way){.in_place_min = IBX_CHOICE_NEVER,
                                                      .copy_threads_min = IBX_CHOICE_NEVER,
                                                      .direct_min = IBX_CHOICE_NEVER};
    way->choice.threads = 1;
    snprintf(way->name, sizeof(way->name), "%s", name);
    return way;
}

/* The ways that exist with this number of processors; `over`: also those over another fabric. */
static void add_ways(struct tune *tune, unsigned processors, bool over)
{
    char name[24];
    struct tune_way *way = add(tune, TUNE_INLINE, "inline");
    way->choice.ways[IBX_CHOICE_TO_DEVICE].inline_max = IBX_CHOICE_TO_MAX;
    way->choice.ways[IBX_CHOICE_FROM_DEVICE].inline_max = IBX_CHOICE_FROM_MAX;
    add(tune, TUNE_CHUNKS, "chunks");
    for (size_t chunk = ibx_choice_default.chunk / 2; chunk >= 2 * IBX_CHOICE_CHUNK_UNIT;
         chunk /= 2) {
        snprintf(name, sizeof(name), "of %zuK", chunk >> 10);
        add(tune, TUNE_CHUNKS, name)->choice.chunk = chunk;
    }
    /* The client, the driver and other sessions want processors, too. */
    for (unsigned threads = 2; threads <= IBX_COPY_THREADS_MAX && threads * 2 <= processors;
         threads *= 2) {
        snprintf(name, sizeof(name), "%u threads", threads);
        way = add(tune, TUNE_THREADS, name);
        way->choice.ways[0].copy_threads_min = way->choice.ways[1].copy_threads_min = 0;
        way->choice.threads = threads;
    }
    add(tune, TUNE_SHARED, "shared");
    way = add(tune, TUNE_IN_PLACE, "in place");
    way->choice.ways[0].in_place_min = way->choice.ways[1].in_place_min = 0;
    if (!over)
        return;
    add(tune, TUNE_FAR, "far");
    way = add(tune, TUNE_DIRECT, "direct");
    way->choice.ways[0].direct_min = way->choice.ways[1].direct_min = 0;
}

/* --------------------------------------------------------------------------- calls */

static uint8_t *host_memory(const struct bench *b, unsigned w)
{
    enum tune_kind kind = b->tune.ways[w].kind;
    return kind == TUNE_SHARED || kind == TUNE_IN_PLACE ? b->shared : b->own;
}

static int copy(struct bench *b, unsigned w, unsigned d, size_t n, double *us,
                struct ibx_error *err)
{
    struct ibx_frontend_copy request = {
        .to_device = d == IBX_CHOICE_TO_DEVICE,
        .device = b->back.device,
        .host = host_memory(b, w),
        .n = n,
        .whole = true, /* the client must not split the copy: the way is for all of it */
    };
    int code = 0;
    uint64_t began = ibx_now_ns();
    int rc = ibx_client_copy(b->streams[w]->session, &request, &code);
    const char *why = ibx_session_reason(b->streams[w]->session);
    if (rc || *why)
        return ibx_error_set(err, -ECONNRESET, "the back end left: %s", *why ? why : "it ended");
    *us = (double)(ibx_now_ns() - began) / 1e3;
    return code
               ? ibx_error_set(err, -EIO,
                               "the back end could not run a copy of %zu bytes (%s): IBX_LOG=debug "
                               "shows its reason",
                               n, b->tune.ways[w].name)
               : 0;
}

static int count(struct bench *b, unsigned w, struct ibx_copy_counts *copies, struct ibx_error *err)
{
    struct tune_count reply;
    uint64_t ns;
    const struct bw_call call = {
        .name = TUNE_COUNT, .reply = &reply, .reply_length = sizeof(reply)};
    int rc = ibx_bw_call(b->streams[w], &call, &ns, err);
    if (rc)
        return ibx_error_prefix(err, rc, "the back end left");
    *copies = reply.copies;
    memcpy(b->tune.ways[w].refused, reply.refused, sizeof(reply.refused));
    return 0;
}

/* The number of copies so far that took ways of a kind. */
static unsigned long taken(enum tune_kind kind, const struct ibx_copy_counts *copies)
{
    switch (kind) {
    case TUNE_INLINE:
        return copies->inlined;
    case TUNE_THREADS:
        return copies->copy_threads;
    case TUNE_IN_PLACE:
        return copies->in_place;
    case TUNE_DIRECT:
        return copies->direct;
    default: /* by one thread through chunks */
        return copies->all - copies->inlined - copies->copy_threads - copies->in_place -
               copies->direct;
    }
}

/* ----------------------------------------------------------------------- measuring */

/* Copies a payload to the device and back, and compares it. */
static int verify(struct bench *b, unsigned w, size_t n, struct ibx_error *err)
{
    uint8_t *host = host_memory(b, w);
    double us;
    ibx_bw_payload_mark(host, n, ++b->token);
    uint64_t sum = ibx_bw_payload_sum(host, n);
    int rc = copy(b, w, IBX_CHOICE_TO_DEVICE, n, &us, err);
    memset(host, 0, n);
    if (!rc)
        rc = copy(b, w, IBX_CHOICE_FROM_DEVICE, n, &us, err);
    if (!rc && ibx_bw_payload_sum(host, n) != sum)
        rc = ibx_error_set(err, -EBADMSG, "a copy of %zu bytes came back damaged (%s)", n,
                           b->tune.ways[w].name);
    return rc;
}

/* Finds out by one copy, which also warms up, whether copies of the size take the way. */
static int try_way(struct bench *b, unsigned w, unsigned d, size_t n, struct ibx_error *err)
{
    const enum tune_kind kind = b->tune.ways[w].kind;
    struct ibx_copy_counts before = {0}, after = {0};
    double us;
    b->closed[w] = !host_memory(b, w);
    b->sample_count[w] = 0;
    if (b->closed[w])
        return 0;
    int rc = d == IBX_CHOICE_FROM_DEVICE ? verify(b, w, n, err) : 0;
    if (!rc)
        rc = count(b, w, &before, err);
    if (!rc)
        rc = copy(b, w, d, n, &us, err);
    if (!rc)
        rc = count(b, w, &after, err);
    if (!rc)
        b->closed[w] = taken(kind, &after) - taken(kind, &before) != after.all - before.all;
    return rc;
}

static int run_slice(struct bench *b, unsigned w, unsigned d, size_t n, struct ibx_error *err)
{
    const struct bw_args *args = b->args;
    uint64_t end = ibx_now_ns() + (uint64_t)(args->seconds * 1e9 / args->rounds);
    unsigned calls = (args->count + args->rounds - 1) / args->rounds;
    double us;
    int rc = n <= (64u << 10) ? copy(b, w, d, n, &us, err) : 0; /* wakes both ends up */
    for (unsigned i = 0; !rc && b->sample_count[w] < SAMPLES_MAX; i++) {
        if (calls ? i == calls : i && ibx_now_ns() >= end)
            break;
        rc = copy(b, w, d, n, &us, err);
        b->samples[w][b->sample_count[w]++] = us;
    }
    return rc;
}

/* Measures one size in one direction; the ways take turns. */
static int measure_cell(struct bench *b, unsigned d, unsigned size, struct ibx_error *err)
{
    struct tune *tune = &b->tune;
    size_t n = tune->sizes[size];
    char text[BW_SIZE_TEXT];
    int rc = 0;
    ibx_bw_progress("%s %s", d ? "D2H" : "H2D", ibx_bw_size_print(n, text));
    for (unsigned w = 0; !rc && w < tune->way_count; w++)
        rc = try_way(b, w, d, n, err);
    for (unsigned round = 0; round < b->args->rounds; round++) {
        for (unsigned w = 0; !rc && w < tune->way_count; w++)
            rc = b->closed[w] ? 0 : run_slice(b, w, d, n, err);
    }
    for (unsigned w = 0; !rc && w < tune->way_count; w++)
        tune->ways[w].times[d][size] = ibx_bw_median(b->samples[w], b->sample_count[w]);
    return rc;
}

static int measure(struct bench *b, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned d = 0; d < 2; d++) {
        for (unsigned i = 0; !rc && i < b->tune.size_count; i++)
            rc = measure_cell(b, d, i, err);
    }
    ibx_bw_progress("%s", "");
    return rc;
}

/* ------------------------------------------------------------------ both ends */

static int by_size(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static void prepare(struct bench *b, const struct bw_args *args)
{
    struct tune *tune = &b->tune;
    unsigned processors = ibx_thread_processors();
    b->args = args;
    memcpy(tune->sizes, args->sizes, sizeof(tune->sizes));
    tune->size_count = args->size_count;
    qsort(tune->sizes, tune->size_count, sizeof(tune->sizes[0]), by_size);
    b->longest = tune->sizes[tune->size_count - 1];
    add_ways(tune, processors, args->over);
    if (processors < 4)
        snprintf(tune->no_threads, sizeof(tune->no_threads), "there are only %u processors",
                 processors);
}

/* Without --over direct copies are not measured and keep their setting; tells how to measure them.
 */
static void explain_direct(struct tune *tune, const struct ibx_options *options)
{
    char description[192];
    struct ibx_error why = {0};
    if (ibx_provider_probe("verbs", options, description, sizeof(description), &why))
        snprintf(tune->no_direct, sizeof(tune->no_direct), "%.250s", why.message);
    else
        snprintf(tune->no_direct, sizeof(tune->no_direct),
                 "%.150s could: give --over verbs://ADDRESS:0, with its address", description);
}

static int allocate(struct bench *b, struct ibx_error *err)
{
    struct ibx_error why = {0};
    void *own = mmap(NULL, b->longest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return ibx_error_set(err, -ENOMEM, "no memory for copies of %zu bytes", b->longest);
    b->own = own;
    ibx_bw_payload_fill(b->own, b->longest, PATTERN_SEED);
    b->shared = ibx_shared_allocate(b->longest, &why);
    if (b->shared)
        memcpy(b->shared, b->own, b->longest);
    for (unsigned w = 0; w < b->tune.way_count && !b->shared; w++) {
        struct tune_way *way = &b->tune.ways[w];
        if (way->kind == TUNE_IN_PLACE)
            snprintf(way->refused, sizeof(way->refused), "%.255s", why.message);
    }
    return 0;
}

static int connect_way(struct bench *b, unsigned w, struct ibx_error *err)
{
    struct ibx_copy_counts counts;
    const bool far = b->tune.ways[w].far;
    int rc = ibx_bw_session_connect(far ? b->back.far_uri : b->back.uri, &b->args->options,
                                    &b->streams[w], err);
    if (rc)
        return far ? ibx_error_prefix(err, rc, "--over") : rc;
    snprintf(far ? b->tune.far_path : b->tune.path, sizeof(b->tune.path), "%s",
             ibx_session_path(b->streams[w]->session)->description);
    return count(b, w, &counts, err); /* also shows the back end what its replies look like */
}

static void finish(struct bench *b)
{
    for (unsigned w = 0; w < b->tune.way_count; w++) {
        if (b->streams[w])
            b->streams[w]->ops->destroy(b->streams[w]);
    }
    ibx_bw_child_stop(&b->back_pid);
    if (b->shared)
        ibx_shared_free(b->shared);
    if (b->own)
        munmap(b->own, b->longest);
}

/* ------------------------------------------------------------------------ the file */

static const struct ibx_owner_place place = {
    .what = "the folder",
    .remedy = "give --output a FILE in a folder that only root can change",
    .may_lack = true,
    .like_tmp = true,
};

/* From now on this process, if root, acts as the user who can change the folder of `file`. */
static void become_owner(const char *file)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(file, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - file) + 1 : 1,
             slash ? file : ".");
    ibx_owner_become(&place, folder);
}

/* The same for all places where ibx_glue_tuning_file() looks for properties. */
static void become_owner_of_properties(void)
{
    static const char *const names[][2] = {
        {"GVIRTUS_RDMA_PROPERTIES", ""}, {"GVIRTUS_CONFIG", ""}, {"GVIRTUS_HOME", "/etc/"}};
    char file[PATH_MAX];
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = secure_getenv(names[i][0]);
        if (value && *value &&
            (size_t)snprintf(file, sizeof(file), "%s%s", value, names[i][1]) < sizeof(file))
            become_owner(file);
    }
}

static int output_of(const struct bw_args *args, char file[PATH_MAX], struct ibx_error *err)
{
    int rc = 0;
    if (args->output && strlen(args->output) >= PATH_MAX)
        return ibx_error_set(err, -ENAMETOOLONG, "--output: the path is too long");
    if (args->output) {
        snprintf(file, PATH_MAX, "%s", args->output);
    } else {
        become_owner_of_properties();
        rc = ibx_glue_tuning_file(file, err);
    }
    if (!rc && !*file)
        rc = ibx_error_set(err, -EINVAL, "rdma.tuning is none: give --output FILE");
    if (!rc)
        become_owner(file);
    return rc;
}

static int check_file(const char *file, struct ibx_error *err)
{
    int rc = ibx_bw_file_check(file, err);
    if (rc == -EACCES || rc == -EPERM)
        rc = ibx_error_set(err, rc, "no place for the result: %s: %s%s", file, strerror(-rc),
                           ibx_owner_remedy(-rc));
    else if (rc)
        ibx_error_prefix(err, rc, "no place for the result (give --output FILE)");
    return rc;
}

static int write_file(const struct tune *tune, const char *name, struct ibx_error *err)
{
    struct bw_file file;
    char date[32];
    time_t now = time(NULL);
    struct tm tm;
    int rc = ibx_bw_file_open(&file, name, err);
    if (rc)
        return rc;
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&now, &tm));
    fprintf(file.out,
            "# Measured by ib-bw tune " IBX_VERSION " on %s; see gvirtus.properties(5).\n", date);
    ibx_tuning_print(&tune->result, file.out);
    return ibx_bw_file_close(&file, 0, err);
}

/* Sets the reason of ways that no copy took and for which none was reported: the path lacks them.
 */
static void explain(struct tune *tune)
{
    for (unsigned w = 0; w < tune->way_count; w++) {
        struct tune_way *way = &tune->ways[w];
        if (!ibx_tune_measured(tune, w, 0) && !ibx_tune_measured(tune, w, 1) && !way->refused[0])
            snprintf(way->refused, sizeof(way->refused),
                     "no copy of these sizes takes this way over %.150s",
                     way->far ? tune->far_path : tune->path);
    }
}

static int tune(struct bench *b, struct ibx_error *err)
{
    char file[PATH_MAX];
    int rc = output_of(b->args, file, err);
    if (!rc)
        rc = ibx_tune_back_start(b->args, &b->tune, &b->back, &b->back_pid, err);
    b->tune.result.machine = b->back.machine;
    if (!rc)
        rc = check_file(file, err);
    if (!rc)
        rc = allocate(b, err);
    for (unsigned w = 0; !rc && w < b->tune.way_count; w++)
        rc = connect_way(b, w, err);
    if (!rc)
        rc = measure(b, err);
    if (rc)
        return rc;
    if (!b->args->over)
        explain_direct(&b->tune, &b->args->options);
    explain(&b->tune);
    ibx_tune_choose(&b->tune);
    ibx_tune_print(&b->tune, stdout);
    rc = write_file(&b->tune, file, err);
    if (!rc)
        printf("stored in %s; a back end that begins now uses it\n", file);
    return rc;
}

int ibx_bw_tune(const struct bw_args *args)
{
    static struct bench bench;
    struct ibx_error err = {0};
    prepare(&bench, args);
    int rc = tune(&bench, &err);
    finish(&bench);
    if (!rc)
        rc = ibx_tool_flush(&err);
    return rc ? ibx_tool_fail(&err) : EXIT_SUCCESS;
}
