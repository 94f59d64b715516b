/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where the VM is according to a record, and what has become of the QEMU that it ran in. */
#include "tools/ib-migrate/ib-migrate.h"

#include <errno.h>
#include <string.h>

/* Describes the memory of a source whose QEMU has ended before the migration was complete. */
static void describe_memory(const struct ibx_record *record, const char *vm, char *sentence,
                            size_t size)
{
    char path[PATH_MAX], peer[sizeof(record->uri)];
    const bool there = ibx_journal_memory_file(record, path);
    ibx_journal_name_peer(record, peer, sizeof(peer));
    if (ibx_journal_without_ram(record)) {
        ibx_journal_say_without_ram(record, sentence, size);
        return;
    }
    if (ibx_journal_lost_there(record)) {
        snprintf(sentence, size,
                 "%s went to %s, and its QEMU there has ended, and so has that here (process %d): "
                 "nothing can restart it from where it stopped, start it from its disk%s",
                 vm, peer, (int)record->pid,
                 ibx_journal_migrated_on(record) ? IBX_JOURNAL_UNLESS_ON : "");
        return;
    }
    snprintf(
        sentence, size,
        "%s %s at %s and not here: its QEMU here (process %d) has ended, and its memory %s%s%s", vm,
        record->state != IBX_JOURNAL_MOVED ? "may run"
        : ibx_journal_stands(record)       ? "is"
                                           : "runs",
        peer, (int)record->pid,
        there ? "is in "
              : "with it, so what had not been fetched "
                "is lost: end its QEMU there and start it from its disk, "
                "unless it has all of its pages there",
        there ? path : "",
        !there ? ""
        : record->libvirt && record->state != IBX_JOURNAL_MOVED
            ? ", from which \"ib-migrate recover\" sends it: start no QEMU on that file, unless "
              "libvirt has saved the VM here without it (ib-migrate(1), MIGRATIONS BY LIBVIRT)"
            : ", from which \"ib-migrate recover\" sends it: start no QEMU on that file");
}

#define ROLL_BACK "\"ib-migrate rollback\" at the source restarts it from where it stopped"

/* The VM of a destination that took it over, and whose QEMU has ended. */
static void describe_arrived(const struct ibx_record *record, const char *vm, char *sentence,
                             size_t size)
{
    char end[sizeof(record->vm_status)];
    /* QEMU's reason for its end, if it gave one: "host-signal". */
    const bool told =
        !strncmp(record->vm_status, "host-", 5) || !strncmp(record->vm_status, "guest-", 6);
    snprintf(end, sizeof(end), "%s", record->vm_status);
    ibx_text_sanitize(end);
    const bool ran = ibx_journal_ran_here(record);
    snprintf(
        sentence, size,
        "%s does not run here: its QEMU (process %d) has ended%s%s%s; %s%s%s; \"ib-migrate "
        "prune --unfinished\" ends this record",
        vm, (int)record->pid, told ? " (" : "", told ? end : "", told ? ")" : "",
        record->libvirt || ran ? ""
                               : "unless it runs at the source, as ib-migrate status there says, ",
        record->libvirt ? "if virsh list does not have it at the source, start it from its disk"
        : ran           ? ROLL_BACK IBX_JOURNAL_UNLESS_DONE
                        : ROLL_BACK,
        record->libvirt ? "" : ibx_journal_restarts_if(record));
}

/* As ibx_cli_vm_state() for a QEMU that has ended; false: the record alone tells it. */
static bool describe_ended(const struct ibx_record *record, char *sentence, size_t size)
{
    char vm[PATH_MAX], peer[sizeof(record->uri)];
    const int pid = (int)record->pid;
    ibx_cli_vm_name(record, vm, sizeof(vm));
    ibx_journal_name_peer(record, peer, sizeof(peer));
    if (!record->source &&
        (record->state == IBX_JOURNAL_MAY_RUN || record->state == IBX_JOURNAL_RUNNING))
        describe_arrived(record, vm, sentence, size);
    else if (!record->source && record->state == IBX_JOURNAL_DONE)
        snprintf(sentence, size,
                 "%s came here with all of its pages; its QEMU (process %d) has ended since", vm,
                 pid);
    else if (record->state == IBX_JOURNAL_DONE)
        snprintf(sentence, size,
                 "%s went to %s with all of its pages; its QEMU here (process %d) has ended", vm,
                 peer, pid);
    else if (record->state == IBX_JOURNAL_ROLLED_BACK)
        snprintf(sentence, size, "%s was rolled back%s; its QEMU (process %d) has ended since", vm,
                 record->was_running ? " and ran here from where it stopped" : "", pid);
    else if (record->source &&
             (record->state == IBX_JOURNAL_MAY_RUN || record->state == IBX_JOURNAL_MOVED))
        describe_memory(record, vm, sentence, size);
    else if (record->source && record->state == IBX_JOURNAL_BROKEN)
        snprintf(sentence, size,
                 "%s ran at %s with memory that is not what it was here, and its QEMU here "
                 "(process %d) has ended, so that nothing can restart it from where it stopped: "
                 "end its QEMU there, and start it from its disk",
                 vm, peer, pid);
    else if (record->source && record->libvirt &&
             (record->state == IBX_JOURNAL_HERE || record->state == IBX_JOURNAL_KEPT))
        snprintf(sentence, size,
                 "%s was here and never ran at %s by this migration, and its QEMU (process %d) has "
                 "ended: start it from its disk, unless virsh list has it on another host, where "
                 "libvirt may have migrated it without this ib-migrate, or it was saved (virsh "
                 "save, virsh managedsave): then restore it from that",
                 vm, peer, pid);
    else if (record->source &&
             (record->state == IBX_JOURNAL_HERE || record->state == IBX_JOURNAL_KEPT))
        snprintf(sentence, size,
                 "%s was here and never ran at %s, and its QEMU (process %d) has ended with it: "
                 "start it from its disk" IBX_JOURNAL_UNLESS_SAVED,
                 vm, peer, pid);
    else
        return false;
    return true;
}

/* A source whose VM is lost at the destination and cannot be taken back, either, since a file of
 * its memory was cut short: rollback refuses. */
static bool describe_cut(const struct ibx_record *record, char *sentence, size_t size)
{
    char vm[PATH_MAX], peer[sizeof(record->uri)];
    struct ibx_error cut = {0};
    if (!record->source ||
        (record->state != IBX_JOURNAL_BROKEN && !ibx_journal_lost_there(record)) ||
        ibx_journal_check_sizes(record, &cut) != -ESTALE)
        return false;
    ibx_cli_vm_name(record, vm, sizeof(vm));
    ibx_journal_name_peer(record, peer, sizeof(peer));
    snprintf(sentence, size, "%s went to %s and does not go on there, and here %s", vm, peer,
             cut.message);
    return true;
}

void ibx_cli_vm_state(const struct ibx_record *record, char *sentence, size_t size)
{
    if (ibx_journal_qemu_gone(record) ? !describe_ended(record, sentence, size)
                                      : !describe_cut(record, sentence, size))
        ibx_journal_describe(record, sentence, size);
    ibx_text_plain(sentence);
}
