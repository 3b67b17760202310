#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The network device of `nupa net` between nodes, over shm and over packets: addresses, sizes, queues, files, users,
and what its status tells."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from nodes import NETWORK, Nodes, at_once, listens, no_nodes, nothing_is_left, one_after_the_other, peers_of, reaches, \
    serving, told, together
from pairs import NUPA, finish, left_in, missing_program, outcome, skip, transports, wait_for


def ping(one, other):
    for address, label in ((other.ipv4, "ipv4"), (other.ipv6, "ipv6")):
        for size in (56, 1400, 20000):
            done = one.run("ping", *at_once(5), "-s", str(size), address)
            told("net-ping-%s-%d" % (label, size), done, r" 5 received, 0% packet loss")
        # Five of them at once are more than a ping's socket holds.
        done = one_after_the_other(one, address, 5, 0, "-s", "65000")
        told("net-ping-%s-65000" % label, done, r" 1 received, 0% packet loss")
    told("net-ping-link-local", one.run("ping", *at_once(2), "-I", "nupa0", link_local(other)), r" 2 received")
    told("net-ping-nobody", one.run("sh", "-c", "! ping -c 1 -W 20 10.77.0.200"), "Unreachable")
    other.run("sysctl", "-q", "-w", "net.ipv4.icmp_echo_ignore_broadcasts=0")
    told("net-ping-broadcast", one.run("ping", "-b", *at_once(2), "10.77.0.255"), r" 2 received")
    told("net-ping-ipv6-group", one.run("ping", *at_once(2), "-I", "nupa0", "ff02::1"), r" 2 received")


def link_local(node):
    return re.search(r"inet6 (fe80::[0-9a-f:]+)/64", node.run("ip", "-6", "address", "show", "nupa0").stdout)[1]


def seen(one, other, transport):
    status = one.status()
    peer = one.peers()[other.name]
    outcome(peer["transport"] == transport and peer["sent"]["bytes"] > 5e5 and peer["received"]["bytes"] > 5e5, "net-status", peer)
    outcome(0 < peer["round_trip_us"] < 1e6, "net-status-round-trip", peer)
    thrown = {why: count for why, count in peer["dropped"].items() if count}
    outcome(not thrown and status["unknown_peers"] == 0, "net-nothing-is-thrown-away", "%s %s" % (thrown, status["unknown_peers"]))
    said = one.run(NUPA, "net", "status", NETWORK).stdout
    outcome(all(word in said for word in (one.name, other.name, transport, "nupa0")), "net-status-for-people", said)


def rates(one, other):
    if missing_program("iperf3"):
        return
    with serving(other, "iperf3", "-s"):
        listens(other, 5201)
        with serving(one, "iperf3", "-c", other.ipv4, "-t", "10"):
            def told_rate():
                here, there = one.peers().get(other.name), other.peers().get(one.name)
                if here is None or there is None:  # too busy to answer
                    return False
                rate, back = here["sent"]["bits_per_second"], there["received"]["bits_per_second"]
                return min(rate, back) > 1e7 and max(rate, back) < 10 * min(rate, back)
            outcome(wait_for(told_rate), "net-status-rates", one.peers())


SEGMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "udp_segments.py")


