#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that look for an adapter in /sys and /dev before they open one, unmodified, under `nupa run`."""
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pairs import NUPA, ROOT, finish, nupa, outcome, private_runtime_dir, skip, wait_for

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


NLDEV, GET, SYS_GET = 5 << 10, 1, 6
DUMP, ACK = 0x300, 4


def ask(command, flags=0, attributes=""):
    """The code of a request by NETLINK_RDMA, whose answers are printed: type, flags, number, attributes."""
    return """
import socket, struct
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 20) as asks:
    asks.bind((0, 0))
    attributes = %s
    asks.send(struct.pack("=IHHII", 16 + len(attributes), %d, %d | 1, 77, 0) + attributes)
    while True:
        try:
            answer = asks.recv(65536)
        except BlockingIOError:
            break
        length, kind, flags, number, port = struct.unpack_from("=IHHII", answer)
        said = [str(kind), str(flags), str(number)] if length == len(answer) else ["broken"]
        if kind in (2, 3):
            said.append(str(struct.unpack_from("=i", answer, 16)[0]))
        else:
            at = 16
            while at < length:
                size, name = struct.unpack_from("=HH", answer, at)
                said.append("%%d=%%s" %% (name, answer[at + 4:at + size].hex()))
                at += size + 3 & ~3
        print(*said)
""" % (attributes or "b''", NLDEV + command, flags)


def netlink():
    """The kernel's answers about devices, where the kernel has none: rdma/rdma_netlink.h."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20).close()
        skip("netlink", "this kernel answers itself")
        return
    except OSError:
        pass
    first = devices()[0]
    name = first["name"].encode().hex() + "00"
    guid = int(open_tree("nupa0/node_guid").replace(":", ""), 16).to_bytes(8, "little").hex()
    python = ["/usr/bin/python3", "-c"]
    device = "1=00000000 2=%s 3=01000000 " % name
    seen("netlink: a device by its index", python + [ask(GET, attributes="struct.pack('=HHI', 8, 1, 0)")], "5121 0 77 " + device, "6=" + guid, "14=01")
    seen("netlink: with an acknowledgement", python + [ask(GET, ACK, "struct.pack('=HHI', 8, 1, 0)")], "5121 0 77 " + device, "2 0 77 0\n")
    seen("netlink: all devices", python + [ask(GET, DUMP)], "5121 2 77 " + device, "3 2 77 0\n")
    seen("netlink: no such device", python + [ask(GET, attributes="struct.pack('=HHI', 8, 1, 9)")], "2 0 77 -%d\n" % errno.ENODEV)
    seen("netlink: no index", python + [ask(GET)], "2 0 77 -%d\n" % errno.EINVAL)
    seen("netlink: attributes that go beyond the request", python + [ask(GET, attributes="struct.pack('=HHH', 8, 1, 0)")],
         "2 0 77 -%d\n" % errno.EINVAL)
    seen("netlink: the system", python + [ask(SYS_GET)], "5126 0 77 66=01 93=01\n")
    seen("netlink: another request", python + [ask(2)], "2 0 77 -%d\n" % errno.EOPNOTSUPP)
    seen("netlink: sockets end when they are closed", python + ["for turn in range(100):\n    exec(%r)\nimport os; print(len(os.listdir('/proc/self/fd')))"
                                                                  % ask(SYS_GET)], "\n4\n")
    seen("netlink: a descriptor that is used again", python + [ask(SYS_GET) + """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.bind(("127.0.0.1", 0))
    assert here.fileno() == 3
    here.sendto(b"plain", here.getsockname())
    print(here.recv(9))
