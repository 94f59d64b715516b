/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whatever can be parsed is found again and, printed in plain form, parses to the same; the same
 * for a tuning file. */
#include "common/properties.h"
#include "tests/fixtures/choice_sound.h"
#include "tests/fuzz/require.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_entry(const struct ibx_properties *p, size_t i)
{
    const struct ibx_property *entry = &p->items[i];
    require(ibx_properties_find(p, entry->key) == entry); /* each key once */
    require(i == 0 || entry->line > p->items[i - 1].line);
    const char *rest = entry->value, *item;
    size_t length, total = 0;
    while (ibx_properties_item(&rest, &item, &length)) {
        require(length > 0 && !memchr(item, ',', length));
        total += length;
    }
    require(total <= strlen(entry->value));
}

static void check_again(const struct ibx_properties *p)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    require(out);
    for (size_t i = 0; i < p->count; i++)
        fprintf(out, "%s:%s\n", p->items[i].key, p->items[i].value);
    fclose(out);
    struct ibx_properties again;
    require(size > IBX_PROPERTIES_BYTES_MAX ||
            !ibx_properties_parse("again", text, size, &again, NULL));
    if (size <= IBX_PROPERTIES_BYTES_MAX) {
        require(again.count == p->count);
        for (size_t i = 0; i < p->count; i++) {
            require(!strcmp(again.items[i].key, p->items[i].key));
            require(!strcmp(again.items[i].value, p->items[i].value));
        }
        ibx_properties_fini(&again);
    }
    free(text);
}

static void check_tuning(const char *data, size_t size)
{
    struct ibx_tuning tuning, again;
    struct ibx_error error = {0};
    char *text = NULL;
    size_t length = 0;
    if (ibx_tuning_parse("fuzzed", data, size, &tuning, &error)) {
        require(error.code < 0 && error.message[0]);
        return;
    }
    require(choice_sound(&tuning.choice));
    FILE *out = open_memstream(&text, &length);
    require(out);
    ibx_tuning_print(&tuning, out);
    fclose(out);
    require(!ibx_tuning_parse("fuzzed", text, length, &again, &error));
    require(!memcmp(&tuning.choice, &again.choice, sizeof(again.choice)));
    require(!strcmp(tuning.machine.gpu, again.machine.gpu) &&
            !strcmp(tuning.machine.driver, again.machine.driver) &&
            !strcmp(tuning.machine.host, again.machine.host));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_properties p;
    check_tuning((const char *)data, size);
    struct ibx_error error = {0};
    if (ibx_properties_parse("fuzzed", (const char *)data, size, &p, &error)) {
        require(error.code < 0 && error.message[0]);
        return 0;
    }
    for (size_t i = 0; i < p.count; i++)
        check_entry(&p, i);
    check_again(&p);
    ibx_properties_fini(&p);
    return 0;
}
