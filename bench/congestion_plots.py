#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/design/congestion.svg from the simulations of the congestion controls (tests/sim/congestion_test.cc). The plots
show the goodput of each flow and the bottleneck's queue over time. Needs the build."""
import csv
import os
import subprocess
import tempfile

from plots import MANY, Panel, figure

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def simulate():
    """Returns {run: ([ms], [queue in KiB], [[GB/s of a flow]])} in the order of the runs."""
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


def smooth(times, values, width=4):
    """Returns the mean of each `width` consecutive samples, at the time of the last sample."""
    return [(times[end - 1], sum(values[end - width:end]) / width) for end in range(width, len(values) + 1, width)]


def rows_of(runs):
    rows = []
    for name, (times, queue, flows) in runs.items():
        goodput = [("", "thin many%d" % (i % MANY), None, smooth(times, flow)) for i, flow in enumerate(flows)]
        lengths = [("", "thin ink", None, list(zip(times, queue)))]
        rows.append([Panel(goodput, "ms", "GB/s a flow", "%g".__mod__, "%g".__mod__, title=name),
                     Panel(lengths, "ms", "queue, KiB", "%g".__mod__, "%g".__mod__)])
    return rows


def main():
    with open(os.path.join(ROOT, "docs", "design", "congestion.svg"), "w") as picture:
        picture.write(figure("Goodput of each flow, and the queue, over time", rows_of(simulate()), height=130))


if __name__ == "__main__":
    main()
