#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""UCX's own client and server over its connection manager's mode, and MPI programs over UCX, unmodified: io_demo checks
what arrives, NetPIPE and mpi4py's ring go through sizes, HPC Challenge solves and verifies (only with
NUPA_TEST_MPI=all: minutes)."""
import gzip
import os
import re
import subprocess
from cm_pairs import LIBRARY, folder, meet, places, with_port
from hosts import remove_hosts
from pairs import ALL, NUPA, finish, missing_program, outcome, skip, started, transports

TRANSPORTS_OF_UCX = ("rc_v", "ud_v", "ib")
LONG = ALL or os.environ.get("NUPA_TEST_MPI", "") == "all"
INPUT = "/usr/share/doc/hpcc/examples/_hpccinf.txt"
# Where ranks of one host would use the kernel's or Open MPI's own shared memory instead.
MPIRUN = ("mpirun --allow-run-as-root --oversubscribe --mca pml ucx --mca osc ucx --mca btl ^openib,uct,vader "
          "--mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_NET_DEVICES=nupa0:1")


def io_demo(place):
    if missing_program("io_demo"):
        return
    for way in TRANSPORTS_OF_UCX:
        env = {"UCX_TLS": way, "UCX_NET_DEVICES": "nupa0:1", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm",
               "UCX_WARN_UNUSED_ENV_VARS": "n"}
        for options in ("-d 128:4096", "-A -d 4096:300000"):
            common = "io_demo -q -p %d " + options
            server, client, port = with_port(common, "%s -i 100 -o read,write %s" % (common, place.ipv4))
            meet("io_demo over rdmacm, %s %s" % (way, options), place, server, client, (), ["Client exit with status 'OK'"],
                 ["corruption", "detected error"], port, seconds=60, server_survives=True, env=env)


def mpi(place, name, way, ranks, program, says, never=(), at=None, seconds=90):
    """One outcome: the ranks end with status 0, and what they print, or have in the file `at`, is right."""
    command = "%s -x UCX_TLS=%s,self -n %d %s" % (MPIRUN, way, ranks, program)
    started("nupa run -- " + command)
    reason = ""
    try:
        done = subprocess.run([*place.server, NUPA, "run", "--", *command.split()], capture_output=True, text=True,
                              timeout=seconds, stdin=subprocess.DEVNULL, cwd=os.path.dirname(at) if at else None)
        text = done.stdout + done.stderr
        if at and os.path.exists(at):
            with open(at, encoding="utf-8") as result:
                text += result.read()
        wrong = ["no %r" % word for word in says if not re.search(word, text, re.MULTILINE)]
        wrong += ["has %r" % word for word in never if re.search(word, text, re.MULTILINE)]
        if done.returncode != 0 or wrong:
            caught = text.find("Caught signal")  # UCX prints the stack of the rank behind it
            reason = "status %d, %s: %s" % (done.returncode, wrong, text[caught:caught + 3000] if caught >= 0 else text[-300:])
    except subprocess.TimeoutExpired as late:
        reason = "still running: %s" % (late.stdout or b"")[-300:]
    outcome(not reason, place.name + "mpirun -n %d %s, %s" % (ranks, name, way), reason)


def open_mpi(place):
    if missing_program("mpirun", "NPopenmpi"):
        return
    for way in ("rc_v", "ud_v"):
        with folder() as path:
            common = "NPopenmpi -u 65536 -p 0 -n 20 -o %s/out" % path
            mpi(place, "NPopenmpi", way, 2, common, ["65536 bytes"])
            mpi(place, "NPopenmpi -i", way, 2, common + " -i", ["49153 bytes"], ["failed"])
        if subprocess.run(["/usr/bin/python3", "-c", "import mpi4py"], capture_output=True).returncode != 0:
            skip("mpi4py", "is not installed")
            continue
        bench = "/usr/bin/python3 -m mpi4py.bench "
        for ranks in (2, 4):
            mpi(place, "mpi4py.bench helloworld", way, ranks, bench + "helloworld",
                [r"process %d of %d" % (rank, ranks) for rank in range(ranks)])
            mpi(place, "mpi4py.bench ringtest", way, ranks, bench + "ringtest -n 65536 -l 20",
                [r"\(%d processes, 65536 bytes\)" % ranks])


def hpcc(place):
    if missing_program("hpcc") or not LONG:
        return
    source = INPUT if os.path.exists(INPUT) else INPUT + ".gz"
    with (gzip.open if source.endswith(".gz") else open)(source, "rt") as shipped:
        text = re.sub(r"^1000 +Ns", "200          Ns", shipped.read(), flags=re.MULTILINE)
    with folder() as path:
        with open(os.path.join(path, "hpccinf.txt"), "w", encoding="utf-8") as wanted:
            wanted.write(text)
        mpi(place, "hpcc", "rc_v", 4, "hpcc", [r"^End of HPC Challenge", r"\|\|Ax-b\|\|.*PASSED"],
            ["FAILED", "Found [1-9][0-9]* errors"], os.path.join(path, "hpccoutf.txt"), 900)


def main():
    if not os.path.exists(LIBRARY):
        skip("ucx-mpi", "the build has no " + LIBRARY)
        return
    one_host, two_hosts = places()
    for transport in transports():
        for place in (two_hosts if transport == "roce" else []) or one_host:
            io_demo(place)
        for place in one_host:
            open_mpi(place)
            hpcc(place)
    remove_hosts()


if __name__ == "__main__":
    main()
    finish()
