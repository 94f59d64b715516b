/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Key files: formats, owners and modes, lifetime of the keys in memory; and the keyed hash. */
#include "transport/handshake/handshake.h"
#include "tests/fixtures/patience.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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
    struct ibx_keys *keys = NULL;
    struct ibx_error err = {0};
    int rc = ibx_keys_load(path, &keys, &err);
    if (rc != code)
        fail_msg("%s: %d (%s), not %d", path, rc, err.message, code);
    assert_null(keys);
    if (!strstr(err.message, path) || !strstr(err.message, expected))
        fail_msg("%s: \"%s\", not \"%s\"", path, err.message, expected);
    assert_int_equal(ibx_keys_load(path, &keys, NULL), code);
}

#define DIGITS "000102030405060708090a0b0c0d0e0f" /* 32 digits */

static const uint8_t hash_of_digits[IBX_HASH_BYTES] = {
    0xbe, 0x45, 0xcb, 0x26, 0x05, 0xbf, 0x36, 0xbe, 0xbd, 0xe6, 0x84, 0x84, 0x1a, 0x28, 0xf0, 0xfd,
    0x43, 0xc6, 0x98, 0x50, 0xa3, 0xdc, 0xe5, 0xfe, 0xdb, 0xa6, 0x99, 0x28, 0xee, 0x3a, 0x89, 0x91,
};

static struct ibx_keys *load(const char *text)
{
    struct ibx_keys *keys = NULL;
    struct ibx_error err = {0};
    if (ibx_keys_load(write_key("key", text, strlen(text), 0600), &keys, &err))
        fail_msg("\"%s\": %s", text, err.message);
    assert_non_null(keys);
    return keys;
}

static void no_file_is_no_key(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_keys *keys = (void *)1;
    const struct ibx_key *own = (void *)1;
    ibx_options_init(&options);
    assert_int_equal(ibx_keys_load("", &keys, NULL), 0);
    assert_null(keys);
    assert_int_equal(ibx_keys_own(keys, &options, &own, NULL), 0);
    assert_null(own);
    ibx_keys_release(keys);
}

/* The key is the SHA-256 hash of the bytes that the hexadecimal digits stand for. */
static void key_is_the_hash_of_its_bytes(void **state)
{
    (void)state;
    static const char *const same[] = {
        DIGITS,
        DIGITS "\n",
        DIGITS "\r\n",
        "000102030405060708090A0B0C0D0E0F",
        "\n  " DIGITS " \t\n\n",
        "# the key of this host\n\n" DIGITS "\n# its end",
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        struct ibx_keys *keys = load(same[i]);
        const struct ibx_key *key = ibx_keys_find(keys, "");
        assert_non_null(key);
        assert_memory_equal(key->bytes, hash_of_digits, IBX_HASH_BYTES);
        ibx_keys_release(keys);
    }
    struct ibx_keys *other = load(DIGITS "00");
    assert_memory_not_equal(ibx_keys_find(other, "")->bytes, hash_of_digits, IBX_HASH_BYTES);
    ibx_keys_release(other);
}

