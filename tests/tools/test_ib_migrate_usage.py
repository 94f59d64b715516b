#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_usage.py IB-MIGRATE: which commands and options there are, as help, the manual
and bash's completion tell, and what is said to who writes others."""
import ctypes
import errno
import os
import re
import struct
import subprocess
import sys

from harness import LIMIT, Skip, equal, run_all
from migrate_scene import case, succeeds

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MANUAL = os.path.join(ROOT, "docs/man/ib-migrate.1")
COMPLETION = os.path.join(ROOT, "tools/bash-completion")


@case
def help_and_version_are_no_errors(scene):
    out = succeeds(scene, "--help")
    assert out.startswith("Usage: ib-migrate [OPTION...] receive") and "key_file" in out, out
    assert re.fullmatch(r"ib-migrate \d+\.\d+\.\d+\n", succeeds(scene, "--version"))


@case
def help_of_a_command_is_of_that_alone(scene):
    for line, has, lacks in (
            ("send --help", ("--quit", "--qmp", "--warm", "Keys of --set"), ("--listen", "--home")),
            ("--help send", ("--quit",), ("--listen",)),
            ("help send", ("--quit",), ("--listen",)),
            ("--qmp receive send --quit --help", ("--quit",), ("--listen",)),
            ("status -h", ("--prometheus", "--json"), ("--quit", "Keys of --set", "Commands:")),
            ("borrow -?", ("--fill",), ("--no-verify",))):
        out = succeeds(scene, line)
        command = next(word for word in ("send", "status", "borrow") if word in line)
        assert re.match(rf"Usage: ib-migrate \[OPTION\.\.\.\] {command}( URI)?\n", out), out
        options = re.findall(r"^ +(?:-., )?(--[a-z-]+)", out, re.M)
        for words in has:
            assert words in out, (line, words, out)
        for words in lacks:
            assert words not in options and (words[0] == "-" or words not in out), (line, words,
                                                                                    out)
    usage = "ib-migrate [OPTION...] clone FOLDER|URI [-- QEMU ARGUMENT...]\n"
    assert succeeds(scene, "clone --help").startswith(f"Usage: {usage}")
    for line in ("nonsense --help", "--qmp send --help"):  # no command is named
        out = succeeds(scene, line)
        assert out.startswith("Usage: ib-migrate [OPTION...] receive"), out


@case
def help_and_the_manual_name_the_same(scene):
    out = succeeds(scene, "--help")
    with open(MANUAL, encoding="utf-8") as file:
        manual = file.read()
    synopsis = manual.partition(".Sh SYNOPSIS\n")[2].partition(".Sh DESCRIPTION\n")[0]
    commands = re.findall(r"\[OPTION\.\.\.\] ([a-z-]+)", out)
    equal(sorted(commands), sorted(set(re.findall(r"^\.Cm ([a-z-]+)$", synopsis, re.M))))
    options = set(re.findall(r"--([a-z][a-z-]+)", out))
    equal(options - set(re.findall(r"Fl -([a-z][a-z-]+)", manual)), set())


@case
def what_run_starts_is_offered_to_nobody(scene):
    """It has help nevertheless, for whoever meets it in a list of processes."""
    for line in ("", "move", "--home send", "--help"):
        code, out, err = scene.run(*line.split())
        assert "far-end" not in out + err and (code == 2 or line == "--help"), (line, out, err)
    assert succeeds(scene, "far-end --help").startswith("Usage: ib-migrate [OPTION...] far-end\n")
    equal(succeeds(scene, "help"), succeeds(scene, "--help"))


@case
def bash_completes_commands_and_options(scene):
    script = """. "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ibx "$1" "${!#}"
        echo "${COMPREPLY[*]}\""""
    for typed, completed in (("re", "receive recover return"), ("far", ""), ("send --quit f", ""),
                             ("send --wa", "--warm --warm-rounds --warm-seconds"),
                             ("--qmp = x stat", "status"), ("send --qmp = s", ""),
                             ("--unfin", "--unfinished"), ("nonsense --unfin", "--unfinished"),
                             ("clone x -- qemu --in", ""), ("h", "help"), ("send h", ""),
                             ("help stat", "status"), ("help help", ""), ("help send s", ""),
                             ("help send --wa", "--warm --warm-rounds --warm-seconds")):
        line = ["bash", "-c", script, "bash", COMPLETION, scene.program] + typed.split()
        out = subprocess.run(line, capture_output=True, text=True, timeout=LIMIT,
                             check=True).stdout
        equal((typed, out), (typed, completed + "\n"))


def without(call):
    """For preexec_fn: the kernel denies this system call, as by a seccomp profile."""
    libc = ctypes.CDLL(None, use_errno=True)
    filters = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0,  # the number of the call
                          0x15, 0, 1, call, 0x06, 0, 0, 0x50000 | errno.EACCES,
                          0x06, 0, 0, 0x7fff0000)
    program = ctypes.create_string_buffer(filters, len(filters))
    described = struct.pack("@HP", 4, ctypes.addressof(program))
    assert not libc.prctl(38, 1, 0, 0, 0) and not libc.prctl(22, 2, described)


@case
def a_denied_call_is_told(scene):
    """Nothing is known of the standard descriptors then: they are taken as they are."""
    if os.uname().machine != "x86_64":
        raise Skip("another number of fcntl(2)")
    os.makedirs(scene.path("state"), 0o700)
    options = {"capture_output": True, "text": True, "timeout": LIMIT, "check": False,
               "preexec_fn": lambda: without(72)}
    line = [scene.program, "status", "--state-dir", scene.path("state")]
    done = subprocess.run(line, **options)
    equal((done.returncode, done.stdout), (1, ""))
    assert "cannot be read: Permission denied; allow fcntl(2)" in done.stderr, done.stderr


