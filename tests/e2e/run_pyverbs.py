#!/usr/bin/env python3
"""rdma-core's own suite as Debian ships it: no failure, at least 140 of the generic tests pass, over each transport. Each
test is told. The suite looks in sysfs for the network interface of a device, where only the kernel's devices stand; here
it is told the interface."""
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pairs import NUPA, finish, outcome, skip, transports

SHIPPED = "/usr/share/doc/rdma-core/tests"
LEAST = 140


def run_suite(folder, driver):
    done = subprocess.run([NUPA, "run", "--", "/usr/bin/python3", driver, "--dev", "nupa0"], cwd=folder,
                          capture_output=True, text=True, timeout=600)
    passed = 0
    for line in done.stdout.splitlines():
        told = re.match(r"RESULT (\w+) (\S+) ?(.*)", line)
        if not told:
            continue
        result, test, why = told.groups()
        if re.search(r"mlx5|efa|cuda", test, re.I):
            continue  # tests of other vendors' providers
        if result == "ok":
            passed += 1
            outcome(True, "pyverbs " + test)
        elif result == "skipped":
            skip("pyverbs " + test, why)
        else:
            outcome(False, "pyverbs " + test)
    outcome(done.returncode == 0, "pyverbs-no-crash", "status %d: %s" % (done.returncode, done.stderr[-300:]))
    if passed < LEAST or os.environ.get("VERBOSE"):
        sys.stdout.write(done.stderr[-6000:])
    outcome(passed >= LEAST, "pyverbs-at-least-%d" % LEAST, "only %d" % passed)
    if passed < LEAST:
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
import json, subprocess
from tests import base
interface = next((link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-j", "-4", "addr"]))
                  if link["ifname"] != "lo" and link["addr_info"] and "UP" in link["flags"]), "lo")
exists = os.path.exists
os.path.exists = lambda path: "/device/net" in str(path) or exists(path)
base.RDMATestCase.get_net_name = staticmethod(lambda device: interface)
class Told(unittest.TextTestResult):
    def addSuccess(self, test): super().addSuccess(test); print("RESULT ok", test.id(), flush=True)
    def addFailure(self, test, e): super().addFailure(test, e); print("RESULT failed", test.id(), flush=True)
    def addError(self, test, e): super().addError(test, e); print("RESULT failed", test.id(), flush=True)
    def addSkip(self, test, why): super().addSkip(test, why); print("RESULT skipped", test.id(), why, flush=True)
suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
unittest.TextTestRunner(resultclass=Told, verbosity=0).run(suite)
""")
    for transport in transports():
        run_suite(folder, driver)
finally:
    shutil.rmtree(folder)
finish()
