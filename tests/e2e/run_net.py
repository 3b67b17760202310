#!/usr/bin/env python3
"""`nupa net`: programs that know only IP between nodes of a network, over the window and over packets; who is let in; and
what happens when nodes come and go."""
import concurrent.futures
import contextlib
import filecmp
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from nodes import CONFIG, NETWORK, Nodes, ip, wait_for
from pairs import ALL, NUPA, finish, missing_program, outcome, over, skip, stop, transports

CYCLES = 1000 if ALL else 20


def together(nodes):
    """All of them are up and know each other."""
    wrong = [done.stderr for done in (node.up(*peers_of(node, nodes)) for node in nodes) if done.returncode != 0]
    joined = wait_for(lambda: all(len(node.peers()) == len(nodes) - 1 for node in nodes))
    return "; ".join(wrong) or ("" if joined else "they do not find each other: %s" % [node.status() for node in nodes])


def peers_of(node, nodes):
    """Those that were there before, where they cannot be found in the runtime directory."""
    return [word for other in nodes if node.wire and other.number < node.number for word in ("--peer", other.host)]


def told(name, done, *wanted):
    """Outcome of a program that is to end well and to say something."""
    text = done.stdout + done.stderr
    lacks = [words for words in wanted if not re.search(words, text)]
    outcome(done.returncode == 0 and not lacks, name, "status %s, lacks %s: %s" % (done.returncode, lacks, text[-300:]))


@contextlib.contextmanager
def serving(node, *command):
    """A server on a node."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([*node.inside, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            yield process
        finally:
            stop(process)


def listens(node, port):
    return wait_for(lambda: ":%d " % port in node.run("ss", "-Htlna").stdout)


def ping(one, other):
    for address, label in ((other.ipv4, "ipv4"), (other.ipv6, "ipv6")):
        for size in (56, 1400, 20000, 65000):
            done = one.run("ping", "-q", "-c", "5", "-i", "0.02", "-W", "2", "-s", str(size), address)
            told("net-ping-%s-%d" % (label, size), done, r" 5 received, 0% packet loss")
    done = one.run("ping", "-q", "-c", "2", "-i", "0.02", "-W", "2", "-I", "nupa0", link_local(other))
    told("net-ping-link-local", done, r" 2 received")
    told("net-ping-nobody", one.run("sh", "-c", "! ping -c 1 -W 2 10.77.0.200"), "Unreachable")
    other.run("sysctl", "-q", "-w", "net.ipv4.icmp_echo_ignore_broadcasts=0")
    told("net-ping-broadcast", one.run("ping", "-b", "-c", "2", "-i", "0.1", "-W", "2", "10.77.0.255"), r" 2 received")
    told("net-ping-ipv6-group", one.run("ping", "-c", "2", "-i", "0.1", "-W", "2", "-I", "nupa0", "ff02::1"), r" 2 received")


def link_local(node):
    return re.search(r"inet6 (fe80::[0-9a-f:]+)/64", node.run("ip", "-6", "address", "show", "nupa0").stdout)[1]


def iperf3(one, other):
    if missing_program("iperf3"):
        return
    with serving(other, "iperf3", "-s"):
        listens(other, 5201)
        for options in ("", "-R", "-P 4", "--bidir", "-6", "-l 100", "-M 536", "-u -b 100M", "-u -b 200M -l 8000"):
            address = other.ipv6 if "-6" in options else other.ipv4
            for _ in range(3):  # the server may not be through with the client before
                done = one.run("iperf3", "-c", address, "-t", "1", "--json", *options.split())
                report = json.loads(done.stdout or "{}")
                if "error" not in report:
                    break
            end = report.get("end", {})
            rate = end.get("sum_received", end.get("sum", {})).get("bits_per_second", 0)
            outcome(done.returncode == 0 and rate > 1e6 and "error" not in report, "net-iperf3 " + options,
                    report.get("error", rate))


def programs(one, other):
    """nginx and curl, redis: what arrives is what was sent."""
    if not missing_program("nginx", "curl"):
        with tempfile.TemporaryDirectory(prefix="nupa-net-") as folder:
            os.chmod(folder, 0o755)
            large = os.path.join(folder, "large")
            with open(large, "wb") as out:
                out.write(os.urandom(30_000_017))
            with open(os.path.join(folder, "conf"), "w") as conf:
                conf.write("daemon off; pid %s/pid; error_log stderr; events {} http { access_log off; server { listen 8080; "
                           "listen [::]:8080; root %s; client_body_temp_path %s/b; proxy_temp_path %s/p; fastcgi_temp_path "
                           "%s/f; uwsgi_temp_path %s/u; scgi_temp_path %s/s; } }" % ((folder,) * 7))
            with serving(other, "nginx", "-c", os.path.join(folder, "conf")):
                listens(other, 8080)
                for address in (other.ipv4, "[%s]" % other.ipv6):
                    copy = os.path.join(folder, "copy")
                    done = one.run("curl", "-sSgf", "-o", copy, "http://%s:8080/large" % address)
                    same = done.returncode == 0 and filecmp.cmp(large, copy, False)
                    outcome(same, "net-nginx-curl " + address, done.stderr)
    if not missing_program("redis-server", "redis-benchmark"):
        with serving(other, "redis-server", "--port", "7000", "--bind", other.ipv4, "--protected-mode", "no", "--save", ""):
            listens(other, 7000)
            done = one.run("redis-benchmark", "-h", other.ipv4, "-p", "7000", "-n", "5000", "-c", "20", "--csv", "-t", "set,get")
            told("net-redis-benchmark", done, '"SET"', '"GET"')


def seen(one, other, transport):
    status = one.status()
    peer = one.peers()[other.name]
    outcome(peer["transport"] == transport and peer["sent"]["bytes"] > 1e6 and peer["received"]["bytes"] > 1e6, "net-status", peer)
    outcome(0 < peer["round_trip_us"] < 1e6, "net-status-round-trip", peer)
    thrown = {why: count for why, count in peer["dropped"].items() if count}
    outcome(not thrown and status["strangers"] == 0, "net-nothing-is-thrown-away", "%s %s" % (thrown, status["strangers"]))
    said = one.run(NUPA, "net", "status", NETWORK).stdout
    outcome(all(word in said for word in (one.name, other.name, transport, "nupa0")), "net-status-for-people", said)


def idle(one):
    """No processor time without packets."""
    def used():
        with open("/proc/%d/stat" % one.pid()) as stat:
            return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
    before = used()
    time.sleep(2)
    outcome(used() - before <= 2, "net-idle-costs-nothing", "%d ticks in two seconds" % (used() - before))


def sources(one, other):
    """Who speaks in another's name is not heard."""
    one.run("ip", "address", "add", "10.77.0.99/32", "dev", "nupa0")
    before = other.peers()[one.name]["dropped"]["wrong_source"]
    one.run("ping", "-c", "3", "-i", "0.02", "-W", "1", "-I", "10.77.0.99", other.ipv4)
    after = other.peers()[one.name]["dropped"]["wrong_source"]
    outcome(after - before == 3, "net-wrong-sources-are-dropped", "%d of 3" % (after - before))
    one.run("ip", "address", "del", "10.77.0.99/32", "dev", "nupa0")


