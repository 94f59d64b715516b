/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guest RAM that a record describes, and its files when its QEMU has ended. */
#include "migrate/journal/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX_BYTES (sizeof(".ibx-") + (size_t)2 * IBX_MIGRATE_ID_BYTES)

static void suffix_of(const struct ibx_record *record, char suffix[SUFFIX_BYTES])
{
    snprintf(suffix, SUFFIX_BYTES, ".ibx-");
    ibx_hex_text(record->id, IBX_MIGRATE_ID_BYTES, suffix + strlen(suffix));
}

void ibx_journal_note_ram(struct ibx_record *record, const struct ibx_guest_ram *ram)
{
    snprintf(record->machine, sizeof(record->machine), "%s", ram->machine);
    record->block_count = (unsigned)ram->count;
    for (size_t i = 0; i < ram->count; i++) {
        const struct ibx_guest_block *block = &ram->blocks[i];
        struct ibx_journal_block *at = &record->blocks[i];
        *at = (struct ibx_journal_block){.size = block->size,
                                         .page_size = block->page_size,
                                         .offset = block->offset,
                                         .address = block->address,
                                         .dev = block->dev,
                                         .ino = block->ino};
        memcpy(at->id, block->id, sizeof(block->id));
        ibx_guest_file_describe(ram->pid, block, &at->file);
    }
}

int ibx_journal_recall_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err)
{
    struct ibx_guest_ram found = {.pid = record->pid, .count = record->block_count};
    found.blocks = calloc(found.count ? found.count : 1, sizeof(*found.blocks));
    if (!found.blocks)
        return ibx_error_set(err, -ENOMEM, "no memory for a description of guest RAM");
    memcpy(found.machine, record->machine, sizeof(found.machine));
    memcpy(found.uuid, record->uuid, sizeof(found.uuid));
    memcpy(found.name, record->name, sizeof(found.name));
    for (unsigned i = 0; i < record->block_count; i++) {
        const struct ibx_journal_block *at = &record->blocks[i];
        found.blocks[i] = (struct ibx_guest_block){.size = at->size,
                                                   .shared = true, /* only these migrate */
                                                   .page_size = at->page_size,
                                                   .offset = at->offset,
                                                   .address = at->address,
                                                   .dev = at->dev,
                                                   .ino = at->ino,
                                                   .fd = -1};
        memcpy(found.blocks[i].id, at->id, sizeof(at->id));
        found.bytes += at->size;
    }
    *ram = found;
    return 0;
}

/* The files of all blocks, in an array as the functions of qemu.h take it. To be freed by free().
 */
static struct ibx_guest_file *files_of(const struct ibx_record *record)
{
    struct ibx_guest_file *files = calloc(record->block_count + 1, sizeof(*files));
    for (unsigned i = 0; files && i < record->block_count; i++)
        files[i] = record->blocks[i].file;
    return files;
}

typedef int open_files(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                       const char *suffix, bool writable, struct ibx_error *err);

static bool may_only_read(int rc)
{
    return rc == -EACCES || rc == -EROFS;
}

/* `reads`: to read them is enough, where this tool may not write. */
static int open_all(const struct ibx_record *record, struct ibx_guest_ram *ram, open_files *open,
                    bool reads, struct ibx_error *err)
{
    char suffix[SUFFIX_BYTES];
    struct ibx_error first = {0};
    suffix_of(record, suffix);
    struct ibx_guest_file *files = files_of(record);
    if (!files)
        return ibx_error_set(err, -ENOMEM, "no memory for the files of guest RAM");
    int rc = open(ram, files, suffix, true, &first);
    if (reads && may_only_read(rc))
        rc = open(ram, files, suffix, false, err);
    else if (rc)
        ibx_error_set(err, rc, "%s", first.message);
    free(files);
    return rc;
}

int ibx_journal_open_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err)
{
    if (!record->block_count || !record->machine[0])
        return ibx_error_set(err, -ENOENT, "its record, of an earlier version, does not name them");
    return open_all(record, ram, ibx_guest_ram_open_files, true, err);
}

/* For a QEMU that has ended: opens each file by its name. Other processes may use the files. */
static int open_base_files(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err)
{
    char suffix[SUFFIX_BYTES];
    int rc = 0;
    suffix_of(record, suffix);
    ram->pid = 0;
    for (unsigned i = 0; !rc && i < record->block_count; i++)
        rc = ibx_guest_file_open(&ram->blocks[i], &record->blocks[i].file, suffix, true, err);
    return rc;
}

