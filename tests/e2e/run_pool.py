#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs over a pool: two network namespaces as two hosts that share a file. The file is used as coherent
memory, and as memory whose hosts have caches of their own (torn)."""
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import run_rdmacm
from cm_pairs import Place, await_listener
from hosts import ADDRESS, HERE, THERE, inside, ip, left_namespaces, make_hosts
from pairs import (ALL, NUPA, Pair, finish, free_port, missing_program, nupa, outcome, private_runtime_dir, run_pair, skip, start,
                   stop, wait_for, wait_listening)

NUMBER = {HERE: 0, THERE: 1}
DIRECTORY = {HERE: private_runtime_dir(), THERE: private_runtime_dir()}
ENV = {"NUPA_TRANSPORT": "pool"}
SIZE = "256M"
IDLE_SECONDS = 2
MOST_SLEEPS = 100  # a second, of all threads of a process: the heartbeat alone takes 20
DEAD_SECONDS = 20  # a heartbeat that does not change for 2 s ends the peer


class Pool:
    """A pool in a file, as the hosts use it."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        self.path = os.path.join(tempfile.mkdtemp(prefix="nupa-pool-", dir="/dev/shm"), "pool")
        made = nupa("pool", "format", "--pool", "file:%s,host=0" % self.path, "--hosts", "2", "--size", SIZE)
        outcome(made.returncode == 0, name + " format", made.stdout + made.stderr)

    def on(self, host):
        """A command that runs a command on a host."""
        settings = {"NUPA_POOL": "file:%s,host=%d%s" % (self.path, NUMBER[host], self.options),
                    "NUPA_RUNTIME_DIR": DIRECTORY[host], **ENV}
        return (*inside(host), "env", *["%s=%s" % item for item in settings.items()])

    def address(self, host):
        """The host's own address in the pool."""
        devices = json.loads(nupa("devices", "--json", before=self.on(host)).stdout or "[{}]")
        own = devices[0] if devices[0].get("name") == "nupa_pool0" else {}
        return own.get("gids", [{"gid": ""}])[0]["gid"]

    def remove(self):
        with contextlib.suppress(OSError):
            os.unlink(self.path)
            os.rmdir(os.path.dirname(self.path))


def meet(pool, name, server, client, port, seconds=60, server_survives=False):
    run_pair("%s %s" % (pool.name, name), server, client, port, seconds=seconds, server_survives=server_survives,
             before=pool.on(HERE), client_before=pool.on(THERE))


def verbs_programs(pool):
    for command in ("ibv_rc_pingpong -c -n 300", "ibv_rc_pingpong -e -n 100", "ibv_rc_pingpong -s 100003 -c -n 50",
                    "ibv_uc_pingpong -n 100", "ibv_ud_pingpong -n 100 -s 1024", "ibv_srq_pingpong -n 200",
                    "ibv_xsrq_pingpong -n 100"):
        port = free_port()
        full = command + " -d nupa_pool0 -g 0 -p %d" % port
        meet(pool, command, full, full + " 10.119.0.1", port)
    if missing_program("ib_send_lat"):
        return
    for command in ("ib_send_lat -n 300", "ib_send_lat -e -n 100", "ib_write_lat -n 100", "ib_read_lat -n 200",
                    "ib_atomic_lat -n 200", "ib_send_lat -c UD -n 200", "ib_send_bw -s 65536 -n 100",
                    "ib_write_bw -s 1048576 -n 20", "ib_write_bw -q 8 -n 50", "ib_read_bw -s 262144 -n 20"):
        port = free_port()
        full = command + " -F -x 0 -d nupa_pool0 -p %d" % port
        meet(pool, command, full, full + " 10.119.0.1", port)


def connection_manager(pool):
    """By the pool's own addresses, to which no route leads."""
    address = pool.address(HERE)
    outcome(address.startswith("fd"), pool.name + " address of its own", address)
    if missing_program("rping"):
        return
    port = free_port()
    for options in ("-C 10", "-C 5 -S 60000"):
        server = "rping -s -a %s -p %d %s" % (address, port, options)
        client = "rping -c -v -a %s -p %d %s" % (address, port, options)
        with CmPair(server, client, port, before=pool.on(HERE), client_before=pool.on(THERE)) as pair:
            reason = pair.wait(60)
            outcome(reason == "" and "ping data" in pair.text(), "%s rping %s" % (pool.name, options), reason)


