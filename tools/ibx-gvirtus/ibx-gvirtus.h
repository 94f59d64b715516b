/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ibx-gvirtus: puts the plugin into a GVirtuS home, takes it out again, shows
 * what is selected. Private to the files tools/ibx-gvirtus*.c.
 */
#ifndef IBX_TOOLS_IBX_GVIRTUS_IBX_GVIRTUS_H
#define IBX_TOOLS_IBX_GVIRTUS_IBX_GVIRTUS_H

#include "common/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What the command line and the environment say; strings are borrowed from them. */
struct gvirtus_args {
    const char *home;       /* --home, else GVIRTUS_HOME, else NULL */
    const char *slot;       /* --slot, "oldtcp" or "ib" */
    const char *uri;        /* --uri, or NULL */
    const char *library;    /* --library, or NULL */
    const char *config;     /* --config, or NULL */
    const char *properties; /* --properties, or NULL */
    bool home_given;        /* --home: GVIRTUS_CONFIG may belong to another home */
};

/* Where things are, or are going to be. */
struct gvirtus_place {
    char home[PATH_MAX];
    char config[PATH_MAX];     /* properties.json */
    char properties[PATH_MAX]; /* gvirtus.properties */
    char state[PATH_MAX];      /* of the journal */
};

/* Builds a path; -ENAMETOOLONG with a sentence. `out` holds PATH_MAX bytes. */
int ibx_gvirtus_path(char *out, struct ibx_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The library of a slot: DIR/lib/libgvirtus-communicators-SLOT.so. */
int ibx_gvirtus_library_path(const char *home, const char *slot, char *out, struct ibx_error *err);
/* Fills `place`, after looking whether the home is one that can take the plugin. */
int ibx_gvirtus_place_find(const struct gvirtus_args *args, struct gvirtus_place *place,
                           struct ibx_error *err);
/* The plugin to install: as told, or as built or installed with us, also where the installation was
 * moved since. It need not be there. */
int ibx_gvirtus_plugin_find(const struct gvirtus_args *args, char *out, struct ibx_error *err);
/* Reads a whole file of up to 64 MiB into memory, with a NUL after it that does not count. */
int ibx_gvirtus_file_read(const char *path, char **content, size_t *length, struct ibx_error *err);

/* The commands; 0 or a negative errno with one sentence. */
int ibx_gvirtus_install(const struct gvirtus_args *args, struct ibx_error *err);
int ibx_gvirtus_remove(const struct gvirtus_args *args, struct ibx_error *err);
int ibx_gvirtus_show(const struct gvirtus_args *args, struct ibx_error *err);

/* ------------------------------------------------------------- the two files */

/* The first endpoint of properties.json; "" and 0 where it has no usable one. */
struct gvirtus_endpoint {
    char suite[64], protocol[64], address[256];
    uint16_t port;
};

/* The texts of a configuration, edited: NULL before means that there is no such file. */
struct ibx_gvirtus_edit {
    const char *config_file, *properties_file;
    const char *config_before, *properties_before;
    const char *slot;
    const char *uri;        /* --uri, or NULL: taken from what there is */
    char chosen[904];       /* the URI that was written */
    char *config_after;     /* malloc'ed */
    char *properties_after; /* malloc'ed */
};
int ibx_gvirtus_edit(struct ibx_gvirtus_edit *edit, struct ibx_error *err);
void ibx_gvirtus_edit_fini(struct ibx_gvirtus_edit *edit);
int ibx_gvirtus_endpoint_read(const char *file, struct gvirtus_endpoint *endpoint,
                              struct ibx_error *err);

/* The rdma.* keys that are no options of the transport, up to one without a name. */
struct gvirtus_key {
    const char *name;
    const char *usual;   /* what counts without it; "" where that is no value of the key */
    const char *example; /* that has the same effect */
    const char *meaning;
};
extern const struct gvirtus_key ibx_gvirtus_own_keys[];

/* --------------------------------------------------------------- the journal */

#define GVIRTUS_BACKUP ".before-ibx" /* what was there before install */
#define GVIRTUS_EDITED ".with-ibx"   /* what was changed since, kept by remove; then .with-ibx.2 */

/* One file to put in place. */
struct gvirtus_change {
    const char *path;
    const char *content;
    size_t length;
    mode_t mode; /* for a file that was not there; otherwise it keeps its mode */
};

#define GVIRTUS_CHANGES_MAX 8

/* Undoes an installation that was cut off, before anybody reads what it has written. -EEXIST when
 * there is a whole one. */
int ibx_gvirtus_journal_clear(const char *state, struct ibx_error *err);
/* Does all of the changes or none: what was there is kept beside with GVIRTUS_BACKUP, the state
 * file remembers the whole until ibx_gvirtus_journal_undo(). An installation that was cut off is
 * undone first. -EEXIST when it is installed already or a backup is in the way. */
int ibx_gvirtus_journal_apply(const char *state, const char *slot,
                              const struct gvirtus_change *changes, size_t count,
                              struct ibx_error *err);
/* Puts back everything byte for byte and forgets the state; files that were edited since are kept
 * with GVIRTUS_EDITED, beside those that were kept before. `report` is told each path and what
 * became of it. -ENOENT when nothing is installed. */
int ibx_gvirtus_journal_undo(const char *state, void (*report)(const char *path, const char *what),
                             struct ibx_error *err);
/* Whether `path` is installed and still as it was installed; fills `slot` (64 bytes) if it is. */
bool ibx_gvirtus_journal_owns(const char *state, const char *path, char *slot);

#endif
