// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The files of this host's devices as they are now.

#include <nupa/export.h>
#include <nupa/result.h>

#include <string>
#include <vector>

#include "sysfs/tree.h"

namespace nupa::sysfs {

/// Describes the devices with their present addresses. `counts`: with the present counts, too, for which it waits for
/// the processes of the runtime directory, 100 ms at most; otherwise counters are 0. Errors: those of the runtime
/// directory and of settings.
Result<std::vector<Entry>> describe_now(bool counts);
/// Brings the addresses of a tree up to date, and with `counts` its counters. EBUSY: other processes do the same for
/// 200 ms.
Result<void> refresh_now(const std::string& tree, bool counts);

}  // namespace nupa::sysfs

/// For libnupa-preload.so, which finds it by its name: refresh_now() if the path, as the program gives it, is one of
/// those that may change. Any thread; not in a signal handler. Returns 0 or an errno.
extern "C" NUPA_EXPORT int nupa_refresh_sysfs(const char* tree, const char* path);
