#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures two builds of NUPA in turns. Each round runs each measurement once with each build, in alternating order; the
result is the median of the rounds' ratios. This shows the effect of a code change although the machine's speed varies.
Needs root for the network namespaces, perftest, redis, iperf3 and qperf."""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile

import machine
from hosts import Hosts
from items import KIB, MIB, Setting, nupa_bandwidth, parse_perftest_bandwidth, parse_perftest_times, perftest, size_name
from netdev import Two
from pairs import Failed, choose_cores, free_port, run_alone, run_pair
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REDUCED = (8, 64 * KIB, MIB)
NOISE = 0.03  # a ratio counts as worse when it is worse by more than this


class Measurement:
    """`run`(build) returns {name of the figure: value}; `units` is {name of the figure: unit}. Less is better for times."""

    def __init__(self, name, units, run):
        self.name, self.units, self.run = name, units, run


def value_of(item, key):
    return item.run()[key]["value"]


def over_memory(settings, quick):
    """Measures Debian's perftest between two processes over shared memory."""
    found = []
    for operation in ("write", "read", "send", "atomic"):
        name = "ib_%s_lat 8 B" % operation
        sizes = [] if operation == "atomic" else ["-s", "8"]
        command = ["ib_%s_lat" % operation, "-U", "-n", "50000" if quick else "200000"] + sizes
        found.append(Measurement(name, {name: "ns"}, lambda build, command=command, name=name: {
            name: parse_perftest_times(perftest(settings[build], command))}))
    rate = "ib_write_bw 8 B, messages"
    found.append(Measurement(rate, {rate: "10^6/s"}, lambda build: {
        rate: value_of(nupa_bandwidth(settings[build], "write", 8), "nupa.write_rate.8")}))
    for size in (64 * KIB, MIB):
        name = "ib_write_bw " + size_name(size)
        found.append(Measurement(name, {name: "GB/s"}, lambda build, size=size, name=name: {
            name: value_of(nupa_bandwidth(settings[build], "write", size), "nupa.write_bw.%d" % size)}))
    return found


