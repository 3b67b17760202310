# SPDX-License-Identifier: Apache-2.0
"""Hosts that are joined by a wire: network namespaces with a virtual Ethernet between them."""
import atexit
import os
import subprocess

HERE, THERE = ["nupa-roce-%d-%s" % (os.getpid(), side) for side in "ab"]
ADDRESS = {HERE: "10.119.0.1", THERE: "10.119.0.2"}


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def remove_hosts():
    for host in (HERE, THERE):
        ip("netns", "delete", host)


def make_hosts(mtu, ipv4=True):
    """Two namespaces joined by a wire; without `ipv4` they have IPv6 alone. False: they cannot be made here."""
    if os.geteuid() != 0 or ip("netns", "add", HERE).returncode != 0:
        return False
    atexit.register(remove_hosts)
    ip("netns", "add", THERE)
    made = ip("link", "add", "wire", "mtu", str(mtu), "netns", HERE, "type", "veth", "peer", "name", "wire", "mtu",
              str(mtu), "netns", THERE)
    for host, number in ((HERE, 1), (THERE, 2)):
        if ipv4:
            ip("-n", host, "address", "add", ADDRESS[host] + "/24", "dev", "wire")
        ip("-n", host, "address", "add", "fd77::%d/64" % number, "dev", "wire", "nodad")
        ip("-n", host, "link", "set", "wire", "up")
        ip("-n", host, "link", "set", "lo", "up")
    return made.returncode == 0


def inside(host):
    return ("ip", "netns", "exec", host)


def left_namespaces():
    return [line for line in ip("netns", "list").stdout.split() if line.startswith("nupa-roce-%d" % os.getpid())]
