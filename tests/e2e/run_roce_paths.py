#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Connections over several paths: two interfaces of unequal rate between two network namespaces, one of them cut."""
import atexit
import json
import os
import subprocess
from hosts import HERE, THERE, inside, ip, remove_hosts
from pairs import Pair, finish, free_port, nupa, outcome, private_runtime_dir, run_pair, skip, wait_for

private_runtime_dir()
ENV = {"NUPA_TRANSPORT": "roce", "NUPA_DEVICES": "fast+slow", "NUPA_CONGESTION": "swift"}
RATES = {"fast": 600, "slow": 200}  # Mbit/s


def make_hosts():
    """Two namespaces joined by two wires with their rates. False: they cannot be made here."""
    if os.geteuid() != 0 or ip("netns", "add", HERE).returncode != 0:
        return False
    atexit.register(remove_hosts)
    ip("netns", "add", THERE)
    for number, (name, rate) in enumerate(RATES.items(), 1):
        if ip("link", "add", name, "netns", HERE, "type", "veth", "peer", "name", name, "netns", THERE).returncode != 0:
            return False
        for host, last in ((HERE, 1), (THERE, 2)):
            ip("-n", host, "address", "add", "10.12%d.0.%d/24" % (number, last), "dev", name)
            ip("-n", host, "link", "set", name, "up")
            shaped = subprocess.run([*inside(host), "tc", "qdisc", "add", "dev", name, "root", "tbf", "rate", "%dmbit" % rate,
                                     "burst", "128kb", "limit", "1mb"], capture_output=True, text=True)
            if shaped.returncode != 0:
                return False
    return True


def received(host, name):
    counters = json.loads(ip("-n", host, "-s", "-j", "link", "show", name).stdout)[0]["stats64"]
    return counters["rx"]["bytes"]


def transfer(during=None):
    """A long transfer: what went wrong, and what `during()` saw while it ran."""
    port = free_port()
    command = "ib_write_bw -F -m 1024 -x 1 -s 1048576 -n 400 -d nupa0 -p %d" % port
    with Pair(command, command + " 10.121.0.1", port, ENV, inside(HERE), inside(THERE)) as pair:
        seen = during() if during and pair.client else None
        return pair.wait(120), seen


def cut_in_the_middle():
    before = received(HERE, "slow")
    wait_for(lambda: received(HERE, "slow") >= before + 1_000_000)
    ip("-n", THERE, "link", "set", "slow", "down")

    def is_dead():
        rows = [row for row in json.loads(nupa("stat", "--json").stdout or "[]") if "paths" in row]
        return any(path["health"] == "dead" for row in rows for path in row["paths"])

    return wait_for(is_dead, 10) is True


def main():
    if not make_hosts():
        skip("roce-paths", "needs root, network namespaces, veth and tc with tbf")
        return
    before = {name: received(HERE, name) for name in RATES}
    trouble, _ = transfer()
    moved = {name: received(HERE, name) - before[name] for name in RATES}
    outcome(trouble == "", "roce-two-paths", trouble)
    share = moved["slow"] / max(sum(moved.values()), 1)
    outcome(0.1 < share < 0.4, "roce-both-paths-carry", "the slow one carried %.3f of %s" % (share, moved))
    trouble, seen = transfer(cut_in_the_middle)
    outcome(trouble == "", "roce-path-cut-in-the-middle", trouble)
    outcome(seen, "roce-dead-path-is-shown")
    ip("-n", THERE, "link", "set", "slow", "up")
    for settings in ({"NUPA_ROCE_SOURCE_PORTS": "4"}, {"NUPA_ROCE_SOURCE_PORTS": "2", "NUPA_DEVICES": "fast"}):
        port = free_port()
        command = "ibv_rc_pingpong -d nupa0 -g 1 -c -m 1024 -s 30000 -n 300 -p %d" % port
        run_pair("roce-source-ports-%s" % settings["NUPA_ROCE_SOURCE_PORTS"], command, command + " 10.121.0.1", port,
                 env=dict(ENV, **settings), before=inside(HERE), client_before=inside(THERE))
    shown = nupa("devices", before=inside(HERE), env=dict(ENV, NUPA_DEVICES="slow")).stdout
    outcome("10.122.0.1" in shown and "10.121.0.1" not in shown, "roce-devices-shows-the-chosen-interfaces", shown)
    wrong = nupa("run", "--", "ibv_devinfo", "-d", "nupa0", before=inside(HERE), env=dict(ENV, NUPA_DEVICES="fast+none"))
    outcome(wrong.returncode != 0 and "interface none" in wrong.stderr, "roce-unknown-interface", wrong.stderr)


main()
finish()
