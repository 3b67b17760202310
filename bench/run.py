#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures NUPA, UCX and the machine's limits in one interleaved run. Each round runs each item once; the report has medians
and ratios. Needs the build, perftest and ucx-utils, but no Python package."""
import argparse
import json
import os
import shutil
import signal
import sys
import time

import machine
import page
import text
import verbs_plot
from figures import DISTURBED, Medians, comparison, figures
from items import TIMES, Setting, catalogue
from pairs import Disturbance, Failed, Speed, choose_cores

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Progress:
    """Shows the progress: on a terminal one line that is overwritten, elsewhere a new line every few seconds."""

    def __init__(self, total):
        self.total = total
        self.done = 0
        self.begun = self.last = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, round_number, rounds, name):
        percent = 100 * self.done // self.total
        line = "[%3d/%d %3d %%] round %d of %d: %s" % (self.done + 1, self.total, percent, round_number, rounds, name)
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\033[K" + line[:width])
        elif self.done == 0 or time.monotonic() - self.last > 5:
            self.last = time.monotonic()
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def step(self):
        self.done += 1

    def close(self):
        clear = "\r\033[K" if self.terminal else ""
        sys.stderr.write("%smeasured in %.0f s\n" % (clear, time.monotonic() - self.begun))


class IdleWait:
    """Waits for the cores' full speed before an item with a target is measured, for at most `seconds` in all."""

    def __init__(self, seconds):
        self.left = seconds

    def wait(self, cores):
        begun = time.monotonic()
        while self.left > time.monotonic() - begun and max(map(Speed.missing, cores)) > DISTURBED:
            time.sleep(0.2)
        self.left -= time.monotonic() - begun


def measure(item, cores, retries, idle_wait):
    """Returns (samples, attempts) for the calmest of at most 1 + `retries` attempts. Each sample has its share of disturbance."""
    best, attempts = None, 0
    while best is None or (best[0] > DISTURBED and attempts <= retries):
        if item.promised:
            idle_wait.wait(cores)
        disturbance = Disturbance(cores)
        samples = item.run()
        foreign = round(disturbance.share(), 3)
        attempts += 1
        if best is None or foreign < best[0]:
            best = foreign, samples
    return {name: dict(sample, foreign=best[0]) for name, sample in best[1].items()}, attempts


def run(items, rounds, cores, retries, idle_wait, once):
    """Returns ({name of the sample: [one for each run]}, {name of the item: its last failure}). `once`: no item runs twice in a
    round."""
    samples, failures = {}, {}
    plan = [(round_number, item) for round_number in range(1, rounds + 1)
            for item in items for _ in range(TIMES if item.promised and not once else 1)]
    progress = Progress(len(plan))
    spare = progress.total // 5  # total number of repeated attempts; repeating does not help on a machine that is never calm
    for round_number, item in plan:
        progress.show(round_number, rounds, item.name)
        try:
            found, attempts = measure(item, cores, min(retries, spare), idle_wait)
            spare -= attempts - 1
            for name, sample in found.items():
                samples.setdefault(name, []).append(dict(sample, round=round_number))
        except Failed as failure:
            failures[item.name] = str(failure)
        progress.step()
    progress.close()
    return samples, failures


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="the build folder (default: build)")
    parser.add_argument("--out", help="folder for results.json and report.html (default: BUILD/bench)")
    parser.add_argument("--rounds", type=int, help="rounds (default: 5; 1 with --quick; 2 with --demo)")
    parser.add_argument("--retries", type=int, default=1,
                        help="how often to repeat a sample that other programs disturb (default: 1)")
    parser.add_argument("--idle-wait", type=float, default=30, metavar="SECONDS",
                        help="how long in all to wait for the cores' full speed (default: 30; none with --quick)")
    parser.add_argument("--quick", action="store_true", help="about half a minute: one round, short measurements")
    parser.add_argument("--demo", action="store_true", help="the tests that scripts/demo shows")
    parser.add_argument("--only", metavar="WORDS", help="only items whose name contains this text; the machine's limits are always measured")
    parser.add_argument("--list", action="store_true", help="show the items and their commands, measure nothing")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/verbs.md and verbs.svg")
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 2 if chosen.demo else 5)
    chosen.idle_wait = 0 if chosen.quick else chosen.idle_wait
    chosen.out = chosen.out or os.path.join(chosen.build, "bench")
    if chosen.write_docs and (chosen.only or chosen.demo):
        parser.error("--write-docs needs every item")
    if chosen.rounds < 1 or chosen.retries < 0:
        parser.error("--rounds must be at least 1, and --retries at least 0")
    return chosen


def what_is_missing(build):
    for path in ("bin/nupa", "bench/machine_limits", "bench/many_qps", "bench/message_rate"):
        if not os.access(os.path.join(build, path), os.X_OK):
            return "no file %s: run scripts/build first" % os.path.join(build, path)
    for program, package in (("ib_write_lat", "perftest"), ("ucx_perftest", "ucx-utils"), ("taskset", "util-linux")):
        if shutil.which(program) is None:
            return "%s is not installed (apt-get install %s)" % (program, package)
    return None


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the exit ends the programs that were started
    cores = choose_cores()
    setting = Setting(chosen.build, cores, 0.06 if chosen.quick else 0.1 if chosen.demo else 0.25,
                      chosen.quick or chosen.demo)
    items = catalogue(setting, chosen.demo)
    if chosen.only:
        items = items[:1] + [item for item in items[1:] if chosen.only.lower() in item.name.lower()]
    if chosen.list:
        for item in items:
            print("%-28s %s" % (item.name, item.command))
        return 0
    missing = what_is_missing(chosen.build)
    if missing:
        print("bench/run.py: " + missing, file=sys.stderr)
        return 2
    command = "bench/run.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds)
    samples, failures = run(items, chosen.rounds, cores, 0 if chosen.quick else chosen.retries,
                            IdleWait(chosen.idle_wait), chosen.quick or chosen.demo)
    medians = Medians(samples)
    rows, promised = comparison(medians, failures), figures(medians)
    about["disturbed"], about["samples"] = medians.disturbed()

    os.makedirs(chosen.out, exist_ok=True)
    results = os.path.join(chosen.out, "results.json")
    with open(results, "w") as out:
        json.dump({"machine": about, "figures": promised, "failed": failures, "samples": samples}, out, indent=1)
    report = os.path.join(chosen.out, "report.html")
    with open(report, "w") as out:
        out.write(page.page(about, medians, rows, promised, failures, chosen.demo))
    print(text.terminal(about, medians, rows, promised, failures, chosen.demo))
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "verbs.md"), "w") as out:
            out.write(text.document(about, medians, rows, promised, failures))
        verbs_plot.write()
    print("Every sample: %s\nPlots:        %s" % (results, report))
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
