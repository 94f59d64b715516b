/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/fuzz/fake_qmp.h"

#include <errno.h>
#include <stdio.h>

#define NOBODY 0x3fffff /* no process has this number */

json_t *fake_qmp_answers;

int __wrap_ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                           json_t **result, uint64_t deadline_ns, struct ibx_error *err);
void __wrap_ibx_qmp_ahead(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                          uint64_t deadline_ns);
uint64_t __wrap_ibx_qmp_ahead_begin(const struct ibx_qmp *qmp);
unsigned __wrap_ibx_qmp_ahead_end(struct ibx_qmp *qmp, uint64_t since);
struct ibx_qmp_version __wrap_ibx_qmp_version(const struct ibx_qmp *qmp);
pid_t __wrap_ibx_qmp_pid(const struct ibx_qmp *qmp);
int __wrap_ibx_qmp_lives(const struct ibx_qmp *qmp, struct ibx_error *err);

static json_t *answer_to(const char *command, const json_t *arguments)
{
    static const char *const names[] = {"command-line", "property", "path"};
    char question[512];
    const char *more = NULL;
    for (size_t i = 0; !more && i < sizeof(names) / sizeof(names[0]); i++)
        more = json_string_value(json_object_get(arguments, names[i]));
    snprintf(question, sizeof(question), "%s %.400s", command, more ? more : "");
    json_t *answer = json_object_get(fake_qmp_answers, question);
    return answer ? answer : json_object_get(fake_qmp_answers, command);
}

int __wrap_ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                           json_t **result, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *answer = answer_to(command, arguments);
    (void)qmp;
    (void)deadline_ns;
    json_decref(arguments);
    if (!answer)
        return ibx_error_set(err, -EREMOTEIO, "QEMU refused %s", command);
    if (result)
        *result = json_incref(answer);
    return 0;
}

void __wrap_ibx_qmp_ahead(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                          uint64_t deadline_ns)
{
    (void)qmp;
    (void)command;
    (void)deadline_ns;
    json_decref(arguments);
}

uint64_t __wrap_ibx_qmp_ahead_begin(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return 0;
}

unsigned __wrap_ibx_qmp_ahead_end(struct ibx_qmp *qmp, uint64_t since)
{
    (void)qmp;
    (void)since;
    return 0;
}

struct ibx_qmp_version __wrap_ibx_qmp_version(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return (struct ibx_qmp_version){9, 0, 0};
}

pid_t __wrap_ibx_qmp_pid(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return NOBODY;
}

int __wrap_ibx_qmp_lives(const struct ibx_qmp *qmp, struct ibx_error *err)
{
    (void)qmp;
    (void)err;
    return 0;
}
