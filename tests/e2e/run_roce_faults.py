#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RoCEv2 between two network namespaces when unknown peers send, the wire breaks, or a peer dies. NUPA_FAULT_ROUNDS: kills
(default 20 where all is wanted, else 8)."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from hosts import ADDRESS, HERE, THERE, inside, ip, left_namespaces, make_hosts, remove_hosts
from pairs import ALL, Pair, finish, free_port, last_line, nupa, outcome, private_runtime_dir, skip, start, stop, wait_for

ROUNDS = int(os.environ.get("NUPA_FAULT_ROUNDS", "20" if ALL else "8"))
SEED = int(os.environ.get("NUPA_FAULT_SEED", str(random.SystemRandom().randrange(1 << 30))))
random.seed(SEED)
ENV = {"NUPA_TRANSPORT": "roce"}
OTHER_DIR = private_runtime_dir()
private_runtime_dir()
ELSEWHERE = "10.119.0.3"
MTU = 9000
STRANGER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stranger.py")
FIRST_PORT, OTHER_PORTS, SLOT_SHIFT = 4791, 61000, 12  # docs/design/roce.md, Ports


def urgently(host):
    """Begins a program on a host that goes before the others of a busy machine: ibv_rc_pingpong gives up after half a second of
    silence, whatever its peer had no processor for."""
    return (*inside(host), "nice", "-n", "-15")


def between(command, options="", **more):
    """A server here and a client there. Each line is seen when it is said."""
    port = free_port()
    whole = "stdbuf -oL %s -d nupa0 -p %d %s" % (command, port, options)
    return Pair(whole, "%s %s" % (whole, ADDRESS[HERE]), port, dict(ENV, **more), urgently(HERE), urgently(THERE))


def said(out):
    """What a program has said so far; its place in the file is left alone."""
    return os.pread(out.fileno(), 1 << 16, 0).decode(errors="replace")


def rows(env=None):
    return json.loads(nupa("stat", "--json", env=env).stdout or "[]")


def row_of(process, env=None):
    """Its row of `nupa stat`; who has no processor for half a second has none."""
    return next((row for row in rows(env) if row["pid"] == process.pid), None)


def awaited_row(process, seconds=20):
    return wait_for(lambda: row_of(process), seconds)


def flowing(process, more_than=0, env=None):
    """Its row of `nupa stat`, once more than that many messages were sent."""
    def look():
        row = row_of(process, env)
        return row if row and row["messages"] > more_than else None
    return wait_for(look)


def resent_in(row):
    return sum(row["resent"].values()) if row else 0


def resent(process):
    return resent_in(row_of(process))


