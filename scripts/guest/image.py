# SPDX-License-Identifier: Apache-2.0
"""The image of a guest: a kernel, and an initial file system with programs of packages, in a cache folder. Nothing is installed, and root
is not needed. Packages that this machine has are taken from it; others are downloaded and unpacked."""
import fcntl
import hashlib
import os
import shutil

from guest.archive import Archive, add_busybox_links, add_tools
from guest.commands import SERVE_COMMANDS
from guest.kernel import Kernel, make_once
from guest.packages import Apt, Packages, Unpacker

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))


def build_folder():
    """The build whose programs are used, and which has the caches of images."""
    return os.environ.get("NUPA_BUILD") or os.path.join(ROOT, "build")


class PackageImage:
    """Made again when one of its sources or a package changed. A derived class fills in kernel modules and the first program."""

    def __init__(self, cache, wanted, *sources, release=""):
        """`wanted`: see add_tools(). `sources`: files that the image is made of, the one of the derived class among them.
        `release`: kernel and packages are those of another release of Debian; empty: this machine's."""
        self.initramfs = os.path.join(cache, "initramfs.cpio")
        self.busybox = os.path.join(cache, "busybox")
        self._kernel = None
        self._apt = Apt(release, cache)
        self._wanted = wanted
        self._sources = [*sources, *(os.path.join(OWN_FOLDER, name) for name in sorted(os.listdir(OWN_FOLDER)) if name.endswith(".py"))]
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.take_kernel()
            with Unpacker(cache, self._apt) as unpacker:
                make_once(os.path.join(cache, "stamp"), self._inputs(), lambda: self._build(Packages(unpacker, tuple(wanted))))

    def take_kernel(self):
        if self._kernel is None:
            self._kernel = Kernel(build_folder(), self._apt.release)
        return self._kernel

    @property
    def kernel(self):
        """The path of the kernel."""
        return self.take_kernel().path

    def fill(self, archive):
        """Adds the modules, and the program `init`."""
        raise NotImplementedError

    def _build(self, packages):
        archive = Archive()
        add_tools(archive, packages, self._wanted)
        archive.symlink("/bin/sh", "dash")
        add_busybox_links(archive, packages)
        archive.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        archive.file("etc/group", b"root:x:0:\ntty:x:5:\n")
        archive.file("etc/hosts", b"127.0.0.1 localhost\n")
        archive.file("usr/bin/serve-commands", SERVE_COMMANDS.encode(), 0o755)
        self.fill(archive)
        with open(self.initramfs, "wb") as file:
            file.write(archive.finished())
        shutil.copy(packages.busybox(), self.busybox)

    def _inputs(self):
        sums = [hashlib.sha256(open(name, "rb").read()).hexdigest() for name in self._sources]
        return "\n".join([self.take_kernel().version, *sums,
                          *("%s %s" % (name, self._apt.version(name)) for name in self._wanted)])
