#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures block devices that unmodified programs serve, over TCP and on NUPA, in one run: tgt by iSCSI and by iSER, qemu-nbd by
NBD over sockets and over rsockets. Requests of each size, one at a time for the latency, 16 at a time for the throughput, each
measurement of NUPA between two of TCP. Writes plots, every sample, and prints tables. On one host NUPA shares memory; with
--hosts all goes between two network namespaces, NUPA by RoCEv2 packets."""
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


class Places:
    """Where server and initiator run, and the command lines that put a program on NUPA there."""

    def __init__(self, build, hosts):
        self.program = [os.path.join(build, "bin", "nupa"), "run", "--transport", "roce" if hosts else "shm"]
        self.address = SERVER_ADDRESS if hosts else "127.0.0.1"
        self.server, self.client = [
            ["ip", "netns", "exec", name, "env", "NUPA_RUNTIME_DIR=" + directory.name]
            for name, directory in zip(hosts.names, hosts.directories)] if hosts else ([], [])
        self.rdma, self.sockets = [*self.program, "--"], [*self.program, "--sockets", "--"]

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
    """For NUPA and for TCP: the command line that starts the initiator, and the device's name."""
    with Target(places.rdma, places.address, image, places.server) as target:
        yield (places.rdma, target.options("iser")), ([], target.options("iscsi"))


@contextlib.contextmanager
def by_nbd(places, image):
    with Export(places.sockets, places.address, image, places.server) as fast, \
            Export([], places.address, image, places.server) as plain:
        yield (places.sockets, fast.options()), ([], plain.options())


SERVICES = {"iscsi": (by_iscsi, "iSER on NUPA", "iSCSI over TCP"),
            "nbd": (by_nbd, "NBD over rsockets", "NBD over TCP")}


def measure(places, service, image, rounds, quick):
    """{(write, size, depth): [(us by NUPA, us by TCP)]}"""
    found = {}
    with SERVICES[service][0](places, image) as (ours, theirs):
        for number in range(rounds):
            for write in (False, True):
                for size in SIZES:
                    for depth in DEPTHS:
                        print("round %d of %d: %s, %s of %s, %d at a time" % (
                            number + 1, rounds, service, "writes" if write else "reads", size_name(size), depth),
                            file=sys.stderr, flush=True)
                        # An iSER initiator has 256 buffers, which are cold for the first requests.
                        count = 1000 // (4 if quick else 1)
                        run = lambda way: places.microseconds(*way, write, size, depth, count)
                        before, value, after = run(theirs), run(ours), run(theirs)
                        found.setdefault((write, size, depth), []).append((value, (before + after) / 2))
    return found


def rows_of(found):
    rows = []
    for (write, size, depth), samples in sorted(found.items()):
        ours, tcp = (statistics.median(sample[i] for sample in samples) for i in (0, 1))
        ratio = statistics.median(theirs / mine for mine, theirs in samples)
        per_second = ["%.0f MB/s" % (size / us) for us in (ours, tcp)]
        rows.append(["write" if write else "read", size_name(size), str(depth), "%.0f us" % ours, "%.0f us" % tcp, *per_second,
                     "%.2f" % ratio])
    return rows


def table(rows):
    head = ["", "size", "at a time", "NUPA, a request", "TCP, a request", "NUPA", "TCP", "NUPA is so many times faster"]
    lines = ["| %s |" % " | ".join(head), "|" + "---|" * 2 + "---:|" * 6]
    return "\n".join(lines + ["| %s |" % " | ".join(row) for row in rows])


def picture(found, title, names):
    """An SVG: above, the latency of one request at a time; below, the throughput of 16 at a time."""
    rows, lines = [], []
    for depth in DEPTHS:
        panels = []
        for write in (False, True):
            lines = []
            for index, style, marker in ((0, "ours", "circle"), (1, "theirs", "square")):
                us = [statistics.median(sample[index] for sample in found[write, size, depth]) for size in SIZES]
                values = us if depth == 1 else [size / each for size, each in zip(SIZES, us)]
                lines.append((names[index], style, marker, list(zip(SIZES, values))))
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
    where = "between two hosts, by packets" if chosen.hosts else "on one host"
    print("%s, %s; %s; %s, medians of %d rounds" % (about["date"], about["cpu"], about["programs"], where, chosen.rounds))
    with tempfile.TemporaryDirectory(prefix="nupa-storage-", dir="/dev/shm") as folder, contextlib.ExitStack() as stack:
        image = os.path.join(folder, "image")
        with open(image, "wb") as content:
            content.truncate(IMAGE_BYTES)
        hosts = None
        if chosen.hosts:
            hosts = stack.enter_context(Hosts())
            hosts.add_cable(MTU)
        else:
            os.environ["NUPA_RUNTIME_DIR"] = folder
        for service, (_, ours, theirs) in SERVICES.items():
            found = measure(Places(chosen.build, hosts), service, image, chosen.rounds, chosen.quick)
            name = os.path.join(out, service + ("-hosts" if chosen.hosts else ""))
            with open(name + ".json", "w") as results:
                json.dump({"machine": about, "samples": [{"write": key[0], "bytes": key[1], "depth": key[2],
                                                          "us_nupa_tcp": value} for key, value in sorted(found.items())]},
                          results, indent=1)
            with open(name + ".svg", "w") as drawn:
                drawn.write(picture(found, "%s beside %s, %s" % (ours, theirs, where), (ours, theirs)))
            print("\n%s beside %s: %s.svg\n\n%s" % (ours, theirs, name, table(rows_of(found))), flush=True)
    return 0


def main():
    try:
        return run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print("measure.py: %s" % error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
