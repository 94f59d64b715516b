/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Keeps the tenants of one back end apart, as far as GVirtuS's requests show what they use, and
 * limits what a client may make the back end hold.
 *
 * A request that names another tenant's memory goes to GVirtuS's handler, as every request in
 * doubt, but with an address that CUDA refuses in its place: so exit code and cudaGetLastError are
 * the runtime's own.
 */
#include "frontend-glue/clients/clients.h"

#include "common/log.h"
#include "frontend-glue/gvirtus_handlers/named_memory.h"
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "frontend-glue/session/math_calls.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define PUSHED_MOST 1024u /* configurations of launches within each other */

/* ------------------------------------------------------------------- beginning and end */

static struct ibx_tenant *tenant_of(const struct gpu_session *x, const struct ibx_path *path)
{
    const unsigned chunks = (unsigned)(x->options.memory / IBX_PINNED_STRIDE);
    return ibx_tenant_get(path->name, &x->options.limits, chunks);
}

/* Counts connections that are being set up, too, since GVirtuS gives each a thread before it is a
 * session. */
int ibx_isolation_admit(struct gpu_session *x, const struct ibx_path *path, struct ibx_error *err)
{
    struct isolation *i = &x->isolation;
    i->tenant = tenant_of(x, path);
    if (!i->tenant)
        return ibx_error_set(err, -ENOMEM, "no memory to note who %s is", path->peer);
    if (!ibx_descriptors_left(i->tenant, &x->options.limits))
        return ibx_error_set(
            err, -EDQUOT,
            "%s of tenant \"%s\" is turned away: the connections of that name have "
            "as many descriptors of this process as rdma.tenant_share allows: "
            "raise its limit (ulimit -n)",
            path->peer, path->name);
    i->setting_up = ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_SETUPS), 1);
    if (!i->setting_up)
        return ibx_error_set(err, -EDQUOT,
                             "%s of tenant \"%s\" is turned away: as many connections are being "
                             "set up as rdma.sessions and rdma.tenant_share allow",
                             path->peer, path->name);
    return 0;
}

static void set_up(struct isolation *i)
{
    if (i->setting_up)
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_SETUPS), 1);
    i->setting_up = false;
}

int ibx_isolation_begin(struct gpu_session *x)
{
    struct isolation *i = &x->isolation;
    const struct ibx_path *path = ibx_session_path(x->s);
    set_up(i);
    *i = (struct isolation){.tenant = tenant_of(x, path)};
    if (!i->tenant)
        return ibx_session_fail(x->s, -ENOMEM, "no memory to note who %s is", path->peer);
    i->on = path->name[0] && !x->options.limits.shared;
    i->limited = x->options.limits.device;
    i->counted = ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_SESSIONS), 1);
    if (!i->counted)
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s of tenant \"%s\" gets no session: there are as many as "
                                "rdma.sessions and rdma.tenant_share allow",
                                path->peer, path->name);
    ibx_clients_join(x);
    x->pins.quota = ibx_tenant_quota(i->tenant, IBX_HOLD_PINS);
    ibx_turn_join(&x->turn, path->name[0] ? ibx_tenant_everywhere(i->tenant) : NULL,
                  ibx_share_of(&x->options.limits, path->name));
    return 0;
}

void ibx_isolation_end(struct gpu_session *x)
{
    struct isolation *i = &x->isolation;
    ibx_turn_leave(&x->turn);
    set_up(i);
    ibx_room_end(&x->handler.exec_room);
    ibx_handles_let_go(x);
    ibx_handles_uses_leave(x);
    ibx_clients_leave(x);
    if (i->counted)
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_SESSIONS), 1);
    if (i->held && !ibx_session_abandoned(x->s)) {
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_REQUESTS), i->held + i->unpacked);
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_REPLIES), i->reply);
    }
    if (i->refused > 1)
        ibx_log(IBX_LOG_WARN, "%s of tenant \"%s\" named memory of others in %lu requests",
                ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant), i->refused);
    ibx_memory_free_end(i->given, i->given_number, true);
    ibx_memory_make_end(x);
    i->counted = false;
    i->held = i->unpacked = i->reply = i->refused = i->given = i->given_number = 0;
    i->reserved = 0; /* the quota keeps them: an allocation without a reply may have been made */
}

