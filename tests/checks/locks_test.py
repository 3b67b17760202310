#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each lock of the sources has a line in docs/design/threads-and-locks.md."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design" / "threads-and-locks.md"
LOCK = re.compile(r"^( *)(?:static |mutable |inline |constinit |auto\* const |const )*"
                  r"(?:std::(?:shared_|recursive_)?mutex|progress::ForkMutex|ForkMutex|progress::SpinLock|SpinLock|std::once_flag) "
                  r"(\w+)(?:;|\{| =|\[)")
SCOPE = re.compile(r"^( *)(?:template <[^>]*> )?(?:class|struct)(?: \[\[\w+\]\]| NUPA_EXPORT| alignas\(\w+\))* ([\w:]+)[^;]*\{?$")


def locks_of(text):
    """(scope, name) of each lock that is declared; scope: the class around it, or ''."""
    scopes = []
    for line in text.splitlines():
        scope = SCOPE.match(line)
        lock = LOCK.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if line.strip():
            scopes = [each for each in scopes if each[0] < indent]
        if lock:
            yield (scopes[-1][1] if scopes else "", lock.group(2))
        elif scope:
            scopes.append((indent, scope.group(2).split("::")[-1]))


def is_named(page, path, scope, name):
    """A lock of a class by both names, another one with its file behind it."""
    if scope:
        return re.search(r"\b%s::%s\b" % (scope, name), page) is not None
    return "`%s` (`%s`" % (name, path.removeprefix("src/")) in page


class Locks(unittest.TestCase):
    def test_each_lock_has_a_line(self):
        page = PAGE.read_text()
        missing, found = [], 0
        for top in ("src", "bindings"):
            for path in sorted((ROOT / top).rglob("*")):
                if path.suffix not in (".h", ".cc"):
                    continue
                relative = path.relative_to(ROOT).as_posix()
                for scope, name in locks_of(path.read_text()):
                    found += 1
                    if not is_named(page, relative, scope, name):
                        missing.append("%s: %s%s" % (relative, scope + "::" if scope else "", name))
        self.assertGreater(found, 60)
        self.assertEqual("\n".join(missing), "")

    def test_locks_are_found_with_their_class(self):
        text = ("class A {\n public:\n  struct B {\n    std::mutex mutex;\n  };\n  mutable std::mutex mutex_;\n  std::mutex& others_;\n};\n"
                "std::mutex g_mutex;\n")
        self.assertEqual(list(locks_of(text)), [("B", "mutex"), ("A", "mutex_"), ("", "g_mutex")])
        self.assertEqual(list(locks_of("std::lock_guard lock(mutex_);\nvoid f(std::mutex& m);\n")), [])

    def test_a_lock_needs_its_class(self):
        self.assertTrue(is_named("`A::mutex_`", "src/a.h", "A", "mutex_"))
        self.assertFalse(is_named("`B::mutex_`", "src/a.h", "A", "mutex_"))
        self.assertTrue(is_named("`g_mutex` (`a/b.cc`)", "src/a/b.cc", "", "g_mutex"))
        self.assertFalse(is_named("`g_mutex` (`a/b.cc`)", "src/a/c.cc", "", "g_mutex"))


if __name__ == "__main__":
    unittest.main()
