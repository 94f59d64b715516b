/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Records of migrations, as both sides use them. */
#include "migrate/common/common.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEEP_MS 1000 /* between two looks whether a record is still there */

static bool has_uuid(const char *uuid)
{
    return uuid[0] && strspn(uuid, "0-") != strlen(uuid);
}

static int say_unfinished(const char *folder, const struct ibx_record *record,
                          struct ibx_error *err)
{
    char state[IBX_ERROR_MAX];
    const int worker = (int)ibx_journal_worker(folder, record);
    if (worker)
        return ibx_error_set(err, -EBUSY,
                             "another ib-migrate (process %d) works on a migration of this VM, "
                             "which is not over: wait for its end, see ib-migrate status",
                             worker);
    if (ibx_journal_qemu_gone(record))
        return ibx_error_set(err, -EBUSY,
                             "an earlier migration of this VM is not over, and its QEMU here "
                             "(process %d) has ended: do what \"ib-migrate status %s\" says, "
                             "then \"ib-migrate prune --unfinished %s\"",
                             (int)record->pid, ibx_journal_options(record->qmp).text,
                             ibx_journal_options(record->qmp).text);
    ibx_journal_describe(record, state, sizeof(state));
    return ibx_error_set(
        err, -EBUSY,
        "an earlier migration of this VM is not over: %s; see ib-migrate status, then "
        "ib-migrate recover%s",
        state, record->source ? " or rollback" : "");
}

/* A tmpfs numbers its files anew after a boot, which has ended what it had; 0: not known. */
static bool same_file(const struct ibx_journal_block *noted, const struct ibx_guest_block *block)
{
    return noted->dev == block->dev && noted->ino == block->ino &&
           (!noted->file.file || !block->file || noted->file.file == block->file);
}

/* The block whose file has pages that a VM still needs which left by this migration; NULL: none. */
static const struct ibx_guest_block *needed_block(const struct ibx_record *record,
                                                  const struct ibx_guest_ram *ram)
{
    if (!record->source || ibx_journal_over(record) || ibx_journal_lost_there(record))
        return NULL;
    for (unsigned i = 0; i < record->block_count; i++)
        for (size_t k = 0; k < ram->count; k++)
            if (ram->blocks[k].shared && same_file(&record->blocks[i], &ram->blocks[k]))
                return &ram->blocks[k];
    return NULL;
}

static int say_needed(const struct ibx_record *record, const struct ibx_guest_block *block,
                      struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "guest RAM %.64s of this QEMU is in %.200s, and a VM that comes here "
                         "would overwrite it, but %s%.64s that left from there still needs pages "
                         "in it: start this QEMU with another mem-path, or finish that migration, "
                         "see ib-migrate status %s",
                         block->id, block->path, *record->name ? "the VM " : "a VM", record->name,
                         ibx_journal_options(record->qmp).text);
}

int ibx_migration_check_unfinished(const char *folder, const struct ibx_guest_ram *ram, bool source,
                                   bool returns, struct ibx_error *err)
{
    struct ibx_record *records, now = {.pid = ram->pid};
    size_t count;
    int rc = ibx_process_find_start(ram->pid, &now.pid_started, err);
    if (!rc || rc == -ESRCH) /* it has just ended: then no record names it */
        rc = ibx_journal_list(folder, &records, &count, err);
    if (rc)
        return rc;
    ibx_process_boot(now.boot);
    for (size_t i = 0; !rc && i < count; i++) {
        const struct ibx_record *r = &records[i];
        const struct ibx_guest_block *needed = source ? NULL : needed_block(r, ram);
        if (needed)
            rc = say_needed(r, needed, err);
        /* A QEMU may have several monitors: the process counts. */
        const bool same_process = ibx_journal_same_process(r, &now);
        const bool same_vm = has_uuid(ram->uuid) && !strcmp(r->uuid, ram->uuid);
        /* COMPLETE and SHUT_DOWN need no QEMU. A VM does not run in a QEMU that has ended: at the
         * destination that is enough, at the source the VM must be lost at the destination, too. */
        const bool harmless = r->state == IBX_JOURNAL_COMPLETE ||
                              r->state == IBX_JOURNAL_SHUT_DOWN ||
                              ((!r->source || ibx_journal_lost_there(r)) && !same_process &&
                               ibx_journal_qemu_gone(r));
        if (rc || ibx_journal_over(r) || harmless || (returns && r->borrow) ||
            r->source != source || (!same_process && !same_vm))
            continue;
        rc = say_unfinished(folder, r, err);
    }
    free(records);
    return rc;
}

int ibx_migration_reload(const char *folder, struct ibx_record *record, struct ibx_error *err)
{
    char state[IBX_ERROR_MAX];
    int rc = ibx_journal_reload(folder, record, err);
    if (rc || !ibx_journal_over(record))
        return rc;
    ibx_journal_describe(record, state, sizeof(state));
    return ibx_error_set(err, -EALREADY, "this migration has ended meanwhile: %s", state);
}

/* Makes a path absolute, if there is room for that, because `recover` may run in another folder.
 * Symbolic links are not resolved: with them keys are replaced. */
static void note_file(char *out, size_t size, const char *path)
{
    char *folder = *path && *path != '/' ? getcwd(NULL, 0) : NULL;
    const bool fits = folder && strlen(folder) + 1 + strlen(path) < size;
    snprintf(out, size, "%s%s%s", fits ? folder : "", fits && folder[1] ? "/" : "", path);
    free(folder);
}

