/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * install and remove. The state file names the three files before the first one is touched, and is
 * deleted after the last one is back. rename(2) replaces each file, so that its path holds the old
 * file or the new one. put_back() looks at what is there: it can begin after any step of an
 * installation that was cut off, and again after any step of its own.
 */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include <dlfcn.h>
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

#define BACKUP    ".before-ibx" /* the file as install found it */
#define EDITED    ".with-ibx"   /* the file as remove found it, if it was changed since install */
#define TEMPORARY ".ibx-tmp"
#define INSTALLED "installed" /* the phase of a complete installation */
#define FILES     GVIRTUS_FILES

/* One of the three files, as the state file describes it. */
struct file {
    const char *path;
    const char *sha256; /* of what install wrote */
    int existed;        /* whether the file existed before install */
};

struct state {
    json_t *json; /* owns the strings after state_load() */
    const char *phase, *slot;
    struct file files[FILES];
    bool elsewhere;              /* the home has been moved or copied since the state was written */
    char paths[FILES][PATH_MAX]; /* the files' paths in the home where it is now */
};

static void digest(const void *data, size_t length, char out[65])
{
    unsigned char hash[EVP_MAX_MD_SIZE] = {0};
    EVP_Digest(data, length, hash, NULL, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* Whether the file exists and has what install wrote. */
static bool as_installed(const struct file *file)
{
    char found[65];
    size_t length;
    char *content = ibx_gvirtus_file_read(file->path, &length, NULL);
    if (!content)
        return false;
    digest(content, length, found);
    free(content);
    return !strcmp(found, file->sha256);
}

static bool exists(const char *path)
{
    struct stat st;
    return !lstat(path, &st);
}

static void beside(char out[PATH_MAX], const char *path, const char *ending)
{
    snprintf(out, PATH_MAX, "%s%s", path, ending); /* fits: see ibx_gvirtus_path() */
}

/* ------------------------------------------------------------- durable files */

static int failed(const char *what, const char *path, struct ibx_error *err)
{
    int code = errno;
    return ibx_error_set(err, -code, "cannot %s %s: %s%s", what, path, strerror(code),
                         ibx_owner_remedy(code));
}

static int sync_directory_of(const char *path, struct ibx_error *err)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%.*s/", (int)(strrchr(path, '/') - path), path);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || (fsync(fd) && errno != EINVAL) ? failed("sync", dir, err) : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Gives the file itself the name of the backup, by a hard link, so that its inode and times come
 * back, too. If that is impossible (no hard links, or protected_hardlinks forbids it), the file is
 * renamed, and the path is empty until the next rename(2). */
static int back_up(const char *path)
{
    char backup[PATH_MAX];
    beside(backup, path, BACKUP);
    if (!link(path, backup))
        return 0;
    return errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS
               ? renameat2(AT_FDCWD, path, AT_FDCWD, backup, RENAME_NOREPLACE)
               : -1;
}

/* Replaces a file, which keeps its mode and owner; a new one gets `mode`. */
static int put(const char *path, const void *content, size_t length, mode_t mode, bool keep_old,
               struct ibx_error *err)
{
    char temporary[PATH_MAX];
    struct stat like;
    if (stat(path, &like) || !S_ISREG(like.st_mode))
        like = (struct stat){.st_mode = mode, .st_uid = (uid_t)-1, .st_gid = (gid_t)-1};
    beside(temporary, path, TEMPORARY);
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    /* EPERM: this user may not give a file to its owner. */
    bool good = out && fwrite(content, 1, length, out) == length && !fflush(out) &&
                (!fchown(fd, like.st_uid, like.st_gid) || errno == EPERM) &&
                !fchmod(fd, like.st_mode & 0777) && !fsync(fd) && (!keep_old || !back_up(path)) &&
                !rename(temporary, path);
    int rc = good ? sync_directory_of(path, err) : failed("write", path, err);
    if (out)
        fclose(out);
    if (!good)
        unlink(temporary);
    return rc;
}

/* ------------------------------------------------------------- the state file */

/* If the home has been moved or copied since the state was written, changes the paths to the files
 * in the home where it is now: those at the old path may belong to another installation. */
static void follow_home(struct state *state, const char *home)
{
    char library[PATH_MAX];
    const char *was = state->files[GVIRTUS_LIBRARY].path;
    ibx_gvirtus_library_path("", state->slot, library);
    const size_t whole = strlen(was), end = strlen(library), n = whole > end ? whole - end : 0;
    if (!n || strcmp(was + n, library) != 0 || (strlen(home) == n && !strncmp(was, home, n)))
        return;
    state->elsewhere = true;
    for (int i = 0; i < FILES; i++) {
        const char *path = state->files[i].path;
        if (strncmp(path, was, n) != 0 || path[n] != '/')
            continue;
        ibx_gvirtus_path(state->paths[i], "%s%s", home, path + n);
        state->files[i].path = state->paths[i];
    }
}

/* Loads the state file. state->phase NULL: nothing is installed. The caller releases state->json by
 * json_decref(). */
static int state_load(const struct gvirtus_paths *paths, struct state *state, struct ibx_error *err)
{
    const char *path = paths->state;
    size_t length;
    int version = 0;
    struct file *f = state->files;
    *state = (struct state){.json = NULL};
    if (!exists(path))
        return 0;
    char *text = ibx_gvirtus_file_read(path, &length, err);
    if (!text)
        return -EIO;
    state->json = json_loadb(text, length, 0, NULL);
    free(text);
    bool good = !json_unpack(
        state->json, "{s:i, s:s, s:s, s:[{s:s, s:b, s:s}, {s:s, s:b, s:s}, {s:s, s:b, s:s}!]}",
        "version", &version, "phase", &state->phase, "slot", &state->slot, "files", "path",
        &f[0].path, "existed", &f[0].existed, "sha256", &f[0].sha256, "path", &f[1].path, "existed",
        &f[1].existed, "sha256", &f[1].sha256, "path", &f[2].path, "existed", &f[2].existed,
        "sha256", &f[2].sha256);
    for (int i = 0; i < FILES && good; i++)
        good = *f[i].path == '/' && strlen(f[i].path) < PATH_MAX - GVIRTUS_ENDING_MAX;
    if (good && version == 1) {
        follow_home(state, paths->home);
        return 0;
    }
    json_decref(state->json);
    *state = (struct state){.json = NULL};
    return ibx_error_set(err, -EINVAL,
                         "%s is not a state file of ibx-gvirtus: correct it, or put the files "
                         "ending in " BACKUP " back by hand and delete it",
                         path);
}

static int state_save(const char *path, const struct state *state, const char *phase,
                      struct ibx_error *err)
{
    const struct file *f = state->files;
    json_t *json = json_pack(
        "{s:i, s:s, s:s, s:[{s:s, s:b, s:s}, {s:s, s:b, s:s}, {s:s, s:b, s:s}]}", "version", 1,
        "phase", phase, "slot", state->slot, "files", "path", f[0].path, "existed", f[0].existed,
        "sha256", f[0].sha256, "path", f[1].path, "existed", f[1].existed, "sha256", f[1].sha256,
        "path", f[2].path, "existed", f[2].existed, "sha256", f[2].sha256);
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    int rc = text ? put(path, text, strlen(text), 0644, false, err)
                  : ibx_error_set(err, -EILSEQ, "cannot write %s: a path is not UTF-8", path);
    free(text);
    json_decref(json);
    return rc;
}

/* ------------------------------------------------------------- putting back */

/* If a file was changed after install, moves it to a free name and sets `kept` to the ending of
 * that name; otherwise `kept` is "". */
static int keep_edited(const struct file *file, char kept[GVIRTUS_ENDING_MAX],
                       struct ibx_error *err)
{
    char path[PATH_MAX];
    *kept = '\0';
    if (as_installed(file))
        return 0;
    strcpy(kept, EDITED);
    for (unsigned next = 2;; next++) {
        beside(path, file->path, kept);
        if (!renameat2(AT_FDCWD, file->path, AT_FDCWD, path, RENAME_NOREPLACE))
            return 0;
        if (errno != EEXIST)
            return failed("keep what was changed in", path, err);
        snprintf(kept, GVIRTUS_ENDING_MAX, EDITED ".%u", next);
    }
}

/* Does what is left to do for one file. */
static int put_back(const struct file *file, bool quiet, struct ibx_error *err)
{
    struct stat was, now;
    char temporary[PATH_MAX], backup[PATH_MAX], kept[GVIRTUS_ENDING_MAX] = "";
    const char *what = "left as it was";
    beside(temporary, file->path, TEMPORARY);
    beside(backup, file->path, BACKUP);
    bool there = !lstat(file->path, &now), saved = file->existed && !lstat(backup, &was);
    if (unlink(temporary) && errno != ENOENT)
        return failed("remove", temporary, err);
    if (saved && there && was.st_dev == now.st_dev && was.st_ino == now.st_ino) {
        if (unlink(backup)) /* both are one file: it was not replaced yet, and rename(2) would do
                               nothing */
            return failed("remove", backup, err);
    } else if (saved || (there && !file->existed)) {
        int rc = there ? keep_edited(file, kept, err) : 0;
        if (rc)
            return rc;
        if (saved ? rename(backup, file->path) : !*kept && unlink(file->path))
            return failed(saved ? "restore" : "remove", file->path, err);
        what = saved ? "restored" : "removed";
    }
    int rc = sync_directory_of(file->path, err);
    if (!rc && !quiet)
        ibx_gvirtus_say("%s: %s%s%s", file->path, what,
                        *kept ? "; what was changed since is in the file ending in " : "", kept);
    return rc;
}

/* Puts back all files. Continues after a failure; `err` describes the first one. */
static int put_all_back(const char *path, const struct state *state, bool quiet,
                        struct ibx_error *err)
{
    int first = 0;
    for (int i = FILES - 1; i >= 0; i--) {
        int rc = put_back(&state->files[i], quiet, first ? NULL : err);
        first = first ? first : rc;
    }
    if (!first && unlink(path))
        first = failed("remove", path, err);
    return first ? first : sync_directory_of(path, err);
}

/* Ends the process if it is root and another user can change where the folder of `file` is. */
static void check_place(const char *home, const char *file)
{
    char folder[PATH_MAX];
    ibx_gvirtus_path(folder, "%.*s/", (int)(strrchr(file, '/') - file), file);
    ibx_owner_check(&ibx_gvirtus_home, home, folder);
}

/* Checks the paths of all files. The state file belongs to the home, so root does not trust it: it
 * may name only files in the home, or those that the command line names, too. The same holds for
 * any user if the home is a copy, whose original may use the same files. And root uses only paths
 * that nobody else can change. */
static void check_places(const struct gvirtus_paths *paths, const struct state *state)
{
    size_t home = strlen(paths->home);
    struct stat st;
    if (ibx_owner_was_root() && !lstat(paths->state, &st) && st.st_uid && st.st_uid != geteuid())
        ibx_tool_end("%s belongs to user %u, not to root: look what it says, and chown it",
                     paths->state, (unsigned)st.st_uid);
    for (int i = 0; i < FILES; i++) {
        const char *path = state->phase ? state->files[i].path : paths->files[i];
        bool inside =
            !strncmp(path, paths->home, home) && path[home] == '/' && !strstr(path, "/../");
        if ((ibx_owner_was_root() || state->elsewhere) && !inside &&
            strcmp(path, paths->files[i]) != 0)
            ibx_tool_end("%s names %s, which is outside of the home: where that is right, give "
                         "it by --config or --properties",
                         paths->state, path);
        check_place(paths->home, path);
        check_place(paths->home, paths->files[i]);
    }
}

/* Finds the home, locks it until this process ends, and loads its state. */
static void begin(const struct gvirtus_args *args, struct gvirtus_paths *paths, struct state *state)
{
    char path[PATH_MAX];
    struct ibx_error err;
    if (args->home)
        ibx_owner_become(&ibx_gvirtus_home, args->home);
    ibx_gvirtus_paths_find(args, paths);
    check_place(paths->home, paths->state);
    int fd = open(paths->home, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB))
        ibx_tool_end("cannot lock %s: %s", paths->home,
                     errno == EWOULDBLOCK ? "another ibx-gvirtus is at work there: try again"
                                          : strerror(errno));
    beside(path, paths->state, TEMPORARY);
    unlink(path); /* left by an ibx-gvirtus that was killed */
    if (state_load(paths, state, &err))
        ibx_tool_end("%s", err.message);
    check_places(paths, state);
}

void ibx_gvirtus_remove(const struct gvirtus_args *args)
{
    struct gvirtus_paths paths;
    struct state state;
    struct ibx_error err;
    begin(args, &paths, &state);
    if (!state.phase)
        ibx_tool_end("nothing is installed there: there is no %s", paths.state);
    if (!strcmp(state.phase, INSTALLED)) {
        for (const struct file *f = state.files; f < state.files + FILES; f++) {
            char backup[PATH_MAX];
            beside(backup, f->path, BACKUP);
            if (f->existed && !exists(backup))
                ibx_tool_end("%s is gone, so %s cannot be restored: put it back, or delete %s "
                             "to leave everything as it is",
                             backup, f->path, paths.state);
        }
        if (state_save(paths.state, &state, "removing", &err))
            ibx_tool_end("%s", err.message);
    }
    if (put_all_back(paths.state, &state, false, &err))
        ibx_tool_end("%s", err.message);
    json_decref(state.json);
}

bool ibx_gvirtus_installed(const struct gvirtus_paths *paths, const char *library)
{
    struct state state;
    state_load(paths, &state, NULL);
    const struct file *file = &state.files[GVIRTUS_LIBRARY];
    bool is = state.phase && !strcmp(state.phase, INSTALLED) && !strcmp(file->path, library) &&
              as_installed(file);
    json_decref(state.json);
    return is;
}

/* ------------------------------------------------------------- installing */

/* Reads the plugin, after checking that it can be loaded: GVirtuS would notice only at its next
 * start.
 */
static char *read_library(const struct gvirtus_args *args, size_t *length)
{
    char file[PATH_MAX], path[PATH_MAX]; /* path: with a slash, or dlopen(3) would search */
    ibx_gvirtus_plugin_find(args, file);
    if (!realpath(file, path))
        ibx_tool_end("the plugin %s cannot be found: %s; name it by --library%s", file,
                     strerror(errno), errno == ENOENT ? "" : ibx_owner_remedy(errno));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        ibx_tool_end("the plugin cannot be loaded here: %s", dlerror());
    if (!dlsym(handle, "create_communicator"))
        ibx_tool_end("%s is not a communicator for GVirtuS: it has no create_communicator", file);
    dlclose(handle);
    return ibx_gvirtus_file_need(path, length);
}

/* Replaces the three files, or none. */
static void put_all(const struct gvirtus_paths *paths, const char *slot,
                    const char *const contents[FILES], const size_t lengths[FILES])
{
    char digests[FILES][65], backup[PATH_MAX];
    struct state state = {.slot = slot};
    struct stat st;
    struct ibx_error err;
    for (int i = 0; i < FILES; i++) {
        beside(backup, paths->files[i], BACKUP);
        if (!lstat(paths->files[i], &st) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
            ibx_tool_end("%s is not a regular file: move it away", paths->files[i]);
        if (exists(backup))
            ibx_tool_end("%s is a backup that would be overwritten: put it back or move it "
                         "away",
                         backup);
        digest(contents[i], lengths[i], digests[i]);
        state.files[i] = (struct file){paths->files[i], digests[i], exists(paths->files[i])};
    }
    int rc = state_save(paths->state, &state, "installing", &err);
    for (int i = 0; i < FILES && !rc; i++)
        rc = put(paths->files[i], contents[i], lengths[i], i == GVIRTUS_LIBRARY ? 0755 : 0644,
                 state.files[i].existed, &err);
    if (!rc)
        rc = state_save(paths->state, &state, INSTALLED, &err);
    if (!rc)
        return;
    bool left = exists(paths->state) && put_all_back(paths->state, &state, true, NULL);
    ibx_tool_end("%s%s", err.message,
                 left ? "; not all files could be put back: run ibx-gvirtus remove again" : "");
}

/* Says what was written, and what GVirtuS's processes need to find it. */
static void say_installed(const struct gvirtus_args *args, const struct gvirtus_paths *paths,
                          const char *uri)
{
    char usual[PATH_MAX];
    for (int i = 0; i < FILES; i++) {
        char backup[PATH_MAX];
        beside(backup, paths->files[i], BACKUP);
        ibx_gvirtus_say("%s: written%s", paths->files[i],
                        exists(backup) ? "; what was there is in the file ending in " BACKUP : "");
    }
    ibx_gvirtus_say("GVirtuS uses %s from its next start on; see \"ibx-gvirtus show\"", uri);
    ibx_gvirtus_path(usual, "%s/etc/properties.json", paths->home);
    if (args->config && strcmp(paths->files[GVIRTUS_CONFIG], usual) != 0)
        ibx_gvirtus_say("its processes need GVIRTUS_CONFIG=%s in their environment, and its back "
                        "end that path as its argument",
                        paths->files[GVIRTUS_CONFIG]);
    if (args->properties)
        ibx_gvirtus_say("its processes need GVIRTUS_RDMA_PROPERTIES=%s in their environment",
                        paths->files[GVIRTUS_PROPERTIES]);
}

void ibx_gvirtus_install(const struct gvirtus_args *args)
{
    struct gvirtus_paths paths;
    struct state state;
    struct ibx_error err;
    size_t length;
    begin(args, &paths, &state);
    if (state.phase && !strcmp(state.phase, INSTALLED))
        ibx_tool_end("it is installed there already, as \"%s\": for another URI change "
                     "\"communicator\" in %s; to install it anew, run ibx-gvirtus remove first",
                     state.slot, paths.files[GVIRTUS_PROPERTIES]);
    if (state.phase && put_all_back(paths.state, &state, true, &err)) /* it was interrupted */
        ibx_tool_end("%s", err.message);
    json_decref(state.json);
    char *library = read_library(args, &length);
    struct gvirtus_edit edit = {
        .config_file = paths.files[GVIRTUS_CONFIG],
        .properties_file = paths.files[GVIRTUS_PROPERTIES],
        .slot = args->slot,
        .uri = args->uri,
        .config_before = ibx_gvirtus_text_read(paths.files[GVIRTUS_CONFIG]),
        .properties_before = ibx_gvirtus_text_read(paths.files[GVIRTUS_PROPERTIES]),
    };
    ibx_gvirtus_edit(&edit);
    put_all(&paths, args->slot, (const char *[]){library, edit.config_after, edit.properties_after},
            (size_t[]){length, strlen(edit.config_after), strlen(edit.properties_after)});
    say_installed(args, &paths, edit.chosen);
    free(edit.config_before);
    free(edit.properties_before);
    free(edit.config_after);
    free(edit.properties_after);
    free(library);
}
