/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate borrow and return: a VM goes away, works there, and comes home with what it wrote. */
#include "tests/scenes/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>

static struct vm home;               /* the QEMU that it returns to */
static struct mover lender, bringer; /* receive --home, return */

static json_int_t figure(const struct mover *mover, const char *name)
{
    json_t *summary = mover_summary(mover);
    const json_int_t value = json_integer_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

static const struct vm_options *options;

/* The VM runs at vms[1], and nearly all of its memory is at vms[0]. */
static void borrowed(const struct vm_options *like, const char *const *more)
{
    const char *arguments[16] = {"borrow", receiver.uri, "--qmp", NULL, "--json", "--yes", TIMED};
    options = like;
    pair_start(like);
    pair_receive(NULL);
    arguments[1] = receiver.uri;
    arguments[3] = vms[0].tool;
    for (unsigned n = 8; more && *more; more++)
        arguments[n++] = *more;
    mover_start(&sender, arguments);
    mover_await(&sender, "filling", 0);
    vm_wait_beats(&vms[1], vm_beats(&vms[1]) + pair_beats);
}

static void home_start(void)
{
    struct vm_options like = *options;
    like.incoming = true;
    vm_start(&home, &like);
}

static void home_receives(void)
{
    char uri[64];
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:0?%s", pair_timeout);
    mover_receive(&lender, &home, uri, (const char *[]){"--home", NULL});
}

static void brings(void)
{
    mover_start(&bringer, (const char *[]){"return", lender.uri, "--qmp", vms[1].tool, "--json",
                                           TIMED, NULL});
}

/* Of the migrations of this test, of which there are records. */
static void no_notes(void)
{
    glob_t found;
    char pattern[160], path[PATH_MAX];
    snprintf(pattern, sizeof(pattern), "%s/*.json", mover_state_dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        static const char *const kinds[] = {"arrived", "base", "map", "tags"};
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        for (unsigned k = 0; k < 4; k++) {
            snprintf(path, sizeof(path), "/dev/shm/ibx-%.*s%s",
                     (int)(strlen(name) - strlen("json")), name, kinds[k]);
            if (!access(path, F_OK))
                fail_msg("%s is left over", path);
        }
    }
    globfree(&found);
}

/* It runs at home, all that it ever printed is right, and nothing is left over. */
static void returned(void)
{
    mover_ends(&bringer, 0);
    mover_ends(&lender, 0);
    mover_ends(&receiver, 0);
    mover_ends(&sender, 0);
    vm_wait_beats(&home, vm_beats(&home) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], &vms[1], &home, NULL}, options->append);
    no_notes();
}

static void test_there_and_back(void)
{
    borrowed(&(struct vm_options){.append = "mib=16"}, NULL);
    const json_int_t pages = figure(&receiver, "pages"), there = figure(&receiver, "present_pages");
    assert_true(there < pages);
    home_start();
    home_receives();
    brings();
    returned();
    print_message("%d pages, %d had come; %.1f MiB back, stop %.1f ms and %.1f ms\n", (int)pages,
                  (int)there, (double)figure(&lender, "wire_bytes") / 1e6,
                  (double)figure(&sender, "downtime_ns") / 1e6,
                  (double)figure(&bringer, "downtime_ns") / 1e6);
}

int main(void)
{
    pair_beats = 20;
    static const struct vm_test tests[] = {VM_TEST(test_there_and_back), {0}};
    return vm_tests(tests, mover_end_all);
}
