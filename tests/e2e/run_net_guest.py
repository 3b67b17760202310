#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The network device between this machine and a virtual machine: tests/interop/net."""
import os
import sys

from pairs import ROOT

os.execv(sys.executable, [sys.executable, os.path.join(ROOT, "tests", "interop", "net"), *sys.argv[1:]])
