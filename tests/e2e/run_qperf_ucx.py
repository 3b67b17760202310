#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Debian's qperf (tests that need no connection manager) and UCX's own benchmark over its verbs transports,
each on each transport of NUPA."""
from pairs import finish, free_port, run_pair, some, transports

QPERF = ["rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_rdma_write_bw",
         "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add",
         "uc_lat", "uc_bw", "uc_bi_bw", "uc_rdma_write_lat", "uc_rdma_write_bw", "uc_rdma_write_poll_lat",
         "ud_lat", "ud_bw", "ud_bi_bw"]


def qperf(transport):
    for test in some(QPERF):
        port = free_port()
        # Its datagrams of 2 KiB would be larger than what most interfaces take.
        size = "-m 1K " if transport != "shm" and test in ("ud_bw", "ud_bi_bw") else ""
        run_pair("qperf " + test, "qperf -lp %d" % port,
                 "qperf -lp %d -i nupa0 -t 1 %s127.0.0.1 %s" % (port, size, test), port, server_survives=True)


def ucx():
    for service in ("rc_v", "ud_v", "ib"):
        for test in ("tag_lat", "tag_bw -s 65536", "ucp_put_lat", "ucp_get -s 4096"):
            port = free_port()
            # Loopback only for the out-of-band part; UCX sees one host as two processes and would use shared memory.
            env = {"UCX_TLS": service, "UCX_NET_DEVICES": "nupa0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"}
            run_pair("ucx %s %s" % (service, test), "ucx_perftest -p %d" % port,
                     "ucx_perftest -p %d 127.0.0.1 -t %s -n 1000" % (port, test), port, env=env)


for transport in transports():
    qperf(transport)
    ucx()
finish()
