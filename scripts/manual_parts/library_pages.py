# SPDX-License-Identifier: Apache-2.0
"""nupa(7), from the page of the environment variables, and nupa_ccl(3), from the comments of the header."""

import re

from troff import Page, bold, escape, italic


class Variables:
    """The tables and paragraphs of docs/reference/environment.md."""

    def __init__(self, markdown):
        self.introduction = []  # blocks
        self.sections = []  # (title, [(names, kind, default, readers, meaning)])
        for block in re.split(r"\n\s*\n|\n(?=\|)|(?<=\n)(?=## )|\n(?=- )", markdown):
            self.add(block.strip("\n"))
        self.rows = {name: row for _, rows in self.sections for row in rows for name in row[0]}

    def add(self, block):
        if block.startswith("## "):
            self.sections.append((block[3:].split("\n")[0], []))
        elif block.startswith("| `"):
            names, kind, default, readers, meaning = (cell.strip() for cell in block.strip()[1:-1].split("|"))
            self.sections[-1][1].append((re.findall(r"`(\w+)`", names), kind, default, readers, meaning))
        elif block and not block.startswith(("|", "# ")):
            self.introduction.append(block)

    def description(self, name):
        """Returns what the variable is for, its kind, its default and its readers; with markup. Raises KeyError: there is no such variable."""
        _, kind, default, readers, meaning = self.rows[name]
        default = " Default: %s." % default if default else ""
        if not re.match(r"o(?:n|ff)\b", meaning):  # a value that has the meaning
            meaning = meaning[0].upper() + meaning[1:]
        return "%s. Value: %s.%s Read by: %s." % (meaning, kind, default, readers)


def environment_page(program, variables):
    page = Page("nupa", "7", "environment variables of NUPA", program["version"])
    page.section("DESCRIPTION")
    for block in variables.introduction:
        if block.startswith("- "):
            page.bullet(block[2:])
        else:
            page.paragraph(block)
    for title, rows in variables.sections:
        page.section(title.upper())
        for names, *_ in rows:
            page.item(", ".join(bold(name) for name in names), variables.description(names[0]))
    return page.see_also([("nupa", 1), ("nupa-run", 1), ("nupa_ccl", 3)]).text()


class Declaration:
    """A comment of the header and what it describes."""

    def __init__(self, comment, code):
        self.code = code
        text = re.sub(r"^ ?\* ?", "", comment, flags=re.M)
        self.description, *tags = re.split(r"^\s*@(?=param |return )", text, flags=re.M)
        self.parameters = [re.match(r"param (\w+)\s+(.*)", tag, re.S).groups() for tag in tags if tag.startswith("param ")]
        self.returns = next((tag[len("return "):] for tag in tags if tag.startswith("return ")), "")
        found = re.search(r"(\w+)\(", code)
        self.is_function = found is not None and not code.startswith(("typedef", "#"))
        function_type = re.match(r"typedef [^({]*\(\*(\w+)\)", code)
        self.name = found.group(1) if self.is_function else function_type.group(1) if function_type else re.findall(r"\w+", code.split("{")[0])[-1]
        if code.startswith("#"):
            self.name = code.split()[1]

    def members(self):
        """Returns (declaration, meaning) of each line in the braces."""
        body = re.search(r"\{(.*)\}", self.code, re.S)
        return re.findall(r"^\s*(\S.*?)[,;]?\s*/\*\*< (.*?) ?\*/", body.group(1), re.M) if body else []


def end_of(code):
    """Returns where the declaration at the beginning of `code` ends."""
    if code.startswith("#"):
        return code.index("\n")
    if re.match(r"typedef (struct|enum) \w+ \{", code):
        return re.search(r"^\} \w+;", code, re.M).end()
    return code.index(";") + 1


def read_header(header):
    """Returns the introduction, and for each group its name, its description and its declarations."""
    introduction, groups = "", [("Types", "", [])]
    for found in re.finditer(r"^/\*\*(?!<)(.*?)\*/\n?", header, re.S | re.M):
        comment = found.group(1).strip()
        text = re.sub(r"^ ?\* ?", "", comment, flags=re.M)
        if text.startswith("@file"):
            introduction = text[len("@file"):]
        elif text.startswith("@name "):
            name, _, description = text[len("@name "):].partition("\n")
            groups.append((name, description.replace("@{", ""), []))
        elif text != "@}":
            code = header[found.end():]
            groups[-1][2].append(Declaration(comment, code[:end_of(code)]))
    return introduction, groups


