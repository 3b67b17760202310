#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that are linked to the libraries of adapters' drivers, where these are missing."""
import os
import shutil
import subprocess
import tempfile

from pairs import BUILD, NUPA, finish, outcome, private_runtime_dir, skip

LIMIT_S = 60
SYSTEM = "/usr/lib/x86_64-linux-gnu"
private_runtime_dir()


def symbols(path):
    """The functions that a library exports, with their versions."""
    said = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in said.splitlines()]
    return {each[7].replace("@@", "@") for each in fields
            if len(each) == 8 and each[3] == "FUNC" and each[6] != "UND" and "dv_" in each[7] and not each[7].startswith("nupa_")}


def folder(name):
    return os.path.join(BUILD, "lib", "nupa", "providers", name)


def exports():
    for name in ("mlx5", "efa", "hns", "mlx4", "mana"):
        ours = os.path.join(folder(name), "lib%s.so.1" % name)
        theirs = os.path.join(SYSTEM, "lib%s.so.1" % name)
        if not os.path.exists(theirs):
            skip("functions of lib%s" % name, "the system has none")
            continue
        missing = symbols(theirs) - symbols(ours)
        outcome(not missing and symbols(theirs), "functions of lib%s" % name, "missing: %s" % sorted(missing)[:5])


def paths():
    """The system's own library comes first: a folder is named only where the system has none."""
    said = subprocess.run([NUPA, "run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"], capture_output=True, text=True, timeout=LIMIT_S).stdout
    for name in ("mlx5", "efa", "hns"):
        here = os.path.exists(os.path.join(SYSTEM, "lib%s.so.1" % name))
        outcome((folder(name) in said.strip().split(":")) != here, "the folder of lib%s is named only if the system has none" % name, said)
    with tempfile.TemporaryDirectory(prefix="nupa-providers-") as own:
        open(os.path.join(own, "libhns.so.1"), "w").close()
        said = subprocess.run([NUPA, "run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"], capture_output=True, text=True, timeout=LIMIT_S,
                              env=dict(os.environ, LD_LIBRARY_PATH=own)).stdout
        outcome(own in said and folder("hns") not in said, "one of LD_LIBRARY_PATH counts", said)


# In a mount namespace: the libraries are removed there, and the loader's cache knows nothing of them.
REMOVE = """
set -e
mount -t tmpfs none {place}
cd {place}
mkdir library library-work etc etc-work
mount -t overlay overlay -o lowerdir={system},upperdir=library,workdir=library-work {system}
mount -t overlay overlay -o lowerdir=/etc,upperdir=etc,workdir=etc-work /etc
rm -f {system}/libmlx5.so* {system}/libefa.so* {system}/libmlx4.so*
ldconfig
cd /
exec "$@"
"""


def without():
    if os.geteuid() != 0 or shutil.which("ib_write_lat") is None:
        skip("without the libraries", "needs root and perftest")
        return
    with tempfile.TemporaryDirectory(prefix="nupa-providers-") as place:
        remove = ["unshare", "-m", "sh", "-c", REMOVE.format(place=place, system=SYSTEM), "sh"]
        if subprocess.run([*remove, "true"], capture_output=True, timeout=LIMIT_S).returncode != 0:
            skip("without the libraries", "this system has no overlayfs")
            return
        bare = subprocess.run([*remove, "ib_write_lat", "--version"], capture_output=True, text=True, timeout=LIMIT_S)
        outcome("libmlx5.so.1" in bare.stderr, "perftest does not start by itself", bare.stderr[-200:])
        pair = "{0} run -- ib_write_lat -n 100 & server=$!; until {0} run -- ib_write_lat -n 100 127.0.0.1; do :; done; wait $server".format(NUPA)
        done = subprocess.run([*remove, "sh", "-c", pair], capture_output=True, text=True, timeout=LIMIT_S)
        outcome(done.returncode == 0, "perftest runs without libmlx5 and libefa", (done.stdout + done.stderr)[-300:])
        if shutil.which("ucx_info") is not None:
            done = subprocess.run([*remove, NUPA, "run", "--", "ucx_info", "-d"], capture_output=True, text=True, timeout=LIMIT_S)
            outcome("Transport: rc_verbs" in done.stdout, "UCX finds the device", done.stdout[-300:] + done.stderr[-300:])


exports()
paths()
without()
finish()
