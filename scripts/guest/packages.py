# SPDX-License-Identifier: Apache-2.0
"""Debian packages as files: those of this machine, or downloaded and unpacked ones where a package is not installed. Those of another
release are all downloaded."""
import os
import re
import shutil
import signal
import subprocess
import tempfile

from apt_mirror import apt_mirror

KERNEL_META_PACKAGE = "linux-image-amd64"  # the cloud kernel has no rdma_rxe


LOADER = "ld-linux-x86-64.so.2"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
APT_ENVIRONMENT = {"RES_OPTIONS": "timeout:2 attempts:1"}


class GuestError(Exception):
    """The guest cannot be built, started or asked."""


class Missing(GuestError):
    """This machine lacks something that no test can bring along: a reason to skip."""


def call(*command, cwd=None):
    """Output of a command that must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
                               stdin=subprocess.DEVNULL, env=dict(os.environ, LC_ALL="C", **APT_ENVIRONMENT), start_new_session=True)
    try:
        said, complained = process.communicate()
    except BaseException:  # a signal: what the command has started ends too, before files are removed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode != 0:
        raise GuestError("%s: %s" % (" ".join(command), (complained or said).strip()[-300:]))
    return said


def installed_version(package):
    """The version of an installed package; empty when it is not installed."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package],
                          capture_output=True, text=True)
    status, _, version = done.stdout.partition(" ")
    return version if status == "installed" else ""


class Apt:
    """apt for this machine, or for another release of the same mirror, whose package lists are in a separate folder."""

    def __init__(self, release="", folder=""):
        """`release`: its name; empty: this machine's. `folder`: where the lists of another one are."""
        self.release = release
        # A machine without a network finds that out within seconds.
        options = {"Acquire::Retries": "0"}
        if release:
            state = os.path.join(folder, "apt")
            for part in ("lists/partial", "cache/archives/partial"):
                os.makedirs(os.path.join(state, part), exist_ok=True)
            with open(os.path.join(state, "sources.list"), "w", encoding="utf-8") as sources:
                sources.write("deb [signed-by=%s] %s %s main\n" % (KEYS, apt_mirror(), release))
            # An empty list of installed packages, so that the C library counts as needed, too.
            with open(os.path.join(state, "status"), "w", encoding="utf-8"):
                pass
            options |= {"Dir::Etc::SourceList": os.path.join(state, "sources.list"), "Dir::Etc::SourceParts": "-", "Dir::State": state,
                        "Dir::State::status": os.path.join(state, "status"), "Dir::Cache": os.path.join(state, "cache"),
                        "APT::Sandbox::User": "root"}
        self._options = [word for key, value in options.items() for word in ("-o", key + "=" + value)]

    def version(self, package):
        """The version of a package whose files are taken from this machine; empty: it is to be downloaded."""
        return "" if self.release else installed_version(package)

    def get(self, *words, cwd=None):
        return call("apt-get", "-qq", *self._options, *words, cwd=cwd)

    def depends(self, package, *options):
        """Packages that apt names in a package's dependencies, itself among them."""
        text = call("apt-cache", *self._options, "depends", "--important", *options, package)
        return re.findall(r"^(?:  (?:Pre)?Depends: )?([a-z0-9][a-z0-9.+-]*)$", text, re.MULTILINE)

    def again_with_news(self, ask):
        """Returns what ask() returns. If that fails, the lists of apt may be old or missing: they are loaded once, and it asks again."""
        try:
            return ask()
        except GuestError:
            self.get("update")
            return ask()

    def kernel_package(self):
        """The package that holds the present kernel, which the meta package names."""
        try:
            known = self.again_with_news(lambda: self.depends(KERNEL_META_PACKAGE))
        except GuestError as error:
            raise Missing("apt knows no package %s: %s" % (KERNEL_META_PACKAGE, error)) from error
        names = [name for name in known if re.match(r"linux-image-\d", name)]
        if not names:
            raise Missing("package %s names no kernel" % KERNEL_META_PACKAGE)
        return names[0]


