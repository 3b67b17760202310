# SPDX-License-Identifier: Apache-2.0
"""FLUSH and ATOMIC WRITE (IBTA annex A19) between rdma_rxe and NUPA. Linux has them since 6.2, so the guest is of a later release than
Debian 12."""
import os
import re
import subprocess

from pairs import outcome, skip
from rxe_cases import JUMBO, STANDARD

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "placement_pair"
SECONDS = 60


def build(folder):
    """Builds the program that both sides run; its path. The guest has another C++ library or none."""
    path = os.path.join(folder, NAME)
    subprocess.run(["g++", "-std=c++20", "-O1", "-static-libstdc++", "-static-libgcc", os.path.join(HERE, NAME + ".cc"), "-o", path, "-libverbs"],
                   check=True)
    return path


def has_placement(guest):
    """Returns whether the guest's kernel has both operations."""
    _, release = guest.run("uname -r")
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", release).groups())) >= (6, 2)


def check_placement(guest, program, guest_side, host_side, ports):
    if not has_placement(guest):
        return skip("rxe FLUSH and ATOMIC WRITE", "the guest's kernel is older than 6.2 (--release trixie)")
    # Packets must not be lost: rdma_rxe repeats both requests with address 0, and answers no repeated FLUSH (docs/design/flush.md).
    for wires in (STANDARD, JUMBO):
        guest.set_mtu(wires.mtu)
        for server_side, client_side in ((guest_side, host_side), (host_side, guest_side)):
            run(program, server_side, client_side, wires, next(ports))
    return None


def run(program, server_side, client_side, wires, port):
    """The client makes the requests: rounds of WRITE, FLUSH of the range, ATOMIC WRITE and FLUSH of the region; many at once; and a FLUSH
    to persistence, which is refused."""
    def command(side, *more):
        where = NAME if side is guest_side_of(server_side, client_side) else program
        return " ".join([where, side.device, str(side.gid), str(port), *more])

    processes = [server_side.spawn(command(server_side))]
    try:
        if not server_side.wait_listening(port, processes[0], False):
            return outcome(False, title(client_side, wires), "server does not listen: " + processes[0].output()[-200:])
        processes.append(client_side.spawn(command(client_side, server_side.address)))
        statuses = []
        for process in reversed(processes):
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                pass
            statuses.append(process.poll())
        return outcome(statuses == [0, 0], title(client_side, wires), "client and server: %s: %s" % (
            statuses, " ... ".join(process.output().strip()[-200:] for process in reversed(processes))))
    finally:
        for process in processes:
            process.kill()


def guest_side_of(*sides):
    return next(side for side in sides if side.name == "rdma_rxe")


def title(client_side, wires):
    return "rxe FLUSH and ATOMIC WRITE (requester: %s; MTU %s)" % (client_side.name, wires.name)
