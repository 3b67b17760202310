#!/usr/bin/env python3
"""A small virtual machine with Linux's software RoCE (rdma_rxe), joined to a network namespace of this machine.

A program in the namespace and a program in the guest are then two RoCEv2 hosts with one wire between them:

    with Guest() as guest:
        guest.start(namespace="nupa-rxe", tap="tap0", guest_address="10.77.0.2", mtu=1500)
        status, output = guest.run("ibv_devinfo")
        server = guest.spawn("ibv_rc_pingpong -d rxe0 -g 1 -p 18515")
        guest.wait_listening(18515, server)
        ...                                   # guest.wire.spawn([...]): a client in the namespace
        server.wait(20)

The guest's kernel is Debian's, unpacked and not installed; its programs are those of this machine, or of downloaded
packages where they are not installed here. Both lie in a cache folder and are built once.
"""
import contextlib
import fcntl
import hashlib
import ipaddress
import lzma
import os
import queue
import re
import secrets
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_CACHE = os.path.join(os.environ.get("NUPA_BUILD", os.path.join(ROOT, "build")), "rxe")
QEMU = "qemu-system-x86_64"
KERNEL_META_PACKAGE = "linux-image-amd64"  # the cloud kernel has no rdma_rxe
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
MODULES = ("crc32_generic", "virtio_pci", "virtio_net", "virtio_console", "rdma_rxe", "ib_uverbs", "rdma_ucm")
OPTIONAL_MODULES = ("sch_netem",)  # a worse wire: `tc qdisc add dev eth0 root netem loss 1%` in the guest
CHANNELS = 8  # how many commands may run in the guest at the same time
ROCE_PORT = 4791
TIMED_OUT = -1000  # the status of a command that was killed since it took too long, as in pairs.py
GUEST_GONE = -1001  # the status of a command whose guest ended before it

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
  usleep 20000
done
for port in /dev/vport*; do
  serve-commands "$port" &
done
while :; do
  wait
  sleep 1
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


class GuestError(Exception):
    """The guest cannot be built, started or asked."""


def end_by_exception():
    """Makes SIGTERM and SIGHUP end this program as sys.exit() does, so that `with` blocks clean up; a second signal
    does not disturb that."""
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def leave(received, _):
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + received)

    for number in numbers:
        signal.signal(number, leave)


class Missing(GuestError):
    """This machine lacks something that no test can bring along: a reason to skip."""


def why_not():
    """Why no guest can run here; empty when nothing is known to be missing."""
    if os.geteuid() != 0:
        return "needs root for a network namespace"
    for program, package in ((QEMU, "qemu-system-x86"), ("ip", "iproute2"), ("setpriv", "util-linux"),
                             ("apt-get", "apt"), ("dpkg", "dpkg"), ("ldd", "libc-bin")):
        if shutil.which(program) is None:
            return "%s is missing (Debian package %s)" % (program, package)
    return "" if os.path.exists("/dev/net/tun") else "no /dev/net/tun"


def call(*command, cwd=None):
    """Output of a command that must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
                               stdin=subprocess.DEVNULL, env=dict(os.environ, LC_ALL="C"), start_new_session=True)
    try:
        said, complained = process.communicate()
    except BaseException:  # a signal: what the command has started ends too, before files are removed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        raise GuestError("%s: %s" % (" ".join(command), (complained or said).strip()[-300:]))
    return said


# ---- packages ----

def installed_version(package):
    """The version of an installed package; empty when it is not installed."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package],
                          capture_output=True, text=True)
    status, _, version = done.stdout.partition(" ")
    return version if status == "installed" else ""


def depends(package, *options):
    """Packages that apt names in a package's dependencies, itself among them."""
    text = call("apt-cache", "depends", "--important", *options, package)
    return re.findall(r"^(?:  (?:Pre)?Depends: )?([a-z0-9][a-z0-9.+-]*)$", text, re.MULTILINE)


def kernel_package():
    """The package that holds the present kernel, which the meta package names."""
    try:
        names = [name for name in depends(KERNEL_META_PACKAGE) if re.match(r"linux-image-\d", name)]
    except GuestError as error:
        raise Missing("apt knows no package %s (apt-get update?): %s" % (KERNEL_META_PACKAGE, error)) from error
    if not names:
        raise Missing("package %s names no kernel" % KERNEL_META_PACKAGE)
    return names[0]


