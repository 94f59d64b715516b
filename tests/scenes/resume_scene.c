/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/resume_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

const char *scene_provider, *scene_host;
char scene_key_file[64];
bool scene_paths_change, scene_paths_in_query;

const char *scene_other_path(void)
{
    return strcmp(scene_provider, "tcp") ? "tcp" : "shm";
}

static void *serve_thread(void *argument)
{
    struct scene *scene = argument;
    scene->served = scene->serve(scene->server, scene->argument);
    return NULL;
}

static void *accept_thread(void *argument)
{
    struct scene *scene = argument;
    struct ibx_session *another;
    if (ibx_session_accept(scene->listening, &scene->server, NULL))
        return NULL;
    pthread_create(&scene->serving, NULL, serve_thread, scene);
    ibx_session_accept(scene->listening, &another, NULL);
    abort(); /* a connection of the same session is none for GVirtuS */
}

void scene_accept(struct scene *scene)
{
    pthread_create(&scene->accepting, NULL, accept_thread, scene);
}

void scene_options(struct ibx_options *options)
{
    ibx_options_init(options);
    assert_int_equal(ibx_options_set(options, "provider", scene_provider, NULL), 0);
    options->insecure = scene_host != NULL;
    assert_int_equal(ibx_options_set(options, "key_file", scene_key_file, NULL), 0);
    assert_int_equal(ibx_options_set(options, "name", scene_key_file[0] ? "alice" : "", NULL), 0);
}

void scene_listen(struct scene *scene, unsigned seconds)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    scene_options(&options);
    if (scene_paths_change) {
        char both[32];
        snprintf(both, sizeof(both), "%s,%s", scene_provider, scene_other_path());
        ibx_options_set(&options, "provider", both, NULL);
        ibx_options_set(&options, "ofi_provider", "tcp", NULL); /* an emulation will do */
    }
    char uri[128];
    snprintf(uri, sizeof(uri), "rdma://%s:0", scene_host ? scene_host : "127.0.0.1");
    if (ibx_session_create(uri, &options, &scene->listening, &err))
        fail_msg("%s", err.message);
    ibx_session_keep(scene->listening, seconds);
    if (ibx_session_serve(scene->listening, &err))
        fail_msg("%s", err.message);
    scene_accept(scene);
}

void scene_open(struct scene *scene, unsigned seconds, int (*serve)(struct ibx_session *, void *),
                void *argument)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    *scene = (struct scene){.serve = serve, .argument = argument};
    client_end.count = server_end.count = 0;
    scene_listen(scene, seconds);
    scene_options(&options);
    if (scene_paths_change) /* each connection is made with one of them: change_path() */
        ibx_options_set(&options, "provider", "shm,tcp,ofi", NULL);
    char uri[160];
    snprintf(uri, sizeof(uri), "%s%s", ibx_session_uri(scene->listening),
             scene_paths_in_query ? "?provider=shm,tcp" : "");
    if (ibx_session_create(uri, &options, &scene->client, &err))
        fail_msg("%s", err.message);
    ibx_session_keep(scene->client, seconds);
    /* A cut in the first two messages is an ordinary failure to connect. */
    if (ibx_session_connect(scene->client, &err))
        fail_msg("%s", err.message);
}

int scene_join(struct scene *scene)
{
    pthread_join(scene->serving, NULL);
    return scene->served;
}

void scene_close(struct scene *scene)
{
    ibx_session_destroy(scene->client);
    pthread_cancel(scene->accepting);
    pthread_join(scene->accepting, NULL);
    ibx_session_destroy(scene->server);
    ibx_session_destroy(scene->listening);
}

static size_t some_size(struct random *r)
{
    static const size_t most[] = {8, 300, 20000, 200000, 400000};
    return random_below(r, most[random_below(r, 5)]) + 1;
}

static int move(struct ibx_session *s, struct random *r, bool writing, uint8_t *bytes, size_t total)
{
    for (size_t at = 0, n; at < total; at += n) {
        n = some_size(r);
        n = n < total - at ? n : total - at;
        ssize_t rc =
            writing ? ibx_session_write(s, bytes + at, n) : ibx_session_read(s, bytes + at, n);
        if (rc != (ssize_t)n || (writing && random_below(r, 4) == 0 && ibx_session_sync(s)))
            return -1;
    }
    return writing ? ibx_session_sync(s) : 0;
}

static int talk(struct ibx_session *s, const struct talk *t, bool server)
{
    struct random plan = {t->seed};
    uint8_t *kept = NULL; /* a client's bytes stay until the answer is read */
    int rc = 0;
    for (unsigned turn = 0; turn < t->turns && !rc; turn++) {
        size_t total = some_size(&plan) + some_size(&plan) + some_size(&plan);
        uint8_t *bytes = calloc(1, total);
        bool writing = (turn % 2 == 0) != server; /* the client begins */
        struct random pieces = {random_next(&plan) + writing};
        if (writing)
            pattern_fill(bytes, total, t->seed + turn);
        rc = move(s, &pieces, writing, bytes, total);
        if (!rc && pattern_check(bytes, total, t->seed + turn) != total)
            rc = -2;
        free(kept);
        kept = writing ? bytes : NULL;
        if (!writing)
            free(bytes);
    }
    free(kept);
    return rc;
}

/* A last call: from then on nothing keeps BYE from arriving, without which the server waits. */
static int talk_end(struct ibx_session *s, bool server)
{
    uint8_t byte = 7;
    int rc = 0;
    for (unsigned turn = 0; turn < 2 && !rc; turn++) {
        bool writing = (turn == 0) != server;
        ssize_t n = writing ? ibx_session_write(s, &byte, 1) : ibx_session_read(s, &byte, 1);
        if (!turn)
            cuts_disarm(server ? &server_end : &client_end);
        rc = n != 1 || byte != 7 || (writing && ibx_session_sync(s)) ? -4 : 0;
    }
    return rc;
}

int talk_serve(struct ibx_session *s, void *argument)
{
    uint8_t byte;
    int rc = talk(s, argument, true);
    if (!rc)
        rc = talk_end(s, true);
    if (!rc && ibx_session_read(s, &byte, 1)) /* the client closes */
        rc = -3;
    return rc;
}

unsigned scene_talk(struct scene *scene, const struct talk *t, unsigned long events[2])
{
    int rc = talk(scene->client, t, false);
    if (!rc)
        rc = talk_end(scene->client, false);
    const unsigned resumed = ibx_session_resumed(scene->client);
    if (events)
        events[0] = client_end.faults[0].seen;
    ibx_session_close(scene->client);
    const int served = scene_join(scene);
    if (events)
        events[1] = server_end.faults[0].seen;
    if (rc || served)
        fail_msg("seed %u: client %d \"%s\", server %d \"%s\"", (unsigned)t->seed, rc,
                 ibx_session_reason(scene->client), served, ibx_session_reason(scene->server));
    scene_close(scene);
    return resumed;
}
