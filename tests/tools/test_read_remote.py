#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The examples of transport.h: read-remote READs what serve-text exposes."""
import os
import sys

from harness import equal, run_all, test

TEXT = "memory of another process"


def fetched(scene, scheme):
    serve_text = os.path.join(os.path.dirname(scene.program), "serve-text")
    server = scene.start(f"{scheme}://127.0.0.1:0", TEXT, executable=serve_text)
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
    for args, words in ((("tcp://127.0.0.1",), "has no port"),
                        (("tcp://127.0.0.1:1",), "no server answers")):
        status, _, err = scene.run(*args)
        equal((status, err.count("\n")), (1, 1))
        assert words in err, err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
