"""Runs a server and a client program on NUPA and tells the outcome."""
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("NUPA_BUILD", os.path.join(ROOT, "build"))
NUPA = os.path.join(BUILD, "bin", "nupa")
failures = 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def outcome(ok, name, reason=""):
    global failures
    if not ok:
        failures += 1
    print(("PASS " if ok else "FAIL ") + name + (" " + reason if reason and not ok else ""), flush=True)


def skip(name, reason):
    print("SKIP %s %s" % (name, reason), flush=True)


def start(command, env=None, out=None):
    merged = dict(os.environ, **(env or {}))
    return subprocess.Popen([NUPA, "run", "--"] + shlex.split(command), stdin=subprocess.DEVNULL,
                            stdout=out, stderr=subprocess.STDOUT, env=merged, start_new_session=True)


def stop(process):
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def listening(port):
    """True once something listens on the port: asks the kernel's table, so that the server is not disturbed."""
    wanted = ":%04X" % port
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) > 3 and fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        except FileNotFoundError:
            pass
    return False


def wait_listening(port, server, seconds=20):
    end = time.time() + seconds
    while time.time() < end and server.poll() is None:
        if listening(port):
            return True
        time.sleep(0.02)
    return False


def run_pair(name, server_command, client_command, port, env=None, seconds=60, server_survives=False):
    """Both must end with status 0; `server_survives`: the server serves on and is ended here."""
    with tempfile.TemporaryFile() as server_out, tempfile.TemporaryFile() as client_out:
        server = start(server_command, env, server_out)
        client = None
        try:
            if not wait_listening(port, server):
                server_out.seek(0)
                return outcome(False, name, "server does not listen: " + last_line(server_out))
            client = start(client_command, env, client_out)
            try:
                status = client.wait(seconds)
                server_status = 0 if server_survives else server.wait(20)
            except subprocess.TimeoutExpired:
                return outcome(False, name, "still running after %d s" % seconds)
            reason = ""
            if status != 0 or server_status != 0:
                reason = "client %s (%s), server %s (%s)" % (status, last_line(client_out), server_status,
                                                             last_line(server_out))
            outcome(reason == "", name, reason)
        finally:
            stop(server)
            if client is not None:
                stop(client)


def last_line(stream):
    stream.seek(0)
    lines = [line for line in stream.read().decode(errors="replace").splitlines() if line.strip(" -")]
    return lines[-1].strip()[:160] if lines else ""


def finish():
    sys.exit(1 if failures else 0)
