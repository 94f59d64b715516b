/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A control connection of a test that lies to ib-migrate: it sends any message at any time and
 * notes what it receives. Waits fail the test at their limit.
 */
#ifndef IBX_TESTS_MIGRATE_LINE_H
#define IBX_TESTS_MIGRATE_LINE_H

#include "migrate/channel/channel.h"

struct line {
    struct ibx_channel control;
    uint32_t received; /* a bit a type */
    struct ibx_migrate_any last;
    struct ibx_migrate_answer answer; /* the last one, which `last` points to */
    bool ended;
};

/* Called while a line waits, when not NULL: on tcp the peer's CPU answers READs, while it polls. */
extern void (*line_meanwhile)(void);

/* For ibx_channel_take(): `context` is a line. */
int line_note(void *context, const struct ibx_migrate_any *message);
/* Takes in what has come, or waits a little for more. */
void line_turn(struct line *line);
/* Until the peer has sent this, or closed; true when it was sent. */
bool line_receives(struct line *line, enum ibx_migrate_message type);
void line_closes(struct line *line);
void line_close(struct line *line);
void line_send(struct line *line, const struct ibx_migrate_any *message);
void line_send_plain(struct line *line, enum ibx_migrate_message type);
void line_send_epoch(struct line *line, enum ibx_migrate_message type, uint64_t epoch);
void line_send_bytes(struct line *line, enum ibx_migrate_message type, const void *bytes, size_t n);
void line_send_state_end(struct line *line, uint64_t bytes);

#endif
