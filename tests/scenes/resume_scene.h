/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One session that is kept while its connections break, of a client and a server in this process,
 * and what these say to each other. Linked with cuts.h.
 */
#ifndef IBX_TESTS_SCENES_RESUME_SCENE_H
#define IBX_TESTS_SCENES_RESUME_SCENE_H

#include "tests/scenes/cuts.h"

#define SECONDS 30u /* for which sessions are kept */

/* The provider of both ends; the server's address, NULL: 127.0.0.1; a file with a key of alice's,
 * "": there are no keys. */
extern const char *scene_provider, *scene_host;
extern char scene_key_file[64];
/* From connection to connection the provider changes, with scene_other_path(). */
extern bool scene_paths_change;
/* The client's URI names providers. */
extern bool scene_paths_in_query;

const char *scene_other_path(void);

struct scene {
    struct ibx_session *listening, *server, *client;
    pthread_t accepting, serving;
    int (*serve)(struct ibx_session *s, void *argument);
    void *argument;
    int served;
};

void scene_options(struct ibx_options *options);
/* As GVirtuS: a thread for each session that accept returns, which is one here. */
void scene_accept(struct scene *scene);
/* A server that accepts. */
void scene_listen(struct scene *scene, unsigned seconds);
/* ... and a client that has connected. */
void scene_open(struct scene *scene, unsigned seconds, int (*serve)(struct ibx_session *, void *),
                void *argument);
/* What `serve` has returned. */
int scene_join(struct scene *scene);
void scene_close(struct scene *scene);

/* Requests and answers of all sizes: both sides make the same plan. */
struct talk {
    uint64_t seed;
    unsigned turns;
};

/* `serve` of a scene that is opened for the talk which is its argument. */
int talk_serve(struct ibx_session *s, void *talk);
/* The client's part, to the end of both sessions, and of the scene. How often the session went on;
 * `events`, or NULL: those of the client's and the server's first connection. */
unsigned scene_talk(struct scene *scene, const struct talk *talk, unsigned long events[2]);

#endif
