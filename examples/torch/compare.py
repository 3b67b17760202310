#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains by nupa and by gloo in turn. Prints how far their losses differ, and how much faster nupa is:

    compare.py [--ranks 2,4] [--rounds 2] [arguments of train.py]"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("NUPA_BUILD", HERE.parents[1] / "build"))


def train(backend, ranks, more, python):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "losses")
        subprocess.run([BUILD / "bin" / "nupa", "launch", "-n", str(ranks), "--no-label", "--", python,
                        HERE / "train.py", "--backend", backend, "--store", os.path.join(folder, "store"), "--out", out,
                        *more],
                       check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, PYTHONPATH=str(BUILD / "lib" / "python"), OMP_NUM_THREADS="1"))
        with open(out, encoding="utf-8") as file:
            result = json.load(file)
    return [float.fromhex(loss) for loss in result["losses"]], result["rate"]


def compare(ranks, rounds, more, python):
    losses, rates = {}, {"nupa": [], "gloo": []}
    for _ in range(rounds):
        for backend in rates:
            curve, rate = train(backend, ranks, more, python)
            if losses.setdefault(backend, curve) != curve:
                print("%d ranks: two runs by %s differ" % (ranks, backend))
            rates[backend].append(rate)
    print("%d ranks, %d steps" % (ranks, len(losses["nupa"])))
    print("  step       nupa       gloo")
    for step in sorted({*range(0, len(losses["nupa"]), max(len(losses["nupa"]) // 6, 1)), len(losses["nupa"]) - 1}):
        print("  %4d  %9.6f  %9.6f" % (step, losses["nupa"][step], losses["gloo"][step]))
    apart = [abs(one - other) for one, other in zip(losses["nupa"], losses["gloo"])]
    if max(apart) == 0:
        print("  the losses are equal to the last bit")
    else:
        first = next(step for step, difference in enumerate(apart) if difference > 0)
        print("  the losses differ from step %d on, by %.1e at most" % (first, max(apart)))
    nupa, gloo = (statistics.median(rates[backend]) for backend in ("nupa", "gloo"))
    print("  nupa %.0f, gloo %.0f characters/s (median of %d): %.2f times as many" % (nupa, gloo, rounds, nupa / gloo),
          flush=True)


def run():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--python", default="/usr/bin/python3", help="the one that the backend was built for")
    options, more = parser.parse_known_args()
    for ranks in map(int, options.ranks.split(",")):
        compare(ranks, options.rounds, more, options.python)


def main():
    try:
        run()
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        sys.exit("compare.py: %s: exit status %d (the reason is above)" % (command, error.returncode))
    except OSError as error:  # names the file
        sys.exit("compare.py: %s" % error)


main()