def add_blocks(page, text):
    """Adds paragraphs and the items of lists. A paragraph that begins with **Title.** becomes a part."""
    for block in re.split(r"\n\s*\n|\n(?=\s*- )", text.strip()):
        title = re.match(r"\s*\*\*([^*]+)\.\*\*\s+", block)
        if title:
            page.part(title.group(1))
            block = block[title.end():]
        if block.lstrip().startswith("- "):
            page.bullet(block.lstrip()[2:])
        elif block.strip():
            page.paragraph(block)


def add_parameter(page, name, text):
    first, *items = re.split(r"\n(?=\s*- )", text.strip())
    page.item(italic(name), first)
    for item in items:
        page.indented(lambda item=item: page.bullet(item.lstrip()[2:]))


def add_declaration(page, declaration):
    code = declaration.code
    if declaration.members():
        code = code.split("{")[0].strip().replace("typedef ", "") + ";"
    page.lines += [".PP", ".nf", "\\fB" + escape(code).replace("'", "\\(aq") + "\\fR", ".fi"]

    def body():
        add_blocks(page, declaration.description)
        for name, text in declaration.parameters:
            add_parameter(page, name, text)
        for member, meaning in declaration.members():
            page.item(bold(member), meaning)
        if declaration.returns:
            add_blocks(page, "Returns " + declaration.returns[0].lower() + declaration.returns[1:])

    page.indented(body)


EXAMPLE = """#include <nupa/ccl.h>
#include <stdio.h>

int main(void) {
  nupa_ccl_comm *world = NULL;
  float sum = 1;
  if (nupa_ccl_comm_init(&world) != 0 ||
      nupa_ccl_all_reduce(&sum, &sum, 1, NUPA_CCL_FLOAT32, NUPA_CCL_SUM, world, NULL) != 0) {
    fprintf(stderr, "%s\\n", nupa_ccl_error_text());
    return 1;
  }
  printf("%g ranks\\n", sum);
  return nupa_ccl_comm_destroy(world);
}"""


def collectives_pages(program, variables, header):
    """Returns (name, text) of nupa_ccl(3), and of a reference to it for each function."""
    introduction, groups = read_header(header)
    summary, _, rest = introduction.strip().partition("\n\n")
    page = Page("nupa_ccl", "3", "collectives among the ranks of a job", program["version"])
    page.section("SYNOPSIS").code("#include <nupa/ccl.h>\n\ncc program.c $(pkg-config --cflags --libs nupa_ccl)")
    page.section("DESCRIPTION").paragraph(summary)
    add_blocks(page, rest)
    page.section("FUNCTIONS AND TYPES")
    functions = []
    for name, description, declarations in groups:
        page.part(name)
        add_blocks(page, description)
        for declaration in declarations:
            add_declaration(page, declaration)
        functions += [declaration.name for declaration in declarations if declaration.is_function]
    page.section("RETURN VALUE").paragraph("Functions return 0 or an errno value, unless their description states otherwise. "
                                           "nupa_ccl_error_text() then returns the reason.")
    page.section("ENVIRONMENT")
    for names, *_ in (row for _, rows in variables.sections for row in rows):
        if any(name in header for name in names) or names[0].startswith("NUPA_CCL_"):
            page.item(", ".join(bold(name) for name in names), variables.description(names[0]))
    page.raw_paragraph("\\fBnupa\\fR(7) lists all variables.")
    page.section("EXAMPLES").paragraph("Each rank adds 1, and prints the number of ranks. `nupa launch -n 4 -- ./program` starts it.")
    page.code(EXAMPLE)
    page.see_also([("nupa-launch", 1), ("nupa-ccl", 1), ("nupa", 7)])
    return [("nupa_ccl", page.text())] + [(name, ".so man3/nupa_ccl.3\n") for name in functions]
