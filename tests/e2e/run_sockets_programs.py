#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that know only TCP, unmodified, over the preload library: iperf3, redis, nginx. Each is seen to have moved its
bytes over queue pairs, and serves those that speak TCP beside it."""
import contextlib
import filecmp
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from cm_pairs import LIBRARY, folder, places
from hosts import remove_hosts
from pairs import (BUILD, NUPA, finish, free_port, missing_program, nupa, outcome, skip, start, stop, transports,
                   wait_for, wait_listening)

SOCKETS = os.path.join(BUILD, "lib", "nupa", "libnupa_sockets.so")
FILE_BYTES = 3000017


class Service:
    """A server over the preload library, until the `with` block is left. `once`: it serves one client, and is started
    anew for each."""

    def __init__(self, command, place, port, once=False):
        self.command, self.place, self.port, self.once = command, place, port, once
        self.log = tempfile.TemporaryFile()
        self.process = None

    def listens(self):
        if self.once and self.process:
            stop(self.process)
        if self.once or not self.process:
            self.process = start(self.command, None, self.log, self.place.server, ("--sockets",))
        return wait_listening(self.port, self.process)

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-300:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            stop(self.process)
        self.log.close()


def messages(program):
    """How many messages the queue pairs of a program have carried; those that are gone do not count."""
    done = nupa("stat", "--json")
    try:
        return sum(row["messages"] for row in json.loads(done.stdout) if row["command"].startswith(program))
    except (ValueError, KeyError):
        return 0


SEEN = 20  # messages of a server's queue pairs
TRIES = 5


def run_client(place, command, over_rdma, env, seconds):
    """Runs a client: its status, what it said, and how many messages the queue pairs of `over_rdma` were seen to carry."""
    seen = 0
    with tempfile.TemporaryFile() as out:
        if over_rdma:
            client = start(command, env, out, place.client, ("--sockets",))
        else:
            client = subprocess.Popen([*place.client, "sh", "-c", command], stdin=subprocess.DEVNULL, stdout=out,
                                      stderr=subprocess.STDOUT, start_new_session=True)
        end = time.time() + seconds
        while client.poll() is None and time.time() < end:
            if over_rdma and seen < SEEN:
                seen = max(seen, messages(over_rdma))
            time.sleep(0.02)  # sleep: the pause between two looks
        status = client.poll()
        stop(client)
        out.seek(0)
        return status, out.read().decode(errors="replace"), seen


def ask(name, service, command, says=(), never=(), over_rdma=None, env=None, seconds=60):
    """One outcome: the client ends with status 0 and has said what it must. `over_rdma`: the server's program, whose
    queue pairs must have been seen to carry messages meanwhile; None: the client speaks plain TCP."""
    for _ in range(TRIES):  # a client may have come and gone between two looks at its queue pairs
        if not service.listens():
            outcome(False, service.place.name + name, "server does not listen: " + service.said())
            return ""
        status, text, seen = run_client(service.place, command, over_rdma, env, seconds)
        if status != 0 or not over_rdma or seen >= SEEN:
            break
    wrong = [] if status == 0 else ["status %s" % status]
    wrong += ["no %r" % word for word in says if not re.search(word, text, re.MULTILINE)]
    wrong += ["has %r" % word for word in never if re.search(word, text, re.MULTILINE)]
    if over_rdma and seen < SEEN:
        wrong.append("its queue pairs carried %d messages" % seen)
    if wrong:
        wrong.append("said: %s; server: %s" % (text[-300:], service.said()))
    outcome(not wrong, service.place.name + name, "; ".join(wrong))
    return text


def iperf3(place):
    if missing_program("iperf3"):
        return
    port = free_port()
    # Between two clients a server that stays has no listener for a moment.
    with Service("iperf3 -s -1 -p %d" % port, place, port, once=True) as service:
        def run(name, address, options, over_rdma):
            ask(name, service, "iperf3 -c %s -p %d %s" % (address, port, options), [r"receiver$"], ["error"], over_rdma)

        for options in ("", "-P 4", "-R", "--bidir", "-n 100M -l 1000", "-t 1 -w 64K"):
            length = "" if "-n" in options or "-t" in options else "-t 1 "
            run("iperf3 " + options, place.ipv4, length + options, "iperf3")
        run("iperf3 from a client that speaks TCP", place.ipv4, "-t 1", None)
        run("iperf3 -6", place.ipv6, "-6 -t 1", "iperf3")


REDIS_TESTS = ("PING_INLINE", "SET", "GET", "LPUSH", "LRANGE_100", "MSET")


def redis(place):
    if missing_program("redis-server", "redis-cli", "redis-benchmark"):
        return
    port = free_port()
    with folder() as path:
        command = "redis-server --port %d --bind %s --protected-mode no --save '' --appendonly no --dir %s --daemonize no"
        with Service(command % (port, place.ipv4, path), place, port) as service:
            at = "-h %s -p %d" % (place.ipv4, port)
            report = [r'"%s' % name for name in REDIS_TESTS]
            tests = ",".join(name.lower().split("_100")[0] for name in REDIS_TESTS)
            ask("redis-benchmark", service, "redis-benchmark %s -n 5000 -c 20 --csv -t %s" % (at, tests), report,
                ["rror"], "redis-server")
            ask("redis-benchmark -P 16 -d 4096", service,
                "redis-benchmark %s -n 100000 -c 4 -P 16 -d 4096 --csv -t set,get" % at, ['"SET"', '"GET"'], ["rror"],
                "redis-server")
            ask("redis-benchmark --threads 2", service,
                "redis-benchmark %s -n 40000 -c 10 --threads 2 --csv -t set,get" % at, ['"SET"', '"GET"'], ["rror"],
                "redis-server")
            ask("redis-benchmark over TCP", service, "redis-benchmark %s -n 2000 -c 5 --csv -t set,get" % at,
                ['"SET"', '"GET"'], ["rror"])
            redis_keeps(service, at, path)
            redis_dies(service, at)


def redis_cli(service, words, given=None, sockets=True):
    options = ["--sockets"] if sockets else []
    done = subprocess.run([*service.place.client, NUPA, "run", *options, "--", "redis-cli", *words], input=given,
                          capture_output=True, timeout=30)
    return done.stdout


def redis_keeps(service, at, path):
    """A large value comes back as it was, also after the server has forked to save it, and to one who speaks TCP."""
    value = os.urandom(FILE_BYTES)
    at = at.split()
    set_it = redis_cli(service, [*at, "-x", "set", "large"], value)
    redis_cli(service, [*at, "bgsave"])
    end = time.time() + 20
    info = b""
    while time.time() < end and b"rdb_bgsave_in_progress:0" not in info:
        info = redis_cli(service, [*at, "info", "persistence"])
    back = redis_cli(service, [*at, "get", "large"])
    plain = redis_cli(service, [*at, "get", "large"], sockets=False)
    ok = set_it.startswith(b"OK") and b"rdb_last_bgsave_status:ok" in info and back[:-1] == value and plain[:-1] == value
    saved = os.path.exists(os.path.join(path, "dump.rdb"))
    outcome(ok and saved, service.place.name + "redis keeps a value of 3 MB and saves it",
            "set %r, info %r, got %d and %d bytes, saved %s" % (set_it[:40], info[-80:], len(back), len(plain), saved))


def redis_dies(service, at):
    """A client of a server that is killed reports it and exits, as it does over TCP."""
    with tempfile.TemporaryFile() as out:
        client = start("redis-benchmark %s -n 100000000 -c 5 -q -t get" % at, None, out, service.place.client, ("--sockets",))
        # The client's own: the server's may be of clients before. One that is refused at its start never exits, not over TCP either.
        wait_for(lambda: messages("redis-benchmark") >= 100)
        os.killpg(service.process.pid, signal.SIGKILL)
        try:
            status = client.wait(30)
        except subprocess.TimeoutExpired:
            status = "still running"
        stop(client)
        out.seek(0)
        text = out.read().decode(errors="replace")
    reported = re.search("[Ee]rror|All clients disconnected", text)  # which one: whether it was reading or writing
    outcome(status == 1 and reported, service.place.name + "redis is killed", "status %s: %s" % (status, text[-200:]))


NGINX = """
daemon off;
worker_processes %(workers)d;
pid %(path)s/pid;
error_log stderr warn;
%(user)s
events { worker_connections 512; }
http {
  access_log off;
  sendfile on;
  client_body_temp_path %(path)s/body;
  proxy_temp_path %(path)s/proxy;
  fastcgi_temp_path %(path)s/fastcgi;
  uwsgi_temp_path %(path)s/uwsgi;
  scgi_temp_path %(path)s/scgi;
  server {
    listen %(address)s:%(port)d;
    root %(path)s/files;
  }
}
"""


def nginx(place):
    if missing_program("nginx", "wrk", "curl"):
        return
    with folder() as path:
        os.mkdir(os.path.join(path, "files"))
        for name, size in (("small", 612), ("large", FILE_BYTES)):
            with open(os.path.join(path, "files", name), "wb") as out:
                out.write(os.urandom(size))
        port = free_port()
        with open(os.path.join(path, "conf"), "w", encoding="utf-8") as out:
            user = "user root;" if os.geteuid() == 0 else ""
            out.write(NGINX % {"workers": 1, "path": path, "user": user, "address": place.ipv4, "port": port})
        url = "http://%s:%d" % (place.ipv4, port)
        with Service("nginx -p %s -c %s/conf" % (path, path), place, port) as service:
            for size in ("small", "large"):
                ask("wrk " + size, service, "wrk -t 2 -c 20 -d 1 %s/%s" % (url, size), [r"Requests/sec: +[1-9]"],
                    ["Socket errors", "Non-2xx"], "nginx")
            for title, sockets in (("curl", True), ("curl over TCP", False)):
                copy = os.path.join(path, "copy")
                command = [NUPA, "run", *(["--sockets"] if sockets else []), "--", "curl", "-sS", "-o", copy, url + "/large"]
                done = subprocess.run([*place.client, *command], capture_output=True, text=True, timeout=30)
                same = os.path.exists(copy) and filecmp.cmp(copy, os.path.join(path, "files", "large"), False)
                outcome(done.returncode == 0 and same, place.name + title, done.stderr)
                with contextlib.suppress(OSError):
                    os.unlink(copy)


def main():
    if not os.path.exists(SOCKETS) or not os.path.exists(LIBRARY):
        skip("sockets-programs", "the build has no " + SOCKETS)
        return
    one_host, two_hosts = places()
    for transport in transports():
        for place in (two_hosts if transport == "roce" else []) or one_host:
            for test in (iperf3, redis, nginx):
                test(place)
    remove_hosts()


if __name__ == "__main__":
    main()
    finish()
