# SPDX-License-Identifier: Apache-2.0
"""What runs between two guests, over the shared window and over packets, and the table of the results."""
import itertools
import json
import re
import secrets
import subprocess
import time
from dataclasses import dataclass

from guest.commands import GUEST_GONE, TIMED_OUT

SECONDS = 60  # the longest that a program may take
NONE = "-"


@dataclass
class Cell:
    """A result: a figure or a word, or the error of the program."""
    text: str
    error: str = ""


def failed(error):
    return Cell("failed", " ".join(error.split())[:400] or "no output")


@dataclass
class Row:
    name: str
    unit: str
    cells: dict  # {"pool" or "roce": Cell}; without a cell the row does not apply
    is_raw: bool = False  # of the window itself, without a transport


class Transport:
    """How programs are run over one of the two. Node N of its network has the address PREFIX.N. `device` and `gid`: what programs of
    verbs use."""

    def __init__(self, name, environment, device, gid, prefix, interface):
        self.name, self.device, self.gid, self.prefix, self.interface = name, device, gid, prefix, interface
        self._environment = environment

    def program(self, command):
        """The command that runs a program of verbs."""
        return self.nupa("run -- " + command)

    def nupa(self, command, variables=""):
        return "env %s NUPA_TRANSPORT=%s %s nupa %s" % (self._environment, self.name, variables, command)

    def address(self, node):
        return "%s.%d" % (self.prefix, node.number)


# The guests' first program has set NUPA_POOL, and NUPA_DEVICES to the NIC between the guests. The pool has a device and addresses of its
# own, so its rows need no IP address except for the TCP connection by which perftest exchanges queue pair numbers.
POOL = Transport("pool", "-u NUPA_DEVICES", "nupa_pool0", 0, "10.99.0", "nupa0")
ROCE = Transport("roce", "-u NUPA_POOL", "nupa0", 1, "10.98.0", "nupa1")
TRANSPORTS = (POOL, ROCE)


def error_of(*outputs):
    """The line in which a program states why it failed: the last one that looks so, or the last line."""
    for said in outputs:
        lines = [line.strip() for line in said.splitlines() if line.strip().strip("-*")]
        errors = [line for line in lines if re.search(r"nupa: |rror|ailed|annot|not found|nable", line)]
        if errors or lines:
            return (errors or lines)[-1]
    return ""


def why(status, *outputs):
    reason = {TIMED_OUT: "it did not end in time. ", GUEST_GONE: "the guest ended. "}.get(status, "status %d. " % status)
    return failed(reason + error_of(*outputs))


