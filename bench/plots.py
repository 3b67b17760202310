# SPDX-License-Identifier: Apache-2.0
"""Makes plots as SVG text: lines in frames, coloured by STYLE. plot() makes one for a page, figure() makes a file with several."""
import dataclasses
import html
import math
import typing

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 92, 30, 16, 52

# The colours follow the light or dark mode of the reader's system. `ours` and `theirs` are for figures with two lines. `many0`
# and so on are for lines without their own class: each line takes the next colour.
STYLE = """
:root { color-scheme: light dark; --card: #ffffff; --ink: #16202c; --soft: #5b6776; --line: #e1e5ea; --minor: #eff1f4;
  --nupa-write: #1f5fe0; --nupa-read: #0e8fa8; --nupa-send: #7a3ff2; --shm-put: #d9730d; --shm-tag: #a8500a;
  --tcp: #c2293d; --limit: #7a8694; --green: #137a3f; --olive: #8a8f0d; }
@media (prefers-color-scheme: dark) { :root { --card: #181f27; --ink: #e7ecf2; --soft: #9aa7b5; --line: #2b343f;
  --minor: #202832; --nupa-write: #6c9bff; --nupa-read: #3cc4dd; --nupa-send: #ad88ff; --shm-put: #ffa14a;
  --shm-tag: #d98032; --tcp: #ff7585; --limit: #8b98a7; --green: #56c98a; --olive: #c9ce55; } }
svg text { fill: var(--soft); font-size: 12px; }
.grid line { stroke: var(--line); } .grid line.minor { stroke: var(--minor); }
.series { stroke: currentColor; fill: currentColor; } .series polyline { fill: none; stroke-width: 2.2;
  stroke-linejoin: round; }
.nupa-write, .ours, .many0 { color: var(--nupa-write); } .nupa-read, .many1 { color: var(--nupa-read); }
.nupa-send, .many2 { color: var(--nupa-send); } .shm-put, .many3 { color: var(--shm-put); }
.shm-tag, .many4 { color: var(--shm-tag); } .tcp, .theirs, .many5 { color: var(--tcp); }
.many6 { color: var(--green); } .many7 { color: var(--olive); } .ink { color: var(--ink); }
.limit { color: var(--limit); } .limit polyline { stroke-dasharray: 6 5; }
"""
MANY = 8  # number of colours `many0` and so on
_FILE_STYLE = """text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
text.title { fill: var(--ink); font-weight: 600; } rect.card { fill: var(--card); } .thin polyline { stroke-width: 1; }
"""


class LogAxis:
    """An axis from the power of `base` below the least value to the power above the greatest value."""

    def __init__(self, values, start, end, base=10):
        self.base = base
        self.low = math.floor(math.log(min(values), base) + 1e-9)
        self.high = max(self.low + 1, math.ceil(math.log(max(values), base) - 1e-9))
        self.start, self.end = start, end

    def at(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        return [float(self.base) ** power for power in range(self.low, self.high + 1)]

    def minor_ticks(self):
        return [value * step for value in self.ticks()[:-1] for step in range(2, 10)]


class LinearAxis:
    """An axis from zero to the first multiple of a round step that is not below the greatest value."""

    def __init__(self, values, start, end):
        greatest = max(values) or 1
        rough = greatest / 6  # at most six lines fit into the lowest figure
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = power * next(step for step in (1, 2, 2.5, 5, 10) if step * power >= rough * (1 - 1e-9))
        self.count = math.ceil(greatest / self.step - 1e-9)
        self.start, self.end = start, end

    def at(self, value):
        return self.start + value / (self.step * self.count) * (self.end - self.start)

    def ticks(self):
        return [self.step * i for i in range(self.count + 1)]

    def minor_ticks(self):
        return []


class StepAxis:
    """An axis with the values at equal distances."""

    def __init__(self, values, start, end):
        self.values = sorted(set(values))
        self.start, self.end = start, end

    def at(self, value):
        part = (self.values.index(value) + 0.5) / len(self.values)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        return self.values

    def minor_ticks(self):
        return []


def _text(x, y, words, anchor="middle", extra=""):
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (x, y, anchor, extra, html.escape(words))


def _marker(kind, x, y):
    if kind == "square":
        return '<rect x="%.1f" y="%.1f" width="7" height="7"/>' % (x - 3.5, y - 3.5)
    if kind == "diamond":
        return '<path d="M%.1f %.1fl5 5l-5 5l-5 -5z"/>' % (x, y - 5)
    return '<circle cx="%.1f" cy="%.1f" r="4"/>' % (x, y)


def _grid(across, up, left, right, top, bottom, x_name, y_name):
    parts = ['<g class="grid">']
    for value in up.minor_ticks():
        parts.append('<line class="minor" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (left, right, up.at(value), up.at(value)))
    for value in up.ticks():
        y = up.at(value)
        parts.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (left, right, y, y))
        parts.append(_text(left - 8, y + 4, y_name(value), "end"))
    for value in across.ticks():
        x = across.at(value)
        parts.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (x, x, top, bottom))
        parts.append(_text(x, bottom + 20, x_name(value)))
    return [*parts, "</g>"]


