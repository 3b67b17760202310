# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reference/environment.md, of the variables in src/base/settings_table.h.

A variable is a dictionary with the fields of base::Setting. `nupa --print-definitions` prints the same dictionaries.
"""

import re

HEAD = "| variable | value | default | read by | meaning |\n|---|---|---|---|---|\n"
FIELDS = ("name", "kind", "group", "readers", "usual", "least", "most", "unit", "choices", "form", "usual_in_words", "meaning")
NUMBERS = ("least", "most")
FIELD = re.compile(r'\.(\w+) = ((?:"(?:[^"\\]|\\.)*"\s*)+|[\w:]+)')


def value_of(literal):
    if literal.startswith('"'):
        return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literal)).replace('\\"', '"')
    if literal.startswith("Kind::k"):
        return re.sub(r"(?<!^)(?=[A-Z])", "_", literal[len("Kind::k"):]).lower()
    return int(literal)


def read_table(header):
    """Returns the variables of settings_table.h, in its order. Raises ValueError: a value is not a literal, or a field is unknown."""
    table = re.search(r"kSettings\[\] = \{\n(.*?)\n\};", header, re.S)[1]
    variables = []
    for entry in re.findall(r"\{(\.name = .*?)\}(?:,|$)", table, re.S):
        fields = {name: value_of(literal.strip()) for name, literal in FIELD.findall(entry)}
        if set(fields) - set(FIELDS) or len(fields) != len(re.findall(r"\.\w+ = ", entry)):
            raise ValueError("not understood: %s" % entry)
        variables.append({name: fields.get(name, 0 if name in NUMBERS else "") for name in FIELDS})
    return variables


def accepted(variable):
    kind = variable["kind"]
    if kind == "number":
        return "number %sfrom %d to %d" % ("of %s " % variable["unit"] if variable["unit"] else "", variable["least"], variable["most"])
    if kind == "word":
        return "word: " + ", ".join("`%s`" % word for word in variable["choices"].split(" "))
    return variable["form"] or kind


def default(variable):
    usual = variable["usual"]
    if not usual:
        return variable["usual_in_words"]
    return usual if variable["kind"] in ("number", "boolean") else "`%s`" % usual


def table(variables):
    rows = (("`%s`" % each["name"], accepted(each), default(each), each["readers"], each["meaning"]) for each in variables)
    return HEAD + "".join("| %s |\n" % " | ".join(row).replace("|  |", "| |") for row in rows)


def page(markdown, variables):
    """Returns the page with the tables of these variables. Raises ValueError: a group has no section with a table, or a section no group."""
    groups = list(dict.fromkeys(each["group"] for each in variables))
    sections = re.findall(r"^## (.*)\n(?=(?:(?!## ).*\n)*?\|)", markdown, re.M)
    if sections != groups:
        raise ValueError("the sections with tables are %s, the groups of the variables %s" % (sections, groups))
    for group in groups:
        made = table([each for each in variables if each["group"] == group])
        place = re.compile(r"(^## %s\n(?:(?!\|).*\n)*)(?:\|.*\n)+" % re.escape(group), re.M)
        markdown = place.sub(lambda found: found[1] + made, markdown, count=1)
    return markdown
