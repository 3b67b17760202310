#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that know only IP, between nodes of `nupa net`, over shm and over packets."""
import contextlib
import filecmp
import json
import os
import subprocess
import tempfile
from nodes import Nodes, listens, no_nodes, nothing_is_left, serving, told, together
from pairs import finish, missing_program, outcome, skip, transports

MPI_RANK = """
from mpi4py import MPI
import numpy
world = MPI.COMM_WORLD
found = numpy.zeros(1 << 18)
for turn in range(5):
    world.Allreduce(numpy.full(1 << 18, world.rank + 1.0), found)
    assert (found == world.size * (world.size + 1) / 2).all()
everybody = world.gather(MPI.Get_processor_name())
if world.rank == 0:
    print("from", world.size, "ranks on", len(set(everybody)), "hosts:", found[0])
"""


def iperf3(one, other):
    if missing_program("iperf3"):
        return
    for options in ("", "-R", "-P 4", "--bidir", "-6", "-l 100", "-M 536", "-u -b 100M", "-u -b 200M -l 8000"):
        address = other.ipv6 if "-6" in options else other.ipv4
        # A server of its own for each client: between two of them it closes its socket and opens another.
        with serving(other, "iperf3", "-s"):
            listens(other, 5201)
            done = one.run("iperf3", "-c", address, "-t", "1", "--json", *options.split())
        report = json.loads(done.stdout or "{}")
        end = report.get("end", {})
        rate = end.get("sum_received", end.get("sum", {})).get("bits_per_second", 0)
        outcome(done.returncode == 0 and rate > 1e6 and "error" not in report, "net-iperf3 " + options,
                report.get("error", rate))


def programs(one, other):
    """nginx and curl, redis: what arrives is what was sent."""
    if not missing_program("nginx", "curl"):
        with tempfile.TemporaryDirectory(prefix="nupa-net-") as folder:
            os.chmod(folder, 0o755)
            large = os.path.join(folder, "large")
            with open(large, "wb") as out:
                out.write(os.urandom(30_000_017))
            with open(os.path.join(folder, "conf"), "w") as conf:
                conf.write("daemon off; pid %s/pid; error_log stderr; events {} http { access_log off; server { listen 8080; "
                           "listen [::]:8080; root %s; client_body_temp_path %s/b; proxy_temp_path %s/p; fastcgi_temp_path "
                           "%s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s; } }" % ((folder,) * 7))
            with serving(other, "nginx", "-c", os.path.join(folder, "conf")):
                listens(other, 8080)
                for address in (other.ipv4, "[%s]" % other.ipv6):
                    copy = os.path.join(folder, "copy")
                    done = one.run("curl", "-sSgf", "-o", copy, "http://%s:8080/large" % address)
                    same = done.returncode == 0 and filecmp.cmp(large, copy, False)
                    outcome(same, "net-nginx-curl " + address, done.stderr)
    if not missing_program("redis-server", "redis-benchmark"):
        with serving(other, "redis-server", "--port", "7000", "--bind", other.ipv4, "--protected-mode", "no", "--save", ""):
            listens(other, 7000)
            done = one.run("redis-benchmark", "-h", other.ipv4, "-p", "7000", "-n", "5000", "-c", "20", "--csv", "-t", "set,get")
            told("net-redis-benchmark", done, '"SET"', '"GET"')


class Hosts:
    """Each node has a host name, a home and an SSH server of its own."""

    def __init__(self, nodes, folder):
        self.nodes, self.folder = nodes, folder
        home = os.path.join(folder, "home", ".ssh")
        os.makedirs(home, 0o700)
        os.chmod(os.path.join(folder, "home"), 0o700)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.file("key")], check=True)
        subprocess.run(["dropbearkey", "-t", "ed25519", "-f", self.file("host")], check=True, capture_output=True)
        os.rename(self.file("key.pub"), os.path.join(home, "authorized_keys"))
        self.ssh = ("ssh -F none -i %s -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                    "-o LogLevel=ERROR" % self.file("key"))

    def file(self, name):
        return os.path.join(self.folder, name)

    def on(self, node, *command):
        """The command with the host's name and home."""
        script = 'hostname %s; mount --bind %s /root; exec "$@"' % (node.name, self.file("home"))
        return ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *command]

    def server(self, node):
        return serving(node, *self.on(node, "dropbear", "-F", "-E", "-s", "-r", self.file("host"), "-p", node.ipv4 + ":22", "-p",
                                      "[%s]:22" % node.ipv6, "-P", self.file(node.name + ".pid")))


def ssh_and_mpi(nodes):
    """A login with files both ways, and MPI over TCP whose ranks are started by it."""
    if missing_program("ssh", "ssh-keygen", "dropbear"):
        return
    with tempfile.TemporaryDirectory(prefix="nupa-net-") as folder, contextlib.ExitStack() as servers:
        hosts = Hosts(nodes, folder)
        for node in nodes:
            servers.enter_context(hosts.server(node))
            listens(node, 22)
        one, other = nodes[:2]
        for address in (other.ipv4, other.ipv6):
            done = one.run(*hosts.ssh.split(), "root@" + address, "hostname; head -c 3000000 /dev/zero | tr '\\0' x; exit 7")
            outcome(done.returncode == 7 and done.stdout == other.name + "\n" + 3000000 * "x", "net-ssh " + address,
                    "%s %s" % (done.returncode, done.stderr))
        if missing_program("mpirun"):
            return
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm_rsh_agent", hosts.ssh]
        for name, value in (("pml", "ob1"), ("btl", "tcp,self"), ("btl_tcp_if_include", "nupa0"), ("oob_tcp_if_include", "nupa0")):
            command += ["--mca", name, value]
        command += ["-H", ",".join(node.ipv4 + ":1" for node in nodes), "-n", str(len(nodes)), "python3", "-c", MPI_RANK]
        done = one.run(*hosts.on(one, *command), seconds=120)
        told("net-mpi-%d-nodes" % len(nodes), done, "from {0} ranks on {0} hosts".format(len(nodes)))


def main():
    reason = no_nodes()
    if reason:
        return skip("net-programs", reason)
    for transport in transports():
        with Nodes(2, wire=transport == "roce") as nodes:
            reason = together(nodes)
            outcome(not reason, "net-up", reason)
            if not reason:
                iperf3(*nodes)
                programs(*nodes)
                ssh_and_mpi(nodes)
    with Nodes(8) as nodes:
        reason = together(nodes)
        outcome(not reason, "net-eight-nodes", reason)
        if not reason:
            ssh_and_mpi(nodes)
    return nothing_is_left()


main()
finish()
