# SPDX-License-Identifier: Apache-2.0
"""NUPA in Python: the drop-in libibverbs and librdmacm for this process, and the nupa command.

    import nupa
    nupa.enable()     # before a module that uses RDMA is imported
    import ucp

enable() reaches libraries that load libibverbs.so.1 by its name, and the processes that this one starts. What it cannot reach:
a library that another module has loaded before (enable() raises), and one whose file contains its own libibverbs. The
files in /sys/class/infiniband need the library that only the start of a process can load: use `nupa run -- python ...`
for programs that look there.
"""
import ctypes
import os
import subprocess
import sys

__all__ = ["Error", "enable", "environment", "main", "prefix"]

_LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1")
_held = []  # the libraries stay loaded


class Error(RuntimeError):
    """NUPA cannot take the place of a library."""


def prefix():
    """The folder with bin, lib and include."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "prefix")


def _program():
    return os.path.join(prefix(), "bin", "nupa")


def _loaded(name):
    """Paths of loaded files of this name, in any of its versions."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and os.path.basename(fields[5]).startswith(name):
                found.add(fields[5])
    return found


def environment():
    """The variables that `nupa run` sets for its program, as a dictionary."""
    said = subprocess.run([_program(), "run", "--", "env", "-0"], stdout=subprocess.PIPE, check=True).stdout
    pairs = (item.partition(b"=") for item in said.split(b"\0") if item)
    run = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return {name: value for name, value in run.items() if os.environ.get(name) != value and name != "_"}


def enable(children=True):
    """Loads the drop-in libraries: whatever asks for libibverbs.so.1 or librdmacm.so.1 later gets them. `children`: for the
    processes that this one starts, too. Calling it again does nothing. Raises Error if another one is loaded already."""
    folder = os.path.join(prefix(), "lib", "nupa")
    for name in _LIBRARIES:
        strangers = [path for path in _loaded(name) if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder)]
        if strangers:
            raise Error("%s is loaded already: call nupa.enable() before the modules that use RDMA are imported" %
                        ", ".join(sorted(strangers)))
    if not _held:
        # Some ask for the name without a number.
        for name in (*_LIBRARIES, *(name[:-len(".1")] for name in _LIBRARIES)):
            _held.append(ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL))
    if children:
        os.environ.update(environment())


def main():
    """The nupa command."""
    os.execv(_program(), ["nupa", *sys.argv[1:]])
