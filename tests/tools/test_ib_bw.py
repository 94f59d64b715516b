#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_bw.py IB-BW: the tool as its users see it: arguments, output, exit status, signals."""
import json
import os
import pty
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading

from harness import (LIMIT, Skip, alive, children, equal, free_port, one_sentence, run_all, test,
                     until)
from ib_bw_scene import fails, works

QUICK = ("--sizes", "4,64K,1M", "--count", "4", "--rounds", "2")


def key_file(scene, name, secret):
    path = scene.path(name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write(secret)
    return path


def measured(scene, *args):
    """Its JSON."""
    return json.loads(works(scene.run(*args, "--json", "-")))


# ------------------------------------------------------------------------- arguments


@test
def help_and_version_are_no_errors(scene):
    for args, usage in ((("--help",), "serve URI"), (("self", "--help"), "self"),
                        (("run", "-h"), "run URI")):
        out = works(scene.run(*args))
        assert out.startswith(f"Usage: ib-bw [OPTION...] {usage}\n") and "key_file" in out, out
    code, out, err = scene.run("--version")
    assert code == 0 and re.fullmatch(r"ib-bw \d+\.\d+\.\d+\n", out), out


@test
def no_line_of_help_is_of_blanks(scene):
    """argp adds one after a text that fills its line exactly."""
    for args in ((), ("serve",), ("run",), ("self",), ("tune",)):
        for line in works(scene.run(*args, "--help")).splitlines():
            equal((args, line), (args, line.rstrip()))


@test
def wrong_usage_exits_2_and_names_the_help(scene):
    for line in ("", "measure", "run", "serve", "self tcp://127.0.0.1:1", "--sizes 4", "run a b",
                 "self --nonsense", "self --sizes", "serve --json x y", "self --max-bytes 1G",
                 "run --no-pin tcp://127.0.0.1:1", "tune x", "tune --long", "self --output x",
                 "help sefl"):
        args = line.split()
        code, out, err = scene.run(*args)
        equal((args, code, out), (args, 2, ""))
        assert err.startswith("ib-bw: "), err
        assert re.search("Try `ib-bw( [a-z]+)? --help'", err), err


@test
def bad_values_exit_1_with_one_sentence(scene):
    for option in ("--sizes=0", "--sizes=4,x", "--sizes=4,,8", "--sizes=", "--sizes=4,4",
                   "--sizes=-1", "--sizes=99999G", "--sizes=" + ",".join(map(str, range(1, 70))),
                   "--time=0", "--time=-1", "--time=soon", "--time=nan", "--count=0", "--count=1x",
                   "--rounds=0", "--set=chunk", "--set=chunk=7", "--set=nonsense=1",
                   "--plot=picture.jpg", "--json=/nowhere/x.json", "--paths=shm,carrier",
                   "--paths="):
        fails(scene, ("self", option), option.split("=")[0])
    fails(scene, ("self", "--json=/nowhere/x.json"), "give a path in a folder that exists")
    fails(scene, ("self", "--time=0"), "is not more than 0 and at most 3600 seconds")
    for uri in ("127.0.0.1:1", "http://127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:99999"):
        fails(scene, ("run", uri))
    for where in ("99999", "127.0.0.1:99999"):
        fails(scene, ("serve", "--stock", where, "tcp://127.0.0.1:0"),
              'ib-bw: --stock: port "99999" is not a number from 0 to 65535')


# ---------------------------------------------------------------------------- servers


@test
def nobody_there_is_one_sentence(scene):
    port = free_port()
    fails(scene, ("run", f"tcp://127.0.0.1:{port}"), str(port))
    fails(scene, ("run", f"tcp://0.0.0.0:{port}"), str(port), "for a client this is its own host")
    _, uri = scene.serve()
    fails(scene, ("run", "--stock", f"127.0.0.1:{port}", uri), str(port),
          "start the server with --stock")
    for args in (("tcp://nobody.invalid:1",), ("--stock", "nobody.invalid:1", uri)):
        fails(scene, ("run", *args), '"nobody.invalid" cannot be resolved', "correct the name")


@test
def a_socket_that_meets_itself_is_nobody(scene):
    """In a network of its own, whose kernel has one port to give: it is the one to connect to."""
    own = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo 40000 40000 "
           '>/proc/sys/net/ipv4/ip_local_port_range && exec "$@"', "sh"]
    if subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        raise Skip("needs root, for a network of its own")
    path = "--set", "shm_dir=" + scene.folder.name
    _, uri = scene.serve(*path, uri="shm://" + scene.path("socket"))
    ib_bw, scene.program = scene.program, own[0]
    fails(scene, (*own[1:], ib_bw, "run", "--stock", "127.0.0.1:40000", *path, uri),
          "nothing listens at 127.0.0.1:40000")


