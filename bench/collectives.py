#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of NUPA, Open MPI, MPICH and Gloo in turns on this machine, for sizes from 4 B. Prints how many times as
fast NUPA is as the better MPI. Gloo is measured through PyTorch, and compared with NUPA through PyTorch.

Needs openmpi-bin, libopenmpi-dev, mpich and python3-torch. An implementation that is not installed is left out."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import machine

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
NAMES = {"nupa": "NUPA", "allocated": "NUPA, nupa_ccl_alloc", "openmpi": "Open MPI", "mpich": "MPICH",
         "torch": "NUPA in PyTorch", "gloo": "Gloo in PyTorch"}
OTHERS = ("openmpi", "mpich")
LIMIT_S = 1200
MORE_SIZES = 8, 8 << 20, 32  # least size, greatest size, factor between sizes
TYPE_BYTES = 64 << 20


def size_name(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return "%d %s" % (size, unit)
        size //= 1024


def microseconds(value):
    return "" if value is None else "%.3f" % value if value < 1 else "%.2f" % value if value < 100 else "%.0f" % value


class Bench:
    def __init__(self, chosen, folder):
        self.chosen = chosen
        self.folder = folder
        self.ranks = chosen.ranks
        self.nupa = os.path.join(chosen.build, "bin", "nupa")
        self.ways = {"nupa": self.by_nupa, "allocated": lambda operation: self.by_nupa(operation, "--allocated")}
        for name, compiler, launcher in (("openmpi", "mpicc.openmpi", "mpirun.openmpi"), ("mpich", "mpicc.mpich", "mpirun.mpich")):
            if shutil.which(compiler) and shutil.which(launcher):
                program = os.path.join(folder, name)
                subprocess.run([compiler, "-O2", os.path.join(ROOT, "bench", "mpi_collectives.c"), "-o", program], check=True)
                more = ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else []) if name == "openmpi" else []
                self.ways[name] = lambda operation, launcher=launcher, more=more, program=program: self.by_lines(
                    [launcher, *more, "-n", str(self.ranks), program, *self.sizes(), operation])
        if subprocess.run([chosen.python, "-c", "import torch.distributed"], capture_output=True, check=False).returncode == 0:
            self.ways["torch"] = lambda operation: self.by_torch("nupa", operation)
            self.ways["gloo"] = lambda operation: self.by_torch("gloo", operation)

        self.ways = {name: way for name, way in self.ways.items() if name in chosen.ways}

    def sizes(self):
        return [str(self.chosen.least), str(self.chosen.most), str(self.chosen.factor), str(self.chosen.seconds)]

    def run(self, command, **environment):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                              env=dict(os.environ, **environment))
        if done.returncode != 0:
            raise RuntimeError("%s: %s" % (" ".join(command[:6]), done.stderr[-500:]))
        return done.stdout

    def by_nupa(self, operation, *more):
        out = os.path.join(self.folder, "nupa.json")
        self.run([self.nupa, "ccl", "bench", "-n", str(self.ranks), "--operation", operation,
                  "--min-bytes", str(self.chosen.least), "--max-bytes", str(self.chosen.most), "--factor",
                  str(self.chosen.factor), "--min-time", str(self.chosen.seconds), "--json", out, *more])
        with open(out) as file:
            return {(one["operation"], one["bytes"]): one["median_us"] for one in json.load(file)["results"]}

    def by_lines(self, command, **environment):
        found = {}
        for line in self.run(command, **environment).splitlines():
            words = line.split()
            if len(words) == 3 and words[0] in OPERATIONS:
                found[words[0], int(words[1])] = float(words[2])
        return found

    def by_torch(self, backend, operation):
        with tempfile.TemporaryDirectory() as folder:
            return self.by_lines([self.nupa, "launch", "-n", str(self.ranks), "--no-label", "--", self.chosen.python,
                                  os.path.join(ROOT, "bench", "torch_collectives.py"), backend, os.path.join(folder, "store"),
                                  *self.sizes(), operation],
                                 PYTHONPATH=os.path.join(self.chosen.build, "lib", "python"), OMP_NUM_THREADS="1")


def measure(bench, rounds):
    """Measures operation by operation, so that all implementations run under the same load of the machine."""
    samples = {name: [] for name in bench.ways}
    for number in range(rounds):
        for operation in bench.chosen.operations:
            print("round %d of %d: %s" % (number + 1, rounds, operation), file=sys.stderr, flush=True)
            for name, way in bench.ways.items():
                samples[name].append(way(operation))
    return samples


def measure_more(bench, rounds):
    """Returns {ranks: samples} of an all_reduce with more ranks than cores."""
    chosen = bench.chosen
    usual = chosen.least, chosen.most, chosen.factor
    chosen.least, chosen.most, chosen.factor = MORE_SIZES
    found = {}
    for ranks in chosen.more_ranks:
        bench.ranks = ranks
        found[ranks] = {name: [] for name in bench.ways}
        for number in range(rounds):
            print("round %d of %d: %d ranks" % (number + 1, rounds, ranks), file=sys.stderr, flush=True)
            for name, way in bench.ways.items():
                try:
                    found[ranks][name].append(way("all_reduce"))
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print("%s: %s" % (name, error), file=sys.stderr)
    bench.ranks = chosen.ranks
    chosen.least, chosen.most, chosen.factor = usual
    return found


