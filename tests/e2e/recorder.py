#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the RoCEv2 packets that pass an interface to a pcap file. Started by record()."""
import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

ROCE_PORT = 4791
MAX_FRAME = 65536 + 14
START_SECONDS, STOP_SECONDS = 20, 30


class RecordError(Exception):
    """Nothing was recorded, or not all."""


@contextlib.contextmanager
def record(interface, path, before=()):
    """Records, both ways, while the `with` block runs. `before`: a command that runs a command where the interface is.
    RecordError when packets were lost."""
    recorder = subprocess.Popen([*before, sys.executable, os.path.abspath(__file__), interface, path],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        if not select.select([recorder.stdout], [], [], START_SECONDS)[0]:
            raise RecordError("recorder does not start")
        said = recorder.stdout.readline().decode(errors="replace")
        if said != "recording\n":
            raise RecordError(said)
        yield
        recorder.terminate()
        said = recorder.communicate(timeout=STOP_SECONDS)[0].decode(errors="replace")
        if recorder.returncode != 0:
            raise RecordError(said)
    finally:
        if recorder.poll() is None:
            recorder.kill()
        recorder.wait()
        recorder.stdout.close()


def is_roce(frame):
    """An Ethernet frame with a whole UDP header in IPv4 or IPv6, to or from RoCEv2's port."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and len(frame) > 34 and frame[23] == socket.IPPROTO_UDP:
        udp = 14 + 4 * (frame[14] & 15)
    elif kind == b"\x86\xdd" and len(frame) > 54 and frame[20] == socket.IPPROTO_UDP:
        udp = 54
    else:
        return False
    return ROCE_PORT in struct.unpack_from("!HH", frame.ljust(udp + 4, b"\0"), udp)


def write_packets(interface, path):
    """Until SIGTERM comes."""
    stop_reader, stop_writer = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_writer, b"."))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    packets.bind((interface, 0))
    packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: bursts come faster than Python reads
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, MAX_FRAME, 1))  # microseconds, LINKTYPE_ETHERNET
        print("recording", flush=True)
        stopping = False
        # What has come before the signal is still written.
        while not stopping or select.select([packets], [], [], 0)[0]:
            ready = select.select([packets, stop_reader], [], [])[0]
            stopping = stopping or stop_reader in ready
            if packets not in ready:
                continue
            frame, (_, _, kind, _, _) = packets.recvfrom(MAX_FRAME)
            # A loopback shows each packet twice.
            if is_roce(frame) and not (interface == "lo" and kind == socket.PACKET_OUTGOING):
                now = time.time_ns() // 1000
                out.write(struct.pack("<IIII", now // 10**6, now % 10**6, len(frame), len(frame)) + frame)
    _, lost = struct.unpack("II", packets.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
    if lost:
        sys.exit("%d packets lost" % lost)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: recorder.py INTERFACE FILE")
    write_packets(sys.argv[1], sys.argv[2])
