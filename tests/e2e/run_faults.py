#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What happens when a peer dies, stops, or the machine is short of something. NUPA_FAULT_ROUNDS: kills (default 40 where
all is wanted, else 16)."""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from pairs import ALL, NUPA, finish, free_port, last_line, nupa, outcome, start, stop, suspend, transports, wait_for, \
    wait_listening

ROUNDS = int(os.environ.get("NUPA_FAULT_ROUNDS", "40" if ALL else "16"))
SEED = int(os.environ.get("NUPA_FAULT_SEED", str(random.SystemRandom().randrange(1 << 30))))
random.seed(SEED)
os.environ["NUPA_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="nupa-faults-")


def leftovers():
    done = subprocess.run([NUPA, "clean", "--dry-run"], capture_output=True, text=True, timeout=30)
    return [line for line in done.stdout.splitlines() if line.startswith("would remove") and "/tree-" not in line
            and not line.endswith("/port-counts")]


def states_of(pid):
    done = subprocess.run([NUPA, "stat", "--json"], capture_output=True, text=True, timeout=30)
    return [row["state"] for row in json.loads(done.stdout) if row["pid"] == pid]


def real_pid(process):
    return process.pid  # nupa run replaces itself by the program


def pair(command):
    port = free_port()
    base = "%s -d nupa0 -p %d" % (command, port)
    outs = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]
    server = start(base, out=outs[0])
    if not wait_listening(port, server):
        stop(server)
        return None
    client = start(base + " 127.0.0.1", out=outs[1])
    return server, client, outs


def waits_for_a_client(server):
    """One whose client died before it ever spoke waits in accept(): no queue pair knows of a peer yet."""
    return all(state in ("RESET", "INIT") for state in states_of(server.pid))


def ended(process, seconds):
    """Its status; None: it still runs."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def kill_server(command, name, rounds, patience=5):
    """The client, which sends all the time, must end by itself, with an error; and nothing stays behind. `patience`:
    seconds before a look whether it waits for a server; one that does not is given more. Returns how long each of
    those took that ended."""
    took, bad = [], []
    for turn in range(rounds):
        started = pair(command)
        if started is None:
            bad.append("round %d: server did not start" % turn)
            break
        server, client, outs = started
        victim, survivor = server, client
        time.sleep(random.uniform(0.0, 0.25))  # sleep: the kill comes at a random moment
        os.kill(real_pid(victim), signal.SIGKILL)
        killed_at = time.time()
        status = ended(survivor, patience)
        if status is None and not waits_for_a_client(survivor):
            status = ended(survivor, 30)
            if status is None:
                bad.append("round %d: survivor hangs: %s" % (turn, last_line(outs[survivor is client])))
        if status is not None:
            took.append(time.time() - killed_at)
            if status < 0:
                bad.append("round %d: survivor ended by signal %d" % (turn, -status))
            if status == 0:
                bad.append("round %d: survivor saw no error" % turn)
        stop(server)
        stop(client)
        left = leftovers()
        if status is None:  # then both were killed, and nobody was left to tidy up
            subprocess.run([NUPA, "clean"], capture_output=True)
        elif left:
            bad.append("round %d: left behind %s" % (turn, left))
            subprocess.run([NUPA, "clean"], capture_output=True)
        if len(bad) > 3:
            break
    outcome(not bad, name, "seed %d: %s" % (SEED, "; ".join(bad)))
    return took


def kill_either(command, name, rounds):
    """Of a ping-pong one end waits for the other. As with an adapter it learns of the death when it sends next, which it
    may never do: until then its queue pair stays as it is."""
    bad = []
    for turn in range(rounds):
        started = pair(command)
        if started is None:
            bad.append("round %d: server did not start" % turn)
            break
        server, client, _ = started
        victim, survivor = (server, client) if turn % 2 else (client, server)
        wait_for(lambda: (messages_of(survivor) or 0) > 10)
        os.kill(real_pid(victim), signal.SIGKILL)
        victim.wait()
        # A process that has seen a death removes what the dead one left.
        if not wait_for(lambda: survivor.poll() is not None or not leftovers()):
            bad.append("round %d: left behind %s" % (turn, leftovers()))
        states = states_of(survivor.pid)
        if survivor.poll() is None and states != ["RTS"]:
            if ended(survivor, 30) is None:
                bad.append("round %d: survivor waits with a queue pair in %s" % (turn, states))
        if survivor.poll() is not None and survivor.poll() <= 0:
            bad.append("round %d: survivor ended with %d" % (turn, survivor.poll()))
        stop(server)
        stop(client)
        subprocess.run([NUPA, "clean"], capture_output=True)
        if len(bad) > 3:
            break
    outcome(not bad, name, "seed %d: %s" % (SEED, "; ".join(bad)))


