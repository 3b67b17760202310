#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The contract of the command line (docs/reference/command-line.md): bad inputs of each command, with the exit status
and the words of the message. No input may end by a signal or by the time limit."""
import fcntl
import json
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from pairs import NUPA, finish, outcome, private_runtime_dir, skip

SECONDS = 10  # a limit for a machine under load; an input takes some 50 ms
runtime_dir = private_runtime_dir()
folder = tempfile.TemporaryDirectory(prefix="nupa-contract-")
HOME = folder.name
DONE, FAILED, USAGE = 0, 1, 2
UNSHARE = ("unshare", "--mount", "--propagation", "private")
# Settings of the environment that this script runs in must not change an outcome.
KEPT = {name: value for name, value in os.environ.items()
        if not name.startswith(("NUPA_", "OMPI_", "PMI", "SLURM_")) and
        name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "XDG_CONFIG_HOME")}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(command, env=None, out=subprocess.PIPE):
    environment = {**KEPT, "HOME": HOME, "NUPA_RUNTIME_DIR": runtime_dir, **(env or {})}
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True,
                              env=environment, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, None, "", "still running after %d s" % SECONDS)


def judge(name, done, status, words):
    text = (done.stdout or "") + done.stderr
    missing = [word for word in words if word not in text]
    strange = [word for word in ("terminate called", "json.exception.type_error", "basic_filebuf") if word in text]
    outcome(done.returncode == status and not missing and not strange, name,
            "status %s instead of %s, not said: %s, strange: %s; said: %s" %
            (done.returncode, status, missing, strange, text[-300:]))


def title(arguments, env=None):
    shown = " ".join(shlex.quote(word.replace(HOME, "HOME")) for word in arguments)
    return " ".join(["%s=%s" % item for item in (env or {}).items()] + [shown or "nothing"]).replace(HOME, "HOME")


def check(arguments, status, *words, env=None):
    judge(title(arguments, env), run([NUPA, *arguments], env), status, words)


def usage(line, *words):
    """A usage error: status 2, nothing on standard output, one line that names the help of its own command."""
    arguments = [{"EMPTY": "", "FOLDER": HOME}.get(word, word) for word in line.split()]
    done = run([NUPA, *arguments])
    text = done.stderr
    missing = [word for word in (*words, "--help)") if word not in text]
    outcome(done.returncode == USAGE and done.stdout == "" and text.count("\n") == 1 and text.startswith("nupa: ") and
            not missing, title(arguments),
            "status %s, not said: %s; out %r, err %r" % (done.returncode, missing, done.stdout[-100:], text[-300:]))


def file_of(name, text, mode=0o600):
    path = os.path.join(HOME, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def unknown_words():
    usage("", "(see nupa --help)")
    for word in ("bogus", "help", "version", "Run", "nett", "0"):
        usage(word, "'%s' is not a command" % word, "(see nupa --help)")
    for word in ("--bogus", "-x", "--json"):
        usage(word, "'%s' is not an option" % word, "(see nupa --help)")
    for command in ("net", "ccl", "pool"):
        usage(command, "(see nupa %s --help)" % command)
        usage(command + " bogus", "'bogus' is not a command", "(see nupa %s --help)" % command)
        usage(command + " --bogus", "'--bogus' is not an option", "(see nupa %s --help)" % command)
    for command in ("devices", "stat", "top", "clean", "doctor", "net status", "net key", "net down", "ccl bench", "ccl plan",
                    "pool format", "pool check", "pool status", "pool clean"):
        usage(command + " --bogus", "--bogus", "(see nupa %s --help)" % command)
        if command != "doctor":  # a program and its arguments
            usage(command + " one two three", "three", "(see nupa %s --help)" % command)
    usage("capture -w file --bogus", "--bogus", "(see nupa capture --help)")
    usage("capture -w file one", "one", "(see nupa capture --help)")
    usage("doctor --pid 1 program", "--pid", "(see nupa doctor --help)")
    usage("doctor --pid nobody", "--pid", "nobody", "(see nupa doctor --help)")
    for command in ("devices", "stat", "top", "clean", "doctor", "net status", "net key", "ccl plan", "pool format", "pool check",
                    "pool status", "pool clean"):
        usage(command + " --json=perhaps", "--json", "perhaps", "(see nupa %s --help)" % command)
    usage("net up lab --bogus", "--bogus", "(see nupa net up --help)")
    usage("ccl trace --bogus file", "--bogus", "(see nupa ccl trace --help)")
    usage("run --bogus -- true", "--bogus", "(see nupa run --help)")
    usage("launch -n 1 --bogus -- true", "--bogus", "(see nupa launch --help)")


def missing_words():
    usage("run", "no program given", "(see nupa run --help)")
    usage("run --", "no program given", "(see nupa run --help)")
    usage("run --verbose", "no program given", "(see nupa run --help)")
    usage("capture", "--write", "(see nupa capture --help)")
    usage("launch", "--ranks", "(see nupa launch --help)")
    usage("launch -- true", "--ranks", "(see nupa launch --help)")
    usage("launch -n 2", "no program given", "(see nupa launch --help)")
    usage("launch -n 2 --", "no program given", "(see nupa launch --help)")
    for options in ("run --transport", "launch --grace", "launch -n", "stat --watch", "top --interval", "top --by", "capture -w", "net up", "net up lab --addr",
                    "net up lab --key-file", "net up lab --config", "net down --node", "net status --node",
                    "ccl bench -n", "ccl bench --json", "ccl plan --type", "ccl trace", "ccl trace x -o",
                    "pool status --pool", "pool format --hosts", "pool check --with"):
        command = " ".join(word for word in options.split() if word not in ("lab", "x") and not word.startswith("-"))
        usage(options, "(see nupa %s --help)" % command)
    check(["ccl", "bench"], USAGE, "the number of ranks is missing")
    check(["ccl", "plan"], USAGE, "the number of ranks is missing")


def numbers():
    seconds = ("nan", "-nan", "inf", "-inf", "infinity", "1e300", "1e999", "-1", "soon", "EMPTY", "1s", "0x10", "99999999")
    for value in (*seconds, "0", "0.0001"):
        usage("stat --watch=%s" % value if value != "EMPTY" else "stat --watch EMPTY",
              "--watch", "number of seconds from 0.01 to 86400", "(see nupa stat --help)")
        usage("top --interval=%s" % value if value != "EMPTY" else "top --interval EMPTY",
              "--interval", "number of seconds from 0.01 to 86400", "(see nupa top --help)")
    for value in seconds:
        usage("launch -n 1 --grace %s -- true" % value, "--grace", "number of seconds from 0 to 86400",
              "(see nupa launch --help)")
        usage("ccl bench -n 1 --min-time %s" % value, "--min-time", "number of seconds from 0 to 3600",
              "(see nupa ccl bench --help)")
    whole = ("-1", "nan", "1e300", "1.5", "99999999999999999999", "EMPTY", "many", "0x2")
    for value in (*whole, "0", "4097"):
        usage("launch -n %s -- true" % value, "--ranks", "whole number from 1 to 4096", "(see nupa launch --help)")
    for value in (*whole, "0", "4294967296"):
        usage("top --count %s" % value, "--count", "whole number from 1 to 4294967295", "(see nupa top --help)")
    for value in (*whole, "0"):
        usage("capture -w file -c %s" % value, "--count", "whole number from 1 to", "(see nupa capture --help)")
        usage("capture -w file --buffer %s" % value, "--buffer", "whole number from 1 to 1024", "(see nupa capture --help)")
    for value in (*seconds, "0"):
        usage("capture -w file --duration %s" % value, "--duration", "number of seconds from 0.01 to 86400", "(see nupa capture --help)")
    for value in ("61", "65536", "EMPTY"):
        usage("capture -w file --snaplen %s" % value, "--snaplen", "whole number from 62 to 65535", "(see nupa capture --help)")
    for value in ("-1", "0x1000000", "0x", "many"):
        usage("capture -w file --qp %s" % value, "--qp", "expected a number from 0 to 0xffffff", "(see nupa capture --help)")
    usage("capture -w file --class sends", "--class", "expected one of send, write, read, atomic, ack, cm, other", "(see nupa capture --help)")
    usage("capture -w file --direction both", "--direction", "expected one of in, out", "(see nupa capture --help)")
    for value in ("host", "EMPTY", "QP"):
        usage("top --by %s" % value, "--by", "expected one of process, qp, device", "(see nupa top --help)")
        usage("top --sort %s" % value, "--sort", "expected one of sent, messages, received, errors, rnr, name", "(see nupa top --help)")
    for value in ("-1", "nan", "0", "4097", "99999999999999999999"):
        for command in ("bench", "plan"):
            usage("ccl %s -n %s" % (command, value), "--ranks", "whole number from 1 to 4096",
                  "(see nupa ccl %s --help)" % command)
    for value in whole:
        usage("ccl bench -n 1 --warmup %s" % value, "--warmup", "whole number from 0 to 1000000000")
    for value in ("0", "-1", "nan", "99999999999999999999"):
        usage("ccl bench -n 1 --iterations %s" % value, "--iterations", "whole number from 1 to 1000000000")
        usage("ccl bench -n 1 --factor %s" % value, "--factor", "whole number from 2 to ")
        usage("ccl bench -n 1 --min-bytes %s" % value, "--min-bytes")
        usage("ccl plan -n 1 --max-bytes %s" % value, "--max-bytes")
        usage("net up lab --addr 10.77.0.1/24 --mtu %s" % value, "--mtu", "whole number from 1280 to 65520")
        usage("net up lab --addr 10.77.0.1/24 --queues %s" % value, "--queues", "whole number from 1 to 16")
    for value in ("-1", "nan", "4096", "99999999999999999999"):
        usage("ccl bench -n 1 --root %s" % value, "--root", "whole number from 0 to 4095")
    usage("ccl bench -n 1 --min-bytes 1Q", "--min-bytes")
    for value in (*whole, "0", "33"):
        usage("pool format --hosts %s" % value, "--hosts", "whole number from 1 to 32", "(see nupa pool format --help)")
    for value in ("-1", "nan", "32", "1.5"):
        usage("pool check --with %s" % value, "--with", "whole number from 0 to 31", "(see nupa pool check --help)")
    for value in ("0", "-1", "nan", "1e9", "1Q", "M", "1MM", "99999999999999999999", "EMPTY"):
        usage("pool format --size %s" % value, "--size", "bytes", "(see nupa pool format --help)")
        usage("pool format --ring-size %s" % value, "--ring-size", "power of two", "(see nupa pool format --help)")
    usage("pool format --ring-size 48K", "--ring-size", "48K", "power of two")
    for value in seconds:
        usage("pool check --timeout %s" % value, "--timeout", "number of seconds from 0 to 86400", "(see nupa pool check --help)")


def words_and_contradictions():
    for value in ("pigeon", "shm,", ",", "shm,shm", "SHM", "auto,shm", "EMPTY"):
        for command in ("run", "launch -n 1"):
            usage("%s --transport %s -- true" % (command, value), "--transport", "is not a transport",
                  "auto, shm, pool, roce or a list of them", "(see nupa %s --help)" % command.split()[0])
    for option, value, expected in (("--type", "float31", "float32"), ("--op", "add", "sum"),
                                    ("--operation", "reduce,bogus", "all_reduce"), ("--operation", "EMPTY", "all")):
        usage("ccl bench -n 1 %s %s" % (option, value), option, expected, "(see nupa ccl bench --help)")
    usage("ccl plan -n 1 --type float31", "--type", "float32", "(see nupa ccl plan --help)")
    usage("ccl bench -n 1 --iterations 5 --min-time 1", "excludes", "--min-time")
    check(["ccl", "bench", "-n", "1", "--min-bytes", "64", "--max-bytes", "32"], USAGE, "--max-bytes", "--min-bytes")
    check(["ccl", "bench", "-n", "2", "--root", "2"], USAGE, "--root 2", "2 ranks")
    check(["ccl", "bench", "-n", "1", "--op", "bit_and"], USAGE, "--op bit_and", "integer type")
    check(["ccl", "bench", "-n", "1", "--op", "average", "--operation", "scan"], USAGE, "--op average", "scan")
    for value in ("EMPTY", "../../x", "a/b", "x" * 32, ".hidden", "ä"):
        usage("net up %s --addr 10.77.0.1/24" % value, "names have letters", "(see nupa net up --help)")
    usage("net up lab --node %s --addr 10.77.0.1/24" % ("x" * 41), "--node", "names have letters")
    for value in ("EMPTY", "host", "10.77.0.1/33", "10.77.0.1/", "10.77.0.1/-1", "999.1.1.1/8", "224.0.0.1", "fd77::1/129"):
        usage("net up lab --addr %s" % value, "--addr", "(see nupa net up --help)")
    for value in ("EMPTY", "host", "10.77.0", "10.77.0.1:80"):
        usage("net up lab --addr 10.77.0.1/24 --peer %s" % value, "--peer", "not an IPv4 or IPv6 address")
    usage("net up lab --config FOLDER", "--config", HOME)
    usage("net up lab --config /nonexistent.json", "--config", "/nonexistent.json")
    for value, words in (("EMPTY", "is not a medium"), ("/dev/null,host=0", "is not a medium"), ("file:x,host=0", "not an absolute path"),
                         ("pci:1,host=0", "not the address of a PCI function"), ("file:/x", "host is missing"),
                         ("file:/x,host=99", "host=99"), ("file:/x,host=0,color=red", "'color' is not an option")):
        for command in ("format", "check", "status", "clean"):
            usage("pool %s --pool %s" % (command, value), "--pool", words, "(see nupa pool %s --help)" % command)
    usage("pool check --alone --with 1", "excludes", "--with")
    outcome(not os.path.exists(os.path.join(HOME, ".config")), "a usage error of net up creates no key")


def programs():
    check(["run", "--", "/nonexistent/program"], 127, "/nonexistent/program", "No such file or directory")
    check(["run", "--", ""], 127, "No such file or directory")
    check(["run", "--", HOME], 126, HOME, "Permission denied")
    check(["run", "--", "sh", "-c", "exit 9"], 9)
    check(["launch", "-n", "2", "--", "/nonexistent/program"], 127, "/nonexistent/program", "No such file or directory")
    check(["launch", "-n", "2", "--", HOME], 126, HOME, "Permission denied")
    check(["launch", "-n", "2", "--", "sh", "-c", "exit 9"], 9, "exited with status 9")
    check(["launch", "-n", "1", "--", "sh", "-c", "kill -KILL $$"], 137, "signal 9")


def files():
    check(["ccl", "trace", HOME], FAILED, HOME, "Is a directory")
    check(["ccl", "trace", "/nonexistent"], FAILED, "/nonexistent", "No such file or directory")
    check(["ccl", "trace", ""], FAILED, "No such file or directory")
    for name, text in (("empty", ""), ("half", '[{"name":'), ("object", "{}"), ("other", "[1, 2]"), ("list", "[]"),
                       ("wrong-type", '[{"name": 5}]'), ("no-clock", '[{"name": "nupa_clock", "args": []}]'),
                       ("text-clock", '[{"name": "nupa_clock", "args": {"monotonic_ns": "soon"}}]')):
        path = file_of(name, text)
        check(["ccl", "trace", path], FAILED, path, "is not a trace of a rank")
    clock = '{"name": "nupa_clock", "args": {"monotonic_ns": 1, "realtime_ns": 1, "boot": "b"}}'
    good = file_of("good", "[%s]" % clock)
    check(["ccl", "trace", good], DONE, "nupa_clock")
    for out, why in (("/dev/full", "No space left on device"), (HOME, "Is a directory"),
                     ("/nonexistent/all.json", "No such file or directory")):
        check(["ccl", "trace", good, "-o", out], FAILED, out, why)
        check(["ccl", "bench", "-n", "1", "--max-bytes", "4", "--iterations", "1", "--json", out], FAILED, out, why)
    node = ["net", "up", "lab", "--addr", "10.77.0.1/24"]
    check([*node, "--key-file", HOME], FAILED, HOME, "not a regular file")
    check([*node, "--key-file", "/nonexistent/key"], FAILED, "/nonexistent/key", "No such file or directory")
    key = "0" * 64 + "\n"
    for mode in (0o644, 0o620):
        path = file_of("key-%o" % mode, key, mode)
        check([*node, "--key-file", path], FAILED, path, "open to other users: chmod 600 it")
    for name, text in (("short", key[1:]), ("empty-key", ""), ("letters", "z" * 64)):
        path = file_of(name, text)
        check([*node, "--key-file", path], FAILED, path, "64 hexadecimal digits")
    for interface in ("", "a" * 16, "a/b", "a b", "%d"):
        check([*node, "--key-file", file_of("key", key), "--interface", interface], FAILED, "an interface's name")
    check(["net", "up", "lab", "--key-file", file_of("key", key)], FAILED, "the node has no address", "--addr")
    check(node, FAILED, "HOME is not set (use --key-file FILE)", env={"HOME": ""})
    check(node, FAILED, "/dev/full/nupa/lab.key", "Not a directory", env={"XDG_CONFIG_HOME": "/dev/full"})


def configs():
    one = {"nodes": {"n1": {"addresses": ["10.77.0.1/24"]}}}

    def refused(name, text, *words, node="n1"):
        path = file_of(name + ".json", text if isinstance(text, str) else json.dumps(text))
        done = run([NUPA, "net", "up", "lab", "--node", node, "--config", path, "--key-file", os.path.join(HOME, "none")])
        judge("net up --config " + name, done, FAILED, (path, *words))

    for name, text, line, key in (("top", '{"nodes": {},\n"nodess": 5}', 2, "nodess"),
                                  ("of a node", '{"nodes":\n{"n1":\n{"address": []}}}', 3, "address")):
        path = file_of("unknown.json", text)
        check(["net", "up", "lab", "--node", "n1", "--config", path], USAGE, path,
              'line %d: unknown key "%s" (expected ' % (line, key))
    for name, text in (("empty", ""), ("half", '{"nodes":'), ("comma", '{"nodes": {},}'), ("binary", "\x01\x02")):
        refused(name, text, "not valid JSON", "line 1")
    for name, value in (("number", 5), ("list", []), ("object", {}), ("null", None), ("nodes-list", {"nodes": []}),
                        ("nodes-text", {"nodes": "n1"})):
        refused(name, value, 'an object with "nodes"')
    refused("other-network", dict(one, network="other"), "network other")
    refused("no-node", one, "no node 'n2'", node="n2")
    for value in (10, 1e9, -1, "9000", None, [9000], 1280.5):
        refused("mtu %s" % json.dumps(value), dict(one, mtu=value), "mtu is", "1280", "65520")
    refused("network-number", dict(one, network=5), "network is 5; expected a string")
    refused("hosts-text", {"nodes": dict(one["nodes"], n2={"hosts": "10.0.0.2"})}, 'hosts is "10.0.0.2"', "list of strings")
    refused("interface-number", {"nodes": {"n1": {"addresses": ["10.77.0.1/24"], "interface": 5}}}, "interface is 5")
    for name, node in (("node-number", 5), ("addresses-text", {"addresses": "10.77.0.1/24"}),
                       ("addresses-numbers", {"addresses": [1]}), ("no-addresses", {}),
                       ("bad-address", {"addresses": ["10.77.0.1/33"]})):
        refused(name, {"nodes": {"n1": node}}, "addresses" if name != "bad-address" else "10.77.0.1/33")


def settings():
    switch = ("on or off (also yes or no, true or false, 1 or 0)",)
    for name, values, words in (
            ("NUPA_TRANSPORT", ("pigeon", "shm,", "SHM", "shm,shm"), ("auto, shm, pool, roce or a list of them",)),
            ("NUPA_POOL", ("/dev/null,host=0", "file:x,host=0", "file:/x", "file:/x,host=99", "pci:1,host=0"), ()),
            ("NUPA_DEVICES", ("no-such-if", "lo,lo", ",", "lo+"), ()),
            ("NUPA_CONGESTION", ("bogus", "DCQCN"), ("tolerant, none, dcqcn, swift or cubic",)),
            ("NUPA_ROCE_SOURCE_PORTS", ("0", "5", "-1", "many", "1.5", "99999999999999999999"), ("from 1 to 4",)),
            ("NUPA_ROCE_ICRC", ("maybe", "ON", "2"), switch),
            ("NUPA_ROCE_PEERS", ("all",), ("any or standard",)),
            ("NUPA_LOG", ("loud", "INFO"), ("error, warn, info or debug",)),
            ("NUPA_REMAP", ("perhaps",), ("auto, always or never",)),
            ("VERBS_LOG_LEVEL", ("5", "-1", "debug"), ("from 0 to 4",)),
            ("NUPA_CCL_TIMEOUT", ("0", "-1", "nan", "1e300", "1s", "2147483648"), ("from 1 to 2147483647",)),
            ("NUPA_CCL_SLOT_BYTES", ("0", "4k", "1073741825"), ("from 1 to 1073741824",)),
            ("NUPA_CCL_MAPPED_RANKS", ("0", "513"), ("from 1 to 512",)),
            ("NUPA_CCL_CHECK", ("maybe",), switch), ("NUPA_CCL_DETERMINISTIC", ("always",), switch),
            ("NUPA_CCL_READS", ("never",), switch), ("NUPA_SOCKETS_CONNECT_MS", ("abc", "0"), ("from 1 to ",)),
            ("NUPA_CCL_ALGO", ("bogus", "=", "=ring", "ring,all_reduce=ring"), ("expected OPERATION=ALGORITHM",)),
            ("NUPA_CCL_ROOT", ("bogus", "tcp://", "file://", "tcp://127.0.0.1:99999"), ("or a unique id",)),
            ("NUPA_RANK", ("-1", "x", "65536"), ("from 0 to 65535",)),
            ("NUPA_WORLD_SIZE", ("0", "1e300"), ("from 1 to 65536",)),
            ("NUPA_CCL_TRACE", ("/nonexistent/folder/trace",), ("No such file or directory",)),
            ("NUPA_SOCKETS_CONFIG", ("/nonexistent/rules",), ("No such file or directory",)),
            ("NUPA_SOCKETS_CONFIG", ("/",), ("Is a directory",))):
        for value in values:
            if value != "no-such-if":  # the program may enter another network namespace
                check(["run", "--", "true"], USAGE, "nupa: run: %s=%s" % (name, value), *words, env={name: value})
            check(["doctor"], FAILED, "PROBLEM", "settings", "%s=%s" % (name, value), *words, env={name: value})
            if name.startswith("NUPA_CCL_") and name not in ("NUPA_CCL_ROOT", "NUPA_CCL_ALGO") or name in ("NUPA_TRANSPORT", "NUPA_DEVICES", "NUPA_CONGESTION"):
                if value == values[0]:
                    check(["ccl", "plan", "-n", "1"], FAILED, "%s=%s" % (name, value), *words, env={name: value})
        done = run([NUPA, "doctor", "--json"], {name: ""})
        level = [each["level"] for each in json.loads(done.stdout or "[]") if each["subject"] == "settings"]
        outcome(level == ["OK"], "%s is empty" % name, str(level))
    check(["launch", "-n", "2", "--", "true"], USAGE, "nupa: launch: NUPA_LOG=loud", env={"NUPA_LOG": "loud"})
    check(["launch", "-n", "1", "--", "true"], DONE, env={"NUPA_RANK": "x", "NUPA_CCL_ROOT": "bogus"})
    check(["run", "--transport", "shm", "--", "true"], DONE, env={"NUPA_TRANSPORT": "pigeon"})
    check(["run", "--", "true"], DONE, env={"NUPA_DEVICES": "no-such-if"})
    check(["ccl", "plan", "-n", "1"], FAILED, "NUPA_LOG=loud: expected", env={"NUPA_LOG": "loud"})
    check(["ccl", "plan", "-n", "1"], FAILED, "NUPA_REMAP=perhaps: expected", env={"NUPA_REMAP": "perhaps"})
    check(["devices"], FAILED, "NUPA_DEVICES=no-such-if", "does not exist", env={"NUPA_DEVICES": "no-such-if"})
    plan = ["ccl", "plan", "-n", "1", "--operation", "all_reduce"]
    for value in ("bogus", "all_reduce=bogus", "bogus=ring", "=", "all_reduce", "ring,all_reduce=ring"):
        check(plan, FAILED, "NUPA_CCL_ALGO=" + value, "expected", env={"NUPA_CCL_ALGO": value})
    for name in ("NUPA_CCL_ALGO", "NUPA_TRANSPORT", "NUPA_DEVICES", "NUPA_CCL_ROOT", "NUPA_CCL_TRACE", "NUPA_CCL_CHECK"):
        check(plan, DONE, "all_reduce", env={name: ""})
    rank = {"NUPA_RANK": "0", "NUPA_WORLD_SIZE": "1", "NUPA_CCL_ROOT": "tcp://127.0.0.1:1"}
    for name, value in (("NUPA_RANK", "1"), ("NUPA_RANK", "-1"), ("NUPA_RANK", "x"), ("NUPA_WORLD_SIZE", "0"),
                        ("NUPA_WORLD_SIZE", "1e300"), ("NUPA_CCL_ROOT", "bogus"), ("NUPA_CCL_ROOT", "tcp://"),
                        ("NUPA_CCL_ROOT", "file://"), ("NUPA_CCL_ROOT", "tcp://127.0.0.1:99999")):
        check(["ccl", "plan"], FAILED, name, value, env=dict(rank, **{name: value}))


def runtime_directories():
    open_to_all = os.path.join(HOME, "open")
    os.mkdir(open_to_all)
    os.chmod(open_to_all, 0o755)
    plain = file_of("plain", "")
    link = os.path.join(HOME, "link")
    os.symlink(runtime_dir, link)
    for path, why in ((open_to_all, "open to other users"), (plain, "Not a directory"), (link, "Not a directory"),
                      ("/nonexistent/a", "No such file or directory"), ("/proc/nupa", "No such file or directory")):
        for command in ("stat", "clean", "net status", "net down", "doctor"):
            check(command.split(), FAILED, path, why, env={"NUPA_RUNTIME_DIR": path})
    check(["ccl", "plan", "-n", "1"], FAILED, plain, "Not a directory", env={"NUPA_RUNTIME_DIR": plain})
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0:
        return skip("runtime directories that are full or read-only", "mounting is not allowed")
    mounted = os.path.join(HOME, "mounted")
    os.mkdir(mounted)
    for name, options, why in (("full", "mode=700,nr_inodes=1", "No space left on device"),
                               ("read-only", "mode=700,ro", "Read-only file system")):
        mount = 'mount -t tmpfs -o %s nupa "$NUPA_RUNTIME_DIR" && exec "$@"' % options
        for command in (["doctor"], ["ccl", "plan", "-n", "1"]):
            done = run([*UNSHARE, "sh", "-c", mount, "sh", NUPA, *command], {"NUPA_RUNTIME_DIR": mounted})
            judge("%s in a %s runtime directory" % (command[0], name), done, FAILED, (mounted, why))


def a_locked_runtime_directory():
    """The command waits, says what for, and goes on when the lock is free."""
    subprocess.run([NUPA, "clean"], stdin=subprocess.DEVNULL, capture_output=True, check=False, env=dict(KEPT, NUPA_RUNTIME_DIR=runtime_dir))
    holder = os.open(runtime_dir, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    cleaner = subprocess.Popen([NUPA, "clean"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=dict(KEPT, NUPA_RUNTIME_DIR=runtime_dir))
    line = cleaner.stderr.readline()
    os.close(holder)
    out, _ = cleaner.communicate(timeout=SECONDS)
    outcome(cleaner.returncode == 0 and "waiting for the lock of the runtime directory " + runtime_dir in line and
            "nothing to clean" in out, "clean with a locked runtime directory", "%s %r" % (cleaner.returncode, line))


def ranks_that_wait():
    """A rank whose peers do not come says after a second that it waits, and after five seconds for what."""
    file = os.path.join(HOME, "rendezvous")
    torch = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    ports = free_port(), free_port()
    waiting = []
    for name, env, words in (
            ("rank 0", {**torch, "RANK": "0", "MASTER_PORT": str(ports[0])},
             " s more; missing: rank 1"),
            ("rank 1", {**torch, "RANK": "1", "MASTER_PORT": str(ports[1])},
             "rank 1 waits for the rendezvous server at 127.0.0.1 port %d: Connection refused" % ports[1]),
            ("rank 1 with a file", {"NUPA_RANK": "1", "NUPA_WORLD_SIZE": "2", "NUPA_CCL_ROOT": "file://" + file},
             "rank 1 waits for rank 0, which writes the rendezvous file " + file)):
        rank = subprocess.Popen([NUPA, "ccl", "bench"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True,
                                env={**KEPT, "NUPA_RUNTIME_DIR": runtime_dir, **env})
        threading.Timer(3 * SECONDS, rank.kill).start()
        waiting.append((name, words, rank))
    for name, words, rank in waiting:
        lines = [rank.stderr.readline(), rank.stderr.readline()]
        rank.kill()
        rank.communicate()
        outcome("waiting for the other ranks of the job" in lines[0] and words in lines[1], name + " that waits",
                repr(lines))


def a_node_that_does_not_answer():
    """A socket with the name of a node that is never read: the command says whose answer it waits for."""
    name = os.path.join(runtime_dir, "net,lab,n1.name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as node:
        node.bind(name)
        node.listen()
        done = run([NUPA, "net", "status", "lab"])
    os.unlink(name)
    lines = done.stderr.splitlines()
    outcome(done.returncode == FAILED and lines[:1] == ["nupa: waiting for the answer of node n1 of network lab"] and
            "node n1 does not answer" in done.stderr, "net status waits for a node", "%s %r" % (done.returncode, lines))
    check(["net", "status", "lab"], FAILED, "no node of network lab answers")
    check(["net", "status"], DONE, "no node is running")


def outputs():
    full = open("/dev/full", "w")
    read_end, write_end = os.pipe()
    os.close(read_end)
    for command in ("--help", "--version", "run --help", "net up --help", "devices", "devices --json", "stat",
                    "stat --json", "top --count 1 --interval 0.1", "top --count 1 --interval 0.1 --json", "clean", "clean --json", "doctor", "doctor --json", "net status",
                    "net status --json", "net key", "net key --json", "ccl plan -n 1", "ccl plan -n 1 --json",
                    "launch -n 1 -- echo text", "launch --no-label -n 2 -- echo text"):
        judge(command + " to a full disk", run([NUPA, *command.split()], out=full), FAILED,
              ("cannot write", "No space left on device"))
    judge("launch to a closed pipe", run([NUPA, "launch", "-n", "1", "--", "echo", "text"], out=write_end), FAILED,
          ("cannot write", "Broken pipe"))
    for command in ("devices", "stat", "top --count 1 --interval 0.1", "clean", "doctor", "net status", "net key", "ccl plan -n 1"):
        done = run([NUPA, *command.split(), "--json"])
        try:
            json.loads(done.stdout)
            reason = ""
        except ValueError as error:
            reason = str(error)
        outcome(reason == "" and done.returncode == 0, command + " --json", reason or done.stderr)


unknown_words()
missing_words()
numbers()
words_and_contradictions()
programs()
files()
configs()
settings()
runtime_directories()
a_locked_runtime_directory()
ranks_that_wait()
a_node_that_does_not_answer()
outputs()
finish()
