#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures connections and rsockets beside kernel TCP in one interleaved run: cmtime beside connect and accept, rstream over
rsockets beside rstream over sockets, redis-benchmark and wrk with and without the preload library. Shared memory is compared
with TCP over the loopback interface. With root, cmtime and rstream also run over packets between two network namespaces."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import machine
from hosts import SERVER_ADDRESS, Hosts
from pairs import Failed, choose_cores, free_port, run_pair
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONNECTIONS = 100
AT_A_TIME = (10, 100, 1000, 10000)
STAGES = ("create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy")
MTU = 9000
NGINX = """daemon off; worker_processes 1; pid %(folder)s/pid; error_log stderr crit; %(user)s
events { worker_connections 512; }
http { access_log off; sendfile on; client_body_temp_path %(folder)s/body; proxy_temp_path %(folder)s/proxy;
  fastcgi_temp_path %(folder)s/fastcgi; uwsgi_temp_path %(folder)s/uwsgi; scgi_temp_path %(folder)s/scgi;
  server { listen 127.0.0.1:%(port)d; root %(folder)s; } }
"""


def service_is_taken(port, pid):
    """Returns whether the connection manager listens: its services are abstract sockets with the port at the end of the number."""
    try:
        with open("/proc/%d/net/unix" % pid) as names:
            return re.search("@nupa-cm/service/[0-9a-f]{12}%04x/" % port, names.read()) is not None
    except OSError:
        return False


class Bench:
    def __init__(self, build, cores, hosts, quick):
        self.build, self.cores, self.hosts, self.quick = build, cores, hosts, quick
        self.folder = tempfile.TemporaryDirectory(prefix="nupa-bench-")
        os.environ["NUPA_RUNTIME_DIR"] = self.folder.name

    def nupa(self, transport, *options):
        return [os.path.join(self.build, "bin", "nupa"), "run", "--transport", transport, *options, "--"]

    def pair(self, wire, server, client, port, **how):
        """Runs a pair over packets between two hosts (`wire`), or on this host."""
        if wire:
            return self.hosts.pair(server, client, port, self.cores, **how)
        return run_pair(server, client, port, self.cores, **how)

    @staticmethod
    def address(wire):
        return SERVER_ADDRESS if wire else "127.0.0.1"

    # Connections

    def tcp_connects(self, wire):
        port = free_port()
        program = os.path.join(self.build, "bench", "tcp_connects")
        text = self.pair(wire, [program, str(port)], [program, str(port), self.address(wire), str(CONNECTIONS)], port,
                         server_survives=True)
        return [float(word) for word in text.split()]

    def cmtime(self, wire, connections=CONNECTIONS):
        """Returns {stage: us for a connection}."""
        run = self.nupa("roce" if wire else "shm")
        port = free_port()
        text = self.pair(wire, run + ["cmtime", "-c", str(connections), "-p", str(port)],
                         run + ["cmtime", "-c", str(connections), "-p", str(port), "-s", self.address(wire)], port,
                         listens=service_is_taken, server_survives=True)
        found = {name.strip(): float(us) for name, us in
                 re.findall(r"^([a-z ]+?) *: +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)$", text, re.MULTILINE)}
        if set(found) != set(STAGES):
            raise Failed("cmtime said: " + text[-200:])
        return found

    # Streams

    def rstream(self, wire, sockets, size, iterations, transfers=1):
        """Returns (Gb/s, us for a transfer)."""
        port = free_port()
        command = ["rstream", "-p", str(port), "-S", str(size), "-I", str(iterations), "-C", str(transfers)]
        if sockets:
            run, how = ["env"], {}
            command += ["-T", "s"]
        else:
            run, how = self.nupa("roce" if wire else "shm"), {"listens": service_is_taken}
        text = self.pair(wire, run + command, run + command + ["-s", self.address(wire)], port, **how)
        line = re.search(r"^\S+ +\S+ +\S+ +\S+ +\S+ +([\d.]+)s? +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
        if line is None:
            raise Failed("rstream said: " + text[-200:])
        return float(line[2]), float(line[3])

    # Unmodified TCP programs

    def serve(self, sockets, server, port, client):
        options = ("--sockets",) if sockets else ()
        run = self.nupa("shm", *options) if sockets else ["env"]
        return run_pair(run + server, run + client, port, self.cores, server_survives=True)

    def redis(self, sockets, depth):
        port = free_port()
        server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir",
                  self.folder.name]
        client = ["redis-benchmark", "-p", str(port), "-n", "20000" if self.quick else "100000", "-c", "20", "-t",
                  "set,get", "-P", str(depth), "--csv"]
        text = self.serve(sockets, server, port, client)
        found = [float(rate) for rate in re.findall(r'^"[SG]ET","([\d.]+)"', text, re.MULTILINE)]
        if len(found) != 2:
            raise Failed("redis-benchmark said: " + text[-200:])
        return sum(found) / 2

    def wrk(self, sockets, size):
        port = free_port()
        with open(os.path.join(self.folder.name, "conf"), "w") as conf:
            conf.write(NGINX % {"folder": self.folder.name, "port": port, "user": "user root;" if os.geteuid() == 0 else ""})
        with open(os.path.join(self.folder.name, "file"), "wb") as content:
            content.write(b"x" * size)
        server = ["nginx", "-p", self.folder.name, "-c", os.path.join(self.folder.name, "conf")]
        client = ["wrk", "-t", "1", "-c", "20", "-d", "1s" if self.quick else "3s", "http://127.0.0.1:%d/file" % port]
        text = self.serve(sockets, server, port, client)
        rate = re.search(r"Requests/sec: +([\d.]+)", text)
        if rate is None or "Socket errors" in text:
            raise Failed("wrk said: " + text[-300:])
        return float(rate[1])


