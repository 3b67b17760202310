# SPDX-License-Identifier: Apache-2.0
"""scripts/mutants: puts faults into the code, one at a time, and sees which of them the tests notice."""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import sys

import faults as fault_list
import sample as sampling
from source import Sources
from switch import Edit
from tree import Tree, Wanted, say
from trial import Record, Trials, Verdict
from units import Hosts, matching

ROOT = pathlib.Path(__file__).resolve().parents[3]
LISTS = ROOT / "tests" / "mutants"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/mutants", description="Puts the faults of tests/mutants/*.toml into the code, one at a time, and runs the tests "
        "that reach each of them. A fault that no test notices is a rule that no test watches.")
    parser.add_argument("command", choices=("check", "build", "run", "table", "sample"), help=(
        "check: finds each fault in the code. build: compiles all of them behind a switch (build-mutants/). run: builds, and tries them. "
        "table: prints the results again. sample: the same with a random sample of an ordinary mutation tool."))
    parser.add_argument("names", nargs="*", help="names of faults, with wildcards, or files of the list, such as core.toml (default: all)")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="programs side by side (default %(default)s)")
    parser.add_argument("--tests", nargs="*", default=[], metavar="PROGRAM:CASE:TRANSPORT",
                        help="only these tests, with wildcards, for example 'sim_tests' 'verbs_tests:VerbsCq.*:roce'")
    parser.add_argument("--hinted", action="store_true", help="only the tests that each fault names, for a quick look")
    parser.add_argument("--no-build", action="store_true", help="use the existing build")
    parser.add_argument("--resume", action="store_true", help="skip unchanged faults that have a result")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default %(default)s)")
    parser.add_argument("--count", type=int, default=300, help="size of the sample (default %(default)s)")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="skip the first N of the sample")
    parser.add_argument("--most", type=int, metavar="N", help=(
        "at most N tests for each fault, first those that reach few others: what they do not notice counts as unnoticed, "
        "though a test of the rest may notice it"))
    return parser.parse_args()


class Results:
    def __init__(self, folder: pathlib.Path):
        self.file = folder / "results.json"
        self.known: dict[str, dict] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def put(self, verdict: Verdict, text: str) -> None:
        self.known[verdict.name] = vars(verdict) | {"text": text}
        self.file.write_text(json.dumps(self.known, indent=1))

    def table(self, faults: list[fault_list.Fault]) -> bool:
        """Prints what is known of these faults; whether all that can be noticed are."""
        counts = {"noticed": 0, "explained": 0, "unnoticed": 0, "not tried": 0}
        rows, kinds = [], {}
        for fault in faults:
            result = self.known.get(fault.name)
            if result is None:
                state, detail = "not tried", ""
            elif result["noticed"]:
                state, detail = "noticed", f"{result['by']} ({result['how']})"
            else:
                why = fault.unnoticed or ("equivalent: the compiler makes the same code of it" if result.get("same") else "")
                state = "explained" if why else "unnoticed"
                detail = why or f"{result['reached']} tests reach it"
            counts[state] += 1
            noticed, tried = kinds.get(fault.kind, (0, 0))
            kinds[fault.kind] = (noticed + (state == "noticed"), tried + (state != "not tried"))
            rows.append((state.upper() if state == "unnoticed" else state, fault.name, f"{fault.path}", detail))
        width = [max((len(r[i]) for r in rows), default=0) for i in range(3)]
        for row in rows:
            print("  ".join(row[i].ljust(width[i]) for i in range(3)) + "  " + row[3])
        tried = len(faults) - counts["not tried"]
        if tried:
            print()
            for kind, (noticed, all_of_them) in sorted(kinds.items()):
                print(f"{kind:16} {noticed:4} of {all_of_them:4} noticed")
            print(f"{'all':16} {counts['noticed']:4} of {tried:4} noticed, {100 * counts['noticed'] / tried:.1f} %; "
                  f"{counts['explained']} explained, {counts['unnoticed']} unnoticed, {counts['not tried']} not tried")
        return counts["unnoticed"] == 0


def chosen(names: list[str]) -> list[fault_list.Fault]:
    everything = fault_list.read(sorted(LISTS.glob("*.toml")))
    if not names:
        return everything
    names = [n.removesuffix(".toml") for n in names]
    picked = [f for f in everything if any(fnmatch.fnmatch(f.name, n) or fnmatch.fnmatch(f.list, n) for n in names)]
    if not picked:
        sys.exit(f"mutants: no fault is named {' or '.join(names)}")
    return picked


def located(faults: list[fault_list.Fault], sources: Sources) -> list[fault_list.Fault]:
    """Those that are found in the code; says of each other why not."""
    found = []
    for fault in faults:
        try:
            fault_list.find(fault, sources)
            found.append(fault)
        except fault_list.BadFault as error:
            say(f"NOT FOUND {error}")
    return found


def try_faults(tree: Tree, faults: list[fault_list.Fault], options: argparse.Namespace) -> None:
    hosts = Hosts(tree.build)
    record = Record(hosts, tree.folder)
    results = Results(tree.folder)
    built = tree.built
    units = hosts.units()
    if options.tests:
        units = matching(units, options.tests)
    elif options.hinted:
        units = matching(units, sorted({t for f in faults for t in f.tests.split()}))
    if not units:
        sys.exit("mutants: no test is chosen")
    record.make(units, options.jobs)
    trials = Trials(hosts, record, units, options.most)
    todo = [f for f in faults if f.name in built]
    if options.resume:
        todo = [f for f in todo if results.known.get(f.name, {}).get("text") != built[f.name]["text"]]
    say(f"== {len(todo)} faults, {len(trials.units)} tests, {options.jobs} side by side")

    def one(fault: fault_list.Fault) -> Verdict:
        def is_same() -> bool | None:
            return tree.same_code(fault.path, Edit(0, fault.place, fault.into))

        return trials.trial(fault.name, built[fault.name]["number"], fault.tests.split(), is_same)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = [pool.submit(one, fault) for fault in todo]
        for done in concurrent.futures.as_completed(running):
            verdict = done.result()
            results.put(verdict, built[verdict.name]["text"])
            if verdict.noticed:
                say(f"noticed    {verdict.name}  {verdict.by} ({verdict.how})  {verdict.seconds:.0f} s")
            elif verdict.same:
                say(f"same code  {verdict.name}  {verdict.seconds:.0f} s")
            else:
                unsure = f"; only sometimes: {', '.join(verdict.unsure)}" if verdict.unsure else ""
                say(f"UNNOTICED  {verdict.name}  {verdict.reached} tests reach it{unsure}  {verdict.seconds:.0f} s")


def main() -> int:
    options = arguments()
    sources = Sources(ROOT)
    try:
        if options.command == "sample":
            folder = ROOT / "build-mutants" / "sample"
            tree = Tree(ROOT, folder)
            everything = sampling.draw(sources, options.seed, folder)
            faults = sampling.build(tree, everything, options.count, skip_build=options.no_build)[options.skip :]
        else:
            folder = ROOT / "build-mutants" / "list"
            tree = Tree(ROOT, folder)
            all_faults = located(chosen([]), sources)
            wanted = {f.name for f in chosen(options.names)}
            faults = [f for f in all_faults if f.name in wanted]
            missing = wanted - {f.name for f in faults}
            say(f"{len(faults)} faults found in the code, {len(missing)} not")
            if options.command == "check":
                return 1 if missing else 0
            if options.command in ("build", "run") and not options.no_build:
                say("== building with all faults")
                refused = tree.make({f.name: Wanted(f.path, f.place, f.into, f"{f.code} ==> {f.into}") for f in all_faults})
                for name, words in refused.items():
                    say(f"REFUSED {name}: {words}")
                if options.command == "build":
                    return 1 if refused else 0
        if options.command in ("run", "sample"):
            try_faults(tree, faults, options)
        return 0 if Results(folder).table(faults) else 1
    except fault_list.BadFault as error:
        say(f"mutants: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
