# SPDX-License-Identifier: Apache-2.0
"""Text as man(7) requests. Every text of a page passes escape(), so no word of it can be taken for a request."""

import re

SPECIAL = {"\\": "\\e", "-": "\\-", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
MARKUP = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)]+)\)")


def escape(text):
    """Returns `text`, which may have several lines, so that troff prints it as it is."""
    special = "".join(SPECIAL.get(letter, letter if ord(letter) < 128 else "\\[u%04X]" % ord(letter)) for letter in text)
    return re.sub(r"^(?=[.'])", r"\\&", special, flags=re.M)


def inside(text):
    """Returns `text`, which lies within a line and has no line breaks."""
    return escape("x" + text)[1:]


def bold(text):
    return "\\fB%s\\fR" % escape(text).replace("'", "\\(aq")


def italic(text):
    return "\\fI%s\\fR" % escape(text)


def prose(text):
    """Returns `text` in one line, with `code` and **strong** in bold. A link to a page of docs/ becomes the page's path."""
    text = " ".join(text.split())
    made, at = "", 0
    for found in MARKUP.finditer(text):
        code, strong, label, target = found.groups()
        made += inside(text[at:found.start()])
        page = re.match(r"(?:\.\./)+(.*\.md)", target or "")
        made += inside("docs/" + page.group(1)) if page else prose(label) if label else bold(code or strong)
        at = found.end()
    made += inside(text[at:])
    return "\\&" + made if made.startswith((".", "'")) else made


class Page:
    """A page under construction. Each function adds a request and returns the page."""

    def __init__(self, name, section, about, version):
        self.lines = ['.\\" Written by scripts/manual.', '.TH "%s" "%s" "" "NUPA %s" "NUPA manual"' % (escape(name.upper()), section, escape(version)),
                      ".nh", ".ad l"]
        self.section("NAME").lines.append("%s \\- %s" % (escape(name), escape(about)))

    def section(self, title):
        self.lines.append('.SH "%s"' % escape(title))
        return self

    def part(self, title):
        self.lines.append('.SS "%s"' % escape(title))
        return self

    def paragraph(self, text):
        """`text`: with the markup that prose() knows."""
        return self.raw_paragraph(prose(text))

    def raw_paragraph(self, line):
        """`line`: troff."""
        self.lines += [".PP", line]
        return self

    def item(self, tag, text):
        """`tag`: troff; `text`: with markup."""
        self.lines += [".TP", tag, prose(text) or "\\&"]
        return self

    def bullet(self, text):
        self.lines += [".IP \\(bu 2", prose(text)]
        return self

    def code(self, text):
        self.lines += [".PP", ".nf", escape(text).replace("'", "\\(aq"), ".fi"]
        return self

    def indented(self, add):
        """Calls `add`, and indents what it adds."""
        self.lines.append(".RS 4")
        add()
        self.lines.append(".RE")
        return self

    def see_also(self, names):
        """`names`: of pages, as ("nupa-run", 1)."""
        self.section("SEE ALSO").lines.append(",\n".join("\\fB%s\\fR(%s)" % (escape(name), section) for name, section in names))
        return self

    def text(self):
        return "\n".join(self.lines) + "\n"
