#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The `nupa` program: its options, exit statuses, what it shows and what it removes."""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pairs import BUILD, NUPA, Pair, finish, free_port, nupa, outcome, pingpong, private_runtime_dir, skip, start, stop, \
    suspend, tell, wait_for, wait_listening

ENDLESS = "-n 2000000000"
MESSAGE = 4096  # bytes, as ibv_rc_pingpong has them
runtime_dir = private_runtime_dir()


def help_texts():
    tell("help", nupa("--help"), 0, "run", "devices", "stat", "clean", "doctor", "--version", "NUPA_RUNTIME_DIR",
         "NUPA_TRANSPORT", "NUPA_REMAP", "NUPA_LOG")
    tell("help-run", nupa("run", "--help"), 0, "--transport", "auto", "shm", "--verbose", "-- PROGRAM ARGS", "127",
         "126", "exit status")
    tell("help-devices", nupa("devices", "--help"), 0, "--json")
    tell("help-stat", nupa("stat", "--help"), 0, "--json", "--watch")
    tell("help-clean", nupa("clean", "--help"), 0, "--dry-run")
    tell("help-doctor", nupa("doctor", "--help"), 0, "--json", "xit status")
    tell("version", nupa("--version"), 0, "nupa ")


def wrong_usage():
    for arguments in ([], ["--bogus"], ["frobnicate"], ["run"], ["run", "--"], ["run", "--bogus", "--", "true"],
                      ["run", "--transport", "pigeon", "--", "true"], ["run", "--transport"], ["devices", "--bogus"],
                      ["stat", "--watch", "0"], ["stat", "--watch", "soon"], ["stat", "more"], ["clean", "--all"],
                      ["doctor", "--bogus"]):
        done = nupa(*arguments)
        outcome(done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and
                done.stderr.startswith("nupa: "), "wrong-usage " + " ".join(arguments or ["nothing"]),
                "status %s, out %r, err %r" % (done.returncode, done.stdout[-100:], done.stderr[-200:]))


def run_passes_through():
    tell("run-exit-status", nupa("run", "--", "sh", "-c", "exit 7"), 7)
    for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL):
        done = nupa("run", "--", "sh", "-c", "kill -%d $$" % number)
        outcome(done.returncode == -number, "run-signal-%d" % number, "status %s" % done.returncode)
    tell("run-not-found", nupa("run", "--", "/nonexistent/program"), 127, "nupa: /nonexistent/program: ")
    tell("run-not-found-in-path", nupa("run", "--", "no-such-program-here", env={"PATH": "/usr/bin:/bin"}), 127,
         "no-such-program-here")
    with tempfile.NamedTemporaryFile() as plain:
        tell("run-not-executable", nupa("run", "--", plain.name), 126, plain.name)
    tell("run-folder", nupa("run", "--", "/usr"), 126)
    # The parser of options would take some of these apart.
    awkward = ["two words", "", "--help", "--", "[a,b]", "{}", "%%", "[[]]", "a\nb", "-x", "--json=1", "ä", "\"q\"",
               "\\"]
    done = nupa("run", "--", sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *awkward)
    outcome(done.returncode == 0 and json.loads(done.stdout or "[]") == awkward, "run-arguments",
            "status %s, got %s%s" % (done.returncode, done.stdout.strip(), done.stderr[-200:]))
    tell("run-option-then-program", nupa("run", "--transport", "shm", "sh", "-c", "exit 5"), 5)
    done = subprocess.run([NUPA, "run", "--", "cat"], input="through\n", capture_output=True, text=True, timeout=30)
    outcome(done.stdout == "through\n" and done.stderr == "" and done.returncode == 0, "run-stdin-stdout",
            "out %r err %r" % (done.stdout, done.stderr))
    tell("run-verbose", nupa("run", "--verbose", "--", "true"), 0, "nupa: running true with libraries from ")
    tell("run-keeps-library-path", nupa("run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH; echo $LD_PRELOAD",
                                        env={"LD_LIBRARY_PATH": "/first", "LD_PRELOAD": "libdl.so.2"}), 0, ":/first",
         "libdl.so.2")
    for given, environment, expected in (((), "shm", "shm"), (("--transport", "auto"), "shm", "auto"),
                                         (("--transport=shm",), "", "shm")):
        tell("run-transport %s, environment '%s'" % (" ".join(given), environment),
             nupa("run", *given, "--", "sh", "-c", "echo is=$NUPA_TRANSPORT", env={"NUPA_TRANSPORT": environment}), 0,
             "is=%s\n" % expected)
    same = nupa("run", "--", "sh", "-c", "echo $$ $PPID")
    outcome(same.stdout.split()[1:] == [str(os.getpid())], "run-replaces-itself", same.stdout)


