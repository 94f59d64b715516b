#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_saved_beside.py [TEST...]: a domain is saved by libvirt right before ib-migrate freeze has
its QEMU begin, over the domain's second monitor: the VM's memory is in what libvirt has saved."""
import os
import shutil
import signal
import subprocess
import sys

from hosts import DISK, LIMIT, RESTLESS, Domain, test, until
from virsh_scene import Tool, main


class Overlaid(Domain):
    """With a disk in which libvirt can make an internal snapshot."""

    def devices(self):
        path = os.path.join(self.hosts.folder, f"{self.name}.qcow2")
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", path, "64M"], check=True)
        shutil.chown(path, "libvirt-qemu", "libvirt-qemu")
        return DISK.format(path=path).replace("type='raw'", "type='qcow2'")


def frozen_after(hosts, domain, *command):
    """A freeze that goes on when virsh has done this: the domain, and its exit status."""
    domain = Overlaid(hosts, domain.name, words=RESTLESS)
    domain.start(hosts.a)
    tool = Tool(hosts.a, ["freeze", "--json", "--qmp", domain.monitor,
                          os.path.join(hosts.a.own, f"{domain.name}.snapshot")],
                stop_at="freeze:starting")
    tool.stopped()
    hosts.a.virsh_ok(*command)
    tool.kill(signal.SIGCONT)
    return domain, tool, tool.process.wait(LIMIT)


def goes_on(hosts, domain):
    """It runs with its memory."""
    until(lambda: hosts.a.state(domain.name) == "running", "running on a")
    domain.beats_on(hosts.a)


@test
def a_save_is_restored(hosts, domain):
    """libvirt has ended QEMU, and freeze says what may be left of the VM."""
    file = f"/var/lib/libvirt/qemu/{domain.name}.save"
    domain, tool, code = frozen_after(hosts, domain, "save", domain.name, file)
    hosts.a.virsh_ok("restore", file)
    goes_on(hosts, domain)
    domain.expect(hosts.a)
    assert code == 1 and "restore it from that" in tool.text, tool.text


@test
def a_managed_save_is_started(hosts, domain):
    """The same of virsh managedsave."""
    domain, tool, code = frozen_after(hosts, domain, "managedsave", domain.name)
    hosts.a.virsh_ok("start", domain.name)
    goes_on(hosts, domain)
    domain.expect(hosts.a)
    assert code == 1 and "restore it from that" in tool.text, tool.text


@test
def an_internal_snapshot_is_reverted_to(hosts, domain):
    """QEMU lives, so that the freeze succeeds, and leaves the VM stopped. The guest's heartbeats
    begin again where they were."""
    domain, tool, code = frozen_after(hosts, domain, "snapshot-create-as", domain.name, "beside")
    assert code == 0, tool.text
    hosts.a.virsh_ok("destroy", domain.name)
    hosts.a.virsh_ok("snapshot-revert", domain.name, "beside", "--running")
    goes_on(hosts, domain)
    hosts.a.virsh_ok("snapshot-delete", domain.name, "beside")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
