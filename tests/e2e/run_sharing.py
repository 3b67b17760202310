#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two containers of one user that share the runtime directory: other process numbers, networks, mounts, users."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pairs import NUPA, Pair, finish, free_port, last_line, left_in, nupa, outcome, private_runtime_dir, run_pair, skip, \
    wait_for

NOBODY = 65534
SURVIVOR_SECONDS = 20  # to learn that its peer is gone, and to end: else it never does
AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
# A container's usual namespaces but the network, so that the programs can exchange their addresses.
ALONE = ("unshare", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
ALONE_AS_USER = ("unshare", "--user", "--map-root-user", *ALONE[1:])
runtime_dir = private_runtime_dir()
# What a container engine's usual profile takes away: capabilities, and calls that look into other processes.
WITHOUT_POWERS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
FORBIDDEN = (sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "forbid_calls.py"),
             "process_vm_readv,process_vm_writev,userfaultfd,ptrace")
# The same folder under another name.
ELSEWHERE = ("unshare", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
             'mount --bind "$NUPA_RUNTIME_DIR" /mnt && NUPA_RUNTIME_DIR=/mnt exec "$@"', "sh")


def allowed(*prefix):
    return subprocess.run([*prefix, "true"], capture_output=True).returncode == 0


def perftest(program, options, port, address="127.0.0.1"):
    server = "%s -F -d nupa0 -x 1 -p %d %s" % (program, port, options)
    return server, server + " " + address


def pingpong(kind, options, port, address="127.0.0.1"):
    server = "ibv_%s_pingpong -d nupa0 -g 1 -p %d %s" % (kind, port, options)
    return server, server + " " + address


# What only a service thread can do where nothing is mapped takes thousands of turns a second, not millions.
CASES = [("pingpong rc", lambda p, a: pingpong("rc", "-n 1000", p, a)),
         ("pingpong rc-events", lambda p, a: pingpong("rc", "-e -n 1000", p, a)),
         ("pingpong rc-odd", lambda p, a: pingpong("rc", "-s 4097 -n 500", p, a)),
         ("pingpong rc-checked", lambda p, a: pingpong("rc", "-c -s 10001 -n 300", p, a)),
         ("pingpong ud", lambda p, a: pingpong("ud", "-s 999 -n 500", p, a)),
         ("pingpong srq", lambda p, a: pingpong("srq", "-q 4 -n 300", p, a)),
         ("ib_write_bw", lambda p, a: perftest("ib_write_bw", "-s 65536 -n 300", p, a)),
         ("ib_read_bw", lambda p, a: perftest("ib_read_bw", "-s 65536 -n 300", p, a)),
         ("ib_atomic_bw", lambda p, a: perftest("ib_atomic_bw", "-n 300", p, a)),
         ("ib_send_bw", lambda p, a: perftest("ib_send_bw", "-s 65536 -n 300", p, a)),
         ("ib_send_bw -a", lambda p, a: perftest("ib_send_bw", "-a -n 5 -r 16 -t 8", p, a)),
         ("ib_write_lat", lambda p, a: perftest("ib_write_lat", "-s 8 -n 300", p, a))]
# Where the memory cannot be mapped either, all bytes go by the service thread.
SMALL = [case for case in CASES if case[0] != "ib_send_bw -a"]
FEW = [case for case in CASES if case[0] in ("pingpong rc-checked", "pingpong rc-events", "ib_read_bw", "ib_atomic_bw",
                                             "ib_write_bw")]


def all_cases(setting, cases, before, client_before, env=None, address="127.0.0.1"):
    for name, commands in cases:
        port = free_port()
        server, client = commands(port, address)
        run_pair("%s: %s" % (setting, name), server, client, port, env=env, seconds=60, before=before,
                 client_before=client_before)


def copies_do_not_work():
    """The setting is what it says: neither side sees the other's process number, so no kernel copies."""
    port = free_port()
    server, client = pingpong("rc", "-n 100", port)
    with Pair(server, client, port, {"NUPA_LOG": "info"}, ALONE, ALONE) as pair:
        reason = pair.wait(30)
        text = pair.text()
        outcome(reason == "" and text.count("the service thread of the peer copies") >= 2, "separate-pids-forbid-kernel-copies",
                reason or text[-300:])


