// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <string>

namespace nupa::cli {

/// Mounts the files of `tree` (sysfs/tree.h) over /sys and /dev, for this process and those that it starts: it enters a
/// mount namespace, and without root a user namespace as well. EPERM: the system allows no user namespaces. Other
/// errors of mount(2).
Result<void> mount_tree(const std::string& tree);

/// Starts a process that brings the files of `tree` up to date each second until this process ends, whatever program it
/// executes. It is not a child of this process.
Result<void> keep_tree_fresh(const std::string& tree);

}  // namespace nupa::cli
