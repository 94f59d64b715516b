/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches without GVirtuS's front end, which needs more time for a launch than everything else in
 * this process. Only GVirtuS knows where a kernel's arguments are in a request. So after the first
 * launch of a kernel, GVirtuS writes one more launch, which is kept and not sent
 * (ibx_frontend_launch_body()). In it each byte of an argument is the argument's number, so the
 * layout can be read. If the result is not as expected, GVirtuS goes on to make the kernel's
 * launches.
 *
 * GVirtuS finds no arguments of a kernel with more than 4 KiB of them, because their sizes are in a
 * form that it does not read (EIATTR 0x45 of .nv.info). G5 knows no arguments of a kernel that
 * exists only as PTX, and throws an exception. In these cases the back end is asked for the layout,
 * as its CUDA knows it, and the launch is an extension request. The back end's answer is compared
 * with the image in the program.
 *
 * G5 finds arguments by the name of the kernel. If several kernels have one name, as those that
 * Python packages compile at run time, it uses the first one's. If the images in the program
 * differ, the back end is asked, too.
 */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/fork_lock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEAD       56u    /* bytes of a launch's body before the arguments */
#define BODY_MAX   4480u  /* bytes of a body that is written here, at most */
#define PACKED_MAX 4096u  /* bytes of arguments that fit into GVirtuS's request */
#define BUCKETS    4096u  /* of a hash table; a power of two */
#define MARKS      254u   /* arguments that can be distinguished by their number */
#define MARK_LAST  255u   /* the bytes of all further arguments */
#define MARKED     4480u  /* bytes of each marked argument; longer ones fit into no body */
#define POINTERS   4096u  /* number of arguments of a kernel, at most */
#define BEHIND_END 32768u /* bytes that are read of an argument, at most */

/* How a kernel's launches are made. */
enum way {
    BY_GVIRTUS,   /* by GVirtuS's front end: the layout of arguments is unknown here */
    LIKE_GVIRTUS, /* the first one by GVirtuS's front end, all others here, in the same form */
    IN_ITS_PLACE, /* all of them here, in GVirtuS's form: its front end cannot */
    BY_REQUEST,   /* as extension requests: they are long, and its front end knows no arguments */
    REFUSED       /* not at all: its front end would use another kernel's arguments */
};

/* What is known of one kernel. It is never freed, even when it is no longer valid, and only `since`
 * changes: if the kernel's module is loaded again, and the same is found out, it is valid again. */
struct kernel {
    const void *function;
    atomic_uint since;    /* ibx_frontend_modules_gone() when that was found out */
    struct kernel *older; /* in its bucket */
    uint8_t name[8];      /* its name in requests */
    enum way way;
    bool asked;   /* the rest comes from the back end, for extension requests */
    size_t bytes; /* bytes of all arguments */
    size_t count;
    struct argument {
        uint16_t at, bytes;
    } arguments[];
};

/* Lists, to which entries are added under the lock. */
static _Atomic(struct kernel *) kernels[BUCKETS];
static struct ibx_fork_lock lock = IBX_FORK_LOCK;
static atomic_uint modules; /* number of modules that were unloaded */

unsigned ibx_frontend_modules_gone(void)
{
    return atomic_load(&modules);
}

static struct ranges registered; /* kernels, one byte each; those of unloaded modules stay */

static atomic_bool unknown; /* there are kernels whose arguments GVirtuS does not know */

void ibx_frontend_kernels_unknown(void)
{
    atomic_store_explicit(&unknown, true, memory_order_relaxed);
}

void ibx_frontend_kernel_registered(const void *function, const char *name)
{
    const struct range range = {.begin = (uintptr_t)function, .n = 1, .name = name};
    ibx_frontend_ranges_lock();
    struct range *known = ibx_frontend_ranges_at(&registered, function);
    if (!known)
        ibx_frontend_ranges_add(&registered, &range);
    else if (name)
        known->name = name;
    ibx_frontend_ranges_unlock();
}

void ibx_frontend_kernel_gone(const void *function)
{
    ibx_frontend_ranges_lock();
    struct range *known = ibx_frontend_ranges_at(&registered, function);
    if (known)
        known->name = NULL;
    ibx_frontend_ranges_unlock();
}

const char *ibx_frontend_name_of_kernel(const void *function)
{
    ibx_frontend_ranges_lock();
    const struct range *known = ibx_frontend_ranges_at(&registered, function);
    const char *name = known ? known->name : NULL;
    ibx_frontend_ranges_unlock();
    return name;
}

