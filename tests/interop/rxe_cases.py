# SPDX-License-Identifier: Apache-2.0
"""What `rxe` runs: programs, each with its options, and on which wires."""
import typing


class Wires(typing.NamedTuple):
    """How the wire is."""
    name: str
    mtu: int          # of both interfaces, in bytes
    path_mtu: int     # the largest of RoCE that fits
    lose_one_in: int  # packets, each way, at random; 0: none
    recorded: bool    # packets are written down and looked at


STANDARD = Wires("1,500", 1500, 1024, 0, True)
JUMBO = Wires("4,500", 4500, 4096, 0, False)
LOSSY = Wires("4,500, 2 % lost", 4500, 4096, 50, False)
WIRES = (STANDARD, JUMBO, LOSSY)
ALL = WIRES
WHOLE = (STANDARD, JUMBO)  # an unreliable service does not answer for what is lost
LARGE = (JUMBO, LOSSY)


class Case(typing.NamedTuple):
    """A program that runs as a server on one side and as a client on the other."""
    name: str
    # With {device}, {gid}, {port} and {mtu}: the side's device, its GID's index, a port, the path MTU; {server} and
    # {server6}: the server's addresses.
    server: str
    client: str
    wires: tuple
    says_farewell: bool  # both sides wait for each other at the end
    connects: bool = False  # by the communication manager; else the port is one of TCP
    serves_on: bool = False  # the server does not end
    fixed_port: int = 0  # which the program takes without being told
    takes_long: bool = False  # ten seconds and more; left out of a short run


# Messages of the pingpongs, which wait for 67 ms, are short enough for a slow guest. On a busy machine rdma_rxe (Linux 6.1)
# may else send again what has just been acknowledged, and then say nothing more.
def pingpong(name, wires, choose_mtu=" -m {mtu}"):
    command = name + " -d {device} -g {gid} -p {port}" + choose_mtu
    return Case(name, command, command + " {server}", wires, False)


def perftest(name, wires):
    # A quarter of a second before a packet is sent again: an emulated processor may be slow.
    command = name + " -F -u 16 -d {device} -x {gid} -p {port} -m {mtu}"
    return Case(name, command, command + " {server}", wires, True)


def rping(options, wires, server="{server}"):
    """The client disconnects, and the server ends by that."""
    name = "rping %s%s" % (options, " (IPv6)" if server == "{server6}" else "")
    rest = " -a %s -p {port} %s" % (server, options)
    return Case(name, "rping -s" + rest, "rping -c" + rest, wires, True, connects=True)


def connects(name, wires, **more):
    """A program of rdmacm-utils, whose client is told the server's address by -s."""
    return Case(name, name + " -p {port}", name + " -p {port} -s {server}", wires, True, connects=True, **more)


# The client connects again as soon as it has its buffers, and the server has to listen by then, or perftest gives up:
# with large ones a slow guest does.
def perftest_connects(name, wires, **more):
    command = name + " -R -F -p {port} -m {mtu}"
    return Case(name + " -R", command, command + " {server}", wires, True, connects=True, **more)


CASES = [
    pingpong("ibv_rc_pingpong -c -n 200", ALL),
    pingpong("ibv_rc_pingpong -c -n 50 -s 25003", ALL),
    pingpong("ibv_rc_pingpong -c -n 100 -e", LARGE),
    pingpong("ibv_uc_pingpong -n 100", WHOLE),
    pingpong("ibv_ud_pingpong -n 100 -s 1000", WHOLE, choose_mtu=""),
    pingpong("ibv_srq_pingpong -n 200 -q 4", ALL),
    perftest("ib_send_lat -n 100", (JUMBO,)),
    perftest("ib_send_lat -n 50 -s 65536", LARGE),
    perftest("ib_send_bw -n 50 -s 65536", ALL),
    perftest("ib_write_lat -n 100", (JUMBO,)),
    perftest("ib_write_lat -n 50 -s 65536", LARGE),
    perftest("ib_write_bw -n 50 -s 65536", ALL),
    # rxe would offer 128 READs at a time, NUPA takes 16, and perftest does not take the lesser by itself.
    perftest("ib_read_lat -o 16 -n 100", (JUMBO,)),
    perftest("ib_read_lat -o 16 -n 50 -s 65536", LARGE),
    perftest("ib_read_bw -o 16 -n 50 -s 65536", ALL),
    perftest("ib_atomic_lat -o 16 -n 100", ALL),
    perftest("ib_atomic_bw -o 16 -n 100", LARGE),
    perftest("ib_atomic_bw -o 16 -n 100 -A CMP_AND_SWAP", ALL),
    perftest("ib_send_lat -c UC -n 50 -s 16384", (JUMBO,)),
    perftest("ib_send_bw -c UC -n 50 -s 16384", (JUMBO,)),
    perftest("ib_write_lat -c UC -n 50 -s 16384", (JUMBO,)),
    perftest("ib_write_bw -c UC -n 50 -s 16384", (JUMBO,)),
    perftest("ib_send_lat -c UD -n 100 -s 1024", (JUMBO,)),
    perftest("ib_send_bw -c UD -n 100 -s 1024", (JUMBO,)),
    rping("-V -C 10 -S 64", ALL),
    rping("-V -C 10 -S 20000", ALL),
    rping("-V -C 10 -S 64", (STANDARD,), server="{server6}"),
    connects("ucmatose -c 5 -C 10", ALL),
    # Its -p is no port.
    Case("udaddy -c 3", "udaddy -c 3", "udaddy -c 3 -s {server}", WHOLE, True, connects=True, fixed_port=7174),
    Case("rdma_server, rdma_client", "rdma_server -p {port}", "rdma_client -s {server} -p {port}", ALL, True, connects=True),
    Case("rdma_xserver, rdma_xclient", "rdma_xserver -p {port}", "rdma_xclient -s {server} -p {port}", WHOLE, True,
         connects=True),
    connects("cmtime -c 20", ALL, serves_on=True),
    connects("rstream -S 64 -I 20 -C 10 -T v", ALL),
    connects("rstream -S 65536 -I 5 -C 10 -T v", ALL),
    perftest_connects("ib_write_bw -n 5 -s 4194304", WHOLE),
    perftest_connects("ib_send_lat -n 5 -s 4194304", (JUMBO,)),
    perftest_connects("ib_read_bw -o 16 -n 5 -s 4194304", WHOLE, takes_long=True),
    # rdma_rxe takes minutes for such messages when packets are lost.
    perftest_connects("ib_write_bw -n 50 -s 65536", (LOSSY,), takes_long=True),
    perftest_connects("ib_read_bw -o 16 -n 50 -s 65536", (LOSSY,), takes_long=True),
]