def mtu(one, other):
    """The other node comes back with a smaller one: TCP finds out, and what may be cut is cut."""
    other.down()
    again = other.up("--mtu", "1400", *peers_of(other, [one, other]))
    wait_for(lambda: one.peers().get(other.name, {}).get("mtu") == 1400)
    done = one.run("ping", "-c", "3", "-i", "0.05", "-W", "2", "-M", "do", "-s", "2000", other.ipv4)
    outcome("mtu" in done.stdout.lower() and "1400" in done.stdout, "net-mtu-is-told", again.stderr + done.stdout + done.stderr)
    told("net-mtu-cut", one.run("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "-M", "dont", "-s", "3000", other.ipv4),
         " 3 received")
    told("net-mtu-ipv6", one.run("ping", "-q", "-c", "3", "-i", "0.05", "-W", "2", "-s", "3000", other.ipv6), "received")
    if not missing_program("iperf3"):
        with serving(other, "iperf3", "-s"):
            listens(other, 5201)
            for way in ((), ("-R",)):
                told("net-mtu-iperf3 " + " ".join(way), one.run("iperf3", "-c", other.ipv4, "-t", "1", *way), "receiver")
    other.down()
    other.up(*peers_of(other, [one, other]))
    outcome(wait_for(lambda: one.peers().get(other.name, {}).get("mtu") == 65520) is not None, "net-mtu-grows-again")


def restarts(one, other):
    """A connection of TCP outlives an end of either node's process."""
    if missing_program("iperf3"):
        return
    for victim in (one, other):
        with serving(other, "iperf3", "-s"):
            listens(other, 5201)
            with tempfile.TemporaryFile("w+") as out:
                client = subprocess.Popen([*one.inside, "iperf3", "-c", other.ipv4, "-t", "4", "--json"], stdout=out,
                                          stdin=subprocess.DEVNULL, start_new_session=True)
                time.sleep(1)
                # The interface goes with the process: its address has to come back for the connection to go on.
                os.kill(victim.pid(), signal.SIGKILL)
                again = victim.up(*peers_of(victim, [one, other]))
                try:
                    status = client.wait(40)
                except subprocess.TimeoutExpired:
                    status = "still running"
                stop(client)
                out.seek(0)
                report = json.loads(out.read() or "{}")
                rates = [one_second["sum"]["bits_per_second"] for one_second in report.get("intervals", [])]
                outcome(status == 0 and rates and rates[-1] > 1e6, "net-tcp-outlives-kill-9-of-%s" % victim.name,
                        "%s %s %s %s" % (again.stderr, status, report.get("error"), rates))
        wait_for(lambda: one.peers().get(other.name))


def two_nodes(transport):
    with Nodes(2, wire=transport == "roce") as nodes:
        one, other = nodes
        reason = together(nodes)
        outcome(not reason, "net-up", reason)
        if reason:
            return
        ping(one, other)
        iperf3(one, other)
        programs(one, other)
        seen(one, other, transport)
        idle(one)
        sources(one, other)
        mtu(one, other)
        restarts(one, other)
        down = [node.down() for node in nodes]
        left = [node.run("ip", "link", "show", "nupa0").returncode for node in nodes]
        outcome(all(done.returncode == 0 for done in down) and all(left), "net-down", "%s %s" % (down, left))
        kept = [name for node in nodes for name in os.listdir(node.directory)]
        outcome(kept == [], "net-leaves-nothing", kept)


def eight_nodes():
    with Nodes(8) as nodes:
        reason = together(nodes)
        outcome(not reason, "net-eight-nodes", reason)
        if reason:
            return
        lost = [(one.number, other.number) for one in nodes for other in nodes if one is not other and not reaches(one, other)]
        outcome(not lost, "net-eight-nodes-each-reaches-each", lost)
        killed = nodes[3]
        os.kill(killed.pid(), signal.SIGKILL)
        gone = wait_for(lambda: all(killed.name not in node.peers() for node in nodes if node is not killed))
        outcome(gone, "net-a-killed-node-is-noticed")
        killed.up()
        back = wait_for(lambda: all(len(node.peers()) == 7 for node in nodes))
        outcome(back, "net-a-killed-node-comes-back")


def started_at_once(transport):
    """Each asks the other one: of two connections one stays, at both ends the same."""
    with Nodes(2, wire=transport == "roce") as nodes:
        silent = []
        for turn in range(200 if ALL else 20):
            with concurrent.futures.ThreadPoolExecutor(len(nodes)) as pool:
                ups = list(pool.map(lambda node: node.up(*others_of(node, nodes)), nodes))
            reached = [wait_for(lambda one=one, other=other: reaches(one, other), 5) for one in nodes for other in nodes if one is not other]
            if not all(reached):
                silent.append((turn, [done.stderr for done in ups], [node.status()["peers"] for node in nodes]))
            for node in nodes:
                node.down()
        outcome(not silent, "net-started-at-once", silent[:1])


def reaches(one, other):
    return one.run("ping", "-q", "-c", "1", "-W", "1", other.ipv4).returncode == 0


def others_of(node, nodes):
    return [word for other in nodes if node.wire and other is not node for word in ("--peer", other.host)]


def strangers():
    with Nodes(3) as (one, other, third):
        reason = together([one, other])
        key = os.path.join(CONFIG, "other.key")
        with open(key, "w") as out:
            out.write(subprocess.run([NUPA, "net", "key"], capture_output=True, text=True).stdout)
        os.chmod(key, 0o644)
        done = third.up("--key-file", key)
        outcome(done.returncode != 0 and "open to others" in done.stderr, "net-key-open-to-others", done.stderr)
        os.chmod(key, 0o600)
        third.up("--key-file", key)
        time.sleep(1)
        counted = [node.status()["strangers"] for node in (one, other)]
        known = third.status()
        outcome(not reason and min(counted) > 0 and not known["peers"] and not one.peers().get("n3"), "net-wrong-key", counted)
        outcome(known["asked"] and all("key" in asked["why"] for asked in known["asked"]), "net-wrong-key-is-told", known["asked"])
        third.down()
        done = third.up(address=("--addr", one.ipv4 + "/24"))
        refused = wait_for(lambda: any("is node n1's" in asked["why"] for asked in (third.status() or {"asked": []})["asked"]))
        outcome(refused, "net-an-address-twice-is-refused", done.stderr + str(third.status()))
        third.down()
        done = subprocess.run([*third.inside, NUPA, "net", "up", NETWORK, "--node", "n1", "--addr", "10.77.0.3/24", "--detach"],
                              capture_output=True, text=True)
        outcome(done.returncode != 0 and "a node of this name" in done.stderr, "net-a-name-twice-is-refused", done.stderr)
        outcome(len(one.peers()) == 1 and len(other.peers()) == 1, "net-the-others-go-on")
        for node in (one, other):
            node.down()


def cycles():
    """Nothing grows at the one that stays, and nothing is left."""
    with Nodes(2) as (one, other):
        one.up()
        pid = one.pid()

        def grown():
            with open("/proc/%d/status" % pid) as status:
                kilobytes = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])
            return len(os.listdir("/proc/%d/fd" % pid)), kilobytes
        bad, first = [], None
        for turn in range(CYCLES):
            done = other.up()
            if done.returncode != 0 or not wait_for(lambda: other.peers().get("n1")):
                bad.append("turn %d: %s" % (turn, done.stderr))
                break
            other.down()
            if turn == 4:
                wait_for(lambda: not one.peers())
                first = grown()
        wait_for(lambda: not one.peers())
        last = grown()
        outcome(not bad, "net-%d-times-up-and-down" % CYCLES, bad)
        outcome(first and last[0] <= first[0] and last[1] < first[1] + 8192, "net-up-and-down-grows-nothing", "%s then %s" % (first, last))
        one.down()
        left = os.listdir(one.directory) + [name for name in os.listdir("/dev/shm") if "nupa-net" in name]
        outcome(left == [], "net-up-and-down-leaves-nothing", left)