static void named_keys(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_error err = {0};
    const struct ibx_key *own = NULL;
    struct ibx_keys *keys = load("# tenants\nalice:" DIGITS "\n\n bob@site : 11" DIGITS "\n");
    ibx_options_init(&options);
    assert_memory_equal(ibx_keys_find(keys, "alice")->bytes, hash_of_digits, IBX_HASH_BYTES);
    assert_memory_not_equal(ibx_keys_find(keys, "bob@site")->bytes, hash_of_digits, IBX_HASH_BYTES);
    assert_null(ibx_keys_find(keys, "bob"));
    assert_null(ibx_keys_find(keys, ""));

    assert_int_equal(ibx_keys_own(keys, &options, &own, NULL), 0);
    assert_string_equal(own->name, "alice");
    strcpy(options.name, "bob@site");
    assert_int_equal(ibx_keys_own(keys, &options, &own, NULL), 0);
    assert_string_equal(own->name, "bob@site");
    strcpy(options.name, "carol");
    assert_int_equal(ibx_keys_own(keys, &options, &own, &err), -EINVAL);
    assert_non_null(strstr(err.message, "has no key \"carol\""));
    assert_int_equal(ibx_keys_own(NULL, &options, &own, &err), -EINVAL);

    strcpy(options.allow, "bob@site,alice");
    assert_int_equal(ibx_keys_check_allowed(keys, &options, NULL), 0);
    strcpy(options.allow, "alice,carol");
    assert_int_equal(ibx_keys_check_allowed(keys, &options, &err), -EINVAL);
    assert_non_null(strstr(err.message, "has no key \"carol\""));
    assert_int_equal(ibx_keys_check_allowed(NULL, &options, &err), -EINVAL);
    assert_string_equal(err.message, "allow: \"alice\" must be a key in rdma.key_file "
                                     "(--key-file), which is not set");
    static const char *const empty[] = {",", ",alice", "alice,", "alice,,bob@site"};
    for (unsigned i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        strcpy(options.allow, empty[i]);
        assert_int_equal(ibx_keys_check_allowed(keys, &options, &err), -EINVAL);
        assert_non_null(strstr(err.message, "has an empty name"));
    }
    options.allow[0] = '\0';
    assert_int_equal(ibx_keys_check_allowed(keys, &options, &err), 0);
    ibx_keys_release(keys);
}

/* Keys live until their last holder releases them. */
static void keys_live_as_long_as_a_holder(void **state)
{
    (void)state;
    struct ibx_keys *keys = load(DIGITS), *again = ibx_keys_hold(keys);
    ibx_keys_release(keys);
    assert_memory_equal(ibx_keys_find(again, "")->bytes, hash_of_digits, IBX_HASH_BYTES);
    ibx_keys_release(again);
    assert_null(ibx_keys_hold(NULL));
}

/* Whoever could guess it would be let in with a name that no key has. */
static void key_that_nobody_has(void **state)
{
    (void)state;
    struct ibx_keys *keys = load(DIGITS), *again = load(DIGITS);
    const struct ibx_key *one = ibx_keys_nobodys(keys), *other = ibx_keys_nobodys(again);
    assert_memory_not_equal(one->bytes, other->bytes, sizeof(one->bytes));
    assert_memory_not_equal(one->bytes, hash_of_digits, sizeof(one->bytes));
    assert_string_equal(one->name, "");
    ibx_keys_release(keys);
    ibx_keys_release(again);
}

static void modes(void **state)
{
    (void)state;
    static const mode_t open_modes[] = {0640, 0604, 0660, 0666, 0610, 0601, 0620, 0602, 0677};
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++)
        expect_refusal(write_key("key", DIGITS, 32, open_modes[i]), -EPERM, "chmod 600");
    struct ibx_keys *keys = NULL;
    assert_int_equal(ibx_keys_load(write_key("key", DIGITS, 32, 0700), &keys, NULL), 0);
    ibx_keys_release(keys);
}

static void refuse(const char *text, const char *expected)
{
    const char *path = write_key("key", text, strlen(text), 0600);
    expect_refusal(path, -EINVAL, expected);
    /* The advice must not be a command that would overwrite the keys of others. */
    expect_refusal(path, -EINVAL,
                   strcmp(expected, "holds no key") ? "; correct it: a line is KEY, or name:KEY"
                                                    : "copy the other end's into it, or make one "
                                                      "by \"openssl rand -hex 32 > ");
}

