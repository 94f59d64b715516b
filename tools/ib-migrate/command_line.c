/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's command line, from that of the source to that of the destination. QEMU has three forms of
 * values: a plain text (-kernel), JSON (-device '{...}'), and key=value pairs between commas, in
 * which a comma of a value is doubled.
 */
#include "tools/ib-migrate/run.h"

#include "migrate/qemu/qemu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define OWN_MONITOR "/qmp,server=on,wait=off"

/* The options without a value, of all versions of QEMU; all others have one. */
static const char *const flags[] = {"S",
                                    "alt-grab",
                                    "ctrl-grab",
                                    "daemonize",
                                    "enable-fips",
                                    "enable-kvm",
                                    "full-screen",
                                    "mem-prealloc",
                                    "no-acpi",
                                    "no-fd-bootchk",
                                    "no-frame",
                                    "no-hpet",
                                    "no-kvm",
                                    "no-quit",
                                    "no-reboot",
                                    "no-shutdown",
                                    "no-user-config",
                                    "nodefaults",
                                    "nodefconfig",
                                    "nographic",
                                    "nouserconfig",
                                    "old-param",
                                    "only-migratable",
                                    "portrait",
                                    "preconfig",
                                    "rtc-td-hack",
                                    "s",
                                    "sdl",
                                    "semihosting",
                                    "singlestep",
                                    "snapshot",
                                    "enable-sync-profile",
                                    "usb",
                                    "win2k-hack",
                                    "xen-attach",
                                    "xen-domid-restrict",
                                    "one-insn-per-tb",
                                    "async-teardown",
                                    "perfmap",
                                    "jitdump",
                                    "curses",
                                    "show-cursor",
                                    "enable-hax",
                                    NULL};
/* Options that the destination's QEMU does not get, since it waits for a VM and is started by the
 * far end. */
static const char *const dropped[] = {"S",      "daemonize", "preconfig", "incoming",
                                      "loadvm", "pidfile",   NULL};
/* Options whose value is a plain text. */
static const char *const plain[] = {
    "kernel", "initrd",   "append", "bios",  "dtb",  "shim",       "hda",    "hdb", "hdc",
    "hdd",    "cdrom",    "fda",    "fdb",   "sd",   "mtdblock",   "pflash", "L",   "D",
    "d",      "mem-path", "cpu",    "runas", "uuid", "option-rom", NULL};

static bool is_one(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name))
        list++;
    return *list != NULL;
}

/* The name of an option, "-name" or "--name"; NULL: the argument is a disk image. */
static const char *option_of(const char *text)
{
    if (text[0] != '-' || !text[1])
        return NULL;
    return text[1] == '-' ? text + 2 : text + 1;
}

/* ------------------------------------------------------------ paths */

int ibx_run_map_add(struct run_maps *maps, const char *text, struct ibx_error *err)
{
    const char *equals = strchr(text, '=');
    const size_t length = equals ? (size_t)(equals - text) : 0;
    if (!equals || *text != '/' || equals[1] != '/')
        return ibx_error_set(err, -EINVAL, "\"%.128s\" is not /OLD=/NEW, two absolute paths", text);
    if (maps->count == RUN_MAPS_MAX || length >= sizeof(maps->maps[0].old) ||
        strlen(equals + 1) >= sizeof(maps->maps[0].new))
        return ibx_error_set(err, -EINVAL,
                             "\"%.128s\" is the %uth path, of %u at most, or longer than %zu bytes",
                             text, maps->count + 1, RUN_MAPS_MAX, sizeof(maps->maps[0].old) - 1);
    char *old = maps->maps[maps->count].old, *new = maps->maps[maps->count].new;
    snprintf(old, sizeof(maps->maps[0].old), "%.*s", (int)length, text);
    snprintf(new, sizeof(maps->maps[0].new), "%s", equals + 1);
    for (char *path = old; path; path = path == old ? new : NULL)
        while (strlen(path) > 1 && path[strlen(path) - 1] == '/')
            path[strlen(path) - 1] = '\0';
    maps->count++;
    return 0;
}

