# SPDX-License-Identifier: Apache-2.0
"""Programs that fail on rdma_rxe and pass on NUPA: both processes in the guest, and both on this machine. Prints the rows of
docs/start/what-fails-on-rdma-rxe.md."""
import itertools
import re
import subprocess

SECONDS = 40
PINGPONG = "ibv_rc_pingpong -d {device} -g {gid} -p {port} -n 50"
PERFTEST = "-F -d {device} -x {gid} -p {port}"
# (operation, command of both; the client also gets the server's address)
COMMANDS = (
    ("RC pingpong, to show that the device works", PINGPONG),
    ("XRC: pingpong", "ibv_xsrq_pingpong -d {device} -g {gid} -p {port} -n 50"),
    ("XRC: SEND", "ib_send_bw -c XRC -n 20 " + PERFTEST),
    ("XRC: WRITE", "ib_write_bw -c XRC -n 20 " + PERFTEST),
    ("XRC: atomics", "ib_atomic_bw -c XRC -n 20 -o 16 " + PERFTEST),
    ("on-demand paging", PINGPONG + " -o"),
    ("on-demand paging with prefetch", PINGPONG + " -o -P"),
    ("timestamps of completions", PINGPONG + " -t"),
    ("device memory", PINGPONG + " -j"),
    ("the extended interface (ibv_wr_*)", PINGPONG + " -N"),
    ("lists of WRITEs", "ib_write_bw -n 100 -l 10 " + PERFTEST),
    ("lists of SENDs", "ib_send_bw -n 100 -l 10 " + PERFTEST),
    ("256 queue pairs", "ib_write_bw -n 5 -q 256 -s 1024 " + PERFTEST),
    ("inline data of 1,024 bytes", "ib_send_lat -n 50 -I 1024 -s 1024 " + PERFTEST),
    ("completion moderation", "ib_write_bw -n 100 --cq-mod 50 " + PERFTEST),
    ("completion events", "ib_send_lat -n 50 -e " + PERFTEST),
    ("a shared receive queue", "ib_send_bw -n 50 -q 4 --use-srq " + PERFTEST),
)


class Tried:
    """The outcome of one command: empty, or the reason of its failure."""

    def __init__(self, side, command, port):
        command = command.format(device=side.device, gid=side.gid, port=port)
        server = side.spawn(command)
        self.reason = ""
        try:
            if not side.wait_listening(port, server, False):
                self.reason = last_line(server.output()) or "the server does not listen"
                return
            client = side.spawn(command + " " + side.address)
            try:
                client.wait(SECONDS)
            except subprocess.TimeoutExpired:
                pass
            if client.poll() != 0:
                still = "still running after %d s" % SECONDS
                self.reason = still if client.poll() is None else last_line(client.output()) or "status %d" % client.poll()
            client.kill()
        finally:
            server.kill()


def last_line(said):
    """The line that names the fault: the last one with letters that is no rule and no table."""
    lines = [line.strip() for line in said.splitlines() if re.search("[A-Za-z]{4}", line) and not line.startswith((" local", " remote", "--"))]
    return lines[-1][:150] if lines else ""


def print_limits(guest, guest_side, host_side):
    """Tries all; the rows are those that only NUPA passes."""
    ports = itertools.count(19000)
    kernel = guest.run("uname -r")[1].strip()
    print("| operation | command | on rdma_rxe, Linux %s |\n|---|---|---|" % kernel)
    for name, command in COMMANDS:
        there, here = Tried(guest_side, command, next(ports)).reason, Tried(host_side, command, next(ports)).reason
        shown = re.sub(r" (-F|-[dxgp] \{\w+\})", "", command)
        if there and not here:
            print("| %s | `%s` | %s |" % (name, shown, there), flush=True)
        else:
            print("<!-- %s: %s; NUPA: %s -->" % (shown, there or "passes", here or "passes"), flush=True)
