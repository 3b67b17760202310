#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Starts node 1 of the pair: its console is this terminal. Node 2 waits for node 1.
exec "$(dirname "$0")/../node" pcie 1 "$@"
