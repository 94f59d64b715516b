/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A module of Python as Cython makes them, whose functions call a CUDA runtime that is stripped,
 * and fails without a driver. TEST_OF_12: it is of CUDA 12. The parts of Python's API that it uses
 * are declared here. */
#include <stddef.h>
#include <stdlib.h>
#include <sys/types.h>

struct head {
    ssize_t count;
    void *type;
};

struct slot {
    int kind;
    void *value;
};

struct definition {
    struct head head;
    void *(*begin)(void);
    ssize_t index;
    void *copy;
    const char *name, *documentation;
    ssize_t size;
    void *methods;
    struct slot *slots;
    void *traverse, *clear, *free;
};

void *PyModuleDef_Init(struct definition *definition);
void *PyDict_New(void);
int PyDict_SetItemString(void *dictionary, const char *name, void *object);
void *PyCapsule_New(void *pointer, const char *name, void *destructor);
int PyObject_SetAttrString(void *object, const char *name, void *value);
__attribute__((visibility("default"))) void *PyInit_runtime(void);
__attribute__((visibility("default"))) void *PyInit_runtime_ptds(void);

static int version(int *value)
{
    *value = 13000;
    return 0;
}

static int fails(void)
{
    return 35;
}

static int other(void)
{
    return 7;
}

static int add(void *functions, const char *name, const char *signature, int (*function)(void))
{
    return PyDict_SetItemString(functions, name,
                                PyCapsule_New((void *)(size_t)function, signature, NULL));
}

static int execute(void *module)
{
    static const char *const runtimes[] = {
        "_cudaMalloc",  "_cudaMemcpy",    "_cudaMemcpyAsync",      "_cudaFree",
        "_cudaNothing", "_cudaGetKernel", "_cudaCreateChannelDesc"};
    void *functions = PyDict_New();
    int rc = add(functions, "_cudaRuntimeGetVersion", "cudaError_t (int *)",
                 (int (*)(void))(void *)(size_t)version);
    for (size_t i = 0; i < sizeof(runtimes) / sizeof(runtimes[0]); i++)
        rc |= add(functions, runtimes[i], "cudaError_t (...)", fails);
    if (getenv("TEST_OF_12"))
        rc |= add(functions, "_cudaMemAdvise_v2", "cudaError_t (...)", fails);
    rc |= add(functions, "_getLocalRuntimeVersion", "int (void)", other);
    return rc | PyObject_SetAttrString(module, "__pyx_capi__", functions);
}

void *PyInit_runtime(void)
{
    static struct slot slots[] = {{2, (void *)(size_t)execute}, {0, NULL}};
    static struct definition definition = {.head = {.count = 1}, .name = "runtime", .slots = slots};
    return PyModuleDef_Init(&definition);
}

void *PyInit_runtime_ptds(void)
{
    return PyInit_runtime();
}
