#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs in a folder with its own libibverbs, as conda's environments are: PREFIX/bin/PROGRAM finds PREFIX/lib by its DT_RPATH or RUNPATH."""
import os
import shutil
import subprocess
import sys
import tempfile

from pairs import NUPA, finish, free_port, missing_program, nupa, outcome, private_runtime_dir, run_pair, stop

LIMIT_S = 60
SYSTEM = "/usr/lib/x86_64-linux-gnu"
LIBRARIES = ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1", "libnl-3.so.200", "libnl-route-3.so.200")
WITHOUT_A_NUMBER = ("libibverbs.so", "librdmacm.so")
KINDS = {"DT_RPATH": ["--force-rpath"], "RUNPATH": []}
# Loads a library by the argument, says how many devices there are, and waits.
LOADER = r"""
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int(-1)
if hasattr(library, "ibv_get_device_list"):
    library.ibv_get_device_list(ctypes.byref(count))
print(count.value, flush=True)
sys.stdin.read()
"""
private_runtime_dir()


def made(prefix):
    """A folder with copies of the system's libraries and of programs."""
    lib, programs = os.path.join(prefix, "lib"), os.path.join(prefix, "bin")
    os.makedirs(lib)
    os.makedirs(programs)
    for name in LIBRARIES:
        shutil.copy(os.path.join(SYSTEM, name), lib)
    for name in WITHOUT_A_NUMBER:
        os.symlink(name + ".1", os.path.join(lib, name))
    for kind, options in KINDS.items():
        for program, source in (("ib_write_bw", shutil.which("ib_write_bw")), ("python", os.path.realpath(sys.executable))):
            copy = program_of(prefix, kind, program)
            shutil.copy(source, copy)
            subprocess.run(["patchelf", *options, "--set-rpath", "$ORIGIN/../lib", copy], check=True)


def program_of(prefix, kind, name):
    return os.path.join(prefix, "bin", "%s-%s" % (name, kind))


def perftest(prefix, kind):
    program = program_of(prefix, kind, "ib_write_bw")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    outcome("/lib/libibverbs.so.1" in listed and prefix in listed, "%s: by itself it has the library of its folder" % kind, listed)
    port = free_port()
    command = "%s -F -n 200 -p %d" % (program, port)
    run_pair("%s: perftest runs" % kind, command, command + " 127.0.0.1", port, seconds=LIMIT_S)
    done = nupa("doctor", "--", program)
    outcome(done.returncode == 0 and "libibverbs.so.1 is NUPA's\n" in done.stdout and "librdmacm.so.1 is NUPA's\n" in done.stdout and
            prefix + "/lib" not in done.stdout, "%s: doctor sees NUPA's library in the program" % kind, done.stdout)


def loaded(prefix, kind, name, before):
    """A process of the folder's Python with a library that it loads by `name`: (what it says, what doctor says of it)."""
    process = subprocess.Popen([*before, program_of(prefix, kind, "python"), "-c", LOADER, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        return process.stdout.readline().strip(), nupa("doctor", "--pid", str(process.pid))
    finally:
        stop(process)


def python(prefix, kind):
    """Loads the library while it runs, as NCCL does."""
    run = [NUPA, "run", "--"]
    for name in ("libibverbs.so.1", "libibverbs.so"):
        said, doctor = loaded(prefix, kind, name, run)
        outcome(said == "1" and doctor.returncode == 0 and prefix not in doctor.stdout.partition("\n")[2],
                "%s: %s, loaded later, is NUPA's" % (kind, name), said + doctor.stdout)
    said, doctor = loaded(prefix, kind, "librdmacm.so", run)
    outcome(doctor.returncode == 0 and prefix not in doctor.stdout.partition("\n")[2], "%s: librdmacm.so, loaded later, is NUPA's" % kind, said + doctor.stdout)
    path = os.path.join(prefix, "lib", "libibverbs.so.1")
    said, doctor = loaded(prefix, kind, path, run)
    outcome(said == "0" and "and comes before " + path in doctor.stdout and "looks functions up by dlsym, uses the other one" in doctor.stdout,
            "%s: doctor names a library that is opened by its path" % kind, said + doctor.stdout)
    said, doctor = loaded(prefix, kind, path, [])
    outcome(doctor.returncode == 1 and path + " is not NUPA's" in doctor.stdout, "%s: doctor names the library of a program without nupa run" % kind,
            said + doctor.stdout)


def main():
    if missing_program("patchelf", "ib_write_bw"):
        return
    with tempfile.TemporaryDirectory(prefix="nupa-prefix-") as folder:
        prefix = os.path.join(os.path.realpath(folder), "env")
        made(prefix)
        for kind in KINDS:
            perftest(prefix, kind)
            python(prefix, kind)


main()
finish()
