#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures small messages over shared memory beside UCX's shared memory and the machine's limits: each figure has its reference
measured just before and just after it, in every round. With --before, the same programs run over an earlier build in each round.
Needs the build, perftest and ucx-utils; the table of the time by function needs perf (linux-perf), and is left out without it."""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import items
import machine
from items import KIB, LIST, MIB, Setting, parse_perftest_bandwidth, parse_perftest_latency, parse_ucx, perftest, size_name
from pairs import Failed, choose_cores, free_port, run_alone, run_pair
from text import heading, markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARED_MEMORY = {"UCX_TLS": "posix,cma"}
KINDS = {"read": "READ of 8 B, post and completion", "write": "WRITE of 8 B, post and completion",
         "write_unsignalled": "WRITE of 8 B, a completion for each hundredth", "write_list": "WRITE of 8 B, lists of 16"}
LATENCIES, MESSAGES = 100000, 9600000


def latency(operation):
    def measure(setting):
        command = ["ib_%s_lat" % operation, "-n", str(LATENCIES), "-s", "8"] + (["-C"] if setting.ticks_per_us else [])
        return parse_perftest_latency(perftest(setting, command), setting.ticks_per_us)["value"]
    return measure


def rate(options):
    def measure(setting):
        return parse_perftest_bandwidth(perftest(setting, ["ib_write_bw", "-n", str(MESSAGES), "-s", "8"] + options))[1]
    return measure


def bandwidth(size):
    def measure(setting):
        count = int(min(40000, 6e9 // size))
        return parse_perftest_bandwidth(perftest(setting, ["ib_write_bw", "-n", str(count), "-s", str(size)]))[0]
    return measure


def ucx(test, count, column, scale=1.0):
    def measure(setting):
        port = free_port()
        with tempfile.NamedTemporaryFile("w", suffix=".ucx") as batch:
            batch.write("test.8 -t %s -s 8 -n %d -w %d\n" % (test, count, count // 10))
            batch.flush()
            common = ["-p", str(port), "-f", "-v", "-b", batch.name]
            text = run_pair(["ucx_perftest"] + common, ["ucx_perftest", "127.0.0.1"] + common, port, setting.cores, SHARED_MEMORY)
        rows = parse_ucx(text)
        if "test.8" not in rows:
            raise Failed("ucx_perftest gave no figures for " + test)
        return rows["test.8"][column] * scale
    return measure


def line(setting):
    return items.machine_limits(setting, ["--only", "line", "--quick"])["line_ns"]


def memcpy(size):
    options = ["--only", "memcpy", "--sizes", str(size), "--copies", str(int(min(40000, 6e9 // size)))]
    return lambda setting: items.machine_limits(setting, options)["memcpy"][str(size)]


class Figure:
    def __init__(self, name, unit, measure, reference_name, reference, most=None, least=None):
        self.name, self.unit, self.measure = name, unit, measure
        self.reference_name, self.reference = reference_name, reference
        self.most, self.least = most, least
        self.rounds, self.before = [], []  # (value, reference)

    def target(self):
        return "at most %g" % self.most if self.most is not None else "at least %g" % self.least

    def is_met(self, ratio):
        return ratio <= self.most if self.most is not None else ratio >= self.least


def figures():
    put = ucx("ucp_put_bw", MESSAGES // 2, 2)
    found = [Figure("`ib_write_bw`, 8 B", "M/s", rate([]), "UCX's put_bw", put, least=0.45),
             Figure("`ib_write_bw`, 8 B, lists of 16", "M/s", rate(LIST), "UCX's put_bw", put, least=0.6),
             Figure("`ib_read_lat`, 8 B", "ns", latency("read"), "UCX's get", ucx("ucp_get", 2 * LATENCIES, 0, 1e3), most=1.6),
             Figure("`ib_write_lat`, 8 B", "ns", latency("write"), "a cache line's way", line, most=3.0),
             Figure("`ib_send_lat`, 8 B", "ns", latency("send"), "UCX's tag_lat", ucx("tag_lat", LATENCIES, 0, 1e3), most=0.9)]
    for size in (64 * KIB, MIB, 16 * MIB):
        found.append(Figure("`ib_write_bw`, %s" % size_name(size), "GB/s", bandwidth(size), "memcpy", memcpy(size), least=0.95))
    return found


def measure(promised, setting, earlier, rounds):
    for number in range(rounds):
        for figure in promised:
            try:
                first = figure.reference(setting)
                value = figure.measure(setting)
                second = figure.reference(setting)
                figure.rounds.append((value, (first + second) / 2))
                if earlier is not None:
                    figure.before.append((figure.measure(earlier), (second + figure.reference(setting)) / 2))
            except Failed as failure:
                print("%s: %s" % (figure.name, failure), file=sys.stderr)
        print("round %d of %d" % (number + 1, rounds), file=sys.stderr, flush=True)


def ratio(rounds):
    return statistics.median(value / reference for value, reference in rounds) if rounds else None


def figure_rows(promised, has_before):
    rows = []
    for figure in promised:
        now = ratio(figure.rounds)
        if now is None:
            rows.append([figure.name, "no result", "", "", figure.target(), "NOT MET"] + [""] * has_before)
            continue
        value, reference = (statistics.median(each[side] for each in figure.rounds) for side in (0, 1))
        shown = "%.3g %s" % (value, figure.unit)
        rows.append([figure.name, shown, "%.3g %s, %s" % (reference, figure.unit, figure.reference_name), "%.2f" % now,
                     figure.target(), "met" if figure.is_met(now) else "NOT MET"]
                    + (["%.2f" % ratio(figure.before) if figure.before else ""] if has_before else []))
    return rows


def costs(setting):
    """Nanoseconds by kind of loop."""
    command = setting.nupa([os.path.join(setting.build, "bench", "op_costs"), "--cores", "%d,%d" % setting.cores])
    return json.loads(run_alone(command, "%d,%d" % setting.cores).splitlines()[-1])


def shares(setting, kind):
    """The share of each function in the time of one kind of loop, by perf's samples; empty without perf."""
    if shutil.which("perf") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "perf.data")
        command = setting.nupa([os.path.join(setting.build, "bench", "op_costs"), "--cores", "%d,%d" % setting.cores,
                                "--only", kind, "--count", "6000000"])
        try:
            run_alone(["perf", "record", "-q", "-F", "15000", "-o", data] + command, "%d,%d" % setting.cores)
        except Failed:
            return {}
        report = subprocess.run(["perf", "report", "-i", data, "--stdio", "--sort", "comm,dso,sym"], capture_output=True, text=True)
    found = {}
    for percent, place, name in re.findall(r"^ +([0-9.]+)% +op_costs +(\S+) +\[\S\] (.*?)\s*$", report.stdout, re.MULTILINE):
        function = re.sub(r"\(.*", "", name.replace("(anonymous namespace)::", ""))
        function = "the loop of the program" if place == "op_costs" else function.replace("nupa::", "")
        found[function] = found.get(function, 0.0) + float(percent) / 100
    total = sum(found.values())
    return {name: part / total for name, part in found.items()} if total > 0 else {}