def devices():
    done = nupa("devices")
    tell("devices", done, 0, "nupa0", "node GUID", "active", "GID 1", "max_qp ", "max_mr ")
    told = json.loads(nupa("devices", "--json").stdout or "[]")
    sources = [c for device in told for c in device["capabilities"] if not (c["name"] and c["value"] and c["source"])]
    outcome(len(told) == 1 and told[0]["name"] == "nupa0" and len(told[0]["capabilities"]) > 5 and not sources,
            "devices-json", "without name, value or source: %s" % sources)
    attributes = nupa("run", "--", "ibv_devinfo", "-v").stdout
    wrong = []
    for capability in told[0]["capabilities"] if told else []:
        for line in attributes.splitlines():
            field, _, value = line.strip().partition(":")
            first = value.split()[0] if value.split() else ""
            if field == capability["name"] and first.isdigit() and first not in str(capability["value"]):
                wrong.append("%s: devinfo %s, devices %s" % (field, first, capability["value"]))
    outcome(not wrong, "devices-agree-with-devinfo", "; ".join(wrong))


def rows_of(pair):
    rows = json.loads(nupa("stat", "--json").stdout or "[]")
    return {row["pid"]: row for row in rows if row["pid"] in (pair.server.pid, pair.client.pid)}


def flowing(pair, before=None):
    """The rows of both, once each has sent more messages than before; None: one does not."""
    def look():
        rows = rows_of(pair)
        more = all(row["messages"] > (before[pid]["messages"] if before else 0) for pid, row in rows.items())
        return rows if len(rows) == 2 and more else None
    return wait_for(look) if pair.client else None


def whole_messages(rows):
    """The rows, if each has as many bytes as its messages have."""
    return rows if rows and all(row["bytes"] == MESSAGE * row["messages"] for row in rows.values()) else None


def stat_shows_pair():
    done = nupa("stat")
    tell("stat-of-nothing", done, 0, "PROCESS")
    tell("stat-json-of-nothing", nupa("stat", "--json"), 0, "[]")
    with Pair(*pingpong(ENDLESS)) as pair:
        first = flowing(pair) or {}
        outcome(len(first) == 2, "stat-both-processes", "%s %s" % (first, pair.trouble))
        if len(first) != 2:
            return
        # The counters of a row are read one after the other, and now and then a message is sent in between.
        second = wait_for(lambda: whole_messages(flowing(pair, first))) or rows_of(pair)
        for name, pid, other in (("server", pair.server.pid, pair.client.pid),
                                 ("client", pair.client.pid, pair.server.pid)):
            before, after = first[pid], second.get(pid, {})
            good = (after.get("state") == "RTS" and after.get("type") == "RC" and after.get("transport") == "shm" and after.get("transport_alias") == "window" and
                    after.get("peer") == "ibv_rc_pingpong[%d]" % other and
                    after["peer_qp_num"] == first[other]["qp_num"] and after["messages"] > before["messages"] and
                    after["bytes"] > before["bytes"] and after["errors"] == 0 and
                    after["bytes"] == MESSAGE * after["messages"])
            outcome(good, "stat-json-" + name, "%s then %s" % (before, after))

        def both_lines():
            """The table once both are in it: who has no processor for half a second is left out."""
            text = nupa("stat").stdout
            lines = [line for line in text.splitlines() if line.startswith("ibv_rc_pingpong[")]
            good = len(lines) == 2 and all(" RTS " in line and "shm" in line for line in lines)
            good = good and all("ibv_rc_pingpong[%d]" % p.pid in text for p in (pair.server, pair.client))
            return text if good else None

        outcome(wait_for(both_lines), "stat-text", nupa("stat").stdout)
        watcher = subprocess.Popen([NUPA, "stat", "--watch", "0.1"], stdout=subprocess.PIPE, text=True)
        heads = 0
        for line in watcher.stdout:  # each step of a script has a limit
            heads += "PROCESS" in line
            if heads == 2:
                break
        watcher.terminate()
        watcher.communicate(timeout=10)
        outcome(heads == 2, "stat-watch", "%d tables, then it ended" % heads)
        top(pair)


