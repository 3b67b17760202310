#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nupa ccl bench`, `plan` and `trace`: what they show, that wrong results and wrong words are told, and how they end."""
import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pairs import NUPA, descendants, finish, nupa, outcome, private_runtime_dir, skip, stop, tell, transports, wait_for

private_runtime_dir()
SOON = 60  # seconds for what takes far less
DRAW = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench", "ccl_page.py")
OPERATIONS = ["barrier", "broadcast", "gather", "scatter", "all_gather", "all_to_all", "reduce", "all_reduce",
              "reduce_scatter", "scan", "exscan"]
TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
         "float64", "float8_e4m3", "float8_e5m2"]
work = tempfile.mkdtemp(prefix="nupa-ccl-bench-")


def bench(*options, **more):
    return nupa("ccl", "bench", *options, seconds=SOON, **more)


def results(name, *options, **more):
    """The JSON of a run that has to end well."""
    path = os.path.join(work, "results.json")
    done = bench(*options, "--json", path, **more)
    if done.returncode != 0:
        outcome(False, name, "status %s, %s" % (done.returncode, (done.stdout + done.stderr)[-300:]))
        return None
    with open(path) as file:
        told = json.load(file)
    os.remove(path)
    return told


def all_operations():
    """Every operation is right, in place too, with a root that is not the first one."""
    for ranks in (2, 4):
        for place in ((), ("--in-place",)):
            name = "ccl-bench-%d-ranks%s" % (ranks, " ".join(place))
            told = results(name, "-n", str(ranks), "--operation", "all", "--max-bytes", "64K", "--factor", "64",
                           "--iterations", "4", "--root", str(ranks - 1), *place)
            if told is None:
                continue
            rows = told["results"]
            wrong = [row for row in rows if row["check"] != ("-" if row["operation"] == "barrier" else "ok") or
                     not 0 < row["minimum_us"] <= row["median_us"] or ": " not in row["algorithm"]]
            shown = list(dict.fromkeys(row["operation"] for row in rows))
            outcome(not wrong and shown == OPERATIONS and told["ranks"] == ranks and len(rows) > 2 * len(OPERATIONS) and
                    told["in_place"] == bool(place), name, "%s, operations %s" % (wrong, shown))


def all_types():
    wrong = []
    for kind in TYPES:
        told = results("ccl-bench-type " + kind, "-n", "2", "--type", kind, "--operation", "all_reduce,all_to_all",
                       "--max-bytes", "16K", "--factor", "1024", "--iterations", "1", "--op", "product")
        rows = told["results"] if told else []
        wrong += [(kind, row) for row in rows if row["check"] != "ok"] + ([] if rows else [kind])
    for op in ("sum", "min", "max", "average", "bit_and", "bit_or", "bit_xor", "logical_and", "logical_or",
               "logical_xor"):
        told = results("ccl-bench-op " + op, "-n", "2", "--type", "int16", "--op", op, "--max-bytes", "16K", "--factor",
                       "1024", "--iterations", "1")
        wrong += [(op, row) for row in (told["results"] if told else [{}]) if row.get("check") != "ok"]
    outcome(not wrong, "ccl-bench-types-and-operators", wrong)


def bandwidths():
    """Those of nccl-tests, of what is said beside."""
    factors = {"broadcast": 1, "all_gather": .75, "reduce": 1, "all_reduce": 1.5, "reduce_scatter": .75, "all_to_all": .75}
    told = results("ccl-bench-bandwidths", "-n", "4", "--operation", ",".join(factors), "--min-bytes", "64K",
                   "--max-bytes", "64K", "--iterations", "2")
    wrong = []
    for row in told["results"] if told else [None]:
        whole = row and row["bytes"] / row["median_us"] / 1000
        blocks = 4 if row and row["operation"] in ("all_gather", "reduce_scatter", "all_to_all") else 1
        if not row or row["bytes"] != 65536 or row["count"] * blocks * 4 != row["bytes"] or \
                abs(row["algorithm_gbs"] / whole - 1) > 1e-6 or \
                abs(row["bus_gbs"] / whole / factors[row["operation"]] - 1) > 1e-6:
            wrong.append(row)
    outcome(not wrong, "ccl-bench-bandwidths", wrong)


