/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What identifies a disk, and what a description says about it: never a password. */
#include "migrate/preflight/description.h"
#include "tests/fixtures/qmp_peer.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void a_mount_has_its_source_and_path(NO_STATE)
{
    char line[] = "42 29 0:45 /vms /mnt/a\\040b rw,relatime shared:1 - nfs4 server:/export rw\n";
    json_t *layer = json_object();
    ibx_disk_mount(line, "/mnt/a b/web/disk", layer);
    assert_string_equal(ibx_member(layer, "type"), "nfs4");
    assert_string_equal(ibx_member(layer, "source"), "server:/export");
    assert_string_equal(ibx_member(layer, "path"), "/vms/web/disk");
    char root[] = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", odd[] = "22 1 8:1\n", none[] = " - \n";
    ibx_disk_mount(root, "/disk", layer);
    assert_string_equal(ibx_member(layer, "path"), "/disk");
    ibx_disk_mount(odd, "/disk", layer);
    ibx_disk_mount(none, "/disk", layer);
    json_decref(layer);
}

static void file_is_found_by_the_descriptor_of_a_process(NO_STATE)
{
    char path[] = "/tmp/ibx-disk-XXXXXX", moved[64];
    json_t *layer = json_object(), *again = json_object(), *other = json_object();
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    ibx_disk_identify(getpid(), path, NULL, false, layer);
    assert_string_equal(ibx_member(layer, "reach"), "local");
    assert_int_equal(strlen(ibx_member(layer, "id")), 16);
    assert_int_equal(json_integer_value(json_object_get(layer, "bytes")), 1 << 20);
    /* The file has another name now, and another file has its old name. */
    snprintf(moved, sizeof(moved), "%s.moved", path);
    assert_int_equal(rename(path, moved), 0);
    ibx_disk_identify(getpid(), moved, NULL, false, again);
    assert_string_equal(ibx_member(layer, "id"), ibx_member(again, "id"));
    unlink(moved);
    json_object_clear(again);
    ibx_disk_identify(getpid(), moved, NULL, false, again);
    assert_string_equal(ibx_member(layer, "id"), ibx_member(again, "id"));
    ibx_disk_identify(getpid(), path, NULL, false, other);
    assert_int_equal(json_object_size(other), 0);
    close(fd);
    json_decref(layer);
    json_decref(again);
    json_decref(other);
}

/* Some containers forbid pidfd_getfd(2); then no descriptor can be taken from a QEMU either. */
static bool can_take(void)
{
    const int taken = ibx_proc_take(getpid(), STDERR_FILENO);
    if (taken >= 0)
        close(taken);
    return taken >= 0;
}

/* A process can have any file in its table by O_PATH, without the right to read it. Root must
 * not read it for that process. */
static void file_that_a_process_cannot_read_has_no_digest(NO_STATE)
{
    static const int flags[] = {O_RDONLY, O_RDWR, O_WRONLY, O_PATH};
    char path[] = "/tmp/ibx-disk-XXXXXX";
    if (!can_take())
        skip();
    const int made = mkstemp(path);
    assert_int_equal(write(made, "secret", 6), 6);
    close(made);
    for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        json_t *layer = json_object();
        const int fd = open(path, flags[i] | O_CLOEXEC);
        assert_true(fd >= 0);
        ibx_disk_identify(getpid(), path, NULL, true, layer);
        assert_string_equal(ibx_member(layer, "reach"), "local");
        assert_int_equal(json_object_get(layer, "digest") != NULL, i < 2);
        json_decref(layer);
        close(fd);
    }
    unlink(path);
}

/* ------------------------------------------------------------ passwords of storage */

#define ISCSI(more)                                                                                \
    "json:{\"driver\": \"iscsi\", \"user\": \"bob\"" more ", \"target\": \"iqn.2026-01.org:d\"}"

static void named(const char *file, const char *name)
{
    json_t *text = ibx_disk_name(file);
    assert_string_equal(json_string_value(text), name);
    json_decref(text);
}

