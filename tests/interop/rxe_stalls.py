# SPDX-License-Identifier: Apache-2.0
"""How long the programs of a test got no processor at a stretch."""
import contextlib
import os
import threading
import time

PAUSE = 0.05  # seconds between two samples: shorter than a stall that counts, so that short waits do not add up to one


def waits_of(pid):
    """Returns {thread: seconds in which it waited for a processor since it began} (proc_pid_schedstat(5)). The kernel adds a wait
    when it ends, so a stall is in one sample as a whole."""
    waits = {}
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/%d/task" % pid):
            with contextlib.suppress(OSError), open("/proc/%d/task/%s/schedstat" % (pid, thread), encoding="ascii") as file:
                waits[pid, thread] = int(file.read().split()[1]) / 1e9
    return waits


class Stalls:
    """Samples the programs that `pids` returns, in a thread of this script. A sample that comes late counts as well, because then
    this machine itself got no processor."""

    def __init__(self, pids):
        self._pids = pids
        self._lock = threading.Lock()
        self._waits, self._last, self._longest = {}, None, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def note(self, waits, now):
        """Takes a sample: what waits_of() returns, of all programs, and the time. Returns the longest stall since the sample before it."""
        with self._lock:
            stall = max([wait - self._waits[thread] for thread, wait in waits.items() if thread in self._waits], default=0.0)
            if self._last is not None:
                stall = max(stall, now - self._last - PAUSE)
            self._waits, self._last = waits, now
            self._longest = max(self._longest, stall)
            return stall

    def begin(self):
        """Begins a new measurement."""
        with self._lock:
            self._longest = 0.0

    def longest(self):
        """Returns the longest stall in seconds since begin()."""
        with self._lock:
            return self._longest

    def wait_calm(self, limit, calm=1.0, seconds=30):
        """Waits until no stall of `limit` has been seen for `calm` seconds. Returns whether that came within `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.begin()
            if self._over.wait(calm):
                return False
            if self.longest() < limit:
                return True
        return False

    def _sample(self):
        waits = {}
        for pid in self._pids():
            waits.update(waits_of(pid))
        self.note(waits, time.monotonic())

    def _run(self):
        while not self._over.wait(PAUSE):
            self._sample()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
