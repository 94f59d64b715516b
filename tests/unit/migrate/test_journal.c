/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Records of migrations: what is written comes back, from each version, and wrong values do not. */
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void records_come_back_as_they_were(NO_STATE)
{
    for (int source = 0; source < 2; source++) {
        struct ibx_record r = sample(source, 7);
        const time_t before = time(NULL);
        assert_int_equal(write_record(&r), 0);
        /* time(2) uses a coarse clock */
        assert_in_range(r.written_s, (uint64_t)before, (uint64_t)time(NULL) + 1);
        struct ibx_record found = only();
        assert_memory_equal(found.id, r.id, sizeof(r.id));
        assert_int_equal(found.source, r.source);
        assert_int_equal(found.epoch, r.epoch);
        assert_int_equal(found.state, r.state);
        const char *const texts[][2] = {
            {found.uuid, r.uuid},         {found.name, r.name},
            {found.qmp, r.qmp},           {found.uri, r.uri},
            {found.peer, r.peer},         {found.key_file, r.key_file},
            {found.key_name, r.key_name}, {found.allow, r.allow},
            {found.settings, r.settings}, {found.vm_status, r.vm_status},
            {found.machine, r.machine},   {found.source_key, r.source_key},
            {found.boot, r.boot}};
        for (unsigned i = 0; i < COUNT(texts); i++)
            assert_string_equal(texts[i][0], texts[i][1]);
        assert_int_equal(found.encryption, r.encryption);
        assert_int_equal(found.insecure, r.insecure);
        assert_int_equal(found.source_key_known, r.source_key_known);
        assert_int_equal(found.hold, r.hold);
        assert_int_equal(found.stream, r.stream);
        assert_int_equal(found.all_protected, r.all_protected);
        assert_int_equal(found.number, r.number);
        assert_string_equal(found.qemu_migration, r.qemu_migration);
        assert_int_equal(found.pid, r.pid);
        assert_int_equal(found.pid_started, r.pid_started);
        assert_int_equal(found.uffd, r.uffd);
        assert_int_equal(found.device_way, r.device_way);
        assert_int_equal(found.was_running, r.was_running);
        assert_int_equal(found.block_count, r.block_count);
        for (unsigned i = 0; i < r.block_count; i++) {
            const struct ibx_journal_block *a = &found.blocks[i], *b = &r.blocks[i];
            assert_string_equal(a->id, b->id);
            assert_true(a->size == b->size && a->page_size == b->page_size &&
                        a->offset == b->offset && a->address == b->address && a->dev == b->dev &&
                        a->ino == b->ino);
            assert_string_equal(a->file.path, b->file.path);
            assert_true(a->file.file == b->file.file && a->file.owner == b->file.owner &&
                        a->file.mode == b->file.mode);
        }
        assert_int_equal(found.written_s, r.written_s);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), -ENOENT);
    }
}

/* As many blocks as a VM can have, with texts that are twice as long in JSON. */
static void the_largest_record_comes_back(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    const struct ibx_journal_block last = r.blocks[1];
    for (r.block_count = 0; r.block_count < IBX_GUEST_BLOCKS_MAX; r.block_count++) {
        struct ibx_journal_block *block = &r.blocks[r.block_count];
        *block = last;
        memset(block->id, '"', sizeof(block->id) - 1);
        block->id[0] = (char)('0' + r.block_count); /* makes each id different */
        memset(block->file.path, '"', sizeof(block->file.path) - 1);
        block->file.path[0] = '/';
    }
    memset(r.qmp + 1, '"', sizeof(r.qmp) - 2);
    assert_int_equal(write_record(&r), 0);
    struct ibx_record found = only();
    assert_int_equal(found.block_count, IBX_GUEST_BLOCKS_MAX);
    assert_string_equal(found.blocks[63].file.path, r.blocks[63].file.path);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
}

