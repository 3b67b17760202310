#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two virtual machines that share a PCIe BAR, then two that share a CXL device: the short form of vms/pcie/demo and vms/cxl/demo."""
import contextlib
import os
import shutil
import sys

from pairs import ROOT, finish, nupa, outcome, skip

sys.path.insert(0, os.path.join(ROOT, "vms"))
from vm.bells import check_bells
from vm.image import CACHE, Image
from vm.matrix import TRANSPORTS, Matrix, POOL
from vm.pair import Pair
from vm.qemu import Setup
from guest.commands import end_by_exception
from guest.packages import GuestError, Missing


def why_not():
    """Why no guest can run here. Empty when nothing is known to be missing."""
    for program, package in (("setpriv", "util-linux"), ("apt-get", "apt"), ("dpkg", "dpkg"), ("ldd", "libc-bin")):
        if shutil.which(program) is None:
            return "%s is missing (Debian package %s)" % (program, package)
    return ""


def has_pool():
    """False for a build without the transport `pool`."""
    return nupa("run", "--transport", "pool", "--", "true").returncode == 0


def check(kind, image, transports):
    """Each row of the table is an outcome for each transport."""
    setup = Setup(kind, image.take_kernel(), CACHE)
    print("\n".join(setup.explain()), flush=True)
    try:
        pair = Pair(setup, image)
    except GuestError as reason:
        outcome(False, "%s: both guests boot" % kind, reason)
        return
    with pair:
        outcome(True, "%s: both guests boot" % kind)
        for row in Matrix(pair, short=True, transports=transports).rows():
            for name, cell in row.cells.items():
                where = "the window" if row.is_raw else name
                outcome(not cell.error, "%s: %s over %s" % (kind, row.name, where), cell.error)
                if not cell.error:
                    print("     %s %s" % (cell.text, row.unit), flush=True)


def check_doorbells(image):
    """Two guests whose window has interrupts."""
    setup = Setup("pcie", image.take_kernel(), CACHE, doorbell=True)
    try:
        pair = Pair(setup, image)
    except GuestError as reason:
        outcome(False, "pcie with doorbells: both guests boot", reason)
        return
    with pair:
        outcome(True, "pcie with doorbells: both guests boot")
        for name, error in check_bells(pair):
            outcome(not error, "pcie with doorbells: " + name, error)


def main():
    end_by_exception()
    # An emulated processor that waits for its turn looks like a lossy link to its peer.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    os.environ.setdefault("NUPA_VM_ACCEL", "tcg")  # the same everywhere, and without the seconds of the probe
    reason = why_not()
    try:
        image = None if reason else Image()
        if image:
            image.programs()
            Setup("pcie", image.take_kernel(), CACHE)
    except Missing as missing:
        reason = str(missing)
    if reason:
        skip("vms", reason)
        finish()
    pool = has_pool()
    if not pool:
        skip("vms: rows over the pool", "this build has no transport named pool")
    check("pcie", image, TRANSPORTS if pool else [over for over in TRANSPORTS if over is not POOL])
    if pool:
        check_doorbells(image)
    check("cxl", image, [POOL] if pool else [])
    finish()


if __name__ == "__main__":
    main()
