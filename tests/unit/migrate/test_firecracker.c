/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Firecracker's messages, the file of a working set, and the socket at which a handler listens. */
#include "migrate/firecracker/firecracker.h"
#include "migrate/firecracker/internal.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define REGION "{\"base_host_virt_addr\":%s,\"size\":%s,\"offset\":%s%s}"

static struct ibx_firecracker_layout layout;
static struct ibx_error err;

static int parse(const char *text)
{
    err = (struct ibx_error){0};
    return ibx_firecracker_layout_parse(text, strlen(text), &layout, &err);
}

static int parse_one(const char *start, const char *size, const char *offset, const char *more)
{
    char text[512];
    snprintf(text, sizeof(text), "[" REGION "]", start, size, offset, more);
    return parse(text);
}

/* The forms that each version sends. The manual says that the old field is in KiB. */
static void test_every_documented_form(NO_STATE)
{
    static const struct {
        const char *more;
        uint32_t page_size;
    } forms[] = {
        {"", 4096},
        {",\"page_size_kib\":4096", 4096},
        {",\"page_size_kib\":4", 4096},
        {",\"page_size_kib\":2097152", 2097152},
        {",\"page_size_kib\":2048", 2097152},
        {",\"page_size\":2097152,\"page_size_kib\":2097152", 2097152},
        {",\"page_size\":4096,\"page_size_kib\":4", 4096},
        {",\"page_size\":2097152", 2097152},
        {",\"page_size\":4096,\"of_a_later_version\":[true]", 4096},
    };
    for (unsigned i = 0; i < COUNT(forms); i++) {
        assert_int_equal(parse_one("139637976727553", "4194304", "0", forms[i].more), -EPROTO);
        assert_int_equal(parse_one("139637976727552", "4194304", "2097152", forms[i].more), 0);
        assert_int_equal(layout.page_size, forms[i].page_size);
        assert_int_equal(layout.pages, 4194304 / forms[i].page_size);
        assert_int_equal(layout.end, 6291456);
        assert_int_equal(layout.regions[0].start, 139637976727552);
    }
}

static void test_two_regions(NO_STATE)
{
    assert_int_equal(parse("[{\"base_host_virt_addr\":8192,\"size\":4096,\"offset\":4096},"
                           "{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0}]"),
                     0);
    assert_int_equal(layout.count, 2);
    assert_int_equal(layout.pages, 2);
    assert_int_equal(layout.regions[1].start, 4096);
}

static void test_adjacent_regions(NO_STATE)
{
    assert_int_equal(parse("[{\"base_host_virt_addr\":4096,\"size\":8192,\"offset\":0},"
                           "{\"base_host_virt_addr\":8192,\"size\":4096,\"offset\":8192}]"),
                     -EPROTO);
    text_has(err.message, "share addresses");
    assert_int_equal(parse("[{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":4096},"
                           "{\"base_host_virt_addr\":8192,\"size\":8192,\"offset\":0}]"),
                     -EPROTO);
    text_has(err.message, "parts of the memory file");
}

static void test_malformed_messages(NO_STATE)
{
    const struct {
        const char *text, *words;
    } bad[] = {
        {"[]", "array"},
        {"{\"a\":1}", "array"},
        {"[[]]", "region 0"},
        {"[{\"size\":4096,\"offset\":0}]", "base_host_virt_addr"},
        {"[{\"base_host_virt_addr\":\"1\",\"size\":4096,\"offset\":0}]", "base_host_virt_addr"},
        {"[{\"base_host_virt_addr\":4096,\"size\":4096.0,\"offset\":0}]", "\"size\""},
        {"[{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0,\"offset\":0}]", "duplicate"},
        {"[{\"base_host_virt_addr\":4096,\"size\":99999999999999999999,\"offset\":0}]", "integer"},
        {"[1] 2", "not JSON"},
    };
    for (unsigned i = 0; i < COUNT(bad); i++) {
        assert_int_equal(parse(bad[i].text), -EPROTO);
        text_has(err.message, bad[i].words);
    }
    assert_int_equal(parse_one("4096", "0", "0", ""), -EPROTO);
    assert_int_equal(parse_one("4096", "4096", "1", ""), -EPROTO);
    assert_int_equal(parse_one("4096", "4503599627370496", "4096", ""), -EPROTO);
    text_has(err.message, "2^52");
    assert_int_equal(parse_one("4096", "4096", "0", ",\"page_size\":8192"), -EPROTO);
    assert_int_equal(parse_one("4096", "4096", "0", ",\"page_size\":null"), -EPROTO);
    assert_int_equal(parse_one("4096", "4096", "0", ",\"page_size\":4096,\"page_size_kib\":8"),
                     -EPROTO);
}

