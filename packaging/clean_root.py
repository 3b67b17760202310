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
# In new mount, process and IPC namespaces. Arguments: the root, the working folder, user:group, the capabilities that processes may have,
# the folder of a volume and its place ("" for none), the environment's words and the command.
ENTER = r"""
set -e
root="$1"; folder="$2"; user="$3"; capabilities="$4"; volume="$5"; place="$6"; shift 6
cd "$root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755,size=64k tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777,size=64m tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
for name in resolv.conf hosts; do touch etc/$name; mount --bind /etc/$name etc/$name; done
if [ -n "$volume" ]; then mkdir -p ".$place"; mount --bind "$volume" ".$place"; fi
exec setpriv --bounding-set="$capabilities" --inh-caps=-all chroot --userspec="$user" . env -i -C "$folder" "$@"
"""


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


def entered(root, command, user, folder="/", environment=None, capabilities="+all", volume=("", "")):
    """The command that runs `command` in a root, with this machine's network. `user`: UID:GID. `capabilities`: the bounding set, as of
    setpriv. `volume`: a folder of this machine and its place there."""
    return ["unshare", "--mount", "--pid", "--fork", "--ipc", "--kill-child", "--propagation", "private", "sh", "-c", ENTER, "sh", root, folder, user,
            capabilities, *volume, *("%s=%s" % each for each in (environment or {}).items()), *command]