def table():
    done = nupa("launch", "-n", "2", "--no-label", "--", NUPA, "ccl", "bench", "--max-bytes", "256", "--min-time", "0.01")
    rows = re.findall(r"^ +(\d+) +(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+  ok +\S+$", done.stdout, re.M)
    outcome(done.returncode == 0 and not re.sub(r"^nupa: waiting for .*\n", "", done.stderr, flags=re.M) and
            rows == [("4", "1"), ("16", "4"), ("64", "16"), ("256", "64")], "ccl-bench-in-a-job",
            "status %s, %r" % (done.returncode, (done.stdout + done.stderr)[-400:]))
    done = bench("-n", "3", "--operation", "all_gather", "--type", "float64", "--max-bytes", "24", "--factor", "2",
                 "--iterations", "1", "--no-check")
    rows = re.findall(r"^ +(\d+) +(\d+) .* -  +\S+$", done.stdout, re.M)
    outcome(rows == [("24", "1")], "ccl-bench-smallest-sizes", done.stdout)


class Page(html.parser.HTMLParser):
    """Counts elements, and whether each is closed where it has to be."""
    EMPTY = ("meta", "circle", "rect", "path", "line", "polyline")

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.count = [], [], {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def page():
    path = os.path.join(work, "page.json")
    made = bench("-n", "2", "--operation", "barrier,all_reduce,scan", "--max-bytes", "1K", "--iterations", "1", "--json",
                 path)
    done = subprocess.run([DRAW, path], capture_output=True, text=True, timeout=SOON)
    text = done.stdout
    seen = Page(text)
    # Two plots, one with the bus bandwidth, which a scan has not; 3 tables of 1 + 5 + 5 sizes and their heads.
    outcome(made.returncode == done.returncode == 0 and not seen.wrong and not seen.open and seen.count.get("section") == 5 and
            seen.count.get("tr") == 14 and seen.count.get("polyline") == 6 and "http" not in text, "ccl-bench-page",
            "status %s, %s, not closed %s %s, %s" % (done.returncode, seen.count, seen.open, seen.wrong, done.stderr[-300:]))
    tell("ccl-bench-page-of-nothing", subprocess.run([DRAW, "/nonexistent.json"], capture_output=True, text=True, timeout=SOON), 1,
         "/nonexistent.json")
    tell("ccl-bench-json-nowhere", bench("-n", "2", "--json", "/nonexistent/page.json"), 1, "/nonexistent/page.json")


WRONG_SUM = r"""
#include <dlfcn.h>
#include <nupa/ccl.h>
#include <stdlib.h>
#include <string.h>
// One element comes out wrong, of rank 1's large arrays.
int nupa_ccl_all_reduce(const void* in, void* out, size_t count, nupa_ccl_type type, nupa_ccl_op op, nupa_ccl_comm* comm,
                        nupa_ccl_request** request) {
  int (*real)(const void*, void*, size_t, nupa_ccl_type, nupa_ccl_op, nupa_ccl_comm*, nupa_ccl_request**);
  *(void**)&real = dlsym(RTLD_NEXT, "nupa_ccl_all_reduce");
  const int error = real(in, out, count, type, op, comm, request);
  if (strcmp(getenv("NUPA_RANK"), "1") == 0 && type == NUPA_CCL_FLOAT32 && count > 100) ((float*)out)[77] += 1;
  if (strcmp(getenv("NUPA_RANK"), "1") == 0 && type == NUPA_CCL_INT8 && count > 100) ((char*)out)[count - 1] ^= 1;
  return error;
}
"""


def wrong_results():
    if shutil.which("gcc") is None:
        return skip("ccl-bench-wrong-result", "no gcc")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    library = os.path.join(work, "wrong_sum.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-I" + root + "/include", "-x", "c", "-", "-o", library],
                   input=WRONG_SUM, text=True, check=True)
    for kind, element in (("float32", 77), ("int8", 1023)):
        done = bench("-n", "2", "--type", kind, "--min-bytes", "16", "--max-bytes", "1K", "--factor", "64",
                     "--iterations", "1", env={"LD_PRELOAD": library})
        tell("ccl-bench-wrong-result " + kind, done, 1,
             "nupa: ccl: rank 1: all_reduce of 1 KiB: element %d is " % element, ", expected ", "(1 of %d elements are wrong)" %
             (256 if kind == "float32" else 1024), "1 of 2 results are wrong", "  ok ", "  wrong ")


