# SPDX-License-Identifier: Apache-2.0
"""The pages of the nupa program and its commands: section 1."""

import re

from troff import Page, bold, escape, italic

EXAMPLES = {
    "": [("nupa doctor", "Check whether this machine has all that NUPA needs."),
         ("nupa run -- ibv_devinfo", "Show the device as a verbs program sees it.")],
    "run": [("nupa run -- ib_write_lat localhost", "Run the client of a latency test."),
            ("nupa run --transport roce --verbose -- rping -s", "Run a server that takes packets only."),
            ("nupa run --sockets -- redis-server", "Run a TCP server over RDMA.")],
    "launch": [("nupa launch -n 4 -- ./my_program --steps 10", "Run four ranks on this host.")],
    "devices": [("nupa devices --json", "Print the devices for a script.")],
    "stat": [("nupa stat --watch 1", "Show the queue pairs every second.")],
    "top": [("nupa top", "Watch the traffic of each process."),
            ("nupa top --by qp --sort errors --count 1", "Print the queue pairs once, those with the most errors first.")],
    "capture": [("nupa capture -w trace.pcapng", "Write all packets to a file, until Ctrl-C."),
                ("nupa capture -w connections.pcapng --class cm", "Write the messages that make connections."),
                ("nupa capture -w before.pcapng --ring 100000", "Keep the last packets for the time of a failure.")],
    "clean": [("nupa clean --dry-run", "Show what would be removed.")],
    "doctor": [("nupa doctor", "Check this machine.")],
    "ccl": [("nupa ccl plan -n 4", "Show the algorithms of four ranks.")],
    "ccl bench": [("nupa ccl bench -n 4 --operation all_reduce,broadcast --max-bytes 16M", "Measure two collectives up to 16 MiB."),
                  ("nupa launch -n 4 -- nupa ccl bench --check", "Be the ranks of another launcher.")],
    "ccl plan": [("nupa ccl plan -n 8 --operation all_reduce", "Show where the algorithm of one collective changes.")],
    "ccl trace": [("nupa ccl trace trace.0 trace.1 -o all.json", "Join the traces of two ranks for Perfetto.")],
    "gateway": [("nupa gateway --for 10.1.0.1=10.2.0.2", "Pass connections to 10.1.0.1 on to the host 10.2.0.2.")],
    "net": [("nupa net key", "Print a new key.")],
    "net up": [("nupa net up office --addr 10.77.0.1/24 --peer 192.0.2.7 --detach", "Join a network through the node at 192.0.2.7.")],
    "net down": [("nupa net down office", "Remove the interface of the network.")],
    "net status": [("nupa net status --json", "Print the nodes and peers for a script.")],
    "net key": [("nupa net key >office.key", "Make a key for --key-file.")],
    "pool": [("nupa pool status --pool /dev/dax0.0,host=0", "Show the hosts and processes of a CXL device.")],
    "pool format": [("nupa pool format --pool pci:0000:00:02.0,host=0 --hosts 2", "Make a pool in the largest BAR of a PCI function."),
                    ("nupa pool format --pool file:/dev/shm/pool,host=0 --size 64M", "Make a file that stands for a device.")],
    "pool check": [("nupa pool check --alone", "Measure the pool of NUPA_POOL on this host."),
                   ("nupa pool check --with 2", "Exchange lines with host 2, where the command runs, too.")],
    "pool status": [("nupa pool status --json", "Print hosts, processes and blocks for a script.")],
    "pool clean": [("nupa pool clean", "Free what killed processes of this host left.")],
}

# The variables of a command besides those that its help names.
VARIABLES = {
    "run": ["NUPA_TRANSPORT", "NUPA_DEVICES", "NUPA_LOG"],
    "launch": ["NUPA_TRANSPORT"],
    "devices": ["NUPA_DEVICES", "NUPA_TRANSPORT"],
    "stat": ["NUPA_RUNTIME_DIR"],
    "top": ["NUPA_RUNTIME_DIR"],
    "capture": ["NUPA_RUNTIME_DIR"],
    "clean": ["NUPA_RUNTIME_DIR"],
    "doctor": ["NUPA_RUNTIME_DIR"],
    "ccl bench": ["NUPA_CCL_TIMEOUT", "NUPA_CCL_ALGO", "NUPA_TRANSPORT"],
    "gateway": ["NUPA_DEVICES", "NUPA_TRANSPORT", "NUPA_RUNTIME_DIR", "NUPA_LOG"],
    "net": ["NUPA_RUNTIME_DIR"],
    "net up": ["NUPA_RUNTIME_DIR", "NUPA_TRANSPORT"],
    "net down": ["NUPA_RUNTIME_DIR"],
    "net status": ["NUPA_RUNTIME_DIR"],
    "pool": ["NUPA_POOL"],
}

