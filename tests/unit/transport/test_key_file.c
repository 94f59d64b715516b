/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Key files and the keyed hash. */
#include "transport/handshake/handshake.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/test_auth.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, entry->d_type == DT_DIR ? AT_REMOVEDIR : 0);
    closedir(dir);
    return rmdir(folder);
}

static const char *place(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const char *write_key(const char *name, const void *bytes, size_t length, mode_t mode)
{
    const char *path = place(name);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, length), length);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
    return path;
}

/* The load must fail with `code` and a message that names the file and holds `expected`. */
static void expect_refusal(const char *path, int code, const char *expected)
{
    struct ibx_key key;
    struct ibx_error err = {0};
    memset(&key, 0xff, sizeof(key));
    int rc = ibx_key_load(path, &key, &err);
    if (rc != code)
        fail_msg("%s: %d (%s), not %d", path, rc, err.message, code);
    assert_false(key.present);
    if (!strstr(err.message, path) || !strstr(err.message, expected))
        fail_msg("%s: \"%s\", not \"%s\"", path, err.message, expected);
    assert_int_equal(ibx_key_load(path, &key, NULL), code);
}

#define SIXTEEN "0123456789abcdef"

static void no_file_is_no_key(void **state)
{
    (void)state;
    struct ibx_key key;
    memset(&key, 0xff, sizeof(key));
    assert_int_equal(ibx_key_load("", &key, NULL), 0);
    assert_false(key.present);
}

/* The key is the SHA-256 of the content without its final newline. */
static void key_is_the_hash_of_the_content(void **state)
{
    (void)state;
    static const uint8_t hash[IBX_HASH_BYTES] = {
        0x9f, 0x9f, 0x51, 0x11, 0xf7, 0xb2, 0x7a, 0x78, 0x1f, 0x1f, 0x1d,
        0xdd, 0xe5, 0xeb, 0xc2, 0xdd, 0x2b, 0x79, 0x6b, 0xfc, 0x73, 0x65,
        0xc9, 0xc2, 0x8b, 0x54, 0x8e, 0x56, 0x41, 0x76, 0x92, 0x9f,
    };
    struct ibx_key key, with_newline, other;
    assert_int_equal(ibx_key_load(write_key("key", SIXTEEN, 16, 0600), &key, NULL), 0);
    assert_true(key.present);
    struct ibx_piece piece = {SIXTEEN, 16};
    uint8_t own[IBX_HASH_BYTES];
    ibx_hash(&piece, 1, own);
    assert_memory_equal(own, hash, sizeof(hash));
    assert_memory_equal(key.bytes, hash, sizeof(hash));
    assert_int_equal(ibx_key_load(write_key("key", SIXTEEN "\n", 17, 0400), &with_newline, NULL),
                     0);
    assert_memory_equal(with_newline.bytes, hash, sizeof(hash));
    assert_int_equal(ibx_key_load(write_key("key", SIXTEEN "\n\n", 18, 0600), &other, NULL), 0);
    assert_memory_not_equal(other.bytes, hash, sizeof(hash));
}

static void modes(void **state)
{
    (void)state;
    static const mode_t open_modes[] = {0640, 0604, 0660, 0666, 0610, 0601, 0620, 0602, 0677};
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++)
        expect_refusal(write_key("key", SIXTEEN, 16, open_modes[i]), -EPERM, "chmod 600");
    struct ibx_key key;
    assert_int_equal(ibx_key_load(write_key("key", SIXTEEN, 16, 0700), &key, NULL), 0);
}

static void lengths(void **state)
{
    (void)state;
    static char content[IBX_KEY_MAX + 1000];
    memset(content, 'k', sizeof(content));
    struct ibx_key key;
    expect_refusal(write_key("key", "", 0, 0600), -EINVAL, "holds 0 bytes");
    expect_refusal(write_key("key", SIXTEEN, 15, 0600), -EINVAL, "openssl rand");
    expect_refusal(write_key("key", "0123456789abcde\n", 16, 0600), -EINVAL, "holds 15 bytes");
    assert_int_equal(ibx_key_load(write_key("key", content, IBX_KEY_MAX, 0600), &key, NULL), 0);
    expect_refusal(write_key("key", content, IBX_KEY_MAX + 1, 0600), -EINVAL, "16 to 4096");
    expect_refusal(write_key("key", content, sizeof(content), 0600), -EINVAL, "16 to 4096");
    content[IBX_KEY_MAX] = '\n';
    assert_int_equal(ibx_key_load(write_key("key", content, IBX_KEY_MAX + 1, 0600), &key, NULL), 0);
    /* A newline at that place must not make a part of a longer file pass for the whole. */
    expect_refusal(write_key("key", content, sizeof(content), 0600), -EINVAL, "16 to 4096");
}

