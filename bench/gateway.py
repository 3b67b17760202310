#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures connections through `nupa gateway` beside direct ones, in turns: perftest with -R between network namespaces. A
direct connection goes over one wire, and a connection through the gateway over two. Needs root."""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

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


class Bench:
    def __init__(self, build, directories):
        self.nupa, self.directories, self.port = os.path.join(build, "bin", "nupa"), directories, 20000

    def start(self, host, words):
        return subprocess.Popen(["ip", "netns", "exec", host, "env", "NUPA_RUNTIME_DIR=" + self.directories[host], *words],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def measure(self, program, options, column, client, address):
        self.port += 1
        words = [self.nupa, "run", "--transport", "roce", "--", program, "-R", "-F", "-p", str(self.port), *options.split()]
        server = self.start(FAR, words)
        try:
            time.sleep(0.7)  # the server creates its buffers before it listens
            asker = self.start(client, [*words, address])
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


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--mtu", type=int, default=9000)
    given = options.parse_args()
    with hosts(given.mtu) as directories:
        bench = Bench(given.build, directories)
        gateway = bench.start(GATEWAY, [bench.nupa, "gateway", "--for", "10.121.0.1=10.122.0.2"])
        gateway.stdout.readline()
        try:
            print("| program | direct | through the gateway | ratio |\n|---|---|---|---|")
            for program, more, column, unit in MEASURED:
                pairs = [(bench.measure(program, more, column, GATEWAY, "10.122.0.2"),
                          bench.measure(program, more, column, NEAR, "10.121.0.1")) for _ in range(given.rounds)]
                pairs = [pair for pair in pairs if None not in pair]
                if not pairs:
                    print("| `%s %s` | no result | | |" % (program, more))
                    continue
                direct, spliced = (statistics.median(side) for side in zip(*pairs))
                print("| `%s %s` | %.1f %s | %.1f %s | %.2f |" % (program, more, direct, unit, spliced, unit, spliced / direct),
                      flush=True)
        finally:
            gateway.terminate()
            gateway.wait()


if __name__ == "__main__":
    main()
