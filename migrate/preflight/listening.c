/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A QEMU that waits for a migration of its own (-incoming): it accepts one, and loads nothing
 * else while it waits. */
#include "migrate/preflight/description.h"
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFER "start it with -incoming defer"
#define TAKEN                                                                                      \
    "this QEMU listens for a migration of its own (%.16s, %s %.108s), and takes no other one: "
#define NOT_ASKED                                                                                  \
    "start it with -incoming defer; one that libvirt has listen there needs --libvirt %.108s"

/* Checks the address at which QEMU listens. True: a blocker was added, or libvirt has made it
 * listen there as intended. */
static bool check_sockets(const json_t *addresses, struct ibx_blockers *blockers)
{
    const json_t *address = json_array_get(addresses, 0);
    const char *type = json_string_value(json_object_get(address, "type"));
    const char *path = json_string_value(json_object_get(address, "path"));
    const char *port = json_string_value(json_object_get(address, "port"));
    if (!address)
        return false;
    if (blockers->managed && type && !strcmp(type, "unix"))
        return true;
    const char *at = path ? path : port ? port : "?";
    if (blockers->managed)
        ibx_blockers_add(blockers,
                         TAKEN "give virsh migrate --migrateuri unix://PATH, with the "
                               "path of --libvirt",
                         type ? type : "?", path ? "path" : "port", at);
    else if (path)
        ibx_blockers_add(blockers, TAKEN NOT_ASKED, type ? type : "?", "path", at, path);
    else
        ibx_blockers_add(blockers, TAKEN DEFER, type ? type : "?", "port", at);
    return true;
}

int ibx_preflight_listens_at(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    json_t *migration = NULL;
    int rc = ibx_qmp_execute(qmp, "query-migrate", NULL, &migration, deadline_ns, err);
    const json_t *address = json_array_get(json_object_get(migration, "socket-address"), 0);
    const char *socket = ibx_member(address, "path"), *port = ibx_member(address, "port");
    /* If `path` exists by now, it may be the same socket under another name. */
    if (!rc && address && strcmp(socket, path) != 0 && access(path, F_OK))
        rc = ibx_error_set(err, -EINVAL,
                           "libvirt has this QEMU listen for the VM at %s %.108s, and --libvirt is "
                           "%.108s: give virsh migrate --migrateuri unix://%.108s, and this path "
                           "to both ib-migrates",
                           *socket ? "the socket" : "port", *socket ? socket : port, path, path);
    json_decref(migration);
    return rc;
}

/* The value of -incoming on QEMU's command line; "": it has none. */
static void read_incoming(pid_t pid, char value[108])
{
    char *argument = NULL;
    size_t size = 0;
    bool next = false;
    FILE *file = ibx_proc_arguments(pid);
    *value = '\0';
    while (file && getdelim(&argument, &size, '\0', file) > 0) {
        if (next)
            snprintf(value, 108, "%s", argument);
        next = !strcmp(argument, "-incoming") || !strcmp(argument, "--incoming");
    }
    free(argument);
    if (file)
        fclose(file);
}

void ibx_preflight_listening(const struct ibx_guest_ram *ram, const json_t *migration,
                             struct ibx_blockers *blockers)
{
    char incoming[108];
    if (check_sockets(json_object_get(migration, "socket-address"), blockers))
        return;
    /* exec:, fd: and others show no address in query-migrate. */
    read_incoming(ram->pid, incoming);
    if (*incoming && strcmp(incoming, "defer") != 0) {
        ibx_text_sanitize(incoming);
        ibx_blockers_add(
            blockers,
            "this QEMU was started with -incoming %s, and takes no other migration: " DEFER,
            incoming);
    }
}
