// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The files in which a kernel shows its RDMA devices, as a tree in the runtime directory. See docs/design/sysfs.md.

#include <nupa/result.h>

#include <string>
#include <string_view>
#include <vector>

#include "core/seam/device_entry.h"
#include "runtime/directory.h"
#include "shm/port_counts.h"
#include <nupa/types.h>

namespace nupa::sysfs {

enum class Kind : uint8_t {
  kFile,
  kLink,
  kCounter,  ///< a file that changes
  kAddress,  ///< a file that changes, and may disappear
};

/// A file or a symbolic link.
struct Entry {
  std::string path;  ///< as in the kernel, from the root: "/sys/class/infiniband/..."
  Kind kind = Kind::kFile;
  std::string content;  ///< of the file, or the path that the link names
};

/// Attributes that all devices have in common.
struct Attributes {
  DeviceAttr device;
  PortAttr port;
};

/// The files of these devices, in the order of the list: Documentation/ABI/stable/sysfs-class-infiniband of Linux.
/// `counts`: of each device, by its index; devices beyond its end have counted nothing.
std::vector<Entry> describe(const std::vector<core::DeviceEntry>& devices, const Attributes& attributes,
                            const std::vector<shm::PortSums>& counts);

/// Writes the files below a folder of the runtime directory, whose path it returns. Processes that have the same
/// devices share a folder. ENOSPC, EACCES and others: the text has the path.
Result<std::string> publish(const runtime::Directory& directory, const std::vector<Entry>& entries);

/// True for the path of a file, or of a folder of files, that refresh() may change: as in the kernel, from the root.
bool may_change(std::string_view path);
/// Brings the counters and addresses of a folder that publish() returned up to date. Each file has its old content or
/// its new one at any time. One caller at a time.
Result<void> refresh(const std::string& tree, const std::vector<Entry>& entries);

}  // namespace nupa::sysfs
