/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a rollback refuses although the operator has confirmed it: the destination may answer by
 * then, and the migration or a return may have gone on. */
#define MONITOR_MAY_BE_GONE

#include "migrate/common/write_protection.h"
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/patience.h"
#include "tests/unit/migrate/own_monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ibx_options transport;
static struct destination destination;

/* ------------------------------------------------------------ replaced functions */

static struct {
    const char *status; /* of the VM here, as its monitor says; NULL: there is no monitor */
    int asks;           /* what asking the tool that serves the VM here returns */
    enum ibx_write_protection_state protection;
} is;
static unsigned released, restored; /* the protection; QEMU's settings */

int __real_ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                           struct ibx_error *err);
int __wrap_ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                           struct ibx_error *err);
int __wrap_ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                           struct ibx_error *err)
{
    if (!is.status)
        return __real_ibx_qmp_connect(path, deadline_ns, qmp, err);
    *qmp = (struct ibx_qmp *)&is;
    return 0;
}

int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    snprintf(status, size, "%s", is.status);
    return 0;
}

int __wrap_ibx_settings_restore(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                                struct ibx_error *err);
int __wrap_ibx_settings_restore(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                                struct ibx_error *err)
{
    (void)qmp, (void)before, (void)deadline_ns, (void)err;
    restored++;
    return 0;
}

void __wrap_ibx_vm_libvirt_disks(struct ibx_qmp *qmp, uint64_t deadline_ns);
void __wrap_ibx_vm_libvirt_disks(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    (void)qmp, (void)deadline_ns;
}

bool __wrap_ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *why, size_t size,
                               uint64_t deadline_ns);
bool __wrap_ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *why, size_t size,
                               uint64_t deadline_ns)
{
    (void)qmp, (void)status, (void)why, (void)size, (void)deadline_ns;
    return false;
}