def descendant(process):
    """The program that an unshare runs."""
    pid = process.pid
    for _ in range(100):
        with open("/proc/%d/task/%d/children" % (pid, pid)) as children:
            below = children.read().split()
        if not below:
            return pid
        pid = int(below[0])
    return pid


def stat_rows():
    return json.loads(nupa("stat", "--json").stdout or "[]")


def killed_in_its_namespace(name, program, options, victim_is_server):
    """Both sides send all the time, so that the survivor has something under way."""
    port = free_port()
    server, client = perftest(program, options, port)
    with Pair(server, client, port, None, ALONE, ALONE) as pair:
        # A server whose client dies before that waits for the next one.
        if pair.client is None or not wait_for(lambda: [row["messages"] > 0 for row in stat_rows()] == [True, True]):
            return outcome(False, name, "does not run: %s" % (pair.trouble or pair.text()[-200:]))
        victim, survivor = (pair.server, pair.client) if victim_is_server else (pair.client, pair.server)
        os.kill(descendant(victim), signal.SIGKILL)
        try:
            status = survivor.wait(SURVIVOR_SECONDS)
            said = last_line(pair.outs[1 if victim_is_server else 0])
            outcome(0 < status < 128, name, "status %s: %s" % (status, said))
        except subprocess.TimeoutExpired:
            outcome(False, name, "the survivor hangs")
        left = left_in(runtime_dir)
        outcome(left == [], name + "-leaves-nothing", str(left))
    nupa("clean")


def killed_while_it_serves(program, victim_is_server):
    """Each byte goes by the other side's service thread when that side dies."""
    name = "kill-9 %s, NUPA_REMAP=never, %s" % ("server" if victim_is_server else "client", program)
    port = free_port()
    server, client = perftest(program, "--run_infinitely", port)
    with Pair(server, client, port, {"NUPA_REMAP": "never"}, ALONE, ALONE) as pair:
        flows = pair.client is not None and wait_for(lambda: any(row["messages"] > 0 for row in stat_rows()))
        victim, survivor = (pair.server, pair.client) if victim_is_server else (pair.client, pair.server)
        if not flows or victim.poll() is not None or survivor.poll() is not None:
            return outcome(False, name, "does not run: %s" % pair.text()[-200:])
        os.kill(descendant(victim), signal.SIGKILL)
        try:
            status = survivor.wait(SURVIVOR_SECONDS)
            outcome(0 < status < 128, name, "status %s" % status)
        except subprocess.TimeoutExpired:
            outcome(False, name, "the survivor hangs")
        left = left_in(runtime_dir)
        outcome(left == [], name + "-leaves-nothing", str(left))
    nupa("clean")


def seen_from_outside():
    """`nupa stat` and `nupa clean` of the host see processes of containers, and each other's of containers."""
    port = free_port()
    server, client = pingpong("rc", "-n 2000000000", port)
    with Pair(server, client, port, None, ALONE, ALONE) as pair:
        def both(before):
            """Who has no processor for half a second is left out."""
            rows = [line for line in nupa("stat", before=before).stdout.splitlines() if " RTS " in line]
            return rows if len(rows) == 2 else None

        rows, inside = wait_for(lambda: both(())), wait_for(lambda: both(ALONE))
        outcome(rows and inside, "stat-across-containers", "%s / %s" % (rows, inside))
        cleaned = nupa("clean", before=ALONE).stdout
        time.sleep(0.2)  # sleep: a client whose files were removed would fail within that time
        outcome("removed" not in cleaned and pair.client is not None and pair.client.poll() is None,
                "clean-across-containers", cleaned)
    nupa("clean")


