# SPDX-License-Identifier: Apache-2.0
"""Reads recorded RoCEv2 packets: by tshark, and the invariant CRC, which tshark does not check, by the standard."""
import collections
import shutil
import struct
import subprocess
import zlib

ETHERNET, IPV6, UDP, ICRC = 14, 40, 8, 4  # bytes

# Programs' data is none of these protocols; tshark guesses that it is, and calls an empty SEND a malformed one of RPC.
GUESSES = ("smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib", "drbd",
           "infiniband.eoib")
# Of one packet as tshark shows it. `trouble`: malformed, or an error of the dissector's.
Seen = collections.namedtuple("Seen", "opcode syndrome invariant_crc trouble")


def frames(path):
    """The Ethernet frames of a pcap file as recorder.py writes it, but for empty datagrams, which are no packets."""
    with open(path, "rb") as file:
        data = file.read()
    at = 24
    while at < len(data):
        length, = struct.unpack_from("<I", data, at + 8)
        frame = data[at + 16:at + 16 + length]
        if end_of_packet(frame) > header_bytes(frame):
            yield frame
        at += 16 + length


def opcode(frame):
    return frame[header_bytes(frame)]


def is_answer(frame):
    """A response to a READ, an acknowledgement, or one of an atomic (IBTA table 38): the numbers are the other side's."""
    return 0x0D <= opcode(frame) & 0x1F <= 0x12


def number(frame):
    """The queue pair to which a packet goes and its sequence number."""
    bth = header_bytes(frame)
    return frame[bth + 5:bth + 8].hex(), int.from_bytes(frame[bth + 9:bth + 12], "big")


def addresses(frame):
    """Of source and destination, IPv4 or IPv6."""
    ip = frame[ETHERNET:]
    return (ip[12:16], ip[16:20]) if ip[0] >> 4 == 4 else (ip[8:24], ip[24:40])


def connecting(frame):
    """What a REQ or REP of the communication manager says of its sender: (name, queue pair, the PSN that it wants to
    begin with), the queue pair as number() has it; None for every other packet."""
    bth = header_bytes(frame)
    mad = frame[bth + 20:end_of_packet(frame) - ICRC]  # behind the datagram's header
    if opcode(frame) != 0x64 or frame[bth + 5:bth + 8] != b"\0\0\1" or len(mad) != 256 or mad[1] != 7:
        return None
    fields = {0x10: ("REQ", 24 + 32, 24 + 44), 0x13: ("REP", 24 + 12, 24 + 20)}.get(int.from_bytes(mad[16:18], "big"))
    if fields is None:
        return None
    name, qpn, psn = fields
    return name, mad[qpn:qpn + 3].hex(), int.from_bytes(mad[psn:psn + 3], "big")


def identification(frame):
    """Of IPv4."""
    return int.from_bytes(frame[ETHERNET + 4:ETHERNET + 6], "big")


def header_bytes(frame):
    """Of Ethernet, IP and UDP."""
    return ETHERNET + (4 * (frame[ETHERNET] & 15) if frame[12:14] == b"\x08\x00" else IPV6) + UDP


def end_of_packet(frame):
    """By UDP's length: frames may be longer than what they hold."""
    udp = header_bytes(frame) - UDP
    return udp + int.from_bytes(frame[udp + 4:udp + 6], "big")


def found_crc(frame):
    """The last four bytes of a packet."""
    end = end_of_packet(frame)
    return frame[end - ICRC:end]


def right_crc(frame):
    """The invariant CRC that a packet should have (IBTA 7.8.1 and annex A17.3.3): over eight bytes of ones for the link
    header that InfiniBand has, and all from the IP header on, with ones for what may change on the way."""
    packet = bytearray(frame[ETHERNET:end_of_packet(frame) - ICRC])
    bth = header_bytes(frame) - ETHERNET
    if packet[0] >> 4 == 4:
        changing = [1, 8, 10, 11]  # type of service, time to live, checksum
    else:
        packet[0] |= 0x0F  # traffic class, of which the upper half is here, and flow label
        changing = [1, 2, 3, 7]
    for at in changing + [bth - 2, bth - 1, bth + 4]:  # checksum of UDP; FECN, BECN and reserved bits
        packet[at] = 0xFF
    return zlib.crc32(b"\xff" * 8 + packet).to_bytes(ICRC, "little")


def crc_holds(frame):
    return found_crc(frame) == right_crc(frame)


def tshark_sees(path):
    """What tshark makes of each packet, in order; None if it is not installed."""
    if shutil.which("tshark") is None:
        return None
    fields = ("infiniband.bth.opcode", "infiniband.aeth.syndrome", "infiniband.invariant.crc", "_ws.malformed",
              "_ws.expert.severity")
    command = ["tshark", "-r", path, "-T", "fields", "-E", "separator=;", "-E", "occurrence=f"]
    command += [word for field in fields for word in ("-e", field)]
    command += [word for protocol in GUESSES for word in ("--disable-protocol", protocol)]
    command += ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]  # RFC 6936: the invariant CRC is there instead
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-300:])
    rows = [line.split(";") for line in done.stdout.splitlines()]
    error = 0x00800000  # PI_ERROR of Wireshark's experts; what is less is no fault of a packet
    return [Seen(int(row[0]) if row[0] else None, int(row[1]) if row[1] else None, int(row[2], 0).to_bytes(ICRC, "big") if row[2] else None,
                 row[3] != "" or int(row[4] or "0", 0) >= error) for row in rows]
