# SPDX-License-Identifier: Apache-2.0
"""The emulator: its version, its accelerator, and the command line of a guest."""
import os
import re
import shlex
import shutil
import subprocess

from guest.packages import GuestError, Missing

WINDOW_BYTES = 256 << 20  # Linux makes no CXL region smaller than that
LABEL_BYTES = 1 << 20
MEMORY_MIB = 768
LINK_MTU = 4500  # room for RoCE's MTU of 4,096 bytes
KVM_SECONDS = 10  # the probe kernel panics within two seconds where KVM works
VECTORS = 16  # of an ivshmem device with a doorbell: processes of a guest that are woken
PROBE_WORDS = "console=ttyS0 panic=-1 quiet"


class Setup:
    """How the guests of a pair run on this machine. `reasons` explains each choice in a sentence. `doorbell`: the PCIe device of the window
    has interrupts, and Linux gives them to programs by vfio-pci."""

    def __init__(self, kind, kernel, cache, doorbell=False):
        self.kind, self.doorbell = kind, doorbell
        self.program = shlex.split(os.environ.get("NUPA_VM_QEMU") or "qemu-system-x86_64")
        if shutil.which(self.program[0]) is None:
            raise Missing("%s is missing (Debian package qemu-system-x86)" % self.program[0])
        self.version = version_of(self.program)
        if self.version < (7, 2):
            raise Missing("QEMU %s is too old: its CXL device cannot be shared, 7.2 is needed" % number(self.version))
        self.reasons = []
        self.region = self._region(kernel) if kind == "cxl" else ""
        self.accelerator = self._accelerator(kernel.path, cache)
        self.processors = 2 if (os.cpu_count() or 1) >= 4 else 1
        self._explain("%d processor%s for each guest" % (self.processors, "s"[:self.processors - 1]),
                      "this machine has %d" % (os.cpu_count() or 1))

    def _explain(self, choice, reason):
        self.reasons.append("%s: %s" % (choice, reason))

    def _region(self, kernel):
        if self.version < (8, 1):
            self._explain("persistent CXL memory", "QEMU %s has no other; it executes each access, 0.2 to 0.7 us long" %
                          number(self.version))
            return "persistent"
        if kernel.number() < (6, 3):
            self._explain("persistent CXL memory", "Linux %s makes no regions of volatile memory, 6.3 does" % kernel.version)
            return "persistent"
        mapped = self.version >= (11, 0)
        self._explain("volatile CXL memory", "QEMU %s %s" % (number(self.version), "maps it into the guest, at the speed of memory"
                                                             if mapped else "executes each access, 0.2 to 0.7 us long"))
        return "volatile"

    def _accelerator(self, kernel, cache):
        wish = os.environ.get("NUPA_VM_ACCEL", "")
        if wish not in ("", "kvm", "tcg"):
            raise GuestError("NUPA_VM_ACCEL=%s: it is kvm or tcg" % wish)
        if self.kind == "cxl" and self.version < (11, 0):
            if wish == "kvm":
                raise GuestError("NUPA_VM_ACCEL=kvm: with QEMU %s KVM ends a guest at the first vector instruction on CXL memory; "
                                 "11.0 is needed" % number(self.version))
            self._explain("TCG", "KVM cannot execute vector instructions on the CXL memory of QEMU %s, 11.0 is needed" %
                          number(self.version))
            return "tcg"
        if wish:
            self._explain(wish.upper(), "NUPA_VM_ACCEL chooses it")
            return wish
        reason = self._why_no_kvm(kernel, cache)
        self._explain("TCG" if reason else "KVM", reason or "a kernel started with it")
        return "tcg" if reason else "kvm"

    def _why_no_kvm(self, kernel, cache):
        """Empty if KVM works: a kernel has started and panicked, since it has no file system. The answer is kept until the next boot of
        this machine, because the probe takes seconds where KVM hangs."""
        if not os.path.exists("/dev/kvm"):
            return "no /dev/kvm"
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return "no permission for /dev/kvm"
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            asked = "%s %s" % (file.read().strip(), number(self.version))
        answer = os.path.join(cache, "kvm")
        if os.path.exists(answer):
            with open(answer, encoding="utf-8") as file:
                question, _, reason = file.read().partition("\n")
                if question == asked:
                    return reason
        reason = self._probe_kvm(kernel)
        with open(answer, "w", encoding="utf-8") as file:
            file.write(asked + "\n" + reason)
        return reason

    def _probe_kvm(self, kernel):
        command = [*self.program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "kvm", "-m", "256",
                   "-kernel", kernel, "-append", PROBE_WORDS]
        probe = subprocess.Popen([*tied(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 text=True)
        try:
            said = probe.communicate(timeout=KVM_SECONDS)[1]
        except subprocess.TimeoutExpired:
            probe.kill()
            return "a kernel with KVM did not end within %d s" % KVM_SECONDS
        return "" if probe.returncode == 0 else "KVM fails: " + (said.strip().split("\n") or [""])[-1]

    def explain(self):
        return ["QEMU %s" % number(self.version), *self.reasons]

    def command(self, node, kernel, initramfs, window, labels, more=()):
        """The command line of guest `node` (1 or 2). `initramfs`, `window` and `labels` are paths. `more`: the serial console, NICs
        and channels, whose devices use bus `self.bus`, and with a doorbell the device of the window."""
        words = "console=ttyS0 quiet mitigations=off cryptomgr.notests panic=-1"
        if self.doorbell:
            words += " intel_iommu=on iommu=pt"  # vfio-pci takes no function without an IOMMU
        volatile = self.region == "volatile"
        cpu = {"tcg": "qemu64", "kvm": "host"}[self.accelerator]
        if volatile:
            cpu += ",-hypervisor"  # Linux commits no region if a hypervisor may keep caches from being written back
        command = [*self.program, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-name", "nupa-%s-%d" % (self.kind, node),
                   "-accel", "tcg,thread=multi" if self.accelerator == "tcg" else "kvm", "-cpu", cpu, "-smp", str(self.processors),
                   "-kernel", kernel, "-initrd", initramfs, "-append", words,
                   # Without random numbers from outside, a guest waits six seconds for its first ones.
                   "-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random,bus=%s,addr=6" % self.bus]
        if self.doorbell:
            split = ",kernel-irqchip=split" if self.accelerator == "kvm" else ""
            command += ["-machine", "q35" + split, "-m", str(MEMORY_MIB), "-device", "intel-iommu,intremap=on"]
        elif self.kind == "pcie":
            command += ["-machine", "pc", "-m", str(MEMORY_MIB), *window_of(window),
                        "-device", "ivshmem-plain,memdev=window,bus=%s,addr=2" % self.bus]
        else:
            command += [*window_of(window), "-machine", "q35,cxl=on,cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G", "-m", "%dM,maxmem=8G,slots=8" % MEMORY_MIB,
                        "-device", "pxb-cxl,bus_nr=12,bus=pcie.0,addr=8,id=cxl.1",
                        "-device", "cxl-rp,port=0,bus=cxl.1,id=rp0,chassis=0,slot=2"]
            if volatile:
                command += ["-device", "cxl-type3,bus=rp0,volatile-memdev=window,id=cxl0"]
            else:
                # Linux programs no decoder in a host bridge with one port, and QEMU then drops each access: writes get lost and reads
                # return 0. The second port stays empty.
                command += ["-device", "cxl-rp,port=1,bus=cxl.1,id=rp1,chassis=0,slot=3",
                            "-object", "memory-backend-file,id=labels,share=on,mem-path=%s,size=%d" % (labels, LABEL_BYTES),
                            "-device", "cxl-type3,bus=rp0,%s=window,lsa=labels,id=cxl0" %
                            ("memdev" if self.version < (8, 1) else "persistent-memdev")]
        return command + list(more)

    @property
    def bus(self):
        return "pci.0" if self.kind == "pcie" and not self.doorbell else "pcie.0"

    def bell(self, descriptor):
        """The device of the window with a doorbell. `descriptor`: the socket to an ivshmem server, which QEMU inherits."""
        return ["-chardev", "socket,id=bell,fd=%d" % descriptor,
                "-device", "ivshmem-doorbell,vectors=%d,chardev=bell,bus=%s,addr=2" % (VECTORS, self.bus)]

    def link(self, node, backend):
        """The NIC between the guests. `backend`: the options of -netdev, without the id."""
        return ["-netdev", backend + ",id=link", "-device", "virtio-net-pci,netdev=link,romfile=,bus=%s,addr=3,mac=52:54:00:6e:75:0%d,host_mtu=%d" %
                (self.bus, node, LINK_MTU)]

    def forwarded(self, node, port):
        """A NIC through which a port of this machine leads to ssh of the guest, and nothing else."""
        return ["-netdev", "user,id=ssh,net=10.0.2%d.0/24,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2%d.15:22" % (node, port, node),
                "-device", "virtio-net-pci,netdev=ssh,romfile=,bus=%s,addr=4" % self.bus]

    def channels(self, descriptors):
        """Serial ports for commands, each connected to a socket that QEMU inherits."""
        words = ["-device", "virtio-serial-pci,bus=%s,addr=5,max_ports=%d" % (self.bus, len(descriptors) + 1)]
        for number_, descriptor in enumerate(descriptors):
            words += ["-chardev", "socket,id=c%d,fd=%d" % (number_, descriptor), "-device", "virtserialport,chardev=c%d" % number_]
        return words


def settings(setup, node, console):
    """What the guest's first program reads."""
    return {"NODE": node, "KIND": setup.kind, "REGION": setup.region, "LINK": "%s/24" % link_address(node), "MTU": LINK_MTU,
            "DOORBELL": "yes" if setup.doorbell else "no", "CONSOLE": "yes" if console else "no"}


def window_of(path):
    return ["-object", "memory-backend-file,id=window,share=on,mem-path=%s,size=%d" % (path, WINDOW_BYTES)]


def link_address(node):
    return "10.9.0.%d" % node


def tied():
    """The words in front of a command that make the kernel kill it when this program dies."""
    return ["setpriv", "--pdeathsig", "KILL"]


def version_of(program):
    said = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)\.(\d+)", said.stdout)
    if not found:
        raise Missing("%s --version: %s" % (program[0], (said.stderr or said.stdout).strip()[-200:]))
    return int(found[1]), int(found[2])


def number(version):
    return ".".join(map(str, version))
