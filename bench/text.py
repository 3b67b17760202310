# SPDX-License-Identifier: Apache-2.0
"""Formats the results as tables for the terminal and as docs/performance/verbs.md."""
from figures import quantity, verdict
from items import TARGET_SIZES, size_name

HEAD = ("test", "size", "NUPA", "UCX shared memory", "UCX TCP", "limit")


def _table(rows, numbers_from=1):
    """Aligns the columns to the left; those from `numbers_from` on to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) if i >= numbers_from else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


BESIDE = ("Beside write, read, send and atomic stand UCX's put, get, tag and fetch-add; over TCP, tag instead of put, and "
          "tag there and back instead of get.")


def comparison_cells(row):
    """Formats a row of the comparison."""
    return ([row[0], size_name(row[1]), "failed" if row[3] is None else quantity(row[3], row[2])]
            + [quantity(value, row[2]) for value in row[4:]])


def figure_cells(figure):
    value = quantity(figure["value"], figure["unit"])
    if figure["unit"] == "x" and figure["value"] is not None:
        value += " x"
    return [figure["name"], value, figure["target"], verdict(figure)]


def limits(medians):
    """Returns [(name, value)] of the machine's limits."""
    found = [("A cache line from core to core, one way", quantity(medians.get("limit.line"), "ns")),
             ("A system call", quantity(medians.get("limit.syscall"), "ns")),
             ("sched_yield", quantity(medians.get("limit.yield"), "ns"))]
    for size in TARGET_SIZES:
        found.append(("memcpy of %s on one core" % size_name(size),
                      quantity(medians.get("limit.memcpy.%d" % size), "GB/s")))
    return found


def disturbance(about):
    """Returns a sentence about disturbed samples, or an empty text if the machine was calm."""
    disturbed, samples = about["disturbed"], about["samples"]
    if disturbed == 0:
        return ""
    if disturbed == samples:
        return ("Every sample was taken while others used over a tenth of the two cores: no figure is what a calm machine "
                "gives.")
    return ("%d of %d samples were taken while others used over a tenth of the two cores or of their speed, or while their "
            "reference changed by over a quarter. They count only where a figure has no other sample."
            % (disturbed, samples))


def terminal(about, medians, rows, promised, failures, demo):
    lines = ["", "%s; %s" % (about["cpu"], about["system"]),
             "Medians of %d round%s; server on core %d, client on core %d."
             % (about["rounds"], "" if about["rounds"] == 1 else "s", about["cores"][0], about["cores"][1]), ""]
    if rows:
        lines += _table([list(HEAD)] + [comparison_cells(row) for row in rows])
    lines += ["", "Limit: of a latency, one cache line's way from core to core and a copy of the message; of a bandwidth, memcpy "
              "on one core.", BESIDE, ""]
    if demo:
        lines += ["%s: %s" % pair for pair in limits(medians)] + [""]
    else:
        lines += _table([["figure", "measured", "target", ""]] + [figure_cells(figure) for figure in promised])
        lines.append("")
    if disturbance(about):
        lines += [disturbance(about), ""]
    for name, reason in failures.items():
        lines.append("FAILED %s: %s" % (name, reason))
    return "\n".join(lines)


# bench/verbs_plot.py draws it from this page.
PICTURE = ("![Latency and bandwidth over the message size, on logarithmic axes: NUPA's WRITE and SEND, UCX's put and tag over shared "
           "memory, and UCX's tag over TCP loopback](verbs.svg)")


def heading(name):
    return "CPU" if name == "cpu" else name.capitalize()


def markdown(head, rows):
    lines = ["| %s |" % " | ".join(head), "|%s|" % "|".join(["---"] + ["---:"] * (len(head) - 1))]
    return lines + ["| %s |" % " | ".join(row) for row in rows]


def document(about, medians, rows, promised, failures):
    """Returns the text of docs/performance/verbs.md."""
    missed = [figure for figure in promised if figure["met"] is False]
    absent = [figure for figure in promised if figure["value"] is None]
    runs = "one round runs" if about["rounds"] == 1 else "each of %d rounds runs" % about["rounds"]
    lines = ["# Performance", "",
             "Written by `%s` on %s. Debian's unmodified perftest over `nupa0`, UCX and the machine's limits are "
             "measured in one interleaved run: %s everything once. The figures are medians, and "
             "every ratio is to the measurements just before and just after." % (about["command"], about["date"], runs), "",
             "To repeat it: `scripts/build && bench/run.py --write-docs`. Every sample is then in "
             "`build/bench/results.json`, the plots in `build/bench/report.html`. `bench/verbs_plot.py` draws the picture below "
             "from this page's table. [README.md](README.md) lists the other pages.",
             "", PICTURE, "", "## Machine", ""]
    lines += ["- %s: %s" % (heading(name), about[name]) for name in
              ("cpu", "caches", "memory", "system", "huge pages", "programs")]
    lines += ["- Server on core %d, client on core %d." % tuple(about["cores"])]
    if disturbance(about):
        lines.append("- Not a quiet machine: " + disturbance(about))
    lines += ["", "## Its limits", ""] + markdown(("limit", "measured"), limits(medians))
    lines += ["", "## Figures and targets", ""]
    cells = []
    for figure in promised:
        name, value, target, met = figure_cells(figure)
        basis = ""
        if figure["unit"] == "x" and figure["value"] is not None:
            unit = "GB/s" if "bandwidth" in figure["name"] else "ns"
            basis = "%s / %s" % (quantity(figure["measured"], unit), quantity(figure["basis_value"], unit))
        cells.append([name + (", over " + figure["basis"] if figure["basis"] else ""), value, basis, target, met])
    lines += markdown(("figure", "measured", "its two sides", "target", ""), cells)
    lines.append("")
    if missed:
        lines += ["Not met:", ""] + ["- %s: %s, target %s." % tuple(figure_cells(figure)[:3]) for figure in missed]
    else:
        lines.append("No measured figure misses its target." if absent else "Every figure meets its target.")
    if absent:
        lines += ["", "Not measured: " + "; ".join(figure["name"] for figure in absent) + "."]
    for name, reason in failures.items():
        lines += ["", "Failed: %s: %s" % (name, reason)]
    lines += ["", "Memory of a queue pair is the growth of both processes, own and shared memory and page tables, for "
              "1,000 connected queue pairs of 128 work requests each way, by one end. Its parts: %s own, %s shared. "
              "Creating takes %s each, connecting %s. Releasing the region of 1 GiB takes %s."
              % (quantity(medians.get("nupa.many.qp_own_bytes"), "B"),
                 quantity(medians.get("nupa.many.qp_shared_bytes"), "B"),
                 _scaled(medians.get("nupa.many.create_qp_us"), 1e3),
                 _scaled(medians.get("nupa.many.connect_qp_us"), 1e3),
                 _scaled(medians.get("nupa.many.dereg_mr_ms"), 1e6)),
              "", "## By test and size", "",
              BESIDE + " Latencies of write, send, put and tag are half of a round trip, of read, get and atomics the "
              "whole operation. The limit of a latency is "
              "one cache line's way and a copy of the message, of a bandwidth memcpy on one core.", ""]
    lines += markdown(HEAD, [comparison_cells(row) for row in rows])
    return "\n".join(lines) + "\n"


def _scaled(value, to_ns):
    return quantity(None if value is None else value * to_ns, "ns")
