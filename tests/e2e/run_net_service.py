#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The unit nupa-net@.service under a systemd that runs it, in namespaces of its own over a copy-on-write view of this system:
nothing of this machine is touched."""
import atexit
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pairs import BUILD, finish, outcome, skip, wait_for

SYSTEMD = "/lib/systemd/systemd"
UNIT = "nupa-net@lab"
CONFIG = {"network": "lab", "key_file": "/etc/nupa/lab.key",
          "nodes": {"here": {"addresses": ["10.77.0.1/24", "fd77::1/64"]}, "there": {"addresses": ["10.77.0.2/24"]}}}
# Of what the system itself would start: nothing that looks after devices, disks and logs, of which there are none.
MASKED = """systemd-udevd.service systemd-udev-trigger.service systemd-journald.service systemd-journald.socket local-fs.target
    systemd-journald-dev-log.socket systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service swap.target
    systemd-sysusers.service systemd-modules-load.service systemd-remount-fs.service systemd-random-seed.service
    systemd-update-utmp.service systemd-sysctl.service systemd-binfmt.service systemd-firstboot.service""".split()

# $1: an empty folder; $2: the build; $3: what is put into /etc. 77: this machine does not allow it.
BOOT = """
base="$1"; root="$1/root"
mount -t tmpfs tmpfs "$base" || exit 77
mkdir "$base/upper" "$base/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$root" || exit 77
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/run" || exit 77
mount -t tmpfs tmpfs "$root/tmp" && mount -t sysfs -o ro sysfs "$root/sys" || exit 77
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || exit 77
cmake --install "$2" --prefix "$root/usr/local" >/dev/null || exit 1
rm -rf "$root/etc/systemd/system" "$root/etc/nupa"
cp -r "$3"/. "$root/etc/" || exit 1
ldconfig -r "$root"
ip link set lo up
exec chroot "$root" env -i container=test PATH=/usr/sbin:/usr/bin "%s" --system --unit=basic.target
""" % SYSTEMD


def cgroup_folder():
    """Where cgroups of version 2 are; None: nowhere."""
    with open("/proc/mounts", encoding="utf-8") as file:
        return next((words[1] for words in map(str.split, file) if words[2] == "cgroup2"), None)


class System:
    """A systemd and what it has started; gone when the `with` block is left."""

    def __init__(self, cgroups, etc):
        self.base = tempfile.mkdtemp(prefix="nupa-systemd-")
        self.group = os.path.join(cgroups, os.path.basename(self.base))
        self.pid = None
        atexit.register(self.stop)
        os.mkdir(self.group)
        enter = 'echo $$ >"$0/cgroup.procs" || exit 77; exec "$@"'
        self.process = subprocess.Popen(
            ["sh", "-c", enter, self.group, "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts",
             "--ipc", "--net", "--cgroup", "sh", "-c", BOOT, "sh", self.base, BUILD, etc],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        # It is installed before that.
        if wait_for(lambda: self.first() or self.process.poll() is not None, 60) and self.process.poll() is None:
            self.pid = self.first()

    def first(self):
        """The process that is systemd by now."""
        with contextlib.suppress(OSError, IndexError):
            with open("/proc/%d/task/%d/children" % ((self.process.pid,) * 2), encoding="ascii") as file:
                child = int(file.read().split()[0])
            return child if os.readlink("/proc/%d/exe" % child).endswith("/systemd") else None
        return None

    def run(self, *words):
        return subprocess.run(["nsenter", "--target", str(self.pid), "--all", "--root", "--wd", *words], capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)

    def ctl(self, *words):
        return self.run("systemctl", "--no-pager", *words)

    def shows(self, name):
        return self.ctl("show", "--value", "-p", name, UNIT).stdout.strip()

    def is_up(self):
        return self.ctl("is-active", UNIT).stdout.strip() == "active" and self.run("ip", "link", "show", "nupa0").returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.process.kill()
        self.process.wait()

        def is_removed():
            with contextlib.suppress(OSError):
                for where, _, _ in os.walk(self.group, topdown=False):
                    os.rmdir(where)
            return not os.path.isdir(self.group)

        wait_for(is_removed, 5)
        shutil.rmtree(self.base, ignore_errors=True)
        atexit.unregister(self.stop)


def fill(etc):
    """What the node's host would have in /etc."""
    os.makedirs(os.path.join(etc, "systemd", "system"))
    os.mkdir(os.path.join(etc, "nupa"))
    for name in MASKED:
        os.symlink("/dev/null", os.path.join(etc, "systemd", "system", name))
    for name, text, mode in (("hostname", "here\n", 0o644), ("nupa/lab.json", json.dumps(CONFIG), 0o644),
                             ("nupa/lab.key", os.urandom(32).hex() + "\n", 0o600)):
        with open(os.open(os.path.join(etc, name), os.O_CREAT | os.O_WRONLY, mode), "w", encoding="ascii") as file:
            file.write(text)


def check(system):
    done = system.ctl("enable", "--now", UNIT)
    outcome(done.returncode == 0 and wait_for(system.is_up), "net-service-starts", done.stderr + system.ctl("status", UNIT).stdout)
    status = system.run("env", "NUPA_RUNTIME_DIR=/run/nupa", "nupa", "net", "status", "lab")
    outcome("here" in status.stdout and "10.77.0.1" in status.stdout, "net-service-has-the-hosts-name", status.stdout + status.stderr)
    outcome(system.run("readlink", "/etc/systemd/system/multi-user.target.wants/%s.service" % UNIT).returncode == 0,
            "net-service-is-enabled")
    before = system.shows("MainPID")
    system.run("kill", "-s", "KILL", before)
    again = wait_for(lambda: system.shows("MainPID") not in ("0", before) and system.is_up())
    outcome(again, "net-service-is-started-again", system.ctl("status", UNIT).stdout)
    system.ctl("stop", UNIT)
    outcome(system.shows("Result") == "success", "net-service-stops", system.ctl("status", UNIT).stdout)
    outcome(system.run("ip", "link", "show", "nupa0").returncode != 0, "net-service-takes-its-interface-away")
    left = system.run("find", "/run/nupa", "-mindepth", "1", "!", "-name", "port-counts").stdout
    outcome(left == "", "net-service-leaves-nothing", left)
    done = system.ctl("start", "nupa-net@none")
    wait_for(lambda: system.ctl("is-failed", "nupa-net@none").returncode == 0)
    outcome(system.ctl("is-failed", "nupa-net@none").returncode == 0, "net-service-fails-without-a-file", done.stderr)


def main():
    cgroups = cgroup_folder()
    if os.geteuid() != 0 or not os.access(BUILD, os.W_OK):
        skip("net-service", "needs root, and a build folder that it may install from")
    elif not os.path.exists(SYSTEMD) or not shutil.which("nsenter"):
        skip("net-service", "no systemd here")
    elif cgroups is None or not os.access(cgroups, os.W_OK):
        skip("net-service", "no cgroups of version 2, or none may be made")
    else:
        with tempfile.TemporaryDirectory() as etc:
            fill(etc)
            with System(cgroups, etc) as system:
                if system.pid is None and system.process.poll() == 77:
                    skip("net-service", "no namespaces, overlay or cgroups for a system: " + system.process.stderr.read().strip()[-200:])
                else:
                    booted = system.pid and wait_for(
                        lambda: system.ctl("is-active", "basic.target").returncode == 0, 60)
                    outcome(booted, "net-service-boots", system.process.poll())
                    if booted:
                        check(system)
    finish()


main()