def messages_of(process):
    """What its queue pairs have sent so far; None: it has none."""
    rows = json.loads(nupa("stat", "--json").stdout or "[]")
    counts = [row["messages"] for row in rows if row["pid"] == process.pid]
    return sum(counts) if counts else None


def stop_and_continue(command):
    """The command ends by its clock, however slow the machine is."""
    started = pair(command)
    if started is None:
        return outcome(False, "sigstop-sigcont", "server did not start")
    server, client, outs = started
    flows = wait_for(lambda: (messages_of(client) or 0) > 10)
    suspend(server)
    # Who has no processor for half a second is not seen.
    before = wait_for(lambda: messages_of(client))
    time.sleep(1.0)  # sleep: no more messages come for so long while the server is stopped
    during = wait_for(lambda: messages_of(client))
    os.kill(real_pid(server), signal.SIGCONT)

    def grown():
        now = messages_of(client) or 0
        return now if now > (during or 0) else None

    after = wait_for(grown)
    statuses = []
    for process in (client, server):
        try:
            statuses.append(process.wait(60))
        except subprocess.TimeoutExpired:
            statuses.append("still running")
    # What waits for an answer sends one at most, which it may have been about to.
    stands = before is not None and during is not None and during - before <= 1
    outcome(flows and stands and after and statuses == [0, 0], "sigstop-sigcont",
            "%s then %s while it was stopped, %s after it; %s; %s" %
            (before, during, after, statuses, [last_line(out) for out in outs]))
    stop(server)
    stop(client)
    return None


def limited(name, setup, expected):
    """A program under a limit gets an error from the call concerned and lives to report it."""
    done = subprocess.run(["bash", "-c", setup + "; exec %s run -- ibv_devinfo" % NUPA], capture_output=True, text=True,
                          timeout=30)
    text = done.stdout + done.stderr
    outcome(done.returncode >= 0 and done.returncode < 128 and expected in text, name,
            "status %d: %s" % (done.returncode, text[-200:]))


def hostile(name, prepare, expected):
    folder = tempfile.mkdtemp(prefix="nupa-hostile-")
    path = prepare(folder)
    env = dict(os.environ, NUPA_RUNTIME_DIR=path)
    done = subprocess.run([NUPA, "run", "--", "ibv_devinfo"], capture_output=True, text=True, timeout=30, env=env)
    text = done.stdout + done.stderr
    outcome(0 <= done.returncode < 128 and expected in text, name, "status %d: %s" % (done.returncode, text[-300:]))
    shutil.rmtree(folder, ignore_errors=True)


def with_mode(folder):
    os.chmod(folder, 0o777)
    return folder


def with_link(folder):
    os.mkdir(folder + "/real", 0o700)
    os.symlink(folder + "/real", folder + "/link")
    return folder + "/link"


def with_file(folder):
    open(folder + "/plain", "w").close()
    return folder + "/plain"


def with_garbage(folder):
    for junk in ("17.sock", "garbage", "0.sock", "99999.sock", "abc.sock"):
        with open(os.path.join(folder, junk), "w") as text:
            text.write("junk")
    os.mkdir(folder + "/33.sock")
    return folder


def with_owner(folder):
    os.chown(folder, 65534, 65534)
    return folder


for transport in transports():
    shm = transport == "shm"
    # Only who sends can know that the other end is gone, as with an adapter.
    for command, name in (("ib_write_bw -F -x 1 -s 4096 -D 60", "kill-9-polling"),
                          ("ib_send_bw -F -x 1 -s 4096 -n 3000000 -e", "kill-9-sleeping")):
        took = kill_server(command, name, ROUNDS if shm else ROUNDS // 2, patience=5 if shm else 20)
        # Now and then one has to wait for a processor.
        if shm:
            outcome(took and statistics.median(took) < 2.0, name + "-soon", "seconds: %s" % took)
    if shm:
        kill_either("ibv_rc_pingpong -g 1 -n 100000000", "kill-9-either", ROUNDS // 4)
    # A process that is stopped acknowledges no packets, so the timeout (-u 18: 1 s, eight times) has to be longer.
    stop_and_continue("ib_write_lat -F -x 1 -D 12" if shm else "ib_write_lat -F -x 1 -u 18 -D 12")
limited("limit-files", "ulimit -n 8", "Failed")
limited("limit-file-size", "ulimit -f 1024", "Failed")
limited("limit-address-space", "ulimit -v 60000", "Failed")
hostile("runtime-dir-open-to-others", with_mode, "open to other users")
hostile("runtime-dir-symlink", with_link, "Failed")
hostile("runtime-dir-plain-file", with_file, "Failed")
hostile("runtime-dir-garbage", with_garbage, "PORT_ACTIVE")
if os.geteuid() == 0:
    hostile("runtime-dir-other-owner", with_owner, "belongs to user 65534")
shutil.rmtree(os.environ["NUPA_RUNTIME_DIR"], ignore_errors=True)
finish()