/* Whether another kernel has the same name. */
static bool name_is_shared(const void *function)
{
    size_t same = 0;
    ibx_frontend_ranges_lock();
    const struct range *known = ibx_frontend_ranges_at(&registered, function);
    for (size_t i = 0; known && known->name && i < registered.count; i++)
        same += registered.items[i].name && !strcmp(registered.items[i].name, known->name);
    ibx_frontend_ranges_unlock();
    return same > 1;
}

int ibx_frontend_no_kernel(const void *function)
{
    if (!function)
        return CUDA_INVALID_FUNCTION;
    ibx_frontend_own_modules();
    ibx_frontend_module_needed(function);
    ibx_frontend_ranges_lock();
    const bool known = !registered.count || ibx_frontend_ranges_at(&registered, function);
    ibx_frontend_ranges_unlock();
    if (known || !ibx_frontend_plugin())
        return CUDA_SUCCESS;
    return ibx_frontend_before_13() ? CUDA_INVALID_FUNCTION : CUDA_INVALID_HANDLE;
}

static size_t bucket_of(const void *function)
{
    const uintptr_t at = (uintptr_t)function;
    return (at >> 4 ^ at >> 14) % BUCKETS;
}

static struct kernel *newest_in(size_t bucket)
{
    return atomic_load_explicit(&kernels[bucket], memory_order_acquire);
}

/* NULL: not launched yet. */
static const struct kernel *find(const void *function)
{
    const unsigned since = atomic_load(&modules);
    const struct kernel *k = newest_in(bucket_of(function));
    while (k && !(k->function == function && k->since == since))
        k = k->older;
    return k;
}

static bool is_same(const struct kernel *a, const struct kernel *b)
{
    return a->function == b->function && a->way == b->way && a->asked == b->asked &&
           a->bytes == b->bytes && a->count == b->count &&
           !memcmp(a->name, b->name, sizeof(a->name)) &&
           !memcmp(a->arguments, b->arguments, a->count * sizeof(a->arguments[0]));
}

/* Locked. The same, if it was known already: it is valid again. */
static struct kernel *renew(const struct kernel *k)
{
    struct kernel *there = newest_in(bucket_of(k->function));
    while (there && !is_same(there, k))
        there = there->older;
    if (there)
        atomic_store(&there->since, atomic_load(&k->since));
    return there;
}

/* Puts it into its bucket, or frees it if the same is there already. Returns what is there: it is
 * true of the launch at hand even if another thread has unloaded a module since it was found out,
 * and find() does not find it any more. */
static const struct kernel *add(struct kernel *k)
{
    const size_t bucket = bucket_of(k->function);
    struct kernel *shorter = realloc(k, sizeof(*k) + k->count * sizeof(k->arguments[0]));
    k = shorter ? shorter : k;
    ibx_frontend_look_for_libraries(); /* each kernel's first launch may be the last call before a
                                          library uses a GPU */
    ibx_fork_lock_take(&lock);
    const struct kernel *there = find(k->function);
    there = there ? there : renew(k);
    if (!there) {
        k->older = newest_in(bucket);
        atomic_store_explicit(&kernels[bucket], k, memory_order_release);
    }
    ibx_fork_lock_release(&lock);
    if (there)
        free(k);
    return there ? there : k;
}

/* ------------------------------------------------------------------------- what is learned */

/* Reads the layout: runs of equal marks, one for each argument. False: it is something else. */
static bool read_marks(struct kernel *k, const uint8_t *bytes, size_t n)
{
    k->bytes = n;
    for (size_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && bytes[end] == bytes[at];)
            end++;
        if (!bytes[at]) /* padding */
            continue;
        if (bytes[at] != k->count + 1 || k->count == MARKS - 1)
            return false;
        k->arguments[k->count++] = (struct argument){(uint16_t)at, (uint16_t)(end - at)};
    }
    return true;
}

/* Whether the body begins with this configuration. */
static bool head_is(const uint8_t *body, size_t n, const struct launch_config *c)
{
    uint8_t expected[HEAD - 8];
    struct ibx_writer w = ibx_writer_of(expected, sizeof(expected));
    const struct dim3 sizes[] = {c->grid, c->block};
    for (unsigned i = 0; i < 2; i++) {
        ibx_put_u32(&w, sizes[i].x);
        ibx_put_u32(&w, sizes[i].y);
        ibx_put_u32(&w, sizes[i].z);
    }
    ibx_put_u64(&w, c->shared);
    ibx_put_u64(&w, (uintptr_t)c->stream);
    ibx_put_u64(&w, n - HEAD);
    return n >= HEAD && n <= BODY_MAX && !memcmp(body + 8, expected, sizeof(expected));
}