def top(pair):
    """Rates of the two processes, whose queue pairs send all the time."""
    names = {"ibv_rc_pingpong[%d]" % p.pid for p in (pair.server, pair.client)}

    def tables(*options, count=2):
        done = nupa("top", "--json", "--interval", "0.3", "--count", str(count), *options)
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def both():
        """Tables with both processes: who has no processor for half a second is left out."""
        seen = tables()
        return seen if len(seen) == 2 and all({line["name"] for line in table["lines"]} == names for table in seen) else None

    first, second = wait_for(both) or [{}, {}]
    for table in (first, second):
        for line in table.get("lines", []):
            outcome(line["bytes_per_second"] > 0 and line["messages_per_second"] > 0 and line["queue_pairs"] == 1 and
                    line["failed"] == 0 and line["transports"] == ["shm"] and
                    abs(line["bytes_per_second"] - MESSAGE * line["messages_per_second"]) < MESSAGE / table["seconds"] + 1e-6 * line["bytes_per_second"],
                    "top: rates of a process", str(line))
    before, after = ({line["name"]: line for line in table.get("lines", [])} for table in (first, second))
    for name in names & set(before) & set(after):
        moved = after[name]["messages"] - before[name]["messages"]
        outcome(abs(moved - after[name]["messages_per_second"] * second["seconds"]) < 1, "top: a rate is the difference of two looks",
                "%s then %s in %s s" % (before[name], after[name], second["seconds"]))
    outcome(abs(second["all"]["messages"] - sum(line["messages"] for line in second["lines"])) == 0 and second["all"]["queue_pairs"] == 2,
            "top: the sum of all", str(second["all"]))
    by_device = wait_for(lambda: [table for table in tables("--by", "device", count=1) if table["all"]["queue_pairs"] == 2]) or [{}]
    outcome([line["name"] for line in by_device[0].get("lines", [])] == ["nupa0"], "top: by device", str(by_device))
    by_pair = wait_for(lambda: [table for table in tables("--by", "qp", "--sort", "name", count=1) if table["all"]["queue_pairs"] == 2]) or [{}]
    shown = [line["name"] for line in by_pair[0].get("lines", [])]
    outcome(len(shown) == 2 and shown == sorted(shown) and all(name.endswith(" RC RTS") for name in shown), "top: by queue pair", str(shown))
    done = nupa("top", "--interval", "0.2", "--count", "1")
    outcome(done.returncode == 0 and done.stdout.startswith("PROCESS") and "\x1b" not in done.stdout, "top: as text", done.stdout + done.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):
        running = subprocess.Popen([NUPA, "top", "--interval", "0.1"], stdout=subprocess.PIPE, text=True)
        running.stdout.readline()
        running.send_signal(number)
        running.communicate(timeout=10)
        outcome(running.returncode == 0, "top: ended by signal %d" % number, "status %d" % running.returncode)
    in_a_terminal()


