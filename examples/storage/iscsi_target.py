# SPDX-License-Identifier: Apache-2.0
"""A block device that tgt (the SCSI target of Debian) serves twice: by iSCSI over TCP, and by iSER, iSCSI's extensions for
RDMA, on NUPA. All programs are unmodified: tgtd, tgtadm, and as initiator QEMU's iscsi driver (libiscsi)."""
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

NAME = "iqn.2026-11.example.nupa"
INITIATOR = NAME + ":initiator"
LIMIT = 256 << 10  # bytes of one request: the most that libiscsi's iSER takes


def missing_programs():
    wanted = {"tgtd": "tgt", "tgtadm": "tgt", "qemu-img": "qemu-utils", "qemu-io": "qemu-utils"}
    lacking = {package for name, package in wanted.items() if not shutil.which(name)}
    if not any(os.path.exists("/usr/lib/%s-linux-gnu/qemu/block-iscsi.so" % machine) for machine in ("x86_64",)):
        lacking.add("qemu-block-extra")
    return sorted(lacking)


def free_port():
    """A TCP port below 32768: tgt keeps the port of RDMA in a signed 16-bit integer."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                pass


class Failed(Exception):
    """A program failed. The text holds its output."""


class Target:
    """Serves `image` at `address` until the `with` block is left. `nupa`: the command line that puts a program on NUPA;
    `before`: a command line that starts a program where the target runs (in another network namespace)."""

    def __init__(self, nupa, address, image, before=()):
        self.nupa, self.address, self.image, self.before = nupa, address, image, list(before)
        self.ports = free_port(), free_port()
        self.folder = tempfile.mkdtemp(prefix="nupa-target-")
        self.control = os.path.join(self.folder, "control")
        self.log = open(os.path.join(self.folder, "log"), "w+b")
        self.process = None

    def __enter__(self):
        tcp, rdma = self.ports
        command = ["tgtd", "-f", "-C", "1", "--iscsi", "portal=%s:%d" % (self.address, tcp), "--iser", "port=%d,pool_sz_mb=64" % rdma]
        self.process = subprocess.Popen([*self.before, *self.nupa, *command], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env=dict(os.environ, TGT_IPC_SOCKET=self.control),
                                        start_new_session=True)
        try:
            self.wait()
            for number, driver in ((1, "iscsi"), (2, "iser")):
                at = ("--lld", driver, "--tid", str(number))
                self.admin(*at, "--op", "new", "--mode", "target", "-T", "%s:%s" % (NAME, driver))
                self.admin(*at, "--op", "new", "--mode", "logicalunit", "--lun", "1", "-b", self.image)
                self.admin(*at, "--op", "bind", "--mode", "target", "-I", "ALL")
                # tgt accepts an RDMA initiator only if both its name and its address are bound.
                self.admin(*at, "--op", "bind", "--mode", "target", "--initiator-name", INITIATOR)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self):
        end = time.monotonic() + 20
        while not os.path.exists(self.control + ".1") or self.ask("--op", "show", "--mode", "target").returncode != 0:
            if time.monotonic() > end or self.process.poll() is not None:
                raise Failed("tgtd does not answer: " + self.said())
            time.sleep(0.05)

    def ask(self, *words):
        return subprocess.run(["tgtadm", "-C", "1", *words], capture_output=True, text=True,
                              env=dict(os.environ, TGT_IPC_SOCKET=self.control))

    def admin(self, *words):
        done = self.ask(*words)
        if done.returncode != 0:
            raise Failed("tgtadm %s: %s%s" % (" ".join(words), done.stderr, self.said()))

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-400:]

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def options(self, driver):
        """Returns QEMU's name of the device. `driver` is iscsi (TCP) or iser."""
        transport, port = ("tcp", self.ports[0]) if driver == "iscsi" else ("iser", self.ports[1])
        return ("driver=iscsi,transport=%s,portal=%s:%d,target=%s:%s,lun=1,initiator-name=%s"
                % (transport, self.address, port, NAME, driver, INITIATOR))

    def url(self, driver):
        """Returns libiscsi's name of the device."""
        if driver == "iscsi":
            return "iscsi://%s:%d/%s:iscsi/1" % (self.address, self.ports[0], NAME)
        return "iser://%s:%d/%s:iser/1" % (self.address, self.ports[1], NAME)
