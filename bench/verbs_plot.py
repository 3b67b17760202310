#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/performance/verbs.svg from the table and the machine in docs/performance/verbs.md. `bench/run.py --write-docs` writes both.
The plots show latency and bandwidth over the message size. Needs no build."""
import os
import re
import sys

from items import KIB, MIB, size_name
from plots import LogAxis, Panel, figure

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "performance")
PAGE, PICTURE = os.path.join(FOLDER, "verbs.md"), os.path.join(FOLDER, "verbs.svg")
SIZES = {"B": 1, "KiB": KIB, "MiB": MIB}
UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "MB/s": 1e-3, "GB/s": 1}  # to us and to GB/s
NUPA, UCX_SHM, UCX_TCP = 2, 3, 4  # columns of the table
# (name, class in the style sheet, marker, operation of perftest, column)
LINES = (("NUPA WRITE, shm", "nupa-write", "circle", "write", NUPA),
         ("NUPA SEND, shm", "nupa-send", "circle", "send", NUPA),
         ("UCX put, shm", "shm-put", "square", "write", UCX_SHM),
         ("UCX tag, shm", "shm-tag", "square", "send", UCX_SHM),
         ("UCX tag, TCP loopback", "tcp", "diamond", "send", UCX_TCP))


def scaled(cell, units):
    """Returns the number of a cell such as "167 ns", in the unit whose factor is 1, or None of a cell without a number."""
    number, _, unit = cell.partition(" ")
    return float(number) * units[unit] if unit in units else None


def series(text, kind):
    """Returns a line of `kind` ("lat" or "bw") for each of LINES, as plots.Panel takes them."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| ib_.*\|$", text, re.M)]
    found = []
    for name, style, marker, operation, column in LINES:
        points = [(int(scaled(row[1], SIZES)), scaled(row[column], UNITS)) for row in rows
                  if row[0] == "ib_%s_%s" % (operation, kind)]
        found.append((name, style, marker, [point for point in points if point[1] is not None]))
    return found


def caption(text):
    """Returns the machine, its system and the date of the measurement, as the page has them."""
    about = dict(re.findall(r"^- (\w+): (.*)$", text, re.M))
    return "%s. %s. Measured on %s." % (about["CPU"], about["System"], re.search(r"on (\d{4}-\d\d-\d\d)", text)[1])


def picture(text):
    """Returns the SVG of a page's text."""
    def panel(kind, title, unit):
        lines = series(text, kind)
        return Panel(lines, "message size", unit, lambda size: size_name(int(size)), "%g".__mod__,
                     lambda values, start, end: LogAxis(values, start, end, 8), LogAxis, title)

    latency = panel("lat", "Latency, one way (lower is better)", "us")
    bandwidth = panel("bw", "Bandwidth (higher is better)", "GB/s")
    return figure("Two processes of one host: perftest over NUPA, beside UCX", [[latency, bandwidth]], 250, latency.series,
                  caption(text))


def write():
    with open(PAGE, encoding="utf-8") as page:
        made = picture(page.read())
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(made)


if __name__ == "__main__":
    sys.exit(write())