/* The marked arguments: number i consists of bytes i, from 1 on; NULL: no memory. */
static void **marked;

/* Prepared in advance and populated at once: to fault in these 1.1 MiB page by page would take most
 * of the time. */
static void mark_arguments(void)
{
    const size_t rows = (size_t)(MARKS + 1) * MARKED;
    const size_t all_bytes = POINTERS * sizeof(void *) + rows + BEHIND_END;
    void **arguments =
        mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arguments == MAP_FAILED)
        return;
    madvise(arguments, all_bytes, MADV_POPULATE_WRITE);
    uint8_t *marks = (uint8_t *)(arguments + POINTERS);
    for (size_t i = 0; i < POINTERS; i++) {
        const size_t row = i < MARKS ? i : MARKS;
        arguments[i] = marks + row * MARKED;
        if (i <= MARKS)
            memset(arguments[i], (int)row + 1, MARKED);
    }
    memset(marks + rows, MARK_LAST, BEHIND_END);
    marked = arguments;
}

void ibx_frontend_kernels_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, mark_arguments);
}

enum answer { ASKED_NONE, ASKED_SOME, ASKED_IN_VAIN };

/* Requests the layout of arguments from number `first` on. *k may be reallocated. They are in
 * ascending order, as CUDA has them. *count: how many there are. */
static enum answer ask_some(struct kernel **k, size_t first, uint32_t *count)
{
    struct extension_request e;
    uint8_t bytes[4 + 8 * IBX_EXT_LISTED] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    ibx_frontend_request_begin(&e, IBX_EXT_PARAMETERS, "a long launch");
    ibx_put_bytes(&e.body, (*k)->name, sizeof((*k)->name));
    ibx_put_u32(&e.body, (uint32_t)first);
    const bool made = ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code);
    if (!made || code)
        return made && (code < 0 || code == CUDA_NOT_SUPPORTED) ? ASKED_NONE : ASKED_IN_VAIN;
    *count = ibx_get_u32(&r);
    struct kernel *more =
        realloc(*k, sizeof(**k) + (first + IBX_EXT_LISTED) * sizeof((*k)->arguments[0]));
    *k = more ? more : *k;
    if (!more || *count > IBX_EXT_LISTED)
        return ASKED_IN_VAIN;
    for (size_t i = 0; i < *count; i++) {
        const uint32_t at = ibx_get_u32(&r), n = ibx_get_u32(&r);
        if (!n || at < more->bytes || at > IBX_EXT_ARGUMENTS_MAX || n > IBX_EXT_ARGUMENTS_MAX - at)
            return ASKED_IN_VAIN;
        more->arguments[more->count++] = (struct argument){(uint16_t)at, (uint16_t)n};
        more->bytes = at + n;
    }
    return ASKED_SOME;
}

static bool is_at(const struct argument *a, const struct ibx_image_parameter *p)
{
    return p->elsewhere || a->at == p->at;
}

/* Whether the image in the program, if it can be read, has the same arguments: the program has no
 * bytes for others, and no pointers for more. */
static bool has_all(const struct kernel *k)
{
    size_t count = 0, i = 0;
    struct ibx_image_parameter *own = ibx_frontend_module_parameters(k->function, &count);
    while (own && i < k->count && i < count && is_at(&k->arguments[i], &own[i]) &&
           k->arguments[i].bytes <= own[i].n)
        i++;
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const bool has = !own || i == k->count;
    if (!has && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_ERROR,
                "a kernel is not launched: the back end says that its argument %zu of %zu is %u "
                "bytes at %u, and the program's code has %zu arguments, others than that",
                i + 1, k->count, k->arguments[i].bytes, k->arguments[i].at, count);
    free(own);
    return has;
}

/* Whether GVirtuS's front end takes the arguments of another kernel of this name for this one's. */
static bool is_another(const struct kernel *k)
{
    size_t count = 0, i = 0;
    struct ibx_image_parameter *own = ibx_frontend_module_parameters(k->function, &count);
    while (own && i < k->count && i < count && is_at(&k->arguments[i], &own[i]) &&
           k->arguments[i].bytes == own[i].n)
        i++;
    const bool another = own ? i < k->count || i < count : name_is_shared(k->function);
    free(own);
    return another;
}

