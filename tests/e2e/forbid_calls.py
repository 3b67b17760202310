#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""forbid_calls.py NAME,... COMMAND ARGS...: runs the command with system calls answered by EPERM, as a container's
seccomp profile does. 77: not possible here."""
import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "process_vm_writev": 311, "userfaultfd": 323, "memfd_create": 319,
               "ptrace": 101},
    "aarch64": {"process_vm_readv": 270, "process_vm_writev": 271, "userfaultfd": 282, "memfd_create": 279,
                "ptrace": 117},
}
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # linux/bpf_common.h
ALLOW, ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2  # linux/prctl.h

numbers = [NUMBERS.get(platform.machine(), {}).get(name) for name in sys.argv[1].split(",")]
if None in numbers:
    sys.exit(77)
program = [(LOAD_NUMBER, 0, 0, 0)]
for position, number in enumerate(numbers):
    program.append((JUMP_IF_EQUAL, len(numbers) - position, 0, number))
program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header), 0, 0):
    sys.exit(77)
os.execvp(sys.argv[2], sys.argv[2:])
