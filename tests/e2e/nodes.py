"""Nodes of a network of `nupa net`: network namespaces that nothing else joins, or a bridge where packets are wanted."""
import atexit
import json
import os
import shutil
import subprocess
import tempfile
import time
from pairs import NUPA, private_runtime_dir

NETWORK = "lab"
CONFIG = tempfile.mkdtemp(prefix="nupa-net-")  # where the network's key is made
atexit.register(shutil.rmtree, CONFIG, ignore_errors=True)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


class Node:
    def __init__(self, number, directory, wire=False):
        self.number, self.directory = number, directory
        self.namespace = "nupa-net-%d-%d" % (os.getpid(), number)
        self.name = "n%d" % number
        self.ipv4, self.ipv6 = "10.77.0.%d" % number, "fd77::%d" % number
        self.host = "10.118.0.%d" % number  # of its wire
        self.inside = ("ip", "netns", "exec", self.namespace, "env", "NUPA_RUNTIME_DIR=" + directory,
                       "XDG_CONFIG_HOME=" + CONFIG)
        self.wire = wire

    def up(self, *options, address=None, network=NETWORK, env=()):
        """The result of `nupa net up`, which goes on in the background."""
        addresses = address or ("--addr", self.ipv4 + "/24", "--addr6", self.ipv6 + "/64")
        return subprocess.run([*self.inside, *env, NUPA, "net", "up", network, "--node", self.name, *addresses, *options, "--detach"],
                              capture_output=True, text=True, timeout=30)

    def down(self):
        return subprocess.run([*self.inside, NUPA, "net", "down", "--node", self.name], capture_output=True, text=True, timeout=30)

    def status(self):
        """What `nupa net status --json` says of it; None: it does not run."""
        done = subprocess.run([*self.inside, NUPA, "net", "status", "--node", self.name, "--json"], capture_output=True, text=True,
                              timeout=30)
        nodes = json.loads(done.stdout or "[]")
        return nodes[0] if nodes else None

    def peers(self, state="up"):
        return {peer["node"]: peer for peer in (self.status() or {"peers": []})["peers"] if peer["state"] == state}

    def pid(self):
        return self.status()["pid"]

    def run(self, *command, seconds=60, **more):
        return subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=seconds,
                              stdin=subprocess.DEVNULL, **more)


class Nodes:
    """Namespaces for so many nodes; gone when the `with` block is left. `wire`: Ethernet joins them, and each has a runtime
    directory of its own, as hosts have."""

    def __init__(self, count, wire=False, mtu=9000):
        shared = private_runtime_dir()
        self.bridge = "nupa-net-%d-0" % os.getpid()
        self.all = [Node(number, private_runtime_dir() if wire else shared, wire) for number in range(1, count + 1)]
        self.trouble = ""
        atexit.register(self.remove)
        for node in self.all:
            self.must("netns", "add", node.namespace)
            self.must("-n", node.namespace, "link", "set", "lo", "up")
        if wire:
            self.must("netns", "add", self.bridge)
            self.must("-n", self.bridge, "link", "add", "bridge", "mtu", str(mtu), "type", "bridge")
            self.must("-n", self.bridge, "link", "set", "bridge", "up")
            for node in self.all:
                end = "to%d" % node.number
                self.must("link", "add", "wire", "mtu", str(mtu), "netns", node.namespace, "type", "veth", "peer", "name", end,
                          "mtu", str(mtu), "netns", self.bridge)
                self.must("-n", self.bridge, "link", "set", end, "master", "bridge", "up")
                self.must("-n", node.namespace, "address", "add", node.host + "/24", "dev", "wire")
                self.must("-n", node.namespace, "link", "set", "wire", "up")

    def must(self, *arguments):
        done = ip(*arguments)
        if done.returncode != 0:
            self.trouble = self.trouble or "ip %s: %s" % (" ".join(arguments), done.stderr.strip())

    def remove(self):
        for node in self.all:
            for status in [node.status()] if os.path.isdir(node.directory) else []:
                if status:
                    node.down()
            ip("netns", "delete", node.namespace)
        ip("netns", "delete", self.bridge)

    def __enter__(self):
        return self.all

    def __exit__(self, *_):
        self.remove()
        atexit.unregister(self.remove)


def wait_for(condition, seconds=10):
    end = time.time() + seconds
    while time.time() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    return None
