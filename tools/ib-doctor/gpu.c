/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The GPUs: the path of copies into their memory, and what prevents a better one. */
#include "frontend-glue/plugin/config.h"
#include "frontend-glue/back_end_common/tuning.h"
#include "gpudirect/gpudirect.h"
#include "tools/ib-doctor/ib-doctor.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_PEERMEM "/sys/module/nvidia_peermem"
#define ADAPTERS       "/sys/class/infiniband"
#define PCI_BARS       6 /* lines of a device's file `resource` before that of its ROM */
#define MEASURE        "measure by \"ib-bw tune\""

/* CUdevice_attribute, beside those that gpudirect.h has. */
enum cuda_attribute {
    CUDA_PCI_BUS = 33,
    CUDA_PCI_DEVICE = 34,
    CUDA_PCI_DOMAIN = 50,
    CUDA_GPU_DIRECT_RDMA = 116,
};

struct gpu {
    int index;
    char label[16], name[96];
    char folder[64]; /* of sysfs */
    bool rdma, dma_buf, ordered, flushed;
    size_t memory;
};

static int attribute(const struct ibx_cuda *cuda, int device, int which)
{
    int value = 0;
    return cuda->device_get_attribute(&value, which, device) ? 0 : value;
}

static struct gpu gpu_of(const struct ibx_cuda *cuda, int index)
{
    int (*total_memory)(size_t * bytes, int device);
    struct gpu gpu = {.index = index, .name = "?"};
    cuda->device_get_name(gpu.name, sizeof(gpu.name), index);
    *(void **)&total_memory = ibx_cuda_symbol("cuDeviceTotalMem_v2");
    if (total_memory)
        total_memory(&gpu.memory, index);
    gpu.rdma = attribute(cuda, index, CUDA_GPU_DIRECT_RDMA);
    gpu.dma_buf = attribute(cuda, index, IBX_CUDA_DEVICE_DMA_BUF);
    gpu.ordered = attribute(cuda, index, IBX_CUDA_DEVICE_RDMA_ORDERING) >= IBX_CUDA_ORDERING_OWNER;
    gpu.flushed = attribute(cuda, index, IBX_CUDA_DEVICE_RDMA_FLUSH) & IBX_CUDA_FLUSH_BY_HOST;
    snprintf(gpu.label, sizeof(gpu.label), "GPU %d", index);
    snprintf(gpu.folder, sizeof(gpu.folder), "/sys/bus/pci/devices/%04x:%02x:%02x.0",
             (unsigned)attribute(cuda, index, CUDA_PCI_DOMAIN),
             (unsigned)attribute(cuda, index, CUDA_PCI_BUS),
             (unsigned)attribute(cuda, index, CUDA_PCI_DEVICE));
    return gpu;
}

static void add(const struct gpu *gpu, const char *what, enum doctor_status status,
                const char *remedy, const char *value)
{
    char label[48];
    snprintf(label, sizeof(label), "%s %s", gpu->label, what);
    ibx_doctor_add("gpu", label, status, remedy, "%s", value);
}

/* ---------------------------------------------------------------------- nearness */

enum nearness { NEAR_NONE, NEAR_FAR, NEAR_NODE, NEAR_BRIDGE };

static long long node_of(const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/numa_node", folder);
    return ibx_doctor_read_number(path, -1);
}

/* Whether two devices are below one bridge: then the paths of their folders share that bridge's
 * folder, which is below that of the root complex. */
static bool one_bridge(const char *one, const char *other)
{
    char a[PATH_MAX], b[PATH_MAX];
    if (!realpath(ibx_doctor_path(one), a) || !realpath(ibx_doctor_path(other), b))
        return false;
    const char *root = strstr(a, "/pci");
    const char *bridge = root ? strchr(root + 1, '/') : NULL;
    const char *end = bridge ? strchr(bridge + 1, '/') : NULL;
    return end && !strncmp(a, b, (size_t)(end - a) + 1);
}

/* Finds the nearest RDMA adapter, and how near it is. */
static enum nearness nearest(const struct gpu *gpu, char *name, size_t size)
{
    enum nearness best = NEAR_NONE;
    struct dirent **names;
    int count = ibx_doctor_list(ADAPTERS, &names);
    for (int i = 0; i < count; i++) {
        char device[288];
        snprintf(device, sizeof(device), ADAPTERS "/%.200s/device", names[i]->d_name);
        long long node = node_of(gpu->folder);
        enum nearness near = one_bridge(gpu->folder, device)        ? NEAR_BRIDGE
                             : node >= 0 && node != node_of(device) ? NEAR_FAR
                                                                    : NEAR_NODE;
        if (near <= best)
            continue;
        best = near;
        snprintf(name, size, "%.63s", names[i]->d_name);
    }
    ibx_doctor_list_free(names, count);
    return best;
}