/* Copies one option of a query, with the path of a key file made absolute. `out` is "" if that path
 * has a '&', which no query can contain: then it goes into the record, whose key file counts if the
 * URI names none. */
static void note_option(struct ibx_record *record, const char *option, size_t length, char *out,
                        size_t size)
{
    static const char key[] = "key_file=";
    const size_t name = strlen(key);
    char given[sizeof(record->key_file)], file[sizeof(given)];
    snprintf(out, size, "%.*s", (int)length, option);
    if (strncmp(option, key, name) != 0 || length - name >= sizeof(given))
        return;
    snprintf(given, sizeof(given), "%.*s", (int)(length - name), option + name);
    note_file(file, sizeof(file), given);
    snprintf(out, size, "%s%s", key, file);
    if (!strchr(file, '&'))
        return;
    out[0] = '\0';
    memcpy(record->key_file, file, sizeof(file));
}

/* A URI that would be too long, or not valid, is noted as it is. */
void ibx_migration_note_uri(struct ibx_record *record, const char *uri)
{
    char whole[sizeof(record->uri)], option[sizeof(whole)];
    const size_t before = strcspn(uri, "?");
    const char *separator = "?";
    size_t used = (size_t)snprintf(whole, sizeof(whole), "%.*s", (int)before, uri);
    struct ibx_uri valid;
    for (const char *part = uri + before; *part && used < sizeof(whole);) {
        const size_t length = strcspn(++part, "&");
        note_option(record, part, length, option, sizeof(option));
        if (option[0])
            used += (size_t)snprintf(whole + used, sizeof(whole) - used, "%s%s", separator, option);
        separator = option[0] ? "&" : separator;
        part += length;
    }
    const bool good = used < sizeof(whole) && !ibx_uri_parse(whole, &valid, NULL);
    snprintf(record->uri, sizeof(record->uri), "%s", good ? whole : uri);
}

int ibx_migration_describe(struct ibx_record *record, const struct ibx_guest_ram *ram,
                           const char *qmp, const char *uri, const struct ibx_options *transport,
                           struct ibx_error *err)
{
    record->epoch = 1;
    record->uffd = -1;
    record->pid = ram->pid;
    snprintf(record->uuid, sizeof(record->uuid), "%s", ram->uuid);
    snprintf(record->name, sizeof(record->name), "%s", ram->name);
    char *whole = realpath(qmp, NULL);
    snprintf(record->qmp, sizeof(record->qmp), "%s", whole ? whole : qmp);
    free(whole);
    ibx_migration_note_uri(record, uri);
    note_file(record->key_file, sizeof(record->key_file), transport->key_file);
    memcpy(record->key_name, transport->name, sizeof(record->key_name));
    memcpy(record->allow, transport->allow, sizeof(record->allow));
    record->encryption = transport->encryption;
    record->insecure = transport->insecure;
    ibx_process_boot(record->boot);
    return ibx_process_find_start(ram->pid, &record->pid_started, err);
}

void ibx_migration_note_key(struct ibx_record *record, const struct ibx_conn *conn)
{
    record->source_key_known = true;
    memcpy(record->source_key, ibx_conn_path(conn)->name, sizeof(record->source_key));
}

int ibx_migration_check_key(const struct ibx_record *record, const struct ibx_conn *conn,
                            struct ibx_error *err)
{
    const char *name = ibx_conn_path(conn)->name, *ours = record->source_key;
    if (!record->source_key_known || !strcmp(name, ours))
        return 0;
    return ibx_error_set(
        err, -EPERM,
        "the source of this migration authenticated with %s%s%s, and this one does with %s%s%s: "
        "recover with the key that it began with (--key-file, and --set name=NAME)",
        *ours ? "the key \"" : "no named key", ours, *ours ? "\"" : "",
        *name ? "\"" : "no named key", name, *name ? "\"" : "");
}

int ibx_migration_record(const char *folder, struct ibx_record *record,
                         enum ibx_journal_state state, struct ibx_error *err)
{
    struct ibx_record next = *record;
    next.state = state;
    int rc = ibx_journal_write(folder, &next, err);
    if (!rc)
        *record = next;
    return rc;
}

/* Writes it anew, with its folder if that is gone, too. */
static int write_again(const char *folder, struct ibx_record *record, struct ibx_error *err)
{
    char made[PATH_MAX];
    const int rc = ibx_journal_folder(folder, true, made, sizeof(made), err);
    return rc ? rc : ibx_journal_write(folder, record, err);
}

void ibx_migration_keep_record(struct migration_keeping *keeping, const char *folder,
                               struct ibx_record *record,
                               const struct ibx_migrate_observer *observer)
{
    struct ibx_error why = {0};
    if (!record->written_s || ibx_journal_over(record) || ibx_now_ns() < keeping->look_ns)
        return;
    keeping->look_ns = ibx_deadline_in_ms(KEEP_MS);
    int rc = ibx_journal_check(folder, record, NULL);
    if (rc != -ENOENT && rc != -EBADMSG)
        return;
    rc = write_again(folder, record, &why);
    if (!rc)
        ibx_migration_notify(observer,
                             "somebody has removed or damaged the record of this migration, and it "
                             "was written anew to %s",
                             folder);
    else if (!keeping->told)
        ibx_migration_notify(observer,
                             "somebody has removed or damaged the record of this migration, and it "
                             "cannot be written anew (%s): as long as that is so, nobody can "
                             "continue the migration if this ib-migrate ends",
                             why.message);
    keeping->told = rc;
}
