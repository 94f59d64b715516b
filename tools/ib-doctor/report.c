/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tools/ib-doctor/ib-doctor.h"

#include "common/error.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECKS_MAX 256u

struct doctor_check ibx_doctor_checks[CHECKS_MAX];
unsigned ibx_doctor_check_count;

void ibx_doctor_add(const char *area, const char *name, enum doctor_status status,
                    const char *remedy, const char *value_format, ...)
{
    if (ibx_doctor_check_count == CHECKS_MAX)
        return;
    struct doctor_check *check = &ibx_doctor_checks[ibx_doctor_check_count++];
    *check = (struct doctor_check){.area = area, .status = status};
    snprintf(check->name, sizeof(check->name), "%s", name);
    snprintf(check->remedy, sizeof(check->remedy), "%s", status == DOCTOR_OK ? "" : remedy);
    va_list args;
    va_start(args, value_format);
    vsnprintf(check->value, sizeof(check->value), value_format, args);
    va_end(args);
    /* Texts of files and devices may have been cut inside a UTF-8 character, which JSON cannot
     * hold.
     */
    ibx_text_sanitize(check->name);
    ibx_text_sanitize(check->value);
}

const char *ibx_doctor_root(void)
{
    const char *root = secure_getenv("IBX_DOCTOR_ROOT");
    return root ? root : "";
}

const char *ibx_doctor_path(const char *path)
{
    static char whole[PATH_MAX];
    snprintf(whole, sizeof(whole), "%s%s", ibx_doctor_root(), path);
    return whole;
}

bool ibx_doctor_read(const char *path, char *out, size_t size)
{
    FILE *file = fopen(ibx_doctor_path(path), "re");
    bool good = file && fgets(out, (int)size, file);
    if (file)
        fclose(file);
    if (!good)
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return good;
}

long long ibx_doctor_read_number(const char *path, long long fallback)
{
    char text[64], *end;
    if (!ibx_doctor_read(path, text, sizeof(text)))
        return fallback;
    long long value = strtoll(text, &end, 0);
    return end == text ? fallback : value;
}

bool ibx_doctor_exists(const char *path)
{
    return access(ibx_doctor_path(path), F_OK) == 0;
}

static int has_no_dot(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

int ibx_doctor_list(const char *path, struct dirent ***names)
{
    int count = scandir(ibx_doctor_path(path), names, has_no_dot, alphasort);
    return count < 0 ? 0 : count;
}

void ibx_doctor_list_free(struct dirent **names, int count)
{
    for (int i = 0; i < count; i++)
        free(names[i]);
    if (count)
        free(names);
}
