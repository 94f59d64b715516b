#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_libvirt_decides.py [TEST...]: whether the VM goes on at the source or at the destination is
libvirt's decision; the tools learn of it late, or never (virsh_scene.py)."""
import json
import os
import signal
import sys

from hosts import LIMIT, test, until
from virsh_scene import Move, Tool, caught, here, main, nothing_left


@test
def recover_leaves_a_paused_vm_paused(hosts, domain):
    """The destination's tool dies when the VM is loaded, and libvirt does not continue that."""
    domain.start(hosts.a)
    move = Move(hosts, domain, stop_at="destination:filling")
    assert move.migrate("--suspend").code == 0
    move.receiver.stopped()
    move.receiver.kill()
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    assert hosts.b.state(domain.name) == "paused"
    hosts.b.virsh_ok("resume", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def recover_claims_nothing_that_qemu_does_not_tell(hosts, domain):
    """The destination's tool dies when the VM runs there, and QEMU does not answer the next one."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling")
    tool.kill()
    qemu = hosts.b.qemu(domain.name)
    os.kill(qemu, signal.SIGSTOP)
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    again.says("the VM is loaded here")
    os.kill(qemu, signal.SIGCONT)
    assert "QEMU does not tell yet whether libvirt has continued it" in again.text, again.text
    assert "libvirt has not continued it" not in again.text, again.text
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


def forgotten_at_the_source(hosts, domain):
    """libvirtd at the source has forgotten the migration, and the VM never ran elsewhere. Nobody
    works on it any more; libvirt has it paused at the source."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill()
    move.virsh.wait(LIMIT)
    until(lambda: not hosts.b.qemu(domain.name), "the end of the QEMU on b")
    move.sender.kill(signal.SIGTERM)
    move.sender.says("interrupt once more")
    move.sender.kill(signal.SIGTERM)
    assert move.sender.end() == 3, move.sender.text


@test
def rollback_leaves_it_to_virsh_resume(hosts, domain):
    """It ends when libvirt has continued the VM."""
    forgotten_at_the_source(hosts, domain)
    again = hosts.a.run(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    assert again.code == 1 and "virsh resume" in again.err, again
    assert hosts.a.state(domain.name) == "paused"
    hosts.a.virsh_ok("resume", domain.name)
    hosts.a.ok(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)
    domain.expect(hosts.a)


@test
def a_vm_that_has_run_is_taken_back_though_it_is_paused_by_now(hosts, domain):
    """The rollback is killed when it has seen the VM run, and virsh pauses that. Its memory is not
    what it was at its stop: the migration must not go on from there."""
    forgotten_at_the_source(hosts, domain)
    hosts.a.virsh_ok("resume", domain.name)
    rollback = Tool(hosts.a, ["rollback", "--yes", "--qmp", domain.monitor],
                    stop_at="rollback:continued")
    rollback.stopped()
    rollback.kill()
    hosts.a.virsh_ok("suspend", domain.name)
    again = hosts.a.run(os.environ["IB_MIGRATE"], "recover", "--qmp", domain.monitor)
    assert again.code == 1 and "a rollback had continued the VM" in again.err, again
    assert record(hosts.a, domain) == "rolled-back"
    hosts.a.virsh_ok("resume", domain.name)
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


def loaded(hosts, domain):
    """A move of a domain that this starts. The VM is loaded at the destination, where a libvirtd
    that stands still does not continue it. It stands still before QEMU's migration ends at the
    source: from then on it may tell the other QEMU to continue the VM, which does so as soon as it
    is loaded."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:sending")
    hosts.b.hold_libvirtd()
    tool.kill(signal.SIGCONT)
    until(lambda: qemu_is(hosts.b, domain, "paused"), "a VM that is loaded")
    return move


def untold(hosts, domain, *tools):
    """The same. Then these tools of the move die, and so does the destination's libvirtd: the
    source's has continued the VM there, and virsh has failed."""
    move = loaded(hosts, domain)
    for tool in tools:
        getattr(move, tool).kill()
    hosts.b.end_libvirtd(signal.SIGKILL)
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    return move


def qemu_is(host, domain, status):
    """Whether QEMU at the tool's monitor, which must be free, or the tool says that of the VM."""
    said = host.ok(os.environ["IB_MIGRATE"], "status", "--json", "--qmp", domain.monitor)
    return f'"vm_status":"{status}"' in said.replace('": "', '":"')


def status(host, domain):
    """What the tool says of it there."""
    return host.ok(os.environ["IB_MIGRATE"], "status", "--qmp", domain.monitor)


def record(host, domain):
    """The state of the newest record there."""
    said = host.ok(os.environ["IB_MIGRATE"], "status", "--json", "--qmp", domain.monitor)
    found = [json.loads(line).get("record") or {} for line in said.splitlines()]
    return next(one["state"] for one in found if one.get("written"))


@test
def a_destination_learns_late_that_the_vm_is_at_the_source(hosts, domain):
    """Its tool dies before it can: the next one is told, and ends the QEMU that nobody needs."""
    move = untold(hosts, domain, "receiver")
    assert hosts.b.qemu(domain.name)
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 1, again.text
    assert "libvirt has continued the VM here" in again.summary()["error"], again.text
    assert move.sender.end() == 1, move.sender.text
    assert "could not be told" not in move.sender.text, move.sender.text
    assert (record(hosts.a, domain), record(hosts.b, domain)) == ("kept", "given-up")
    assert not hosts.b.qemu(domain.name)
    hosts.b.start_libvirtd()
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


@test
def a_destination_that_nobody_tells_says_what_it_knows(hosts, domain):
    """The source's tool has died, too, and libvirt has continued the VM there."""
    untold(hosts, domain, "receiver", "sender")
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    again.says("libvirt has not continued it: this tool waits for the source")
    assert "virsh destroy here" in status(hosts.b, domain)
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    assert again.end() == 3, again.text
    assert "whether libvirt had continued it before is not known" in again.summary()["error"]
    hosts.b.start_libvirtd()
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


@test
def a_destination_whose_qemu_answers_late_says_what_that_tells(hosts, domain):
    """The same where QEMU is silent when the next tool begins."""
    untold(hosts, domain, "receiver", "sender")
    qemu = hosts.b.qemu(domain.name)
    os.kill(qemu, signal.SIGSTOP)
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    again.says("QEMU does not tell yet whether libvirt has continued it")
    os.kill(qemu, signal.SIGCONT)
    until(lambda: "libvirt has not continued it" in status(hosts.b, domain), "what QEMU tells")
    assert "does not tell yet" not in status(hosts.b, domain)
    os.kill(qemu, signal.SIGKILL)
    assert again.end() == 3, again.text
    hosts.b.start_libvirtd()
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


@test
def who_asks_after_a_lost_link_reads_what_to_do(hosts, domain):
    """The source's tool dies while the VM is loaded and libvirt has not continued it: status says
    what the destination's tool has said."""
    move = loaded(hosts, domain)
    move.sender.kill()
    move.receiver.says("libvirt has not continued it: this tool waits for the source")
    assert "virsh destroy here" in status(hosts.b, domain)


@test
def who_asks_once_libvirt_has_continued_it_reads_no_such_thing(hosts, domain):
    """Then the VM runs there, and to destroy it would lose it."""
    move = loaded(hosts, domain)
    move.sender.kill()
    move.receiver.says("libvirt has not continued it: this tool waits for the source")
    hosts.b.release_libvirtd()
    until(lambda: qemu_is(hosts.b, domain, "running"), "a VM that libvirt has continued")
    assert "virsh destroy" not in status(hosts.b, domain)
    again = Tool(hosts.a, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.receiver.end() == 0, move.receiver.text
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def libvirt_changes_its_mind_late(hosts, domain):
    """The destination's libvirtd stands still for so long that the source's continues the VM,
    which was loaded there, paused. Nothing is broken or done: it never ran there."""
    move = loaded(hosts, domain)
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    assert move.sender.end() == 1, move.sender.text
    assert "libvirt has continued the VM here: its migration" in move.sender.summary()["error"]
    assert move.receiver.end() == 1, move.receiver.text
    assert (record(hosts.a, domain), record(hosts.b, domain)) == ("kept", "given-up")
    hosts.b.release_libvirtd()
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
