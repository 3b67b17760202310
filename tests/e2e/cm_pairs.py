# SPDX-License-Identifier: Apache-2.0
"""Pairs of programs that meet by the connection manager: places where they run, and what they must have said."""
import contextlib
import os
import re
import tempfile
import time
from hosts import ADDRESS, HERE, THERE, inside, ip, make_hosts
from pairs import BUILD, Pair, free_port, listening, outcome, private_runtime_dir, start, stop, wait_for

LIBRARY = os.path.join(BUILD, "lib", "nupa", "librdmacm.so.1")
LISTEN_SECONDS = 20  # after that the client tries all the same


class Place:
    """Where a server and its client run: commands that start them there, and the server's addresses."""

    def __init__(self, name, ipv4, ipv6, server=(), client=(), client_ipv4=None):
        self.name, self.ipv4, self.ipv6, self.server, self.client = name, ipv4, ipv6, server, client
        self.client_ipv4 = client_ipv4 or ipv4


def places():
    """One host, and two with a wire between where they can be made. The second has a runtime directory of its own, as
    a host has, so that nothing but packets joins them. In a network of their own programs with fixed ports meet nobody
    else's."""
    private_runtime_dir()
    here = os.environ["NUPA_RUNTIME_DIR"]
    if not make_hosts(9000):
        return [Place("", "127.0.0.1", "::1")], []
    for host in (HERE, THERE):
        ip("-n", host, "route", "add", "224.0.0.0/4", "dev", "wire")
    one = Place("", ADDRESS[HERE], "fd77::1", inside(HERE), inside(HERE))
    there = private_runtime_dir()
    os.environ["NUPA_RUNTIME_DIR"] = here
    two = Place("hosts ", ADDRESS[HERE], "fd77::1", inside(HERE),
                (*inside(THERE), "env", "NUPA_RUNTIME_DIR=" + there), ADDRESS[THERE])
    return [one], [two]


def has_listener(pid, port):
    """In the network of a process. A service that is taken has a name among abstract sockets, in which the port is the
    end of its number (docs/design/connection-manager.md)."""
    try:
        with open("/proc/%d/net/unix" % pid) as names:
            return re.search("@nupa-cm/service/[0-9a-f]{12}%04x/" % port, names.read()) is not None
    except OSError:
        return False


def takes_datagrams(pid, port):
    """Whether a UDP socket is bound to the port, in the network of a process."""
    for table in ("/proc/%d/net/udp" % pid, "/proc/%d/net/udp6" % pid):
        with contextlib.suppress(OSError), open(table) as lines:
            if any(line.split()[1].endswith(":%04X" % port) for line in lines):
                return True
    return False


def await_listener(process, port):
    """False: it has ended. qperf is met by TCP first, and udpong at a UDP socket."""
    wait_for(lambda: process.poll() is not None or has_listener(process.pid, port) or listening(port, process.pid) or
             takes_datagrams(process.pid, port), LISTEN_SECONDS)
    # sleep: rdma_bind_addr() takes the name, and nothing outside the process shows that rdma_listen() has returned
    time.sleep(0.15)
    return process.poll() is None


@contextlib.contextmanager
def port_holder(place):
    """Another program of the server's host is there first: it has UDP port 4791, and passes on what is for others."""
    port = free_port()
    with tempfile.TemporaryFile() as out:
        holder = start("rping -s -p %d" % port, None, out, place.server)
        await_listener(holder, port)
        try:
            yield
        finally:
            stop(holder)


class CmPair(Pair):
    """What a server listens for is no TCP port."""

    def is_ready(self, port):
        return await_listener(self.server, port)


def naps(pid):
    """Whether the main thread of a process sleeps for a time (proc_pid_wchan(5))."""
    with contextlib.suppress(OSError), open("/proc/%d/wchan" % pid) as function:
        return "nanosleep" in function.read()
    return False


class NapPair(Pair):
    """The client starts when the server calls sleep(): mckey does so once it has joined its group."""

    def is_ready(self, port):
        wait_for(lambda: self.server.poll() is not None or naps(self.server.pid), LISTEN_SECONDS)
        return self.server.poll() is None


def missing(text, patterns, never):
    """What is wrong with a text: patterns that it lacks and those of `never` that it has."""
    wrong = ["no %r" % pattern for pattern in patterns if not re.search(pattern, text, re.MULTILINE)]
    wrong += ["has %r" % pattern for pattern in never if re.search(pattern, text, re.MULTILINE)]
    if wrong:
        # The end of a long text says most.
        wrong.append("said: " + text[-1200:])
    return wrong


def meet(name, place, server, client, server_says=(), client_says=(), never=(), port=0, seconds=60,
         server_survives=False, fails=False, kind=CmPair, env=None):
    """One outcome: both end with status 0 and have said what they must. A server that is ended here loses what it has
    not written yet. `fails`: the client has to say so by its status."""
    with kind(server, client, port, env, place.server, place.client) as pair:
        trouble = pair.wait(seconds, server_survives)
        if fails:
            gave_up = pair.client is not None and pair.client.returncode
            trouble = "" if gave_up else trouble or "client succeeds"
        wrong = ([trouble] if trouble else []) + missing(pair.said(1), client_says, never)
        if not server_survives:
            wrong += missing(pair.said(0), server_says, never)
    outcome(not wrong, place.name + name, "; ".join(wrong))


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory(prefix="nupa-e2e-") as path:
        yield path


def with_port(*commands):
    """Commands with a free port for %d, and the port."""
    port = free_port()
    return [*(command.replace("%d", str(port)) for command in commands), port]