int ibx_journal_open_base(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err)
{
    int rc = ibx_journal_recall_ram(record, ram, err);
    if (rc)
        return rc;
    return ibx_journal_process_ended(record) ? open_base_files(record, ram, err)
                                             : ibx_guest_ram_reopen(ram, err);
}

int ibx_journal_reopen_ram(const struct ibx_record *record, struct ibx_guest_ram *ram,
                           struct ibx_error *err)
{
    int rc = open_all(record, ram, ibx_guest_ram_reopen_unmapped, true, err);
    for (size_t i = 0; !rc && i < ram->count; i++)
        if (ram->blocks[i].fd < 0)
            rc = ibx_error_set(err, -ENOENT,
                               "QEMU (process %d) has no guest RAM %s any more, and its file %s is "
                               "gone, too, or was cut short",
                               (int)ram->pid, ram->blocks[i].id,
                               record->blocks[i].file.path[0] ? record->blocks[i].file.path
                                                              : "(without a name)");
    return rc;
}

int ibx_journal_check_sizes(const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_error cut = {0};
    struct ibx_guest_ram ram;
    int rc = ibx_journal_recall_ram(record, &ram, err);
    if (rc)
        return rc;
    for (unsigned i = 0; !cut.code && i < record->block_count; i++) {
        const char *path = record->blocks[i].file.path;
        const struct ibx_guest_block *block = &ram.blocks[i];
        struct stat st;
        if (!stat(path, &st) && st.st_dev == block->dev && st.st_ino == block->ino &&
            ibx_guest_block_check_size(block, path, &st, &cut) &&
            !ibx_guest_block_find_mapping(record->pid, block))
            cut.code = 0; /* the VM continues without memory that was removed */
    }
    ibx_guest_ram_fini(&ram);
    return cut.code ? ibx_error_set(err, cut.code,
                                    "%s: nothing can restart the VM from where it stopped; end its "
                                    "QEMU (process %d) by SIGKILL, and start it from its disk",
                                    cut.message, (int)record->pid)
                    : 0;
}

static int stand_in(struct ibx_guest_block *block, struct ibx_error *err)
{
    block->gone = true;
    block->fd = memfd_create("ibx-removed-memory", MFD_CLOEXEC);
    if (block->fd >= 0 && !ftruncate(block->fd, (off_t)(block->offset + block->size)))
        return 0;
    return ibx_error_set(err, -errno, "no file takes the place of guest RAM %s, which is gone: %s",
                         block->id, strerror(errno));
}

int ibx_journal_reopen_to_fill(const struct ibx_record *record, struct ibx_guest_ram *ram,
                               struct ibx_error *err)
{
    int rc = open_all(record, ram, ibx_guest_ram_reopen_unmapped, false, err);
    for (size_t i = 0; !rc && i < ram->count; i++)
        if (ram->blocks[i].fd < 0)
            rc = stand_in(&ram->blocks[i], err);
    return rc;
}

/* Whether the user of QEMU's memory could replace what has this name by itself: a QEMU that its
 * guest has taken over may tell the name of any file. Its folder, opened, and its name there. */
static int open_replaced(const char *path, uid_t owner, const char **name, struct ibx_error *err)
{
    struct stat st;
    int at = lstat(path, &st) ? -errno : 0;
    if (!at && (!S_ISREG(st.st_mode) || st.st_uid != owner || st.st_nlink != 1))
        at = -EPERM;
    if (!at)
        at = ibx_guest_file_folder(path, st.st_dev, st.st_ino, name);
    return at < 0 ? ibx_error_set(err, at,
                                  "%s, which QEMU calls the file of its memory, is not a regular "
                                  "file of user %u with one name: %s",
                                  path, (unsigned)owner, strerror(-at))
                  : at;
}

/* Renames the file of a block to `instead`. Works in the folders that were checked, even if their
 * paths lead elsewhere by now. */
static int replace_file(const char *path, const struct ibx_journal_block *block,
                        const char *instead, struct ibx_error *err)
{
    const char *from, *to;
    char *led = realpath(instead, NULL); /* a symbolic link stays, its target is replaced */
    int there = -1, here = ibx_guest_file_folder(path, block->dev, block->ino, &from);
    int rc = here < 0 ? ibx_error_set(err, here, "%s: %s", path, strerror(-here)) : 0;
    if (!rc)
        there = open_replaced(led ? led : instead, block->file.owner, &to, err);
    rc = there < 0 && !rc ? there : rc;
    if (!rc && renameat(here, from, there, to))
        rc = ibx_error_set(err, -errno, "%s cannot be renamed to %s: %s", path, instead,
                           strerror(errno));
    if (here >= 0)
        close(here);
    if (there >= 0)
        close(there);
    free(led);
    return rc;
}

