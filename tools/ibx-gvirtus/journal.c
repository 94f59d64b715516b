/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * All of an installation or none of it, also when the machine stops in between.
 *
 *   (none) --apply--> INSTALLING --all files in place--> INSTALLED
 *                         |                                  |
 *                        undo                               undo
 *                         v                                  v
 *                       REMOVING --all files put back--> (none)
 *
 * The state file is written before the first file is touched and deleted after
 * the last one is put back. Every step of undo looks at what is there, so undo
 * may begin after any step of apply, and again after any step of its own.
 */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY ".ibx-tmp"

enum phase { INSTALLING, INSTALLED, REMOVING };
static const char *const phase_names[] = {"installing", "installed", "removing"};

struct entry {
    char path[PATH_MAX];
    bool existed;
    char digest[65]; /* SHA-256 of what we put there */
};

struct state {
    enum phase phase;
    char slot[64];
    struct entry entries[GVIRTUS_CHANGES_MAX];
    size_t count;
};

static void digest_bytes(const void *data, size_t length, char out[65])
{
    unsigned char hash[EVP_MAX_MD_SIZE] = {0};
    EVP_Digest(data, length, hash, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* Whether the file is there and holds what the digest says. */
static bool holds(const char *path, const char *digest)
{
    char *content, found[65];
    size_t length;
    if (ibx_gvirtus_file_read(path, &content, &length, NULL))
        return false;
    digest_bytes(content, length, found);
    free(content);
    return !strcmp(found, digest);
}

static bool exists(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

/* ------------------------------------------------------------- durable files */

static int failed(const char *what, const char *path, struct ibx_error *err)
{
    int code = -errno;
    const char *remedy =
        code == -EACCES || code == -EPERM ? ": run it as the owner, or with sudo" : "";
    return ibx_error_set(err, code, "cannot %s %s: %s%s", what, path, strerror(-code), remedy);
}

static int sync_directory_of(const char *path, struct ibx_error *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(dir, sizeof(dir), "%.*s/", slash ? (int)(slash - path) : 1, slash ? path : ".");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed("open", dir, err);
    int rc = fsync(fd) && errno != EINVAL ? failed("sync", dir, err) : 0;
    close(fd);
    return rc;
}

/* Makes a new file whose bytes have reached the disk; `like` gives mode and owner, or is NULL. */
static int write_new(const char *path, const char *content, size_t length, mode_t mode,
                     const struct stat *like, struct ibx_error *err)
{
    if (unlink(path) && errno != ENOENT)
        return failed("remove", path, err);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return failed("create", path, err);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, content + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            goto fail;
        done += (size_t)n;
    }
    /* Another's file stays another's, where we may give it away; the mode matters in any case. */
    if (like && fchown(fd, like->st_uid, like->st_gid) && errno != EPERM)
        goto fail;
    if (fchmod(fd, like ? like->st_mode & 07777 : mode) || fsync(fd))
        goto fail;
    if (!close(fd))
        return 0;
    fd = -1;
fail:;
    int rc = failed("write", path, err);
    if (fd >= 0)
        close(fd);
    unlink(path);
    return rc;
}

/* ------------------------------------------------------------- the state file */

static char *state_text(const struct state *state)
{
    bool good = true;
    json_t *files = json_array();
    for (size_t i = 0; i < state->count; i++) {
        const struct entry *e = &state->entries[i];
        json_t *item = json_pack("{s:s, s:b, s:s}", "path", e->path, "existed", e->existed,
                                 "sha256", e->digest);
        good = good && !json_array_append_new(files, item); /* fails on a NULL item, too */
    }
    json_t *root = json_pack("{s:i, s:s, s:s}", "version", 1, "phase", phase_names[state->phase],
                             "slot", state->slot);
    good = !json_object_set_new(root, "files", files) && good;
    char *text = good ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

static int state_write(const char *file, const struct state *state, struct ibx_error *err)
{
    char temporary[PATH_MAX];
    int rc = ibx_gvirtus_path(temporary, err, "%s" TEMPORARY, file);
    if (rc)
        return rc;
    char *text = state_text(state);
    if (!text)
        return ibx_error_set(err, -EILSEQ,
                             "cannot describe the installation in %s: a path is not "
                             "UTF-8",
                             file);
    rc = write_new(temporary, text, strlen(text), 0644, NULL, err);
    free(text);
    if (!rc && rename(temporary, file)) {
        rc = failed("rename", temporary, err);
        unlink(temporary);
    }
    return rc ? rc : sync_directory_of(file, err);
}

static int entry_parse(json_t *item, struct entry *entry)
{
    const char *path, *digest;
    int existed;
    if (json_unpack(item, "{s:s, s:b, s:s}", "path", &path, "existed", &existed, "sha256", &digest))
        return -EINVAL;
    if (strlen(path) >= sizeof(entry->path) || strlen(digest) != sizeof(entry->digest) - 1)
        return -EINVAL;
    strcpy(entry->path, path);
    strcpy(entry->digest, digest);
    entry->existed = existed;
    return 0;
}

static int state_parse(json_t *root, struct state *state)
{
    const char *phase, *slot;
    json_t *files;
    int version;
    if (json_unpack(root, "{s:i, s:s, s:s, s:o}", "version", &version, "phase", &phase, "slot",
                    &slot, "files", &files) ||
        version != 1 || strlen(slot) >= sizeof(state->slot) || !json_is_array(files) ||
        json_array_size(files) > GVIRTUS_CHANGES_MAX)
        return -EINVAL;
    strcpy(state->slot, slot);
    state->phase = REMOVING;
    for (enum phase p = INSTALLING; p < REMOVING; p++) {
        if (!strcmp(phase, phase_names[p]))
            state->phase = p;
    }
    state->count = json_array_size(files);
    for (size_t i = 0; i < state->count; i++) {
        if (entry_parse(json_array_get(files, i), &state->entries[i]))
            return -EINVAL;
    }
    return 0;
}

/* -ENOENT without a sentence when there is none. */
static int state_read(const char *file, struct state *state, struct ibx_error *err)
{
    if (!exists(file))
        return -ENOENT;
    char *text;
    size_t length;
    int rc = ibx_gvirtus_file_read(file, &text, &length, err);
    if (rc)
        return rc;
    json_t *root = json_loadb(text, length, 0, NULL);
    free(text);
    memset(state, 0, sizeof(*state));
    rc = root ? state_parse(root, state) : -EINVAL;
    json_decref(root);
    if (rc)
        return ibx_error_set(err, rc,
                             "%s is not a state file of ibx-gvirtus: put it right, or put "
                             "the files ending in " GVIRTUS_BACKUP " back by hand and delete it",
                             file);
    return 0;
}

/* --------------------------------------------------------------- one file each */

/* Keeps what was there under its other name; the very inode, so that all of it comes back. */
static int set_aside(const char *path, const char *backup, struct ibx_error *err)
{
    if (!link(path, backup))
        return 0;
    /* No hard links here (or not for us, protected_hardlinks): then nothing is at `path` for a
     * moment. */
    if ((errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) &&
        !renameat2(AT_FDCWD, path, AT_FDCWD, backup, RENAME_NOREPLACE))
        return 0;
    return failed("make", backup, err);
}

static int put(const struct gvirtus_change *change, const struct entry *entry,
               struct ibx_error *err)
{
    char temporary[PATH_MAX], backup[PATH_MAX];
    int rc = ibx_gvirtus_path(temporary, err, "%s" TEMPORARY, entry->path);
    if (!rc)
        rc = ibx_gvirtus_path(backup, err, "%s" GVIRTUS_BACKUP, entry->path);
    struct stat before;
    bool like = !rc && entry->existed && !stat(entry->path, &before) && S_ISREG(before.st_mode);
    if (!rc)
        rc = write_new(temporary, change->content, change->length, change->mode,
                       like ? &before : NULL, err);
    if (!rc && entry->existed)
        rc = set_aside(entry->path, backup, err);
    if (!rc && rename(temporary, entry->path))
        rc = failed("replace", entry->path, err);
    return rc ? rc : sync_directory_of(entry->path, err);
}

/* What became of a file, for a person. */
struct outcome {
    char text[96];
};

static void tell(struct outcome *outcome, const char *what, const char *kept)
{
    snprintf(outcome->text, sizeof(outcome->text), "%s%s%s", what,
             *kept ? "; what was changed since is in the file ending in " : "", kept);
}

/* Behind the name of what was edited: the first without a number. */
struct ending {
    char text[24];
};

/* Moves a file out of the way if somebody changed it after us; `kept` gets the ending of its name
 * then, or "". What earlier removes have kept stays. */
static int keep_edited(const struct entry *entry, struct ending *kept, struct ibx_error *err)
{
    *kept = (struct ending){GVIRTUS_EDITED};
    bool edited = exists(entry->path) && !holds(entry->path, entry->digest);
    for (unsigned next = 2; edited; next++) {
        char path[PATH_MAX];
        int rc = ibx_gvirtus_path(path, err, "%s%s", entry->path, kept->text);
        if (rc)
            return rc;
        if (!renameat2(AT_FDCWD, entry->path, AT_FDCWD, path, RENAME_NOREPLACE))
            return 0;
        if (errno != EEXIST)
            return failed("keep what was changed in", path, err);
        snprintf(kept->text, sizeof(kept->text), GVIRTUS_EDITED ".%u", next);
    }
    kept->text[0] = '\0';
    return 0;
}

/* For a file that was there before. */
static int restore(const struct entry *entry, const char *backup, struct outcome *outcome,
                   struct ibx_error *err)
{
    struct stat was, now;
    if (lstat(backup, &was)) /* never touched, or put back already */
        return errno == ENOENT ? 0 : failed("look at", backup, err);
    if (!lstat(entry->path, &now) && now.st_dev == was.st_dev && now.st_ino == was.st_ino)
        /* rename(2) of one file's two names would do nothing */
        return unlink(backup) ? failed("remove", backup, err) : 0;
    struct ending kept;
    int rc = keep_edited(entry, &kept, err);
    if (rc)
        return rc;
    if (rename(backup, entry->path))
        return failed("restore", entry->path, err);
    tell(outcome, "restored", kept.text);
    return 0;
}

/* For a file that was not there before. */
static int take_away(const struct entry *entry, struct outcome *outcome, struct ibx_error *err)
{
    struct ending kept;
    int rc = keep_edited(entry, &kept, err);
    if (rc)
        return rc;
    if (!kept.text[0] && unlink(entry->path))
        return errno == ENOENT ? 0 : failed("remove", entry->path, err);
    tell(outcome, "removed", kept.text);
    return 0;
}

static int put_back(const struct entry *entry, struct outcome *outcome, struct ibx_error *err)
{
    char temporary[PATH_MAX], backup[PATH_MAX];
    int rc = ibx_gvirtus_path(temporary, err, "%s" TEMPORARY, entry->path);
    if (!rc)
        rc = ibx_gvirtus_path(backup, err, "%s" GVIRTUS_BACKUP, entry->path);
    if (!rc && unlink(temporary) && errno != ENOENT)
        rc = failed("remove", temporary, err);
    tell(outcome, "left as it was", "");
    if (!rc)
        rc = entry->existed ? restore(entry, backup, outcome, err) : take_away(entry, outcome, err);
    return rc ? rc : sync_directory_of(entry->path, err);
}

/* Goes on after a failure; the first one is told. */
static int put_all_back(const char *file, const struct state *state,
                        void (*report)(const char *path, const char *what), struct ibx_error *err)
{
    int first = 0;
    for (size_t i = state->count; i-- > 0;) {
        struct outcome outcome;
        int rc = put_back(&state->entries[i], &outcome, first ? NULL : err);
        if (!rc && report)
            report(state->entries[i].path, outcome.text);
        if (!first)
            first = rc;
    }
    if (!first && unlink(file))
        first = failed("remove", file, err);
    return first ? first : sync_directory_of(file, err);
}

/* ------------------------------------------------------------------ the journal */

/* One ibx-gvirtus at a time in a home; clears what a killed one may have been writing. */
static int journal_open(const char *state, int *lock, struct ibx_error *err)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(state, '/') - state), state);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return failed("open", dir, err);
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        return ibx_error_set(err, -EBUSY, "another ibx-gvirtus is at work in %s: try again", dir);
    }
    char temporary[PATH_MAX];
    int rc = ibx_gvirtus_path(temporary, err, "%s" TEMPORARY, state);
    if (!rc)
        unlink(temporary);
    if (rc)
        close(fd);
    else
        *lock = fd;
    return rc;
}

