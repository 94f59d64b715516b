/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/frames.h"

#include "common/wire.h"

/* ---------------------------------------------------------------------- requests */

/* Indexed by enum ibx_frame_call. */
static const struct {
    const char *name;
    size_t tail; /* bytes that follow the addresses and the payload */
} calls[] = {
    [IBX_FRAME_MEMCPY] = {"cudaMemcpy", 12},
    [IBX_FRAME_MEMCPY_ASYNC] = {"cudaMemcpyAsync", 20},
    [IBX_FRAME_MEMCPY_2D] = {"cudaMemcpy2D", IBX_FRAME_TAIL_MAX},
    [IBX_FRAME_TO_SYMBOL] = {"cudaMemcpyToSymbol", 20},
};

enum ibx_frame_call ibx_frame_name(const uint8_t *bytes, size_t n, size_t *length)
{
    for (enum ibx_frame_call call = IBX_FRAME_MEMCPY; call <= IBX_FRAME_TO_SYMBOL; call++) {
        size_t with_nul = strlen(calls[call].name) + 1;
        if (n < with_nul || memcmp(bytes, calls[call].name, with_nul) != 0)
            continue;
        *length = with_nul;
        return call;
    }
    return IBX_FRAME_OTHER;
}

/* The bytes after the addresses and the payload; 0 for OTHER. */
static size_t tail_of(enum ibx_frame_call call)
{
    return calls[call].tail;
}

size_t ibx_frame_plain_bytes(enum ibx_frame_call call)
{
    bool plain = call == IBX_FRAME_MEMCPY || call == IBX_FRAME_MEMCPY_ASYNC;
    return plain ? IBX_FRAME_PAYLOAD_AT + tail_of(call) : 0;
}

/* Reads the tail; false: unknown kind. */
static bool parse_tail(const uint8_t *tail, struct ibx_frame *frame)
{
    struct ibx_reader r = ibx_reader_of(tail, tail_of(frame->call));
    if (frame->call == IBX_FRAME_MEMCPY_2D) {
        frame->dpitch = ibx_get_u64(&r);
        frame->spitch = ibx_get_u64(&r);
        frame->width = ibx_get_u64(&r);
        frame->height = ibx_get_u64(&r);
    } else {
        frame->dpitch = frame->spitch = frame->width = ibx_get_u64(&r);
        frame->height = 1;
    }
    if (frame->call == IBX_FRAME_TO_SYMBOL)
        frame->symbol_offset = ibx_get_u64(&r);
    uint32_t kind = ibx_get_u32(&r);
    if (frame->call == IBX_FRAME_MEMCPY_ASYNC)
        frame->stream = ibx_get_u64(&r);
    frame->kind = (enum ibx_frame_kind)kind;
    return !r.failed && kind >= IBX_FRAME_H2D && kind <= IBX_FRAME_D2D;
}

/* A string as GVirtuS marshals it: its length twice, then its bytes with the NUL. */
static const char *get_string(struct ibx_reader *r, size_t *length)
{
    uint64_t n = ibx_get_u64(r), again = ibx_get_u64(r);
    if (!n || n != again || n > IBX_FRAME_WINDOW)
        r->failed = true;
    *length = r->failed ? 0 : (size_t)n;
    const char *bytes = (const char *)ibx_get_bytes(r, *length);
    bool good = !r->failed && memchr(bytes, 0, (size_t)n) == bytes + n - 1;
    r->failed = !good;
    return good ? bytes : NULL;
}

/* Parses a pointer as printf("%p") writes it; 0: NULL or malformed. */
static uint64_t parse_pointer(const char *text, size_t length)
{
    uint64_t value = 0;
    if (length < 4 || length > 19 || text[0] != '0' || text[1] != 'x' || text[2] == '0')
        return 0;
    for (const char *c = text + 2; *c; c++) {
        if ((*c < '0' || *c > '9') && (*c < 'a' || *c > 'f'))
            return 0;
        value = value << 4 | (uint64_t)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    }
    return value;
}

/* What precedes the payload of TO_SYMBOL; all of it has to be in the window. */
static bool parse_symbol(struct ibx_reader *r, struct ibx_frame *frame)
{
    size_t length, any;
    const char *address = get_string(r, &length);
    if (!address || !get_string(r, &any) || frame->kind != IBX_FRAME_H2D)
        return false;
    frame->symbol = parse_pointer(address, length);
    frame->payload = ibx_get_u64(r);
    frame->payload_at = 40 + length + any;
    return !r->failed && frame->symbol;
}

/* Reads the addresses before the tail; false: the body has not the length that its kind requires.
 */
static bool parse_head(const struct ibx_frame_body *body, struct ibx_frame *frame)
{
    uint64_t before = body->length - tail_of(frame->call);
    struct ibx_reader r =
        ibx_reader_of(body->first, before < IBX_FRAME_WINDOW ? before : IBX_FRAME_WINDOW);
    if (frame->call == IBX_FRAME_TO_SYMBOL)
        return parse_symbol(&r, frame) && before - frame->payload_at == frame->payload;
    switch (frame->kind) {
    case IBX_FRAME_H2D:
        frame->dst = ibx_get_u64(&r);
        frame->payload = ibx_get_u64(&r);
        frame->payload_at = IBX_FRAME_PAYLOAD_AT;
        return !r.failed && before - IBX_FRAME_PAYLOAD_AT == frame->payload;
    case IBX_FRAME_D2H:
        if (ibx_get_u64(&r) != 1 || ibx_get_u8(&r) != 0)
            return false;
        frame->src = ibx_get_u64(&r);
        return !r.failed && before == 17;
    case IBX_FRAME_D2D:
        frame->dst = ibx_get_u64(&r);
        frame->src = ibx_get_u64(&r);
        return !r.failed && before == 16;
    }
    return false;
}