static int rename_block(const struct ibx_guest_block *guest, const struct ibx_journal_block *block,
                        const char *suffix, const char *instead, struct ibx_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    if (!stat(instead, &st) && st.st_dev == block->dev && st.st_ino == block->ino)
        return 0;
    int rc = ibx_guest_file_find(guest, &block->file, suffix, path, err);
    return rc ? rc : replace_file(path, block, instead, err);
}

int ibx_journal_rename_base(const struct ibx_record *record, char (*instead)[IBX_GUEST_FILE_PATH],
                            struct ibx_record *own, struct ibx_error *err)
{
    char suffix[SUFFIX_BYTES];
    struct ibx_guest_ram ram;
    int rc = ibx_journal_recall_ram(record, &ram, err);
    const unsigned count = rc ? 0 : record->block_count;
    suffix_of(record, suffix);
    for (unsigned i = 0; i < count && i < own->block_count; i++) {
        struct ibx_error why = {0};
        if (!instead[i][0])
            continue;
        const int one = rename_block(&ram.blocks[i], &record->blocks[i], suffix, instead[i], &why);
        if (!one)
            memcpy(own->blocks[i].file.path, instead[i], IBX_GUEST_FILE_PATH);
        else if (!rc)
            rc = ibx_error_set(err, one, "%s", why.message);
    }
    ibx_guest_ram_fini(&ram);
    return rc;
}

int ibx_journal_set_aside(const struct ibx_record *record, struct ibx_guest_ram *ram,
                          struct ibx_error *err)
{
    char suffix[SUFFIX_BYTES];
    int rc = 0;
    suffix_of(record, suffix);
    for (unsigned i = 0; i < record->block_count && i < ram->count; i++) {
        struct ibx_error why = {0};
        int one = ibx_guest_file_set_aside(&ram->blocks[i], &record->blocks[i].file, suffix, &why);
        if (one && !rc)
            rc = ibx_error_set(err, one, "%s", why.message);
    }
    return rc;
}

/* FOLDER/file becomes FOLDER.file. False: there is no such folder, or no room. */
static bool beside_folder(const char *path, char *out, size_t size)
{
    const char *file = strrchr(path, '/');
    if (!file || file == path || !memchr(path, '/', (size_t)(file - path)))
        return false;
    const char *folder = memrchr(path, '/', (size_t)(file - path));
    if (folder + 1 == file)
        return false;
    const int length = snprintf(out, size, "%.*s.%s", (int)(file - path), path, file + 1);
    return length > 0 && (size_t)length < size;
}

/* Opens the file ABOVE/FOLDER/file, and ABOVE. Its QEMU may call it what it likes: a FOLDER that is
 * a link stands where QEMU's user may perhaps make no file. */