class Unpacker:
    """Packages as folders of files. Downloads stay in the cache until forget() removes them. The folders are removed at the end of the
    `with` block: a kernel with all its modules takes 400 MB."""

    PREFIX = "unpacked-"

    def __init__(self, cache, apt):
        self.apt = apt
        self._downloads = os.path.join(cache, "downloads")
        for name in os.listdir(cache):  # of a build that was killed
            if name.startswith(self.PREFIX):
                shutil.rmtree(os.path.join(cache, name), ignore_errors=True)
        self._folders = tempfile.TemporaryDirectory(dir=cache, prefix=self.PREFIX, ignore_cleanup_errors=True)

    def unpack(self, package):
        """The folder with a package's files. `package` is a name, or the path of a package."""
        folder = os.path.join(self._folders.name, os.path.basename(package))
        call("dpkg", "-x", self._archive(package), folder)
        return folder

    def forget(self, package):
        """Removes the download of a package."""
        if not package.endswith(".deb"):
            os.remove(self._kept(package))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._folders.cleanup()

    def _kept(self, package):
        return os.path.join(self._downloads, package + ".deb")

    def _archive(self, package):
        if package.endswith(".deb"):
            return package
        kept = self._kept(package)
        if not os.path.exists(kept):
            os.makedirs(self._downloads, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._downloads) as fresh:
                try:
                    self.apt.again_with_news(lambda: self.apt.get("download", package, cwd=fresh))
                except GuestError as error:
                    raise Missing("package %s cannot be downloaded: %s" % (package, error)) from error
                name, = os.listdir(fresh)
                os.rename(os.path.join(fresh, name), kept)
        return kept


class Packages:
    """Files of packages: those of this machine, or unpacked ones where a package is not installed."""

    def __init__(self, unpacker, wanted):
        self.folders = {}
        self._apt = unpacker.apt
        absent = [name for name in wanted if not self._apt.version(name)]
        for name in absent:
            self.folders[name] = unpacker.unpack(name)
        for name in sorted(self._libraries_of(absent)):
            self.folders[name] = unpacker.unpack(name)

    def _libraries_of(self, names):
        """Packages that the absent ones need and that are not here either."""
        needed = set()
        for name in names:
            needed.update(self._apt.depends(name, "--recurse"))
        return {name for name in needed
                if name.startswith("lib") and name not in self.folders and not self._apt.version(name)}

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
        return libraries_of(program, self.folders.values(), "libc6" in self.folders)


def libraries_of(program, folders=(), by_their_loader=False):
    """The same, where some of them may lie in folders of unpacked packages. `by_their_loader`: the C library does, too."""
    extra = [where for folder in folders for where, _, names in os.walk(folder) if any(".so" in name for name in names)]
    command, found = ["ldd"], []
    if by_their_loader:
        loader = next(path for path in (os.path.join(where, LOADER) for where in extra) if os.path.exists(path))
        command = [loader, "--list"]
        found.append(("/lib64/" + LOADER, loader))  # programs name it so
    done = subprocess.run([*command, program], capture_output=True, text=True,
                          env=dict(os.environ, LC_ALL="C", LD_LIBRARY_PATH=":".join(extra)))
    if done.returncode != 0 and "not a dynamic executable" not in done.stdout + done.stderr:
        raise GuestError("%s: %s" % (program, (done.stderr or done.stdout).strip()[-300:]))
    for line in done.stdout.splitlines():
        if "not found" in line:
            raise GuestError("%s: %s" % (program, line.strip()))
        match = re.match(r"\s*(?:\S+ => )?(/\S+) \(0x", line)
        if match:
            found.append((in_the_guest(match.group(1), folders), match.group(1)))
    return found


def in_the_guest(path, folders):
    for folder in folders:
        if path.startswith(folder + "/"):
            return path[len(folder):]
    return path
