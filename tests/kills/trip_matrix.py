#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""trip_matrix.py [--moves N] [--steps N] [--seed S] [--jobs N] [--only NUMBER]...
[--paths NAME,...]

N random sequences of what ib-migrate does with a VM: it moves (`send`, with and without --warm), is
borrowed and returns, stays warm where it was and goes there again, is frozen and has children. In
most steps a tool is killed, or stopped for a while, in a state of its state machine or at some
time. Then an operator does what ib-migrate(1) tells to do (trip_operator.py). After each step the
guest runs in exactly one place, and its memory was right at every heartbeat (trips.py); in the end
nothing is left behind.

A sequence has the same steps for the same seed and number; how it interleaves is the machine's.
QEMU, GUEST_ELF, GUEST_EXPECT and IB_MIGRATE are in the environment, and this is root."""
import random
import sys

from matrix import arguments, run_cases, told
from trips import Trip


class Sequence:
    """One of them."""

    def __init__(self, options, number):
        self.options, self.number = options, number

    def __str__(self):
        return f"sequence {self.number}"

    def run(self):
        """How it went, in words."""
        chance = random.Random(f"{self.options.seed}/{self.number}")
        with told(Trip(chance, self.options.paths.split(","))) as trip:
            for _ in range(self.options.steps):
                trip.step()
            trip.nothing_left()
            return "\n".join([*trip.notes, "right"])


def main():
    """Exit status."""
    parser = arguments("sequences", 4, 2)
    parser.add_argument("--steps", type=int, default=5, help="of each sequence")
    parser.add_argument("--paths", default="shm,tcp,tls")
    options = parser.parse_args()
    # In the guest of tests/vm there is nobody else, and devices belong to its namespace.
    return run_cases(options, lambda number: Sequence(options, number),
                     apart="verbs" not in options.paths)


if __name__ == "__main__":
    sys.exit(main())
