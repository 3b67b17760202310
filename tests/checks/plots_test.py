#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/plots.py draws every picture: axes, the lines in their frames, and the pictures that the pages show."""

import re
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import figures  # noqa: E402
import page  # noqa: E402
import plots  # noqa: E402
import verbs_plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
SERIES = [("ours", "ours", "circle", [(512, 20.0), (4096, 100.0)]), ("theirs & others", "theirs", None, [(512, 120.0)])]


def panel(**given):
    return plots.Panel(SERIES, "size", "time, us", str, "%g".__mod__, **given)


class Axes(unittest.TestCase):
    def test_a_linear_axis_goes_from_zero_to_a_round_value_above_the_greatest(self):
        for greatest, ticks in ((120, [0, 20, 40, 60, 80, 100, 120]), (121, [0, 25, 50, 75, 100, 125]), (0, [0, .2, .4, .6, .8, 1])):
            with self.subTest(greatest):
                axis = plots.LinearAxis([0, greatest], 0, 1)
                self.assertEqual([round(tick, 9) for tick in axis.ticks()], ticks)
                self.assertEqual([axis.at(0), axis.at(axis.ticks()[-1])], [0, 1])

    def test_a_logarithmic_axis_goes_from_a_power_to_a_power(self):
        axis = plots.LogAxis([8, 600], 0, 3)
        self.assertEqual(axis.ticks(), [1, 10, 100, 1000])
        self.assertAlmostEqual(axis.at(100), 2)

    def test_a_step_axis_has_equal_distances(self):
        axis = plots.StepAxis([512, 4096, 512, 262144], 0, 6)
        self.assertEqual([axis.at(value) for value in axis.ticks()], [1, 3, 5])


class Figures(unittest.TestCase):
    def test_each_panel_has_its_lines_inside_of_the_picture(self):
        drawn = ElementTree.fromstring(plots.figure("a < b", [[panel(), panel(across=plots.StepAxis)]] * 3, 100, SERIES))
        lines = [line for line in drawn.iter(SVG + "polyline") if line.get("points") != "1,6 33,6"]
        self.assertEqual(len(lines), 3 * 2 * len(SERIES))
        for line in lines:
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                self.assertTrue(0 < x < float(drawn.get("width")) and 0 < y < float(drawn.get("height")), point)
        words = [text.text for text in drawn.iter(SVG + "text")]
        self.assertEqual([words.count(word) for word in ("a < b", "theirs & others", "size")], [1, 1, 6])

    def test_a_caption_is_below_the_frames(self):
        plain, drawn = (ElementTree.fromstring(plots.figure("a", [[panel()]], 100, SERIES, caption)) for caption in ("", "m & n"))
        last = list(drawn.iter(SVG + "text"))[-1]
        self.assertEqual(last.text, "m & n")
        self.assertTrue(float(plain.get("height")) < float(last.get("y")) < float(drawn.get("height")))

    def test_a_page_has_the_style_of_its_lines(self):
        svg = plots.plot("Latency", SERIES, "latency", str, str)
        self.assertIn(plots.STYLE, page.STYLE)
        for name in re.findall(r'class="series (\w+)"', svg):
            self.assertRegex(plots.STYLE, r"\.%s\b" % name)
        self.assertIn("Nothing measured", plots.plot("Latency", [("ours", "ours", None, [])], "latency", str, str))

    def test_the_page_of_the_demo_has_each_row(self):
        about = {"rounds": 3, "cpu": "c", "system": "s", "date": "d", "command": "x", "cores": (0, 1), "caches": "", "memory": "",
                 "huge pages": "", "programs": "", "disturbed": 0, "samples": 9}
        rows = [("ib_write_lat", 8, "ns", 100.0, 250.0, 9000.0, 50.0), ("ib_write_lat", 64, "ns", None, 260.0, None, None),
                ("ib_write_bw", 4096, "GB/s", 10.0, 5.0, 1.0, 12.0)]
        promised = [{"name": "a", "value": 1.5, "unit": "x", "target": "at least 1", "basis": "b", "met": True}]
        for demo in (True, False):
            with self.subTest(demo=demo):
                made = page.page(about, figures.Medians({}), rows, promised, {"ib_send_bw": "it < failed"}, demo)
                self.assertEqual(made.count("ib_write_lat"), 1, "a test is named once, in front of its rows")
                for words in ("2.50 x", "2.00 x", ">failed<", "it &lt; failed"):
                    self.assertIn(words, made)
                self.assertEqual("at least 1" in made, not demo)


class Pictures(unittest.TestCase):
    def test_pages_show_pictures_of_the_plotter(self):
        shown = {page.parent / name for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")
                 for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())}
        self.assertTrue(shown)
        for picture in sorted(shown):
            with self.subTest(picture):
                drawn = ElementTree.parse(picture).getroot()
                self.assertIn(plots.STYLE.strip(), drawn.find(SVG + "style").text)
                self.assertTrue(list(drawn.iter(SVG + "polyline")))

    def test_the_picture_of_the_verbs_page_has_the_figures_of_its_table(self):
        text = Path(verbs_plot.PAGE).read_text(encoding="utf-8")
        self.assertEqual(Path(verbs_plot.PICTURE).read_text(encoding="utf-8"), verbs_plot.picture(text))
        for kind in ("lat", "bw"):
            for name, _, _, points in verbs_plot.series(text, kind):
                self.assertGreater(len(points), 5, "%s: %s" % (kind, name))

    def test_the_table_is_read_with_its_units(self):
        row = "| ib_%s | 4 KiB | 289 ns | 1.5 us | 865 MB/s | - |\n"
        text = row % "write_lat" + row % "send_lat" + "| ib_write_bw | 8 B | failed | 2 GB/s | - | - |\n"
        self.assertEqual([points for _, _, _, points in verbs_plot.series(text, "lat")[:4]],
                         [[(4096, 0.289)], [(4096, 0.289)], [(4096, 1.5)], [(4096, 1.5)]])
        self.assertEqual([points for _, _, _, points in verbs_plot.series(text, "bw")], [[], [], [(8, 2.0)], [], []])


if __name__ == "__main__":
    unittest.main()
