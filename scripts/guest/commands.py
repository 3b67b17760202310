# SPDX-License-Identifier: Apache-2.0
"""Commands that run in a guest. Each serial port of the guest takes one command at a time."""
import contextlib
import queue
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time

from guest.packages import GuestError

TIMED_OUT = -1000  # the status of a command that was killed because it took too long, as in tests/e2e/pairs.py
GUEST_GONE = -1001  # the status of a command whose guest ended before it

# One line "TOKEN COMMAND" comes in; "TOKEN pid N", the command's output and "TOKEN status N" go out. /bin/sh has its
# path since busybox's setsid would run busybox's own shell by the name alone.
SERVE_COMMANDS = r"""#!/bin/sh
exec 3<>"$1"
echo ready >&3
while read -r token command <&3; do
  setsid /bin/sh -c 'echo "$1 pid $$"; exec sh -c "$2"' sh "$token" "$command" </dev/null >&3 2>&1 3>&- &
  wait $!
  printf '\n%s status %s\n' "$token" "$?" >&3
done
"""


def end_by_exception():
    """Makes SIGTERM and SIGHUP end this program as sys.exit() does, so that `with` blocks clean up. Further signals are ignored."""
    numbers = (signal.SIGTERM, signal.SIGHUP)

    def leave(received, _):
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + received)

    for number in numbers:
        signal.signal(number, leave)


def finish_within(process, timeout):
    """(status, output) of a process. It is killed when it takes longer, and the status is TIMED_OUT."""
    try:
        return process.wait(timeout), process.output()
    except subprocess.TimeoutExpired:
        process.kill()
        return TIMED_OUT, process.output()


class Channel:
    """This machine's side of one serial port of the guest, by a socket to the emulator."""

    def __init__(self, connected):
        self.socket = connected

    @classmethod
    def at(cls, path, deadline):
        """Connects to the emulator, which opens the socket soon after its start."""
        one = socket.socket(socket.AF_UNIX)
        while True:
            try:
                one.connect(path)
                return cls(one)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)  # sleep: the pause between two attempts to connect

    def wait_ready(self, deadline, emulator):
        """False when the emulator has ended or time is up before the guest listens here."""
        said = b""
        while b"ready\n" not in said:
            if emulator.poll() is not None or time.monotonic() > deadline:
                return False
            if select.select([self.socket], [], [], 0.1)[0]:
                said += self.socket.recv(64)
        return True


class GuestProcess:
    """A command that runs in the guest."""

    def __init__(self, runner, channel, command):
        self._runner, self._channel, self._command = runner, channel, command
        self._token = secrets.token_hex(8).encode()
        self._raw = bytearray()
        self._ended = threading.Event()
        self._status = None
        with contextlib.suppress(OSError):  # the guest has ended: then there is nothing to read either
            channel.socket.sendall(self._token + b" " + command.encode() + b"\n")
        threading.Thread(target=self._read, daemon=True).start()

    def poll(self):
        """The status; None while it runs."""
        return self._status if self._ended.is_set() else None

    def wait(self, timeout=None):
        """The status, 128 + N after signal N, GUEST_GONE when the guest has ended; subprocess.TimeoutExpired when the
        command runs on."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self._command, timeout)
        return self._status

    def output(self):
        """What it has said so far."""
        _, _, said = bytes(self._raw).partition(self._token + b" pid ")
        _, _, said = said.partition(b"\n")
        return said.partition(b"\n" + self._token + b" status ")[0].decode(errors="replace")

    def kill(self):
        """Ends it and what it started; harmless when it has ended."""
        for _ in range(3):
            pid = re.search(self._token + rb" pid (\d+)\n", bytes(self._raw))
            if self._ended.is_set():
                return
            if pid:
                self._runner.run("kill -s KILL -- -%s" % pid.group(1).decode(), 20)
            self._ended.wait(5 if pid else 1)

    def _read(self):
        end = re.compile(b"\n" + self._token + rb" status (\d+)\n")
        found = None
        while not found:
            try:
                piece = self._channel.socket.recv(65536)
            except OSError:
                piece = b""
            if not piece:
                break
            self._raw += piece
            # Only what is new can hold the mark, which may have come in two pieces.
            found = end.search(self._raw, max(0, len(self._raw) - len(piece) - 64))
        self._status = int(found.group(1)) if found else GUEST_GONE
        self._ended.set()
        if found:
            self._runner.release(self._channel)


class CommandRunner:
    """Runs commands in a guest, as many at a time as it has channels. A guest derives it."""

    def __init__(self):
        self._free = queue.Queue()
        self._channels = []

    def why_ended(self):
        """Why the guest takes no commands. Empty while it runs."""
        raise NotImplementedError

    def run(self, command, timeout=30):
        """Runs a shell command in the guest to its end: (status, output). Killed after `timeout` seconds with the
        status TIMED_OUT."""
        return finish_within(self.spawn(command), timeout)

    def spawn(self, command):
        """Starts a shell command (one line) in the guest."""
        if "\n" in command:
            raise ValueError("a command is one line")
        reason = self.why_ended()
        if reason:
            raise GuestError(reason)
        try:
            channel = self._free.get(timeout=10)
        except queue.Empty:
            raise GuestError("more than %d commands at a time" % len(self._channels)) from None
        return GuestProcess(self, channel, command)

    def wait_listening(self, port, process, seconds=20):
        """True once a TCP socket of the guest listens on the port; False when the process, which should open it, has
        ended."""
        return self.wait_for("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':%04X [0-9A-F]*:[0-9A-F]* 0A '" % port,
                             process, seconds)

    def wait_for(self, look, process, seconds):
        """True once the command `look` succeeds in the guest; False when the process has ended, or time is up."""
        end = time.monotonic() + seconds
        # sleep: the pause between two looks, within the guest
        wait = "for turn in $(seq 20); do %s && exit 0; usleep 50000; done; exit 1" % look
        while time.monotonic() < end and process.poll() is None:
            if self.run(wait)[0] == 0:
                return True
        return False

    def release(self, channel):
        """A command has ended: its channel may take the next."""
        if channel in self._channels:
            self._free.put(channel)

    def take(self, channels, deadline, emulator):
        """Uses these channels once the guest listens on them. False: it does not in time, or the emulator has ended."""
        self._channels += channels
        for channel in channels:
            if not channel.wait_ready(deadline, emulator):
                return False
            self._free.put(channel)
        return True

    def close(self):
        for channel in self._channels:
            channel.socket.close()
        self._channels, self._free = [], queue.Queue()
