# SPDX-License-Identifier: Apache-2.0
"""Hosts for measurements over packets: network namespaces and the links between them."""
import itertools
import os
import signal
import subprocess
import sys
import tempfile

from pairs import Failed, free_port, run_pair

SERVER_ADDRESS = "10.118.0.1"


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed("ip %s: %s" % (" ".join(words), done.stderr.strip()))


class Hosts:
    """Network namespaces, two by default, each with its own runtime directory. The first one is for the server."""

    numbers = itertools.count()  # there may be several of these at a time

    def __init__(self, count=2):
        self.directories = [tempfile.TemporaryDirectory(prefix="nupa-bench-") for _ in range(count)]
        name = "nupa-bench-%d-%d" % (os.getpid(), next(self.numbers))
        self.names = ["%s-%d" % (name, number) for number in range(1, count + 1)]
        self.bridge = name + "-bridge"

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # SIGTERM removes the namespaces, too
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.bridge]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        for directory in self.directories:
            directory.cleanup()

    def add_cable(self, mtu):
        """Joins the two namespaces by a virtual Ethernet pair."""
        ip("link", "add", "wire", "mtu", str(mtu), "netns", self.names[0], "type", "veth", "peer", "name", "wire", "mtu",
           str(mtu), "netns", self.names[1])
        self.give_addresses()

    def add_bridge(self, mtu):
        """Joins each namespace to a bridge by a virtual Ethernet pair."""
        ip("netns", "add", self.bridge)
        ip("-n", self.bridge, "link", "add", "bridge", "mtu", str(mtu), "type", "bridge")
        ip("-n", self.bridge, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            ip("link", "add", "wire", "mtu", str(mtu), "netns", name, "type", "veth", "peer", "name", "to%d" % number, "mtu",
               str(mtu), "netns", self.bridge)
            ip("-n", self.bridge, "link", "set", "to%d" % number, "master", "bridge", "up")
        self.give_addresses()

    def give_addresses(self):
        """Assigns an address to the device `wire` of each namespace."""
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "address", "add", "10.118.0.%d/24" % number, "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")

    def pair(self, server, client, port, cores, env=None, **how):
        """Calls run_pair() with the server and the client each in its namespace."""
        inside = [["ip", "netns", "exec", name, "env", "NUPA_RUNTIME_DIR=" + directory.name]
                  for name, directory in zip(self.names, self.directories)]
        return run_pair(inside[0] + server, inside[1] + client, port, cores, env, **how)

    def perftest(self, build, command, cores, env=None):
        """Runs a perftest program over packets with path MTU 4,096 and returns the client's output."""
        port = free_port()
        run = [os.path.join(build, "bin", "nupa"), "run", "--"] + command.split() + [
            "-d", "nupa0", "-F", "-x", "1", "-m", "4096", "-p", str(port)]
        return self.pair(run, run + [SERVER_ADDRESS], port, cores, {"NUPA_TRANSPORT": "roce", **(env or {})})
