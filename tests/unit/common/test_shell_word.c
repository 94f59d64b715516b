/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A shell that reads the word has the path again. */
#include "common/shell_word.h"
#include "tests/fixtures/unit.h"

#include <stdio.h>
#include <string.h>

static void shell_reads(const char *word)
{
    char command[3 * PATH_MAX], got[PATH_MAX] = "";
    snprintf(command, sizeof(command), "printf %%s %s", ibx_shell_word(word).text);
    FILE *shell = popen(command, "re");
    assert_non_null(shell);
    const size_t n = fread(got, 1, sizeof(got) - 1, shell);
    assert_int_equal(pclose(shell), 0);
    assert_int_equal(n, strlen(word));
    assert_string_equal(got, word);
}

static void test_shell_reads_the_word(NO_STATE)
{
    static const char *const words[] = {
        "/run/web.qmp", "/run/my web.qmp", "/run/it's web", "'", "''", "$HOME/`id`", "a\\b", "*",
        "~/web.qmp",    "/run/wéb-网.qmp", "a;b",           "#", "",   "A=b",        "a\"b"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        shell_reads(words[i]);
}

/* What needs no quotes has none. */
static void test_plain_words_stay(NO_STATE)
{
    assert_string_equal(ibx_shell_word("/run/web-1_2.qmp").text, "/run/web-1_2.qmp");
    assert_string_equal(ibx_shell_word("/run/wéb.qmp").text, "/run/wéb.qmp");
    assert_string_equal(ibx_shell_word("/run/my web").text, "'/run/my web'");
}

/* A word that is too long is cut, and its quotes are closed. */
static void test_long_words_are_cut(NO_STATE)
{
    static char word[2 * PATH_MAX];
    memset(word, 'a', sizeof(word) - 1);
    assert_int_equal(strlen(ibx_shell_word(word).text), PATH_MAX - 1);
    memset(word, '\'', sizeof(word) - 1);
    const struct ibx_shell_word cut = ibx_shell_word(word);
    assert_in_range(strlen(cut.text), PATH_MAX - 5, PATH_MAX - 1);
    assert_string_equal(cut.text + strlen(cut.text) - 5, "'\\'''");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shell_reads_the_word),
        cmocka_unit_test(test_plain_words_stay),
        cmocka_unit_test(test_long_words_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