@test
def a_wrong_key_is_one_sentence_and_the_server_goes_on(scene):
    good, bad = key_file(scene, "good", "a1" * 32), key_file(scene, "bad", "be" * 32)
    _, uri = scene.serve("--key-file", good)
    for args in (("--key-file", bad), ()):
        fails(scene, ("run", *args, *QUICK, uri), "key")
    equal(len(measured(scene, "run", "--set", f"key_file={good}", *QUICK, uri)["results"]), 6)
    os.chmod(good, 0o644)
    fails(scene, ("serve", "--key-file", good, "tcp://127.0.0.1:0"), "key")


@test
def without_a_key_a_server_says_whom_it_serves(scene):
    key = key_file(scene, "key", "a1" * 32)
    for args, local in (((), True), (("--key-file", key), False), (("--set=insecure=yes",), False)):
        line = scene.start("serve", *args, "tcp://127.0.0.1:0").stdout.readline()
        equal((args, "this host only" in line), (args, local))


@test
def a_server_serves_many_at_once(scene):
    server, uri = scene.serve()
    clients = [scene.start("run", *QUICK, "--json", "-", uri) for _ in range(6)]
    for client in clients:
        out, err = client.communicate(timeout=LIMIT)
        equal((client.returncode, err), (0, ""))
        equal(len(json.loads(out)["results"]), 6)
    equal(server.poll(), None)


@test
def further_clients_are_turned_away(scene):
    port = free_port()
    server, uri = scene.serve("--max-clients", "1", "--stock", str(port))
    with socket.create_connection(("127.0.0.1", port)) as first:
        first.sendall(request("ibBwChecksum"))
        equal(len(receive(first, 28)), 28)  # so it is served
        fails(scene, ("run", *QUICK, uri))
    until(lambda: scene.run("run", *QUICK, uri)[0] == 0, "a free place")
    equal(server.poll(), None)


@test
def signals_end_a_server_and_leave_nothing(scene):
    for number in (signal.SIGTERM, signal.SIGINT):
        unix = scene.path("socket")
        server, uri = scene.serve(uri=f"rdma://{unix}")
        assert os.path.exists(unix)
        with socket.socket(socket.AF_UNIX) as idle:
            idle.connect(unix)  # a client that says nothing holds nothing up
            measured(scene, "run", *QUICK, uri)
            server.send_signal(number)
            equal(server.wait(LIMIT), 0)
        assert not os.path.exists(unix)


@test
def a_payload_too_long_for_the_server_is_one_sentence(scene):
    _, uri = scene.serve("--max-bytes", "64K")
    fails(scene, ("run", "--sizes=1M", "--count=1", uri), "--max-bytes", results=True)
    out = fails(scene, ("run", "--sizes=64K,64001,65537", "--count=1", "--json=-", uri),
                "--max-bytes", results=True)
    equal({one["bytes"] for one in json.loads(out)["results"]}, {65536, 64001})


# -------------------------------------------------------------------- hostile clients


def request(name, body=b"", length=None):
    """A request as GVirtuS's front end sends it."""
    return name.encode() + b"\0" + struct.pack("<Q", len(body) if length is None else length) + body


def h2d(payload, token, n=None, count=None, kind=1):
    n = len(payload) if n is None else n
    tail = struct.pack("<QI", n if count is None else count, kind)
    return struct.pack("<QQ", token, n) + payload + tail


def d2h(n, one=1):
    return struct.pack("<QBQQI", one, 0, 7, n, 2)


def receive(connection, n):
    data = b""
    while len(data) < n and (more := connection.recv(n - len(data))):
        data += more
    return data


def stock_call(connection, bytes_):
    """Exit code and reply of one call."""
    connection.sendall(bytes_)
    code, _, length = struct.unpack("<IdQ", receive(connection, 20))
    return code, receive(connection, length)


