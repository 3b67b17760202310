#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/site: each page of docs/ is in the site's navigation, and the check of a built site finds its faults. mkdocs is not needed."""
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import site_pages  # noqa: E402


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()


class Pages(unittest.TestCase):
    def test_each_page_is_in_the_navigation_once(self):
        self.assertEqual(site_pages.wrong_navigation(), [])

    def test_the_site_has_each_file_that_a_page_links_to(self):
        files = site_pages.files()
        for page in files:
            if page.endswith(".md"):
                absent = set(site_pages.links(page, (ROOT / page).read_text())) - set(files)
                self.assertEqual(absent, set(), page)

    def test_the_settings_name_files_that_exist_and_no_pages(self):
        settings = (ROOT / "mkdocs.yml").read_text()
        hooks = re.findall(r"^  - (scripts/\S+)$", settings, re.M)
        self.assertEqual([hook for hook in hooks if (ROOT / hook).is_file()], ["scripts/site_hooks.py"])
        self.assertNotRegex(settings, r"(?m)^nav:|\.md$", "docs/README.md has the navigation")


class FaultsOfPages(Folder):
    INDEX = "# Index\n## Start: to begin\n- [A](start/a.md): a.\n## Design: to know\n- [B](design/b.md), [C](design/c.md#part)\n"

    def setUp(self):
        super().setUp()
        write(self.folder, {name: "" for name in site_pages.BESIDE_DOCS + ("docs/start/a.md", "docs/design/b.md", "docs/design/c.md")})
        write(self.folder, {"docs/README.md": self.INDEX})

    def test_a_heading_is_a_shelf(self):
        shelves = site_pages.navigation(self.folder)[2:4]
        self.assertEqual(shelves, [{"Start": [{"A": "docs/start/a.md"}]},
                                   {"Design": [{"B": "docs/design/b.md"}, {"C": "docs/design/c.md"}]}])
        self.assertEqual(site_pages.wrong_navigation(self.folder), [])

    def test_a_page_that_the_index_lacks_is_found(self):
        write(self.folder, {"docs/design/d.md": ""})
        self.assertEqual(site_pages.wrong_navigation(self.folder), ["docs/design/d.md is not in docs/README.md"])

    def test_a_page_that_does_not_exist_is_found(self):
        (self.folder / "docs/design/b.md").unlink()
        self.assertEqual(site_pages.wrong_navigation(self.folder), ["docs/design/b.md is in docs/README.md, but does not exist"])

    def test_a_page_on_two_shelves_is_found(self):
        write(self.folder, {"docs/README.md": self.INDEX + "- [again](start/a.md)\n"})
        self.assertEqual(site_pages.wrong_navigation(self.folder), ["docs/start/a.md is more than once in docs/README.md"])

    def test_files_that_are_linked_by_linked_pages_are_of_the_site(self):
        write(self.folder, {"docs/start/a.md": "[x](../../x/README.md) `a` ![p](p.svg#q) [y](https://y.org/z)\n```\n[n](no.c)\n```\n",
                            "x/README.md": "[code](code.c)", "x/code.c": "", "docs/start/p.svg": "", "docs/start/no.c": ""})
        self.assertEqual(site_pages.files(self.folder),
                         sorted(site_pages.pages(self.folder) + ["docs/start/p.svg", "x/README.md", "x/code.c"]))


class FaultsOfSites(Folder):
    GOOD = '<h1 id="t">T</h1><a href="a.html#t">a</a> <a href="#t">t</a> <a href="https://x.org">x</a> <script src="s.js"></script>'

    def setUp(self):
        super().setUp()
        pages = [re.sub(r"README\.md$", "index.md", page)[:-len("md")] + "html" for page in site_pages.pages()]
        write(self.folder, {"search/search_index.json": json.dumps({"docs": [{"location": page + "#part"} for page in pages]}),
                            "a.html": self.GOOD, "404.html": '<a href="/a.html">a</a>', "s.js": "",
                            "s.css": "a { background: url(s.js); }"})

    def test_a_site_without_a_fault_passes(self):
        self.assertEqual(site_pages.wrong_site(self.folder), [])

    def test_each_fault_is_found(self):
        for html, fault in (('<script src="https://x.org/s.js"></script>', "loads https://x.org/s.js"),
                            ('<link rel="stylesheet" href="//x.org/s.css">', "loads //x.org/s.css"),
                            ('<img src="http://x.org/p.png">', "loads http://x.org/p.png"),
                            ('<script src="t.js"></script>', "links to t.js, which does not exist"),
                            ('<a href="b.md">b</a>', "links to b.md, which does not exist"),
                            ('<a href="/a.html">a</a>', "links to /a.html, which does not exist"),
                            ('<a href="a.html#u">a</a>', "links to a.html#u, which has no such anchor")):
            with self.subTest(html):
                write(self.folder, {"b.html": html})
                self.assertEqual(site_pages.wrong_site(self.folder), ["b.html " + fault])

    def test_styles_that_load_something_are_found(self):
        write(self.folder, {"s.css": "@import url('https://x.org/font.css');"})
        self.assertEqual(site_pages.wrong_site(self.folder), ["s.css loads https://x.org/font.css"])

    def test_a_page_that_the_search_lacks_is_found(self):
        index = self.folder / "search/search_index.json"
        index.write_text(index.read_text().replace("docs/status.html", "docs/else.html"))
        self.assertEqual(site_pages.wrong_site(self.folder), ["docs/status.html is not in the index of the search"])


if __name__ == "__main__":
    unittest.main()
