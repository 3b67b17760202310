#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`nupa gateway` between two hosts without a path to each other: three network namespaces, and a wire from each host to the
gateway. Programs of others, and gateway_probe, which checks data and every status at the moment of each completion."""
import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from cm_pairs import await_listener
from pairs import (ALL, BUILD, NUPA, finish, free_port, last_line, missing_program, nupa, outcome, private_runtime_dir, skip, start,
                   started, stop, wait_for)

FOLDER = os.path.dirname(os.path.abspath(__file__))
LIBRARY = os.path.join(BUILD, "lib", "nupa", "librdmacm.so.1")
SECONDS = 60
NEAR, MIDDLE, FAR = ["nupa-gateway-%d-%s" % (os.getpid(), side) for side in "agb"]
NEAR_HOST, GATEWAY_NEAR = "10.121.0.2", "10.121.0.1"
FAR_HOST, GATEWAY_FAR = "10.122.0.2", "10.122.0.1"
# The same in IPv6.
IPV6 = {NEAR_HOST: "fd79:1::2", GATEWAY_NEAR: "fd79:1::1", FAR_HOST: "fd79:2::2", GATEWAY_FAR: "fd79:2::1"}
WORK = tempfile.mkdtemp(prefix="nupa-gateway-")
PROBE, MEMORY = os.path.join(WORK, "gateway_probe"), os.path.join(WORK, "memory")
CASES = ("write", "read", "atomic", "send", "answer", "wkey", "wlong", "rkey", "rights", "short", "rnr", "late", "leave",
         "reject")


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def clean():
    for host in (NEAR, MIDDLE, FAR):
        ip("netns", "delete", host)
    shutil.rmtree(WORK, ignore_errors=True)


def make_hosts():
    """False: namespaces cannot be made here."""
    atexit.register(clean)
    if os.geteuid() != 0 or ip("netns", "add", NEAR).returncode != 0:
        return False
    made = True
    for host in (MIDDLE, FAR):
        made = ip("netns", "add", host).returncode == 0 and made
    for host, address, wire, gateway in ((NEAR, NEAR_HOST, "near", GATEWAY_NEAR), (FAR, FAR_HOST, "far", GATEWAY_FAR)):
        made = ip("link", "add", "wire", "mtu", "9000", "netns", host, "type", "veth", "peer", "name", wire, "mtu", "9000",
                  "netns", MIDDLE).returncode == 0 and made
        for place, name, own in ((host, "wire", address), (MIDDLE, wire, gateway)):
            ip("-n", place, "address", "add", own + "/24", "dev", name)
            ip("-n", place, "address", "add", IPV6[own] + "/64", "dev", name, "nodad")
            ip("-n", place, "link", "set", name, "up")
            ip("-n", place, "link", "set", "lo", "up")
    return made


def inside(host):
    return ("ip", "netns", "exec", host, "env", "NUPA_RUNTIME_DIR=" + DIRECTORIES[host], *SETTINGS.get(host, ()))


MAPPINGS = ((GATEWAY_NEAR, FAR_HOST), (GATEWAY_FAR, NEAR_HOST), (IPV6[GATEWAY_NEAR], IPV6[FAR_HOST]))


class Gateway:
    """A gateway that runs."""

    def __init__(self, *options, mappings=MAPPINGS):
        self.out = tempfile.TemporaryFile()
        self.mappings = mappings
        command = [NUPA, "gateway", *(word for mapping in mappings for word in ("--for", "%s=%s" % mapping)), *options]
        started(" ".join(command[1:]))
        self.process = subprocess.Popen([*inside(MIDDLE), *command], stdout=self.out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, start_new_session=True)

    def is_up(self):
        return wait_for(lambda: self.process.poll() is not None or self.said().count("\n") >= len(self.mappings)) and self.process.poll() is None

    def said(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.process)
        self.out.close()


@contextlib.contextmanager
def server(command, host, port, env=None):
    with tempfile.TemporaryFile() as out:
        process = start(command, env, out, inside(host))
        try:
            await_listener(process, port)
            yield process, out
        finally:
            stop(process)


def run(command, host, seconds=SECONDS, env=None):
    """Status and output of a client."""
    with tempfile.TemporaryFile() as out:
        process = start(command, env, out, inside(host))
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = "still running after %d s" % seconds
        stop(process)
        out.seek(0)
        return status, out.read().decode(errors="replace")


def meet(name, server_command, client_command, says=(), back=False, server_survives=False):
    """`back`: the server is on the near side."""
    port = free_port()
    at, to, client = (NEAR, GATEWAY_FAR, FAR) if back else (FAR, GATEWAY_NEAR, NEAR)
    with server(server_command.replace("%d", str(port)), at, port) as (process, out):
        status, said = run(client_command.replace("%d", str(port)).replace("%s", to), client)
        served = 0
        if status == 0 and not server_survives:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            served = process.poll()
        wrong = [pattern for pattern in says if not re.search(pattern, said, re.MULTILINE)]
        ok = status == 0 and served == 0 and not wrong
        outcome(ok, name + (" back" if back else ""),
                "client %s, server %s (%s), not said: %s; said: %s" % (status, served, last_line(out), wrong, said[-300:]))


def perftest():
    if missing_program("ib_send_lat"):
        return
    for program, options in (("ib_send_lat", "-n 200 -s 64"), ("ib_send_lat", "-n 50 -s 65536"),
                             ("ib_send_bw", "-n 100 -s 65536"), ("ib_write_lat", "-n 200 -s 64"),
                             ("ib_write_bw", "-n 100 -s 65536"), ("ib_write_bw", "-n 5 -s 4194304"),
                             ("ib_read_lat", "-n 100 -s 64"), ("ib_read_bw", "-n 100 -s 65536"),
                             ("ib_atomic_lat", "-n 100"), ("ib_atomic_bw", "-n 100")):
        command = "%s -R -F -p %%d %s" % (program, options)
        meet("%s -R %s" % (program, options), command, command + " %s", [r"^ *\d+ +\d+ +\d+\.\d+"])


def programs_of_librdmacm():
    if missing_program("rping", "rstream", "riostream"):
        return
    for back in (False, True):
        meet("rping -V -C 20 -S 64", "rping -s -p %d -V -C 20", "rping -c -a %s -p %d -V -C 20 -S 64", back=back)
    port = free_port()
    with server("rping -s -a %s -p %d -V -C 20" % (IPV6[FAR_HOST], port), FAR, port):
        status, said = run("rping -c -a %s -p %d -V -C 20" % (IPV6[GATEWAY_NEAR], port), NEAR)
        outcome(status == 0, "rping -V -C 20 over IPv6", "%s: %s" % (status, said[-200:]))
    meet("rping -V -C 10 -S 20000", "rping -s -p %d -V -C 10 -S 20000", "rping -c -a %s -p %d -V -C 10 -S 20000")
    meet("rstream -S 64 -T v", "rstream -p %d -S 64 -I 20 -C 10 -T v", "rstream -s %s -p %d -S 64 -I 20 -C 10 -T v")
    meet("rstream -S 65536 -T v", "rstream -p %d -S 65536 -I 5 -C 10 -T v", "rstream -s %s -p %d -S 65536 -I 5 -C 10 -T v")
    meet("riostream -S 4096 -T v", "riostream -p %d -S 4096 -I 5 -C 10 -T v", "riostream -s %s -p %d -S 4096 -I 5 -C 10 -T v")
    if shutil.which("ucmatose"):
        meet("ucmatose -c 5 -C 10", "ucmatose -p %d -c 5 -C 10", "ucmatose -s %s -p %d -c 5 -C 10")


def fio(where=""):
    if missing_program("fio"):
        return
    common = "--ioengine=rdma --port=%d --bs=64k --size=16m --iodepth=8"
    for verb in ("write", "read"):
        # Options of an engine stand behind its name.
        meet("fio rdma %s%s" % (verb, where), "fio --name=server --rw=read " + common,
             "fio --name=client --rw=write %s --verb=%s --hostname=%%s" % (common, verb), [r"WRITE: bw=", r"io=16.0MiB", r"err= 0"])


def probe(cases=CASES, where="", env=None):
    port = free_port()
    with server("%s server %s %d %s" % (PROBE, FAR_HOST, port, MEMORY), FAR, port, env) as (_, out):
        for case in cases:
            status, said = run("%s client %s %d %s %s" % (PROBE, GATEWAY_NEAR, port, MEMORY, case), NEAR, env=env)
            outcome(status == 0, "gateway_probe %s%s" % (case, where), "%s: %s; server: %s" %
                    (status, said[-200:], last_line(out)))
        if where:
            return
        status, said = run("%s client %s %d %s nobody" % (PROBE, GATEWAY_NEAR, free_port(), MEMORY), NEAR)
        outcome(status == 0, "gateway_probe: nobody listens", "%s: %s" % (status, said[-200:]))


DATA = ("write", "read", "atomic", "send", "answer")


def lossy():
    """One packet of a hundred is lost where it arrives."""
    rules = ("table inet loss { chain arriving { type filter hook input priority 0; "
             "meta l4proto udp numgen random mod 100 == 0 drop; }; }")
    if not shutil.which("nft"):
        return skip("gateway with loss", "nft is not installed")
    made = [ip("netns", "exec", host, "nft", rules).returncode == 0 for host in (NEAR, MIDDLE, FAR)]
    if all(made):
        probe((*DATA, "wkey", "rkey", "late"), " with loss")
    else:
        skip("gateway with loss", "nft cannot drop packets here")
    for host in (NEAR, MIDDLE, FAR):
        ip("netns", "exec", host, "nft", "delete table inet loss")
    return None


def other_wires():
    """Packets of one side do not fit the other side's wire."""
    for host, wire in ((NEAR, "wire"), (MIDDLE, "near")):
        ip("-n", host, "link", "set", wire, "mtu", "1500")