@test
def hostile_requests_end_their_connection_and_no_other(scene):
    port = free_port()
    server, _ = scene.serve("--stock", str(port), "--max-bytes", "1M")
    bystander = socket.create_connection(("127.0.0.1", port), LIMIT)
    token = bytes(range(8))
    good = h2d(token + b"middle" + token, int.from_bytes(token, "little"))
    equal(stock_call(bystander, request("cudaMemcpy", good)), (0, b""))
    copies = (b"abc", bytes(64), h2d(b"12345678", 1, n=2**64 - 1), h2d(b"12345678", 1, n=9),
              h2d(b"", 1), h2d(b"12345678", 1, count=9), h2d(b"12345678", 1, kind=3), d2h(8),
              d2h(0), d2h(8, 2), d2h(2**64 - 1), struct.pack("<I", 2))
    for bad in (b"n" * 40,  # a name that does not end
                request("cudaMalloc"), request("\x1b[31m"), request("ibBwChecksum", b"more"),
                request("ibBwPrepare"), request("ibBwPrepare", bytes(17)), request("cudaMemcpy"),
                request("cudaMemcpy", length=2 << 20), request("cudaMemcpy", length=2**64 - 1),
                *(request("cudaMemcpy", copy) for copy in copies)):
        with socket.create_connection(("127.0.0.1", port), LIMIT) as enemy:
            enemy.sendall(bad)
            try:
                equal((bad[:60], enemy.recv(1)), (bad[:60], b""))
            except ConnectionResetError:
                pass
        equal(stock_call(bystander, request("cudaMemcpy", good)), (0, b""))
    bystander.close()
    server.terminate()
    _, err = server.communicate(timeout=LIMIT)
    assert err.count("connection closed") == 21 and "\x1b" not in err, err


@test
def lengths_and_marks_of_calls_are_checked(scene):
    port = free_port()
    scene.serve("--stock", str(port), "--max-bytes", "1M")
    with socket.create_connection(("127.0.0.1", port), LIMIT) as client:
        for n, code in (((1 << 20) + 1, 2), (2**64 - 1, 2), (1 << 20, 0)):
            equal(stock_call(client, request("ibBwPrepare", struct.pack("<QQ", n, 1))), (code, b""))
        code, reply = stock_call(client, request("cudaMemcpy", d2h(1 << 20)))
        equal((code, len(reply)), (0, (1 << 20) + 8))
        for payload, token, code in ((b"ABCD", 0x44434241, 0), (b"ABCD", 0x45434241, 1),
                                     (b"12345678xx12345678", 0x3837363534333231, 0),
                                     (b"12345678xx12345679", 0x3837363534333231, 1)):
            equal(stock_call(client, request("cudaMemcpy", h2d(payload, token))), (code, b""))