/* Fills the state for what is going to be done. */
static int plan(struct state *state, const char *slot, const struct gvirtus_change *changes,
                size_t count, struct ibx_error *err)
{
    memset(state, 0, sizeof(*state));
    state->phase = INSTALLING;
    snprintf(state->slot, sizeof(state->slot), "%s", slot);
    for (size_t i = 0; i < count; i++) {
        struct entry *entry = &state->entries[state->count++];
        char backup[PATH_MAX];
        int rc = ibx_gvirtus_path(entry->path, err, "%s", changes[i].path);
        if (!rc)
            rc = ibx_gvirtus_path(backup, err, "%s" GVIRTUS_BACKUP, changes[i].path);
        if (rc)
            return rc;
        if (exists(backup))
            return ibx_error_set(err, -EEXIST,
                                 "%s is a backup that would be overwritten: put it "
                                 "back or move it away",
                                 backup);
        entry->existed = exists(entry->path);
        digest_bytes(changes[i].content, changes[i].length, entry->digest);
    }
    return 0;
}

/* Undoes what a killed ibx-gvirtus left; -EEXIST when there is a whole installation. */
static int clear_half_done(const char *file, struct state *state, struct ibx_error *err)
{
    int rc = state_read(file, state, err);
    if (rc)
        return rc == -ENOENT ? 0 : rc;
    if (state->phase == INSTALLED)
        return ibx_error_set(err, -EEXIST,
                             "it is installed there already, in the slot \"%s\": run "
                             "ibx-gvirtus remove first",
                             state->slot);
    return put_all_back(file, state, NULL, err);
}

