# SPDX-License-Identifier: Apache-2.0
"""Compiles many faults into one build: each place becomes `(nupa_mutant(17) ? fault : code)`, or an if statement."""
import dataclasses
import re

import tree_sitter

from source import PARSER, Range, Source, without_comments

EXPRESSIONS = {
    "binary_expression", "unary_expression", "call_expression", "conditional_expression", "identifier", "number_literal",
    "true", "false", "null", "field_expression", "parenthesized_expression", "subscript_expression", "cast_expression",
    "pointer_expression", "assignment_expression", "update_expression", "string_literal", "char_literal",
    "qualified_identifier", "new_expression", "co_await_expression", "compound_literal_expression", "this",
}
STATEMENTS = {
    "expression_statement", "return_statement", "co_return_statement", "if_statement", "for_statement", "for_range_loop",
    "while_statement", "do_statement", "switch_statement", "try_statement", "throw_statement", "co_yield_statement",
    "delete_expression", "break_statement", "continue_statement",
}
# Whatever lies below these is a constant for the compiler.
CONSTANT = {"static_assert_declaration", "enumerator", "array_declarator", "template_argument_list", "sizeof_expression",
            "decltype", "alignof_expression", "alignas_qualifier", "requires_clause", "preproc_if", "preproc_def", "attribute", "bitfield_clause",
            "template_parameter_list"}


@dataclasses.dataclass
class Edit:
    """Characters of a file that another text replaces."""

    number: int
    place: Range
    text: str
    # How wide the switched code is: an index into levels().
    level: int = 0


def _takes_switch(node: tree_sitter.Node) -> bool:
    """Whether an expression may be put in brackets where it stands."""
    parent = node.parent
    if parent is None:
        return False
    field = next((parent.field_name_for_child(i) for i in range(parent.child_count) if parent.child(i).id == node.id), None)
    if parent.type == "call_expression":
        return field != "function"
    if parent.type == "assignment_expression":
        return field == "right"
    if parent.type in ("update_expression", "qualified_identifier", "template_function", "case_statement", "pointer_expression",
                       "function_declarator", "field_initializer", "init_declarator", "reference_declarator", "using_declaration",
                       "destructor_name", "operator_name", "field_designator", "subscript_designator", "pointer_declarator",
                       "parameter_declaration", "declaration", "template_type", "lambda_capture_specifier"):
        return parent.type == "init_declarator" and field == "value"
    if parent.type == "field_expression":
        return field == "argument"
    return True


def levels(source: Source, edit: Edit) -> list[tree_sitter.Node]:
    """The nodes that may be switched as a whole so that the edit is within, smallest first."""
    found = []
    node = source.node_at(edit.place)
    expressions = 0
    while node is not None:
        if node.type in CONSTANT or _is_constant(node):
            found.clear()
        kind = node.type
        if kind in EXPRESSIONS and expressions < 3 and _takes_switch(node):
            found.append(node)
            expressions += 1
        elif kind in STATEMENTS or (kind == "compound_statement" and node.parent.type != "try_statement"):
            found.append(node)
            expressions = 3
        if kind == "function_definition" and found:
            break
        node = node.parent
    return found


def _is_constant(node: tree_sitter.Node) -> bool:
    """Whether the compiler computes it: a switch within would have no effect."""
    if node.type in ("declaration", "field_declaration"):
        return "constexpr" in re.split("[={]", node.text.decode())[0]
    if node.type == "condition_clause":
        return node.parent.text.decode().startswith("if constexpr")
    return False


def parses(text: str) -> bool:
    return not PARSER.parse("".join(c if ord(c) < 128 else "?" for c in text).encode()).root_node.has_error


class CannotSwitch(Exception):
    pass


def apply(source: Source, edit: Edit) -> str:
    """The whole file with the fault, and nothing else."""
    return source.text[: edit.place.start] + edit.text + source.text[edit.place.end :]


@dataclasses.dataclass
class Switched:
    """A place with all faults that are switched there, and the places within it."""

    start: int
    end: int
    statement: bool
    edits: list[Edit]
    within: list["Switched"] = dataclasses.field(default_factory=list)


def render(source: Source, edits: list[Edit]) -> str:
    """The file with all edits behind switches. Comments with marks tell which text belongs to which fault."""
    places: dict[tuple[int, int], Switched] = {}
    for edit in edits:
        candidates = levels(source, edit)
        if edit.level >= len(candidates):
            raise CannotSwitch(str(edit.number))
        node = candidates[edit.level]
        key = (node.start_byte, node.end_byte)
        statement = node.type in STATEMENTS or node.type == "compound_statement"
        place = places.setdefault(key, Switched(*key, statement, []))
        if place.statement != statement:  # an expression statement's expression ends before its semicolon: never the same
            raise CannotSwitch(str(edit.number))
        place.edits.append(edit)
    # Nodes of one tree lie beside or within each other.
    top: list[Switched] = []
    open_places: list[Switched] = []
    for place in sorted(places.values(), key=lambda p: (p.start, -p.end)):
        while open_places and open_places[-1].end <= place.start:
            open_places.pop()
        (open_places[-1].within if open_places else top).append(place)
        open_places.append(place)

    def plain(start: int, end: int, within: list[Switched]) -> str:
        out, at = [], start
        for place in within:
            out += [source.text[at : place.start], switched(place)]
            at = place.end
        return "".join(out) + source.text[at:end]

    def switched(place: Switched) -> str:
        code = plain(place.start, place.end, place.within)
        out = []
        for edit in place.edits:
            fault = source.text[place.start : edit.place.start] + edit.text + source.text[edit.place.end : place.end]
            fault = without_comments(fault)  # a comment at the end of the line would hide what follows it
            if place.statement:
                out.append(f"if (nupa_mutant({edit.number})) {{ /*<{edit.number}*/{fault}/*{edit.number}>*/ }} else ")
            else:
                out.append(f"nupa_mutant({edit.number}) ? (/*<{edit.number}*/{fault}/*{edit.number}>*/) : ")
        marks = ",".join(str(e.number) for e in place.edits)
        if place.statement:
            return f"{{ /*[{marks}*/{''.join(out)} {{ {code}\n }} /*{marks}]*/ }}"
        return f"(/*[{marks}*/{''.join(out)}({code})/*{marks}]*/)"

    return plain(0, len(source.text), top)


def blamed(text: str, offset: int) -> list[int]:
    """The faults whose text, or else whose switch, is around a character of a rendered file."""
    open_faults: list[int] = []
    open_places: list[list[int]] = []
    for mark in re.finditer(r"/\*(<?)(\[?)([\d,]+)(>?)(\]?)\*/", text[:offset]):
        numbers = [int(n) for n in mark.group(3).split(",")]
        if mark.group(1):
            open_faults.append(numbers[0])
        elif mark.group(4):
            open_faults.remove(numbers[0])
        elif mark.group(2):
            open_places.append(numbers)
        elif mark.group(5):
            open_places.remove(numbers)
    if open_faults:
        return open_faults[-1:]
    return open_places[-1] if open_places else []