def several():
    """Clients at the same time, whose servers share a host."""
    ports = [free_port() for _ in range(4)]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(server("%s server %s %d %s%d" % (PROBE, FAR_HOST, port, MEMORY, port), FAR, port))
        outs = [stack.enter_context(tempfile.TemporaryFile()) for _ in ports]
        clients = [start("%s client %s %d %s%d %s" % (PROBE, GATEWAY_NEAR, port, MEMORY, port, " ".join(DATA)), None, out,
                         inside(NEAR)) for port, out in zip(ports, outs)]
        for client in clients:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(2 * SECONDS)
        statuses = [client.poll() for client in clients]
        for client in clients:
            stop(client)
        outcome(statuses == [0] * len(ports), "gateway_probe: %d clients at once" % len(ports),
                "%s: %s" % (statuses, " / ".join(text(out)[-150:] for out in outs)))


def pool_address(host):
    devices = json.loads(nupa("devices", "--json", before=inside(host)).stdout or "[{}]")
    own = devices[0] if devices[0].get("name") == "nupa_pool0" else {}
    return own.get("gids", [{"gid": ""}])[0]["gid"]


def over_pool():
    """The near host and the gateway share a pool, and the near host has no packets. Addresses of a pool are IPv6."""
    pool = os.path.join(tempfile.mkdtemp(prefix="nupa-gateway-", dir="/dev/shm"), "pool")
    made = nupa("pool", "format", "--pool", "file:%s,host=0" % pool, "--hosts", "2", "--size", "256M")
    SETTINGS[NEAR] = ("NUPA_POOL=file:%s,host=0" % pool, "NUPA_TRANSPORT=pool")
    SETTINGS[MIDDLE] = ("NUPA_POOL=file:%s,host=1" % pool,)
    try:
        near, middle = pool_address(NEAR), pool_address(MIDDLE)
        outcome(near and middle, "the hosts of the pool have addresses", made.stderr)
        with Gateway(mappings=((middle, FAR_HOST), (GATEWAY_NEAR, FAR_HOST), (GATEWAY_FAR, near))) as gateway:
            up = gateway.is_up()
            outcome(up, "the gateway listens at a pool and at a network", gateway.said())
            if not up:
                return
            for where, cases, at, to, served, client in (
                    (" from a pool", CASES, FAR_HOST, middle, FAR, NEAR),
                    (" to a pool", CASES if ALL else DATA, near, GATEWAY_FAR, NEAR, FAR)):
                port = free_port()
                with server("%s server %s %d %s" % (PROBE, at, port, MEMORY), served, port) as (_, out):
                    for case in cases:
                        status, said = run("%s client %s %d %s %s" % (PROBE, to, port, MEMORY, case), client)
                        outcome(status == 0, "gateway_probe %s%s" % (case, where), "%s: %s; server: %s" %
                                (status, said[-200:], last_line(out)))
                port = free_port()
                with server("rping -s -a %s -p %d -V -C 20" % (at, port), served, port):
                    status, said = run("rping -c -a %s -p %d -V -C 20" % (to, port), client)
                    outcome(status == 0, "rping -V -C 20" + where, "%s: %s" % (status, said[-200:]))
            fio(" from a pool")
            kill_the_server(middle, " from a pool")
            kill_the_gateway(gateway, middle, " from a pool")
    finally:
        SETTINGS.clear()
        shutil.rmtree(os.path.dirname(pool))


