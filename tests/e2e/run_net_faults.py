#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens to a network of `nupa net` when nodes come, go, stop, change their wire or do what they must not."""
import concurrent.futures
import os
import random
import re
import signal
import socket
import subprocess
import time
from nodes import CONFIG, NETWORK, Nodes, listens, no_nodes, nothing_is_left, one_after_the_other, peers_of, reaches, \
    serving, told, together
from pairs import ALL, NUPA, finish, left_in, missing_program, outcome, skip, transports, wait_for

CYCLES = 1000 if ALL else 20


def acknowledged(one, other):
    """Bytes of iperf3's connection to another node that have arrived; 0: there is none."""
    said = one.run("ss", "-Htin", "dst", other.ipv4 + ":5201").stdout
    return max(map(int, re.findall(r"bytes_acked:(\d+)", said)), default=0)


def flows(one, other):
    """Whether another megabyte arrives. After a pause of the network TCP waits for as long again."""
    before = acknowledged(one, other)
    return wait_for(lambda: acknowledged(one, other) > before + 1_000_000, 40)


def restarts(one, other):
    """A connection of TCP outlives an end of either node's process."""
    if missing_program("iperf3"):
        return
    for victim in (one, other):
        with serving(other, "iperf3", "-s"):
            listens(other, 5201)
            with serving(one, "iperf3", "-c", other.ipv4, "-t", "250") as client:
                flew = flows(one, other)
                # The interface goes with the process: its address has to come back for the connection to go on.
                os.kill(victim.pid(), signal.SIGKILL)
                again = victim.up(*peers_of(victim, [one, other]))
                goes_on = flows(one, other)
                outcome(flew and goes_on and client.poll() is None, "net-tcp-outlives-kill-9-of-%s" % victim.name,
                        "%s, then %s %s, status %s" % (flew, goes_on, again.stderr, client.poll()))
        wait_for(lambda: one.peers().get(other.name))


def started_at_once(transport):
    """Each asks the other one: of two connections one stays, at both ends the same."""
    with Nodes(2, wire=transport == "roce") as nodes:
        silent = []
        for turn in range(200 if ALL else 20):
            with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
                ups = list(pool.map(lambda node: node.up(*others_of(node, nodes)), nodes))
            reached = [wait_for(lambda one=one, other=other: reaches(one, other), 5) for one in nodes for other in nodes if one is not other]
            if not all(reached):
                silent.append((turn, [done.stderr for done in ups], [node.status()["peers"] for node in nodes]))
            for node in nodes:
                node.down()
        outcome(not silent, "net-started-at-once", silent[:1])


def others_of(node, nodes):
    return [word for other in nodes if node.wire and other is not node for word in ("--peer", other.host)]


def unknown_peers():
    with Nodes(3) as (one, other, third):
        reason = together([one, other])
        key = os.path.join(CONFIG, "other.key")
        with open(key, "w") as out:
            out.write(subprocess.run([NUPA, "net", "key"], capture_output=True, text=True).stdout)
        os.chmod(key, 0o644)
        done = third.up("--key-file", key)
        outcome(done.returncode != 0 and "open to other users" in done.stderr, "net-key-open-to-others", done.stderr)
        os.chmod(key, 0o600)
        third.up("--key-file", key)

        def turned_away():
            asked = (third.status() or {"asked": []})["asked"]
            return asked and all("key" in target["why"] for target in asked) and \
                all(node.status()["unknown_peers"] > 0 for node in (one, other))

        wait_for(turned_away)
        unknown_peers = lambda: [node.status()["unknown_peers"] for node in (one, other)]
        first = unknown_peers()
        wait_for(lambda: min(map(int.__sub__, unknown_peers(), first)) > 0)  # it tries again
        counted = unknown_peers()
        known = third.status()
        outcome(not reason and min(map(int.__sub__, counted, first)) > 0 and not known["peers"] and not one.peers().get("n3"), "net-wrong-key", counted)
        outcome(known["asked"] and all("key" in asked["why"] for asked in known["asked"]), "net-wrong-key-is-told", known["asked"])
        third.down()
        done = third.up(address=("--addr", one.ipv4 + "/24"))
        refused = wait_for(lambda: any("belongs to node n1" in asked["why"] for asked in (third.status() or {"asked": []})["asked"]))
        outcome(refused, "net-an-address-twice-is-refused", done.stderr + str(third.status()))
        third.down()
        done = subprocess.run([*third.inside, NUPA, "net", "up", NETWORK, "--node", "n1", "--addr", "10.77.0.3/24", "--detach"],
                              capture_output=True, text=True)
        outcome(done.returncode != 0 and "a node of this name" in done.stderr, "net-a-name-twice-is-refused", done.stderr)
        outcome(len(one.peers()) == 1 and len(other.peers()) == 1, "net-the-others-go-on")
        for node in (one, other):
            node.down()


def cycles():
    """Nothing grows at the one that stays, and nothing is left."""
    with Nodes(2) as (one, other):
        one.up()
        pid = one.pid()

        def grown():
            with open("/proc/%d/status" % pid) as status:
                kilobytes = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])
            return len(os.listdir("/proc/%d/fd" % pid)), kilobytes
        bad, first = [], None
        for turn in range(CYCLES):
            done = other.up()
            if done.returncode != 0 or not wait_for(lambda: other.peers().get("n1")):
                bad.append("turn %d: %s" % (turn, done.stderr))
                break
            other.down()
            if turn == 4:
                wait_for(lambda: not one.peers())
                first = grown()
        wait_for(lambda: not one.peers())

        def steady():
            """Who has just gone still has descriptors here for a moment, and its segment for three seconds."""
            now = grown()
            return now if now[0] <= first[0] and now[1] < first[1] + 8192 else None

        last = first and wait_for(steady)
        outcome(not bad, "net-%d-times-up-and-down" % CYCLES, bad)
        outcome(last, "net-up-and-down-grows-nothing", "%s then %s" % (first, last or grown()))
        one.down()
        left = left_in(one.directory) + [name for name in os.listdir("/dev/shm") if "nupa-net" in name]
        outcome(left == [], "net-up-and-down-leaves-nothing", left)