/* Written by hand, as the first version wrote it. */
static void records_of_the_first_version(NO_STATE)
{
    static const char text[] =
        "{\"ibx-record\": 1, \"id\": \"07070707070707070707070707070707\", "
        "\"role\": \"destination\", \"epoch\": 3, \"state\": \"may-run\", \"uuid\": \"\", "
        "\"name\": \"db1\", \"qmp\": \"/run/db1.qmp\", \"pid\": 4242, \"pid-started\": 99, "
        "\"uri\": \"tcp://node-b:7471\", \"peer\": \"node-a\", \"key-file\": \"\", \"uffd\": 31, "
        "\"device-way\": false, \"written\": 1700000000%s}";
    char path[PATH_MAX], whole[1024];
    struct ibx_record r = sample(false, 7);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    snprintf(whole, sizeof(whole), text, "");
    put_file(path, whole, strlen(whole));
    r = only();
    assert_int_equal(r.state, IBX_JOURNAL_MAY_RUN);
    assert_int_equal(r.uffd, 31);
    assert_int_equal(r.block_count, 0);
    assert_true(r.was_running); /* the first version assumed that */
    r.state = IBX_JOURNAL_RUNNING;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(only().state, IBX_JOURNAL_RUNNING);
    snprintf(whole, sizeof(whole), text, ", \"was-running\": true, \"guest-ram\": []");
    put_file(path, whole, strlen(whole));
    remove_copy(&r);
    list_refuses(&r, "unpacked");
}

static void totals_are_checked(NO_STATE)
{
    static const struct wrong wrong[] = {
        {"\"pages\": 1000", "\"pages\": 606", "606 pages"},
        {"\"pages\": 1000", "\"pages\": 0", "0 pages"},
        {"\"zero\": 600", "\"zero\": -1", "-1 of them zero"},
        {"\"discarded\": 7", "\"discarded\": 401", "401 discarded"},
        {"\"discarded\": 7", "\"discarded\": -1", "-1 discarded"},
        {"a7a7", "A7A7", "hexadecimal"},
        {"a7a7", "a7", "hexadecimal"},
        {"\"zero\": 600,", "", "zero"},
        {"\"state\": \"complete\"", "\"state\": \"running\"", "does not fit"},
    };
    struct ibx_record r = sample(false, 7);
    bring_to(&r, IBX_JOURNAL_COMPLETE);
    assert_false(ibx_journal_over(&r));
    const struct ibx_record found = only();
    assert_memory_equal(&found.totals, &r.totals, sizeof(r.totals));
    remove_copy(&r);
    each_is_refused(&r, wrong, COUNT(wrong));
}

/* Each alone: a number that is cut or turned names another process or descriptor. */
static void numbers_are_checked(NO_STATE)
{
    static const struct wrong wrong[] = {
        {"\"epoch\": 1", "\"epoch\": 0", "epoch 0, "},
        {"\"pid\": ", "\"pid\": -", "pid -4242, "},
        {"\"pid\": 4242", "\"pid\": 2147483648", "pid 2147483648, "},
        {"\"pid-started\": ", "\"pid-started\": -", "pid-started -123456789, "},
        {"\"uffd\": 31", "\"uffd\": -2", "uffd -2, "},
        {"\"uffd\": 31", "\"uffd\": 2147483648", "uffd 2147483648, "},
        {"\"written\": ", "\"written\": -", "written -"},
        {"\"hold\": ", "\"hold\": -1", "hold -10, "},
        {"\"stream\": ", "\"stream\": -1", "stream -10, "},
        {"\"number\": ", "\"number\": -1", "number -1"},
    };
    struct ibx_record r = sample(false, 7), found;
    assert_int_equal(write_record(&r), 0);
    each_is_refused(&r, wrong, COUNT(wrong));
    change(&r, wrong[COUNT(wrong) - 1].to, wrong[COUNT(wrong) - 1].from);
    change(&r, "\"pid\": 4242", "\"pid\": 2147483647");
    change(&r, "\"pid-started\": 123456789", "\"pid-started\": 0");
    change(&r, "\"uffd\": 31", "\"uffd\": 2147483647");
    found = only();
    assert_true(found.pid == INT_MAX && found.pid_started == 0 && found.uffd == INT_MAX);
}

