# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel and the modules that guests load, in a cache folder that all images share."""
import contextlib
import fcntl
import lzma
import os
import re
import shutil

from guest.packages import Apt, GuestError, Unpacker

# All modules that some guest loads. A kernel may lack some of them: older ones have no dax_cxl, and cxl_port is built in.
# rxe asks for the checksum by name when a link is added, so no dependency names crc32_generic. sch_ingress, cls_flower and act_gact let
# a guest lose packets that arrive.
MODULES = ("crc32_generic", "virtio_pci", "virtio_rng", "virtio_net", "virtio_console", "rdma_rxe", "ib_uverbs", "rdma_ucm", "tun", "sch_ingress",
           "cls_flower", "act_gact", "cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_pmem", "nd_pmem", "dax_pmem", "dax_cxl",
           "device_dax", "vfio_iommu_type1", "vfio_pci")
# A package of another kernel than the one that the meta package names: a name that apt knows, or a file.
OTHER_PACKAGE = os.environ.get("NUPA_GUEST_KERNEL", "")


def module_bytes(path):
    """A module as insmod of busybox takes it."""
    with open(path, "rb") as file:
        data = file.read()
    return lzma.decompress(data) if path.endswith(".xz") else data


def find_modules(folder):
    """Paths of all modules of an unpacked kernel by name: the package has no modules.dep, the installation makes it."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            match = re.match(r"(.+)\.ko(\.xz)?$", name)
            if match:
                found[match.group(1).replace("-", "_")] = os.path.join(where, name)
    return found


def in_order(names, paths):
    """Names and contents of modules with what they depend on, each after what it needs."""
    ordered = {}

    def add(name):
        if name in ordered:
            return
        if name not in paths:
            raise GuestError("the kernel has no module %s" % name)
        data = module_bytes(paths[name])
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for need in needs.group(1).decode().split(",") if needs else []:
            if need:
                add(need.replace("-", "_"))
        ordered[name] = data

    for name in names:
        add(name)
    return ordered


def runnable_kernel(boot_folder):
    """Returns the kernel as an ELF file, which the emulator starts at once: 3.5 s to the shell. The packed image would unpack itself on
    the emulated processor, which takes 5 s more. It is returned as it is if it is not packed with xz."""
    name = next(name for name in os.listdir(boot_folder) if name.startswith("vmlinuz"))
    with open(os.path.join(boot_folder, name), "rb") as file:
        image = file.read()
    packed = image.find(b"\xfd7zXZ\0")
    if packed >= 0:
        with contextlib.suppress(lzma.LZMAError):
            elf = lzma.LZMADecompressor().decompress(image[packed:])
            return elf if elf.startswith(b"\x7fELF") else image
    return image


def version_in(boot_folder):
    """The version of the kernel in a package's folder /boot."""
    return next(name for name in os.listdir(boot_folder) if name.startswith("vmlinuz-")).removeprefix("vmlinuz-")


class Kernel:
    """A kernel that an emulator starts, its version, and its modules. The package, 70 MB to download, is not kept."""

    def __init__(self, build, release=""):
        """`build`: the folder that has the caches. `release`: that of another one than this machine's."""
        name = os.path.basename(OTHER_PACKAGE) or release
        cache = os.path.join(build, "-".join(["guest-kernel", *name.split()]))
        self._release = release
        self.path = os.path.join(cache, "kernel")
        self._modules = os.path.join(cache, "modules")
        self._version = os.path.join(cache, "version")
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            make_once(os.path.join(cache, "stamp"), "\n".join(MODULES), lambda: self._take(cache))
        with open(self._version, encoding="utf-8") as file:
            self.version = file.read()

    def number(self):
        """The version as numbers: (6, 1)."""
        return tuple(map(int, re.match(r"(\d+)\.(\d+)", self.version).groups()))

    def modules(self, names):
        """Names and contents of modules in the order of loading, with the modules that they need."""
        return in_order(names, find_modules(self._modules))

    def has(self, name):
        return name in find_modules(self._modules)

    def _take(self, cache):
        apt = Apt(self._release, cache)
        with Unpacker(cache, apt) as unpacker:
            package = OTHER_PACKAGE or apt.kernel_package()
            folder = unpacker.unpack(package)
            with open(self.path, "wb") as file:
                file.write(runnable_kernel(os.path.join(folder, "boot")))
            paths = find_modules(folder)
            shutil.rmtree(self._modules, ignore_errors=True)
            os.mkdir(self._modules)
            for name, data in in_order([name for name in MODULES if name in paths], paths).items():
                with open(os.path.join(self._modules, name + ".ko"), "wb") as file:
                    file.write(data)
            with open(self._version, "w", encoding="utf-8") as file:
                file.write(version_in(os.path.join(folder, "boot")))
            unpacker.forget(package)


def make_once(stamp, wanted, make):
    """Calls make() unless the file `stamp` has these inputs, which the last call that succeeded has left there."""
    with contextlib.suppress(FileNotFoundError), open(stamp, encoding="utf-8") as file:
        if file.read() == wanted:
            return
    with contextlib.suppress(FileNotFoundError):
        os.remove(stamp)
    make()
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
