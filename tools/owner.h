/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Root at work in a place that somebody else can change. Every name there may lead elsewhere by the
 * time it is used. So a tool that runs as root does not look for bad paths: it permanently becomes
 * the user who can change them, and can then be led only to where that user could go anyway.
 */
#ifndef IBX_TOOLS_OWNER_H
#define IBX_TOOLS_OWNER_H

#include <stdbool.h>

struct ibx_owner_place {
    const char *what;   /* "the GVirtuS home", for messages */
    const char *remedy; /* what to do if that user lacks a permission that root had */
    bool may_lack;      /* parts of the path need not exist; what does not exist leads nowhere */
    bool like_tmp; /* the last folder may be one like /tmp: only for tools that make their files
                      anew and put them there by rename(2) */
};

/* To be called before anything at the folder `path` is accessed. If this process is root, and
 * another user can change where the path leads, it permanently becomes that user. Ends the process
 * if several users can. */
void ibx_owner_become(const struct ibx_owner_place *place, const char *path);
/* Ends the process if it is still root and somebody else can change where `folder` is. */
void ibx_owner_check(const struct ibx_owner_place *place, const char *home, const char *folder);
/* Whether this process began as root. */
bool ibx_owner_was_root(void);
/* The remedy for an errno, to be appended to a message; "": there is none. */
const char *ibx_owner_remedy(int code);

#endif
