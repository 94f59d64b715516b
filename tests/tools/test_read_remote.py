#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""read-remote, the example of transport.h: the client READs what the server exposes."""
import sys

from harness import equal, run_all, test

TEXT = "memory of another process"


def fetched(scene, scheme):
    server = scene.start(f"{scheme}://127.0.0.1:0", TEXT)
    uri = server.stdout.readline().strip()
    assert uri.startswith(f"{scheme}://127.0.0.1:"), uri
    equal(scene.run(uri), (0, TEXT + "\n", ""))
    equal((server.wait(), server.stderr.read()), (0, ""))


@test
def by_the_best_path(scene):
    fetched(scene, "rdma")


@test
def by_tcp(scene):
    fetched(scene, "tcp")


@test
def what_fails_is_one_sentence(scene):
    for args, words in ((("tcp://127.0.0.1",), "has no port"), (("tcp://127.0.0.1:1",), "no server answers")):
        status, _, err = scene.run(*args)
        equal((status, err.count("\n")), (1, 1))
        assert words in err, err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
