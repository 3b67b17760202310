#!/usr/bin/env python3
"""The limit on the time of a GoogleTest case (tests/support/case_limit.h): a case that hangs or ends the process fails by
its name, and the cases after it run."""
import os
import re
import subprocess
from pairs import BUILD, finish, outcome, skip

PROGRAM = os.path.join(BUILD, "tests", "case_limit_cases")


def run(cases, seconds="1", options=(), **env):
    """Runs cases: status, output, and lists of the cases that passed and failed, as scripts/test reads them."""
    done = subprocess.run([PROGRAM, "--gtest_filter=" + cases, *options], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, NUPA_TEST_CASE_SECONDS=seconds, **env))
    passed = re.findall(r"^\[       OK \] (\S+) .* ms\)$", done.stdout, re.MULTILINE)
    failed = re.findall(r"^\[  FAILED  \] (\S+) .* ms\)$", done.stdout, re.MULTILINE)
    return done.returncode, done.stdout, passed, failed


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


def main():
    if not os.path.exists(PROGRAM):
        skip("case-limit", "the build has no tests (libgtest-dev is missing)")
        return
    expect("nothing is wrong", run("CaseLimit.First:CaseLimit.Second"), named("First", "Second"), [])
    expect("a failure stays one", run("CaseLimit.Fails:CaseLimit.Third"), named("Third"), named("Fails"))
    expect("a lock", run("CaseLimit.First:*InALock:*Second"), named("First", "Second"), named("HangsInALock"),
           "CaseLimit.HangsInALock hangs: still running after 1 s", r"thread \d+ \S+: S, futex")
    expect("a child process", run("*ForAChild"), [], named("HangsForAChild"), r"thread \d+ \S+: S, wait4",
           r"thread \d+ \S+: S, clock_nanosleep")
    left = subprocess.run(["pgrep", "-f", re.escape(PROGRAM) + ".*ForAChild"], capture_output=True, text=True).stdout
    outcome(not left, "case-limit leaves no process", left)
    expect("a signal", run("*First:CaseLimit.Aborts:*Third"), named("First", "Third"), named("Aborts"),
           "ended the process: Aborted")
    expect("an early exit with status 0", run("*StatusZero:*Third"), named("Third"), named("EndsTheProcessWithStatusZero"),
           "ended the process: exit status 0")
    expect("preparations of a suite", run("CaseLimitSuite.*:Numbers/*/1"), ["Numbers/CaseLimitEach.OfTwo/1"],
           ["CaseLimitSuite.IsNeverReached"])
    expect("exit handlers", run("CaseLimitExit.*"), ["CaseLimitExit.Hangs"], [], "outside of any case: hung", status=1)
    every = ["Of20/CaseLimitMany.Aborts/%d" % i for i in range(20)]
    expect("too many", run("*Many*"), [], every, "/10 ended the process", "/11 not run: too many cases")
    expect("no limit", run("CaseLimit.First", "0"), named("First"), [])
    shards = [run("CaseLimit.*-*Hangs*", GTEST_TOTAL_SHARDS="2", GTEST_SHARD_INDEX=str(i)) for i in range(2)]
    ran = [name for shard in shards for name in shard[2] + shard[3]]
    outcome(sorted(ran) == sorted(named("First", "Second", "Third", "Fails", "Aborts", "EndsTheProcessWithStatusZero")),
            "case-limit shards run each case once", ran)


if __name__ == "__main__":
    main()
    finish()
