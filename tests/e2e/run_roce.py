#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs over RoCEv2: between two network namespaces, and from user to user."""
import json
import os
import subprocess
from hosts import HERE, THERE, inside, left_namespaces, make_hosts, remove_hosts
from pairs import Pair, finish, free_port, nupa, outcome, private_runtime_dir, run_pair, skip, tell, wait_for
from recorder import record
from roce_packets import crc_holds, found_crc, frames, identification, opcode

OTHER_DIR = private_runtime_dir()
private_runtime_dir()
ENV = {"NUPA_TRANSPORT": "roce"}
SEND_ONLY = 4


def between_hosts():
    if not make_hosts(9000):
        skip("roce-between-hosts", "needs root, network namespaces and veth")
        return False
    # GID 1 is the IPv4 address; the first IPv6 address stands behind it.
    for command in ("ibv_rc_pingpong -g 1 -c", "ibv_rc_pingpong -g 1 -e -n 300", "ibv_rc_pingpong -g 2 -c",
                    "ibv_rc_pingpong -g 1 -s 100003 -c -n 200", "ibv_srq_pingpong -g 1", "ibv_rc_pingpong -g 1 -m 256"):
        port = free_port()
        command += " -d nupa0 -p %d" % port
        run_pair("roce " + command[:-9], command, command + " 10.119.0.1", port, env=ENV, before=inside(HERE),
                 client_before=inside(THERE))
    for command in ("ib_send_lat -n 500", "ib_write_lat -n 200", "ib_read_lat -n 300", "ib_atomic_lat -n 300",
                    "ib_send_bw -s 65536 -n 300", "ib_write_bw -s 1048576 -n 100", "ib_read_bw -s 1048576 -n 50",
                    "ib_write_bw -a -n 20", "ib_write_bw -q 16 -n 50", "ib_atomic_bw -n 300", "ib_send_bw -e -n 300"):
        port = free_port()
        command += " -F -x 1 -d nupa0 -p %d" % port
        run_pair("roce " + command[:-9], command, command + " 10.119.0.1", port, env=ENV, before=inside(HERE),
                 client_before=inside(THERE))
    # The server sends nothing itself: what it gets has come from the other host.
    for family, gid, group in (("ipv4", 1, "0:0:0:0:0:0:0:0:0:0:255:255:239:9:9:9"),
                               ("ipv6", 2, "255:14:0:0:0:0:0:0:0:0:0:0:0:9:9:9")):
        port = free_port()
        command = "ib_send_bw -c UD -g -M %s -s 512 -n 200 -t 16 -F -x %d -d nupa0 -p %d" % (group, gid, port)
        run_pair("roce-group-" + family, command, command + " 10.119.0.1", port, env=ENV, before=inside(HERE),
                 client_before=inside(THERE))
    return True


def observed():
    """What `nupa stat` tells of queue pairs on the wire."""
    port = free_port()
    command = "ibv_rc_pingpong -d nupa0 -g 1 -n 100000000 -p %d" % port

    def both():
        rows = json.loads(nupa("stat", "--json").stdout or "[]")
        return rows if len(rows) == 2 and all(row["messages"] > 50 for row in rows) else None

    with Pair(command, command + " 10.119.0.1", port, ENV, inside(HERE), inside(THERE)) as pair:
        rows = pair.client and wait_for(both) or []
        outcome(len(rows) == 2, "roce-stat-both", "%s %s" % (pair.trouble, nupa("stat").stdout))
    addresses = {row["paths"][0]["address"] for row in rows if row["transport"] == "roce"}
    outcome(addresses == {"10.119.0.1", "10.119.0.2"}, "roce-stat-addresses", rows)
    outcome(all(row["paths"][0]["round_trip_us"] > 0 and not row["standard_peer"] for row in rows),
            "roce-stat-round-trip", rows)


def settings():
    for control in ("tolerant", "none", "dcqcn", "swift", "cubic"):
        port = free_port()
        command = "ib_write_bw -s 262144 -n 50 -F -x 1 -d nupa0 -p %d" % port
        run_pair("roce-congestion-" + control, command, command + " 10.119.0.1", port,
                 env=dict(ENV, NUPA_CONGESTION=control), before=inside(HERE), client_before=inside(THERE))
    port = free_port()
    command = "ibv_rc_pingpong -d nupa0 -g 1 -c -n 200 -p %d" % port
    # Only one process of a host can be at the standard's port.
    run_pair("roce-standard-only", command, command + " 10.119.0.1", port, env=dict(ENV, NUPA_ROCE_PEERS="standard"),
             before=inside(HERE), client_before=(*inside(THERE), "env", "NUPA_RUNTIME_DIR=" + OTHER_DIR))
    taken = subprocess.Popen([*inside(HERE), "python3", "-c", "import socket, time\ns = socket.socket(socket.AF_INET, "
                             # sleep: the program holds the port until the test ends it
                              "socket.SOCK_DGRAM)\ns.bind(('', 4791))\nprint('bound', flush=True)\ntime.sleep(60)"],
                             stdout=subprocess.PIPE)
    taken.stdout.readline()
    strict = dict(ENV, NUPA_ROCE_PEERS="standard")
    refused = nupa("run", "--", "ibv_devinfo", "-d", "nupa0", before=inside(HERE), env=strict)
    outcome(refused.returncode != 0 and "4791" in refused.stderr, "roce-standard-port-taken", refused.stderr)
    tell("roce-port-taken", nupa("run", "--", "ibv_devinfo", "-d", "nupa0", before=inside(HERE), env=ENV), 0, "PORT_ACTIVE")
    taken.kill()
    taken.wait()
    for name in ("NUPA_CONGESTION", "NUPA_ROCE_PEERS", "NUPA_ROCE_ICRC"):
        wrong = nupa("run", "--", "ibv_devinfo", "-d", "nupa0", env=dict(ENV, **{name: "wrong"}))
        outcome(wrong.returncode != 0 and name in wrong.stderr, "roce-wrong-" + name, wrong.stderr)


