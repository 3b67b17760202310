#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/reference/environment.md is made from src/base/settings_table.h, which has the variables that src/ and bindings/ read or set,
and no others. They are read by base/settings.h alone, and one without an entry does not compile."""

import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts" / "manual_parts"))
import environment  # noqa: E402

NAME = re.compile(r'"(NUPA_[A-Z_]+[A-Z]|VERBS_LOG_LEVEL|XDG_RUNTIME_DIR)"')
READS = re.compile(r"\b(?:secure_)?getenv\((?!\))|(?<![/\w])environ\b")
ENTRY = re.compile(r"\bSetting\{\.|\bconstexpr Setting \w+\{")
READER = "src/base/settings.cc"
ALONE = "src/verbs/preload/preload.cc"  # a library of libc alone, which reads its one variable before main()
TABLE = "src/base/settings_table.h"
PAGE = "docs/reference/environment.md"


def sources():
    paths = [path for top in ("src", "bindings") for path in (ROOT / top).rglob("*")]
    return [path for path in sorted(paths) if path.suffix in (".h", ".cc")]


def variables():
    return environment.read_table((ROOT / TABLE).read_text())


def errors_of(expressions):
    """Compiles a function with each expression. Returns the exit status and the compiler's errors for each expression."""
    lines = ["auto read_%d() { return nupa::base::%s; }" % item for item in enumerate(expressions)]
    program = '#include "base/settings.h"\n' + "\n".join(lines) + "\n"
    done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-I", "src", "-I", "include", "-x", "c++", "-"], input=program,
                          capture_output=True, text=True, cwd=ROOT, env={**os.environ, "LC_ALL": "C"})
    _, *found = re.split(r"In function 'auto read_(\d+)\(\)'", done.stderr)
    errors = dict(zip(map(int, found[::2]), found[1::2]))
    return done.returncode, [errors.get(number, "") for number in range(len(lines))]


class Environment(unittest.TestCase):
    def test_the_table_names_the_variables_of_the_code(self):
        known = {name for path in sources() if str(path.relative_to(ROOT)) != TABLE for name in NAME.findall(path.read_text())}
        listed = {each["name"] for each in variables()}
        self.assertEqual(sorted(known - listed), [], "missing in " + TABLE)
        self.assertEqual(sorted(listed - known), [], "no longer in src/ or bindings/")

    def test_the_page_is_made_from_the_table(self):
        page = (ROOT / PAGE).read_text()
        self.assertEqual(environment.page(page, variables()), page, "run scripts/environment-page")
        done = subprocess.run([ROOT / "scripts" / "environment-page", "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_page_that_differs_is_found(self):
        page = (ROOT / PAGE).read_text()
        fewer = [each for each in variables() if each["name"] != "NUPA_LOG"]
        self.assertNotIn("`NUPA_LOG` |", environment.page(page, fewer))
        changed = [{**each, "usual": "17"} if each["name"] == "NUPA_CCL_TIMEOUT" else each for each in variables()]
        self.assertIn("| 17 |", environment.page(page, changed))
        no_sockets = [each for each in variables() if each["group"] != "Sockets"]
        self.assertRaises(ValueError, environment.page, page, no_sockets)
        self.assertRaises(ValueError, environment.page, page, variables() + [{**variables()[0], "group": "Other"}])

    def test_the_table_is_read_as_it_is(self):
        header = """inline constexpr Setting kSettings[] = {
    {.name = "NUPA_A",
     .kind = Kind::kReadFile,
     .group = "One",
     .form = "a \\"file\\" "
             "of lines"},
    {.name = "NUPA_B", .kind = Kind::kNumber, .least = 1, .most = 20, .unit = "seconds"},
};
"""
        first, second = environment.read_table(header)
        self.assertEqual((first["name"], first["kind"], first["form"], first["usual"]), ("NUPA_A", "read_file", 'a "file" of lines', ""))
        self.assertEqual(environment.accepted(second), "number of seconds from 1 to 20")
        self.assertRaises(ValueError, environment.read_table, header.replace(".unit", ".units"))
        self.assertRaises(ValueError, environment.read_table, header.replace("20", "(1 << 4)"))

    def test_variables_are_read_in_one_place(self):
        readers = {str(path.relative_to(ROOT)) for path in sources() if READS.search(path.read_text())}
        self.assertEqual(sorted(readers - {ALONE}), [READER], "use base/settings.h")
        entries = {str(path.relative_to(ROOT)) for path in sources() if ENTRY.search(path.read_text())}
        self.assertEqual(sorted(entries), [], "an entry outside " + TABLE)

    def test_each_way_to_read_one_is_found(self):
        for text in ('std::getenv("HOME")', "::getenv(name)", "secure_getenv(name)", "char** entry = environ;"):
            self.assertTrue(READS.search(text), text)
        for text in ('setenv("HOME", home, 1)', "as getenv()'s does", '"/proc/self/environ"', 'base::setting("HOME")', "the environment"):
            self.assertFalse(READS.search(text), text)
        for text in ('base::Setting{.name = "NUPA_A"}', 'constexpr Setting kOne{.name = "NUPA_A"}'):
            self.assertTrue(ENTRY.search(text), text)

    @unittest.skipUnless(shutil.which("g++"), "needs g++")
    def test_a_variable_without_an_entry_does_not_compile(self):
        good = ('number_setting("NUPA_CCL_TIMEOUT")', 'text_setting("NUPA_CCL_TIMEOUT")', 'setting("HOME")')
        self.assertEqual(errors_of(good), (0, [""] * len(good)))
        no_entry, other_kind = "variable_is_not_in_settings_table", "variable_has_another_kind_in_settings_table"
        wrong = (('number_setting("NUPA_CCL_TIMEOUTS")', no_entry), ('text_setting("NUPA_NONE")', no_entry), ('setting("VERBS_NONE")', no_entry),
                 ('number_setting("NUPA_RANK")', other_kind), ('boolean_setting("NUPA_CCL_TIMEOUT")', other_kind))
        status, errors = errors_of([expression for expression, _ in wrong])
        self.assertNotEqual(status, 0)
        for (expression, why), text in zip(wrong, errors):
            with self.subTest(expression):
                self.assertRegex(text, "error: .*" + why)


if __name__ == "__main__":
    unittest.main()
