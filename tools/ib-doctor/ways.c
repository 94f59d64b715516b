/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which way copies into a GPU and out of it take, by their sizes, and whether that was measured. */
#include "frontend-glue/plugin/config.h"
#include "frontend-glue/device_copies/tuning.h"
#include "gpudirect/gpudirect.h"
#include "tools/ib-doctor/ib-doctor.h"

#include <errno.h>
#include <stdio.h>

#define MEASURE "measure by \"ib-bw tune\""

static void add(int index, const char *what, enum doctor_status status, const char *remedy,
                const char *value)
{
    char label[48];
    snprintf(label, sizeof(label), "GPU %d %s", index, what);
    ibx_doctor_add("gpu", label, status, remedy, "%s", value);
}

/* -ENOENT: there is no such file. */
static int load(struct ibx_tuning *tuning, char file[PATH_MAX], struct ibx_error *err)
{
    char whole[2 * PATH_MAX];
    int rc = ibx_glue_tuning_file(file, err);
    if (!rc && !*file)
        rc = ibx_error_set(err, -ENOENT, "rdma.tuning says none");
    if (rc)
        return rc;
    snprintf(whole, sizeof(whole), "%s%s", ibx_doctor_root(), file);
    return ibx_tuning_load(whole, tuning, err);
}

/* What the file says if it holds for this GPU, or the defaults. */
static struct ibx_choice choice_of(int index)
{
    struct ibx_tuning tuning = {0};
    struct ibx_tuning_machine here;
    struct ibx_error err = {0};
    char file[PATH_MAX] = "", value[160];
    const struct ibx_cuda *cuda = ibx_cuda_load(&err);
    int rc = cuda ? load(&tuning, file, &err) : -ENOENT;
    if (rc == -ENOENT || rc == -ENOTDIR) {
        snprintf(value, sizeof(value), "not measured: %.140s", err.message);
        add(index, "tuning", DOCTOR_LIMITED, MEASURE, value);
        return ibx_choice_default;
    }
    if (rc) {
        add(index, "tuning", DOCTOR_MISSING,
            "GVirtuS does not start with it: correct it, or " MEASURE, err.message);
        return ibx_choice_default;
    }
    ibx_tuning_machine_of(cuda, index, &here);
    if (ibx_tuning_fits(&tuning, &here, &err)) {
        snprintf(value, sizeof(value), "not used: %.140s", err.message);
        add(index, "tuning", DOCTOR_LIMITED, MEASURE, value);
        return ibx_choice_default;
    }
    snprintf(value, sizeof(value), "measured, in %.140s", file);
    add(index, "tuning", DOCTOR_OK, NULL, value);
    return tuning.choice;
}

void ibx_doctor_check_ways(int index, bool direct)
{
    struct ibx_choice choice = choice_of(index);
    unsigned threads = choice.threads ? choice.threads : ibx_copy_threads_count();
    char text[160];
    ibx_tuning_describe(&choice, IBX_CHOICE_TO_DEVICE, threads, direct, text, sizeof(text));
    add(index, "H2D", DOCTOR_OK, NULL, text);
    ibx_tuning_describe(&choice, IBX_CHOICE_FROM_DEVICE, threads, direct, text, sizeof(text));
    add(index, "D2H", DOCTOR_OK, NULL, text);
    if (threads < 2)
        add(index, "threads", DOCTOR_LIMITED,
            "set rdma.gpu_threads if there are idle processors, or give the back end more",
            "one copies for a client: there are fewer than 12 processors");
}
