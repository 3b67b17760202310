#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connections whose other end dies, stops or is hostile. NUPA_FAULT_ROUNDS: how often the reconnect storm goes round
(default 3); from 20 on also what takes minutes: 10,000 connections one after the other, 2,000 at once, a storm of 50
clients, and patience with a host that answers no more."""
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import pairs
from hosts import ADDRESS, HERE, THERE, inside, ip, left_namespaces, make_hosts, remove_hosts
from pairs import NUPA, finish, left_in, nupa, outcome, private_runtime_dir, skip, wait_for
from recorder import RecordError, record
from roce_packets import ETHERNET, end_of_packet, frames, header_bytes, number

ROUNDS = int(os.environ.get("NUPA_FAULT_ROUNDS", "3"))
LONG = ROUNDS >= 20
SEED = int(os.environ.get("NUPA_FAULT_SEED", str(random.SystemRandom().randrange(1 << 30))))
random.seed(SEED)
FOLDER = os.path.dirname(os.path.abspath(__file__))
NOBODY = 65534
work = tempfile.mkdtemp(prefix="nupa-connections-")
os.chmod(work, 0o755)
PROBE = os.path.join(work, "cm_probe")
BTH, DETH = 12, 8  # bytes
STANDARD_PORT = 4791


class Probe:
    """A cm_probe that runs."""

    def __init__(self, before=(), env=None, error=subprocess.DEVNULL):
        self.process = subprocess.Popen([*before, NUPA, "run", "--", PROBE], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, stderr=error, bufsize=1,
                                        env=dict(os.environ, **(env or {})))
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    @property
    def pid(self):
        return self.process.pid  # commands in front replace themselves by it

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.strip())
                self.changed.notify_all()

    def tell(self, order):
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is dead, as intended

    def count(self, pattern):
        with self.changed:
            return sum(1 for line in self.lines if re.match(pattern, line))

    def wait(self, pattern, times=1, seconds=20):
        """Whether it says so that often, within that time."""
        with self.changed:
            return self.changed.wait_for(
                lambda: sum(1 for line in self.lines if re.match(pattern, line)) >= times, seconds)

    def ask(self, order, pattern, seconds=20):
        """The line with which it answers; empty: none came."""
        before = self.count(pattern)
        self.tell(order)
        if not self.wait(pattern, before + 1, seconds):
            return ""
        with self.changed:
            return [line for line in self.lines if re.match(pattern, line)][-1]

    def listen(self, address, port=0, backlog=0):
        """The port, or minus the error; 0: it says nothing."""
        words = self.ask("listen %s %d %d" % (address, port, backlog), "listening|refused").split()
        return 0 if not words else int(words[1]) if words[0] == "listening" else -int(words[1])

    def told(self):
        with self.changed:
            return " | ".join(self.lines[-6:])

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.tell("quit")
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.reader.join(5)
        self.process.stdin.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    # What it uses.

    def memory(self):
        """VmRSS in KiB."""
        with open("/proc/%d/status" % self.pid) as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))

    def descriptors(self):
        """What they lead to: {"socket": 3, ...}"""
        folder = "/proc/%d/fd" % self.pid
        return collections.Counter(os.readlink(os.path.join(folder, fd)).split(":")[0] for fd in os.listdir(folder))


class World:
    """Where servers and clients are: on this host, or on two that are joined by a wire."""

    def __init__(self, apart):
        self.apart = apart
        self.address = ADDRESS[HERE] if apart else "127.0.0.1"
        self.before_server = inside(HERE) if apart else ()
        self.runtime_dir = private_runtime_dir()
        self.other_dir = tempfile.mkdtemp(prefix="other-", dir=work) if apart else self.runtime_dir
        self.before_client = (*inside(THERE), "env", "NUPA_RUNTIME_DIR=" + self.other_dir) if apart else ()

    def server(self, **more):
        return Probe(self.before_server, **more)

    def client(self, **more):
        return Probe(self.before_client, **more)

    def serving(self, backlog=0, **more):
        """A server that listens, and its port."""
        server = self.server(**more)
        port = server.listen(self.address, 0, backlog)
        if port <= 0:
            server.end()
            raise RuntimeError("the server does not listen: %s" % server.told())
        return server, port

    def left_behind(self):
        """Files and abstract sockets of processes that are gone."""
        left = [os.path.join(folder, name) for folder in {self.runtime_dir, self.other_dir}
                for name in left_in(folder)]
        for before in {self.before_server, self.before_client}:
            with_table = subprocess.run([*before, "cat", "/proc/net/unix"], capture_output=True, text=True).stdout
            left += [line.split()[-1] for line in with_table.splitlines() if "nupa-cm/" in line]
        return left

    def clean(self):
        """What the killed left, when nobody was left to tidy up."""
        for folder in {self.runtime_dir, self.other_dir}:
            nupa("clean", env={"NUPA_RUNTIME_DIR": folder})


ENDED = r"active (REJECTED|UNREACHABLE|DISCONNECTED)"


def server_dies_before_it_answers(world, seconds):
    server, port = world.serving()
    with server, world.client() as client:
        server.tell("hold")
        client.tell("connect %s %d 3" % (world.address, port))
        held = server.wait("held", 3)
        server.kill()
        began = time.time()
        told = client.wait("active (REJECTED|UNREACHABLE)", 3, seconds)
        outcome(held and told, "listener-dies-before-it-answers", "held %s; %s" % (held, client.told()))
        print("     after %.1f s" % (time.time() - began), flush=True)
    world.clean()


def client_vanishes(world):
    server, port = world.serving()
    with server, world.client() as client:
        client.tell("connect %s %d 5" % (world.address, port))
        up = client.wait("active ESTABLISHED", 5) and server.wait("passive ESTABLISHED", 5)
        client.kill()
        outcome(up and server.wait("passive DISCONNECTED", 5, 10), "client-vanishes", server.told())
        with world.client() as young:
            young.tell("connect %s %d 1" % (world.address, port))
            outcome(young.wait("active ESTABLISHED"), "client-vanishes-next-one-is-served", young.told())


def server_ends_by_exit(world):
    """No exit handler runs, and nobody asks a standard peer whether it lives: it has to be told."""
    os.environ["NUPA_ROCE_PEERS"] = "standard"
    try:
        server, port = world.serving()
        with server, world.client() as client:
            client.tell("connect %s %d 5" % (world.address, port))
            up = client.wait("active ESTABLISHED", 5) and server.wait("passive ESTABLISHED", 5)
            server.tell("vanish")
            outcome(up and client.wait("active DISCONNECTED", 5, 10), "server-ends-by-_exit", client.told())
    finally:
        del os.environ["NUPA_ROCE_PEERS"]


def server_killed_under_load(world, count):
    server, port = world.serving()
    with server, world.client() as client:
        client.tell("connect %s %d %d" % (world.address, port, count))
        up = client.wait("active ESTABLISHED", count, 30)
        client.tell("load")
        time.sleep(0.3)  # sleep: the kill comes amid the load, at another place of it each time
        server.kill()
        began = time.time()
        ended = client.wait("active DISCONNECTED", count, 15)
        outcome(up and ended, "server-killed-under-load %d" % count,
                "%d of %d: %s" % (client.count("active DISCONNECTED"), count, client.told()))
        print("     after %.1f s" % (time.time() - began), flush=True)
    world.clean()


def server_stops(world):
    """It is stopped for 3 s while a client connects that it knows: the client waits."""
    server, port = world.serving()
    with server, world.client() as client:
        client.tell("connect %s %d 1" % (world.address, port))
        up = client.wait("active ESTABLISHED")
        server.kill(signal.SIGSTOP)
        client.tell("connect %s %d 10" % (world.address, port))
        time.sleep(3)  # sleep: the server is stopped for so long
        early = client.count(ENDED)
        server.kill(signal.SIGCONT)
        done = client.wait("active ESTABLISHED", 11, 20)
        wrote = client.ask("write", "written")
        outcome(up and early == 0 and done and wrote == "written 11", "server-stops-while-clients-connect",
                "%d ended early; %s" % (early, client.told()))


def stopped_server_that_nobody_knows(world):
    server, port = world.serving()
    with server, world.client() as client:
        server.kill(signal.SIGSTOP)
        client.tell("connect %s %d 2" % (world.address, port))
        time.sleep(1)  # sleep: the server is stopped for so long
        server.kill(signal.SIGCONT)
        outcome(client.wait("active ESTABLISHED", 2, 20), "stopped-server-gets-its-first-client", client.told())


def one_port_one_listener(world):
    server, port = world.serving()
    EADDRINUSE = 98
    with server:
        with world.server() as second:
            outcome(second.listen(world.address, port) == -EADDRINUSE, "one-port-one-process", second.told())
            outcome(second.listen("0.0.0.0", port) == -EADDRINUSE, "one-port-one-process-any-address", second.told())
        if os.geteuid() == 0 and not world.apart:
            others = private_runtime_dir(NOBODY)
            as_nobody = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
            readable = subprocess.run([*as_nobody, "test", "-x", NUPA]).returncode == 0
            if readable:
                with Probe((*as_nobody, "env", "NUPA_RUNTIME_DIR=" + others)) as second:
                    outcome(second.listen(world.address, port) == -EADDRINUSE, "one-port-one-user", second.told())
                    server.kill()
                    outcome(second.listen(world.address, port) == port, "one-port-is-free-after-a-kill",
                            second.told())
                    world.clean()
            else:
                skip("one-port-one-user", "the build folder is closed to other users")


def cycles(world, count):
    """Connections one after the other: nothing grows at either end."""
    server, port = world.serving()
    with server, world.client() as client:
        # Numbers of queue pairs are all used before one is used again, and each has its place in the segment.
        warm = client.ask("cycle %s %d %d" % (world.address, port, 5000 if LONG else 100), "cycled", 300)
        before = [(end.memory(), end.descriptors()) for end in (server, client)]
        files = len(world.left_behind())
        began = time.time()
        done = client.ask("cycle %s %d %d" % (world.address, port, count), "cycled", 600)
        took = time.time() - began
        # What connections in time wait hold is no growth: as many as are begun in half a second, at most 2 KiB each.
        room = 600 + (0 if LONG else 2 * count) + int(2 * 0.6 * count / max(took, 0.1))
        # Over packets a process has one socket for the peer whose messages come most often, once they do (docs/design/roce.md).
        spare = collections.Counter(socket=1) if world.apart else collections.Counter()

        def use():
            """What both use now, and what of that is more than it may be."""
            now = [(end.memory(), end.descriptors()) for end in (server, client)]
            return now, ["%s to %s" % (old, new) for old, new in zip(before, now)
                         if new[0] > old[0] + room or new[1] - old[1] - spare]

        # The last ones may still be in time wait, and a busy machine may still end others.
        wait_for(lambda: not use()[1] and len(world.left_behind()) <= files)
        after, grown = use()
        outcome(bool(warm) and done == "cycled %d" % count and not grown, "cycles-leave-nothing",
                "%s; %s; grown (KiB, descriptors): %s" % (done, client.told(), grown))
        outcome(len(world.left_behind()) <= files, "cycles-leave-no-files", world.left_behind())
        print("     %d cycles in %.1f s; server %s to %s, client %s to %s (KiB, descriptors)"
              % (count, took, *[(memory, descriptors.total()) for memory, descriptors in
                                (before[0], after[0], before[1], after[1])]), flush=True)


def many_at_once(world, count):
    log = tempfile.TemporaryFile("a+")  # of both ends
    told = {"env": {"NUPA_LOG": "info"}, "error": log}
    server, port = world.serving(**told)
    with log, server, world.client(**told) as client:
        client.tell("connect %s %d 1" % (world.address, port))
        client.wait("active ESTABLISHED")
        before = server.memory(), client.memory()
        began = time.time()
        client.tell("connect %s %d %d" % (world.address, port, count - 1))
        up = client.wait("active ESTABLISHED", count, 180) and server.wait("passive ESTABLISHED", count, 30)
        took = time.time() - began
        each = [(now - old) / (count - 1) for now, old in zip((server.memory(), client.memory()), before)]
        wrote = client.ask("write", "written", 60)
        outcome(up and wrote == "written %d" % count, "%d-connections-at-once" % count,
                "%d; %s; %s" % (client.count("active ESTABLISHED"), wrote, client.told()))
        outcome(max(each) < 64, "%d-connections-memory" % count, "%s KiB for each" % each)
        print("     %.1f s; %.1f KiB a connection at the server, %.1f at the client" % (took, *each), flush=True)
        client.tell("drop")
        outcome(server.wait("passive DISCONNECTED", count, 60), "%d-connections-end" % count,
                server.count("passive DISCONNECTED"))
        log.seek(0)
        lost = [line for line in log if "dropped a message" in line]
        outcome(lost == [], "%d-connections-lose-no-message" % count, "%d: %s" % (len(lost), lost[:1]))


def storm(world, clients, rounds):
    """Both sides are killed and come back; in the end all works, and nothing is left."""
    server, port = world.serving()
    order = "persist %s %d 2" % (world.address, port)

    def begin():
        client = world.client()
        client.tell(order)
        return client

    alive = [begin() for _ in range(clients)]
    for _ in range(rounds):
        time.sleep(random.uniform(0.1, 0.6))  # sleep: the kill comes at a random moment
        for i in random.sample(range(clients), clients // 3):
            alive[i].kill()
            alive[i].end()
            alive[i] = begin()
        time.sleep(random.uniform(0.0, 0.4))  # sleep: the kill comes at a random moment
        server.kill()
        server.end()
        server = world.server()
        if server.listen(world.address, port) != port:
            outcome(False, "storm-server-comes-back", "seed %d: %s" % (SEED, server.told()))
            break

    bad = alive

    def all_work():
        nonlocal bad
        bad = [client for client in alive if client.ask("write", "written", 5) != "written 2"]
        return not bad

    wait_for(all_work, 40)
    outcome(not bad, "storm-ends-well", "seed %d: %d of %d do not: %s"
            % (SEED, len(bad), clients, "; ".join(client.told() for client in bad[:3])))
    for client in alive:
        client.end()
    server.end()
    left = world.left_behind()
    if left:  # of those that were killed last, if nobody tidied up
        world.clean()
        left = world.left_behind()
    outcome(left == [], "storm-leaves-nothing", left)


def port_changes_hands(world, name, first):
    """Whoever has UDP port 4791 ends: another process takes it. `first`: a program that has it and no listener."""
    with world.client() as client:
        has_port = first()
        if has_port is None:
            return outcome(False, name, "nobody has the port")
        server, port = world.serving()
        with server:
            client.tell("connect %s %d 1" % (world.address, port))
            outcome(client.wait("active ESTABLISHED", 1, 8), name + "-passes-on", client.told())
            has_port.kill()
            has_port.wait()
            has_port.stdin.close()
            before = client.count("active ESTABLISHED")
            began = time.time()
            client.tell("connect %s %d 1" % (world.address, port))
            outcome(client.wait("active ESTABLISHED", before + 1, 10), name + "-ends-and-another-takes-over", client.told())
            print("     after %.1f s" % (time.time() - began), flush=True)
    world.clean()


def who_has_the_port(host):
    listed = subprocess.run([*inside(host), "ss", "-uanpH"], capture_output=True, text=True).stdout
    return [int(pid) for line in listed.splitlines() if ":%d " % STANDARD_PORT in line
            for pid in re.findall(r"pid=(\d+)", line)]


def program_with_the_port(command, order=""):
    process = subprocess.Popen([*inside(HERE), NUPA, "run", "--", *command], stdin=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    process.stdin.write(order + "\n")
    process.stdin.flush()
    if wait_for(lambda: process.pid in who_has_the_port(HERE)):
        return process
    process.kill()
    process.wait()
    return None


def recorded_messages(world):
    """The management datagrams of a connection that was made and ended, as the client's host sent them."""
    server, port = world.serving()
    path = os.path.join(work, "packets")
    with server, world.client() as client:
        # Of queue pairs whose numbers no connection of the ones to come has: a request with such a number would tell that
        # its host has forgotten that connection (IBTA 12.9.8.3.1).
        client.tell("connect %s %d 40" % (world.address, port))
        client.wait("active ESTABLISHED", 40)
        try:
            with record("wire", path, inside(THERE)):
                client.ask("cycle %s %d 2" % (world.address, port), "cycled")
        except RecordError as error:
            outcome(False, "strange-messages-recorded", str(error))
            return []
    to_here = [frame for frame in frames(path) if number(frame)[0] == "000001"]
    return [frame[header_bytes(frame) + BTH + DETH:end_of_packet(frame) - 4].hex() for frame in to_here
            if frame[ETHERNET + 16:ETHERNET + 20] == bytes(map(int, ADDRESS[HERE].split(".")))]


