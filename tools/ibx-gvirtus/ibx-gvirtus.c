/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of ibx-gvirtus, and where the files are. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"
#include "common/file_check.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY_NAME   "libgvirtus-communicators-rdma.so"
#define FILE_BYTES_MAX (64u << 20)

const struct ibx_owner_place ibx_gvirtus_home = {
    .what = "the GVirtuS home",
    .remedy = "install GVirtuS as that user, or in a folder that only root can change",
};

/* --------------------------------------------------------------------- places */

void ibx_gvirtus_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    ibx_tool_print_line(stdout, "", format, args);
    va_end(args);
}

void ibx_gvirtus_path(char *out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, PATH_MAX, format, args);
    va_end(args);
    if (n < 0 || n >= PATH_MAX - GVIRTUS_ENDING_MAX)
        ibx_tool_end("the path %.64s... is too long", out);
}

void ibx_gvirtus_library_path(const char *home, const char *slot, char *out)
{
    ibx_gvirtus_path(out, "%s/lib/libgvirtus-communicators-%s.so", home, slot);
}

/* Reads an open file, and closes it. */
static char *read_all(int fd, const char *path, size_t *length, struct ibx_error *err)
{
    struct stat st;
    char *buffer = NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        ibx_error_set(err, -EINVAL, "%s is not a regular file of up to %u MiB", path,
                      FILE_BYTES_MAX >> 20);
    else if (!(buffer = malloc((size_t)st.st_size + 1)))
        ibx_error_set(err, -ENOMEM, "no memory to read %s", path);
    size_t have = 0;
    ssize_t n = buffer ? 1 : 0; /* a read may be short; 0: the file is shorter now */
    while (n > 0 && have < (size_t)st.st_size) {
        n = read(fd, buffer + have, (size_t)st.st_size - have);
        have += n > 0 ? (size_t)n : 0;
        n = n < 0 && errno == EINTR ? 1 : n;
    }
    if (n < 0) {
        ibx_error_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
        free(buffer);
        buffer = NULL;
    }
    close(fd);
    if (buffer)
        buffer[ *length = have] = '\0';
    return buffer;
}

static int open_file(const char *path, struct ibx_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        ibx_error_set(err, -errno, "cannot open %s: %s%s", path, strerror(errno),
                      ibx_owner_remedy(errno));
    return fd;
}

char *ibx_gvirtus_file_read(const char *path, size_t *length, struct ibx_error *err)
{
    int fd = open_file(path, err);
    return fd < 0 ? NULL : read_all(fd, path, length, err);
}

char *ibx_gvirtus_text_read(const char *path)
{
    size_t length;
    struct ibx_error err;
    int fd = ibx_file_open(path, IBX_FILE_CONFIGURATION, &err);
    if (fd == -ENOENT)
        return NULL;
    char *content = fd < 0 ? NULL : read_all(fd, path, &length, &err);
    if (!content)
        ibx_tool_end("%s%s", err.message, fd == -EACCES ? ibx_owner_remedy(EACCES) : "");
    if (strlen(content) != length)
        ibx_tool_end("%s holds a NUL byte: it is not a text file", path);
    return content;
}

char *ibx_gvirtus_file_need(const char *path, size_t *length)
{
    struct ibx_error err;
    char *content = ibx_gvirtus_file_read(path, length, &err);
    if (!content)
        ibx_tool_end("%s", err.message);
    return content;
}

static bool any_file(const char *home, const char *pattern)
{
    char whole[PATH_MAX];
    glob_t found = {0};
    ibx_gvirtus_path(whole, "%s/%s", home, pattern);
    bool any = !glob(whole, GLOB_NOSORT, NULL, &found);
    globfree(&found);
    return any;
}

/* Checks that the plugin can be installed into this home. */
static void check_home(const char *home)
{
    char lib[PATH_MAX];
    struct stat st;
    if (stat(home, &st))
        ibx_tool_end("cannot open the GVirtuS home %s: %s%s", home, strerror(errno),
                     ibx_owner_remedy(errno));
    if (!S_ISDIR(st.st_mode))
        ibx_tool_end("the GVirtuS home %s is not a directory", home);
    ibx_gvirtus_path(lib, "%s/lib", home);
    if (access(lib, R_OK | X_OK) && errno == EACCES)
        ibx_tool_end("cannot look into %s: %s%s", lib, strerror(errno), ibx_owner_remedy(errno));
    if (any_file(home, "lib/libgvirtus-communicators-ucx*.so"))
        ibx_tool_end("%s holds a GVirtuS with a UCX communicator, whose interface for "
                     "communicators is different: the plugin would crash it",
                     home);
    if (any_file(home, "lib/libgvirtus-communicators*.so*"))
        return;
    if (any_file(home, "lib/libgvirtus-frontend*") || any_file(home, "bin/gvirtus-backend"))
        ibx_tool_end("%s holds a classic GVirtuS, which loads no plugins: preload "
                     "libibx-gvirtus-classic.so instead, see ibx-gvirtus(1)",
                     home);
    ibx_tool_end("%s is not a GVirtuS home: it has no lib/libgvirtus-communicators.so; give the "
                 "folder into which GVirtuS was installed, for instance --home /opt/GVirtuS",
                 home);
}

/* Makes the path of a file absolute. Its folder has to exist. */
static void make_absolute(const char *path, char *out)
{
    char dir[PATH_MAX], real_dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    ibx_gvirtus_path(dir, "%.*s/", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!realpath(dir, real_dir))
        ibx_tool_end("%s has no directory: %s%s", path, strerror(errno), ibx_owner_remedy(errno));
    ibx_gvirtus_path(out, "%s/%s", strcmp(real_dir, "/") ? real_dir : "", slash ? slash + 1 : path);
}

