# SPDX-License-Identifier: Apache-2.0
"""Evaluates the samples: medians, the comparison by test and size, and each figure with its target."""
import statistics

from items import BANDWIDTH_SIZES, LATENCY_SIZES, TARGET_SIZES, size_name

DISTURBED = 0.10  # share of two cores or of their speed; a sample above it is unreliable
UNSTEADY = 1.25   # a figure is unreliable if its reference changed by a larger factor meanwhile


class Medians:
    """Returns the median of a sample's rounds. Disturbed or unsteady rounds count only if there are no others."""

    def __init__(self, samples):
        self.samples = samples

    def _rounds(self, name):
        rounds = self.samples.get(name, [])
        return [sample for sample in rounds if not poor(sample)] or rounds

    def get(self, name):
        values = [sample["value"] for sample in self._rounds(name)]
        return statistics.median(values) if values else None

    def beside(self, name):
        """Returns (ratio, reference) as medians of the rounds: the value over its reference, which is measured just before and after it."""
        pairs = [(sample["value"] / sample["reference"], sample["reference"]) for sample in self._rounds(name)
                 if sample.get("reference")]
        return tuple(map(statistics.median, zip(*pairs))) if pairs else (None, None)

    def latency_limit(self, size):
        """Returns the time for one cache line from core to core, plus the time to copy a message of more than one line."""
        line, rate = self.get("limit.line"), self.get("limit.memcpy.%d" % size)
        if line is None or rate is None:
            return line if size <= 64 else None
        return line + (size / rate if size > 64 else 0)

    def disturbed(self):
        """Returns (number of disturbed or unsteady samples, number of samples)."""
        every = [sample for rounds in self.samples.values() for sample in rounds]
        return sum(map(poor, every)), len(every)


def poor(sample):
    return sample["foreign"] > DISTURBED or sample.get("shift", 1) > UNSTEADY


def comparison(medians, failures):
    """Returns rows of [test, size, unit, NUPA, UCX over shared memory, UCX over TCP, limit] for each test that ran or failed.
    Write, read, send and atomic are compared with UCX's put, get, tag and fetch-add. Over TCP, tag replaces put and get; a
    read's latency is compared with a round trip of tag."""
    shared = {"write": "put", "read": "get", "send": "tag", "atomic": "atomic"}
    tests = [(operation, "lat", "ns", LATENCY_SIZES) for operation in ("write", "read", "send")]
    tests += [("atomic", "lat", "ns", [8])]
    tests += [(operation, "bw", "GB/s", BANDWIDTH_SIZES) for operation in ("write", "read", "send")]
    rows = []
    for operation, kind, unit, sizes in tests:
        name = "ib_%s_%s" % (operation, kind)
        for size in sizes:
            ours = medians.get("nupa.%s_%s.%d" % (operation, kind, size))
            if ours is None and "%s %s" % (name, size_name(size)) not in failures:
                continue
            tcp = medians.get("ucx_tcp.%s_%s.%d" % ("atomic" if operation == "atomic" else "tag", kind, size))
            if tcp and (operation, kind) == ("read", "lat"):
                tcp *= 2
            limit = medians.latency_limit(size) if kind == "lat" else medians.get("limit.memcpy.%d" % size)
            rows.append([name, size, unit, ours, medians.get("ucx_shm.%s_%s.%d" % (shared[operation], kind, size)), tcp,
                         limit])
    return rows


def _beside(name, medians, value, basis_name, most=None, least=None):
    ratio, base = medians.beside(value)
    return _figure(name, ratio, value, basis_name, most, least, "x", medians.get(value), base)


def _ratio(name, medians, value, basis, basis_name, most):
    have, base = medians.get(value), medians.get(basis)
    ratio = have / base if have is not None and base else None
    return _figure(name, ratio, "%s / %s" % (value, basis), basis_name, most, None, "x", have, base)


