#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/check-words finds what docs/development/style.md forbids, in pages and in comments, and nothing in code."""
import importlib.machinery
import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
LOADER = importlib.machinery.SourceFileLoader("check_words", str(ROOT / "scripts" / "check-words"))
SPEC = importlib.util.spec_from_loader("check_words", LOADER)
check_words = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(check_words)


def found(path, text):
    return [(each.line, each.text) for each in check_words.findings(path, text)]


class Words(unittest.TestCase):
    def test_tree(self):
        done = subprocess.run([ROOT / "scripts" / "check-words"], capture_output=True, text=True)
        self.assertEqual(done.stdout + done.stderr, "")
        self.assertEqual(done.returncode, 0)

    def test_page_sentence_that_begins_with_a_relative_pronoun(self):
        self.assertEqual(found("a.md", "Good.\nWho waits is woken. What it\nreads counts.\n"), [(2, "Who ..."), (2, "What ...")])
        self.assertEqual(found("a.md", "# What is it?\n\nWhat is it?\n"), [])

    def test_page_phrases(self):
        self.assertEqual(found("a.md", "- It looks in vain.\n- The peer has\n  gone.\n\n| a | the other end |\n"),
                         [(1, "in vain"), (2, "has gone"), (5, "the other end")])

    def test_page_code_is_not_read(self):
        self.assertEqual(found("a.md", "```\nWho told?\n```\nThe field `told` counts.\n\n    Who told.\n"), [])

    def test_page_long_sentence(self):
        self.assertEqual(found("a.md", "It is " + "so " * 39 + "long.\n"), [(1, "42 words")])
        self.assertEqual(found("a.md", "It is " + "so " * 37 + "long.\n"), [])

    def test_comment_of_several_lines_is_one(self):
        self.assertEqual(found("a.cc", "int a;\n/// The thread that\n/// is told. Of it.\nint told;  // anew\n"),
                         [(2, "told"), (3, "Of ..."), (4, "anew")])

    def test_comment_behind_code_goes_on_in_the_next_line(self):
        self.assertEqual(found("a.h", "int a;  ///< counts what\n        ///< Who waits\n"), [])
        self.assertEqual(found("a.h", "int a;  ///< counts.\nint b;  ///< Who waits\n"), [(2, "Who ...")])

    def test_block_comment(self):
        self.assertEqual(found("a.h", "/* A rank\n * that is told. */\n"), [(1, "told")])

    def test_code_and_strings_are_not_read(self):
        self.assertEqual(found("a.cc", 'auto told = "Who // is told";\nurl = "http://in vain";\n'), [])

    def test_messages(self):
        text = '#include "no such file"\nfail(1, "no room for {} peers");  // "not this"\nname = "nupa-roce";\n'
        self.assertEqual(list(check_words.messages(text)), [(2, "no room for {} peers")])


if __name__ == "__main__":
    unittest.main()
