#!/usr/bin/env python3
"""Unmodified programs over RoCEv2: between two network namespaces, and from user to user."""
import atexit
import os
import subprocess
from pairs import finish, free_port, nupa, outcome, private_runtime_dir, run_pair, skip, tell

private_runtime_dir()
ENV = {"NUPA_TRANSPORT": "roce"}
HERE, THERE = ["nupa-roce-%d-%s" % (os.getpid(), side) for side in "ab"]


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def remove_hosts():
    for host in (HERE, THERE):
        ip("netns", "delete", host)


def make_hosts(mtu):
    """Two namespaces joined by a wire. False: they cannot be made here."""
    if os.geteuid() != 0 or ip("netns", "add", HERE).returncode != 0:
        return False
    atexit.register(remove_hosts)
    ip("netns", "add", THERE)
    made = ip("link", "add", "wire", "mtu", str(mtu), "netns", HERE, "type", "veth", "peer", "name", "wire", "mtu",
              str(mtu), "netns", THERE)
    for host, number in ((HERE, 1), (THERE, 2)):
        ip("-n", host, "address", "add", "10.119.0.%d/24" % number, "dev", "wire")
        ip("-n", host, "address", "add", "fd77::%d/64" % number, "dev", "wire", "nodad")
        ip("-n", host, "link", "set", "wire", "up")
        ip("-n", host, "link", "set", "lo", "up")
    return made.returncode == 0


def inside(host):
    return ("ip", "netns", "exec", host)


def between_hosts():
    if not make_hosts(9000):
        return skip("roce-between-hosts", "needs root, network namespaces and veth")
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


def without_a_wire():
    """On one host everything goes over the loopback."""
    port = free_port()
    command = "ibv_rc_pingpong -d nupa0 -g 1 -c -p %d" % port
    run_pair("roce-on-one-host", command, command + " 127.0.0.1", port, env=ENV)
    tell("roce-devinfo", nupa("run", "--transport", "roce", "--", "ibv_devinfo"), 0, "PORT_ACTIVE")


between_hosts()
without_a_wire()
remove_hosts()
left = [line for line in ip("netns", "list").stdout.split() if line.startswith("nupa-roce-%d" % os.getpid())]
outcome(left == [], "roce-leaves-no-namespace", left)
finish()