def send_strange(world, port, kinds, count, recorded=()):
    order = {"source": ADDRESS[THERE], "to": ADDRESS[HERE], "port": port, "kinds": kinds, "count": count,
             "recorded": list(recorded)}
    done = subprocess.run([*inside(THERE), sys.executable, os.path.join(FOLDER, "strange_mads.py")], text=True,
                          input=json.dumps(order), capture_output=True, timeout=120)
    return done.stderr[-300:]


def packets(host):
    """How many the host's end of the wire has received."""
    return json.loads(ip("-n", host, "-s", "-j", "link", "show", "wire").stdout)[0]["stats64"]["rx"]["packets"]


def strangers(world, flood):
    recorded = recorded_messages(world)
    outcome(len(recorded) > 3, "strange-messages-recorded", len(recorded))
    server, port = world.serving()
    with server, world.client() as client:
        client.tell("connect %s %d 5" % (world.address, port))
        up = client.wait("active ESTABLISHED", 5)
        trouble = send_strange(world, port, ["wrong-qkey", "wrong-class", "truncated", "garbage", "random-numbers"], 300)
        trouble += send_strange(world, port, ["replayed"], 300, recorded) if recorded else ""
        outcome(not trouble and up and client.ask("write", "written") == "written 5" and client.count(ENDED) == 0 and
                server.count("passive (?!ESTABLISHED)") == 0, "strange-messages-change-nothing",
                "%s %s; %s" % (trouble, client.told(), server.told()))
        client.tell("connect %s %d 1" % (world.address, port))
        outcome(client.wait("active ESTABLISHED", 6), "strange-messages-and-then-a-client", client.told())
        before = server.memory()
        flooding = threading.Thread(target=send_strange, args=(world, port, ["request"], flood))
        began = time.time()
        arrived = packets(HERE)
        flooding.start()
        wait_for(lambda: packets(HERE) > arrived + 50)
        client.tell("connect %s %d 5" % (world.address, port))
        outcome(client.wait("active ESTABLISHED", 11, 30), "request-flood-clients-are-served", client.told())
        served = time.time() - began
        flooding.join()
        time.sleep(0.5)  # sleep: the server takes the rest of the flood; nothing outside the server shows when it has taken all
        grown = server.memory() - before
        outcome(grown < 32 * flood + 8192, "request-flood-memory", "%d KiB more" % grown)
        outcome(client.ask("write", "written") == "written 11" and client.count(ENDED) == 0,
                "request-flood-connections-stand", client.told())
        print("     %d requests in %.1f s, 5 clients served by %.1f s, %d KiB more at the server"
              % (flood, time.time() - began, served, grown), flush=True)


