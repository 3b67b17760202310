#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/manual writes pages that troff prints as they are meant, with every option, variable and function, and completion that works."""

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("manual", str(ROOT / "scripts" / "manual"))
manual = importlib.util.module_from_spec(importlib.util.spec_from_loader("manual", LOADER))
LOADER.exec_module(manual)
import command_pages  # noqa: E402
import environment  # noqa: E402
import library_pages  # noqa: E402
import troff  # noqa: E402

# The requests that pages use. Another line that begins with "." or "'" is text that was taken for a request.
REQUESTS = {'.\\"', ".TH", ".SH", ".SS", ".PP", ".TP", ".IP", ".RS", ".RE", ".nf", ".fi", ".nh", ".ad", ".so"}


def option(names, description, kind="", positional="", **more):
    return {"names": names, "positional": positional, "description": description, "type": kind, "choices": [], "is_list": False, "default": "",
            "is_required": False, "is_repeatable": False, "excludes": [], **more}


def command(name, description, options=(), commands=(), footer="", runs_program=False):
    return {"name": name, "description": description, "footer": footer, "runs_program": runs_program,
            "options": [option(["-h", "--help"], "Print this help")] + list(options), "commands": list(commands)}


PROGRAM = command("nupa", "NUPA: a program", commands=[
    command("run", "Run a program: nupa run -- PROGRAM", [
        option(["--transport"], "The transports", "TEXT:{auto,shm,roce},...", choices=["auto", "shm", "roce"], is_list=True),
        option(["--color"], "The color: [red]'s", "TEXT:{red,blue}", choices=["red", "blue"], default="blue", excludes=["--plain"]),
        option(["--plain"], "No color")], footer="The exit status is the program's. A signal, too.", runs_program=True),
    command("net", "Networks", commands=[
        command("up", ".so /etc/passwd with a \\fBbackslash", [
            option([], "The name", "TEXT", "network", is_required=True),
            option(["-n", "--number"], "How many", "UINT:INT in [1 - 16]", is_required=True),
            option(["--peer"], "'quoted' -5 `code` NUPA_LOG", "TEXT", is_repeatable=True),
            option(["--wait"], "Seconds", "FLOAT:POSITIVE"),
            option(["--size"], "Bytes", "UINT:SIZE [b, ...]:UINT in [1 - 9]"),
            option(["--key-file"], "The key", "FILE")], footer=".ig\n'tl\nNUPA_RANK and NUPA_WORLD_SIZE. Last."),
    ]),
    command("show", "Show files", [option([], "Files", "FILE", "files", is_repeatable=True)]),
])
PROGRAM["version"] = "1.2"
PROGRAM["variables"] = environment.read_table((ROOT / "src/base/settings_table.h").read_text())
EXAMPLES = {"run": [("nupa run --plain -- ls --all", "List.")], "net up": [("nupa net up -n 2 home", "Join.")]}


def files(program=None, examples=None):
    with mock.patch.dict(command_pages.EXAMPLES, EXAMPLES if examples is None else examples, clear=True), \
         mock.patch.dict(command_pages.VARIABLES, {"run": ["NUPA_TRANSPORT"]}, clear=True):
        return manual.files_of(program or PROGRAM)


def printed(page):
    """The page as people see it, in one line."""
    text = subprocess.run(["groff", "-man", "-Tutf8", "-P-c", "-P-b", "-P-u", "-rLL=200n"], input=page, capture_output=True, text=True, check=True).stdout
    return " ".join(text.split())


class Escapes(unittest.TestCase):
    def test_text_is_not_taken_for_requests_and_escapes(self):
        for text, made in ((".so x", "\\&.so x"), ("'tl", "\\&'tl"), ("a.b 'c'", "a.b 'c'"), ("\\fB", "\\efB"), ("a\n.b\n'c", "a\n\\&.b\n\\&'c"),
                           ("--all-x", "\\-\\-all\\-x"), ('"', "\\(dq"), ("~^`", "\\(ti\\(ha\\(ga"), ("\u00b5s", "\\[u00B5]s")):
            with self.subTest(text):
                self.assertEqual(troff.escape(text), made)

    def test_markup_becomes_fonts_and_paths(self):
        for text, made in (("see `--all`.", "see \\fB\\-\\-all\\fR."), ("**a** b", "\\fBa\\fR b"), ("[x](../guides/y.md#z) w", "docs/guides/y.md w"),
                           ("[x](https://example.org)", "x"), ("a\n  .b", "a .b"), (".a `b` .c", "\\&.a \\fBb\\fR .c"), ("`it's`", "\\fBit\\(aqs\\fR"),
                           ("`a`'s", "\\fBa\\fR's")):
            with self.subTest(text):
                self.assertEqual(troff.prose(text), made)


