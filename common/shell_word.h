/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A path as a word of a command that a message tells a person to call: it can be pasted into a
 * shell. */
#ifndef IBX_COMMON_SHELL_WORD_H
#define IBX_COMMON_SHELL_WORD_H

#include <limits.h>

struct ibx_shell_word {
    char text[PATH_MAX];
};

/* Quotes a word that a shell would not take as it is. One that is too long for that is cut. To be
 * used within one expression: ibx_shell_word(path).text. */
struct ibx_shell_word ibx_shell_word(const char *word);

#endif