/* Logs the session's first request for memory of another program. It is mostly just a mistake. */
static void tell_of_program(struct gpu_session *x, uint64_t owner)
{
    struct isolation *i = &x->isolation;
    struct ibx_client_name own = {"a client"}, other = {"another client"};
    if (owner == IBX_CLIENT_NONE || i->refused++)
        return;
    ibx_clients_name(ibx_clients_number(x), &own);
    ibx_clients_name(owner, &other);
    ibx_log(IBX_LOG_WARN,
            "%s names memory of %s, perhaps by a pointer to memory that it has freed: refused "
            "(natively this is an error, too)",
            own.text, other.text);
}

static bool tenant_may_use(struct gpu_session *x, uint64_t address, uint64_t n)
{
    struct isolation *i = &x->isolation;
    return !i->on || !ibx_tenants_several() ||
           !ibx_owners_other_cached(i->tenant, &i->owned, address, n);
}

bool ibx_isolation_allows(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t other = ibx_memory_other(x, address, n);
    if (other)
        tell_of_program(x, other);
    return !other && tenant_may_use(x, address, n);
}

bool ibx_isolation_is_memory(struct gpu_session *x, uint64_t address, uint64_t n)
{
    return ibx_isolation_allows(x, address, n) && !ibx_process_memory_is_own(x, address, n);
}

bool ibx_isolation_allows_now(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t other = ibx_memory_not_there(x, address, n);
    if (other)
        tell_of_program(x, other);
    return !other && tenant_may_use(x, address, n);
}

/* --------------------------------------------------------------------------- requests */

/* Counts GVirtuS's buffer for requests, which is as long as the longest request, until the session
 * ends. */
static int note_length(struct gpu_session *x, uint64_t length)
{
    struct isolation *i = &x->isolation;
    if (length <= i->held)
        return 0;
    if (!ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_REQUESTS), length - i->held))
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s sends a request of %llu bytes: with the others that is more "
                                "than rdma.requests and rdma.tenant_share allow",
                                ibx_session_path(x->s)->peer, (unsigned long long)length);
    i->held = length;
    return 0;
}

/* Counts what a fat binary's images become, until the handler has answered. */
static int note_unpacked(struct gpu_session *x, const uint8_t *body, size_t n)
{
    struct isolation *i = &x->isolation;
    if (strcmp(x->requests.name, "cudaRegisterFatBinary") != 0)
        return 0;
    const uint64_t bytes = ibx_fat_binary_unpacked(body, n);
    if (!ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_REQUESTS), bytes))
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s registers a fat binary with an image of %llu bytes: with other "
                                "requests that is more than rdma.requests and rdma.tenant_share "
                                "allow",
                                ibx_session_path(x->s)->peer, (unsigned long long)bytes);
    i->unpacked = bytes;
    return 0;
}

static void tell_of_tenant(struct gpu_session *x, const struct ibx_tenant *owner)
{
    struct isolation *i = &x->isolation;
    if (!i->refused++)
        ibx_log(IBX_LOG_WARN,
                "%s of tenant \"%s\" names memory of tenant \"%s\" in %s: refused "
                "(rdma.tenants : isolated)",
                ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant), ibx_tenant_name(owner),
                x->requests.name);
}

/* Whether any of the memory is another tenant's. */
static bool is_of_tenant(struct gpu_session *x, const struct ibx_named *named, unsigned count)
{
    const struct isolation *i = &x->isolation;
    const struct ibx_tenant *owner = NULL;
    for (unsigned k = 0; k < count && !owner && i->on && ibx_tenants_several(); k++) {
        if (named[k].address)
            owner = ibx_owners_other(i->tenant, named[k].address, named[k].n);
    }
    if (owner)
        tell_of_tenant(x, owner);
    return owner;
}