static void tell_refused(const struct kernel *k)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *name = ibx_frontend_name_of_kernel(k->function);
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_ERROR,
                "launches of %s return cudaErrorNotSupported: the program has several kernels of "
                "this name, GVirtuS knows the arguments of the first one, and the back end does "
                "not say those of this one: its communicator is older than libibx-frontend.so, "
                "has rdma.gpu : off, or its CUDA is older than 12.4",
                name ? name : "a kernel");
}

/* Asks the back end for the layout of all arguments. ASKED_IN_VAIN: it may be asked again. */
static enum answer ask(struct kernel **k)
{
    enum answer answer;
    uint32_t count = 0;
    (*k)->bytes = (*k)->count = 0;
    do
        answer = ask_some(k, (*k)->count, &count);
    while (answer == ASKED_SOME && count == IBX_EXT_LISTED && (*k)->count < IBX_EXT_ARGUMENTS_MAX);
    if (answer == ASKED_SOME && !has_all(*k))
        answer = ASKED_IN_VAIN;
    (*k)->asked = answer == ASKED_SOME && (*k)->count;
    if (!(*k)->asked)
        (*k)->bytes = (*k)->count = 0;
    return answer;
}

/* What GVirtuS's front end wrote for a kernel's launch. */
enum written {
    WRITTEN,         /* a launch of this kernel */
    WRITTEN_ANOTHER, /* a launch of another kernel of its name */
    WRITTEN_STRANGE, /* something else; or it is too long, and there is no body */
    WRITTEN_NOT      /* nothing: it failed */
};

/* How the kernel's launches are made, after the back end was asked. */
static enum way way_of(const struct kernel *k, enum written written, enum answer answer)
{
    if (written == WRITTEN)
        return k->asked ? BY_REQUEST : LIKE_GVIRTUS;
    if (written == WRITTEN_STRANGE)
        return BY_GVIRTUS;
    if (answer == ASKED_SOME)
        return k->bytes > PACKED_MAX ? BY_REQUEST : IN_ITS_PLACE;
    return written == WRITTEN_ANOTHER ? REFUSED : BY_GVIRTUS;
}

/* Finds out how launches of this kernel are made; NULL: it is no kernel, or nothing can be found
 * out now. */
static struct kernel *look_at(const void *function, const struct launch_config *config)
{
    struct kernel *k = calloc(1, sizeof(*k) + MARKS * sizeof(k->arguments[0]));
    struct ibx_writer w = ibx_writer_of(k ? k->name : NULL, k ? sizeof(k->name) : 0);
    enum written written = WRITTEN_STRANGE;
    size_t n = 0;
    int rc = 0;
    ibx_frontend_kernels_prepare();
    if (!k || !marked) {
        free(k);
        return NULL;
    }
    k->function = function;
    k->since = atomic_load(&modules);
    const uint8_t *body = ibx_frontend_launch_body(config, function, marked, &n, &rc);
    if (!body && rc != CUDA_UNKNOWN && rc != CUDA_NOT_SUPPORTED) { /* it is no kernel */
        free(k);
        return NULL;
    }
    if (!body && rc == CUDA_UNKNOWN)
        written = WRITTEN_NOT;
    else if (body && head_is(body, n, config) && read_marks(k, body + HEAD, n - HEAD))
        written = k->count && is_another(k) ? WRITTEN_ANOTHER : WRITTEN;
    const bool is_launch = written == WRITTEN || written == WRITTEN_ANOTHER;
    if (is_launch)
        memcpy(k->name, body, sizeof(k->name));
    else
        ibx_put_u64(&w, (uintptr_t)function); /* as GVirtuS's front end names a kernel */
    k->way = written == WRITTEN ? LIKE_GVIRTUS : BY_GVIRTUS;
    if (is_launch ? written == WRITTEN && k->count : body || !ibx_frontend_plugin())
        return k;
    const enum answer answer = ask(&k);
    if (answer == ASKED_IN_VAIN && (written == WRITTEN || written == WRITTEN_NOT)) {
        free(k);
        return NULL;
    }
    if (answer == ASKED_SOME && (written == WRITTEN_ANOTHER || written == WRITTEN_NOT))
        k->asked = true; /* the kernel may have no arguments */
    k->way = way_of(k, written, answer);
    if (k->way == REFUSED)
        tell_refused(k);
    return k;
}

