# SPDX-License-Identifier: LGPL-2.1-or-later
"""A wire with a round trip, between two network namespaces."""
import subprocess
import sys


class Wire:
    """Two network namespaces, of the source and of the destination, and what ib-wire puts between
    them."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        if len(words) != 4:
            sys.exit("bench-migrate: there is no wire between two network namespaces here")
        self.ends = [f"--net=/proc/{pid}/ns/net" for pid in words[:2]]
        self.there = words[3]

    def at(self, incoming):
        return ["nsenter", self.ends[incoming]]

    def end(self):
        """Its exit status: not 0 if the list of packets is not whole."""
        self.process.stdin.close()
        return self.process.wait()


def at_end(bench, incoming):
    """The words that a command at this end begins with, to run in its namespace."""
    return bench.wire.at(incoming) if bench.wire else []
