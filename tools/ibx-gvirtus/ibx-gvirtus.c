/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of ibx-gvirtus, and its commands install and remove. */
#include "tools/ibx-gvirtus/ibx-gvirtus.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY_NAME   "libgvirtus-communicators-rdma.so"
#define FILE_BYTES_MAX (64u << 20)

static const char usage[] =
    "usage: ibx-gvirtus install|remove|show [options]\n"
    "\n"
    "  install  puts the rdma communicator into a GVirtuS home and selects it; front\n"
    "           ends and back end alike. What was there is kept beside it.\n"
    "  remove   puts back what was there, byte for byte\n"
    "  show     what is selected, and by which path the back end is reached\n"
    "\n"
    "  --home DIR         the GVirtuS home [GVIRTUS_HOME]\n"
    "  --slot SLOT        oldtcp (free in every GVirtuS) or ib (upstream's own RDMA\n"
    "                     communicator gives way) [oldtcp]\n"
    "  --uri URI          where the back end is: rdma://host:port [as it is configured]\n"
    "  --library FILE     the plugin to install, for show: that the preload came with [the\n"
    "                     one that belongs to this program]\n"
    "  --config FILE      properties.json [GVIRTUS_CONFIG, DIR/etc/properties.json]\n"
    "  --properties FILE  gvirtus.properties [beside properties.json]\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 done or reachable, 1 failed or unreachable, 2 wrong usage.\n";

/* --------------------------------------------------------------------- places */

int ibx_gvirtus_path(char *out, struct ibx_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, PATH_MAX, format, args);
    va_end(args);
    if (n >= 0 && n < PATH_MAX)
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

/* The path a file has from anywhere; the file need not exist, but its directory. */
static int make_absolute(const char *path, char *out, struct ibx_error *err)
{
    char dir[PATH_MAX], real_dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int rc =
        ibx_gvirtus_path(dir, err, "%.*s/", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (rc)
        return rc;
    if (!realpath(dir, real_dir))
        return ibx_error_set(err, -errno, "there is no place for %s: %s", path, strerror(errno));
    return ibx_gvirtus_path(out, err, "%s/%s", strcmp(real_dir, "/") ? real_dir : "",
                            slash ? slash + 1 : path);
}

int ibx_gvirtus_place_find(const struct gvirtus_args *args, struct gvirtus_place *place,
                           struct ibx_error *err)
{
    char path[PATH_MAX];
    memset(place, 0, sizeof(*place));
    if (!args->home)
        return ibx_error_set(err, -EINVAL, "which GVirtuS? Give --home DIR or set GVIRTUS_HOME");
    int rc = check_home(args->home, err);
    if (!rc && !realpath(args->home, place->home))
        rc = ibx_error_set(err, -errno, "cannot look into the GVirtuS home %s: %s", args->home,
                           strerror(errno));
    const char *config = args->config;
    if (!config && !args->home_given)
        config = getenv("GVIRTUS_CONFIG");
    if (!rc)
        rc = config && *config ? ibx_gvirtus_path(path, err, "%s", config)
                               : ibx_gvirtus_path(path, err, "%s/etc/properties.json", place->home);
    if (!rc)
        rc = make_absolute(path, place->config, err);
    if (!rc)
        rc = args->properties ? ibx_gvirtus_path(path, err, "%s", args->properties)
                              : ibx_gvirtus_path(path, err, "%.*s/gvirtus.properties",
                                                 (int)(strrchr(place->config, '/') - place->config),
                                                 place->config);
    if (!rc)
        rc = make_absolute(path, place->properties, err);
    return rc ? rc : ibx_gvirtus_path(place->state, err, "%s/lib/ibx-gvirtus.json", place->home);
}

/* -------------------------------------------------------------------- install */

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

/* GVirtuS would find out only at its next start. */
static int check_library(const char *file, struct ibx_error *err)
{
    char path[PATH_MAX]; /* with a slash: dlopen(3) shall not search */
    if (!realpath(file, path))
        return ibx_error_set(err, -errno, "the plugin %s cannot be found: %s; name it by --library",
                             file, strerror(errno));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return ibx_error_set(err, -ENOEXEC, "the plugin cannot be loaded here: %s", dlerror());
    bool good = dlsym(handle, "create_communicator");
    dlclose(handle);
    if (!good)
        return ibx_error_set(err, -EINVAL,
                             "%s is not a communicator for GVirtuS: it has no "
                             "create_communicator",
                             file);
    return 0;
}

/* NULL and 0 when there is no such file. */
static int read_if_there(const char *path, char **content, struct ibx_error *err)
{
    size_t length;
    if (access(path, F_OK) && errno == ENOENT)
        return 0;
    int rc = ibx_gvirtus_file_read(path, content, &length, err);
    if (!rc && strlen(*content) != length)
        return ibx_error_set(err, -EINVAL, "%s holds a NUL byte: it is not a text file", path);
    return rc;
}

static void tell_install(const struct gvirtus_place *place, const struct ibx_gvirtus_edit *edit,
                         const struct gvirtus_args *args, const char *library)
{
    const char *files[] = {library, place->config, place->properties};
    for (int i = 0; i < 3; i++) {
        char backup[PATH_MAX];
        bool kept =
            !ibx_gvirtus_path(backup, NULL, "%s" GVIRTUS_BACKUP, files[i]) && !access(backup, F_OK);
        printf("%s: written%s\n", files[i],
               kept ? "; what was there is in the file ending in " GVIRTUS_BACKUP : "");
    }
    printf("GVirtuS uses %s from its next start on; see \"ibx-gvirtus show\"\n", edit->chosen);
    if (args->properties)
        printf("its processes need GVIRTUS_RDMA_PROPERTIES=%s in their environment\n",
               place->properties);
}

/* What an installation is made of. */
struct ingredients {
    char target[PATH_MAX]; /* of the plugin */
    char *library, *config, *properties;
    size_t library_length;
};

static int gather(const struct gvirtus_args *args, const struct gvirtus_place *place,
                  struct ingredients *in, struct ibx_error *err)
{
    char source[PATH_MAX];
    int rc = ibx_gvirtus_library_path(place->home, args->slot, in->target, err);
    if (!rc)
        rc = ibx_gvirtus_plugin_find(args, source, err);
    if (!rc)
        rc = check_library(source, err);
    if (!rc)
        rc = ibx_gvirtus_file_read(source, &in->library, &in->library_length, err);
    if (!rc)
        rc = read_if_there(place->config, &in->config, err);
    return rc ? rc : read_if_there(place->properties, &in->properties, err);
}

int ibx_gvirtus_install(const struct gvirtus_args *args, struct ibx_error *err)
{
    struct gvirtus_place place;
    struct ingredients in = {.library = NULL};
    int rc = ibx_gvirtus_place_find(args, &place, err);
    if (!rc)
        rc = ibx_gvirtus_journal_clear(place.state, err);
    if (!rc)
        rc = gather(args, &place, &in, err);
    struct ibx_gvirtus_edit edit = {
        .config_file = place.config,
        .properties_file = place.properties,
        .config_before = in.config,
        .properties_before = in.properties,
        .slot = args->slot,
        .uri = args->uri,
    };
    if (!rc)
        rc = ibx_gvirtus_edit(&edit, err);
    if (!rc) {
        const struct gvirtus_change changes[] = {
            {in.target, in.library, in.library_length, 0755},
            {place.config, edit.config_after, strlen(edit.config_after), 0644},
            {place.properties, edit.properties_after, strlen(edit.properties_after), 0644},
        };
        rc = ibx_gvirtus_journal_apply(place.state, args->slot, changes, 3, err);
    }
    if (!rc)
        tell_install(&place, &edit, args, in.target);
    ibx_gvirtus_edit_fini(&edit);
    free(in.library);
    free(in.config);
    free(in.properties);
    return rc;
}

/* --------------------------------------------------------------------- remove */

static void tell_removed(const char *path, const char *what)
{
    printf("%s: %s\n", path, what);
}

int ibx_gvirtus_remove(const struct gvirtus_args *args, struct ibx_error *err)
{
    struct gvirtus_place place;
    int rc = ibx_gvirtus_place_find(args, &place, err);
    return rc ? rc : ibx_gvirtus_journal_undo(place.state, tell_removed, err);
}

/* --------------------------------------------------------------- command line */

static int bad_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int bad_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("ibx-gvirtus: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; see ibx-gvirtus --help\n", stderr);
    va_end(args);
    return 2;
}

