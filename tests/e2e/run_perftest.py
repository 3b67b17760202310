#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's perftest, unmodified, between two processes: each program with the options its users take, over each transport."""
import re
from pairs import ALL, finish, free_port, run_pair, some, transports

CASES = []
for size in ("-s 1", "-s 8", "-s 4096", "-s 65536", "-s 1000003"):
    for program in ("ib_write_lat", "ib_read_lat", "ib_send_lat"):
        CASES.append("%s %s -n 500" % (program, size))
for program in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
    for option in ("-s 8 -n 2000", "-s 65536 -n 500", "-s 1000003 -n 100", "-b -s 4096 -n 1000",
                   "-q 64 -s 1024 -n 200", "-e -s 4096 -n 500", "-Q 1 -s 64 -n 1000", "-m 1024 -s 4096 -n 500",
                   "-D 1 -s 4096", "-l 8 -s 64 -n 1600"):
        if program == "ib_send_bw" or not option.startswith("-e"):  # perftest has events with SEND only
            CASES.append("%s %s" % (program, option))
CASES += ["ib_send_lat -e -n 300", "ib_atomic_lat -n 500", "ib_atomic_lat -A CMP_AND_SWAP -n 500", "ib_atomic_bw -n 1000",
          "ib_atomic_bw -A CMP_AND_SWAP -n 1000", "ib_atomic_bw -q 16 -n 500", "ib_atomic_bw -b -n 500",
          "ib_write_lat -I 64 -s 64 -n 500", "ib_send_lat -I 128 -s 128 -n 500", "ib_write_bw -I 64 -s 64 -n 1000",
          "ib_send_bw --use-srq -s 1024 -n 500", "ib_send_bw --use-srq -q 8 -s 1024 -n 200",
          "ib_send_lat --use-srq -s 64 -n 300", "ib_send_bw -r 64 -s 512 -n 1000"]
for program in ("ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"):
    CASES.append("%s -c UC -s 4096 -n 500" % program)
for program in ("ib_send_lat", "ib_send_bw"):
    CASES.append("%s -c UD -s 1024 -n 500" % program)
for program in ("ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw", "ib_read_lat", "ib_read_bw",
                "ib_atomic_lat", "ib_atomic_bw"):
    CASES.append("%s -c XRC -n 500%s" % (program, "" if "atomic" in program else " -s 1024"))
# Through all sizes to 8 MiB. After each of them perftest measures the clock of the processor, for a quarter of a second.
ALL_SIZES = {"shm": ["ib_send_lat -a -n 100", "ib_read_bw -a -n 100"], "roce": ["ib_write_bw -a -n 100", "ib_send_bw -a -n 100"]}
EVERY_SIZE = ["%s -a -n 100" % program for program in
              ("ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_write_bw", "ib_read_bw", "ib_send_bw")]


def shortened(case):
    """A message takes longer as packets, and longest where both ends and their threads share two cores; -a goes through
    all sizes to 8 MiB."""
    share = 20 if " -a " in case else 5
    return re.sub(r"-n (\d+)", lambda found: "-n %d" % (int(found[1]) // share), case)


def outcome_of(case):
    port = free_port()
    # -F: it measures the clock of the processor when all is done, and else gives up where others take it meanwhile.
    command = case.replace(" ", " -F -d nupa0 -x 1 -p %d " % port, 1)
    run_pair(case, command, command + " 127.0.0.1", port)


for transport in transports():
    for case in some(CASES) + (EVERY_SIZE if ALL else ALL_SIZES.get(transport, EVERY_SIZE)):
        if transport != "shm":
            case = shortened(case)
        outcome_of(case)
finish()