class Unpacker:
    """Packages as folders of files. What is downloaded stays in the cache, the folders go when the work is done: a
    kernel with all its modules takes 400 MB."""

    PREFIX = "unpacked-"

    def __init__(self, cache):
        self._downloads = os.path.join(cache, "downloads")
        for name in os.listdir(cache):  # of a build that was killed
            if name.startswith(self.PREFIX):
                shutil.rmtree(os.path.join(cache, name), ignore_errors=True)
        self._folders = tempfile.TemporaryDirectory(dir=cache, prefix=self.PREFIX, ignore_cleanup_errors=True)

    def unpack(self, package):
        """The folder with a package's files."""
        folder = os.path.join(self._folders.name, package)
        call("dpkg", "-x", self._archive(package), folder)
        return folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folders.cleanup()

    def _archive(self, package):
        kept = os.path.join(self._downloads, package + ".deb")
        if not os.path.exists(kept):
            os.makedirs(self._downloads, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._downloads) as fresh:
                try:
                    call("apt-get", "download", "-qq", package, cwd=fresh)
                except GuestError as error:
                    raise Missing("package %s cannot be downloaded: %s" % (package, error)) from error
                name, = os.listdir(fresh)
                os.rename(os.path.join(fresh, name), kept)
        return kept


class Packages:
    """Files of packages: those of this machine, or unpacked ones where a package is not installed."""

    def __init__(self, unpacker):
        self.folders = {}
        absent = [name for name in TOOL_PACKAGES if not installed_version(name)]
        for name in absent:
            self.folders[name] = unpacker.unpack(name)
        for name in sorted(self._libraries_of(absent)):
            self.folders[name] = unpacker.unpack(name)

    def _libraries_of(self, names):
        """Packages that the absent ones need and that are not here either."""
        needed = set()
        for name in names:
            needed.update(depends(name, "--recurse"))
        return {name for name in needed
                if name.startswith("lib") and name not in self.folders and not installed_version(name)}

    def files(self, package):
        """(path in the guest, path here) of a package's files."""
        folder = self.folders.get(package)
        if folder is None:
            return [(path, path) for path in call("dpkg-query", "-L", package).split("\n")]
        return [(os.path.join(where, name)[len(folder):], os.path.join(where, name))
                for where, _, names in os.walk(folder) for name in names]

    def busybox(self):
        """Path here of the static busybox."""
        return next(source for path, source in self.files("busybox-static") if path.endswith("/bin/busybox"))

    def libraries(self, program):
        """(path in the guest, path here) of all shared libraries that a program needs."""
        extra = [where for folder in self.folders.values() for where, _, names in os.walk(folder)
                 if any(".so" in name for name in names)]
        done = subprocess.run(["ldd", program], capture_output=True, text=True,
                              env=dict(os.environ, LC_ALL="C", LD_LIBRARY_PATH=":".join(extra)))
        found = []
        for line in done.stdout.splitlines():
            if "not found" in line:
                raise GuestError("%s: %s" % (program, line.strip()))
            match = re.match(r"\s*(?:\S+ => )?(/\S+) \(0x", line)
            if match:
                found.append((self._in_the_guest(match.group(1)), match.group(1)))
        return found

    def _in_the_guest(self, path):
        for folder in self.folders.values():
            if path.startswith(folder + "/"):
                return path[len(folder):]
        return path


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