static void test_a_part_of_a_message(NO_STATE)
{
    assert_int_equal(parse(""), -EAGAIN);
    assert_int_equal(parse("[{\"base_host_virt_addr\":40"), -EAGAIN);
    assert_int_equal(parse("[{\"base_host_virt_addr\""), -EAGAIN);
}

static void test_too_many_regions(NO_STATE)
{
    static char text[IBX_FIRECRACKER_MESSAGE_MAX];
    size_t n = 0;
    text[n++] = '[';
    for (unsigned i = 0; i <= IBX_FIRECRACKER_REGIONS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n,
                              "%s{\"base_host_virt_addr\":%u,\"size\":4096,\"offset\":%u}",
                              i ? "," : "", 4096 * (i + 1), 4096 * i);
    snprintf(text + n, sizeof(text) - n, "]");
    assert_int_equal(parse(text), -E2BIG);
}

/* ------------------------------------------------------------ working sets */

static const uint8_t golden[] =
    {
        'i', 'b',  'x', ' ', 'w', 'o', 'r', 'k', 'i', 'n', 'g', ' ', 's', 'e',
        't', '\n', 1,   0,   0,   0,   0,   0,   0,   0,   0,   1,   0,   0,
        0,   0,    0,   0,   2,   0,   0,   0,   0,   0,   0,   0, /* 256 pages, 2 runs */
        16,  0,    0,   0,   0,   0,   0,   0,   3,   0,   0,   0, /* 3 pages from 16 on */
        255, 0,    0,   0,   0,   0,   0,   0,   1,   0,   0,   0, /* the last page */
};

static uint8_t *encoded(size_t *length)
{
    struct ibx_working_set set = {.image_pages = 256};
    assert_int_equal(ibx_working_set_add(&set, 16, 1), 0);
    assert_int_equal(ibx_working_set_add(&set, 17, 2), 0);
    assert_int_equal(ibx_working_set_add(&set, 255, 1), 0);
    assert_int_equal(set.count, 2);
    assert_int_equal(set.pages, 4);
    uint8_t *bytes = ibx_working_set_encode(&set, length);
    assert_non_null(bytes);
    ibx_working_set_fini(&set);
    return bytes;
}

static void test_the_bytes_of_a_working_set(NO_STATE)
{
    struct ibx_working_set set;
    size_t length;
    uint8_t *bytes = encoded(&length);
    assert_int_equal(length, sizeof(golden) + 32);
    assert_memory_equal(bytes, golden, sizeof(golden));
    assert_int_equal(ibx_working_set_decode(bytes, length, &set, &err), 0);
    assert_int_equal(set.image_pages, 256);
    assert_int_equal(set.pages, 4);
    assert_true(set.runs[0].page == 16 && set.runs[0].pages == 3 && set.runs[1].page == 255);
    ibx_working_set_fini(&set);
    free(bytes);
}

/* The memory has no such pages. */
static void test_pages_beyond_the_memory_are_refused(NO_STATE)
{
    static const struct ibx_fault_run runs[] = {{255, 2}, {256, 1}, {257, 1}};
    for (unsigned i = 0; i < COUNT(runs); i++) {
        struct ibx_working_set set = {.image_pages = 256}, back;
        size_t length = 0;
        assert_int_equal(ibx_working_set_add(&set, runs[i].page, runs[i].pages), 0);
        uint8_t *bytes = ibx_working_set_encode(&set, &length);
        assert_int_equal(ibx_working_set_decode(bytes, length, &back, &err), -EPROTO);
        text_has(err.message, "of a memory of 256");
        ibx_working_set_fini(&set);
        free(bytes);
    }
}

/* Root writes the working set of a run. The microVM's user owns a folder on the path, and could
 * choose by it in which folder root creates or replaces a file. */
static void test_path_of_another_user(NO_STATE)
{
    char top[] = "/tmp/ibx-test-working-set-XXXXXX", own[64], theirs[64], way[80], file[96];
    struct ibx_working_set set = {.image_pages = 256};
    struct stat st;
    if (geteuid())
        return; /* this process cannot act for another user */
    assert_non_null(mkdtemp(top));
    snprintf(own, sizeof(own), "%s/own", top);
    snprintf(theirs, sizeof(theirs), "%s/theirs", top);
    snprintf(way, sizeof(way), "%s/way", theirs);
    assert_int_equal(mkdir(own, 0700) | mkdir(theirs, 0755), 0);
    assert_int_equal(symlink("../own", way) | chown(theirs, 65534, 65534), 0);
    snprintf(file, sizeof(file), "%s/pages", way);
    assert_int_equal(ibx_working_set_save(file, &set, &err), -EPERM);
    text_has(err.message, "user 65534 owns");
    snprintf(file, sizeof(file), "%s/pages", theirs);
    assert_int_equal(ibx_working_set_save(file, &set, &err), -EPERM);
    text_has(err.message, "user 65534 owns");
    snprintf(file, sizeof(file), "%s/pages", own);
    assert_int_not_equal(stat(file, &st), 0); /* nothing was created */
    assert_int_equal(ibx_working_set_save(file, &set, &err), 0);
    assert_int_equal(stat(file, &st) | unlink(file), 0);
    assert_int_equal(unlink(way) | rmdir(theirs) | rmdir(own) | rmdir(top), 0);
}