/* Whether any of it is another program's, or there is no memory at all. */
static bool is_of_program(struct gpu_session *x, const struct ibx_named *named, unsigned count)
{
    uint64_t owner = 0;
    for (unsigned k = 0; k < count && !owner; k++) {
        if (named[k].address && !named[k].array && !named[k].handle)
            owner = ibx_memory_not_there(x, named[k].address, named[k].n);
    }
    if (owner)
        tell_of_program(x, owner);
    return owner;
}

/* The handler is about to give memory back. False: it must not. */
static bool may_give_back(struct gpu_session *x, uint64_t address)
{
    struct isolation *i = &x->isolation;
    if (!address || x->options.mode == IBX_GPU_OFF || x->handler.made != MADE_ENDS ||
        x->handler.made_kind != IBX_HANDLE_MEMORY)
        return true;
    if (!ibx_memory_free_begin(x, address, &i->given_number))
        return false;
    i->given = address;
    ibx_pending_clear_wait(x, address);
    return true;
}

/* Counts what the request is about to allocate. If that is too much, enlarges the size in the
 * request so that CUDA refuses it. */
static void reserve(struct gpu_session *x, uint8_t *body, size_t n)
{
    struct isolation *i = &x->isolation;
    const uint64_t bytes = ibx_naming_allocation(x->requests.name, body, n);
    bool taken;
    while (!(taken = ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_DEVICE), bytes)) &&
           ibx_client_ends_wait()) {
    }
    if (taken) {
        i->reserved = bytes;
        return;
    }
    ibx_naming_enlarge(x->requests.name, body, n);
    if (!i->logged_full)
        ibx_log(IBX_LOG_WARN,
                "%s of tenant \"%s\" gets no %llu bytes of GPU memory by %s: with the others that "
                "is more than rdma.device_memory and rdma.tenant_share allow",
                ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant), (unsigned long long)bytes,
                x->requests.name);
    i->logged_full = true;
}

/* If an allocation could not be noted as the tenant's, every tenant could use it: has CUDA refuse
 * it, as above. */
static bool refuse_ownerless(struct gpu_session *x, uint8_t *body, size_t n)
{
    struct isolation *i = &x->isolation;
    if (!i->on || ibx_quota_left(ibx_tenant_quota(i->tenant, IBX_HOLD_ALLOCATIONS)))
        return false;
    ibx_naming_enlarge(x->requests.name, body, n);
    if (!i->logged_crowd)
        ibx_log(
            IBX_LOG_WARN,
            "clients of tenant \"%s\" get no GPU memory by %s: they have as many allocations as "
            "are kept from other tenants: free some",
            ibx_tenant_name(i->tenant), x->requests.name);
    i->logged_crowd = true;
    return true;
}

/* Whether the request is an asynchronous copy between host and device, in a stream that is being
 * captured. The handler would put an address of its heap into the graph, and then free that
 * memory. */
static bool captures_heap(struct gpu_session *x, const uint8_t *body, size_t n)
{
    int capturing = 0;
    if (!ibx_captures_any() || strcmp(x->requests.name, "cudaMemcpyAsync") != 0 || n < 12 ||
        !ibx_back_end_have_cuda(x))
        return false;
    struct ibx_reader r = ibx_reader_of(body + n - 12, 12);
    const uint32_t kind = ibx_get_u32(&r);
    const uint64_t stream = ibx_get_u64(&r);
    return (kind == IBX_FRAME_H2D || kind == IBX_FRAME_D2H) && stream > 1 &&
           !x->cuda->stream_is_capturing((void *)(uintptr_t)stream, &capturing) && capturing;
}

static void tell_of_capture(const struct gpu_session *x)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "%s captures a copy between host and device, of which GVirtuS would make one with "
                "memory of this back end that it frees: refused; preload libibx-frontend.so",
                ibx_session_path(x->s)->peer);
}

/* Whether the handler must not get the named memory, which is logged. `frees`: the request frees
 * the first one that it names. */
static bool refuses(struct gpu_session *x, const struct ibx_named *named, unsigned count,
                    bool frees, const uint8_t *body, size_t n)
{
    if (is_of_tenant(x, named, count) || is_of_program(x, named, count) ||
        (frees && !may_give_back(x, named[0].address)))
        return true;
    const bool captures = captures_heap(x, body, n);
    if (captures)
        tell_of_capture(x);
    return captures;
}

