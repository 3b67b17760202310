# SPDX-License-Identifier: Apache-2.0
"""A network namespace of this machine with a tap, and programs that run in it."""
import contextlib
import os
import re
import signal
import subprocess
import tempfile

from guest.commands import finish_within
from guest.packages import call

ROCE_PORT = 4791


class HostProcess:
    """A program in the namespace; the same calls as those of GuestProcess."""

    def __init__(self, command, env=None):
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._said,
                                         stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})),
                                         start_new_session=True)
        self.pid = self._process.pid

    def poll(self):
        """The status; None while it runs."""
        return self._process.poll()

    def wait(self, timeout=None):
        """The status; subprocess.TimeoutExpired when it runs on."""
        return self._process.wait(timeout)

    def output(self):
        """What it has said so far."""
        size = os.fstat(self._said.fileno()).st_size
        return os.pread(self._said.fileno(), size, 0).decode(errors="replace")

    def kill(self):
        """Ends it and what it started; harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.killpg(self.pid, signal.SIGKILL)
        self.wait()


class Wire:
    """A network namespace with a tap that stands for the cable to the guest."""

    def __init__(self, namespace, tap, address, address6, mtu):
        self.namespace, self.tap, self.address, self.address6 = namespace, tap, address, address6
        self._processes = []
        call("ip", "netns", "add", namespace)
        try:
            for words in (["link", "set", "lo", "up"], ["tuntap", "add", "dev", tap, "mode", "tap"],
                          ["address", "add", address, "dev", tap], ["address", "add", address6, "dev", tap, "nodad"],
                          ["link", "set", tap, "mtu", str(mtu), "up"]):
                call("ip", "-n", namespace, *words)
        except BaseException:
            self.remove()
            raise

    def inside(self, *command):
        """The command that runs a command in the namespace. It ends with the thread that starts it: a killed test
        leaves no virtual machine."""
        return ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", *command]

    def spawn(self, command, env=None):
        """Starts a program (list of words) in the namespace; it is ended when the wire is removed, if not before."""
        process = HostProcess(self.inside(*command), env)
        self._processes.append(process)
        return process

    def run(self, command, timeout=30, env=None):
        """Runs a program in the namespace to its end: (status, output)."""
        return finish_within(self.spawn(command, env), timeout)

    def pids(self):
        """The processes that were started in the namespace and have not ended."""
        return [process.pid for process in list(self._processes) if process.poll() is None]

    def set_mtu(self, mtu):
        call("ip", "-n", self.namespace, "link", "set", self.tap, "mtu", str(mtu))

    def set_loss(self, one_in):
        """Loses one RoCEv2 packet in `one_in` of those that arrive here, at random; 0: none."""
        rule = "table netdev loss { chain arriving { type filter hook ingress device %s priority 0; " % self.tap
        rule += "udp dport %d numgen random mod %d == 0 counter drop; }; }" % (ROCE_PORT, max(one_in, 1))
        # The table is declared before it is deleted, since deleting one that is not there is an error.
        self._nft("table netdev loss; delete table netdev loss; " + (rule if one_in else ""))

    def lost(self):
        """Packets lost since set_loss()."""
        counted = re.search(r"counter packets (\d+)", self._nft("list ruleset"))
        return int(counted.group(1)) if counted else 0

    def _nft(self, rules):
        return call("ip", "netns", "exec", self.namespace, "nft", rules)

    def remove(self):
        """Ends what runs in the namespace and deletes it."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        left = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)