void ibx_gvirtus_paths_find(const struct gvirtus_args *args, struct gvirtus_paths *paths)
{
    char usual[PATH_MAX], *config_file = paths->files[GVIRTUS_CONFIG];
    const char *config = args->config;
    if (!config && !args->home_given)
        config = secure_getenv("GVIRTUS_CONFIG");
    check_home(args->home);
    if (!realpath(args->home, paths->home))
        ibx_tool_end("cannot open the GVirtuS home %s: %s", args->home, strerror(errno));
    ibx_gvirtus_path(usual, "%s/etc/properties.json", paths->home);
    make_absolute(config && *config ? config : usual, config_file);
    ibx_gvirtus_path(usual, "%.*s/gvirtus.properties",
                     (int)(strrchr(config_file, '/') - config_file), config_file);
    make_absolute(args->properties ? args->properties : usual, paths->files[GVIRTUS_PROPERTIES]);
    ibx_gvirtus_library_path(paths->home, args->slot, paths->files[GVIRTUS_LIBRARY]);
    ibx_gvirtus_path(paths->state, "%s/lib/ibx-gvirtus.json", paths->home);
}

void ibx_gvirtus_plugin_find(const struct gvirtus_args *args, char *out)
{
    /* In a build tree, and in an installation that was moved, for instance into a container. */
    static const char *const beside[] = {"../frontend-glue", "../" IBX_LIBDIR "/ibx"};
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program));
    while (n > 0 && program[n - 1] != '/')
        n--;
    ibx_gvirtus_path(out, "%s", args->library ? args->library : IBX_PLUGIN_DIR "/" LIBRARY_NAME);
    for (size_t i = 0; n > 0 && i < sizeof(beside) / sizeof(beside[0]) && !args->library; i++) {
        char path[PATH_MAX];
        ibx_gvirtus_path(path, "%.*s%s/" LIBRARY_NAME, (int)n, program, beside[i]);
        if (access(path, F_OK))
            continue;
        memcpy(out, path, sizeof(path));
        return;
    }
}

/* --------------------------------------------------------------- command line */

enum { INSTALL, REMOVE, SHOW };

#define ONLY(command) 1u << (command)
#define TEXT(member)  .type = IBX_TOOL_TEXT, .at = offsetof(struct gvirtus_args, member)

int main(int argc, char **argv)
{
    static const struct ibx_tool_command commands[] = {
        [INSTALL] = {"install", NULL,
                     "Put the rdma communicator into a GVirtuS home and select it, for front ends "
                     "and back end alike; keep a backup of each file that changes"},
        [REMOVE] = {"remove", NULL, "Put back what was there, byte for byte"},
        [SHOW] = {"show", NULL,
                  "Print what is selected, and by which path the back end is reached"},
        {0},
    };
    static const struct ibx_tool_option options[] = {
        {.help = "Options:"},
        {"home", "DIR", "The GVirtuS home [GVIRTUS_HOME]", TEXT(home)},
        {"slot", "SLOT",
         "The protocol under whose name GVirtuS loads the plugin: oldtcp (free in every GVirtuS) "
         "or ib (in place of GVirtuS's own RDMA communicator) [oldtcp]",
         ONLY(INSTALL), TEXT(slot)},
        {"uri", "URI", "Where the back end is: rdma://host:port [as configured]", ONLY(INSTALL),
         TEXT(uri)},
        {"library", "FILE",
         "The plugin to install; for show: the one that the preload library came with [the one of "
         "this program's installation]",
         ONLY(INSTALL) | ONLY(SHOW), TEXT(library)},
        {"config", "FILE", "properties.json [GVIRTUS_CONFIG, DIR/etc/properties.json]",
         TEXT(config)},
        {"properties", "FILE", "gvirtus.properties [beside properties.json]", TEXT(properties)},
        {"all", NULL, "Show the keys at their defaults as well, and what each key means",
         ONLY(SHOW), .type = IBX_TOOL_FLAG, .at = offsetof(struct gvirtus_args, all)},
        {0},
    };
    static const struct ibx_tool tool = {
        .name = "ibx-gvirtus",
        .help = "Makes GVirtuS use ibx.\vExit status: 0 done or reachable, 1 failed, "
                "unreachable or a bad value, 2 wrong usage.",
        .commands = commands,
        .options = options,
    };
    static void (*const run[])(const struct gvirtus_args *) = {
        [INSTALL] = ibx_gvirtus_install, [REMOVE] = ibx_gvirtus_remove, [SHOW] = ibx_gvirtus_show};
    const char *home = secure_getenv("GVIRTUS_HOME");
    struct gvirtus_args args = {.slot = "oldtcp"};
    unsigned command;
    ibx_tool_parse(&tool, argc, argv, &args, &command, NULL);
    if (strcmp(args.slot, "oldtcp") && strcmp(args.slot, "ib"))
        ibx_tool_end("--slot: \"%s\" is not accepted: give oldtcp or ib", args.slot);
    args.home_given = args.home != NULL;
    if (!args.home && home && *home)
        args.home = home;
    if (!args.home && !(command == SHOW && args.properties))
        ibx_tool_bad_usage(&tool, "which GVirtuS? Give --home DIR or set GVIRTUS_HOME");
    struct ibx_error err = {0};
    run[command](&args);
    return ibx_tool_flush(&err) ? ibx_tool_fail(&err) : 0;
}