static void invalidate_arrays(struct gpu_session *x, const struct ibx_named *named, unsigned count,
                              uint8_t *body, size_t n)
{
    for (unsigned k = 0; k < count && x->options.mode != IBX_GPU_OFF; k++) {
        if (!named[k].array || ibx_named_array(x, named[k].address))
            continue;
        ibx_naming_invalidate(&named[k], body, n);
        ibx_named_tell(x);
    }
}

/* Counts the reply that the handler makes, until it has been sent. */
static int note_reply(struct gpu_session *x, uint64_t bytes)
{
    struct isolation *i = &x->isolation;
    if (!ibx_quota_take(ibx_tenant_quota(i->tenant, IBX_HOLD_REPLIES), bytes))
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s asks for a reply of %llu bytes: with others that is more than "
                                "rdma.requests and rdma.tenant_share allow",
                                ibx_session_path(x->s)->peer, (unsigned long long)bytes);
    i->reply += bytes;
    return 0;
}

/* Whether GVirtuS's handlers may take it for a generator that fills host memory. They remember
 * where they made one, also if an extension request has ended it and another one has made one
 * there. */
static bool may_be_for_host(struct gpu_session *x, uint64_t generator)
{
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_RNG);
    const enum ibx_handle_maker maker = ibx_handles_maker(x, kind, generator);
    return maker == IBX_MAKER_REQUEST || maker == IBX_MAKER_HANDLER_FOR_HOST;
}

/* Bytes of random numbers in the reply to a request, at most: those that are generated in host
 * memory. There are at most RANDOM_MOST of them (library_shapes.c). */
static uint64_t numbers_in_reply(struct gpu_session *x, const uint8_t *body, size_t n)
{
    const char *name = x->requests.name;
    struct ibx_reader r = ibx_reader_of(body, n);
    if (strncmp(name, "curandGenerate", 14) != 0 || !may_be_for_host(x, ibx_get_u64(&r)))
        return 0;
    return ibx_get_u64(&r) * (strstr(name, "Double") || strstr(name, "LongLong") ? 8 : 4);
}

/* Of a capture that has ended unseen: the handler is not to get it. */
static void forget_lost_graph(struct gpu_session *x, const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    if (!strncmp(x->requests.name, "cudaGraph", 9))
        ibx_captures_has_graph(x, ibx_get_u64(&r));
}

/* The handler is about to destroy a graph or an executable graph: forgets it. False: it must
 * not. */
static bool forget_graph(struct gpu_session *x, uint64_t value)
{
    if (!strcmp(x->requests.name, "cudaGraphDestroy"))
        return ibx_handles_gone(x, IBX_HANDLE_GRAPH, value);
    return strcmp(x->requests.name, "cudaGraphExecDestroy") != 0 ||
           ibx_handles_gone(x, IBX_HANDLE_EXEC, value);
}

static int inspect(struct gpu_session *x, uint8_t *body, size_t n)
{
    struct isolation *i = &x->isolation;
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    const unsigned count = ibx_naming_find(x->requests.name, body, n, &role, named);
    int rc = note_reply(x, numbers_in_reply(x, body, n));
    for (unsigned k = 0; k < count && !rc; k++)
        rc = note_reply(x, named[k].reply);
    if (rc)
        return rc;
    invalidate_arrays(x, named, count, body, n);
    const bool frees = count && role == IBX_NAMING_FREES;
    /* A level is freed with its mipmapped array, not by itself. */
    if ((frees && ibx_handles_is_level(x, named[0].address)) ||
        refuses(x, named, count, frees, body, n)) {
        for (unsigned k = 0; k < count; k++)
            ibx_naming_invalidate(&named[k], body, n);
        return 0;
    }
    const bool notes = i->on || i->limited;
    i->allocates = notes && ibx_naming_allocates(x->requests.name);
    if (i->allocates && !refuse_ownerless(x, body, n) && i->limited)
        reserve(x, body, n);
    /* What the handler gets: of something that is no array none, which it frees with success. */
    i->gone = frees ? ibx_body_number(body, n, named[0].at, 8) : 0;
    if (i->gone && !forget_graph(x, i->gone)) {
        ibx_naming_invalidate(&named[0], body, n);
        ibx_named_tell(x);
        i->gone = 0;
    }
    i->freed = notes ? i->gone : 0;
    i->freed_number = i->freed ? ibx_owners_number(i->freed) : 0;
    return 0;
}

