/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which files of guest RAM are removed with a record, in which folders, and who may change them. */
#include "migrate/qemu/qemu_internal.h"
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 12345u

static unsigned gone;
static enum ibx_journal_state seen;     /* of the last record that was looked at */
static bool cannot_write, keeps_memory; /* prune() without --remove */

int __real_ibx_journal_write(const char *in, struct ibx_record *record, struct ibx_error *err);
int __wrap_ibx_journal_write(const char *in, struct ibx_record *record, struct ibx_error *err);
int __wrap_ibx_journal_write(const char *in, struct ibx_record *record, struct ibx_error *err)
{
    return cannot_write ? ibx_error_set(err, -ENOSPC, "there is no room")
                        : __real_ibx_journal_write(in, record, err);
}

static void see(void *context, const struct ibx_record *record, const char *why)
{
    (void)context;
    gone += !why;
    seen = record->state;
}

/* Returns how many records have gone. */
static unsigned prune(void)
{
    const struct ibx_journal_prune which = {
        .unfinished = true, .remove = !keeps_memory, .before_s = UINT64_MAX, .each = see};
    gone = 0;
    assert_int_equal(ibx_journal_prune(folder, &which, &error), 0);
    return gone;
}

/* A record of a QEMU that has ended, whose memory is in a folder as ib-migrate run makes it:
 * `made`, whose name this ends. */
static struct ibx_record in_run_folder(bool source, uint8_t number, char made[])
{
    struct stat st;
    struct ibx_record r = sample(source, number);
    struct ibx_journal_block *block = &r.blocks[0];
    assert_non_null(mkdtemp(made));
    snprintf(block->file.path, sizeof(block->file.path), "%s/mem0", made);
    const int fd = open(block->file.path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)(block->offset + block->size)));
    assert_int_equal(fstat(fd, &st), 0);
    close(fd);
    r.block_count = 1;
    block->dev = st.st_dev;
    block->ino = st.st_ino;
    block->file.file = ibx_guest_file_hash(st.st_dev, st.st_ino);
    block->file.owner = st.st_uid;
    block->file.mode = st.st_mode;
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid) + 1;
    r.boot[0] = '\0';
    return r;
}

static void forget(const struct ibx_record *r, const char *made)
{
    assert_true(!unlink(r->blocks[0].file.path) && !rmdir(made));
}

/* The VM stayed here. Its memory is its own, also when its QEMU has ended: somebody may start
 * another one with it. */
static void memory_of_a_vm_that_stayed_is_left(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_KEPT, IBX_JOURNAL_ROLLED_BACK};
    for (unsigned i = 0; i < COUNT(states); i++) {
        char made[] = "/dev/shm/ibx-run-XXXXXX";
        struct ibx_record r = in_run_folder(true, 5, made);
        bring_to(&r, states[i]);
        assert_int_equal(prune(), 1);
        assert_int_equal(access(r.blocks[0].file.path, F_OK), 0);
        forget(&r, made);
    }
}

/* The record of a VM whose source never confirms stays while its QEMU lives, and is over: it says
 * where the memory is. Unless that can be recorded, nobody takes it for one that is over. */
static void a_migration_that_nobody_confirms(NO_STATE)
{
    for (unsigned full = 0; full < 2; full++) {
        char made[] = "/dev/shm/ibx-run-XXXXXX";
        struct ibx_record r = in_run_folder(false, 5, made);
        r.pid_started--;
        bring_to(&r, IBX_JOURNAL_COMPLETE);
        cannot_write = full;
        assert_int_equal(prune(), 0);
        cannot_write = false;
        assert_int_equal(seen, full ? IBX_JOURNAL_COMPLETE : IBX_JOURNAL_DONE);
        assert_int_equal(only().state, seen);
        assert_int_equal(access(r.blocks[0].file.path, F_OK), 0);
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
        forget(&r, made);
    }
}

/* Another QEMU may have been started with it. */
static void memory_that_a_process_uses(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX";
    const struct ibx_record r = in_run_folder(true, 5, made);
    const size_t size = r.blocks[0].size;
    assert_false(ibx_journal_memory_used(&r));
    const int fd = open(r.blocks[0].file.path, O_RDWR | O_CLOEXEC);
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    close(fd);
    const pid_t child = fork(); /* has it mapped, too */
    if (!child) {
        pause();
        _exit(0);
    }
    munmap(memory, size);
    assert_true(ibx_journal_memory_used(&r));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_false(ibx_journal_memory_used(&r));
    forget(&r, made);
}