/* Words, short keys and incomplete lines are refused with the line's number and advice. */
static void lines_that_are_not_keys(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } bad[] = {
        {"", "holds no key"},
        {"\n# nothing here\n", "holds no key"},
        {"hunter2", "something other than hex"},
        {"a long sentence that somebody made up by himself", "something other than hex"},
        {"000102030405060708090a0b0c0d0e", "fewer than 32 hex digits"},
        {"alice:00", "fewer than 32 hex digits"},
        {"alice:", "fewer than 32 hex digits"},
        {DIGITS "0", "odd number"},
        {DIGITS " " DIGITS, "something other than hex"},
        {"0x" DIGITS, "something other than hex"},
        {":" DIGITS, "line 1 of key file"},
        {"al ice:" DIGITS, "a name that is not"},
        {"\xc3\xa9:" DIGITS, "a name that is not"},
        {"a:" DIGITS "\n# x\na:11" DIGITS, "line 3 of key file"},
        {"a:" DIGITS "\na:11" DIGITS, "the name of an earlier line"},
        {"a:" DIGITS "\nb:11" DIGITS "\nc:" DIGITS, "line 3 of key file"},
        {"a:" DIGITS "\nb:" DIGITS, "the key of an earlier line"},
        {"a:" DIGITS "\n" DIGITS, "line 2 of key file"},
        {DIGITS "\n" DIGITS, "has no name"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        refuse(bad[i].text, bad[i].expected);
    char name[80] = "";
    memset(name, 'n', IBX_NAME_MAX);
    strcpy(name + IBX_NAME_MAX, ":");
    char text[160];
    snprintf(text, sizeof(text), "%s%s", name, DIGITS);
    ibx_keys_release(load(text));
    snprintf(text, sizeof(text), "n%s%s", name, DIGITS);
    refuse(text, "a name that is not");
    expect_refusal(write_key("my key", "", 0, 0600), -EINVAL, "/my key'\"");
}

/* No message contains text of the file. */
static void errors_contain_no_secret(void **state)
{
    (void)state;
    static const char *const bad[] = {"Tr0ub4dor", "alice:Tr0ub4dor", "Tr0ub4dor x:00"};
    for (int i = 0; i < 3; i++) {
        struct ibx_keys *keys;
        struct ibx_error err = {0};
        assert_int_equal(ibx_keys_load(write_key("key", bad[i], strlen(bad[i]), 0600), &keys, &err),
                         -EINVAL);
        assert_null(strstr(err.message, "Tr0ub4dor"));
    }
}

static void lengths(void **state)
{
    (void)state;
    static char content[IBX_KEY_MAX + 1000];
    struct ibx_keys *keys = NULL;
    memset(content, 'a', 1025);
    ibx_keys_release((content[1024] = '\0', load(content)));
    content[1024] = content[1025] = 'a'; /* an even number of digits, as in a key */
    refuse(content, "more than 1024");
    memset(content, '\n', sizeof(content));
    memcpy(content + IBX_KEY_MAX - 32, DIGITS, 32);
    assert_int_equal(ibx_keys_load(write_key("key", content, IBX_KEY_MAX, 0600), &keys, NULL), 0);
    ibx_keys_release(keys);
    expect_refusal(write_key("key", content, IBX_KEY_MAX + 1, 0600), -EINVAL, "is longer than");
    expect_refusal(write_key("key", content, sizeof(content), 0600), -EINVAL, "is longer than");
}

static void not_a_file(void **state)
{
    (void)state;
    expect_refusal(place("missing"), -ENOENT, "cannot be read");
    /* gives the mode 600 whatever the umask */
    expect_refusal(place("missing"), -ENOENT, "install -m 600 /dev/stdin ");
    assert_int_equal(mkdir(place("directory"), 0700), 0);
    expect_refusal(place("directory"), -EINVAL, "is not a regular file");
    assert_int_equal(mkfifo(place("fifo"), 0600), 0);
    alarm(20 * patience_times()); /* a FIFO without a writer must not block the caller */
    expect_refusal(place("fifo"), -EINVAL, "is not a regular file");
    alarm(0);
    expect_refusal("/dev/zero", -EINVAL, "is not a regular file");
}

/* Which users may own the file. Needs root, to become another user. */
static void owners(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    struct ibx_keys *keys;
    const char *path = write_key("key", DIGITS, 32, 0600);
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    expect_refusal(path, -EPERM,
                   "belongs to user 12345, not to user 0 or root: give this user a copy");
    assert_int_equal(chmod(folder, 0755), 0);
    pid_t child = fork();
    if (!child) {
        int good = setresuid(12345, 12345, 12345) == 0 && ibx_keys_load(path, &keys, NULL) == 0;
        _exit(!good);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    /* Root's is right for root, and its owner must stay: another user needs a copy. */
    assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    child = fork();
    if (!child) {
        struct ibx_error err = {.message = ""};
        const int rc = setresuid(12345, 12345, 12345) ? 0 : ibx_keys_load(path, &keys, &err);
        /* For GVirtuS and ibx-gvirtus first, which have no --key-file. */
        _exit(rc != -EACCES || !strstr(err.message, "Permission denied; give this user a copy") ||
              !strstr(err.message, "named by rdma.key_file in a gvirtus.properties of its own "
                                   "(GVIRTUS_RDMA_PROPERTIES), or by --key-file of ib-bw or "
                                   "ib-migrate"));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static struct ibx_keys *load_as_client(const char *path)
{
    struct ibx_keys *keys = NULL;
    return ibx_keys_load_as_client(path, &keys, NULL) ? NULL : keys;
}

static bool left_out_of_dumps(const void *address);

/* Runs in a child that becomes another user. */
static int become_another_user(const char *path, const char *other)
{
    struct ibx_keys *first = load_as_client(path), *second;
    if (!first || chmod(path, 0644) || load_as_client(path) || chmod(path, 0600))
        return 1; /* keys that were loaded before do not hide that the file has become unusable */
    if (setresuid(12345, 12345, 12345) || ibx_keys_load(path, &second, NULL) != -EACCES)
        return 2;
    ibx_keys_release(first);
    if (!(second = load_as_client(path)) || !ibx_keys_find(second, "") ||
        !left_out_of_dumps(second))
        return 3;
    ibx_keys_release(second);
    return load_as_client(other) ? 4 : 0;
}

/* A program may drop its privileges after its first call and have threads that connect later. */
static void keys_of_another_user(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    char path[PATH_MAX];
    int status;
    snprintf(path, sizeof(path), "%s", write_key("key", DIGITS, 32, 0600));
    const char *other = write_key("other", DIGITS, 32, 0600);
    assert_int_equal(chmod(folder, 0755), 0);
    const pid_t child = fork();
    if (!child)
        _exit(become_another_user(path, other));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

#define THREADS 4
#define LOADS   10000

static const char *place_of_all;

static void *load_often(void *failed)
{
    for (unsigned i = 0; i < LOADS; i++) {
        struct ibx_keys *keys = load_as_client(place_of_all);
        *(bool *)failed |= !keys;
        ibx_keys_release(keys);
    }
    return NULL;
}

/* Runs in a child that becomes another user. */
static int become_another_user_with_threads(void)
{
    pthread_t threads[THREADS];
    bool failed[THREADS] = {false}, any = false;
    struct ibx_keys *keys = load_as_client(place_of_all);
    if (!keys || setresuid(12345, 12345, 12345))
        return 1;
    ibx_keys_release(keys);
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, load_often, &failed[i]))
            return 2;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        any |= failed[i];
    }
    return any ? 3 : 0;
}

/* Its threads connect at the same time. */
static void keys_of_another_user_in_threads(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    int status;
    place_of_all = write_key("key", DIGITS, 32, 0600);
    assert_int_equal(chmod(folder, 0755), 0);
    const pid_t child = fork();
    if (!child)
        _exit(become_another_user_with_threads());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void descriptors_are_closed(void **state)
{
    (void)state;
    struct ibx_keys *keys = NULL;
    int before = dup(0);
    close(before);
    ibx_keys_release(load(DIGITS));
    ibx_keys_load(write_key("key", DIGITS, 32, 0644), &keys, NULL);
    ibx_keys_load(write_key("key", DIGITS, 3, 0600), &keys, NULL);
    ibx_keys_load("/tmp", &keys, NULL);
    int after = dup(0);
    close(after);
    assert_int_equal(after, before);
}

/* Whether the kernel omits the page of `address` from core dumps. */
static bool left_out_of_dumps(const void *address)
{
    char line[512];
    bool inside = false, found = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof(line), maps)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = (uintptr_t)address >= from && (uintptr_t)address < to;
        else if (inside && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, " dd") != NULL;
    }
    if (maps)
        fclose(maps);
    return found;
}

static void secrets_are_not_dumped(void **state)
{
    (void)state;
    struct ibx_keys *keys = load(DIGITS);
    assert_true(left_out_of_dumps(keys));
    assert_true(left_out_of_dumps(ibx_keys_find(keys, "")));
    ibx_keys_release(keys);
    char *secret = ibx_secret_allocate(100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(secret[i], 0);
    ibx_secret_free(secret);
    ibx_secret_free(NULL);
}

/* RFC 4231 has no case with a key of 32 bytes. Python's hmac computed this one. */
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

/* RFC 5869, test case 1: the first 32 of its bytes. */
static void hkdf_known_answer(void **state)
{
    (void)state;
    static const uint8_t expected[IBX_HASH_BYTES] = {
        0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac, 0xd5, 0x7a, 0x90, 0x43, 0x4f,
        0x64, 0xd0, 0x36, 0x2f, 0x2a, 0x2d, 0x2d, 0x0a, 0x90, 0xcf, 0x1a,
        0x5a, 0x4c, 0x5d, 0xb0, 0x2d, 0x56, 0xec, 0xc4, 0xc5, 0xbf,
    };
    uint8_t secret[22], salt[13], info[10], out[IBX_HASH_BYTES];
    memset(secret, 0x0b, sizeof(secret));
    for (unsigned i = 0; i < sizeof(salt); i++)
        salt[i] = (uint8_t)i;
    for (unsigned i = 0; i < sizeof(info); i++)
        info[i] = (uint8_t)(0xf0 + i);
    ibx_hkdf(&(struct ibx_piece){secret, sizeof(secret)}, &(struct ibx_piece){salt, sizeof(salt)},
             &(struct ibx_piece){info, sizeof(info)}, out);
    assert_memory_equal(out, expected, sizeof(out));
}

static void exchange_gives_both_the_same(void **state)
{
    (void)state;
    struct ibx_exchange *a, *b;
    uint8_t of_a[IBX_PUBLIC_BYTES], of_b[IBX_PUBLIC_BYTES], one[32], two[32];
    static const uint8_t zeros[IBX_PUBLIC_BYTES];
    struct ibx_error err = {0};
    assert_int_equal(ibx_exchange_create(&a, of_a, NULL), 0);
    assert_int_equal(ibx_exchange_create(&b, of_b, NULL), 0);
    assert_memory_not_equal(of_a, of_b, 32);
    assert_int_equal(ibx_exchange_secret(a, of_b, one, NULL), 0);
    assert_int_equal(ibx_exchange_secret(b, of_a, two, NULL), 0);
    assert_memory_equal(one, two, 32);
    assert_int_equal(ibx_exchange_secret(a, zeros, one, &err), -EPROTO);
    assert_string_equal(err.message, "its public key is of low order");
    ibx_exchange_destroy(a);
    ibx_exchange_destroy(b);
    ibx_exchange_destroy(NULL);
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
        cmocka_unit_test(key_is_the_hash_of_its_bytes),
        cmocka_unit_test(named_keys),
        cmocka_unit_test(keys_live_as_long_as_a_holder),
        cmocka_unit_test(key_that_nobody_has),
        cmocka_unit_test(modes),
        cmocka_unit_test(lines_that_are_not_keys),
        cmocka_unit_test(errors_contain_no_secret),
        cmocka_unit_test(lengths),
        cmocka_unit_test(not_a_file),
        cmocka_unit_test(owners),
        cmocka_unit_test(keys_of_another_user),
        cmocka_unit_test(keys_of_another_user_in_threads),
        cmocka_unit_test(descriptors_are_closed),
        cmocka_unit_test(secrets_are_not_dumped),
        cmocka_unit_test(hmac_known_answer),
        cmocka_unit_test(hkdf_known_answer),
        cmocka_unit_test(exchange_gives_both_the_same),
        cmocka_unit_test(random_differs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
