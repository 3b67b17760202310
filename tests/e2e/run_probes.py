#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The probes of docs/guides/tracing.md, used by gdb and by bpftrace in unmodified programs under `nupa run`."""
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

from pairs import BUILD, NUPA, ROOT, Pair, finish, free_port, nupa, outcome, pingpong, private_runtime_dir, skip, start, stop, suspend, wait_for, wait_listening

LIMIT_S = 60
LIBNUPA = os.path.join(BUILD, "lib", "libnupa.so.0")
LIBRDMACM = os.path.join(BUILD, "lib", "nupa", "librdmacm.so.1")
LIBC = "/lib/x86_64-linux-gnu/libc.so.6"
PROBES = {"post_send", "post_recv", "completion", "state", "retransmission", "cm_event"}
# Values of enum ibv_wr_opcode, ibv_wc_opcode, ibv_wc_status and ibv_qp_state.
WR_WRITE, WC_WRITE, WC_SUCCESS, WC_RETRY_EXCEEDED = 0, 1, 0, 12
RTS, ERROR = 3, 6
WRITE_BYTES = 65536
PINGPONGS = 300
private_runtime_dir()


def said(out):
    """All that a program has said so far, whose place in the file is left alone."""
    return os.pread(out.fileno(), 1 << 20, 0).decode(errors="replace")


def flows():
    """True once a program has sent messages."""
    return wait_for(lambda: any(row["messages"] > 0 for row in json.loads(nupa("stat", "--json").stdout or "[]")), LIMIT_S)


def endless_writes():
    """Commands of a server and of a client whose requests are always under way, and the port."""
    port = free_port()
    command = "stdbuf -oL ib_write_bw -F -p %d -D 600" % port
    return command, command + " 127.0.0.1", port


def gdb_batch(*commands):
    """The arguments of a gdb that runs these commands and ends."""
    words = ["gdb", "-nx", "-batch", "-ex", "set width 0", "-ex", "set debuginfod enabled off"]
    for command in commands:
        words += ["-ex", command]
    return words


