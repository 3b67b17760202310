#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rdma-core's own suite as Debian ships it: no failure, at least 142 of the generic tests pass (139 without huge pages), over each transport. Each
test is told."""
import contextlib
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pairs import NUPA, finish, outcome, skip, transports

SHIPPED = "/usr/share/doc/rdma-core/tests"
LEAST = 140 - 1  # without huge pages
HUGE_PAGES = "/proc/sys/vm/nr_hugepages"


@contextlib.contextmanager
def huge_pages(count):
    """As many huge pages as three tests want, if this user may have them. Gives how many tests more that makes."""
    try:
        with open(HUGE_PAGES) as file:
            before = file.read()
        with open(HUGE_PAGES, "w") as file:
            file.write(str(count))
        with open(HUGE_PAGES) as file:
            there = int(file.read())
    except OSError:
        yield 0
        return
    try:
        yield 3 if there >= count else 0
    finally:
        with open(HUGE_PAGES, "w") as file:
            file.write(before)


def run_suite(folder, driver, more):
    least = LEAST + more
    done = subprocess.run([NUPA, "run", "--", "/usr/bin/python3", driver, "--dev", "nupa0"], cwd=folder,
                          capture_output=True, text=True, timeout=600)
    passed = 0
    for line in done.stdout.splitlines():
        told = re.search(r"RESULT (\w+) (\S+) ?(.*)", line)
        if not told:
            continue
        result, test, why = told.groups()
        if re.search(r"mlx5|\btest_efa|cuda", test, re.I):
            continue  # tests of other vendors' providers
        if result == "ok":
            passed += 1
            outcome(True, "pyverbs " + test)
        elif result == "skipped":
            skip("pyverbs " + test, why)
        else:
            outcome(False, "pyverbs " + test)
    outcome(done.returncode == 0, "pyverbs-no-crash", "status %d: %s" % (done.returncode, done.stderr[-300:]))
    outcome(passed >= least, "pyverbs-at-least-%d" % least, "only %d" % passed)
    if passed < least:
        sys.stdout.write(done.stderr[-3000:])


if not os.path.isdir(SHIPPED):
    outcome(False, "pyverbs", "no %s (package rdma-core, documentation folders kept)" % SHIPPED)
    finish()
folder = tempfile.mkdtemp(prefix="nupa-pyverbs-")
try:
    os.mkdir(os.path.join(folder, "tests"))
    for name in os.listdir(SHIPPED):
        source = os.path.join(SHIPPED, name)
        if name.endswith(".gz"):
            with gzip.open(source) as packed, open(os.path.join(folder, "tests", name[:-3]), "wb") as plain:
                shutil.copyfileobj(packed, plain)
        elif name.endswith(".py"):
            shutil.copy(source, os.path.join(folder, "tests", name))
    # Each test's outcome by unittest itself, since programs' own lines mix with its text.
    driver = os.path.join(folder, "drive.py")
    with open(driver, "w") as text:
        text.write("""
import os, sys, unittest, warnings
warnings.simplefilter("ignore")
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "tests")]
from importlib.machinery import SourceFileLoader
from args_parser import parser
tests = SourceFileLoader("tests", os.path.join(os.getcwd(), "tests", "__init__.py")).load_module()
parser.parse_args()
class Told(unittest.TextTestResult):
    def addSuccess(self, test): super().addSuccess(test); print("RESULT ok", test.id(), flush=True)
    def addFailure(self, test, e): super().addFailure(test, e); print("RESULT failed", test.id(), flush=True)
    def addError(self, test, e): super().addError(test, e); print("RESULT failed", test.id(), flush=True)
    def addSkip(self, test, why): super().addSkip(test, why); print("RESULT skipped", test.id(), why, flush=True)
suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
unittest.TextTestRunner(resultclass=Told, verbosity=0).run(suite)
""")
    with huge_pages(32) as more:
        for transport in transports():
            run_suite(folder, driver, more)
finally:
    shutil.rmtree(folder)
finish()
