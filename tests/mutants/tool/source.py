# SPDX-License-Identifier: Apache-2.0
"""C++ source as tokens and as a syntax tree: where a piece of code lies, and what surrounds it."""
import functools
import pathlib
import re
import typing

import tree_sitter
import tree_sitter_cpp

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<raw>R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)")
      | "(?:\\.|[^"\\\n])*"
      | '(?:\\.|[^'\\\n])*'
      | [A-Za-z_]\w*
      | \.?\d(?:[\w.]|'(?=\w)|(?<=[eEpP])[+-])*
      | .""",
    re.VERBOSE | re.DOTALL,
)


class Token(typing.NamedTuple):
    text: str
    start: int
    end: int


class Range(typing.NamedTuple):
    """Characters [start, end) of a file."""

    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Each operator is a token per character, so that white space never matters."""
    return [Token(m.group(), m.start(), m.end()) for m in TOKEN.finditer(text) if m.group("skip") is None]


def without_comments(text: str) -> str:
    return TOKEN.sub(lambda m: " " if m.group().startswith(("//", "/*")) else m.group(), text)


class Source:
    """One file. Offsets are in characters; the files are ASCII where the parser's byte offsets are used."""

    def __init__(self, path: pathlib.Path, text: str):
        self.path = path
        # The parser counts bytes: a character outside ASCII (comments have some) must count as one.
        self.text = text
        self._ascii = "".join(c if ord(c) < 128 else "?" for c in text)

    @functools.cached_property
    def tokens(self) -> list[Token]:
        return tokens(self.text)

    @functools.cached_property
    def tree(self) -> tree_sitter.Tree:
        return PARSER.parse(self._ascii.encode())

    def find(self, code: str) -> list[Range]:
        """All places where the tokens of `code` stand one after the other."""
        wanted = [t.text for t in tokens(code)]
        if not wanted:
            return []
        have = self.tokens
        return [
            Range(have[i].start, have[i + len(wanted) - 1].end)
            for i in range(len(have) - len(wanted) + 1)
            if have[i].text == wanted[0] and all(have[i + k].text == wanted[k] for k in range(1, len(wanted)))
        ]

    def node_at(self, place: Range) -> tree_sitter.Node:
        """The smallest node that covers the place."""
        node = self.tree.root_node.descendant_for_byte_range(place.start, place.end)
        while node.end_byte < place.end:
            node = node.parent
        return node

    def scope(self, place: Range) -> str:
        """The qualified name of the function around a place: "Requester::take_ack"; of the class outside functions."""
        names = []
        node = self.node_at(place)
        while node is not None:
            if node.type == "function_definition":
                declarator = node.child_by_field_name("declarator")
                while declarator is not None and declarator.type != "function_declarator":
                    declarator = declarator.child_by_field_name("declarator") or next(
                        (c for c in declarator.named_children if c.type.endswith("declarator")), None)
                if declarator is not None:
                    names.append(declarator.child_by_field_name("declarator").text.decode())
            elif node.type in ("class_specifier", "struct_specifier", "namespace_definition", "union_specifier"):
                name = node.child_by_field_name("name")
                if name is not None:
                    names.append(name.text.decode())
            node = node.parent
        return "::".join(reversed(names))

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


def is_in(scope: str, wanted: str) -> bool:
    """Whether `wanted` names the scope or one that surrounds it."""
    return f"::{wanted}::" in f"::{scope}::"


class Sources:
    """The files that are shipped: src and include."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self._read: dict[str, Source] = {}

    def paths(self) -> list[str]:
        return sorted(
            str(p.relative_to(self.root))
            for top in ("src", "include")
            for p in (self.root / top).rglob("*")
            if p.suffix in (".cc", ".h", ".hpp")
        )

    def __getitem__(self, path: str) -> Source:
        if path not in self._read:
            self._read[path] = Source(pathlib.Path(path), (self.root / path).read_text())
        return self._read[path]