/* Removes what versions after `version` have added to the file. */
static void make_older(const struct ibx_record *r, unsigned version)
{
    char now[32];
    char text[8192], path[PATH_MAX], settings[256], number[32];
    snprintf(now, sizeof(now), "\"ibx-record\": %u", version);
    snprintf(number, sizeof(number), ",\n  \"number\": %llu", (unsigned long long)r->number);
    change(r, "\"ibx-record\": 10", now);
    change(r, ",\n  \"boot\": \"01234567-boot\"", "");
    if (version == 9)
        return;
    change(r, number, "");
    change(r, r->source ? ",\n  \"qemu-migration\": \"10-1-2-5\"" : ",\n  \"qemu-migration\": \"\"",
           "");
    if (version == 8)
        return;
    change(r, r->source ? ",\n  \"guarded\": true" : ",\n  \"guarded\": false", "");
    if (version == 7)
        return;
    change(r, r->source ? ",\n  \"stream\": 4712" : ",\n  \"stream\": 0", "");
    if (version == 6)
        return;
    change(r, r->libvirt ? ",\n  \"libvirt\": true" : ",\n  \"libvirt\": false", "");
    change(r, ",\n  \"borrow\": 0", "");
    change(r, ",\n  \"base\": \"00000000000000000000000000000000\"", "");
    change(r, ",\n  \"whole\": false", "");
    if (version == 5)
        return;
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    get_file(path, text, sizeof(text));
    const char *from = strstr(text, "  \"settings\""), *to = strstr(text, "  \"hold\"");
    snprintf(settings, sizeof(settings), "%.*s", (int)(to - from), from);
    change(r, settings, "");
    change(r, "  \"vm-status\": \"running\",\n", "");
    for (unsigned i = 0; i < r->block_count; i++) {
        change(r, ",\n      \"path\": \"\"", "");
        change(r, ",\n      \"file\": 0", "");
        change(r, ",\n      \"owner\": 0", "");
        change(r, ",\n      \"mode\": 0", "");
    }
    change(r, ",\n  \"machine\": \"pc-q35-7.2\"", "");
    change(r, ",\n  \"source-key\": \"node-b\"", "");
    change(r, ",\n  \"insecure\": true", "");
    change(r, r->source ? "  \"hold\": 4711,\n" : "  \"hold\": 0,\n", "");
    if (version < 4) {
        change(r, "  \"key-name\": \"node-a\",\n", "");
        change(r, "  \"allow\": \"node-a,node-c\",\n", "");
        change(r, "  \"encryption\": \"required\",\n", "");
        change(r, "  \"verify\": \"\",\n", "");
    }
    if (version < 3)
        change(r, "  \"complete\": null,\n", "");
}

/* A borrowed VM, and one that returns. */
static void borrowed(NO_STATE)
{
    static const struct wrong wrong[] = {
        {"\"borrow\": 2", "\"borrow\": 3", "borrow 3 is out of range"},
        {"\"borrow\": 2", "\"borrow\": -1", "borrow -1 is out of range"},
        {"\"base\": \"07", "\"base\": \"7", "base"},
        {",\n  \"borrow\": 2", "", "borrow"},
        {",\n  \"whole\": true", "", "whole"},
    };
    struct ibx_record r = sample(false, 7), found;
    r.borrow = IBX_BORROW_FILL;
    r.base[0] = 7;
    r.whole = true;
    assert_int_equal(write_record(&r), 0);
    found = only();
    assert_int_equal(found.borrow, IBX_BORROW_FILL);
    assert_memory_equal(found.base, r.base, sizeof(r.base));
    assert_true(ibx_journal_returns(&found) && found.whole);
    each_is_refused(&r, wrong, COUNT(wrong));
}

/* No advice to remove records that a later version knows and needs. */
static void records_of_a_later_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7), *records;
    size_t count;
    assert_int_equal(write_record(&r), 0);
    change(&r, "\"ibx-record\": 10", "\"ibx-record\": 11,\n  \"news\": 1");
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_journal_list(folder, &records, &count, &error), -EPROTONOSUPPORT);
    error_has("is of version 11, of a later ib-migrate, and this one knows 1 to 10");
    assert_null(strstr(error.message, "remove"));
}

/* The ninth version did not note in which boot of the host QEMU had its number. */
static void records_of_the_ninth_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    make_older(&r, 9);
    assert_string_equal(only().boot, "");
    assert_int_equal(only().number, 1);
    assert_string_equal(only().qemu_migration, r.qemu_migration);
    r.state = IBX_JOURNAL_MAY_RUN;
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().boot, r.boot);
}

/* The eighth version knew neither how many migrations had started before, nor what QEMU reports
 * about this one. */
