# SPDX-License-Identifier: LGPL-2.1-or-later
"""A GVirtuS home of our own making, for the tests of ibx-gvirtus."""
import copy
import json
import os
import re
import stat
import subprocess
import sys

from harness import LIMIT, equal

PLUGIN, NO_PLUGIN, CRASH, MANUAL, IB_BW = (os.path.abspath(path) for path in sys.argv[2:7])
STOCK = """{ "communicator": [ { "endpoint": { "suite": "tcp/ip", "protocol": "tcp",
  "server_address": "10.1.2.3", "port": "8888", "extra": 1.5 },
  "plugins": ["cudart", "cublas"] }, { "endpoint": {} } ],
  "secure_application": false, "mine": [true] }"""
CONFIG, PROPERTIES = "etc/properties.json", "etc/gvirtus.properties"
LIBRARY = "lib/libgvirtus-communicators-oldtcp.so"
ENVIRONMENT = {name: value for name, value in os.environ.items()
               if name not in ("GVIRTUS_HOME", "GVIRTUS_CONFIG", "GVIRTUS_RDMA_PROPERTIES")}


class Home:
    def __init__(self, scene, name="home"):
        self.scene, self.folder, self.said = scene, scene.path(name), ""
        for name in ("lib", "etc", "bin"):
            os.makedirs(self.path(name))
        self.write("lib/libgvirtus-communicators.so", "upstream")
        self.write("lib/libgvirtus-communicators-tcp.so", "upstream tcp")
        self.write(CONFIG, STOCK)

    def path(self, name):
        return os.path.join(self.folder, name)

    def exists(self, name):
        return os.path.lexists(self.path(name))

    def write(self, name, text, mode="w"):
        with open(self.path(name), mode, encoding="ascii") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="ascii") as file:
            return file.read()

    def unlink(self, name):
        os.unlink(self.path(name))

    def snapshot(self):
        """All that the home holds: names, inodes, modes, owners, times, contents."""
        found = []
        for folder, folders, names in os.walk(self.folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                st = os.lstat(path)
                if stat.S_ISLNK(st.st_mode):
                    content = os.readlink(path)
                else:
                    with open(path, "rb") as file:
                        content = file.read()
                found.append((path, st.st_ino, st.st_mode, st.st_uid, st.st_mtime_ns, content))
        return found

    def contents(self):
        """Of its files, by their names in it."""
        return {os.path.relpath(found[0], self.folder): found[-1] for found in self.snapshot()}

    def bare(self, *args, **environment):
        """Exit status without --home; what was printed is in `said`."""
        done = subprocess.run([self.scene.program, *args], stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
                              check=False, env={**ENVIRONMENT, "IBX_LOG": "error", **environment})
        self.said = done.stdout
        return done.returncode

    def run(self, *args, **environment):
        return self.bare("--home", self.folder, *args, **environment)

    def install(self, *args):
        equal((self.run("install", "--library", PLUGIN, *args), self.said.count("ibx-gvirtus: ")),
              (0, 0))

    def remove(self):
        equal(self.run("remove"), 0)

    def says(self, *words):
        for one in words:
            assert one in self.said, f"no {one!r} in {self.said!r}"

    def fails(self, words, *args):
        """With one sentence, and nothing has changed."""
        before = self.snapshot()
        equal(self.run(*args), 1)
        self.says(words)
        equal((self.said.count("\n"), self.said.startswith("ibx-gvirtus: ")), (1, True))
        equal(self.snapshot(), before)

    def fails_to_install(self, words, *args):
        self.fails(words, "install", "--library", PLUGIN, *args)

    def endpoint(self):
        return json.loads(self.read(CONFIG))["communicator"][0]["endpoint"]

    def expect(self, suite, protocol, address, port, uri):
        """What is selected, by the endpoint and by the first communicator."""
        found = self.endpoint()
        equal([found[key] for key in ("suite", "protocol", "server_address", "port")],
              [suite, protocol, address, port])
        equal(re.search(r"^communicator *: *(.*)", self.read(PROPERTIES), re.M).group(1), uri)

    def serve(self, *args):
        """A back end that answers: its process and URI."""
        server = copy.copy(self.scene)
        server.program = IB_BW
        return server.serve(*args)
