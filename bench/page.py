# SPDX-License-Identifier: Apache-2.0
"""Writes the report as one HTML page. It needs no other file and no network, and follows the light or dark mode of the
reader's system."""
import html

import text
from figures import quantity
from items import BANDWIDTH_SIZES, LATENCY_SIZES, size_name
from plots import STYLE as PLOT_STYLE, legend, plot

STYLE = PLOT_STYLE + """
:root { --back: #f7f8fa; --good: #137a3f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #10151b; --good: #56c98a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans",
  sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 0 0 4px; }
p { margin: 0 0 12px; }
.soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px; margin-top: 20px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 16px; margin-top: 24px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 20px; }
.tile b { display: block; font-size: 28px; line-height: 1.25; letter-spacing: -0.01em; white-space: nowrap; }
.tile span { display: block; font-size: 14px; color: var(--soft); }
svg { display: block; width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; padding: 0; margin: 6px 0 14px; font-size: 14px; }
.legend li { display: flex; align-items: center; gap: 8px; } .key { width: 34px; flex: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--soft); } th, td { padding: 6px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); } th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.group td { border-top: 2px solid var(--line); } tr:last-child td { border-bottom: 0; }
td.ours { font-weight: 600; } td.wrap { white-space: normal; min-width: 220px; }
.met { color: var(--good); font-weight: 600; } .missed { color: var(--bad); font-weight: 600; }
.absent { color: var(--soft); } dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 8px 0 0;
  font-size: 14px; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
"""


def _points(medians, name, sizes):
    found = [(size, medians.get("%s.%d" % (name, size))) for size in sizes]
    return [(size, value) for size, value in found if value]


def _latency_series(medians):
    def line(title, style, marker, name):
        return title, style, marker, _points(medians, name, LATENCY_SIZES)
    limit = [(size, medians.latency_limit(size)) for size in LATENCY_SIZES]
    return [line("NUPA write", "nupa-write", "circle", "nupa.write_lat"),
            line("NUPA read", "nupa-read", "square", "nupa.read_lat"),
            line("NUPA send", "nupa-send", "diamond", "nupa.send_lat"),
            line("UCX shared memory, put", "shm-put", "circle", "ucx_shm.put_lat"),
            line("UCX shared memory, tag", "shm-tag", "diamond", "ucx_shm.tag_lat"),
            line("UCX TCP, tag", "tcp", "diamond", "ucx_tcp.tag_lat"),
            ("limit: cache line's way and copy", "limit", None, [point for point in limit if point[1]])]


def _bandwidth_series(medians):
    def line(title, style, marker, name):
        return title, style, marker, _points(medians, name, BANDWIDTH_SIZES)
    return [line("NUPA write", "nupa-write", "circle", "nupa.write_bw"),
            line("NUPA read", "nupa-read", "square", "nupa.read_bw"),
            line("NUPA send", "nupa-send", "diamond", "nupa.send_bw"),
            line("UCX shared memory, put", "shm-put", "circle", "ucx_shm.put_bw"),
            line("UCX shared memory, tag", "shm-tag", "diamond", "ucx_shm.tag_bw"),
            line("UCX TCP, tag", "tcp", "diamond", "ucx_tcp.tag_bw"),
            line("limit: memcpy on one core", "limit", None, "limit.memcpy")]


def _tiles(medians):
    tiles = []
    write, (lines, _) = medians.get("nupa.write_lat.8"), medians.beside("nupa.write_lat.8")
    if write and lines:
        tiles.append((quantity(write, "ns"), "to write 8 bytes, %.1f cache-line transfers" % lines))
    send, tag = medians.get("nupa.send_lat.8"), medians.get("ucx_shm.tag_lat.8")
    if send and tag:
        tiles.append((quantity(send, "ns"), "to send 8 bytes; UCX shared memory takes %s" % quantity(tag, "ns")))
    tcp = medians.get("ucx_tcp.tag_lat.8")
    if write and tcp:
        tiles.append(("%.0f times" % (tcp / write), "lower latency than UCX over TCP, 8 bytes"))
    bandwidth, (part, _) = medians.get("nupa.write_bw.65536"), medians.beside("nupa.write_bw.65536")
    if bandwidth and part:
        tiles.append((quantity(bandwidth, "GB/s"), "writes of 64 KiB, %.0f %% of memcpy" % (100 * part)))
    return '<div class="tiles">%s</div>' % "".join(
        '<div class="tile"><b>%s</b><span>%s</span></div>' % tuple(map(html.escape, tile)) for tile in tiles)