def initial_file_system(kernel_folder, packages):
    archive = Archive()
    add_tools(archive, packages)
    archive.symlink("/bin/sh", "dash")
    add_busybox_links(archive, packages)
    paths = find_modules(kernel_folder)
    modules = in_order([*MODULES, *(name for name in OPTIONAL_MODULES if name in paths)], paths)
    for name, data in modules.items():
        archive.file("modules/%s.ko" % name, data)
    archive.file("modules.list", "".join("/modules/%s.ko\n" % name for name in modules).encode())
    archive.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    archive.file("etc/hosts", b"127.0.0.1 localhost\n")
    archive.file("init", INIT.encode(), 0o755)
    archive.file("usr/bin/serve-commands", SERVE_COMMANDS.encode(), 0o755)
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
    """Kernel and initial file system in a cache folder; made anew when this file or a package changed."""

    def __init__(self, cache=DEFAULT_CACHE):
        self.kernel = os.path.join(cache, "kernel")
        self.initramfs = os.path.join(cache, "initramfs.cpio")
        self.busybox = os.path.join(cache, "busybox")
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._build_if_old(cache)

    def _build_if_old(self, cache):
        stamp = os.path.join(cache, "stamp")
        wanted = self._inputs()
        if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
            return
        with contextlib.suppress(FileNotFoundError):
            os.remove(stamp)
        with Unpacker(cache) as unpacker:
            self._build(unpacker.unpack(kernel_package()), Packages(unpacker))
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(wanted)

    def _build(self, kernel_folder, packages):
        with open(self.kernel, "wb") as file:
            file.write(runnable_kernel(os.path.join(kernel_folder, "boot")))
        with open(self.initramfs, "wb") as file:
            file.write(initial_file_system(kernel_folder, packages))
        shutil.copy(packages.busybox(), self.busybox)

    @staticmethod
    def _inputs():
        with open(os.path.abspath(__file__), "rb") as file:
            own = hashlib.sha256(file.read()).hexdigest()
        return "\n".join([own, *("%s %s" % (name, installed_version(name)) for name in TOOL_PACKAGES)])


# ---- the wire and this machine's end of it ----

class HostProcess:
    """A program in the namespace; the same calls as those of GuestProcess."""

    def __init__(self, command, env=None):
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._said,
                                         stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})),
                                         start_new_session=True)
        self.pid = self._process.pid

    def poll(self):
        """The status; None while it runs."""
        return self._process.poll()

    def wait(self, timeout=None):
        """The status; subprocess.TimeoutExpired when it runs on."""
        return self._process.wait(timeout)

    def output(self):
        """What it has said so far."""
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), size, 0).decode(errors="replace")

    def kill(self):
        """Ends it and what it started; harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Wire:
    """A network namespace with a tap that stands for the cable to the guest."""

    def __init__(self, namespace, tap, address, mtu):
        self.namespace, self.tap, self.address = namespace, tap, address
        self._processes = []
        call("ip", "netns", "add", namespace)
        try:
            for words in (["link", "set", "lo", "up"], ["tuntap", "add", "dev", tap, "mode", "tap"],
                          ["address", "add", address, "dev", tap], ["link", "set", tap, "mtu", str(mtu), "up"]):
                call("ip", "-n", namespace, *words)
        except BaseException:
            self.remove()
            raise

    def inside(self, *command):
        """The command that runs a command in the namespace. It ends with the thread that starts it: a killed test
        leaves no virtual machine."""
        return ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", *command]

    def spawn(self, command, env=None):
        """Starts a program (list of words) in the namespace; it is ended when the wire is removed, if not before."""
        process = HostProcess(self.inside(*command), env)
        self._processes.append(process)
        return process

    def run(self, command, timeout=30, env=None):
        """Runs a program in the namespace to its end: (status, output)."""
        return finish_within(self.spawn(command, env), timeout)

    def remove(self):
        """Ends what runs in the namespace and deletes it."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        left = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)


def finish_within(process, timeout):
    """(status, output) of a process, which is killed when it takes longer: then the status is TIMED_OUT."""
    try:
        return process.wait(timeout), process.output()
    except subprocess.TimeoutExpired:
        process.kill()
        return TIMED_OUT, process.output()