char *ibx_run_map_path(const struct run_maps *maps, const char *path)
{
    size_t longest = 0;
    const char *new = NULL;
    char *mapped;
    for (unsigned i = 0; i < maps->count; i++) {
        const char *old = maps->maps[i].old;
        const size_t length = strcmp(old, "/") ? strlen(old) : 0;
        if (!strncmp(path, old, length) && (!path[length] || path[length] == '/') && *path == '/' &&
            (!new || length > longest)) {
            longest = length;
            new = maps->maps[i].new;
        }
    }
    if (!new)
        return strdup(path);
    return asprintf(&mapped, "%s%s", strcmp(new, "/") || !path[longest] ? new : "",
                    path + longest) < 0
               ? NULL
               : mapped;
}

/* Maps a value that is a path, or a path after a prefix, as in unix:/run/web.qmp. */
static char *map_value(const struct run_maps *maps, const char *value)
{
    const char *colon = strchr(value, ':');
    char *tail, *whole;
    if (*value == '/' || !colon || colon[1] != '/' || colon[2] == '/')
        return ibx_run_map_path(maps, value);
    tail = ibx_run_map_path(maps, colon + 1);
    if (!tail || asprintf(&whole, "%.*s%s", (int)(colon + 1 - value), value, tail) < 0)
        whole = NULL;
    free(tail);
    return whole;
}

char *ibx_run_replace(const char *text, const char *token, const char *by)
{
    const char *at = strstr(text, token);
    char *whole;
    if (!at)
        return strdup(text);
    return asprintf(&whole, "%.*s%s%s", (int)(at - text), text, by, at + strlen(token)) < 0 ? NULL
                                                                                            : whole;
}

/* ------------------------------------------------------------ key=value */

/* Splits pairs into a list of [key, value], or [value]; doubled commas become single ones. */
static json_t *split(const char *text)
{
    json_t *pairs = json_array();
    char *element = malloc(strlen(text) + 1);
    while (pairs && element) {
        size_t length = 0;
        for (; *text && (*text != ',' || text[1] == ','); text++) {
            text += *text == ',';
            element[length++] = *text;
        }
        element[length] = '\0';
        char *equals = strchr(element, '=');
        json_t *pair = json_array();
        if (equals)
            *equals = '\0';
        json_array_append_new(pair, json_string(element));
        if (equals)
            json_array_append_new(pair, json_string(equals + 1));
        json_array_append_new(pairs, pair);
        if (!*text++)
            break;
    }
    free(element);
    return pairs;
}

static void put_escaped(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == ',')
            fputc(',', out);
        fputc(*text, out);
    }
}

/* Joins what split() has split; to be freed by free(). */
static char *join(const json_t *pairs)
{
    char *text = NULL;
    size_t size, i;
    json_t *pair;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    json_array_foreach(pairs, i, pair)
    {
        fputs(i ? "," : "", out);
        put_escaped(out, json_string_value(json_array_get(pair, 0)));
        if (json_array_size(pair) > 1) {
            fputc('=', out);
            put_escaped(out, json_string_value(json_array_get(pair, 1)));
        }
    }
    fclose(out);
    return text;
}

/* The value of a key, or for "" the first element without a key. NULL: there is none. */
static const char *value_of(const json_t *pairs, const char *key)
{
    size_t i;
    json_t *pair;
    json_array_foreach(pairs, i, pair)
    {
        const char *first = json_string_value(json_array_get(pair, 0));
        if (*key ? json_array_size(pair) > 1 && !strcmp(first, key) : json_array_size(pair) == 1)
            return json_string_value(json_array_get(pair, *key ? 1 : 0));
    }
    return NULL;
}

/* ------------------------------------------------------------ one option */

struct work {
    const struct run_maps *maps;
    const struct run_tokens *tokens;
    struct ibx_error *err;
    const char *option, *value; /* as they were given, for errors */
};

/* Whether the value is a descriptor that QEMU has inherited, which has no meaning elsewhere. */
static bool is_descriptor(const char *key, const char *value)
{
    static const char *const keys[] = {"fd",     "fds",    "vhostfd", "vhostfds",
                                       "sockfd", "opaque", NULL};
    return (is_one(keys, key) && *value) || !strncmp(value, "/dev/fdset/", 11);
}

static int refuse_descriptor(const struct work *work)
{
    return ibx_error_set(work->err, -ENOTSUP,
                         "QEMU's argument -%s %.200s uses a file descriptor that it was given by "
                         "the program that started it, and another host has none: migrate this VM "
                         "by ib-migrate send and receive, or give it that device by a path",
                         work->option, work->value);
}

