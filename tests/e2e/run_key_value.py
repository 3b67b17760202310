#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tutorial's key-value store, built as its page says: examples/verbs/key_value.cc over each transport."""
import os
import shutil
import signal
import subprocess
import tempfile
from pairs import NUPA, ROOT, finish, free_port, outcome, private_runtime_dir, skip, start, stop, transports, wait_for

LIMIT_S = 60
runtime_dir = private_runtime_dir()


def client(*words):
    return subprocess.run([NUPA, "run", "--", program, "127.0.0.1", str(port), *words], capture_output=True, text=True, timeout=LIMIT_S)


def says(name, done, status, out="", err=""):
    outcome(done.returncode == status and done.stdout == out and err in done.stderr, name,
            "status %d: %s" % (done.returncode, (done.stdout + done.stderr)[-300:]))


def commands():
    says("a key that is not there", client("get", "colour"), 1, err="no such key")
    says("put", client("put", "colour", "green"), 0)
    says("get", client("get", "colour"), 0, "green\n")
    says("put replaces", client("put", "colour", "blue"), 0)
    says("get after that", client("get", "colour"), 0, "blue\n")
    done = client("time", "colour", "100")
    outcome(done.returncode == 0 and done.stdout.startswith("100 GETs, median "), "time", done.stdout + done.stderr)
    says("the longest key and value", client("put", "k" * 31, "v" * 79), 0)
    says("the longest value comes back", client("get", "k" * 31), 0, "v" * 79 + "\n")
    says("a key that is too long", client("put", "k" * 32, "v"), 2, err="a key has 1 to 31 bytes")
    says("a value that is too long", client("put", "k", "v" * 80), 2, err="a value has at most 79 bytes")
    says("an empty key", client("get", ""), 2, err="a key has")
    says("no command", client("drop", "colour"), 2, err="usage: key_value")


def many():
    """Clients at once, each with keys that no other has."""
    names = ["client %d" % i for i in range(12)]
    running = [start("%s 127.0.0.1 %d put '%s' '%s has it'" % (program, port, name, name), out=subprocess.DEVNULL) for name in names]
    ended = [process.wait(timeout=LIMIT_S) for process in running]
    found = [client("get", name).stdout for name in names]
    outcome(not any(ended) and found == [name + " has it\n" for name in names], "clients at once", "%s %s" % (ended, found))


def deaths(server):
    reading = start("%s 127.0.0.1 %d time colour 20000000" % (program, port), out=subprocess.DEVNULL)
    outcome(wait_for(lambda: reading.poll() is None and len(os.listdir("/proc/%d/task" % server.pid)) > 1), "a client reads", "it does not run")
    reading.send_signal(signal.SIGKILL)
    reading.wait()
    says("the server goes on when a client is killed", client("get", "colour"), 0, "blue\n")
    reading = subprocess.Popen([NUPA, "run", "--", program, "127.0.0.1", str(port), "time", "colour", "20000000"], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: reading.poll() is not None, 1)  # it reads meanwhile
    server.send_signal(signal.SIGKILL)
    server.wait()
    said = reading.communicate(timeout=LIMIT_S)[1]
    outcome(reading.returncode == 1 and "the request failed" in said, "a client of a server that is killed ends with an error", said)


compiler = shutil.which("c++") or shutil.which("g++")
if compiler is None:
    skip("the key-value store", "no compiler")
else:
    with tempfile.TemporaryDirectory(prefix="nupa-key-value-") as folder:
        program = os.path.join(folder, "key_value")
        built = subprocess.run([compiler, "-std=c++20", "-o", program, os.path.join(ROOT, "examples", "verbs", "key_value.cc"), "-lrdmacm", "-libverbs"],
                               capture_output=True, text=True)
        outcome(built.returncode == 0, "it compiles", built.stderr[-300:])
        for _ in transports():
            port = free_port()
            server = start("%s serve %d" % (program, port), out=subprocess.PIPE)
            try:
                outcome(server.stdout.readline().decode() == "ready on port %d\n" % port, "the server is ready")
                commands()
                many()
                deaths(server)
            finally:
                stop(server)
finish()