static void records_of_the_eighth_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(only().number, 1);
    make_older(&r, 8);
    assert_int_equal(only().number, 0);
    assert_string_equal(only().qemu_migration, "");
    assert_true(only().all_protected);
    r.state = IBX_JOURNAL_MAY_RUN; /* a record without a number stays without */
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(only().number, 0);
}

/* The seventh version did not note whether all of guest RAM was protected. */
static void records_of_the_seventh_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    assert_true(only().all_protected);
    make_older(&r, 7);
    assert_false(only().all_protected);
    assert_int_equal(only().stream, r.stream);
}

/* The sixth version did not note which migration QEMU is running. */
static void records_of_the_sixth_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    make_older(&r, 6);
    assert_int_equal(only().stream, 0);
    assert_int_equal(only().hold, r.hold);
}

/* The fifth version did not note whether libvirt drove the migration. */
static void records_of_the_fifth_version(NO_STATE)
{
    struct ibx_record r = sample(true, 7);
    r.libvirt = true;
    assert_int_equal(write_record(&r), 0);
    assert_true(only().libvirt);
    make_older(&r, 5);
    assert_false(only().libvirt);
    assert_true(only().insecure);
}

/* The fourth version noted neither QEMU's settings, nor what delays its migration, nor the files
 * of guest RAM. */
static void records_of_the_fourth_version(NO_STATE)
{
    struct ibx_record r = sample(false, 7), found;
    assert_int_equal(write_record(&r), 0);
    make_older(&r, 4);
    found = only();
    assert_string_equal(found.key_name, r.key_name);
    assert_string_equal(found.settings, "");
    assert_int_equal(found.hold, 0);
    assert_int_equal(found.block_count, 2);
    assert_string_equal(found.machine, "");
    assert_false(found.source_key_known);
    assert_false(found.insecure);
    assert_string_equal(found.blocks[0].file.path, "");
    struct ibx_guest_ram ram = {0};
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_journal_open_files(&found, &ram, &error), -ENOENT);
    error_has("earlier version");
}

static void settings_are_an_object(NO_STATE)
{
    char long_one[IBX_JOURNAL_SETTINGS + 32], path[PATH_MAX], text[8192];
    static const struct wrong wrong[] = {
        {"\"tls-creds\": \"theirs\"", "\"tls-creds\": theirs", "line"},
        {"\"settings\": {", "\"settings\": 7, \"x\": {", "unpacked"},
        {"\"settings\": {", "\"other\": {", "settings"},
    };
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    const size_t length = get_file(path, text, sizeof(text));
    each_is_refused(&r, wrong, COUNT(wrong));
    put_file(path, text, length);
    snprintf(long_one, sizeof(long_one), "\"%0*d\"", (int)IBX_JOURNAL_SETTINGS, 0);
    change(&r, "\"theirs\"", long_one);
    list_refuses(&r, "no object of up to 2047 bytes");
    put_file(path, text, length);
    r.settings[0] = '\0';
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().settings, "");
}

/* The first key has no name either; records of an earlier version stay without a key. */
static void key_of_a_source(NO_STATE)
{
    static const struct wrong wrong[] = {
        {"\"source-key\": \"node-b\"", "\"source-key\": 7", "source-key is no text"},
        {"\"node-b\",\n  \"ins",
         "\"a234567890123456789012345678901234567890123456789012345678901234\",\n  \"ins",
         "source-key is no text of up to 63 bytes"},
        {"\"insecure\": true", "\"insecure\": 1", "true or false"},
    };
    struct ibx_record r = sample(false, 7);
    r.source_key[0] = '\0';
    assert_int_equal(write_record(&r), 0);
    assert_true(only().source_key_known);
    r.source_key_known = false;
    assert_int_equal(write_record(&r), 0);
    assert_false(only().source_key_known);
    r = sample(false, 7);
    assert_int_equal(write_record(&r), 0);
    each_is_refused(&r, wrong, COUNT(wrong));
}

/* The third version had no names. */
static void records_of_the_third_version(NO_STATE)
{
    struct ibx_record r = sample(false, 7), found;
    assert_int_equal(write_record(&r), 0);
    change(&r, "\"ibx-record\": 10", "\"ibx-record\": 3");
    list_refuses(&r, "unpacked");
    change(&r, "\"ibx-record\": 3", "\"ibx-record\": 10");
    make_older(&r, 3);
    found = only();
    assert_string_equal(found.key_file, r.key_file);
    assert_string_equal(found.key_name, "");
    assert_string_equal(found.allow, "");
    assert_int_equal(found.encryption, IBX_ENCRYPTION_AUTO);
}

