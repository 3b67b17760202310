#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The limit on the time of a GoogleTest case (tests/support/case_limit.h): a case that hangs or ends the process fails by
its name, and the cases after it run. The limit on the steps of these scripts (pairs.py): one that hangs or breaks off has
an outcome that says where."""
import os
import re
import subprocess
import sys
import tempfile
from pairs import BUILD, ROOT, finish, outcome, skip, wait_for

PROGRAM = os.path.join(BUILD, "tests", "case_limit_cases")
LONG = "60"  # for cases that do not hang, however busy the machine is


def run(cases, seconds="1", options=(), **env):
    """Runs cases: status, output, and lists of the cases that passed and failed, as scripts/test reads them. `seconds`:
    the limit of each."""
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run([PROGRAM, "--gtest_filter=" + cases, *options], stdout=out, stderr=subprocess.PIPE, timeout=120,
                              env=dict(os.environ, NUPA_TEST_CASE_SECONDS=seconds, **env))
        out.seek(0)
        text = out.read()
    passed = re.findall(r"^\[       OK \] (\S+) .* ms\)$", text, re.MULTILINE)
    failed = re.findall(r"^\[  FAILED  \] (\S+) .* ms\)$", text, re.MULTILINE)
    return done.returncode, text, passed, failed


def expect(name, result, passed, failed, *said, status=None):
    returned, text, really_passed, really_failed = result
    wrong = []
    if returned != (status if status is not None else 1 if failed else 0):
        wrong.append("status %d" % returned)
    if really_passed != passed or really_failed != failed:
        wrong.append("passed %s, failed %s" % (really_passed, really_failed))
    wrong += ["not said: %r" % word for word in said if not re.search(word, text)]
    outcome(not wrong, "case-limit " + name, "; ".join(wrong + [text[-300:]]))


def named(*names):
    return ["CaseLimit." + name for name in names]


def run_script(*lines, seconds=60):
    """Runs a script of its own that has so long for each step."""
    with tempfile.TemporaryDirectory(prefix="nupa-e2e-", dir=os.path.join(ROOT, "tests")) as folder:
        path = os.path.join(folder, "run_it.py")
        with open(path, "w", encoding="utf-8") as out:
            out.write("import subprocess\nfrom pairs import finish, outcome\n" + "\n".join(lines) + "\nfinish()\n")
        environment = dict(os.environ, NUPA_TEST_STEP_SECONDS=str(seconds),
                           PYTHONPATH=os.path.join(ROOT, "tests", "e2e"))
        environment.pop("NUPA_TEST_RECORD", None)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60, env=environment)
    return done.returncode, re.findall("^(?:PASS|FAIL) .*", done.stdout, re.MULTILINE)


def expect_lines(name, result, status, *patterns):
    returned, lines = result
    right = len(lines) == len(patterns) and all(map(re.match, patterns, lines))
    outcome(right and returned == status, "step-limit " + name, "status %d, said %s" % (returned, lines))


def scripts():
    """Of scripts like this one."""
    one = "outcome(True, 'one')"
    sleep = "subprocess.run(['sleep', '1000.25'])"
    expect_lines("nothing is wrong", run_script(one), 0, "PASS one")
    expect_lines("a wait without a limit", run_script(one, sleep, "outcome(True, 'two')", seconds=2), 1, "PASS one",
                 r"FAIL run_it.py hangs no outcome for 2 s; it waits at run_it.py:4 subprocess.run\(\['sleep'")
    left = subprocess.run(["pgrep", "-f", "^sleep 1000.25"], capture_output=True, text=True, timeout=20).stdout
    outcome(not left, "step-limit leaves no process", left)
    # sleep: five steps that take longer together than the limit of one
    each = ["import time", *["time.sleep(1)", one] * 5]
    expect_lines("each step has all of it", run_script(*each, seconds=4), 0, *["PASS one"] * 5)
    expect_lines("an exception", run_script(one, "subprocess.run(['sleep', '9'], timeout=0.1)"), 1, "PASS one",
                 r"FAIL run_it.py breaks off TimeoutExpired: .*; at run_it.py:4")


def main():
    scripts()
    if not os.path.exists(PROGRAM):
        skip("case-limit", "the build has no tests (libgtest-dev is missing)")
        return
    expect("nothing is wrong", run("CaseLimit.First:CaseLimit.Second", LONG), named("First", "Second"), [])
    expect("a failure stays one", run("CaseLimit.Fails:CaseLimit.Third", LONG), named("Third"), named("Fails"))
    expect("a lock", run("CaseLimit.First:*InALock:*Second"), named("First", "Second"), named("HangsInALock"),
           "CaseLimit.HangsInALock hangs: still running after 1 s", r"thread \d+ \S+: S, futex")
    expect("what ends after all", run("*IsSeen:*Second"), named("Second"), named("HangsUntilItIsSeen"),
           "CaseLimit.HangsUntilItIsSeen hangs")
    expect("a child process", run("*ForAChild"), [], named("HangsForAChild"), r"thread \d+ \S+: S, wait4",
           r"thread \d+ \S+: S, clock_nanosleep")

    def left():
        return subprocess.run(["pgrep", "-f", re.escape(PROGRAM) + ".*ForAChild"], capture_output=True, text=True,
                              timeout=20).stdout

    outcome(wait_for(lambda: not left()), "case-limit leaves no process", left())
    expect("a signal", run("*First:CaseLimit.Aborts:*Third", LONG), named("First", "Third"), named("Aborts"),
           "ended the process: Aborted")
    expect("an early exit with status 0", run("*StatusZero:*Third", LONG), named("Third"),
           named("EndsTheProcessWithStatusZero"), "ended the process: exit status 0")
    expect("preparations of a suite", run("CaseLimitSuite.*:Numbers/*/1", LONG), ["Numbers/CaseLimitEach.OfTwo/1"],
           ["CaseLimitSuite.IsNeverReached"])
    expect("exit handlers", run("CaseLimitExit.*"), ["CaseLimitExit.Hangs"], [], "outside of any case: hung", status=1)
    every = ["Of20/CaseLimitMany.Aborts/%d" % i for i in range(20)]
    expect("too many", run("*Many*", LONG), [], every, "/10 ended the process", "/11 not run: too many cases")
    expect("no limit", run("CaseLimit.First", "0"), named("First"), [])
    shards = [run("CaseLimit.*-*Hangs*", LONG, GTEST_TOTAL_SHARDS="2", GTEST_SHARD_INDEX=str(i)) for i in range(2)]
    ran = [name for shard in shards for name in shard[2] + shard[3]]
    outcome(sorted(ran) == sorted(named("First", "Second", "Third", "Fails", "Aborts", "EndsTheProcessWithStatusZero")),
            "case-limit shards run each case once", ran)


if __name__ == "__main__":
    main()
    finish()
