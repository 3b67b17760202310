# SPDX-License-Identifier: Apache-2.0
"""Nodes of a network of `nupa net`: network namespaces that nothing else joins, or a bridge where packets are wanted."""
import atexit
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pairs import NUPA, outcome, private_runtime_dir, skip, stop, wait_for

NETWORK = "lab"
CONFIG = tempfile.mkdtemp(prefix="nupa-net-")  # where the network's key is made
atexit.register(shutil.rmtree, CONFIG, ignore_errors=True)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


class Node:
    def __init__(self, number, directory, wire=False, pool=None):
        self.number, self.directory = number, directory
        self.namespace = "nupa-net-%d-%d" % (os.getpid(), number)
        self.name = "n%d" % number
        self.ipv4, self.ipv6 = "10.77.0.%d" % number, "fd77::%d" % number
        self.host = "10.118.0.%d" % number  # of its wire
        self.inside = ("ip", "netns", "exec", self.namespace, "env", "NUPA_RUNTIME_DIR=" + directory,
                       "XDG_CONFIG_HOME=" + CONFIG, *(["NUPA_POOL=file:%s,host=%d" % (pool, number - 1)] if pool else []))
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
        return wait_for(self.status)["pid"]  # a busy one may not answer at once

    def run(self, *command, seconds=60, **more):
        return subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=seconds,
                              stdin=subprocess.DEVNULL, **more)


class Nodes:
    """Namespaces for so many nodes; gone when the `with` block is left. `wire`: Ethernet joins them, and each has a runtime
    directory of its own, as hosts have, unless they are to share one. `pool`: the file of a pool whose hosts they are; nothing
    else joins them."""

    def __init__(self, count, wire=False, shared=None, mtu=9000, pool=None):
        self.bridge = "nupa-net-%d-0" % os.getpid()
        shared = private_runtime_dir() if shared or not (wire or pool) else None
        self.all = [Node(number, shared or private_runtime_dir(), wire, pool) for number in range(1, count + 1)]
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



def together(nodes):
    """All of them are up and know each other."""
    wrong = [done.stderr for done in (node.up(*peers_of(node, nodes)) for node in nodes) if done.returncode != 0]
    joined = wait_for(lambda: all(len(node.peers()) == len(nodes) - 1 for node in nodes))
    return "; ".join(wrong) or ("" if joined else "they do not find each other: %s" % [node.status() for node in nodes])


def peers_of(node, nodes):
    """Those that were there before, where they cannot be found in the runtime directory."""
    return [word for other in nodes if node.wire and other.number < node.number for word in ("--peer", other.host)]


def reaches(one, other, seconds=1):
    return one.run("ping", "-q", "-c", "1", "-W", str(seconds), other.ipv4).returncode == 0


def at_once(count):
    """Options of a ping that sends so many requests at once, and waits for all answers. If it sent one after the other,
    it would wait for the last answer only as long as two of those before took, or a pause: too short if busy."""
    return ("-q", "-c", str(count), "-l", str(count), "-W", "20")


def one_after_the_other(one, address, count, pause, *options):
    """So many pings, each of which is waited for. The status is 0 if all are answered."""
    # sleep: the pause between two pings is what the caller asks for
    script = 'for turn in $(seq %d); do ping -q -c 1 -W 20 "$@" || exit 1; sleep %s; done' % (count, pause)
    return one.run("sh", "-c", script, "sh", *options, address, seconds=200)


def told(name, done, *wanted):
    """Outcome of a program that is to end well and to say something."""
    text = done.stdout + done.stderr
    lacks = [words for words in wanted if not re.search(words, text)]
    outcome(done.returncode == 0 and not lacks, name, "status %s, lacks %s: %s" % (done.returncode, lacks, text[-300:]))


@contextlib.contextmanager
def serving(node, *command):
    """A server on a node."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([*node.inside, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            yield process
        finally:
            stop(process)


def listens(node, port):
    return wait_for(lambda: ":%d " % port in node.run("ss", "-Htln").stdout)


def no_nodes():
    """Why there can be none between namespaces; empty: there can."""
    if "no network device" in subprocess.run([NUPA, "net"], capture_output=True, text=True).stderr:
        return "this build has no network device"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    probe = "nupa-net-probe-%d" % os.getpid()
    if os.geteuid() != 0 or ip("netns", "add", probe).returncode != 0:
        return "needs root and network namespaces"
    ip("netns", "delete", probe)
    return ""


def nothing_is_left():
    left = [name for name in ip("netns", "list").stdout.split() if name.startswith("nupa-net-%d" % os.getpid())]
    outcome(left == [], "net-leaves-no-namespace", left)
