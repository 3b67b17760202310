#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How ranks of collectives find each other under the launchers that people have: `nupa ccl bench` checks its results
under mpirun, torchrun, variables set by hand, at a port and by a file; and what is said where that cannot be."""
import os
import re
import shutil
import subprocess
import tempfile
import time
from pairs import (ALL, NUPA, finish, free_port, missing_program, nupa, outcome, private_runtime_dir, skip, started, stop,
                   transports, wait_for)

private_runtime_dir()
SECONDS = 60  # for what takes far less
BENCH = [NUPA, "ccl", "bench", "--operation", "all_reduce,all_gather", "--min-bytes", "64", "--max-bytes", "64K", "--factor", "32",
         "--iterations", "2"]
ROWS = 6  # of two operations and three sizes
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
work = tempfile.mkdtemp(prefix="nupa-ccl-start-")


def environment(**more):
    """Of a process that nobody has started as a rank, but for what is given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "SLURM_"))}
    return dict(inherited, OMP_NUM_THREADS="1", **more)


def run(command, **variables):
    started(" ".join(["%s=%s" % item for item in variables.items()] + command).replace(NUPA, "nupa"))
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
                              env=environment(**variables))
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, -1000, "", "still running after %d s" % SECONDS)


def by_hand(ranks, names, pause=0, command=tuple(BENCH), **variables):
    """Each rank is started by itself, the last one first; `names`: what variables its number and theirs are in."""
    started(" ".join(["%s=%s" % item for item in variables.items()] + list(command)).replace(NUPA, "nupa"))
    processes = []
    for rank in reversed(range(ranks)):
        own = environment(**variables, **{names[0]: str(rank), names[1]: str(ranks)})
        processes.append(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True))
        time.sleep(pause)  # sleep: the next rank comes so much later
    said, status = "", 0
    for process in processes:
        try:
            text, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            stop(process)
            text, _ = process.communicate()
        said, status = said + text, status or process.returncode
    return subprocess.CompletedProcess(command, status, said, "")


def right(name, done, ranks):
    """So many ranks met, in one job, and all results were right."""
    rows = re.findall(r" (ok|wrong)  ", done.stdout)
    jobs = re.findall(r"^(?:\[\S*\]:)?(\d+) ranks, ", done.stdout, re.M)
    outcome(done.returncode == 0 and rows == ["ok"] * ROWS and jobs == [str(ranks)], name,
            "status %s, jobs of %s, %s: %s" % (done.returncode, jobs, rows, (done.stdout + done.stderr)[-400:]))


def said(name, done, status, *texts):
    text = done.stdout + done.stderr
    missing = [one for one in texts if one not in text]
    outcome(done.returncode == status and not missing, name,
            "status %s, not said: %s; said: %s" % (done.returncode, missing, text[-400:]))


def at_a_port():
    names = ("NUPA_RANK", "NUPA_WORLD_SIZE")
    for label, host in (("address", "127.0.0.1"), ("name", "localhost"), ("ipv6", "[::1]")):
        if label == "ipv6" and not os.path.exists("/proc/net/if_inet6"):
            skip("ccl-start-port-ipv6", "this machine has no IPv6")
            continue
        right("ccl-start-port-" + label, by_hand(3, names, NUPA_CCL_ROOT="tcp://%s:%d" % (host, free_port())), 3)
    where = "tcp://localhost:%d?key=a secret" % free_port()
    for turn in ("first", "second"):
        right("ccl-start-port-%s-job" % turn, by_hand(3, names, 0.7, NUPA_CCL_ROOT=where), 3)
    said("ccl-start-port-without-rank-0", run(BENCH, NUPA_RANK="1", NUPA_WORLD_SIZE="2", NUPA_CCL_TIMEOUT="2",
                                              NUPA_CCL_ROOT=where), 1, "rank 0 did not join")
    said("ccl-start-port-without-rank-1", run(BENCH, NUPA_RANK="0", NUPA_WORLD_SIZE="2", NUPA_CCL_TIMEOUT="2",
                                              NUPA_CCL_ROOT=where), 1, "missing: rank 1")
    said("ccl-start-not-a-place", run(BENCH, NUPA_RANK="0", NUPA_WORLD_SIZE="2", NUPA_CCL_ROOT="tcp://host"), 1, "NUPA_CCL_ROOT",
         "tcp://HOST:PORT")


def by_a_file():
    names = ("NUPA_RANK", "NUPA_WORLD_SIZE")
    path = os.path.join(work, "job")
    for turn in ("first", "second"):
        right("ccl-start-file-%s-job" % turn, by_hand(3, names, NUPA_CCL_ROOT="file://" + path), 3)
    # Rank 0 is killed while it waits: the next job is not misled by what it has left.
    first = subprocess.Popen(BENCH, env=environment(NUPA_RANK="0", NUPA_WORLD_SIZE="3", NUPA_CCL_ROOT="file://" + path),
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: os.path.exists(path), SECONDS)
    first.kill()
    first.wait()
    left = os.path.exists(path)
    right("ccl-start-file-after-a-killed-job", by_hand(3, names, 1.5, NUPA_CCL_ROOT="file://" + path), 3)
    outcome(left and not os.listdir(work), "ccl-start-file-is-gone", "%s, %s" % (left, os.listdir(work)))


