#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check-architecture reports of a small tree, and of this one with a fault in it.

usage: tests/checks/architecture_test.py [BUILD]      BUILD: also asks the compiler, with a folder that cmake configured
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None

FLOORS = """# lowest first
base:
net: base
core/seam: base
core: base net core/seam
"""
FILES = {
    "src/base/base.h": '#pragma once\n/// What everybody may use.\n#include "base/log.h"\n',
    "src/net/net.h": '#pragma once\n/// Sockets: socket.h.\n',
    "src/core/seam/seam.h": '#pragma once\n/// What a transport is.\n#include "core/seam/endpoint.h"\n',
    "src/core/core.h": '#pragma once\n/// Objects: qp.h, other.h.\nnamespace core {}\n',
    "src/base/log.h": "#pragma once\n",
    "src/net/socket.h": '#include "base/log.h"\n',
    "src/core/seam/endpoint.h": '#include <vector>\n#include "base/log.h"\n',
    "src/core/qp.h": '#include "base/log.h"\n#include "core/seam/endpoint.h"\n#include "net/socket.h"\n',
    "src/core/qp.cc": '#include "core/qp.h"\n',
}
PLACE = ("<!-- scripts/check-architecture --picture: begin -->\n"
         "<!-- scripts/check-architecture --picture: end -->\n")


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name, text in FILES.items():
            self.write(name, text)
        self.write("scripts/architecture.txt", FLOORS)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def add(self, name, text):
        self.write(name, (self.root / name).read_text() + text)

    def check(self, *options):
        done = subprocess.run([ROOT / "scripts" / "check-architecture", "--root", self.root, *options], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def assertReports(self, *lines):
        status, text = self.check()
        self.assertEqual(text.splitlines(), list(lines))
        self.assertEqual(status, 1)

    def test_arrows_that_point_down_pass(self):
        self.assertEqual(self.check(), (0, ""))

    def test_an_include_that_points_up_is_reported_with_its_line(self):
        self.add("src/net/socket.h", '\n  #  include "core/seam/endpoint.h"\n')
        self.assertReports("src/net/socket.h:3: net may not include core/seam/endpoint.h: see scripts/architecture.txt")

    def test_a_relative_path_is_reported_and_followed(self):
        self.add("src/net/socket.h", '#include "../core/seam/endpoint.h"\n')
        self.assertReports("src/net/socket.h:2: ../core/seam/endpoint.h is a relative path: write core/seam/endpoint.h",
                           "src/net/socket.h:2: net may not include core/seam/endpoint.h: see scripts/architecture.txt")

    def test_a_path_from_the_folder_of_the_file_is_reported(self):
        self.add("src/core/qp.cc", '#include "seam/endpoint.h"\n#include "qp.h"\n')
        self.assertReports("src/core/qp.cc:2: seam/endpoint.h is a relative path: write core/seam/endpoint.h",
                           "src/core/qp.cc:3: qp.h is a relative path: write core/qp.h")

    def test_a_path_that_leads_elsewhere_from_the_folder_of_the_file_is_reported(self):
        self.write("src/core/net/socket.h", "")
        self.write("scripts/architecture.txt", FLOORS.replace("core: base net", "core/net:\ncore: base core/net"))
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("src/core/qp.h:3: net/socket.h is a relative path: write core/net/socket.h\n", text)

    def test_a_path_with_a_step_up_inside_it_is_reported(self):
        self.add("src/core/qp.cc", '#include "core/../net/socket.h"\n')
        self.assertReports("src/core/qp.cc:2: core/../net/socket.h is a relative path: write net/socket.h")

    def test_a_relative_path_to_a_file_outside_the_sources_is_reported(self):
        self.write("tests/other.h", "")
        self.add("src/core/qp.cc", '#include "../../tests/other.h"\n')
        self.assertReports("src/core/qp.cc:2: ../../tests/other.h is a relative path: write tests/other.h")

    def test_a_header_of_the_system_that_has_the_name_of_a_file_beside_is_none(self):
        self.write("src/core/poll.h", "")
        self.add("src/core/qp.cc", "#include <poll.h>\n")
        self.assertEqual(self.check(), (0, ""))

    def test_a_folder_inside_another_is_one_of_its_own(self):
        self.add("src/core/seam/endpoint.h", '#include "core/other.h"\n')
        self.write("src/core/other.h", "")
        self.assertReports("src/core/seam/endpoint.h:3: core/seam may not include core/other.h: see scripts/architecture.txt",
                           "a circle: core, core/seam")

    def test_a_circle_of_three_is_reported(self):
        self.add("src/base/log.h", '#include "core/qp.h"\n')
        self.assertReports("src/base/log.h:2: base may not include core/qp.h: see scripts/architecture.txt",
                           "a circle: base, core, core/seam, net")

    def test_a_circle_of_files_in_a_folder_is_reported(self):
        self.write("src/core/cq.h", "")
        self.write("src/core/cq.cc", '#include "core/cq.h"\n#include "core/qp.h"\n')
        self.assertEqual(self.check(), (0, ""))
        self.add("src/core/qp.cc", '#include "core/cq.h"\n')
        self.assertReports("a circle of files: core/cq, core/qp")

    def test_a_header_of_the_system_is_not_the_one_of_the_folder(self):
        self.add("src/net/socket.h", "#include <poll.h>\n")
        self.write("src/net/poll.h", '#include "net/socket.h"\n')
        self.assertEqual(self.check(), (0, ""))
        self.add("src/net/socket.h", '#include "net/poll.h"\n')
        self.assertReports("a circle of files: net/poll, net/socket")

    def test_an_include_in_a_comment_line_is_none(self):
        self.add("src/net/socket.h", '// #include "core/qp.h"\n')
        self.assertEqual(self.check(), (0, ""))

    def test_a_list_that_names_a_folder_of_a_line_below_is_wrong(self):
        self.write("scripts/architecture.txt", FLOORS.replace("net: base", "net: base core"))
        self.add("src/net/socket.h", '#include "core/qp.h"\n')
        self.assertReports("scripts/architecture.txt:3: net may not include core: no line above is for that folder", "a circle: core, net")

    def test_an_entry_that_nothing_needs_is_reported(self):
        self.write("src/core/qp.h", '#include "base/log.h"\n#include "core/seam/endpoint.h"\n')
        self.assertReports("scripts/architecture.txt:5: core does not include net any more")

    def test_an_exception_holds_for_its_file_alone(self):
        self.add("scripts/architecture.txt", "except net/socket.h core/seam until it moves\n")
        self.add("src/net/socket.h", '#include "core/seam/endpoint.h"\n')
        self.assertEqual(self.check(), (0, ""))
        self.write("src/net/other.h", '#include "core/seam/endpoint.h"\n')
        self.assertReports("src/net/other.h:1: net may not include core/seam/endpoint.h: see scripts/architecture.txt")

    def test_an_exception_that_nothing_needs_is_reported(self):
        self.add("scripts/architecture.txt", "except net/socket.h core/seam until it moves\n")
        self.assertReports("scripts/architecture.txt:6: net/socket.h needs no exception for core/seam any more")

    def test_an_exception_without_a_reason_is_wrong(self):
        self.add("scripts/architecture.txt", "except net/socket.h core/seam\n")
        self.assertReports("scripts/architecture.txt:6: an exception has a file, a folder and a reason")

    def test_one_header_of_a_folder_can_be_allowed(self):
        self.write("scripts/architecture.txt", FLOORS.replace("net: base", "net: base/log.h"))
        self.assertEqual(self.check(), (0, ""))
        self.write("src/base/other.h", "")
        self.write("src/base/base.h", '#pragma once\n/// As log.h and other.h.\n')
        self.add("src/net/socket.h", '#include "base/other.h"\n')
        self.assertReports("src/net/socket.h:2: net may not include base/other.h: see scripts/architecture.txt")

    def test_a_header_that_the_face_does_not_name_is_not_for_others(self):
        self.write("src/base/other.h", "")
        self.add("src/net/socket.h", '#include "base/other.h"\n')
        self.assertReports("src/net/socket.h:2: base/other.h is not in the face of its folder, base/base.h")
        self.add("src/base/base.h", '#include "base/other.h"\n')
        self.assertEqual(self.check(), (0, ""))

    def test_the_paragraph_of_a_face_names_headers(self):
        self.write("src/base/other.h", "")
        self.add("src/net/socket.h", '#include "base/other.h"\n')
        self.write("src/base/base.h", '#pragma once\n/// As log.h; other.h is for sockets.\n')
        self.assertEqual(self.check(), (0, ""))

    def test_a_folder_without_a_face_is_reported(self):
        (self.root / "src/core/seam/seam.h").unlink()
        self.assertReports("core/seam: no face: core/seam/seam.h has a paragraph about the folder and includes core/seam/endpoint.h")

    def test_a_face_without_a_paragraph_is_reported(self):
        self.write("src/base/base.h", '#pragma once\n#include "base/log.h"\n\n/// Of something else.\nclass Log;\n')
        self.assertReports("base/base.h: a face begins with a paragraph (///) about the folder")

    def test_a_face_that_names_what_nobody_needs_is_reported(self):
        self.write("src/base/other.h", "")
        self.add("src/base/base.h", '#include "base/other.h"\n')
        self.assertReports("base/base.h: no other folder includes base/other.h")

    def test_a_folder_without_a_line_is_reported(self):
        self.write("src/quic/quic.cc", '#include "base/log.h"\n')
        self.assertReports("quic: no line in scripts/architecture.txt")

    def test_a_line_without_a_folder_is_reported(self):
        self.add("scripts/architecture.txt", "quic:\n")
        self.assertReports("scripts/architecture.txt:6: there is no folder quic")

    def test_the_picture_in_the_docs_is_that_of_the_code(self):
        stale = "docs/design/overview.md: the picture is not the one of the code: run scripts/check-architecture --picture"
        self.write("docs/design/overview.md", "Before.\n" + PLACE + "After.\n")
        self.assertReports(stale)
        self.assertEqual(self.check("--picture"), (0, ""))
        text = (self.root / "docs/design/overview.md").read_text()
        self.assertTrue(text.startswith("Before.\n") and text.endswith("After.\n"))
        arrows = re.findall(r"  (\w+) --> (\w+)", text)
        # From core to base by way of the others.
        self.assertEqual(arrows, [("core", "core_seam"), ("core", "net"), ("core_seam", "base"), ("net", "base")])
        self.assertEqual(self.check(), (0, ""))
        self.write("src/net/socket.h", "")
        self.write("scripts/architecture.txt", FLOORS.replace("net: base", "net:"))
        self.assertReports(stale)

    def test_arrows_are_printed_with_their_number(self):
        status, text = self.check("--arrows")
        self.assertEqual(status, 0)
        self.assertIn("core: base 1, core/seam 1, net 1\n", text)
        self.assertIn("  1  net  core/seam\n", text)


class OfThisTree(unittest.TestCase):
    """A copy of this tree, with faults put into it."""

    add, check, write = Tree.add, Tree.check, Tree.write

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in ("src", "include", "bindings"):
            shutil.copytree(ROOT / name, self.root / name)
        for name in ("scripts/architecture.txt", "docs/design/overview.md"):
            self.write(name, (ROOT / name).read_text())

    def test_it_has_no_fault(self):
        self.assertEqual(self.check(), (0, ""))

    def test_a_transport_that_includes_the_core_is_reported(self):
        self.add("src/transport/roce/port/port.cc", '#include "core/qp.h"\n')
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("transport/roce/port may not include core/qp.h", text)

    def test_a_circle_of_folders_is_reported(self):
        self.add("src/transport/roce/congestion/congestion.h", '#include "transport/roce/port/port.h"\n')
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("a circle: transport/roce/congestion, transport/roce/port, transport/roce/protocol", text)


@unittest.skipIf(BUILD is None, "no build folder was named")
class Compiler(unittest.TestCase):
    """With the commands that build the folders of src/."""

    def compiles(self, target, text):
        entries = json.loads((BUILD / "compile_commands.json").read_text())
        entry = next((entry for entry in entries if f"/{target}.dir/" in entry["command"] and "/sees/" in entry["command"]), None)
        if entry is None:
            self.fail(f"no command of {target}")
        source = Path(entry["directory"], entry["file"]).resolve()
        with tempfile.NamedTemporaryFile("w", suffix=".cc") as written:
            written.write(text)
            written.flush()
            words = [word for word in shlex.split(entry["command"]) if Path(entry["directory"], word).resolve() != source]
            at = words.index("-o")
            command = [*words[:at], *words[at + 2 :], "-fsyntax-only", written.name]
            return subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True,
                                  env={**os.environ, "CCACHE_DISABLE": "1", "LC_ALL": "C"})

    def assertFinds(self, target, *headers):
        done = self.compiles(target, "".join(f'#include "{header}"\n' for header in headers))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def assertDoesNotFind(self, target, header):
        done = self.compiles(target, f'#include "{header}"\n')
        self.assertTrue((ROOT / "src" / header).is_file() or (ROOT / "include" / header).is_file(), header)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"{header}: No such file", done.stderr)

    def test_an_include_from_below_compiles(self):
        self.assertFinds("nupa_transport_roce_port", "base/log.h", "core/seam/endpoint.h", "transport/roce/congestion/congestion.h")

    def test_an_include_from_above_does_not_compile(self):
        self.assertDoesNotFind("nupa_transport_roce_port", "core/qp.h")

    def test_another_transport_is_not_found(self):
        self.assertDoesNotFind("nupa_transport_roce_port", "transport/shm/connected.h")

    def test_a_folder_of_the_collectives_does_not_find_those_above_it(self):
        self.assertFinds("nupa_ccl_channel", "ccl/call/call.h", "ccl/channel/channel.h")
        self.assertDoesNotFind("nupa_ccl_channel", "ccl/algorithms/algorithms.h")
        self.assertDoesNotFind("nupa_ccl_algorithms_gather", "ccl/algorithms/hierarchical/hierarchical.h")
        self.assertDoesNotFind("nupa_ccl_planner", "ccl/communicator/communicator.h")
        self.assertDoesNotFind("nupa_ccl_bootstrap", "ccl/connect/connect.h")

    def test_a_folder_of_headers_alone_does_not_find_those_above_it(self):
        self.assertFinds("nupa_ccl_error", "ccl/error/error.h")
        self.assertDoesNotFind("nupa_ccl_error", "ccl/coroutine/coroutine.h")

    def test_the_nupa_program_does_not_find_what_none_of_its_folders_may_include(self):
        # Its folders are compiled together here; scripts/check-architecture keeps them apart.
        self.assertFinds("nupa_cli_commands", "cli/commands.h", "netdev/node.h")
        self.assertDoesNotFind("nupa_cli_commands", "transport/pool/engine.h")
        self.assertDoesNotFind("nupa_cli_commands", "ccl/algorithms/algorithms.h")

    def test_a_library_does_not_find_public_headers_that_it_may_not_include(self):
        self.assertDoesNotFind("nupa_rsockets_preload", "nupa/ccl.h")

    def check_with(self, pattern, replacement, targets):
        """Checks the commands of `targets` alone, with a fault in them."""
        with tempfile.TemporaryDirectory() as folder:
            entries = [entry for entry in json.loads((BUILD / "compile_commands.json").read_text())
                       if re.search(r"/sees/(\w+)|$", entry["command"]).group(1) in targets]
            text, number = re.subn(pattern, replacement, json.dumps(entries))
            self.assertNotEqual(number, 0)
            (Path(folder) / "compile_commands.json").write_text(text)
            return subprocess.run([ROOT / "scripts" / "check-architecture", folder], capture_output=True, text=True)

    def test_no_folder_sees_another_than_the_list_allows(self):
        done = subprocess.run([ROOT / "scripts" / "check-architecture", BUILD], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_build_that_shows_a_folder_too_many_is_reported(self):
        done = self.check_with(r"-I\S+/sees/nupa_(transport_shm|ccl_error) ", lambda match: f"-I{ROOT}/src {match.group(0)}",
                               ("nupa_transport_shm", "nupa_ccl_error", "nupa_transport_roce"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("src/transport/shm: the build lets it include core/", done.stdout)
        self.assertIn("src/ccl/error: the build lets it include ccl/call/", done.stdout)
        self.assertNotIn("src/transport/roce: the build", done.stdout)

    def test_a_target_of_two_folders_is_reported(self):
        done = self.check_with(r"(-I\S+/sees/)nupa_ccl_call ", r"\1nupa_ccl_channel ", ("nupa_ccl_call", "nupa_ccl_channel"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("nupa_ccl_channel: one target compiles the folders ccl/call, ccl/channel\n", done.stdout)


if __name__ == "__main__":
    unittest.main()
