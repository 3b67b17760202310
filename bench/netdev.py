#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `nupa net` in turns with other links between two network namespaces: the kernel's veth, which never leaves the
kernel, and tunnels in user space over that veth (socat's TUN over UDP, openvpn without a cipher). It runs iperf3 with one
stream in one direction, qperf's tcp_lat (half a round trip of one byte), and eight nodes that all send to each other. Needs root."""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

import machine
from hosts import Hosts
from pairs import Failed, choose_cores
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SERVER, CLIENT = 0, 1
WAYS = {"veth": "veth", "shm": "nupa net, shm", "roce": "nupa net, packets", "socat": "socat, TUN over UDP",
        "openvpn": "openvpn without cipher"}
PORT, QPERF_PORT = 5201, 19765


def ended(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Net:
    """Namespaces that are joined by each way in turn."""

    def __init__(self, build, hosts, seconds):
        self.nupa, self.hosts, self.seconds = os.path.join(build, "bin", "nupa"), hosts, seconds
        self.config = hosts.directories[0].name + "-config"
        self.everybody = range(len(hosts.names))

    def inside(self, host, *command, **variables):
        return ["ip", "netns", "exec", self.hosts.names[host], "env", "XDG_CONFIG_HOME=" + self.config,
                *("%s=%s" % item for item in variables.items()), *command]

    @contextlib.contextmanager
    def serving(self, host, *command, **variables):
        process = subprocess.Popen(self.inside(host, *command, **variables), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield process
        finally:
            ended(process)

    def servers_of(self, way):
        """Yields the programs that join the hosts: host, command, environment variables."""
        for host in self.everybody if way in ("shm", "roce") else ():
            directory = self.hosts.directories[host if way == "roce" else 0].name
            peers = [word for other in range(host) if way == "roce" for word in ("--peer", "10.118.0.%d" % (other + 1))]
            yield host, [self.nupa, "net", "up", "bench", "--node", "host%d" % host, "--addr", "10.77.0.%d/24" % (host + 1), *peers], \
                {"NUPA_RUNTIME_DIR": directory, "NUPA_TRANSPORT": "roce" if way == "roce" else "auto"}
        for host, other in ((0, 1), (1, 0)):
            if way == "socat":
                yield host, ["socat", "TUN:10.77.0.%d/24,iff-up,iff-no-pi,tun-type=tun" % (host + 1),
                             "UDP-DATAGRAM:10.118.0.%d:7007,bind=10.118.0.%d:7007" % (other + 1, host + 1)], {}
            elif way == "openvpn":
                yield host, ["openvpn", "--dev", "tun", "--remote", "10.118.0.%d" % (other + 1), "--ifconfig",
                             "10.77.0.%d" % (host + 1), "10.77.0.%d" % (other + 1), "--cipher", "none", "--auth", "none"], {}

    @contextlib.contextmanager
    def joined(self, way):
        """Joins the hosts and yields the address of each."""
        with contextlib.ExitStack() as stack:
            for host, command, variables in self.servers_of(way):
                stack.enter_context(self.serving(host, *command, **variables))
            addresses = [("10.118.0.%d" if way == "veth" else "10.77.0.%d") % (host + 1) for host in self.everybody]
            for one in self.everybody:
                for other in self.everybody:
                    self.wait_for(way, one, addresses[other])
            yield addresses

    def wait_for(self, way, host, address):
        for _ in range(100):
            if subprocess.run(self.inside(host, "ping", "-c", "1", "-W", "1", address), capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise Failed("%s: %s cannot be reached" % (way, address))


class Two(Net):
    """Measures a stream and a latency between two nodes."""

    beside = 0  # number of programs that never sleep

    def measure(self, way):
        with self.joined(way) as addresses, self.serving(SERVER, "iperf3", "-s", "-p", str(PORT)), \
                self.serving(SERVER, "qperf", "-lp", str(QPERF_PORT)), contextlib.ExitStack() as stack:
            for _ in range(self.beside):
                stack.enter_context(self.serving(SERVER, "sh", "-c", "while :; do :; done"))
            time.sleep(0.5)
            rate, cost = self.stream(addresses[SERVER])
            return {"rate": rate, "cost": cost, "latency": self.latency(addresses[SERVER])}

    def stream(self, address):
        """Returns bits a second, and the processor time of the whole machine in seconds for a gigabyte."""
        began, idle = time.monotonic(), idle_seconds()
        done = subprocess.run(self.inside(CLIENT, "iperf3", "-c", address, "-p", str(PORT), "-t", str(self.seconds), "-J"),
                              capture_output=True, text=True)
        report = json.loads(done.stdout or "{}")
        if "error" in report or done.returncode != 0:
            raise Failed("iperf3: " + str(report.get("error", done.stderr)))
        received = report["end"]["sum_received"]
        return received["bits_per_second"], busy_seconds(began, idle) / (received["bytes"] / 1e9)

    def latency(self, address):
        """Returns microseconds."""
        done = subprocess.run(self.inside(CLIENT, "qperf", "-lp", str(QPERF_PORT), "-t", str(self.seconds), "-uu", address,
                                          "tcp_lat"), capture_output=True, text=True)
        found = re.search(r"latency += +([\d.,]+) (ns|us|ms)", done.stdout)
        if not found:
            raise Failed("qperf: " + done.stdout + done.stderr)
        return float(found[1].replace(",", "")) * {"ns": 1e-3, "us": 1, "ms": 1e3}[found[2]]


class Exchange(Net):
    """Measures streams from each node to each other node, all at the same time."""

    def measure(self, way):
        pairs = [(one, other) for one in self.everybody for other in self.everybody if one != other]
        with self.joined(way) as addresses, contextlib.ExitStack() as stack:
            for one, other in pairs:
                stack.enter_context(self.serving(other, "iperf3", "-s", "-p", str(PORT + one)))
            time.sleep(1)
            began, idle = time.monotonic(), idle_seconds()
            clients = [subprocess.Popen(self.inside(one, "iperf3", "-c", addresses[other], "-p", str(PORT + one), "-t",
                                                    str(self.seconds), "-J"),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                       for one, other in pairs]
            reports = [json.loads(client.communicate()[0] or "{}") for client in clients]
            busy = busy_seconds(began, idle)
        failed = [report.get("error", "no report") for report in reports if "error" in report or "end" not in report]
        if failed:
            raise Failed("%d streams: %s" % (len(failed), failed[0]))
        received = [report["end"]["sum_received"] for report in reports]
        rates = [one["bits_per_second"] for one in received]
        by_node = [sum(rate for rate, (_, to) in zip(rates, pairs) if to == node) for node in self.everybody]
        return {"rate": sum(rates), "jain": jain(rates), "jain_of_nodes": jain(by_node),
                "cost": busy / (sum(one["bytes"] for one in received) / 1e9)}


def busy_seconds(began, idle):
    """Returns the busy time of all processors since `began`, when their idle time was `idle`."""
    return (time.monotonic() - began) * os.cpu_count() - (idle_seconds() - idle)


def jain(rates):
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


def idle_seconds():
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def measure(net, ways, rounds):
    found, failures = {way: [] for way in ways}, {}
    try:
        for turn in range(rounds):
            for way in ways:
                try:
                    found[way].append(net.measure(way))
                    print("%d %s %s" % (turn, way, found[way][-1]), file=sys.stderr, flush=True)
                except Failed as reason:
                    failures[way] = str(reason)
    finally:
        shutil.rmtree(net.config, ignore_errors=True)
    return {way: samples for way, samples in found.items() if samples}, failures


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


def document(about, found, failures):
    base = found["two"]["veth"]
    rows = [(WAYS[way], "%.1f" % (median(samples, "rate") / 1e9), "%.2f" % (median(samples, "rate") / median(base, "rate")),
             "%.2f" % median(samples, "cost"), "%.1f" % median(samples, "latency"),
             "%.2f" % (median(samples, "latency") / median(base, "latency"))) for way, samples in found["two"].items()]
    lines = ["# Performance: IP", "",
             "Written by `%s` on %s: network namespaces, one after the other joined by each way, %d rounds in turns, medians. "
             "Processor time is the whole machine's, for a gigabyte." % (about["command"], about["date"], about["rounds"]), "",
             "- CPU: %s" % about["cpu"], "- System: %s" % about["system"], "", "## Two nodes", "",
             "`iperf3` with one stream; `qperf tcp_lat` of one byte, half a round trip.", ""]
    lines += markdown(("way", "Gbit/s", "of veth", "CPU s/GB", "latency us", "of veth"), rows)
    if found.get("eight"):
        rows = [(WAYS[way], "%.1f" % (median(samples, "rate") / 1e9), "%.3f" % median(samples, "jain_of_nodes"),
                 "%.3f" % median(samples, "jain"), "%.2f" % median(samples, "cost")) for way, samples in found["eight"].items()]
        lines += ["", "## Eight nodes", "",
                  "Each has a stream to each other one, 56 at once; of veth by a bridge. Fairness is Jain's, of what the nodes receive "
                  "and of the streams.", ""]
        lines += markdown(("way", "Gbit/s, all", "fair to nodes", "to streams", "CPU s/GB"), rows)
    lines += ["", *("Failed, %s nodes, %s: %s" % (count, *failure) for count, ways in failures.items() for failure in ways.items())]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="seconds of each measurement (default %(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="links to measure, comma-separated; the others are compared with the first (default %(default)s)")
    parser.add_argument("--beside", type=int, default=0, help="number of programs that never sleep, which run beside two nodes")
    parser.add_argument("--no-eight", dest="eight", action="store_false", help="do not measure eight nodes that send to each other")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/netdev.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    ways = [way for way in chosen.ways.split(",") if way not in ("socat", "openvpn") or shutil.which(way)]
    about = machine.describe(chosen.build, choose_cores(), "bench/netdev.py" + "".join(" " + word for word in sys.argv[1:]),
                             chosen.rounds, ("iperf3", "qperf"))
    found, failures = {}, {}
    with Hosts() as hosts:
        hosts.add_cable(9000)
        two = Two(chosen.build, hosts, chosen.seconds)
        two.beside = chosen.beside
        found["two"], failures["two"] = measure(two, ways, chosen.rounds)
    if chosen.eight:
        with Hosts(8) as hosts:
            hosts.add_bridge(9000)
            ways = [way for way in ways if way in ("veth", "shm", "roce")]
            found["eight"], failures["eight"] = measure(Exchange(chosen.build, hosts, chosen.seconds), ways, chosen.rounds)
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "netdev.json"), "w") as out:
        json.dump({"machine": about, "samples": found, "failures": failures}, out, indent=1)
    text = document(about, found, failures)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "netdev.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
