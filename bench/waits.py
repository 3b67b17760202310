#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how long programs wait for packets: perftest over roce between two network namespaces, compared with UDP sockets. These
sleep (blocking), poll (pingpong), or poll and yield the core (yielding). On one core, a program that polls without yielding
gets its answer only after a time slice of the scheduler. All programs are pinned in the same way. Each measurement of NUPA lies
between two of plain sockets. A second build (--before) takes turns with the first. Needs root for the namespaces."""
import argparse
import os
import statistics
import sys

from hosts import Hosts
from pairs import Failed, choose_cores
from text import markdown
from wire import MTU, Bench

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Figure:
    """`beside` is the kind of plain ping-pong, or None for a bandwidth that is compared with `other`. `part` is 0 for the median or
    the bandwidth and 1 for the 99th percentile. `limit` is the greatest ratio, or the least one for a bandwidth; with None the
    ratio is only shown."""

    def __init__(self, name, command, one_core, beside, limit, part=0, other=None):
        self.name, self.command, self.one_core, self.beside = name, command, one_core, beside
        self.limit, self.part, self.other = limit, part, other

    def measure(self, benches):
        """Returns the two parts of the ratio for each build: (value, beside)."""
        plain = benches[-1]  # an older build may lack a kind of ping-pong
        if self.beside is None:
            return [(bench.bandwidth(self.command)[0], bench.bandwidth(self.other)[0]) for bench in benches]
        found = []
        before = plain.raw(self.beside)[self.part]
        for bench in benches:
            value = bench.latency(self.command)[self.part]
            after = plain.raw(self.beside)[self.part]
            found.append((value, (before + after) / 2))
            before = after
        return found

    def met(self, ratio):
        if self.limit is None:
            return "shown"
        good = ratio >= self.limit if self.beside is None else ratio <= self.limit
        return "at %s %g: %s" % ("least" if self.beside is None else "most", self.limit, "met" if good else "NOT MET")


def plan(quick):
    few = 4 if quick else 1
    events, polls = ("ib_send_lat -s 8 -n %d%s" % (20000 // few, how) for how in (" -e", ""))
    many = "ib_write_bw -s 65536 -q %d -t 16 -n %d"
    return [Figure("events, both on one core", events, True, "blocking", 2.0),
            Figure("events, a core each", events, False, "blocking", 1.0),
            Figure("polling, both on one core", polls, True, "yielding", 3.0),
            Figure("polling, a core each", polls, False, "pingpong", None),
            Figure("polling, a core each, 99th percentile", polls, False, "pingpong", 2.5, part=1),
            Figure("256 queue pairs beside one", many % (256, 200 // few), False, None, 0.8, other=many % (1, 40000 // few))]


class UrgentHosts(Hosts):
    """Runs the programs with the highest scheduling weight, within their session and among sessions, so that a busy machine
    disturbs them little."""

    def pair(self, server, client, *rest, **how):
        prefix = ["sh", "-c", 'echo -20 > /proc/self/autogroup; exec nice -n -20 "$0" "$@"']
        return super().pair(prefix + server, prefix + client, *rest, **how)


HEAD = ("figure", "build", "NUPA", "beside", "ratio", "limit")


def rows_of(figures, builds, samples):
    rows = []
    for figure in figures:
        for number, build in enumerate(builds):
            pairs = [pair for found in samples[figure.name] for pair in found[number:number + 1]]
            if not pairs:
                rows.append([figure.name, build, "failed", "", "", ""])
                continue
            unit = "GB/s" if figure.beside is None else "us"
            ratio = statistics.median(value / beside for value, beside in pairs)
            value, beside = (statistics.median(column) for column in zip(*pairs))
            rows.append([figure.name, build, "%.2f %s" % (value, unit), "%.2f %s" % (beside, unit), "%.2f" % ratio,
                         figure.met(ratio)])
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--before", metavar="BUILD", help="another build to measure in turns with the first one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--urgent", action="store_true", help="use the highest scheduling weight, on a machine that others use")
    parser.add_argument("--only", metavar="WORDS", default="", help="only figures whose name contains this text")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        print("bench/waits.py: network namespaces need root", file=sys.stderr)
        return 2
    builds = [build for build in (chosen.before, chosen.build) if build]
    cores = choose_cores()
    figures = [figure for figure in plan(chosen.quick) if chosen.only in figure.name]
    samples = {figure.name: [] for figure in figures}
    with (UrgentHosts if chosen.urgent else Hosts)() as hosts:
        hosts.add_cable(MTU)
        for number in range(chosen.rounds):
            for figure in figures:
                pinned = (cores[0], cores[0]) if figure.one_core else cores
                benches = [Bench(build, hosts, pinned, 0.25 if chosen.quick else 1) for build in builds]
                print("round %d of %d: %s" % (number + 1, chosen.rounds, figure.name), file=sys.stderr, flush=True)
                try:
                    samples[figure.name].append(figure.measure(benches))
                except Failed as failure:
                    print("  failed: %s" % failure, file=sys.stderr, flush=True)
    names = ["before", "this"] if chosen.before else ["this"]
    print("\n".join(markdown(HEAD, rows_of(figures, names, samples))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
