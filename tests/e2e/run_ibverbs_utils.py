#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's ibverbs-utils, unmodified, between two processes, over each transport."""
import subprocess
from pairs import NUPA, finish, free_port, outcome, run_pair, transports

VARIANTS = {
    "rc": ["", "-e", "-t", "-N", "-c", "-s 4097", "-s 1", "-r 2 -n 200", "-m 4096 -s 100000", "-e -c -n 300"],
    "uc": ["", "-e", "-c", "-s 4097", "-s 33"],
    "ud": ["", "-e", "-c", "-s 999"],
    "srq": ["", "-e", "-c", "-q 8", "-s 4097", "-q 32 -r 500"],
    "xsrq": ["", "-e", "-s 4097"],
}


def observe():
    for name, command, expected in (
            ("ibv_devices", ["ibv_devices"], "nupa0"),
            ("ibv_devinfo-v", ["ibv_devinfo", "-v"], "PORT_ACTIVE")):
        done = subprocess.run([NUPA, "run", "--"] + command, capture_output=True, text=True, timeout=30)
        outcome(done.returncode == 0 and expected in done.stdout and "invalid" not in done.stdout, name,
                done.stdout[-100:] + done.stderr[-100:])

    watcher = subprocess.Popen([NUPA, "run", "--", "ibv_asyncwatch"], stdout=subprocess.PIPE, text=True)
    outcome("async event" in watcher.stdout.readline(), "ibv_asyncwatch")
    watcher.kill()
    watcher.wait()


def pingpong():
    # Options that this version's program has: -t, -N and -o are of ibv_rc_pingpong alone.
    for kind, options in VARIANTS.items():
        for option in options:
            port = free_port()
            base = "ibv_%s_pingpong -d nupa0 -g 1 -p %d %s" % (kind, port, option)
            run_pair("ibv_%s_pingpong %s" % (kind, option), base, base + " 127.0.0.1", port)


for transport in transports():
    observe()
    pingpong()
finish()
