#!/usr/bin/env python3
"""UCX with its connection manager, and Open MPI over UCX, unmodified: io_demo, NetPIPE and the ring of MPI's tests."""
import os
import shutil
import subprocess
import tempfile
from cm_pairs import LIBRARY, CmPair, folder, meet, places, with_port
from hosts import remove_hosts
from pairs import NUPA, finish, outcome, skip, transports