def cost_rows(now, before):
    return [[words, "%.1f ns" % now[kind]] + (["%.1f ns" % before[kind]] if before else []) for kind, words in KINDS.items()]


def share_rows(setting, now):
    columns = {kind: shares(setting, kind) for kind in ("read", "write_unsignalled")}
    names = sorted({name for column in columns.values() for name in column},
                   key=lambda name: -sum(column.get(name, 0) for column in columns.values()))
    rows, rest = [], {kind: 0.0 for kind in columns}
    for name in names:
        values = {kind: column.get(name, 0.0) * now[kind] for kind, column in columns.items()}
        if max(values.values()) < 0.5:
            for kind, value in values.items():
                rest[kind] += value
            continue
        rows.append(["`%s`" % name if "::" in name else name] + ["%.1f ns" % values[kind] for kind in columns])
    return rows + [["all others"] + ["%.1f ns" % rest[kind] for kind in columns]] if rows else []


def median_costs(found):
    return {kind: statistics.median(each[kind] for each in found) for kind in KINDS} if found else {}


def document(about, promised, now, before, by_function):
    has_before = before != {}
    lines = ["# Performance of small messages", "",
             "Written by `%s` on %s; medians of %d rounds. Each figure is measured between two measurements of its reference, and the "
             "ratio is the median of the rounds' ratios. perftest and UCX are Debian's." % (about["command"], about["date"], about["rounds"]),
             ""]
    lines += ["- %s: %s" % (heading(name), about[name]) for name in ("cpu", "caches", "system", "programs")]
    lines += ["", "## Figures and targets", ""]
    lines += markdown(["figure", "measured", "beside", "ratio", "target", ""] + ["ratio before"] * has_before,
                      figure_rows(promised, has_before))
    lines += ["", "The clock of a virtual machine has steps of 10 ns for perftest, and UCX prints whole steps of 1 ns: latencies below "
              "100 ns are uncertain by a step. perftest reads that clock for each message.", "",
              "## Where the time goes", "",
              "`bench/op_costs` posts and polls in a loop, without perftest's own work.", ""]
    lines += markdown(["loop", "one request"] + ["before"] * has_before, cost_rows(now, before))
    if by_function:
        lines += ["", "The same time by function, from perf's samples. `post_send` of `verbs` translates the request. "
                  "`Qp::post_send` takes the send lock, checks the request and its local key, counts it, and writes the completion of a "
                  "READ. `Connected::post` checks the peer's state and the remote key, and copies. `poll_cq` and `Cq::poll` take the "
                  "completion.", ""]
        lines += markdown(["function", "READ", "WRITE, unsignalled"], by_function)
    return "\n".join(lines) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--build", default=os.path.join(ROOT, "build"))
    options.add_argument("--before", help="an earlier build, which is measured in the same rounds")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--write-docs", action="store_true", help="also write docs/performance/small-messages.md")
    given = options.parse_args()
    cores = choose_cores()
    setting = Setting(given.build, cores, 0.3, False)
    setting.ticks_per_us = items.machine_limits(setting, ["--sizes", "64", "--quick"])["ticks_per_us"]
    earlier = None
    if given.before:
        earlier = Setting(given.before, cores, 0.3, False)
        earlier.ticks_per_us = setting.ticks_per_us
    command = "bench/small_messages.py" + " --before BUILD" * (given.before is not None) + " --write-docs" * given.write_docs
    about = machine.describe(given.build, cores, command, given.rounds)
    promised = figures()
    measure(promised, setting, earlier, given.rounds)
    now, before = [], []
    for _ in range(given.rounds):
        now.append(costs(setting))
        if earlier is not None:
            before.append(costs_of_earlier(earlier, setting))
    now, before = median_costs(now), median_costs(before)
    text = document(about, promised, now, before, share_rows(setting, now))
    if given.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "small-messages.md"), "w") as out:
            out.write(text)
    print(text)


def costs_of_earlier(earlier, setting):
    """The loops of this build over the earlier build's library."""
    command = earlier.nupa([os.path.join(setting.build, "bench", "op_costs"), "--cores", "%d,%d" % setting.cores])
    return json.loads(run_alone(command, "%d,%d" % setting.cores).splitlines()[-1])


if __name__ == "__main__":
    main()
