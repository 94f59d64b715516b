/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cuda.bindings.runtime calls the CUDA runtime by functions of a module beneath it, into which the
 * runtime is linked statically: cuda.bindings._internal.runtime, formerly _bindings.cyruntime, and
 * a second one (.._ptds) for streams by thread. NVIDIA strips these modules, so that redirect.c
 * finds no function in them. But they tell other modules of Cython's where their functions are: the
 * dictionary __pyx_capi__ has a capsule with the address of each of them. The function
 * "_cudaMalloc" calls cudaMalloc() with the same arguments. So when such a module has begun, and
 * before another one reads the dictionary, each capsule gets the address of this library's function
 * or GVirtuS's.
 *
 * Python finds a module's first function by dlsym(3), which is ours (dlsym.c). That function
 * returns a definition with a list of further functions (PEP 489), one of which makes the
 * dictionary. The structures are those of Python's stable ABI, but for the size of an object's
 * head, which differs in builds without a global lock.
 */
#include "frontend-glue/preload/dlsym.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/static_runtime/redirect.h"
#include "frontend-glue/preload/static_runtime/runtime_answers.h"

#include "common/log.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKAGE   "/cuda/bindings/"
#define FUNCTION  "_cuda"
#define VERSION   "_cudaRuntimeGetVersion"
#define BY_THREAD "_ptds"
#define MODULES   16
#define EXECUTE   2 /* Py_mod_exec */
#define LONGEST   128

/* PyModuleDef_Slot. */
struct slot {
    int kind;
    void *value;
};

/* PyModuleDef after its head, PyObject_HEAD. */
struct definition {
    void *(*begin)(void);
    ssize_t index;
    void *copy;
    const char *name, *documentation;
    ssize_t size;
    void *methods;
    struct slot *slots;
};

/* Python's functions. `object`: a PyObject. */
static struct {
    void *definition_type; /* PyModuleDef_Type */
    void *(*definition_of)(void *module);
    void *(*attribute)(void *object, const char *name);
    void (*clear_error)(void);
    int (*next)(void *dictionary, ssize_t *at, void **key, void **value);
    const char *(*text)(void *object);
    int (*set_function)(void *capsule, void *function);
    void (*release)(void *object);
} python;

static bool find_python(void)
{
    static const struct {
        void *place;
        const char *name;
    } all[] = {{&python.definition_type, "PyModuleDef_Type"},
               {&python.definition_of, "PyModule_GetDef"},
               {&python.attribute, "PyObject_GetAttrString"},
               {&python.clear_error, "PyErr_Clear"},
               {&python.next, "PyDict_Next"},
               {&python.text, "PyUnicode_AsUTF8"},
               {&python.set_function, "PyCapsule_SetPointer"},
               {&python.release, "Py_DecRef"}};
    bool good = true;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && good; i++) {
        void *found = dlsym(RTLD_DEFAULT, all[i].name);
        memcpy(all[i].place, &found, sizeof(found));
        good = found;
    }
    return good;
}

/* ----------------------------------------------------------------- functions of the module */

static int lacked(void)
{
    return ibx_frontend_fail(CUDA_NOT_SUPPORTED);
}

/* GVirtuS's libcudart for the runtime of this module, of which there may be none. `is_reported`:
 * then a line says so. */
static void *load(const char *path, const char *version, bool is_reported)
{
    struct ibx_static_runtime runtime = {.path = path, .version = version};
    if (!is_reported)
        atomic_flag_test_and_set(&runtime.is_unreached_reported);
    return ibx_static_runtime_load(&runtime);
}

/* The first module without a libcudart. Many programs import it and call only the driver. */
static struct {
    atomic_flag is_noted, is_reported;
    char path[PATH_MAX];
    const char *version;
} unreached = {ATOMIC_FLAG_INIT, ATOMIC_FLAG_INIT, "", NULL};

static int call_unreached(void)
{
    if (!atomic_flag_test_and_set(&unreached.is_reported))
        load(unreached.path, unreached.version, true);
    return CUDA_INSUFFICIENT_DRIVER;
}

static int count_unreached(int *count)
{
    if (count)
        *count = 0;
    return call_unreached();
}

static void *unreached_target(const char *name)
{
    void *target = ibx_static_runtime_without_gpu(name);
    const bool counts = !strcmp(name, "cudaGetDeviceCount");
    return target   ? target
           : counts ? (void *)(uintptr_t)count_unreached
                    : (void *)(uintptr_t)call_unreached;
}

/* The target of the runtime's function. A program may have chosen streams by thread, as
 * cuda.bindings reads this variable. */
static void *target_of(void *libcudart, const char *name, bool is_by_thread)
{
    static const char *const ends[] = {"_ptsz", BY_THREAD, ""};
    char longer[LONGEST];
    void *target = NULL;
    if (!libcudart)
        return unreached_target(name);
    for (size_t i = is_by_thread ? 0 : 2; i < 3 && !target; i++)
        if (snprintf(longer, sizeof(longer), "%s%s", name, ends[i]) < LONGEST)
            target = dlsym(libcudart, longer);
    dlerror(); /* clears the error of failed lookups */
    if (!target)
        target = ibx_static_runtime_without_gpu(name);
    if (!target)
        ibx_log(IBX_LOG_INFO, "%s of cuda.bindings returns cudaErrorNotSupported", name);
    return target ? target : (void *)(uintptr_t)lacked;
}

