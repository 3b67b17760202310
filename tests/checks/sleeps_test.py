#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each sleep in a test names its reason: a test that waits for a condition looks at the condition.

A comment `sleep: REASON` stands on the line of the sleep or on the line before it. No reason is needed where the line itself
shows the condition (`while (!stop) usleep(100);`, `until [ -e file ]; do sleep 0.1; done`), nor for a program that sleeps until a
test ends it (`exec sleep 60`, `sleep 60 &`)."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
REASON = re.compile(r"(?://|#).*\bsleep: \S")
# Calls of functions, not of methods, with an argument; a declaration has a type before the name.
CALL = re.compile(r"(?<![\w.>])(?<!void )(?:usleep|sleep|nanosleep|clock_nanosleep|sleep_for|this_thread::sleep_until)\s*\((?!\s*\))"
                  r"|(?<![\w.>])poll\((?:nullptr|NULL), 0,")
PYTHON_CALL = re.compile(r"(?<![\w.])time\.sleep\(")
COMMAND = re.compile(r"(?<![\w^/.-])(?:u?sleep) (?:[\d.]+|%[sd]|\$\w+)")
SHOWN_CALL = re.compile(r"^\s*while \((?!true\)|1\)).*\) (?:\w+::)*(?:usleep|sleep_for)\(")
SHOWN_COMMAND = re.compile(r"(?:\bdo u?sleep [\d.]+; done)|(?:\bexec sleep [\d.]+)|(?:(?<!\w)sleep [\d.]+ &)")
SOURCES, SCRIPTS = (".cc", ".h"), (".py", ".sh")
# Threads and times of the model checker are simulated. This file has sleeps without a reason as examples.
ELSEWHERE = ("tests/model/", "tests/checks/sleeps_test.py")


def kind_of(path):
    """The suffix that a file would have; empty: it is no program."""
    if path.suffix in SOURCES + SCRIPTS:
        return path.suffix
    with path.open("rb") as file:
        first = file.readline(100)
    return "" if path.suffix or not first.startswith(b"#!") else ".py" if b"python" in first else ".sh"


def sleeps(line, kind):
    if not ("sleep" in line or "poll(" in line) or line.lstrip().startswith(("//", "#")):
        return False
    call = CALL if kind in SOURCES else PYTHON_CALL if kind == ".py" else None
    if call is not None and call.search(line) and not SHOWN_CALL.search(line):
        return True
    return COMMAND.search(SHOWN_COMMAND.sub("", line)) is not None


def unexplained(text, kind):
    """The numbers of lines that sleep and name no reason."""
    lines = text.splitlines()
    return [number for number, line in enumerate(lines, 1)
            if sleeps(line, kind) and not any(map(REASON.search, lines[max(number - 2, 0):number]))]


class Finder(unittest.TestCase):
    def test_calls_are_found(self):
        for line in ("  usleep(1000);", "if (late) sleep(6);", "std::this_thread::sleep_for(pause_);", "progress::sleep_for(5 * kNsPerMs);",
                     "std::this_thread::sleep_until(end);", "nanosleep(&time, nullptr);", "::poll(nullptr, 0, 1);",
                     "for (int i = 0; i < 20; ++i) usleep(5);", "while (true) usleep(5);"):
            self.assertEqual(unexplained(line, ".cc"), [1], line)
        self.assertEqual(unexplained("    time.sleep(0.5)", ".py"), [1])

    def test_commands_are_found(self):
        for line in ("Program program(\"sleep 0.2; echo clean\");", "\"sleep \" + x; \"usleep 100\"", "'trap \"sleep 1\" TERM'"):
            self.assertEqual(unexplained(line, ".cc"), [1], line)
        for line in ("script = 'ping; sleep %s; done' % pause", "run('sh', '-c', 'sleep 5; exec true')"):
            self.assertEqual(unexplained(line, ".py"), [1], line)
        self.assertEqual(unexplained("sleep $pause", ".sh"), [1])

    def test_a_reason_counts_on_the_line_and_on_the_line_before(self):
        self.assertEqual(unexplained("usleep(5);  // sleep: a rank that is late", ".cc"), [])
        self.assertEqual(unexplained("// sleep: a rank that is late\nusleep(5);", ".cc"), [])
        self.assertEqual(unexplained("time.sleep(5)  # sleep: the server is stopped for so long", ".py"), [])
        self.assertEqual(unexplained("// sleep: a rank that is late\n\nusleep(5);", ".cc"), [3])
        self.assertEqual(unexplained("usleep(5);  // a rank that is late", ".cc"), [1])
        self.assertEqual(unexplained("usleep(5);  // sleep: ", ".cc"), [1])

    def test_conditions_on_the_line_and_programs_that_stay_need_none(self):
        for line in ("while (!stop) usleep(100);", "while (Alarms::count == 0) std::this_thread::sleep_for(x);",
                     "job(1, \"while [ ! -e x ]; do sleep 0.01; done\")", "\"echo ready; exec sleep 100\"", "\"sleep 100 & echo $!\""):
            self.assertEqual(unexplained(line, ".cc"), [], line)

    def test_what_only_looks_like_a_sleep_is_passed_over(self):
        for line in ("port->sleep(kNsPerMs);", "sleep.run(x);", "void sleep(int64_t ns) override {", "EXPECT_EQ(sleep(), 5);",
                     "// A sleep 5 ms long", "sleep_until(word, round);", "is_asleep(thread);"):
            self.assertEqual(unexplained(line, ".cc"), [], line)


class Tests(unittest.TestCase):
    def test_each_sleep_names_its_reason(self):
        left, seen = [], 0
        for path in sorted((ROOT / "tests").rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if not path.is_file() or name.startswith(ELSEWHERE) or not (kind := kind_of(path)):
                continue
            seen += 1
            left += ["%s:%d" % (name, number) for number in unexplained(path.read_text(encoding="utf-8"), kind)]
        self.assertGreater(seen, 200)
        self.assertFalse(left, "no `sleep: REASON` beside it (docs/development/testing.md):\n" + "\n".join(left))


if __name__ == "__main__":
    unittest.main()