def segments(one, other):
    """What a program sends as one, to be cut into datagrams, crosses whole, and is the right datagrams at the end."""
    size, segment, times = 36500, 1200, 20  # the last datagram of each is shorter
    sizes = ([segment] * (size // segment) + [size % segment]) * times
    for address in (other.ipv4, other.ipv6):
        for how in ("single", "together"):
            name = "net-datagrams-cut-late %s %s" % ("ipv6" if ":" in address else "ipv4", how)
            before = one.peers()[other.name]["sent"]["packets"]
            with subprocess.Popen([*other.inside, sys.executable, SEGMENTS, "receive", address, "7700", str(size * times), how],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as receiver:
                receiver.stdout.readline()
                told(name + " are sent", one.run(sys.executable, SEGMENTS, "send", address, "7700", str(size), str(segment), str(times)))
                said, complained = receiver.communicate(timeout=60)
            got = json.loads(said or '{"sizes": [], "messages": 0}')
            whole = one.peers()[other.name]["sent"]["packets"] - before
            outcome(got["sizes"] == sizes, name, "%d of %d datagrams %s" % (len(got["sizes"]), len(sizes), complained))
            if uso():
                outcome(whole < 2 * times, name + " cross whole", "%d packets for %d calls" % (whole, times))
            if uso() and how == "together":
                outcome(got["messages"] < 2 * times, name + " arrive whole", got["messages"])


def uso():
    """Whether the kernel has segments of datagrams for such a device (Linux 6.2)."""
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (6, 2)


def idle(one):
    """No processor time without packets."""
    def used():
        with open("/proc/%d/stat" % one.pid()) as stat:
            return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    before = used()
    time.sleep(2)  # sleep: the processor time of so long is measured
    outcome(used() - before <= 2, "net-idle-costs-nothing", "%d ticks in two seconds" % (used() - before))


def sources(one, other):
    """Who speaks in another's name is not heard."""
    one.run("ip", "address", "add", "10.77.0.99/32", "dev", "nupa0")
    def dropped():
        return other.peers()[one.name]["dropped"]["wrong_source"]
    before = dropped()
    one.run("ping", "-c", "3", "-i", "0.02", "-W", "1", "-I", "10.77.0.99", other.ipv4)
    wait_for(lambda: dropped() - before >= 3)
    after = dropped()
    outcome(after - before == 3, "net-wrong-sources-are-dropped", "%d of 3" % (after - before))
    one.run("ip", "address", "del", "10.77.0.99/32", "dev", "nupa0")


def mtu(one, other):
    """The other node comes back with a smaller one: TCP finds out, and what may be cut is cut."""
    other.down()
    again = other.up("--mtu", "1400", *peers_of(other, [one, other]))
    wait_for(lambda: one.peers().get(other.name, {}).get("mtu") == 1400)
    done = one.run("ping", "-c", "3", "-i", "0.05", "-W", "2", "-M", "do", "-s", "2000", other.ipv4)
    outcome("mtu" in done.stdout.lower() and "1400" in done.stdout, "net-mtu-is-told", again.stderr + done.stdout + done.stderr)
    told("net-mtu-cut", one.run("ping", *at_once(3), "-M", "dont", "-s", "3000", other.ipv4), " 3 received")
    # The first ones are lost: they are how the sender finds out.
    cut = wait_for(lambda: one.run("ping", "-q", "-c", "1", "-W", "1", "-s", "3000", other.ipv6).returncode == 0)
    outcome(cut, "net-mtu-ipv6", "no answer")
    if not missing_program("iperf3"):
        for way in ((), ("-R",)):
            with serving(other, "iperf3", "-s"):
                listens(other, 5201)
                told("net-mtu-iperf3 " + " ".join(way), one.run("iperf3", "-c", other.ipv4, "-t", "1", *way), "receiver")
    other.down()
    other.up(*peers_of(other, [one, other]))
    outcome(wait_for(lambda: one.peers().get(other.name, {}).get("mtu") == 65520) is not None, "net-mtu-grows-again")


def two_nodes(transport):
    with Nodes(2, wire=transport == "roce") as nodes:
        one, other = nodes
        reason = together(nodes)
        outcome(not reason, "net-up", reason)
        if reason:
            return
        ping(one, other)
        seen(one, other, transport)
        idle(one)
        sources(one, other)
        segments(one, other)
        mtu(one, other)
        rates(one, other)
        down = [node.down() for node in nodes]
        left = [node.run("ip", "link", "show", "nupa0").returncode for node in nodes]
        outcome(all(done.returncode == 0 for done in down) and all(left), "net-down", "%s %s" % (down, left))
        kept = [name for node in nodes for name in left_in(node.directory)]
        outcome(kept == [], "net-leaves-nothing", kept)


def several_queues(transport):
    """At one end only: all lanes are read at both."""
    with Nodes(2, wire=transport == "roce") as nodes:
        one, other = nodes
        one.up("--queues", "3")
        other.up(*peers_of(other, nodes))
        joined = wait_for(lambda: one.peers() and other.peers())
        outcome(joined and one.status()["queues"] == 3, "net-queues", one.status())
        if missing_program("iperf3"):
            return
        for way in ((), ("-R",)):
            with serving(other, "iperf3", "-s"):
                listens(other, 5201)
                told("net-queues-iperf3 " + " ".join(way), one.run("iperf3", "-c", other.ipv4, "-P", "6", "-t", "1", *way), "receiver")


def by_a_file(transport):
    """One file for all nodes of a network."""
    with Nodes(3, wire=transport == "roce") as nodes, tempfile.NamedTemporaryFile("w", suffix=".json") as out:
        json.dump({"network": NETWORK, "mtu": 9000,
                   "nodes": {node.name: {"addresses": [node.ipv4 + "/24", node.ipv6 + "/64"], "hosts": [node.host] if node.wire else []}
                             for node in nodes}}, out)
        out.flush()
        done = [node.up(address=("--config", out.name)) for node in nodes]
        wrong = "".join(one.stderr for one in done)
        joined = not wrong and wait_for(lambda: all(len(node.peers()) == 2 for node in nodes))
        outcome(joined and nodes[0].status()["mtu"] == 9000 and reaches(nodes[0], nodes[2], 20), "net-by-a-file", wrong)
        homeless = subprocess.run([*nodes[0].inside, "env", "-u", "XDG_CONFIG_HOME", "-u", "HOME", NUPA, "net", "up", NETWORK, "--config",
                                   out.name, "--node", "n1"], capture_output=True, text=True)
        outcome(homeless.returncode != 0 and "--key-file" in homeless.stderr, "net-no-place-for-a-key", homeless.stderr)
        stranger = subprocess.run([*nodes[0].inside, NUPA, "net", "up", NETWORK, "--config", out.name, "--node", "who"],
                                  capture_output=True, text=True)
        outcome(stranger.returncode != 0 and "who" in stranger.stderr, "net-nobody-of-the-file", stranger.stderr)


def containers():
    """Process numbers, mounts, IPC and host names of their own: the runtime directory is all that they share."""
    with Nodes(2) as nodes, contextlib.ExitStack() as running:
        one, other = nodes
        for node in nodes:
            running.enter_context(serving(node, "unshare", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", NUPA, "net", "up", NETWORK,
                                          "--node", node.name, "--addr", node.ipv4 + "/24"))
        joined = wait_for(lambda: reaches(one, other) and reaches(other, one))
        outcome(joined and one.peers()[other.name]["transport"] == "shm", "net-containers", one.status())


def eight_nodes():
    with Nodes(8) as nodes:
        reason = together(nodes)
        outcome(not reason, "net-eight-nodes", reason)
        if reason:
            return
        lost = [(one.number, other.number) for one in nodes for other in nodes
                if one is not other and not reaches(one, other, 20)]
        outcome(not lost, "net-eight-nodes-each-reaches-each", lost)
        killed = nodes[3]
        os.kill(killed.pid(), signal.SIGKILL)
        gone = wait_for(lambda: all(killed.name not in node.peers() for node in nodes if node is not killed))
        outcome(gone, "net-a-killed-node-is-noticed")
        killed.up()
        back = wait_for(lambda: all(len(node.peers()) == 7 for node in nodes))
        outcome(back, "net-a-killed-node-comes-back")


def of_an_ordinary_user():
    """In a user namespace of its own, where it has the capability."""
    prefix = () if os.geteuid() != 0 else ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    if subprocess.run([*prefix, "unshare", "-Urn", "true"], capture_output=True).returncode != 0:
        return skip("net-of-a-user", "user namespaces are not allowed")
    if subprocess.run([*prefix, NUPA, "--version"], capture_output=True).returncode != 0:
        return skip("net-of-a-user", "the build folder is closed to other users")
    if not os.stat("/dev/net/tun").st_mode & 0o002:
        return skip("net-of-a-user", "/dev/net/tun is closed to other users")
    with tempfile.TemporaryDirectory(prefix="nupa-net-") as folder:
        if prefix:
            os.chown(folder, 65534, 65534)
        script = ("for i in 1 2; do unshare -n sh -c 'ip link set lo up; echo $$ > {f}/$0; exec sleep 60' $i & done; "
                  "while [ ! -s {f}/1 ] || [ ! -s {f}/2 ]; do sleep 0.1; done; "
                  "for i in 1 2; do nsenter -t $(cat {f}/$i) -n {n} net up lab --addr 10.77.0.$i/24 --detach || exit 1; done; "
                  "until {n} net status lab --json | grep -c '\"up\"' | grep -qx 2; do sleep 0.1; done; "
                  "nsenter -t $(cat {f}/1) -n ping -q -c 3 -l 3 -W 20 10.77.0.2; status=$?; "
                  "{n} net down --all; kill $(cat {f}/1 {f}/2); exit $status").format(f=folder, n=NUPA)
        done = subprocess.run([*prefix, "unshare", "-Urn", "sh", "-c", script], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, NUPA_RUNTIME_DIR=os.path.join(folder, "run"), XDG_CONFIG_HOME=folder))
        told("net-of-a-user", done, "3 received")
    done = subprocess.run([*prefix, NUPA, "net", "up", "lab", "--addr", "10.77.0.1/24"] if prefix else ["false"],
                          capture_output=True, text=True, timeout=30,
                          env=dict(os.environ, NUPA_RUNTIME_DIR="/tmp/nupa-net-%d" % os.getpid(), XDG_CONFIG_HOME="/tmp/nupa-net-%d" % os.getpid()))
    if prefix:
        subprocess.run(["rm", "-rf", "/tmp/nupa-net-%d" % os.getpid()])
        outcome(done.returncode == 1 and "CAP_NET_ADMIN" in done.stderr, "net-without-the-capability", done.stderr)
    return None


def main():
    if not os.path.exists("/dev/net/tun"):
        return skip("net", "there is no /dev/net/tun")
    of_an_ordinary_user()
    reason = no_nodes()
    if reason:
        return skip("net-between-namespaces", reason)
    for transport in transports():
        two_nodes(transport)
        several_queues(transport)
        by_a_file(transport)
    containers()
    eight_nodes()
    return nothing_is_left()


main()
finish()
