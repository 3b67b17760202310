#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md names the variables that src/ and bindings/ read or set, and no others; they are read by base/settings.h alone."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r'"(NUPA_[A-Z_]+[A-Z]|VERBS_LOG_LEVEL|XDG_RUNTIME_DIR)"')
# What may call getenv(): the reader, the names of other launchers, rdma-core's variable, what the nupa program shows or passes on,
# and files that are yet to change.
GETENV = {"settings.cc", "private.cc", "run.cc", "doctor.cc", "net.cc", "report.cc", "launcher.cc", "trace.cc", "group.cc"}


def sources():
    paths = [path for top in ("src", "bindings") for path in (ROOT / top).rglob("*")]
    return [path for path in sorted(paths) if path.suffix in (".h", ".cc")]


class Environment(unittest.TestCase):
    def test_the_page_names_the_variables_of_the_code(self):
        known = {name for path in sources() for name in NAME.findall(path.read_text())}
        rows = [line.split("|")[1] for line in (ROOT / "docs/environment.md").read_text().splitlines() if line.startswith("| `")]
        shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(sorted(known - shown), [], "missing in docs/environment.md")
        self.assertEqual(sorted(shown - known), [], "no longer in src/ or bindings/")

    def test_variables_are_read_in_one_place(self):
        callers = {path.name for path in sources() if re.search(r"\bgetenv\([^)]", path.read_text())}
        self.assertEqual(sorted(callers - GETENV), [], "use base/settings.h")
        self.assertEqual(sorted(GETENV - callers), [], "needs no exception any more: take it out of GETENV")


if __name__ == "__main__":
    unittest.main()
