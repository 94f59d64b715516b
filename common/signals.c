/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/signals.h"

void ibx_signals_heeded(const int *numbers, size_t count, sigset_t *set)
{
    struct sigaction now;
    sigemptyset(set);
    for (size_t i = 0; i < count; i++)
        if (!sigaction(numbers[i], NULL, &now) && now.sa_handler != SIG_IGN)
            sigaddset(set, numbers[i]);
}
