/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/stand_in.h"

#include "migrate/journal/journal.h"
#include "migrate/preflight/preflight.h"
#include "migrate/qemu/qemu.h"

#include "common/clock.h"
#include "common/control_groups.h"
#include "common/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define STILL_MS  3000 /* without a beat; a busy host may not run a tool for a second */
#define HELD_MS   100  /* by a tracer, at one place */
#define AGAIN_MS  1000 /* between two questions while QEMU reports nothing */
#define UNSEEN_MS 3000 /* for an answer, before the question is asked again */

static const struct ibx_state stand_in_states[] = {
    [STAND_IN_IDLE] = {"idle", IBX_TO(STAND_IN_ASKED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [STAND_IN_ASKED] = {"asked",
                        IBX_TO(STAND_IN_ASKED) | IBX_TO(STAND_IN_REFUSED) | IBX_TO(STAND_IN_DONE) |
                            IBX_TO(STAND_IN_IDLE),
                        IBX_STATE_FINAL},
    [STAND_IN_REFUSED] = {"refused", IBX_TO(STAND_IN_ASKED) | IBX_TO(STAND_IN_IDLE),
                          IBX_STATE_FINAL},
    [STAND_IN_DONE] = {"done", IBX_TO(STAND_IN_IDLE), IBX_STATE_FINAL},
};
static const struct ibx_state_table stand_in_table = IBX_STATE_TABLE("stand-in", stand_in_states);

void ibx_stand_in_init(struct ibx_stand_in *s, int monitor, const atomic_uint *beats)
{
    *s = (struct ibx_stand_in){.monitor = monitor, .tool = getppid(), .beats = beats};
    ibx_state_begin(&s->state, &stand_in_table, STAND_IN_IDLE);
}

bool ibx_stand_in_has_work(const struct ibx_stand_in *s, const json_t *before)
{
    return s->monitor >= 0 && ibx_settings_omit_ram(before);
}

/* One that is traced is stopped for moments, at each system call if strace(1) does that, and for
 * long by a debugger. */
static bool is_held(struct ibx_stand_in *s)
{
    const uint64_t now = ibx_now_ns(), turns = ibx_process_turns(s->tool);
    if (!s->held_ns || turns != s->turns)
        s->held_ns = now;
    s->turns = turns;
    return now - s->held_ns >= HELD_MS * IBX_NS_PER_MS;
}

/* By a signal, by a debugger, or with its control group. */
static bool is_stopped(struct ibx_stand_in *s)
{
    const char state = ibx_process_state(s->tool);
    if (state != 't')
        s->held_ns = 0;
    return state == 'T' || (state == 't' && is_held(s)) ||
           ibx_control_groups_frozen("/sys/fs/cgroup", s->tool);
}

static bool stands_still(struct ibx_stand_in *s)
{
    const unsigned beat = atomic_load(s->beats);
    const uint64_t now = ibx_now_ns();
    if (beat != s->beat)
        s->beat_ns = now;
    s->beat = beat;
    return is_stopped(s) || (beat && now - s->beat_ns > STILL_MS * IBX_NS_PER_MS);
}

static size_t unread(const struct ibx_stand_in *s)
{
    int bytes = 0;
    return ioctl(s->monitor, FIONREAD, &bytes) || bytes < 0 ? 0 : (size_t)bytes;
}

static void ask(struct ibx_stand_in *s, const json_t *before)
{
    json_t *command = json_pack("{s:s, s:o, s:s}", "execute", "migrate-set-capabilities",
                                "arguments", ibx_settings_save_ram(before), "id", IBX_QMP_STAND_IN);
    char *text = json_dumps(command, JSON_COMPACT);
    json_decref(command);
    s->unread = unread(s);
    s->again_ns = ibx_deadline_in_ms(AGAIN_MS);
    s->unseen_ns = ibx_deadline_in_ms(UNSEEN_MS);
    if (text) {
        const size_t length = strlen(text);
        text[length] = '\n'; /* replaces the NUL */
        if (send(s->monitor, text, length + 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
            ibx_state_move(&s->state, STAND_IN_ASKED);
    }
    free(text);
}

/* What the answer to the question says: it is in what the tool has not read, and is left there.
 * `*answered` is where it ends. ASKED: it has not come. The beginning of a message may be missing.
 */
static enum stand_in_state look_for_answer(struct ibx_stand_in *s, size_t *answered)
{
    const ssize_t n = recv(s->monitor, s->bytes, sizeof(s->bytes), MSG_PEEK | MSG_DONTWAIT);
    const char *at = s->bytes, *end = s->bytes + (n > 0 ? n : 0);
    enum stand_in_state is = STAND_IN_ASKED;
    json_error_t parsed;
    while (at < end) {
        json_t *message = json_loadb(at, (size_t)(end - at), JSON_DISABLE_EOF_CHECK, &parsed);
        const char *id = json_string_value(json_object_get(message, "id"));
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        at = message ? at + parsed.position : line_end ? line_end : end;
        while (at < end && strchr("\r\n", *at))
            at++;
        if (id && !strcmp(id, IBX_QMP_STAND_IN) && (size_t)(at - s->bytes) > s->unread) {
            is = json_object_get(message, "return") ? STAND_IN_DONE : STAND_IN_REFUSED;
            *answered = (size_t)(at - s->bytes);
        }
        json_decref(message);
    }
    return is;
}

static void take_answer(struct ibx_stand_in *s)
{
    const enum stand_in_state is = look_for_answer(s, &s->unread);
    if (is == STAND_IN_ASKED)
        return;
    ibx_state_move(&s->state, is);
    if (is == STAND_IN_DONE)
        ibx_log(IBX_LOG_WARN,
                "ib-migrate (process %d) stands still before the end of its migration: QEMU saves "
                "the VM with its RAM again",
                (int)s->tool);
}

void ibx_stand_in_look(struct ibx_stand_in *s, const json_t *before)
{
    if (!stands_still(s)) {
        if (s->state.now != STAND_IN_IDLE)
            ibx_state_move(&s->state, STAND_IN_IDLE);
        return;
    }
    if (s->state.now == STAND_IN_ASKED)
        take_answer(s);
    const uint64_t now = ibx_now_ns();
    if (s->state.now == STAND_IN_IDLE ||
        (s->state.now == STAND_IN_REFUSED && (unread(s) > s->unread || now >= s->again_ns)) ||
        (s->state.now == STAND_IN_ASKED && now >= s->unseen_ns))
        ask(s, before);
}

void ibx_stand_in_end(struct ibx_stand_in *s)
{
    if (s->monitor >= 0)
        close(s->monitor);
    s->monitor = -1;
}

int ibx_stand_in_leave(struct ibx_stand_in *s)
{
    const int monitor = s->monitor;
    s->monitor = -1;
    return monitor;
}
