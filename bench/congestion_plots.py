#!/usr/bin/python3
"""Writes docs/congestion.png from the simulations of the congestion controls (tests/sim/congestion_test.cc): goodput of each
flow and the bottleneck's queue over time. Needs the build and Debian's python3-matplotlib."""
import csv
import os
import subprocess
import sys
import tempfile

try:
    import matplotlib
    matplotlib.use("agg")
    from matplotlib import pyplot
except ImportError:
    sys.exit("bench/congestion_plots.py: matplotlib is not there: apt-get install python3-matplotlib")

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def simulate():
    """{run: ([ms], [queue in KiB], [[GB/s of a flow]])} in the order of the runs."""
    with tempfile.NamedTemporaryFile(suffix=".csv") as series:
        subprocess.run([os.path.join(ROOT, "build", "tests", "sim_tests"), "--gtest_filter=*RoceCongestion.*"], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, NUPA_SIM_PLOT=series.name))
        runs = {}
        with open(series.name, newline="") as lines:
            for row in list(csv.reader(lines))[1:]:
                first = next(i for i, field in enumerate(row) if i > 0 and field.strip().replace(".", "").isdigit())
                times, queue, flows = runs.setdefault(",".join(row[:first]), ([], [], []))
                numbers = [float(field) for field in row[first:]]
                times.append(numbers[0] / 1e3)
                queue.append(numbers[1] / 1024)
                for i, rate in enumerate(numbers[2:]):
                    while len(flows) <= i:
                        flows.append([0.0] * (len(times) - 1))
                    flows[i].append(rate / 1e3)
                for flow in flows:
                    flow.extend([0.0] * (len(times) - len(flow)))
    return runs


def smooth(values, width=4):
    return [sum(values[max(0, i - width + 1):i + 1]) / min(i + 1, width) for i in range(len(values))]


def main():
    runs = simulate()
    figure, axes = pyplot.subplots(len(runs), 2, figsize=(11, 2.1 * len(runs)), sharex="col", squeeze=False)
    for (name, (times, queue, flows)), (left, right) in zip(runs.items(), axes):
        for flow in flows:
            left.plot(times, smooth(flow), linewidth=0.8)
        left.set_title(name, loc="left", fontsize=9)
        left.set_ylabel("GB/s a flow", fontsize=8)
        right.plot(times, queue, linewidth=0.8, color="black")
        right.set_ylabel("queue, KiB", fontsize=8)
        for axis in (left, right):
            axis.set_ylim(bottom=0)
            axis.tick_params(labelsize=7)
            axis.grid(linewidth=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("ms", fontsize=8)
    figure.tight_layout()
    figure.savefig(os.path.join(ROOT, "docs", "congestion.png"), dpi=80)


if __name__ == "__main__":
    main()
