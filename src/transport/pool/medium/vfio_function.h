// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A PCI function that is bound to the driver vfio-pci: its registers, and interrupts that make descriptors readable.
/// Linux, Documentation/driver-api/vfio.rst.

#include <nupa/result.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/unique_fd.h"

namespace nupa::pool {

/// The kernel lets one process open the function. Others share its descriptor, and the function stays open until the
/// last of them ends. A forked child of this process has none of it. Any thread.
class VfioFunction {
 public:
  /// Returns whether the function's driver is vfio-pci. `folder`: that of the function in sysfs.
  static bool is_bound(const std::string& folder);
  /// Opens the function for this process, so that its memory answers. EBUSY: another process has it open. ENODEV: the
  /// machine has no IOMMU, or lets no vector be made. EACCES and others: the text has the path.
  static Result<std::unique_ptr<VfioFunction>> open(const std::string& folder);
  /// Shares the function that is open in another process as `descriptor`. EPERM: this process may not trace that one.
  /// ESRCH: the process has ended. EBADF, EINVAL: it has no such descriptor, or that of something else.
  static Result<std::unique_ptr<VfioFunction>> share(pid_t process, int descriptor);
  ~VfioFunction();
  VfioFunction(const VfioFunction&) = delete;
  VfioFunction& operator=(const VfioFunction&) = delete;

  /// For share().
  int descriptor() const { return device_.get(); }
  /// The number of MSI-X vectors.
  uint32_t vectors() const { return vectors_; }
  /// Interrupts of this vector add 1 to an eventfd from now on; -1: they are dropped. A vector has one descriptor.
  /// EINVAL: the function has no such vector.
  Result<void> listen(uint32_t vector, int event);

  /// A register of 4 bytes of BAR 0. Each access is one of the processor.
  uint32_t load(uint32_t offset) const { return registers_[offset / sizeof *registers_]; }
  void store(uint32_t offset, uint32_t value) { registers_[offset / sizeof *registers_] = value; }

 private:
  explicit VfioFunction(base::UniqueFd device) : device_(std::move(device)) {}
  /// Looks at the function, and maps BAR 0.
  Result<void> start();
  /// Enables all vectors, without a descriptor: older kernels add none later.
  Result<void> enable_vectors();

  base::UniqueFd device_;
  uint32_t vectors_ = 0;
  uint64_t register_bytes_ = 0;
  volatile uint32_t* registers_ = nullptr;
};

}  // namespace nupa::pool