EXIT_STATUS = [("0", "The command is done."), ("1", "The command failed. Standard error has the reason."),
               ("2", "The command line is wrong.")]
EXIT_STATUS_OF_RUNNERS = [("0", "The program exited with 0."), ("1", "NUPA cannot start the program. Standard error has the reason."),
                          ("2", "The command line is wrong."), ("others", "The exit status of the program.")]


PARTS = ("ccl", "net")


class Command:
    """A command of the definitions, with its place among them."""

    def __init__(self, definition, parent=None):
        self.definition = definition
        self.parent = parent
        self.words = (parent.words if parent else []) + [definition["name"]]
        self.key = " ".join(self.words[1:])
        self.page = "-".join(self.words)
        self.commands = [Command(inner, self) for inner in definition["commands"]]
        # A build without a part of NUPA has a command for it, without the commands inside.
        self.is_left_out = self.key in PARTS and not self.commands
        summary = re.sub(r"^NUPA: |:? nupa .*$", "", definition["description"]) or definition["description"]
        self.summary = summary if re.match(r"[A-Z]{2}", summary) else summary[0].lower() + summary[1:]
        self.options = [option for option in definition["options"] if option["names"]]
        self.positionals = [option for option in definition["options"] if option["positional"]]

    def all(self):
        return [self] + [found for command in self.commands for found in command.all()]

    def named(self, words):
        """Returns the command that `words` name, which may have further words."""
        inner = next((command for command in self.commands if words and command.definition["name"] == words[0]), None)
        return inner.named(words[1:]) if inner else self


def value_name(option):
    kind = option["type"]
    if not option["choices"] and ("FILE" in kind or "SIZE" in kind):
        return "FILE" if "FILE" in kind else "SIZE"
    if option["positional"]:
        return option["positional"].upper()
    return next(name for name in option["names"] if name.startswith("--") or len(option["names"]) == 1).lstrip("-").upper().replace("-", "_")


def option_tag(option):
    names = ", ".join(bold(name) for name in option["names"])
    return names + (" " + italic(value_name(option)) if option["type"] else "")


def sentence(text):
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def option_text(option):
    """Returns the help text and what the definition has besides."""
    said = [sentence(option["description"])]
    if option["choices"]:
        said.append(("One or more of these, with commas: %s." if option["is_list"] else "One of these: %s.") %
                    ", ".join("`%s`" % choice for choice in option["choices"]))
    for least, most in re.findall(r"in \[(\S+) - (\S+)\]", option["type"]):
        said.append("From %s to %s." % (least, most))
    if "SIZE" in option["type"]:
        said.append("A number of bytes, or a number with a unit such as `64K`, `16M` or `1G`.")
    said += [words for kind, words in (("POSITIVE", "Greater than 0."), ("NONNEGATIVE", "0 or greater.")) if kind in option["type"].split(":")]
    if option["default"]:
        said.append("Default: `%s`." % option["default"])
    if option["is_required"] and option["names"]:
        said.append("Required.")
    if option["is_repeatable"]:
        said.append("Several can be given.")
    said += ["Not together with `%s`." % other for other in option["excludes"]]
    return " ".join(said)


def synopsis(command):
    """Returns the line as troff."""
    words = [bold(" ".join(command.words))]
    words += [bold(option["names"][0]) + " " + italic(value_name(option)) for option in command.options if option["is_required"]]
    words.append("[" + italic("OPTION") + " ...]")
    if command.commands:
        words.append(italic("COMMAND") + " ...")
    for option in command.positionals:
        word = italic(value_name(option)) + (" ..." if option["is_repeatable"] else "")
        words.append(word if option["is_required"] else "[" + word + "]")
    if command.definition["runs_program"]:
        words.append("[" + bold("--") + "] " + italic("PROGRAM") + " [" + italic("ARGUMENT") + " ...]")
    return " ".join(words)