@case
def a_descriptor_without_a_placeholder_is_told(scene):
    if os.geteuid():
        raise Skip("needs a /dev of its own")
    script = "mount -t tmpfs none /dev && exec \"$0\" --version <&-"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script, scene.program], text=True,
                          capture_output=True, timeout=LIMIT, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        raise Skip("no mounts here")
    equal((done.returncode, done.stdout), (1, ""))
    equal(done.stderr, "ib-migrate: descriptor 0 is closed, and /dev/null cannot be opened in its "
          "place: No such file or directory\n")


@case
def wrong_usage_exits_2(scene):
    for line in ("", "move", "--quiet", "--qmp x", "receive", "receive --qmp Q", "send --qmp Q",
                 "send tcp://a:1", "send --qmp Q tcp://a:1 more", "receive --listen tcp://a:1",
                 "receive --qmp Q --listen tcp://a:1 more", "check", "recover", "rollback", "set",
                 "set --qmp Q", "prune --unfinished", "prune more", "status --unfinished",
                 "status more", "cancel more", "status --nonsense", "cancel --quiet",
                 "status --yes", "help sned",
                 "send --qmp Q --listen x tcp://a:1", "send --qmp Q --max-bandwidth 1G tcp://a:1",
                 "receive --qmp Q --listen tcp://a:1 --quit", "check --qmp Q --yes",
                 "receive --qmp Q --listen tcp://a:1 --links 2", "status --set chunk=1M",
                 "set --max-bandwidth", "send --qmp Q --minor tcp://a:1",
                 "check --qmp Q --destination tcp://a:1", "check --qmp Q --libvirt /s",
                 "recover --qmp Q --listen tcp://a:1 tcp://b:1"):
        code, out, err = scene.run(*line.split())
        equal((line, code, out), (line, 2, ""))
        assert err.startswith("ib-migrate: "), err
        assert re.search("Try `ib-migrate( [a-z]+)? --help'", err), err
    for line, words in (
            ("send --max-bandwidth 1G", 'not go with "send", but with receive, set, recover, '),
            ("receive --qmp Q tcp://a:1", '"tcp://a:1" is one argument too many'),
            ("receive --qmp Q tcp://a:1", 'too many: "receive" takes a URI by --listen\n'),
            ("run --qmp Q b", 'too many: "run" takes a HOST by --to\n'),
            ("run --qmp Q --to b c", '"c" is one argument too many\n'),
            ("status --qmp Q tcp://a:1", '"tcp://a:1" is one argument too many\n'),
            ("send --qmp Q tcp://a:1 tcp://b:1", '"tcp://b:1" is one argument too many\n'),
            ("recover --qmp Q --listen tcp://a:1 tcp://b:1", '"tcp://b:1" with --listen'),
            ("check --qmp unix:/run/Q,server=on,wait=off", 'give the path alone, "/run/Q"'),
            ("check --qmp tcp:127.0.0.1:4444", "start QEMU with -qmp unix:"),
            ("check --qmp tcp://a:4444", "start QEMU with -qmp unix:"),
            ("serve --on-demand --listen tcp://a:1 F", "--on-demand needs --cache"),
            ("serve --links 2 --listen tcp://a:1 F", "--links needs --cache"),
            ("serve --max-bandwidth 1M --listen tcp://a:1 F", "--max-bandwidth needs --cache"),
            ("serve --no-verify --cache tcp://a:1 F", "--no-verify with --cache"),
            ("borrow --qmp Q --no-verify tcp://a:1", '--no-verify does not go with "borrow"'),
            ("return --qmp Q --no-verify --keep-warm tcp://a:1", "--no-verify with --keep-warm"),
            ("clone --qmp Q --key-file K F", "--key-file goes with clone URI: F is a folder"),
            ("clone --qmp Q --encryption off F", "--encryption goes with clone URI: F is a"),
            ("clone --qmp Q --set chunk=1M F", "--set goes with clone URI: F is a folder"),
            ("clone --qmp Q --set insecure=off F", "--set goes with clone URI: F is a folder"),
            ("clone --qmp Q --enc=auto F", "--encryption goes with clone URI: F is a"),
            ("firecracker --socket S --from F --key-file K", "--key-file goes with --from URI: F"),
            ("serve --qmp Q --listen tcp://a:1 F", 'not go with "serve"'),
            ("firecracker --qmp Q --socket S --from F", 'not go with "firecracker"'),
            ("clone --on-demand --qmp Q F", "--on-demand goes with clone URI: F is"),
            ("clone --links 2 --qmp Q F", "--links goes with clone URI: F is"),
            ("clone --qmp Q", '"clone" needs a FOLDER|URI\nTry `ib-migrate clone --help\''),
            ("run --qmp Q --to h --ssh=", '--ssh "" names no command'),
            ("clon", "Try `ib-migrate --help'"),
            ("help sned", 'there is no command "sned": give receive, send, '),
            ("clone --max-bandwidth 0 --qmp Q F", "--max-bandwidth goes with clone URI")):
        assert words in scene.run(*line.split())[2], words
    for ssh, words in ((" \t", "names no command"),
                       ("ssh" + " -v" * 32, "has 33 words: 32 at most")):
        code, _, err = scene.run("run", "--qmp", "Q", "--to", "h", "--ssh", ssh)
        equal((ssh, code, words in err), (ssh, 2, True))


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