def plans():
    for ranks in (1, 4):
        done = nupa("ccl", "plan", "--ranks", str(ranks), "--json")
        rows = json.loads(done.stdout or "[]")
        shown = list(dict.fromkeys(row["operation"] for row in rows))
        gaps = [(one, other) for one, other in zip(rows, rows[1:]) if one["operation"] == other["operation"] and
                (one["max_bytes"] >= other["min_bytes"] or one["algorithm"] == other["algorithm"])]
        outcome(done.returncode == 0 and shown == OPERATIONS and not gaps and
                all(row["algorithm"] and row["why"] for row in rows), "ccl-plan-%d-ranks" % ranks,
                "status %s, %s, %s" % (done.returncode, shown, gaps))
    tell("ccl-plan", nupa("ccl", "plan", "-n", "2", "--operation", "all_reduce", "--type", "int8"), 0, "all_reduce\n", "1 B to ")
    # The plan is what runs, with the user's wish too.
    wish = {"NUPA_CCL_ALGO": "all_reduce=slices"}
    rows = json.loads(nupa("ccl", "plan", "-n", "2", "--operation", "all_reduce", "--json", env=wish).stdout or "[]")
    told = results("ccl-plan-by-wish", "-n", "2", "--max-bytes", "64", "--iterations", "1", env=wish)
    named = {row["algorithm"].split(":")[0] for row in told["results"]} if told else set()
    outcome([row["algorithm"] for row in rows] == ["slices"] and named == {"slices"}, "ccl-plan-by-wish",
            "%s, %s" % (rows, named))


def traces():
    """A run that is traced: a file a rank, and all of them in one."""
    folder = os.path.join(work, "traces")
    os.mkdir(folder)
    done = bench("-n", "3", "--operation", "all", "--max-bytes", "64K", "--factor", "256", "--iterations", "2",
                 env={"NUPA_CCL_TRACE": folder})
    files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    wrong = [] if done.returncode == 0 and len(files) == 3 else [done.stderr[-300:], files]
    for rank, path in enumerate(files):
        with open(path) as file:
            events = json.load(file)
        whole = [event for event in events if event["ph"] == "X" and "number" in event["args"]]
        times = [event["ts"] for event in whole]
        shown = {event["name"] for event in whole}
        if not set(OPERATIONS) <= shown or times != sorted(times) or {event["pid"] for event in whole} != {rank} or \
                not all(event["args"]["algorithm"] and event["dur"] >= 0 for event in whole):
            wrong.append((path, sorted(shown), len(times)))
    outcome(not wrong, "ccl-bench-traced", wrong)
    merged = os.path.join(work, "all.json")
    done = nupa("ccl", "trace", *files, "-o", merged)
    events = json.load(open(merged)) if done.returncode == 0 else []
    begins = {}
    for event in events:
        if event["name"] == "barrier" and event["ph"] == "X":
            begins.setdefault(event["pid"], (event["ts"], event["ts"] + event["dur"]))
    # Nobody leaves the first barrier before the last one has come to it.
    met = max(begin for begin, _ in begins.values()) <= min(end for _, end in begins.values()) if begins else False
    outcome(done.returncode == 0 and {event["pid"] for event in events} == {0, 1, 2} and met, "ccl-trace-merged",
            "status %s, %s, %s" % (done.returncode, done.stderr, begins))
    tell("ccl-trace-none", nupa("ccl", "trace", os.path.join(folder, "none.json")), 1, "none.json: No such file")
    with open(os.path.join(folder, "other.json"), "w") as file:
        file.write('[{"name":"x"}]')
    tell("ccl-trace-of-another", nupa("ccl", "trace", file.name), 1, "other.json: is not a trace of a rank")
    tell("ccl-trace-full-disk", nupa("ccl", "trace", *files, "-o", "/dev/full"), 1, "/dev/full: No space left")


