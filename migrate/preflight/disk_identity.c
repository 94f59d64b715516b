/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What tells one disk from another. On one host that is device and inode. Between two hosts these
 * numbers mean nothing, and there is:
 *
 *   a local file system     nothing to compare: the other host does not reach the file
 *   NFS, Ceph, GFS2, ...    what is mounted, and the inode number, which the server gives
 *   other file systems      what is mounted, and the path in it
 *   a block device          its WWN, or the UUID that the volume manager gave it
 *
 * QEMU may be in another mount namespace, and may have a file open that has been renamed since. So
 * its own descriptor of the file counts, or if it has none, the path below /proc/PID/root.
 */
#include "migrate/preflight/description.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define HEAD_BYTES   512u /* the boot sector or the image's header, which seldom change */
#define SMALL_BYTES  (16u << 20)
#define SAMPLES      64u
#define SAMPLE_BYTES 4096u
#define NAME_BYTES   512

/* Not in every linux/magic.h. */
#define GFS2 0x01161970
#define GPFS 0x47504653
#define LUST 0x0BD00BD0
#define BEEG 0x19830326
#define VXFS 0xa501FCF5
#define ACFS 0x61636673
#define FUSE 0x65735546
#define CIFS 0xFF534D42u
#define SMB2 0xFE534D42u

/* ------------------------------------------------------------ this host */

void ibx_disk_host(char *out, size_t size)
{
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    char line[64] = "";
    if (boot && !fgets(line, sizeof(line), boot))
        line[0] = '\0';
    if (boot)
        fclose(boot);
    snprintf(out, size, "%.*s", (int)strcspn(line, "\n"), line);
}

/* ------------------------------------------------------------ the file that QEMU has */

/* A path by which this process reaches the file. */
struct found {
    char path[NAME_BYTES]; /* "/proc/PID/fd/N", or below /proc/PID/root */
    bool open;             /* it is "/proc/PID/fd/N" */
    int number;            /* N */
    struct stat st;
};

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool look(struct found *found)
{
    return !stat(found->path, &found->st) &&
           (S_ISREG(found->st.st_mode) || S_ISBLK(found->st.st_mode));
}

struct searched {
    const char *file;
    const struct stat *wanted;
    struct found *found;
};