/* Every byte counts, and only one length is accepted. */
static void test_a_damaged_working_set_is_refused(NO_STATE)
{
    struct ibx_working_set set;
    size_t length;
    uint8_t *bytes = encoded(&length);
    for (size_t i = 0; i < length; i++) {
        bytes[i] ^= 4;
        assert_int_equal(ibx_working_set_decode(bytes, length, &set, &err), -EPROTO);
        bytes[i] ^= 4;
        assert_int_equal(ibx_working_set_decode(bytes, i, &set, &err), -EPROTO);
    }
    bytes[16] = 2;
    ibx_working_set_decode(bytes, length, &set, &err);
    text_has(err.message, "version 2");
    free(bytes);
}

static void test_a_file_is_replaced_as_a_whole(NO_STATE)
{
    char path[] = "/tmp/ibx-test-working-set-XXXXXX", folder[64];
    struct ibx_working_set set = {.image_pages = 5000}, back = {0};
    for (uint64_t i = 0; i < 2000; i++)
        assert_int_equal(ibx_working_set_add(&set, 4000 - 2 * i, 1), 0);
    close(mkstemp(path));
    assert_int_equal(ibx_working_set_save(path, &set, &err), 0);
    assert_int_equal(ibx_working_set_load(path, &back, &err), 0);
    assert_int_equal(back.count, 2000);
    assert_memory_equal(back.runs, set.runs, 2000 * sizeof(*set.runs));
    snprintf(folder, sizeof(folder), "%s/none", path);
    assert_true(ibx_working_set_save(folder, &set, &err) < 0);
    text_has(err.message, "cannot be written");
    ibx_working_set_fini(&set);
    ibx_working_set_fini(&back);
    unlink(path);
}

/* Opening a device may have effects, such as arming a watchdog. */
static void test_only_regular_files_are_opened(NO_STATE)
{
    struct ibx_working_set set = {0};
    struct inotify_event event;
    char folder[] = "/tmp/ibx-replay-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/set", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(watch >= 0 && inotify_add_watch(watch, path, IN_OPEN) >= 0);
    assert_int_equal(ibx_working_set_load(path, &set, &err), -EINVAL);
    assert_int_equal(read(watch, &event, sizeof(event)), -1);
    assert_int_equal(errno, EAGAIN);
    close(watch);
    unlink(path);
    rmdir(folder);
}

/* ---------------------------------------------------------------- the socket */

#define SERVERS 3
#define ROUNDS  40
#define TURNS   200

static struct ibx_firecracker_config config;
static pthread_barrier_t all_begin;

/* returns the listener, or an error */
static void *begin(void *argument)
{
    int *listener = argument;
    struct ibx_error why;
    pthread_barrier_wait(&all_begin);
    int rc = ibx_firecracker_listen(&config, listener, &why);
    if (rc)
        *listener = rc;
    return NULL;
}

/* Several servers start at once at the socket of a dead one. One of them gets the name and keeps
 * it. */
static void test_one_server_gets_a_left_socket(NO_STATE)
{
    char folder[] = "/tmp/ibx-test-servers-XXXXXX", path[64];
    pthread_t threads[SERVERS];
    int listeners[SERVERS];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/socket", folder);
    config = (struct ibx_firecracker_config){.socket = path, .peer = geteuid()};
    assert_int_equal(pthread_barrier_init(&all_begin, NULL, SERVERS), 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned count = 0;
        for (unsigned i = 0; i < SERVERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, begin, &listeners[i]), 0);
        for (unsigned i = 0; i < SERVERS; i++)
            pthread_join(threads[i], NULL);
        for (unsigned i = 0; i < SERVERS; i++) {
            assert_true(listeners[i] >= 0 || listeners[i] == -EADDRINUSE);
            count += listeners[i] >= 0;
            if (listeners[i] >= 0)
                close(listeners[i]); /* leaves the file */
        }
        assert_int_equal(count, 1);
    }
    pthread_barrier_destroy(&all_begin);
    unlink(path);
    rmdir(folder);
}

/* Several servers use the name in turns. Only one has it at a time, and a client finds the one
 * that listens. */
