// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The files in which a kernel shows its RDMA devices, as a tree in the runtime directory. See docs/design/sysfs.md.

#include <nupa/result.h>

#include <string>
#include <vector>

#include "core/seam/device_entry.h"
#include "runtime/directory.h"
#include <nupa/types.h>

namespace nupa::sysfs {

/// A file or a symbolic link.
struct Entry {
  std::string path;  ///< as in the kernel, from the root: "/sys/class/infiniband/..."
  bool is_link = false;
  std::string content;  ///< of the file, or the path that the link names
};

/// Attributes that all devices have in common.
struct Attributes {
  DeviceAttr device;
  PortAttr port;
};

/// The files of these devices, in the order of the list: Documentation/ABI/stable/sysfs-class-infiniband of Linux.
std::vector<Entry> describe(const std::vector<core::DeviceEntry>& devices, const Attributes& attributes);

/// Writes the files below a folder of the runtime directory, whose path it returns. Processes that have the same
/// devices share a folder, which never changes. ENOSPC, EACCES and others: the text has the path.
Result<std::string> publish(const runtime::Directory& directory, const std::vector<Entry>& entries);

}  // namespace nupa::sysfs