def probe(pool):
    """Checks data and each status at the moment of each completion. Server and client map a file, so the client sees the
    server's memory."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(prefix="nupa-e2e-") as work, tempfile.TemporaryFile() as out:
        program, memory, port = os.path.join(work, "gateway_probe"), os.path.join(work, "memory"), free_port()
        built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(folder, "gateway_probe.cc"), "-o", program, "-lrdmacm",
                                "-libverbs"], capture_output=True, text=True)
        if built.returncode != 0:
            return skip("gateway_probe", "does not compile here: " + built.stderr[-200:])
        server = start("%s server %s %d %s" % (program, ADDRESS[HERE], port, memory), None, out, pool.on(HERE))
        await_listener(server, port)
        for case in ("write", "read", "atomic", "send", "answer", "wkey", "wlong", "rkey", "rights", "short", "rnr", "late"):
            done = nupa("run", "--", program, "client", ADDRESS[HERE], str(port), memory, case, before=pool.on(THERE))
            outcome(done.returncode == 0, "%s gateway_probe %s" % (pool.name, case), (done.stdout + done.stderr)[-200:])
        stop(server)
    return None


def device_memory(pool):
    """A program whose device memory lies in the pool. On coherent memory its peer places data there itself."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory(prefix="nupa-e2e-") as work, tempfile.TemporaryFile() as out:
        program, port, address = os.path.join(work, "device_memory_probe"), free_port(), pool.address(HERE)
        built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(folder, "device_memory_probe.cc"), "-o", program, "-lrdmacm",
                                "-libverbs"], capture_output=True, text=True)
        if built.returncode != 0:
            return skip("device_memory_probe", "does not compile here: " + built.stderr[-200:])
        server = start("%s server %s %d" % (program, address, port), None, out, pool.on(HERE))
        done = nupa("run", "--", program, "client", address, str(port), before=pool.on(THERE))
        for case in ("write", "order", "deregister"):
            outcome("PASS " + case in done.stdout, "%s device_memory_probe %s" % (pool.name, case), (done.stdout + done.stderr)[-200:])
        stop(server)
    return None


def placed_by(before):
    """Returns how many records of the host's queue pairs had their data placed."""
    rows = nupa("stat", "--json", before=before).stdout
    return sum(row.get("placed", 0) for row in json.loads(rows or "[]"))


