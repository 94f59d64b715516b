# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways to migrate: QEMU's own, and ib-migrate."""
import json
import os
import re
import socket
import subprocess
import time

from moves.waiting import CONVERGE_S, Failure, await_value
from moves.wire import at_end

METHODS = ["ibx", "ibx-tcp", "ibx-shm", "warm", "postcopy", "preempt", "precopy", "hybrid"]
OURS = {"ibx", "ibx-tcp", "ibx-shm", "warm"}


def capabilities(vm, **states):
    vm.qmp.run("migrate-set-capabilities", capabilities=[
        {"capability": name.replace("_", "-"), "state": state} for name, state in states.items()])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def migrate_by_qemu(bench, method, source, to):
    uri = f"tcp:{bench.wire.there if bench.wire else '127.0.0.1'}:{free_port()}"
    if bench.qemu_over == "unix":
        uri = f"unix:{to.name}.stream"
    postcopy = method != "precopy"
    for vm in (source, to):
        capabilities(vm, events=True, postcopy_ram=postcopy)
        if method == "preempt":
            capabilities(vm, postcopy_preempt=True)
        vm.qmp.run("migrate-set-parameters", **{"max-bandwidth": bench.rate << 20 or 1 << 40})
    if postcopy:
        capabilities(to, postcopy_blocktime=True)
    to.qmp.run("migrate-incoming", uri=uri)
    cpu, began = source.cpu_s(), time.time()
    source.qmp.run("migrate", uri=uri)
    if method == "hybrid":  # one pass over all of its memory, then post-copy
        source.qmp.wait(lambda: any(e["data"]["pass"] >= 2 for e in list(source.qmp.events)
                                    if e["event"] == "MIGRATION_PASS"), "the second pass")
    if postcopy:
        source.qmp.run("migrate-start-postcopy")
    try:
        ended = source.qmp.await_status("completed", source.patience if postcopy else CONVERGE_S)
    except Failure:
        if postcopy or source.qmp.event("MIGRATION", "failed"):
            raise
        return {"gave_up": True, "total_ms": None}
    ended = max(ended, to.qmp.await_status("completed"))
    cpu = source.cpu_s() - cpu
    ram, there = source.qmp.run("query-migrate")["ram"], to.qmp.run("query-migrate")
    result = {"began": began, "total_ms": (ended - began) * 1e3, "source_cpu_ms": cpu * 1e3,
              "wire_mib": ram["transferred"] / (1 << 20),
              "zero_share": ram["duplicate"] / (ram["duplicate"] + ram["normal"])}
    if postcopy:
        blocked = sum(there["postcopy-vcpu-blocktime"])
        faults = ram["postcopy-requests"]
        result.update(faults=faults, blocked_ms=blocked,
                      fault_mean_us=blocked * 1e3 / max(1, faults))
    return result


class Tool:
    """A process of ib-migrate, and the JSON that it prints."""

    def __init__(self, bench, name, arguments, patience):
        self.patience = patience
        self.out = name + ".json"
        command = at_end(bench, arguments[0] == "receive") + [
            bench.ib_migrate, *arguments, "--json", "--quiet", "--state-dir", name + ".state"]
        if bench.wire and "--key-file" not in arguments:
            command.append("--set=insecure=yes")
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out)

    def lines(self):
        with open(self.out, encoding="utf-8") as out:
            return [json.loads(line) for line in out.read().split("\n")[:-1]]

    def summary(self):
        return next(line["summary"] for line in reversed(self.lines()) if "summary" in line)

    def uri(self):
        def waiting():
            ended = self.process.poll() is not None
            for line in self.lines():
                found = re.search(r"waiting at (\S+?)[;,]?(\s|$)", line.get("say", ""))
                if found:
                    return found[1]
            if ended:
                raise Failure("ib-migrate receive ended before a source connected")
            return None

        return await_value(waiting, self.patience, "ib-migrate receive does not listen", 0.005)

    def wait(self):
        """Waits for the end; returns the seconds of CPU time that the process used."""
        def ended():
            pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
            if not pid:
                return None
            self.process.returncode = code = os.waitstatus_to_exitcode(status)
            if code:
                raise Failure(f"ib-migrate ended with {code}: {self.lines()[-1:]}")
            return [used.ru_utime + used.ru_stime]

        return await_value(ended, self.patience, "ib-migrate does not end", 0.0002)[0]

    def end(self):
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()


def migrate_by_ibx(bench, method, source, to):
    tools = []
    warm = ["--warm"] if method == "warm" else []
    provider = "" if warm else method[4:]
    host = bench.wire.there if bench.wire else "127.0.0.1"
    listen = f"{provider or bench.provider}://{host}:0"
    rate = ["--max-bandwidth", f"{bench.rate}M"] if bench.rate else []
    try:
        tools.append(Tool(bench, to.name + "-tool", ["receive", "--qmp", to.tool, "--listen",
                                                     listen] + rate + bench.receive, to.patience))
        uri = tools[0].uri()
        cpu, began = source.cpu_s(), time.time()
        tools.append(Tool(bench, source.name + "-tool",
                          ["send", "--qmp", source.tool, uri] + warm + bench.send,
                          source.patience))
        used = tools[1].wait()
        used_there = tools[0].wait()
        total = time.time() - began
        cpu = source.cpu_s() - cpu
        there, here = (tool.summary() for tool in tools)
        phases = {line["status"]["phase"]: line["status"]["elapsed_ns"] / 1e6
                  for line in reversed(tools[1].lines()) if "status" in line}
    finally:
        for tool in tools:
            tool.end()
    state_bytes = there["state_bytes"] or here["state_bytes"] or 0
    result = {"began": began, "total_ms": total * 1e3, "source_cpu_ms": (used + cpu) * 1e3,
              "tool_cpu_ms": used * 1e3, "tool_there_cpu_ms": used_there * 1e3,
              "wire_mib": (there["wire_bytes"] + state_bytes) / (1 << 20),
              "zero_share": there["zero_pages"] / there["pages"], "faults": there["faults"],
              "blocked_ms": there["fault_sum_ns"] / 1e6,
              "fault_mean_us": there["fault_sum_ns"] / 1e3 / max(1, there["faults"]),
              "phases_begin_ms": phases, "path": here["path"],
              "warm_rounds": here["warm_rounds"] or 0, "warm_pages": here["warm_pages"] or 0}
    for key in ("p50", "p99", "max"):
        result[f"fault_{key}_us"] = there[f"fault_{key}_ns"] / 1e3
    for key, name in (("source_cpu", "source_page_cpu"), ("register", "register"), ("map", "map"),
                      ("total", "tool_total"), ("state", "state"), ("commit", "commit")):
        result[name + "_ms"] = (here[key + "_ns"] or 0) / 1e6
    return result
