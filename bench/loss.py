#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures goodput over a link that loses packets at random, between two network namespaces, in interleaved rounds: ib_write_bw
with each congestion control, with go-back-N as towards a standard peer, and kernel TCP by iperf3. Needs root for the
namespaces."""
import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import typing

import machine
from hosts import SERVER_ADDRESS, Hosts, ip
from items import parse_perftest_bandwidth
from pairs import Disturbance, Failed, choose_cores, free_port
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MTU = 4500
LOSS = 0.01
TARGET = 0.8
CONTROLS = ("tolerant", "swift", "cubic", "dcqcn", "none")
STANDARD_CONTROLS = ("tolerant", "swift", "cubic", "none")
TCP = ("bbr", "cubic")


class Link(typing.NamedTuple):
    mbit: int  # a second, in each direction
    delay_us: int  # one way
    queue: int  # bytes

    def __str__(self):
        return "%d Mbit/s each way, %g ms there and back, a queue of %d kB, MTU %d" % (
            self.mbit, 2 * self.delay_us / 1e3, self.queue // 1000, MTU)


LINK = Link(1000, 500, 250_000)  # the queue: two bandwidth-delay products


@contextlib.contextmanager
def lossy_link(build, hosts, loss, seed, way=LINK):
    """Joins the hosts by a link. At the end, the link's counters are written into the dictionary that this yields."""
    seen = {}
    link = subprocess.Popen([os.path.join(build, "bench", "lossy_link"), *hosts.names, *map(str, way),
                             str(loss), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if link.stdout.readline().strip() != "ready":
            raise Failed("the link does not start")
        for name in hosts.names:
            ip("-n", name, "link", "set", "wire", "mtu", str(MTU), "txqueuelen", "10000")
        hosts.give_addresses()
        yield seen
        seen.update(json.loads(link.communicate()[0]))
    finally:
        link.kill()
        link.wait()


class Bench:
    def __init__(self, build, hosts, cores, seconds):
        self.build, self.hosts, self.cores, self.seconds = build, hosts, cores, seconds

    def nupa(self, environment):
        command = "ib_write_bw -s 1048576 -D %d -f 1" % (self.seconds + 2)
        return parse_perftest_bandwidth(self.hosts.perftest(self.build, command, self.cores, environment))[0]

    def tcp(self, control):
        port = free_port()
        text = self.hosts.pair(["iperf3", "-s", "-1", "-p", str(port)],
                               ["iperf3", "-c", SERVER_ADDRESS, "-p", str(port), "-C", control, "-t", str(self.seconds),
                                "-O", "1", "-J"], port, self.cores)
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9

    def sample(self, measure, loss, seed):
        disturbance = Disturbance(self.cores)
        with lossy_link(self.build, self.hosts, loss, seed) as seen:
            goodput = measure()
        return {"goodput": goodput, "link": seen, "disturbed": disturbance.share()}


def plan(bench):
    """Returns [(name, function that measures)]."""
    found = [("NUPA, selective repeat, `%s`" % name, {"NUPA_CONGESTION": name}) for name in CONTROLS]
    found += [("NUPA, go-back-N, `%s`" % name, {"NUPA_CONGESTION": name, "NUPA_ROCE_PEERS": "standard"})
              for name in STANDARD_CONTROLS]
    return ([(name, lambda environment=environment: bench.nupa(environment)) for name, environment in found]
            + [("TCP, `%s`" % name, lambda name=name: bench.tcp(name)) for name in TCP])


def measure(bench, rounds):
    """Returns ({name: [{"without": sample, "with": sample} of each round]}, {name: reason of a missing round})."""
    found, failures = {}, {}
    for number in range(rounds):
        for name, run in plan(bench):
            print("round %d of %d: %s" % (number + 1, rounds, name), file=sys.stderr, flush=True)
            try:
                pair = {"without": bench.sample(run, 0, number), "with": bench.sample(run, LOSS, number)}
                found.setdefault(name, []).append(pair)
            except Failed as failure:
                failures[name] = str(failure)
    return found, failures


def data_way(sample):
    return sample["link"]["ways"][1]  # the direction from the client, which writes


def dropped(sample):
    return data_way(sample)["queue_drops"] / max(1, data_way(sample)["packets"])


def rows_of(found):
    goodput = lambda name, which: statistics.median(sample[which]["goodput"] for sample in found[name])
    beside = [goodput("TCP, `%s`" % name, "with") if "TCP, `%s`" % name in found else math.inf for name in TCP]
    rows = []
    for name, samples in found.items():
        ratio = statistics.median(sample["with"]["goodput"] / sample["without"]["goodput"] for sample in samples)
        row = [name] + ["%.1f" % (goodput(name, which) * 1e3) for which in ("without", "with")] + ["%.2f" % ratio]
        row += ["%.2f" % (goodput(name, "with") / tcp) for tcp in beside]
        row.append(" / ".join("%.1f %%" % (100 * statistics.median(dropped(sample[which]) for sample in samples))
                              for which in ("without", "with")))
        target = "selective" in name
        rows.append(row + [("met" if ratio >= TARGET else "NOT MET") if target else ""])
    return rows


HEAD = ("", "MB/s without loss", "MB/s with loss", "ratio", *("of TCP `%s`" % name for name in TCP),
        "dropped by the full queue, without / with", "ratio of %g" % TARGET)


def document(about, found, failures, rows):
    every = [sample[which] for samples in found.values() for sample in samples for which in ("without", "with")]
    links = [sample["link"] for sample in every]
    ways = [way for link in links for way in link["ways"]]
    lines = ["# Performance where packets are lost", "",
             "Written by `%s` on %s. Two network namespaces on one machine are joined by `bench/lossy_link`, a program that "
             "forwards packets between two TUN devices: %s; the queue is drop-tail and of two bandwidth-delay products. With loss, each packet of either direction is lost with a chance of "
             "%g %%, independently, by seed. Neither device segments, so each TCP segment and each RoCEv2 packet is drawn "
             "for by itself (the longest seen had %d bytes)."
             % (about["command"], about["date"], LINK, 100 * LOSS,
                max(way["largest_packet"] for way in ways)), "",
             "One connection each: `ib_write_bw` of 1 MiB with path MTU 4,096, `iperf3` for TCP; goodput as they report it, "
             "medians of %d rounds, in each of which everything runs once without loss and once with." % about["rounds"], ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "system", "programs")]
    lines += ["- Server on core %d, client on core %d. The link runs before both, wherever it is; it took %.2f of a core at most."
              % (*about["cores"], max(link["processor_seconds"] / link["seconds"] for link in links)),
              "- Others used %.0f %% of the two cores, or of their speed, at the median; %.0f %% at most."
              % tuple(100 * of(sample["disturbed"] for sample in every) for of in (statistics.median, max)),
              "- A packet was handed over late by %.0f us at the median of each run's worst, by %.0f us at most."
              % (statistics.median(way["latest_us"] for way in ways), max(way["latest_us"] for way in ways)), ""]
    lines += markdown(HEAD, rows)
    for name, reason in failures.items():
        lines += ["", "Failed: %s: %s" % (name, reason)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="seconds of each measurement (default %(default)s)")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/loss.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        print("bench/loss.py: network namespaces need root", file=sys.stderr)
        return 2
    if shutil.which("iperf3") is None:
        print("bench/loss.py: iperf3 is not installed (apt-get install iperf3)", file=sys.stderr)
        return 2
    cores = choose_cores()
    command = "bench/loss.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds)
    with Hosts() as hosts:
        found, failures = measure(Bench(chosen.build, hosts, cores, chosen.seconds), chosen.rounds)
    rows = rows_of(found)
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "loss.json"), "w") as out:
        json.dump({"machine": about, "samples": found, "failures": failures}, out, indent=1)
    text = document(about, found, failures, rows)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "loss.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