int __wrap_ibx_control_socket_ask(const char *path, json_t *request, json_t **answer,
                                  uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_control_socket_ask(const char *path, json_t *request, json_t **answer,
                                  uint64_t deadline_ns, struct ibx_error *err)
{
    (void)path, (void)deadline_ns;
    json_decref(request);
    *answer = NULL;
    return is.asks ? ibx_error_set(err, is.asks, "so it says") : 0;
}

int __wrap_ibx_write_protection_take(struct ibx_write_protection *protection,
                                     const struct ibx_guest_ram *ram, int remote,
                                     struct ibx_error *err);
int __wrap_ibx_write_protection_take(struct ibx_write_protection *protection,
                                     const struct ibx_guest_ram *ram, int remote,
                                     struct ibx_error *err)
{
    (void)ram, (void)remote, (void)err;
    protection->state.now = is.protection;
    return 0;
}

void __wrap_ibx_write_protection_release(struct ibx_write_protection *protection);
void __wrap_ibx_write_protection_release(struct ibx_write_protection *protection)
{
    (void)protection;
    released++;
}

void __wrap_ibx_write_protection_leave(struct ibx_write_protection *protection);
void __wrap_ibx_write_protection_leave(struct ibx_write_protection *protection)
{
    (void)protection;
}

int __wrap_ibx_return_path_take(pid_t pid, uint64_t hold, int *fd, struct ibx_error *err);
int __wrap_ibx_return_path_take(pid_t pid, uint64_t hold, int *fd, struct ibx_error *err)
{
    (void)pid, (void)hold, (void)fd;
    return ibx_error_set(err, -ENOENT, "QEMU has none");
}

/* ------------------------------------------------------------ a destination that answers */

static void destination_begin(enum destination_state at, const struct ibx_record *source)
{
    static const struct ibx_receive_options options = {.folder = "/nonexistent"};
    new_destination(&destination, &options);
    destination.status.record.epoch = source->epoch;
    memcpy(destination.status.record.id, source->id, sizeof(source->id));
    assert_int_equal(ibx_destination_begin(&destination, DESTINATION_LISTENING), 0);
    if (ibx_acceptor_open("tcp://127.0.0.1:0", &transport, &destination.link.acceptor, &error))
        fail_msg("%s", error.message);
    destination.state.now = at;
}

struct calling {
    struct ibx_record record;
    struct ibx_error err;
    int rc;
    _Atomic bool over;
};

static void *call(void *argument)
{
    struct calling *c = argument;
    c->rc = ibx_migrate_rollback(folder, &c->record, &transport, &c->err);
    atomic_store(&c->over, true);
    return NULL;
}

/* A destination that ends while it is asked. */
static void hang_up(void)
{
    struct ibx_connection_request request;
    while (ibx_acceptor_take(destination.link.acceptor, &request)) {
        ibx_close(request.conn);
        ibx_migrate_message_free(&request.first);
    }
}

/* Rolls back while the destination is in this state. FAILED: it hangs up. */
static void refused_there(enum destination_state at, const struct ibx_record *record,
                          const char *word)
{
    static struct calling c;
    pthread_t thread;
    struct pollfd wait = {.events = POLLIN};
    destination_begin(at, record);
    c = (struct calling){.record = *record};
    snprintf(c.record.uri, sizeof(c.record.uri), "%s", ibx_acceptor_uri(destination.link.acceptor));
    wait.fd = ibx_acceptor_fd(destination.link.acceptor);
    assert_int_equal(pthread_create(&thread, NULL, call, &c), 0);
    while (!atomic_load(&c.over)) {
        poll(&wait, 1, 1);
        if (at == DESTINATION_FAILED)
            hang_up();
        else
            assert_int_equal(ibx_destination_check_requests(&destination, &error), 0);
        ibx_destination_link_check_queries(&destination.link);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    ibx_destination_link_fini(&destination.link, 0);
    error = c.err;
    assert_int_equal(c.rc, -EBUSY);
    error_has(word);
    assert_int_equal(c.record.state, record->state);
}

/* ------------------------------------------------------------ a source without its destination */

/* A VM that has gone away, in a QEMU that lives: this process, which has no monitor. Nobody listens
 * at the destination. */
static struct ibx_record gone_away(void)
{
    struct ibx_record r = sample(true, 5);
    ibx_options_init(&transport);
    transport.timeout_ms = patience_ms(20000);
    transport.message = IBX_MIGRATE_MESSAGE;
    r.block_count = 0;
    r.pid = getpid();
    r.pid_started = ibx_process_started(r.pid);
    r.boot[0] = r.key_file[0] = r.key_name[0] = r.allow[0] = '\0';
    r.encryption = IBX_ENCRYPTION_OFF;
    snprintf(r.qmp, sizeof(r.qmp), "/nonexistent/monitor");
    snprintf(r.uri, sizeof(r.uri), "tcp://127.0.0.1:1");
    return r;
}

static void refused(const struct ibx_record *record, int code, const char *word)
{
    struct ibx_record r = *record;
    memset(&error, 0, sizeof(error));
    const int rc = ibx_migrate_rollback(folder, &r, &transport, &error);
    if (rc != code)
        fail_msg("%d: %s", rc, error.message);
    error_has(word);
}

/* ------------------------------------------------------------ tests */

/* Running it here as well would destroy its disks. */
static void the_destination_has_the_vm(NO_STATE)
{
    struct ibx_record r = gone_away();
    bring_to(&r, IBX_JOURNAL_MOVED);
    refused_there(DESTINATION_RESUMING, &r, "the VM is there");
    refused_there(DESTINATION_FILLING, &r, "the VM is there");
    refused_there(DESTINATION_COMPLETE, &r, "the VM is there");
    refused_there(DESTINATION_SHUT_DOWN, &r, "shut it down there");
}

/* The next answer may be that the VM runs there. */
static void the_destination_hangs_up(NO_STATE)
{
    struct ibx_record r = gone_away();
    bring_to(&r, IBX_JOURNAL_MOVED);
    refused_there(DESTINATION_FAILED, &r, "is not known");
}

/* It ends where QEMU cannot be reached: nothing refuses it before that. */
static void nobody_answers(NO_STATE)
{
    struct ibx_record r = gone_away();
    bring_to(&r, IBX_JOURNAL_MOVED);
    refused(&r, -ENOENT, "/nonexistent/monitor");
    assert_int_equal(only().state, IBX_JOURNAL_MOVED);
}

static void the_migration_has_gone_on(NO_STATE)
{
    struct ibx_record r = gone_away(), before;
    bring_to(&r, IBX_JOURNAL_MAY_RUN);
    before = r;
    r.epoch++;
    assert_int_equal(write_record(&r), 0);
    refused(&before, -EBUSY, "has gone on meanwhile");
    before = r;
    r.state = IBX_JOURNAL_MOVED;
    assert_int_equal(write_record(&r), 0);
    refused(&before, -EBUSY, "has gone on meanwhile");
    r.state = IBX_JOURNAL_DONE;
    assert_int_equal(write_record(&r), 0);
    refused(&r, -EINVAL, "nothing to roll back");
}

/* Its memory here is not what it was at its stop. */
static void a_return_has_begun(NO_STATE)
{
    struct ibx_record r = gone_away();
    r.borrow = IBX_BORROW_LAZY;
    bring_to(&r, IBX_JOURNAL_MOVED);
    assert_int_equal(ibx_journal_touch_base(folder, &r, &error), 0);
    refused(&r, -EBUSY, "a return of this VM has begun");
}

/* What it had not fetched here is newer at home. */
static void the_vm_has_returned(NO_STATE)
{
    struct ibx_record r = gone_away();
    r.base[0] = 1;
    bring_to(&r, IBX_JOURNAL_MOVED);
    refused(&r, -EBUSY, "this VM has returned");
    r.whole = true;
    assert_int_equal(write_record(&r), 0);
    refused(&r, -ENOENT, "/nonexistent/monitor");
}

/* QEMU would end as soon as the VM uses its memory. */
static void memory_was_cut_short(NO_STATE)
{
    enum { SIZE = 1 << 20 };
    char file[PATH_MAX];
    struct stat st;
    struct ibx_record r = gone_away();
    snprintf(file, sizeof(file), "%s/memory", folder);
    put_file(file, "", 0);
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, SIZE) && !fstat(fd, &st));
    void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    r.block_count = 1;
    r.blocks[0] = (struct ibx_journal_block){.id = "mem0",
                                             .size = SIZE,
                                             .page_size = 4096,
                                             .address = (uintptr_t)memory,
                                             .dev = st.st_dev,
                                             .ino = st.st_ino};
    snprintf(r.blocks[0].file.path, sizeof(r.blocks[0].file.path), "%s", file);
    bring_to(&r, IBX_JOURNAL_MOVED);
    refused(&r, -ENOENT, "/nonexistent/monitor");
    assert_int_equal(ftruncate(fd, SIZE / 2), 0);
    refused(&r, -ESTALE, "nothing can restart the VM");
    munmap(memory, SIZE);
    close(fd);
    unlink(file);
}

