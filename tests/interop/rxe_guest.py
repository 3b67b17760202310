# SPDX-License-Identifier: Apache-2.0
"""A small virtual machine with Linux's software RoCE (rdma_rxe), joined to a network namespace of this machine.

A program in the namespace and a program in the guest are then two RoCEv2 hosts with one wire between them:

    with Guest() as guest:
        guest.start(namespace="nupa-rxe", tap="tap0", guest_address="10.77.0.2", mtu=1500)
        status, output = guest.run("ibv_devinfo")
        server = guest.spawn("ibv_rc_pingpong -d rxe0 -g 1 -p 18515")
        guest.wait_listening(18515, server)
        ...                                   # guest.wire.spawn([...]): a client in the namespace
        server.wait(20)
"""
import contextlib
import ipaddress
import os
import queue
import re
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from rxe_image import DEFAULT_CACHE, Image, more_programs
from rxe_packages import GuestError, Missing
from rxe_wire import ROCE_PORT, Wire, finish_within

QEMU = "qemu-system-x86_64"
CHANNELS = 8  # how many commands may run in the guest at the same time
GUEST_GONE = -1001  # the status of a command whose guest ended before it


def why_not():
    """Why no guest can run here; empty when nothing is known to be missing."""
    if os.geteuid() != 0:
        return "needs root for a network namespace"
    for program, package in ((QEMU, "qemu-system-x86"), ("ip", "iproute2"), ("setpriv", "util-linux"), ("nft", "nftables"),
                             ("apt-get", "apt"), ("dpkg", "dpkg"), ("ldd", "libc-bin")):
        if shutil.which(program) is None:
            return "%s is missing (Debian package %s)" % (program, package)
    return "" if os.path.exists("/dev/net/tun") else "no /dev/net/tun"


class Channel:
    """This machine's end of one serial port of the guest: one command at a time."""

    def __init__(self, path, deadline):
        self.socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                return self.socket.connect(path)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)  # sleep: the pause between two attempts to connect

    def wait_ready(self, deadline, emulator):
        """False when the emulator has ended or time is up before the guest listens here."""
        said = b""
        while b"ready\n" not in said:
            if emulator.poll() is not None or time.monotonic() > deadline:
                return False
            if select.select([self.socket], [], [], 0.1)[0]:
                said += self.socket.recv(64)
        return True


