#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nupa launch`: what ranks find, what is shown of them, and how a job ends, well or not."""
import os
import re
import signal
import subprocess
import tempfile
import time
from pairs import BUILD, NUPA, descendants, finish, nupa, outcome, private_runtime_dir, stop, tell, wait_for

private_runtime_dir()
SOON = 20  # seconds for what takes far less


def shell(ranks, script, *options, **more):
    return nupa("launch", "-n", str(ranks), *options, "--", "sh", "-c", script, **more)


class Job:
    """A job that is still running, in the background."""

    def __init__(self, ranks, script, *options):
        self.out = tempfile.TemporaryFile()
        self.process = subprocess.Popen([NUPA, "launch", "-n", str(ranks), *options, "--", "sh", "-c", script],
                                        stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.members, self.ranks, self.everybody = [], [], []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.process)
        for pid in filter(is_running, self.everybody):
            os.kill(pid, signal.SIGKILL)
        self.out.close()

    def await_text(self, text, times):
        """False: it does not come."""
        if not wait_for(lambda: self.said().count(text) >= times, SOON):
            return False
        self.ranks = children(self.process.pid)
        self.members = self.everybody = descendants(self.process.pid)
        return True

    def said(self):
        return os.pread(self.out.fileno(), 1 << 20, 0).decode(errors="replace")

    def status(self):
        try:
            return self.process.wait(SOON)
        except subprocess.TimeoutExpired:
            return "still running"

    def left(self):
        """Members that live on, after a moment."""
        wait_for(lambda: not any(map(is_running, self.members)), SOON)
        return list(filter(is_running, self.members))


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as listed:
        return list(map(int, listed.read().split()))


def is_running(pid):
    try:
        with open("/proc/%d/stat" % pid) as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def what_ranks_find():
    done = shell(3, "echo $NUPA_RANK of $NUPA_WORLD_SIZE, here $NUPA_LOCAL_RANK of $NUPA_LOCAL_SIZE; echo hm >&2")
    lines = sorted(done.stdout.splitlines())
    outcome(done.returncode == 0 and lines == ["[%d] %d of 3, here %d of 3" % (r, r, r) for r in range(3)] and
            sorted(done.stderr.splitlines()) == ["[%d] hm" % r for r in range(3)], "launch-environment-and-labels",
            "status %s, out %r, err %r" % (done.returncode, done.stdout, done.stderr))
    done = shell(4, "echo ${#NUPA_CCL_ROOT} $NUPA_CCL_ROOT", "--no-label")
    outcome(len(set(done.stdout.splitlines())) == 1 and re.match(r"256 [0-9a-f]{256}\n", done.stdout) is not None,
            "launch-one-root", done.stdout[:300] + done.stderr)
    done = shell(2, "readlink /proc/self/fd/0; ldd $(which ibv_devices) | grep -c nupa; true", "--no-label")
    outcome("/dev/null" in done.stdout and "pipe:" in done.stdout, "launch-inputs", done.stdout + done.stderr)
    done = shell(64, "echo here")
    outcome(done.returncode == 0 and sorted(done.stdout.splitlines()) == sorted("[%d] here" % r for r in range(64)),
            "launch-64-ranks", "status %s, %r" % (done.returncode, (done.stdout + done.stderr)[-300:]))


def what_is_shown():
    done = shell(2, "printf 'no end'; printf 'a\\n\\nb' >&2")
    outcome(sorted(done.stdout.splitlines()) == ["[0] no end", "[1] no end"] and
            sorted(done.stderr.splitlines()) == sorted(["[0] a", "[0] ", "[0] b", "[1] a", "[1] ", "[1] b"]),
            "launch-lines", "out %r, err %r" % (done.stdout, done.stderr))
    # Longer than pipes and buffers: nothing is lost or mixed.
    done = shell(3, "seq -f 'line %.0f' 20000")
    each = {rank: [] for rank in range(3)}
    for line in done.stdout.splitlines():
        each[int(line[1])].append(line[4:])
    wanted = ["line %d" % number for number in range(1, 20001)]
    outcome(all(said == wanted for said in each.values()), "launch-long-outputs",
            "%s lines" % [len(said) for said in each.values()])
    done = shell(2, "head -c 200000 /dev/zero | tr '\\0' x")
    total = sum(line.count("x") for line in done.stdout.splitlines())
    outcome(total == 400000, "launch-long-line", "%d of 400000 bytes" % total)
    done = subprocess.run([NUPA, "launch", "-n", "2", "--", "cat"], input="first\nsecond\n" + "x" * 300000,
                          capture_output=True, text=True, timeout=SOON)
    outcome(done.returncode == 0 and done.stdout.startswith("[0] first\n[0] second\n") and
            done.stdout.count("x") == 300000 and "[1]" not in done.stdout, "launch-input-is-rank-0s",
            "status %s, out %r" % (done.returncode, done.stdout[:200]))
    done = subprocess.run("%s launch -n 2 -- sh -c 'seq 100000' | head -n 1" % NUPA, shell=True, capture_output=True,
                          text=True, timeout=SOON)
    outcome(done.stdout in ("[0] 1\n", "[1] 1\n"), "launch-nobody-listens", done.stdout + done.stderr)


