#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that look for an adapter in /sys and /dev before they open one, unmodified, under `nupa run`."""
import json
import os
import shutil
import subprocess
import tempfile
from pairs import NUPA, ROOT, finish, nupa, outcome, private_runtime_dir, skip

CLASS = "/sys/class/infiniband"
PROBE = os.path.join(ROOT, "tests", "e2e", "sysfs_probe.cc")
LIMIT_S = 60
runtime_dir = private_runtime_dir()


def seen(name, command, *wanted, status=0):
    """Runs a program, whose output has all of these texts."""
    done = subprocess.run([NUPA, "run", "--", *command], capture_output=True, text=True, timeout=LIMIT_S)
    missing = [text for text in wanted if text not in done.stdout]
    outcome(done.returncode == status and not missing, name,
            "status %d, without %s: %s" % (done.returncode, missing, (done.stdout + done.stderr)[-300:]))
    return done.stdout


def devices():
    """The devices as NUPA itself shows them."""
    return json.loads(nupa("devices", "--json").stdout)


def shells():
    first = devices()[0]
    seen("cat reads a file", ["cat", CLASS + "/nupa0/ports/1/state"], "4: ACTIVE\n")
    seen("ls lists the class", ["ls", "-l", CLASS], "nupa0 -> ../../devices/virtual/nupa/nupa0/infiniband/nupa0")
    seen("find walks the tree", ["find", CLASS + "/", "-name", "*"], CLASS + "/nupa0")
    seen("find follows links", ["find", "-L", CLASS + "/nupa0/ports", "-name", "rate"], CLASS + "/nupa0/ports/1/rate")
    seen("sh expands a pattern", ["sh", "-c", "cat %s/*/ports/1/gids/0" % CLASS], ":")
    seen("sh changes the folder", ["sh", "-c", "cd %s/nupa0 && cat node_type" % CLASS], "1: CA\n")
    seen("test finds a device file", ["test", "-c", "/dev/infiniband/uverbs0", "-a", "-w", "/dev/infiniband/rdma_cm"])
    seen("readlink -f ends in sysfs", ["readlink", "-f", CLASS + "/nupa0/device"], "/sys/devices/virtual/nupa/nupa0\n")
    seen("realpath of the parent", ["realpath", CLASS + "/nupa0/../.."], "/sys/devices/virtual/nupa/nupa0\n")
    seen("head of a file that is not there", ["head", CLASS + "/nupa9/node_type"], status=1)
    said = seen("all GIDs", ["sh", "-c", "cat %s/nupa0/ports/1/gids/*" % CLASS])
    shown = [gid["gid"] for gid in first["gids"]]
    outcome(len(said.splitlines()) == len(shown), "as many GIDs as nupa devices shows", "%d and %d" % (len(said.splitlines()), len(shown)))


def languages():
    for name, code, wanted in (
            ("os.listdir", "print(os.listdir(%r))" % CLASS, "nupa0"),
            ("os.scandir", "print([entry.name for entry in os.scandir(%r)])" % CLASS, "nupa0"),
            ("os.walk", "print([path for path, _, _ in os.walk(%r, followlinks=False)])" % (CLASS + "/nupa0/"), "ports/1/gid_attrs"),
            ("open", "print(open(%r).read())" % (CLASS + "/nupa0/fw_ver"), "0."),
            ("os.path.realpath", "print(os.path.realpath(%r))" % (CLASS + "/nupa0/../.."), "/sys/devices/virtual/nupa/nupa0"),
            ("pathlib", "import pathlib; print([str(path) for path in pathlib.Path(%r).glob('*/ports/*/rate')])" % CLASS, "ports/1/rate"),
            ("os.stat", "print(os.stat(%r).st_size)" % (CLASS + "/nupa0/ports/1/rate"), ""),
            ("openat", "folder = os.open(%r, os.O_DIRECTORY); print(os.read(os.open('nupa0/node_desc', 0, dir_fd=folder), 99))" % CLASS, "nupa0")):
        seen("python " + name, ["/usr/bin/python3", "-c", "import os; " + code], wanted)


def calls():
    """A program of C that opens the paths by each function of libc."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        skip("calls of libc", "no compiler")
        return
    with tempfile.TemporaryDirectory(prefix="nupa-sysfs-") as folder:
        for name, options in (("", ["-O0"]), (" with FORTIFY_SOURCE", ["-O2", "-D_FORTIFY_SOURCE=2"]),
                              (" with large files", ["-O0", "-D_FILE_OFFSET_BITS=64", "-D_LARGEFILE64_SOURCE"])):
            program = os.path.join(folder, "probe")
            made = subprocess.run([compiler, "-std=c++17", *options, "-o", program, PROBE], capture_output=True, text=True)
            if made.returncode != 0:
                outcome(False, "the probe compiles" + name, made.stderr[-300:])
                continue
            done = subprocess.run([NUPA, "run", "--", program], capture_output=True, text=True, timeout=LIMIT_S)
            for line in done.stdout.splitlines():
                word, _, call = line.partition(" ")
                outcome(word == "ok", "%s%s" % (call, name), line)
            outcome(done.returncode == 0, "all calls of libc" + name, "status %d: %s" % (done.returncode, done.stderr[-200:]))


def diagnostics():
    """Debian's infiniband-diags."""
    if shutil.which("ibstat") is None and not os.path.exists("/usr/sbin/ibstat"):
        skip("ibstat", "infiniband-diags is not installed")
        return
    seen("ibstat", ["/usr/sbin/ibstat", "nupa0"], "CA 'nupa0'", "State: Active", "Physical state: LinkUp", "Rate: 200", "Link layer: Ethernet")
    seen("ibstat -l", ["/usr/sbin/ibstat", "-l"], "nupa0")
    seen("ibstatus", ["/usr/sbin/ibstatus"], "Infiniband device 'nupa0' port 1 status", "4: ACTIVE", "link_layer:\t Ethernet")


def left_behind():
    trees = [name for name in os.listdir(runtime_dir) if name.startswith("tree-")]
    outcome(len(trees) == 1, "programs with the same devices share a tree", str(trees))
    done = nupa("clean")
    outcome(done.returncode == 0 and not os.listdir(runtime_dir), "nupa clean removes it", done.stdout + str(os.listdir(runtime_dir)))


shells()
languages()
calls()
diagnostics()
left_behind()
finish()
