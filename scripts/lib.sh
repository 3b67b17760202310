# SPDX-License-Identifier: Apache-2.0
# Functions and paths that the scripts share, and the packages that they need.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
BUILD_PACKAGES="g++ cmake ninja-build pkg-config libibverbs-dev librdmacm-dev libexpected-dev libcli11-dev libfmt-dev nlohmann-json3-dev libhwy-dev nettle-dev systemtap-sdt-dev"
# The guests of vms/. Packages of programs that only the guests run are downloaded and unpacked, not installed.
VM_PACKAGES="qemu-system-x86 python3 util-linux binutils openssh-client"
TEST_PACKAGES="libgtest-dev gdb bpftrace patchelf ibverbs-utils infiniband-diags rdmacm-utils perftest qperf ucx-utils python3-pyverbs rdma-core python3 clang-format codespell groff-base file dpkg-dev iproute2 nftables tshark qemu-system-x86 busybox-static fio libfabric-bin openmpi-bin netpipe-openmpi python3-mpi4py libpmix-dev iperf3 redis-server redis-tools nginx-light wrk curl iputils-ping openssh-client dropbear-bin systemd tgt libiscsi-bin qemu-utils qemu-block-extra python3-torch libtorch-dev python3-dev pybind11-dev"

say() { printf '== %s\n' "$*"; }

# need_packages NAME...: installs missing packages with apt, as root or by sudo. Without either, it prints what to install.
need_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      as=(sudo)
    else
      echo "These Debian packages are missing: ${missing[*]}" >&2
      echo "Install them as root: apt-get install ${missing[*]}" >&2
      return 1
    fi
  fi
  say "installing ${missing[*]}"
  "${as[@]}" apt-get update -qq
  # Only the programs of the servers are needed: no service is started, unless the machine has its own policy.
  local policy=/usr/sbin/policy-rc.d status=0
  if [ -e "$policy" ]; then
    policy=
  else
    printf '#!/bin/sh\nexit 101\n' | "${as[@]}" install -m 755 /dev/stdin "$policy"
  fi
  # rdma-core's test suite lies in its documentation folder, which must not be excluded.
  DEBIAN_FRONTEND=noninteractive "${as[@]}" apt-get install -y -qq --no-install-recommends \
    -o Dpkg::Options::=--path-include=/usr/share/doc/rdma-core/* "${missing[@]}" >/dev/null || status=$?
  [ -z "$policy" ] || "${as[@]}" rm -f "$policy"
  return "$status"
}
