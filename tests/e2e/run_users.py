#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may use what: an ordinary user has everything, another user's processes and folders are closed to it."""
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
from pairs import NUPA, finish, free_port, left_in, nupa, outcome, pingpong, private_runtime_dir, run_pair, skip, start, \
    stop, tell, wait_listening

NOBODY = 65534
AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
runtime_dir = private_runtime_dir()


def sockets():
    return sorted(name for name in os.listdir(runtime_dir) if name.endswith(".sock"))


def may_be_another_user(name):
    if os.geteuid() != 0:
        skip(name, "needs root to become another user")
        return False
    if subprocess.run([*AS_NOBODY, "test", "-x", NUPA]).returncode != 0:
        skip(name, "the build folder is closed to other users")
        return False
    return True


def ordinary_user():
    if not may_be_another_user("ordinary-user"):
        return
    env = {"NUPA_RUNTIME_DIR": private_runtime_dir(NOBODY)}
    tell("doctor-ordinary-user", nupa("doctor", before=AS_NOBODY, env=env), 0, "drop-in libraries",
         env["NUPA_RUNTIME_DIR"], "memfd", "userfaultfd", "cross-memory copies")
    tell("devinfo-ordinary-user", nupa("run", "--", "ibv_devinfo", before=AS_NOBODY, env=env), 0, "PORT_ACTIVE")
    for option in ("-n 2000", "-e -n 1000"):
        server, client, port = pingpong(option)
        run_pair("pingpong-ordinary-user " + option, server, client, port, env=env, before=AS_NOBODY)
    usual = "/dev/shm/nupa-%d" % NOBODY
    there_before = os.path.exists(usual)
    server, client, port = pingpong("-n 10")
    run_pair("pingpong-ordinary-user-default-folder", server, client, port, before=AS_NOBODY,
             env={"NUPA_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": ""})
    if os.path.isdir(usual) and not there_before:
        outcome(left_in(usual) == [] and os.stat(usual).st_mode & 0o777 == 0o700, "default-folder-empty-and-closed")
        shutil.rmtree(usual)
    outcome(left_in(env["NUPA_RUNTIME_DIR"]) == [], "ordinary-user-leaves-nothing")


OBSERVER = struct.pack("<QIIIIQQ", 0x3157494d4150554e, 3, 2, 0, 0, 0, 0)


def knock_as_nobody(path):
    """What an impostor of another user gets from a process's socket: the number of bytes, or the refusal."""
    child = subprocess.run([*AS_NOBODY, sys.executable, "-c", """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(15)
try:
    s.connect(sys.argv[1])
    s.send(bytes.fromhex(sys.argv[2]))
    print("got", len(socket.recv_fds(s, 4096, 8)[0]))
except OSError as error:
    print("refused", error)
""", path, OBSERVER.hex()], capture_output=True, text=True, timeout=20)
    return child.stdout.strip()


def other_user():
    if not may_be_another_user("other-user"):
        return
    for command in (["run", "--", "ibv_devinfo"], ["stat"], ["clean"]):
        done = nupa(*command, before=AS_NOBODY)
        text = done.stdout + done.stderr
        outcome(done.returncode not in (0, 139) and done.returncode >= 0 and "Permission denied" in text,
                "other-user-refused " + command[0], "status %s: %s" % (done.returncode, text[-200:]))
    port = free_port()
    server = start("ibv_rc_pingpong -d nupa0 -g 1 -p %d" % port, out=subprocess.DEVNULL)
    try:
        if not wait_listening(port, server) or len(sockets()) != 1:
            return outcome(False, "other-user-socket", "no server to knock at: %s" % sockets())
        path = os.path.join(runtime_dir, sockets()[0])
        own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.settimeout(20)
        own.connect(path)
        own.send(OBSERVER)
        got = socket.recv_fds(own, 4096, 8)
        for fd in got[1]:
            os.close(fd)
        own.close()
        outcome(len(got[1]) == 3, "own-observer-is-answered", str(got))
        outcome("Permission denied" in knock_as_nobody(path), "other-user-cannot-enter", knock_as_nobody(path))
        # Even with the folder thrown open: the process itself looks who knocks.
        os.chmod(runtime_dir, 0o777)
        os.chmod(path, 0o777)
        told = knock_as_nobody(path)
        outcome(told == "got 0", "other-user-gets-no-memory", told)
        opened = subprocess.run([*AS_NOBODY, "sh", "-c", "for f in /proc/%d/fd/*; do cat $f; done" % server.pid],
                                capture_output=True, timeout=20)
        outcome(opened.returncode != 0 and opened.stdout == b"", "other-user-cannot-open-segments")
        outcome(server.poll() is None, "server-survives-strangers", "status %s" % server.poll())
        impostor(path)
    finally:
        os.chmod(runtime_dir, 0o700)
        stop(server)
        nupa("clean")


def impostor(path):
    """A socket of another user in the folder is not spoken to, and not removed."""
    name = os.path.join(runtime_dir, "77.sock" if not path.endswith("/77.sock") else "78.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as false_process:
        false_process.bind(name)
        os.chown(name, NOBODY, NOBODY)
        false_process.listen(4)
        false_process.settimeout(0.5)
        os.chmod(runtime_dir, 0o700)
        nupa("stat")
        cleaned = nupa("clean").stdout
        try:
            false_process.accept()
            outcome(False, "impostor-is-not-spoken-to", "it was connected to")
        except TimeoutError:
            outcome(True, "impostor-is-not-spoken-to")
        outcome(stat.S_ISSOCK(os.stat(name).st_mode) and "skipped: " in cleaned, "impostor-is-left-alone", cleaned)
    os.unlink(name)


ordinary_user()
other_user()
finish()
