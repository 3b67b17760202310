#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several devices (NUPA_DEVICES=one,two): two wires between two network namespaces, in one IP network, so that only the
device says which one a packet takes; a third wire carries what the programs themselves say to each other."""
import atexit
import json
import os
import subprocess
from hosts import HERE, THERE, inside, ip, remove_hosts
from pairs import Pair, finish, free_port, nupa, outcome, private_runtime_dir, run_pair, skip, tell, wait_for

private_runtime_dir()
ENV = {"NUPA_TRANSPORT": "roce", "NUPA_DEVICES": "one,two"}
MTU = {"one": 1500, "two": 9000, "talk": 1500}
CONTROL = "10.125.0.1"


def address(host, number):
    return "10.124.0.%d" % (10 * number + (1 if host == HERE else 2))


def make_hosts():
    """False: they cannot be made here."""
    if os.geteuid() != 0 or ip("netns", "add", HERE).returncode != 0:
        return False
    atexit.register(remove_hosts)
    ip("netns", "add", THERE)
    for number, (name, mtu) in enumerate(MTU.items(), 1):
        made = ip("link", "add", name, "mtu", str(mtu), "netns", HERE, "type", "veth", "peer", "name", name, "mtu",
                  str(mtu), "netns", THERE)
        if made.returncode != 0:
            return False
        for host, last in ((HERE, 1), (THERE, 2)):
            own = "10.125.0.%d" % last if name == "talk" else address(host, number)
            ip("-n", host, "address", "add", own + "/24", "dev", name)
            ip("-n", host, "link", "set", name, "up")
    for host in (HERE, THERE):
        ip("-n", host, "link", "set", "lo", "up")
        # Answers come by the wire that the kernel would not choose.
        for name in ("all", *MTU):
            subprocess.run([*inside(host), "sysctl", "-qw", "net.ipv4.conf.%s.rp_filter=0" % name], capture_output=True)
    return True


def sent(host, name):
    return json.loads(ip("-n", host, "-s", "-j", "link", "show", name).stdout)[0]["stats64"]["tx"]["bytes"]


def carried(transfer):
    """Bytes that each wire carried, both ways, while `transfer()` ran."""
    count = lambda: {name: sent(HERE, name) + sent(THERE, name) for name in MTU}
    before = count()
    transfer()
    return {name: bytes - before[name] for name, bytes in count().items()}


def lists():
    for transport in ("roce", "shm"):
        env = dict(ENV, NUPA_TRANSPORT=transport)
        tell("devices-listed-" + transport, nupa("run", "--", "ibv_devices", before=inside(HERE), env=env), 0, "nupa0", "nupa1")
        tell("devices-info-" + transport, nupa("run", "--", "ibv_devinfo", before=inside(HERE), env=env), 0, "hca_id:\tnupa0",
             "hca_id:\tnupa1")
    for name, mtu in (("nupa0", "1024 (3)"), ("nupa1", "4096 (5)")):
        tell("devices-mtu-" + name, nupa("run", "--", "ibv_devinfo", "-d", name, before=inside(HERE), env=ENV), 0,
             "active_mtu:\t\t" + mtu)
    shown = json.loads(nupa("devices", "--json", before=inside(HERE), env=ENV).stdout or "[]")
    good = [(d["name"], d["interfaces"]) for d in shown] == [("nupa0", ["one"]), ("nupa1", ["two"])]
    for device, (own, other) in zip(shown, ((address(HERE, 1), address(HERE, 2)), (address(HERE, 2), address(HERE, 1)))):
        gids = [gid["gid"] for gid in device["gids"]]
        good = good and "::ffff:" + own in gids and "::ffff:" + other not in gids
    outcome(good and shown[0]["node_guid"] != shown[1]["node_guid"], "devices-shown", shown)
    tell("devices-rails-and-one", nupa("devices", before=inside(HERE), env=dict(ENV, NUPA_DEVICES="one+talk,two")), 0,
         "interfaces    one talk", "interfaces    two")
    for wrong, said in (("one,one", "one,one"), ("one,", "NUPA_DEVICES=one,"), ("one,none", "interface none"), ("one+two,two", "one+two,two")):
        done = nupa("devices", before=inside(HERE), env=dict(ENV, NUPA_DEVICES=wrong))
        tell("devices-wrong " + wrong, done, 1, said)
        done = nupa("run", "--", "ibv_devinfo", "-d", "nupa0", before=inside(HERE), env=dict(ENV, NUPA_DEVICES=wrong))
        outcome(done.returncode != 0 and said in done.stderr, "devices-wrong-program " + wrong, done.stderr)


def transfer(name, command, device, seconds=60):
    port = free_port()
    command += " -d %s -p %d" % (device, port)
    run_pair("devices-%s-%s" % (name, device), command, command + " " + CONTROL, port, ENV, seconds, before=inside(HERE),
             client_before=inside(THERE))


def by_its_own_wire():
    for device, own, other in (("nupa0", "one", "two"), ("nupa1", "two", "one")):
        for name, command, least in (("write", "ib_write_bw -F -x 1 -s 65536 -n 500", 32_000_000),
                                     ("datagrams", "ib_send_bw -F -x 1 -c UD -s 1024 -n 5000", 4_000_000),
                                     ("ping-pong", "ibv_rc_pingpong -g 1 -c -m 1024 -s 4096 -n 1000", 4_000_000)):
            moved = carried(lambda: transfer(name, command, device))
            outcome(moved[own] > least and moved[other] < 100_000, "devices-wire-of-%s-%s" % (name, device), moved)


def at_the_same_time():
    """Both devices at once, until both have been seen; `nupa stat` tells them apart."""
    ports = [free_port(), free_port()]
    commands = ["ibv_rc_pingpong -g 1 -m 1024 -s 4096 -n 2000000000 -d nupa0 -p %d" % ports[0],
                "ib_write_bw -F -x 1 -s 65536 --run_infinitely -u 18 -d nupa1 -p %d" % ports[1]]
    wanted = {"ibv_rc_pingpong": "nupa0", "ib_write_bw": "nupa1"}
    with Pair(commands[0], "%s %s" % (commands[0], CONTROL), ports[0], ENV, inside(HERE), inside(THERE)) as first, \
         Pair(commands[1], "%s %s" % (commands[1], CONTROL), ports[1], ENV, inside(HERE), inside(THERE)) as second:
        seen = {}

        def both_seen():
            seen.update({row["command"]: row["device"] for row in json.loads(nupa("stat", "--json").stdout or "[]")})
            return seen == wanted

        outcome(wait_for(both_seen), "devices-stat", seen)
        for name, wire, pair in (("nupa0", "one", first), ("nupa1", "two", second)):
            before = sent(THERE, wire)
            moves = wait_for(lambda: sent(THERE, wire) > before + 1_000_000)
            running = pair.client is not None and pair.client.poll() is None and pair.server.poll() is None
            outcome(moves and running, "devices-at-once-" + name, pair.trouble or pair.text()[-300:])


def on_one_host():
    """From nupa0 of one process to nupa1 of another one."""
    for transport in ("roce", "shm", "auto"):
        for command in ("ibv_rc_pingpong -g 1 -c -s 30000", "ibv_ud_pingpong -g 1 -s 1000"):
            port = free_port()
            command += " -p %d" % port
            run_pair("devices-of-one-host-%s-%s" % (command.split()[0], transport), command + " -d nupa0",
                     command + " -d nupa1 127.0.0.1", port, dict(ENV, NUPA_TRANSPORT=transport), before=inside(HERE))


def one_goes_down():
    """Its connection fails, that of the other device does not notice."""
    ports = [free_port(), free_port()]
    commands = ["ib_write_bw -F -x 1 -s 65536 -D %d -u 16 -d %s -p %d" % (seconds, device, port)
                for seconds, device, port in ((25, "nupa0", ports[0]), (6, "nupa1", ports[1]))]
    with Pair(commands[0], "%s %s" % (commands[0], CONTROL), ports[0], ENV, inside(HERE), inside(THERE)) as first, \
         Pair(commands[1], "%s %s" % (commands[1], CONTROL), ports[1], ENV, inside(HERE), inside(THERE)) as second:
        before = sent(THERE, "one")
        wait_for(lambda: sent(THERE, "one") >= before + 1_000_000)
        ip("-n", HERE, "link", "set", "one", "down")
        trouble = second.wait(60)
        outcome(trouble == "", "devices-other-link-down", trouble)
        try:
            status = first.client.wait(30) if first.client else 0
        except subprocess.TimeoutExpired:
            status = 0
        outcome(status != 0 and "Failed status 12" in first.text(), "devices-own-link-down", first.text()[-300:])
    ip("-n", HERE, "link", "set", "one", "up")


def main():
    if not make_hosts():
        skip("devices", "needs root, network namespaces and veth")
        return
    lists()
    by_its_own_wire()
    at_the_same_time()
    on_one_host()
    one_goes_down()


main()
finish()
