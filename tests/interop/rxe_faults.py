# SPDX-License-Identifier: Apache-2.0
"""What the communication managers of rdma_rxe and NUPA say to each other when things go wrong."""
from pairs import outcome, wait_for

SECONDS = 20


def wait_said(process, words, seconds=SECONDS):
    """True once the process has said that."""
    return wait_for(lambda: words in process.output(), seconds) is True


class Rping:
    """A server and a client that talk until they are ended."""

    def __init__(self, server_side, client_side, port, client_port=None):
        self.server = server_side.spawn("rping -s -v -a %s -p %d" % (server_side.address, port))
        self.client = None
        if server_side.wait_listening(port, self.server, True):
            self.client = client_side.spawn("rping -c -v -C 1000000 -a %s -p %d" %
                                            (server_side.address, client_port or port))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.server, self.client):
            if process is not None:
                process.kill()


def tell(ok, name, server_side, *said):
    outcome(ok, "rxe %s (server: %s)" % (name, server_side.name), " ... ".join(text.strip()[-150:] for text in said))


def check_refused(server_side, client_side, ports):
    """Nobody listens there: reason 8 of a REJ, no such service (IBTA table 109)."""
    with Rping(server_side, client_side, next(ports), next(ports)) as pair:
        ok = pair.client is not None and wait_said(pair.client, "RDMA_CM_EVENT_REJECTED, error 8")
        tell(ok, "faults: a port without listener", server_side, pair.client.output() if pair.client else "no server")


def check_killed_there(server_side, client_side, ports, guest_is_server):
    """The guest's program is killed: its kernel disconnects, and NUPA's program is told."""
    with Rping(server_side, client_side, next(ports)) as pair:
        killed, left = (pair.server, pair.client) if guest_is_server else (pair.client, pair.server)
        talks = left is not None and wait_said(left, "ping data")
        if talks:
            killed.kill()
        tell(talks and wait_said(left, "DISCONNECT EVENT"), "faults: rdma_rxe's program is killed", server_side,
             "they talked" if talks else "they did not talk", left.output() if left else "no server")


def check_faults(guest_side, host_side, ports):
    for server_side, client_side in ((guest_side, host_side), (host_side, guest_side)):
        check_refused(server_side, client_side, ports)
        check_killed_there(server_side, client_side, ports, server_side is guest_side)