static void *take_turns(void *argument)
{
    unsigned *lost = argument;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", config.socket);
    pthread_barrier_wait(&all_begin);
    for (unsigned turn = 0; turn < TURNS;) {
        struct ibx_error why;
        int listener;
        if (ibx_firecracker_listen(&config, &listener, &why)) {
            sched_yield(); /* another one has the name */
            continue;
        }
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        *lost += connect(fd, (const struct sockaddr *)&at, sizeof(at)) && errno != EAGAIN;
        close(fd);
        ibx_firecracker_unlisten(&config, listener);
        turn++;
    }
    return NULL;
}

/* A server that ends removes its own socket, not that of one that starts. */
static void test_server_ends_while_another_starts(NO_STATE)
{
    char folder[] = "/tmp/ibx-test-servers-XXXXXX", path[64];
    pthread_t threads[SERVERS];
    unsigned lost[SERVERS] = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/socket", folder);
    config = (struct ibx_firecracker_config){.socket = path, .peer = geteuid()};
    assert_int_equal(pthread_barrier_init(&all_begin, NULL, SERVERS), 0);
    for (unsigned i = 0; i < SERVERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &lost[i]), 0);
    for (unsigned i = 0; i < SERVERS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < SERVERS; i++)
        assert_int_equal(lost[i], 0);
    pthread_barrier_destroy(&all_begin);
    assert_int_equal(rmdir(folder), 0);
}

/* Root listens for a microVM of another user, who owns a folder on the path to the socket, but not
 * the socket's own folder: that user could choose in which folder root makes and removes it. */
static void test_socket_by_way_of_another_user(NO_STATE)
{
    char top[] = "/tmp/ibx-test-servers-XXXXXX", own[64], theirs[64], way[80], path[96], kept[80];
    struct ibx_error why;
    int listener = -1;
    if (geteuid())
        skip(); /* this process cannot act for another user */
    assert_non_null(mkdtemp(top));
    snprintf(own, sizeof(own), "%s/own", top);
    snprintf(kept, sizeof(kept), "%s/socket", own);
    snprintf(theirs, sizeof(theirs), "%s/theirs", top);
    snprintf(way, sizeof(way), "%s/way", theirs);
    snprintf(path, sizeof(path), "%s/socket", way);
    assert_int_equal(mkdir(own, 0700) | mkdir(theirs, 0755) | symlink("../own", way), 0);
    assert_int_equal(chown(theirs, 65534, 65534), 0);
    config = (struct ibx_firecracker_config){.socket = path, .peer = 65534};
    assert_int_equal(ibx_firecracker_listen(&config, &listener, &why), -EPERM);
    text_has(why.message, "user 65534 owns");
    assert_int_equal(access(kept, F_OK), -1); /* nothing was created */
    assert_int_equal(unlink(way) | mkdir(way, 0755) | chown(way, 65534, 65534), 0);
    assert_int_equal(ibx_firecracker_listen(&config, &listener, &why), 0);
    /* That user has the path lead elsewhere meanwhile. */
    assert_int_equal(unlink(path) | rmdir(way) | symlink("../own", way), 0);
    assert_int_equal(mknod(kept, S_IFREG | 0600, 0), 0);
    ibx_firecracker_unlisten(&config, listener);
    assert_int_equal(unlink(kept), 0); /* it is still there */
    assert_int_equal(unlink(way) | rmdir(theirs) | rmdir(own) | rmdir(top), 0);
}

/* In a folder like /tmp others can create files of any name. */
static void test_name_that_is_taken(NO_STATE)
{
    char folder[] = "/tmp/ibx-test-servers-XXXXXX", path[64], taken[64];
    struct ibx_error why;
    int listener = -1;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/socket", folder);
    snprintf(taken, sizeof(taken), "%s/.ibx-%d", folder, (int)getpid());
    assert_int_equal(mkdir(taken, 0755), 0);
    config = (struct ibx_firecracker_config){.socket = path, .peer = geteuid()};
    assert_int_equal(ibx_firecracker_listen(&config, &listener, &why), 0);
    ibx_firecracker_unlisten(&config, listener);
    assert_int_equal(rmdir(taken), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_documented_form),
        cmocka_unit_test(test_two_regions),
        cmocka_unit_test(test_adjacent_regions),
        cmocka_unit_test(test_malformed_messages),
        cmocka_unit_test(test_a_part_of_a_message),
        cmocka_unit_test(test_too_many_regions),
        cmocka_unit_test(test_the_bytes_of_a_working_set),
        cmocka_unit_test(test_pages_beyond_the_memory_are_refused),
        cmocka_unit_test(test_a_damaged_working_set_is_refused),
        cmocka_unit_test(test_a_file_is_replaced_as_a_whole),
        cmocka_unit_test(test_only_regular_files_are_opened),
        cmocka_unit_test(test_one_server_gets_a_left_socket),
        cmocka_unit_test(test_server_ends_while_another_starts),
        cmocka_unit_test(test_socket_by_way_of_another_user),
        cmocka_unit_test(test_name_that_is_taken),
        cmocka_unit_test(test_path_of_another_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