"""], "b'plain'")
    done = subprocess.run(["/usr/bin/python3", "-c", ask(SYS_GET)], capture_output=True, text=True, timeout=LIMIT_S)
    outcome("Protocol not supported" in done.stderr, "netlink: without nupa run it is the kernel's answer", done.stderr[-200:])


def open_tree(path):
    return subprocess.run([NUPA, "run", "--", "cat", CLASS + "/" + path], capture_output=True, text=True, timeout=LIMIT_S).stdout


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


PORT = CLASS + "/nupa0/ports/1/"
COUNTERS = ("counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_packets", "hw_counters/req_cqe_error")


def values():
    """The counters as a program sees them."""
    done = subprocess.run([NUPA, "run", "--", "cat"] + [PORT + name for name in COUNTERS], capture_output=True, text=True, timeout=LIMIT_S)
    return [int(line) for line in done.stdout.split()]


def transfer(transport):
    """A pair that sends 100 messages of 1,000 bytes to each side."""
    environment = dict(os.environ, NUPA_TRANSPORT=transport)
    server = subprocess.Popen([NUPA, "run", "--", "ibv_rc_pingpong", "-g", "1", "-s", "1000", "-n", "100"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=environment)
    # It retries until the server listens.
    deadline = time.monotonic() + LIMIT_S
    while True:
        client = subprocess.run([NUPA, "run", "--", "ibv_rc_pingpong", "-g", "1", "-s", "1000", "-n", "100", "127.0.0.1"],
                                capture_output=True, text=True, env=environment, timeout=LIMIT_S)
        if client.returncode == 0 or time.monotonic() > deadline or server.poll() is not None:
            break
    server.communicate(timeout=LIMIT_S)
    return client.returncode == 0 and server.returncode == 0


def counters():
    if shutil.which("ibv_rc_pingpong") is None:
        skip("counters", "ibverbs-utils is not installed")
        return
    before = values()
    outcome(len(before) == len(COUNTERS), "counters can be read", str(before))
    outcome(transfer("shm"), "a transfer over shared memory", "")
    after = values()
    grown = [now - then for now, then in zip(after, before)]
    outcome(grown == [50_000, 50_000, 200, 0], "its counters have grown by all bytes and messages", str(grown))
    outcome(transfer("roce"), "a transfer by packets", "")
    last = values()
    grown = [now - then for now, then in zip(last, after)]
    outcome(min(grown[:2]) >= 50_000 and grown[2] >= 200 and grown[3] == 0, "its counters have grown by all bytes at least", str(grown))
    seen("cat of a folder's counters", ["sh", "-c", "cd %scounters && cat port_xmit_data" % PORT], "%d\n" % last[0])
    seen("cat of a pattern", ["sh", "-c", "cat %scounters/port_xmit_dat*" % PORT], "%d\n" % last[0])
    # A process that is killed: what it has counted up to the last look stays.
    server = subprocess.Popen([NUPA, "run", "--", "ib_send_bw", "-D", "30"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = subprocess.Popen([NUPA, "run", "--", "sh", "-c", "until ib_send_bw -D 30 127.0.0.1; do :; done"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    looks = [values()[0]]
    deadline = time.monotonic() + LIMIT_S
    while (looks[-1] == last[0] or len(looks) < 10) and time.monotonic() < deadline:
        looks.append(values()[0])
    outcome(looks[-1] > last[0] and looks == sorted(looks), "counters of running processes grow", str(looks[-5:]))
    os.killpg(client.pid, signal.SIGKILL)
    server.kill()
    client.wait()
    server.wait()
    outcome(values()[0] >= looks[-1], "after kill -9 no counter has fallen", str(looks[-1:]))


STATIC = """
#include <dirent.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char** argv) {
  DIR* folder = opendir("/sys/class/infiniband");
  struct dirent* entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) puts(entry->d_name);
  char text[64] = "";
  FILE* file = fopen(argv[1], "r");
  if (file != NULL && fgets(text, sizeof text, file) != NULL) fputs(text, stdout);
  return argc > 2 ? 7 : 0;
}
"""


def mounted():
    """Programs that no library reaches."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip("nupa run --mount", "no compiler")
        return
    with tempfile.TemporaryDirectory(prefix="nupa-static-") as folder:
        os.chmod(folder, 0o755)
        program = os.path.join(folder, "static")
        made = subprocess.run([compiler, "-static", "-x", "c", "-o", program, "-"], input=STATIC, capture_output=True, text=True)
        if made.returncode != 0:
            skip("nupa run --mount", "no static C library: " + made.stderr[-200:])
            return
        users = [("root", [])] if os.geteuid() == 0 else [("an ordinary user", [])]
        if os.geteuid() == 0 and shutil.which("setpriv"):
            users.append(("an ordinary user", ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "env",
                                               "NUPA_RUNTIME_DIR=" + os.path.join(folder, "user")]))
            os.mkdir(os.path.join(folder, "user"), 0o700)
            os.chown(os.path.join(folder, "user"), 12345, 12345)
        for user, prefix in users:
            def run(*command):
                return subprocess.run([*prefix, NUPA, "run", "--mount", "--", *command], capture_output=True, text=True, timeout=LIMIT_S)
            done = run(program, PORT + "state")
            if "user namespace" in done.stderr:
                skip("nupa run --mount of " + user, done.stderr.strip())
                continue
            outcome(done.stdout == "nupa0\n4: ACTIVE\n", "a static program of %s finds the device" % user, done.stdout + done.stderr)
            done = run(program, "/sys/class/net/lo/mtu")
            outcome(done.stdout == "nupa0\n65536\n", "and what was there before (%s)" % user, done.stdout + done.stderr)
            done = run(program, PORT + "state", "fails")
            outcome(done.returncode == 7, "its status is returned (%s)" % user, str(done.returncode))
            done = run("sh", "-c", "kill -9 $$")
            outcome(done.returncode in (-9, 137), "or its signal (%s)" % user, str(done.returncode))
            outcome("nupa0" not in os.listdir("/sys/class") and not os.path.exists(CLASS + "/nupa0"), "nothing is mounted outside (%s)" % user, "")
        if shutil.which("ibv_rc_pingpong"):
            # The file of a static program, which the library refreshes for no one.
            before = values()[0]
            waits = subprocess.Popen([NUPA, "run", "--mount", "--", "sh", "-c",
                                      "until test $(%s %scounters/port_xmit_data | tail -1) -gt %d; do :; done" % (program, PORT, before)])
            outcome(transfer("shm"), "a transfer beside it", "")
            try:
                outcome(waits.wait(LIMIT_S) == 0, "its counters grow", "")
            except subprocess.TimeoutExpired:
                waits.kill()
                outcome(False, "its counters grow", "they do not")
    outcome(wait_for(lambda: not refreshers()), "no process is left", str(refreshers()))


def refreshers():
    """The processes that keep a mounted tree up to date: each is a copy of its `nupa run --mount`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as line, open("/proc/%s/environ" % pid, "rb") as environment:
                if b"--mount" in line.read() and runtime_dir.encode() in environment.read():
                    found.append(pid)
        except OSError:
            pass
    return found


def left_behind():
    trees = [name for name in os.listdir(runtime_dir) if name.startswith("tree-")]
    outcome(len(trees) == 1, "programs with the same devices share a tree", str(trees))
    done = nupa("clean")
    outcome(done.returncode == 0 and not os.listdir(runtime_dir), "nupa clean removes it", done.stdout + str(os.listdir(runtime_dir)))


shells()
languages()
netlink()
calls()
diagnostics()
counters()
mounted()
left_behind()
finish()