static int open_below(const char *path, int *above)
{
    char text[PATH_MAX], *file = strrchr(strcpy(text, path), '/'), *folder;
    *file++ = '\0';
    folder = strrchr(text, '/');
    *folder++ = '\0';
    if (!strcmp(folder, "..") || !strcmp(folder, "."))
        return -EINVAL;
    const int there = open(*text ? text : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    const int in =
        there < 0 ? -1 : openat(there, folder, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int fd = in < 0 ? -1 : openat(in, file, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    const int code = -errno;
    if (in >= 0)
        close(in);
    if (fd >= 0)
        *above = there;
    else if (there >= 0)
        close(there);
    return fd < 0 ? code : fd;
}

/* Gives the block's file ABOVE/FOLDER/file the second name `to`, which is in ABOVE. -ESTALE: `path`
 * leads to another file. */
static int link_file(const char *path, const struct ibx_journal_block *block, const char *to)
{
    char name[64];
    struct stat st;
    int above = -1, fd = open_below(path, &above);
    if (fd < 0)
        return fd;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    int rc = fstat(fd, &st) ? -errno : 0;
    if (!rc && (st.st_dev != block->dev || st.st_ino != block->ino))
        rc = -ESTALE;
    if (!rc && linkat(AT_FDCWD, name, above, strrchr(to, '/') + 1, AT_SYMLINK_FOLLOW))
        rc = -errno;
    close(fd);
    close(above);
    return rc;
}

static int unlink_file(const char *path, uint64_t dev, uint64_t ino)
{
    const char *base;
    int at = ibx_guest_file_folder(path, dev, ino, &base);
    if (at < 0)
        return at;
    int rc = unlinkat(at, base, 0) ? -errno : 0;
    close(at);
    return rc;
}

int ibx_journal_link_files(struct ibx_record *record, struct ibx_error *err)
{
    char suffix[SUFFIX_BYTES], link_path[PATH_MAX];
    int rc = 0;
    suffix_of(record, suffix);
    for (unsigned i = 0; !rc && i < record->block_count; i++) {
        char *path = record->blocks[i].file.path, beside[IBX_GUEST_FILE_PATH];
        if (!path[0] || !beside_folder(path, beside, sizeof(beside)))
            continue;
        snprintf(link_path, sizeof(link_path), "%s%s", beside, suffix);
        rc = link_file(path, &record->blocks[i], link_path);
        if (rc)
            ibx_error_set(err, rc, "no second name %s for %s: %s", link_path, path, strerror(-rc));
        else
            memcpy(path, beside, sizeof(beside));
    }
    return rc;
}

void ibx_journal_unlink_files(const struct ibx_record *record)
{
    char suffix[SUFFIX_BYTES], path[PATH_MAX];
    suffix_of(record, suffix);
    for (unsigned i = 0; i < record->block_count; i++) {
        char beside[IBX_GUEST_FILE_PATH];
        const struct ibx_journal_block *at = &record->blocks[i];
        for (int other = 0; other < 2 && at->file.path[0]; other++) {
            if (other && !beside_folder(at->file.path, beside, sizeof(beside)))
                continue;
            snprintf(path, sizeof(path), "%s%s", other ? beside : at->file.path, suffix);
            unlink_file(path, at->dev, at->ino);
        }
    }
}

bool ibx_journal_run_made(const char *folder)
{
    static const char name[] = "ibx-run-", letters[] = "0123456789abcdefghijklmnopqrstuvwxyz"
                                                       "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *base = strrchr(folder, '/');
    struct stat st;
    if (!base || strncmp(base + 1, name, strlen(name)) ||
        strspn(base + 1 + strlen(name), letters) != 6 || base[1 + strlen(name) + 6])
        return false;
    return !lstat(folder, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           !(st.st_mode & (S_IRWXG | S_IRWXO));
}

bool ibx_journal_in_run_folder(const char *file)
{
    char folder[PATH_MAX];
    const char *end = strrchr(file, '/');
    if (!end || (size_t)(end - file) >= sizeof(folder))
        return false;
    snprintf(folder, sizeof(folder), "%.*s", (int)(end - file), file);
    return ibx_journal_run_made(folder);
}

bool ibx_journal_memory_file(const struct ibx_record *record, char path[PATH_MAX])
{
    char suffix[SUFFIX_BYTES];
    suffix_of(record, suffix);
    for (unsigned i = 0; i < record->block_count; i++) {
        const struct ibx_journal_block *at = &record->blocks[i];
        struct ibx_guest_block block = {
            .dev = at->dev, .ino = at->ino, .offset = at->offset, .size = at->size};
        memcpy(block.id, at->id, sizeof(block.id));
        if (!ibx_guest_file_find(&block, &at->file, suffix, path, NULL))
            return true;
    }
    return false;
}

int ibx_journal_remove_files(const struct ibx_record *record, struct ibx_error *err)
{
    char path[PATH_MAX];
    struct ibx_guest_ram ram = {0};
    if (!ibx_journal_memory_file(record, path))
        return 0;
    int rc = ibx_journal_recall_ram(record, &ram, err);
    if (!rc)
        rc = ibx_journal_open_files(record, &ram, err);
    for (size_t i = 0; !rc && i < ram.count; i++) {
        rc = unlink_file(ram.blocks[i].path, ram.blocks[i].dev, ram.blocks[i].ino);
        if (rc)
            ibx_error_set(err, rc, "%s cannot be removed: %s", ram.blocks[i].path, strerror(-rc));
        const bool run = ibx_journal_in_run_folder(ram.blocks[i].path);
        *strrchr(ram.blocks[i].path, '/') = '\0';
        if (!rc && run)
            rmdir(ram.blocks[i].path);
    }
    ibx_guest_ram_fini(&ram);
    return rc;
}

bool ibx_journal_memory_used(const struct ibx_record *record)
{
    struct ibx_guest_ram ram = {0};
    struct ibx_error silent = {0};
    if (ibx_journal_recall_ram(record, &ram, &silent))
        return false;
    const int rc = ibx_journal_open_files(record, &ram, &silent);
    ibx_guest_ram_fini(&ram);
    return rc == -EBUSY;
}

bool ibx_journal_is_aside(const struct ibx_record *record, const char *path)
{
    char suffix[SUFFIX_BYTES];
    suffix_of(record, suffix);
    const size_t length = strlen(path), tail = strlen(suffix);
    return length > tail && !strcmp(path + length - tail, suffix);
}