def measure_types(bench, rounds):
    """Returns the ratios of the rates of bfloat16 and float32 elements, as a list for ordinary memory and one for allocated memory."""
    ratios = [], []
    for number in range(rounds):
        for kind, more in enumerate(([], ["--allocated"])):
            took = []
            for name in ("float32", "bfloat16"):
                out = os.path.join(bench.folder, "types.json")
                bench.run([bench.nupa, "ccl", "bench", "-n", str(bench.ranks), "--type", name, "--min-bytes", str(TYPE_BYTES),
                           "--max-bytes", str(TYPE_BYTES), "--min-time", "0.5", "--json", out, *more])
                with open(out) as file:
                    took.append(json.load(file)["results"][0]["median_us"])
            ratios[kind].append(2 * took[0] / took[1])
    return ratios


def medians_of(samples):
    """Returns {(implementation, operation, size): median}."""
    medians = {}
    for name, rounds in samples.items():
        for key in {key for found in rounds for key in found}:
            medians[name, *key] = statistics.median(found[key] for found in rounds if key in found)
    return medians


def ratio(other, own):
    return "" if other is None or own is None else "%.2f" % (other / own)


def rows_of(medians, operation):
    sizes = sorted({key[2] for key in medians if key[1] == operation})
    rows = []
    for size in sizes:
        value = {name: medians.get((name, operation, size)) for name in NAMES}
        others = [value[name] for name in OTHERS if value[name] is not None]
        best = min(others) if others else None
        rows.append([size_name(size)] + [microseconds(value[name]) for name in ("nupa", "allocated", "openmpi", "mpich")]
                    + [ratio(best, value["nupa"]), ratio(best, value["allocated"])]
                    + [microseconds(value["torch"]), microseconds(value["gloo"]), ratio(value["gloo"], value["torch"])])
    return rows


HEAD = ("size", "NUPA", "allocated", "Open MPI", "MPICH", "times as fast", "allocated", "NUPA in PyTorch", "Gloo in PyTorch",
        "times as fast")


def table(medians, operation):
    lines = ["", "| " + " | ".join(HEAD) + " |", "|---" + "|---:" * (len(HEAD) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows_of(medians, operation)]


def document(about, medians, operations, more, types):
    lines = ["# Performance of collectives", "",
             "Written by `%s` on %s; medians of %d rounds, in each of which all take their turns. Microseconds an operation on "
             "float32, the slowest rank's. Times as fast: as the better of the two MPIs; as Gloo." %
             (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "caches", "system", "programs")]
    for operation in operations:
        lines += ["", "## %s" % operation] + table(medians, operation)
    for ranks, samples in more.items():
        lines += ["", "## all_reduce of %d ranks on %d cores" % (ranks, os.cpu_count())] + table(medians_of(samples), "all_reduce")
    if types:
        lines += ["", "## bfloat16", "",
                  "An all_reduce of %s reduces %.2f times as many bfloat16 in a second as float32, and %.2f times of nupa_ccl_alloc."
                  % (size_name(TYPE_BYTES), *(statistics.median(ratios) for ratios in types))]
    return "\n".join(lines) + "\n"


def arguments(description, least, most, factor, seconds):
    """Returns a parser with the options that the benchmarks of collectives share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--python", default="/usr/bin/python3", help="the interpreter that the backend was built for (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--operations", type=lambda text: text.split(","), default=list(OPERATIONS))
    parser.add_argument("--least", type=int, default=least)
    parser.add_argument("--most", type=int, default=most)
    parser.add_argument("--factor", type=int, default=factor)
    parser.add_argument("--seconds", type=float, default=seconds, help="seconds to measure each size (default %(default)s)")
    parser.add_argument("--write", metavar="FILE", help="also write the page to this file")
    return parser


def publish(text, path):
    if path:
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
    print(text)


def main():
    parser = arguments(__doc__, 4, 256 << 20, 4, 0.2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--more-ranks", type=lambda text: [int(word) for word in text.split(",")], default=[],
                        help="also measure all_reduce with these numbers of ranks, for example 4,8")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(NAMES), help=", ".join(NAMES))
    chosen = parser.parse_args()
    command = "bench/collectives.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, (0, 1), command, chosen.rounds, ("openmpi-bin", "mpich", "python3-torch"))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(chosen, folder)
        samples = measure(bench, chosen.rounds)
        more = measure_more(bench, chosen.rounds)
        types = measure_types(bench, chosen.rounds) if "nupa" in bench.ways else ()
    text = document(about, medians_of(samples), chosen.operations, more, types)
    publish(text, chosen.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