/* Whether the layout of its arguments is known. */
static bool has_arguments(const struct kernel *k)
{
    return k->asked || k->way == LIKE_GVIRTUS || k->way == IN_ITS_PLACE;
}

static const struct kernel *learned(const void *function, const struct launch_config *config)
{
    ibx_frontend_own_modules();
    const struct kernel *known = find(function);
    if (known)
        return known;
    ibx_frontend_module_needed(function);
    ibx_frontend_managed_before_load();
    struct kernel *k = look_at(function, config);
    return k ? add(k) : find(function);
}

const void *ibx_frontend_kernel_of_name(uint64_t name)
{
    const unsigned since = atomic_load(&modules);
    uint8_t bytes[8];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&w, name);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (const struct kernel *k = newest_in(i); k; k = k->older) {
            if (k->since == since && !memcmp(k->name, bytes, sizeof(bytes)))
                return k->function;
        }
    }
    return (const void *)(uintptr_t)name;
}

bool ibx_frontend_kernel_arguments(const void *function, uint8_t *bytes, size_t n, void **arguments,
                                   size_t *count)
{
    const struct launch_config one = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    const struct kernel *k = learned(function, &one);
    if (!k || !has_arguments(k) || k->bytes > n)
        return false;
    for (size_t i = 0; arguments && i < k->count && i < *count; i++)
        arguments[i] = bytes + k->arguments[i].at;
    *count = k->count;
    return true;
}

bool ibx_frontend_kernel_name(const void *function, uint8_t name[8])
{
    const struct launch_config one = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    const struct kernel *k = learned(function, &one);
    if (!k || !has_arguments(k))
        return false;
    memcpy(name, k->name, sizeof(k->name));
    return true;
}

/* ---------------------------------------------------------------------------- the calls */

