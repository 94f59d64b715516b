/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate send --warm: pages that are fetched while the VM still runs at the source. */
#include "tests/scenes/mover.h"

#include <fcntl.h>
#include <sys/mman.h>

#define WARM "--warm"

static json_int_t figure(const struct mover *mover, const char *name)
{
    json_t *summary = mover_summary(mover);
    const json_int_t value = json_integer_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

/* What came before the stop, and was still right then. */
static void check_warm(void)
{
    const json_int_t pages = figure(&receiver, "warm_pages"),
                     data = figure(&receiver, "pages") - figure(&receiver, "zero_pages");
    print_message("%d passes, %.1f MiB before the stop, %d of %d pages were right then, %d faults, "
                  "downtime %.1f ms\n",
                  (int)figure(&sender, "warm_rounds"), (double)figure(&sender, "warm_bytes") / 1e6,
                  (int)pages, (int)data, (int)figure(&receiver, "faults"),
                  (double)figure(&sender, "downtime_ns") / 1e6);
    assert_true(pages > 0 && pages <= data);
    assert_int_equal(pages, figure(&sender, "warm_pages"));
    assert_true(figure(&sender, "warm_bytes") >= pages * 4096);
}

static void moved(const struct vm_options *like, const char *uri, const char *const *more)
{
    pair_start(like);
    mover_receive(&receiver, &vms[1], uri, NULL);
    mover_send(&sender, &vms[0], receiver.uri, more);
    pair_done();
    check_warm();
    pair_moved(like->append);
}

static void test_tcp(void)
{
    moved(&(struct vm_options){.append = "mib=32"}, "tcp://127.0.0.1:0",
          (const char *[]){WARM, NULL});
}

static void test_shm(void)
{
    moved(&(struct vm_options){.append = "cpus=2", .two = true}, "shm://127.0.0.1:0",
          (const char *[]){WARM, NULL});
}

/* ---------------------------------------------------------------- every byte */

static const uint8_t *map_ram(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    const uint8_t *at = mmap(NULL, VM_RAM_MIB << 20, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(at != MAP_FAILED);
    close(fd);
    return at;
}

/* The VM stands still at both ends. */
static void compare_ram(void)
{
    const uint8_t *from = map_ram(vms[0].ram), *to = map_ram(vms[1].ram);
    unsigned different = 0;
    for (size_t at = 0; at < VM_RAM_MIB << 20; at += 4096)
        different += memcmp(from + at, to + at, 4096) != 0;
    assert_int_equal(different, 0);
    munmap((void *)(uintptr_t)from, VM_RAM_MIB << 20);
    munmap((void *)(uintptr_t)to, VM_RAM_MIB << 20);
}

/* Without the digests, which would find a wrong page, too. */
static void test_every_byte_is_right(void)
{
    struct vm_options options = {.append = "cpus=2", .two = true};
    mover_begin();
    vm_start(&vms[0], &options);
    options.incoming = true;
    options.extra[0] = "-S";
    vm_start(&vms[1], &options);
    vm_wait_beats(&vms[0], pair_beats);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0",
                  (const char *[]){"--paused", "--no-verify", NULL});
    mover_send(&sender, &vms[0], receiver.uri,
               (const char *[]){WARM, "--no-verify", "--warm-rounds", "3", NULL});
    pair_done();
    check_warm();
    compare_ram();
    vm_do(&vms[1], "cont", NULL);
    pair_moved(options.append);
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {
        VM_TEST(test_tcp), VM_TEST(test_shm), VM_TEST(test_every_byte_is_right), {0}};
    return vm_tests(tests, mover_end_all);
}
