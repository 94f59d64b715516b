/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of ibx-gvirtus, and where the files are. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"
#include "tools/options.h"

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

/* --------------------------------------------------------------------- places */

int ibx_gvirtus_path(char *out, struct ibx_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, PATH_MAX, format, args);
    va_end(args);
    if (n >= 0 && n < PATH_MAX - GVIRTUS_ENDING_MAX)
        return 0;
    return ibx_error_set(err, -ENAMETOOLONG, "the path %.64s... is too long", out);
}

int ibx_gvirtus_library_path(const char *home, const char *slot, char *out, struct ibx_error *err)
{
    return ibx_gvirtus_path(out, err, "%s/lib/libgvirtus-communicators-%s.so", home, slot);
}

int ibx_gvirtus_file_read(const char *path, char **content, size_t *length, struct ibx_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (fd < 0)
        return ibx_error_set(err, -errno, "cannot open %s: %s", path, strerror(errno));
    int rc = 0;
    char *buffer = NULL;
    size_t have = 0;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        rc = ibx_error_set(err, -EINVAL, "%s is not a regular file of up to %u MiB", path,
                           FILE_BYTES_MAX >> 20);
    else if (!(buffer = malloc((size_t)st.st_size + 1)))
        rc = ibx_error_set(err, -ENOMEM, "no memory to read %s", path);
    while (!rc && have < (size_t)st.st_size) {
        ssize_t n = read(fd, buffer + have, (size_t)st.st_size - have);
        if (n < 0 && errno != EINTR)
            rc = ibx_error_set(err, -errno, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            break; /* it became shorter meanwhile */
        have += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (rc) {
        free(buffer);
        return rc;
    }
    buffer[have] = '\0';
    *content = buffer;
    *length = have;
    return 0;
}

static bool any_file(const char *home, const char *pattern)
{
    char whole[PATH_MAX];
    glob_t found = {0};
    bool any = !ibx_gvirtus_path(whole, NULL, "%s/%s", home, pattern) &&
               !glob(whole, GLOB_NOSORT, NULL, &found);
    globfree(&found);
    return any;
}

/* Whether the plugin fits in there at all. */
static int check_home(const char *home, struct ibx_error *err)
{
    struct stat st;
    if (stat(home, &st))
        return ibx_error_set(err, -errno, "cannot look into the GVirtuS home %s: %s", home,
                             strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ibx_error_set(err, -ENOTDIR, "the GVirtuS home %s is not a directory", home);
    bool communicators = any_file(home, "lib/libgvirtus-communicators*.so*");
    if (!communicators &&
        (any_file(home, "lib/libgvirtus-frontend*") || any_file(home, "bin/gvirtus-backend")))
        return ibx_error_set(err, -ENOTSUP,
                             "%s holds a classic GVirtuS, which loads no plugins: "
                             "preload libibx-gvirtus-classic.so instead, see ibx-gvirtus(1)",
                             home);
    if (!communicators)
        return ibx_error_set(err, -EINVAL,
                             "%s is not a GVirtuS home: it has no "
                             "lib/libgvirtus-communicators.so",
                             home);
    if (any_file(home, "lib/libgvirtus-communicators-ucx*.so"))
        return ibx_error_set(
            err, -ENOTSUP,
            "%s holds a GVirtuS with a UCX communicator, whose "
            "interface for communicators is another one: the plugin would crash it",
            home);
    return 0;
}

/* The path a file has from anywhere. Its directory has to exist. */
static int make_absolute(const char *path, char *out, struct ibx_error *err)
{
    char dir[PATH_MAX], real_dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int rc =
        ibx_gvirtus_path(dir, err, "%.*s/", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (rc)
        return rc;
    if (!realpath(dir, real_dir))
        return ibx_error_set(err, -errno, "%s has no directory: %s", path, strerror(errno));
    return ibx_gvirtus_path(out, err, "%s/%s", strcmp(real_dir, "/") ? real_dir : "",
                            slash ? slash + 1 : path);
}

int ibx_gvirtus_paths_find(const struct gvirtus_args *args, struct gvirtus_paths *paths,
                           struct ibx_error *err)
{
    char usual[PATH_MAX];
    const char *config = args->config;
    char *config_file = paths->files[GVIRTUS_CONFIG];
    if (!args->home)
        return ibx_error_set(err, -EINVAL, "which GVirtuS? Give --home DIR or set GVIRTUS_HOME");
    if (!config && !args->home_given)
        config = getenv("GVIRTUS_CONFIG");
    int rc = check_home(args->home, err);
    if (!rc && !realpath(args->home, paths->home))
        rc = ibx_error_set(err, -errno, "cannot look into the GVirtuS home %s: %s", args->home,
                           strerror(errno));
    if (!rc)
        rc = ibx_gvirtus_path(usual, err, "%s/etc/properties.json", paths->home);
    if (!rc)
        rc = make_absolute(config && *config ? config : usual, config_file, err);
    if (!rc)
        rc = ibx_gvirtus_path(usual, err, "%.*s/gvirtus.properties",
                              (int)(strrchr(config_file, '/') - config_file), config_file);
    if (!rc)
        rc = make_absolute(args->properties ? args->properties : usual,
                           paths->files[GVIRTUS_PROPERTIES], err);
    if (!rc)
        rc = ibx_gvirtus_library_path(paths->home, args->slot, paths->files[GVIRTUS_LIBRARY], err);
    return rc ? rc : ibx_gvirtus_path(paths->state, err, "%s/lib/ibx-gvirtus.json", paths->home);
}

int ibx_gvirtus_plugin_find(const struct gvirtus_args *args, char *out, struct ibx_error *err)
{
    if (args->library)
        return ibx_gvirtus_path(out, err, "%s", args->library);
    /* Of a build tree, and of an installation that was moved: into a container, say. */
    static const char *const beside[] = {"../frontend-glue", "../" IBX_LIBDIR "/ibx"};
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program));
    while (n > 0 && program[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && i < sizeof(beside) / sizeof(beside[0]); i++) {
        if (!ibx_gvirtus_path(out, NULL, "%.*s%s/" LIBRARY_NAME, (int)n, program, beside[i]) &&
            !access(out, F_OK))
            return 0;
    }
    return ibx_gvirtus_path(out, err, IBX_PLUGIN_DIR "/" LIBRARY_NAME);
}

/* --------------------------------------------------------------- command line */

enum { INSTALL, REMOVE, SHOW };

#define TEXT(member) .type = IBX_TOOL_TEXT, .at = offsetof(struct gvirtus_args, member)

int main(int argc, char **argv)
{
    static const struct ibx_tool_command commands[] = {
        [INSTALL] = {"install", NULL,
                     "Put the rdma communicator into a GVirtuS home and select it, for front ends "
                     "and back end alike; keep a backup of each file that changes"},
        [REMOVE] = {"remove", NULL, "Put back what was there, byte for byte"},
        [SHOW] = {"show", NULL, "What is selected, and by which path the back end is reached"},
        {0},
    };
    static const struct ibx_tool_option options[] = {
        {.help = "Options:"},
        {"home", "DIR", "The GVirtuS home [GVIRTUS_HOME]", TEXT(home)},
        {"slot", "SLOT",
         "oldtcp (free in every GVirtuS) or ib (replaces upstream's own RDMA communicator) "
         "[oldtcp]",
         TEXT(slot)},
        {"uri", "URI", "Where the back end is: rdma://host:port [as it is configured]", TEXT(uri)},
        {"library", "FILE",
         "The plugin to install; for show: the one that the preload library came with [the one of "
         "this program's installation]",
         TEXT(library)},
        {"config", "FILE", "properties.json [GVIRTUS_CONFIG, DIR/etc/properties.json]",
         TEXT(config)},
        {"properties", "FILE", "gvirtus.properties [beside properties.json]", TEXT(properties)},
        {0},
    };
    static const struct ibx_tool tool = {
        .name = "ibx-gvirtus",
        .help = "Makes GVirtuS use ibx.\vExit status: 0 done or reachable, 1 failed or "
                "unreachable, 2 wrong usage.",
        .commands = commands,
        .options = options,
    };
    static int (*const run[])(const struct gvirtus_args *, struct ibx_error *) = {
        [INSTALL] = ibx_gvirtus_install, [REMOVE] = ibx_gvirtus_remove, [SHOW] = ibx_gvirtus_show};
    const char *home = getenv("GVIRTUS_HOME");
    struct gvirtus_args args = {.slot = "oldtcp"};
    struct ibx_error err = {0};
    unsigned command;
    ibx_tool_parse(&tool, argc, argv, &args, &command, NULL);
    if (strcmp(args.slot, "oldtcp") && strcmp(args.slot, "ib"))
        ibx_tool_bad_usage(&tool, "there is no slot \"%s\": give oldtcp or ib", args.slot);
    args.home_given = args.home != NULL;
    if (!args.home && home && *home)
        args.home = home;
    int rc = run[command](&args, &err);
    if (fflush(stdout) && !rc)
        rc = ibx_error_set(&err, -EIO, "standard output could not be written");
    if (rc)
        fprintf(stderr, "ibx-gvirtus: %s\n", err.message);
    return rc ? 1 : 0;
}