static void check_adapter(const struct gpu *gpu, enum nearness near, const char *name)
{
    char value[128];
    static const char *const where[] = {[NEAR_FAR] = "at another processor than it",
                                        [NEAR_NODE] = "at its processor",
                                        [NEAR_BRIDGE] = "below one bridge with it"};
    if (near == NEAR_NONE)
        return;
    snprintf(value, sizeof(value), "%s, %s", name, where[near]);
    add(gpu, "adapter", near == NEAR_FAR ? DOCTOR_LIMITED : DOCTOR_OK,
        "copies cross the link between processors: put adapter and GPU below one, or use a GPU "
        "nearer to the adapter",
        value);
}

/* ------------------------------------------------------------------------ paths */

/* Checks the size of the card's second memory region, which NVIDIA calls BAR1: an adapter reaches
 * only that much at once. A region with a 64-bit address takes two lines, of which the second has
 * zeros; on some cards the first region is such a one, too. */
static void check_bar(const struct gpu *gpu)
{
    char path[PATH_MAX], line[128], value[96];
    unsigned long long start = 0, end = 0;
    unsigned regions = 0;
    snprintf(path, sizeof(path), "%s/resource", gpu->folder);
    FILE *file = fopen(ibx_doctor_path(path), "re");
    for (int i = 0; file && i < PCI_BARS && regions < 2 && fgets(line, sizeof(line), file); i++)
        regions += sscanf(line, "%llx %llx", &start, &end) == 2 && end > start;
    if (file)
        fclose(file);
    if (regions < 2)
        return;
    bool small = end - start + 1 < gpu->memory;
    snprintf(value, sizeof(value), "%llu MiB of %zu MiB of memory", (end - start + 1) >> 20,
             gpu->memory >> 20);
    add(gpu, "BAR1", small ? DOCTOR_LIMITED : DOCTOR_OK,
        "only so much can be registered for GPUDirect at once: switch on \"above 4G decoding\" "
        "and a resizable BAR in the firmware",
        value);
}

/* Makes the same choice as the back end, as far as that is possible without a connection. Returns
 * whether copies go straight into the GPU's memory. */
static bool check_copies(const struct gpu *gpu, enum nearness near)
{
    bool peermem = ibx_doctor_exists(MODULE_PEERMEM);
    const char *remedy = NULL, *value = "straight into its memory by dma-buf";
    char ordered[96];
    if (near == NEAR_NONE) {
        value = "through pinned memory; in place on one host";
    } else if (!gpu->dma_buf && !peermem) {
        value = "through pinned memory: neither dma-buf nor nvidia-peermem";
        remedy = "use NVIDIA's open kernel modules and Linux 5.12, or load nvidia-peermem";
    } else if (!gpu->ordered && !gpu->flushed) {
        value = "through pinned memory: writes from outside are neither ordered nor flushed";
        remedy = "use a newer driver (CUDA 11.3), or another GPU";
    } else {
        snprintf(ordered, sizeof(ordered), "straight into its memory by %s, %s",
                 gpu->dma_buf ? "dma-buf" : "nvidia-peermem",
                 gpu->ordered ? "ordered by the GPU" : "flushed after each");
        value = ordered;
    }
    add(gpu, "copies", remedy ? DOCTOR_LIMITED : DOCTOR_OK, remedy, value);
    return value == ordered;
}

/* Loads the tuning file. -ENOENT: there is none. */
static int load_tuning(struct ibx_tuning *tuning, char file[PATH_MAX], struct ibx_error *err)
{
    int rc = ibx_glue_tuning_file(file, err);
    if (!rc && !*file)
        rc = ibx_error_set(err, -ENOENT, "rdma.tuning says none");
    if (rc)
        return rc;
    return ibx_tuning_load(ibx_doctor_path(file), tuning, err);
}