def parsed(text):
    """The content of JSON; None if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None


class Matrix:
    """Runs the rows one after the other. Node 1 has the servers, and node 2 the clients."""

    def __init__(self, pair, short=False, transports=TRANSPORTS):
        self.nodes, self.short, self._transports = pair.nodes, short, transports
        self._server, self._client = pair.nodes
        self._ports = itertools.count(18515)
        self._numbers = itertools.count(int(time.time()) % 100000 * 1000)
        self._pool_address = ""
        self.pool_error = ""  # of `nupa pool format`: the reason why no row over the pool can pass

    def rows(self):
        """Yields each row when it is complete."""
        yield from self._window()
        if POOL in self._transports:
            self.pool_error = self._format()
            if not self.pool_error:
                yield self._check()
        rows = [("ibv_devinfo", "ports", self._devinfo)]
        turns = 50 if self.short else 200
        for program in ("ib_write_lat", "ib_read_lat", "ib_send_lat")[:1 if self.short else 3]:
            rows.append((program + " -s 8", "us, typical", lambda over, program=program: self._perftest(
                over, "%s -s 8 -n %d" % (program, turns), 4)))
        for program in ("ib_send_bw",) if self.short else ("ib_write_bw", "ib_send_bw"):
            # Packets move less than 1 MB/s here, because the emulated peer is often late.
            rows.append((program + " -s 65536", "MB/s", lambda over, program=program: self._perftest(
                over, "%s -s 65536 -n %d" % (program, 10 if over is ROCE else 100), 3)))
        rows.append(("rping -C 10", "", self._rping))
        if not self._transports:
            return
        for name, unit, measure in rows:
            slow = self.short and "bw" in name
            yield Row(name, unit, {over.name: measure(over) for over in self._transports if over is POOL or not slow})
        yield from self._net()
        yield from self._all_reduce()

    def _run_both(self, commands, seconds=SECONDS):
        """Runs one command in each node at the same time: [(status, output)]."""
        started = [node.spawn(command) for node, command in zip(self.nodes, commands)]
        end = time.monotonic() + seconds
        done = []
        for process in started:
            try:
                done.append((process.wait(max(end - time.monotonic(), 0.1)), process.output()))
            except subprocess.TimeoutExpired:
                process.kill()
                done.append((TIMED_OUT, process.output()))
        return done

    # ---- the window itself ----

    def _window(self):
        wanted = (("exchange", "each guest reads the other's line", "", r"(each guest)"),
                  ("latency %d" % (500 if self.short else 5000), "a cache line, one way", "us", r"one way ([\d.]+)"),
                  ("ring %d 4096" % (200 if self.short else 1000), "records of 4 KiB through a ring", "MB/s", r"([\d.]+) MB/s"),
                  ("ring %d 32768" % (30 if self.short else 150), "records of 32 KiB through a ring", "MB/s", r"([\d.]+) MB/s"))
        for command, name, unit, pattern in wanted:
            number = next(self._numbers)
            done = self._run_both(["window_probe $WINDOW %d %d %s" % (side, number, command) for side in range(2)])
            bad = [each for each in done if each[0] != 0]
            found = re.search(pattern, done[0][1])
            cell = why(*bad[0]) if bad else Cell(found[1]) if found and unit else Cell("ok")
            yield Row(name, unit, {"pool": cell}, is_raw=True)

    def _format(self):
        status, said = self._server.run("nupa pool format --hosts 2 --force", SECONDS)
        return "" if status == 0 else error_of(said) or "nupa pool format: status %d" % status

    def _check(self):
        """The program's own measurement of the window, with the same command in the other guest."""
        done = self._run_both(["nupa pool check"] * 2)
        bad = [each for each in done if each[0] != 0]
        found = re.search(r"a line takes (\d+) ns", done[0][1])
        cell = why(*bad[0]) if bad else Cell("%.3f" % (int(found[1]) / 1e3)) if found else failed(done[0][1])
        return Row("nupa pool check", "us, one way", {"pool": cell})

    def _server_of(self, over):
        """The address at which the connection manager finds node 1."""
        if over is ROCE:
            return self._server.address
        if not self._pool_address:
            _, said = self._server.run(over.nupa("devices --json 2>/run/devices"), SECONDS)
            own = [device for device in parsed(said) or [] if device.get("name") == over.device]
            self._pool_address = own[0]["gids"][over.gid]["gid"] if own else self._server.address
        return self._pool_address

    # ---- verbs ----

    def _devinfo(self, over):
        done = self._run_both([over.program("ibv_devinfo")] * 2)
        for status, said in done:
            if status != 0 or "PORT_ACTIVE" not in said:
                return why(status, said)
        return Cell("active")

    def _perftest(self, over, command, column):
        """The figure in a column of the last line of the client."""
        port = next(self._ports)
        words = "%s -d %s -x %d -F -p %d" % (command, over.device, over.gid, port)
        server = self._server.spawn(over.program(words))
        try:
            if not self._server.wait_listening(port, server):
                return why(server.poll() or 0, server.output())
            status, said = self._client.run(over.program("%s %s" % (words, self._server.address)), SECONDS)
            if status != 0:
                return why(status, said, server.output())
            numbers = [line.split() for line in said.splitlines() if re.match(r"\s*\d+\s", line)]
            return Cell(numbers[-1][column]) if numbers and len(numbers[-1]) > column else failed(said[-300:])
        finally:
            server.kill()

    def _rping(self, over):
        port = next(self._ports)
        server = self._server.spawn(over.program("rping -s -a %s -p %d -C 10" % (self._server_of(over), port)))
        try:
            # Nothing shows from outside that the server listens. Its threads show that it has opened the device just before.
            self._server.wait_for("grep -qs ^nupa- /proc/$(pidof rping)/task/*/comm", server, SECONDS)
            for _ in range(3):
                status, said = self._client.run(over.program("rping -c -a %s -p %d -C 10" % (self._server_of(over), port)), SECONDS)
                if status == 0:
                    return Cell("ok")
                if status == TIMED_OUT or server.poll():
                    break
            return why(status, said, server.output())
        finally:
            server.kill()

    # ---- IP ----

    def _net(self):
        """Networks over both transports exist at the same time; each row is measured over one after the other."""
        up = {over.name: self._net_up(over) for over in self._transports}
        yield Row("nupa net up", "transport", up)
        joined = [over for over in self._transports if not up[over.name].error]
        measures = [("nupa net: ping", "ms, average", self._ping), ("nupa net: iperf3", "Mbit/s", self._iperf3),
                    ("nupa net: ssh", "", self._ssh)]
        for name, unit, measure in measures[:1] if self.short else measures:
            yield Row(name, unit, {over.name: measure(over) if over in joined else Cell(NONE) for over in self._transports})
        for over in joined:
            self._run_both(["nupa net down %s" % over.name] * 2)

    def _net_up(self, over):
        key = secrets.token_hex(32)
        file = "/run/%s.key" % over.name
        for node in self.nodes:
            peer = "--peer " + self._server_of(over) if node is self._client else ""
            status, said = node.run("umask 077; echo %s >%s; %s" % (key, file, over.nupa(
                "net up %s --node node%d --addr %s/24 --interface %s --key-file %s --detach %s" % (
                    over.name, node.number, over.address(node), over.interface, file, peer))), SECONDS)
            if status != 0:
                self._run_both(["nupa net down %s" % over.name] * 2)
                return why(status, said)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            _, said = self._client.run("nupa net status %s --json 2>/run/status" % over.name, SECONDS)
            found = [peer for network in parsed(said) or [] for peer in network["peers"] if peer["state"] == "up"]
            if found:
                used = found[0]["transport"]
                return Cell(used) if used == over.name else failed("the nodes are connected by %s" % used)
            time.sleep(0.2)  # the pause between two looks
        return failed("the nodes do not connect: " + said)

    def _ping(self, over):
        status, said = self._client.run("ping -q -c 10 -i 0.2 -W 10 %s" % over.address(self._server), SECONDS)
        found = re.search(r"min/avg/max = [\d.]+/([\d.]+)/", said)
        return Cell(found[1]) if status == 0 and found else why(status, said)

    def _iperf3(self, over):
        server = self._server.spawn("iperf3 -s -1")
        try:
            if not self._server.wait_listening(5201, server):
                return why(server.poll() or 0, server.output())
            status, said = self._client.run("iperf3 -J -t 3 -c %s" % over.address(self._server), SECONDS)
            got = parsed(said)
            if status != 0 or not got:
                return why(status, said)
            return Cell("%.1f" % (got["end"]["sum_received"]["bits_per_second"] / 1e6))
        finally:
            server.kill()

    def _ssh(self, over):
        """Node 2 logs in to node 1 with a key that node 1 accepts."""
        status, said = self._client.run("[ -e /run/id ] || dropbearkey -t ed25519 -f /run/id >/dev/null 2>&1; dropbearkey -y -f /run/id", SECONDS)
        key = re.search(r"^ssh-ed25519 \S+", said, re.M)
        if status != 0 or not key:
            return why(status, said)
        self._server.run("umask 077; echo '%s' >>/root/.ssh/authorized_keys" % key[0])
        status, said = self._client.run("dbclient -y -y -i /run/id root@%s hostname" % over.address(self._server), SECONDS)
        return Cell("ok") if status == 0 and "node1" in said else why(status, said)

    # ---- collectives ----

    def _all_reduce(self):
        sizes = {"8": "8 B", "65536": "64 KiB"}
        # Packets need seconds for 64 KiB here, because the emulated peer is often late.
        wanted = [over for over in self._transports if over is POOL or not self.short]
        got = {over.name: self._bench(over, 8 if over is ROCE else 65536) for over in wanted}
        for size, name in sizes.items():
            yield Row("all_reduce of 2 ranks, " + name, "us, median", {
                over: figures if isinstance(figures, Cell) else Cell(figures.get(size, NONE)) for over, figures in got.items()})

    def _bench(self, over, most):
        """{bytes: median} for 8 to `most` bytes, or the Cell of an error."""
        port = next(self._ports)
        command = "ccl bench --operation all_reduce --min-bytes 8 --max-bytes %d --factor 8192 --iterations 20" % most
        job = "NUPA_WORLD_SIZE=2 NUPA_CCL_ROOT=tcp://%s:%d" % (self._server.address, port)
        done = self._run_both([over.nupa(command, "%s NUPA_RANK=%d" % (job, rank)) for rank in range(2)])
        bad = [each for each in done if each[0] != 0]
        if bad:
            return why(*bad[0])
        lines = [line.split() for line in done[0][1].splitlines()]
        medians = {words[0]: words[2] for words in lines if len(words) > 6 and words[0].isdigit() and "ok" in words}
        return medians or failed("no line of a size: " + done[0][1][-200:])


WIDTHS = (36, 13, 14, 14)


def head(kind):
    titles = ("", "", {"pcie": "PCIe BAR", "cxl": "CXL memory"}[kind], "roce")
    return line_of(titles) + "\n" + "-" * (sum(WIDTHS) + 3)


def line_of(texts):
    return " ".join(text.ljust(width) if at < 2 else text.rjust(width) for at, (text, width) in enumerate(zip(texts, WIDTHS)))


def line(row):
    return line_of((row.name, row.unit, *(row.cells[over.name].text if over.name in row.cells else "" for over in TRANSPORTS)))


def errors(rows):
    """Which program failed with which error. The same error is printed once."""
    found = {}
    for row in rows:
        for over, cell in row.cells.items():
            if cell.error:
                found.setdefault((over, cell.error), []).append(row.name)
    return ["%s, %s: %s" % (over, " and ".join([names[0], "%d more" % (len(names) - 1)][:min(len(names), 2)]), error)
            for (over, error), names in found.items()]
