#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-fault: both ends, its figures, and its errors."""
import json
import os
import re
import signal
import sys

from harness import LIMIT, Skip, children, equal, run_all, test, until

SMALL = ["--rounds", "1", "--touches", "200", "--time", "0.02", "--pause", "0"]


def checked(text, unseen=()):
    """The JSON of a run: all figures, and none without a value but those of these names."""
    result = json.loads(text)
    equal(len(result["median"]), 28)
    for name, value in result["median"].items():
        assert value > 0 or name.startswith(("beyond", *unseen)), f"{name} is {value}"
    return result["provider"], result["settings"], result["rounds"]


def measured(scene, *args):
    """Where others keep the processors busy all pages may come before there is a fault beside them:
    then there are more pages."""
    for size in ("32M", "128M", "512M"):
        status, out, err = scene.run("self", "--size", size, *SMALL, "--json", "-", *args)
        if status and ("userfaultfd" in err or "No such device" in err):
            raise Skip(err.strip())
        assert not status and "wrong" not in err, err
        checked(out, unseen=("busy_",))
        if all(value > 0 for name, value in json.loads(out)["median"].items()
               if name.startswith("busy_")):
            break
    return checked(out)


def fetching(scene, *args):
    """An end that fetches, and its URI."""
    fetch = scene.start("fetch", *SMALL, *args, "tcp://127.0.0.1:0")
    return fetch, re.search(r"waiting at (\S+)", fetch.stderr.readline())[1]


@test
def self_over_tcp(scene):
    provider, settings, rounds = measured(scene)
    equal((provider, settings["fault_workers"], len(rounds)), ("tcp", 1, 1))
    equal(settings["links"], 5 if len(os.sched_getaffinity(0)) >= 8 else 3)


@test
def self_in_place_over_shm(scene):
    provider, settings, _ = measured(scene, "--minor", "--links=1", "--threads=2",
                                     "shm://127.0.0.1:0")
    equal((provider, settings["minor"], settings["fault_workers"]), ("shm", True, 0))


@test
def the_serving_end_says_what_it_serves(scene):
    fetch, uri = fetching(scene, "--json", scene.path("json"))
    status, _, err = scene.run("serve", "--size", "34M", "--links", "2", uri)
    out, errors = fetch.communicate(timeout=LIMIT)
    if fetch.returncode and "userfaultfd" in errors:
        raise Skip(errors.strip())
    equal((status, fetch.returncode), (0, 0))
    assert "processor time" in err, err
    assert "34 MiB of 4 KiB pages" in out and "wanted" in out, out
    with open(scene.path("json"), encoding="utf-8") as file:
        _, settings, _ = checked(file.read(), unseen=("busy_",))  # see measured()
    equal((settings["links"], settings["bytes"]), (2, 34 << 20))


@test
def a_serving_end_that_dies_ends_it(scene):
    process = scene.start("self", "--size", "32M", "--rounds", "100")
    process.stderr.readline()  # the first round
    for child in until(lambda: children(process.pid), "the end that serves"):
        os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=LIMIT)
    equal(process.returncode, 1)
    assert re.search(r"^ib-fault: .*(closed the connection|broke|reset)", err, re.M), err


@test
def an_unauthenticated_peer_is_refused(scene):
    fetch, uri = fetching(scene)
    key = scene.path("key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write("0123456789abcdef0123456789abcdef\n")
    status, _, err = scene.run("serve", "--size", "2M", "--key-file", key, uri)
    equal(status, 1)
    assert "key" in err, err
    assert fetch.poll() is None  # it goes on waiting for somebody with the key
    fetch.terminate()
    fetch.communicate(timeout=LIMIT)


@test
def what_does_not_fit_is_refused(scene):
    for command in (["self"], ["serve", "tcp://127.0.0.1:1"]):
        status, _, err = scene.run(command[0], "--size", "4096G", *command[1:])
        equal(status, 1)
        assert "smaller --size" in err, err


@test
def bad_values_are_named(scene):
    for option in ("--size=3M", "--page=8K", "--links=17", "--cpus=0-", "--cpus=a", "--threads=0",
                   "--time=0", "--nice=20", "--set=chunk", "--rounds=101"):
        status, _, err = scene.run("self", option)
        name, value = option.split("=")
        equal(status, 1)
        assert name in err and f'"{value}"' in err and err.count("\n") == 1, err
    for option in ("--cpus", "--touch-cpus"):
        status, _, err = scene.run("self", "--size=2M", "--links=2", "--touches=1", option, "1023")
        equal(status, 1)
        assert "processor 1023, " in err and "there are 0 to " in err, err
    for line in ("", "loan", "fetch", "serve --minor tcp://127.0.0.1:1",
                 "fetch --links 2 tcp://x:1", "self a b"):
        status, _, err = scene.run(*line.split())
        equal(status, 2)
        assert re.search("Try `ib-fault( [a-z]+)? --help'", err), err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
