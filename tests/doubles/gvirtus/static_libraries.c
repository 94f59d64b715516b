/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program whose libraries have CUDA's runtime in themselves. All reach the remote GPU: those that
 * are loaded with it (LINKED), and those that it opens, FIRST and SECOND, as `how` says:
 *   once        both, outside of all others' scopes; what one has made is valid in the other
 *   again       the first, which is closed and opened again, where it was or elsewhere
 *   flags       one after the other, also where the last one was, with each flag of dlopen(3)
 *   threads     both, again and again, by several threads at once
 *   forked      the first, also by forked children, which open the second
 *   forks       the second, by forked children, some of which begin another program, while the
 *               first is opened and closed
 *   no new code as once, where memory that has been written to cannot become executable
 *   versions    both; the second has another version of CUDA, and fails as without ibx
 *   first calls the first, again and again, while several threads call its own functions
 *   lacked      likewise a function that only its runtime has
 *   namespace   the first, in a namespace of its own: it fails as without ibx
 *   told        the first, which need not work
 * COPY: it names the loader's list of libraries, and so the linker makes a copy of it.
 */
#include "tests/fixtures/island.h"
#include "tests/fixtures/patience.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MDWE /* Linux 6.3 */
#define PR_SET_MDWE              65
#define PR_MDWE_REFUSE_EXEC_GAIN 1UL
#endif

#define THREADS 4
#define ROUNDS  20
#define OWN     (10 + 99 + 150 + 200 + 259 + 15 + 6 + 8) /* static_own() */

#ifdef LINKED
int static_calls(void); /* static_calls.c */
#else
static int static_calls(void)
{
    return 0;
}
#endif

typedef int calls_of(void);
typedef void *memory_of(void);
typedef int takes_of(void *device);

static const char *first, *second;

static int calls(void *library)
{
    calls_of *function = NULL;
    if (library)
        *(void **)&function = dlsym(library, "static_calls");
    return function ? function() : -1;
}

static int once(void)
{
    void *one = dlopen(first, RTLD_NOW | RTLD_LOCAL), *other = dlopen(second, RTLD_LAZY);
    memory_of *memory = NULL;
    takes_of *takes = NULL;
    if (!one || !other || calls(one) || calls(other))
        return 1;
    *(void **)&memory = dlsym(one, "static_memory");
    *(void **)&takes = dlsym(other, "static_takes");
    void *device = memory && takes ? memory() : NULL;
    return !device || takes(device);
}

static int again(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        void *library = dlopen(first, RTLD_NOW | RTLD_LOCAL);
        if (calls(library))
            return 1;
        dlclose(library);
        if (dlopen(first, RTLD_NOW | RTLD_NOLOAD))
            return 2;
    }
    return 0;
}

static int flags(void)
{
    static const int all[] = {
        RTLD_LAZY | RTLD_GLOBAL,
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        RTLD_NOW | RTLD_DEEPBIND,
#endif
        RTLD_LAZY,
        RTLD_NOW | RTLD_NODELETE,
        RTLD_NOW | RTLD_GLOBAL
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (int k = 0; k < 4; k++) {
            void *library = dlopen(k % 2 ? first : second, all[i]);
            if (calls(library) || dlclose(library))
                return 1;
        }
    return 0;
}

static void *opens(void *which)
{
    for (int i = 0; i < ROUNDS; i++) {
        void *library = dlopen(which, RTLD_NOW | RTLD_LOCAL);
        if (calls(library))
            return which;
        dlclose(library);
    }
    return NULL;
}

static int threads(void)
{
    pthread_t all[THREADS];
    int failed = 0;
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&all[i], NULL, opens, (void *)(size_t)(i % 2 ? first : second)))
            return 1;
    for (size_t i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(all[i], &result);
        failed += result != NULL;
    }
    return failed;
}

/* Whether it fails, which is said. */
static int fails(pid_t child)
{
    int status = -1;
    const int failed = waitpid(child, &status, 0) != child || status;
    if (failed)
        fprintf(stderr, "a child has ended with status 0x%x\n", (unsigned)status);
    return failed;
}

static int forked(void)
{
    void *library = dlopen(first, RTLD_NOW | RTLD_LOCAL);
    int failed = calls(library);
    for (int i = 0; i < 3 && !failed; i++) {
        const pid_t child = fork();
        if (!child)
            _exit(calls(library) || calls(dlopen(second, RTLD_NOW | RTLD_LOCAL)));
        failed = fails(child);
    }
    return failed || calls(library);
}

/* More, by hand; fewer, where one is enough. */
static int rounds_or(int usual)
{
    const char *wanted = getenv("TEST_STATIC_ROUNDS");
    return wanted && *wanted ? atoi(wanted) : usual;
}

