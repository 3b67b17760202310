#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's rdmacm-utils and perftest's -R, unmodified, with the drop-in librdmacm: on one host over each transport, and
between two hosts."""
import os
import subprocess
from cm_pairs import LIBRARY, CmPair, NapPair, Place, folder, meet, missing, places, port_holder, with_port
from hosts import left_namespaces, remove_hosts
import pairs
from pairs import finish, nupa, outcome, skip, some, transports

# What no program may say while all goes well. rping's server tells how it learns of the end: state 10 is that.
TROUBLE = (r"bogus data", r"data mismatch", r"verification failed", r"cq completion", r"unhandled event",
           r"wait for (?!RDMA_READ_ADV state 10)", r"event: RDMA_CM_EVENT", r"error: -?[1-9]", r"_ERROR", r"REJECTED",
           r"UNREACHABLE", r"Warning", r"failure", r"unable to", r"Invalid", r"DEVICE_REMOVAL")


def rping(place):
    for options, server_options, count in (
            ("", "", 10), ("-d", "-d", 3), ("", "-a ADDRESS", 5), ("-q", "", 5), ("", "-q", 5), ("-q", "-q", 5),
            ("-I SOURCE", "", 5), ("-S 64", "-S 64", 50), ("-S 4096", "-S 4096", 50), ("-S 65535", "-S 65535", 50)):
        for family, address in some((("", place.ipv4), (" ipv6", place.ipv6))):
            any_address = "-a ::0" if family and "-a" not in server_options else ""
            if family and "-I" in options:
                continue
            server, client, port = with_port(
                "rping -s -v -V -p %%d %s %s" % (any_address, server_options.replace("ADDRESS", address)),
                "rping -c -v -V -C %d -a %s -p %%d %s" % (count, address, options.replace("SOURCE", place.client_ipv4)))
            pings = [r"ping data: rdma-ping-%d: [A-z]{9}" % number for number in (0, count - 1)]
            debug = ["ESTABLISHED", "rdma_connect successful"] if "-d" in options else []
            how = "%s | %s" % (options, server_options) if options or server_options else ""
            meet("rping %s%s" % (how, family), place, server, client,
                 ["server " + ping for ping in pings] + ["server DISCONNECT EVENT"],
                 ["^" + ping for ping in pings] + debug, TROUBLE, port)
    rping_long(place)
    rping_refused(place)


def rping_long(place):
    """A server for many clients. One after another: of two requests at once it forgets one by itself."""
    server, client, port = with_port("rping -s -P -p %d", "rping -c -v -V -C 20 -p %%d -a %s" % place.ipv4)
    with CmPair(server, client, port, None, place.server, place.client) as pair:
        wrong = [pair.wait(30, True)] + missing(pair.said(1), ["rdma-ping-19"], TROUBLE)
        for number in range(5 if pair.client else 0):
            done = nupa("run", "--", *client.split(), before=place.client)
            lacks = missing(done.stdout + done.stderr, ["rdma-ping-19"], TROUBLE)
            if done.returncode != 0 or lacks:
                wrong.append("client %d: status %d; %s" % (number, done.returncode, "; ".join(lacks)))
        if pair.server.poll() is not None:
            wrong.append("the server has ended")
    outcome(not any(wrong), place.name + "rping -P", "; ".join(filter(None, wrong)))


def rping_refused(place):
    """8: no such service (IBTA 12.6.7.2)."""
    listener, client, port = with_port("rping -s -p %d", "rping -c -C 1 -a %s -p 1" % place.ipv4)
    meet("rping without listener", place, listener, client, (), ["RDMA_CM_EVENT_REJECTED, error 8"], port=port,
         server_survives=True, fails=True)
    # Of the same host. The kernel has another error where one of the two listens at any address.
    same = Place(place.name, place.ipv4, place.ipv6, place.server, place.server)
    for address, error in (("", "(Address already in use|Cannot assign requested address)"),
                           ("-a " + place.ipv4, "Address already in use")):
        first, second, port = with_port("rping -s -p %d " + address, "rping -s -p %d " + address)
        meet("rping port taken " + address, same, first, second, (), ["rdma_bind_addr: " + error], port=port,
             server_survives=True, fails=True)


def ucmatose(place):
    done = ["data transfers complete", "test complete", "return status 0"]
    for options, server_options in some((
            ("", ""), ("-c 10 -C 20", "-c 10 -C 20"), ("-S 65536 -C 50", "-S 65536 -C 50"), ("-S 1 -C 1", "-S 1 -C 1"),
            ("-t 32", ""), ("-a 14", "-a 14"), ("-m -c 3", "-m -c 3"), ("-f ip", "-f ip -b ADDRESS"),
            ("-P ib", "-P ib"), ("-b SOURCE", "-b ADDRESS"), ("-C 0 -c 20", "-C 0 -c 20"))):
        server, client, port = with_port(
            "ucmatose -p %d " + server_options.replace("ADDRESS", place.ipv4),
            "ucmatose -p %%d -s %s %s" % (place.ipv4, options.replace("SOURCE", place.client_ipv4)))
        says = [line for line in done if "-C 0" not in options or "transfers" not in line]
        if "-m" in options:
            says.append("migrating to new event channel")
        meet("ucmatose %s" % options, place, server, client, says + ["disconnected"], says, TROUBLE, port)
    server, client, port = with_port("ucmatose -p %%d -f ip -b %s" % place.ipv6,
                                     "ucmatose -p %%d -f ip -s %s" % place.ipv6)
    meet("ucmatose ipv6", place, server, client, done, done, TROUBLE, port)
    by_gid(place, "ucmatose -c 3", done)
    by_gid(place, "ucmatose -P ib", done)
    if place.server != place.client:
        server, client, port = with_port("ucmatose -p %d -f gid", "ucmatose -p %%d -f gid -s %s" % place.ipv4)
        with port_holder(place):
            meet("ucmatose -f gid, passed on", place, server, client, done, done, TROUBLE, port)


def by_gid(place, program, says):
    """Addresses are GIDs, the server's of one of its addresses or of all."""
    ends = [(place.ipv6, place.ipv6), (place.ipv4, place.ipv4), ("", place.ipv4), ("", place.ipv6)]
    for bound, address in ends if ALL else ends[:1]:
        server, client, port = with_port(
            "%s -p %%d -f gid%s" % (program, " -b " + bound if bound else ""),
            "%s -p %%d -f gid -s %s" % (program, address))
        meet("%s -f gid %s%s" % (program, "bound " if bound else "", "ipv6" if ":" in address else "ipv4"), place,
             server, client, says, says, TROUBLE, port)