enum { HELP = 'h', VERSION = 'V', HOME = 1, SLOT, URI, LIBRARY, CONFIG, PROPERTIES };

static const struct option long_options[] = {
    {"help", no_argument, NULL, HELP},
    {"version", no_argument, NULL, VERSION},
    {"home", required_argument, NULL, HOME},
    {"slot", required_argument, NULL, SLOT},
    {"uri", required_argument, NULL, URI},
    {"library", required_argument, NULL, LIBRARY},
    {"config", required_argument, NULL, CONFIG},
    {"properties", required_argument, NULL, PROPERTIES},
    {NULL, 0, NULL, 0},
};

/* -1 to go on, otherwise the exit status. */
static int parse_options(int argc, char **argv, struct gvirtus_args *args)
{
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":hV", long_options, NULL)) != -1) {
        switch (option) {
        case HELP:
            fputs(usage, stdout);
            return 0;
        case VERSION:
            puts("ibx-gvirtus " IBX_VERSION);
            return 0;
        case HOME:
            args->home = optarg;
            args->home_given = true;
            break;
        case SLOT:
            args->slot = optarg;
            break;
        case URI:
            args->uri = optarg;
            break;
        case LIBRARY:
            args->library = optarg;
            break;
        case CONFIG:
            args->config = optarg;
            break;
        case PROPERTIES:
            args->properties = optarg;
            break;
        case ':':
            return bad_usage("%s needs a value", argv[optind - 1]);
        default:
            return bad_usage("there is no option %s", argv[optind - 1]);
        }
    }
    if (strcmp(args->slot, "oldtcp") && strcmp(args->slot, "ib"))
        return bad_usage("there is no slot \"%s\": give oldtcp or ib", args->slot);
    return -1;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct gvirtus_args *args, struct ibx_error *err);
    } commands[] = {{"install", ibx_gvirtus_install},
                    {"remove", ibx_gvirtus_remove},
                    {"show", ibx_gvirtus_show}};
    const char *home = getenv("GVIRTUS_HOME");
    struct gvirtus_args args = {.home = home && *home ? home : NULL, .slot = "oldtcp"};
    int status = parse_options(argc, argv, &args);
    if (status >= 0)
        return status;
    if (optind + 1 != argc)
        return bad_usage("give one command: install, remove or show");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        struct ibx_error err = {0};
        if (strcmp(argv[optind], commands[i].name))
            continue;
        if (!commands[i].run(&args, &err))
            return fflush(stdout) ? 1 : 0;
        fflush(stdout);
        fprintf(stderr, "ibx-gvirtus: %s\n", err.message);
        return 1;
    }
    return bad_usage("there is no command \"%s\": give install, remove or show", argv[optind]);
}
