#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs over RoCEv2 with Linux's rdma_rxe at the other end: tests/interop/rxe."""
import os
import sys

from pairs import ROOT

os.execv(sys.executable, [sys.executable, os.path.join(ROOT, "tests", "interop", "rxe"), *sys.argv[1:]])