def in_a_terminal():
    """Keys change the table at once, and the terminal is as before at the end."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 60, 0, 0))
    before = termios.tcgetattr(terminal)
    running = subprocess.Popen([NUPA, "top", "--interval", "30"], stdin=terminal, stdout=terminal, stderr=terminal)
    screen = ""

    def shows(text):
        nonlocal screen
        limit = time.time() + 10
        while text not in screen and time.time() < limit:
            if select.select([controller], [], [], 0.1)[0]:
                screen += os.read(controller, 65536).decode()
        return text in screen

    outcome(shows("by process, sorted by sent"), "top: a terminal gets a screen", repr(screen))
    lines = screen.split("\x1b[J")[-1].splitlines()
    outcome(len(lines) <= 5 and all(len(line) <= 60 for line in lines[:-1]), "top: it fits into the terminal", str(lines))
    screen = ""
    os.write(controller, b"u")
    outcome(shows("QUEUE PAIR") and shows("by qp, sorted by sent"), "top: a key changes the group", repr(screen))
    screen = ""
    os.write(controller, b"n")
    outcome(shows("by qp, sorted by name"), "top: a key changes the order", repr(screen))
    os.write(controller, b"q")
    outcome(running.wait(timeout=10) == 0 and termios.tcgetattr(terminal) == before, "top: q quits and restores the terminal",
            "%s, was %s" % (termios.tcgetattr(terminal), before))
    os.close(controller)
    os.close(terminal)


def stat_of_a_stopped_process():
    """Does not answer: told, waited for a moment only, and not removed."""
    port = free_port()
    server = start("ibv_rc_pingpong -d nupa0 -g 1 -p %d" % port, out=subprocess.DEVNULL)
    try:
        wait_listening(port, server)
        suspend(server)
        began = time.time()
        tell("stat-of-a-stopped-process", nupa("stat"), 0, "does not answer", ".sock")
        took = time.time() - began
        outcome(took < 10, "stat-of-a-stopped-process-soon", "%.1f s" % took)
        tell("clean-of-a-stopped-process", nupa("clean"), 0, "nothing to clean")
        os.kill(server.pid, signal.SIGCONT)

        def answers():
            done = nupa("stat")
            return "does not answer" not in done.stderr and "INIT" in done.stdout

        outcome(wait_for(answers), "stat-of-a-continued-process", nupa("stat").stderr)
    finally:
        stop(server)
        nupa("clean")


def without_proc():
    before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")
    if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
        return skip("without-proc", "unmounting is not allowed")
    tell("run-without-proc", nupa("run", "--", "true", before=before), 1, "/proc is not mounted")
    tell("doctor-without-proc", nupa("doctor", before=before), 1, "PROBLEM", "/proc", "mount -t proc")


def sockets():
    return sorted(name for name in os.listdir(runtime_dir) if name.endswith(".sock"))


def clean():
    with Pair(*pingpong(ENDLESS)) as pair:
        said = ""
        for _ in range(40):
            said += nupa("clean", "--dry-run").stdout + nupa("clean").stdout
        before = flowing(pair)
        outcome("remove" not in said and len(sockets()) == 2, "clean-beside-live-pair", said[-200:] + str(sockets()))
        after = flowing(pair, before) if before else None
        outcome(after is not None, "pair-goes-on-after-clean", "%s then %s %s" % (before, rows_of(pair), pair.trouble))
    nupa("clean")
    with Pair(*pingpong("-n 3000")) as pair:
        cleaned = nupa("clean").stdout
        reason = pair.wait(60)
        outcome(reason == "" and "removed" not in cleaned, "pair-completes-beside-clean", reason or cleaned)
    outcome(sockets() == [], "nothing-left-by-ended-pair", str(sockets()))

    with Pair(*pingpong(ENDLESS)) as pair:
        outcome(flowing(pair) is not None, "pair-to-be-killed-works", pair.trouble)
        # Stopped first, so that neither can tidy up after the other.
        for process in (pair.server, pair.client):
            suspend(process)
        for process in (pair.server, pair.client):
            process.kill()
            process.wait()
    left = sockets()
    outcome(len(left) == 2, "both-killed-leave-two-sockets", str(left))
    with open(os.path.join(runtime_dir, "not-nupa"), "w") as stranger:
        stranger.write("mine")
    tell("clean-dry-run-says", nupa("clean", "--dry-run"), 0, *["would remove %s/%s" % (runtime_dir, s) for s in left])
    outcome(sockets() == left, "clean-dry-run-removes-nothing", str(sockets()))
    tell("clean-says", nupa("clean"), 0, *["removed %s/%s" % (runtime_dir, s) for s in left], "skipped: %s/not-nupa" % runtime_dir)
    outcome(sockets() == [], "clean-removes-what-the-dead-left", str(sockets()))
    outcome(os.path.exists(os.path.join(runtime_dir, "not-nupa")), "clean-leaves-strangers-alone")
    os.unlink(os.path.join(runtime_dir, "not-nupa"))
    tell("clean-of-nothing", nupa("clean"), 0, "nothing to clean")


def doctor(name, before=(), env=None):
    done = nupa("doctor", before=before, env=env)
    tell(name, done, 0, "drop-in libraries", "runtime directory", "memfd", "open files", "file size", "address space", "userfaultfd",
         "cross-memory copies", "vm.max_map_count", "processor cores")
    told = json.loads(nupa("doctor", "--json", before=before, env=env).stdout or "[]")
    bad = [f for f in told if f["level"] not in ("OK", "NOTE", "PROBLEM") or (f["level"] != "OK" and not f["remedy"])]
    outcome(len(told) >= 10 and not bad, name + "-json", str(bad))


help_texts()
wrong_usage()
run_passes_through()
devices()
stat_shows_pair()
stat_of_a_stopped_process()
clean()
doctor("doctor")
without_proc()
example = subprocess.run([os.path.join(BUILD, "examples", "hello_rdma")], capture_output=True, text=True, timeout=30)
outcome(example.returncode == 0 and "hello from NUPA!" in example.stdout, "example-hello-rdma",
        "status %d: %s%s" % (example.returncode, example.stdout, example.stderr))
finish()