def measure(bench, rounds):
    """Returns three results: {name: [(NUPA, TCP)]}, the stages of cmtime, and {place: {connections: [us until one is connected]}}.
    Each measurement of NUPA lies between two of TCP, and TCP's value is their mean."""
    found, stages, numbers = {}, {}, {}
    few = 4 if bench.quick else 1
    wires = [False] + ([True] if bench.hosts else [])
    streams = [("64 B there and back", 64, 40000 // few, 1), ("4 KiB there and back", 4096, 20000 // few, 1),
               ("64 KiB, 100 at a time", 65536, 200 // few, 100), ("1 MiB, 100 at a time", 1 << 20, 20 // few, 100)]

    def beside(name, ours, theirs):
        print("round %d of %d: %s" % (number + 1, rounds, name), file=sys.stderr, flush=True)
        before, value, after = theirs(), ours(), theirs()
        found.setdefault(name, []).append((value, (before + after) / 2))

    for number in range(rounds):
        for wire in wires:
            place = "packets" if wire else "shm"
            print("round %d of %d: cmtime, %s" % (number + 1, rounds, place), file=sys.stderr, flush=True)
            stages.setdefault(place, []).append((bench.cmtime(wire), bench.tcp_connects(wire)))
            for connections in AT_A_TIME[:3] if bench.quick else AT_A_TIME:
                print("round %d of %d: cmtime, %s, %d" % (number + 1, rounds, place, connections), file=sys.stderr, flush=True)
                numbers.setdefault(place, {}).setdefault(connections, []).append(until_connected(bench.cmtime(wire, connections)))
            for title, size, iterations, transfers in streams:
                rate = transfers > 1
                pick = (lambda pair: pair[0]) if rate else (lambda pair: pair[1])
                beside("%s: rstream %s, %s" % (place, title, "Gb/s" if rate else "us a message"),
                       lambda: pick(bench.rstream(wire, False, size, iterations, transfers)),
                       lambda: pick(bench.rstream(wire, True, size, iterations, transfers)))
        for depth in (1, 16):
            beside("shm: redis-benchmark -c 20 -P %d, requests/s" % depth, lambda: bench.redis(True, depth),
                   lambda: bench.redis(False, depth))
        for size in (612, 65536):
            beside("shm: wrk -c 20, %d bytes, requests/s" % size, lambda: bench.wrk(True, size),
                   lambda: bench.wrk(False, size))
    return found, stages, numbers


def until_connected(stages):
    return sum(stages[stage] for stage in STAGES[:5])


TARGETS = {"shm: rstream 64 B there and back, us a message": ("at least 4", 4),
           "shm: rstream 1 MiB, 100 at a time, Gb/s": ("at least 3", 3)}


def rows_of(found):
    rows = []
    for name, samples in found.items():
        lower_is_better = name.endswith("us a message")
        gains = [theirs / ours if lower_is_better else ours / theirs for ours, theirs in samples]
        gain = statistics.median(gains)
        quarters = statistics.quantiles(gains, n=4) if len(gains) > 1 else [gain] * 3
        text, least = TARGETS.get(name, ("aimed at 1.5" if "redis" in name or "wrk" in name else "stated", None))
        verdict = text if least is None else "%s: %s" % (text, "met" if gain >= least else "NOT MET")
        rows.append([name, "%.4g" % statistics.median(ours for ours, _ in samples),
                     "%.4g" % statistics.median(theirs for _, theirs in samples), "%.2f" % gain,
                     "%.2f to %.2f" % (quarters[0], quarters[2]), verdict])
    return rows


def stage_rows(stages):
    rows = []
    for place, samples in stages.items():
        medians = {stage: statistics.median(ours[stage] for ours, _ in samples) for stage in STAGES}
        tcp = [statistics.median(theirs[i] for _, theirs in samples) for i in range(3)]
        up = until_connected(medians)
        rows.append([place] + ["%.1f" % medians[stage] for stage in STAGES] + ["%.1f" % up, "%.0f" % (1e6 / up)]
                    + ["%.1f" % tcp[0], "%.0f" % (1e6 / tcp[0]), "%.1f" % tcp[2], "%.2f" % (tcp[0] / up)])
    return rows


STAGE_HEAD = ("over", *STAGES, "until connected", "connections/s", "TCP, all at once", "TCP connections/s",
              "TCP, one by one", "ratio of rates")
HEAD = ("what", "NUPA", "kernel TCP", "times better", "its middle half", "target")


def number_rows(numbers):
    rows = []
    for place, by_number in numbers.items():
        medians = {connections: statistics.median(samples) for connections, samples in by_number.items()}
        rows.append([place] + ["%.1f" % medians[connections] if connections in medians else "" for connections in AT_A_TIME])
    return rows


NUMBER_HEAD = ("over", *("%d" % connections for connections in AT_A_TIME))


def document(about, found, stages, numbers):
    lines = ["# Performance of connections and rsockets", "",
             "Written by `%s` on %s; medians of %d rounds. Each measurement of NUPA stands between two of kernel TCP by the same "
             "program." % (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "system", "programs")]
    lines += ["- Server on core %d, client on core %d. Shm: one host, TCP over its loopback. Packets: two network namespaces "
              "and a virtual Ethernet of MTU %d, TCP over the same." % (*about["cores"], MTU), "",
              "## %d connections" % CONNECTIONS, "",
              "`cmtime`, microseconds a connection in each stage; each stage is begun for all connections, then awaited. TCP: "
              "connect and accept of as many sockets, begun at once, and one after the other (median).", ""]
    lines += markdown(STAGE_HEAD, stage_rows(stages))
    lines += ["", "## More connections between two processes", "",
              "`cmtime`, microseconds a connection until it is connected, by the number of connections that are begun together and kept.", ""]
    lines += markdown(NUMBER_HEAD, number_rows(numbers))
    lines += ["", "## Streams and programs over the preload library", ""]
    lines += markdown(HEAD, rows_of(found))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/connections.md")
    chosen = parser.parse_args()
    cores = choose_cores()
    command = "bench/connections.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds,
                             ("rdmacm-utils", "redis-server", "nginx-light", "wrk"))
    if os.geteuid() == 0:
        with Hosts() as hosts:
            hosts.add_cable(MTU)
            found, stages, numbers = measure(Bench(chosen.build, cores, hosts, chosen.quick), chosen.rounds)
    else:
        print("bench/connections.py: not root: packets between namespaces are not measured", file=sys.stderr)
        found, stages, numbers = measure(Bench(chosen.build, cores, None, chosen.quick), chosen.rounds)
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "connections.json"), "w") as out:
        json.dump({"machine": about, "samples": found, "stages": stages, "numbers": numbers}, out, indent=1)
    text = document(about, found, stages, numbers)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "connections.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
