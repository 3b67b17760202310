# SPDX-License-Identifier: Apache-2.0
"""Called by mkdocs: takes the navigation from docs/README.md, and reads pages as GitHub does.

Python-Markdown, which mkdocs uses, needs an empty line in front of a list and four spaces in front of an inner one. GitHub does
not, so the pages do not have them. markdown-it reads pages by the rules of CommonMark, which GitHub follows.
"""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

from markdown.extensions import Extension
from markdown.util import Registry
from markdown_it import MarkdownIt

sys.path.insert(0, str(Path(__file__).resolve().parent))
import site_pages  # noqa: E402


def without_comments(renderer, tokens, index, options, env):
    """XML forbids "--" in a comment, and comments of pages have options of programs."""
    return re.sub(r"<!--.*?-->", "", tokens[index].content, flags=re.S)


class Parser:
    """Replaces the parser of Python-Markdown. What mkdocs adds to it, tables of contents and links, works on the tree as before."""

    def __init__(self):
        self.reader = MarkdownIt("commonmark", {"xhtmlOut": True}).enable("table")
        self.reader.add_render_rule("html_block", without_comments)

    def parseDocument(self, lines):  # noqa: N802
        html = self.reader.render("\n".join(lines))
        tree = ElementTree.fromstring("<div>%s</div>" % html)
        for table in tree.iter("table"):
            table.set("class", "docutils")  # gives it lines in the theme
        return ElementTree.ElementTree(tree)


class CommonMark(Extension):
    def extendMarkdown(self, md):  # noqa: N802
        md.parser = Parser()
        md.preprocessors = Registry()
        md.treeprocessors.deregister("inline")


def on_config(config):
    config["nav"] = site_pages.navigation()
    config["markdown_extensions"].append(CommonMark())
    config["mdx_configs"]["toc"] = {"slugify": lambda heading, separator: site_pages.anchor(heading), "permalink": True}
    return config