def over_packets(hosts, cores, quick):
    """Measures Debian's perftest over packets between two network namespaces."""
    few = 4 if quick else 1
    found = []
    for name in ("ib_write_bw", "ib_send_bw"):
        title = name + " 1 MiB, packets"
        found.append(Measurement(title, {title: "GB/s"}, lambda build, name=name, title=title: {title: parse_perftest_bandwidth(
            hosts.perftest(build, "%s -s %d -n %d" % (name, MIB, 3000 // few), cores))[0]}))
    title = "ib_send_lat 8 B, packets"
    found.append(Measurement(title, {title: "ns"}, lambda build: {title: parse_perftest_times(
        hosts.perftest(build, "ib_send_lat -U -s 8 -n %d" % (50000 // few), cores))}))
    return found


def reductions(folder, quick):
    """Measures all_reduce of two ranks, with a separate run for each size."""
    def run(build, size):
        out = os.path.join(folder, "ccl.json")
        run_alone([os.path.join(build, "bin", "nupa"), "ccl", "bench", "-n", "2", "--operation", "all_reduce", "--min-bytes", str(size),
                   "--max-bytes", str(size), "--min-time", "0.1" if quick else "0.5", "--json", out],
                  ",".join(map(str, sorted(os.sched_getaffinity(0)))))
        with open(out) as file:
            return 1e3 * json.load(file)["results"][0]["median_us"]
    names = {"all_reduce " + size_name(size): size for size in REDUCED}
    return [Measurement(name, {name: "ns"}, lambda build, name=name, size=size: {name: run(build, size)})
            for name, size in names.items()]


def redis(folder, cores, quick):
    """Measures redis-benchmark through the preload library."""
    titles = {"SET": "redis-benchmark SET", "GET": "redis-benchmark GET"}

    def run(build):
        port = free_port()
        through = [os.path.join(build, "bin", "nupa"), "run", "--sockets", "--"]
        server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "", "--appendonly",
                  "no", "--dir", folder, "--daemonize", "no"]
        client = ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-n", str(50000 if quick else 300000), "-c", "20", "--csv",
                  "-t", "set,get"]
        rows = [line.strip('"').split('","') for line in run_pair(through + server, through + client, port, cores,
                                                                  server_survives=True).splitlines()]
        found = {titles[row[0]]: float(row[1]) / 1e3 for row in rows if row[0] in titles}
        if len(found) != len(titles):
            raise Failed("redis-benchmark gave no figures")
        return found
    return Measurement("redis-benchmark", dict.fromkeys(titles.values(), "10^3/s"), run)


def device(hosts, seconds):
    """Measures iperf3 and qperf over `nupa net`."""
    def run(build):
        net = Two(build, hosts, seconds)
        try:
            found = net.measure("shm")
        finally:
            shutil.rmtree(net.config, ignore_errors=True)
        return {"iperf3 over nupa net": found["rate"] / 1e9, "tcp_lat over nupa net": 1e3 * found["latency"]}
    return Measurement("nupa net", {"iperf3 over nupa net": "Gbit/s", "tcp_lat over nupa net": "ns"}, run)


def measure(measurements, builds, rounds):
    """Returns ({figure: [(before, after) of each round]}, {measurement: its last failure})."""
    samples, failures = {}, {}
    for number in range(rounds):
        for measurement in measurements:
            print("round %d of %d: %s" % (number + 1, rounds, measurement.name), file=sys.stderr, flush=True)
            try:
                order = builds if number % 2 == 0 else builds[::-1]
                found = {build: measurement.run(build) for build in order}
                for name in measurement.units:
                    samples.setdefault(name, []).append(tuple(found[build][name] for build in builds))
            except Failed as reason:
                failures[measurement.name] = str(reason)
    return samples, failures


def ratio_of(pairs):
    return statistics.median(after / before for before, after in pairs)


def worse(unit, ratio):
    return ratio > 1 + NOISE if unit == "ns" else ratio < 1 - NOISE


def rows_of(measurements, samples):
    rows = []
    for measurement in measurements:
        for name, unit in measurement.units.items():
            if name not in samples:
                continue
            pairs = samples[name]
            ratios = sorted(after / before for before, after in pairs)
            ratio = ratio_of(pairs)
            number = "%.0f" if unit == "ns" else "%.2f"
            rows.append([name, unit] + [number % statistics.median(column) for column in zip(*pairs)]
                        + ["%.3f" % ratio, "%.2f to %.2f" % (ratios[0], ratios[-1]), "worse" if worse(unit, ratio) else ""])
    return rows


HEAD = ("measurement", "unit", "before", "after", "ratio", "rounds", "")


def document(about, rows, failures):
    lines = ["# Changes of speed", "",
             "Written by `%s` on %s. Two builds run each measurement in turns, %d rounds; before and after are medians, the "
             "ratio is the median of the rounds' ratios, beside it the least and the most. \"worse\": by more than %g %%." % (
                 about["command"], about["date"], about["rounds"], 100 * NOISE), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("before", "after", "cpu", "system", "programs")] + [""]
    lines += markdown(HEAD, rows)
    for name, reason in failures.items():
        lines += ["", "Failed: %s: %s" % (name, reason)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", help="build folder to compare with")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--name", default="the other build", help="what the page calls the build to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only measurements whose name contains this text")
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/changes.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    cores = choose_cores()
    builds = [os.path.abspath(chosen.before), os.path.abspath(chosen.build)]
    settings = {build: Setting(build, cores, 0.2 if chosen.quick else 1.0, chosen.quick) for build in builds}
    with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
        hosts.add_cable(9000)
        measurements = [*over_memory(settings, chosen.quick), *over_packets(hosts, cores, chosen.quick), *reductions(folder, chosen.quick),
                        redis(folder, cores, chosen.quick), device(hosts, 1 if chosen.quick else 3)]
        measurements = [one for one in measurements if chosen.only in one.name]
        samples, failures = measure(measurements, builds, chosen.rounds)
    command = "bench/compare_builds.py BEFORE" + " --quick" * chosen.quick
    about = machine.describe(builds[1], cores, command, chosen.rounds, ("perftest", "redis", "iperf3", "qperf"))
    about.update(before=chosen.name, after="this tree")
    with open(os.path.join(builds[1], "bench", "changes.json"), "w") as out:
        json.dump({"machine": about, "samples": samples, "failures": failures}, out, indent=1)
    text = document(about, rows_of(measurements, samples), failures)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "changes.md"), "w") as out:
            out.write(text)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
