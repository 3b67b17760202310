# SPDX-License-Identifier: Apache-2.0
"""The initial file system of a guest: a cpio archive with programs of packages, their libraries, and kernel modules."""
import os
import re
import stat

from guest.packages import call, libraries_of


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


def add_tools(archive, packages, wanted):
    """Adds files of packages, and the libraries that programs among them need. `wanted`: {package: pattern of the paths}."""
    for package, pattern in wanted.items():
        for path, source in packages.files(package):
            if re.search("(%s)$" % pattern, path) and os.path.isfile(source):
                archive.copy(path, source)
                if is_elf(source) and package != "busybox-static":
                    for library, where in packages.libraries(source):
                        archive.copy(library, where)


def add_busybox_links(archive, packages):
    """Adds busybox under the name of each of its programs, unless another package brought that name."""
    for name in call(packages.busybox(), "--list-full").split():
        if not {"usr/bin/" + os.path.basename(name), "usr/sbin/" + os.path.basename(name)} & archive.known:
            archive.symlink(name, "/usr/bin/busybox")


def add_program(archive, path, source, stripped=None):
    """Adds a program or a library of this machine, and the libraries that it needs, where the guest's loader looks. `stripped`, if
    given, returns the path of a smaller copy of a file."""
    stripped = stripped or (lambda name: name)
    archive.copy(path, stripped(source))
    for library, where in libraries_of(source):
        known = library.startswith(("/lib/", "/lib64/", "/usr/lib/"))
        archive.copy(library if known else "/usr/lib/" + os.path.basename(library), where if known else stripped(where))


def more_programs(programs, alone=False):
    """An archive that may follow the initial file system: programs of this machine in /usr/bin, wherever they are here, and their
    libraries. `alone`: without these, because the guest has its own."""
    archive = Archive()
    for program in programs:
        path = "/usr/bin/" + os.path.basename(program)
        if alone:
            archive.copy(path, program)
        else:
            add_program(archive, path, program)
    return archive.finished()


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
