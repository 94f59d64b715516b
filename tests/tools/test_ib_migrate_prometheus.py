#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_prometheus.py IB-MIGRATE: the figures for Prometheus, by a strict parser of their
format."""
import json
import os
import re
import sys

from harness import equal, run_all, until

import migrate_scene as tool
from migrate_scene import Vm, case, receiver, start, wait_for_phase

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
NUMBER = r"-?(?:\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|Inf|NaN)"


def parse_exposition(text):
    """{family: (type, {labels: value})}. Everything that the format leaves open is refused: order,
    a family in two places, one without HELP and TYPE, a sample twice, blanks."""
    assert text.endswith("\n") and "\r" not in text, text[-80:]
    families, name = {}, None
    lines = text[:-1].split("\n")
    while lines:
        line = lines.pop(0)
        head = re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line)
        if head:
            name = head.group(1)
            assert name not in families, f"{name} is in two places"
            kind = re.fullmatch(rf"# TYPE {name} (gauge|counter)", lines.pop(0))
            assert kind, f"no TYPE of {name}"
            assert (kind.group(1) == "counter") == name.endswith("_total"), name
            families[name] = (kind.group(1), {})
            continue
        sample = re.fullmatch(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ({NUMBER})", line)
        assert sample and sample.group(1) == name, f"{line!r} after {name}"
        labels = re.findall(LABEL, sample.group(2) or "")
        equal(len(dict(labels)), len(labels))
        unescaped = tuple(sorted((key, re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1],
                                              value)) for key, value in labels))
        samples = families[name][1]
        assert unescaped not in samples, f"{line!r} is there twice"
        samples[unescaped] = float(sample.groups()[-1])
    return families


def figures(scene, *more):
    code, out, err = scene.run("status", "--prometheus", *more)
    equal((code, err), (0, ""))
    return parse_exposition(out)


def figure(families, name, **labels):
    """The one sample of this family that has these labels."""
    found = [value for key, value in families["ibx_migration_" + name][1].items()
             if labels.items() <= dict(key).items()]
    equal((name, labels, len(found)), (name, labels, 1))
    return found[0]


def none_of(families, name, **labels):
    equal([key for key in families["ibx_migration_" + name][1]
           if labels.items() <= dict(key).items()], [])


@case
def without_migrations_there_are_figures_too(scene):
    os.mkdir(scene.path("state"), 0o700)
    families = figures(scene)
    equal(figure(families, "receivers_waiting"), 0)
    equal(sum(families["ibx_migration_records"][1].values()), 0)
    equal(len(families["ibx_migration_records"][1]), 17)
    none_of(families, "info")


@case
def a_record_that_cannot_be_read_is_a_figure(scene):
    """Its migration, for which somebody may be needed, has none."""
    os.mkdir(scene.path("state"), 0o700)
    equal(figure(figures(scene), "records_unreadable"), 0)
    path, torn = scene.path("ibx.prom"), scene.path("state/torn.json")
    with open(torn, "w", encoding="ascii"):
        pass
    for more in ((), ("--output", path)):
        code, out, err = scene.run("status", "--prometheus", *more)
        equal(code, 1)
        tool.says(err, torn)
        if more:
            with open(path, encoding="utf-8") as file:
                out = file.read()
        equal(figure(parse_exposition(out), "records_unreadable"), 1)


@case
def figures_of_a_migration(scene):
    source, destination = tool.halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    equal(figure(figures(scene), "receivers_waiting"), 1)
    sender = start(scene, "send --json", *source.qmp, uri)
    wait_for_phase("filling", sender, waiting)
    families = figures(scene)
    ids = {dict(key)["id"] for key in families["ibx_migration_info"][1]}
    equal(len(ids), 1)
    equal(figure(families, "receivers_waiting"), 0)
    for role, state in (("source", "moved"), ("destination", "running")):
        equal(figure(families, "state", role=role, state=state, vm="guest-of-a-test"), 1)
        equal(figure(families, "records", role=role, state=state), 1)
        equal(figure(families, "phase", role=role, phase="filling"), 1)
        equal(figure(families, "worked_on", role=role), 1)
        equal(figure(families, "over", role=role), 0)
        equal(figure(families, "needs_operator", role=role), 0)
        equal(figure(families, "ram_bytes", role=role), 64 << 20)
        present, pages = (figure(families, name, role=role) for name in ("present_pages", "pages"))
        assert 0 <= present < pages == 64 << 8, (present, pages)
        assert 0 < figure(families, "elapsed_seconds", role=role) < 1000
    assert 0 < figure(families, "downtime_seconds", role="source") < 60
    none_of(families, "downtime_seconds", role="destination")
    equal(figure(families, "max_bandwidth_bytes", role="destination"), 100 << 10)
    none_of(families, "max_bandwidth_bytes", role="source")
    sender.kill()
    sender.communicate()
    families = figures(scene, *source.qmp)
    equal(figure(families, "needs_operator", role="source"), 1)
    equal(figure(families, "worked_on", role="source"), 0)
    none_of(families, "phase", role="source")
    again = start(scene, "recover --json", *source.qmp)
    tool.let_go(scene, destination)
    for process in (again, waiting):
        equal(tool.finish(process)[0], 0)
    families = figures(scene)
    for role in ("source", "destination"):
        equal(figure(families, "over", role=role), 1)
        equal(figure(families, "needs_operator", role=role), 0)
        equal(figure(families, "state", role=role), 1)
    none_of(families, "phase")


@case
def names_of_vms_are_escaped(scene):
    os.makedirs(scene.path("state"))
    name = 'a "b" \\ c\n{x="y"} 7'
    template = {
        "ibx-record": 1, "role": "source", "epoch": 3, "state": "kept", "uuid": "", "name": name,
        "qmp": "/run/a\\b\"c.qmp", "pid": 1, "pid-started": 1, "uri": "tcp://a:1",
        "peer": "h\u00e4st", "key-file": "", "uffd": -1, "device-way": False}
    for i in range(3):  # of one monitor: the newest is shown
        record = dict(template, id=f"0{i}" * 16, written=1700000000 + i)
        path = scene.path(f"state/{record['id']}.source.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.chmod(path, 0o600)
    families = figures(scene)
    (labels,) = families["ibx_migration_info"][1]
    labels = dict(labels)
    equal((labels["id"], labels["qmp"], labels["peer"]),
          ("02" * 16, template["qmp"], template["peer"]))
    equal(labels["vm"], name.replace("\n", "?"))
    equal(figure(families, "records", role="source", state="kept"), 3)
    equal(figure(families, "written_timestamp_seconds"), 1700000002)


@case
def the_file_for_the_collector_is_always_whole(scene):
    folder, path = scene.path("collector"), scene.path("collector/ibx.prom")
    os.mkdir(folder)
    os.mkdir(scene.path("state"), 0o700)
    os.umask(0o077)
    try:
        code, out, err = scene.run("status", "--prometheus", "--output", path)
    finally:
        os.umask(0o022)
    equal((code, out, err), (0, "", ""))
    equal((os.listdir(folder), os.stat(path).st_mode & 0o777), (["ibx.prom"], 0o644))
    before = os.stat(path).st_ino
    with open(path, encoding="utf-8") as file:
        parse_exposition(file.read())
        equal(scene.run("status", "--prometheus", "--output", path)[0], 0)
        file.seek(0)
        parse_exposition(file.read())  # who had it open still has a whole one
    assert os.stat(path).st_ino != before
    fifo, link = scene.path("fifo"), scene.path("link")
    os.mkfifo(fifo)
    os.symlink("/dev/null", link)  # as /dev/stdout is one
    for bad in (scene.path("none/ibx.prom"), folder, "/dev/full/x", fifo, link):
        code, out, err = scene.run("status", "--prometheus", "--output", bad)
        equal((code, out), (1, ""))
        assert bad in err and "cannot be written" in err, err
        if bad in (scene.path("none/ibx.prom"), "/dev/full/x"):
            assert "; give a path in a folder that exists and that this user may write" in err, err
    equal(os.listdir(folder), ["ibx.prom"])
    equal((os.readlink(link), os.path.isfile(fifo)), ("/dev/null", False))
    equal(scene.run("status", "--output", path)[0], 2)
    full = scene.path("full")
    os.mkdir(full)
    if os.geteuid() or os.system(f"mount -t tmpfs -o size=4k none {full} 2>/dev/null"):
        return
    try:
        with open(full + "/filler", "wb") as file:
            file.write(b"x" * 4096)
        code, _, err = scene.run("status", "--prometheus", "--output", full + "/ibx.prom")
        equal((code, os.listdir(full)), (1, ["filler"]))
        assert "No space left" in err and "make room there" in err, err
    finally:
        until(lambda: not os.system(f"umount {full}"), "umount")


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
