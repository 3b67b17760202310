#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nupa capture`: programs over each transport, the file as a strict reader and tshark see it, filters, and the ends of
either side."""
import atexit
import collections
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

import pcapng_file
from pairs import (NUPA, Pair, finish, free_port, left_in, missing_program, nupa, outcome, private_runtime_dir,
                   skip, start, stop, suspend, wait_for)
from roce_packets import connecting, crc_holds, end_of_packet, header_bytes, number, opcode, tshark_sees

runtime_dir = private_runtime_dir()
work = tempfile.mkdtemp(prefix="nupa-capture-")
atexit.register(shutil.rmtree, work, ignore_errors=True)

# Lower five bits of opcodes (IBTA table 38).
SEND, WRITE, WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST = 4, 10, 6, 7, 8
READ_REQUEST, RESPONSES, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE, FETCH_ADD = 12, (13, 14, 15, 16), 17, 18, 20
UD_SEND = 0x64
NUPA_ONLY = 0xC0  # opcodes from here on are no other program's
MESSAGES, BYTES = 20, 5000
LOST_LIMIT = 60


def headers(packet):
    """Bytes of the frame's base transport header and what follows, without the CRC."""
    return packet.frame[header_bytes(packet.frame):end_of_packet(packet.frame) - 4]


def psn(packet):
    return number(packet.frame)[1]


def operation(packet):
    return opcode(packet.frame) & 0x1F