/* Maps every string in a JSON value, in place. */
static int map_json(const struct work *work, const char *key, json_t *value)
{
    json_t *member;
    const char *name;
    void *next;
    size_t i;
    int rc = 0;
    if (json_is_string(value)) {
        if (is_descriptor(key, json_string_value(value)))
            return refuse_descriptor(work);
        char *mapped = map_value(work->maps, json_string_value(value));
        rc = mapped ? json_string_set(value, mapped) : -1;
        free(mapped);
        return rc ? ibx_error_set(work->err, -ENOMEM, "no memory for QEMU's arguments") : 0;
    }
    if (json_is_array(value))
        json_array_foreach(value, i, member) rc = rc ? rc : map_json(work, key, member);
    if (json_is_object(value))
        json_object_foreach_safe(value, next, name, member) rc =
            rc ? rc : map_json(work, name, member);
    return rc;
}

static char *memory_path(const struct work *work, const char *id)
{
    char *path;
    return asprintf(&path, "%s/%s", work->tokens->memory, id) < 0 ? NULL : path;
}

static char *change_json(const struct work *work, json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "qom-type"));
    const char *id = json_string_value(json_object_get(object, "id"));
    const bool memory =
        !strcmp(work->option, "object") && type && id && !strcmp(type, "memory-backend-file");
    char *path = memory ? memory_path(work, id) : NULL; /* first: the strings change below */
    char *text = NULL;
    int rc = map_json(work, "", object);
    if (!rc && path)
        rc = json_object_set_new(object, "mem-path", json_string(path));
    if (!rc)
        text = json_dumps(object, JSON_COMPACT);
    free(path);
    if (!text && !work->err->code)
        ibx_error_set(work->err, -ENOMEM, "no memory for QEMU's arguments");
    return text;
}

static char *change_pairs(const struct work *work, const char *value)
{
    json_t *pairs = split(value), *pair;
    size_t i;
    const char *type =
                   value_of(pairs, "qom-type") ? value_of(pairs, "qom-type") : value_of(pairs, ""),
               *id = value_of(pairs, "id");
    const bool memory =
        !strcmp(work->option, "object") && type && id && !strcmp(type, "memory-backend-file");
    char *file = memory ? memory_path(work, id) : NULL;
    int rc = 0;
    json_array_foreach(pairs, i, pair)
    {
        json_t *at = json_array_get(pair, json_array_size(pair) - 1);
        const char *key =
            json_array_size(pair) > 1 ? json_string_value(json_array_get(pair, 0)) : "";
        if (file && !strcmp(key, "mem-path"))
            json_string_set(at, file);
        else
            rc = rc ? rc : map_json(work, key, at);
    }
    char *text = rc ? NULL : join(pairs);
    json_decref(pairs);
    free(file);
    return text;
}

/* Whether all that follows the prefix is a path, as in -serial file:PATH. */
static bool is_file(const char *value)
{
    return !strncmp(value, "file:", 5) || !strncmp(value, "pipe:", 5);
}

/* The option's value at the destination, to be freed by free(). NULL with an error. */
static char *change(const struct work *work)
{
    json_t *object = *work->value == '{' ? json_loads(work->value, 0, NULL) : NULL;
    char *text;
    if (json_is_object(object))
        text = change_json(work, object);
    else if (!strcmp(work->option, "append") || !strcmp(work->option, "uuid"))
        text = strdup(work->value);
    else if (is_one(plain, work->option) || is_file(work->value))
        text = map_value(work->maps, work->value);
    else
        text = change_pairs(work, work->value);
    json_decref(object);
    return text;
}

/* ------------------------------------------------------------ the generation id */

/* -device vmgenid with this GUID, to be freed by free(); NULL: it is another device. The last value
 * of a key counts. */
static char *with_guid(const char *value, const char *guid)
{
    json_t *object = *value == '{' ? json_loads(value, 0, NULL) : NULL;
    json_t *pairs = object ? NULL : split(value), *text = NULL;
    const char *driver = object ? json_string_value(json_object_get(object, "driver"))
                         : value_of(pairs, "driver") ? value_of(pairs, "driver")
                                                     : value_of(pairs, "");
    char *changed = NULL;
    if (driver && !strcmp(driver, "vmgenid") && object) {
        json_object_set_new(object, "guid", ibx_json_text(guid));
        changed = json_dumps(object, JSON_COMPACT);
    } else if (driver && !strcmp(driver, "vmgenid")) {
        text = json_sprintf("%s,guid=%s", value, guid);
        changed = text ? strdup(json_string_value(text)) : NULL;
    }
    json_decref(text);
    json_decref(object);
    json_decref(pairs);
    return changed;
}

