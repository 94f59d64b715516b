/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/shell_word.h"

#include <stdbool.h>
#include <string.h>

#define END "'"

/* Bytes of letters beyond ASCII mean nothing to a shell. */
static bool is_plain(const char *word)
{
    const char *c = word;
    while (*c &&
           ((unsigned char)*c >= 0x80 ||
            strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+:@%,", *c)))
        c++;
    return *word && !*c;
}

struct ibx_shell_word ibx_shell_word(const char *word)
{
    struct ibx_shell_word out = {{0}};
    size_t used = 0;
    if (is_plain(word)) {
        strncat(out.text, word, sizeof(out.text) - 1);
        return out;
    }
    out.text[used++] = '\'';
    for (; *word; word++) {
        const char *piece = *word == '\'' ? "'\\''" : (char[]){*word, '\0'};
        const size_t length = strlen(piece);
        if (used + length + sizeof(END) > sizeof(out.text))
            break;
        memcpy(out.text + used, piece, length);
        used += length;
    }
    memcpy(out.text + used, END, sizeof(END));
    return out;
}
