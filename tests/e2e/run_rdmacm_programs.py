#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of others that meet by the connection manager, unmodified: fio, libfabric, QEMU's migration of a running
machine's memory, Open MPI."""
import contextlib
import json
import os
import socket
import subprocess
from cm_pairs import LIBRARY, CmPair, folder, has_listener, meet, places, with_port
from hosts import remove_hosts
from pairs import (NUPA, Pair, finish, free_port, missing_program, nupa, outcome, skip, start, started, stop,
                   transports, wait_for)

MEMORY_MIB = 64
END_TURNS = 8
END_SECONDS = 20
RANDOM_AT, RANDOM_BYTES = 16 << 20, 8 << 20  # what the migrated machine has in its memory, in bytes
# Its program, the first sector of its disk: it counts in the first word of 16 pages, for ever, so that these are written
# while they are copied.
COUNTERS_AT, COUNTERS, PAGE = 0x20000, 16, 4096
PROGRAM = (b"\xfa"              # cli
           b"\xb8\x00\x20"      # mov ax, COUNTERS_AT / 16
           b"\x8e\xd8"          # mov ds, ax
           b"\x31\xdb"          # round: xor bx, bx
           b"\x66\xff\x07"      # page: inc dword [bx]
           b"\x81\xc3\x00\x10"  # add bx, PAGE
           b"\x75\xf7"          # jnz page
           b"\xeb\xf3")         # jmp round


def fio(place):
    """The engine rdma: one side offers memory, the other reads or writes it."""
    if missing_program("fio"):
        return
    for verb, depth in (("write", 4), ("read", 4), ("write", 16)):
        jobs = " --iodepth=%d" % depth
        common = "--ioengine=rdma --port=%d --bs=64k --size=16m" + jobs
        # Options of an engine stand behind its name.
        server, client, port = with_port("fio --name=server --rw=read " + common,
                                         "fio --name=client --rw=write %s --verb=%s --hostname=%s" %
                                         (common, verb, place.ipv4))
        meet("fio rdma %s%s" % (verb, jobs), place, server, client, (),
             [r"WRITE: bw=", r"io=16.0MiB", r"err= 0"], ("cq completion", "fail"), port)


class ByTcp(CmPair):
    """libfabric's programs meet by TCP first."""

    def is_ready(self, port):
        return Pair.is_ready(self, port)


def libfabric(place):
    if missing_program("fi_pingpong"):
        return
    done = nupa("run", "--", "fi_info", "-p", "verbs", "-v", before=place.server)
    # Of each address, which it learns by binding to one that is no device's.
    found = all(word in done.stdout for word in ("domain: 0x0", "name: nupa0", "FI_PROTO_RDMA_CM_IB_RC",
                                                 "fi_sockaddr_in://%s:" % place.ipv4, "[%s]:" % place.ipv6))
    outcome(done.returncode == 0 and found, place.name + "fi_info -p verbs", done.stdout[:200] + done.stderr[-200:])
    for provider, kind in (("verbs", "msg"), ("verbs", "dgram"), ("verbs;ofi_rxm", "rdm"), ("verbs;ofi_rxd", "rdm")):
        for options, size in (("-I 200 -S 1024", "1k"), ("-I 100 -S 65536 -c", "64k")):
            if kind == "dgram" and "-c" in options:
                options, size = "-I 100 -S 512 -c", "512"
            port = free_port()
            # -B and -P: ports of TCP, the client's and the server's.
            command = "fi_pingpong -p '%s' -e %s %s" % (provider, kind, options)
            meet("fi_pingpong -p %s -e %s %s" % (provider, kind, options), place, "%s -B %d" % (command, port),
                 "%s -P %d %s" % (command, port, place.ipv4), ["^%s +" % size], [r"^%s +\d+ +=\d+ " % size],
                 ("error", "mismatch"), port, kind=ByTcp)


