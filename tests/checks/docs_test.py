#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the pages point to exists: links, their anchors, paths of the repository, pages by name, environment variables."""
import os
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from listed_files import listed_files  # noqa: E402
from site_pages import FENCE, LINK, anchor  # noqa: E402

NAMED_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)")
CODE = re.compile(r"`([^`\n]+)`")
TOP = ("src/", "tests/", "vms/", "scripts/", "bench/", "include/", "docs/", "examples/", "cmake/", "bindings/", "packaging/")
PATH = re.compile(r"^(?:%s)[\w./{},*-]*$" % "|".join(TOP))
PAGE = re.compile(r"(?<![\w/.-])([\w/-]+\.md)\b")
VARIABLE = re.compile(r"\bNUPA_[A-Z][A-Z_]*[A-Z]\b")
FIGURE = re.compile(r"\b\d[\d.,]* (?:[num]?s|[KMG]bit/s|[KMG]B/s|x)(?!\w)")
HISTORY = {"CHANGELOG.md"}


def pages():
    return [name for name in listed_files(ROOT, "*.md") if (ROOT / name).exists()]


def anchors(text):
    return {anchor(heading) for heading in re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.M)}


def wrong_links(page, text, root=ROOT):
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (root / page).parent / path if path else root / page
        if not there.exists():
            yield target
        elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
            yield target


def expand(path):
    """The paths that `a/{b,c}.h` stands for."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [each for part in found[1].split(",") for each in expand(path[:found.start()] + part + path[found.end():])]


def wrong_paths(text, root=ROOT):
    for code in CODE.findall(FENCE.sub("", text)):
        path = code.split(" ")[0].split(":")[0].rstrip("/")
        if PATH.match(path):
            for each in expand(path):
                # A program is named as its source is, or as its folder.
                if not list(root.glob(each)) and not (root / (each + ".cc")).exists():
                    yield each


def wrong_names_of_pages(page, text, root=ROOT):
    """A page that is named without a link: by its path in the repository, or from the page's own folder."""
    for name in PAGE.findall(NAMED_LINK.sub("", FENCE.sub("", text))):
        if not (root / name).exists() and not ((root / page).parent / name).exists():
            yield name


def wrong_figures(text, root=ROOT):
    """A measured figure of README's section that is not on a page which the section links to."""
    section = re.search(r"^## Performance$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
    linked = "\n".join((root / target.partition("#")[0]).read_text() for target in LINK.findall(section))
    for figure in FIGURE.findall(section):
        if not re.search(r"(?<![\d.])" + re.escape(figure) + r"(?!\w)", linked):
            yield figure


def other_versions(text, version):
    """What a text names as NUPA's version, by find_package() or as `nupa devices` prints it, and is not `version`."""
    minor = version.rpartition(".")[0]
    yield from (found for found in re.findall(r"find_package\(nupa ([\d.]+)", text) if found != minor)
    yield from (found for found in re.findall(r"^ +version +(\d+\.\d+\.\d+)$", text, re.M) if found != version)


def variables(root=ROOT):
    return set(VARIABLE.findall((root / "docs/reference/environment.md").read_text()))


class Docs(unittest.TestCase):
    def check(self, find, leave=frozenset()):
        wrong = {}
        for page in pages():
            if page not in leave:
                found = sorted(set(find(page, (ROOT / page).read_text())))
                if found:
                    wrong[page] = found
        self.assertEqual(wrong, {})

    def test_links(self):
        self.check(wrong_links)

    def test_paths(self):
        self.check(lambda page, text: wrong_paths(text), HISTORY)

    def test_versions(self):
        version = re.search(r"^project\(nupa VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        self.check(lambda page, text: other_versions(text, version), HISTORY)
        self.assertEqual(list(other_versions((ROOT / "tests/e2e/run_install.py").read_text(), version)), [])
        headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
        self.assertEqual(headings[:2], ["Unreleased", version])

    def test_another_version_is_found(self):
        text = "    find_package(nupa 0.1 REQUIRED)\n    find_package(nupa 0.2)\n      version       0.1.0\n  version  0.2.0\n"
        self.assertEqual(list(other_versions(text, "0.2.0")), ["0.1", "0.1.0"])

    def test_figures_of_the_readme(self):
        text = (ROOT / "README.md").read_text()
        self.assertEqual(list(wrong_figures(text)), [])

    def test_names_of_pages(self):
        self.check(wrong_names_of_pages, HISTORY)

    def test_variables(self):
        # Build options and tests' own variables have the prefix, too.
        others = set()
        for folder in ("tests", "scripts", "cmake", "bench", "vms"):
            for path in (ROOT / folder).rglob("*"):
                if path.suffix in ("", ".py", ".cc", ".h", ".txt", ".sh", ".cmake") and "corpus" not in path.parts and path.is_file():
                    others |= set(VARIABLE.findall(path.read_text(errors="replace")))
        others |= set(VARIABLE.findall((ROOT / "CMakeLists.txt").read_text()))
        known = variables() | others
        self.check(lambda page, text: (name for name in VARIABLE.findall(text) if name not in known), HISTORY)

    def test_each_index_names_its_pages(self):
        index = (ROOT / "docs/README.md").read_text()
        linked = {os.path.normpath(os.path.join("docs", target.partition("#")[0])) for target in LINK.findall(index)}
        shelves = {page for page in pages() if page.startswith("docs/") and page != "docs/README.md"}
        self.assertEqual(sorted(shelves - linked), [])

    def test_faults_are_found(self):
        readme = "## Performance\n0.00001 ns ([verbs](docs/performance/verbs.md))\n## Other\n5 ns"
        self.assertEqual(list(wrong_figures(readme)), ["0.00001 ns"])
        self.assertEqual(list(wrong_links("README.md", "[a](absent.md) [b](docs/README.md#absent) [c](https://x.org)")),
                         ["absent.md", "docs/README.md#absent"])
        self.assertEqual(list(wrong_paths("`src/absent.cc:12` `src/base/{gid,absent}.h` `src/*/progress.h` `absent`")),
                         ["src/absent.cc", "src/base/absent.h"])
        self.assertEqual(list(wrong_names_of_pages("docs/design/a.md", "absent.md, shm.md, docs/design/shm.md")), ["absent.md"])


if __name__ == "__main__":
    unittest.main()
