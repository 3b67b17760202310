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
import re
import shutil
import subprocess
import tempfile
import time

from guest.archive import more_programs
from guest.commands import Channel, CommandRunner
from guest.packages import GuestError, Missing
from rxe_image import Image
from rxe_wire import ROCE_PORT, Wire

QEMU = "qemu-system-x86_64"
CHANNELS = 8  # how many commands may run in the guest at the same time


def why_not():
    """Why no guest can run here; empty when nothing is known to be missing."""
    if os.geteuid() != 0:
        return "needs root for a network namespace"
    for program, package in ((QEMU, "qemu-system-x86"), ("ip", "iproute2"), ("setpriv", "util-linux"), ("nft", "nftables"),
                             ("apt-get", "apt"), ("dpkg", "dpkg"), ("ldd", "libc-bin")):
        if shutil.which(program) is None:
            return "%s is missing (Debian package %s)" % (program, package)
    return "" if os.path.exists("/dev/net/tun") else "no /dev/net/tun"


class Guest(CommandRunner):
    """A virtual machine with rxe0 on a wire to a namespace. Leaving the `with` block ends all that it started."""

    def __init__(self, release="", bring=()):
        """`release`: kernel and programs are those of another release of Debian. `bring`: programs of this machine that it has too, with
        their libraries, or those of the release."""
        reason = why_not()
        if reason:
            raise Missing(reason)
        super().__init__()
        self._bring = bring
        self._image = Image(release)
        self._of_release = release
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

    def why_ended(self):
        if self._emulator is None or self._emulator.poll() is not None:
            return "the guest has ended: " + self.console()[-300:]
        return ""

    def wait_serving(self, port, process, seconds=20):
        """The same for an id of rdma_cm."""
        return self.wait_for("rdma resource show cm_id | grep -q 'state LISTEN .*src-addr [^ ]*:%d '" % port,
                             process, seconds)

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
        self.close()
        if self.wire is not None:
            self.wire.remove()
            self.wire = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

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
            file.write(more_programs(self._bring, alone=self._of_release != "") if self._bring else b"")
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
            channels = [Channel.at(self._channel_path(number), min(deadline, time.monotonic() + 10)) for number in range(CHANNELS)]
        except OSError as error:
            raise GuestError("%s does not start: %s" % (QEMU, self._emulator_said())) from error
        if not self.take(channels, deadline, self._emulator):
            raise GuestError("the guest does not boot: " + (self.console()[-300:] or self._emulator_said()))

    def _channel_path(self, number):
        return os.path.join(self._folder, "channel%d" % number)

    def _emulator_said(self):
        with open(os.path.join(self._folder, "emulator"), encoding="utf-8", errors="replace") as file:
            return file.read()[-300:]
