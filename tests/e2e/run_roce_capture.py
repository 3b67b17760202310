#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every kind of packet that NUPA sends, as it is on the wire: what tshark makes of it, and whether its CRC is right."""
import atexit
import collections
import os
import shutil
import subprocess
import tempfile

from pairs import BUILD, NUPA, finish, outcome, private_runtime_dir, skip
from recorder import RecordError, record
from roce_packets import crc_holds, end_of_packet, frames, header_bytes, number, opcode, tshark_sees

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "nupa-capture-%d" % os.getpid()
work = tempfile.mkdtemp(prefix="nupa-capture-")
atexit.register(shutil.rmtree, work, ignore_errors=True)
PROBE = os.path.join(work, "wire_probe")

# Opcodes (IBTA table 38). The lower five bits:
ACKNOWLEDGE, ATOMIC_WRITE = 17, 29
MESSAGES = set(range(12))       # SEND and WRITE
ASKING = {12, 13, 14, 15, 16, 18, 19, 20}  # READ and atomics with their answers
LAST_ANSWERS = {15, 16, 18}
# and whole ones:
RC = MESSAGES | ASKING | {22, 23, ATOMIC_WRITE}  # the first two are SEND with invalidate
UC = {1 << 5 | operation for operation in MESSAGES}
UD = {0x64, 0x65}
CNP = {0x81}
XRC = {5 << 5 | operation for operation in MESSAGES | ASKING}
SELECTIVE = {0xC1}              # NUPA's own, docs/reference/roce-extensions.md
OF_ALL = RC | UC | UD | CNP | XRC
# tshark reads the first ones to the CRC, and knows no more of the others than the base header.
KNOWN_TO_TSHARK = (RC | UC | UD | {ACKNOWLEDGE}) - {ATOMIC_WRITE}
# Syndromes of acknowledgements (IBTA 9.7.5.2.4), each provoked by the probe or by a packet that is lost.
SYNDROMES = {0x1F: "ACK", 0x2C: "RNR NAK", 0x60: "NAK, sequence", 0x61: "NAK, invalid request",
             0x62: "NAK, remote access", 0x63: "NAK, remote operation"}
# One packet in 7 comes marked, and one in 13 of the large ones is lost where it arrives. Refusals are not: a responder
# that has refused says nothing more (IBTA 9.9.3).
RULES = """
table inet wire {
  chain leaving { type filter hook output priority 0; udp dport 4791 numgen inc mod 7 == 3 jump mark_it; }
  chain mark_it { ip ecn set ce; ip6 ecn set ce; }
  chain arriving { type filter hook input priority 0; udp length > 1000 numgen inc mod 13 == 5 drop; }
}"""


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def make_host():
    """What is missing for a namespace in which the probe can run; empty when nothing is."""
    if os.geteuid() != 0 or ip("netns", "add", HOST).returncode != 0:
        return "needs root and network namespaces"
    atexit.register(ip, "netns", "delete", HOST)
    # A send of many packets is seen as such on a loopback, unless the device can carry one only.
    ip("-n", HOST, "link", "set", "lo", "up", "gso_max_segs", "1")
    # What goes to the addresses of an interface of one's own takes the loopback.
    ip("-n", HOST, "link", "add", "own", "type", "veth", "peer", "name", "other")
    ip("-n", HOST, "address", "add", "10.119.0.1/24", "dev", "own")
    ip("-n", HOST, "address", "add", "fd77::1/64", "dev", "own", "nodad")
    if ip("-n", HOST, "link", "set", "own", "up").returncode != 0:
        return "needs veth"
    if shutil.which("nft") is None:
        return "nft is missing (Debian package nftables)"
    done = subprocess.run([*inside(), "nft", RULES], capture_output=True, text=True)
    return done.stderr.strip().replace("\n", " | ")


def inside(*command):
    return ["ip", "netns", "exec", HOST, *command]


def build_probe():
    built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(HERE, "wire_probe.cc"), "-o", PROBE, "-libverbs"],
                           capture_output=True, text=True)
    if built.returncode != 0:
        outcome(False, "wire-probe-builds", built.stderr[-300:])
        finish()


