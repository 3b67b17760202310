# SPDX-License-Identifier: Apache-2.0
"""Debian packages as files: those of this machine, or downloaded and unpacked ones where a package is not installed."""
import os
import re
import shutil
import signal
import subprocess
import tempfile

KERNEL_META_PACKAGE = "linux-image-amd64"  # the cloud kernel has no rdma_rxe


# A machine without a network finds that out within seconds.
APT_GET = ("apt-get", "-qq", "-o", "Acquire::Retries=0")
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


def depends(package, *options):
    """Packages that apt names in a package's dependencies, itself among them."""
    text = call("apt-cache", "depends", "--important", *options, package)
    return re.findall(r"^(?:  (?:Pre)?Depends: )?([a-z0-9][a-z0-9.+-]*)$", text, re.MULTILINE)


def call_again_with_news(ask):
    """Returns what ask() returns. If that fails, the lists of apt may be old or missing: they are loaded once, and it asks again."""
    try:
        return ask()
    except GuestError:
        call(*APT_GET, "update")
        return ask()


def kernel_package():
    """The package that holds the present kernel, which the meta package names."""
    try:
        known = call_again_with_news(lambda: depends(KERNEL_META_PACKAGE))
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

    def __init__(self, cache):
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
                    call_again_with_news(lambda: call(*APT_GET, "download", package, cwd=fresh))
                except GuestError as error:
                    raise Missing("package %s cannot be downloaded: %s" % (package, error)) from error
                name, = os.listdir(fresh)
                os.rename(os.path.join(fresh, name), kept)
        return kept


class Packages:
    """Files of packages: those of this machine, or unpacked ones where a package is not installed."""

    def __init__(self, unpacker, wanted):
        self.folders = {}
        absent = [name for name in wanted if not installed_version(name)]
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
        return libraries_of(program, self.folders.values())


def libraries_of(program, folders=()):
    """The same, where some of them may lie in folders of unpacked packages."""
    extra = [where for folder in folders for where, _, names in os.walk(folder) if any(".so" in name for name in names)]
    done = subprocess.run(["ldd", program], capture_output=True, text=True,
                          env=dict(os.environ, LC_ALL="C", LD_LIBRARY_PATH=":".join(extra)))
    if done.returncode != 0 and "not a dynamic executable" not in done.stdout + done.stderr:
        raise GuestError("%s: %s" % (program, (done.stderr or done.stdout).strip()[-300:]))
    found = []
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
