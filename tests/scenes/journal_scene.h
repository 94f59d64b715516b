/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A folder of journals that ends with its test, and what its tests have in common. */
#ifndef IBX_TESTS_JOURNAL_SCENE_H
#define IBX_TESTS_JOURNAL_SCENE_H

#include "migrate/journal/journal.h"
#include "tests/scenes/unit.h"

extern char folder[64];
extern struct ibx_error error; /* of the last call */

int make_folder(void **state);
int remove_folder(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

/* A record in its side's first state whose id is all `number`. */
struct ibx_record sample(bool source, uint8_t number);
/* Into the folder; an error has its message. */
int write_record(struct ibx_record *r);
/* Its totals are known once all of its pages have come, and not before. */
void complete_as_its_state(struct ibx_record *r);
/* Writes it in each state by which this one is reached, from new (0) on. */
void bring_to(struct ibx_record *r, enum ibx_journal_state wanted);
/* The only record of the folder. */
struct ibx_record only(void);
/* The message of the last error has this. */
void error_has(const char *word);

void put_file(const char *path, const char *text, size_t length);
size_t get_file(const char *path, char *text, size_t size);
/* Replaces the first `from` in its file. */
void change(const struct ibx_record *r, const char *from, const char *to);
/* Its file is named as damaged, with this word. */
void list_refuses(const struct ibx_record *r, const char *word);
/* The same, after each of these changes alone. */
struct wrong {
    const char *from, *to, *word;
};
void each_is_refused(const struct ibx_record *r, const struct wrong *wrong, size_t count);

/* fork(2), and the child ends with its parent: a failing test leaves none behind. */
pid_t fork_bound(void);
/* Runs `test` in a child, of which the folder may be nobody's: the failures of asserts do not come
 * out of one. It returns 0, or SKIP, or by CHECK where it failed. */
void passes_in_child(int (*test)(void));
/* For such a child. */
bool become_nobody(void);
#define CHECK(good)                                                                                \
    do {                                                                                           \
        if (!(good))                                                                               \
            return __LINE__ % 150 + 100;                                                           \
    } while (0)
#define SKIP 77

#endif
