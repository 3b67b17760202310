#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The probes of the sources, of docs/guides/tracing.md and of the scripts in examples/tracing are the same, and the libraries have them.

usage: tests/checks/probes_test.py [BUILD]      BUILD: also reads the libraries in this folder of a build
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
GUIDE = ROOT / "docs/guides/tracing.md"
LIBRARIES = {"libnupa.so.0": "lib/libnupa.so.0", "librdmacm.so.1": "lib/nupa/librdmacm.so.1"}


def of_sources():
    """{probe: numbers of arguments}"""
    found = {}
    for path in (ROOT / "src").rglob("*.cc"):
        for name, rest in re.findall(r"NUPA_PROBE\((\w+), (.*?)\);", path.read_text(), re.DOTALL):
            nested, arguments = 0, 1
            for letter in rest.replace("->", "."):
                nested += (letter in "(<") - (letter in ")>")
                arguments += letter == "," and nested == 0
            found.setdefault(name, set()).add(arguments)
    return found


def of_guide():
    """{probe: (library, number of arguments)}"""
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", GUIDE.read_text(), re.MULTILINE)
    return {name: (library, arguments.count(",") + 1) for name, library, arguments in rows}


def of_library(path):
    """{probe: number of arguments} of the provider nupa."""
    notes = subprocess.run(["readelf", "--notes", "--wide", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Provider: nupa\n\s*Name: (\w+)\n.*\n\s*Arguments: (.*)\n", notes)
    return {name: len(arguments.split()) for name, arguments in found}


class Probes(unittest.TestCase):
    def test_the_guide_has_those_of_the_sources(self):
        self.assertEqual({name: {number} for name, (_, number) in of_guide().items()}, of_sources())

    def test_scripts_use_probes_and_arguments_that_exist(self):
        guide = of_guide()
        scripts = list((ROOT / "examples/tracing").glob("*.bt"))
        self.assertTrue(scripts)
        for script in scripts:
            text = script.read_text()
            places = re.split(r"usdt:\$1:nupa:", text)
            libraries = set()
            for place in places[1:]:
                name = re.match(r"\w+", place)[0]
                self.assertIn(name, guide, script)
                libraries.add(guide[name][0])
                used = [int(number) for number in re.findall(r"\barg(\d)", place)]
                self.assertLess(max(used), guide[name][1], (script, name))
            self.assertEqual(len(libraries), 1, script)
            self.assertIn(libraries.pop(), text, script)

    @unittest.skipUnless(BUILD, "no build")
    def test_the_libraries_have_them(self):
        wanted, found = {}, {}
        for name, (library, number) in of_guide().items():
            wanted.setdefault(library, {})[name] = number
        for library in wanted:
            found[library] = of_library(BUILD / LIBRARIES[library])
        self.assertEqual(found, wanted)


if __name__ == "__main__":
    unittest.main()
