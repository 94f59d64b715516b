# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pauses, lost time and speed of the guest, by its heartbeats."""
import re
import statistics

from moves.memory import written_mib
from moves.waiting import Failure, await_value


def parse(text):
    """Whole heartbeats as (vCPU, count, TSC)."""
    beats = re.finditer(rb"^beat (\d) ([0-9a-f]{8}) [0-9a-f]{8} ([0-9a-f]{16})$", text, re.M)
    return [(int(m[1]), int(m[2], 16), int(m[3], 16)) for m in beats]


def joined(vms):
    """The destination's output. Its first line may have begun at the source: that part is put
    before it."""
    return vms[0].text().rsplit(b"\n", 1)[-1] + vms[1].text()


def ticks_per_ms(seen):
    (tsc0, at0), (tsc1, at1) = seen[0], seen[-1]
    return (tsc1 - tsc0) / (at1 - at0) / 1e3


def rhythm(before, after, per_ms, stop_ms, settled_ms):
    """Period, worst pause and time lost, of the vCPU that fared worst. The guest's TSC stands still
    from STOP to RESUME, so that time is added to the gap between the last heartbeat here and the
    first there."""
    worst = {"period_ms": 0, "pause_ms": -1e9, "lost_ms": 0}
    for cpu in sorted({b[0] for b in before}):
        old = [b[2] for b in before if b[0] == cpu]
        new = [b[2] for b in after if b[0] == cpu]
        if len(old) < 2 or not new:
            raise Failure(f"vCPU {cpu} has printed {len(old)} heartbeats before the migration and "
                          f"{len(new)} after it: its pauses cannot be told")
        period = statistics.median((b - a) / per_ms for a, b in zip(old[-400:], old[-400:][1:]))
        late = [(new[0] - old[-1]) / per_ms + stop_ms]
        late += [(b - a) / per_ms for a, b in zip(new, new[1:])
                 if (a - old[-1]) / per_ms < settled_ms]
        pause = max(late) - period
        if pause > worst["pause_ms"]:
            worst["pause_ms"], worst["period_ms"] = pause, period
        worst["lost_ms"] = max(worst["lost_ms"], sum(late) - period * len(late))
    return worst


def speeds(vm, bench, per_ms, happened):
    """How fast the guest writes, and by what part it is slower from the beginning of the migration
    to its stop, if that takes long enough to tell. Its clock stands still from there on."""
    stop_ms = next(at for at, what in happened if what == "source STOP")
    beats = [b[2] for b in parse(vm.text())]
    begun = beats[-1] - stop_ms * per_ms
    before = [t for t in beats if begun - 3000 * per_ms < t < begun]
    during = [t for t in beats if t >= begun]
    if len(before) < 3:
        return {}
    usual = (len(before) - 1) / (before[-1] - before[0])
    found = {"written_mib_s": usual * per_ms * 1e3 * bench.beat / 256}
    if stop_ms > 200 and len(during) > 2:
        found["slowed"] = 1 - (len(during) - 1) / (during[-1] - during[0]) / usual
    return found


def await_written(vm, size, cpus, beat):
    """Waits until every vCPU has touched all of its pages, and then for some more heartbeats."""
    pages = 1
    while pages * 2 * cpus <= written_mib(size) * 256:
        pages *= 2
    enough = pages + 400 * beat

    def written():
        last = vm.last_beat()
        if not last or last[1] * beat < enough:
            return False
        counts = {c: n for c, n, _ in parse(vm.text()[-20000:])}
        return len(counts) == cpus and min(counts.values()) * beat >= enough

    await_value(written, vm.patience,
                "the guest does not write its working set: is the machine too busy?", 0.1)
    # The speed of the guest's clock is computed from two heartbeats whose arrival was seen.
    await_value(lambda: vm.last_beat() and vm.seen[0][0] < vm.seen[-1][0], vm.patience,
                "the guest has stopped printing heartbeats", 0.1)


def await_beats(vms, cpus):
    """Waits for two heartbeats of every vCPU at the destination."""
    def beating():
        beats = [b[0] for b in parse(joined(vms))]
        return all(beats.count(cpu) >= 2 for cpu in range(cpus))

    await_value(beating, vms[1].patience, "the guest does not go on at the destination", 0.05)