static void find_refuses(const struct ibx_guest_block *block, struct ibx_guest_file file,
                         const char *word)
{
    char found[PATH_MAX];
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_guest_file_find(block, &file, ".aside", found, &error),
                     strstr(word, "name") || strstr(word, "No such") ? -ENOENT : -ESTALE);
    error_has(word);
}

/* If it is the same file in the same boot of this host. */
static void file_of_guest_ram_is_recognized(NO_STATE)
{
    char path[128], found[PATH_MAX];
    struct ibx_guest_block block = {.id = "mem0", .size = 4096};
    struct ibx_guest_file file, other;
    struct stat st;
    snprintf(path, sizeof(path), "%s/ram", folder);
    put_file(path, "", 0);
    assert_int_equal(truncate(path, 4096), 0);
    block.fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fstat(block.fd, &st), 0);
    block.dev = st.st_dev;
    block.ino = st.st_ino;
    snprintf(block.path, sizeof(block.path), "%s", path);
    ibx_guest_file_describe(getpid(), &block, &file);
    assert_string_equal(file.path, path);
    assert_int_equal(file.owner, geteuid());
    find_refuses(&block, file, "started anew"); /* an earlier boot, whose id was not noted */
    char line[160] = "";
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    assert_true(boot && fgets(line, 64, boot));
    fclose(boot);
    snprintf(line + strlen(line), 64, "%llx %llx", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    file.file = 14695981039346656037u;
    for (const char *c = line; *c; c++)
        file.file = (file.file ^ (unsigned char)*c) * 1099511628211u;
    assert_int_equal(ibx_guest_file_find(&block, &file, ".aside", found, &error), 0);
    assert_string_equal(found, path);
    other = file;
    other.file++;
    find_refuses(&block, other, "started anew");
    block.size = 8192;
    find_refuses(&block, file, "shorter");
    block.size = 4096;
    assert_int_equal(ibx_guest_file_set_aside(&block, &file, ".aside", &error), 0);
    assert_int_equal(ibx_guest_file_set_aside(&block, &file, ".aside", &error), 0);
    snprintf(path, sizeof(path), "%s/ram.aside", folder);
    assert_string_equal(block.path, path);
    assert_int_equal(unlink(path), 0);
    find_refuses(&block, file, "No such file");
    ibx_guest_file_describe(getpid(), &block, &file);
    assert_string_equal(file.path, "");
    find_refuses(&block, file, "no name");
    close(block.fd);
}

/* A user who may rename the folder puts a link to another folder in its place. */
static void a_folder_that_was_replaced_is_noticed(NO_STATE)
{
    char own[96], other[96], path[128], moved[128];
    const char *base;
    struct stat st;
    snprintf(own, sizeof(own), "%s/own", folder);
    snprintf(other, sizeof(other), "%s/other", folder);
    snprintf(path, sizeof(path), "%s/ram", own);
    assert_int_equal(mkdir(own, 0700), 0);
    assert_int_equal(mkdir(other, 0700), 0);
    put_file(path, "", 0);
    assert_int_equal(stat(path, &st), 0);
    int at = ibx_guest_file_folder(path, st.st_dev, st.st_ino, &base);
    assert_true(at >= 0);
    assert_string_equal(base, "ram");
    snprintf(moved, sizeof(moved), "%s/ram", other);
    put_file(moved, "", 0);
    assert_int_equal(ibx_guest_file_folder(moved, st.st_dev, st.st_ino, &base), -ESTALE);
    snprintf(moved, sizeof(moved), "%s/moved", folder);
    assert_int_equal(rename(own, moved), 0);
    assert_int_equal(symlink("other", own), 0);
    assert_int_equal(ibx_guest_file_folder(path, st.st_dev, st.st_ino, &base), -ESTALE);
    assert_int_equal(unlinkat(at, "ram", 0), 0); /* in the folder that was looked into */
    assert_int_equal(access(path, F_OK), 0);
    close(at);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(own), 0);
    assert_int_equal(rmdir(moved), 0);
    assert_int_equal(rmdir(other), 0);
}