def of_an_ordinary_user():
    """In a user namespace of its own, where it has the capability."""
    prefix = () if os.geteuid() != 0 else ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
    if subprocess.run([*prefix, "unshare", "-Urn", "true"], capture_output=True).returncode != 0:
        return skip("net-of-a-user", "user namespaces are not allowed")
    if subprocess.run([*prefix, NUPA, "--version"], capture_output=True).returncode != 0:
        return skip("net-of-a-user", "the build folder is closed to other users")
    if not os.stat("/dev/net/tun").st_mode & 0o002:
        return skip("net-of-a-user", "/dev/net/tun is closed to other users")
    with tempfile.TemporaryDirectory(prefix="nupa-net-") as folder:
        if prefix:
            os.chown(folder, 65534, 65534)
        script = ("for i in 1 2; do unshare -n sh -c 'ip link set lo up; echo $$ > {f}/$0; exec sleep 60' $i & done; "
                  "while [ ! -s {f}/1 ] || [ ! -s {f}/2 ]; do sleep 0.1; done; "
                  "for i in 1 2; do nsenter -t $(cat {f}/$i) -n {n} net up lab --addr 10.77.0.$i/24 --detach || exit 1; done; "
                  "until {n} net status lab --json | grep -c '\"up\"' | grep -qx 2; do sleep 0.1; done; "
                  "nsenter -t $(cat {f}/1) -n ping -q -c 3 -i 0.1 -W 5 10.77.0.2; status=$?; "
                  "{n} net down --all; kill $(cat {f}/1 {f}/2); exit $status").format(f=folder, n=NUPA)
        done = subprocess.run([*prefix, "unshare", "-Urn", "sh", "-c", script], capture_output=True, text=True, timeout=60,
                              env=dict(os.environ, NUPA_RUNTIME_DIR=os.path.join(folder, "run"), XDG_CONFIG_HOME=folder))
        told("net-of-a-user", done, "3 received")
    done = subprocess.run([*prefix, NUPA, "net", "up", "lab", "--addr", "10.77.0.1/24"] if prefix else ["false"],
                          capture_output=True, text=True, timeout=30,
                          env=dict(os.environ, NUPA_RUNTIME_DIR="/tmp/nupa-net-%d" % os.getpid(), XDG_CONFIG_HOME="/tmp/nupa-net-%d" % os.getpid()))
    if prefix:
        subprocess.run(["rm", "-rf", "/tmp/nupa-net-%d" % os.getpid()])
        outcome(done.returncode == 1 and "CAP_NET_ADMIN" in done.stderr, "net-without-the-capability", done.stderr)
    return None


def main():
    if "no network device" in subprocess.run([NUPA, "net"], capture_output=True, text=True).stderr:
        return skip("net", "this build has no network device")
    if not os.path.exists("/dev/net/tun"):
        return skip("net", "there is no /dev/net/tun")
    of_an_ordinary_user()
    if os.geteuid() != 0 or ip("netns", "add", "nupa-net-probe-%d" % os.getpid()).returncode != 0:
        return skip("net-between-namespaces", "needs root and network namespaces")
    ip("netns", "delete", "nupa-net-probe-%d" % os.getpid())
    for transport in transports():
        two_nodes(transport)
        started_at_once(transport)
    eight_nodes()
    strangers()
    cycles()
    left = [name for name in ip("netns", "list").stdout.split() if name.startswith("nupa-net-%d" % os.getpid())]
    return outcome(left == [], "net-leaves-no-namespace", left)


main()
finish()
