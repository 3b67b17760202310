# SPDX-License-Identifier: Apache-2.0
"""Kernel and initial file system of the virtual machine of rxe_guest.py, in a cache folder.

The kernel is Debian's, unpacked and not installed; its programs are those of this machine, or of downloaded packages
where they are not installed here.
"""
import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import stat

from rxe_packages import GuestError, Packages, Unpacker, call, installed_version, kernel_package, libraries_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_CACHE = os.path.join(os.environ.get("NUPA_BUILD", os.path.join(ROOT, "build")), "rxe")
# Which programs and data of each package the guest gets; what is a program brings its libraries along.
# The shell is dash: that of busybox takes its own `ip` and `tc`, which know less, whatever lies in the path.
WANTED_FILES = {
    "busybox-static": r"/bin/busybox",
    "dash": r"/bin/dash",
    "iproute2": r"/s?bin/(ip|rdma|tc|ss)",
    "ibverbs-providers": r"/libibverbs/librxe-[^/]*\.so|/etc/libibverbs\.d/rxe\.driver",
    "ibverbs-utils": r"/bin/ibv_\w+",
    "perftest": r"/bin/ib_\w+",
    "rdmacm-utils": r"/bin/\w+",
    "libgcc-s1": r"/libgcc_s\.so\.1",  # the C library loads it by name when a thread ends
}
TOOL_PACKAGES = tuple(WANTED_FILES)
# rxe asks for the checksum by name when a link is added, so no dependency names crc32_generic.
# The last three let the guest lose packets that arrive.
MODULES = ("crc32_generic", "virtio_pci", "virtio_net", "virtio_console", "rdma_rxe", "ib_uverbs", "rdma_ucm", "tun",
           "sch_ingress", "cls_flower", "act_gact")

INIT = r"""#!/bin/sh
fail() {
  echo "init: $*"
  poweroff -f
}
export PATH=/usr/bin:/usr/sbin HOME=/ LC_ALL=C
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/shm /tmp
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
hostname rxe
# Queue pairs and buffers are locked memory.
ulimit -l unlimited
while read -r module; do
  insmod "$module" || fail "$module cannot be loaded"
done </modules.list
for word in $(cat /proc/cmdline); do
  case "$word" in
    nupa.address=*) address="${word#*=}" ;;
    nupa.address6=*) address6="${word#*=}" ;;
    nupa.mtu=*) mtu="${word#*=}" ;;
  esac
done
ip link set lo up
ip link set eth0 mtu "$mtu" up || fail "no NIC with an MTU of $mtu"
ip address add "$address" dev eth0 || fail "no address $address"
rdma link add rxe0 type rxe netdev eth0 || fail "no rxe0"
# The kernel fills the GID table later; index 1 is the IPv4 address.
for turn in $(seq 100); do
  grep -qs ffff: /sys/class/infiniband/rxe0/ports/1/gids/1 && break
  usleep 20000  # sleep: the pause between two looks
done
# After the IPv4 address has its index.
ip address add "$address6" dev eth0 nodad || fail "no address $address6"
for port in /dev/vport*; do
  serve-commands "$port" &
done
while :; do
  wait
  sleep 1  # sleep: the first process of a system does not end
done
"""

# One line "TOKEN COMMAND" comes in; "TOKEN pid N", the command's output and "TOKEN status N" go out. /bin/sh has its
# path since busybox's setsid would run busybox's own shell by the name alone.
SERVE_COMMANDS = r"""#!/bin/sh
exec 3<>"$1"
echo ready >&3
while read -r token command <&3; do
  setsid /bin/sh -c 'echo "$1 pid $$"; exec sh -c "$2"' sh "$token" "$command" </dev/null >&3 2>&1 3>&- &
  wait $!
  printf '\n%s status %s\n' "$token" "$?" >&3
done
"""


# ---- kernel modules ----

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


# ---- the initial file system ----

class Archive:
    """A cpio archive (newc) as the kernel unpacks it. Not compressed: an emulated processor would take seconds."""

    FOLDERS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}

    def __init__(self):
        self.data = bytearray()
        self.known = set()
        for name in ("dev", "proc", "sys", "etc", "tmp", "usr"):
            self._folder(name)
        for link, target in self.FOLDERS.items():
            self._folder(target)
            self.symlink(link, target)
        self._entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))

    def file(self, path, data, mode=0o644):
        """Adds a file once; what comes first stays."""
        path = self._merged(path)
        if path not in self.known:
            self._folder(os.path.dirname(path))
            self._entry(path, stat.S_IFREG | mode, data)

    def symlink(self, path, target):
        path = self._merged(path)
        if path not in self.known:
            self._folder(os.path.dirname(path))
            self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def copy(self, path, source):
        """Adds a file of this machine; a link's target goes under the link's name."""
        with open(source, "rb") as file:
            self.file(path, file.read(), 0o755 if os.access(source, os.X_OK) else 0o644)

    def finished(self):
        self._entry("TRAILER!!!", 0)
        return bytes(self.data)

    def _merged(self, path):
        """The path with /bin, /sbin and /lib* below /usr, as Debian has them."""
        first, slash, rest = path.lstrip("/").partition("/")
        return self.FOLDERS.get(first, first) + slash + rest if slash else first

    def _folder(self, path):
        if path and path not in self.known:
            self._folder(os.path.dirname(path))
            self._entry(path, stat.S_IFDIR | 0o755)

    def _entry(self, path, mode, data=b"", device=(0, 0)):
        self.known.add(path)
        name = path.encode() + b"\0"
        # c_magic, then 13 numbers of 8 hexadecimal digits; Linux: Documentation/driver-api/early-userspace.
        numbers = (len(self.known), mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name), 0)
        self.data += b"070701" + b"".join(b"%08X" % number for number in numbers) + name
        self.data += b"\0" * (-len(self.data) % 4) + data
        self.data += b"\0" * (-len(self.data) % 4)


