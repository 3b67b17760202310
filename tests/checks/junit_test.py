#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/support/junit.py writes what scripts/test has found out."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
OUTCOMES = """PASS format
PASS unit-release Suite.One
FAIL unit-release Suite.Two
SKIP unit-release Suite.Three needs <root> & a device
PASS run_roce.py shm: ib_send_bw, 8 bytes
FAIL run_roce.py exit-status-1
"""
TIMES = "    12 s      9 s  unit-release\n   103 s     40 s  run_roce.py\n"


class JUnit(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.file = Path(self.folder.name) / "junit.xml"

    def written(self, outcomes, times):
        paths = [Path(self.folder.name) / name for name in ("outcomes", "times")]
        for path, text in zip(paths, (outcomes, times)):
            path.write_text(text)
        subprocess.run([ROOT / "tests/support/junit.py", *paths, self.file], check=True)
        return {suite.get("name"): suite for suite in ElementTree.parse(self.file).getroot()}

    def test_a_run_is_a_suite_with_its_counts_and_seconds(self):
        suites = self.written(OUTCOMES, TIMES)
        self.assertEqual(list(suites), ["format", "unit-release", "run_roce.py"])
        counts = [suites["unit-release"].get(name) for name in ("tests", "failures", "skipped", "time")]
        self.assertEqual(counts, ["3", "1", "1", "12"])
        self.assertEqual(suites["format"].get("time"), "0")

    def test_a_case_has_its_name_and_outcome(self):
        suites = self.written(OUTCOMES, TIMES)
        cases = {case.get("name"): [(part.tag, part.get("message")) for part in case] for suite in suites.values() for case in suite}
        self.assertEqual(cases, {
            "format": [], "Suite.One": [], "Suite.Two": [("failure", "")],
            "Suite.Three": [("skipped", "needs <root> & a device")],
            "shm: ib_send_bw, 8 bytes": [], "exit-status-1": [("failure", "")]})

    def test_no_outcome_at_all_is_an_empty_file_of_the_form(self):
        self.assertEqual(self.written("", ""), {})


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
