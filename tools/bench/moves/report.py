# SPDX-License-Identifier: LGPL-2.1-or-later
"""Medians, ratios, tables and plots of all migrations."""
import os
import statistics
import subprocess

from moves.methods import METHODS

FIGURES = {  # the key in the JSON, and the column's title; smaller is better
    "stop_ms": "STOP to RESUME, ms",
    "pause_ms": "worst pause, ms",
    "lost_ms": "guest time lost, ms",
    "blocked_ms": "blocked on faults, ms",
    "total_ms": "total, ms",
    "faults": "faults",
    "fault_mean_us": "fault mean, us",
    "fault_p50_us": "fault p50, us",
    "fault_p99_us": "fault p99, us",
    "source_cpu_ms": "source CPU, ms",
    "wire_mib": "on the wire, MiB",
    "wire_share": "of what is written",
    "slowed": "slowed before the stop",
}
MORE_FIGURES = ["written_mib_s", "warm_rounds", "warm_pages", "period_ms", "zero_share",
                "register_ms", "source_page_cpu_ms", "map_ms", "state_ms", "commit_ms",
                "fault_max_us"]  # in the JSON only
TARGETS = {"stop_ms": 1.0, "pause_ms": 0.5, "blocked_ms": 0.3, "total_ms": 0.8}
WARM_TARGETS = {"faults": 0.05, "blocked_ms": 0.2}  # for --warm, relative to ib-migrate without it
MANY_CORES, PAUSE_THERE = 16, 0.25  # the target for pause_ms where each thread has a core


def guests(rows):
    """The (size, page size) of each guest, sorted."""
    return sorted({(row["size_mib"], row["page_kib"]) for row in rows})


def of_guest(rows, guest):
    return [row for row in rows if (row["size_mib"], row["page_kib"]) == guest]


def summarize(runs):
    rows = []
    for size, page in guests(runs):
        for method in METHODS:
            mine = [r for r in of_guest(runs, (size, page)) if r["method"] == method]
            if not mine:
                continue
            row = {"size_mib": size, "page_kib": page, "method": method, "rounds": len(mine),
                   "gave_up": sum(bool(r.get("gave_up")) for r in mine),
                   "failed": sum("error" in r for r in mine),
                   "wrong": sum("wrong" in r for r in mine)}
            for key in [*FIGURES, *MORE_FIGURES, "load"]:
                values = [r[key] for r in mine if r.get(key) is not None]
                if values:
                    row[key] = {"median": statistics.median(values), "min": min(values),
                                "max": max(values)}
            rows.append(row)
    return rows


def wanted(key):
    many = len(os.sched_getaffinity(0)) >= MANY_CORES
    return PAUSE_THERE if key == "pause_ms" and many else TARGETS[key]


def ratios(summary):
    found = []
    for guest in guests(summary):
        rows = {row["method"]: row for row in of_guest(summary, guest)}
        for key in TARGETS:
            for mine in METHODS[:4]:
                for other in METHODS[4:]:
                    ours, theirs = (rows.get(m, {}).get(key) for m in (mine, other))
                    if ours and theirs and theirs["median"] > 0:
                        ratio = ours["median"] / theirs["median"]
                        found.append({"size_mib": guest[0], "page_kib": guest[1], "figure": key,
                                      "method": mine, "against": other, "ratio": ratio,
                                      "wanted": wanted(key), "met": ratio <= wanted(key)})
        for key, most in WARM_TARGETS.items():
            ours, theirs = (rows.get(m, {}).get(key) for m in ("warm", "ibx"))
            if ours and theirs and theirs["median"] > 0:
                ratio = ours["median"] / theirs["median"]
                found.append({"size_mib": guest[0], "page_kib": guest[1], "figure": key,
                              "method": "warm", "against": "ibx", "ratio": ratio, "wanted": most,
                              "met": ratio <= most})
    return found


def figure(value):
    if value is None:
        return "-"
    digits = 0 if abs(value["median"]) >= 100 else 1 if abs(value["median"]) >= 2 else 3
    return f"{value['median']:.{digits}f} ({value['min']:.{digits}f}-{value['max']:.{digits}f})"


def guest_name(size, page):
    return f"{size} MiB in pages of {page} KiB"


def print_tables(summary, comparison):
    for guest in guests(summary):
        rows = of_guest(summary, guest)
        share = [f"{row['method']} {100 * row['zero_share']['median']:.0f} %" for row in rows
                 if "zero_share" in row]
        print(f"\n{guest_name(*guest)}; zero pages: {', '.join(share)}; median (least-most)")
        print(f"{'':24}" + "".join(f"{row['method']:>24}" for row in rows))
        for key, label in FIGURES.items():
            print(f"{label:24}" + "".join(f"{figure(row.get(key)):>24}" for row in rows))
        for row in rows:
            for what, words in (("gave_up", "did not converge"), ("failed", "failed"),
                                ("wrong", "arrived with wrong memory")):
                if row[what]:
                    print(f"{row['method']}: {row[what]} of {row['rounds']} {words}")
    print("\nib-migrate against QEMU's own, ratio of medians")
    for c in comparison:
        name = FIGURES[c["figure"]].split(",")[0]
        print(f"{c['size_mib']:6} MiB {c['page_kib']:5} KiB  {c['method']:8} {name:20} / "
              f"{c['against']:10} {c['ratio']:6.2f}  wanted {c['wanted']:.2f}  "
              f"{'met' if c['met'] else 'missed'}")


def plot(file, summary):
    panels = [("stop_ms", "STOP to RESUME, ms"), ("pause_ms", "the guest's worst pause, ms"),
              ("blocked_ms", "vCPUs blocked on faults, ms"), ("total_ms", "total time, ms")]
    kind = "svg" if file.endswith(".svg") else "pngcairo"
    summary = [row for row in summary if row["page_kib"] == 4]
    sizes = [row["size_mib"] for row in summary]
    script = [f"set terminal {kind} size 1200,900", "set logscale xy 2", "set grid",
              "set key left top", "set xlabel 'RAM, MiB'", "set multiplot layout 2,2",
              f"set xrange [{min(sizes) / 1.4}:{max(sizes) * 1.4}]"]
    for key, title in panels:
        data = {m: [(row["size_mib"], row[key]) for row in summary
                    if row["method"] == m and key in row] for m in METHODS}
        shown = [m for m in METHODS if data[m]]
        if not shown:
            continue
        script.append(f'set title "{title}"\nplot ' + ", ".join(
            f"'-' using 1:2:3:4 with yerrorlines linewidth 2 title '{m}'" for m in shown))
        for m in shown:
            script += [f"{s} " + " ".join(str(max(v[k], .1)) for k in ("median", "min", "max"))
                       for s, v in data[m]] + ["e"]
    script += ["unset multiplot", ""]
    with open(file, "wb") as to:
        subprocess.run(["gnuplot"], input="\n".join(script).encode(), stdout=to, check=True)
