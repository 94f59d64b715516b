/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bodies of requests of our own: in the right form, of handles that there are and of anything. */
#ifndef TESTS_REQUEST_FORMS_H
#define TESTS_REQUEST_FORMS_H

#include "tests/scenes/own_requests.h"

enum form_kind {
    FORM_GRAPH,
    FORM_NODE,
    FORM_EXEC,
    FORM_ARRAY,
    FORM_MIPMAP,
    FORM_DEVICE,
    FORM_QUEUE,
    FORM_STREAM,
    FORM_POOL,
    FORM_EVENT,
    FORM_TEXTURE,
    FORM_KERNEL, /* its name */
    FORM_KINDS
};

/* What everything is chosen by: own_random(), unless a test sets it. */
extern uint64_t (*form_random)(void);

/* Handles that bodies are made of: those of the client that asks, the last ones of each kind, and
 * one of the other's. */
void form_note(enum form_kind kind, uint64_t value);
void form_note_all_of(const struct client *c);
void form_note_others(const struct client *c);
/* The client's own are no more. */
void form_forget(void);

/* What is behind the number of a request. False: it is none, or one that makes memory of any size,
 * or graphs of graphs without end. */
bool form_put(struct ibx_writer *w, unsigned number);
/* In the letters of request_forms.c. */
void form_put_as(struct ibx_writer *w, const char *form);

#endif