static void a_disk_is_named_without_its_password(NO_STATE)
{
    named(ISCSI(", \"password\": \"secret\""), ISCSI(""));
    named("json:{\"driver\": \"qcow2\", \"file\": {\"password\": \"secret\", \"lun\": \"1\"}}",
          "json:{\"driver\": \"qcow2\", \"file\": {\"lun\": \"1\"}}");
    named("json:{\"children\": [{\"password\": \"secret\"}]}", "json:{\"children\": [{}]}");
    named("json:{\"driver\": \"https\", \"url\": \"https://bob:secret@h/a\", \"timeout\": 5}",
          "json:{\"driver\": \"https\", \"url\": \"https://bob@h/a\", \"timeout\": 5}");
    named("json:{\"file\": [\"https://bob:secret@h/a\", \"b\"]}",
          "json:{\"file\": [\"https://bob@h/a\", \"b\"]}");
    named("https://bob:secret@h/web.img", "https://bob@h/web.img");
    named("https://bob:se@cret@h:443/a:b@c", "https://bob@h:443/a:b@c");
    /* Nothing else in a name is changed. */
    const char *const others[] = {"/srv/a:b@c.img",
                                  "",
                                  "json:",
                                  "json:[]",
                                  "json:{\"password-secret\":\"s0\"}",
                                  "nbd://h:10809/a",
                                  "ssh://bob@h/a:b@c",
                                  "https://h/?a=b:c@d",
                                  "nbd+unix:///x?socket=/run/a:b@c"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        named(others[i], others[i]);
}

/* A value takes a hundred times the memory of its text, so such a name is not read. */
static void endless_name_is_not_read(NO_STATE)
{
    static const char begin[] = "json:{\"password\": \"secret\", \"a\": [";
    const size_t length = 1 << 20;
    char *name = malloc(length);
    assert_non_null(name);
    memset(name, ' ', length);
    memcpy(name, begin, strlen(begin));
    strcpy(name + length - 4, "1]}");
    named(name, "json: a name that is too long to be told");
    free(name);
}

/* The description goes to the other host and into messages of both. */
static void a_description_has_no_password(NO_STATE)
{
#define NODE  "\"node-name\": \"n\""
#define NAMED "json:{\\\"driver\\\": \\\"iscsi\\\", \\\"password\\\": \\\"secret\\\"}"
    static const struct ibx_guest_ram ram;
    json_t *description = json_pack("{s:[]}", "devices");
    attached(SCRIPT(
        {"query-block", "{\"return\": [{\"qdev\": \"d\", \"inserted\": {" NODE "}}], \"id\": 2}\n",
         0},
        {"query-named-block-nodes",
         "{\"return\": [{" NODE ", \"drv\": \"iscsi\", \"file\": \"" NAMED "\"}], \"id\": 3}\n", 0},
        {"x-debug-query-block-graph", READY(4), 0}, {"query-fdsets", READY(5), 0}));
    struct describing d = {.qmp = qmp,
                           .ram = &ram,
                           .deadline_ns = ibx_deadline_in_ms(GENEROUS),
                           .description = description,
                           .err = &error};
    assert_int_equal(ibx_describe_disks(&d), 0);
    char *text = json_dumps(description, JSON_COMPACT);
    assert_non_null(strstr(text, "iscsi"));
    assert_null(strstr(text, "secret"));
    free(text);
    json_decref(description);
    done();
}

/* A source of an earlier release still sends the password. The disk is recognized, and messages
 * do not contain the password. */
static void received_password_is_dropped(NO_STATE)
{
#define DISK(url)                                                                                  \
    "{\"disks\": [{\"at\": \"d\", \"type\": \"t\", \"layers\": [{\"role\": \"\", \"driver\": "     \
    "\"https\", \"file\": \"" url "\"}]}]}"
    static const char came[] = DISK("https://bob:secret@h/a"),
                      other[] = DISK("https://bob:secret@h/b");
    static struct ibx_blockers blockers;
    json_t *source, *here = json_loads(DISK("https://bob@h/a"), 0, NULL);
    assert_int_equal(ibx_description_read(came, strlen(came), &source, &error), 0);
    ibx_compare_disks(
        &(struct ibx_comparison){.source = source, .destination = here, .blockers = &blockers});
    assert_int_equal(blockers.count, 0);
    json_decref(source);
    assert_int_equal(ibx_description_read(other, strlen(other), &source, &error), 0);
    ibx_compare_disks(
        &(struct ibx_comparison){.source = source, .destination = here, .blockers = &blockers});
    assert_int_equal(blockers.count, 1);
    assert_null(strstr(blockers.reasons[0], "secret"));
    json_decref(source);
    json_decref(here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mount_has_its_source_and_path),
        cmocka_unit_test(file_is_found_by_the_descriptor_of_a_process),
        cmocka_unit_test(file_that_a_process_cannot_read_has_no_digest),
        cmocka_unit_test(a_disk_is_named_without_its_password),
        cmocka_unit_test(endless_name_is_not_read),
        cmocka_unit_test(a_description_has_no_password),
        cmocka_unit_test(received_password_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
