# SPDX-License-Identifier: Apache-2.0
"""Pairs of virtual machines that share a window of memory: their image, their emulator, and what runs between them."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))  # for the package `guest`
