/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/line.h"
#include "tests/scenes/vm.h"

#include "common/clock.h"

#include <poll.h>

#define LOOK_MS 5

void (*line_meanwhile)(void);

int line_note(void *context, const struct ibx_migrate_any *message)
{
    struct line *line = context;
    line->received |= 1u << message->type;
    line->last = *message;
    if (message->type == IBX_MIGRATE_HELLO)
        line->last.is.hello = NULL; /* gone when this returns */
    if (message->type == IBX_MIGRATE_ANSWER) {
        line->answer = *message->is.answer;
        line->last.is.answer = &line->answer;
    }
    return 0;
}

void line_turn(struct line *line)
{
    if (line_meanwhile)
        line_meanwhile();
    struct pollfd wait = {.events = POLLIN};
    if (ibx_channel_take(&line->control, line_note, line, NULL))
        line->ended = true;
    else if (!ibx_channel_arm(&line->control, &wait.fd))
        poll(&wait, 1, LOOK_MS);
}

bool line_receives(struct line *line, enum ibx_migrate_message type)
{
    const uint64_t deadline = vm_soon();
    while (!(line->received & 1u << type) && !line->ended) {
        if (ibx_now_ns() >= deadline)
            fail_msg("%s never came", ibx_migrate_message_name(type));
        line_turn(line);
    }
    return line->received & 1u << type;
}

void line_closes(struct line *line)
{
    const uint64_t deadline = vm_soon();
    while (!line->ended) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the connection was not closed");
        line_turn(line);
    }
}

void line_close(struct line *line)
{
    ibx_channel_fini(&line->control);
    *line = (struct line){0};
}

void line_send(struct line *line, const struct ibx_migrate_any *message)
{
    ibx_channel_send(&line->control, message, NULL);
}

void line_send_plain(struct line *line, enum ibx_migrate_message type)
{
    struct ibx_migrate_any message = {.type = type};
    if (type == IBX_MIGRATE_RUNNING || type == IBX_MIGRATE_ENDED)
        strcpy(message.is.status, type == IBX_MIGRATE_RUNNING ? "running" : "guest-shutdown");
    line_send(line, &message);
}

void line_send_epoch(struct line *line, enum ibx_migrate_message type, uint64_t epoch)
{
    struct ibx_migrate_any message = {.type = type};
    message.is.epoch = epoch;
    line_send(line, &message);
}

void line_send_bytes(struct line *line, enum ibx_migrate_message type, const void *bytes, size_t n)
{
    for (size_t at = 0, part; at < n; at += part) {
        struct ibx_migrate_any message = {.type = type};
        part = n - at < 32768 ? n - at : 32768;
        message.is.state.bytes = (const uint8_t *)bytes + at;
        message.is.state.length = part;
        line_send(line, &message);
    }
}

void line_send_state_end(struct line *line, uint64_t bytes)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_STATE_END};
    message.is.state_bytes = bytes;
    line_send(line, &message);
}
