#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures collectives of PyTorch between two hosts, in turns: NUPA over RoCEv2 and Gloo over TCP, on a cable and on a link
that loses packets. The hosts are network namespaces, which need root. Needs python3-torch and the backend."""
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile

import machine
from collectives import OPERATIONS, ROOT, arguments, microseconds, publish, size_name
from hosts import Hosts, ip
from loss import LINK, Link, lossy_link
from pairs import Failed, choose_cores

CABLE_MTU = 4500
NETWORK = "10.118.0.0/24"  # contains both hosts
LIMIT_S = 900
NAMES = {"nupa": "NUPA", "gloo": "Gloo"}
LOSSES = (0, 0.01)
LOSS_BYTES = 16 << 20
# A link inside a site, at the highest rate that the forwarding program (bench/lossy_link) can carry, and a link between two sites.
LINKS = (LINK, Link(250, 5000, 625_000))


class Bench:
    def __init__(self, chosen, hosts):
        self.chosen, self.hosts = chosen, hosts
        self.cores = choose_cores()

    def measure(self, backend, least, most, operations):
        """Returns {(operation, bytes): microseconds}."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out:
            command = [self.chosen.python, os.path.join(ROOT, "bench", "torch_collectives.py"), backend,
                       os.path.join(folder, "store"), str(least), str(most), str(self.chosen.factor),
                       str(self.chosen.seconds), *operations]
            ranks = []
            for rank, (name, directory) in enumerate(zip(self.hosts.names, self.hosts.directories)):
                env = dict(os.environ, NUPA_RUNTIME_DIR=directory.name, NUPA_TRANSPORT="roce", NUPA_RANK=str(rank),
                           NUPA_WORLD_SIZE="2", GLOO_SOCKET_IFNAME="wire", OMP_NUM_THREADS="1",
                           PYTHONPATH=os.path.join(self.chosen.build, "lib", "python"))
                ranks.append(subprocess.Popen(["ip", "netns", "exec", name, "taskset", "-c", str(self.cores[rank]), *command],
                                              env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                              stdout=out if rank == 0 else subprocess.DEVNULL))
            try:
                for rank in ranks:
                    said = rank.communicate(timeout=LIMIT_S)[1]
                    if rank.returncode != 0:
                        raise Failed("%s: %s" % (backend, said[-300:]))
            except subprocess.TimeoutExpired as late:
                raise Failed("%s: not done within %d s" % (backend, LIMIT_S)) from late
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
            out.seek(0)
            found = {}
            for line in out.read().decode().splitlines():
                words = line.split()
                if len(words) == 3 and words[0] in OPERATIONS:
                    found[words[0], int(words[1])] = float(words[2])
            return found


@contextlib.contextmanager
def cable(hosts):
    hosts.add_cable(CABLE_MTU)
    yield
    ip("-n", hosts.names[0], "link", "delete", "wire")


def on_cable(bench, rounds):
    samples = {name: [] for name in NAMES}
    for number in range(rounds):
        for name in NAMES:
            print("cable, round %d of %d: %s" % (number + 1, rounds, NAMES[name]), file=sys.stderr, flush=True)
            with cable(bench.hosts):
                samples[name].append(bench.measure(name, bench.chosen.least, bench.chosen.most, bench.chosen.operations))
    return samples


def with_loss(bench, rounds):
    """Returns {(link, name, congestion control of TCP, loss): [microseconds]} of an all_reduce."""
    samples = {}
    ways = [("nupa", "cubic")] + [("gloo", control) for control in ("cubic", "bbr")]
    for number, link, (name, control), loss in itertools.product(range(rounds), LINKS, ways, LOSSES):
        print("%s; loss %g, round %d of %d: %s, TCP %s" % (link, loss, number + 1, rounds, NAMES[name], control),
              file=sys.stderr, flush=True)
        try:
            with lossy_link(bench.chosen.build, bench.hosts, loss, number, link):
                for host in bench.hosts.names:
                    ip("-n", host, "route", "replace", NETWORK, "dev", "wire", "congctl", control)
                found = bench.measure(name, LOSS_BYTES, LOSS_BYTES, ["all_reduce"])
            samples.setdefault((link, name, control, loss), []).append(found["all_reduce", LOSS_BYTES])
        except Failed as failure:
            print("  " + str(failure), file=sys.stderr)
    return samples


def ratio(other, own):
    return "" if other is None or own is None else "%.2f" % (other / own)


def median(samples, key):
    found = [one[key] for one in samples if key in one]
    return statistics.median(found) if found else None


def document(about, cable_samples, loss_samples, operations):
    lines = ["# Performance of collectives between hosts", "",
             "Written by `%s` on %s; medians of %d rounds, in each of which both take their turns. The operations are those of "
             "torch.distributed on float32, between two network namespaces of one machine, one rank in each: NUPA over RoCEv2, Gloo over TCP. "
             "Microseconds an operation, the slower rank's; Gloo has no reduce_scatter." %
             (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "system", "programs")]
    lines += ["- Each rank has its own core; the cable is a veth pair of MTU %d, whose TCP segments never leave the kernel "
              "and are not cut into packets, as those of RoCEv2 are." % CABLE_MTU]
    for operation in operations:
        sizes = sorted({key[1] for samples in cable_samples.values() for one in samples for key in one if key[0] == operation})
        lines += ["", "## %s" % operation, "", "| size | NUPA | Gloo | times as fast |", "|---|---:|---:|---:|"]
        for size in sizes:
            own, other = (median(cable_samples[name], (operation, size)) for name in ("nupa", "gloo"))
            lines.append("| %s | %s | %s | %s |" % (size_name(size), microseconds(own), microseconds(other), ratio(other, own)))
    lines += ["", "## all_reduce of %s where packets are lost" % size_name(LOSS_BYTES), "",
              "The namespaces are joined by `bench/lossy_link`, which is the third program on the two cores and carries some "
              "50,000 packets a second; each packet is lost with the chance in the table. TCP with each of two congestion controls."]
    value = {key: statistics.median(found) / 1e3 for key, found in loss_samples.items()}
    for link in LINKS:
        lines += ["", str(link) + ":", "",
                  "| | without loss, ms | with %g %%, ms | NUPA is so many times as fast, without | with |" % (100 * LOSSES[1]),
                  "|---|---:|---:|---:|---:|"]
        own = [value.get((link, "nupa", "cubic", loss)) for loss in LOSSES]
        for name, control in (("nupa", "cubic"), ("gloo", "cubic"), ("gloo", "bbr")):
            took = [value.get((link, name, control, loss)) for loss in LOSSES]
            ratios = ["", ""] if name == "nupa" else [ratio(took[i], own[i]) for i in (0, 1)]
            lines.append("| %s | %s | %s |" % (NAMES[name] if name == "nupa" else "%s, TCP `%s`" % (NAMES[name], control),
                                               " | ".join("" if one is None else "%.0f" % one for one in took),
                                               " | ".join(ratios)))
    return "\n".join(lines) + "\n"


def main():
    parser = arguments(__doc__, 8, 64 << 20, 8, 0.3)
    chosen = parser.parse_args()
    command = "bench/collectives_wire.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, choose_cores(), command, chosen.rounds, ("python3-torch",))
    with Hosts() as hosts:
        bench = Bench(chosen, hosts)
        cable_samples = on_cable(bench, chosen.rounds)
        loss_samples = with_loss(bench, chosen.rounds)
    text = document(about, cable_samples, loss_samples, chosen.operations)
    publish(text, chosen.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
