# SPDX-License-Identifier: Apache-2.0
"""Checks the doorbells of a pair of guests whose window has one: programs that sleep are woken by interrupts of the other guest."""
import time

from vm.matrix import POOL, SECONDS, error_of, parsed

PROGRAMS = 2  # in each guest: the second one gets the device from the first
TURNS = 500  # a program that was not rung would look every 50 ms: too slow for the limit of a command


class BellError(Exception):
    """What was expected, and what came instead."""


def command(port, host=""):
    return POOL.program("ibv_rc_pingpong -e -d %s -g %d -n %d -p %d %s" % (POOL.device, POOL.gid, TURNS, port, host))


def check_bells(pair):
    """Yields (name, error) for each check; an empty error: it passed."""
    server, client = pair.nodes
    status, said = server.run("nupa pool format --hosts 2 --force", SECONDS)
    yield "the pool is formatted", "" if status == 0 else error_of(said)
    found = findings(client)
    yield "nupa doctor finds the doorbell", "" if "ivshmem" in found else found
    servers = []
    try:
        ports = [18600 + number for number in range(PROGRAMS)]
        for port in ports:
            servers.append(server.spawn(command(port)))
            if not server.wait_listening(port, servers[-1]):
                raise BellError(error_of(servers[-1].output()))
        kinds = doorbells(server)
        yield "each of two programs of a guest has a doorbell", "" if kinds == ["ivshmem"] * PROGRAMS else "nupa pool status: %s" % kinds
        # The second client gets the device from the first, whose end comes before its own.
        first = client.spawn("sleep 1; " + command(ports[0], server.address))
        second = client.spawn("sleep 2; " + command(ports[1], server.address))
        for number, process in (("first", first), ("second", second)):
            status = process.wait(SECONDS)
            yield "the %s client sleeps and is woken" % number, "" if status == 0 else error_of(process.output())
        ended = [each.wait(SECONDS) for each in servers]
        yield "both servers end", "" if ended == [0] * PROGRAMS else error_of(*[each.output() for each in servers])
        end = time.monotonic() + SECONDS
        while doorbells(server) and time.monotonic() < end:
            time.sleep(0.2)  # sleep: the pause between two looks
        yield "nothing is left in the pool", "" if not doorbells(server) else "nupa pool status still shows processes"
    except BellError as error:
        yield "programs with doorbells", str(error)
    finally:
        for process in servers:
            process.kill()


def findings(node):
    """What `nupa doctor` finds about the doorbell."""
    _, said = node.run("nupa doctor --json 2>/dev/null", SECONDS)
    return " ".join(finding["found"] for finding in parsed(said) or [] if finding["subject"] == "pool: doorbell") or said


def doorbells(node):
    """The kinds of doorbells of the processes that are in the pool."""
    _, said = node.run("nupa pool status --json 2>/dev/null", SECONDS)
    return [process["doorbell"] for host in (parsed(said) or {}).get("by_host", []) for process in host.get("processes", [])]