def _lines(series, across, up, x_name, y_name):
    parts = []
    for name, style, marker, points in series:
        path = " ".join("%.1f,%.1f" % (across.at(x), up.at(y)) for x, y in points)
        parts.append('<g class="series %s"><polyline points="%s"/>' % (style, path))
        for x, y in points:
            if marker:
                words = html.escape("%s, %s: %s" % (name, x_name(x), y_name(y)))
                parts.append("<g><title>%s</title>%s</g>" % (words, _marker(marker, across.at(x), up.at(y))))
        parts.append("</g>")
    return parts


def _panel(panel, left, right, top, bottom, gap):
    """Draws the grid, the titles of both axes and the lines of a Panel in a frame. `gap` is the distance from the frame to the title
    on its left."""
    across = panel.across([x for _, _, _, points in panel.series for x, _ in points], left, right)
    up = panel.up([y for _, _, _, points in panel.series for _, y in points], bottom, top)
    middle = (top + bottom) / 2
    axis = ' class="axis"'
    return [*_grid(across, up, left, right, top, bottom, panel.x_name, panel.y_name),
            _text((left + right) / 2, bottom + 44, panel.x_title, extra=axis),
            _text(left - gap, middle, panel.y_title, extra=axis + ' transform="rotate(-90 %d %.1f)"' % (left - gap, middle)),
            *_lines(panel.series, across, up, panel.x_name, panel.y_name)]


@dataclasses.dataclass
class Panel:
    """The contents of one frame. `series` is [(name, class in the style sheet, marker or None, [(x, y)])]. x_name and y_name
    format a value; across and up make an axis of (values, start, end)."""
    series: list
    x_title: str
    y_title: str
    x_name: typing.Callable
    y_name: typing.Callable
    across: typing.Callable = LinearAxis
    up: typing.Callable = LinearAxis
    title: str = ""


def plot(title, series, y_title, x_name, y_name):
    """Returns an SVG for a page, with message sizes on the x axis by powers of 8, and a value on the y axis by powers of 10."""
    if not any(points for _, _, _, points in series):
        return '<p class="absent">Nothing measured.</p>'
    panel = Panel(series, "message size", y_title, lambda size: x_name(int(size)), y_name,
                  lambda values, start, end: LogAxis(values, start, end, 8), LogAxis)
    return "\n".join(['<svg viewBox="0 0 %d %d" role="img" aria-label="%s">' % (WIDTH, HEIGHT, html.escape(title)),
                      *_panel(panel, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM, 78), "</svg>"])


def _key(style, marker):
    return '<g class="series %s"><polyline points="1,6 33,6"/>%s</g>' % (style, _marker(marker, 17, 6) if marker else "")


def legend(series):
    parts = ['<ul class="legend">']
    for name, style, marker, points in series:
        if points:
            parts.append('<li><svg viewBox="0 0 34 12" width="34" height="12" class="key">%s</svg>%s</li>'
                         % (_key(style, marker), html.escape(name)))
    return "".join(parts) + "</ul>"


def figure(title, rows, height, keys=(), caption=""):
    """Returns an SVG as a separate file. `rows` is a list of equally long lists of Panels, `height` the height of a frame,
    `keys` the series that the legend below the title names, and `caption` a line below the frames."""
    width, left_of, gap = 480, 74, 56
    above, between = 64 if keys else 40, height + 30 + BOTTOM
    whole = (width * max(map(len, rows)), above + between * len(rows) + (24 if caption else 0))
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">'
             % (whole + whole + (html.escape(title),)), "<style>%s%s</style>" % (STYLE, _FILE_STYLE),
             '<rect class="card" width="%d" height="%d"/>' % whole, _text(whole[0] / 2, 24, title, extra=' class="title"')]
    for i, (name, style, marker, _) in enumerate(keys):
        x = whole[0] / 2 + (i - len(keys) / 2) * 190
        parts.append('<g transform="translate(%.1f 38)">%s</g>' % (x, _key(style, marker)))
        parts.append(_text(x + 42, 48, name, "start"))
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            left, top = width * column + left_of, above + between * row + 24
            parts.append(_text(left, top - 9, panel.title, "start", ' class="title"'))
            parts += _panel(panel, left, width * (column + 1) - RIGHT, top, top + height, gap)
    if caption:
        parts.append(_text(whole[0] / 2, whole[1] - 10, caption))
    return "\n".join(parts) + "\n</svg>\n"