def is_elsewhere(process):
    """Whether it has come to a network of its own."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/%d/ns/net" % process.pid) != os.readlink("/proc/self/ns/net")
    return False


class TwoNetworks:
    """Two network namespaces, joined by a virtual cable; gone with the processes that hold them."""

    def __init__(self):
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "300"]) for _ in range(2)]
        for holder in self.holders:
            wait_for(lambda: holder.poll() is not None or is_elsewhere(holder))
        one, two = (str(holder.pid) for holder in self.holders)
        commands = (["ip", "link", "add", "nupa0a", "type", "veth", "peer", "name", "nupa0b", "netns", two],)
        self.trouble = ""
        for pid, command in [(one, commands[0])] + [
                (pid, ["ip"] + words) for pid, name, address in ((one, "nupa0a", "10.99.0.1/24"),
                                                                 (two, "nupa0b", "10.99.0.2/24"))
                for words in (["addr", "add", address, "dev", name], ["link", "set", name, "up"],
                              ["link", "set", "lo", "up"])]:
            done = subprocess.run(["nsenter", "-t", pid, "-n", *command], capture_output=True, text=True)
            if done.returncode != 0:
                self.trouble = self.trouble or done.stderr.strip()
        self.enter = [("nsenter", "-t", pid, "-n", *ALONE) for pid in (one, two)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for holder in self.holders:
            holder.kill()
            holder.wait()


def separate_networks():
    with TwoNetworks() as networks:
        if networks.trouble:
            return skip("separate-networks", networks.trouble)
        wanted = [case for case in CASES if case[0] in ("pingpong rc", "pingpong ud", "pingpong rc-checked",
                                                        "ib_write_bw", "ib_read_bw", "ib_send_bw")]
        all_cases("separate-networks", wanted, networks.enter[0], networks.enter[1], address="10.99.0.1")


if not allowed(*ALONE):
    skip("containers-of-root", "unshare is not allowed")
else:
    copies_do_not_work()
    all_cases("separate-pids", CASES, ALONE, ALONE)
    all_cases("container-and-host", FEW, ALONE, ())
    all_cases("separate-pids, NUPA_REMAP=never", SMALL, ALONE, ALONE, {"NUPA_REMAP": "never"})
    all_cases("shared-under-another-name", FEW[:2], ALONE, ELSEWHERE)
    if not allowed(*FORBIDDEN) or not allowed(*WITHOUT_POWERS):
        skip("containers-with-a-profile", "system calls or capabilities cannot be taken away")
    else:
        profile = (*WITHOUT_POWERS, *FORBIDDEN)
        all_cases("profile, separate-pids", FEW, (*ALONE, *profile), (*ALONE, *profile))
        all_cases("profile, one container", FEW, profile, profile)
        all_cases("profile on one side", FEW[:2], profile, ())
    for how, program, options in (("polling", "ib_write_bw", "-b -s 4096 -n 100000000"),
                                  ("sleeping", "ib_send_bw", "-b -e -s 4096 -n 100000000")):
        for server in (True, False):
            killed_in_its_namespace("kill-9 %s %s" % ("server" if server else "client", how), program, options, server)
    for program in ("ib_write_bw", "ib_read_bw", "ib_atomic_bw"):
        killed_while_it_serves(program, True)
    killed_while_it_serves("ib_read_bw", False)
    seen_from_outside()
    separate_networks()

user = () if os.geteuid() != 0 else AS_NOBODY
if not allowed(*user, *ALONE_AS_USER):
    skip("containers-of-a-user", "user namespaces are not allowed")
elif not allowed(*user, NUPA, "run", "--"):
    skip("containers-of-a-user", "the build folder is closed to other users")
else:
    own = {"NUPA_RUNTIME_DIR": private_runtime_dir(NOBODY) if user else runtime_dir}
    all_cases("user-namespaces", FEW, (*user, *ALONE_AS_USER), (*user, *ALONE_AS_USER), own)
    all_cases("user-namespace-and-host", FEW[:2], (*user, *ALONE_AS_USER), user, own)
left_over = left_in(runtime_dir)
outcome(left_over == [], "nothing-left", str(left_over))
finish()