/* Whether GVirtuS reads a request otherwise than expected: name with its NUL, length, and then the
 * whole body at once. */
static bool in_pieces(const struct ibx_request_watch *w, const uint8_t *bytes, size_t n)
{
    if (w->stage == IBX_REQUEST_NAME) {
        const uint8_t *nul = memchr(bytes, 0, n);
        return nul && nul != bytes + n - 1;
    }
    if (w->stage == IBX_REQUEST_LENGTH)
        return n > 8 - w->got;
    return (w->got || n != w->length) &&
           (ibx_naming_known(w->name) || ibx_naming_allocates(w->name));
}

/* Ends the session if the handler would go beyond the memory that it has. *kept: the bytes that it
 * keeps, besides those of the request. */
static int end_for_unfit(struct gpu_session *x, const uint8_t *body, size_t n, uint64_t *kept)
{
    const char *name = x->requests.name;
    if (!strcmp(name, "cudaRegisterFatBinary") && !ibx_fat_binary_fits(body, n, kept))
        return ibx_session_fail(x->s, -EPROTO,
                                "%s registers a fat binary that is malformed, or that GVirtuS "
                                "cannot read: preload libibx-frontend.so",
                                ibx_session_path(x->s)->peer);
    if ((!strcmp(name, "cuModuleLoadData") || !strcmp(name, "cuModuleLoadFatBinary")) &&
        !ibx_image_string_fits(body, n))
        return ibx_session_fail(x->s, -EPROTO,
                                "%s calls %s with an image that does not end where it says: "
                                "GVirtuS sends PTX only; preload libibx-frontend.so",
                                ibx_session_path(x->s)->peer, name);
    if (!strcmp(name, "cuModuleLoadDataEx") && !ibx_load_options_fit(body, n))
        return ibx_session_fail(x->s, -EOPNOTSUPP,
                                "%s calls cuModuleLoadDataEx with a list of symbols, or otherwise "
                                "than GVirtuS does: preload libibx-frontend.so",
                                ibx_session_path(x->s)->peer);
    return 0;
}

static void note_launched(struct gpu_session *x, const uint8_t *bytes, size_t n)
{
    const char *name = x->requests.name;
    const size_t at = strncmp(name, "cuLaunchGrid", 12) != 0 ? 0 : 8;
    const bool exec = !strcmp(name, "cudaGraphLaunch");
    const bool launches = (exec || !strncmp(name, "cuLaunch", 8)) && n >= at + 8;
    x->handler.launched = launches ? ibx_body_number(bytes, n, at, 8) : 0;
    x->handler.launches_exec = exec;
}

void ibx_isolation_launched(struct gpu_session *x)
{
    const uint64_t launched = x->handler.launched;
    x->handler.launched = 0;
    if (!ibx_captures_any_of_tenant(x) && !ibx_captures_ended_since(x, x->handler.captures_before))
        return;
    if (launched && x->handler.launches_exec)
        ibx_handles_exec_captured(x, launched);
    else if (launched)
        ibx_handles_captured(x, launched);
    if (strstr(x->requests.name, "Launch"))
        ibx_functions_graph_unknown(x->launches.user.held);
}

