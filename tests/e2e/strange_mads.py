#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends management datagrams that nobody asked for to queue pair 1 of a host. Reads one JSON object: source, to, local
port `port` of the listener, kinds, count, recorded (payloads in hexadecimal, for "replayed")."""
import json
import random
import socket
import struct
import sys
import time
from stranger import DATAGRAM, SOURCE_PORT, header, sealed

STANDARD_PORT, MANAGEMENT, MANAGEMENT_QKEY = 4791, 1, 0x80010000
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR = range(0x10, 0x1b)
TCP_SERVICES = 0x01060000
IP_HEADER = 140 + 24  # where the private data of a REQ begins


def mad(attribute, body, management_class=7):
    """A management datagram of the communication manager (IBTA 13.4.2, 12.6)."""
    head = struct.pack("!BBBBHHQHHI", 1, management_class, 2, 3, 0, 0, random.getrandbits(64), attribute, 0, 0)
    return (head + body).ljust(256, b"\0")


def request(order):
    """A REQ with random numbers for the listener's service."""
    made = bytearray(mad(REQ, random.randbytes(4) + bytes(4) + struct.pack("!Q", TCP_SERVICES + order["port"])))
    made[40:48] = random.randbytes(8)  # the sender's GUID
    struct.pack_into("!I", made, 24 + 32, random.getrandbits(24) << 8 | 1)
    struct.pack_into("!I", made, 24 + 36, 1)
    struct.pack_into("!I", made, 24 + 40, 16 << 3)
    struct.pack_into("!I", made, 24 + 44, random.getrandbits(24) << 8 | 16 << 3 | 7)
    struct.pack_into("!I", made, 24 + 48, 0xffff0000 | 3 << 12 | 15 << 4)
    for at, address in ((24 + 56, order["source"]), (24 + 72, order["to"])):
        made[at:at + 16] = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
    made[IP_HEADER + 1] = 0x40
    made[IP_HEADER + 16:IP_HEADER + 20] = socket.inet_aton(order["source"])
    made[IP_HEADER + 32:IP_HEADER + 36] = socket.inet_aton(order["to"])
    return bytes(made)


def other(attribute):
    return mad(attribute, random.randbytes(232))


def sent(order, kind):
    """One packet of a kind."""
    def packet(datagram, qkey=MANAGEMENT_QKEY):
        content = header(DATAGRAM, MANAGEMENT, 0) + struct.pack("!II", qkey, MANAGEMENT) + datagram
        return sealed(order["source"], order["to"], STANDARD_PORT, content)

    if kind == "request":
        return packet(request(order))
    if kind == "wrong-qkey":
        return packet(request(order), 0x11111111)
    if kind == "wrong-class":
        return packet(mad(REQ, request(order)[24:], 3))
    if kind == "truncated":
        return packet(request(order)[:random.randrange(0, 252) // 4 * 4])
    if kind == "garbage":
        return packet(random.randbytes(256))
    if kind == "replayed":
        return packet(bytes.fromhex(random.choice(order["recorded"])))
    return packet(other(random.choice((MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR))))


def main():
    order = json.load(sys.stdin)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.setsockopt(socket.IPPROTO_IP, 10, 2)  # as stranger.py
        out.bind((order["source"], SOURCE_PORT))
        for turn in range(order["count"]):
            for kind in order["kinds"]:
                out.sendto(sent(order, kind), (order["to"], STANDARD_PORT))
            if turn % 20 == 0:
                time.sleep(0.002)  # sleep: the rate at which the messages are sent


if __name__ == "__main__":
    main()
