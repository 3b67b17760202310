# SPDX-License-Identifier: Apache-2.0
"""The backend "nupa" of torch.distributed: import nupa_torch, then init_process_group("nupa")."""
import atexit
import datetime
import os

import torch
import torch.distributed as dist

from . import _C

# The time for other ranks that still need something of this rank's groups.
_EXIT_LIMIT = datetime.timedelta(seconds=2)


def _release(text):
    return text.split("+")[0].split(".")[:2]


if _release(torch.__version__) != _release(_C.TORCH_VERSION):
    raise ImportError("nupa_torch was built for PyTorch %s, this is %s: configure it with "
                      "-DNUPA_TORCH_PYTHON=PYTHON" % (_C.TORCH_VERSION, torch.__version__))


def _create(store, rank, size, timeout):
    return _C.create(store, rank, size, timeout)


def _register():
    try:
        dist.Backend.register_backend("nupa", _create, devices=["cpu"])
    except TypeError:  # below 2.0
        dist.Backend.register_backend("nupa", _create)


def _leave(pid):
    """Waits for the other ranks, because an early exit may end an operation that they are still in."""
    if os.getpid() == pid:
        _C.leave_all(_EXIT_LIMIT)


_register()
atexit.register(_leave, os.getpid())
