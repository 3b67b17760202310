# SPDX-License-Identifier: Apache-2.0
"""The tests of a build: GoogleTest cases over each transport, each a unit that can be run by itself."""
import dataclasses
import fnmatch
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import typing

# How scripts/test runs each program; others run once.
WAYS = {
    "verbs_tests": ("auto", "roce"),
    "rdmacm_tests": ("auto", "roce"),
    "rsockets_api_tests": ("auto", "roce"),
    "rsockets_preload_tests": ("auto", "roce"),
    "ccl_job_tests": ("auto", "roce", "messages"),
}
# Simulations take their time from the number of worlds.
SIMULATIONS = "300"


class Unit(typing.NamedTuple):
    program: str
    case: str
    way: str

    def __str__(self) -> str:
        return f"{self.program}:{self.case}" + ("" if self.way == "auto" else f":{self.way}")


@dataclasses.dataclass
class Outcome:
    """What became of cases that ran in one process."""

    passed: list[str]
    failed: list[str]
    # The case that ran when the process ended or was ended, and how: "crash", "time limit", "exit".
    ended_in: str
    ended_by: str
    seconds: float
    log: str

    @property
    def first_failure(self) -> str:
        return self.failed[0] if self.failed else self.ended_in


class Hosts:
    """Runs programs side by side, each in a network namespace and a runtime directory of its own."""

    def __init__(self, build: pathlib.Path):
        self.build = build
        self.namespaces = subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0

    def programs(self) -> list[str]:
        return sorted(p.name for p in (self.build / "tests").glob("*_tests") if os.access(p, os.X_OK))

    def units(self) -> list[Unit]:
        found = []
        for program in self.programs():
            listed = subprocess.run([self.build / "tests" / program, "--gtest_list_tests"], capture_output=True, text=True, check=True)
            suite = ""
            for line in listed.stdout.splitlines():
                name = line.split("#")[0].strip()
                if line.startswith("  "):
                    for way in WAYS.get(program, ("auto",)):
                        if "DISABLED_" not in suite + name:
                            found.append(Unit(program, suite + name, way))
                elif name.endswith("."):
                    suite = name
        return found

    def run(self, program: str, way: str, cases: list[str], limit: float, environment: dict[str, str]) -> Outcome:
        """Runs cases of a program in one process group, and leaves nothing behind."""
        with tempfile.TemporaryDirectory(prefix="mutants-", dir="/dev/shm") as folder:
            variables = os.environ | environment | {
                "NUPA_RUNTIME_DIR": f"{folder}/run", "TMPDIR": folder, "NUPA_SIM_RUNS": SIMULATIONS,
                "GTEST_FAIL_FAST": "1", "NUPA_TEST_CASE_SECONDS": "0",  # the limit is kept here
            }
            variables["NUPA_TRANSPORT"] = "auto" if way == "messages" else way
            if way == "messages":
                variables["NUPA_CCL_MAPPED_RANKS"] = "1"
            command = [str(self.build / "tests" / program), f"--gtest_filter={':'.join(cases)}"]
            if self.namespaces:
                command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
            since = time.monotonic()
            with open(f"{folder}/log", "w+", errors="replace") as log:
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=variables,
                                           cwd=folder, start_new_session=True)
                late = False
                try:
                    process.wait(limit)
                except subprocess.TimeoutExpired:
                    late = True
                seconds = time.monotonic() - since
                # Also children that a test has left.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
                log.seek(0)
                text = log.read()
        passed = re.findall(r"^\[       OK \] (\S+?)(?:,| \()", text, re.MULTILINE)
        passed += re.findall(r"^\[  SKIPPED \] (\S+?)(?:,| \()", text, re.MULTILINE)
        failed = re.findall(r"^\[  FAILED  \] (\S+?)(?:,.*)? \(\d+ ms\)$", text, re.MULTILINE)
        started = re.findall(r"^\[ RUN      \] (\S+)$", text, re.MULTILINE)
        ended_in, ended_by = "", ""
        if not failed and process.returncode != 0:
            unfinished = [s for s in started if s not in passed]
            ended_in = unfinished[-1] if unfinished else (started[-1] if started else cases[0])
            ended_by = "time limit" if late else ("crash" if process.returncode < 0 or process.returncode > 128 else "exit")
        return Outcome(passed, failed, ended_in, ended_by, seconds, text)


def matching(units: list[Unit], patterns: list[str]) -> list[Unit]:
    """Patterns are PROGRAM[:CASE[:WAY]] with wildcards."""
    found = []
    for unit in units:
        for pattern in patterns:
            program, case, way = (pattern.split(":") + ["*", "*"])[:3]
            if fnmatch.fnmatch(unit.program, program) and fnmatch.fnmatch(unit.case, case) and fnmatch.fnmatch(unit.way, way):
                found.append(unit)
                break
    return found


def chunks(units: list[Unit], seconds: dict[Unit, float], most: float) -> list[list[Unit]]:
    """Units that one process runs: of one program and way, together not much longer than `most` seconds. Fast ones first."""
    found: list[list[Unit]] = []
    open_chunks: dict[tuple[str, str], tuple[list[Unit], float]] = {}
    for unit in sorted(units, key=lambda u: seconds.get(u, 1.0)):
        key = (unit.program, unit.way)
        chunk, total = open_chunks.get(key, ([], 0.0))
        took = seconds.get(unit, 1.0)
        if not chunk or total + took > most:
            chunk, total = [], 0.0
            found.append(chunk)
        chunk.append(unit)
        open_chunks[key] = (chunk, total + took)
    return found