def without_gdb():
    """Why gdb stops no program here; empty: it does."""
    if shutil.which("gdb") is None:
        return "gdb is not installed"
    done = subprocess.run([*gdb_batch("starti"), "/bin/true"], capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    return "" if "Program stopped" in done.stdout else "gdb may trace no program: " + done.stderr.strip()[-100:]


def gdb_attaches():
    """A program that runs already: the list of the probes, a stop at a completion and at a post, and the program goes on."""
    with Pair(*endless_writes()) as pair:
        client = pair.client
        if client is None or not flows():
            outcome(False, "perftest runs", pair.trouble or pair.text()[-300:])
            return
        done = subprocess.run([*gdb_batch("info probes stap nupa", "break -probe-stap nupa:completion", "continue",
                                          r'printf "completion: %d wr_id %lu status %u opcode %u bytes %u of %d\n", $_probe_arg0 != 0, $_probe_arg1, $_probe_arg2, '
                                          "$_probe_arg3, $_probe_arg4, $_probe_argc", "backtrace", "delete", "break -probe-stap nupa:post_send", "continue",
                                          r'printf "post: %d wr_id %lu opcode %u entries %u of %d\n", $_probe_arg0 != 0, $_probe_arg1, $_probe_arg2, $_probe_arg3, '
                                          "$_probe_argc", "backtrace", "delete", "detach"), "-p", str(client.pid)],
                              capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
        listed = set(re.findall(r"^stap +nupa +(\w+) ", done.stdout, re.MULTILINE))
        outcome(listed == PROBES, "gdb lists the probes of a process", "%s; %s" % (sorted(listed), done.stderr[-200:]))
        outcome("completion: 1 wr_id 0 status %d opcode %d bytes %d of 5\n" % (WC_SUCCESS, WC_WRITE, WRITE_BYTES) in done.stdout and
                "nupa::core::Cq::poll" in done.stdout, "gdb stops at a completion and prints its arguments", done.stdout[-600:] + done.stderr[-200:])
        outcome("post: 1 wr_id 0 opcode %d entries 1 of 4\n" % WR_WRITE in done.stdout, "gdb stops at a post and prints its arguments",
                done.stdout[-600:] + done.stderr[-200:])
        outcome(client.poll() is None and pair.server.poll() is None, "the program goes on after gdb", pair.text()[-300:])


def gdb_commands_of_the_guide():
    """The commands as the guide has them: the program stops when its queue pair enters the error state, after the peer was killed."""
    with open(os.path.join(ROOT, "docs", "guides", "tracing.md"), encoding="utf-8") as text:
        commands = re.findall(r"^    \(gdb\) (.*)$", text.read(), re.MULTILINE)
    server_command, client_command, port = endless_writes()
    name = "the guide's commands stop the program at the error"
    gdb = gdb_batch(*commands, r'printf "state: %u to %u\n", $_probe_arg1, $_probe_arg2', "backtrace", "kill")
    with tempfile.TemporaryFile() as server_out, tempfile.TemporaryFile() as out:
        server, traced = start(server_command, out=server_out), None
        try:
            wait_listening(port, server)
            traced = subprocess.Popen([NUPA, "run", "--", *gdb, "--args", *client_command.removeprefix("stdbuf -oL ").split()],
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            if flows():
                stop(server)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    traced.wait(LIMIT_S)
            outcome(commands and "state: %d to %d\n" % (RTS, ERROR) in said(out) and "nupa::core::Qp::set_state" in said(out), name, said(out)[-800:] + said(server_out)[-200:])
        finally:
            for process in (server, traced):
                if process is not None:
                    stop(process)


class Traced:
    """A script of examples/tracing while it runs. `text` is all that it has said when the `with` block is left."""

    def __init__(self, script, library):
        self._out = tempfile.TemporaryFile()
        self.text = ""
        self._tracer = subprocess.Popen(["bpftrace", os.path.join(ROOT, "examples", "tracing", script), library], stdin=subprocess.DEVNULL,
                                        stdout=self._out, stderr=subprocess.STDOUT, start_new_session=True)
        self.attached = wait_for(lambda: self._tracer.poll() is not None or self._waits(), LIMIT_S) and self._tracer.poll() is None

    def _waits(self):
        """bpftrace waits for events as soon as all probes are there."""
        with open("/proc/%d/wchan" % self._tracer.pid, encoding="ascii") as file:
            return re.search("epoll|ep_poll", file.read()) is not None

    def shows(self, pattern):
        return wait_for(lambda: re.search(pattern, said(self._out)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._tracer.poll() is None:
            self._tracer.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._tracer.wait(LIMIT_S)
        stop(self._tracer)
        self.text = said(self._out)
        self._out.close()


def without_bpftrace():
    """Why bpftrace sees no program here; empty: it does."""
    if shutil.which("bpftrace") is None:
        return "bpftrace is not installed"
    if os.geteuid() != 0:
        return "bpftrace needs root"
    done = subprocess.run(["timeout", str(LIMIT_S), "bpftrace", "-e", "uprobe:%s:malloc { printf(\"seen\\n\"); exit(); }" % LIBC, "-c", "/bin/ls /"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "" if "seen" in done.stdout else "the kernel lets bpftrace see no function of a library: " + done.stderr.strip()[-100:]


def latency():
    """Each SEND of a pingpong is in the histogram of its queue pair."""
    with Traced("latency.bt", LIBNUPA) as traced, Pair(*pingpong("-n %d" % PINGPONGS)) as pair:
        reason = pair.wait(LIMIT_S)
    counts = [sum(int(count) for count in re.findall(r"^\[.*[\])] +(\d+) \|", part, re.MULTILINE))
              for part in re.split(r"@latency_ns\[\d+, \d+\]: *\n", traced.text)[1:]]
    outcome(traced.attached and reason == "" and counts == [PINGPONGS] * 2, "latency.bt counts each request of both queue pairs",
            "%s %s %s" % (reason, counts, traced.text[-600:]))


def failures_of_a_peer():
    """A peer that answers no more: packets are sent again, the request fails, the queue pair enters the error state."""
    with Traced("failures.bt", LIBNUPA) as traced, Pair(*endless_writes(), env={"NUPA_TRANSPORT": "roce"}) as pair:
        failed = False
        if pair.client is not None and flows():
            suspend(pair.server)
            failed = traced.shows(r"ib_write_bw: queue pair \d+: wr_id \d+: status %d\n" % WC_RETRY_EXCEEDED)
    outcome(failed and "state %d to %d\n" % (RTS, ERROR) in traced.text, "failures.bt shows the completion with an error and the state",
            pair.trouble + traced.text[-600:])
    again = re.findall(r"@again\[\d+, \d+\]: (\d+)", traced.text)
    outcome(again and int(again[0]) > 0, "failures.bt counts the packets that were sent again", traced.text[-300:])


def connections():
    """The events of both sides of an rping, in their order."""
    if shutil.which("rping") is None or not os.path.exists(LIBRDMACM):
        skip("connections.bt", "rping is not installed, or the build has no librdmacm")
        return
    with Traced("connections.bt", LIBRDMACM) as traced, tempfile.TemporaryFile() as out:
        port = free_port()
        server = start("rping -s -p %d -C 5" % port, out=out)
        client = None
        try:
            def connects():
                return subprocess.run([NUPA, "run", "--", "rping", "-c", "-a", "127.0.0.1", "-p", str(port), "-C", "5"], capture_output=True, timeout=LIMIT_S).returncode == 0
            client = wait_for(connects)
            server.wait(LIMIT_S)
        finally:
            stop(server)
    events = {}
    for pid, event, status in re.findall(r"^(\d+) rping: id 0x[0-9a-f]+: event (\d+), status (-?\d+)$", traced.text, re.MULTILINE):
        events.setdefault(pid, []).append((int(event), int(status)))
    # enum rdma_cm_event_type: address and route are there, request, established, disconnected.
    orders = {tuple(event for event, status in each if status == 0) for each in events.values()}
    outcome(client and any(each[:3] == (0, 2, 9) for each in orders) and any(each[:3] == (4, 9, 10) for each in orders), "connections.bt shows the events of both sides",
            "%s %s" % (orders, traced.text[-600:]))


reason = without_gdb()
if reason:
    skip("gdb", reason)
else:
    gdb_attaches()
    gdb_commands_of_the_guide()
reason = without_bpftrace()
if reason:
    skip("bpftrace", reason)
else:
    latency()
    failures_of_a_peer()
    connections()
finish()
