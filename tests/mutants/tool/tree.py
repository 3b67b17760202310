# SPDX-License-Identifier: Apache-2.0
"""A copy of the project with all faults behind switches, and its build."""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing

from source import Range, Sources
from switch import Edit, apply, blamed, levels, render

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = "-O1 -g1 -DNDEBUG"
ERROR = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+): (?P<what>error|note|fatal error|  )", re.MULTILINE)
ALSO = re.compile(r"^(?:In file included from |\s+from )?(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?P<column>\d+):", re.MULTILINE)


# What the tests need.
TARGETS = ("test_programs",)
# nupa_mutants.cc has a byte for each.
MOST_FAULTS = 1 << 16


class Wanted(typing.NamedTuple):
    """A fault that a build shall have: what is replaced by what."""

    path: str
    place: Range
    into: str
    # For people, and to see whether the fault is still the same.
    text: str


def say(text: str) -> None:
    print(text, flush=True)


class Tree:
    """`folder` holds tree/ (the copy), build/ and places.json (which number is which fault)."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path):
        self.root = root
        self.folder = folder
        self.tree = folder / "tree"
        self.build = folder / "build"
        self.sources = Sources(root)
        self._commands: dict[str, list[str]] = {}
        self._switched: set[str] = set()

    @property
    def built(self) -> dict[str, dict]:
        """The faults in the build that is there, by name: number, level, text."""
        file = self.folder / "places.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def make(self, wanted: dict[str, Wanted]) -> dict[str, str]:
        """Builds with these faults. Returns those that no build can have, with the compiler's words."""
        refused: dict[str, str] = {}
        # A fault keeps its number, so that files whose faults are the same are not compiled again.
        before = {name: b for name, b in self.built.items() if name in wanted}
        free = iter(sorted(set(range(1, MOST_FAULTS)) - {b["number"] for b in before.values()}))
        edits = {}
        for name, (path, place, into, text) in wanted.items():
            known = before.get(name)
            level = known["level"] if known and known["text"] == text else 0
            edits[name] = (path, Edit(known["number"] if known else next(free), place, into, level))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._copy({path for path, _ in edits.values()})
        self._configure()
        names = {edit.number: name for name, (_, edit) in edits.items()}
        while True:
            rendered = self._render(edits, refused)
            log = self._compile()
            if log is None:
                break
            blame = self._blame(log, rendered) or self._tried_alone(log, edits)
            if not blame:
                (self.folder / "build.log").write_text(log)
                sys.exit(f"mutants: the build fails, and not because of a fault: see {self.folder / 'build.log'}")
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                wider = pool.map(lambda n: self._wider(*edits[names[n]]), blame)
            for (number, words), level in zip(blame.items(), wider):
                if level is None:
                    refused[names[number]] = words
                    del edits[names[number]]
                    say(f"   refused: {names[number]}: {words}")
                else:
                    edits[names[number]][1].level = level
                    say(f"   wider: {names[number]}: {words}")
        kept = {name: {"number": edit.number, "level": edit.level, "text": wanted[name].text} for name, (_, edit) in edits.items()}
        (self.folder / "places.json").write_text(json.dumps(kept, indent=1))
        return refused

    def _copy(self, switched: set[str]) -> None:
        # git's own message names the remedy where the tree belongs to another user, so it is not captured.
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=self.root, stdout=subprocess.PIPE,
                                text=True, check=True).stdout.splitlines()
        listed = [f for f in listed if (self.root / f).is_file()]
        for name in listed:
            if name in switched and (self.tree / name).exists():
                continue  # it is written when it is rendered
            self._write(self.tree / name, (self.root / name).read_bytes(), (self.root / name).stat().st_mode)
        keep = set(listed)
        for path in self.tree.rglob("*"):
            if path.is_file() and str(path.relative_to(self.tree)) not in keep:
                path.unlink()

    @staticmethod
    def _write(path: pathlib.Path, content: bytes, mode: int = 0o644) -> None:
        """Leaves a file that is the same alone, so that it is not compiled again."""
        if path.exists() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode & 0o777)

    def _render(self, edits: dict[str, tuple[str, Edit]], refused: dict[str, str]) -> dict[str, str]:
        # A file whose faults are all refused has to be as it was.
        self._switched |= {path for path, _ in edits.values()}
        by_path: dict[str, list[Edit]] = {path: [] for path in self._switched}
        for name, (path, edit) in list(edits.items()):
            if edit.level >= len(levels(self.sources[path], edit)):
                refused[name] = "nothing around it can be switched: it is a constant"
                say(f"   refused: {name}: {refused[name]}")
                del edits[name]
                continue
            by_path[path].append(edit)
        rendered = {}
        for path, some in by_path.items():
            text = render(self.sources[path], some) if some else self.sources[path].text
            rendered[path] = text
            self._write(self.tree / path, text.encode())
        return rendered

    def _configure(self) -> None:
        self.build.mkdir(exist_ok=True)
        library = self.build / "libnupa_mutants.so"
        parts = [HERE / "nupa_mutants.cc", HERE / "nupa_mutants.h"]
        if not library.exists() or any(library.stat().st_mtime < p.stat().st_mtime for p in parts):
            for part in parts:
                shutil.copy2(part, self.build)
            subprocess.run(["c++", "-std=gnu++20", "-O2", "-fPIC", "-shared", "-o", library, self.build / "nupa_mutants.cc"], check=True)
        link = f"-Wl,--no-as-needed -L{self.build} -lnupa_mutants -Wl,-rpath,{self.build} -Wl,--as-needed"
        command = ["cmake", "-G", "Ninja", "-S", self.tree, "-B", self.build, "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                   f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={FLAGS}", "-DNUPA_WERROR=OFF",
                   f"-DCMAKE_CXX_FLAGS=-w -include {self.build}/nupa_mutants.h",
                   f"-DCMAKE_EXE_LINKER_FLAGS={link}", f"-DCMAKE_SHARED_LINKER_FLAGS={link}", f"-DCMAKE_MODULE_LINKER_FLAGS={link}"]
        if shutil.which("ccache"):
            command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)

    def _compile(self) -> str | None:
        """None, or what the compiler said."""
        command = ["ninja", "-C", self.build, "-k", "0", *TARGETS]
        status = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=os.environ | {"NINJA_STATUS": "[%f/%t] "}) as ninja:
            lines = []
            for line in ninja.stdout:
                lines.append(line)
                if m := re.match(r"\[(\d+)/(\d+)\]", line):
                    if int(m.group(1)) % 50 == 0 or m.group(1) == m.group(2):
                        say(f"   built {m.group(1)} of {m.group(2)}")
            status = ninja.wait()
        return None if status == 0 else "".join(lines)

    def command_for(self, path: str) -> list[str] | None:
        """How a file is compiled, without its output; None for a header."""
        if not self._commands:
            for entry in json.loads((self.build / "compile_commands.json").read_text()):
                file = pathlib.Path(entry["file"])
                if not file.is_relative_to(self.tree):
                    continue  # a precompiled header
                words = shlex.split(entry["command"])
                if words[0].endswith("ccache"):
                    words = words[1:]
                del words[words.index("-o") : words.index("-o") + 2]
                self._commands.setdefault(str(file.relative_to(self.tree)), words[:-2])
        return self._commands.get(path)

    def _wider(self, path: str, edit: Edit) -> int | None:
        """The next level at which a fault compiles without all others. None: there is none, or it is no C++."""
        if not self._compiles(path, edit.number, apply(self.sources[path], edit)):
            return None
        for level in range(edit.level + 1, len(levels(self.sources[path], edit))):
            if self._compiles(path, edit.number, render(self.sources[path], [dataclasses.replace(edit, level=level)])):
                return level
        return None

    def _compiles(self, path: str, number: int, text: str) -> bool:
        command = self.command_for(path)
        if command is None:  # a header: as its neighbours are compiled
            folder = path.rpartition("/")[0]
            command = next((c for p, c in self._commands.items() if p.rpartition("/")[0] == folder), None)
        if command is None:
            return True
        file = (self.tree / path).with_name(f".alone-{number}.cc")
        file.write_text(text)
        try:
            return subprocess.run([*command, "-fsyntax-only", file], cwd=self.build, capture_output=True).returncode == 0
        finally:
            file.unlink()

    def same_code(self, path: str, edit: Edit) -> bool | None:
        """Whether the compiler makes the same machine code of the file with the fault. None: not known, of a header."""
        command = self.command_for(path)
        if command is None:
            return None
        with tempfile.TemporaryDirectory(dir=(self.tree / path).parent, prefix=".same-") as folder:
            file, code = pathlib.Path(folder) / "alone.cc", pathlib.Path(folder) / "alone.o"
            made = []
            for text in (self.sources[path].text, apply(self.sources[path], edit)):
                file.write_text(text)
                done = subprocess.run([*command, "-g0", "-O2", "-c", file, "-o", code], cwd=self.build, capture_output=True)
                if done.returncode != 0:
                    return None
                made.append(code.read_bytes())
        return made[0] == made[1]

    def _blame(self, log: str, rendered: dict[str, str]) -> dict[int, str]:
        """Which faults the compiler refuses, with its first words on each."""
        found: dict[int, str] = {}
        for part in re.split(r"(?m)^FAILED: ", log)[1:]:
            here: dict[int, str] = {}
            for expression in (ERROR, ALSO):
                for m in expression.finditer(part):
                    if expression is ERROR and m.group("what") not in ("error", "fatal error"):
                        continue
                    path = self._relative(m.group("file"))
                    if path not in rendered:
                        continue
                    text = rendered[path]
                    lines = text.split("\n")
                    row = int(m.group("line")) - 1
                    # Columns count bytes.
                    column = len(lines[row].encode()[: int(m.group("column")) - 1].decode(errors="ignore"))
                    offset = sum(len(l) + 1 for l in lines[:row]) + column
                    words = part[m.end() : part.find("\n", m.end())].strip()
                    for number in blamed(text, offset):
                        here.setdefault(number, words)
                if here:
                    break
            for number, words in here.items():
                found.setdefault(number, words)
        return found

    def _tried_alone(self, log: str, edits: dict[str, tuple[str, Edit]]) -> dict[int, str]:
        """The same where the compiler names other places, as of a macro's arguments: by trying the faults of the files
        that it does name."""
        named = {self._relative(m.group("file")) for expression in (ERROR, ALSO) for m in expression.finditer(log)}
        here = {edit.number: (path, edit) for path, edit in edits.values() if path in named}
        words = next((log[m.end() : log.find("\n", m.end())].strip(": ") for m in ERROR.finditer(log)), "")
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            compiles = pool.map(lambda p: self._compiles(p[0], p[1].number, render(self.sources[p[0]], [p[1]])), here.values())
        return {number: words for number, good in zip(here, compiles) if not good}

    def _relative(self, name: str) -> str:
        path = pathlib.Path(name)
        if not path.is_absolute():
            path = self.build / path
        try:
            return str(path.resolve().relative_to(self.tree.resolve()))  # headers are seen through build/sees
        except ValueError:
            return ""


