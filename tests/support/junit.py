#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""usage: junit.py OUTCOMES TIMES FILE

Writes the outcomes of scripts/test as a JUnit file. A line of OUTCOMES is "PASS|FAIL|SKIP RUN [CASE [REASON]]". The cases
of a RUN that is a script (run_*) are sentences and have no reason. A line of TIMES is "SECONDS s SECONDS s RUN": the time, and the
processor time."""
import collections
import sys
import xml.etree.ElementTree as xml


def read_times(path):
    with open(path) as lines:
        return {run: seconds for seconds, _, _, _, run in (line.split(None, 4) for line in lines.read().splitlines())}


def read_outcomes(path):
    """Returns {run: [(outcome, case, reason)]}."""
    runs = collections.defaultdict(list)
    with open(path) as lines:
        for line in lines.read().splitlines():
            outcome, run, *rest = line.split(None, 2)
            case, reason = (rest + [run])[0], ""
            if not run.startswith("run_"):
                case, _, reason = case.partition(" ")
            runs[run].append((outcome, case, reason))
    return runs


def write(runs, times, path):
    suites = xml.Element("testsuites")
    for run, cases in runs.items():
        count = collections.Counter(outcome for outcome, _, _ in cases)
        suite = xml.SubElement(suites, "testsuite", name=run, tests=str(len(cases)), failures=str(count["FAIL"]),
                               skipped=str(count["SKIP"]), time=times.get(run, "0"))
        for outcome, name, reason in cases:
            case = xml.SubElement(suite, "testcase", classname=run, name=name)
            if outcome != "PASS":
                xml.SubElement(case, "failure" if outcome == "FAIL" else "skipped", message=reason)
    xml.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write(read_outcomes(sys.argv[1]), read_times(sys.argv[2]), sys.argv[3])
