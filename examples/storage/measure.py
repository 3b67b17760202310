#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures block devices that unmodified programs serve, over TCP and on NUPA, in one run: tgt by iSCSI and by iSER, qemu-nbd by
NBD over sockets and over rsockets. Requests of each size, one at a time for the latency, 16 at a time for the throughput, each
measurement of NUPA between two of TCP. Writes plots, every sample, and prints tables. On one host NUPA shares memory; with
--hosts all goes between two network namespaces, NUPA by RoCEv2 packets and through a pool, a file that both share."""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "bench")]
import machine  # noqa: E402
from hosts import SERVER_ADDRESS, Hosts  # noqa: E402
from items import size_name  # noqa: E402
from pairs import choose_cores  # noqa: E402
from plots import Panel, StepAxis, figure  # noqa: E402
from iscsi_target import LIMIT, Failed, Target, missing_programs  # noqa: E402
from nbd_export import Export  # noqa: E402

SIZES = (512, 4096, 16384, 65536, LIMIT)
DEPTHS = (1, 16)
IMAGE_BYTES = 64 << 20
MTU = 9000


POOL_BYTES = "512M"
# NUPA's transports, and how the tables call them.
TRANSPORTS = {"shm": "shared memory", "roce": "packets", "pool": "pool"}


class Places:
    """Where server and initiator run, and the command lines that put a program on NUPA there."""

    def __init__(self, build, hosts, pool):
        self.nupa = os.path.join(build, "bin", "nupa")
        self.transports = ["roce", "pool"] if hosts else ["shm"]
        self.address = SERVER_ADDRESS if hosts else "127.0.0.1"
        self.server, self.client = [
            ["ip", "netns", "exec", name, "env", "NUPA_RUNTIME_DIR=" + directory.name, "NUPA_POOL=file:%s,host=%d" % (pool, number)]
            for number, (name, directory) in enumerate(zip(hosts.names, hosts.directories))] if hosts else ([], [])

    def on_nupa(self, transport, *options):
        return [self.nupa, "run", "--transport", transport, *options, "--"]

    def microseconds(self, run, options, write, size, depth, count):
        """Returns the mean time of a request with `depth` requests under way."""
        command = ["qemu-img", "bench", "--image-opts", "-t", "none", "-c", str(count), "-d", str(depth), "-s", str(size),
                   *(["-w"] if write else []), options]
        done = subprocess.run([*self.client, *run, *command], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL)
        took = re.search(r"completed in ([\d.]+) seconds", done.stdout)
        if done.returncode != 0 or took is None:
            raise Failed("qemu-img bench of %s: exit status %d: %s" % (options, done.returncode, done.stderr[-200:]))
        return float(took[1]) * 1e6 / count


@contextlib.contextmanager
def by_iscsi(places, image):
    """Yields {transport or "tcp": (the command line that starts the initiator, the device's name)}."""
    with contextlib.ExitStack() as stack:
        ways = {}
        for transport in places.transports:
            run = places.on_nupa(transport)
            target = stack.enter_context(Target(run, places.address, image, places.server))
            ways[transport] = run, target.options("iser")
            ways["tcp"] = [], target.options("iscsi")
        yield ways


@contextlib.contextmanager
def by_nbd(places, image):
    with contextlib.ExitStack() as stack:
        ways = {"tcp": ([], stack.enter_context(Export([], places.address, image, places.server)).options())}
        for transport in places.transports:
            run = places.on_nupa(transport, "--sockets")
            ways[transport] = run, stack.enter_context(Export(run, places.address, image, places.server)).options()
        yield ways


SERVICES = {"iscsi": (by_iscsi, "iSER", "iSCSI over TCP"), "nbd": (by_nbd, "NBD over rsockets", "NBD over TCP")}


def measure(places, service, image, rounds, quick):
    """{(write, size, depth): [{transport or "tcp": us}]}"""
    found = {}
    with SERVICES[service][0](places, image) as ways:
        for number in range(rounds):
            for write in (False, True):
                for size in SIZES:
                    for depth in DEPTHS:
                        print("round %d of %d: %s, %s of %s, %d at a time" % (
                            number + 1, rounds, service, "writes" if write else "reads", size_name(size), depth),
                            file=sys.stderr, flush=True)
                        # An iSER initiator has 256 buffers, which are cold for the first requests.
                        count = 1000 // (4 if quick else 1)
                        run = lambda way: places.microseconds(*ways[way], write, size, depth, count)
                        before = run("tcp")
                        sample = {transport: run(transport) for transport in places.transports}
                        sample["tcp"] = (before + run("tcp")) / 2
                        found.setdefault((write, size, depth), []).append(sample)
    return found


def rows_of(found, transports):
    rows = []
    for (write, size, depth), samples in sorted(found.items()):
        us = {way: statistics.median(sample[way] for sample in samples) for way in (*transports, "tcp")}
        ratios = [statistics.median(sample["tcp"] / sample[way] for sample in samples) for way in transports]
        rows.append(["write" if write else "read", size_name(size), str(depth), *("%.0f us" % each for each in us.values()),
                     *("%.0f MB/s" % (size / each) for each in us.values()), *("%.2f" % ratio for ratio in ratios)])
    return rows


def table(rows, transports):
    names = [TRANSPORTS[transport] for transport in transports]
    head = ["", "size", "at a time", *(name + ", a request" for name in (*names, "TCP")), *names, "TCP",
            *("by %s so many times faster" % name for name in names)]
    lines = ["| %s |" % " | ".join(head), "|" + "---|" * 2 + "---:|" * (len(head) - 2)]
    return "\n".join(lines + ["| %s |" % " | ".join(row) for row in rows])


def picture(found, title, names):
    """An SVG: above, the latency of one request at a time; below, the throughput of 16 at a time. `names`: of each way."""
    rows, lines = [], []
    looks = {"pool": ("ours", "circle"), "tcp": ("theirs", "square"), "roce": ("many1", "diamond"), "shm": ("ours", "circle")}
    for depth in DEPTHS:
        panels = []
        for write in (False, True):
            lines = []
            for way, name in names.items():
                us = [statistics.median(sample[way] for sample in found[write, size, depth]) for size in SIZES]
                values = us if depth == 1 else [size / each for size, each in zip(SIZES, us)]
                lines.append((name, *looks[way], list(zip(SIZES, values))))
            panels.append(Panel(
                lines, "size of a request", "latency of a request, us" if depth == 1 else "throughput, MB/s", size_name,
                "%.0f".__mod__, across=StepAxis,
                title="%s, %s" % ("writes" if write else "reads", "one at a time" if depth == 1 else "16 at a time")))
        rows.append(panels)
    return figure(title, rows, height=280, keys=lines)


def run():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--out", help="folder for the results (default: BUILD/storage)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--hosts", action="store_true", help="measure between two network namespaces (needs root)")
    chosen = parser.parse_args()
    lacking = missing_programs()
    if lacking:
        print("measure.py: missing programs: apt-get install " + " ".join(lacking), file=sys.stderr)
        return 2
    out = chosen.out or os.path.join(chosen.build, "storage")
    os.makedirs(out, exist_ok=True)
    command = "examples/storage/measure.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, choose_cores(), command, chosen.rounds, ("tgt", "libiscsi7", "qemu-utils"))
    where = "between two hosts" if chosen.hosts else "on one host"
    print("%s, %s; %s; %s, medians of %d rounds" % (about["date"], about["cpu"], about["programs"], where, chosen.rounds))
    with tempfile.TemporaryDirectory(prefix="nupa-storage-", dir="/dev/shm") as folder, contextlib.ExitStack() as stack:
        image = os.path.join(folder, "image")
        with open(image, "wb") as content:
            content.truncate(IMAGE_BYTES)
        hosts, pool = None, os.path.join(folder, "pool")
        if chosen.hosts:
            hosts = stack.enter_context(Hosts())
            hosts.add_cable(MTU)
            subprocess.run([os.path.join(chosen.build, "bin", "nupa"), "pool", "format", "--pool", "file:%s,host=0" % pool, "--hosts", "2",
                            "--size", POOL_BYTES], check=True, stdout=subprocess.DEVNULL)
        else:
            os.environ["NUPA_RUNTIME_DIR"] = folder
        for service, (_, ours, theirs) in SERVICES.items():
            places = Places(chosen.build, hosts, pool)
            found = measure(places, service, image, chosen.rounds, chosen.quick)
            name = os.path.join(out, service + ("-hosts" if chosen.hosts else ""))
            with open(name + ".json", "w") as results:
                json.dump({"machine": about, "samples": [{"write": key[0], "bytes": key[1], "depth": key[2],
                                                          "us": value} for key, value in sorted(found.items())]},
                          results, indent=1)
            names = {transport: "%s, %s" % (ours, TRANSPORTS[transport]) for transport in places.transports}
            with open(name + ".svg", "w") as drawn:
                drawn.write(picture(found, "%s beside %s, %s" % (ours, theirs, where), {**names, "tcp": theirs}))
            print("\n%s beside %s: %s.svg\n\n%s" % (ours, theirs, name, table(rows_of(found, places.transports), places.transports)),
                  flush=True)
    return 0


def main():
    try:
        return run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print("measure.py: %s" % error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