/* Without a slot nothing follows the clearing. */
static int apply_locked(const char *file, struct state *state, const char *slot,
                        const struct gvirtus_change *changes, size_t count, struct ibx_error *err)
{
    int rc = clear_half_done(file, state, err);
    if (!rc && slot)
        rc = plan(state, slot, changes, count, err);
    if (rc || !slot)
        return rc;
    rc = state_write(file, state, err);
    for (size_t i = 0; i < count && !rc; i++)
        rc = put(&changes[i], &state->entries[i], err);
    if (!rc) {
        state->phase = INSTALLED;
        rc = state_write(file, state, err);
    }
    if (rc && exists(file) && put_all_back(file, state, NULL, NULL) && err) {
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof(err->message) - n,
                 "; not all could be put back: run ibx-gvirtus remove when that is mended");
    }
    return rc;
}

int ibx_gvirtus_journal_apply(const char *file, const char *slot,
                              const struct gvirtus_change *changes, size_t count,
                              struct ibx_error *err)
{
    int lock;
    int rc = journal_open(file, &lock, err);
    if (rc)
        return rc;
    struct state *state = calloc(1, sizeof(*state));
    if (state)
        rc = apply_locked(file, state, slot, changes, count, err);
    else
        rc = ibx_error_set(err, -ENOMEM, "no memory for the state of an installation");
    free(state);
    close(lock);
    return rc;
}

