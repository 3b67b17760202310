#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures NUPA's packets and plain UDP sockets between two network namespaces in one interleaved run. Each measurement of NUPA
lies between two of plain sockets, and its ratio is to their mean. Needs root for the namespaces."""
import argparse
import json
import os
import statistics
import sys

import machine
from hosts import SERVER_ADDRESS, Hosts
from items import parse_perftest_bandwidth, parse_perftest_latency
from pairs import choose_cores, free_port
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SEGMENT = 4096 + 16  # a packet of the path MTU 4,096 with its headers and CRC
MTU = 9000
TARGETS = {"ib_write_bw": 0.6, "ib_send_bw": 0.5, "ib_read_bw": 0.5, "ib_send_lat": 1.4}


class Bench:
    def __init__(self, build, hosts, cores, seconds):
        self.build, self.hosts, self.cores, self.seconds = build, hosts, cores, seconds

    def raw(self, kind):
        """Returns GB/s of a stream, or (median, 99th percentile) of half a round trip in us."""
        port = free_port()
        command = [os.path.join(self.build, "bench", "raw_udp"), kind, str(port), str(SEGMENT if kind == "stream" else 24),
                   str(self.seconds)]
        text = self.hosts.pair(command, command + [SERVER_ADDRESS], port, self.cores, of_server=kind == "stream")
        return [float(word) for word in text.split()]

    def perftest(self, command):
        """Runs perftest. `command` may begin with environment variables, NAME=VALUE."""
        words = command.split()
        settings = [word for word in words if "=" in word]
        return self.hosts.perftest(self.build, " ".join(words[len(settings):]), self.cores,
                                   dict(word.split("=") for word in settings))

    def bandwidth(self, command):
        return [parse_perftest_bandwidth(self.perftest(command))[0]]

    def latency(self, command):
        found = parse_perftest_latency(self.perftest(command), 0)
        return [found["value"] / 1e3, found.get("p99", 0) / 1e3]


def plan(quick):
    few = 4 if quick else 1
    return [("stream", "bandwidth", "%s -s 1048576 -n %d" % (name, 3000 // few))
            for name in ("ib_write_bw", "ib_send_bw", "ib_read_bw", "NUPA_ROCE_ICRC=off ib_write_bw")] + [
        ("stream", "bandwidth", "ib_write_bw -s 65536 -q 1 -t 16 -n %d" % (40000 // few)),
        ("stream", "bandwidth", "ib_write_bw -s 65536 -q 256 -t 16 -n %d" % (200 // few)),
        ("pingpong", "latency", "ib_send_lat -s 8 -n %d" % (50000 // few)),
        ("pingpong", "latency", "ib_write_lat -s 8 -n %d" % (10000 // few)),
        ("pingpong", "latency", "ib_read_lat -s 8 -n %d" % (10000 // few))]


def measure(bench, rounds, quick):
    """Returns {command: [{"value": figures, "beside": figures of plain sockets} of each round]}. Latencies have a 99th percentile."""
    found = {}
    for number in range(rounds):
        for kind, how, command in plan(quick):
            print("round %d of %d: %s" % (number + 1, rounds, command), file=sys.stderr, flush=True)
            before = bench.raw(kind)
            value = getattr(bench, how)(command)
            after = bench.raw(kind)
            beside = [(a + b) / 2 for a, b in zip(before, after)]
            found.setdefault(command, []).append({"value": value, "beside": beside})
    return found


def rows_of(found):
    rows = []
    for command, samples in found.items():
        latency = len(samples[0]["value"]) > 1
        unit = "us" if latency else "GB/s"
        median = lambda of: statistics.median(map(of, samples))
        ratios = [s["value"][0] / s["beside"][0] for s in samples]
        ratio = statistics.median(ratios)
        quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratio] * 3
        name = command.split()[0]
        target = TARGETS.get(name) if "-q" not in command else None
        verdict = "stated"
        if target:
            met = ratio <= target if latency else ratio >= target
            verdict = "at %s %g: %s" % ("most" if latency else "least", target, "met" if met else "NOT MET")
        p99 = "%.1f / %.1f us" % (median(lambda s: s["value"][1]), median(lambda s: s["beside"][1])) if latency else ""
        rows.append([command, "%.2f %s" % (median(lambda s: s["value"][0]), unit),
                     "%.2f %s" % (median(lambda s: s["beside"][0]), unit), "%.2f" % ratio,
                     "%.2f to %.2f" % (quarters[0], quarters[2]), p99, verdict])
    return rows


HEAD = ("perftest", "NUPA", "plain UDP", "ratio", "its middle half", "99th percentile, of both", "target")


def document(about, rows):
    lines = ["# Performance of packets", "",
             "Written by `%s` on %s. Two network namespaces on one machine are joined by a virtual Ethernet of MTU %d. Each "
             "measurement stands between two of plain UDP sockets: a stream of segmented sends (UDP_SEGMENT, UDP_GRO) of "
             "packets as long as RoCEv2's of path MTU 4,096, or a ping-pong of 24 bytes by non-blocking calls. Ratios are "
             "medians of %d rounds." % (about["command"], about["date"], MTU, about["rounds"]), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "system", "programs")]
    lines += ["- Server on core %d, client on core %d, each with the thread that serves its port." % tuple(about["cores"]), ""]
    return "\n".join(lines + markdown(HEAD, rows)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/packets.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        print("bench/wire.py: network namespaces need root", file=sys.stderr)
        return 2
    cores = choose_cores()
    command = "bench/wire.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds)
    with Hosts() as hosts:
        hosts.add_cable(MTU)
        found = measure(Bench(chosen.build, hosts, cores, 0.5 if chosen.quick else 1), chosen.rounds, chosen.quick)
    rows = rows_of(found)
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "wire.json"), "w") as out:
        json.dump({"machine": about, "samples": found}, out, indent=1)
    text = document(about, rows)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "packets.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
