# SPDX-License-Identifier: Apache-2.0
"""Runs a server and a client program on NUPA and tells the outcome."""
import atexit
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("NUPA_BUILD", os.path.join(ROOT, "build"))
NUPA = os.path.join(BUILD, "bin", "nupa")
# Those that a script which holds for each of them goes through.
TRANSPORTS = os.environ.get("NUPA_TEST_TRANSPORTS", "shm roce").split()
# Every case at every place, which takes hours; else a choice.
ALL = os.environ.get("NUPA_TEST_ALL", "") not in ("", "0")
# A step is what a script does from one outcome to the next; a step that takes longer fails, and ends the script.
STEP_SECONDS = int(os.environ.get("NUPA_TEST_STEP_SECONDS") or (3000 if ALL else 300))
failures = 0
over = ""  # what the names of outcomes begin with
# A file that each outcome is appended to as a line of JSON, with the commands that were started for it.
RECORD = os.environ.get("NUPA_TEST_RECORD")
_started, _places, _given_ports = [], set(), set()


def transports():
    """Each transport in turn, for the programs that are started meanwhile. Packets go over the loopback, and the names
    of their outcomes say so."""
    global over
    before = os.environ.get("NUPA_TRANSPORT")
    for name in TRANSPORTS:
        os.environ["NUPA_TRANSPORT"] = name
        over = "" if name == "shm" else name + " "
        yield name
    over = ""
    os.environ.pop("NUPA_TRANSPORT")
    if before is not None:
        os.environ["NUPA_TRANSPORT"] = before


def some(cases):
    """Where not all is wanted: the first of each two over shm and the second over packets, so that each option is
    seen over one of them."""
    return list(cases) if ALL or len(TRANSPORTS) == 1 else list(cases)[1 if over else 0::2]


def free_port():
    """One that nobody has, and that this script has not got before: what it was for may not have begun. Below those
    that the system gives to whoever names none: these come and go."""
    while True:
        port = random.randrange(10000, 30000)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port


def outcome(ok, name, reason=""):
    global failures
    if not ok:
        failures += 1
    said = "" if ok or not reason else " " + str(reason).strip().replace("\n", " | ")
    record("PASS" if ok else "FAIL", name)
    print(("PASS " if ok else "FAIL ") + over + name + said, flush=True)


def started(command):
    """For the record of the next outcome."""
    _started.append(command)


class StepHangs(BaseException):
    """Not an Exception: what handles those goes on."""


def places_in_tests(frames):
    """Where a script is: lines of its own, the last one last."""
    ours = [frame for frame in frames if frame.filename.startswith(os.path.join(ROOT, "tests"))]
    return ", ".join("%s:%d %s" % (os.path.basename(frame.filename), frame.lineno, frame.line) for frame in ours[-3:])


def limit_step():
    """Begins a step. The limit holds for all waits of a script, also those without one of their own."""
    signal.alarm(STEP_SECONDS)


def on_step_limit(_, frame):
    stack = places_in_tests(traceback.extract_stack(frame))
    outcome(False, script() + " hangs", "no outcome for %d s; it waits at %s" % (STEP_SECONDS, stack))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)  # for cleaning up
    for child in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    raise StepHangs


def on_exception(kind, error, where):
    """The outcome of a script that breaks off, so that scripts/test names it."""
    sys.__excepthook__(kind, error, where)
    if kind not in (StepHangs, KeyboardInterrupt):
        said = "%s: %s" % (kind.__name__, str(error)[:300])
        outcome(False, script() + " breaks off", "%s; at %s" % (said, places_in_tests(traceback.extract_tb(where))))


def script():
    return os.path.basename(sys.argv[0])


signal.signal(signal.SIGALRM, on_step_limit)
sys.excepthook = on_exception
limit_step()


def record(result, name):
    limit_step()
    commands, apart = list(_started), len(_places) > 1 or name.startswith("hosts ")
    _started.clear()
    _places.clear()
    if RECORD:
        with open(RECORD, "a", encoding="utf-8") as out:
            out.write(json.dumps({"script": os.path.basename(sys.argv[0]), "name": name, "result": result,
                                  "transport": os.environ.get("NUPA_TRANSPORT", "auto"), "hosts": apart,
                                  "commands": commands}) + "\n")


def skip(name, reason):
    record("SKIP", name)
    print("SKIP %s%s %s" % (over, name, reason), flush=True)


