/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The command line of a QEMU that may have changed its own, and answers anything (fake_qmp.h),
 * is converted to one for another host by `ib-migrate run`. The input is an object of answers,
 * with "arguments" among them. The result consists of texts, and contains the folders' names
 * only where they belong. */
#include "tests/fuzz/fake_qmp.h"
#include "tests/fuzz/require.h"
#include "tools/ib-migrate/run.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct run_tokens tokens = {"/run/ibx-token-1", "/memory/ibx-token-2"};

static const char *text_at(const json_t *list, size_t i)
{
    return json_string_value(json_array_get(list, i));
}

/* It waits for a VM, at a monitor of its own, whatever the input says. */
static void check(const json_t *arguments)
{
    const size_t n = json_array_size(arguments);
    require(n >= 5);
    for (size_t i = 0; i < n; i++) {
        require(text_at(arguments, i));
        require(i + 1 == n || strcmp(text_at(arguments, i), "-S") || i == 0 ||
                text_at(arguments, i - 1)[0] == '-');
    }
    require(!strcmp(text_at(arguments, n - 4), "-qmp"));
    require(strstr(text_at(arguments, n - 3), tokens.run));
    require(!strcmp(text_at(arguments, n - 2), "-incoming"));
    require(!strcmp(text_at(arguments, n - 1), "defer"));
}

/* The texts, as in /proc/PID/cmdline. */
static json_t *texts_of(const json_t *list)
{
    json_t *texts = json_array(), *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)list, i, one)
    {
        if (json_is_string(one))
            json_array_append(texts, one);
    }
    return texts;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run_maps maps;
    json_t *absent = NULL, *plugged = NULL, *made = NULL;
    struct ibx_error err = {0};
    if (!maps.count)
        require(!ibx_run_map_add(&maps, "/disks=/other/disks", NULL) &&
                !ibx_run_map_add(&maps, "/=/x", NULL));
    fake_qmp_answers = json_loadb((const char *)data, size, 0, NULL);
    if (!json_is_object(fake_qmp_answers)) {
        json_decref(fake_qmp_answers);
        return 0;
    }
    json_t *given = texts_of(json_object_get(fake_qmp_answers, "arguments"));
    const int rc = ibx_run_plugged(FAKE_QMP, given, &absent, &plugged, &err);
    require(rc || (json_is_object(absent) && json_is_array(plugged)));
    for (size_t i = 0; !rc && i < json_array_size(plugged); i++)
        require(text_at(plugged, i) && (i % 2 || text_at(plugged, i)[0] == '-'));
    made = ibx_run_arguments(given, &maps, &tokens, absent, rc ? NULL : plugged, &err);
    require(made || err.code);
    require(!strpbrk(err.message, "\x1b\n\r"));
    if (made)
        check(made);
    for (size_t i = 0; i < json_array_size(given); i++) {
        char *socket = ibx_run_socket_of(text_at(given, i));
        free(socket);
        ibx_run_folder_of(text_at(given, i), NULL, 0);
    }
    json_decref(made);
    json_decref(absent);
    json_decref(plugged);
    json_decref(given);
    json_decref(fake_qmp_answers);
    return 0;
}
