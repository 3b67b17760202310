# SPDX-License-Identifier: Apache-2.0
"""Reads pcapng files by the format's description alone (draft-ietf-opsawg-pcapng), and accepts nothing else."""
import collections
import struct

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
ETHERNET = 1
# `interface`: an index into Capture.interfaces. `direction`: "in" or "out".
Packet = collections.namedtuple("Packet", "interface time_ns direction length frame comment")
Interface = collections.namedtuple("Interface", "name snaplen")
Statistics = collections.namedtuple("Statistics", "received dropped")
Capture = collections.namedtuple("Capture", "interfaces packets statistics")


class FormatError(Exception):
    """Not a pcapng file as this reader expects it."""


def expect(holds, what):
    if not holds:
        raise FormatError(what)


def options(body):
    found = {}
    while body:
        code, length = struct.unpack_from("<HH", body)
        value = body[4:4 + length]
        expect(len(value) == length, "an option is cut")
        body = body[4 + (length + 3) // 4 * 4:]
        if code == 0:
            expect(length == 0 and not body, "bytes after the end of options")
            return found
        expect(code not in found, "an option twice")
        found[code] = value
    raise FormatError("options without an end")


def blocks(data):
    at = 0
    while at < len(data):
        expect(at + 12 <= len(data), "a block is cut")
        kind, length = struct.unpack_from("<II", data, at)
        expect(length >= 12 and length % 4 == 0 and at + length <= len(data), "a block's length")
        expect(struct.unpack_from("<I", data, at + length - 4)[0] == length, "a block's second length")
        yield kind, data[at + 8:at + length - 4]
        at += length


def read(path):
    with open(path, "rb") as file:
        return parse(file.read())


def parse(data):
    interfaces, packets, statistics = [], [], {}
    for index, (kind, body) in enumerate(blocks(data)):
        expect((kind == SECTION) == (index == 0), "one section, at the beginning")
        if kind == SECTION:
            magic, major, minor, length = struct.unpack_from("<IHHq", body)
            expect((magic, major, minor, length) == (0x1A2B3C4D, 1, 0, -1), "the section's header")
            expect(options(body[16:])[4].startswith(b"nupa capture"), "the program's name")
        elif kind == INTERFACE:
            link, _, snaplen = struct.unpack_from("<HHI", body)
            found = options(body[8:])
            expect(link == ETHERNET and found[9] == b"\x09", "Ethernet with nanoseconds")
            interfaces.append(Interface(found[2].decode(), snaplen))
        elif kind == PACKET:
            interface, high, low, kept, length = struct.unpack_from("<IIIII", body)
            expect(interface < len(interfaces) and kept <= length, "a packet's interface and lengths")
            padded = (kept + 3) // 4 * 4
            expect(not any(body[20 + kept:20 + padded]), "padding is zeros")
            found = options(body[20 + padded:])
            direction = {1: "in", 2: "out"}[struct.unpack("<I", found[2])[0]]
            packets.append(Packet(interface, high << 32 | low, direction, length, body[20:20 + kept],
                                  found[1].decode()))
        elif kind == STATISTICS:
            interface, = struct.unpack_from("<I", body)
            found = options(body[12:])
            expect(interface not in statistics, "statistics twice")
            statistics[interface] = Statistics(*(struct.unpack("<Q", found[code])[0] for code in (4, 5)))
        else:
            raise FormatError("block of type %d" % kind)
    return Capture(interfaces, packets, statistics)