def udaddy(place):
    """Its port is fixed."""
    done = ["data transfers complete", "test complete", "return status 0"]
    for options, address in some((("", place.ipv4), ("-c 5 -C 30", place.ipv4), ("-S 1024", place.ipv4),
                             ("-t 16", place.ipv4), ("-f ip", place.ipv4), ("-C 0 -c 10", place.ipv4),
                             ("-b ADDRESS", place.ipv4), ("-b ADDRESS", place.ipv6), ("-f gid -b ADDRESS", place.ipv6),
                             ("-f gid -b ADDRESS", place.ipv4), ("-f gid", place.ipv4)))[:None if ALL else -1]:
        says = [line for line in done if "-C 0" not in options or "transfers" not in line]
        server = "udaddy " + options.replace("ADDRESS", address)
        client = "udaddy -s %s %s" % (address, options.replace("-b ADDRESS", ""))
        meet("udaddy %s%s" % (options, " ipv6" if address == place.ipv6 else ""), place, server, client, says, says,
             TROUBLE, 7174)


def endpoints(place):
    """Programs that use rdma_create_ep and rdma_verbs.h."""
    for family, server_options, address in ((" any", "", place.ipv4), ("", "-s " + place.ipv4, place.ipv4),
                                            (" ipv6", "-s " + place.ipv6, place.ipv6)):
        server, client, port = with_port("rdma_server -p %d " + server_options, "rdma_client -p %%d -s %s" % address)
        meet("rdma_client" + family, place, server, client, ["rdma_server: end 0"], ["rdma_client: end 0"], TROUBLE,
             port)
    for kind in ("r", "x"):
        server, client, port = with_port("rdma_xserver -p %%d -c %s" % kind,
                                         "rdma_xclient -p %%d -c %s -s %s" % (kind, place.ipv4))
        meet("rdma_xclient -c " + kind, place, server, client, ["rdma_xserver: end 0"], ["rdma_xclient: end 0"],
             TROUBLE, port)


def cmtime(place):
    steps = ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"]
    for options in ("-c 1", "-c 100", "-c 100 -b SOURCE", "-c 500 -r 3 -t 2000"):
        bind = ["bind addr"] if "-b" in options else []
        server, client, port = with_port(
            "cmtime -p %d", "cmtime -p %%d -s %s %s" % (place.ipv4, options.replace("SOURCE", place.client_ipv4)))
        # The sum, the longest, the shortest and the mean; 999999999: no connection has gone through the step.
        meet("cmtime " + options, place, server, client, (),
             [r"^%s *: +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d" % step for step in steps + bind],
             (*TROUBLE, "99999"), port, server_survives=True)