def collectives(pool):
    """Two ranks on two hosts, with arrays that lie in the pool if it is coherent."""
    root, ranks = "tcp://%s:%d" % (ADDRESS[HERE], free_port()), []
    for number, host in enumerate((HERE, THERE)):
        settings = {"NUPA_RANK": number, "NUPA_WORLD_SIZE": 2, "NUPA_CCL_ROOT": root, "NUPA_CCL_TIMEOUT": 30, "NUPA_TRANSPORT": "pool"}
        command = [NUPA, "ccl", "bench", "--min-bytes", "256K", "--max-bytes", "1M", "--min-time", "3", "--allocated"]
        ranks.append(subprocess.Popen([*pool.on(host), *["%s=%s" % item for item in settings.items()], *command],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    seen = wait_for(lambda: "placed" if placed_by(pool.on(HERE)) > 0 else "end" if ranks[0].poll() is not None else None)
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    outcome(all(rank.returncode == 0 for rank in ranks) and "transport pool" in said[0], pool.name + " all_reduce",
            said[0][-200:] + said[1][-200:])
    outcome(seen == ("end" if "none" in pool.options else "placed"), pool.name + " all_reduce is placed on coherent memory alone", seen)


def rdmacm_programs(pool):
    """Programs of rdmacm-utils by the hosts' addresses, as between hosts over packets."""
    if missing_program("rstream"):
        return
    place = Place(pool.name + " hosts ", ADDRESS[HERE], "fd77::1", pool.on(HERE), pool.on(THERE), ADDRESS[THERE])
    for name in ("ucmatose", "udaddy", "endpoints", "mckey", "udpong", "rcopy", "rstream", "riostream"):
        run_rdmacm.GROUPS[name](place)


class CmPair(Pair):
    """The server's port is one of the connection manager's, which the system's tables do not have."""

    def is_ready(self, port):
        return wait_for(lambda: self.server.poll() is None and self.children_wait()) is not None

    def children_wait(self):
        with contextlib.suppress(OSError):
            for task in os.listdir("/proc/%d/task" % self.server.pid):
                with open("/proc/%d/task/%s/comm" % (self.server.pid, task)) as name:
                    if name.read().strip() == "nupa-pool":
                        return True
        return False


def death(pool):
    """A peer that is killed in the middle ends the requests of the other one. That one has requests at each moment."""
    if missing_program("ib_write_bw"):
        return
    port = free_port()
    command = "ib_write_bw -F -x 0 -d nupa_pool0 -s 4096 -D 60 -p %d" % port

    def rows():
        found = json.loads(nupa("stat", "--json", before=pool.on(THERE)).stdout or "[]")
        return [row for row in found if row["transport"] == "pool" and row["messages"] > 20]

    with Pair(command, command + " 10.119.0.1", port, None, pool.on(HERE), pool.on(THERE)) as pair:
        seen = pair.client and wait_for(rows) or []
        outcome(len(seen) == 1, pool.name + " stat", pair.trouble or seen)
        os.kill(pair.server.pid, signal.SIGKILL)
        ended = pair.client is not None and wait_for(lambda: pair.client.poll() is not None, DEAD_SECONDS)
        outcome(ended and "status 12" in pair.said(1), pool.name + " killed peer", pair.said(1)[-200:])


SOCKETS = {HERE: "s = socket.create_server((\"10.119.0.1\", %d)); c = s.accept()[0]",
           THERE: "c = socket.create_connection((\"10.119.0.1\", %d))"}


def sleeps(process):
    """How often the threads of a process have gone to sleep."""
    number = 0
    for task in os.listdir("/proc/%d/task" % process.pid):
        with open("/proc/%d/task/%s/status" % (process.pid, task)) as lines:
            number += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return number


def sleeps_per_second(pool):
    """Two programs with an open channel, each of which waits for the other: how often do both wake up?"""
    port = free_port()
    programs = []
    with tempfile.TemporaryFile() as out:
        for host in (HERE, THERE):
            program = "python3 -c 'import socket; %s; c.send(b\"x\"); c.recv(1); print(\"connected\", flush=True); c.recv(1)'"
            programs.append(start(program % SOCKETS[host] % port, None, out, pool.on(host), ("--sockets",)))
            if host == HERE and not wait_listening(port, programs[0]):
                break

        def said():
            out.seek(0)
            return out.read().decode(errors="replace")

        found = len(programs) == 2 and wait_for(lambda: said().count("connected") == 2)
        if found:
            # sleep: what the connection leaves to do is over after that time; then a number of events in a given time is counted
            time.sleep(1)
            before = [sleeps(program) for program in programs]
            time.sleep(IDLE_SECONDS)  # sleep: the time in which the wake-ups are counted
            found = [(sleeps(program) - number) / IDLE_SECONDS for program, number in zip(programs, before)]
        for program in programs:
            stop(program)
        return found, said()


def idle(pool):
    """Processes that wait sleep until they are rung. Without a doorbell they look again and again."""
    found, said = sleeps_per_second(pool)
    outcome(found and max(found) <= MOST_SLEEPS, pool.name + " idle programs sleep", "%s %s" % (found, said[-200:]))
    options = pool.options
    pool.options += ",doorbell=none"
    found, said = sleeps_per_second(pool)
    pool.options = options
    outcome(found and min(found) > MOST_SLEEPS, pool.name + " idle programs without a doorbell look", "%s %s" % (found, said[-200:]))


def main():
    if not make_hosts(1500):
        skip("pool", "needs root, network namespaces and veth")
        return
    kinds = (("coherent", ",coherence=full"), ("torn", ",coherence=none,seed=7"))
    for host in (HERE, THERE):
        ip("-n", host, "route", "add", "224.0.0.0/4", "dev", "wire")
    for name, options in kinds if ALL else kinds[:1]:
        pool = Pool(name, options)
        verbs_programs(pool)
        connection_manager(pool)
        probe(pool)
        device_memory(pool)
        collectives(pool)
        rdmacm_programs(pool)
        death(pool)
        if "none" not in pool.options:
            idle(pool)
        pool.remove()
    outcome(left_namespaces() != [], "pool hosts are there to the end")


main()
finish()