int ibx_isolation_before_read(struct gpu_session *x, uint8_t *bytes, size_t n)
{
    struct isolation *i = &x->isolation;
    const struct ibx_request_watch *w = &x->requests;
    if (!i->tenant || !n)
        return 0;
    if (!ibx_shapes_is_name(w, bytes, n))
        return ibx_session_fail(x->s, -EPROTO, "%s sends a request whose name no function has",
                                ibx_session_path(x->s)->peer);
    if (w->stage == IBX_REQUEST_NAME)
        i->sends_unset = false;
    if (w->stage == IBX_REQUEST_LENGTH) {
        i->rest = ibx_library_rest_of(w->name);
        i->sends_unset = i->on && !ibx_shapes_answers_errors(w->name);
    }
    if ((i->on || i->limited) && in_pieces(w, bytes, n))
        return ibx_session_fail(x->s, -EOPNOTSUPP,
                                "this GVirtuS reads requests in pieces, in which tenants cannot be "
                                "kept apart, nor what they allocate be counted: give each a back "
                                "end, or set rdma.tenants : shared and no rdma.device_memory");
    if (w->stage != IBX_REQUEST_BODY || w->got || n != w->length)
        return 0;
    if (x->options.mode != IBX_GPU_OFF && ibx_captures_any() &&
        (!ibx_graph_captures(x, ibx_call_find(w->name, strlen(w->name) + 1), bytes, n) ||
         !ibx_graph_joins_begin(x, w->name, bytes, n)))
        return ibx_captures_full(x);
    x->handler.load.count = 0;
    if (!strcmp(w->name, "cuModuleLoadDataEx"))
        ibx_load_options_sanitize(bytes, n, &x->handler.load);
    uint64_t kept = 0;
    int rc = note_unpacked(x, bytes, n);
    rc = rc ? rc : end_for_unfit(x, bytes, n, &kept);
    if (rc)
        return rc;
    if (!ibx_functions_name(ibx_functions_user_of(x), w->name, bytes, n, kept))
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s of tenant \"%s\" registers kernels: with the others that is "
                                "more than rdma.requests and rdma.tenant_share allow",
                                ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant));
    ibx_shapes_sanitize(w->name, bytes, n);
    ibx_library_shapes_sanitize(w->name, bytes, n, i->held);
    ibx_library_arrays_sanitize(w->name, bytes, n);
    forget_lost_graph(x, bytes, n);
    ibx_named_invalidate(x, bytes, n);
    const int unknown = ibx_named_handlers_invalidate(x, bytes, n);
    note_launched(x, bytes, n);
    return unknown ? unknown : inspect(x, bytes, n);
}

/* The runtime keeps configurations of launches until they are popped, without end. */
static bool names_configuration(const char *name, const char *what)
{
    name += strncmp(name, "__", 2) ? 0 : 2;
    return !strncmp(name, what, strlen(what));
}

/* Whether the handler calls a function that CUDA's runtime no longer has. GVirtuS loads its plugins
 * with such functions in them, and the loader ends the process at the first call. */
static bool lacks_function(const char *name)
{
    static const struct {
        const char *request, *function;
    } removed[] = {{"cudaConfigureCall", "cudaConfigureCall"},
                   {"cudaLaunch", "cudaConfigureCall"},
                   {"cudaRegisterShared", "__cudaRegisterShared"},
                   {"cudaRegisterSharedVar", "__cudaRegisterSharedVar"},
                   {"cudaSetupArgument", "cudaSetupArgument"}};
    for (size_t i = 0; i < sizeof(removed) / sizeof(removed[0]); i++) {
        if (!strcmp(removed[i].request, name))
            return ibx_back_end_runtime("cudaGetLastError") &&
                   !ibx_back_end_runtime(removed[i].function);
    }
    return false;
}

