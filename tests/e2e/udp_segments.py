#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Datagrams that the kernel cuts (UDP_SEGMENT), and that it gives together (UDP_GRO), for the tests of the network device.

  udp_segments.py receive ADDRESS PORT BYTES together|single    prints "ready", then the sizes of all datagrams as JSON
  udp_segments.py send ADDRESS PORT BYTES SEGMENT TIMES         BYTES a call, in datagrams of SEGMENT
  udp_segments.py answer ADDRESS PORT BYTES SEGMENT TIMES       the same to whoever sends something there"""
import json
import socket
import struct
import sys

UDP_SEGMENT, UDP_GRO = 103, 104
SILENCE_SECONDS = 20  # of a sender that may not have begun


def opened(address, port):
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    return socket.socket(family, socket.SOCK_DGRAM), where


def pattern(at, size):
    """What the stream has from a position on."""
    return bytes((number * 7 + (number >> 8)) & 0xff for number in range(at, at + size))


def receive(address, port, wanted, how):
    udp, where = opened(address, int(port))
    udp.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    if how == "together":
        udp.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    udp.bind(where)
    udp.settimeout(SILENCE_SECONDS)
    print("ready", flush=True)
    whole, got, sizes, messages = pattern(0, int(wanted)), 0, [], 0
    while got < int(wanted):
        try:
            data, told, _, _ = udp.recvmsg(65536, 64)
        except TimeoutError:
            break
        if data != whole[got:got + len(data)]:
            sys.exit("wrong bytes behind %d" % got)
        segment = next((struct.unpack("i", value[:4])[0] for _, kind, value in told if kind == UDP_GRO), len(data))
        sizes += [min(segment, len(data) - at) for at in range(0, len(data), segment)]
        got += len(data)
        messages += 1
    print(json.dumps({"sizes": sizes, "messages": messages}))


def answer(address, port, *what):
    udp, where = opened(address, int(port))
    udp.bind(where)
    print("ready", flush=True)
    send_to(udp, udp.recvfrom(1)[1], *what)


def send(address, port, *what):
    send_to(*opened(address, int(port)), *what)


def send_to(udp, where, size, segment, times):
    udp.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, int(segment))
    whole = pattern(0, int(size) * int(times))
    for turn in range(int(times)):
        udp.sendto(whole[turn * int(size):][:int(size)], where)


if __name__ == "__main__":
    {"receive": receive, "send": send, "answer": answer}[sys.argv[1]](*sys.argv[2:])