void ibx_run_set_guid(json_t *given, const char *guid)
{
    for (size_t i = 2; i < json_array_size(given); i++) {
        const char *option = option_of(json_string_value(json_array_get(given, i - 1)));
        char *changed = option && !strcmp(option, "device")
                            ? with_guid(json_string_value(json_array_get(given, i)), guid)
                            : NULL;
        if (changed)
            json_string_set(json_array_get(given, i), changed);
        free(changed);
    }
}

/* ------------------------------------------------------------ all of them */

json_t *ibx_run_arguments_of(pid_t pid, struct ibx_error *err)
{
    FILE *file = ibx_proc_arguments(pid);
    const int code = errno;
    json_t *list = json_array();
    char *text = NULL;
    size_t size = 0;
    int rc = 0;
    while (file && !rc && getdelim(&text, &size, '\0', file) > 0)
        if (json_array_append_new(list, json_string(text)))
            rc = ibx_error_set(err, -EILSEQ,
                               "argument %zu of QEMU (process %d) is not UTF-8 text: give that "
                               "file or VM another name",
                               json_array_size(list), (int)pid);
    if (!file && code == E2BIG) /* cut, it would start another VM there */
        rc = ibx_error_set(err, -E2BIG,
                           "/proc/%d/cmdline is longer than any with which QEMU can be started",
                           (int)pid);
    else if (!rc && !json_array_size(list))
        rc = ibx_error_set(err, -ESRCH,
                           "/proc/%d/cmdline cannot be read: QEMU has ended, or belongs to another "
                           "user",
                           (int)pid);
    free(text);
    if (file)
        fclose(file);
    if (!rc)
        return list;
    json_decref(list);
    return NULL;
}

static const char *text_at(const json_t *list, size_t i)
{
    const char *text = json_string_value(json_array_get(list, i));
    return text ? text : "";
}

/* The id in the value of -object or -device, to be freed by free(). NULL: it has none. */
static char *id_of(const char *value, const char *key)
{
    json_t *object = *value == '{' ? json_loads(value, 0, NULL) : NULL;
    json_t *pairs = object ? NULL : split(value);
    const char *id =
        object ? json_string_value(json_object_get(object, key)) : value_of(pairs, key);
    char *copy = id ? strdup(id) : NULL;
    json_decref(object);
    json_decref(pairs);
    return copy;
}

static void add_id(json_t *ids, const char *value, const char *key)
{
    char *id = id_of(value, key);
    if (id)
        json_object_set_new(ids, id, json_true());
    free(id);
}

/* Calls `each` for each option and its value; "" for an option without one. */
static void each_option(const json_t *given,
                        void (*each)(void *context, const char *option, const char *value),
                        void *context)
{
    for (size_t i = 1; i < json_array_size(given); i++) {
        const char *option = option_of(text_at(given, i));
        if (!option || is_one(flags, option))
            each(context, option ? option : "hda", option ? "" : text_at(given, i));
        else
            each(context, option, text_at(given, ++i));
    }
}

struct ids {
    json_t *ids;
    bool objects, backends;
};

static void take_id(void *context, const char *option, const char *value)
{
    const struct ids *wanted = context;
    static const char *const backends[] = {"netdev", "chardev", "drive", "audiodev",
                                           "tpmdev", "fsdev",   NULL};
    if (wanted->backends && !strcmp(option, "blockdev"))
        add_id(wanted->ids, value, "node-name");
    else if (wanted->backends ? is_one(backends, option)
                              : !strcmp(option, wanted->objects ? "object" : "device"))
        add_id(wanted->ids, value, "id");
}

json_t *ibx_run_ids(const json_t *given, bool objects)
{
    struct ids wanted = {.ids = json_object(), .objects = objects};
    each_option(given, take_id, &wanted);
    return wanted.ids;
}

