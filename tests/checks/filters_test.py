#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each filter of test cases that a script, CMake, a page or a mutant names matches a case of the sources. A filter that matches
nothing leaves out nothing, or runs nothing."""
import fnmatch
import functools
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
INSTANCE = re.compile(r"\b(?:INSTANTIATE_TEST_SUITE_P|INSTANTIATE_TYPED_TEST_SUITE_P)\(\s*(\w+),\s*(\w+),")


def names_in(texts):
    """The full names of the cases. The parameter of a case with parameters is `?`."""
    cases, prefixes = [], {}
    for text in texts:
        cases += CASE.findall(text)
        for prefix, suite in INSTANCE.findall(text):
            prefixes.setdefault(suite, []).append(prefix)
    for macro, suite, case in cases:
        if macro == "TEST_P":
            yield from (f"{prefix}/{suite}.{case}/?" for prefix in prefixes.get(suite, []))
        elif macro == "TYPED_TEST":
            yield f"{suite}/?.{case}"
        elif macro == "TYPED_TEST_P":
            yield from (f"{prefix}/{suite}/?.{case}" for prefix in prefixes.get(suite, []))
        else:
            yield f"{suite}.{case}"


@functools.cache
def names():
    return sorted(set(names_in(path.read_text() for path in (ROOT / "tests").rglob("*.cc"))))


def matches(pattern, name):
    """True if the pattern matches the case with some parameter."""
    if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]")):
        return True
    head, slash, parameter = pattern.rpartition("/")
    return bool(slash and parameter and "." in head) and fnmatch.fnmatchcase(name, head + "/[?]")


def dead(patterns, known):
    return [pattern for pattern in patterns if not any(matches(pattern, name) for name in known)]


def patterns_of_scripts_test():
    text = (ROOT / "scripts/test").read_text()
    for value in re.findall(r"^(?:waits|types|long|longer|lossy|spread)=(.*)$", text, re.MULTILINE):
        yield from re.sub(r"\s#.*|\"\$\w+\"|'", "", value).strip(":").split(":")
    for value in re.findall(r"\) echo '([^']+)' ;;", text) + re.findall(r"GTEST_FILTER='\*-([^']+)'", text):
        yield from value.split(":")


def patterns_of_arm64():
    text = (ROOT / "scripts/test-arm64").read_text().partition("<<'END'\n")[2].partition("\nEND\n")[0]
    return [line.partition("#")[0].strip() for line in text.splitlines() if line.strip()]


def patterns_of_ctest():
    text = (ROOT / "cmake/ctest.cmake").read_text()
    return re.search(r"set\(waits ([^)]*)\)", text)[1].split()


def patterns_of_mutants():
    for path in sorted((ROOT / "tests/mutants").glob("*.toml")):
        for value in re.findall(r'^tests = "([^"]*)"$', path.read_text(), re.MULTILINE):
            for word in value.split():
                positive = word.partition(":")[2].partition("-")[0]  # a transport may follow, which is no pattern
                yield from (pattern for pattern in positive.split(":") if "." in pattern or "*" in pattern)


def patterns_of_pages():
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for value in re.findall(r"--gtest_filter='?([\w.*:/-]+)'?", path.read_text()):
            yield from filter(None, value.lstrip("-").split(":"))


class Filters(unittest.TestCase):
    def check(self, patterns, least):
        patterns = sorted(set(patterns))
        self.assertGreaterEqual(len(patterns), least, "the filters were not found")
        self.assertEqual(dead(patterns, names()), [])

    def test_of_scripts_test(self):
        self.check(patterns_of_scripts_test(), 20)

    def test_of_arm64(self):
        self.check(patterns_of_arm64(), 50)

    def test_of_ctest(self):
        self.check(patterns_of_ctest(), 5)

    def test_of_mutants(self):
        self.check(patterns_of_mutants(), 100)

    def test_of_pages(self):
        self.check(patterns_of_pages(), 2)


class Rules(unittest.TestCase):
    KNOWN = list(names_in(["TEST(Plain, One) {\nTEST_P(Many, Two) {\nTYPED_TEST(Typed, Three) {\nTEST_P(Unused, Four) {\n"
                           "INSTANTIATE_TEST_SUITE_P(All, Many, x);\n"]))

    def test_names(self):
        self.assertEqual(self.KNOWN, ["Plain.One", "All/Many.Two/?", "Typed/?.Three"])

    def test_filter_that_matches(self):
        for pattern in ("Plain.*", "Pl*", "*Many*", "All/Many.*", "All/Many.Two/swift", "All/Many.*/0", "Typed/*", "Typed/0.*", "*"):
            with self.subTest(pattern):
                self.assertEqual(dead([pattern], self.KNOWN), [] if pattern != "Typed/0.*" else [pattern])

    def test_filter_that_matches_nothing(self):
        for pattern in ("Plain", "Many.*", "Ways/Many*", "Plain.Two", "All/Many.One/swift", "Unused*"):
            with self.subTest(pattern):
                self.assertEqual(dead([pattern], self.KNOWN), [pattern])


if __name__ == "__main__":
    unittest.main()
