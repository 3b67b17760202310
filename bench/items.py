# SPDX-License-Identifier: Apache-2.0
"""The items that bench/run.py measures. An item is one run of programs that gives one or more samples. A sample has a name such
as nupa.write_lat.8, and is in nanoseconds, 10^9 bytes a second, or 10^6 messages a second."""
import json
import os
import re
import tempfile

from pairs import Failed, free_port, run_alone, run_pair

KIB, MIB = 1 << 10, 1 << 20
LATENCY_SIZES = [8, 64, 512, 4 * KIB, 64 * KIB, MIB]
BANDWIDTH_SIZES = [8, 512, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]
TARGET_SIZES = [64 * KIB, MIB, 16 * MIB]
QUICK_BANDWIDTH_SIZES = [8, 4 * KIB, 64 * KIB, MIB, 16 * MIB]
TIMES = 3  # runs of an item with a target in each round: its median must be reliable alone
LIST = ["-l", "16", "-Q", "16"]  # 16 work requests for each post, with one completion
# The greatest cost of one message, from which the number of messages is chosen: fixed nanoseconds, and bytes per nanosecond.
COST = {"nupa": (300, 8), "ucx_shm": (400, 5), "ucx_tcp": (20000, 1)}


def size_name(size):
    if size >= MIB:
        return "%d MiB" % (size // MIB)
    return "%d KiB" % (size // KIB) if size >= KIB else "%d B" % size


class Item:
    def __init__(self, name, run, shown=None, promised=False):
        self.name = name    # as the report shows it
        self.run = run      # returns {name of the sample: {"value": number, ...}}
        self.command = shown or name
        self.promised = promised  # its figure has a target


class Setting:
    """The build folder, the cores, and the length of each measurement."""

    def __init__(self, build, cores, target_s, quick):
        self.build = build
        self.cores = cores
        self.target_s = target_s
        self.quick = quick
        self.ticks_per_us = 0.0  # of perftest's clock; 0 until the machine's limits are measured

    def iterations(self, kind, size, most, least=100):
        fixed_ns, bytes_per_ns = COST[kind]
        return int(min(most, max(least, self.target_s * 1e9 / (fixed_ns + size / bytes_per_ns))))

    def nupa(self, command):
        return [os.path.join(self.build, "bin", "nupa"), "run", "--"] + command


def parse_perftest_latency(text, ticks_per_us):
    """Returns the figures of a perftest latency program. Its output is in ticks if ticks_per_us is not 0, otherwise in us."""
    row = _perftest_row(text, 6)
    scale = 1000.0 / ticks_per_us if ticks_per_us else 1000.0
    sample = {"value": float(row[4]) * scale, "min": float(row[2]) * scale, "mean": float(row[5]) * scale}
    if len(row) > 7 and "nan" not in row[7]:
        sample["p99"] = float(row[7]) * scale
    return sample


def parse_perftest_times(text):
    """Returns the mean of the middle nine tenths of all times in the output of -U, in nanoseconds. In virtual machines, the
    processor's clock counts in steps of 10 ns, so that a median cannot show a change of a few nanoseconds."""
    times = sorted(float(match.group(1)) for match in re.finditer(r"^\d+, ([0-9.]+)\s*$", text, re.M))
    cut = len(times) // 20
    if cut == 0:
        raise Failed("no times in the output")
    middle = times[cut:-cut]
    return 1e3 * sum(middle) / len(middle)


def parse_perftest_bandwidth(text):
    """Returns (10^9 bytes a second, 10^6 messages a second). perftest's MB is 2^20 bytes."""
    row = _perftest_row(text, 5)
    return float(row[3]) * MIB / 1e9, float(row[4])


def _perftest_row(text, least):
    header = False
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0] == "#bytes":
            header = True
        elif header and len(fields) >= least and fields[0].isdigit():
            return fields
    raise Failed("no row of figures in the output")


def perftest(setting, command):
    port = free_port()
    server = setting.nupa([command[0], "-d", "nupa0", "-F", "-p", str(port)] + command[1:])
    return run_pair(server, server + ["127.0.0.1"], port, setting.cores)


def nupa_latency(setting, operation, size):
    name = "ib_%s_lat" % operation

    def run():
        count = setting.iterations("nupa", size, 50000)
        in_ticks = ["-C"] if setting.ticks_per_us else []  # in microseconds, the last digit is 10 ns
        sizes = [] if operation == "atomic" else ["-s", str(size)]
        text = perftest(setting, [name, "-n", str(count)] + sizes + in_ticks)
        return {"nupa.%s_lat.%d" % (operation, size): parse_perftest_latency(text, setting.ticks_per_us)}
    return Item("%s %s" % (name, size_name(size)), run, name if operation == "atomic" else "%s -s %d" % (name, size))


def _messages(setting, size):
    """Returns the number of messages that a bandwidth test sends."""
    count = setting.iterations("nupa", size, 960000, 30)
    return count - count % 1600 if count > 1600 else count  # a multiple of perftest's completion moderation and of the lists


def nupa_bandwidth(setting, operation, size, listed=False):
    name = "ib_%s_bw" % operation
    options = LIST if listed else []

    def run():
        count = _messages(setting, size)
        sizes = [] if operation == "atomic" else ["-s", str(size)]
        text = perftest(setting, [name, "-n", str(count)] + sizes + options)
        bandwidth, rate = parse_perftest_bandwidth(text)
        if listed:
            return {"nupa.%s_list_rate.%d" % (operation, size): {"value": rate}}
        samples = {"nupa.%s_bw.%d" % (operation, size): {"value": bandwidth}}
        if size == 8:
            samples["nupa.%s_rate.8" % operation] = {"value": rate}
        return samples
    shown = " ".join([name] + ([] if operation == "atomic" else ["-s", str(size)]) + options)
    return Item("%s %s%s" % (name, size_name(size), ", lists" if listed else ""), run, shown)


UCX = {"ucx_shm": ("UCX shared memory", {"UCX_TLS": "posix,cma"}),
       "ucx_tcp": ("UCX TCP", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"})}
# TCP has no one-sided transfers, and UCX's put and get over TCP are far slower than its tag messages. A program would
# therefore use tag messages.
UCX_LATENCY = {"ucx_shm": {"tag_lat": "tag_lat", "put_lat": "ucp_put_lat", "get_lat": "ucp_get"},
               "ucx_tcp": {"tag_lat": "tag_lat"}}
UCX_BANDWIDTH = {"ucx_shm": {"tag_bw": "tag_bw", "put_bw": "ucp_put_bw", "get_bw": "ucp_get -O 32"},
                 "ucx_tcp": {"tag_bw": "tag_bw"}}


def parse_ucx(text):
    """Returns {name of the test: (median us, 10^9 bytes a second, 10^6 messages a second)} of ucx_perftest -v with a batch file."""
    rows = {}
    for line in text.splitlines():
        match = re.match(r"([a-z_]+\.\d+),([\d., ]+)$", line.strip())
        if match:
            numbers = [float(number) for number in match.group(2).split(",")]
            if len(numbers) == 8:
                rows[match.group(1)] = (numbers[1], numbers[5] * MIB / 1e9, numbers[7] / 1e6)
    return rows


def ucx(setting, kind, measure, operations, sizes):
    """Returns an item that runs all `operations` ({NUPA's name: name in ucx_perftest}) at all sizes in one run of the pair."""
    title, env = UCX[kind]
    lines = {}
    for name, test in operations.items():
        for size in sizes:
            count = setting.iterations(kind, size, 200000 if measure == "bandwidth" else 20000, 30)
            if measure == "bandwidth" and kind == "ucx_tcp" and size < 4 * KIB:
                count *= 5  # TCP combines many small messages
            lines["%s.%d" % (name, size)] = "-t %s -s %d -n %d -w %d" % (test, size, count, max(10, count // 10))

    def run():
        port = free_port()
        with tempfile.NamedTemporaryFile("w", suffix=".ucx") as batch:
            batch.writelines("%s %s\n" % line for line in lines.items())
            batch.flush()
            common = ["-p", str(port), "-f", "-v", "-b", batch.name]
            text = run_pair(["ucx_perftest"] + common, ["ucx_perftest", "127.0.0.1"] + common, port, setting.cores, env)
        rows = parse_ucx(text)
        missing = [name for name in lines if name not in rows]
        if missing:
            raise Failed("ucx_perftest gave no figures for " + ", ".join(missing))
        samples = {}
        for name, (median_us, bandwidth, rate) in rows.items():
            value = bandwidth if "_bw." in name else median_us * 1000
            samples["%s.%s" % (kind, name)] = {"value": value}
            if name.endswith("_bw.8"):
                samples["%s.%s" % (kind, name.replace("_bw", "_rate"))] = {"value": rate}
        return samples
    prefix = " ".join("%s=%s" % pair for pair in env.items())
    tests = ", ".join("-t " + test for test in operations.values())
    return Item("%s %s" % (title, measure), run, "%s ucx_perftest %s" % (prefix, tests))


def machine_limits(setting, options):
    other, core = setting.cores  # memcpy runs on the core of the pairs' clients
    command = [os.path.join(setting.build, "bench", "machine_limits"), "--cores", "%d,%d" % (core, other)] + options
    return _json(run_alone(command, core))


def limits(setting, sizes):
    def run():
        found = machine_limits(setting, ["--sizes", ",".join(map(str, sizes))] + ["--quick"] * setting.quick)
        setting.ticks_per_us = setting.ticks_per_us or found["ticks_per_us"]
        samples = {"limit." + name: {"value": found[name + "_ns"]} for name in ("line", "syscall", "yield")}
        for kind in ("memcpy", "memcpy_shared"):
            for size in sizes:
                samples["limit.%s.%d" % (kind, size)] = {"value": found[kind][str(size)]}
        return samples
    return Item("machine limits", run, "machine_limits")


def beside(item, key, reference):
    """Returns the item with its reference measured just before and just after it. Where a hypervisor migrates virtual cores,
    the latency of a cache line can change five-fold within a minute."""
    def run():
        before = reference()
        samples = item.run()
        after = reference()
        samples[key].update(reference=(before + after) / 2, shift=max(before, after) / min(before, after))
        return samples
    return Item(item.name, run, item.command, promised=True)


def _with_references(setting, operation, size, item):
    """Adds the reference to a latency item of 8 bytes, or to a bandwidth item of a size that has a target."""
    if size == 8:
        if operation == "send":
            tag = ucx(setting, "ucx_shm", "latency", {"tag_lat": "tag_lat"}, [8])
            return beside(item, "nupa.send_lat.8", lambda: tag.run()["ucx_shm.tag_lat.8"]["value"])
        return beside(item, "nupa.%s_lat.8" % operation,
                      lambda: machine_limits(setting, ["--only", "line", "--quick"])["line_ns"])
    options = ["--only", "memcpy", "--sizes", str(size), "--copies", str(_messages(setting, size))]
    return beside(item, "nupa.%s_bw.%d" % (operation, size),
                  lambda: machine_limits(setting, options)["memcpy"][str(size)])


def many_qps(setting):
    def run():
        command = setting.nupa([os.path.join(setting.build, "bench", "many_qps"), "--cores", "%d,%d" % setting.cores]
                               + (["--quick"] if setting.quick else []))
        # many_qps pins its two processes itself; the process that starts them may run on either core.
        found = _json(run_alone(command, "%d,%d" % setting.cores))
        return {"nupa.many." + name: {"value": value} for name, value in found.items()}
    return Item("1000 queue pairs", run, "many_qps", promised=True)


def message_rate(setting):
    def run():
        seconds = "0.05" if setting.quick else "0.2"
        command = setting.nupa([os.path.join(setting.build, "bench", "message_rate"), "--cores", "%d,%d" % setting.cores,
                                "--seconds", seconds])
        found = _json(run_alone(command, "%d,%d" % setting.cores))
        return {"nupa.post_rate." + name: {"value": value} for name, value in found.items()}
    return Item("message rates", run, "message_rate", promised=True)


def _json(text):
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Failed("no figures in the output: " + text.strip()[-200:]) from None


def catalogue(setting, demo=False):
    sizes = QUICK_BANDWIDTH_SIZES if setting.quick or demo else BANDWIDTH_SIZES
    listed = [limits(setting, sorted(set(LATENCY_SIZES + sizes)))]
    for operation in ("write", "read", "send"):
        for size in LATENCY_SIZES:
            item = nupa_latency(setting, operation, size)
            listed.append(_with_references(setting, operation, size, item) if size == 8 else item)
    listed.append(nupa_latency(setting, "atomic", 8))
    for operation in ("write",) if demo else ("write", "read", "send"):
        for size in sizes:
            item = nupa_bandwidth(setting, operation, size)
            listed.append(_with_references(setting, operation, size, item) if size in TARGET_SIZES else item)
    if not demo:
        listed += [nupa_bandwidth(setting, operation, 8, True) for operation in ("write", "read", "send")]
        listed += [nupa_bandwidth(setting, "atomic", 8), nupa_bandwidth(setting, "atomic", 8, True)]
        listed += [message_rate(setting), many_qps(setting)]
    for kind in UCX:
        listed += [ucx(setting, kind, "latency", UCX_LATENCY[kind], LATENCY_SIZES),
                   ucx(setting, kind, "atomic", {"atomic_lat": "ucp_fadd"}, [8]),
                   ucx(setting, kind, "bandwidth", UCX_BANDWIDTH[kind], sizes)]
    return listed
