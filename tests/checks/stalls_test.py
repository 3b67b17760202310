#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/interop/rxe runs a case once more only if its programs got no processor for too long: tests/interop/rxe_stalls.py."""
import os
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "interop"))
from rxe_stalls import PAUSE, Stalls, waits_of  # noqa: E402


class StallsOfPrograms(unittest.TestCase):
    def setUp(self):
        self.stalls = Stalls(lambda: [os.getpid()])

    def note(self, now, **waits):
        return self.stalls.note(waits, now)

    def test_a_stall_is_what_a_thread_waited_between_two_samples(self):
        self.note(10, a=5, b=1)
        self.assertAlmostEqual(self.note(10 + PAUSE, a=5.25, b=1.125), 0.25)
        self.assertAlmostEqual(self.note(10 + 2 * PAUSE, a=5.25, b=1.125), 0)
        self.assertAlmostEqual(self.stalls.longest(), 0.25)

    def test_a_thread_that_is_new_or_has_ended_makes_no_stall(self):
        self.note(10, a=5)
        self.assertAlmostEqual(self.note(10 + PAUSE, b=3), 0)

    def test_a_late_sample_is_a_stall(self):
        self.note(10)
        self.assertAlmostEqual(self.note(10.5), 0.5 - PAUSE)

    def test_begin_forgets_earlier_stalls(self):
        self.note(10)
        self.note(11)
        self.stalls.begin()
        self.note(11 + PAUSE)
        self.assertAlmostEqual(self.stalls.longest(), 0)

    def test_the_kernel_reports_each_thread(self):
        self.assertIn((os.getpid(), str(os.getpid())), waits_of(os.getpid()))
        self.assertEqual(waits_of(2**22 + 1), {}, "no such process")

    def test_the_thread_samples_until_it_is_ended(self):
        with self.stalls:
            self.assertTrue(self.stalls.wait_calm(limit=3600, calm=3 * PAUSE))
        self.assertIsNotNone(self.stalls._last)
        self.assertFalse(self.stalls.wait_calm(limit=3600), "no samples come any more")


if __name__ == "__main__":
    unittest.main()