def row(cells, tag="td", style=""):
    return "<tr%s>%s</tr>" % (style, "".join("<%s%s>%s</%s>" % (tag, extra, html.escape(cell), tag)
                                             for cell, extra in cells))


def _comparison_table(rows):
    parts = ['<div class="scroll"><table>', row([(name, "") for name in text.HEAD + ("UCX shm / NUPA",)], "th")]
    before = None
    for test, size, unit, ours, shared, *others in rows:
        gain = "-"
        if ours and shared:
            gain = "%.2f x" % (shared / ours if unit == "ns" else ours / shared)
        words = text.comparison_cells((test, size, unit, ours, shared, *others))
        cells = [(words[0] if test != before else "", ""), (words[1], ""), (words[2], ' class="ours"')]
        cells += [(word, "") for word in words[3:]]
        parts.append(row(cells + [(gain, "")], style=' class="group"' if before and test != before else ""))
        before = test
    return "".join(parts) + "</table></div>"


def _figure_table(promised):
    parts = ['<div class="scroll"><table>', row([(name, "") for name in ("figure", "measured", "target", "")], "th")]
    for figure in promised:
        name, value, target, met = text.figure_cells(figure)
        style = {True: ' class="met"', False: ' class="missed"', None: ' class="absent"'}[figure["met"]]
        name += ", over " + figure["basis"] if figure["basis"] else ""
        parts.append(row([(name, ' class="wrap"'), (value, ' class="ours"'), (target, ""), (met, style)]))
    return "".join(parts) + "</table></div>"


def _list(pairs):
    return "<dl>%s</dl>" % "".join("<dt>%s</dt><dd>%s</dd>" % tuple(html.escape(str(word)) for word in pair)
                                   for pair in pairs)


def section(title, lead, *body):
    lead = '<p class="soft">%s</p>' % html.escape(lead) if lead else ""
    return "<section><h2>%s</h2>%s%s</section>" % (html.escape(title), lead, "".join(body))


def page(about, medians, rows, promised, failures, demo):
    latency, bandwidth = _latency_series(medians), _bandwidth_series(medians)
    lead = "Debian's unmodified perftest over nupa0 between two processes, beside UCX and the machine's limits. %s." % (
        "Medians of %d rounds of one interleaved run" % about["rounds"] if about["rounds"] > 1 else "One round")
    parts = ["<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>NUPA measured</title>",
             '<meta name="viewport" content="width=device-width, initial-scale=1"><style>%s</style></head><body><main>'
             % STYLE, "<h1>NUPA measured</h1>", '<p class="soft">%s</p>' % html.escape(lead),
             '<p class="soft">%s</p>' % html.escape("%s, %s, %s" % (about["cpu"], about["system"], about["date"])),
             _tiles(medians),
             section("Latency over message size", "Median; lower is better. Write, send, put and tag: half of a round trip. "
                      "Read: the whole operation.", legend(latency),
                      plot("Latency over message size", latency, "latency", size_name,
                           lambda value: quantity(value, "ns"))),
             section("Bandwidth over message size", "Higher is better; one direction, 10^9 bytes a second.",
                      legend(bandwidth), plot("Bandwidth over message size", bandwidth, "bandwidth", size_name,
                                              lambda value: quantity(value, "GB/s"))),
             section("By test and size", text.BESIDE + " The last column says how many times better NUPA is than UCX over "
                      "shared memory.", _comparison_table(rows))]
    if not demo:
        parts.append(section("Figures and targets", "Every ratio is to what was measured just before and just after.",
                              _figure_table(promised)))
    parts.append(section("The machine's limits", "", _list(text.limits(medians))))
    details = [(text.heading(name), about[name]) for name in ("cpu", "caches", "memory", "system", "huge pages", "programs")]
    details += [("Cores", "server on %d, client on %d" % tuple(about["cores"])), ("Command", about["command"])]
    parts.append(section("How it was measured", text.disturbance(about), _list(details)))
    if failures:
        parts.append(section("Failed", "", _list(failures.items())))
    return "\n".join(parts) + "</main></body></html>\n"