def mckey(place):
    """Each end waits three seconds by itself."""
    done = ["data transfers complete", "test complete", "return status 0"]
    for options, sender_options, group, bound in some((
            ("-m", "", "239.9.8.1", False), ("-m", "", "239.9.8.2", True), ("-m", "", "ff0e::9:8:3", True),
            ("-m", "-o", "239.9.8.4", True), ("-M", "", "ff0e::9:8:6", True),
            ("-c 3 -C 40 -S 1024 -m", "", "239.9.8.7", True), ("-l -m", "", "239.9.8.8", True))):
        address = place.ipv6 if ":" in group else place.ipv4
        source = "fd77::2" if ":" in group and "hosts" in place.name else address if ":" in group else place.client_ipv4
        command = "mckey %s %s" % (options, group)
        receiver = command + (" -b %s" % address if bound else "")
        sender = command + " -s %s%s" % (sender_options, " -b %s" % source if bound else "")
        joined = "joined dgid: " + (group if ":" in group else "::ffff:" + group)
        meet("mckey %s %s%s" % (options, group, " " + sender_options), place, receiver, sender, done + [joined],
             done + [joined], TROUBLE, kind=NapPair)


def udpong(place):
    for family, address in some((("", place.ipv4), (" ipv6", place.ipv6))):
        for options, row in some((("-T e -C 200 -S 64", "64 +400 "), ("-T e -T a -C 200 -S 1024", "1k +400 "),
                             ("-T e -T b -C 50 -S 16", "16 +100 "), ("-T e -T n -B 65536 -C 50", "1000 +100 "),
                             ("-C 300 -S 1000", r"1000 +[1-9]\d* "), ("-T b -C 300", r"1000 +[1-9]\d* "))):
            server, client, port = with_port("udpong -p %%d -b %s%s" % (address, " -T b" if "-T b" in options else ""),
                                             "udpong -p %%d -s %s %s" % (address, options))
            meet("udpong " + options + family, place, server, client, (), ["^custom +" + row], TROUBLE, port,
                 server_survives=True)


def rcopy(place):
    for size in (1, 4096, 1000003, 20 << 20):
        with folder() as path:
            original, copy = os.path.join(path, "original"), os.path.join(path, "copy")
            with open(original, "wb") as out:
                out.write(os.urandom(size))
            server, client, port = with_port("rcopy -p %d", "rcopy %s %s:%s -p %%d" % (original, place.ipv4, copy))
            meet("rcopy %d" % size, place, server, client, (), ["^%d bytes in " % size, "done$"], TROUBLE, port,
                 server_survives=True)
            same = os.path.exists(copy) and subprocess.run(["cmp", original, copy]).returncode == 0
            outcome(same, place.name + "rcopy %d leaves a copy" % size)


def streams(place, program):
    """Rows of a custom test: size, transfers, iterations."""
    small = "-S 1000 -C 10 -I 20"
    cases = [(small, ""), (small + " -T b", ""), (small + " -T a", ""), (small + " -T n", ""), (small + " -T v", ""),
             (small + " -T a -T v", ""), (small + " -T b -T v", ""), (small + " -f ip", "-b ADDRESS -f ip"),
             (small + " -i 0", ""), (small + " -B 8192 -T v", ""), ("-S 100003 -C 10 -I 3 -T v -B 65536", ""),
             ("-S 4000000 -C 2 -I 2 -T v", ""), ("-S 64 -C 1 -I 2000", "")]
    if program == "rstream":
        cases += [(small + " -T r", ""), (small + " -k 5", "")]
        if place.client_ipv4 != place.ipv4:  # the client takes the server's port at its own address
            cases.append((small + " -b SOURCE", "-b ADDRESS"))
    for options, server_options in some(cases):
        common = options.split(" -b ")[0].replace("-f ip", "")
        server, client, port = with_port(
            "%s -p %%d %s %s" % (program, common, server_options.replace("ADDRESS", place.ipv4)),
            "%s -p %%d -s %s %s" % (program, place.ipv4, options.replace("SOURCE", place.client_ipv4)))
        words = options.split()
        row = [r"^custom +\S+ +%s +%s " % tuple(
            words[words.index(option) + 1].replace("000", "k") for option in ("-C", "-I"))]
        meet("%s %s" % (program, options), place, server, client, row, row, TROUBLE, port)
    row = [r"^custom +1000 +10 +20 "]
    server, client, port = with_port("%s -p %%d %s -f ip -b %s" % (program, small, place.ipv6),
                                     "%s -p %%d %s -f ip -s %s" % (program, small, place.ipv6))
    meet("%s ipv6" % program, place, server, client, row, row, TROUBLE, port)
    by_gid(place, "%s %s -T v" % (program, small), row)
    for server_format, client_format in (("", " -f gid"), (" -f gid", "")) if ALL else ():
        server, client, port = with_port("%s -p %%d %s%s" % (program, small, server_format),
                                         "%s -p %%d %s%s -s %s" % (program, small, client_format, place.ipv4))
        meet("%s%s to%s" % (program, client_format, server_format or " ip"), place, server, client, row, row, TROUBLE,
             port)


