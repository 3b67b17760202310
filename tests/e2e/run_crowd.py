#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""More processes than processor cores, and more queue pairs than a process commonly has."""
import os
import subprocess
import time
from pairs import BUILD, NUPA, finish, free_port, last_line, outcome, private_runtime_dir, run_pair, start, stop, \
    wait_listening

PAIRS = 8
# Two cores, also where the machine has more: eight pairs are then four times what can run at once.
CROWDED = ("taskset", "-c", ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2]))
private_runtime_dir()


def crowd(name, program, options, seconds):
    """All pairs at once; each has to complete."""
    ports = [free_port() for _ in range(PAIRS)]
    # -F: perftest does not give up where it cannot measure the processor's clock (run_perftest.py).
    base = ["%s -F -d nupa0 -x 1 -p %d %s" % (program, port, options) for port in ports]
    if program.startswith("ibv_"):
        base = ["%s -d nupa0 -g 1 -p %d %s" % (program, port, options) for port in ports]
    outs = [os.memfd_create("out") for _ in range(2 * PAIRS)]
    servers = [start(command, out=out, before=CROWDED) for command, out in zip(base, outs)]
    clients = []
    began = time.time()
    try:
        for port, server in zip(ports, servers):
            if not wait_listening(port, server):
                return outcome(False, name, "a server does not listen")
        clients = [start(command + " 127.0.0.1", out=out, before=CROWDED) for command, out in zip(base, outs[PAIRS:])]
        began = time.time()
        trouble = []
        for number, process in enumerate(servers + clients):
            try:
                status = process.wait(max(began + seconds - time.time(), 0.1))
            except subprocess.TimeoutExpired:
                status = "still running"
            if status != 0:
                with open(outs[number], "rb", closefd=False) as said:
                    trouble.append("%s: %s" % (status, last_line(said)))
        outcome(not trouble, "%s (%d pairs)" % (name, PAIRS), "after %.1f s: %s" % (time.time() - began,
                                                                                    "; ".join(trouble)))
    finally:
        for process in servers + clients:
            stop(process)
        for out in outs:
            os.close(out)


def with_files(limit):
    return ("prlimit", "--nofile=%d:%d" % (limit, limit))


def many_queue_pairs():
    program = os.path.join(BUILD, "bench", "many_qps")
    done = subprocess.run([*with_files(1024), NUPA, "run", "--", program, "--qps", "1000", "--quick"],
                          capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    outcome(done.returncode == 0 and "{" in done.stdout, "many_qps 1000, 1024 files",
            "status %s: %s" % (done.returncode, (done.stdout + done.stderr)[-300:]))
    # With events no more than 64: perftest takes 16 completions an event, and those of more queue pairs, all there
    # before it asks for the next event, would be told of by none (IBTA 11.4.2.2).
    for case in ("ib_write_bw -q 512 -s 64 -n 20", "ib_send_bw -q 512 -s 64 -n 20 -r 16 -t 16",
                 "ib_read_bw -q 256 -s 4096 -n 20", "ib_send_bw -q 64 -s 64 -n 20 -e -r 16 -t 16"):
        port = free_port()
        command = case.replace(" ", " -F -d nupa0 -x 1 -p %d " % port, 1)
        run_pair(case + ", 1024 files", command, command + " 127.0.0.1", port, before=with_files(1024))


def few_files():
    """With fewer descriptors than opening the device takes: an error that says so, no crash, no hang."""
    most = 28  # what opening the device takes, and some
    for limit in range(4, most + 1):
        done = subprocess.run([*with_files(limit), NUPA, "run", "--", "ibv_devinfo"], capture_output=True, text=True,
                              timeout=30, stdin=subprocess.DEVNULL)
        text = done.stdout + done.stderr
        if done.returncode == 0 and "PORT_ACTIVE" in text:
            break
        told = "Failed" in text or "Too many open files" in text or "error" in text or "No IB devices" in text
        if not (0 < done.returncode < 128 and told):
            return outcome(False, "few-files %d" % limit, "status %s: %s" % (done.returncode, text[-200:]))
    outcome(limit < most, "few-files", "still not enough: %s" % text[-200:])


crowd("ib_send_lat", "ib_send_lat", "-s 8 -n 1000", 40)
crowd("ib_write_lat", "ib_write_lat", "-s 8 -n 50", 60)
crowd("ib_write_bw", "ib_write_bw", "-s 4096 -n 2000", 40)
crowd("ib_send_lat -e", "ib_send_lat", "-e -s 8 -n 500", 40)
crowd("ibv_rc_pingpong", "ibv_rc_pingpong", "-n 1000", 40)
crowd("ibv_rc_pingpong -e", "ibv_rc_pingpong", "-e -n 500", 40)
crowd("ibv_ud_pingpong -e", "ibv_ud_pingpong", "-e -n 300", 40)
many_queue_pairs()
few_files()
finish()