def by_variables():
    for label, names in (("torch", ("RANK", "WORLD_SIZE")), ("mpich", ("PMI_RANK", "PMI_SIZE")),
                         ("slurm", ("SLURM_PROCID", "SLURM_NTASKS"))):
        right("ccl-start-numbers-of-" + label, by_hand(2, names, NUPA_CCL_ROOT="tcp://127.0.0.1:%d" % free_port()), 2)
    right("ccl-start-master-port", by_hand(3, ("RANK", "WORLD_SIZE"), MASTER_ADDR="localhost", MASTER_PORT=str(free_port())), 3)


def by_nupa_launch():
    right("ccl-start-nupa-launch", run([NUPA, "launch", "-n", "3", "--no-label", "--", *BENCH]), 3)


def by_mpirun():
    if missing_program("mpirun"):
        return
    for ranks in (1, 2, 5):
        right("ccl-start-mpirun-%d-ranks" % ranks, run([*MPIRUN, "-n", str(ranks), *BENCH]), ranks)
    for late in (0, 2):
        right("ccl-start-mpirun-rank-%d-is-late" % late,
              # sleep: longer than mpirun's servers wait for the values of a rank
              run([*MPIRUN, "-n", "3", "sh", "-c", "[ $PMIX_RANK != %d ] || sleep 5; exec %s" % (late, " ".join(BENCH))]), 3)
    done = run([*MPIRUN, "-n", "2", "-x", "NUPA_CCL_TIMEOUT=3", "sh", "-c",
                "[ $PMIX_RANK = 1 ] || exec sleep 20; exec " + " ".join(BENCH)])
    said("ccl-start-mpirun-without-rank-0", done, 1, "rank 0 did not join")
    # Its servers' numbers without its servers.
    done = run([*MPIRUN, "-n", "1", "env", "-u", "PMIX_RANK", *BENCH, "-n", "2"])
    right("ccl-start-bench-starts-ranks-itself", done, 2)
    if not missing_program("python3"):
        mpi_beside()


def mpi_beside():
    """A program that uses MPI, too, which talks to the same server; and one communicator after the other."""
    program = os.path.join(work, "beside.py")
    with open(program, "w") as text:
        text.write("""import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def meet():
    comm, rank = ctypes.c_void_p(), ctypes.c_uint32()
    if library.nupa_ccl_comm_init(ctypes.byref(comm)):
        library.nupa_ccl_error_text.restype = ctypes.c_char_p
        sys.exit(library.nupa_ccl_error_text().decode())
    assert library.nupa_ccl_comm_rank(comm, ctypes.byref(rank)) == 0
    total = ctypes.c_int32(rank.value + 1)
    assert library.nupa_ccl_all_reduce(ctypes.byref(total), ctypes.byref(total), ctypes.c_size_t(1), 4, 0, comm, None) == 0
    assert library.nupa_ccl_comm_destroy(comm) == 0
    return rank.value, total.value
before = meet() if sys.argv[2] == "before" else None
from mpi4py import MPI
world = MPI.COMM_WORLD
seen = [meet(), meet()] + ([before] if before else [])
assert seen == [(world.rank, 6)] * len(seen), seen
assert world.allreduce(world.rank + 1) == 6
print("all is right")
""")
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import mpi4py"], capture_output=True).returncode != 0:
        return skip("ccl-start-mpi-beside", "mpi4py is not installed")
    library = os.path.join(os.path.dirname(os.path.dirname(NUPA)), "lib", "libnupa_ccl.so.0")
    for order in ("after", "before"):
        done = run([*MPIRUN, "-n", "3", python, program, library, order])
        outcome(done.returncode == 0 and done.stdout.count("all is right") == 3, "ccl-start-%s-mpi" % order,
                "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-500:]))
    os.remove(program)


def by_torchrun():
    if missing_program("torchrun"):
        return
    # Its outputs go by files, too: without them Debian's 1.13 fails on Python 3.11.
    torchrun = ["torchrun", "--nproc_per_node=2", "--redirects=1", "--tee=1", "--log_dir=" + os.path.join(work, "log"),
                "--master_port=%d" % free_port(), "--no_python", *BENCH]
    right("ccl-start-torchrun", run(torchrun, NUPA_CCL_ROOT="tcp://localhost:%d" % free_port()), 2)
    said("ccl-start-torchrun-has-the-port", run(torchrun), 1, "torchrun's own store", "NUPA_CCL_ROOT=tcp://")


def what_is_missing():
    said("ccl-start-no-launcher", run(BENCH), 2, "the number of ranks is missing")
    said("ccl-start-open-mpi-without-pmix", run(BENCH, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2"), 2, "the number of ranks is missing")
    said("ccl-start-no-server", run(BENCH, PMIX_NAMESPACE="nobody", PMIX_RANK="0"), 1, "PMIx")
    said("ccl-start-no-such-rank", run(BENCH, NUPA_RANK="2", NUPA_WORLD_SIZE="2", NUPA_CCL_ROOT="tcp://localhost:1"), 1,
         "NUPA_RANK='2'")


try:
    if "no collectives" in nupa("ccl").stderr:
        skip("ccl-start", "this build has no collectives")
        finish()
    for number, _ in enumerate(transports()):
        # How ranks meet is the same over each transport.
        if ALL or number == 0:
            at_a_port()
            by_a_file()
            by_mpirun()
        else:
            right("ccl-start-port-address", by_hand(3, ("NUPA_RANK", "NUPA_WORLD_SIZE"),
                                                    NUPA_CCL_ROOT="tcp://127.0.0.1:%d" % free_port()), 3)
            by_nupa_launch()
    by_variables()
    by_nupa_launch()
    by_torchrun()
    what_is_missing()
finally:
    shutil.rmtree(work, ignore_errors=True)
finish()
