# SPDX-License-Identifier: Apache-2.0
"""Kernel and initial file system of the virtual machine of rxe_guest.py, in a cache folder.

The kernel is Debian's, unpacked and not installed; its programs are those of this machine, or of downloaded packages
where they are not installed here.
"""
import os

from guest.image import PackageImage, build_folder

DEFAULT_CACHE = os.path.join(build_folder(), "rxe")
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
MODULES = ("crc32_generic", "virtio_net", "rdma_rxe", "ib_uverbs", "rdma_ucm", "tun", "sch_ingress", "cls_flower", "act_gact")
BUILT_IN_OR_MODULES = ("virtio_pci", "virtio_console")  # built in since Debian 13

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


class Image(PackageImage):
    """Kernel, initial file system, and the path of busybox on this machine."""

    def __init__(self, release="", cache=DEFAULT_CACHE):
        super().__init__("-".join([cache, release]) if release else cache, WANTED_FILES, __file__, release=release)

    def fill(self, archive):
        kernel = self.take_kernel()
        modules = kernel.modules([*filter(kernel.has, BUILT_IN_OR_MODULES), *MODULES])
        for name, data in modules.items():
            archive.file("modules/%s.ko" % name, data)
        archive.file("modules.list", "".join("/modules/%s.ko\n" % name for name in modules).encode())
        archive.file("init", INIT.encode(), 0o755)