class Capture:
    """Runs `nupa capture` until the `with` block ends. `file` is what it has written then."""

    def __init__(self, name, *options, env=None, target=None):
        self.name, self.target = name, target
        self.path = os.path.join(work, name.replace(" ", "-") + ".pcapng")
        with open(self.path + ".err", "w", encoding="utf-8") as said:
            self.process = subprocess.Popen([NUPA, "capture", "-w", self.path, *options], stdin=subprocess.DEVNULL,
                                            stderr=said, env=dict(os.environ, **(env or {})))
        self.file, self.packets, self.dropped = None, None, None

    def text(self):
        with open(self.path + ".err", encoding="utf-8") as said:
            return said.read()

    def __enter__(self):
        if wait_for(lambda: "capturing" in self.text() or self.process.poll() is not None) is None:
            outcome(False, self.name + " starts", self.text())
        return self

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.wait()

    def wait(self):
        try:
            status = self.process.wait(LOST_LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "hangs"
        counted = re.search(r"(\d+) packets captured, (\d+) dropped", self.text())
        if status != 0 or not counted:
            outcome(False, self.name + " ends", "status %s: %s" % (status, self.text()))
            self.file = pcapng_file.Capture([], [], {})
        else:
            self.file = pcapng_file.read(self.path)
        self.packets, self.dropped = self.file.packets, int(counted.group(2)) if counted else None

    def __exit__(self, *_):
        if self.packets is None:
            self.end()


def perftest(program, env, options="", device="nupa0", messages=MESSAGES, size=BYTES):
    """A pair of a program that has ended well, or what was wrong."""
    port = free_port()
    command = "%s -d %s -n %d -p %d %s" % (program, device, messages, port, options)
    if "atomic" not in program:
        command += " -s %d" % size
    with Pair(command, command + " localhost", port, env) as pair:
        return pair.wait(60)


def check_file(name, capture, synthetic):
    """What holds for all files: CRCs, comments, counts, and what tshark makes of it."""
    packets = capture.packets
    outcome(packets and capture.dropped == 0, name + " has packets", capture.text())
    wrong = [packet.frame.hex() for packet in packets
             if not crc_holds(packet.frame) and "without ICRC" not in packet.comment]
    outcome(not wrong, name + " invariant CRCs", "%d of %d: %s" % (len(wrong), len(packets), wrong[:1]))
    shape = re.compile(r"pid \d+ \(\S+\), (shm|pool|roce)(, synthetic)?(, to UDP port \d+)?(, without ICRC)?$")
    odd = [packet.comment for packet in packets
           if not shape.match(packet.comment) or ("synthetic" in packet.comment) != synthetic]
    outcome(not odd, name + " comments", odd[:1])
    times = [packet.time_ns for packet in packets]
    outcome(times == sorted(times), name + " is in the order of time")
    counts = collections.Counter(packet.interface for packet in packets)
    told = {index: counted.received - counted.dropped for index, counted in capture.file.statistics.items()}
    outcome(dict(counts) == told, name + " statistics", "%s in the file, told %s" % (dict(counts), told))
    seen = tshark_sees(capture.path)
    if seen is None:
        skip(name + " tshark", "tshark is not installed")
        return
    trouble = [packet.frame.hex() for packet, said in zip(packets, seen)
               if said.opcode != opcode(packet.frame) or (said.trouble and opcode(packet.frame) < NUPA_ONLY)]
    outcome(len(seen) == len(packets) and not trouble, name + " tshark", "%d of %d, %s" %
            (len(seen), len(packets), trouble[:1]))


def payload_of(packets, starts):
    """The data of all packets, in order; `starts`: bytes of headers by operation."""
    return b"".join(headers(packet)[starts[operation(packet)]:] for packet in packets)


def requests(name, env, device, transport):
    """Programs whose requests are known, over a transport without packets of its own."""
    if perftest_case("write", name, "ib_write_bw", env, device) is not None:
        capture = perftest_case.capture
        sent = [packet for packet in capture.packets if packet.direction == "out"]
        acks = [packet for packet in capture.packets if packet.direction == "in"]
        # Two of 4,096 and 904 bytes at the MTU of shared memory, or more over smaller ones.
        messages = [packet for packet in sent if operation(packet) in (WRITE, WRITE_LAST)]
        outcome(len(messages) == MESSAGES, name + " write messages", len(messages))
        outcome(len(acks) == MESSAGES and all(operation(ack) == ACKNOWLEDGE for ack in acks), name + " write answers")
        numbers = [psn(packet) for packet in sent]
        outcome(numbers == [(numbers[0] + i) & 0xFFFFFF for i in range(len(sent))], name + " write PSNs")
        outcome([psn(ack) for ack in acks] == [psn(packet) for packet in messages], name + " write acknowledged PSNs")
        data = payload_of(sent, {WRITE: 28, WRITE_FIRST: 28, WRITE_MIDDLE: 12, WRITE_LAST: 12})
        outcome(len(data) == MESSAGES * BYTES, name + " write bytes", len(data))
        outcome({capture.file.interfaces[packet.interface].name for packet in capture.packets} ==
                {"%s/%s" % (device, transport)}, name + " interface", capture.file.interfaces)
    if perftest_case("read", name, "ib_read_bw", env, device) is not None:
        packets = perftest_case.capture.packets
        asked = [packet for packet in packets if operation(packet) == READ_REQUEST]
        answers = [packet for packet in packets if operation(packet) in RESPONSES]
        outcome(len(asked) == MESSAGES and all(packet.direction == "out" for packet in asked), name + " read requests")
        data = payload_of(answers, {13: 16, 14: 12, 15: 16, 16: 16})
        outcome(len(data) == MESSAGES * BYTES, name + " read bytes", len(data))
    if perftest_case("atomic", name, "ib_atomic_bw", env, device) is not None:
        kinds = collections.Counter(operation(packet) for packet in perftest_case.capture.packets)
        outcome(kinds == {FETCH_ADD: MESSAGES, ATOMIC_ACKNOWLEDGE: MESSAGES}, name + " atomics", kinds)
    if perftest_case("send", name, "ib_send_bw", env, device, size=8) is not None:
        kinds = collections.Counter(operation(packet) for packet in perftest_case.capture.packets)
        outcome(kinds == {SEND: MESSAGES, ACKNOWLEDGE: MESSAGES}, name + " sends", kinds)
    if perftest_case("datagram", name, "ib_send_bw", env, device, "-c UD", size=64) is not None:
        packets = perftest_case.capture.packets
        outcome(len(packets) == MESSAGES and {opcode(packet.frame) for packet in packets} == {UD_SEND},
                name + " datagrams", len(packets))


def perftest_case(case, name, program, env, device, options="", size=BYTES):
    """Captures a program; perftest_case.capture is the capture. None: the program did not work."""
    title = "%s %s" % (name, case)
    with Capture(title, env=env) as capture:
        trouble = perftest(program, env, options, device, size=size)
    perftest_case.capture = capture
    outcome(not trouble, title + " program", trouble)
    if trouble:
        return None
    check_file(title, capture, synthetic=name != "roce")
    return capture


def packets_of_roce():
    env = {"NUPA_TRANSPORT": "roce"}
    if perftest_case("write", "roce", "ib_write_bw", env, "nupa0") is None:
        return
    packets = [packet for packet in perftest_case.capture.packets if operation(packet) in range(6, 12)
               and opcode(packet.frame) < 0x20]
    sent = [headers(packet) for packet in packets if packet.direction == "out"]
    arrived = [headers(packet) for packet in packets if packet.direction == "in"]
    outcome(collections.Counter(sent) >= collections.Counter(arrived) and set(sent) == set(arrived),
            "roce each packet leaves and arrives", "%d, %d" % (len(sent), len(arrived)))
    first = {psn(packet): packet for packet in packets if packet.direction == "out"}
    data = payload_of([first[key] for key in sorted(first)], {10: 28, 6: 28, 7: 12, 8: 12})
    outcome(len(data) == MESSAGES * BYTES, "roce write bytes", len(data))
    identifications = {packet.frame[18:20] for packet in packets if crc_holds(packet.frame)}
    outcome(identifications, "roce identifications fit the CRCs")


def connections(transport, env=None, address="127.0.0.1"):
    """Messages of the communication manager."""
    if missing_program("rping"):
        return
    env, port = dict(env or {}, NUPA_TRANSPORT=transport), free_port()
    name = transport + " rping"
    with Capture(name, env=env) as capture:
        # The listener is in the runtime directory, and not in the kernel's table.
        server = start("rping -s -C 3 -a %s -p %d" % (address, port), env, subprocess.DEVNULL)
        clients = []

        def connected():
            client = start("rping -c -C 3 -a %s -p %d" % (address, port), env, subprocess.DEVNULL)
            clients.append(client)
            return client.wait(60) == 0
        done = wait_for(connected)
        if done:
            server.wait(20)
        for process in [server, *clients]:
            stop(process)
    outcome(done, name + " program")
    named = [connecting(packet.frame)[0] for packet in capture.packets if connecting(packet.frame)]
    outcome("REQ" in named and "REP" in named, name + " messages", named)
    check_file_of_cm(name, capture)


def check_file_of_cm(name, capture):
    wrong = [packet.frame.hex() for packet in capture.packets
             if not crc_holds(packet.frame) and "without ICRC" not in packet.comment]
    outcome(capture.packets and not wrong, name + " invariant CRCs", wrong[:1])
    if shutil.which("tshark") is None:
        skip(name + " tshark", "tshark is not installed")
        return
    said = subprocess.run(["tshark", "-r", capture.path, "-Y", "infiniband.mad.attributeid == 0x0010"],
                          capture_output=True, text=True).stdout
    outcome("ConnectRequest" in said, name + " tshark", said[:200])


class Stream:
    """A program that sends until it is stopped."""

    def __init__(self, env=None, program="ib_write_bw", options="-s 8"):
        self.port = free_port()
        command = "%s -d nupa0 -D 60 --run_infinitely -p %d %s" % (program, self.port, options)
        self.pair = Pair(command, command + " localhost", self.port, dict(env or {"NUPA_TRANSPORT": "shm"}))

    def __enter__(self):
        self.pair.__enter__()
        wait_for(lambda: len(self.rows()) >= 2 and self.client() is not None)
        return self

    def __exit__(self, *_):
        self.pair.__exit__()

    @staticmethod
    def rows():
        done = nupa("stat", "--json")
        return [row for row in json.loads(done.stdout or "[]") if row["state"] == "RTS"]

    def client(self):
        """The process number of the one that sends."""
        return next((row["pid"] for row in self.rows() if row["messages"] > 100), None)

    def sent(self):
        return sum(row["messages"] for row in self.rows())

    def goes_on(self):
        before = self.sent()
        return wait_for(lambda: self.sent() > before + 1000) is True


def is_mapped(pid):
    with open("/proc/%d/maps" % pid) as maps:
        return "nupa-capture" in maps.read()


def running_programs():
    with Stream() as stream:
        client = stream.client()
        with Capture("attach", "-c", "1000") as capture:
            capture.wait()
        outcome(len(capture.packets) == 1000, "attach to a running program", len(capture.packets))
        outcome(wait_for(lambda: not is_mapped(client)), "attach leaves nothing mapped")
        outcome(stream.goes_on(), "attach program goes on")

        with Capture("killed capture") as capture:
            outcome(wait_for(lambda: is_mapped(client)), "killed capture had begun")
            capture.process.kill()
            capture.process.wait()
            capture.packets = []
        outcome(wait_for(lambda: not is_mapped(client)), "killed capture leaves nothing mapped")
        outcome(stream.goes_on(), "killed capture program goes on")
        outcome(all(name.endswith(".sock") for name in left_in(runtime_dir)), "killed capture leaves no file",
                left_in(runtime_dir))
        outcome("nothing to clean" in nupa("clean", "--dry-run").stdout, "killed capture nothing to clean")

        with Capture("one at a time") as capture:
            second = nupa("capture", "-w", os.path.join(work, "second"))
            outcome(second.returncode == 1 and "another nupa capture" in second.stderr, "one at a time is refused",
                    second.stderr)
        outcome(len(capture.packets) > 0, "one at a time the first goes on")

        with Capture("stopped capture", "--buffer", "1") as capture:
            suspend(capture.process)
            outcome(stream.goes_on(), "stopped capture program goes on")
            capture.process.send_signal(signal.SIGCONT)
            capture.end()
        dropped = sum(counted.dropped for counted in capture.file.statistics.values())
        outcome(capture.dropped > 0 and dropped == capture.dropped, "stopped capture drops are counted",
                "%s, %s" % (capture.dropped, dropped))

        with Capture("killed program") as capture:
            outcome(wait_for(lambda: is_mapped(client)), "killed program was captured")
            os.kill(client, signal.SIGKILL)
            gone = wait_for(lambda: not os.path.exists("/proc/%d" % client) or stream.pair.client.poll() is not None)
            outcome(gone, "killed program ends")
            trouble = perftest("ib_send_bw", {"NUPA_TRANSPORT": "shm"}, size=8)
            outcome(not trouble, "killed program others work", trouble)
        sends = [packet for packet in capture.packets if operation(packet) == SEND]
        outcome(len(sends) == MESSAGES, "killed program later ones are captured", len(sends))
        outcome(any("pid %d " % client in packet.comment for packet in capture.packets), "killed program has packets")
    nupa("clean")
    outcome(left_in(runtime_dir) == [], "no file is left", left_in(runtime_dir))


def stopped_program():
    with Stream() as stream:
        client = stream.client()
        os.kill(client, signal.SIGSTOP)
        with Capture("stopped program") as capture:
            outcome("do not answer" in capture.text(), "stopped program is told", capture.text())
            os.kill(client, signal.SIGCONT)
            outcome(wait_for(lambda: is_mapped(client)), "stopped program is captured later")
            outcome(stream.goes_on(), "stopped program goes on")
        outcome(len(capture.packets) > 0, "stopped program has packets")


def filters():
    with Stream(program="ib_read_bw", options="-s 8") as stream:
        client = stream.client()
        row = next(row for row in stream.rows() if row["pid"] == client)

        def kept(name, *options):
            with Capture("filter " + name, "-c", "300", "--duration", "5", *options) as capture:
                capture.wait()
            return capture.packets
        packets = kept("class", "--class", "read")
        outcome(packets and all(operation(packet) in (12, *RESPONSES) for packet in packets), "filter class")
        outcome(not kept("other class", "--class", "write", "--class", "cm"), "filter other class")
        packets = kept("direction", "--direction", "in")
        outcome(packets and all(packet.direction == "in" for packet in packets), "filter direction")
        outcome(kept("qp", "--qp", hex(row["qp_num"])) and not kept("other qp", "--qp", "0xfffff"), "filter qp")
        outcome(kept("pid", "--pid", str(client)) and not kept("other pid", "--pid", "1"), "filter pid")
        outcome(kept("transport", "--transport", "shm") and not kept("other transport", "--transport", "roce"),
                "filter transport")
        outcome(kept("device", "--device", "nupa0") and not kept("other device", "--device", "nupa9"), "filter device")
        packets = kept("snaplen", "--snaplen", "64")
        outcome(packets and all(len(packet.frame) == min(64, packet.length) for packet in packets), "filter snaplen")

        with Capture("ring", "--ring", "50") as capture:
            stream.goes_on()
            outcome(os.path.getsize(capture.path) < 1000, "ring writes nothing yet")
            writes = 0

            def is_written():
                nonlocal writes
                writes += 1
                capture.process.send_signal(signal.SIGUSR1)
                return os.path.getsize(capture.path) > 1000
            outcome(wait_for(is_written), "ring is written at SIGUSR1")
            stream.goes_on()
        outcome(50 < len(capture.packets) <= 50 * (writes + 1), "ring has the last packets of each write",
                "%d packets, %d writes" % (len(capture.packets), writes))

        if shutil.which("tshark") is None:
            skip("pipe", "tshark is not installed")
            return
        capture = subprocess.Popen([NUPA, "capture", "-w", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        shown = subprocess.run(["tshark", "-r", "-", "-c", "20"], stdin=capture.stdout, capture_output=True, text=True,
                               timeout=60)
        capture.stdout.close()
        outcome(capture.wait(20) == 0 and shown.stdout.count("RDMA Read") >= 10, "pipe to tshark",
                shown.stdout[-200:] + shown.stderr[-200:])
        capture.stderr.close()


def pool():
    folder = tempfile.mkdtemp(prefix="nupa-capture-pool-", dir="/dev/shm")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spec = "file:%s/pool,host=0" % folder
    made = nupa("pool", "format", "--pool", spec, "--hosts", "2", "--size", "256M")
    outcome(made.returncode == 0, "pool format", made.stderr)
    env = {"NUPA_TRANSPORT": "pool", "NUPA_POOL": spec}
    requests("pool", env, "nupa_pool0", "pool")
    devices = json.loads(nupa("devices", "--json", env=env).stdout or "[]")
    own = next((device for device in devices if device["name"] == "nupa_pool0"), None)
    outcome(own is not None, "pool device")
    if own is not None:
        connections("pool", env, own["gids"][0]["gid"])


def main():
    if missing_program("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw"):
        finish()
    requests("shm", {"NUPA_TRANSPORT": "shm"}, "nupa0", "shm")
    packets_of_roce()
    pool()
    connections("shm")
    connections("roce")
    running_programs()
    stopped_program()
    filters()
    finish()


if __name__ == "__main__":
    main()