static bool is_that(void *context, int number, const char *path)
{
    const struct searched *searched = context;
    struct found one = {.open = true, .number = number};
    struct stat st;
    char link[PATH_MAX];
    snprintf(one.path, sizeof(one.path), "%s", path);
    if (ibx_proc_stat(path, &st))
        return false;
    bool good = searched->wanted && same_file(&st, searched->wanted);
    if (!searched->wanted) {
        const size_t length = strlen(searched->file);
        const ssize_t n = readlink(path, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        good = !strncmp(link, searched->file, length) &&
               (!link[length] || !strcmp(link + length, " (deleted)"));
    }
    good = good && look(&one);
    if (good)
        *searched->found = one;
    return good;
}

/* Finds QEMU's descriptor of `wanted`, or of a file that had the name `file` and has been replaced.
 */
static bool find_open(pid_t pid, const char *file, const struct stat *wanted, struct found *found)
{
    struct searched searched = {file, wanted, found};
    return ibx_proc_find_descriptor(pid, is_that, &searched) >= 0;
}

/* Finds a descriptor that was passed to QEMU (/dev/fdset/SET). */
static bool find_passed(pid_t pid, const char *file, const json_t *fdsets, struct found *found)
{
    int set;
    size_t index;
    json_t *item;
    if (sscanf(file, "/dev/fdset/%d", &set) != 1)
        return false;
    json_array_foreach(fdsets, index, item)
    {
        const json_t *fd = json_array_get(json_object_get(item, "fds"), 0);
        if (json_integer_value(json_object_get(item, "fdset-id")) != set || !fd)
            continue;
        *found = (struct found){.open = true,
                                .number = (int)json_integer_value(json_object_get(fd, "fd"))};
        snprintf(found->path, sizeof(found->path), "/proc/%d/fd/%d", (int)pid, found->number);
        return look(found);
    }
    return false;
}

static bool find(pid_t pid, const char *file, const json_t *fdsets, struct found *found)
{
    if (find_passed(pid, file, fdsets, found))
        return true;
    *found = (struct found){.open = false};
    const int n = snprintf(found->path, sizeof(found->path), "/proc/%d/%s/%s", (int)pid,
                           *file == '/' ? "root" : "cwd", file);
    const bool there = n > 0 && (size_t)n < sizeof(found->path) && look(found);
    struct found own;
    if (find_open(pid, file, there ? &found->st : NULL, &own) ||
        (there && find_open(pid, file, NULL, &own)))
        *found = own;
    else if (!there)
        return false;
    return true;
}

/* ------------------------------------------------------------ digests */

static bool add_range(EVP_MD_CTX *digest, int fd, uint64_t from, uint64_t bytes)
{
    unsigned char buffer[65536];
    while (bytes) {
        const size_t want = bytes < sizeof(buffer) ? (size_t)bytes : sizeof(buffer);
        const ssize_t n = pread(fd, buffer, want, (off_t)from);
        if (n < 0)
            return false;
        if (!n)
            return true;
        EVP_DigestUpdate(digest, buffer, (size_t)n);
        from += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return true;
}

static bool is_as_found(const void *context, const struct stat *st)
{
    const struct found *found = context;
    return same_file(st, &found->st) && st->st_mode == found->st.st_mode;
}

/* Opens the file for reading, provided that QEMU's own descriptor allows it to read: with O_PATH a
 * process can have descriptors of any files, and this process may be root. If this user may not
 * take descriptors from QEMU, and is not root, it opens the path with its own rights. */
static int open_for_reading(pid_t pid, const struct found *found)
{
    char own[32];
    const int taken = ibx_proc_take(pid, found->number);
    const bool refused = taken == -EPERM && geteuid();
    const int flags = taken < 0 ? -1 : fcntl(taken, F_GETFL);
    const bool readable = flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY;
    snprintf(own, sizeof(own), "/proc/thread-self/fd/%d", taken);
    const int fd = readable || refused
                       ? ibx_proc_open(refused ? found->path : own, O_RDONLY, is_as_found, found)
                       : -EACCES;
    if (taken >= 0)
        close(taken);
    return fd;
}

static void put_digest(pid_t pid, const struct found *found, uint64_t bytes, bool whole,
                       json_t *layer)
{
    unsigned char result[EVP_MAX_MD_SIZE];
    char text[2 * 16 + 1];
    unsigned length = 0;
    const int fd = open_for_reading(pid, found);
    EVP_MD_CTX *digest = fd >= 0 ? EVP_MD_CTX_new() : NULL;
    bool good = digest && EVP_DigestInit_ex(digest, EVP_sha256(), NULL);
    if (good && !whole)
        good = add_range(digest, fd, 0, HEAD_BYTES);
    else if (good && bytes <= SMALL_BYTES)
        good = add_range(digest, fd, 0, bytes);
    for (unsigned i = 0; good && whole && bytes > SMALL_BYTES && i < SAMPLES; i++)
        good = add_range(digest, fd, (bytes - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES);
    good = good && EVP_DigestFinal_ex(digest, result, &length);
    for (unsigned i = 0; good && i < 16; i++)
        snprintf(text + 2 * i, 3, "%02x", result[i]);
    if (good)
        json_object_set_new(layer, "digest", json_string(text));
    EVP_MD_CTX_free(digest);
    if (fd >= 0)
        close(fd);
}

/* ------------------------------------------------------------ a file */

static const char *reach_of(uint64_t type)
{
    switch (type) {
    case NFS_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case OCFS2_SUPER_MAGIC:
    case GFS2:
    case GPFS:
    case LUST:
    case BEEG:
    case VXFS:
    case ACFS:
        return "cluster";
    case FUSE:
    case CIFS:
    case SMB2:
    case SMB_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case CODA_SUPER_MAGIC:
        return "network";
    default:
        return "local";
    }
}

/* The id of the mount that the file is on; 0: not known. */
static uint64_t mount_of(const struct found *found)
{
    struct statx st;
    return !statx(AT_FDCWD, found->path, 0, STATX_MNT_ID, &st) && st.stx_mask & STATX_MNT_ID
               ? st.stx_mnt_id
               : 0;
}

/* Undoes the escapes of mountinfo, such as \040 for a blank. */
static void unescape(char *text)
{
    char *out = text;
    for (; *text; out++) {
        unsigned code;
        if (*text == '\\' && sscanf(text + 1, "%3o", &code) == 1 && strlen(text) >= 4) {
            *out = (char)code;
            text += 4;
        } else {
            *out = *text++;
        }
    }
    *out = '\0';
}

void ibx_disk_mount(char *line, const char *file, json_t *layer)
{
    char root[NAME_BYTES], point[NAME_BYTES], type[64], source[NAME_BYTES], path[3 * NAME_BYTES];
    const char *dash = strstr(line, " - ");
    if (!dash || sscanf(line, "%*u %*u %*s %511s %511s", root, point) != 2 ||
        sscanf(dash + 3, "%63s %511s", type, source) != 2)
        return;
    unescape(root);
    unescape(point);
    unescape(source);
    const size_t n = strcmp(point, "/") ? strlen(point) : 0;
    const bool below = !strncmp(file, point, n) && file[n] == '/';
    snprintf(path, sizeof(path), "%s%s", strcmp(root, "/") ? root : "", below ? file + n : file);
    json_object_set_new(layer, "type", ibx_json_text(type));
    json_object_set_new(layer, "source", ibx_json_text(source));
    json_object_set_new(layer, "path", ibx_json_text(path));
}

static void put_mount(pid_t pid, const struct found *found, const char *file, json_t *layer)
{
    const uint64_t wanted = mount_of(found);
    char name[64], link[PATH_MAX], *line = NULL;
    size_t size = 0;
    uint64_t id;
    ssize_t n = found->open ? readlink(found->path, link, sizeof(link) - 1) : -1;
    link[n > 0 ? n : 0] = '\0';
    snprintf(name, sizeof(name), "/proc/%d/mountinfo", (int)pid);
    FILE *mounts = wanted ? fopen(name, "re") : NULL;
    while (mounts && getline(&line, &size, mounts) > 0)
        if (sscanf(line, "%" SCNu64, &id) == 1 && id == wanted)
            ibx_disk_mount(line, *link == '/' ? link : file, layer);
    free(line);
    if (mounts)
        fclose(mounts);
}

/* Whether any process has a lock on the file. QEMU has one unless told otherwise
 * (file.locking=off), or if the file system has no locks. */
static bool is_locked(const struct stat *st)
{
    char wanted[64], *line = NULL;
    size_t size = 0;
    bool locked = false;
    FILE *locks = fopen("/proc/locks", "re");
    snprintf(wanted, sizeof(wanted), " %02x:%02x:%" PRIu64 " ", major(st->st_dev),
             minor(st->st_dev), (uint64_t)st->st_ino);
    while (!locked && locks && getline(&line, &size, locks) > 0)
        locked = strstr(line, wanted) != NULL;
    free(line);
    if (locks)
        fclose(locks);
    return locked || !locks;
}

static void identify_file(pid_t pid, const struct found *found, const char *file, json_t *layer)
{
    char shown[160];
    struct statfs fs;
    const char *reach = statfs(found->path, &fs) ? "local" : reach_of((uint32_t)fs.f_type);
    put_mount(pid, found, file, layer);
    snprintf(shown, sizeof(shown), "inode %" PRIu64 " of device %u:%u", (uint64_t)found->st.st_ino,
             major(found->st.st_dev), minor(found->st.st_dev));
    json_object_set_new(layer, "shown", json_string(shown));
    json_object_set_new(layer, "reach", json_string(reach));
    json_object_set_new(layer, "locked", json_boolean(is_locked(&found->st)));
    snprintf(shown, sizeof(shown), "%" PRIu64, (uint64_t)found->st.st_ino);
    json_object_set_new(layer, "inode", json_string(shown));
}

/* ------------------------------------------------------------ a block device */

/* The first line of a file of sysfs; "": there is none. */
static void read_sysfs(const char *folder, const char *name, char *out, size_t size)
{
    char path[NAME_BYTES];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    *out = '\0';
    if (file && !fgets(out, (int)size, file))
        *out = '\0';
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = '\0';
}

/* Adds a name that is the same on all hosts, given by the device manager, the volume manager, the
 * disk or the cluster. A partition gets that of its disk and a number. */
static void put_world_wide_name(const char *folder, json_t *layer)
{
    static const char *const names[] = {"dm/uuid", "wwid",          "device/wwid", "md/uuid",
                                        "uuid",    "device/serial", "serial"};
    char partition[32], disk[NAME_BYTES], name[256], all[300];
    read_sysfs(folder, "partition", partition, sizeof(partition));
    snprintf(disk, sizeof(disk), "%s%s", folder, partition[0] ? "/.." : "");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        read_sysfs(disk, names[i], name, sizeof(name));
        if (!name[0])
            continue;
        snprintf(all, sizeof(all), "%s%s%s", name, partition[0] ? " partition " : "", partition);
        json_object_set_new(layer, "wwn", ibx_json_text(all));
        return;
    }
}

static uint64_t identify_device(const struct found *found, json_t *layer)
{
    char folder[96], shown[96], sectors[32];
    const dev_t dev = found->st.st_rdev;
    snprintf(folder, sizeof(folder), "/sys/dev/block/%u:%u", major(dev), minor(dev));
    snprintf(shown, sizeof(shown), "block device %u:%u", major(dev), minor(dev));
    read_sysfs(folder, "size", sectors, sizeof(sectors));
    json_object_set_new(layer, "shown", json_string(shown));
    json_object_set_new(layer, "reach", json_string("device"));
    put_world_wide_name(folder, layer);
    return strtoull(sectors, NULL, 10) * 512;
}

/* ------------------------------------------------------------ all of it */

/* Adds "id", a hash of the file's numbers and of this host's boot id. */
static void put_id(const struct stat *st, json_t *layer)
{
    char name[160], id[17];
    const bool device = S_ISBLK(st->st_mode);
    ibx_disk_host(name, 64);
    if (!name[0])
        return;
    const size_t n = strlen(name);
    snprintf(name + n, sizeof(name) - n, "%s %" PRIx64 " %" PRIx64, device ? "device" : "",
             (uint64_t)(device ? st->st_rdev : st->st_dev), (uint64_t)(device ? 0 : st->st_ino));
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    snprintf(id, sizeof(id), "%016" PRIx64, hash);
    json_object_set_new(layer, "id", json_string(id));
}

void ibx_disk_identify(pid_t pid, const char *file, const json_t *fdsets, bool whole, json_t *layer)
{
    struct found found;
    if (pid <= 0 || !find(pid, file, fdsets, &found))
        return;
    uint64_t bytes = (uint64_t)found.st.st_size;
    if (S_ISBLK(found.st.st_mode))
        bytes = identify_device(&found, layer);
    else
        identify_file(pid, &found, file, layer);
    put_id(&found.st, layer);
    json_object_set_new(layer, "bytes", json_integer((json_int_t)bytes));
    /* Only for files that QEMU itself has open, so that a QEMU that lies about names learns
     * nothing. */
    if (found.open)
        put_digest(pid, &found, bytes, whole, layer);
}