def wait_ended(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def send_strange(source, qpn, psn, kinds, count=40):
    slot = qpn >> SLOT_SHIFT
    order = {"source": source, "to": ADDRESS[HERE], "port": FIRST_PORT if slot == 1 else OTHER_PORTS + slot, "qpn": qpn,
             "psn": psn, "kinds": kinds, "count": count}
    done = subprocess.run([*inside(THERE), sys.executable, STRANGER], input=json.dumps(order), capture_output=True,
                          text=True, timeout=60)
    return done.stderr.strip()


def lasting(command, seconds):
    """The command with as many iterations as take so long on this machine at this moment."""
    with between(command + " -n 100000000") as pair:
        first = flowing(pair.client, 100) if pair.client else None
        began = time.time()
        time.sleep(1)  # sleep: the rate of so long is measured
        # Its start, which would take most of the time of a short one, does not count.
        later = flowing(pair.client, first["messages"]) if first else None
        rate = (later["messages"] - first["messages"]) / (time.time() - began) if later else 1
    return "%s -n %d" % (command, 500 + int(seconds * rate))


# Longer than anything here takes: perftest's clock is a signal, and end_by_clock() is ahead of it.
BY_CLOCK = "-D 100"


def signals_of(process, kind):
    """A set of signals of a process: "SigCgt", which it catches; "SigPnd" and "ShdPnd", which have yet to reach it."""
    with open("/proc/%d/status" % process.pid, encoding="ascii") as status:
        found = next((line for line in status if line.startswith(kind + ":")), "%s: 0" % kind)
    return int(found.split()[1], 16)


def is_ready_for(process, number):
    """Whether a process has a handler for the signal, and the last one has reached it."""
    pending = signals_of(process, "SigPnd") | signals_of(process, "ShdPnd")
    return (signals_of(process, "SigCgt") & ~pending) >> (number - 1) & 1


def end_by_clock(pair, seconds=60):
    """Brings a pair of perftest with BY_CLOCK to its regular end, by its clock's signals: the first ends the warm-up,
    the second the measurement, the third the traffic. It crashes at a fourth. An end that only waits for the other has
    no clock. Empty, or what went wrong."""
    told = dict.fromkeys((pair.client, pair.server), 0)

    def ended():
        going = [process for process in told if process.poll() is None]
        for process in going:
            if told[process] < 3 and is_ready_for(process, signal.SIGALRM):
                process.send_signal(signal.SIGALRM)
                told[process] += 1
        return not going
    wait_for(ended, seconds)
    return pair.wait(1)


def unexpected_packets(name, command, from_peer, from_elsewhere, counted):
    """Packets for the server's queue pair while it works. `counted`: what of `nupa stat`'s "ignored" has to grow."""
    with between(command) as pair:
        row = flowing(pair.client) and awaited_row(pair.server) if pair.client else None
        psn = wait_for(lambda: re.search(r"remote address:.*PSN 0x(\w+)", said(pair.outs[0]))) if row else None
        if not psn:
            return outcome(False, name, "no traffic: %s" % (pair.trouble or last_line(pair.outs[0])))
        trouble = send_strange(ADDRESS[THERE], row["qp_num"], int(psn.group(1), 16), from_peer)
        trouble += send_strange(ELSEWHERE, row["qp_num"], int(psn.group(1), 16), from_elsewhere)
        working = awaited_row(pair.server)
        outcome(not trouble and working is not None, name + "-while-it-works", trouble or "ended before the last came")

        def all_counted():
            """Its row, once it has come to the last of them."""
            now = row_of(pair.server)
            return now if now and all(now["ignored"][what] > row["ignored"][what] for what in counted) else None

        outcome(wait_for(all_counted), name + "-counted",
                "%s, before %s" % (working and working["ignored"], row["ignored"]))
        reason = end_by_clock(pair) if BY_CLOCK in command else pair.wait(120)
        outcome(reason == "", name + "-change-nothing", reason and "%s; %s" % (reason, pair.text()[-400:]))


def link(state):
    ip("-n", HERE, "link", "set", "wire", state)
    if state == "up":  # a thread of the kernel opens the queues, later; and a host that was silent stays so for a while
        wait_for(lambda: all("state UP" in ip("-n", host, "link", "show", "wire").stdout for host in (HERE, THERE)))
        for host in (HERE, THERE):
            ip("-n", host, "neighbour", "flush", "dev", "wire")


def change_mtu(mtu, hosts=(HERE, THERE)):
    for host in hosts:
        ip("-n", host, "link", "set", "wire", "mtu", str(mtu))


# Timeout 4.096 us x 2^18, seven repetitions: more than eight seconds without a word.
LARGE = "ib_write_bw -F -x 1 -s 65536 -u 18 " + BY_CLOCK, 100
# So many that the two have a socket for each other.
SMALL = "ib_send_lat -F -x 1 -s 8 -u 18 " + BY_CLOCK, 1500


def interrupted(name, work, begin, end, seconds):
    """What is interrupted for less than the retries last goes on."""
    command, some = work
    with between(command) as pair:
        before = flowing(pair.client, some) if pair.client else None
        begin()
        time.sleep(seconds)  # sleep: the interruption lasts so long
        during = awaited_row(pair.client, 4) if before else None
        end()
        after = flowing(pair.client, during["messages"] + 100) if during else None
        outcome(after is not None, name + "-goes-on", pair.trouble or "%s then %s" % (before, during))
        reason = end_by_clock(pair)
        outcome(reason == "", name + "-ends-well", reason)


def cut(name, begin, end, expected):
    """What is interrupted for longer than the retries ends, by the program's own hand. Of a ping-pong one end at least
    has something under way; the other may wait for it for ever, as with an adapter."""
    with between("ibv_rc_pingpong -g 1 -s 16384 -m 4096 -n 100000000") as pair:
        before = flowing(pair.client, 100) if pair.client else None
        begin()
        ended = wait_for(lambda: any(p.poll() is not None for p in (pair.server, pair.client)), 30) if before else None
        end()
        outcome(bool(ended), name + "-ends", pair.trouble or "both still wait %s" % before)
        statuses = [process.poll() for process in (pair.server, pair.client)]
        outcome(expected in pair.text() and all(status is None or status > 0 for status in statuses),
                name + "-with-its-error", "%s: %s" % (statuses, pair.text()[-300:]))


def leftovers():
    done = nupa("clean", "--dry-run")
    left = [line for line in done.stdout.splitlines() if line.startswith("would remove") and "/tree-" not in line
            and not line.endswith("/port-counts")]
    for host in (HERE, THERE):
        sockets = subprocess.run([*inside(host), "ss", "-uanH"], capture_output=True, text=True).stdout
        left += [line for line in sockets.splitlines() if ":%d " % FIRST_PORT in line or re.search(r":61\d{3} ", line)]
    return left


def shared_files():
    return {name for name in os.listdir("/dev/shm") if "nupa" in name}


def killed():
    """Both ends write all the time, so the survivor has something under way: it ends with an error, and nothing stays."""
    bad, shared = [], shared_files()
    for turn in range(ROUNDS):
        with between("ib_write_bw -F -x 1 -s 4096 -b -n 5000000") as pair:
            if pair.client is None:
                bad.append("round %d: %s" % (turn, pair.trouble))
                break
            victim, survivor = (pair.server, pair.client) if turn % 2 else (pair.client, pair.server)
            time.sleep(random.uniform(0.0, 1.0))  # sleep: the kill comes at a random moment
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            status = wait_ended(survivor, 20)
            # A server whose client died before it spoke waits for the next one: none of its queue pairs has a peer.
            waits = status is None and all(row["state"] in ("RESET", "INIT") for row in rows() if row["pid"] == survivor.pid)
            if status == 0 or (status is not None and status < 0) or (status is None and not waits):
                bad.append("round %d: the survivor's status is %s: %s" % (turn, status, pair.text()[-200:]))
        left = leftovers()
        if waits:  # then nobody was left to tidy up
            nupa("clean")
        elif left:
            bad.append("round %d: left behind: %s" % (turn, left))
            nupa("clean")
        if len(bad) > 3:
            break
    outcome(not bad, "roce-kill-9", "seed %d: %s" % (SEED, "; ".join(bad)))
    outcome(shared_files() <= shared, "roce-kill-9-leaves-no-shared-memory", shared_files() - shared)


def killed_with_patience():
    """The host of a killed process says that nobody has its port, which ends the wait long before the repetitions do."""
    with between("ib_write_bw -F -x 1 -s 4096 -n 5000000 -u 24") as pair:  # eight times 69 s
        flows = flowing(pair.client, 100) if pair.client else None
        if flows:
            os.kill(pair.server.pid, signal.SIGKILL)
            pair.server.wait()
        status = wait_ended(pair.client, 60) if flows else None
        outcome(status is not None and status > 0, "roce-kill-9-is-told-by-the-host",
                pair.trouble or "status %s: %s" % (status, pair.text()[-200:]))
    nupa("clean")


def silent_host(host):
    """From now on the host says nothing of processes that it does not have. A limit a peer: of the limit for all there may
    be some left."""
    subprocess.run([*inside(host), "sysctl", "-qw", "net.ipv4.icmp_ratelimit=100000000"], check=True, capture_output=True)


def killed_and_replaced():
    """The host of a killed process says nothing, but another process has its port soon: that one does."""
    silent_host(HERE)
    with between("ib_write_bw -F -x 1 -s 4096 -q 8 -n 5000000 -u 24") as pair:
        flows = flowing(pair.client, 100) if pair.client else None
        other = None
        if flows:
            os.kill(pair.server.pid, signal.SIGKILL)
            pair.server.wait()
            nupa("clean")
            other = start("ibv_rc_pingpong -g 1 -d nupa0 -p %d" % free_port(), ENV, subprocess.DEVNULL, urgently(HERE))
        status = wait_ended(pair.client, 60) if flows else None
        outcome(status is not None and status > 0, "roce-kill-9-is-told-by-the-next-process",
                pair.trouble or "status %s: %s" % (status, pair.text()[-200:]))
        if other is not None:
            stop(other)
    nupa("clean")


def reborn():
    """A client dies and the next one has its queue pair number, while the first one's server still sends to that, since the
    host does not tell it of the death."""
    silent_host(THERE)
    young_command = lasting("ibv_rc_pingpong -g 1 -c", 15)
    # Clients are alone in a runtime directory, as on a host of their own: the second finds the first one's place free.
    there = {"NUPA_RUNTIME_DIR": OTHER_DIR}
    client_before = (*urgently(THERE), "env", "NUPA_RUNTIME_DIR=" + OTHER_DIR)
    port = free_port()
    command = "ib_write_bw -F -x 1 -s 4096 -b -n 5000000 -u 17 -d nupa0 -p %d" % port
    with Pair(command, "%s %s" % (command, ADDRESS[HERE]), port, ENV, urgently(HERE), client_before) as old:
        before = flowing(old.client, 100, there) if old.client else None
        if not before:
            return outcome(False, "roce-same-number", old.trouble)
        stop(old.client)
        port = free_port()
        command = "%s -d nupa0 -p %d" % (young_command, port)
        with Pair(command, "%s %s" % (command, ADDRESS[HERE]), port, ENV, urgently(HERE), client_before) as young:
            now = flowing(young.client, 0, there) if young.client else None
            outcome(now is not None and now["qp_num"] == before["qp_num"], "roce-same-number", "%s, before %s" % (now, before))
            first = awaited_row(old.server)
            sends = wait_for(lambda: resent(old.server) > resent_in(first) and young.client.poll() is None)
            outcome(sends, "roce-same-number-while-the-old-one-sends", "%s then %s: %s" % (first, row_of(old.server), old.text()))
            reason = young.wait(120)
            outcome(reason == "", "roce-same-number-undisturbed", reason and "%s; %s" % (reason, young.text()))
        status = wait_ended(old.server, 60)
        outcome(status is not None and status > 0, "roce-same-number-old-one-ends", "status %s" % status)


def main():
    if not make_hosts(MTU):
        return skip("roce-faults", "needs root, network namespaces and veth")
    ip("-n", THERE, "address", "add", ELSEWHERE + "/24", "dev", "wire")
    everything = ["as-the-peer", "wrong-partition", "stale", "wrong-crc", "garbage", "short", "huge"]
    unexpected_packets("roce-unexpected-packets", lasting("ibv_rc_pingpong -g 1 -c", 12),
              ["wrong-partition", "stale", "ahead", "stale-answer", "wrong-crc", "garbage", "short", "huge"], everything,
              ["unexpected_packets", "duplicates", "stray", "dropped"])
    # Lost datagrams would stop a ping-pong: this one counts time.
    unexpected_packets("roce-unexpected-datagrams", "ib_send_bw -F -x 1 -c UD -s 1024 " + BY_CLOCK,
              ["wrong-qkey", "wrong-partition-datagram", "wrong-crc", "garbage", "short", "huge"],
              ["wrong-qkey", "wrong-crc", "garbage"], ["unexpected_packets"])
    interrupted("roce-link-down", LARGE, lambda: link("down"), lambda: link("up"), 1)
    interrupted("roce-link-down-for-small-messages", SMALL, lambda: link("down"), lambda: link("up"), 1)
    interrupted("roce-mtu-shrinks-for-a-moment", LARGE, lambda: change_mtu(1000), lambda: change_mtu(MTU), 1)
    cut("roce-link-stays-down", lambda: link("down"), lambda: link("up"), "transport retry counter exceeded")
    cut("roce-mtu-stays-small", lambda: change_mtu(1000), lambda: change_mtu(MTU), "transport retry counter exceeded")
    killed()
    killed_with_patience()
    reborn()
    killed_and_replaced()
    remove_hosts()
    outcome(left_namespaces() == [], "roce-faults-leaves-no-namespace", left_namespaces())
    return None


main()
finish()