# ---- the guest ----

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
                time.sleep(0.01)

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

    def __init__(self, cache=DEFAULT_CACHE):
        reason = why_not()
        if reason:
            raise Missing(reason)
        self._image = Image(cache)
        self._free = queue.Queue()
        self._channels = []
        self._emulator = None
        self._folder = None
        self.wire = None
        self.address = None
        self.boot_seconds = None

    def start(self, namespace, tap="tap0", guest_address="10.77.0.2", mtu=1500, host_address=None, memory_mib=768,
              cpus=2, seconds=90):
        """Boots. `mtu` is that of both ends of the wire: rxe's is the largest RoCE MTU that fits, 1024 bytes for 1500
        and 4096 for 4500. `host_address` is the namespace's; none: the first other one of guest_address's /24. Two
        processors: a program that polls leaves the other one to the NIC. `seconds`: the longest that the boot may
        take."""
        network = ipaddress.ip_network(guest_address + "/24", strict=False)
        host_address = host_address or next(str(host) for host in network.hosts() if str(host) != guest_address)
        self.address = guest_address
        began = time.monotonic()
        try:
            self._folder = tempfile.mkdtemp(prefix="nupa-rxe-")
            self.wire = Wire(namespace, tap, host_address + "/24", mtu)
            self._boot(guest_address + "/24", mtu, memory_mib, cpus)
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
        end = time.monotonic() + seconds
        look = "cat /proc/net/tcp /proc/net/tcp6 | grep -q ':%04X [0-9A-F]*:[0-9A-F]* 0A '" % port
        wait = "for turn in $(seq 20); do %s && exit 0; usleep 50000; done; exit 1" % look
        while time.monotonic() < end and process.poll() is None:
            if self.run(wait)[0] == 0:
                return True
        return False

    @contextlib.contextmanager
    def capture(self, path):
        """Writes the wire's RoCEv2 packets, both ways, to a pcap file while the `with` block runs; GuestError when some
        were lost."""
        recorder = self.wire.spawn([sys.executable, os.path.abspath(__file__), "--capture", self.wire.tap, path])
        end = time.monotonic() + 10
        while "capturing" not in recorder.output():
            if recorder.poll() is not None or time.monotonic() > end:
                raise GuestError("no capture: " + recorder.output())
            time.sleep(0.01)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(recorder.pid, signal.SIGTERM)
            status, said = finish_within(recorder, 10)
        if status != 0:
            raise GuestError("the capture is not whole: " + said)

    def ping(self, count=3):
        """Echo requests from the namespace to the guest: (status, output). This machine may have no ping of its own."""
        return self.wire.run([self._image.busybox, "ping", "-c", str(count), "-W", "5", self.address])

    def console(self):
        """What the guest's kernel and init have said."""
        with contextlib.suppress(OSError, TypeError), open(os.path.join(self._folder, "console"), "rb") as file:
            return file.read().decode(errors="replace")
        return ""

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

    def _boot(self, address, mtu, memory_mib, cpus):
        # mitigations cost most where the processor is emulated; a panic ends the emulator and so is seen.
        words = ("console=ttyS0 quiet mitigations=off cryptomgr.notests panic=-1 nupa.address=%s nupa.mtu=%d" %
                 (address, mtu))
        command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-accel", "tcg",
                   "-m", str(memory_mib), "-smp", str(cpus), "-kernel", self._image.kernel,
                   "-initrd", self._image.initramfs, "-append", words,
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


# ---- capture ----

def is_roce(frame):
    """An Ethernet frame with a whole UDP header in IPv4 or IPv6, to or from RoCEv2's port."""
    kind = frame[12:14]
    if kind == b"\x08\x00" and len(frame) > 34 and frame[23] == socket.IPPROTO_UDP:
        udp = 14 + 4 * (frame[14] & 15)
    elif kind == b"\x86\xdd" and len(frame) > 54 and frame[20] == socket.IPPROTO_UDP:
        udp = 54
    else:
        return False
    return ROCE_PORT in struct.unpack_from("!HH", frame.ljust(udp + 4, b"\0"), udp)


def capture(interface, path):
    """Writes RoCEv2 packets of an interface to a pcap file until SIGTERM comes."""
    stop_reader, stop_writer = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop_writer, b"."))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    packets.bind((interface, 0))
    packets.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: bursts come faster than Python reads
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))  # microseconds, LINKTYPE_ETHERNET
        print("capturing", flush=True)
        stopping = False
        # What has come before the signal is still written.
        while not stopping or select.select([packets], [], [], 0)[0]:
            ready = select.select([packets, stop_reader], [], [])[0]
            stopping = stopping or stop_reader in ready
            if packets in ready:
                frame = packets.recv(262144)
                if is_roce(frame):
                    now = time.time_ns() // 1000
                    out.write(struct.pack("<IIII", now // 10**6, now % 10**6, len(frame), len(frame)) + frame)
    _, lost = struct.unpack("II", packets.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
    if lost:
        sys.exit("%d packets lost" % lost)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "--capture":
        sys.exit("usage: rxe_guest.py --capture INTERFACE FILE   (tests import this file)")
    capture(sys.argv[2], sys.argv[3])
