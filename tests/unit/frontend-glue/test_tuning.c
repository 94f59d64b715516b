/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tuning file: what is read, what is refused with which message, and when it applies. */
#include "tests/fixtures/choice_sound.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct ibx_tuning tuning;
static struct ibx_error err;

static int parse(const char *text)
{
    memset(&tuning, 0, sizeof(tuning));
    memset(&err, 0, sizeof(err));
    return ibx_tuning_parse("a-file", text, strlen(text), &tuning, &err);
}

/* What is printed is read back unchanged. */
static void assert_printable(void)
{
    const struct ibx_tuning printed = tuning;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ibx_tuning_print(&printed, out);
    fclose(out);
    assert_int_equal(parse(text), 0);
    assert_memory_equal(&tuning, &printed, sizeof(printed));
    free(text);
}

static void test_nothing(void **state)
{
    (void)state;
    assert_int_equal(parse("# all as it was\n"), 0);
    assert_true(tuning.found);
    assert_memory_equal(&tuning.choice, &ibx_choice_default, sizeof(tuning.choice));
    assert_string_equal(tuning.machine.gpu, "");
    assert_string_equal(tuning.file, "a-file");
    assert_printable();
    assert_true(choice_sound(&ibx_choice_default));
}

static const char whole[] = "gpu : NVIDIA: H200  # a colon, too\n"
                            "driver : 12.8\n"
                            "host : gpu01\n"
                            "h2d.inline : 32K\n"
                            "h2d.in_place : 64K\n"
                            "h2d.copy_threads : 4M\n"
                            "h2d.direct : never\n"
                            "d2h.inline : 8193\n"
                            "d2h.in_place : 0\n"
                            "d2h.copy_threads : never\n"
                            "d2h.direct : 1G\n"
                            "chunk : 256K\n"
                            "threads : 6\n";

static void test_all(void **state)
{
    (void)state;
    const struct ibx_choice_way *to = &tuning.choice.ways[IBX_CHOICE_TO_DEVICE],
                                *from = &tuning.choice.ways[IBX_CHOICE_FROM_DEVICE];
    assert_int_equal(parse(whole), 0);
    assert_string_equal(tuning.machine.gpu, "NVIDIA: H200");
    assert_true(to->inline_max == 32u << 10 && to->in_place_min == 64u << 10);
    assert_true(to->copy_threads_min == 4u << 20 && to->direct_min == IBX_CHOICE_NEVER);
    assert_true(from->inline_max == 8193 && from->in_place_min == 0);
    assert_true(from->copy_threads_min == IBX_CHOICE_NEVER && from->direct_min == 1u << 30);
    assert_true(tuning.choice.chunk == 256u << 10 && tuning.choice.threads == 6);
    assert_printable();
    assert_int_equal(parse("h2d.crew : 2M\nd2h.crew : never\n"), 0); /* keys of earlier versions */
    assert_true(to->copy_threads_min == 2u << 20 && from->copy_threads_min == IBX_CHOICE_NEVER);
}

/* Each message names the file, the line, the key, the value and the allowed ones. */
static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *line, *value, *accepted;
    } cases[] = {
        {"h2d.inline : 2M", "\"2M\"", "0 to 1M"},
        {"d2h.inline : 65K", "\"65K\"", "0 to 64K"},
        {"d2h.inline : never", "\"never\"", "0 to 64K"},
        {"h2d.copy_threads : soon", "\"soon\"", "or never"},
        {"h2d.copy_threads : -1", "\"-1\"", "or never"},
        {"h2d.direct :", "\"\"", "or never"},
        {"d2h.in_place : 1025G", "\"1025G\"", "1024G"},
        {"chunk : 0", "\"0\"", "a multiple of 64K, to 512K"},
        {"chunk : 100K", "\"100K\"", "a multiple of 64K"},
        {"chunk : 576K", "\"576K\"", "to 512K"},
        {"threads : 17", "\"17\"", "0 to 16"},
        {"threads : \033[1m", "\"?[1m\"", "0 to 16"},
        {"gpu :", "\"\"", "1 to 127 characters"},
        {"driver : 12.8 and some more", "\"12.8 and", "1 to 15 characters"},
        {"d2h.staged : 4K", "no such key", "inline, in_place, copy_threads or direct"},
        {"H2D.inline : 4K", "no such key", "gpu, driver, host"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[128], key[32];
        snprintf(text, sizeof(text), "chunk : 64K\n%s\n", cases[i].line);
        if (!strncmp(cases[i].line, "chunk", 5))
            snprintf(text, sizeof(text), "\n%s\n", cases[i].line);
        snprintf(key, sizeof(key), "(%.*s)", (int)strcspn(cases[i].line, " "), cases[i].line);
        assert_int_equal(parse(text), -EINVAL);
        assert_false(tuning.found);
        assert_int_equal(err.code, -EINVAL);
        assert_non_null(strstr(err.message, "a-file line 2"));
        assert_non_null(strstr(err.message, key));
        assert_non_null(strstr(err.message, cases[i].value));
        assert_non_null(strstr(err.message, cases[i].accepted));
    }
    assert_int_equal(parse("no colon\n"), -EINVAL);
    assert_int_equal(ibx_tuning_load("/nowhere/tuning", &tuning, &err), -ENOENT);
}

static void test_elsewhere(void **state)
{
    (void)state;
    const struct ibx_tuning_machine here = {"NVIDIA: H200", "12.8", "gpu01"};
    struct ibx_tuning_machine other;
    assert_int_equal(parse(whole), 0);
    assert_int_equal(ibx_tuning_fits(&tuning, &here, &err), 0);
    other = here;
    strcpy(other.gpu, "NVIDIA A100");
    assert_int_equal(ibx_tuning_fits(&tuning, &other, &err), -EXDEV);
    assert_non_null(strstr(err.message, "the GPU \"NVIDIA: H200\" and this is \"NVIDIA A100\""));
    other = here;
    strcpy(other.driver, "13.0");
    assert_int_equal(ibx_tuning_fits(&tuning, &other, &err), -EXDEV);
    assert_non_null(strstr(err.message, "driver \"12.8\" and this is \"13.0\""));
    other = here;
    strcpy(other.host, "gpu02");
    assert_int_equal(ibx_tuning_fits(&tuning, &other, &err), -EXDEV);
    assert_non_null(strstr(err.message, "the host \"gpu01\" and this is \"gpu02\""));
    /* What the file does not contain is not compared. */
    assert_int_equal(parse("gpu : NVIDIA: H200\n"), 0);
    assert_int_equal(ibx_tuning_fits(&tuning, &other, &err), 0);
}

/* The simulated GPU's names, which must be valid in the file. */
static void test_place(void **state)
{
    (void)state;
    struct ibx_tuning_machine place;
    const struct ibx_cuda *cuda = ibx_cuda_load(&err);
    assert_non_null(cuda);
    ibx_tuning_machine_of(cuda, 1, &place);
    assert_string_equal(place.gpu, "double 1");
    assert_string_equal(place.driver, "13.0");
    assert_true(place.host[0] && !strpbrk(place.host, "#\n\t "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing),   cmocka_unit_test(test_all),   cmocka_unit_test(test_bad),
        cmocka_unit_test(test_elsewhere), cmocka_unit_test(test_place),
    };
    return cmocka_run_group_tests_name("tuning", tests, NULL, NULL);
}