def threads(pid):
    with contextlib.suppress(OSError):
        return {open("/proc/%d/task/%s/comm" % (pid, task)).read().strip() for task in os.listdir("/proc/%d/task" % pid)}
    return set()


def ticks(pid):
    """Processor time that a process has used, in the clock ticks of proc_pid_stat(5)."""
    with open("/proc/%d/stat" % pid) as stat:
        words = stat.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def end_of_libfabric(place):
    """Its handler of SIGTERM calls exit(), whatever the interrupted thread holds."""
    if missing_program("fi_pingpong"):
        return
    hung = []
    for turn in range(END_TURNS):
        port = free_port()
        command = "fi_pingpong -p verbs -e msg -I 100000000 -S 64"
        with ByTcp("%s -B %d" % (command, port), "%s -P %d %s" % (command, port, place.ipv4), port, None, place.server,
                   place.client) as pair:
            if pair.client is None or not wait_for(lambda: "nupa-host" in threads(pair.client.pid), END_SECONDS):
                hung.append("%d: no connection: %s" % (turn, pair.said(1)[-200:]))
                continue
            # At another moment each time, from the connecting on.
            if not wait_for(lambda: ticks(pair.client.pid) >= 2 * turn, END_SECONDS):
                hung.append("%d: the client does nothing" % turn)
            for process in (pair.client, pair.server):
                process.terminate()
            for name, process in (("client", pair.client), ("server", pair.server)):
                wait_for(lambda: process.poll() is not None, END_SECONDS)
                if process.poll() != 1:  # as libfabric's handler has it
                    hung.append("%d: the %s %s" % (turn, name, "runs on" if process.poll() is None else
                                                   "ends with %d" % process.poll()))
    outcome(not hung, place.name + "fi_pingpong-at-SIGTERM-ends", "; ".join(hung))


class Machine:
    """A virtual machine, by its monitor (QMP)."""

    def __init__(self, path, before, *more):
        self.path = path
        self.log = open(path + ".log", "wb")
        self.process = start("qemu-system-x86_64 -nodefaults -display none -machine pc -accel tcg -m %d -boot a -drive "
                             "file=%s,format=raw,if=floppy,read-only=on -qmp unix:%s,server=on,wait=off %s" %
                             (MEMORY_MIB, os.path.join(os.path.dirname(path), "floppy"), path, " ".join(more)), None,
                             self.log, before)
        self.monitor = None

    def connect(self, seconds=20):
        connection = socket.socket(socket.AF_UNIX)
        wait_for(lambda: self.process.poll() is not None or connection.connect_ex(self.path) == 0, seconds)
        connection.settimeout(seconds)
        self.monitor = connection.makefile("rw", encoding="utf-8", newline="\n")
        self.monitor.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        self.monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.monitor.flush()
        while True:
            answer = json.loads(self.monitor.readline())
            if "error" in answer:
                raise OSError(answer["error"]["desc"])
            if "return" in answer:
                return answer["return"]

    def counters(self):
        """What its program has counted."""
        at = self.path + ".counters"
        self.ask("pmemsave", val=COUNTERS_AT, size=COUNTERS * PAGE, filename=at)
        with open(at, "rb") as saved:
            memory = saved.read()
        return [int.from_bytes(memory[page * PAGE:page * PAGE + 4], "little") for page in range(COUNTERS)]

    def counts(self, seconds=20):
        """Whether each counter is seen to grow."""
        first = self.counters()
        return wait_for(lambda: all(now != then for now, then in zip(self.counters(), first)), seconds) is True

    def said(self):
        with open(self.path + ".log", encoding="utf-8", errors="replace") as log:
            return log.read()[-300:]

    def stop(self):
        stop(self.process)
        self.log.close()