static void not_a_file(void **state)
{
    (void)state;
    expect_refusal(place("missing"), -ENOENT, "cannot be read");
    assert_int_equal(mkdir(place("directory"), 0700), 0);
    expect_refusal(place("directory"), -EINVAL, "is not a regular file");
    assert_int_equal(mkfifo(place("fifo"), 0600), 0);
    alarm(20); /* a FIFO nobody writes to must not hold up the caller */
    expect_refusal(place("fifo"), -EINVAL, "is not a regular file");
    alarm(0);
    expect_refusal("/dev/zero", -EINVAL, "is not a regular file");
}

/* Who may own it. Needs root, to become somebody else. */
static void owners(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    struct ibx_key key;
    const char *path = write_key("key", SIXTEEN, 16, 0600);
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    expect_refusal(path, -EPERM, "belongs to user 12345, not to user 0 or root");
    assert_int_equal(chmod(folder, 0755), 0);
    pid_t child = fork();
    if (!child) {
        int good = setresuid(12345, 12345, 12345) == 0 && ibx_key_load(path, &key, NULL) == 0;
        _exit(!good);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void descriptors_are_closed(void **state)
{
    (void)state;
    struct ibx_key key;
    int before = dup(0);
    close(before);
    ibx_key_load(write_key("key", SIXTEEN, 16, 0600), &key, NULL);
    ibx_key_load(write_key("key", SIXTEEN, 16, 0644), &key, NULL);
    ibx_key_load(write_key("key", SIXTEEN, 3, 0600), &key, NULL);
    ibx_key_load("/tmp", &key, NULL);
    int after = dup(0);
    close(after);
    assert_int_equal(after, before);
}

/* RFC 4231 has no case with a key of 32 bytes; this one was computed with Python's hmac. */
static void hmac_known_answer(void **state)
{
    (void)state;
    static const uint8_t expected[IBX_HASH_BYTES] = {
        0x64, 0x09, 0x41, 0x9d, 0xc6, 0x6f, 0x2f, 0xd5, 0xf3, 0x06, 0xdd,
        0xdd, 0x10, 0x08, 0xe9, 0xcc, 0xe1, 0x11, 0x55, 0x51, 0xc1, 0x7e,
        0x1e, 0xe9, 0x8b, 0x42, 0xad, 0x01, 0xd9, 0xd9, 0x94, 0xdc,
    };
    uint8_t key[IBX_HASH_BYTES], mac[IBX_HASH_BYTES];
    for (unsigned i = 0; i < sizeof(key); i++)
        key[i] = (uint8_t)i;
    struct ibx_piece parts[3] = {{"ibx ", 4}, {"", 0}, {"client", 6}};
    ibx_hmac(key, parts, 3, mac);
    assert_memory_equal(mac, expected, sizeof(mac));
    struct ibx_piece whole = {"ibx client", 10};
    ibx_hmac(key, &whole, 1, mac);
    assert_memory_equal(mac, expected, sizeof(mac));
    assert_true(ibx_hash_equal(mac, expected));
    for (unsigned bit = 0; bit < 8 * sizeof(mac); bit++) {
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(ibx_hash_equal(mac, expected));
        mac[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void random_differs(void **state)
{
    (void)state;
    uint8_t a[32] = {0}, b[32] = {0};
    assert_int_equal(ibx_random(a, sizeof(a), NULL), 0);
    assert_int_equal(ibx_random(b, sizeof(b), NULL), 0);
    assert_memory_not_equal(a, b, sizeof(a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_file_is_no_key),
        cmocka_unit_test(key_is_the_hash_of_the_content),
        cmocka_unit_test(modes),
        cmocka_unit_test(lengths),
        cmocka_unit_test(not_a_file),
        cmocka_unit_test(owners),
        cmocka_unit_test(descriptors_are_closed),
        cmocka_unit_test(hmac_known_answer),
        cmocka_unit_test(random_differs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
