#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs between two hosts that have IPv6 alone, with the GID that each chooses."""
import contextlib
import os
import re
import subprocess
import tempfile
from cm_pairs import NapPair, Place, meet, with_port
from hosts import HERE, THERE, inside, make_hosts, remove_hosts
from pairs import NUPA, Pair, finish, missing_program, nupa, outcome, private_runtime_dir, skip, started

SERVER, CLIENT = "fd77::1", "fd77::2"
NAMES = {HERE: SERVER, THERE: CLIENT}
# Processes of one kernel would see each other's memory, and UCX would take that way.
APART = ("unshare", "--ipc", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")


def gids(place):
    """Programs prefer an IPv4 GID at any index, so there is none."""
    said = nupa("run", "--", "ibv_devinfo", "-v", before=place.server).stdout
    found = re.findall(r"GID\[\s*(\d+)\]:\s*([0-9a-f:.]+),", said)
    far = [gid for _, gid in found if not gid.startswith("fe80:")]
    outcome(far == [SERVER], "the GIDs of a host with IPv6 alone", found)


def connection_manager(place):
    if missing_program("rping", "rdma_server", "rstream", "riostream", "ucmatose", "udaddy", "mckey"):
        return
    for name, server, client in (
            ("rping", "rping -s -a %s -C 20 -V -p %%d" % SERVER, "rping -c -a %s -C 20 -V -p %%d" % SERVER),
            ("rdma_client", "rdma_server -s :: -p %d", "rdma_client -s %s -p %%d" % SERVER),
            ("rstream", "rstream -b :: -S 65536 -C 50 -p %d", "rstream -s %s -S 65536 -C 50 -p %%d" % SERVER),
            ("riostream", "riostream -b :: -S 65536 -C 50 -p %d", "riostream -s %s -S 65536 -C 50 -p %%d" % SERVER),
            ("ucmatose", "ucmatose -b %s -C 20 -p %%d" % SERVER, "ucmatose -s %s -C 20 -p %%d" % SERVER)):
        server, client, port = with_port(server, client)
        meet(name, place, server, client, port=port)
    meet("udaddy", place, "udaddy -b %s -C 20" % SERVER, "udaddy -s %s -C 20" % SERVER, port=7174)
    meet("mckey", place, "mckey -m ff0e::9 -b %s -C 20" % SERVER, "mckey -m ff0e::9 -b %s -s -C 20" % CLIENT,
         ["data transfers complete"], ["data transfers complete"], kind=NapPair)
    # Programs of one host meet at either loopback address.
    for address in ("::1", "127.0.0.1"):
        server, client, port = with_port("rping -s -a %s -C 20 -V -p %%d" % address, "rping -c -a %s -C 20 -V -p %%d" % address)
        meet("rping of one host, " + address, Place("", None, address, place.server, place.server), server, client, port=port)


def ucx(place):
    if missing_program("ucx_perftest"):
        return
    for ways in ("rc_v", "ud_v", "all"):
        server, client, port = with_port("ucx_perftest -6 -t tag_lat -n 500 -p %d",
                                         "ucx_perftest -6 -t tag_lat -n 500 -p %%d %s" % SERVER)
        env = {"UCX_TLS": ways, "UCX_LOG_LEVEL": "info"}
        alone = Place(place.name, None, SERVER, (*place.server, *APART), (*place.client, *APART))
        chosen = "ud_verbs" if ways == "ud_v" else "rc_verbs"
        meet("ucx_perftest tag_lat, UCX_TLS=" + ways, alone, server, client, (), [chosen + "/nupa0:1", r"^Final: "],
             ["UCX  ERROR"], port, env=env, kind=Pair)


@contextlib.contextmanager
def host_names():
    """mpirun names its hosts. The namespaces get a file of names, and the launcher enters the one that is named."""
    with tempfile.TemporaryDirectory(prefix="nupa-e2e-") as folder:
        os.chmod(folder, 0o755)
        hosts = os.path.join(folder, "hosts")
        with open(hosts, "w") as file:
            file.write("::1 localhost\n" + "".join("%s %s\n" % (NAMES[host], host) for host in NAMES))
        yield hosts, os.path.join(folder, "enter")


def open_mpi(place):
    if missing_program("mpirun", "NPopenmpi"):
        return
    with host_names() as (hosts, enter):
        named = "mount --bind %s /etc/hosts && hostname %%s && exec" % hosts
        with open(enter, "w") as file:
            file.write("#!/bin/sh\nhost=$1\nshift\nexec %s %s sh -c \"%s %s run -- sh -c '$*'\"\n" %
                       (" ".join(place.client).replace(THERE, "$host"), " ".join((*APART, "--mount")), named % "$host", NUPA))
        os.chmod(enter, 0o755)
        for way in ("rc_v", "ud_v"):
            mpirun = ("mpirun --allow-run-as-root --mca plm_rsh_agent %s --host %s:1,%s:1 -n 2 --mca pml ucx "
                      "--mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=%s,self NPopenmpi -u 4096 -n 20 -p 0 -o %s/out" %
                      (enter, HERE, THERE, way, os.path.dirname(enter)))
            started("nupa run -- " + mpirun)
            command = "%s %s run -- %s" % (named % HERE, NUPA, mpirun)
            try:
                done = subprocess.run([*place.server, *APART, "--mount", "sh", "-c", command], capture_output=True, text=True,
                                      timeout=90, stdin=subprocess.DEVNULL)
                said = done.stdout + done.stderr
                outcome(done.returncode == 0 and "4096 bytes" in said, place.name + "mpirun -n 2 NPopenmpi, " + way,
                        "status %d: %s" % (done.returncode, said[-300:]))
            except subprocess.TimeoutExpired as late:
                outcome(False, place.name + "mpirun -n 2 NPopenmpi, " + way, "still running: %s" % (late.stdout or b"")[-300:])


def main():
    private_runtime_dir()
    here = os.environ["NUPA_RUNTIME_DIR"]
    if not make_hosts(9000, ipv4=False):
        skip("hosts with IPv6 alone", "needs root, network namespaces and veth")
        finish()
    there = private_runtime_dir()
    os.environ["NUPA_RUNTIME_DIR"] = here
    place = Place("hosts ", None, SERVER, (*inside(HERE), "env", "NUPA_RUNTIME_DIR=" + here),
                  (*inside(THERE), "env", "NUPA_RUNTIME_DIR=" + there))
    try:
        gids(place)
        connection_manager(place)
        ucx(place)
        open_mpi(place)
    finally:
        remove_hosts()
    finish()


main()
