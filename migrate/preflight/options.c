/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options that decide what the guest sees and that QEMU does not report by its monitor: they are
 * described by QEMU's command line. */
#include "migrate/preflight/description.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST_BYTES 8

const struct ibx_action ibx_actions[IBX_ACTIONS] = {
    {"reboot", "reset"}, {"shutdown", "poweroff"}, {"panic", "shutdown"}, {"watchdog", "reset"}};

/* ------------------------------------------------------------ key=value */

/* The value of `key` in "key=value,key=value", in which a comma of a value is doubled; the last one
 * counts. A first value without a key is that of `implied` (may be NULL). To be freed by free();
 * NULL: there is none. */
static char *value_of(const char *options, const char *implied, const char *key)
{
    char *value = NULL;
    for (const char *at = options; *at; at += *at == ',') {
        const size_t length = strcspn(at, "=,");
        const bool bare = at[length] != '=';
        const char *name = bare ? at == options && implied ? implied : "" : at;
        const bool found =
            !strncmp(name, key, strlen(key)) && (bare ? !name[strlen(key)] : length == strlen(key));
        size_t used = 0;
        at += bare ? 0 : length + 1;
        if (found) {
            free(value);
            value = calloc(1, strlen(at) + 1);
        }
        for (; *at && (*at != ',' || at[1] == ','); at++) {
            at += *at == ',';
            if (found && value)
                value[used++] = *at;
        }
    }
    return value;
}

/* The first bytes of the digest of a text, which may be a secret. */
static json_t *digest_of(const char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char hex[2 * DIGEST_BYTES + 1] = "";
    if (EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL) == 1)
        ibx_hex_text(digest, DIGEST_BYTES, hex);
    return json_string(hex);
}

/* ------------------------------------------------------------ options */

struct reading {
    void (*take)(struct reading *r, const char *value); /* the next argument, or NULL */
    bool elsewhere;              /* a file has options as well, or -set changes them */
    char *shift, *sleep, *clock; /* of -icount, -icount and -rtc */
    json_t *files, *smbios, *actions;
};

/* A later -icount or -rtc adds to an earlier one. */
static void take_key(char **value, const char *options, const char *implied, const char *key)
{
    char *next = value_of(options, implied, key);
    if (!next)
        return;
    free(*value);
    *value = next;
}

static void take_icount(struct reading *r, const char *value)
{
    take_key(&r->shift, value, "shift", "shift");
    take_key(&r->sleep, value, "shift", "sleep");
}

static void take_rtc(struct reading *r, const char *value)
{
    take_key(&r->clock, value, NULL, "clock");
}

/* The file of file= may have changed since QEMU read it, so there is no digest of its content. */
static void take_fw_cfg(struct reading *r, const char *value)
{
    char *name = value_of(value, "name", "name"), *text = value_of(value, "name", "string");
    if (name)
        json_object_set_new(r->files, name, text ? digest_of(text) : json_string(""));
    free(name);
    free(text);
}

/* A table that comes from a file has no type. */
static void take_smbios(struct reading *r, const char *value)
{
    char *type = value_of(value, NULL, "type");
    if (type)
        json_array_append_new(r->smbios,
                              json_pack("[o, o]", ibx_json_text(type), digest_of(value)));
    free(type);
}

static void put_action(struct reading *r, const char *event, char *action)
{
    if (action)
        json_object_set_new(r->actions, event, ibx_json_text(action));
    free(action);
}

static void take_action(struct reading *r, const char *value)
{
    for (size_t i = 0; i < IBX_ACTIONS; i++)
        put_action(r, ibx_actions[i].event, value_of(value, NULL, ibx_actions[i].event));
}

static void take_watchdog_action(struct reading *r, const char *value)
{
    put_action(r, "watchdog", strdup(value));
}

static void take_argument(struct reading *r, const char *argument)
{
    static const struct {
        const char *option;
        void (*take)(struct reading *r, const char *value);
    } taken[] = {{"icount", take_icount}, {"rtc", take_rtc},
                 {"fw_cfg", take_fw_cfg}, {"smbios", take_smbios},
                 {"action", take_action}, {"watchdog-action", take_watchdog_action}};
    void (*take)(struct reading *, const char *) = r->take;
    r->take = NULL;
    if (take) {
        take(r, argument);
        return;
    }
    const char *name = *argument == '-' ? argument + 1 + (argument[1] == '-') : "";
    r->elsewhere |= !strcmp(name, "readconfig") || !strcmp(name, "set");
    if (!strcmp(name, "no-reboot"))
        take_action(r, "reboot=shutdown");
    if (!strcmp(name, "no-shutdown"))
        take_action(r, "shutdown=pause");
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (!strcmp(name, taken[i].option))
            r->take = taken[i].take;
}

/* -icount as QEMU takes it: nothing counts without a shift, which may be written in any base. */
static json_t *icount_of(const struct reading *r)
{
    static const char *const off[] = {"off", "no", "false", "n"};
    bool sleeps = true;
    char *end;
    if (!r->shift)
        return json_string("");
    for (size_t i = 0; r->sleep && i < sizeof(off) / sizeof(off[0]); i++)
        sleeps = sleeps && strcmp(r->sleep, off[i]) != 0;
    const long shift = strtol(r->shift, &end, 0);
    if (end == r->shift)
        return json_sprintf("shift=auto%s", sleeps ? "" : ",sleep=off");
    return json_sprintf("shift=%ld%s", shift, sleeps ? "" : ",sleep=off");
}

void ibx_options_read(FILE *arguments, json_t *description)
{
    struct reading r = {.files = json_object(), .smbios = json_array(), .actions = json_object()};
    char *argument = NULL;
    size_t size = 0, count = 0;
    while (getdelim(&argument, &size, '\0', arguments) > 0) {
        take_argument(&r, argument);
        count++;
    }
    if (count && !r.elsewhere) {
        json_object_set_new(description, "icount", icount_of(&r));
        json_object_set_new(description, "rtc-clock", ibx_json_text(r.clock ? r.clock : "host"));
        json_object_set(description, "fw_cfg", r.files);
        json_object_set(description, "smbios", r.smbios);
        json_object_set(description, "actions", r.actions);
    }
    json_decref(r.files);
    json_decref(r.smbios);
    json_decref(r.actions);
    free(r.shift);
    free(r.sleep);
    free(r.clock);
    free(argument);
}

void ibx_describe_options(struct describing *d)
{
    FILE *arguments = ibx_proc_arguments(ibx_qmp_pid(d->qmp));
    if (!arguments)
        return;
    ibx_options_read(arguments, d->description);
    fclose(arguments);
}