def footer_sentences(command):
    """Returns the sentences of the footer in two lists: those about the exit status, and the others."""
    text = command.definition["footer"].split("Environment:")[0]
    sentences = re.split(r"(?<=\.)\s+", " ".join(text.split())) if text.strip() else []
    about_status = [each for each in sentences if re.search(r"exit status|status is", each, re.I)]
    return about_status, [each for each in sentences if each not in about_status]


def variables_of(command, variables):
    """Returns the names in each row of the reference that the command uses."""
    definition = command.definition
    texts = [definition["footer"], definition["description"]] + [option["description"] for option in definition["options"]]
    named = re.findall(r"\bNUPA_[A-Z_]*[A-Z]\b", " ".join(texts))
    return list(dict.fromkeys(tuple(variables.rows[name][0]) for name in VARIABLES.get(command.key, []) + named))


def check_example(root, example):
    """Raises ValueError if the commands of the example are not defined, or do not have its options."""
    words = re.split(r" -- | >", example)[0].split()
    command = root.named(words[1:])
    known = {name for option in command.options for name in option["names"]}
    wrong = [word for word in words if word.startswith("-") and word not in known]
    if words[0] != root.words[0] or (len(words) > 1 and command is root and not words[1].startswith("-")) or wrong:
        raise ValueError("example %r: the program has no such command or option %s" % (example, wrong))


def page_of(root, command, variables):
    page = Page(command.page, "1", command.summary.replace("`", ""), root.definition["version"])
    page.section("SYNOPSIS").raw_paragraph(synopsis(command))
    if command is root:
        page.raw_paragraph(bold("nupa --help") + " | " + bold("nupa --version"))
    about_status, others = footer_sentences(command)
    page.section("DESCRIPTION").paragraph(sentence(command.summary[0].upper() + command.summary[1:]))
    if command is root:
        page.paragraph("Files whose path begins with docs/ are in `share/doc/nupa`, below the folder that NUPA is installed in.")
    if command.definition["runs_program"]:
        page.paragraph("Options of `nupa` end at `--`, or at the first word that is no option.")
    if others:
        page.paragraph(" ".join(others))
    if command.commands:
        page.section("COMMANDS")
        for inner in command.commands:
            page.item("\\fB%s\\fR(1)" % escape(inner.page), sentence(inner.summary[0].upper() + inner.summary[1:]))
    if command.positionals:
        page.section("ARGUMENTS")
        for option in command.positionals:
            page.item(italic(value_name(option)), option_text(option))
    page.section("OPTIONS")
    for option in command.options:
        page.item(option_tag(option), option_text(option))
    page.section("EXIT STATUS")
    for status, meaning in EXIT_STATUS_OF_RUNNERS if command.definition["runs_program"] else EXIT_STATUS:
        page.item(bold(status), meaning)
    if about_status:
        page.paragraph(" ".join(about_status))
    page.section("ENVIRONMENT")
    for names in variables_of(command, variables):
        page.item(", ".join(bold(name) for name in names), variables.description(names[0]))
    page.raw_paragraph("\\fBnupa\\fR(7) lists all variables.")
    if command.key in EXAMPLES and not command.is_left_out:
        page.section("EXAMPLES")
        for example, meaning in EXAMPLES[command.key]:
            check_example(root, example)
            page.item(bold(example), meaning)
    near = [command.parent] if command.parent else []
    near += [other for other in (command.parent.commands if command.parent else []) if other is not command] + command.commands
    return page.see_also([(other.page, 1) for other in near] + ([("nupa_ccl", 3)] if "ccl" in command.words else []) + [("nupa", 7)]).text()


def pages(program, variables):
    """Returns (name, text) of each command's page."""
    root = Command(program)
    keys = {command.key for command in root.all()}
    left_out = {command.key for command in root.commands if command.is_left_out}
    unknown = [key for key in {**EXAMPLES, **VARIABLES} if key not in keys and key.split(" ")[0] not in left_out]
    if unknown:
        raise ValueError("examples or variables of commands that do not exist: %s" % unknown)
    return [(command.page, page_of(root, command, variables)) for command in root.all()]