static void options_are_checked(NO_STATE)
{
    static const struct wrong wrong[] = {
        {"\"key-name\": \"node-a\"", "\"key-name\": \"node a\"", "node a"},
        {"\"key-name\": \"node-a\"", "\"key-name\": 7", "Expected string"},
        {"node-a,node-c", "node-a,,node-c", "node-a,,node-c"},
        {"\"required\"", "\"perhaps\"", "perhaps"},
        {"  \"encryption\": \"required\",\n", "", "encryption"},
    };
    struct ibx_record r = sample(true, 7);
    assert_int_equal(write_record(&r), 0);
    each_is_refused(&r, wrong, COUNT(wrong));
}

/* The key is kept while a tool may need it, and removed at the end. */
static void a_key_lasts_as_long_as_the_migration(NO_STATE)
{
    char path[PATH_MAX], text[4096];
    struct ibx_record r = sample(true, 7);
    r.verify = true;
    memset(r.verify_key, 0x5c, sizeof(r.verify_key));
    bring_to(&r, IBX_JOURNAL_MOVED);
    struct ibx_record found = only();
    assert_true(found.verify);
    assert_memory_equal(found.verify_key, r.verify_key, sizeof(r.verify_key));
    r.state = IBX_JOURNAL_DONE;
    assert_int_equal(write_record(&r), 0);
    assert_false(only().verify);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    text[get_file(path, text, sizeof(text) - 1)] = 0;
    assert_null(strstr(text, "5c5c"));
}

/* The second version called a migration done when all pages had arrived. */
static void records_of_the_second_version(NO_STATE)
{
    struct ibx_record r = sample(false, 7);
    bring_to(&r, IBX_JOURNAL_RUNNING);
    make_older(&r, 2);
    change(&r, "\"running\"", "\"done\"");
    assert_int_equal(only().state, IBX_JOURNAL_DONE);
    assert_int_equal(only().totals.pages, 0);
}

/* A list that is longer than the place for it; pages of a size that no host has, in memory of whole
 * pages of it; memory at no address; and a file that no offset reaches the end of. */
static void wrong_blocks(NO_STATE)
{
    static const struct {
        uint64_t page_size, size, offset, address;
        const char *word;
    } cases[] = {
        {3 * 4096, 3000 * 4096, 0, 3000 * 4096, "page-size 12288"},
        {4096, 4096, 0, 0, "address 0"},
        {4096, 8192, INT64_MAX - 8191, 4096, "offset 9223372036854767616"},
    };
    struct ibx_record r = sample(true, 3);
    char list[64 + 3 * (IBX_GUEST_BLOCKS_MAX + 1)] = "\"guest-ram\": [";
    assert_int_equal(write_record(&r), 0);
    for (unsigned i = 0; i < IBX_GUEST_BLOCKS_MAX - 1; i++)
        strcat(list, "{},");
    change(&r, "\"guest-ram\": [", list);
    list_refuses(&r, "no list of up to 64 blocks");
    for (unsigned i = 0; i < COUNT(cases); i++) {
        r = sample(true, 3);
        struct ibx_journal_block *block = &r.blocks[0];
        block->page_size = cases[i].page_size;
        block->size = cases[i].size;
        block->offset = cases[i].offset;
        block->address = cases[i].address;
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
        assert_int_equal(write_record(&r), 0);
        list_refuses(&r, cases[i].word);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_come_back_as_they_were),
        TEST(the_largest_record_comes_back),
        TEST(records_of_the_first_version),
        TEST(records_of_the_second_version),
        TEST(key_of_a_source),
        TEST(records_of_the_third_version),
        TEST(borrowed),
        TEST(records_of_a_later_version),
        TEST(records_of_the_ninth_version),
        TEST(records_of_the_eighth_version),
        TEST(records_of_the_seventh_version),
        TEST(records_of_the_sixth_version),
        TEST(records_of_the_fifth_version),
        TEST(records_of_the_fourth_version),
        TEST(settings_are_an_object),
        TEST(file_of_guest_ram_is_recognized),
        TEST(a_folder_that_was_replaced_is_noticed),
        TEST(options_are_checked),
        TEST(a_key_lasts_as_long_as_the_migration),
        TEST(totals_are_checked),
        TEST(numbers_are_checked),
        TEST(wrong_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