def change_of_wire():
    """From shm to packets and back under a connection of TCP."""
    if missing_program("iperf3"):
        return
    with Nodes(2, wire=True, shared=True) as nodes:
        one, other = nodes
        reason = together(nodes)
        outcome(not reason and one.peers()[other.name]["transport"] == "shm", "net-wires-shm-first", reason)
        with serving(other, "iperf3", "-s"):
            listens(other, 5201)
            with serving(one, "iperf3", "-c", other.ipv4, "-t", "280") as client:
                seen = [("", "shm", flows(one, other))]
                for transport in ("roce", "auto"):
                    os.kill(one.pid(), signal.SIGKILL)
                    again = one.up("--peer", other.host, env=("NUPA_TRANSPORT=" + transport,))
                    wire = wait_for(lambda: one.peers().get(other.name, {}).get("transport"))
                    seen.append((again.stderr, wire, flows(one, other)))
                wanted = [(wire, True) for wire in ("shm", "roce", "shm")]
                outcome(client.poll() is None and [step[1:] for step in seen] == wanted,
                        "net-tcp-outlives-a-change-of-wire", "%s, status %s" % (seen, client.poll()))


FLOOD = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    end = time.time() + 2
    while time.time() < end:
        one.sendto(bytes(60000), (sys.argv[1], 9))
        time.sleep(0.001)  # sleep: a rate at which the interface's queue does not overflow, which would lose packets of others
"""


def stopped(transport):
    """A node's process stands still while others send to it: they go on among each other, and it comes back."""
    with Nodes(3, wire=transport == "roce") as nodes:
        one, other, third = nodes
        reason = together(nodes)
        pid = other.pid()
        os.kill(pid, signal.SIGSTOP)

        def lost():
            status = one.status() or {"dropped_by_interface": 0, "peers": []}
            return status["dropped_by_interface"] + sum(sum(peer["dropped"].values()) for peer in status["peers"])

        with serving(one, "python3", "-c", FLOOD, other.ipv4):
            done = one_after_the_other(one, third.ipv4, 20, 0.1)
            counted = wait_for(lambda: lost() > 0)
        status = one.status()
        os.kill(pid, signal.SIGCONT)
        told("net-others-go-on-where-one-is-stopped", done, " 1 received, 0% packet loss")
        outcome(not reason and counted, "net-what-is-for-a-stopped-node-is-lost-and-counted", reason or status)
        outcome(wait_for(lambda: reaches(one, other)) and other.pid() == pid, "net-a-stopped-node-comes-back", one.status())


GARBAGE = """
import os, random, socket, sys
source = random.Random(3)
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as one:
    one.bind(("nupa0", 0))
    for turn in range(20000):
        packet = bytearray(source.randbytes(source.choice((1, 19, 20, 40, 60, 200, 1500, 9000))))
        if turn % 2 and len(packet) >= 40:
            packet[:20] = bytes((0x45, 0)) + len(packet).to_bytes(2, "big") + bytes(5) + bytes((source.choice((1, 6, 17)), 0, 0)) + \
                socket.inet_aton(sys.argv[1]) + socket.inet_aton(sys.argv[2])
            packet[source.randrange(20)] = source.randrange(256)
        try:
            one.send(packet)
        except OSError:
            pass  # what the kernel itself refuses
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    for turn in range(20000 if sys.argv[3] else 0):
        try:
            one.sendto(source.randbytes(source.choice((0, 1, 12, 16, 64, 300, 4096))), (sys.argv[3], 4791))
        except OSError:
            pass
"""


def garbage(transport):
    """On the device, on the wire, and at the socket by which nodes of a runtime directory find each other."""
    with Nodes(2, wire=transport == "roce") as nodes:
        one, other = nodes
        reason = together(nodes)
        pids = [node.pid() for node in nodes]
        done = one.run("python3", "-c", GARBAGE, one.ipv4, other.ipv4, other.host if other.wire else "", seconds=120)
        outcome(not reason and done.returncode == 0, "net-garbage", reason or done.stderr)
        doors = [os.path.join(other.directory, name) for name in os.listdir(other.directory) if "net" in name]
        refused = 0
        for turn in range(300):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if turn % 2 else socket.SOCK_STREAM) as door:
                try:
                    door.connect(doors[0])
                    door.send(random.randbytes(random.choice((1, 100, 60000))))
                except OSError:
                    refused += 1
        outcome(doors and refused < 300, "net-garbage-at-the-door", "%s, %d refused" % (doors, refused))
        through = wait_for(lambda: reaches(one, other) and reaches(other, one))
        outcome(through and [node.pid() for node in nodes] == pids, "net-garbage-hurts-nobody", [node.status() for node in nodes])
        known = [node.status()["peers"][0]["connections"] for node in nodes]
        outcome(known == [1, 1], "net-garbage-ends-no-connection", known)


def main():
    reason = no_nodes()
    if reason:
        return skip("net-faults", reason)
    for transport in transports():
        with Nodes(2, wire=transport == "roce") as nodes:
            reason = together(nodes)
            outcome(not reason, "net-up", reason)
            if not reason:
                restarts(*nodes)
        started_at_once(transport)
        stopped(transport)
        garbage(transport)
    change_of_wire()
    unknown_peers()
    cycles()
    return nothing_is_left()


main()
finish()
