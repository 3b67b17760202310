#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each source file begins with its licence, before anything else but a `#!` line. Pages, data and templates need no such line."""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from listed_files import listed_files  # noqa: E402

LINE = "SPDX-License-Identifier: Apache-2.0"
C_SOURCES = (".cc", ".h", ".hpp", ".c")
SCRIPTS = (".py", ".sh", ".cmake", ".toml")


def accepted(name, text):
    """The first lines that the file may have; none if it is no source file."""
    suffix = Path(name).suffix
    if suffix in C_SOURCES:
        return "// " + LINE, "/* " + LINE + " */"
    if suffix in SCRIPTS or Path(name).name == "CMakeLists.txt" or (not suffix and text.startswith("#!")):
        return ("# " + LINE,)
    return ()


def is_wrong(name, text):
    wanted = accepted(name, text)
    return bool(wanted) and re.sub(r"\A#!.*\n", "", text).split("\n")[0] not in wanted


def sources():
    for name in listed_files(ROOT):
        if not name.startswith("tests/fuzz/corpus/") and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(errors="replace")


class Spdx(unittest.TestCase):
    def test_each_source_begins_with_its_licence(self):
        found = dict(sources())
        self.assertGreater(sum(bool(accepted(name, text)) for name, text in found.items()), 1000)
        self.assertEqual(sorted(name for name, text in found.items() if is_wrong(name, text)), [])

    def test_the_licence_is_that_of_the_repository(self):
        self.assertRegex((ROOT / "LICENSE").read_text(), r"Apache License\s+Version 2\.0")

    def test_faults_are_found(self):
        good = "// " + LINE + "\n#pragma once\n#include <a>\n"
        script = "#!/bin/sh\n# " + LINE + "\n"
        for name, text in (("a.h", good), ("a.c", "/* " + LINE + " */\n"), ("a", script), ("a.py", "# " + LINE + "\n"),
                           ("CMakeLists.txt", "# " + LINE + "\n"), ("notes", "no script"), ("a.md", "# A page\n")):
            self.assertFalse(is_wrong(name, text), name)
        for name, text in (("a.h", "#pragma once\n// " + LINE + "\n"), ("a.h", good.replace("2.0", "1.1")), ("a.cc", ""),
                           ("a.cc", "\n" + good), ("a.cc", "# " + LINE + "\n"),
                           ("a", script.replace("#!/bin/sh\n", "#!/bin/sh\n\n")), ("a.py", "// " + LINE + "\n"),
                           ("a.sh", "set -e\n# " + LINE + "\n"), ("cmake/a.cmake", ""), ("CMakeLists.txt", "project(a)\n")):
            self.assertTrue(is_wrong(name, text), name + ": " + text)


if __name__ == "__main__":
    unittest.main()
