# SPDX-License-Identifier: Apache-2.0
"""The image of both guests: Debian's kernel, an initial file system of Debian's packages, and the programs of the build behind it."""
import os
import shutil
import subprocess

from guest.archive import Archive, add_program
from guest.image import PackageImage, build_folder
from guest.packages import Missing
from vm import ROOT

INSIDE = os.path.join(ROOT, "vms", "inside")
CACHE = os.path.join(build_folder(), "vms")
# {package: pattern of the files that the guests get}
WANTED_FILES = {
    "busybox-static": r"/bin/busybox",
    "dash": r"/bin/dash",
    "iproute2": r"/s?bin/(ip|ss)",
    "ibverbs-utils": r"/bin/ibv_\w+",
    "perftest": r"/bin/ib_\w+",
    "rdmacm-utils": r"/bin/\w+",
    "iperf3": r"/bin/iperf3",
    "dropbear-bin": r"/s?bin/(dropbear|dbclient|dropbearkey)",
    "ndctl": r"/bin/(ndctl|cxl)",
    "daxctl": r"/bin/daxctl",
    "libgcc-s1": r"/libgcc_s\.so\.1",  # the C library loads it by name when a thread ends
}
# Loaded in each guest, in guests whose window has a doorbell, and in guests with a CXL device. A kernel may have some of the latter built in, or lack them.
MODULES = ("virtio_pci", "virtio_rng", "virtio_net", "virtio_console", "tun")
VFIO_MODULES = ("vfio_iommu_type1", "vfio_pci")
CXL_MODULES = ("cxl_acpi", "cxl_pci", "cxl_port", "cxl_mem", "cxl_pmem", "nd_pmem", "dax_pmem", "dax_cxl", "device_dax")


class Image(PackageImage):
    def __init__(self):
        inside = [os.path.join(INSIDE, name) for name in sorted(os.listdir(INSIDE))]
        super().__init__(CACHE, WANTED_FILES, __file__, *inside)
        self._programs = os.path.join(CACHE, "programs.cpio")

    def fill(self, archive):
        kernel = self.take_kernel()
        loaded = set()
        for list_name, names in (("base", MODULES), ("cxl", CXL_MODULES), ("vfio", VFIO_MODULES)):
            modules = kernel.modules([name for name in names if kernel.has(name)])
            new = [name for name in modules if name not in loaded]
            loaded.update(new)
            for name in new:
                archive.file("modules/%s.ko" % name, modules[name])
            archive.file("modules/%s.list" % list_name, "".join("%s\n" % name for name in new).encode())
        for path, name in (("init", "init"), ("usr/sbin/make-region", "make-region")):
            with open(os.path.join(INSIDE, name), "rb") as file:
                archive.file(path, file.read(), 0o755)

    def programs(self):
        """The path of an archive with the build's programs and drop-in libraries, made again when one of them changed."""
        build = build_folder()
        nupa = os.path.join(build, "bin", "nupa")
        libraries = os.path.join(build, "lib", "nupa")
        if not os.path.exists(nupa) or not os.path.isdir(libraries):
            raise Missing("%s: no such program (build it with scripts/build)" % nupa)
        files = {"/usr/bin/nupa": nupa}
        probe = os.path.join(CACHE, "window_probe")
        if os.path.exists(probe):
            files["/usr/bin/window_probe"] = probe
        for name in sorted(os.listdir(libraries)):
            if ".so" in name:
                files["/usr/lib/nupa/" + name] = os.path.join(libraries, name)
        newest = max(os.stat(path).st_mtime_ns for path in [*files.values(), *self._own_libraries(build)])
        if not os.path.exists(self._programs) or os.stat(self._programs).st_mtime_ns < newest or self._listed() != list(files):
            archive = Archive()
            for path, source in files.items():
                add_program(archive, path, source, self._stripped)
            with open(self._programs + ".new", "wb") as file:
                file.write(archive.finished())
            os.rename(self._programs + ".new", self._programs)
            with open(self._programs + ".list", "w", encoding="utf-8") as file:
                file.write("\n".join(files))
        return self._programs

    def _listed(self):
        try:
            with open(self._programs + ".list", encoding="utf-8") as file:
                return file.read().split("\n")
        except FileNotFoundError:
            return []

    @staticmethod
    def _own_libraries(build):
        folder = os.path.join(build, "lib")
        return [os.path.join(folder, name) for name in os.listdir(folder) if ".so" in name]

    @staticmethod
    def _stripped(path):
        """A copy without symbols for debuggers, or the file itself if there is no strip: 17 MB of nupa become 4."""
        if not shutil.which("strip"):
            return path
        folder = os.path.join(CACHE, "stripped")
        os.makedirs(folder, exist_ok=True)
        copy = os.path.join(folder, os.path.basename(path))
        done = subprocess.run(["strip", "--strip-unneeded", "-o", copy, os.path.realpath(path)], capture_output=True, check=False)
        return copy if done.returncode == 0 else path


def node_archive(settings, authorized_keys="", motd=""):
    """What differs between guests: the file that `init` reads, the keys that ssh accepts, and what the console shows first. `settings`:
    {NAME: value}, for sh."""
    archive = Archive()
    archive.file("etc/motd", motd.encode())
    archive.file("etc/node.conf", "".join("%s='%s'\n" % item for item in settings.items()).encode())
    if authorized_keys:
        archive.file("root/.ssh/authorized_keys", authorized_keys.encode(), 0o600)
    return archive.finished()
