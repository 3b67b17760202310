# SPDX-License-Identifier: Apache-2.0
"""Describes the machine on which the figures were measured."""
import datetime
import os
import subprocess


def _first(path, default=""):
    try:
        with open(path) as text:
            return text.readline().strip()
    except OSError:
        return default


def _field(path, name):
    try:
        with open(path) as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def _output(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _caches():
    """Returns the first core's data caches, from level 1 to the last level."""
    found = []
    folder = "/sys/devices/system/cpu/cpu0/cache"
    for index in range(8):
        kind = _first("%s/index%d/type" % (folder, index))
        if kind in ("Data", "Unified"):
            found.append("L%s %s" % (_first("%s/index%d/level" % (folder, index)),
                                     _first("%s/index%d/size" % (folder, index))))
    return ", ".join(found)


def _package(name):
    return "%s %s" % (name, _output(["dpkg-query", "-W", "-f=${Version}", name]))


def describe(build, cores, command, rounds, packages=("perftest", "ucx-utils")):
    model = _field("/proc/cpuinfo", "model name") or os.uname().machine
    virtual = "hypervisor" in _field("/proc/cpuinfo", "flags").split()
    return {
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "cpu": "%s, %d cores%s" % (model, os.cpu_count() or 0, ", a virtual machine" if virtual else ""),
        "caches": _caches(),
        "memory": "%.0f GiB" % (int(_field("/proc/meminfo", "MemTotal").split()[0]) / 2**20),
        "system": "%s, Linux %s" % (_field_release(), os.uname().release),
        "huge pages": "%s; for shared memory %s" % (_chosen("enabled"), _chosen("shmem_enabled")),
        "programs": ", ".join([_output([os.path.join(build, "bin", "nupa"), "--version"])]
                              + [_package(name) for name in packages]),
        "cores": list(cores),
        "command": command,
        "rounds": rounds,
    }


def _field_release():
    try:
        with open("/etc/os-release") as lines:
            for line in lines:
                if line.startswith("PRETTY_NAME="):
                    return line.split("=", 1)[1].strip().strip('"')
    except OSError:
        pass
    return "Linux"


def _chosen(name):
    """Returns the chosen value of a kernel setting for transparent huge pages, which is the word in brackets."""
    line = _first("/sys/kernel/mm/transparent_hugepage/" + name)
    return line[line.find("[") + 1:line.find("]")] if "[" in line else "unknown"
