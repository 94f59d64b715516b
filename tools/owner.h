/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Root at work in a place that somebody else can change. Every name there may lead elsewhere by the
 * time it is used, so root does not look for bad ones: it becomes the user who can change them, for
 * good, and can then be led only where that user gets without it.
 */
#ifndef IBX_TOOLS_OWNER_H
#define IBX_TOOLS_OWNER_H

#include <stdbool.h>

struct ibx_owner_place {
    const char *what;   /* "the GVirtuS home", for messages */
    const char *remedy; /* where that user may not do what root could */
    bool may_lack;      /* a path may end early: what does not exist leads nowhere */
    bool like_tmp;      /* the last folder may be one like /tmp, which is right for what makes its
                           files anew and by rename(2) */
};

/* Before anything at `path`, a folder, is looked at. Where a user other than root can change what
 * the path leads to, root becomes that user for good. Ends the process where several can. */
void ibx_owner_become(const struct ibx_owner_place *place, const char *path);
/* Ends the process where it still is root, and somebody else can change where `folder` is. */
void ibx_owner_check(const struct ibx_owner_place *place, const char *home, const char *folder);
/* Whether this process began as root. */
bool ibx_owner_was_root(void);
/* What to do about an errno, to be appended to a message; "" where that is not known. */
const char *ibx_owner_remedy(int code);

#endif
