# SPDX-License-Identifier: Apache-2.0
"""Which tests reach which faults, and which notice them."""
import concurrent.futures
import dataclasses
import json
import mmap
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable

from tree import MOST_FAULTS, say
from units import Hosts, Outcome, Unit, chunks, matching

# What a machine under load adds to a case's time.
ALLOWANCE_SECONDS = 15
TIMES_AS_LONG = 6
CHUNK_SECONDS = 6
# Cases that reach few faults besides this one test it more likely than others: as many are tried before the rest.
NEAR = 60
# The compiler is asked whether the fault changes anything once the tests have taken longer than it does.
ASK_COMPILER_SECONDS = 30


@dataclasses.dataclass
class Verdict:
    name: str
    noticed: bool
    by: str = ""
    how: str = ""
    seconds: float = 0
    reached: int = 0
    words: str = ""
    # The compiler makes the same code of it.
    same: bool = False
    # Cases that failed once and passed when they ran alone, or fail without the fault too.
    unsure: list[str] = dataclasses.field(default_factory=list)


class Record:
    """For each unit: how long it takes without a fault, whether it passes, and which faults it reaches. Kept in a file
    until the unit's program is built again."""

    def __init__(self, hosts: Hosts, folder: pathlib.Path):
        self.hosts = hosts
        self.file = folder / "record.json"
        self.known: dict[str, dict] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.lock = threading.Lock()
        built = [*(hosts.build / "lib").rglob("*.so*"), hosts.build / "bin" / "nupa"]
        libraries = [p.stat().st_mtime for p in built if p.is_file()]
        self.stamps = {p: max([(hosts.build / "tests" / p).stat().st_mtime, *(libraries if p in LINKED else [])])
                       for p in hosts.programs()}

    def fresh(self, unit: Unit) -> dict | None:
        known = self.known.get(str(unit))
        return known if known and known["stamp"] == self.stamps[unit.program] else None

    def make(self, units: list[Unit], jobs: int) -> None:
        missing = [u for u in units if self.fresh(u) is None]
        if not missing:
            return
        say(f"== without a fault: {len(missing)} of {len(units)} cases, {jobs} side by side")
        done = 0
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for unit, entry in zip(missing, pool.map(self._one, missing)):
                self.known[str(unit)] = entry
                done += 1
                if not entry["passes"]:
                    say(f"   control fails: {unit} ({entry['how']}): it is left out")
                if done % 200 == 0 or done == len(missing):
                    say(f"   {done} of {len(missing)}")
                    self.save()

    def save(self) -> None:
        self.file.write_text(json.dumps(self.known))

    def _one(self, unit: Unit) -> dict:
        with tempfile.NamedTemporaryFile(prefix="reached-", dir="/dev/shm") as file:
            file.truncate(MOST_FAULTS)
            for attempt in range(2):
                outcome = self.hosts.run(unit.program, unit.way, [unit.case], 300, {"NUPA_MUTANT_REACHED": file.name})
                if unit.case in outcome.passed and not outcome.ended_in:
                    break
            with mmap.mmap(file.fileno(), MOST_FAULTS, access=mmap.ACCESS_READ) as table:
                content = table[:]
                reached = [i for i in range(1, MOST_FAULTS) if content[i]] if content.strip(b"\0") else []
        passes = unit.case in outcome.passed and not outcome.ended_in
        return {"seconds": outcome.seconds, "passes": passes, "reached": reached, "stamp": self.stamps[unit.program],
                "how": "" if passes else outcome.ended_by or "failed"}


# Programs that link or start what else the build makes, instead of holding its objects.
LINKED = {"verbs_tests", "rdmacm_tests", "rsockets_api_tests", "rsockets_preload_tests", "ccl_job_tests", "cli_tests"}


class Trials:
    def __init__(self, hosts: Hosts, record: Record, units: list[Unit], most: int | None = None):
        self.most = most  # tests for a fault
        self.hosts = hosts
        self.units = [u for u in units if record.known[str(u)]["passes"]]
        self.seconds = {u: record.known[str(u)]["seconds"] for u in self.units}
        self.reached = {u: set(record.known[str(u)]["reached"]) for u in self.units}

    def limit(self, units: list[Unit]) -> float:
        return ALLOWANCE_SECONDS + TIMES_AS_LONG * sum(self.seconds[u] for u in units)

    def trial(self, name: str, number: int, first: list[str], is_same: Callable[[], bool | None]) -> Verdict:
        """Runs the cases that reach a fault until one notices it. is_same() asks the compiler."""
        since = time.monotonic()
        reaching = [u for u in self.units if number in self.reached[u]]
        verdict = Verdict(name, False, reached=len(reaching))
        hinted = matching(reaching, first) if first else []
        rest = sorted((u for u in reaching if u not in set(hinted)), key=lambda u: len(self.reached[u]))[: self.most]
        todo = [c for part in (hinted, rest[:NEAR], rest[NEAR:]) for c in chunks(part, self.seconds, CHUNK_SECONDS)]
        asked = False
        while todo and not verdict.noticed:
            if not asked and time.monotonic() - since > ASK_COMPILER_SECONDS:
                asked = True
                verdict.same = bool(is_same())
                if verdict.same:
                    break
            chunk = todo.pop(0)
            outcome = self._run(chunk, number)
            case = outcome.first_failure
            if not case:
                continue
            unit = next((u for u in chunk if u.case == case), chunk[0])
            if self._repeats(unit, number):
                verdict.noticed, verdict.by = True, str(unit)
                verdict.how = outcome.ended_by or "assertion"
                verdict.words = _words(outcome)
            else:
                verdict.unsure.append(str(unit))
                left = [u for u in chunk if u.case not in outcome.passed and u != unit]
                if left:
                    todo.insert(0, left)
        if not verdict.noticed and not asked:
            verdict.same = bool(is_same())
        verdict.seconds = time.monotonic() - since
        return verdict

    def _run(self, units: list[Unit], number: int) -> Outcome:
        environment = {"NUPA_MUTANT": str(number)} if number else {}
        return self.hosts.run(units[0].program, units[0].way, [u.case for u in units], self.limit(units), environment)

    def _repeats(self, unit: Unit, number: int) -> bool:
        """Whether a case alone fails with the fault twice in three runs, and never without it."""
        failures = 0
        for turn in range(3):
            failures += bool(self._run([unit], number).first_failure)
            if failures == 2 or failures + 2 - turn < 2:
                break
        return failures >= 2 and not any(self._run([unit], 0).first_failure for _ in range(2))


def _words(outcome: Outcome) -> str:
    """The first failure's first lines."""
    at = outcome.log.find(": Failure")
    if at < 0:
        return outcome.ended_by
    lines = outcome.log[at:].splitlines()[1:4]
    return " / ".join(line.strip() for line in lines)[:200]