def private_runtime_dir(user=None):
    """A runtime directory of this script's own, gone when it ends; the processes started here meet there."""
    folder = tempfile.mkdtemp(prefix="nupa-e2e-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if user is not None:
        os.chown(folder, user, user)
    else:
        os.environ["NUPA_RUNTIME_DIR"] = folder
    return folder


def left_in(folder):
    """What is in a runtime directory, but for the files that processes share: the counts of ports, and what `nupa run` shows to
    programs."""
    return [name for name in os.listdir(folder) if not name.startswith("tree-") and name != "port-counts"]


def nupa(*arguments, before=(), env=None, seconds=30):
    """Runs `nupa ARGUMENTS` to its end; `before` is a command that runs it (setpriv, unshare)."""
    command = [*before, NUPA, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds,
                              env=dict(os.environ, **(env or {})), stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1000, "", "still running after %d s" % seconds)


def tell(name, done, status, *expected):
    """Outcome of a finished command: its status, and texts that it must have said."""
    text = done.stdout + done.stderr
    missing = [word for word in expected if word not in text]
    outcome(done.returncode == status and not missing, name,
            "status %s, not said: %s; said: %s" % (done.returncode, missing, text[-200:].replace("\n", " | ")))


def start(command, env=None, out=None, before=(), options=()):
    """`options`: of `nupa run`."""
    merged = dict(os.environ, **(env or {}))
    settings = ["%s=%s" % item for item in (env or {}).items()]
    _places.add(tuple(before))
    started(" ".join([*settings, "nupa run", *options, "--", command]))
    return subprocess.Popen([*before, NUPA, "run", *options, "--"] + shlex.split(command), stdin=subprocess.DEVNULL,
                            stdout=out, stderr=subprocess.STDOUT, env=merged, start_new_session=True)


def missing_program(*names):
    """True, and told, if this machine lacks one."""
    lacking = [name for name in names if not shutil.which(name)]
    for name in lacking:
        skip(name, "is not installed")
    return lacking != []


def wait_for(condition, seconds=20):
    """What it gives once that is true; None: it never was."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)  # sleep: the pause between two looks
    return None


def descendants(pid):
    """All processes that one has started and they have; also those in sessions of their own."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % name) as stat:
                parents[int(name)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            pass  # it has just ended
    found, young = [], [pid]
    while young:
        young = [child for child, parent in parents.items() if parent in young]
        found += young
    return found


def stop(process):
    if process.poll() is None:
        for child in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def suspend(process):
    """Stops a process, and waits until it stands still: of its threads one after the other hears of it, and on a busy
    machine another one may still answer meanwhile."""
    os.kill(process.pid, signal.SIGSTOP)
    tasks = "/proc/%d/task" % process.pid

    def stands():
        with contextlib.suppress(OSError):  # a thread has just ended
            for task in os.listdir(tasks):
                with open("%s/%s/stat" % (tasks, task)) as stat:
                    if stat.read().rsplit(")", 1)[1].split()[0] != "T":
                        return False
            return True
        return False

    wait_for(stands)


def listening(port, pid="self"):
    """True once something listens on the port: asks the kernel's table, so that the server is not disturbed. `pid`:
    whose network is meant."""
    wanted = ":%04X" % port
    for table in ("/proc/%s/net/tcp" % pid, "/proc/%s/net/tcp6" % pid):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        except OSError:
            pass
    return False


def wait_listening(port, server, seconds=20):
    """True once the server listens on the port; False: it has ended, or it does not listen in time."""
    found = wait_for(lambda: "ended" if server.poll() is not None else listening(port, server.pid), seconds)
    return found is True


class Pair:
    """A server and a client that run at once. `before` and `client_before` are commands that start each
    (setpriv, unshare). Both are ended when the `with` block is left."""

    def __init__(self, server_command, client_command, port, env=None, before=(), client_before=None):
        self.outs = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
        self.client = None
        self.server = start(server_command, env, self.outs[0], before)
        self.trouble = ""
        if self.is_ready(port):
            self.client = start(client_command, env, self.outs[1], before if client_before is None else client_before)
        else:
            self.trouble = "server does not listen: " + last_line(self.outs[0])

    def is_ready(self, port):
        """Whether a client finds the server; waits for it a while."""
        return wait_listening(port, self.server)

    def wait(self, seconds, server_survives=False):
        """What went wrong; empty when both ended with status 0."""
        if self.client is None:
            return self.trouble
        try:
            status = self.client.wait(seconds)
            server_status = 0 if server_survives else self.server.wait(20)
        except subprocess.TimeoutExpired:
            return "still running after %d s" % seconds
        if status == 0 and server_status == 0:
            return ""
        return "client %s (%s), server %s (%s)" % (status, last_line(self.outs[1]), server_status,
                                                   last_line(self.outs[0]))

    def said(self, side):
        """By the server (0) or the client (1)."""
        self.outs[side].seek(0)
        return self.outs[side].read().decode(errors="replace")

    def text(self):
        """What both have said."""
        return self.said(0) + self.said(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.server, self.client):
            if process is not None:
                stop(process)
        for out in self.outs:
            out.close()


def run_pair(name, server_command, client_command, port, env=None, seconds=60, server_survives=False, before=(),
             client_before=None):
    """Both must end with status 0; `server_survives`: the server serves on and is ended here."""
    with Pair(server_command, client_command, port, env, before, client_before) as pair:
        reason = pair.wait(seconds, server_survives)
        outcome(reason == "", name, reason)


def pingpong(options):
    port = free_port()
    command = "ibv_rc_pingpong -d nupa0 -g 1 -p %d %s" % (port, options)
    return command, command + " 127.0.0.1", port


def last_line(stream):
    stream.seek(0)
    lines = [line for line in stream.read().decode(errors="replace").splitlines() if line.strip(" -")]
    return lines[-1].strip()[:160] if lines else ""


def finish():
    sys.exit(1 if failures else 0)