def probe_on_the_wire(name, gid, settings, path):
    """Records what the probe sends. False: that did not work."""
    command = inside("env", "NUPA_TRANSPORT=roce", *settings, NUPA, "run", "--", PROBE, str(gid))
    try:
        with record("lo", path, inside()):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except (RecordError, subprocess.TimeoutExpired) as error:
        outcome(False, name + "-probe", error)
        return False
    outcome(done.returncode == 0, name + "-probe", done.stdout + done.stderr)
    return True


def check_crcs(name, packets):
    wrong = [packet.hex() for packet in packets if not crc_holds(packet)]
    outcome(packets and not wrong, name + "-invariant-crc", "%d of %d wrong: %s" % (len(wrong), len(packets), wrong[:1]))
    # The check itself: a bit of the queue pair's number, and the last one before the CRC.
    for at in (header_bytes(packets[0]) + 7, end_of_packet(packets[0]) - 5):
        damaged = bytearray(packets[0])
        damaged[at] ^= 1
        outcome(not crc_holds(bytes(damaged)), "%s-damage-at-%d-is-seen" % (name, at))


def check_acknowledgements(name, packets):
    """What a response acknowledges is not acknowledged by a packet of its own, which would say that the response came."""
    answered = {number(packet) for packet in packets if opcode(packet) in LAST_ANSWERS}
    twice = [packet.hex() for packet in packets if opcode(packet) == ACKNOWLEDGE and number(packet) in answered]
    outcome(answered and not twice, name + "-answers-are-the-acknowledgement", "%d twice: %s" % (len(twice), twice[:1]))


def check_decoding(name, packets, path, expected_syndromes):
    seen = tshark_sees(path)
    if seen is None:
        skip(name + "-tshark", "tshark is not installed")
        return
    pairs = list(zip(packets, seen))
    trouble = collections.Counter(opcode(packet) for packet, said in pairs
                                  if said.trouble or said.opcode != opcode(packet))
    outcome(len(packets) == len(seen) and not trouble, name + "-tshark-nothing-malformed",
            "%d packets, %d seen, opcodes %s" % (len(packets), len(seen), trouble))
    # A header that is too long or too short would leave other bytes for the CRC.
    astray = collections.Counter(opcode(packet) for packet, said in pairs if opcode(packet) in KNOWN_TO_TSHARK
                                 and said.invariant_crc != packet[end_of_packet(packet) - 4:end_of_packet(packet)])
    outcome(not astray, name + "-tshark-ends-at-the-crc", "opcodes %s" % astray)
    said = {said.syndrome for packet, said in pairs if opcode(packet) == ACKNOWLEDGE}
    outcome(said == set(expected_syndromes), name + "-tshark-acknowledgements",
            "missing %s, besides %s" % ([text for code, text in expected_syndromes.items() if code not in said],
                                        said - set(expected_syndromes)))


def check(name, gid, settings, opcodes, syndromes):
    path = os.path.join(work, name + ".pcap")
    if not probe_on_the_wire(name, gid, settings, path):
        return
    packets = list(frames(path))
    there = {opcode(packet) for packet in packets}
    outcome(there == opcodes, name + "-every-opcode", "missing %s, besides %s" % (opcodes - there, there - opcodes))
    if packets:
        check_crcs(name, packets)
        if ACKNOWLEDGE in opcodes:
            check_acknowledgements(name, packets)
        check_decoding(name, packets, path, syndromes)


def main():
    private_runtime_dir()
    reason = make_host()
    if reason:
        skip("roce-capture", reason)
        finish()
    build_probe()
    check("roce-capture-nupa", 1, (), OF_ALL | SELECTIVE, {})
    check("roce-capture-ipv6", 2, (), OF_ALL | SELECTIVE, {})
    check("roce-capture-standard", 1, ("NUPA_ROCE_PEERS=standard",), OF_ALL | {ACKNOWLEDGE, 5 << 5 | ACKNOWLEDGE},
          SYNDROMES)
    finish()


if __name__ == "__main__":
    main()
