#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hosts that have a pool and no network: `nupa net up` finds the others without --peer, IP programs use its interface, and
ranks of collectives meet at its addresses. Hosts that have both: --peer takes an address of either."""
import json
import os
import re
import subprocess
import tempfile
from nodes import Nodes, at_once, listens, no_nodes, nothing_is_left, reaches, serving, together, told
from pairs import NUPA, finish, missing_program, nupa, outcome, skip, stop, wait_for

HOSTS = 4  # the pool has room for more hosts than there are
SIZE = "128M"
PORT, ROOT_PORT = 5201, 29600
GONE_SECONDS = 20  # a heartbeat that does not change for 2 s ends the peer
OPERATIONS = "all_gather,all_reduce,all_to_all,barrier,broadcast,exscan,gather,reduce,reduce_scatter,scan,scatter"


def pinged(one, other):
    for size in (56, 20000):
        told("net-pool ping %d" % size, one.run("ping", *at_once(5), "-s", str(size), other.ipv4), r" 5 received, 0% packet loss")
    told("net-pool ping ipv6", one.run("ping", *at_once(5), other.ipv6), r" 5 received, 0% packet loss")
    peer = one.peers()[other.name]
    outcome(peer["transport"] == "pool" and 0 < peer["round_trip_us"] < 1e6, "net-pool status", peer)
    asked = one.status()["asked"]
    outcome(asked == [], "net-pool status shows no hosts without a node", asked)


def streamed(one, other):
    if missing_program("iperf3"):
        return
    for options in ((), ("-R",), ("-P", "4")):
        # A server of its own for each client: between two of them it closes its socket and opens another.
        with serving(other, "iperf3", "-s"):
            listens(other, PORT)
            told("net-pool iperf3 " + " ".join(options), one.run("iperf3", "-c", other.ipv4, "-t", "2", *options), r"receiver")
    rows = json.loads(one.run(NUPA, "stat", "--json").stdout or "[]")
    outcome(any(row.get("placed", 0) > 0 for row in rows), "net-pool data is placed in the pool", rows)


def comes_again(one, other, left):
    """A node that goes and comes again is found, in either order, and so is a further host."""
    outcome(left.up().returncode == 0 and wait_for(lambda: reaches(left, one) and reaches(other, left)) is True,
            "net-pool a third host is found", left.status())
    other.down()
    gone = wait_for(lambda: other.name not in one.peers(), GONE_SECONDS)
    outcome(gone and other.up().returncode == 0 and wait_for(lambda: reaches(one, other)) is True, "net-pool comes again", one.status())
    left.down()


def collectives(one, other):
    """The ranks have only the pool between them, and find each other at an address of the network."""
    root = "NUPA_CCL_ROOT=tcp://%s:%d" % (one.ipv4, ROOT_PORT)
    for transport in ("auto", "pool"):
        ranks = []
        for rank, node in enumerate((one, other)):
            out = tempfile.TemporaryFile("w+")
            command = [*node.inside, "NUPA_TRANSPORT=" + transport, root, "NUPA_RANK=%d" % rank, "NUPA_WORLD_SIZE=2", "NUPA_CCL_TIMEOUT=60",
                       NUPA, "ccl", "bench", "--operation", OPERATIONS, "--min-bytes", "64", "--max-bytes", "1M", "--factor", "128",
                       "--iterations", "3"]
            ranks.append((subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                           start_new_session=True), out))
        wait_for(lambda: all(rank.poll() is not None for rank, _ in ranks), 120)
        said = ""
        for rank, out in ranks:
            stop(rank)
            out.seek(0)
            said += out.read()
        results = re.findall(r" (ok|wrong)  ", said)
        outcome([rank.returncode for rank, _ in ranks] == [0, 0] and len(results) >= 20 and "wrong" not in results,
                "net-pool collectives between hosts, " + transport, said[-300:])


def address_in_pool(node):
    devices = json.loads(node.run(NUPA, "devices", "--json").stdout or "[]")
    return next((device["gids"][0]["gid"] for device in devices if device["name"] == "nupa_pool0"), "")


def beside_a_network(path):
    for kind in ("network", "pool"):
        with Nodes(2, wire=True, pool=path) as (one, other):
            address = one.host if kind == "network" else address_in_pool(one)
            wrong = [done.stderr for done in (one.up(), other.up("--peer", address)) if done.returncode != 0]
            # The node would be found in the pool without --peer, too. A peer that is not reached stays in "asked".
            joined = wait_for(lambda: reaches(one, other) and (other.status() or {}).get("asked") == [])
            outcome(wrong == [] and joined is True, "net-pool beside a network, --peer of the " + kind, (wrong, other.status()))


def main():
    reason = no_nodes()
    if reason:
        skip("net-pool", reason)
        return
    with tempfile.TemporaryDirectory(prefix="nupa-pool-", dir="/dev/shm") as folder:
        path = os.path.join(folder, "pool")
        made = nupa("pool", "format", "--pool", "file:%s,host=0" % path, "--hosts", str(HOSTS), "--size", SIZE)
        outcome(made.returncode == 0, "net-pool format", made.stdout + made.stderr)
        with Nodes(3, pool=path) as (one, other, left):
            trouble = together([one, other])
            outcome(trouble == "", "net-pool nodes find each other without --peer", trouble)
            if trouble:
                return
            pinged(one, other)
            streamed(one, other)
            collectives(one, other)
            comes_again(one, other, left)
        beside_a_network(path)
    nothing_is_left()


main()
finish()