def _plain(name, medians, value, unit, scale=1.0, most=None, least=None):
    have = medians.get(value)
    have = have * scale if have is not None else None
    return _figure(name, have, value, "", most, least, unit, have, None)


def _figure(name, value, source, basis_name, most, least, unit, have, base):
    met = None
    if value is not None and (most is not None or least is not None):
        met = value <= most if most is not None else value >= least
    target = "stated"
    if most is not None or least is not None:
        target = ("at most %g %s" % (most, unit)) if most is not None else "at least %g %s" % (least, unit)
    return {"name": name, "value": value, "unit": unit, "basis": basis_name, "target": target, "met": met,
            "source": source, "measured": have, "basis_value": base}


def figures(medians):
    """Returns each figure that the project promises, in the order of the report."""
    line = "one-way cache-line transfers"
    found = [_beside("RDMA WRITE latency, 8 B", medians, "nupa.write_lat.8", line, most=3),
             _beside("RDMA READ latency, 8 B", medians, "nupa.read_lat.8", line, most=3),
             _beside("SEND latency, 8 B", medians, "nupa.send_lat.8",
                     "UCX's tag latency over shared memory", most=1.3)]
    for operation in ("write", "read", "send"):
        found.append(_plain("%s latency, 8 B, end to end" % _verb(operation), medians, "nupa.%s_lat.8" % operation, "ns",
                            most=600))
    for operation, least in (("write", 0.9), ("read", 0.9), ("send", 0.8)):
        for size in TARGET_SIZES:
            found.append(_beside("%s bandwidth, %s" % (_verb(operation), size_name(size)), medians,
                                 "nupa.%s_bw.%d" % (operation, size), "one-core memcpy of that size", least=least))
    # perftest's loop does its own accounting for each request; a plain loop over ibv_post_send shows the cost of the device alone.
    found += [_plain("RDMA WRITE rate, 8 B", medians, "nupa.post_rate.write", "M/s", least=10),
              _plain("RDMA WRITE rate, 8 B, lists of 16", medians, "nupa.post_rate.write_list", "M/s", least=20),
              _plain("Atomic rate (fetch and add)", medians, "nupa.post_rate.atomic", "M/s", least=8),
              _plain("RDMA WRITE rate, 8 B, of ib_write_bw", medians, "nupa.write_rate.8", "M/s"),
              _plain("RDMA WRITE rate, 8 B, of ib_write_bw with lists of 16", medians, "nupa.write_list_rate.8", "M/s"),
              _plain("Atomic rate of ib_atomic_bw", medians, "nupa.atomic_rate.8", "M/s"),
              _ratio("RDMA WRITE latency, 8 B, 1,000 queue pairs by turns", medians, "nupa.many.all_ns",
                     "nupa.many.one_ns", "one queue pair", most=1.5),
              _plain("Memory of an idle queue pair", medians, "nupa.many.qp_bytes", "B", most=8192),
              _plain("ibv_reg_mr of 1 GiB", medians, "nupa.many.reg_mr_ms", "ms"),
              _plain("ibv_open_device, first in a process", medians, "nupa.many.open_first_us", "ms", 1e-3, most=1)]
    return found


def _verb(operation):
    return {"write": "RDMA WRITE", "read": "RDMA READ", "send": "SEND"}[operation]


def quantity(value, unit):
    """Formats a value for the report, with three digits and a suitable unit."""
    if value is None:
        return "-"
    if unit == "ns":
        for scale, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
            if value >= scale:
                return "%.3g %s" % (value / scale, name)
        return "%.0f ns" % value if value >= 100 else "%.1f ns" % value
    if unit == "x":
        return "%.2f" % value
    if unit == "B":
        return "%.0f B" % value
    if unit == "GB/s" and value < 1:
        return quantity(value * 1000, "MB/s")
    return ("%.0f %s" if value >= 1000 else "%.3g %s") % (value, unit)


def verdict(figure):
    if figure["value"] is None:
        return "not measured"
    return {None: "stated", True: "met", False: "NOT MET"}[figure["met"]]
