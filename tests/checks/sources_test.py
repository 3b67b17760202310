#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each source of the tests belongs to a program: a file that no pattern of CMake finds would be passed over in silence.

usage: tests/checks/sources_test.py [BUILD]"""
import json
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = None
# Compiled by the scripts that use them.
ELSEWHERE = ("tests/e2e/", "tests/interop/", "tests/mutants/tool/", "tests/fuzz/fuzzer.cc")


def compiled(build):
    """The sources that the build compiles, those of unity files too."""
    found = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        found.add(source)
        if "Unity" in source.parts:
            found.update(pathlib.Path(name).resolve() for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.M))
    return {path.relative_to(ROOT).as_posix() for path in found if path.is_relative_to(ROOT)}


@unittest.skipUnless(BUILD is not None or len(sys.argv) > 1, "needs a build")
class Sources(unittest.TestCase):
    def test_each_source_of_the_tests_is_compiled(self):
        sources = compiled(BUILD)
        ours = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.cc")]
        self.assertGreater(len(ours), 200)
        left = [path for path in sorted(ours) if path not in sources and not path.startswith(ELSEWHERE)]
        self.assertEqual(left, [])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
