#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the results of `nupa ccl bench --json FILE` as one HTML page to standard output: plots of time and bus bandwidth
over size, and a table for each operation."""
import argparse
import html
import json
import sys

from page import STYLE, row, section
from plots import MANY, legend, plot

MARKERS = ("circle", "square", "diamond")
HEAD = ("size", "count", "median", "minimum", "algorithm bandwidth", "bus bandwidth", "batches", "check", "algorithm")
CHECKS = {"ok": ' class="met"', "wrong": ' class="missed"'}


def size_text(size):
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while size and size % 1024 == 0 and unit + 1 < len(units):
        size, unit = size // 1024, unit + 1
    return "%d %s" % (size, units[unit])


def digits(value, steps):
    """Formats `value` with three digits and a unit of `steps`; neighbouring units differ by a factor of 1,000."""
    at = 0
    while value >= 1000 and at + 1 < len(steps):
        value, at = value / 1000, at + 1
    return "%.3g %s" % (value, steps[at])


def time_text(us):
    return digits(us * 1000, ("ns", "us", "ms", "s"))


def bandwidth_text(gbs):
    return "-" if gbs is None else digits(gbs * 1000, ("MB/s", "GB/s"))


def by_operation(results):
    found = {}
    for result in results:
        found.setdefault(result["operation"], []).append(result)
    return found


def series(operations, name):
    lines = []
    for number, (operation, results) in enumerate(operations.items()):
        points = [(each["bytes"], each[name]) for each in results if each["bytes"] and each[name]]
        if points:
            lines.append((operation, "many%d" % (number % MANY), MARKERS[number % len(MARKERS)], points))
    return lines


def plot_section(title, lead, lines, y_title, y_name):
    return section(title, lead, legend(lines), plot(title, lines, y_title, size_text, y_name)) if lines else ""


def table(results):
    parts = ['<div class="scroll"><table>', row([(name, "") for name in HEAD], "th")]
    for each in results:
        words = (size_text(each["bytes"]), str(each["count"]), time_text(each["median_us"]), time_text(each["minimum_us"]),
                 bandwidth_text(each["algorithm_gbs"]), bandwidth_text(each["bus_gbs"]),
                 "%d x %d" % (each["batches"], each["iterations_per_batch"]), each["check"], each["algorithm"])
        parts.append(row([(word, CHECKS.get(each["check"], "") if name == "check" else "") for name, word in zip(HEAD, words)]))
    return "".join(parts) + "</table></div>"


def page(measured):
    operations = by_operation(measured["results"])
    what = "%d ranks, %s, %s, %s%s, transport %s" % (
        measured["ranks"], measured["type"], measured["op"], "in place" if measured["in_place"] else "out of place",
        ", allocated" if measured["allocated"] else "", measured["transport"])
    parts = ['<!doctype html><html lang="en"><head><meta charset="utf-8"><title>NUPA collectives</title>'
             '<meta name="viewport" content="width=device-width, initial-scale=1"><style>%s</style></head><body><main>' % STYLE,
             '<h1>NUPA collectives</h1><p class="soft">%s</p>' % html.escape(what),
             '<p class="soft">%s</p>' % html.escape("%(cpu)s, %(system)s, %(date)s" % measured),
             plot_section("Time of an operation over its size", "The slowest rank's; lower is better.",
                          series(operations, "median_us"), "median", time_text),
             plot_section("Bus bandwidth over size", "As nccl-tests counts it, 10^9 bytes a second; higher is better.",
                          series(operations, "bus_gbs"), "bandwidth", bandwidth_text)]
    parts += [section(operation, "", table(results)) for operation, results in operations.items()]
    return "\n".join(parts) + "</main></body></html>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", metavar="FILE", help="results file of nupa ccl bench --json")
    chosen = parser.parse_args()
    try:
        with open(chosen.json) as measured:
            text = page(json.load(measured))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        print("bench/ccl_page.py: %s: %s" % (chosen.json, fault), file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
