#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ways.py [TEST...]: the ways by which others than virsh with qemu+tcp have libvirt migrate
(virsh_scene.py)."""
import os
import sys

from hosts import Host, test, until, within
from virsh_scene import Move, here, main, nothing_left

# What OpenStack Nova and virt-manager pass to libvirt, by the names of its API.
NOVA = "LIVE PEER2PEER UNDEFINE_SOURCE PERSIST_DEST UNSAFE".split()
VIRT_MANAGER = "LIVE PERSIST_DEST UNDEFINE_SOURCE UNSAFE".split()

# By python3-libvirt: argv is the domain, the other host's URI, the migrate URI, "peer" or "direct",
# which parameters have the domain's XML ("-": none), and flags.
CALL = """
import libvirt, sys
name, there, uri, how, with_xml, *flags = sys.argv[1:]
domain = libvirt.open("qemu:///system").lookupByName(name)
parameters = {libvirt.VIR_MIGRATE_PARAM_URI: uri, libvirt.VIR_MIGRATE_PARAM_BANDWIDTH: 0}
xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE)
for parameter in with_xml.strip("-").split():
    parameters[getattr(libvirt, "VIR_MIGRATE_PARAM_" + parameter)] = xml
number = sum(getattr(libvirt, "VIR_MIGRATE_" + flag) for flag in flags)
if how == "peer":
    domain.migrateToURI3(there, parameters, number)
else:
    domain.migrate3(libvirt.open(there), parameters, number)
"""

SSHD = """ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
"""


def by_api(hosts, domain, how, with_xml, flags):
    """A whole move there, and back with or without the domain's XML in turn."""
    domain.start(hosts.a)
    for source, destination, xml in ((hosts.a, hosts.b, with_xml[0]),
                                     (hosts.b, hosts.a, with_xml[1])):
        move = Move(hosts, domain, source, destination)
        ran = source.run("/usr/bin/python3", "-c", CALL, domain.name, destination.uri,
                         f"unix://{move.socket}", how, xml, *flags)
        assert ran.code == 0, (ran, move.sender.text[-1000:], move.receiver.text[-1000:])
        assert move.sender.end() == 0, move.sender.text
        assert move.receiver.end() == 0, move.receiver.text
        here(domain, destination, source)
        assert source.state(domain.name) == "none"
        if source is hosts.a:
            domain.expect(hosts.a, hosts.b)
    for host in hosts.all:
        nothing_left(host, domain)


@test
def a_host_that_ends_is_not_waited_for(hosts, _):
    """One without a link, whose script fails when it is to use that."""
    host = Host(hosts, "c", "10.77.0.3")
    try:
        with within(10, "a host without a link"):
            host.link_up()
    except AssertionError as why:
        assert "first process of host c has ended" in str(why) and "eth0" in str(why), why
    else:
        raise AssertionError("it has a link")
    finally:
        host.end()


# ------------------------------------------------------------------------- who calls


@test
def as_nova_calls(hosts, domain):
    """virDomainMigrateToURI3, by libvirtd itself."""
    by_api(hosts, domain, "peer", ("DEST_XML PERSIST_XML", "DEST_XML PERSIST_XML"), NOVA)


@test
def as_virt_manager_calls(hosts, domain):
    """virDomainMigrate3, by the client, in its present version and in earlier ones."""
    by_api(hosts, domain, "direct", ("DEST_XML", "-"), VIRT_MANAGER)


@test
def over_ssh(hosts, domain):
    """qemu+ssh, with keys of its own; there and back again by --p2p."""
    folder = os.path.join(hosts.folder, "ssh")
    os.mkdir(folder)
    for name in ("host", "user"):
        hosts.a.ok("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", os.path.join(folder, name))
    for host in hosts.all:
        name = os.path.join(folder, f"sshd_{host.name}")
        with open(name, "w", encoding="ascii") as file:
            file.write(SSHD.format(address=host.address, folder=folder))
        host.ok("mkdir", "-p", "/run/sshd")
        host.start("/usr/sbin/sshd", "-D", "-e", "-f", name)
    domain.start(hosts.a)
    for source, destination, option in ((hosts.a, hosts.b, []), (hosts.b, hosts.a, ["--p2p"])):
        uri = (f"qemu+ssh://root@{destination.address}/system?keyfile={folder}/user&no_verify=1"
               "&no_tty=1")
        until(lambda uri=uri, host=source: host.run("virsh", "-c", uri, "list").code == 0, "sshd")
        move = Move(hosts, domain, source, destination)
        ran = source.virsh(*move.line(*option)[:-1], uri)
        assert ran.code == 0, (ran, move.sender.text[-1000:])
        assert move.sender.end() == 0, move.sender.text
        assert move.receiver.end() == 0, move.receiver.text
        here(domain, destination, source)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