/* Gives the kernel access to page-locked memory that its arguments point to. */
static int reach(const uint8_t *body, size_t n)
{
    if (!ibx_frontend_host_any() || n < HEAD)
        return CUDA_SUCCESS;
    const int rc = ibx_frontend_arguments_reach(body + HEAD, n - HEAD);
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

/* Appends the body of a launch up to its arguments. */
static void put_head(struct ibx_writer *w, const struct kernel *k, const struct launch_config *c)
{
    ibx_put_bytes(w, k->name, sizeof(k->name));
    ibx_put_u32(w, c->grid.x);
    ibx_put_u32(w, c->grid.y);
    ibx_put_u32(w, c->grid.z);
    ibx_put_u32(w, c->block.x);
    ibx_put_u32(w, c->block.y);
    ibx_put_u32(w, c->block.z);
    ibx_put_u64(w, c->shared);
    ibx_put_u64(w, (uintptr_t)c->stream);
    ibx_put_u64(w, k->bytes);
}

static void copy_arguments(uint8_t *to, const struct kernel *k, void **arguments)
{
    for (size_t i = 0; i < k->count; i++)
        memcpy(to + k->arguments[i].at, arguments[i], k->arguments[i].bytes);
}

/* Appends the body that GVirtuS would write, whose front end takes several microseconds for that.
 */
static int put_known(struct extension_request *e, const struct kernel *k,
                     const struct launch_config *c, void **arguments)
{
    const size_t at = e->body.length;
    if (!arguments && k->count)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (!ibx_frontend_request_room(e, HEAD + k->bytes))
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    put_head(&e->body, k, c);
    uint8_t *to = e->body.data + e->body.length;
    memset(to, 0, k->bytes);
    copy_arguments(to, k, arguments);
    e->body.length += k->bytes;
    return reach(e->body.data + at, HEAD + k->bytes);
}

/* Appends the body that GVirtuS writes. */
static int put_written(struct extension_request *e, const struct launch_config *config,
                       const void *function, void **arguments)
{
    size_t n;
    int rc;
    const void *body = ibx_frontend_launch_body(config, function, arguments, &n, &rc);
    if (!body)
        return ibx_frontend_fail(rc);
    const size_t at = e->body.length;
    if (!ibx_frontend_request_room(e, n))
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    ibx_put_bytes(&e->body, body, n);
    return reach(e->body.data + at, n);
}

int ibx_frontend_put_launch(struct extension_request *e, const struct launch_config *config,
                            const void *function, void **arguments)
{
    const int rc = ibx_frontend_no_kernel(function);
    if (rc || e->body.failed)
        return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
    const struct kernel *k = learned(function, config);
    if (k && k->way == REFUSED)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    return k && has_arguments(k) ? put_known(e, k, config, arguments)
                                 : put_written(e, config, function, arguments);
}

static bool launched(const struct kernel *k, const struct launch_config *c, void **arguments,
                     bool unseen, int *rc)
{
    uint8_t body[BODY_MAX];
    struct ibx_writer w = ibx_writer_of(body, HEAD);
    put_head(&w, k, c);
    memset(body + HEAD, 0, k->bytes);
    copy_arguments(body + HEAD, k, arguments);
    w.length = HEAD + k->bytes;
    *rc = reach(body, w.length);
    if (*rc)
        return true;
    return ibx_frontend_launched(&w, unseen, rc);
}

/* Launches by GVirtuS's front end, which connects in a thread's first call. If it throws although
 * the back end was asked, then CUDA at the back end cannot compile the kernel. */
static int launch_by_gvirtus(const struct ibx_frontend_calls *plugin, const void *function,
                             const struct launch_config *c, void **arguments)
{
    ibx_frontend_launcher launch = ibx_frontend_plain_launch();
    int rc = launch ? CUDA_UNLOADING : CUDA_NOT_SUPPORTED;
    const bool may = ibx_frontend_first_begins() && launch;
    const bool thrown =
        may && plugin && !ibx_frontend_launch_caught(plugin, c, function, arguments, &rc);
    if (may && !plugin)
        rc =
            launch((void *)(uintptr_t)function, c->grid, c->block, arguments, c->shared, c->stream);
    ibx_frontend_first_is_over();
    return thrown ? ibx_frontend_fail(CUDA_INVALID_FUNCTION) : rc;
}

static int launch_now(const void *function, const struct launch_config *config, void **arguments,
                      bool unseen)
{
    int rc;
    if (ibx_frontend_forbidden(&rc))
        return rc;
    ibx_frontend_own_modules();
    ibx_frontend_module_needed(function);
    const struct ibx_frontend_calls *plugin = ibx_frontend_plugin();
    if (!plugin && atomic_load_explicit(&unknown, memory_order_relaxed)) {
        ibx_frontend_connect();
        plugin = ibx_frontend_plugin();
    }
    const struct kernel *k = plugin ? find(function) : NULL;
    rc = k ? CUDA_SUCCESS : ibx_frontend_no_kernel(function);
    if (rc)
        return ibx_frontend_fail(rc);
    if (plugin && !k)
        k = learned(function, config);
    const enum way way = k ? k->way : BY_GVIRTUS;
    if (way == REFUSED)
        return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
    const bool here = !config->count && (way == IN_ITS_PLACE || way == LIKE_GVIRTUS);
    if (here && (arguments || !k->count) && launched(k, config, arguments, unseen, &rc))
        return rc;
    if (config->count || way == BY_REQUEST || way == IN_ITS_PLACE)
        return ibx_frontend_launch_ours(config, function, arguments);
    if (plugin)
        plugin->unseen(unseen);
    rc = launch_by_gvirtus(plugin, function, config, arguments);
    if (!rc && !plugin && ibx_frontend_plugin())
        learned(function, config);
    return rc;
}

int ibx_frontend_launch(const void *function, const struct launch_config *config, void **arguments,
                        bool unseen)
{
    ibx_frontend_stream_used(config->stream);
    const bool captured = ibx_frontend_capturing() && ibx_frontend_managed_captured(config->stream);
    const int rc = launch_now(function, config, arguments, unseen);
    if (captured)
        ibx_frontend_managed_launched();
    ibx_frontend_stream_worked(config->stream);
    return rc;
}

int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
                     size_t shared, void *stream)
{
    const struct launch_config config = {grid, block, shared, stream, NULL, 0};
    return ibx_frontend_launch(function, &config, arguments, ibx_frontend_launch_unseen());
}

/* Unloads a module. Another one may get its address. A child that was forked since the registration
 * has the module, too, and uses its kernels by the same addresses, also after its parent has ended:
 * the back end keeps the module as long as one of them uses it. */
void __cudaUnregisterFatBinary(void **handle)
{
    __typeof__(&__cudaUnregisterFatBinary) next = NEXT(__cudaUnregisterFatBinary);
    atomic_fetch_add(&modules, 1);
    ibx_frontend_managed_unload(handle);
    struct ibx_image_wrapper *expanded;
    void **there = ibx_frontend_module_gone(handle, &expanded);
    if (ibx_frontend_variables_unload(handle)) /* it stays registered by its address */
        return;
    if (next && (there || !handle))
        next(there);
    ibx_image_free_wrapped(expanded);
}
