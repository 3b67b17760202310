#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torch.distributed on the backend nupa: every collective beside results of one process and gloo's, training,
and how ranks are told of others that are gone."""
import os
import re
import subprocess
import tempfile
from pairs import BUILD, NUPA, ROOT, finish, free_port, outcome, private_runtime_dir, skip, transports

PYTHON = os.environ.get("NUPA_TORCH_PYTHON", "/usr/bin/python3")
PACKAGE = os.path.join(BUILD, "lib", "python")
PROGRAM = os.path.join(ROOT, "tests", "e2e", "torch_rank.py")
SECONDS = 300
COLLECTIVES = ["all_reduce", "premultiplied", "premultiplied_often", "as_gloo_has_it", "broadcast", "reduce",
               "all_gather", "bases", "coalesced", "gather_and_scatter", "reduce_scatter", "all_to_all",
               "not_contiguous"]
OTHERS = ["in_any_order", "messages", "objects", "subgroups", "refused", "numbers_and_barriers", "limits",
          "data_parallel", "sharded", "released"]
SINCE_2 = ["fully_sharded"]
OVER_PACKETS = ["all_reduce", "bases", "all_to_all", "in_any_order", "messages", "data_parallel"]


def reason_not_to():
    """Empty: it can be tested here; and the version of torch."""
    if not os.path.exists(os.path.join(PACKAGE, "nupa_torch", "__init__.py")):
        return "was not built: python3-torch, libtorch-dev and pybind11-dev are missing, or the collectives are off", ""
    try:
        tried = subprocess.run([PYTHON, "-c", "import torch, nupa_torch; print(torch.__version__)"], capture_output=True, text=True,
                               env=environment(), timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), ""
    return tried.stderr.strip().splitlines()[-1] if tried.returncode != 0 else "", tried.stdout.strip()


def environment(**more):
    # A thread for each rank: there are more ranks than cores.
    return dict(os.environ, PYTHONPATH=PACKAGE, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **more)


def run(command, **more):
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
                                  env=environment(STORE=os.path.join(folder, "store"), **more))
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            return subprocess.CompletedProcess(command, -1000, said, "still running after %d s" % SECONDS)
    return done


def launch(ranks, *cases, options=(), **more):
    """`options`: of `nupa launch`."""
    return run([NUPA, "launch", "-n", str(ranks), *options, "--", PYTHON, PROGRAM, *cases], **more)


def tell(done, ranks, cases, label="", silent=0):
    """An outcome for each case: that all ranks came through it, but for `silent`."""
    errors = [line for line in done.stderr.splitlines() if "Error" in line or "nupa: " in line]
    for case in cases:
        count = len(re.findall(r"ok %s$" % case, done.stdout, re.MULTILINE))
        outcome(count == ranks - silent, "torch-%s%s-%d-ranks" % (label, case.replace("_", "-"), ranks),
                "%d of %d ranks; status %s; %s" % (count, ranks, done.returncode, " | ".join(errors[-3:])[-600:]))


def collectives_and_training():
    for ranks in (2, 4):
        cases = COLLECTIVES + OTHERS + (SINCE_2 if VERSION >= "2" else [])
        done = launch(ranks, *cases)
        tell(done, ranks, cases)
        outcome(done.returncode == 0, "torch-ends-well-%d-ranks" % ranks,
                "status %s: %s" % (done.returncode, done.stderr[-500:]))
    # By messages through memory, as communicators of many ranks have it.
    done = launch(2, *OVER_PACKETS, NUPA_CCL_MAPPED_RANKS="1")
    tell(done, 2, OVER_PACKETS, "messages-")


def by_torchrun():
    cases = ["all_reduce", "messages", "subgroups", "data_parallel"]
    # Its outputs go by files, too: without them Debian's 1.13 fails on Python 3.11.
    logs = tempfile.mkdtemp(dir=os.environ["NUPA_RUNTIME_DIR"])
    done = run([NUPA, "run", "--", PYTHON, "-m", "torch.distributed.run", "--nproc_per_node=2", "--redirects=1",
                "--tee=1", "--log_dir=" + logs, "--master_addr=127.0.0.1", "--master_port=%d" % free_port(), PROGRAM,
                *cases])
    tell(done, 2, cases, "torchrun-")


def who_is_gone():
    # The others have time to be told.
    tell(launch(4, "gone", options=("--grace", "60"), LEAVE="0"), 4, ["gone"], silent=1)
    tell(launch(2, "late", LEAVE="0"), 2, ["late"])
    tell(launch(4, "not_at_the_barrier", LEAVE="0"), 4, ["not_at_the_barrier"])
    # Nobody destroys the group.
    done = launch(4, "all_reduce", LEAVE="0")
    outcome(done.returncode == 0, "torch-ends-without-destroying", "status %s: %s" % (done.returncode, done.stderr[-300:]))


def over_packets():
    for name in transports():
        if name == "roce":
            tell(launch(2, *OVER_PACKETS), 2, OVER_PACKETS)


private_runtime_dir()
REASON, VERSION = reason_not_to()
if REASON:
    skip("torch", REASON)
else:
    if VERSION < "2":
        skip("torch-fully-sharded", "torch %s has it for GPUs only" % VERSION)
    collectives_and_training()
    by_torchrun()
    who_is_gone()
    over_packets()
finish()
