# SPDX-License-Identifier: Apache-2.0
"""Root folders with a fresh Debian 12, for the tests of packages, of the image and of the action."""
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from apt_mirror import apt_mirror  # noqa: E402
RELEASE = "bookworm"


def made_root(folder, programs=(), complete=lambda root: None):
    """The path of a minimal Debian 12 with these packages, made once in `folder`; complete() then adds to it. Ends the script if that
    fails."""
    root, stamp = os.path.join(folder, "root"), os.path.join(folder, "complete")
    wanted = " ".join(programs)
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == wanted:
        return root
    if shutil.which("mmdebstrap") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    include = ["--include=" + ",".join(programs)] if programs else []
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", *include, RELEASE, root, apt_mirror()])
    if done.returncode != 0:
        sys.exit(sys.argv[0] + ": mmdebstrap failed")
    complete(root)
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted)
    return root


def add_user(root, name, number):
    subprocess.run(["chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "--uid", str(number), name], check=True)
