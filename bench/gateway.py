#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures connections through `nupa gateway` beside direct ones, in turns: perftest with -R between network namespaces. A
direct connection goes over one wire, and a connection through the gateway over two, or over a memory pool and a wire. Needs
root."""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import machine
from pairs import choose_cores
from text import heading, markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NEAR, GATEWAY, FAR = ["nupa-bench-%d-%s" % (os.getpid(), side) for side in "agb"]
WIRES = ((NEAR, "10.121.0.2", "near", "10.121.0.1"), (FAR, "10.122.0.2", "far", "10.122.0.1"))
# Program, options, the column of its last line, unit.
MEASURED = (("ib_send_lat", "-s 64 -n 2000", 4, "us"), ("ib_write_lat", "-s 64 -n 2000", 4, "us"),
            ("ib_read_lat", "-s 64 -n 2000", 4, "us"), ("ib_atomic_lat", "-n 2000", 4, "us"),
            ("ib_send_bw", "-s 65536 -n 2000", 3, "MB/s"), ("ib_write_bw", "-s 65536 -n 2000", 3, "MB/s"),
            ("ib_read_bw", "-s 65536 -n 2000", 3, "MB/s"), ("ib_write_bw", "-s 8 -n 20000", 3, "MB/s"))
LIMIT_S = 60


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("ip %s: %s" % (" ".join(words), done.stderr.strip()))


@contextlib.contextmanager
def hosts(mtu):
    names = (NEAR, GATEWAY, FAR)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for name, address, wire, other in WIRES:
            ip("link", "add", "wire", "mtu", str(mtu), "netns", name, "type", "veth", "peer", "name", wire, "mtu", str(mtu), "netns",
               GATEWAY)
            for place, device, own in ((name, "wire", address), (GATEWAY, wire, other)):
                ip("-n", place, "address", "add", own + "/24", "dev", device)
                ip("-n", place, "link", "set", device, "up")
        with contextlib.ExitStack() as stack:
            yield {name: stack.enter_context(tempfile.TemporaryDirectory(prefix="nupa-bench-")) for name in names}
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


HEAD = ["program", "direct", "packets, gateway, packets", "of direct", "pool, gateway, packets", "of direct"]


@contextlib.contextmanager
def pool_of(nupa):
    """The settings of the two hosts that share a pool."""
    with tempfile.TemporaryDirectory(prefix="nupa-bench-", dir="/dev/shm") as folder:
        name = "file:" + os.path.join(folder, "pool")
        subprocess.run([nupa, "pool", "format", "--pool", name + ",host=0", "--hosts", "2", "--size", "512M"], check=True,
                       stdout=subprocess.DEVNULL)
        yield {NEAR: ["NUPA_POOL=%s,host=0" % name], GATEWAY: ["NUPA_POOL=%s,host=1" % name]}


class Bench:
    def __init__(self, build, directories, settings):
        self.nupa, self.directories, self.settings = os.path.join(build, "bin", "nupa"), directories, settings
        self.port = 20000

    def start(self, host, words):
        return subprocess.Popen(["ip", "netns", "exec", host, "env", "NUPA_RUNTIME_DIR=" + self.directories[host],
                                 *self.settings.get(host, ()), *words],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def measure(self, program, options, column, client, address, transport="roce"):
        self.port += 1
        words = ["--", program, "-R", "-F", "-p", str(self.port), *options.split()]
        server = self.start(FAR, [self.nupa, "run", "--transport", "roce", *words])
        try:
            time.sleep(0.7)  # the server creates its buffers before it listens
            asker = self.start(client, [self.nupa, "run", "--transport", transport, *words, address])
            try:
                text, _ = asker.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                asker.kill()
                return None
            lines = re.findall(r"^ *\d+ +\d+ +\d+\.\d+.*$", text, re.MULTILINE)
            return float(lines[-1].split()[column]) if lines and asker.returncode == 0 else None
        finally:
            server.kill()
            server.communicate()


def measure(bench, rounds):
    """The rows of the table."""
    rows = []
    for program, more, column, unit in MEASURED:
        found = []
        for _ in range(rounds):
            found.append((bench.measure(program, more, column, GATEWAY, "10.122.0.2"),
                          bench.measure(program, more, column, NEAR, "10.121.0.1"),
                          bench.measure(program, more, column, NEAR, "10.121.0.1", "pool")))
        found = [each for each in found if None not in each]
        name = "`%s %s`" % (program, more)
        if not found:
            rows.append([name, "no result", "", "", "", ""])
            continue
        direct, packets, pool = (statistics.median(side) for side in zip(*found))
        value = lambda figure: "%.1f %s" % (figure, unit)
        rows.append([name, value(direct), value(packets), "%.2f" % statistics.median(b / a for a, b, _ in found),
                     value(pool), "%.2f" % statistics.median(c / a for a, _, c in found)])
        print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def document(about, rows):
    lines = ["# Performance of the gateway", "",
             "Written by `%s` on %s; medians of %d rounds, in each of which all three take their turns. The near host, the gateway and "
             "the far host are network namespaces of one machine, and perftest with `-R` runs in them. A direct connection goes from "
             "the gateway's host to the far one. The others go from the near host to `nupa gateway` by packets or by a memory pool, "
             "and on by packets." % (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (heading(name), about[name]) for name in ("cpu", "system", "programs")]
    lines += ["- Three processes poll on two cores: client, gateway and server. A direct connection has two.", ""]
    return "\n".join(lines + markdown(HEAD, rows)) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--mtu", type=int, default=9000)
    options.add_argument("--write-docs", action="store_true", help="also write docs/performance/gateway.md")
    given = options.parse_args()
    cores = choose_cores()
    command = "bench/gateway.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(given.build, cores, command, given.rounds, packages=("perftest",))
    with hosts(given.mtu) as directories, pool_of(os.path.join(given.build, "bin", "nupa")) as settings:
        bench = Bench(given.build, directories, settings)
        gateway = bench.start(GATEWAY, [bench.nupa, "gateway", "--for", "10.121.0.1=10.122.0.2"])
        gateway.stdout.readline()
        try:
            rows = measure(bench, given.rounds)
        finally:
            gateway.terminate()
            gateway.wait()
    text = document(about, rows)
    if given.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "gateway.md"), "w") as out:
            out.write(text)
    print(text)


if __name__ == "__main__":
    main()