/* The libcudart of the same version as the module's runtime, judged by functions that were added or
 * removed between versions; NULL: it has no runtime. A runtime with symbols, which redirect.c has
 * found, is of the same version there. */
static const char *version_of(void *functions)
{
    void *key, *capsule;
    bool is_there = false, of_12 = false, since_12 = false;
    for (ssize_t at = 0; python.next(functions, &at, &key, &capsule);) {
        const char *name = python.text(key);
        is_there = is_there || (name && !strcmp(name, "_cudaMalloc"));
        of_12 = of_12 || (name && !strcmp(name, "_cudaMemAdvise_v2"));
        since_12 = since_12 || (name && !strcmp(name, "_cudaGetKernel"));
    }
    return !is_there  ? NULL
           : of_12    ? "libcudart.so.12"
           : since_12 ? "libcudart.so.13"
                      : "libcudart.so.11.0";
}

/* The module's own function tells the version of the runtime in it, as natively. */
static void replace(void *functions, const char *path)
{
    const char *by_thread = secure_getenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM");
    const char *file = strrchr(path, '/');
    const bool is_by_thread = (file && strstr(file, BY_THREAD)) || (by_thread && atoi(by_thread));
    const char *version = version_of(functions);
    void *libcudart = version ? load(path, version, false) : NULL, *key, *capsule;
    if (version && !libcudart && !atomic_flag_test_and_set(&unreached.is_noted)) {
        snprintf(unreached.path, sizeof(unreached.path), "%s", path);
        unreached.version = version;
    }
    for (ssize_t at = 0; version && python.next(functions, &at, &key, &capsule);) {
        const char *name = python.text(key);
        if (name && !strncmp(name, FUNCTION, strlen(FUNCTION)) && strcmp(name, VERSION))
            python.set_function(capsule, target_of(libcudart, name + 1, is_by_thread));
    }
    python.clear_error(); /* of what is no capsule */
}

/* ---------------------------------------------------------------------------- its beginning */

/* A module that was opened. */
struct module {
    void *definition;
    int (*execute)(void *module);
    char path[PATH_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules[MODULES]; /* never freed */

static struct module *find_module(void *definition)
{
    struct module *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MODULES && modules[i]; i++)
        found = modules[i]->definition == definition ? modules[i] : found;
    pthread_mutex_unlock(&lock);
    return found;
}

/* What Python calls instead of the module's function, which makes the dictionary. */
static int execute(void *object)
{
    const struct module *module = find_module(python.definition_of(object));
    const int rc = module ? module->execute(object) : -1;
    void *functions = rc || !module ? NULL : python.attribute(object, "__pyx_capi__");
    if (functions)
        replace(functions, module->path);
    else if (!rc)
        python.clear_error();
    if (functions)
        python.release(functions);
    return rc;
}

static bool note(void *definition, struct slot *slot, const char *path)
{
    struct module *module = calloc(1, sizeof(*module));
    size_t i = 0;
    if (!module)
        return false;
    module->definition = definition;
    *(void **)&module->execute = slot->value;
    snprintf(module->path, sizeof(module->path), "%s", path);
    pthread_mutex_lock(&lock);
    while (i < MODULES && modules[i])
        i++;
    if (i < MODULES)
        modules[i] = module;
    pthread_mutex_unlock(&lock);
    if (i == MODULES)
        free(module);
    return i < MODULES;
}

/* The definition in this object; NULL: it is a module already (PEP 489 is not used). */
static struct definition *definition_in(char *object)
{
    static const size_t types[] = {8, 24}; /* where the head has the type, its last member */
    for (size_t i = 0; object && i < sizeof(types) / sizeof(types[0]); i++) {
        void *type;
        memcpy(&type, object + types[i], sizeof(type));
        if (type == python.definition_type)
            return (struct definition *)(void *)(object + types[i] + sizeof(type));
    }
    return NULL;
}

static _Thread_local struct {
    void *(*begin)(void);
    const char *path;
} opened;

/* What Python calls instead of the module's first function. */
static void *begin(void)
{
    void *object = opened.begin ? opened.begin() : NULL;
    struct definition *definition = definition_in(object);
    struct slot *slot = definition ? definition->slots : NULL;
    void *ours = (void *)(uintptr_t)execute;
    while (slot && slot->kind && slot->kind != EXECUTE)
        slot++;
    if (slot && slot->kind && slot->value != ours && note(object, slot, opened.path))
        slot->value = ours;
    return object;
}

static void *begins(const struct link_map *library, void *function)
{
    if (!strstr(library->l_name, PACKAGE) || !strstr(library->l_name, "runtime") || !find_python())
        return function;
    *(void **)&opened.begin = function;
    opened.path = library->l_name;
    return (void *)(uintptr_t)begin;
}

__attribute__((constructor)) static void watch(void)
{
    ibx_frontend_dlsym_python(begins);
}
