#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/listed_files.py lists the repository's files, and names the remedy where git refuses."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from listed_files import NotListed, listed_files  # noqa: E402

DUBIOUS = """fatal: detected dubious ownership in repository at '/src/nupa'
To add an exception for this directory, call:

\tgit config --global --add safe.directory /src/nupa
"""


class ListedFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def path_with_git(self, words):
        """An environment whose git prints the words and fails, as git does; without words it has no git."""
        if words:
            git = self.folder / "git"
            (self.folder / "words").write_text(words)
            git.write_text("#!/bin/sh\n/bin/cat %s/words >&2\nexit 128\n" % self.folder)
            git.chmod(0o755)
        return mock.patch.dict(os.environ, PATH=str(self.folder))

    def test_tracked_and_new_files_by_pattern(self):
        self.assertIn("README.md", listed_files(ROOT))
        pages = listed_files(ROOT, "*.md")
        self.assertIn("docs/status.md", pages)
        self.assertTrue(all(name.endswith(".md") for name in pages))

    def test_a_checkout_of_another_user_names_the_command_that_helps(self):
        with self.path_with_git(DUBIOUS), self.assertRaisesRegex(
                NotListed, "^%s belongs to another user, .*: run git config --global --add safe.directory %s$" % (self.folder, self.folder)):
            listed_files(self.folder)

    def test_other_failures_have_the_words_of_git(self):
        with self.path_with_git("fatal: not a git repository\nmore\n"), self.assertRaisesRegex(NotListed, ": fatal: not a git repository$"):
            listed_files(self.folder)

    def test_no_git(self):
        with self.path_with_git(""), self.assertRaisesRegex(NotListed, "git is not installed"):
            listed_files(self.folder)

    def test_check_words_prints_the_reason(self):
        with self.path_with_git(DUBIOUS):
            done = subprocess.run([sys.executable, str(ROOT / "scripts" / "check-words")], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, r"^scripts/check-words: .* safe\.directory \S+\n$")


if __name__ == "__main__":
    unittest.main()
