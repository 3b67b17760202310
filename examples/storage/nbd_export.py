# SPDX-License-Identifier: Apache-2.0
"""A block device that qemu-nbd exports by NBD, a protocol over TCP: over TCP itself, and over rsockets (`nupa run --sockets`)
without a change to server or client."""
import os
import signal
import subprocess
import tempfile
import time

from iscsi_target import Failed, free_port


class Export:
    """Serves `image` at `address` until the `with` block is left. `run`: the command line that puts a program on NUPA, empty
    for none; `before`: a command line that starts a program where the server runs."""

    def __init__(self, run, address, image, before=()):
        self.address, self.port = address, free_port()
        self.command = [*before, *run, "qemu-nbd", "-t", "-e", "4", "-b", address, "-p", str(self.port), "-f", "raw",
                        "--cache=writeback", image]
        self.log = tempfile.TemporaryFile()
        self.process = None

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        end = time.monotonic() + 20
        wanted = ":%04X" % self.port
        while not self.listens(wanted):
            if time.monotonic() > end or self.process.poll() is not None:
                self.log.seek(0)
                said = self.log.read().decode(errors="replace")
                self.__exit__()
                raise Failed("qemu-nbd does not listen: " + said)
            time.sleep(0.02)
        return self

    def listens(self, wanted):
        try:
            with open("/proc/%d/net/tcp" % self.process.pid) as lines:
                return any(fields[1].endswith(wanted) and fields[3] == "0A" for fields in map(str.split, lines))
        except OSError:
            return False

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()

    def options(self):
        """Returns QEMU's name of the device."""
        return "driver=nbd,host=%s,port=%d" % (self.address, self.port)
