#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the pool transport between network namespaces that share a file as hosts share a pool, in one interleaved run: each
measurement stands beside others of the same round, and the ratios are between those. The others are shared memory on one host,
RoCEv2 between the same namespaces, memcpy, and the way of a cache line from core to core. Needs root, perftest and iperf3."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import machine
import netdev
from figures import DISTURBED
from hosts import SERVER_ADDRESS, Hosts
from items import MIB, parse_perftest_bandwidth, parse_perftest_latency
from pairs import Disturbance, Failed, choose_cores, free_port, run_alone, run_pair
from text import markdown

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MTU = 9000
HOSTS = 8
SIZE = "1G"
LINKS = ("pool", "roce")
RANK_LIMIT_S = 120
CALM_LOAD = 1  # runnable threads before the measurements


class Pool:
    """A pool in a file, formatted for each of the hosts."""

    def __init__(self, build):
        self.folder = tempfile.TemporaryDirectory(prefix="nupa-bench-pool-", dir="/dev/shm")
        self.path = os.path.join(self.folder.name, "pool")
        made = subprocess.run([os.path.join(build, "bin", "nupa"), "pool", "format", "--pool", "file:%s,host=0" % self.path, "--hosts", str(HOSTS),
                               "--size", SIZE], capture_output=True, text=True)
        if made.returncode != 0:
            raise Failed("nupa pool format: " + made.stdout + made.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def setting(self, host):
        return "NUPA_POOL=file:%s,host=%d" % (self.path, host)


class Bench:
    def __init__(self, chosen, hosts, pool, cores):
        self.chosen, self.hosts, self.pool, self.cores = chosen, hosts, pool, cores
        self.nupa = os.path.join(chosen.build, "bin", "nupa")
        self.few = 10 if chosen.quick else 1

    def program(self, name, *options):
        return json.loads(run_alone([os.path.join(self.chosen.build, "bench", name), "--cores", "%d,%d" % self.cores, *options],
                                    "%d,%d" % self.cores).strip().splitlines()[-1])

    def line(self):
        return self.program("machine_limits", "--only", "line", "--quick")["line_ns"]

    def memcpy(self, size, copies):
        return self.program("machine_limits", "--only", "memcpy", "--sizes", str(size), "--copies", str(copies))["memcpy"][str(size)]

    def perftest(self, transport, command):
        """Runs perftest between the hosts over a transport; over shm, on the first host."""
        port = free_port()
        device = "nupa_pool0" if transport == "pool" else "nupa0"
        gid = "0" if transport == "pool" else "1"
        run = [self.nupa, "run", "--transport", transport, "--", *command.split(), "-d", device, "-x", gid, "-F", "-m", "4096", "-p",
               str(port)]
        if transport == "shm":
            inside = ["ip", "netns", "exec", self.hosts.names[0], "env", "NUPA_RUNTIME_DIR=" + self.hosts.directories[0].name]
            return run_pair(inside + run, inside + run + [SERVER_ADDRESS], port, self.cores)
        server, client = (["env", self.pool.setting(host), *run] for host in (0, 1))
        return self.hosts.pair(server, client + [SERVER_ADDRESS], port, self.cores)

    def latency(self, command, count):
        """Returns nanoseconds: over the pool, over shm, and of a cache line's way."""
        full = "%s -n %d" % (command, max(500, count // self.few))
        before = self.line()
        shm = parse_perftest_latency(self.perftest("shm", full), 0)["value"]
        pool = parse_perftest_latency(self.perftest("pool", full), 0)
        return {"value": pool["value"], "p99": pool.get("p99", 0), "shm": shm, "line": (before + self.line()) / 2}

    def bandwidth(self, command, count):
        """Returns GB/s: over the pool, over shm, and of memcpy."""
        count = max(100, count // self.few)
        full = "%s -s %d -n %d" % (command, MIB, count)
        before = self.memcpy(MIB, count)
        shm = parse_perftest_bandwidth(self.perftest("shm", full))[0]
        pool = parse_perftest_bandwidth(self.perftest("pool", full))[0]
        return {"value": pool, "shm": shm, "memcpy": (before + self.memcpy(MIB, count)) / 2}

    def device_memory(self):
        """Returns GB/s of WRITEs of 1 MiB: into device memory, into ordinary memory, and of memcpy."""
        count = max(100, 2000 // self.few)
        before = self.memcpy(MIB, count)
        found = self.program("pool_memory", "--pool", "file:" + self.pool.path, "--count", str(count))
        return {"value": found["device"], "ordinary": found["ordinary"], "memcpy": (before + self.memcpy(MIB, count)) / 2}

    def ring(self):
        before = self.line()
        found = self.program("pool_ring", *(["--quick"] if self.chosen.quick else []))
        return {**found, "line": (before + self.line()) / 2, "memcpy": self.memcpy(MIB, 1000 // self.few)}

    def many(self):
        """Returns 10^6 WRITEs of 64 bytes a second over 1,000 queue pairs and over one: over the pool and over shm."""
        found = {}
        for transport in ("shm", "pool"):
            for queue_pairs, options in ((1, "-q 1 -t 128 -n %d" % (400000 // self.few)), (1000, "-q 1000 -t 16 -n %d" % (400 // self.few))):
                found["%s %d" % (transport, queue_pairs)] = parse_perftest_bandwidth(
                    self.perftest(transport, "ib_write_bw -s 64 " + options))[1]
        return found

    def all_reduce(self, transport):
        """Returns microseconds of an all_reduce of 1 MiB between two hosts."""
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results.json")
            root = "tcp://%s:%d" % (SERVER_ADDRESS, free_port())
            ranks = []
            for rank in (0, 1):
                env = dict(os.environ, NUPA_RUNTIME_DIR=self.hosts.directories[rank].name, NUPA_TRANSPORT=transport,
                           NUPA_RANK=str(rank), NUPA_WORLD_SIZE="2", NUPA_CCL_ROOT=root, NUPA_CCL_TIMEOUT="30")
                env.update([self.pool.setting(rank).split("=", 1)])
                ranks.append(subprocess.Popen(
                    ["ip", "netns", "exec", self.hosts.names[rank], "taskset", "-c", str(self.cores[rank]), self.nupa, "ccl", "bench",
                     "--min-bytes", str(MIB), "--max-bytes", str(MIB), "--min-time", "0.3" if self.few == 1 else "0.1",
                     *(["--json", results] if rank == 0 else [])],
                    env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
            try:
                for rank in ranks:
                    said = rank.communicate(timeout=RANK_LIMIT_S)[1]
                    if rank.returncode != 0:
                        raise Failed("nupa ccl bench: " + said[-300:])
            except subprocess.TimeoutExpired as late:
                raise Failed("nupa ccl bench: not done within %d s" % RANK_LIMIT_S) from late
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
            with open(results) as read:
                return median_us(json.load(read))

    def all_reduces(self):
        return {transport: self.all_reduce(transport) for transport in LINKS}

    def net(self):
        two = NetOfTwo(self.chosen.build, self.hosts, 1 if self.chosen.quick else 3)
        two.pool = self.pool
        try:
            return {way: two.measure(way) for way in LINKS}
        finally:
            shutil.rmtree(two.config, ignore_errors=True)


def median_us(results):
    """Returns the median of the one size in a file of `nupa ccl bench --json`."""
    if isinstance(results, dict):
        if "median_us" in results:
            return results["median_us"]
        results = list(results.values())
    for each in results if isinstance(results, list) else []:
        found = median_us(each)
        if found is not None:
            return found
    return None


class OverPool:
    """Adds the pool to the ways in which netdev.py joins hosts."""

    def servers_of(self, way):
        if way != "pool":
            yield from super().servers_of(way)
            return
        for host in self.everybody:
            key, value = self.pool.setting(host).split("=", 1)
            yield host, [self.nupa, "net", "up", "bench", "--node", "host%d" % host, "--addr", "10.77.0.%d/24" % (host + 1)], \
                {"NUPA_RUNTIME_DIR": self.hosts.directories[host].name, "NUPA_TRANSPORT": "pool", key: value}


class NetOfTwo(OverPool, netdev.Two):
    pass


class NetOfEight(OverPool, netdev.Exchange):
    pass


def eight(chosen, pool):
    """Returns the exchange of eight hosts over each link."""
    with Hosts(HOSTS) as hosts:
        hosts.add_bridge(MTU)
        net = NetOfEight(chosen.build, hosts, 2 if chosen.quick else 5)
        net.pool = pool
        try:
            return {way: net.measure(way) for way in LINKS}
        finally:
            shutil.rmtree(net.config, ignore_errors=True)


NAMES = ("ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_write_bw", "ib_send_bw", "ib_read_bw", "device memory", "ring", "1000 queue pairs",
         "all_reduce", "net", "eight hosts")


def plan(bench):
    """Returns the measurements of a round: each of NAMES with its function."""
    rows = [("ib_send_lat", 20000), ("ib_write_lat", 5000), ("ib_read_lat", 20000)]
    items = [(name, lambda name=name, count=count: bench.latency(name + " -s 8", count)) for name, count in rows]
    items += [(name, lambda name=name: bench.bandwidth(name, 2000)) for name in ("ib_write_bw", "ib_send_bw", "ib_read_bw")]
    return items + [("device memory", bench.device_memory), ("ring", bench.ring), ("1000 queue pairs", bench.many), ("all_reduce", bench.all_reduces), ("net", bench.net),
                    ("eight hosts", lambda: eight(bench.chosen, bench.pool))]


def measure(bench, rounds, only):
    """Returns ({name: [samples]}, {name: last failure}, [share of the cores that other programs used])."""
    found, failures, shares = {}, {}, []
    for number in range(rounds):
        for name, run in plan(bench):
            if only and not any(word in name for word in only):
                continue
            print("round %d of %d: %s" % (number + 1, rounds, name), file=sys.stderr, flush=True)
            disturbance = Disturbance(bench.cores)
            began = time.monotonic()
            try:
                found.setdefault(name, []).append(run())
                if name in ("net", "eight hosts"):
                    continue  # the programs in the namespaces are not children of this one
                shares.append(disturbance.share())
            except Failed as failure:
                failures[name] = str(failure)
            print("  %.0f s: %s" % (time.monotonic() - began, failures.get(name) or found[name][-1]), file=sys.stderr, flush=True)
    return {name: samples for name, samples in found.items() if samples}, failures, shares


class Rows:
    """Rows of a table: medians of the rounds, and medians of the ratios within each round."""

    def __init__(self, is_calm):
        self.rows, self.is_calm = [], is_calm

    def add(self, name, samples, value, other, unit, beside, target=None, least=True, invert=False):
        """`value` and `other` take a sample and return numbers. `invert`: the ratio is the other one to the value."""
        values, others = [value(s) for s in samples], [other(s) for s in samples]
        ratios = [(b / a if invert else a / b) for a, b in zip(values, others)]
        ratio = statistics.median(ratios)
        verdict = "stated"
        if target is not None:
            met = ratio >= target if least else ratio <= target
            verdict = "at %s %g: %s" % ("least" if least else "most", target,
                                        "not judged" if not self.is_calm else "met" if met else "NOT MET")
        self.rows.append([name, number(statistics.median(values), unit), "%s %s" % (beside, number(statistics.median(others), unit)),
                          "%.2f" % ratio, "%.2f to %.2f" % (min(ratios), max(ratios)), verdict])


def number(value, unit):
    return ("%.0f %s" if value >= 100 else "%.2f %s") % (value, unit)


def rows_of(found, is_calm):
    rows = Rows(is_calm)
    get = lambda key: lambda sample: sample[key]
    for name in ("ib_send_lat", "ib_write_lat", "ib_read_lat"):
        for other, beside in (("shm", "shm"), ("line", "a cache line's way")) if name in found else ():
            rows.add(name + " -s 8", found[name], get("value"), get(other), "ns", beside)
    if "ring" in found:
        for policy, what in (("coherent", "coherent"), ("flushed", "flushed")):
            rows.add("record of 8 B, ring alone, " + what, found["ring"], get(policy + "_ns"), get("line"), "ns", "a cache line's way")
    for name in ("ib_write_bw", "ib_send_bw", "ib_read_bw"):
        if name in found:
            rows.add(name + " -s 1048576", found[name], get("value"), get("memcpy"), "GB/s", "memcpy", 0.45 if name == "ib_write_bw" else None)
            rows.add(name + " -s 1048576", found[name], get("value"), get("shm"), "GB/s", "shm")
    if "device memory" in found:
        rows.add("WRITEs of 1 MiB into device memory", found["device memory"], get("value"), get("memcpy"), "GB/s", "memcpy", 0.85)
        rows.add("WRITEs of 1 MiB into device memory", found["device memory"], get("value"), get("ordinary"), "GB/s", "ordinary memory")
    if "ring" in found:
        for policy, what in (("coherent", "coherent"), ("flushed", "flushed")):
            rows.add("1 MiB, ring alone, " + what, found["ring"], get(policy + "_bw"), get("memcpy"), "GB/s", "memcpy")
    if "1000 queue pairs" in found:
        many, name = found["1000 queue pairs"], "ib_write_bw -s 64 -q 1000"
        rows.add(name, many, get("pool 1000"), get("pool 1"), "M/s", "-q 1")
        rows.add(name, many, get("pool 1000"), get("shm 1000"), "M/s", "shm")
        rows.add("ib_write_bw -s 64 -q 1", many, get("pool 1"), get("shm 1"), "M/s", "shm")
    if "all_reduce" in found:
        rows.add("all_reduce of 1 MiB, two hosts; times as fast", found["all_reduce"], get("pool"), get("roce"), "us", "roce", 2.0,
                 invert=True)
    if "net" in found:
        rows.add("nupa net, iperf3", found["net"], lambda s: s["pool"]["rate"] / 1e9, lambda s: s["roce"]["rate"] / 1e9, "Gbit/s", "roce", 1.3)
        rows.add("nupa net, processor time", found["net"], lambda s: s["pool"]["cost"], lambda s: s["roce"]["cost"], "s/GB", "roce")
        rows.add("nupa net, qperf tcp_lat", found["net"], lambda s: s["pool"]["latency"], lambda s: s["roce"]["latency"], "us", "roce")
    if "eight hosts" in found:
        exchange = found["eight hosts"]
        rows.add("eight hosts, 56 streams of iperf3, all", exchange, lambda s: s["pool"]["rate"] / 1e9, lambda s: s["roce"]["rate"] / 1e9,
                 "Gbit/s", "roce")
        rows.add("fairness to the hosts (Jain)", exchange, lambda s: s["pool"]["jain_of_nodes"], lambda s: s["roce"]["jain_of_nodes"], "", "roce")
        rows.add("fairness to the streams (Jain)", exchange, lambda s: s["pool"]["jain"], lambda s: s["roce"]["jain"], "", "roce")
    return rows.rows


HEAD = ("measurement", "pool", "beside", "ratio", "in all rounds", "wanted")


def document(about, found, failures, shares):
    lines = ["# Performance of the pool", "",
             "Written by `%s` on %s. Network namespaces on one machine share a file in /dev/shm as hosts share a pool; the file is "
             "coherent memory. %d rounds; each has all measurements, and each measurement stands beside the others in its row. Values and ratios are "
             "medians." % (about["command"], about["date"], about["rounds"]), ""]
    lines += ["- %s: %s" % (name, about[name]) for name in ("cpu", "caches", "system", "programs")]
    lines += ["- Server on core %d, client on core %d, each with the thread of its transport." % tuple(about["cores"])]
    is_calm = about["load"] < CALM_LOAD and statistics.median(shares or [0]) <= DISTURBED
    if not is_calm:
        lines += ["- The machine was shared: the load was %.1f before the first measurement, and other programs used %.0f %% of the two "
                  "cores or of their speed (median), up to %.0f %%. "
                  "A thread then waits for a core longer than for memory. The values below show that the measurements work, and no more." %
                  (about["load"], 100 * statistics.median(shares or [0]), 100 * max(shares or [0]))]
    lines += [""] + markdown(HEAD, rows_of(found, is_calm)) + [""]
    if "ring" in found:
        lines += ["The rows of the ring alone are those of `bench/pool_ring`: two threads, without verbs. Flushed is the policy for hosts whose "
                  "caches are not coherent (%s), executed on coherent memory. Programs cannot be measured with it on one machine: a "
                  "pool file with `coherence=none` is the slow simulation for tests, which copies lines." % found["ring"][0]["instructions"], ""]
    if "device memory" in found:
        lines += ["perftest does not allocate device memory. Its rows are those of `bench/pool_memory`, which writes to both kinds of memory as "
                  "ib_write_bw does.", ""]
    absent = [name for name in NAMES if name not in found and name not in failures]
    if absent:
        lines += ["Not measured in this run: %s." % ", ".join(absent), ""]
    lines += ["Failed: %s: %s" % failure for failure in failures.items()]
    return "\n".join(lines).rstrip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--only", metavar="NAMES", help="only these measurements, comma-separated; parts of names suffice")
    parser.add_argument("--write-docs", action="store_true", help="also write docs/performance/pool.md")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("network namespaces need root")
    cores = choose_cores()
    command = "bench/pool.py" + "".join(" " + word for word in sys.argv[1:])
    about = machine.describe(chosen.build, cores, command, chosen.rounds, ("perftest", "iperf3", "qperf"))
    about["load"] = os.getloadavg()[0]
    with Pool(chosen.build) as pool, Hosts() as hosts:
        hosts.add_cable(MTU)
        found, failures, shares = measure(Bench(chosen, hosts, pool, cores), chosen.rounds, chosen.only and chosen.only.split(","))
    os.makedirs(os.path.join(chosen.build, "bench"), exist_ok=True)
    with open(os.path.join(chosen.build, "bench", "pool.json"), "w") as out:
        json.dump({"machine": about, "samples": found, "failures": failures, "shares": shares}, out, indent=1)
    text = document(about, found, failures, shares)
    if chosen.write_docs:
        with open(os.path.join(ROOT, "docs", "performance", "pool.md"), "w") as out:
            out.write(text)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
