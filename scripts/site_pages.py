#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of the site, their order, and a check of the result.

usage: scripts/site_pages.py collect FOLDER   copies the pages, and the files that they link to, into FOLDER; checks the navigation
       scripts/site_pages.py check FOLDER     checks the site in FOLDER

Each fault is printed, and makes the exit status 1.

The copies lie as in the repository, so that links are the same in both. mkdocs needs one folder that has all of them.
"""

import json
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/README.md"
BESIDE_DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
API = "api/files.html"
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
# The attributes of HTML whose address a browser loads without a click.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


def anchor(heading):
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page, text):
    """The files of the repository that a page links to."""
    for target in LINK.findall(FENCE.sub("", text)):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            yield os.path.normpath(os.path.join(os.path.dirname(page), path))


def pages(root=ROOT):
    return sorted(str(path.relative_to(root)) for path in (root / "docs").rglob("*.md")) + list(BESIDE_DOCS)


def files(root=ROOT):
    """The pages, and all that they link to, directly or by another page."""
    found, unread = set(), pages(root)
    while unread:
        name = unread.pop()
        if name in found or not (root / name).is_file():
            continue
        found.add(name)
        if name.endswith(".md"):
            unread += links(name, (root / name).read_text())
    return sorted(found)


def navigation(root=ROOT):
    """In the form of mkdocs. Each heading of docs/README.md is a shelf, which has the pages that are linked below it."""
    shelves = []
    for part in re.split(r"^## +", (root / INDEX).read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        titles = re.findall(r"\[([^\]]+)\]\(([^)\s#]+\.md)[^)]*\)", text)
        shelves.append({heading.partition(":")[0]: [{title: os.path.normpath(os.path.join("docs", path))} for title, path in titles]})
    return [{"NUPA": "README.md"}, {"All pages": INDEX}, *shelves, {"Public headers": API}, {"Contributing": "CONTRIBUTING.md"},
            {"Changelog": "CHANGELOG.md"}]


def in_navigation(items):
    for item in items:
        for below in item.values():
            yield from in_navigation(below) if isinstance(below, list) else [below]


def wrong_navigation(root=ROOT):
    """The pages that the navigation lacks, has twice, or that do not exist."""
    named = [page for page in in_navigation(navigation(root)) if page != API]
    faults = ["%s is not in %s" % (page, INDEX) for page in pages(root) if page not in named]
    faults += ["%s is in %s, but does not exist" % (page, INDEX) for page in named if not (root / page).is_file()]
    return faults + ["%s is more than once in %s" % (page, INDEX) for page in sorted(set(named)) if named.count(page) > 1]


class Reader(HTMLParser):
    """Collects the anchors of a file, the addresses that it links to, and those that a browser loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.linked, self.loaded = {"", "top"}, set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.anchors |= {has[name] for name in ("id", "name") if has.get(name)}
        if tag in LOADS and has.get(LOADS[tag]):
            self.loaded.add(has[LOADS[tag]])
        elif tag == "a" and has.get("href"):
            self.linked.add(has["href"])


def wrong_site(site):
    """Addresses of the network that are loaded, links to files and anchors that do not exist, pages without search."""
    site = site.resolve()
    read = {path: Reader(path.read_text()) for path in sorted(site.rglob("*.html"))}
    faults = []
    for path, reader in read.items():
        name = path.relative_to(site)
        for address in sorted(reader.loaded | reader.linked):
            url = urlsplit(address)
            if url.scheme in ("data", "javascript", "mailto"):
                continue
            if url.scheme or url.netloc:
                if address in reader.loaded:
                    faults.append("%s loads %s" % (name, address))
                continue
            # A server sends 404.html for any path, so its links begin at the root.
            to = unquote(url.path)[1:] if str(name) == "404.html" else unquote(url.path)
            there = (path.parent / to).resolve() if to else path
            if not there.is_file():
                faults.append("%s links to %s, which does not exist" % (name, address))
            elif there in read and unquote(url.fragment) not in read[there].anchors:
                faults.append("%s links to %s, which has no such anchor" % (name, address))
    for path in sorted(site.rglob("*.css")):
        for address in re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", path.read_text()):
            faults.append("%s loads %s" % (path.relative_to(site), address))
    index = site / "search" / "search_index.json"
    found = {entry["location"].partition("#")[0] for entry in json.loads(index.read_text())["docs"]} if index.exists() else set()
    for page in pages():
        html = re.sub(r"README\.html$", "index.html", page[:-len("md")] + "html")
        if html not in found:
            faults.append("%s is not in the index of the search" % html)
    return faults


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("collect", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[2])
    faults = wrong_navigation() if sys.argv[1] == "collect" else wrong_site(folder)
    if sys.argv[1] == "collect":
        for name in files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
