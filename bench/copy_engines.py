#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures large RDMA WRITEs over shared memory with each copy engine, beside the copy by the thread that posts. Each round runs
bench/large_writes once with each engine. The report has medians, and the medians of the rounds' ratios."""
import argparse
import json
import os
import statistics
import sys

import machine
from items import MIB, size_name
from pairs import Disturbance, Failed, choose_cores, run_alone
from text import heading, markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = [MIB, 16 * MIB, 64 * MIB]
THRESHOLD_SIZES = [16 << 10, 64 << 10, 256 << 10, MIB]
PLAIN = "none"


def measure_once(build, cores, engine, sizes, mib):
    """Returns {size: {figure: value}}."""
    command = [os.path.join(build, "bin", "nupa"), "run", "--", os.path.join(build, "bench", "large_writes"), "--cores",
               "%d,%d" % cores, "--sizes", ",".join(map(str, sizes)), "--mib", str(mib)]
    environment = {"NUPA_TRANSPORT": "shm", "NUPA_COPY_ENGINE": engine, "NUPA_COPY_ENGINE_BYTES": "1"}
    # Both cores: the program places its threads itself.
    text = run_alone(["taskset", "-c", "%d,%d" % cores] + command, cores[0], environment)
    return {int(size): figures for size, figures in json.loads(text.strip().splitlines()[-1]).items()}


def measure(build, cores, engines, sizes, rounds, mib):
    """Returns ({engine: [{size: figures} of each round]}, [share of the cores that other programs used])."""
    found, disturbed = {engine: [] for engine in engines}, []
    for number in range(rounds):
        for engine in engines:
            print("round %d of %d: %s" % (number + 1, rounds, engine), file=sys.stderr, flush=True)
            disturbance = Disturbance(cores)
            found[engine].append(measure_once(build, cores, engine, sizes, mib))
            disturbed.append(disturbance.share())
    return found, disturbed


def value(found, engine, size, figure):
    return statistics.median(each[size][figure] for each in found[engine])


def ratio(found, engine, size, figure):
    """Returns the median of the rounds' ratios to the copy by the poster."""
    return statistics.median(ours[size][figure] / plain[size][figure]
                             for ours, plain in zip(found[engine], found[PLAIN]) if plain[size][figure] > 0)


HEAD = ("engine", "size", "in `ibv_post_send`, us", "poster's processor time, us", "of the plain copy", "process, us", "GB/s",
        "of the plain copy", "overlap")


def rows_of(found, sizes):
    rows = []
    for size in sizes:
        for engine in found:
            beside = [engine, size]
            rows.append([engine, size_name(size), "%.1f" % value(found, *beside, "post_us"),
                         "%.1f" % value(found, *beside, "poster_us"),
                         "" if engine == PLAIN else "%.3f" % ratio(found, *beside, "poster_us"),
                         "%.1f" % value(found, *beside, "process_us"), "%.2f" % value(found, *beside, "gb_s"),
                         "" if engine == PLAIN else "%.2f" % ratio(found, *beside, "gb_s"),
                         "%.2f" % value(found, *beside, "overlap")])
    return rows


def document(about, rows, threshold_rows, disturbed):
    lines = ["# Performance of copy engines", "",
             "Written by `%s` on %s. `bench/large_writes` posts RDMA WRITEs over shared memory from one process to another that "
             "sleeps. In each of %d rounds it runs once with each copy engine ([design](../design/copy-engines.md)). The figures "
             "are medians. \"of the plain copy\" is the median of the rounds' ratios to the copy by the thread that posts "
             "(`NUPA_COPY_ENGINE=none`) in the same round." % (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (heading(name), about[name]) for name in ("cpu", "caches", "memory", "system")]
    lines += ["- The thread that posts runs on core %d. The library's threads may also run on core %d."
              % tuple(reversed(about["cores"])),
              "- Others used %.0f %% of the two cores, or of their speed, at the median; %.0f %% at most."
              % (100 * statistics.median(disturbed), 100 * max(disturbed)),
              "", "## Large requests", "",
              "The first two times are processor times of the thread that posts: within the call, and until it has polled the "
              "completion, if it sleeps in `ibv_get_cq_event` meanwhile. The third is that of all threads of the process. The "
              "bandwidth is that of one WRITE after the other, with polling. Overlap is the part of the copy that runs beside a "
              "computation of the same length in registers, with a poll every 50 us: 1 is all of it.", ""]
    lines += markdown(HEAD, rows)
    lines += ["", "## The threshold", "",
              "The same with shorter requests. The default of `NUPA_COPY_ENGINE_BYTES` is a length from which the engine takes "
              "less of the poster's time than the copy.", ""]
    lines += markdown(HEAD, threshold_rows)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mib", type=int, default=512, help="MiB of each measurement (default %(default)s)")
    parser.add_argument("--engines", default="thread", help="the engines beside none: thread,dsa (default %(default)s)")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/copy-engines.md")
    chosen = parser.parse_args()
    for program in ("bin/nupa", "bench/large_writes"):
        if not os.access(os.path.join(chosen.build, program), os.X_OK):
            print("bench/copy_engines.py: no file %s: build it first" % os.path.join(chosen.build, program), file=sys.stderr)
            return 2
    cores = choose_cores()
    engines = [PLAIN] + chosen.engines.split(",")
    command = "bench/copy_engines.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds, packages=())
    try:
        found, disturbed = measure(chosen.build, cores, engines, SIZES, chosen.rounds, chosen.mib)
        short, disturbed_too = measure(chosen.build, cores, engines, THRESHOLD_SIZES, chosen.rounds, max(1, chosen.mib // 32))
    except Failed as failure:
        print("bench/copy_engines.py: %s" % failure, file=sys.stderr)
        return 1
    folder = os.path.join(chosen.build, "bench")
    with open(os.path.join(folder, "copy_engines.json"), "w") as out:
        json.dump({"machine": about, "large": found, "short": short}, out, indent=1)
    text = document(about, rows_of(found, SIZES), rows_of(short, THRESHOLD_SIZES), disturbed + disturbed_too)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "copy-engines.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
