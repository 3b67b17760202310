#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Storage over NUPA by unmodified programs: tgt serves a block device by iSER, which QEMU's programs and, through qemu-nbd,
fio use with verification; fio's own rdma engine with job files of several jobs."""
import os
import shutil
import subprocess
import sys
from cm_pairs import LIBRARY, folder, meet, places
from hosts import remove_hosts
from pairs import ALL, NUPA, ROOT, finish, free_port, outcome, skip, start, started, stop, transports, wait_for

STORAGE = os.path.join(ROOT, "examples", "storage")
sys.path.insert(0, STORAGE)
from iscsi_target import LIMIT, Failed, Target, missing_programs  # noqa: E402

IMAGE_BYTES = 64 << 20
SERVE_SECONDS = 20
LOGINS = 20 if ALL else 8


def run(place, program, *arguments, env=None, seconds=90):
    """What is wrong with its end; empty: nothing."""
    started("nupa run -- " + " ".join([program, *arguments]))
    try:
        done = subprocess.run([*place.client, NUPA, "run", "--", program, *arguments], capture_output=True, text=True,
                              timeout=seconds, stdin=subprocess.DEVNULL, env=dict(os.environ, **(env or {})))
    except subprocess.TimeoutExpired as late:
        return "still running: %s" % (late.stdout or b"")[-200:]
    said = done.stdout + done.stderr
    return "" if done.returncode == 0 and "failed" not in said else "status %d: %s" % (done.returncode, said[-300:])


def block_device(place):
    lacking = missing_programs()
    if lacking:
        return skip("iscsi", "not installed: " + " ".join(lacking))
    with folder() as path:
        image, pattern = os.path.join(path, "image"), os.path.join(path, "pattern")
        with open(image, "wb") as out:
            out.truncate(IMAGE_BYTES)
        with open(pattern, "wb") as out:
            out.write(os.urandom(LIMIT))
        try:
            with Target([NUPA, "run", "--"], place.ipv4, image, place.server) as target:
                use(place, target, image, pattern)
        except Failed as failure:
            outcome(False, place.name + "tgtd", failure)
    return None


def use(place, target, image, pattern):
    device = target.options("iser")
    # A login each time: what comes right behind its answer must not overtake it.
    wrong = [why for why in (run(place, "qemu-img", "bench", "-w", "-t", "none", "-c", "20", "-d", "8", "-s", "4096",
                                 "--image-opts", device) for _ in range(LOGINS)) if why]
    outcome(not wrong, place.name + "tgtd lets %d initiators in" % LOGINS, wrong[:2])
    wrong = run(place, "qemu-io", "--image-opts", device, "-c", "write -s %s 1M %d" % (pattern, LIMIT), "-c",
                "write -P 0x5a 4097k 3k", "-c", "read -P 0x5a 4097k 3k", "-c", "flush")
    with open(image, "rb") as stored, open(pattern, "rb") as wanted:
        stored.seek(1 << 20)
        same = stored.read(LIMIT) == wanted.read()
    outcome(not wrong and same, place.name + "qemu-io over iser: what was written is in the image", wrong)
    for size, depth in (("4096", "1"), ("65536", "16"), (str(LIMIT), "32")):
        for way in ((), ("-w",)):
            wrong = run(place, "qemu-img", "bench", *way, "-t", "none", "-c", "300", "-d", depth, "-s", size, "--image-opts",
                        device)
            outcome(not wrong, place.name + "qemu-img bench over iser %s -s %s -d %s" % (" ".join(way), size, depth), wrong)
    fio_over_iser(place, device)
    if not ALL and place.server != place.client:
        return  # between hosts it takes a minute (docs/design/connection-manager.md)
    target.process.kill()
    target.process.wait()
    wrong = run(place, "qemu-img", "bench", "-c", "10", "--image-opts", device, seconds=60)
    outcome("status 1" in wrong, place.name + "tgtd is gone, and its initiator says so", wrong or "success")


def fio_over_iser(place, device):
    if not shutil.which("qemu-nbd") or not shutil.which("fio"):
        return skip("fio over iser", "qemu-nbd or fio is not installed")
    with folder() as path:
        at = os.path.join(path, "socket")
        with open(os.path.join(path, "log"), "w+b") as log:
            export = start("qemu-nbd -t -e 8 -k %s --image-opts %s" % (at, device), None, log, place.client)
            wait_for(lambda: os.path.exists(at) or export.poll() is not None, SERVE_SECONDS)
            wrong = run(place, "fio", "--eta=never", os.path.join(STORAGE, "jobs", "verify.fio"), env={"SOCKET": at})
            stop(export)
            log.seek(0)
            said = log.read().decode(errors="replace")[-200:]
    outcome(not wrong, place.name + "fio verifies a device over iser: random, sequential, mixed", wrong and wrong + said)
    return None


def fio_engine(place):
    if not shutil.which("fio"):
        return skip("fio", "is not installed")
    ports = free_port(), free_port()
    env = {"PORT1": str(ports[0]), "PORT2": str(ports[1]), "SERVER": place.ipv4}
    jobs = os.path.join(STORAGE, "jobs")
    # The jobs of the server begin one after the other.
    meet("fio with two rdma jobs", place, "fio %s/rdma-server.fio" % jobs, "fio --eta=never %s/rdma-client.fio" % jobs, (),
         [r"first: .*err= 0", r"second: .*err= 0", r"io=64.0MiB"], ("cq completion", "fail"), ports[1], env=env)
    return None


def main():
    if not os.path.exists(LIBRARY):
        skip("storage", "the build has no " + LIBRARY)
        return
    one_host, two_hosts = places()
    for transport in transports():
        for place in (two_hosts if transport == "roce" else []) or one_host:
            block_device(place)
            fio_engine(place)
    remove_hosts()


if __name__ == "__main__":
    main()
    finish()