/* Whether the sizes describe a possible copy, and agree with the payload. */
static bool sizes_agree(struct ibx_frame *frame)
{
    uint64_t source, destination;
    if (!frame->width || !frame->height || frame->width > frame->dpitch ||
        frame->width > frame->spitch)
        return false;
    if (__builtin_mul_overflow(frame->spitch, frame->height, &source) ||
        __builtin_mul_overflow(frame->dpitch, frame->height, &destination))
        return false;
    if (frame->kind == IBX_FRAME_H2D)
        return frame->payload == source;
    if (frame->kind == IBX_FRAME_D2H)
        frame->out = destination;
    return destination <= UINT64_MAX - 8; /* the length precedes it in the reply */
}

bool ibx_frame_parse(enum ibx_frame_call call, const struct ibx_frame_body *body,
                     struct ibx_frame *frame)
{
    size_t tail = tail_of(call);
    if (!tail || body->length < tail)
        return false;
    size_t window = body->length < IBX_FRAME_WINDOW ? (size_t)body->length : IBX_FRAME_WINDOW;
    struct ibx_frame found = {.call = call};
    if (!parse_tail(body->last + window - tail, &found) || !parse_head(body, &found) ||
        !sizes_agree(&found))
        return false;
    *frame = found;
    return true;
}

/* --------------------------------------------------------------- requests passing by */

void ibx_request_watch_init(struct ibx_request_watch *watch)
{
    *watch = (struct ibx_request_watch){.device = -1};
}

bool ibx_request_begins(const struct ibx_request_watch *watch)
{
    return watch->stage == IBX_REQUEST_NAME && !watch->got;
}

static void stage_begin(struct ibx_request_watch *watch, enum ibx_request_stage stage)
{
    watch->stage = stage;
    watch->got = 0;
    if (stage == IBX_REQUEST_NAME)
        memset(watch->name, 0, sizeof(watch->name));
}

static bool takes_context(const char *name)
{
    static const char *const names[] = {"cudaDeviceReset", "cudaThreadExit", "cuCtxDestroy",
                                        "cuCtxDetach"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!strcmp(name, names[i]))
            return true;
    }
    return false;
}

static void request_ends(struct ibx_request_watch *watch)
{
    struct ibx_reader r = ibx_reader_of(watch->first, 8);
    const uint64_t argument = ibx_get_u64(&r); /* valid if the body is long enough */
    if (!strcmp(watch->name, "cudaSetDevice") && watch->length == 4)
        watch->device = (int)(uint32_t)argument;
    if (takes_context(watch->name)) {
        watch->names_context = !strncmp(watch->name, "cuCtx", 5);
        watch->context = watch->length >= 8 ? argument : 0;
        watch->resets++;
    }
    if (!strcmp(watch->name, "cudaFree") && watch->length == 8)
        watch->freed = argument;
    stage_begin(watch, IBX_REQUEST_NAME);
}

/* Notes bytes of the name, up to the NUL; returns how many there were. */
static size_t note_name(struct ibx_request_watch *watch, const uint8_t *bytes, size_t n)
{
    const uint8_t *nul = memchr(bytes, 0, n);
    size_t part = nul ? (size_t)(nul - bytes) : n;
    for (size_t i = 0; i < part && watch->got + i < sizeof(watch->name) - 1; i++)
        watch->name[watch->got + i] = (char)bytes[i];
    watch->got += part;
    if (nul)
        stage_begin(watch, IBX_REQUEST_LENGTH);
    return nul ? part + 1 : part;
}

/* Notes bytes of the length or the body, and keeps the first ones. */
static size_t note_counted(struct ibx_request_watch *watch, const uint8_t *bytes, size_t n,
                           uint64_t length)
{
    uint64_t left = length - watch->got;
    size_t part = n < left ? n : (size_t)left;
    for (size_t i = 0; i < part && watch->got + i < sizeof(watch->first); i++)
        watch->first[watch->got + i] = bytes[i];
    watch->got += part;
    return part;
}

uint8_t *ibx_request_ends_name(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n,
                               const char *name)
{
    const size_t last = strlen(name) - 1;
    if (watch->stage != IBX_REQUEST_NAME || watch->got > last || n <= last - watch->got ||
        memcmp(watch->name, name, watch->got) != 0 ||
        memcmp(bytes, name + watch->got, last - watch->got + 1) != 0)
        return NULL;
    return bytes + last - watch->got;
}

void ibx_request_note_read(struct ibx_request_watch *watch, const void *bytes, size_t n)
{
    const uint8_t *at = bytes, *end = at + n;
    while (at < end) {
        size_t left = (size_t)(end - at);
        if (watch->stage == IBX_REQUEST_NAME) {
            at += note_name(watch, at, left);
        } else if (watch->stage == IBX_REQUEST_LENGTH) {
            at += note_counted(watch, at, left, 8);
            if (watch->got < 8)
                break;
            struct ibx_reader r = ibx_reader_of(watch->first, 8);
            watch->length = ibx_get_u64(&r);
            stage_begin(watch, IBX_REQUEST_BODY);
        } else {
            at += note_counted(watch, at, left, watch->length);
        }
        if (watch->stage == IBX_REQUEST_BODY && watch->got == watch->length)
            request_ends(watch);
    }
}
