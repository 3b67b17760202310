#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-waits finds waits, threads and handlers in a source, and passes over what only looks like them."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    loader = importlib.machinery.SourceFileLoader("check_waits", str(ROOT / "scripts" / "check-waits"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_waits", loader))
    loader.exec_module(module)
    return module


check = load()


def names(text):
    return [name for _, name in check.uses("src/x.cc", text)]


class Waits(unittest.TestCase):
    def test_each_function_is_found(self):
        for name, count in check.FUNCTIONS.items():
            call = "void f() { %s(%s); }" % (name, ", ".join(["0"] * count))
            self.assertEqual(names(call), [name])
            self.assertEqual(names(call.replace(name, "::" + name)), [name])

    def test_each_name_is_found(self):
        for name in check.NAMES - {"this_thread"}:
            self.assertEqual(names("int a = %s;" % name), [name])
        self.assertEqual(names("std::this_thread::sleep_for(x);"), ["this_thread"])
        self.assertEqual(names("std::this_thread::get_id();"), [])

    def test_threads_are_found_and_their_count_is_not(self):
        self.assertEqual(names("std::thread t;"), ["std::thread"])
        self.assertEqual(names("std::thread::hardware_concurrency();"), [])

    def test_words_of_the_standard_library_that_wait_are_found(self):
        self.assertEqual(names("auto f = std::async(g);"), ["std::async"])
        self.assertEqual(names("std::counting_semaphore<> s(0);"), ["std::counting_semaphore"])

    def test_methods_comments_and_texts_are_passed_over(self):
        for text in ("path->poll(a, b, c);", "set.poll(a, b, c);", "// poll(a, b, c)", '"poll(a, b, c)"', "int poll(int a, int b, int c);",
                     "poll(a);", '#include "poll.h"'):
            self.assertEqual(names(text), [], text)

    def test_reads_that_may_block_are_found(self):
        self.assertEqual(names("x = read(fd, b, n);"), ["read"])
        self.assertEqual(names("x = recv(fd, b, n, MSG_DONTWAIT);"), [])
        self.assertEqual(names("int e = open(SOCK_NONBLOCK); x = read(fd, b, n);"), [])
        self.assertEqual(names("waitpid(p, &s, WNOHANG);"), [])
        self.assertEqual(names("waitpid(p, &s, 0);"), ["waitpid"])


if __name__ == "__main__":
    unittest.main()
