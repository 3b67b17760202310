#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends RoCEv2 packets that a live queue pair must not heed. Reads one JSON object: source, to, port, qpn, psn, kinds,
count; sends `count` packets of each kind."""
import json
import random
import socket
import struct
import sys
import time
import zlib

SOURCE_PORT = 50001
SEND_ONLY, ACKNOWLEDGE, DATAGRAM = 0x04, 0x11, 0x64


def sealed(source, to, port, packet):
    """The packet with its invariant CRC (IBTA annex A17.3.3): identification 0, what routers change as ones."""
    length = len(packet) + 4
    route = (b"\xff" * 8 + struct.pack("!BBHHHBBH", 0x45, 0xff, 28 + length, 0, 0x4000, 0xff, 17, 0xffff)
             + socket.inet_aton(source) + socket.inet_aton(to)
             + struct.pack("!HHHH", SOURCE_PORT, port, 8 + length, 0xffff))
    crc = zlib.crc32(route + packet[:4] + b"\xff" + packet[5:])
    return packet + struct.pack("<I", crc)


def header(opcode, qpn, psn, pkey=0xffff):
    return struct.pack("!BBHII", opcode, 0, pkey, qpn, 0x80000000 | (psn & 0xffffff))


def packets(order):
    """One of each kind asked for."""
    qpn, psn = order["qpn"], order["psn"]
    body = b"not for you "
    far_behind, far_ahead = psn - 1000000, psn + 6000000

    def seal(packet):
        return sealed(order["source"], order["to"], order["port"], packet)

    made = {
        "as-the-peer": lambda: seal(header(SEND_ONLY, qpn, psn) + body),
        "wrong-partition": lambda: seal(header(SEND_ONLY, qpn, psn, pkey=0x8001) + body),
        "stale": lambda: seal(header(SEND_ONLY, qpn, far_behind) + body),
        "ahead": lambda: seal(header(SEND_ONLY, qpn, far_ahead) + body),
        "stale-answer": lambda: seal(header(ACKNOWLEDGE, qpn, far_ahead) + struct.pack("!I", 0x1f000000)),
        "wrong-crc": lambda: seal(header(SEND_ONLY, qpn, psn) + body)[:-1] + b"\x5a",
        "garbage": lambda: random.randbytes(5) + qpn.to_bytes(3, "big") + random.randbytes(random.randrange(8, 1400)),
        "short": lambda: random.randbytes(random.randrange(0, 16)),
        "huge": lambda: seal(header(SEND_ONLY, qpn, psn) + bytes(random.randrange(4100, 8900) // 4 * 4)),
        "wrong-qkey": lambda: seal(header(DATAGRAM, qpn, psn) + struct.pack("!II", 0x22222222, 7) + body),
        "wrong-partition-datagram":
            lambda: seal(header(DATAGRAM, qpn, psn, pkey=0x8001) + struct.pack("!II", 0x11111111, 7) + body),
    }
    return [made[kind]() for kind in order["kinds"]]


def main():
    order = json.load(sys.stdin)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: "do not fragment", identification 0
        out.bind((order["source"], SOURCE_PORT))
        for _ in range(order["count"]):
            for packet in packets(order):
                out.sendto(packet, (order["to"], order["port"]))
            time.sleep(0.001)  # sleep: the rate at which the packets are sent


if __name__ == "__main__":
    main()