class Pages(unittest.TestCase):
    def test_each_command_has_a_page_with_each_section(self):
        made = files()
        for name in ("nupa", "nupa-run", "nupa-net", "nupa-net-up", "nupa-show"):
            titles = re.findall(r'^\.SH "(.*)"$', made["man/man1/%s.1" % name], re.M)
            order = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ARGUMENTS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"]
            with self.subTest(name):
                self.assertEqual(titles, [title for title in order if title in titles])
                self.assertLessEqual(set(order) - {"COMMANDS", "ARGUMENTS", "EXAMPLES"}, set(titles))

    def test_no_text_becomes_a_request(self):
        for name, page in files().items():
            if name.startswith("man/"):
                begins = {line.split(" ")[0] for line in page.splitlines() if line.startswith((".", "'"))}
                self.assertLessEqual(begins, REQUESTS, name)

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_groff_prints_the_pages_without_a_warning(self):
        for name, page in files().items():
            if name.startswith("man/") and not page.startswith(".so"):
                done = subprocess.run(["groff", "-man", "-ww", "-z"], input=page, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    @unittest.skipUnless(shutil.which("groff"), "needs groff")
    def test_options_are_printed_with_all_that_is_defined(self):
        made = files()
        run, up, show = (printed(made["man/man1/%s.1" % name]) for name in ("nupa-run", "nupa-net-up", "nupa-show"))
        for text in ("nupa run [OPTION ...] [--] PROGRAM [ARGUMENT ...]", "-h, --help Print this help.",
                     "--transport TRANSPORT The transports. One or more of these, with commas: auto, shm, roce.",
                     "--color COLOR The color: [red]'s. One of these: red, blue. Default: blue. Not together with --plain.",
                     "A signal, too. OPTIONS", "The exit status is the program's. ENVIRONMENT", "others The exit status of the program.", "NUPA_TRANSPORT The transports that",
                     "nupa run --plain -- ls --all List.", "nupa(1), nupa-net(1), nupa-show(1), nupa(7)"):
            self.assertIn(text, run)
        for text in ("nupa-net-up - .so /etc/passwd with a \\fBbackslash", "nupa net up -n NUMBER [OPTION ...] NETWORK", "NETWORK The name. OPTIONS",
                     "-n, --number NUMBER How many. From 1 to 16. Required.", "--peer PEER 'quoted' -5 code NUPA_LOG. Several can be given.",
                     "--wait WAIT Seconds. Greater than 0.", "--size SIZE Bytes. From 1 to 9. A number of bytes,", "--key-file FILE The key.",
                     ".ig 'tl NUPA_RANK and NUPA_WORLD_SIZE. Last.", "NUPA_RANK The rank; nupa launch sets it.", "NUPA_WORLD_SIZE The number of ranks", "0 The command is done.", "NUPA_LOG Messages on standard error."):
            self.assertIn(text, up.replace("\u2019", "'").replace("\u2018", "'"))
        self.assertIn("nupa show [OPTION ...] [FILE ...]", show)

    def test_examples_name_commands_and_options_that_exist(self):
        for wrong in ({"run": [("nupa run --colour red -- ls", "")]}, {"run": [("nupa walk", "")]}, {"walk": [("nupa run -- ls", "")]},
                      {"run": [("other run -- ls", "")]}):
            with self.subTest(wrong):
                self.assertRaises(ValueError, files, examples=wrong)

    def test_variables_have_to_be_in_the_reference(self):
        wrong = command("nupa", "NUPA: see NUPA_NONE", commands=[command("run", "Run")])
        self.assertRaises(KeyError, files, {**wrong, "version": "1", "variables": PROGRAM["variables"]}, {})

    def test_a_build_without_collectives_has_no_examples_of_them(self):
        for name in ("ccl", "net"):
            with self.subTest(name):
                small = {**command("nupa", "NUPA: a program", commands=[command(name, "Not in this build"), command("run", "Run")]), "version": "1",
                         "variables": PROGRAM["variables"]}
                made = files(small, {name: [("nupa %s do --more" % name, "")], name + " do": [("nupa %s do" % name, "")]})
                self.assertNotIn("EXAMPLES", made["man/man1/nupa-%s.1" % name])

    def test_commands_that_are_removed_lose_their_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            definitions = Path(folder, "definitions.json")
            for commands in (PROGRAM["commands"], PROGRAM["commands"][:1]):
                definitions.write_text(json.dumps({**PROGRAM, "commands": commands}))
                with mock.patch.object(sys, "argv", ["manual", "--definitions", str(definitions), "--output", folder + "/share"]), \
                     mock.patch.dict(command_pages.EXAMPLES, {}, clear=True), mock.patch.dict(command_pages.VARIABLES, {}, clear=True):
                    self.assertEqual(manual.main(), 0)
            self.assertEqual({path.name for path in Path(folder, "share/man/man1").iterdir()}, {"nupa.1", "nupa-run.1"})


class Library(unittest.TestCase):
    def test_each_variable_of_the_reference_is_in_the_page(self):
        reference = (ROOT / "docs/reference/environment.md").read_text()
        page = files()["man/man7/nupa.7"]
        names = {name for row in re.findall(r"^\| (`.*?) \|", reference, re.M) for name in re.findall(r"`(\w+)`", row)}
        self.assertGreater(len(names), 20)
        self.assertEqual(names - set(re.findall(r"\\fB(\w+)\\fR", page)), set())
        self.assertEqual(re.findall(r'^\.SH "(.*)"$', page, re.M)[2:-1], [title.upper() for title in re.findall(r"^## (.*)$", reference, re.M)])

    def test_each_function_of_the_header_is_in_the_page(self):
        header = (ROOT / "include/nupa/ccl.h").read_text()
        made = files()
        page = made["man/man3/nupa_ccl.3"].replace("\\-", "-")
        functions = re.findall(r"^(?:int|const char\*|void\*?|uint32_t) (nupa_ccl_\w+)\(", header, re.M)
        self.assertGreater(len(functions), 40)
        self.assertEqual({name for name in functions if not re.search(r"\\fB.*\b%s\(" % name, page)}, set())
        self.assertEqual({"man/man3/%s.3" % name for name in functions} | {"man/man3/nupa_ccl.3"}, {name for name in made if "/man3/" in name})
        self.assertEqual(len(re.findall(r"@param", header)), len(re.findall(r"^\.TP\n\\fI", page, re.M)))
        for name in re.findall(r"^  (NUPA_CCL_\w+) = ", header, re.M):
            self.assertIn("\\fB" + name, page)

    def test_a_declaration_is_read_with_its_parts(self):
        _, groups = library_pages.read_header("""/** @file
 * Intro.
 */
/** @name Calls
 * About calls.
 * @{
 */
/** Does it.
 * @param in the input:
 *   - `a`: one
 *   - `b`: two
 * @return 0 or an errno value:
 *   - EINVAL: `in` is null.
 */
int nupa_ccl_do(const void* in,
                int more);

/** A pair. */
typedef struct pair {
  int first; /**< the first */
  int second;  /**< the
     second */
} pair;
/** @} */
""")
        (name, about, (do, pair)) = groups[1]
        self.assertEqual((name, about.strip()), ("Calls", "About calls."))
        self.assertEqual((do.name, do.is_function, do.description.strip()), ("nupa_ccl_do", True, "Does it."))
        self.assertEqual([name for name, _ in do.parameters], ["in"])
        self.assertTrue(do.returns.startswith("0 or an errno value:\n  - EINVAL"))
        self.assertEqual((pair.name, pair.is_function), ("pair", False))
        self.assertEqual([member for member, _ in pair.members()][0], "int first")


class Completion(unittest.TestCase):
    def completed(self, *words):
        """What bash offers for the last of the words."""
        script = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nupa; printf "%s\\n" "${COMPREPLY[@]}"'
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "nupa")
            path.write_text(files()["bash-completion/completions/nupa"])
            done = subprocess.run(["bash", "--norc", "-c", script, str(path), "nupa", *words], capture_output=True,
                                  text=True, check=True, cwd=ROOT)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_offers_what_fits(self):
        for words, offered in ((["r"], ["run"]), ([""], ["run", "net", "show"]), (["net", ""], ["up"]), (["--"], ["--help"]),
                               (["run", "--transport", ""], ["auto", "shm", "roce"]), (["run", "--transport", "shm,r"], ["shm,roce"]),
                               (["run", "--transport", "=", "s"], ["shm"]), (["run", "--transport", "="], ["auto", "shm", "roce"]),
                               (["run", "--color", "b"], ["blue"]), (["run", "--color", "blue,r"], []), (["run", "--pl"], ["--plain"]),
                               (["run", "--color", "net", "--pl"], ["--plain"]), (["net", "up", "--peer", "r"], []), (["net", "up", "-n", "4", "--si"], ["--size"]),
                               (["net", "up", "--key-file", "READ"], ["README.md"]), (["show", "READ"], ["README.md"]),
                               (["run", "--", "ls", "READ"], ["README.md"]), (["run", "ls", "--", "READ"], ["README.md"]), (["run", "--", "--pl"], [])):
            with self.subTest(words):
                self.assertEqual(self.completed(*words), offered)

    def test_bash_offers_programs_to_run(self):
        for words in (["run", "bas"], ["run", "--", "bas"], ["run", "--plain", "bas"]):
            with self.subTest(words):
                self.assertIn("bash", self.completed(*words))

    def test_zsh_has_each_option_and_choice(self):
        script = files()["zsh/site-functions/_nupa"]
        self.assertTrue(script.startswith("#compdef nupa\n"))
        for text in ("'(--transport)--transport=[The transports]:transport:_sequence compadd - auto shm roce'",
                     "'(--color --plain)--color=[The color\\: \\[red\\]'\\''s]:color:(red blue)'", "'(-n --number)-n[How many]:number: '",
                     "'(-n --number)--number=[How many]:number: '", "'--peer", "'(--key-file)--key-file=[The key]:file:_files'",
                     "'*:file:_files'", "_command_names -e", "up) _nupa_net_up ;;"):
            self.assertIn(text.replace("'--peer", "'*--peer="), script)

    @unittest.skipUnless(shutil.which("zsh"), "needs zsh")
    def test_zsh_reads_the_script(self):
        done = subprocess.run(["zsh", "-fn"], input=files()["zsh/site-functions/_nupa"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
