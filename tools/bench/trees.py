# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of caches that tools/bench/clone builds and tools/bench/clone-tree simulates. Host 0 has
the snapshot, the others a cache each."""


def servers(host, fan_out):
    """The hosts that a host's cache asks, in the order of its --cache: first the host above it,
    from which fan_out hosts read; then, for the case that it is lost, the snapshot's host.
    fan_out 0: all hosts read from the snapshot's."""
    above = 0 if not fan_out else (host - 1) // fan_out
    return [above] + ([0] if above else [])