int ibx_isolation_after_read(struct gpu_session *x, enum ibx_request_stage before)
{
    const struct ibx_request_watch *w = &x->requests;
    struct isolation *i = &x->isolation;
    const bool name = before == IBX_REQUEST_NAME && w->stage != IBX_REQUEST_NAME;
    const bool length = before == IBX_REQUEST_LENGTH && w->stage != IBX_REQUEST_LENGTH;
    if (name && i->tenant && !ibx_made_room(x))
        return ibx_session_fail(x->s, -EDQUOT,
                                "%s of tenant \"%s\" asks for %s: its clients have as many of "
                                "these as all of a tenant may have: destroy some first",
                                ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant), w->name);
    i->pops = name ? names_configuration(w->name, "cudaPopCallConfig") : i->pops;
    if (name && i->tenant && names_configuration(w->name, "cudaPushCallConfig") &&
        ++i->pushed > PUSHED_MOST)
        return ibx_session_fail(
            x->s, -EDQUOT, "%s of tenant \"%s\" begins more than %u launches within each other",
            ibx_session_path(x->s)->peer, ibx_tenant_name(i->tenant), PUSHED_MOST);
    if (name && !strcmp(w->name, "cuModuleLoad"))
        return ibx_session_fail(x->s, -EOPNOTSUPP,
                                "%s calls cuModuleLoad, for which GVirtuS loads /tmp/file.bin, "
                                "whoever wrote that: preload libibx-frontend.so",
                                ibx_session_path(x->s)->peer);
    if (name && lacks_function(w->name))
        return ibx_session_fail(x->s, -EOPNOTSUPP,
                                "%s calls %s, which CUDA's runtime no longer has: GVirtuS's "
                                "handler would end this process",
                                ibx_session_path(x->s)->peer, w->name);
    return length && i->tenant ? note_length(x, w->length) : 0;
}

/* ---------------------------------------------------------------------------- replies */

/* With an error GVirtuS sends as payload whatever was in that memory of its stack or heap. */
bool ibx_isolation_withholds(const struct gpu_session *x)
{
    const struct ibx_reply_watch *r = &x->replies;
    const unsigned head = r->shape == IBX_REPLY_PLAIN ? 2 : 3;
    return x->isolation.sends_unset && r->exit_code && r->count > head;
}

void ibx_isolation_answers(const struct gpu_session *x, uint8_t *bytes, size_t n)
{
    const struct ibx_reply_watch *r = &x->replies;
    const unsigned head = r->shape == IBX_REPLY_PLAIN ? 2 : 3;
    if (r->exit_code || r->count != head)
        return;
    if (x->handler.load.count)
        ibx_load_options_answer(&x->handler.load, bytes, n);
    ibx_library_clear_rest((enum ibx_library_rest)x->isolation.rest, bytes, n);
}

static void note_allocation(struct gpu_session *x, uint64_t address)
{
    struct isolation *i = &x->isolation;
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    uint64_t base = address;
    size_t size = 1;
    void *context = NULL;
    if (cuda && (cuda->mem_get_address_range(&base, &size, address) || base != address)) {
        base = address; /* an array */
        size = 1;
    }
    if (cuda)
        cuda->ctx_get_current(&context);
    if (!ibx_owners_add(i->tenant, base, size, context, i->reserved) && !i->logged_crowd) {
        ibx_log(IBX_LOG_WARN,
                "there is no memory to note an allocation of tenant \"%s\": it is not kept from "
                "other tenants",
                ibx_tenant_name(i->tenant));
        i->logged_crowd = true;
    }
}

void ibx_isolation_replied(struct gpu_session *x)
{
    struct isolation *i = &x->isolation;
    const struct ibx_reply_watch *r = &x->replies;
    const bool done = r->exit_code == 0;
    const bool plain = r->last_size >= 8 && r->last_size <= sizeof(r->last);
    const uint64_t made =
        i->allocates && done && plain ? ibx_naming_allocated(r->last, r->last_size) : 0;
    if (made)
        note_allocation(x, made);
    else if (i->reserved && (!done || plain)) /* nothing was made; else it is cudaMallocPitch */
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_DEVICE), i->reserved);
    if (done)
        ibx_owners_remove(i->freed, i->freed_number);
    if (i->gone && done)
        ibx_end_gone(i->gone);
    ibx_memory_free_end(i->given, i->given_number, done);
    i->pushed -= done && i->pops && i->pushed;
    if (i->unpacked)
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_REQUESTS), i->unpacked);
    i->allocates = false;
    x->handler.load.count = 0; /* the next request may have no body */
    i->reserved = 0;
    i->freed = i->freed_number = i->gone = i->given = i->given_number = i->unpacked = 0;
}

void ibx_isolation_sent(struct gpu_session *x)
{
    struct isolation *i = &x->isolation;
    if (i->reply)
        ibx_quota_give(ibx_tenant_quota(i->tenant, IBX_HOLD_REPLIES), i->reply);
    i->reply = 0;
}
