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
    command: str  # with {device}, {gid}, {port} and {mtu}: the side's device, its GID's index, a TCP port, the path MTU
    wires: tuple
    says_farewell: bool  # both sides wait for each other at the end


# Messages of the pingpongs, which wait for 67 ms, are short enough for a slow guest. On a busy machine rdma_rxe (Linux 6.1)
# may else send again what has just been acknowledged, and then say nothing more.
def pingpong(name, wires, choose_mtu=" -m {mtu}"):
    return Case(name, name + " -d {device} -g {gid} -p {port}" + choose_mtu, wires, False)


def perftest(name, wires):
    # A quarter of a second before a packet is sent again: an emulated processor may be slow.
    return Case(name, name + " -F -u 16 -d {device} -x {gid} -p {port} -m {mtu}", wires, True)


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
]