static atomic_bool is_over;

static void *opens_meanwhile(void *which)
{
    while (!atomic_load(&is_over)) {
        void *library = dlopen(which, RTLD_NOW | RTLD_LOCAL);
        if (calls(library))
            return which;
        dlclose(library);
    }
    return NULL;
}

/* Whether the loader's list is. */
static bool is_consistent(void)
{
    const struct r_debug *debug = NULL;
    for (const ElfW(Dyn) *d = _DYNAMIC; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_DEBUG)
            debug = (const struct r_debug *)d->d_un.d_ptr;
    return debug && debug->r_state == RT_CONSISTENT;
}

/* A child that hangs ends by a signal. A child that is forked in the middle of another thread's
 * dlopen(3) cannot open a library, which GVirtuS does to connect: the C library ends this child. */
static int forks(void)
{
    const int rounds = rounds_or(ROUNDS);
    const unsigned seconds = 20 * patience_times();
    void *library = dlopen(second, RTLD_NOW | RTLD_LOCAL), *result = NULL;
    pthread_t thread;
    int failed = calls(library);
    if (failed || pthread_create(&thread, NULL, opens_meanwhile, (void *)(size_t)first))
        return 1;
    for (int i = 0; i < rounds && !failed; i++) {
        const pid_t child = fork();
        if (!child) {
            alarm(seconds);
            if (i % 2)
                execl("/proc/self/exe", "static-opener", "linked", NULL);
            _exit(is_consistent() && calls(library));
        }
        failed = fails(child);
    }
    atomic_store(&is_over, true);
    pthread_join(thread, &result);
    return failed || result;
}

static int no_new_code(void)
{
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0UL, 0UL, 0UL) && errno != EINVAL)
        return 1;
    return once();
}

static int versions(void)
{
    void *one = dlopen(first, RTLD_NOW | RTLD_LOCAL), *other = dlopen(second, RTLD_NOW);
    return calls(one) || calls(other) != 35 || calls(one);
}

static calls_of *called;
static int answer; /* its */
static atomic_size_t begun;

/* Calls a function of the library, while another thread finds out where such functions lead. One
 * thread after the other does so. */
static void *calls_first(void *result)
{
    const size_t turn = atomic_fetch_add(&begun, 1) % (4 * THREADS);
    for (volatile size_t i = 0; i < turn * 20000;)
        i++;
    for (int i = 0; i < ROUNDS; i++)
        if (called() != answer)
            return result;
    return NULL;
}

static int by_threads(const char *function, int returns)
{
    const int rounds = rounds_or(3 * ROUNDS);
    int failed = 0;
    answer = returns;
    for (int i = 0; i < rounds && !failed; i++) {
        pthread_t all[3 * THREADS];
        void *library = dlopen(first, RTLD_NOW | RTLD_LOCAL);
        *(void **)&called = library ? dlsym(library, function) : NULL;
        if (!called)
            return 1;
        for (size_t k = 0; k < 3 * THREADS; k++)
            if (pthread_create(&all[k], NULL, calls_first, &library))
                return 1;
        for (size_t k = 0; k < 3 * THREADS; k++) {
            void *result;
            pthread_join(all[k], &result);
            failed += result != NULL;
        }
        dlclose(library);
    }
    return failed;
}

/* The functions' names begin as the runtime's. */
static int first_calls(void)
{
    return by_threads("static_own", OWN);
}

static int lacked(void)
{
    return by_threads("static_lacks", 801);
}

/* And then another library in the same namespace. */
static int namespace(void)
{
    Lmid_t name = LM_ID_NEWLM;
    void *library = dlmopen(name, first, RTLD_NOW | RTLD_LOCAL);
    if (calls(library) != 35 || dlinfo(library, RTLD_DI_LMID, &name))
        return 1;
    return calls(dlmopen(name, second, RTLD_NOW | RTLD_LOCAL)) != 35;
}

static int told(void)
{
    return !dlopen(first, RTLD_LAZY | RTLD_LOCAL);
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {{"once", once},
               {"flags", flags},
               {"again", again},
               {"threads", threads},
               {"forked", forked},
               {"forks", forks},
               {"no new code", no_new_code},
               {"versions", versions},
               {"first calls", first_calls},
               {"lacked", lacked},
               {"namespace", namespace},
               {"told", told}};
    const char *how = count > 1 ? arguments[1] : "";
#ifdef COPY
    if (!_r_debug.r_version)
        return 1;
#endif
    first = getenv("TEST_STATIC_LIBRARY");
    second = getenv("TEST_STATIC_LIBRARY_2");
    if (static_calls())
        return 1;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(how, all[i].name))
            return first && second ? all[i].run() : 1;
    return strcmp(how, "linked") != 0;
}