def streams_all(place, program):
    """All sizes, latency and throughput."""
    server, client, port = with_port(program + " -p %d", program + " -p %%d -s %s" % place.ipv4)
    rows = [r"^%s +" % name for name in ("64_lat", "4k_lat", "64k_lat", "1m_lat", "64_bw", "4k_bw", "64k_bw", "1m_bw")]
    meet(program + " all sizes", place, server, client, rows, rows, TROUBLE, port, seconds=180)


def perftest(place):
    # It measures the processor's clock when all is done, and gives up where others take the processor meanwhile.
    cases = ("ib_send_lat -n 300", "ib_write_lat -n 300", "ib_read_lat -n 300", "ib_atomic_lat -n 300",
             "ib_send_bw -n 300", "ib_write_bw -n 300", "ib_read_bw -n 300", "ib_atomic_bw -n 300",
             "ib_send_lat -c UD -s 1024 -n 300", "ib_send_bw -c UD -s 1024 -n 300", "ib_send_bw -a -n 20",
             "ib_write_bw -q 8 -n 100", "ib_write_bw -b -n 100", "ib_send_bw -T 96 -n 100", "ib_send_bw -e -n 100",
             "ib_send_bw --use-srq -n 100", "ib_write_lat -I 64 -s 64 -n 100")
    for case in cases if ALL else cases[:10:3]:
        for how in some(("-R", "-z")):
            if how == "-z" and (" -T" in case or " -b" in case):
                continue
            # -z takes the device and its GID from the command line, -R from the address.
            where = "-R" if how == "-R" else "-z -d nupa0 -x 1"
            server, client, port = with_port("%s %s -F -p %%d" % (case, where),
                                             "%s %s -F -p %%d %s" % (case, where, place.ipv4))
            meet(case + " " + how, place, server, client, ["Data ex. method : rdma_cm", "remote address:"],
                 [r"#bytes +#iterations", r"^ *\d+ +\d+ +[\d.]+ +[\d.]+"], (), port)


def qperf(place):
    for test in some(("rc_lat", "rc_bw", "rc_rdma_write_lat", "rc_rdma_read_bw")):
        server, client, port = with_port("qperf -lp %d",
                                         "qperf -lp %%d -cm1 -t 1 %s %s" % (place.ipv4, test))
        meet("qperf -cm1 " + test, place, server, client, (), [r"(latency|bw) +=  +[\d.]+"], ("failed",), port,
             server_survives=True)


GROUPS = {"rping": rping, "ucmatose": ucmatose, "udaddy": udaddy, "endpoints": endpoints, "cmtime": cmtime,
          "mckey": mckey, "perftest": perftest, "qperf": qperf, "udpong": udpong, "rcopy": rcopy,
          "rstream": lambda place: streams(place, "rstream"), "riostream": lambda place: streams(place, "riostream")}
# "all": every place and every program; names of groups: those. Else a choice for a run that is to be short.
WANTED = os.environ.get("NUPA_TEST_RDMACM", "").split()
ALL = pairs.ALL = pairs.ALL or WANTED != []
CHOSEN = [name for name in WANTED if name != "all"] or list(GROUPS)


def main():
    if not os.path.exists(LIBRARY):
        skip("rdmacm", "the build has no " + LIBRARY)
        return
    one_host, two_hosts = places()
    for transport in transports():
        between = two_hosts if transport == "roce" else []
        for place in one_host + between if ALL else between or one_host:
            for name in CHOSEN:
                GROUPS[name](place)
            if ALL and transport == "shm" and "rstream" in CHOSEN:
                streams_all(place, "rstream")
                streams_all(place, "riostream")
    if not two_hosts:
        skip("rdmacm-between-hosts", "needs root, network namespaces and veth")
    remove_hosts()
    left = left_namespaces()
    outcome(left == [], "rdmacm-leaves-no-namespace", left)


if __name__ == "__main__":
    main()
    finish()
