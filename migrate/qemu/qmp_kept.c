/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much of QEMU's output is kept. A guest that controls its QEMU must not be able to use up
 * the memory or the time of a tool, which often runs as root. A JSON value takes up to a hundred
 * times the memory of its text, so the memory that it takes is what counts. */
#include "migrate/qemu/qmp_internal.h"

#include <errno.h>
#include <string.h>

#define VALUES_MAX     393216u /* in a message: 8 MiB that list block nodes have so many */
#define EVENT_MAX      65536u  /* weight of an event that is kept with its data */
#define NAME_MAX_BYTES 64u     /* of an event that is kept without its data */
#define PANIC          "GUEST_PANICKED"
#define AHEAD_MAX      ((size_t)96 << 20) /* weight of such a list, and of one of their disks */
#define REMEMBERED_MAX ((size_t)32 << 20)

/* Memory that the JSON library takes, on a 64-bit system. */
#define OBJECT_BYTES 216u
#define PAIR_BYTES   72u
#define ARRAY_BYTES  136u
#define ITEM_BYTES   16u
#define OTHER_BYTES  64u

/* ------------------------------------------------------------ weights */

size_t ibx_qmp_weight(const json_t *value)
{
    size_t bytes = OTHER_BYTES + json_string_length(value);
    const char *name;
    json_t *part;
    size_t i;
    if (json_is_object(value)) {
        bytes = OBJECT_BYTES;
        json_object_foreach((json_t *)(uintptr_t)value, name, part)
        {
            bytes += PAIR_BYTES + strlen(name) + ibx_qmp_weight(part);
        }
    } else if (json_is_array(value)) {
        bytes = ARRAY_BYTES;
        json_array_foreach(value, i, part)
        {
            bytes += ITEM_BYTES + ibx_qmp_weight(part);
        }
    }
    return value ? bytes : 0;
}

/* Counts the characters that separate values or open a list, which bounds the number of values. */
static size_t count_values(const char *text, size_t length)
{
    bool in_text = false;
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        if (in_text && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_text = !in_text;
        else
            count += !in_text && (text[i] == ',' || text[i] == '[' || text[i] == '{');
    }
    return count;
}

bool ibx_qmp_may_parse(struct ibx_qmp *qmp, const char *text, size_t length)
{
    if (length <= VALUES_MAX || count_values(text, length) <= VALUES_MAX)
        return true;
    ibx_qmp_break(qmp, -EMSGSIZE, "a message on the QMP socket has more than 393216 values");
    return false;
}

/* ------------------------------------------------------------ events */

static const char *name_of(const json_t *event)
{
    return json_string_value(json_object_get(event, "event"));
}

/* Whether a migration needs this event. Others may be dropped: a guest can make its QEMU report
 * some of them as fast as it likes. */
static bool matters(const json_t *event)
{
    static const char *const names[] = {"STOP",
                                        "RESUME",
                                        "RESET",
                                        "SHUTDOWN",
                                        "MIGRATION",
                                        "MIGRATION_PASS",
                                        "BALLOON_CHANGE",
                                        "JOB_STATUS_CHANGE",
                                        "SUSPEND",
                                        "WAKEUP",
                                        PANIC,
                                        "WATCHDOG"};
    const char *name = name_of(event);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

/* Of the panics only the last one is kept: with -action panic=none a guest can report them as fast
 * as it likes. */
static void forget_panic(struct ibx_qmp *qmp)
{
    for (size_t i = json_array_size(qmp->events); i-- > 0;) {
        if (strcmp(name_of(json_array_get(qmp->events, i)), PANIC) != 0)
            continue;
        json_array_remove(qmp->events, i);
        qmp->needed -= i < qmp->needed;
        return;
    }
}

/* Drops the oldest event that does not matter, or if all matter, the oldest. `needed` makes sure
 * that no event is examined twice. */
static void forget_event(struct ibx_qmp *qmp)
{
    const size_t all = json_array_size(qmp->events);
    while (qmp->needed < all && matters(json_array_get(qmp->events, qmp->needed)))
        qmp->needed++;
    if (qmp->needed < all)
        json_array_remove(qmp->events, qmp->needed);
    else if (!json_array_remove(qmp->events, 0))
        qmp->needed--;
}

/* Keeps the name of a large event only: the data of all events that matter is small. NULL: the name
 * is too long, too, or no memory. */
static json_t *without_data(json_t *event)
{
    json_t *name = json_object_get(event, "event");
    return json_string_length(name) <= NAME_MAX_BYTES ? json_pack("{s:O}", "event", name) : NULL;
}

void ibx_qmp_keep_event(struct ibx_qmp *qmp, json_t *event)
{
    json_t *kept = ibx_qmp_weight(event) <= EVENT_MAX ? json_incref(event) : without_data(event);
    if (!kept)
        return;
    if (!strcmp(name_of(kept), PANIC))
        forget_panic(qmp);
    if (json_array_size(qmp->events) >= IBX_QMP_EVENTS_MAX)
        forget_event(qmp);
    if (json_array_append_new(qmp->events, kept))
        ibx_qmp_break(qmp, -ENOMEM, "out of memory while keeping an event of QEMU");
}

bool ibx_qmp_has_events(const struct ibx_qmp *qmp)
{
    return json_array_size(qmp->events) > 0;
}

json_t *ibx_qmp_event_next(struct ibx_qmp *qmp)
{
    json_t *event = json_incref(json_array_get(qmp->events, 0));
    if (!json_array_remove(qmp->events, 0) && qmp->needed)
        qmp->needed--;
    return event;
}

/* ------------------------------------------------------------ answers */

void ibx_qmp_keep_ahead(struct ibx_qmp *qmp, struct ahead *ahead, json_t *answer)
{
    size_t all = ahead->weight = ibx_qmp_weight(answer);
    for (unsigned i = 0; i < qmp->aheads; i++)
        all += &qmp->ahead[i] != ahead ? qmp->ahead[i].weight : 0;
    if (all <= AHEAD_MAX)
        ahead->answer = json_incref(answer);
    else
        ibx_qmp_break(qmp, -EMSGSIZE,
                      "QEMU's answers to what is about to be asked are more than 96 MiB");
}

void ibx_qmp_keep_answer(struct ibx_qmp *qmp, json_t **kept, const char *question, json_t *value)
{
    const size_t weight = PAIR_BYTES + strlen(question) + ibx_qmp_weight(value);
    if (weight > REMEMBERED_MAX || qmp->remembered > REMEMBERED_MAX - weight)
        return;
    if (!*kept && (*kept = json_object()))
        qmp->remembered += ibx_qmp_weight(*kept);
    if (!json_object_get(*kept, question) && !json_object_set(*kept, question, value))
        qmp->remembered += weight;
}
