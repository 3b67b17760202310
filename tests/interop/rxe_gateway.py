# SPDX-License-Identifier: Apache-2.0
"""`nupa gateway` between a memory pool and a guest with rdma_rxe: the host behind the pool has no packets."""
import json
import os
import shlex
import shutil
import tempfile

import pairs
from guest.commands import finish_within
from pairs import NUPA, outcome

SECONDS = 30


class Behind:
    """A host of the pool, as a side of a connection."""

    name = "a pool"

    def __init__(self, wire, pool, number, transports):
        self.wire = wire
        self.folder = tempfile.mkdtemp(prefix="nupa-rxe-")
        self.env = {"NUPA_POOL": "file:%s,host=%d" % (pool, number), "NUPA_TRANSPORT": transports, "NUPA_RUNTIME_DIR": self.folder}
        status, said = wire.run([NUPA, "devices", "--json"], env=self.env)
        devices = json.loads(said) if status == 0 else [{}]
        self.address = devices[0].get("gids", [{"gid": ""}])[0]["gid"]

    def spawn(self, command):
        return self.wire.spawn([NUPA, "run", "--", *shlex.split(command)], self.env)


def rping(name, server_side, client_side, port, wait_serving, to):
    """`to`: the gateway's address on the client's side."""
    options = "-p %d -V -C 20 -S 5000" % port
    server = server_side.spawn("rping -s -a %s %s" % (server_side.address, options))
    client = None
    try:
        if wait_serving(port, server):
            client = client_side.spawn("rping -c -a %s %s" % (to, options))
            finish_within(client, SECONDS)
            finish_within(server, SECONDS)
        statuses = [server.poll(), client.poll() if client else None]
        outcome(statuses == [0, 0], "rxe gateway: rping " + name, "%s: %s ... %s" % (
            statuses, server.output().strip()[-150:], client.output().strip()[-150:] if client else "it does not listen"))
    finally:
        for process in (server, client):
            if process is not None:
                process.kill()


def check_gateway(guest_side, host_side, ports):
    """A server on either side of a gateway."""
    folder = tempfile.mkdtemp(prefix="nupa-rxe-", dir="/dev/shm")
    pool = os.path.join(folder, "pool")
    made = pairs.nupa("pool", "format", "--pool", "file:%s,host=0" % pool, "--hosts", "2", "--size", "128M")
    hosts = []
    gateway = None
    try:
        hosts = [Behind(host_side.wire, pool, 0, "pool"), Behind(host_side.wire, pool, 1, "pool,roce")]
        behind, middle = hosts
        mappings = ((middle.address, guest_side.address), (host_side.address, behind.address))
        gateway = host_side.wire.spawn([NUPA, "gateway", *(word for each in mappings for word in ("--for", "%s=%s" % each))],
                                       middle.env)
        up = pairs.wait_for(lambda: gateway.poll() is not None or gateway.output().count("\n") >= len(mappings)) is True
        outcome(up and gateway.poll() is None, "rxe gateway: listens", made.stderr + gateway.output())
        rping("from a pool to rdma_rxe", guest_side, behind, next(ports),
              lambda port, process: guest_side.wait_listening(port, process, True), middle.address)
        rping("from rdma_rxe to a pool", behind, guest_side, next(ports),
              lambda port, process: host_side.wait_listening(port, process, True), host_side.address)
    finally:
        if gateway is not None:
            gateway.kill()
        for each in (folder, *(host.folder for host in hosts)):
            shutil.rmtree(each, ignore_errors=True)
