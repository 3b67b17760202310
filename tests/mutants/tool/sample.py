# SPDX-License-Identifier: Apache-2.0
"""A random sample of what universalmutator, an ordinary mutation tool, makes of the code."""
import contextlib
import io
import pathlib
import random

from universalmutator import mutator

from faults import Fault
from source import Range, Source, Sources, tokens
from switch import Edit, apply, levels, parses
from tree import Tree, Wanted, say

FOLDERS = ("src/core", "src/transport", "src/shm", "src/host", "src/cm", "src/rsockets", "src/ccl/reduce", "src/netdev")
RULES = ["universal.rules", "c_like.rules", "cpp.rules"]


def draw(sources: Sources, seed: int, folder: pathlib.Path) -> list[Fault]:
    """All that the tool makes of these folders and that is C++ still, in an order that the seed gives."""
    found = []
    for path in sources.paths():
        if not path.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
            continue
        source = sources[path]
        lines = source.text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        with contextlib.redirect_stdout(io.StringIO()):
            mutants = mutator.mutants_regexp(lines, RULES, ignorePatterns=[], ignoreStringOnly=True)
        for number, text, (rule, _), _ in mutants:
            old = lines[number - 1]
            head = next((i for i, (a, b) in enumerate(zip(old, text)) if a != b), min(len(old), len(text)))
            tail = 0
            while tail < min(len(old), len(text)) - head and old[-1 - tail] == text[-1 - tail]:
                tail += 1
            start = starts[number - 1]
            found.append((path, Range(start + head, start + len(old) - tail), text[head : len(text) - tail], rule, number))
    random.Random(seed).shuffle(found)
    faults = []
    for path, place, into, rule, line in found:
        faults.append(Fault(name=f"{path}:{line}:{place.start}:{rule.strip()}:{into.strip()}", file=path,
                            code=sources[path].text[place.start : place.end], into=into, rule=rule, kind="other", path=path,
                            place=place, list="sample"))
    say(f"== {len(faults)} changes by universalmutator, in the order of seed {seed}")
    return faults


def _is_code(source: Source, fault: Fault) -> bool:
    """Whether a change is one of code that runs: no comment, no constant, and C++ still."""
    edit = Edit(0, fault.place, fault.into)
    changed = apply(source, edit)
    line = lambda text: [t.text for t in tokens(text)]
    if line(changed) == line(source.text):
        return False
    return bool(levels(source, edit)) and (not parses(source.text) or parses(changed))


def build(tree: Tree, everything: list[Fault], count: int, skip_build: bool) -> list[Fault]:
    """Compiles more of them than are wanted, and gives the first `count` that compile."""
    picked, names = [], set()
    for fault in everything:
        # What the compiler refuses is about a third.
        if len(picked) == 2 * count:
            break
        if fault.name not in names and _is_code(tree.sources[fault.path], fault):
            names.add(fault.name)
            picked.append(fault)
    if not skip_build:
        tree.make({f.name: Wanted(f.path, f.place, f.into, f"{f.code} ==> {f.into}") for f in picked})
    built = tree.built
    return [f for f in picked if f.name in built][:count]
