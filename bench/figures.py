"""What is made of the samples: medians, the comparison by test and size, and each figure beside its target."""
import statistics

from items import BANDWIDTH_SIZES, KIB, LATENCY_SIZES, MIB, size_name

DISTURBED = 0.10  # of two cores; above it a sample says little


class Medians:
    """The median of each sample's rounds. Disturbed rounds count only where there is no other."""

    def __init__(self, samples):
        self.samples = samples

    def get(self, name):
        rounds = self.samples.get(name, [])
        calm = [sample["value"] for sample in rounds if sample["foreign"] <= DISTURBED]
        values = calm or [sample["value"] for sample in rounds]
        return statistics.median(values) if values else None

    def latency_limit(self, size):
        """One cache line's way, and for more than a line the time that one core needs to copy the message."""
        line, rate = self.get("limit.line"), self.get("limit.memcpy.%d" % size)
        if line is None or rate is None:
            return line if size <= 64 else None
        return line + (size / rate if size > 64 else 0)

    def disturbed(self):
        """(disturbed samples, all samples)"""
        every = [sample for rounds in self.samples.values() for sample in rounds]
        return sum(sample["foreign"] > DISTURBED for sample in every), len(every)


def comparison(medians):
    """Rows of (test, size, unit, NUPA, UCX over shared memory, UCX over TCP, limit); None where not measured."""
    rows = []
    ucx_test = {"write": "put", "read": "get", "send": "tag", "atomic": "atomic"}
    for operation in ("write", "read", "send", "atomic"):
        for size in LATENCY_SIZES if operation != "atomic" else [8]:
            keys = ["nupa.%s_lat.%d" % (operation, size)]
            keys += ["%s.%s_lat.%d" % (kind, ucx_test[operation], size) for kind in ("ucx_shm", "ucx_tcp")]
            rows.append(["ib_%s_lat" % operation, size, "ns"] + [medians.get(key) for key in keys]
                        + [medians.latency_limit(size)])
    for operation in ("write", "read", "send"):
        for size in BANDWIDTH_SIZES:
            keys = ["nupa.%s_bw.%d" % (operation, size)]
            keys += ["%s.%s_bw.%d" % (kind, ucx_test[operation], size) for kind in ("ucx_shm", "ucx_tcp")]
            keys.append("limit.memcpy.%d" % size)
            rows.append(["ib_%s_bw" % operation, size, "GB/s"] + [medians.get(key) for key in keys])
    return [row for row in rows if row[3] is not None or row[0] in ("ib_write_lat", "ib_write_bw") and any(row[4:6])]


def _ratio(name, medians, value, basis, basis_name, most=None, least=None):
    have, base = medians.get(value), medians.get(basis)
    ratio = have / base if have is not None and base else None
    return _figure(name, ratio, "%s / %s" % (value, basis), basis_name, most, least, "x", have, base)


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
    """Every figure that the project promises, in its order."""
    line = "one-way cache-line transfers"
    found = [_ratio("RDMA WRITE latency, 8 B", medians, "nupa.write_lat.8", "limit.line", line, most=3),
             _ratio("RDMA READ latency, 8 B", medians, "nupa.read_lat.8", "limit.line", line, most=3),
             _ratio("SEND latency, 8 B", medians, "nupa.send_lat.8", "ucx_shm.tag_lat.8",
                    "UCX's tag latency over shared memory", most=1.3)]
    for operation in ("write", "read", "send"):
        found.append(_plain("%s latency, 8 B, end to end" % _verb(operation), medians, "nupa.%s_lat.8" % operation, "ns",
                            most=600))
    for operation, least in (("write", 0.9), ("read", 0.9), ("send", 0.8)):
        for size in (64 * KIB, MIB, 16 * MIB):
            found.append(_ratio("%s bandwidth, %s" % (_verb(operation), size_name(size)), medians,
                                "nupa.%s_bw.%d" % (operation, size), "limit.memcpy.%d" % size,
                                "one-core memcpy of that size", least=least))
    found += [_plain("RDMA WRITE rate, 8 B", medians, "nupa.write_rate.8", "M/s", least=10),
              _plain("RDMA WRITE rate, 8 B, lists of 16", medians, "nupa.write_list_rate.8", "M/s", least=20),
              _plain("Atomic rate (fetch and add)", medians, "nupa.atomic_rate.8", "M/s", least=8),
              _ratio("WRITE latency, 8 B, by turns over 1,000 queue pairs", medians, "nupa.many.all_ns",
                     "nupa.many.one_ns", "the same over one queue pair", most=1.5),
              _plain("Memory of an idle queue pair", medians, "nupa.many.qp_bytes", "B", most=8192),
              _plain("ibv_reg_mr of 1 GiB", medians, "nupa.many.reg_mr_ms", "ms"),
              _plain("ibv_open_device, first in a process", medians, "nupa.many.open_first_us", "ms", 1e-3, most=1)]
    return found


def _verb(operation):
    return {"write": "RDMA WRITE", "read": "RDMA READ", "send": "SEND"}[operation]


def quantity(value, unit):
    """For people: three digits, and the unit that suits."""
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
