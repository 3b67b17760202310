"""Plots as SVG text: lines over two logarithmic axes, coloured by the page's style sheet."""
import html
import math

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 92, 30, 16, 52


class Axis:
    """A logarithmic axis from the power of `base` below the least value to the one above the greatest."""

    def __init__(self, values, start, end, base):
        self.base = base
        self.low = math.floor(math.log(min(values), base) + 1e-9)
        self.high = max(self.low + 1, math.ceil(math.log(max(values), base) - 1e-9))
        self.start, self.end = start, end

    def at(self, value):
        part = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self):
        return [float(self.base) ** power for power in range(self.low, self.high + 1)]


def _text(x, y, words, anchor="middle", extra=""):
    return '<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>' % (x, y, anchor, extra, html.escape(words))


def _marker(kind, x, y):
    if kind == "square":
        return '<rect x="%.1f" y="%.1f" width="7" height="7"/>' % (x - 3.5, y - 3.5)
    if kind == "diamond":
        return '<path d="M%.1f %.1fl5 5l-5 5l-5 -5z"/>' % (x, y - 5)
    return '<circle cx="%.1f" cy="%.1f" r="4"/>' % (x, y)


def plot(title, series, y_title, x_name, y_name):
    """An SVG. `series`: [(name, class in the style sheet, marker or None, [(x, y)])]; x_name and y_name turn a value
    into words."""
    xs = [x for _, _, _, points in series for x, _ in points]
    ys = [y for _, _, _, points in series for _, y in points]
    if not xs:
        return '<p class="absent">Nothing measured.</p>'
    across = Axis(xs, LEFT, WIDTH - RIGHT, 8)
    up = Axis(ys, HEIGHT - BOTTOM, TOP, 10)
    parts = ['<svg viewBox="0 0 %d %d" role="img" aria-label="%s">' % (WIDTH, HEIGHT, html.escape(title))]
    parts.append('<g class="grid">')
    for value in up.ticks()[:-1]:
        for step in range(2, 10):
            y = up.at(value * step)
            parts.append('<line class="minor" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (LEFT, WIDTH - RIGHT, y, y))
    for value in up.ticks():
        y = up.at(value)
        parts.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (LEFT, WIDTH - RIGHT, y, y))
        parts.append(_text(LEFT - 8, y + 4, y_name(value), "end"))
    for value in across.ticks():
        x = across.at(value)
        parts.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (x, x, TOP, HEIGHT - BOTTOM))
        parts.append(_text(x, HEIGHT - BOTTOM + 20, x_name(int(value))))
    parts.append("</g>")
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "message size", extra=' class="axis"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(_text(14, middle, y_title, extra=' class="axis" transform="rotate(-90 14 %.1f)"' % middle))
    for name, style, marker, points in series:
        path = " ".join("%.1f,%.1f" % (across.at(x), up.at(y)) for x, y in points)
        parts.append('<g class="series %s"><polyline points="%s"/>' % (style, path))
        for x, y in points:
            if marker:
                words = html.escape("%s, %s: %s" % (name, x_name(x), y_name(y)))
                parts.append("<g><title>%s</title>%s</g>" % (words, _marker(marker, across.at(x), up.at(y))))
        parts.append("</g>")
    parts.append("</svg>")
    return "\n".join(parts)


def legend(series):
    parts = ['<ul class="legend">']
    for name, style, marker, points in series:
        if points:
            parts.append('<li><svg viewBox="0 0 34 12" width="34" height="12" class="key"><g class="series %s">'
                         '<polyline points="1,6 33,6"/>%s</g></svg>%s</li>'
                         % (style, _marker(marker, 17, 6) if marker else "", html.escape(name)))
    return "".join(parts) + "</ul>"
