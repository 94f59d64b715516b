#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""page-file, the example of the fault engine alone: what it pages in is the file."""
import random
import re
import sys

from harness import Skip, equal, run_all, test

PAGE = 4096
WINDOW = 512 << 10  # the most that comes around one fault, if reading takes long
LENGTH = 2 * WINDOW + 300001  # the last page is not whole
PAGES = -(-LENGTH // PAGE)


def a_file(scene):
    content = random.Random(7).randbytes(LENGTH)
    with open(scene.path("file"), "wb") as file:
        file.write(content)
    return content


def page_file(scene, *args):
    status, out, err = scene.run(scene.path("file"), *args)
    if status and "userfaultfd" in err:
        raise Skip(err.strip())
    equal((status, err), (0, ""))
    return out


@test
def all_of_a_file_is_paged_in(scene):
    checksum = 0xCBF29CE484222325
    for byte in a_file(scene):
        checksum = (checksum ^ byte) * 0x100000001B3 & (1 << 64) - 1
    out = page_file(scene)
    assert f"checksum {checksum:016x}\n" in out, out
    assert f"{PAGES} of {PAGES} pages present" in out, out


@test
def only_what_is_looked_at_is_paged_in(scene):
    content = a_file(scene)
    offsets = (5, 200000, LENGTH - 1)  # two in the first window, none in the second
    out = page_file(scene, *map(str, offsets))
    for at in offsets:
        assert f"{at}: 0x{content[at]:02x}\n" in out, out
    found = re.search(rf"(\d+) of {PAGES} pages present: (\d+) by fault", out)
    present, faults = map(int, found.groups())
    assert "0 in the background" in out, out
    assert 1 <= faults <= 3, out  # the last one can be visible before it is counted
    assert faults <= present <= (WINDOW + LENGTH % WINDOW) // PAGE + 1, out


@test
def what_cannot_be_is_one_sentence(scene):
    a_file(scene)
    for args, words in (([scene.path("none")], "No such file"), ([scene.folder.name], "not a file"),
                        ([scene.path("file"), str(LENGTH)], f"{LENGTH} is not an offset")):
        status, _, err = scene.run(*args)
        if "userfaultfd" in err:
            raise Skip(err.strip())
        equal((status, err.count("\n")), (1, 1))
        assert words in err, err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
