/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ibx-gvirtus: puts the plugin into a GVirtuS home, takes it out again, shows what is selected.
 *
 *   ibx-gvirtus.c  the command line; where the files are
 *   install.c      install and remove: replaces three files and puts them back
 *   edit.c         the texts of properties.json and gvirtus.properties
 *   show.c         show
 *
 * Functions without a struct ibx_error end the process with a message if they fail.
 */
#ifndef IBX_TOOLS_IBX_GVIRTUS_IBX_GVIRTUS_H
#define IBX_TOOLS_IBX_GVIRTUS_IBX_GVIRTUS_H

#include "common/error.h"
#include "tools/options.h"
#include "tools/owner.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GVIRTUS_ENDING_MAX 32 /* bytes that may be appended to each path below */

/* What the command line and the environment say; strings are borrowed from them. */
struct gvirtus_args {
    const char *home;       /* --home, else GVIRTUS_HOME, else NULL */
    const char *slot;       /* --slot, "oldtcp" or "ib" */
    const char *uri;        /* --uri, or NULL */
    const char *library;    /* --library, or NULL */
    const char *config;     /* --config, or NULL */
    const char *properties; /* --properties, or NULL */
    bool all;               /* --all: keys at their defaults, too */
    bool home_given;        /* --home: GVIRTUS_CONFIG may belong to another home */
};

enum gvirtus_file { GVIRTUS_LIBRARY, GVIRTUS_CONFIG, GVIRTUS_PROPERTIES, GVIRTUS_FILES };

/* Absolute paths; the files need not exist. */
struct gvirtus_paths {
    char home[PATH_MAX], state[PATH_MAX]; /* state: what is installed */
    char files[GVIRTUS_FILES][PATH_MAX];
};

/* Prints a line in which control characters are question marks: much of it was read from a home. */
void ibx_gvirtus_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fills `paths`, after a check that the plugin can be installed into the home. */
void ibx_gvirtus_paths_find(const struct gvirtus_args *args, struct gvirtus_paths *paths);
/* Builds a path of PATH_MAX bytes. */
void ibx_gvirtus_path(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The library of a slot: DIR/lib/libgvirtus-communicators-SLOT.so. */
void ibx_gvirtus_library_path(const char *home, const char *slot, char *out);
/* The plugin to install: --library, else the one of this program's build tree or installation. It
 * need not exist. */
void ibx_gvirtus_plugin_find(const struct gvirtus_args *args, char *out);
/* Reads a whole file of up to 64 MiB and adds a NUL, which `length` does not count. The caller
 * frees the result by free(). NULL with `err`: it cannot be read. */
char *ibx_gvirtus_file_read(const char *path, size_t *length, struct ibx_error *err);
/* The same, but ends the process if the file cannot be read. */
char *ibx_gvirtus_file_need(const char *path, size_t *length);
/* Reads a text that decides what processes do, after the checks of file_check.h; to be freed by
 * free(). NULL: there is no such file. */
char *ibx_gvirtus_text_read(const char *path);

/* A home as a place where root may be at work. */
extern const struct ibx_owner_place ibx_gvirtus_home;

/* The commands. */
void ibx_gvirtus_install(const struct gvirtus_args *args);
void ibx_gvirtus_remove(const struct gvirtus_args *args);
void ibx_gvirtus_show(const struct gvirtus_args *args);

/* Whether `library` is installed, and unchanged since. */
bool ibx_gvirtus_installed(const struct gvirtus_paths *paths, const char *library);

/* The first endpoint of properties.json; an address or a port that is not usable is "" or 0. */
struct gvirtus_endpoint {
    char suite[64], protocol[64], address[256];
    uint16_t port;
};
/* Ends the process if GVirtuS would not start with this file. */
struct gvirtus_endpoint ibx_gvirtus_endpoint_read(const char *file);

/* Both texts, before and after the edit; the caller frees all four by free(). */
struct gvirtus_edit {
    const char *config_file, *properties_file; /* for messages */
    const char *slot;
    const char *uri;                         /* --uri, or NULL: as the texts say */
    char *config_before, *properties_before; /* NULL: there is no such file */
    char *config_after, *properties_after;
    char chosen[904]; /* the URI that was written */
};
void ibx_gvirtus_edit(struct gvirtus_edit *edit);

/* The rdma.* keys that are no options of the transport; the last entry has no name. */
struct gvirtus_key {
    const char *name;
    const char *usual;   /* the default; "": the default cannot be written as a value */
    const char *example; /* a value with the same effect as the default */
    const char *meaning;
};
extern const struct gvirtus_key ibx_gvirtus_own_keys[];

#endif