def migrate(source, target, place, port, pin_all):
    """What went wrong with moving the memory of one machine to the other."""
    try:
        for machine in (target, source):
            machine.connect()
            if pin_all:
                machine.ask("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": True}])
        target.ask("migrate-incoming", uri="rdma:%s:%d" % (place.ipv4, port))
        wait_for(lambda: has_listener(target.process.pid, port))
        if not source.counts():
            return "the machine does not run: " + source.said()
        before = source.counters()
        source.ask("migrate", uri="rdma:%s:%d" % (place.ipv4, port))
        state = {}

        def is_over():
            nonlocal state
            state = source.ask("query-migrate")
            return state.get("status") in ("completed", "failed")

        wait_for(is_over, 60)
        if state.get("status") != "completed":
            return "%s; %s; %s" % (state, source.said(), target.said())
        if not target.counts():
            return "the machine does not run on: %s" % target.counters()
        # It went on from where it was, not from the start.
        after = target.counters()
        if any((now - then) % (1 << 32) > 1 << 31 for now, then in zip(after, before)):
            return "counted %s, then %s" % (before, after)
        return ""
    except (OSError, ValueError) as error:
        return "%s; %s; %s" % (error, source.said(), target.said())


def qemu(place):
    """What the one machine's memory has, the other's has afterwards, where its program runs on."""
    if missing_program("qemu-system-x86_64"):
        return
    for pin_all in (False, True):
        with folder() as path:
            original, copy = os.path.join(path, "original"), os.path.join(path, "copy")
            with open(original, "wb") as out:
                out.write(os.urandom(RANDOM_BYTES))
            with open(os.path.join(path, "floppy"), "wb") as out:
                out.write(PROGRAM.ljust(510, b"\0") + b"\x55\xaa" + bytes(1440 * 1024 - 512))
            port = free_port()
            source = Machine(os.path.join(path, "source"), place.client,
                             "-device loader,file=%s,addr=%d,force-raw=on" % (original, RANDOM_AT))
            target = Machine(os.path.join(path, "target"), place.server, "-incoming defer")
            try:
                reason = migrate(source, target, place, port, pin_all)
                if not reason:
                    target.ask("pmemsave", val=RANDOM_AT, size=RANDOM_BYTES, filename=copy)
                    same = subprocess.run(["cmp", original, copy], capture_output=True, text=True)
                    reason = same.stdout + same.stderr
            finally:
                source.stop()
                target.stop()
            outcome(not reason, place.name + "qemu migrates%s" % (" with all memory pinned" if pin_all else ""), reason)


def open_mpi(place):
    """Two ranks on one host by libfabric. (The openib of Debian's Open MPI is built without the connection manager.)
    NetPIPE checks what arrives in its mode -i."""
    if missing_program("NPopenmpi") or missing_program("mpirun"):
        return
    way = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm"
    for options, last in (((), "65536 bytes"), (("-i",), "49153 bytes")):
        with folder() as path:
            command = [*place.server, NUPA, "run", "--", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
                       *way.split(), "NPopenmpi", "-u", "65536", "-p", "0", "-n", "20", *options, "-o",
                       os.path.join(path, "out")]
            started("nupa run -- " + " ".join(command[command.index("--") + 1:]))
            reason = ""
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL)
                text = done.stdout + done.stderr
                if done.returncode != 0 or last not in text or "failed" in text:
                    reason = "status %d: %s" % (done.returncode, text[-300:])
            except subprocess.TimeoutExpired as late:
                reason = "still running: %s" % (late.stdout or b"")[-300:]
            outcome(not reason, place.name + "netpipe over libfabric %s" % " ".join(options), reason)


def main():
    if not os.path.exists(LIBRARY):
        skip("rdmacm-programs", "the build has no " + LIBRARY)
        return
    one_host, two_hosts = places()
    for transport in transports():
        for place in (two_hosts if transport == "roce" else []) or one_host:
            for test in (fio, libfabric, end_of_libfabric, qemu):
                test(place)
        for place in one_host:
            open_mpi(place)
    remove_hosts()


if __name__ == "__main__":
    main()
    finish()