/* The VM may have run at home meanwhile: the tool that serves it here would go on with pages that
 * are none of the VM's, if it did not make its link anew. */
static void the_link_of_a_return_is_made_anew(NO_STATE)
{
    static const struct {
        int asks, rc;
        const char *word;
    } cases[] = {{-ETIMEDOUT, -ETIMEDOUT, "the ib-migrate that serves the VM here"},
                 {-ECONNREFUSED, -ENOENT, "/nonexistent/monitor"},
                 {-ENOENT, -ENOENT, "/nonexistent/monitor"},
                 {0, -ENOENT, "/nonexistent/monitor"}};
    struct ibx_record r = gone_away();
    r.base[0] = 1;
    r.whole = true;
    bring_to(&r, IBX_JOURNAL_MOVED);
    for (unsigned i = 0; i < COUNT(cases); i++) {
        is.asks = cases[i].asks;
        refused(&r, cases[i].rc, cases[i].word);
    }
    is.asks = 0;
}

/* Where libvirt drives, only a VM that libvirt has continued is taken back. */
static void libvirt_has_not_continued_the_vm(NO_STATE)
{
    struct ibx_record r = gone_away();
    r.libvirt = true;
    r.uffd = -1;
    bring_to(&r, IBX_JOURNAL_MOVED);
    restored = 0;
    is.status = "paused";
    refused(&r, -EBUSY, "libvirt decides where this VM runs");
    assert_int_equal(only().state, IBX_JOURNAL_MOVED);
    assert_false(restored || ibx_journal_back_marked(folder, &r));
    is.status = "running";
    assert_int_equal(ibx_migrate_rollback(folder, &r, &transport, &error), 0);
    assert_int_equal(only().state, IBX_JOURNAL_ROLLED_BACK);
    assert_int_equal(restored, 1);
    is.status = NULL;
}

/* A thread that tried to write would write then, to memory that is about to be removed. */
static void nobody_lets_a_write_go_on(NO_STATE)
{
    static const enum ibx_write_protection_state states[] = {PROTECTION_CAUGHT, PROTECTION_MADE};
    for (unsigned i = 0; i < COUNT(states); i++) {
        struct ibx_record r = gone_away();
        r.uffd = 31;
        r.block_count = 1;
        r.settings[0] = '\0';
        is.protection = states[i];
        released = 0;
        assert_int_equal(ibx_migrate_let_go(&r, &error), i ? 0 : -EBUSY);
        assert_int_equal(released, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_destination_has_the_vm),
        TEST(the_destination_hangs_up),
        TEST(nobody_answers),
        TEST(the_migration_has_gone_on),
        TEST(a_return_has_begun),
        TEST(the_vm_has_returned),
        TEST(memory_was_cut_short),
        TEST(the_link_of_a_return_is_made_anew),
        TEST(libvirt_has_not_continued_the_vm),
        TEST(nobody_lets_a_write_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
