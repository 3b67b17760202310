# SPDX-License-Identifier: Apache-2.0
"""Virtual machines made of Debian's packages, without root, for tests/interop and vms: packages as files, a kernel with modules, the
initial file system, and commands that run in the guest."""