class Spoiler:
    """Passes one connection on to a server and flips a bit in the middle of each long piece."""

    def __init__(self, port, to_server):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.work, args=(port, to_server), daemon=True).start()

    def work(self, port, to_server):
        client, _ = self.listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=self.pump, args=(client, server, to_server), daemon=True).start()
        self.pump(server, client, not to_server)

    @staticmethod
    def pump(source, sink, spoil):
        try:
            while data := bytearray(source.recv(1 << 20)):
                if spoil and len(data) > 20000:
                    data[len(data) // 2] ^= 4
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@test
def damage_in_the_middle_of_a_payload_is_noticed(scene):
    port = free_port()
    _, uri = scene.serve("--stock", str(port))
    for to_server, op in ((True, "h2d"), (False, "d2h")):
        spoiler = Spoiler(port, to_server)
        args = ("run", "--stock", f"127.0.0.1:{spoiler.port}", "--sizes=1M", "--count=2")
        parsed = json.loads(fails(scene, (*args, "--json=-", uri), "damaged", results=True))
        assert f"stopped at {op} 1 MiB" in parsed["refused"][-1]["reason"], parsed["refused"]
        equal([one["op"] for one in parsed["results"] if one["path"] != "stock"], ["h2d", "d2h"])


# ----------------------------------------------------------------------------- output


def check_results(results, ops):
    for one in results:
        equal(" ".join(sorted(one)),
              "bytes encrypted gbps median_us n op p99_us path ratio_to_stock")
        assert one["path"] in ("shm", "verbs", "ofi", "tcp", "stock") and one["op"] in ops, one
        assert isinstance(one["bytes"], int) and isinstance(one["n"], int) and one["n"] > 0, one
        assert 0 < one["median_us"] <= one["p99_us"] and one["gbps"] > 0, one


@test
def self_writes_the_documented_json(scene):
    file = scene.path("results.json")
    with open(file, "w", encoding="ascii") as old:
        old.write("old")
    out = works(scene.run("self", *QUICK, "--json", file))
    assert "H2D: cudaMemcpy to the device" in out, out
    equal(os.listdir(scene.folder.name), ["results.json"])
    with open(file, encoding="utf-8") as written:
        parsed = json.load(written)
    equal(" ".join(sorted(parsed)), "chosen complete format host processors processors_each "
                                    "refused results version yardstick")
    equal((parsed["format"], parsed["complete"], parsed["host"]), (2, True, socket.gethostname()))
    check_results(parsed["results"], ("h2d", "d2h"))
    cells = {(one["path"], one["op"], one["bytes"]): one for one in parsed["results"]}
    for path in ("stock", "shm", "tcp"):
        for op in ("h2d", "d2h"):
            for n in (4, 65536, 1 << 20):
                one, stock = cells[path, op, n], cells["stock", op, n]
                equal(one["n"], 4)
                assert abs(one["gbps"] - n / one["median_us"] / 1e3) < 1e-4 * one["gbps"], one
                ratio = stock["median_us"] / one["median_us"]
                assert abs(one["ratio_to_stock"] - ratio) < 1e-3, one
    assert parsed["processors"] is None or len(set(parsed["processors"])) == 2, parsed["processors"]
    equal(parsed["chosen"]["provider"], "shm")
    sizes = parsed["chosen"]["crossover"]
    equal(set(sizes), {"one_sided_bytes", "message_bytes", "chunk_bytes"})
    assert all(isinstance(n, int) and n > 0 for n in sizes.values()), sizes
    equal({one["path"] for one in parsed["refused"]} | {one["path"] for one in parsed["results"]},
          {"shm", "verbs", "ofi", "tcp", "stock"})
    assert all(len(one["reason"]) > 10 for one in parsed["refused"]), parsed["refused"]
    equal(set(parsed["yardstick"]), {"memcpy_gbps"})
    assert parsed["yardstick"]["memcpy_gbps"] > 0


@test
def reports_tell_what_was_encrypted(scene):
    key = key_file(scene, "key", "ab" * 32)
    args = ("self", *QUICK, "--key-file", key, "--encryption=required")
    code, out, err = scene.run(*args, "--paths=tcp,shm,stock", "--json=json")
    equal(code, 0)
    one_sentence(err)
    assert "warning: encryption was required, and measured without it: stock, shm (" in err, err
    assert re.search(r"^ +bytes +stock +shm +tcp\+TLS$", out, re.M), out
    assert "tcp+TLS against stock, h2d, 1 to 64 MiB: x" in out, out
    with open(scene.path("json"), encoding="ascii") as file:
        parsed = json.load(file)
    equal({(one["path"], one["encrypted"]) for one in parsed["results"]},
          {("tcp", True), ("shm", False), ("stock", False)})
    equal((parsed["chosen"]["provider"], parsed["chosen"]["encrypted"]), ("shm", False))
    out = works(scene.run(*args, "--paths=tcp", "--long"))
    assert re.search(r"^ +4 B +tcp\+TLS +4 ", out, re.M), out
    out = works(scene.run("self", *QUICK, "--key-file", key, "--paths=tcp"))
    assert "TLS" not in out.split("chosen here")[0] and re.search(r"^ +4 B +tcp +4 ", out,
                                                                  re.M), out


@test
def each_end_has_a_processor(scene):
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("there is one processor only")
    args = ("self", "--paths", "stock", "--sizes", "4", "--time", "300")
    client = Terminal(scene, *args)
    client.wait_for(r"round 1 of")
    pid = client.process.pid
    ends = [os.sched_getaffinity(one) for one in (pid, *children(pid))]
    assert set.isdisjoint(*ends) and all(ends), ends
    assert len(os.sched_getaffinity(0)) >= 8 or [len(cpus) for cpus in ends] == [1, 1], ends
    client = Terminal(scene, *args, "--no-pin")
    client.wait_for(r"round 1 of")
    equal(os.sched_getaffinity(client.process.pid), os.sched_getaffinity(0))
    equal(measured(scene, "self", *QUICK, "--paths", "stock", "--no-pin")["processors"], None)


@test
def run_names_the_path_it_took(scene):
    _, uri = scene.serve()
    parsed = measured(scene, "run", "--sizes", "12K,3", "--count", "1", uri)
    equal({(one["path"], one["bytes"]) for one in parsed["results"]}, {("shm", 12288), ("shm", 3)})
    equal({one["ratio_to_stock"] for one in parsed["results"]}, {None})
    parsed = measured(scene, "run", "--set", "provider=tcp", "--sizes", "3", "--count", "1", uri)
    equal({one["path"] for one in parsed["results"]}, {"tcp"})
    equal(parsed["chosen"]["provider"], "tcp")


@test
def counts_are_kept_over_rounds(scene):
    for count, rounds in ((1, 5), (7, 3), (3, 1)):
        parsed = measured(scene, "self", "--paths=stock", "--sizes=4", f"--count={count}",
                          f"--rounds={rounds}")
        equal([one["n"] for one in parsed["results"]], [count] * 2)


@test
def columns_line_up(scene):
    out = works(scene.run("self", *QUICK, "--paths", "shm,tcp,stock"))
    blocks = re.findall(r"^(?:H2D|D2H): .*\n((?:.+\n)+)", out, re.M)
    equal(len(blocks), 2)
    for block in blocks:
        rows = block.splitlines()
        equal(rows[0].split(), ["bytes", "stock", "shm", "tcp"])
        equal([row[:9].strip() for row in rows[1:]], ["4 B", "64 KiB", "1 MiB"])
        equal({len(row) for row in rows}, {len(rows[0])})
        assert all(len(re.findall(r"x\d+\.\d\d", row)) == 2 for row in rows[1:]), block
    assert "shm against stock, h2d, 1 to 64 MiB: x" in out and "chosen here: shm" in out, out
    out = works(scene.run("self", *QUICK, "--paths", "shm,stock", "--long"))
    lines = re.findall(r"^ *(?:4 B|64 KiB|1 MiB) +(?:shm|stock) .*$", out, re.M)
    equal((len(lines), len({len(line) for line in lines})), (12, 1))


@test
def plots_are_pictures(scene):
    if not shutil.which("gnuplot"):
        raise Skip("gnuplot is not installed")
    for name, start in (("a.svg", b"<?xml"), ("it's $(b) \"c\".png", b"\x89PNG")):
        works(scene.run("self", *QUICK, "--paths", "shm,stock", "--plot", name))
        equal(os.listdir(scene.folder.name), [name])
        with open(scene.path(name), "rb") as picture:
            content = picture.read()
        assert content.startswith(start) and len(content) > 2000, content[:100]
        os.unlink(scene.path(name))


@test
def a_missing_gnuplot_is_one_sentence(scene):
    empty = {**os.environ, "PATH": scene.folder.name}
    fails(scene, ("self", *QUICK, "--plot", "a.svg"), "gnuplot",
          run=lambda _, *args: scene.run(*args, env=empty))


@test
def a_file_that_cannot_be_written_is_one_sentence(scene):
    for file in ("missing/results.json", "/proc/results.json"):
        fails(scene, ("self", *QUICK, "--json", file), file)  # and nothing is measured
    os.mkfifo(scene.path("fifo"))
    os.symlink("/dev/null", scene.path("link"))  # as /dev/stdout is one
    for file, why in (("fifo", "no regular file"), ("link", "a link"), (".", "a folder")):
        fails(scene, ("self", *QUICK, "--json", file), why)
        fails(scene, ("self", *QUICK, "--json", scene.path(file)), why)
    assert stat.S_ISFIFO(os.stat(scene.path("fifo")).st_mode)
    equal(os.readlink(scene.path("link")), "/dev/null")
    folder = scene.path("folder")
    os.mkdir(folder)
    client = Terminal(scene, "self", *QUICK, "--paths", "stock", "--json", "folder/results.json")
    client.wait_for(r"h2d .*: stock")
    os.rmdir(folder)
    out = client.finish()
    equal(client.process.returncode, 1)
    assert "H2D" in out and "folder/results.json" in " ".join(client.lines), (out, client.lines)


@test
def a_full_disk_is_the_reason(scene):
    """Whether one buffer holds the output or not."""
    for sizes in ("4", ",".join(str(size) for size in range(1, 61))):
        with open("/dev/full", "w", encoding="ascii") as full:
            code, _, err = scene.run("self", "--sizes", sizes, "--count", "1", "--rounds", "1",
                                     "--paths", "shm", "--json", "-", stdout=full)
        equal((code, err), (1, "ib-bw: standard output: No space left on device\n"))


@test
def refused_paths_do_not_stop_the_others(scene):
    if measured(scene, "self", *QUICK, "--paths", "verbs,stock")["refused"] == []:
        raise Skip("this host has an RDMA device")
    fails(scene, ("self", *QUICK, "--paths", "verbs"), "verbs")


# ---------------------------------------------------------------------------- signals


class Terminal:
    """A process whose standard error is a terminal, as one sees the progress of a measurement."""

    def __init__(self, scene, *args, kind="xterm"):
        self.master, slave = pty.openpty()
        self.process = scene.start(*args, stderr=slave, env={**os.environ, "TERM": kind})
        os.close(slave)
        self.seen = ""
        self.lines = []

    def read(self):
        try:
            more = os.read(self.master, 4096).decode()
        except OSError:
            more = ""
        self.seen += more
        return more

    def wait_for(self, pattern):
        while not re.search(pattern, self.seen):
            assert self.read(), f"no {pattern!r} in {self.seen!r}"

    def finish(self):
        """Standard output; `lines` is what stays on the terminal."""
        out, _ = self.process.communicate(timeout=LIMIT)
        while self.read():
            pass
        os.close(self.master)
        self.lines = [line.rsplit("\r\033[K", 1)[-1] for line in self.seen.split("\r\n")]
        return out


@test
def ctrl_c_prints_what_there_is(scene):
    file = scene.path("results.json")
    client = Terminal(scene, "self", "--paths=shm,stock", "--sizes=4,64K", "--rounds=2", "--time=2",
                      "--json", file)
    client.wait_for(r"h2d 64 KiB, round 1 of 2: shm")
    [server] = children(client.process.pid)
    os.kill(server, signal.SIGINT)  # a terminal sends it to both; the server leaves it to the other
    client.wait_for(r"h2d 64 KiB, round 2 of 2: shm")
    client.process.send_signal(signal.SIGINT)
    out = client.finish()
    equal((client.process.returncode, client.lines), (130, [""]))
    assert re.search(r"^ +4 B +\S+ us", out, re.M) and "D2H" in out, out
    assert not alive(server)
    with open(file, encoding="utf-8") as written:
        parsed = json.load(written)
    equal(parsed["complete"], False)
    cells = {(one["op"], one["bytes"]) for one in parsed["results"]}
    assert ("h2d", 4) in cells and ("d2h", 4) not in cells, cells


@test
def a_dumb_terminal_shows_no_progress(scene):
    client = Terminal(scene, "self", *QUICK, "--paths", "stock", kind="dumb")
    client.finish()
    equal((client.process.returncode, client.seen), (0, ""))


@test
def ctrl_c_ends_a_call_that_never_returns(scene):
    port = free_port()
    server, uri = scene.serve("--stock", str(port))
    client = Terminal(scene, "run", "--stock", f"127.0.0.1:{port}", "--sizes=4", "--time=300",
                      "--rounds=1000", uri)
    client.wait_for(r"round 2 of")
    server.send_signal(signal.SIGSTOP)
    try:
        client.process.send_signal(signal.SIGINT)
        client.process.send_signal(signal.SIGINT)
        out = client.finish()
    finally:
        server.send_signal(signal.SIGCONT)
    equal(client.process.returncode, 130)
    assert re.search(r"^ +4 B +\S+ us", out, re.M), out


@test
def a_killed_self_takes_its_server_along(scene):
    client = Terminal(scene, "self", "--paths", "stock", "--sizes", "4", "--time", "3600")
    client.wait_for(r"round 1 of")
    [server] = children(client.process.pid)
    client.process.kill()
    client.finish()
    until(lambda: not alive(server), "the server's end")


def end_of_a_server(scene, kill, *args):
    """Both paths are given up, and what was measured is printed."""
    client = Terminal(scene, *args, "--sizes", "4", "--time", "300", "--rounds", "1000")
    client.wait_for(r"round 2 of")
    kill(client.process)
    out = client.finish()
    equal((client.process.returncode, client.lines.pop()), (1, ""))
    one_sentence("\n".join(client.lines))
    equal(len(re.findall(r"^refused: (?:shm|stock): stopped at h2d 4 B: ", out, re.M)), 2)
    assert re.search(r"^ +4 B +\S+ us", out, re.M), out


@test
def a_server_that_dies_is_one_sentence(scene):
    port = free_port()
    server, uri = scene.serve("--stock", str(port))
    end_of_a_server(scene, lambda _: server.kill(), "run", "--stock", f"127.0.0.1:{port}", uri)
    end_of_a_server(scene, lambda client: os.kill(children(client.pid)[0], signal.SIGKILL), "self",
                    "--paths=shm,stock")


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