json_t *ibx_run_backend_ids(const json_t *given)
{
    struct ids wanted = {.ids = json_object(), .backends = true};
    each_option(given, take_id, &wanted);
    return wanted.ids;
}

bool ibx_run_folder_of(const char *value, char *folder, size_t size)
{
    const char *end = strstr(value, OWN_MONITOR);
    if (strncmp(value, "unix:/", 6) || !end || strcmp(end, OWN_MONITOR))
        return false;
    const char *name = end;
    while (name > value && name[-1] != '/')
        name--;
    if (strncmp(name, "ibx-run-", 8))
        return false;
    if (folder)
        snprintf(folder, size, "%.*s", (int)(end - value - 5), value + 5);
    return true;
}

char *ibx_run_socket_of(const char *argument)
{
    const size_t length = strlen(argument);
    const bool bare =
        strstr(argument, ",server,") || (length > 7 && !strcmp(argument + length - 7, ",server"));
    json_t *pairs = split(argument);
    const char *server = value_of(pairs, "server"), *path = value_of(pairs, "path"),
               *first = value_of(pairs, "");
    if (!path && first && !strncmp(first, "unix:", 5))
        path = first + 5;
    const bool listens = bare || (server && strcmp(server, "off") && strcmp(server, "no"));
    char *socket = path && listens ? strdup(path) : NULL;
    json_decref(pairs);
    return socket;
}

struct making {
    struct work work;
    const json_t *absent;
    json_t *out;
    int rc;
};

static bool is_absent(const struct making *m, const char *option, const char *value)
{
    if (strcmp(option, "object") && strcmp(option, "device"))
        return false;
    char *id = id_of(value, "id");
    const bool absent = id && json_object_get(m->absent, id);
    free(id);
    return absent;
}

static void add(struct making *m, const char *option, const char *value)
{
    json_t *name = json_sprintf("-%s", option);
    if (json_array_append_new(m->out, name) ||
        (value && json_array_append_new(m->out, json_string(value))))
        m->rc = ibx_error_set(m->work.err, -EILSEQ,
                              "QEMU's argument -%.64s is no UTF-8 text with the paths of --map, or "
                              "there is no memory for it",
                              option);
}

/* Whether this is the monitor that an earlier run gave this QEMU. */
static bool is_own_monitor(const char *option, const char *value)
{
    return !strcmp(option, "qmp") && ibx_run_folder_of(value, NULL, 0);
}

static void make_one(void *context, const char *option, const char *value)
{
    struct making *m = context;
    if (m->rc || is_one(dropped, option) || is_absent(m, option, value) ||
        is_own_monitor(option, value))
        return;
    m->work.option = option;
    m->work.value = value;
    if (!strcmp(option, "snapshot"))
        m->rc = ibx_error_set(m->work.err, -ENOTSUP,
                              "QEMU has -snapshot: what the VM has written is in temporary files "
                              "of this host, and no other host has it");
    else if (!strcmp(option, "add-fd"))
        m->rc = refuse_descriptor(&m->work);
    if (m->rc || is_one(flags, option)) {
        if (!m->rc)
            add(m, option, NULL);
        return;
    }
    char *changed = change(&m->work);
    if (changed)
        add(m, option, changed);
    else
        m->rc = m->work.err->code ? m->work.err->code : -ENOMEM;
    free(changed);
}

json_t *ibx_run_arguments(const json_t *given, const struct run_maps *maps,
                          const struct run_tokens *tokens, const json_t *absent,
                          const json_t *plugged, struct ibx_error *err)
{
    char monitor[128];
    struct ibx_error own = {0};
    struct making m = {
        .work = {maps, tokens, err ? err : &own, "", ""}, .absent = absent, .out = json_array()};
    json_t *both = json_copy((json_t *)(uintptr_t)given);
    char *program = ibx_run_map_path(maps, text_at(given, 0));
    json_array_append_new(m.out, json_string(program ? program : ""));
    json_array_extend(both, (json_t *)(uintptr_t)plugged);
    each_option(both, make_one, &m);
    snprintf(monitor, sizeof(monitor), "unix:%s" OWN_MONITOR, tokens->run);
    add(&m, "qmp", monitor);
    add(&m, "incoming", "defer");
    json_decref(both);
    free(program);
    if (!m.rc)
        return m.out;
    json_decref(m.out);
    return NULL;
}