def routed_ip():
    """IP goes from one network of `nupa net` to another one through a host that is a node of both."""
    if missing_program("iperf3") or not os.path.exists("/dev/net/tun"):
        return skip("routed IP", "iperf3 or /dev/net/tun is not here")
    config = "XDG_CONFIG_HOME=" + WORK
    nodes = ((MIDDLE, "lab1", "10.77.1.1", None), (MIDDLE, "lab2", "10.77.2.1", None), (NEAR, "lab1", "10.77.1.2", GATEWAY_NEAR),
             (FAR, "lab2", "10.77.2.2", GATEWAY_FAR))
    done = []
    try:
        for number, (host, network, address, peer) in enumerate(nodes):
            command = [*inside(host), config, NUPA, "net", "up", network, "--addr", address + "/24", "--node", "n%d" % number,
                       "--interface", "nupa%d" % number, "--detach", *(("--peer", peer) if peer else ())]
            started(" ".join(command[6:]))
            done.append(subprocess.run(command, capture_output=True, text=True, timeout=30))
        wrong = [each.stderr for each in done if each.returncode != 0]
        ip("netns", "exec", MIDDLE, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        # A node takes packets from and for its own addresses only, so a tunnel carries those that are routed.
        for host, network, own, other in ((NEAR, 1, 2, 1), (MIDDLE, 1, 1, 2), (MIDDLE, 2, 1, 2), (FAR, 2, 2, 1)):
            name = "tunnel%d" % network
            made = ip("-n", host, "link", "add", name, "type", "vxlan", "id", str(network), "dstport", "4789", "local",
                      "10.77.%d.%d" % (network, own), "remote", "10.77.%d.%d" % (network, other))
            if made.returncode != 0:
                return skip("routed IP", "no vxlan: " + made.stderr.strip())
            ip("-n", host, "address", "add", "10.78.%d.%d/24" % (network, own), "dev", name)
            ip("-n", host, "link", "set", name, "up")
        ip("-n", NEAR, "route", "add", "10.78.2.0/24", "via", "10.78.1.1")
        ip("-n", FAR, "route", "add", "10.78.1.0/24", "via", "10.78.2.1")
        with tempfile.TemporaryFile() as out:
            served = subprocess.Popen([*inside(FAR), "iperf3", "-s", "-1"], stdout=out, stderr=subprocess.STDOUT,
                                      start_new_session=True)
            wait_for(lambda: "listening" in text(out))
            client = subprocess.run([*inside(NEAR), "timeout", "40", "iperf3", "-c", "10.78.2.2", "-n", "20M"],
                                    capture_output=True, text=True)
            stop(served)
        outcome(not wrong and client.returncode == 0 and "receiver" in client.stdout, "iperf3 from one nupa net to another one",
                "%s; %s" % (wrong, (client.stdout + client.stderr)[-300:]))
    finally:
        for number, (host, network, _, _) in enumerate(nodes):
            subprocess.run([*inside(host), config, NUPA, "net", "down", network, "--node", "n%d" % number], capture_output=True)
    return None


@contextlib.contextmanager
def load(to=GATEWAY_NEAR):
    """A client that writes to its server through the gateway, without a pause."""
    port = free_port()
    with server("%s server %s %d %s" % (PROBE, FAR_HOST, port, MEMORY), FAR, port) as (served, _):
        with tempfile.TemporaryFile() as out:
            client = start("%s client %s %d %s load" % (PROBE, to, port, MEMORY), None, out, inside(NEAR))
            try:
                wait_for(lambda: "LOADING" in text(out))
                yield served, client, out
            finally:
                stop(client)


def text(out):
    out.seek(0)
    return out.read().decode(errors="replace")


def kill_the_server(to=GATEWAY_NEAR, where=""):
    with load(to) as (served, client, out):
        stop(served)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(SECONDS)
        outcome(client.poll() == 0 and "BROKEN" in text(out), "the server is killed, and its client notices" + where, text(out)[-200:])


def kill_the_gateway(gateway, to=GATEWAY_NEAR, where=""):
    with load(to) as (served, client, out):
        os.killpg(gateway.process.pid, signal.SIGKILL)
        gateway.process.wait()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(SECONDS)
        outcome(client.poll() == 0 and "BROKEN" in text(out), "the gateway is killed, and the client notices" + where, text(out)[-200:])
        # The server has destroyed the connection once it serves another one through the next gateway.
        outcome(served.poll() is None, "the gateway is killed, and the server serves on" + where, served.poll())
        with Gateway(mappings=gateway.mappings) as again:
            up = again.is_up()
            outcome(up, "another gateway takes its place" + where, again.said())


def second_process():
    """Another program of the gateway's host has UDP port 4791, and passes messages on. And one asks the gateway itself."""
    port = free_port()
    with server("rping -s -p %d" % port, MIDDLE, port), Gateway() as gateway:
        up = gateway.is_up()
        outcome(up, "the gateway listens beside another program", gateway.said())
        probe(DATA, " beside another program")
        with server("rping -s -p %d -V -C 20" % (port + 1), FAR, port + 1):
            status, said = run("rping -c -a %s -p %d -V -C 20" % (GATEWAY_NEAR, port + 1), MIDDLE)
            outcome(status == 0, "rping -V -C 20 from the gateway's host", "%s: %s" % (status, said[-200:]))


def end_the_gateway():
    with Gateway() as gateway:
        up = gateway.is_up()
        os.killpg(gateway.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.process.wait(20)
        outcome(up and gateway.process.poll() == 0, "SIGTERM ends the gateway with status 0", gateway.said())


def main():
    if not os.path.exists(LIBRARY):
        return skip("gateway", "the build has no " + LIBRARY)
    if not make_hosts():
        return skip("gateway", "network namespaces cannot be made here")
    for host in (NEAR, MIDDLE, FAR):
        DIRECTORIES[host] = private_runtime_dir()
    built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(FOLDER, "gateway_probe.cc"), "-o", PROBE, "-lrdmacm",
                            "-libverbs"], capture_output=True, text=True)
    with Gateway() as gateway:
        up = gateway.is_up()
        outcome(up, "the gateway listens", gateway.said())
        if not up:
            return None
        if built.returncode != 0:
            skip("gateway_probe", "does not compile here: " + built.stderr[-200:])
        else:
            if ALL:
                several()
            probe()
            if ALL:
                # Standard packets only, as those of rdma_rxe and of adapters are.
                probe((*DATA, "wkey", "rkey", "rnr", "late"), " standard", {"NUPA_ROCE_PEERS": "standard"})
                lossy()
            kill_the_server()
        programs_of_librdmacm()
        perftest()
        fio()
        if ALL:
            other_wires()
            if built.returncode == 0:
                probe(DATA, " with another MTU on each side")
        if built.returncode == 0:
            kill_the_gateway(gateway)
    if built.returncode == 0:
        over_pool()
    if ALL and built.returncode == 0:
        second_process()
    end_the_gateway()
    if ALL:
        routed_ip()
    return None


DIRECTORIES = {}
SETTINGS = {}  # further ones of a host
if __name__ == "__main__":
    main()
    finish()