def add_tools(archive, packages):
    """Programs, providers and the libraries that they need."""
    for package, pattern in WANTED_FILES.items():
        for path, source in packages.files(package):
            if not re.search("(%s)$" % pattern, path) or not os.path.isfile(source):
                continue
            archive.copy(path, source)
            with open(source, "rb") as file:
                is_elf = file.read(4) == b"\x7fELF"
            for library, where in packages.libraries(source) if is_elf and package != "busybox-static" else []:
                archive.copy(library, where)


def add_busybox_links(archive, packages):
    """Busybox under the name of each of its programs, unless another package brought that name."""
    for name in call(packages.busybox(), "--list-full").split():
        if not {"usr/bin/" + os.path.basename(name), "usr/sbin/" + os.path.basename(name)} & archive.known:
            archive.symlink(name, "/usr/bin/busybox")


def initial_file_system(modules, packages):
    """`modules`: names and contents in the order of loading."""
    archive = Archive()
    add_tools(archive, packages)
    archive.symlink("/bin/sh", "dash")
    add_busybox_links(archive, packages)
    for name, data in modules.items():
        archive.file("modules/%s.ko" % name, data)
    archive.file("modules.list", "".join("/modules/%s.ko\n" % name for name in modules).encode())
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    archive.file("etc/hosts", b"127.0.0.1 localhost\n")
    archive.file("init", INIT.encode(), 0o755)
    archive.file("usr/bin/serve-commands", SERVE_COMMANDS.encode(), 0o755)
    return archive.finished()


def more_programs(programs):
    """An archive to follow that of the initial file system: programs of this machine in /usr/bin, wherever they are here,
    and their libraries where the guest's loader looks."""
    archive = Archive()
    for program in programs:
        archive.copy("/usr/bin/" + os.path.basename(program), program)
        for library, where in libraries_of(program):
            known = library.startswith(("/lib/", "/lib64/", "/usr/lib/"))
            archive.copy(library if known else "/usr/lib/" + os.path.basename(library), where)
    return archive.finished()


def runnable_kernel(boot_folder):
    """The kernel as an ELF file, which the emulator starts at once: 3.5 s to the shell. The image as it comes unpacks
    itself on the emulated processor, which takes 5 s more; it is taken where it is not packed with xz."""
    name = next(name for name in os.listdir(boot_folder) if name.startswith("vmlinuz"))
    with open(os.path.join(boot_folder, name), "rb") as file:
        image = file.read()
    packed = image.find(b"\xfd7zXZ\0")
    if packed >= 0:
        with contextlib.suppress(lzma.LZMAError):
            elf = lzma.LZMADecompressor().decompress(image[packed:])
            return elf if elf.startswith(b"\x7fELF") else image
    return image


class Image:
    """Kernel and initial file system in a cache folder; made anew when this file or a package changed. Of the kernel's
    package, 70 MB to download, only the kernel and the modules are kept."""

    def __init__(self, cache=DEFAULT_CACHE):
        self.kernel = os.path.join(cache, "kernel")
        self.initramfs = os.path.join(cache, "initramfs.cpio")
        self.busybox = os.path.join(cache, "busybox")
        self._modules = os.path.join(cache, "modules")
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with Unpacker(cache) as unpacker:
                make_once(os.path.join(cache, "kernel.stamp"), "\n".join(MODULES), lambda: self._take_kernel(unpacker))
                make_once(os.path.join(cache, "stamp"), self._inputs(), lambda: self._build(Packages(unpacker, TOOL_PACKAGES)))

    def _take_kernel(self, unpacker):
        package = kernel_package()
        folder = unpacker.unpack(package)
        with open(self.kernel, "wb") as file:
            file.write(runnable_kernel(os.path.join(folder, "boot")))
        shutil.rmtree(self._modules, ignore_errors=True)
        os.mkdir(self._modules)
        for number, (name, data) in enumerate(in_order(MODULES, find_modules(folder)).items()):
            with open(os.path.join(self._modules, "%03d-%s" % (number, name)), "wb") as file:
                file.write(data)
        unpacker.forget(package)

    def _build(self, packages):
        modules = {}
        for entry in sorted(os.listdir(self._modules)):
            with open(os.path.join(self._modules, entry), "rb") as file:
                modules[entry.partition("-")[2]] = file.read()
        with open(self.initramfs, "wb") as file:
            file.write(initial_file_system(modules, packages))
        shutil.copy(packages.busybox(), self.busybox)

    def _inputs(self):
        with open(os.path.abspath(__file__), "rb") as file:
            own = hashlib.sha256(file.read()).hexdigest()
        return "\n".join([own, *sorted(os.listdir(self._modules)),
                          *("%s %s" % (name, installed_version(name)) for name in TOOL_PACKAGES)])


def make_once(stamp, wanted, make):
    """Calls make() unless the file `stamp` tells that it was done with these inputs."""
    with contextlib.suppress(FileNotFoundError), open(stamp, encoding="utf-8") as file:
        if file.read() == wanted:
            return
    with contextlib.suppress(FileNotFoundError):
        os.remove(stamp)
    make()
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
