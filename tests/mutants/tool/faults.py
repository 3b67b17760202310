# SPDX-License-Identifier: Apache-2.0
"""The list of faults: what tests/mutants/*.toml says, and where each of them is in the code of today."""
import dataclasses
import pathlib
import tomllib

from source import Range, Sources, is_in

KINDS = ("responder", "requester", "who-may-speak", "fork-exit", "api-edges", "two-processes", "wake-up", "exact-count",
         "bounds", "state", "data", "other")
NEEDED = ("name", "file", "code", "into", "rule", "kind")
OPTIONAL = ("in", "tests", "unnoticed")


class BadFault(Exception):
    pass


@dataclasses.dataclass
class Fault:
    name: str
    file: str
    code: str
    into: str
    rule: str
    kind: str
    scope: str = ""
    tests: str = ""
    # Why no test can notice it: "equivalent: ...", "timing: ..."
    unnoticed: str = ""
    # Found: the file and the place in it.
    path: str = ""
    place: Range | None = None
    list: str = ""


def read(files: list[pathlib.Path]) -> list[Fault]:
    faults, names = [], set()
    for file in files:
        try:
            entries = tomllib.loads(file.read_text()).get("fault", [])
        except tomllib.TOMLDecodeError as error:
            raise BadFault(f"{file.name}: {error}") from None
        for entry in entries:
            name = entry.get("name", "(without a name)")
            for key in NEEDED:
                if not entry.get(key) and not (key == "into" and key in entry):
                    raise BadFault(f"{file.name}: {name}: no {key}")
            for key in entry:
                if key not in NEEDED + OPTIONAL:
                    raise BadFault(f"{file.name}: {name}: unknown key {key}")
            if entry["kind"] not in KINDS:
                raise BadFault(f"{file.name}: {name}: unknown kind {entry['kind']} (one of {', '.join(KINDS)})")
            if name in names:
                raise BadFault(f"{file.name}: {name} is there twice")
            names.add(name)
            entry["scope"] = entry.pop("in", "")
            faults.append(Fault(**entry, list=file.stem))
    return faults


def find(fault: Fault, sources: Sources) -> None:
    """Fills in path and place: in the file that the list names, else in the only other file that has the code."""

    def places(path: str) -> list[Range]:
        source = sources[path]
        found = source.find(fault.code)
        if fault.scope:
            found = [p for p in found if is_in(source.scope(p), fault.scope)]
        return found

    paths = sources.paths()
    if fault.file in paths:
        found = places(fault.file)
        if len(found) == 1:
            fault.path, fault.place = fault.file, found[0]
            return
        if len(found) > 1:
            lines = ", ".join(str(sources[fault.file].line(p.start)) for p in found)
            raise BadFault(f"{fault.name}: the code is at lines {lines} of {fault.file}; name the function by `in`, or give more code")
    elsewhere = [(path, p) for path in paths if path != fault.file for p in places(path)]
    if len(elsewhere) == 1:
        fault.path, fault.place = elsewhere[0]
        return
    if elsewhere:
        raise BadFault(f"{fault.name}: not in {fault.file}; it could be {', '.join(sorted({e[0] for e in elsewhere}))}")
    where = f"{fault.file} in {fault.scope}" if fault.scope else fault.file
    raise BadFault(f"{fault.name}: the code is not in {where}, nor elsewhere")
