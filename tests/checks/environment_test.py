#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/environment.md names the variables that src/ and bindings/ read or set, and no others; they are read by base/settings.h alone."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = re.compile(r'"(NUPA_[A-Z_]+[A-Z]|VERBS_LOG_LEVEL|XDG_RUNTIME_DIR)"')
READS = re.compile(r"\b(?:secure_)?getenv\((?!\))|\benviron\b")
READER = "src/base/settings.cc"


def sources():
    paths = [path for top in ("src", "bindings") for path in (ROOT / top).rglob("*")]
    return [path for path in sorted(paths) if path.suffix in (".h", ".cc")]


class Environment(unittest.TestCase):
    def test_the_page_names_the_variables_of_the_code(self):
        known = {name for path in sources() for name in NAME.findall(path.read_text())}
        rows = [line.split("|")[1] for line in (ROOT / "docs/reference/environment.md").read_text().splitlines() if line.startswith("| `")]
        shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        self.assertEqual(sorted(known - shown), [], "missing in docs/reference/environment.md")
        self.assertEqual(sorted(shown - known), [], "no longer in src/ or bindings/")

    def test_variables_are_read_in_one_place(self):
        readers = {str(path.relative_to(ROOT)) for path in sources() if READS.search(path.read_text())}
        self.assertEqual(sorted(readers), [READER], "use base/settings.h")

    def test_each_way_to_read_one_is_found(self):
        for text in ('std::getenv("HOME")', "::getenv(name)", "secure_getenv(name)", "char** entry = environ;"):
            self.assertTrue(READS.search(text), text)
        for text in ('setenv("HOME", home, 1)', "as getenv()'s does", 'base::setting("HOME")', "the environment"):
            self.assertFalse(READS.search(text), text)


if __name__ == "__main__":
    unittest.main()