/* What the tuning file says about this GPU, or the defaults. */
static struct ibx_choice choice_of(const struct ibx_cuda *cuda, const struct gpu *gpu)
{
    struct ibx_tuning tuning = {0};
    struct ibx_tuning_machine here;
    struct ibx_error err = {0};
    char file[PATH_MAX] = "", value[160];
    int rc = load_tuning(&tuning, file, &err);
    bool none = rc == -ENOENT || rc == -ENOTDIR;
    if (rc && !none) {
        add(gpu, "tuning", DOCTOR_MISSING,
            "GVirtuS does not start with this file: correct it, or " MEASURE, err.message);
        return ibx_choice_default;
    }
    ibx_tuning_machine_of(cuda, gpu->index, &here);
    if (none || ibx_tuning_fits(&tuning, &here, &err)) {
        snprintf(value, sizeof(value), "not %s: %.140s", none ? "measured" : "used", err.message);
        add(gpu, "tuning", DOCTOR_LIMITED, MEASURE, value);
        return ibx_choice_default;
    }
    snprintf(value, sizeof(value), "measured, in %.140s", file);
    add(gpu, "tuning", DOCTOR_OK, NULL, value);
    return tuning.choice;
}

/* Which path copies take, by their sizes. */
static void check_paths(const struct ibx_cuda *cuda, const struct gpu *gpu, bool direct)
{
    struct ibx_choice choice = choice_of(cuda, gpu);
    unsigned threads = choice.threads ? choice.threads : ibx_copy_threads_count();
    char text[160];
    ibx_tuning_describe(&choice, IBX_CHOICE_TO_DEVICE, threads, direct, text, sizeof(text));
    add(gpu, "H2D", DOCTOR_OK, NULL, text);
    ibx_tuning_describe(&choice, IBX_CHOICE_FROM_DEVICE, threads, direct, text, sizeof(text));
    add(gpu, "D2H", DOCTOR_OK, NULL, text);
    if (threads < 2)
        add(gpu, "threads", DOCTOR_LIMITED,
            "set rdma.gpu_threads if there are idle processors, or give the back end more",
            "one thread copies for a client: there are fewer than 12 processors");
}

static void check_one_gpu(const struct ibx_cuda *cuda, int index)
{
    char adapter[64] = "";
    struct gpu gpu = gpu_of(cuda, index);
    enum nearness near = nearest(&gpu, adapter, sizeof(adapter));
    ibx_doctor_add("gpu", gpu.label, gpu.dma_buf ? DOCTOR_OK : DOCTOR_LIMITED,
                   "GPUDirect by dma-buf needs the open kernel modules and Linux 5.12",
                   "%s, GPUDirect RDMA %s, dma-buf %s", gpu.name, gpu.rdma ? "yes" : "no",
                   gpu.dma_buf ? "yes" : "no");
    bool direct = check_copies(&gpu, near);
    check_paths(cuda, &gpu, direct);
    check_adapter(&gpu, near, adapter);
    check_bar(&gpu);
}

static void add_no_driver(const struct ibx_error *err)
{
    if (err->code == -ENOENT)
        ibx_doctor_add("gpu", "CUDA", DOCTOR_MISSING,
                       "only a back end needs it: install NVIDIA's driver (libcuda.so.1)",
                       "no driver here");
    else
        ibx_doctor_add("gpu", "CUDA", DOCTOR_MISSING, err->message, "no driver that can be used");
}

void ibx_doctor_check_gpu(void)
{
    struct ibx_error err = {0};
    const struct ibx_cuda *cuda = ibx_cuda_load(&err);
    int (*init)(unsigned flags), (*device_count)(int *count);
    int version = 0, count = 0;
    *(void **)&init = ibx_cuda_symbol("cuInit");
    *(void **)&device_count = ibx_cuda_symbol("cuDeviceGetCount");
    if (cuda && (!init || !device_count))
        ibx_error_set(&err, -EINVAL, "it has no cuInit or cuDeviceGetCount");
    if (!init || !device_count) {
        add_no_driver(&err);
        return;
    }
    int rc = init(0);
    if (!rc)
        rc = device_count(&count);
    cuda->driver_get_version(&version);
    if (rc || !count) {
        ibx_doctor_add("gpu", "CUDA", DOCTOR_MISSING, "see nvidia-smi",
                       "driver %d.%d, but no GPU (error %d)", version / 1000, version % 1000 / 10,
                       rc);
        return;
    }
    ibx_doctor_add("gpu", "CUDA", DOCTOR_OK, NULL, "driver %d.%d, %d GPUs", version / 1000,
                   version % 1000 / 10, count);
    for (int i = 0; i < count; i++)
        check_one_gpu(cuda, i);
    ibx_doctor_add("gpu", "nvidia-peermem", DOCTOR_OK, NULL, "%s",
                   ibx_doctor_exists(MODULE_PEERMEM)
                       ? "loaded"
                       : "not loaded; only where dma-buf is missing is it needed");
}
