# SPDX-License-Identifier: Apache-2.0
"""Runs the measured programs, alone or as a server and a client, each on its own core. No process is left behind."""
import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import tempfile
import time

LIMIT_S = 60
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A program gave no result; the text describes why."""


def free_port():
    """Returns a free port below the range of ephemeral ports, because those change all the time."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                continue


def choose_cores():
    """Returns two cores that this process may use, on different physical cores if possible; with a single core, returns it twice."""
    allowed = sorted(os.sched_getaffinity(0))
    first = allowed[0]
    siblings = {first}
    try:
        with open("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % first) as text:
            for part in text.read().strip().split(","):
                ends = [int(number) for number in part.split("-")]
                siblings.update(range(ends[0], ends[-1] + 1))
    except (OSError, ValueError):
        pass
    others = [core for core in allowed if core not in siblings] or allowed[1:] or [first]
    return first, others[0]


def _die_with_parent():
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(command, core, env, out):
    try:
        return subprocess.Popen(["taskset", "-c", str(core)] + command, stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})), start_new_session=True,
                                preexec_fn=_die_with_parent)
    except OSError as error:
        raise Failed(str(error)) from error


def _stop(process):
    """Kills the process and its process group, if it still runs."""
    if process is not None and process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _text(stream):
    stream.seek(0)
    return stream.read().decode(errors="replace")


def _last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip(" -+|")]
    return lines[-1][:200] if lines else "no output"


def _listens(port, pid):
    """Returns whether the process's network has a listener on the port. It reads the kernel's table instead of connecting,
    because a server may accept only once."""
    wanted = ":%04X" % port
    for table in ("/proc/%d/net/tcp" % pid, "/proc/%d/net/tcp6" % pid):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        except OSError:
            pass
    return False


def _status(process, name, seconds):
    try:
        return process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        raise Failed("%s: still running after %d s, ended" % (name, LIMIT_S)) from None


def run_alone(command, core, env=None):
    """Returns the program's output. Raises Failed if its exit status is not 0 or it runs for longer than LIMIT_S."""
    with tempfile.TemporaryFile() as out:
        process = None
        try:
            process = _start(command, core, env, out)
            status = _status(process, os.path.basename(command[0]), LIMIT_S)
        finally:
            _stop(process)
        if status != 0:
            raise Failed("exit status %d: %s" % (status, _last_line(_text(out))))
        return _text(out)


def run_pair(server_command, client_command, port, cores, env=None, of_server=False, listens=_listens,
             server_survives=False):
    """Returns the output of the client, or of the server. The client starts when `listens`(port, process id) is true.
    `server_survives`: the server does not exit by itself and is killed here."""
    end = time.monotonic() + LIMIT_S
    with tempfile.TemporaryFile() as server_out, tempfile.TemporaryFile() as client_out:
        server = client = None
        try:
            server = _start(server_command, cores[0], env, server_out)
            while not listens(port, server.pid):
                if server.poll() is not None or time.monotonic() > end:
                    raise Failed("server does not listen: " + _last_line(_text(server_out)))
                time.sleep(0.005)
            client = _start(client_command, cores[1], env, client_out)
            try:
                status = _status(client, "client", end - time.monotonic())
                if status != 0:  # the server may wait for the client forever
                    raise Failed("client's exit status %d" % status)
                server_status = 0 if server_survives else _status(server, "server", end - time.monotonic())
            except Failed as failure:
                raise Failed("%s (client: %s; server: %s)" % (failure, _last_line(_text(client_out)),
                                                              _last_line(_text(server_out)))) from None
        finally:
            _stop(client)
            _stop(server)
        if server_status != 0:
            raise Failed("server's exit status %d: %s" % (server_status, _last_line(_text(server_out))))
        return _text(server_out if of_server else client_out)


class Speed:
    """Measures how much of a core's speed is available. A virtual core may share its real core with that of another guest. No
    counter of this guest shows that, but everything takes up to twice as long."""
    best_s = {}

    @classmethod
    def missing(cls, core):
        """Returns the part of the best speed so far that is missing, from 0 to 1."""
        everywhere = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        took = min(cls._loop_s() for _ in range(3))
        os.sched_setaffinity(0, everywhere)
        cls.best_s[core] = min(took, cls.best_s.get(core, took))
        return 1 - cls.best_s[core] / took

    @staticmethod
    def _loop_s():
        begun = time.perf_counter()
        total = 0
        for number in range(20000):
            total += number * number
        return time.perf_counter() - begun


class Disturbance:
    """Measures the share of the two cores that other programs use during a measurement."""

    def __init__(self, cores):
        self.cores = cores
        self.missing = max(map(Speed.missing, cores))
        self.names = {"cpu%d" % core for core in cores}
        self.tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        self.start = (time.monotonic(), self._busy_s(), self._own_s())

    def _busy_s(self):
        busy = 0
        with open("/proc/stat") as lines:
            for line in lines:
                fields = line.split()
                if fields and fields[0] in self.names:
                    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
                    busy += user + nice + system + irq + softirq + steal
        return busy * self.tick_s

    @staticmethod
    def _own_s():
        return sum(usage.ru_utime + usage.ru_stime for usage in
                   (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)))

    def share(self):
        """Returns the greater of two parts, from 0 to 1: the cores' time since the start that other programs used, and the missing
        part of their speed."""
        wall, busy, own = (now - then for now, then in
                           zip((time.monotonic(), self._busy_s(), self._own_s()), self.start))
        foreign = busy - own - 2 * self.tick_s  # the kernel counts in ticks
        taken = min(1.0, max(0.0, foreign / max(wall * len(self.names), self.tick_s)))
        return max(taken, self.missing, *map(Speed.missing, self.cores))
