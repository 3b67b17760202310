#!/usr/bin/python3
"""Measures `nupa net` beside what else joins two network namespaces, in turns: the kernel's veth, which never leaves the
kernel, and plain tunnels of user space over that veth (socat's TUN over UDP, openvpn without a cipher). iperf3 with one
stream, one way; qperf's tcp_lat, half a round trip of one byte. Needs root."""
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
WAYS = {"veth": "veth", "window": "nupa net, window", "roce": "nupa net, packets", "socat": "socat, TUN over UDP",
        "openvpn": "openvpn without cipher"}
PORT, QPERF_PORT = 5201, 19765


def ended(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Bench:
    def __init__(self, build, hosts, seconds):
        self.nupa, self.hosts, self.seconds = os.path.join(build, "bin", "nupa"), hosts, seconds
        self.config = hosts.directories[0].name + "-config"

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

    @contextlib.contextmanager
    def joined(self, way):
        """The server's address by this way."""
        with contextlib.ExitStack() as stack:
            if way in ("window", "roce"):
                for host in (SERVER, CLIENT):
                    directory = self.hosts.directories[host if way == "roce" else SERVER].name
                    peer = ["--peer", "10.118.0.1"] if way == "roce" and host == CLIENT else []
                    stack.enter_context(self.serving(
                        host, self.nupa, "net", "up", "bench", "--node", "host%d" % host, "--addr", "10.77.0.%d/24" % (host + 1),
                        *peer, NUPA_RUNTIME_DIR=directory, NUPA_TRANSPORT="roce" if way == "roce" else "auto"))
            elif way == "socat":
                for host, other in ((SERVER, CLIENT), (CLIENT, SERVER)):
                    stack.enter_context(self.serving(
                        host, "socat", "TUN:10.77.0.%d/24,iff-up,iff-no-pi,tun-type=tun" % (host + 1),
                        "UDP:10.118.0.%d:7007,bind=10.118.0.%d:7007" % (other + 1, host + 1)))
            elif way == "openvpn":
                for host, other in ((SERVER, CLIENT), (CLIENT, SERVER)):
                    stack.enter_context(self.serving(
                        host, "openvpn", "--dev", "tun", "--remote", "10.118.0.%d" % (other + 1), "--ifconfig",
                        "10.77.0.%d" % (host + 1), "10.77.0.%d" % (other + 1), "--cipher", "none", "--auth", "none"))
            address = "10.118.0.1" if way == "veth" else "10.77.0.1"
            for _ in range(100):
                reached = subprocess.run(self.inside(CLIENT, "ping", "-c", "1", "-W", "1", address), capture_output=True)
                if reached.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                raise Failed("%s: the server cannot be reached" % way)
            yield address

    def stream(self, address):
        """Bits a second, and seconds of processor time of the whole machine for a second of it."""
        before = os.times()
        idle = idle_seconds()
        done = subprocess.run(self.inside(CLIENT, "iperf3", "-c", address, "-p", str(PORT), "-t", str(self.seconds), "-J"),
                              capture_output=True, text=True)
        report = json.loads(done.stdout or "{}")
        if "error" in report or done.returncode != 0:
            raise Failed("iperf3: " + str(report.get("error", done.stderr)))
        took = os.times().elapsed - before.elapsed
        busy = took * os.cpu_count() - (idle_seconds() - idle)
        received = report["end"]["sum_received"]
        return received["bits_per_second"], busy / (received["bytes"] / 1e9)

    def latency(self, address):
        """Microseconds."""
        done = subprocess.run(self.inside(CLIENT, "qperf", "-lp", str(QPERF_PORT), "-t", str(self.seconds), "-uu", address,
                                          "tcp_lat"), capture_output=True, text=True)
        found = re.search(r"latency += +([\d.,]+) (ns|us|ms)", done.stdout)
        if not found:
            raise Failed("qperf: " + done.stdout + done.stderr)
        return float(found[1].replace(",", "")) * {"ns": 1e-3, "us": 1, "ms": 1e3}[found[2]]

    def measure(self, way):
        with self.joined(way) as address, self.serving(SERVER, "iperf3", "-s", "-p", str(PORT)), \
                self.serving(SERVER, "qperf", "-lp", str(QPERF_PORT)):
            time.sleep(0.5)
            rate, cost = self.stream(address)
            return {"rate": rate, "cost": cost, "latency": self.latency(address)}


def idle_seconds():
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def measure(bench, ways, rounds):
    found, failures = {way: [] for way in ways}, {}
    for turn in range(rounds):
        for way in ways:
            try:
                found[way].append(bench.measure(way))
                print("%d %s %s" % (turn, way, found[way][-1]), file=sys.stderr, flush=True)
            except Failed as reason:
                failures[way] = str(reason)
    return {way: samples for way, samples in found.items() if samples}, failures


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


def document(about, found, failures):
    base = found["veth"]
    rows = [(WAYS[way], "%.1f" % (median(samples, "rate") / 1e9), "%.2f" % (median(samples, "rate") / median(base, "rate")),
             "%.2f" % median(samples, "cost"), "%.1f" % median(samples, "latency"),
             "%.2f" % (median(samples, "latency") / median(base, "latency"))) for way, samples in found.items()]
    lines = ["# Performance: IP", "",
             "Written by `%s` on %s: two network namespaces, one after the other joined by each way, %d rounds in turns, medians. "
             "`iperf3` with one stream; `qperf tcp_lat` of one byte, half a round trip. Processor time is the whole machine's, for a "
             "gigabyte." % (about["command"], about["date"], about["rounds"]), "",
             "- CPU: %s" % about["cpu"], "- System: %s" % about["system"], ""]
    lines += markdown(("way", "Gbit/s", "of veth", "CPU s/GB", "latency us", "of veth"), rows)
    lines += ["", *("Failed: %s: %s" % failure for failure in failures.items())]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="each measurement")
    parser.add_argument("--ways", default=",".join(WAYS), help="which, the first to compare with")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance-netdev.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    ways = [way for way in chosen.ways.split(",") if way not in ("socat", "openvpn") or shutil.which(way)]
    about = machine.describe(chosen.build, choose_cores(), "bench/netdev.py" + "".join(" " + word for word in sys.argv[1:]),
                             chosen.rounds, ("iperf3", "qperf"))
    with Hosts() as hosts:
        hosts.add_cable(9000)
        bench = Bench(chosen.build, hosts, chosen.seconds)
        try:
            found, failures = measure(bench, ways, chosen.rounds)
        finally:
            shutil.rmtree(bench.config, ignore_errors=True)
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "netdev.json"), "w") as out:
        json.dump({"machine": about, "samples": found, "failures": failures}, out, indent=1)
    text = document(about, found, failures)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance-netdev.md"), "w") as out:
            out.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