def both(world):
    """What holds wherever the two are."""
    client_vanishes(world)
    server_ends_by_exit(world)
    server_killed_under_load(world, 1)
    server_killed_under_load(world, 100)
    server_stops(world)
    cycles(world, 10000 if LONG else 300)
    many_at_once(world, 2000 if LONG else 200)
    storm(world, 50 if LONG else 6, ROUNDS)


def one_host():
    world = World(False)
    one_port_one_listener(world)
    server_dies_before_it_answers(world, 5)
    both(world)
    outcome(world.left_behind() == [], "connection-faults-leave-nothing", world.left_behind())


def two_hosts():
    os.environ["NUPA_TRANSPORT"] = "roce"
    pairs.over = "roce "
    if not make_hosts(9000):
        return skip("connection-faults", "needs root, network namespaces and veth")
    world = World(True)
    port_changes_hands(world, "port-of-a-listener", lambda: program_with_the_port([PROBE], "listen 0.0.0.0 0 0"))
    port_changes_hands(world, "port-of-a-program-without-connections",
                       lambda: program_with_the_port(["ibv_rc_pingpong", "-d", "nupa0", "-g", "1"]))
    stopped_server_that_nobody_knows(world)
    strangers(world, 10000 if LONG else 2000)
    both(world)
    if LONG:
        server_dies_before_it_answers(world, 120)
    outcome(world.left_behind() == [], "connection-faults-leave-nothing", world.left_behind())
    remove_hosts()
    outcome(left_namespaces() == [], "connection-faults-leave-no-namespace", left_namespaces())
    return None


try:
    built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(FOLDER, "cm_probe.cc"), "-o", PROBE, "-lrdmacm",
                            "-libverbs"], capture_output=True, text=True)
    if built.returncode != 0:
        outcome(False, "cm-probe-builds", built.stderr[-300:])
        finish()
    if "shm" in pairs.TRANSPORTS:
        os.environ["NUPA_TRANSPORT"] = "shm"
        one_host()
    if "roce" in pairs.TRANSPORTS:
        two_hosts()
finally:
    shutil.rmtree(work, ignore_errors=True)
finish()
