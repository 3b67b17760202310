#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No room in /dev/shm, limits of a process reached at one step after the other, no mapping left: the call concerned
says so, and the program lives."""
import os
import re
import shutil
import subprocess
import tempfile
from pairs import NUPA, finish, free_port, left_in, nupa, outcome, private_runtime_dir, run_pair, skip, wait_for

runtime_dir = private_runtime_dir()
HERE = os.path.dirname(os.path.abspath(__file__))
work = tempfile.mkdtemp(prefix="nupa-limits-")
PROBE = os.path.join(work, "limits_probe")
CALLS = ("ibv_open_device", "ibv_create_comp_channel", "ibv_create_cq", "ibv_create_srq", "ibv_reg_mr",
         "ibv_create_qp", "modify RTR", "the program's own buffer")


def probe(arguments, before=(), env=None, seconds=50):
    return nupa("run", "--", PROBE, *map(str, arguments), before=before, env=env, seconds=seconds)


def sane(done, errors):
    """Ended by itself, and each failure was an expected errno of a call that may fail. "" or what is wrong."""
    if not 0 <= done.returncode < 126:
        return "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-200:])
    for line in done.stdout.splitlines():
        told = re.search(r"(?:^|: )([a-zA-Z_' ]+): errno (\d+)", line)
        if told and (told.group(1) not in CALLS or int(told.group(2)) not in errors):
            return "unexpected: " + line
        if "cannot take down" in line:
            return line
    return ""


def sweep(name, option, limits, errors, arguments=(3000000,)):
    """The limit at ever larger values: sane at each, an error at the smallest, success at the largest."""
    statuses, reason = [], ""
    for limit in limits:
        done = probe(arguments, before=("prlimit", option % (limit, limit)))
        # A program that the limit keeps from starting at all says nothing about NUPA.
        if done.returncode == 127 or "error while loading" in done.stderr:
            statuses.append("-")
            continue
        reason = reason or (sane(done, errors) and "%s: %s" % (option % (limit, limit), sane(done, errors)))
        statuses.append(done.returncode)
    if not reason and (statuses[0] == 0 or statuses[-1] != 0):
        reason = "from %s to %s" % (statuses[0], statuses[-1])
    outcome(reason == "", name, "%s (statuses %s)" % (reason, statuses))
    left = left_in(runtime_dir)
    outcome(left == [], name + "-leaves-nothing", str(left))
    nupa("clean")


def mappings():
    for mode in ("maps", "opened"):
        for remap in ("auto", "never"):
            name = "no-mapping-left %s NUPA_REMAP=%s" % (mode, remap)
            done = probe((30000000, mode), env={"NUPA_REMAP": remap})
            if done.returncode == 77:
                skip(name, done.stdout.strip())
                continue
            tries = [line for line in done.stdout.splitlines() if line.startswith("free ")]
            first = tries[0] if tries else ""
            # The thread of open_device needs a stack: EAGAIN is how pthread_create tells that there is no memory.
            reason = sane(done, (12, 11))
            outcome(reason == "" and done.returncode == 0 and "errno" in first and len(tries) == 41 and
                    tries[-1] == "free all: all worked", name,
                    "%s; status %s, first %s, last %s" % (reason, done.returncode, first, tries[-1:]))


def address_comes_later():
    """The addresses that the device tells are those that peers accept, also when the host has new ones by now."""
    add = "ip link add v type veth peer name w && ip addr add 10.97.0.1/24 dev v && ip link set v up"
    done = probe((3000000, "then", add), before=("unshare", "--net"))
    if done.returncode == 77 or "unshare:" in done.stderr:
        return skip("address-comes-after-open", "no network namespace to be had")
    outcome(done.returncode == 0 and "all worked" in done.stdout, "address-comes-after-open",
            "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-300:]))


def more_processes_than_descriptors():
    """A server may have 256 descriptors, of which each process that it shares memory with takes four. More clients than
    that are connected to it, the further ones by packets, and it can still open files of its own."""
    program, port = os.path.join(work, "many_clients"), str(free_port())
    if not build(program, "many_clients.cc", "-lrdmacm", "-libverbs"):
        return
    limited = ("prlimit", "--nofile=256:256", NUPA, "run", "--", program, "server", "127.0.0.1", port)
    for transport, all_come in (("auto", True), ("shm", False)):
        name = "more-clients-than-descriptors " + transport
        env = dict(os.environ, NUPA_TRANSPORT=transport)
        server = subprocess.Popen(limited, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        try:
            outcome(server.stdout.readline() == "ready\n", name + " server")
            done = nupa("run", "--", program, "clients", "127.0.0.1", port, "40", env={"NUPA_TRANSPORT": transport}, seconds=100)
            held = len(os.listdir("/proc/%d/fd" % server.pid))
            text = done.stdout + done.stderr
            if all_come:
                outcome(done.returncode == 0 and "40 of 40 answered" in text, name, text[-300:])
            else:
                # Without another transport the further ones get an error at once, not silence.
                outcome(done.returncode == 1 and "32 of 40 answered" in text, name, text[-300:])
            outcome(held < 192, name + " leaves descriptors", str(held))
        finally:
            said = server.communicate("")[0]
        outcome(server.returncode == 0 and "ulimit -n" in said, name + " log", "%s: %s" % (server.returncode, said[-300:]))


# Runs in a mount namespace of its own: /dev/shm and the runtime directory lie on a file system of 2 MiB.
SMALL = r"""
mount -t tmpfs -o size=2m,mode=1777%s tmpfs /dev/shm || exit 99
mkdir -m 700 /dev/shm/nupa
%s
export NUPA_RUNTIME_DIR=%s
exec "$@"
"""


def on_small(prepare="", options="", folder="/dev/shm/nupa"):
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", SMALL % (options, prepare, folder), "sh")


def small_file_system():
    if subprocess.run([*on_small(), "true"], capture_output=True).returncode != 0:
        return skip("small-file-system", "mounting is not allowed")
    fill = "dd if=/dev/zero of=/dev/shm/ballast bs=64k 2>/dev/null"
    # Registered memory and tables are memory files, not files of /dev/shm: a full one hinders nothing.
    for name, prepare in (("2-MiB-shm", ""), ("full-shm", fill)):
        done = nupa("run", "--", "ibv_devinfo", before=on_small(prepare))
        outcome(done.returncode == 0 and "PORT_ACTIVE" in done.stdout, name + " ibv_devinfo",
                "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-200:]))
        done = probe((64 << 20,), before=on_small(prepare))
        outcome(done.returncode == 0 and "all worked" in done.stdout, name + " probe",
                "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-200:]))
    for name, setting, folder, said in (
            ("no-inode-for-the-socket", (fill + "; while true >/dev/shm/f$((i=i+1)); do :; done 2>/dev/null",
                                         ",nr_inodes=16"), "/dev/shm/nupa", "No space left"),
            ("no-inode-for-the-folder", ("while true >/dev/shm/f$((i=i+1)); do :; done 2>/dev/null", ",nr_inodes=16"),
             "/dev/shm/other", "No space left"),
            ("read-only-folder", ("mount -o remount,ro /dev/shm", ""), "/dev/shm/nupa", "Read-only")):
        done = nupa("run", "--", "ibv_devinfo", before=on_small(setting[0], setting[1], folder))
        text = done.stdout + done.stderr
        outcome(0 < done.returncode < 126 and said in text and "nupa[" in text, name,
                "status %s: %s" % (done.returncode, text[-300:]))
        done = probe((3000000,), before=on_small(setting[0], setting[1], folder))
        outcome(done.returncode == 1 and re.search(r"ibv_open_device: errno (28|30) ", done.stdout) is not None,
                name + " errno", "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-300:]))
    # Both ends in one small file system: it is mounted once, outside.
    small = tempfile.mkdtemp(prefix="small-", dir=work)
    script = "mount -t tmpfs -o size=2m tmpfs %s && mkdir -m 700 %s/nupa && exec sleep 120" % (small, small)
    holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", script])
    try:
        inside = ("nsenter", "-t", str(holder.pid), "-m")
        wait_for(lambda: subprocess.run([*inside, "test", "-d", small + "/nupa"]).returncode == 0)
        for case in ("ib_write_bw -s 67108864 -n 5", "ib_send_bw -s 16777216 -n 5"):
            port = free_port()
            # -F: perftest does not give up where it cannot measure the processor's clock (run_perftest.py).
            command = case.replace(" ", " -F -d nupa0 -x 1 -p %d " % port, 1)
            run_pair("2-MiB-runtime-dir " + case, command, command + " 127.0.0.1", port, before=inside,
                     env={"NUPA_RUNTIME_DIR": small + "/nupa"})
    finally:
        holder.kill()
        holder.wait()


def build(program, source, *libraries):
    built = subprocess.run(["g++", "-std=c++20", "-O1", os.path.join(HERE, source), "-o", program, *libraries], capture_output=True, text=True)
    if built.returncode != 0:
        outcome(False, source + " builds", built.stderr[-300:])
    return built.returncode == 0


try:
    if not build(PROBE, "limits_probe.cc", "-libverbs"):
        finish()
    done = probe((3000000,))
    outcome(done.returncode == 0 and "all worked" in done.stdout, "no-limit", done.stdout + done.stderr)
    MIB = 1 << 20
    EMFILE, ENOMEM, EFBIG, EAGAIN = 24, 12, 27, 11
    sweep("file-size", "--fsize=%d:%d", [0, 4096, 1 * MIB, 12 * MIB, 16 * MIB, 18 * MIB, 20 * MIB, 24 * MIB, 32 * MIB,
                                         40 * MIB, 48 * MIB, 64 * MIB, 80 * MIB, 96 * MIB, 128 * MIB, 256 * MIB],
          (EFBIG,), (30000000,))
    sweep("files", "--nofile=%d:%d", list(range(5, 30)), (EMFILE,))
    sweep("address-space", "--as=%d:%d", [mib * MIB for mib in range(30, 260, 10)] + [1024 * MIB], (ENOMEM, EAGAIN))
    sweep("data", "--data=%d:%d", [mib * MIB for mib in (4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 512)],
          (ENOMEM, EAGAIN))
    mappings()
    address_comes_later()
    more_processes_than_descriptors()
    small_file_system()
    left_over = left_in(runtime_dir)
    outcome(left_over == [], "nothing-left", str(left_over))
finally:
    shutil.rmtree(work, ignore_errors=True)
finish()