class GuestProcess:
    """A command that runs in the guest; the same calls as those of HostProcess."""

    def __init__(self, guest, channel, command):
        self._guest, self._channel, self._command = guest, channel, command
        self._token = secrets.token_hex(8).encode()
        self._raw = bytearray()
        self._ended = threading.Event()
        self._status = None
        with contextlib.suppress(OSError):  # the guest has ended: then there is nothing to read either
            channel.socket.sendall(self._token + b" " + command.encode() + b"\n")
        threading.Thread(target=self._read, daemon=True).start()

    def poll(self):
        """The status; None while it runs."""
        return self._status if self._ended.is_set() else None

    def wait(self, timeout=None):
        """The status, 128 + N after signal N, GUEST_GONE when the guest has ended; subprocess.TimeoutExpired when the
        command runs on."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._command, timeout)
        return self._status

    def output(self):
        """What it has said so far."""
        _, _, said = bytes(self._raw).partition(self._token + b" pid ")
        _, _, said = said.partition(b"\n")
        return said.partition(b"\n" + self._token + b" status ")[0].decode(errors="replace")

    def kill(self):
        """Ends it and what it started; harmless when it has ended."""
        for _ in range(3):
            pid = re.search(self._token + rb" pid (\d+)\n", bytes(self._raw))
            if self._ended.is_set():
                return
            if pid:
                self._guest.run("kill -s KILL -- -%s" % pid.group(1).decode(), 20)
            self._ended.wait(5 if pid else 1)

    def _read(self):
        end = re.compile(b"\n" + self._token + rb" status (\d+)\n")
        found = None
        while not found:
            try:
                piece = self._channel.socket.recv(65536)
            except OSError:
                piece = b""
            if not piece:
                break
            self._raw += piece
            # Only what is new can hold the mark, which may have come in two pieces.
            found = end.search(self._raw, max(0, len(self._raw) - len(piece) - 64))
        self._status = int(found.group(1)) if found else GUEST_GONE
        self._ended.set()
        if found:
            self._guest.release(self._channel)


class Guest:
    """A virtual machine with rxe0 on a wire to a namespace. Leaving the `with` block ends all that it started."""

    def __init__(self, cache=DEFAULT_CACHE, bring=()):
        """`bring`: programs of this machine that it has too, with their libraries."""
        reason = why_not()
        if reason:
            raise Missing(reason)
        self._bring = bring
        self._image = Image(cache)
        self._free = queue.Queue()
        self._channels = []
        self._emulator = None
        self._folder = None
        self.wire = None
        self.address = self.address6 = None
        self.boot_seconds = None
        self.busybox = self._image.busybox  # a path here
        self._loses = False

    def start(self, namespace, tap="tap0", guest_address="10.77.0.2", mtu=1500, host_address=None,
              guest_address6="fd77::2", host_address6="fd77::1", memory_mib=768, cpus=2, seconds=90):
        """Boots. `mtu` is that of both ends of the wire: rxe's is the largest RoCE MTU that fits, 1024 bytes for 1500
        and 4096 for 4500. `host_address` is the namespace's; none: the first other one of guest_address's /24. Two
        processors: a program that polls leaves the other one to the NIC. `seconds`: the longest that the boot may
        take."""
        network = ipaddress.ip_network(guest_address + "/24", strict=False)
        host_address = host_address or next(str(host) for host in network.hosts() if str(host) != guest_address)
        self.address, self.address6 = guest_address, guest_address6
        began = time.monotonic()
        try:
            self._folder = tempfile.mkdtemp(prefix="nupa-rxe-")
            self.wire = Wire(namespace, tap, host_address + "/24", host_address6 + "/64", mtu)
            self._boot(guest_address + "/24", guest_address6 + "/64", mtu, memory_mib, cpus)
            self._connect(began + seconds)
        except BaseException:
            self.stop()
            raise
        self.boot_seconds = time.monotonic() - began

    def run(self, command, timeout=30):
        """Runs a shell command in the guest to its end: (status, output). Killed after `timeout` seconds with the
        status TIMED_OUT."""
        return finish_within(self.spawn(command), timeout)

    def spawn(self, command):
        """Starts a shell command (one line) in the guest."""
        if "\n" in command:
            raise ValueError("a command is one line")
        if self._emulator is None or self._emulator.poll() is not None:
            raise GuestError("the guest has ended: " + self.console()[-300:])
        try:
            channel = self._free.get(timeout=10)
        except queue.Empty:
            raise GuestError("more than %d commands at a time" % CHANNELS) from None
        return GuestProcess(self, channel, command)

    def wait_listening(self, port, process, seconds=20):
        """True once a TCP socket of the guest listens on the port; False when the process, which should open it, has
        ended."""
        return self._wait_for("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':%04X [0-9A-F]*:[0-9A-F]* 0A '" % port,
                              process, seconds)

    def wait_serving(self, port, process, seconds=20):
        """The same for an id of rdma_cm."""
        return self._wait_for("rdma resource show cm_id | grep -q 'state LISTEN .*src-addr [^ ]*:%d '" % port,
                              process, seconds)

    def _wait_for(self, look, process, seconds):
        end = time.monotonic() + seconds
        # sleep: the pause between two looks, within the guest
        wait = "for turn in $(seq 20); do %s && exit 0; usleep 50000; done; exit 1" % look
        while time.monotonic() < end and process.poll() is None:
            if self.run(wait)[0] == 0:
                return True
        return False

    def set_mtu(self, mtu):
        """Both ends of the wire; the largest MTU that the guest has had is what its buffers hold."""
        self.wire.set_mtu(mtu)
        self._must("ip link set eth0 mtu %d" % mtu)

    def set_loss(self, one_in):
        """Loses one RoCEv2 packet in `one_in` both ways, at random; 0: none. Each is lost where it arrives: a sender
        would be told."""
        self.wire.set_loss(one_in)
        if self._loses:
            self._must("tc qdisc del dev eth0 clsact")
        self._loses = one_in != 0
        if one_in:
            self._must("tc qdisc add dev eth0 clsact && tc filter add dev eth0 ingress protocol ip flower ip_proto udp "
                       "dst_port %d action gact ok random netrand drop %d" % (ROCE_PORT, one_in))

    def lost(self):
        """Packets lost since set_loss(): (on their way to the namespace, to the guest)."""
        said = self._must("tc -s filter show dev eth0 ingress")
        dropped = re.search(r"\(dropped (\d+),", said)
        return self.wire.lost(), int(dropped.group(1)) if dropped else 0

    def _must(self, command):
        status, said = self.run(command)
        if status != 0:
            raise GuestError("%s: %s" % (command, said.strip()[-200:]))
        return said

    def ping(self, count=3):
        """Echo requests from the namespace to the guest: (status, output). This machine may have no ping of its own."""
        return self.wire.run([self.busybox, "ping", "-c", str(count), "-W", "5", self.address])

    def pids(self):
        """The emulator and the processes that were started in the namespace, as far as they have not ended."""
        return ([self._emulator.pid] if self._emulator is not None else []) + (self.wire.pids() if self.wire is not None else [])

    def console(self):
        """What the guest's kernel and init have said."""
        with contextlib.suppress(OSError, TypeError), open(os.path.join(self._folder, "console"), "rb") as file:
            return file.read().decode(errors="replace")
        return ""

    def end(self):
        """The machine goes, as by a power failure; the namespace stays."""
        self._emulator.kill()
        self._emulator.wait()

    def stop(self):
        """Ends the virtual machine, what runs in the namespace, and the namespace; may be called again."""
        if self._emulator is not None:
            self._emulator.kill()
            self._emulator.wait()
            self._emulator = None
        for channel in self._channels:
            channel.socket.close()
        self._channels, self._free = [], queue.Queue()
        if self.wire is not None:
            self.wire.remove()
            self.wire = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def release(self, channel):
        """A command has ended: its channel may take the next."""
        if channel in self._channels:
            self._free.put(channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _boot(self, address, address6, mtu, memory_mib, cpus):
        # mitigations cost most where the processor is emulated; a panic ends the emulator and so is seen.
        words = ("console=ttyS0 quiet mitigations=off cryptomgr.notests panic=-1 nupa.address=%s nupa.address6=%s "
                 "nupa.mtu=%d" % (address, address6, mtu))
        initramfs = os.path.join(self._folder, "initramfs")
        with open(initramfs, "wb") as file, open(self._image.initramfs, "rb") as base:
            shutil.copyfileobj(base, file)
            file.write(more_programs(self._bring) if self._bring else b"")
        command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg",
                   "-m", str(memory_mib), "-smp", str(cpus), "-kernel", self._image.kernel,
                   "-initrd", initramfs, "-append", words,
                   "-serial", "file:" + os.path.join(self._folder, "console"),
                   "-netdev", "tap,id=wire,ifname=%s,script=no,downscript=no" % self.wire.tap,
                   "-device", "virtio-net-pci,netdev=wire,romfile=",
                   "-device", "virtio-serial-pci,max_ports=%d" % (CHANNELS + 1)]
        for number in range(CHANNELS):
            command += ["-chardev", "socket,id=c%d,path=%s,server=on,wait=off" % (number, self._channel_path(number)),
                        "-device", "virtserialport,chardev=c%d" % number]
        with open(os.path.join(self._folder, "emulator"), "wb") as said:
            self._emulator = subprocess.Popen(self.wire.inside(*command), stdin=subprocess.DEVNULL, stdout=said,
                                              stderr=subprocess.STDOUT, start_new_session=True)

    def _connect(self, deadline):
        try:
            for number in range(CHANNELS):
                self._channels.append(Channel(self._channel_path(number), min(deadline, time.monotonic() + 10)))
        except OSError as error:
            raise GuestError("%s does not start: %s" % (QEMU, self._emulator_said())) from error
        for channel in self._channels:
            if not channel.wait_ready(deadline, self._emulator):
                raise GuestError("the guest does not boot: " + (self.console()[-300:] or self._emulator_said()))
            self._free.put(channel)

    def _channel_path(self, number):
        return os.path.join(self._folder, "channel%d" % number)

    def _emulator_said(self):
        with open(os.path.join(self._folder, "emulator"), encoding="utf-8", errors="replace") as file:
            return file.read()[-300:]
