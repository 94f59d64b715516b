/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files that outlive the source's tool, and QEMU: the page map of the stop, guest RAM of a QEMU
 * that has ended, and which of its files are removed in the end. */
#include "migrate/source/source.h"
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGES 64u

static struct source s;
static char notices[4096];
static struct ibx_send_options options;
static struct ibx_guest_block block;
static char path[PATH_MAX]; /* of guest RAM */

static void note_notice(void *context, const char *text)
{
    (void)context;
    strncat(notices, text, sizeof(notices) - strlen(notices) - 1);
}

/* ------------------------------------------------------------ replaced functions */

static int opens, uses; /* what opening the files returns, and the look who uses them */

int __wrap_ibx_journal_open_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                  struct ibx_error *err);
int __wrap_ibx_journal_open_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                  struct ibx_error *err)
{
    (void)record, (void)ram;
    return opens ? ibx_error_set(err, opens, "they are gone") : 0;
}

int __wrap_ibx_journal_set_aside(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                 struct ibx_error *err);
int __wrap_ibx_journal_set_aside(const struct ibx_record *record, struct ibx_guest_ram *ram,
                                 struct ibx_error *err)
{
    (void)record, (void)ram, (void)err;
    return 0;
}

int __wrap_ibx_guest_ram_check_unused(const struct ibx_guest_ram *ram, struct ibx_error *err);
int __wrap_ibx_guest_ram_check_unused(const struct ibx_guest_ram *ram, struct ibx_error *err)
{
    (void)ram;
    return uses ? ibx_error_set(err, uses, "process 7 has them mapped") : 0;
}

/* ------------------------------------------------------------ steps */

/* A tool for this migration, whose QEMU has ended: the first one, or one that takes over. */
static void begin(enum ibx_journal_state state)
{
    struct ibx_record *record = &s.status.record;
    memset(&error, 0, sizeof(error));
    notices[0] = '\0';
    opens = uses = 0;
    options = (struct ibx_send_options){.folder = folder, .observer = {.notify = note_notice}};
    s = (struct source){.options = &options, .lock_fd = -1};
    ibx_source_vm_init(&s.vm);
    *record = sample(true, 3);
    snprintf((char *)record->id, sizeof(record->id), "%d files", (int)getpid());
    record->pid = getpid();
    record->pid_started = ibx_process_started(record->pid) + 1;
    record->boot[0] = '\0';
    record->state = state;
    block =
        (struct ibx_guest_block){.id = "mem0", .size = PAGES * 4096, .page_size = 4096, .fd = -1};
    s.vm.ram = (struct ibx_guest_ram){.blocks = &block, .count = 1, .pid = record->pid};
    assert_int_equal(ibx_page_map_init_ram(&s.vm.map, &s.vm.ram, &error), 0);
}

static void end(void)
{
    ibx_source_stop_map_fini(&s);
    ibx_page_map_fini(&s.vm.map);
}

/* ------------------------------------------------------------ the page map of the stop */

static void notes_its_map(uint64_t pages)
{
    begin(IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_source_stop_map_make(&s, &error), 0);
    if (pages)
        ibx_page_map_set(&s.vm.map, 3, pages);
    ibx_source_stop_map_note(&s);
    end();
}

static void forget_map(void)
{
    ibx_journal_forget_page_states(&s.status.record);
}

/* By that very map the destination calls the migration complete, and pages are compared. */
static void the_next_tool_has_the_same_map(NO_STATE)
{
    notes_its_map(5);
    begin(IBX_JOURNAL_MOVED);
    assert_int_equal(ibx_source_stop_map_recall(&s, &error), 0);
    assert_false(s.stop_map.looked_again);
    assert_int_equal(s.vm.map.bits[0], 0xf8);
    assert_int_equal(s.vm.map.data_pages, 5);
    end();
    forget_map();
}

/* Then no destination has one, and pages are looked for again. */
static void the_tool_has_ended_before_the_stop(NO_STATE)
{
    notes_its_map(0);
    for (unsigned returns = 0; returns < 2; returns++) {
        begin(IBX_JOURNAL_MAY_RUN);
        s.status.record.base[0] = (uint8_t)returns;
        assert_int_equal(ibx_source_stop_map_recall(&s, &error), returns ? 0 : -ENOENT);
        assert_int_equal(s.stop_map.looked_again, !returns);
        end();
    }
    forget_map();
}