def how_it_fails():
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        # Rank 1 fails once the others run.
        done = shell(3, 'if [ $NUPA_RANK = 1 ]; then until [ -e "$READY"0 -a -e "$READY"2 ]; do sleep 0.05; done; '
                        'echo last words; exit 3; fi; : >"$READY$NUPA_RANK"; exec sleep 60',
                     env={"READY": os.path.join(folder, "ready")})
    outcome(done.returncode == 3 and time.time() - began < SOON and "[1] last words\n" in done.stdout and
            re.fullmatch(r"nupa: launch: rank 1 \(process \d+\) exited with status 3; ending the other ranks\n",
                         done.stderr) is not None, "launch-rank-fails",
            "status %s after %.1f s, %r" % (done.returncode, time.time() - began, done.stdout + done.stderr))
    done = shell(2, 'if [ $NUPA_RANK = 0 ]; then kill -9 $$; fi; exec sleep 60')
    outcome(done.returncode == 137 and "rank 0 (process " in done.stderr and
            "was killed by signal 9 (Killed); ending the other ranks" in done.stderr, "launch-rank-is-killed",
            "status %s, %r" % (done.returncode, done.stderr))
    tell("launch-not-found", nupa("launch", "-n", "2", "--", "/nonexistent/program"), 127, "/nonexistent/program",
         "exited with status 127")
    # One that does not want to end is given no more than it is promised.
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        done = shell(2, 'if [ $NUPA_RANK = 0 ]; then until [ -e "$READY" ]; do sleep 0.05; done; exit 4; fi; '
                        'trap "" TERM; : >"$READY"; while :; do sleep 0.1; done', "--grace", "0.5",
                     env={"READY": os.path.join(folder, "ready")})
    outcome(done.returncode == 4 and time.time() - began < SOON, "launch-rank-does-not-want-to-end",
            "status %s after %.1f s" % (done.returncode, time.time() - began))
    with tempfile.TemporaryDirectory() as folder:
        # Rank 0 fails once rank 1 can be told.
        done = shell(2, 'trap "echo cleaning up; exit 0" TERM; '
                        'if [ $NUPA_RANK = 0 ]; then until [ -e "$READY" ]; do sleep 0.05; done; exit 5; fi; '
                        ': >"$READY"; while :; do sleep 0.05; done', env={"READY": os.path.join(folder, "ready")})
    outcome(done.returncode == 5 and "[1] cleaning up" in done.stdout, "launch-ranks-may-clean-up",
            "status %s, %r" % (done.returncode, done.stdout + done.stderr))


def how_it_is_ended():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with Job(3, 'trap "echo told; exit 0" INT TERM HUP; echo ready; while :; do sleep 0.05; done') as job:
            ready = job.await_text("ready", 3)
            job.process.send_signal(number)
            status = job.status()
            outcome(ready and status == 128 + number and job.said().count("told") == 3 and not job.left(),
                    "launch-signal-%d" % number, "status %s, left %s: %s" % (status, job.left(), job.said()))
    with Job(2, 'trap "echo told; exit 0" USR1; echo ready; while :; do sleep 0.05; done') as job:
        ready = job.await_text("ready", 2)
        job.process.send_signal(signal.SIGUSR1)
        outcome(ready and job.status() == 0 and job.said().count("told") == 2, "launch-signal-is-passed-on", job.said())
    with Job(2, "sleep 60 & echo ready; wait") as job:
        ready = job.await_text("ready", 2)
        members = len(job.members)
        job.process.kill()
        job.status()
        # What the ranks have started notices nothing: nobody is there to tell it.
        job.members = job.ranks
        outcome(ready and members >= 4 and len(job.ranks) == 2 and not job.left(), "launch-launcher-is-killed",
                "%d members, left %s" % (members, job.left()))
    with tempfile.TemporaryDirectory() as folder:
        end = os.path.join(folder, "end")
        with Job(2, "sleep 60 & echo ready; until [ -e %s ]; do sleep 0.05; done" % end) as job:
            ready = job.await_text("ready", 2)
            members = len(job.members)
            open(end, "w").close()
            status = job.status()
            outcome(ready and members >= 4 and status == 0 and not job.left(), "launch-leaves-nobody-behind",
                    "%d members, status %s, left %s" % (members, status, job.left()))


def wrong_usage():
    for arguments in (["-n", "2"], ["-n", "0", "--", "true"], ["--", "true"], ["-n", "many", "--", "true"],
                      ["-n", "2", "--bogus", "--", "true"], ["-n", "2", "--grace", "-1", "--", "true"]):
        done = nupa("launch", *arguments)
        outcome(done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and
                done.stderr.startswith("nupa: "), "launch-wrong-usage " + " ".join(arguments),
                "status %s, out %r, err %r" % (done.returncode, done.stdout[-100:], done.stderr[-200:]))


def example():
    done = nupa("launch", "-n", "3", "--", os.path.join(BUILD, "examples", "linear_model"))
    last = done.stdout.strip().splitlines()[-1:]
    found = re.match(r"\[0\] step 127: y = ([0-9.]+) x -([0-9.]+), mean error", last[0]) if last else None
    close = found and abs(float(found[1]) - 3) < 0.02 and abs(float(found[2]) - 2) < 0.02
    outcome(done.returncode == 0 and close, "example-linear-model", "status %s, %s %s" % (done.returncode, last, done.stderr))


what_ranks_find()
what_is_shown()
how_it_fails()
how_it_is_ended()
wrong_usage()
example()
finish()
