/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The application of classic_toy.h. "echo" makes calls of many sizes, and compares the answers;
 * "die" has its back end killed in the middle; "cut" dies inside a request; "hang" waits to be
 * killed after a call. LOCAL: it loads the front-end library itself, as an interpreter does.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX (8u << 20)

typedef int call_function(const char *routine, const char *in, size_t in_length, char *out,
                          size_t *out_length);

#ifdef LOCAL
static call_function *find_call(void)
{
    void *library = dlopen(FRONTEND, RTLD_NOW | RTLD_LOCAL);
    return library ? (call_function *)dlsym(library, "toy_call") : NULL;
}
#else
call_function toy_call;
static call_function *find_call(void)
{
    return toy_call;
}
#endif

static char in[BYTES_MAX], out[BYTES_MAX];

static int echo(call_function *call, size_t length, unsigned seed)
{
    size_t got = 0;
    for (size_t i = 0; i < length; i++)
        in[i] = (char)((i * 31 + seed) >> (i & 3));
    memset(out, 0, length);
    int code = call("Echo", in, length, out, &got);
    if (code || got != length || memcmp(in, out, length)) {
        printf("echo of %zu bytes: code %d, %zu bytes\n", length, code, got);
        return 1;
    }
    return 0;
}

static int run_echo(call_function *call)
{
    static const size_t lengths[] = {
        0, 1, 8, 100, 4096, 16383, 16384, 65537, 1u << 20, (1u << 20) + 1, BYTES_MAX, 3};
    size_t got = 0;
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        if (echo(call, lengths[i], i))
            return 1;
    }
    int code = call("Unknown", in, 10, out, &got);
    printf(code == -1 && got == 0 ? "ok\n" : "unknown routine: code %d\n", code);
    return code != -1;
}

static int run_die(call_function *call)
{
    size_t got = 1;
    if (echo(call, 100, 1))
        return 1;
    int first = call("Die", in, 10, out, &got);
    int second = call("Echo", in, 10, out, &got);
    printf("codes %d %d, %zu bytes\n", first, second, got);
    return 0;
}

static int run_cut(call_function *call)
{
    size_t got = 0;
    return echo(call, 100, 1) || call("Cut", in, 10, out, &got);
}

/* Waits to be killed. */
static int run_hang(call_function *call)
{
    if (echo(call, 100, 1))
        return 1;
    puts("hanging");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    call_function *call = find_call();
    if (argc != 2 || !call)
        return 2;
    if (!strcmp(argv[1], "hang"))
        return run_hang(call);
    if (!strcmp(argv[1], "cut"))
        return run_cut(call);
    return !strcmp(argv[1], "die") ? run_die(call) : run_echo(call);
}