/* Of a VM that returns, only the note tells what of its memory is here. */
static void the_map_is_gone(NO_STATE)
{
    for (unsigned returns = 0; returns < 2; returns++) {
        begin(IBX_JOURNAL_MAY_RUN);
        s.status.record.base[0] = (uint8_t)returns;
        assert_int_equal(ibx_source_stop_map_recall(&s, &error), returns ? -ESTALE : -ENOENT);
        assert_int_equal(s.stop_map.looked_again, !returns);
        if (returns)
            error_has("the VM cannot return");
        end();
    }
}

/* That is no reason to look again, which would find another map. */
static void the_map_cannot_be_opened_now(NO_STATE)
{
    struct rlimit before, none;
    notes_its_map(5);
    begin(IBX_JOURNAL_MOVED);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int rc = ibx_source_stop_map_recall(&s, &error);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -EMFILE);
    assert_false(s.stop_map.looked_again);
    end();
    forget_map();
}

/* While the migration is not over, the next tool needs it. */
static void when_the_map_is_removed(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_MOVED, IBX_JOURNAL_DONE};
    char note[128];
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(states[i]);
        ibx_journal_page_state_path(&s.status.record, IBX_PAGE_STATE_MAP, note, sizeof(note));
        assert_int_equal(ibx_source_stop_map_make(&s, &error), 0);
        end();
        assert_int_equal(access(note, F_OK), i ? -1 : 0);
        forget_map();
    }
}

/* ------------------------------------------------------------ a QEMU that has ended */

/* Whoever has the files mapped may have written to them. */
static void pages_of_a_qemu_that_has_ended(NO_STATE)
{
    static const struct {
        int opens, uses, rc;
        const char *word;
    } cases[] = {{0, 0, 0, "its pages come from its file"},
                 {-ENOENT, 0, -ESRCH, "its memory cannot be used (they are gone)"},
                 {0, -EBUSY, -ESRCH, "process 7 has them mapped"}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(IBX_JOURNAL_MOVED);
        s.vm.ram = (struct ibx_guest_ram){.count = 0};
        opens = cases[i].opens;
        uses = cases[i].uses;
        assert_int_equal(ibx_source_vm_of_files(&s.vm, &s.status.record, &options.observer, &error),
                         cases[i].rc);
        text_has(cases[i].rc ? error.message : notices, cases[i].word);
        ibx_guest_ram_fini(&s.vm.ram);
        end();
    }
}

/* ------------------------------------------------------------ files that are not needed any more
 */

static void make_ram(const char *suffix)
{
    snprintf(path, sizeof(path), "%s/ram%s", folder, suffix);
    put_file(path, "", 0);
    snprintf(block.path, sizeof(block.path), "%s", path);
    block.fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(block.fd >= 0);
}

/* Only the very file that QEMU had, and no other one that has its name by now. */
static void which_files_are_removed(NO_STATE)
{
    static const struct {
        bool wished, aside, replaced, linked;
        bool removed;
        const char *notice;
    } cases[] = {
        {true, false, false, false, true, ""},
        {false, true, false, false, true, ""},
        {false, false, false, false, false, ""},
        {true, false, true, false, false, "not the file that QEMU has mapped"},
        {true, false, false, true, false, "has other names, too"},
    };
    char suffix[64] = ".ibx-", second[PATH_MAX];
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(IBX_JOURNAL_DONE);
        ibx_hex_text(s.status.record.id, IBX_MIGRATE_ID_BYTES, suffix + strlen(".ibx-"));
        make_ram(cases[i].aside ? suffix : "");
        snprintf(second, sizeof(second), "%s/second", folder);
        options.remove = cases[i].wished;
        if (cases[i].linked || cases[i].replaced)
            assert_int_equal(link(path, second), 0);
        if (cases[i].replaced) {
            assert_int_equal(unlink(path), 0);
            put_file(path, "", 0);
        }
        ibx_source_remove_files(&s);
        assert_int_equal(access(path, F_OK), cases[i].removed ? -1 : 0);
        text_has(notices, cases[i].notice);
        assert_int_equal(!notices[0], !cases[i].notice[0]);
        unlink(path);
        unlink(second);
        close(block.fd);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_next_tool_has_the_same_map),
        TEST(the_tool_has_ended_before_the_stop),
        TEST(the_map_is_gone),
        TEST(the_map_cannot_be_opened_now),
        TEST(when_the_map_is_removed),
        TEST(pages_of_a_qemu_that_has_ended),
        TEST(which_files_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