def without_crc():
    """The CRC is left out where both ends say so, and only there."""
    for here, there in (("off", "off"), ("off", "on"), ("on", "off")):
        port = free_port()
        command = "ibv_rc_pingpong -d nupa0 -g 1 -c -s 512 -n 300 -p %d" % port
        path = os.path.join(OTHER_DIR, "packets.pcap")
        with record("wire", path, inside(HERE)):
            run_pair("roce-icrc-%s-%s" % (here, there), command, command + " 10.119.0.1", port, env=ENV,
                     before=(*inside(HERE), "env", "NUPA_ROCE_ICRC=" + here),
                     client_before=(*inside(THERE), "env", "NUPA_ROCE_ICRC=" + there))
        # Others may leave two at a time, in one segmented send.
        packets = [packet for packet in frames(path) if opcode(packet) == SEND_ONLY]
        os.unlink(path)
        without = [packet for packet in packets if found_crc(packet) == bytes(4)]
        wrong = [packet for packet in packets if not crc_holds(packet) and packet not in without]
        enough = len(without) > len(packets) * 0.8 if here == there else len(without) == 0
        outcome(len(packets) >= 600 and enough and not wrong, "roce-icrc-%s-%s-on-the-wire" % (here, there),
                "%d packets, %d without CRC, %d with a wrong one" % (len(packets), len(without), len(wrong)))


def kernel_tells_headers():
    with open("/proc/sys/net/core/tstamp_allow_data") as setting:
        return setting.read().strip() == "1"


def small_messages():
    """After some hundred of them the two processes have a socket for each other, which counts identifications."""
    for family, gid in (("ipv4", 1), ("ipv6", 2)):
        port = free_port()
        command = "ib_send_lat -s 8 -n 3000 -F -x %d -d nupa0 -p %d" % (gid, port)
        path = os.path.join(OTHER_DIR, "packets.pcap")
        with record("wire", path, inside(HERE)):
            run_pair("roce-small-" + family, command, command + " 10.119.0.1", port, env=ENV, before=inside(HERE),
                     client_before=inside(THERE))
        packets = list(frames(path))
        os.unlink(path)
        wrong = [packet for packet in packets if not crc_holds(packet)]
        outcome(len(packets) >= 6000 and not wrong, "roce-small-%s-crc" % family,
                "%d of %d wrong: %s" % (len(wrong), len(packets), [packet.hex() for packet in wrong[:1]]))
        if family == "ipv4" and not kernel_tells_headers():
            skip("roce-small-by-sockets-of-their-own", "net.core.tstamp_allow_data is 0")
        elif family == "ipv4":
            counted = [packet for packet in packets if identification(packet) != 0]
            outcome(len(counted) > 500, "roce-small-by-sockets-of-their-own",  # none without them; under load, less than half
                    "%d of %d packets" % (len(counted), len(packets)))


def with_one_that_takes_packets_alone():
    """The others of its host have the choice, and take them too: connected queue pairs, datagrams, rkeys."""
    alone = ("env", "NUPA_TRANSPORT=roce")
    for server, client, which in ((alone, (), "server"), ((), alone, "client")):
        for command in ("ibv_rc_pingpong -g 1 -c", "ibv_ud_pingpong -g 1", "ib_read_bw -s 65536 -n 50 -F -x 1"):
            port = free_port()
            whole = "%s -d nupa0 -p %d" % (command, port)
            run_pair("roce-alone-%s %s" % (which, command.split()[0]), whole, whole + " 127.0.0.1", port,
                     env=dict(ENV, NUPA_TRANSPORT="auto"), before=server, client_before=client)


def without_a_wire():
    """On one host everything goes over the loopback."""
    port = free_port()
    command = "ibv_rc_pingpong -d nupa0 -g 1 -c -p %d" % port
    run_pair("roce-on-one-host", command, command + " 127.0.0.1", port, env=ENV)
    tell("roce-devinfo", nupa("run", "--transport", "roce", "--", "ibv_devinfo"), 0, "PORT_ACTIVE")


if between_hosts() is not False:
    observed()
    settings()
    without_crc()
    small_messages()
without_a_wire()
with_one_that_takes_packets_alone()
remove_hosts()
left = left_namespaces()
outcome(left == [], "roce-leaves-no-namespace", left)
finish()
