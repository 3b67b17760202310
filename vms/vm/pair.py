# SPDX-License-Identifier: Apache-2.0
"""Two guests with one window of memory and one NIC between them. All files are memory of this program, and the kernel kills the guests
when it dies: however it ends, nothing is left."""
import os
import socket
import struct
import subprocess
import time

from guest.commands import Channel, CommandRunner
from guest.packages import GuestError
from vm.image import node_archive
from vm.qemu import LABEL_BYTES, VECTORS, WINDOW_BYTES, link_address, settings, tied

CHANNELS = 4  # commands that may run in a guest at the same time
BOOT_SECONDS = 200


class Memory:
    """A file of memory, and the path by which a child that inherits it opens it."""

    def __init__(self, name, size=0, pieces=()):
        self.descriptor = os.memfd_create(name)
        os.truncate(self.descriptor, size)
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[os.write(self.descriptor, view):]
        self.path = "/proc/self/fd/%d" % self.descriptor

    def text(self):
        size = os.fstat(self.descriptor).st_size
        return os.pread(self.descriptor, size, 0).decode(errors="replace")

    def close(self):
        os.close(self.descriptor)


class Bells:
    """The ivshmem server of both guests (QEMU, docs/specs/ivshmem-spec.rst): sockets on which all that it ever sends waits already, since
    both guests are known and neither leaves alone. A message is a number, and for memory and eventfds a descriptor."""
    VERSION = 0
    MEMORY = -1

    def __init__(self, window):
        self._events = [[os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(VECTORS)] for _ in range(2)]
        self.sockets = []
        self._ends = []
        for guest in range(2):
            end, of_guest = socket.socketpair()
            self._ends.append(end)
            self.sockets.append(of_guest)
            self._send(end, self.VERSION)
            self._send(end, guest)
            self._send(end, self.MEMORY, window.descriptor)
            for other in (1 - guest, guest):
                for event in self._events[other]:
                    self._send(end, other, event)

    @staticmethod
    def _send(end, number, descriptor=None):
        socket.send_fds(end, [struct.pack("<q", number)], [] if descriptor is None else [descriptor])

    def guests_have_begun(self):
        for end in self.sockets:
            end.close()
        for event in self._events[0] + self._events[1]:
            os.close(event)

    def close(self):
        for end in self._ends:
            end.close()


class Machine(CommandRunner):
    """One of the two guests. `number` is 1 or 2. `bell`: its socket of Bells, or None."""

    def __init__(self, setup, image, number, window, link, bell):
        super().__init__()
        self.number, self.address, self.setup = number, link_address(number), setup
        self.boot_seconds = None
        self._began = time.monotonic()
        self._said, self._console = Memory("said"), Memory("console")
        parts = []
        for path in (image.initramfs, image.programs()):
            with open(path, "rb") as file:
                parts.append(file.read())
        initramfs = Memory("initramfs", 0, [*parts, node_archive(settings(setup, number, False))])
        labels = Memory("labels", LABEL_BYTES)
        ends = [socket.socketpair() for _ in range(CHANNELS)]
        passed = [end.fileno() for _, end in ends] + ([bell.fileno()] if bell else [])
        more = ["-chardev", "file,id=console,path=" + self._console.path, "-serial", "chardev:console",
                *setup.link(number, "socket,fd=%d" % link.fileno()), *setup.channels(passed[:CHANNELS]),
                *(setup.bell(bell.fileno()) if bell else [])]
        command = setup.command(number, image.kernel, initramfs.path, window.path, labels.path, more)
        self._emulator = subprocess.Popen(
            [*tied(), *command], stdin=subprocess.DEVNULL, stdout=self._said.descriptor, stderr=subprocess.STDOUT,
            start_new_session=True, pass_fds=[initramfs.descriptor, labels.descriptor, window.descriptor, self._console.descriptor,
                                              link.fileno(), *passed])
        initramfs.close()
        labels.close()
        for _, end in ends:
            end.close()
        self._waiting = [Channel(own) for own, _ in ends]

    def wait_ready(self):
        if not self.take(self._waiting, self._began + BOOT_SECONDS, self._emulator):
            raise GuestError("node %d does not boot: %s" % (self.number, (self.console().strip() or self._said.text().strip())[-600:]))
        self.boot_seconds = time.monotonic() - self._began

    def why_ended(self):
        if self._emulator.poll() is None:
            return ""
        return "node %d has ended: %s" % (self.number, (self._said.text() + self.console()).strip()[-300:])

    def console(self):
        return self._console.text()

    def stop(self):
        if self._emulator.poll() is None:
            self._emulator.kill()
        self._emulator.wait()
        self.close()


class Pair:
    """Boots both guests at once; leaving the `with` block ends them."""

    def __init__(self, setup, image):
        self.setup = setup
        self.nodes = []
        window = Memory("window", WINDOW_BYTES)
        link = socket.socketpair()
        self._bells = Bells(window) if setup.doorbell else None
        bells = self._bells.sockets if self._bells else [None, None]
        try:
            self.nodes += [Machine(setup, image, number, window, end, bells[number - 1]) for number, end in enumerate(link, 1)]
            for node in self.nodes:
                node.wait_ready()
        except BaseException:
            self.stop()
            raise
        finally:
            window.close()
            for end in link:
                end.close()
            if self._bells:
                self._bells.guests_have_begun()

    def stop(self):
        for node in self.nodes:
            node.stop()
        if self._bells:
            self._bells.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