def checked():
    """What is right stays right in the checking mode."""
    told = results("ccl-bench-checked", "-n", "3", "--operation", "all", "--max-bytes", "16K", "--factor", "1024",
                   "--iterations", "2", env={"NUPA_CCL_CHECK": "1"})
    rows = told["results"] if told else []
    wrong = [row for row in rows if row["check"] not in ("ok", "-")]
    outcome(rows and not wrong, "ccl-bench-checked", wrong)


def wrong_usage():
    for arguments in ([], ["frobnicate"], ["bench"], ["plan"], ["bench", "-n", "0"],
                      ["bench", "-n", "2", "--operation", "frobnicate"],
                      ["bench", "-n", "2", "--operation", "reduce,frobnicate"], ["bench", "-n", "2", "--operation", ""],
                      ["bench", "-n", "2", "--type", "int9"], ["bench", "-n", "2", "--op", "plus"],
                      ["bench", "-n", "2", "--op", "bit_or"], ["bench", "-n", "2", "--root", "2"],
                      ["bench", "-n", "2", "--operation", "scan", "--op", "average"],
                      ["bench", "-n", "2", "--min-bytes", "8", "--max-bytes", "4"],
                      ["bench", "-n", "2", "--max-bytes", "many"], ["bench", "-n", "2", "--factor", "1"],
                      ["bench", "-n", "2", "--iterations", "0"],
                      ["bench", "-n", "2", "--iterations", "1", "--min-time", "1"],
                      ["plan", "-n", "2", "--operation", "frobnicate"], ["plan", "-n", "2", "--type", "int9"],
                      ["trace"]):
        done = nupa("ccl", *arguments)
        outcome(done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and
                done.stderr.startswith("nupa: "), "ccl-wrong-usage " + " ".join(arguments),
                "status %s, out %r, err %r" % (done.returncode, done.stdout[-100:], done.stderr[-200:]))
    done = nupa("launch", "-n", "2", "--", NUPA, "ccl", "bench", "-n", "3")
    tell("ccl-other-number-of-ranks", done, 1, "--ranks 3: this process belongs to a job of 2 ranks")


def is_running(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def killed_rank():
    """While operations run: the job ends, with the rank's signal as its status."""
    for victim in range(2):
        with tempfile.TemporaryFile() as out:
            job = subprocess.Popen([NUPA, "ccl", "bench", "-n", "3", "--max-bytes", "1K", "--min-time", "30"], stdout=out,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
            try:
                wait_for(lambda: b"3 ranks" in os.pread(out.fileno(), 1 << 16, 0), SOON)
                time.sleep(1)  # sleep: the kill comes amid the first size, which takes 30 s and prints nothing before its end
                members = descendants(job.pid)
                os.kill(members[victim], signal.SIGKILL)
                try:
                    status = job.wait(SOON)
                except subprocess.TimeoutExpired:
                    status = "still running"
                left = list(filter(is_running, members))
                said = os.pread(out.fileno(), 1 << 16, 0).decode()
                outcome(status == 137 and not left and "was killed by signal 9" in said,
                        "ccl-bench-rank-%d-is-killed" % victim, "status %s, left %s: %s" % (status, left, said))
            finally:
                stop(job)


try:
    if "no collectives" in nupa("ccl").stderr:
        skip("ccl-bench", "this build has no collectives")
        finish()
    for _ in transports():
        all_operations()
        killed_rank()
    all_types()
    bandwidths()
    table()
    page()
    wrong_results()
    plans()
    traces()
    checked()
    wrong_usage()
finally:
    shutil.rmtree(work, ignore_errors=True)
finish()