int ibx_gvirtus_journal_clear(const char *file, struct ibx_error *err)
{
    return ibx_gvirtus_journal_apply(file, NULL, NULL, 0, err);
}

/* Looks for what would stop an undo half way, while nothing has been touched. */
static int can_undo(const struct state *state, const char *file, struct ibx_error *err)
{
    for (size_t i = 0; i < state->count; i++) {
        const struct entry *entry = &state->entries[i];
        char backup[PATH_MAX];
        int rc = ibx_gvirtus_path(backup, err, "%s" GVIRTUS_BACKUP, entry->path);
        if (rc)
            return rc;
        if (entry->existed && !exists(backup))
            return ibx_error_set(err, -ENOENT,
                                 "%s is gone, so %s cannot be restored: put it back, "
                                 "or delete %s to leave everything as it is",
                                 backup, entry->path, file);
    }
    return 0;
}

static int undo_locked(const char *file, struct state *state,
                       void (*report)(const char *path, const char *what), struct ibx_error *err)
{
    int rc = state_read(file, state, err);
    if (rc == -ENOENT)
        return ibx_error_set(err, rc, "nothing is installed there: there is no %s", file);
    if (!rc && state->phase == INSTALLED) {
        rc = can_undo(state, file, err);
        state->phase = REMOVING;
        if (!rc)
            rc = state_write(file, state, err);
    }
    return rc ? rc : put_all_back(file, state, report, err);
}

int ibx_gvirtus_journal_undo(const char *file, void (*report)(const char *path, const char *what),
                             struct ibx_error *err)
{
    int lock;
    int rc = journal_open(file, &lock, err);
    if (rc)
        return rc;
    struct state *state = calloc(1, sizeof(*state));
    if (state)
        rc = undo_locked(file, state, report, err);
    else
        rc = ibx_error_set(err, -ENOMEM, "no memory for the state of an installation");
    free(state);
    close(lock);
    return rc;
}

bool ibx_gvirtus_journal_owns(const char *file, const char *path, char *slot)
{
    struct state *state = calloc(1, sizeof(*state));
    bool owns = false;
    if (state && !state_read(file, state, NULL) && state->phase == INSTALLED) {
        for (size_t i = 0; i < state->count && !owns; i++)
            owns = !strcmp(state->entries[i].path, path) && holds(path, state->entries[i].digest);
        if (owns)
            memcpy(slot, state->slot, sizeof(state->slot));
    }
    free(state);
    return owns;
}