/* Another VM's memory on the same disk is still needed: that keeps no other file. */
static void memory_goes_beside_another_vm(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX", others[] = "/dev/shm/ibx-run-XXXXXX";
    struct ibx_record r = in_run_folder(true, 5, made), other = in_run_folder(true, 6, others);
    bring_to(&other, IBX_JOURNAL_MOVED);
    bring_to(&r, IBX_JOURNAL_DONE);
    assert_int_equal(prune(), 1);
    assert_int_equal(access(made, F_OK), -1);
    assert_int_equal(access(other.blocks[0].file.path, F_OK), 0);
    forget(&other, others);
}

static void set_aside(const struct ibx_record *r)
{
    struct ibx_guest_ram ram = {0};
    assert_int_equal(ibx_journal_recall_ram(r, &ram, &error), 0);
    assert_int_equal(ibx_journal_open_files(r, &ram, &error), 0);
    assert_int_equal(ibx_journal_set_aside(r, &ram, &error), 0);
    ibx_guest_ram_fini(&ram);
}

/* Only the record has the name that the memory of a VM got that is lost at both ends: nobody could
 * find that afterwards. A file that has its own name is its owner's. */
static void memory_of_a_lost_vm_that_has_another_name(NO_STATE)
{
    for (unsigned aside = 0; aside < 2; aside++) {
        char made[] = "/dev/shm/ibx-vm-XXXXXX";
        struct ibx_record r = in_run_folder(true, 5, made);
        bring_to(&r, IBX_JOURNAL_MOVED);
        strcpy(r.vm_status, IBX_JOURNAL_QEMU_ENDED);
        assert_int_equal(write_record(&r), 0);
        if (aside)
            set_aside(&r);
        keeps_memory = true;
        assert_int_equal(prune(), 1);
        keeps_memory = false;
        if (!aside)
            assert_int_equal(unlink(r.blocks[0].file.path), 0);
        assert_int_equal(rmdir(made), 0); /* nothing else is in it */
    }
}

/* Nor is anything removed from a folder that another user has made, or may write to. */
static void folders_of_others_are_not_of_run(NO_STATE)
{
    char made[] = "/dev/shm/ibx-run-XXXXXX";
    assert_non_null(mkdtemp(made));
    assert_true(ibx_journal_run_made(made));
    assert_int_equal(chmod(made, 0720), 0);
    assert_false(ibx_journal_run_made(made));
    assert_int_equal(chmod(made, 0700), 0);
    if (!geteuid()) {
        assert_int_equal(chown(made, NOBODY, NOBODY), 0);
        assert_false(ibx_journal_run_made(made));
    }
    assert_int_equal(rmdir(made), 0);
}

/* A rollback and a return, which change it, exclude each other. */
static void one_at_a_time_has_the_memory(NO_STATE)
{
    struct ibx_record r = sample(true, 5), other = sample(true, 6);
    int first, second;
    assert_int_equal(ibx_journal_lock_base(folder, &r, &first, &error), 0);
    assert_int_equal(ibx_journal_lock_base(folder, &r, &second, &error), -EBUSY);
    error_has("another ib-migrate has the memory");
    assert_int_equal(ibx_journal_lock_base(folder, &other, &second, &error), 0);
    close(second);
    close(first);
    assert_int_equal(ibx_journal_lock_base(folder, &r, &second, &error), 0);
    close(second);
}

static bool any(const struct ibx_record *record)
{
    (void)record;
    return true;
}

/* A return comes back to where the VM left: to the other role. */
static void a_return_has_the_other_role(NO_STATE)
{
    struct ibx_record left = sample(true, 5), on = sample(true, 6), back = sample(false, 7), found;
    memcpy(on.base, left.id, sizeof(on.base));
    memcpy(back.base, left.id, sizeof(back.base));
    bring_to(&left, IBX_JOURNAL_MOVED);
    assert_int_equal(write_record(&on), 0);
    assert_int_equal(ibx_journal_find_return(folder, &left, any, &found), -ENOENT);
    assert_int_equal(write_record(&back), 0);
    assert_int_equal(write_record(&on), 0);
    assert_int_equal(ibx_journal_find_return(folder, &left, any, &found), 0);
    assert_memory_equal(found.id, back.id, sizeof(found.id));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(memory_of_a_vm_that_stayed_is_left), TEST(memory_goes_beside_another_vm),
        TEST(folders_of_others_are_not_of_run),   TEST(one_at_a_time_has_the_memory),
        TEST(a_return_has_the_other_role),        TEST(a_migration_that_nobody_confirms),
        TEST(memory_that_a_process_uses),         TEST(memory_of_a_lost_vm_that_has_another_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
