// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/vfio_function.h"

#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>
#include <vector>

#include "base/lowest_descriptor.h"
#include "base/system_error.h"
#include "progress/lifecycle.h"

namespace nupa::pool {
namespace {

constexpr const char* kContainer = "/dev/vfio/vfio";
constexpr const char* kDevice = "anon_inode:[vfio-device]";

/// The last part of the path that a symbolic link leads to. Empty: there is no such link.
std::string name_behind(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  if (length <= 0) return {};
  const std::string path(target, static_cast<size_t>(length));
  return path.substr(path.rfind('/') + 1);
}

/// A descriptor that a forked child does not keep. -1: errno has the reason.
template <class Make>
base::UniqueFd for_parent(Make&& make) {
  return base::UniqueFd(
      progress::open_for_parent([&] { return base::out_of_the_way(base::UniqueFd(make())).release(); }));
}

}  // namespace

bool VfioFunction::is_bound(const std::string& folder) { return name_behind(folder + "/driver") == "vfio-pci"; }

Result<std::unique_ptr<VfioFunction>> VfioFunction::open(const std::string& folder) {
  const std::string group_number = name_behind(folder + "/iommu_group");
  if (group_number.empty()) return fail(ENODEV, folder, "/iommu_group: no such link (vfio-pci needs an IOMMU)");
  const base::UniqueFd container(::open(kContainer, O_RDWR | O_CLOEXEC));
  if (!container) return base::fail_call(errno, "cannot open ", kContainer);
  const std::string path = "/dev/vfio/" + group_number;
  const base::UniqueFd group(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!group) return base::fail_call(errno, "cannot open ", path);
  vfio_group_status status{};
  status.argsz = sizeof status;
  if (ioctl(group.get(), VFIO_GROUP_GET_STATUS, &status) != 0)
    return base::fail_call(errno, path, ": cannot read the state of the group");
  if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0)
    return fail(EBUSY, path, ": another driver has a function of the same group");
  const int container_fd = container.get();
  if (ioctl(group.get(), VFIO_GROUP_SET_CONTAINER, &container_fd) != 0 ||
      ioctl(container.get(), VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0)
    return base::fail_call(errno, path, ": cannot set the IOMMU up");
  const std::string name = folder.substr(folder.rfind('/') + 1);
  base::UniqueFd device = for_parent([&] { return ioctl(group.get(), VFIO_GROUP_GET_DEVICE_FD, name.c_str()); });
  if (!device) return base::fail_call(errno, path, ": cannot open the function ", name);
  std::unique_ptr<VfioFunction> function(new VfioFunction(std::move(device)));
  if (const auto started = function->start(); !started) return tl::unexpected(started.error());
  if (const auto enabled = function->enable_vectors(); !enabled) return tl::unexpected(enabled.error());
  return function;
}

Result<std::unique_ptr<VfioFunction>> VfioFunction::share(pid_t process, int descriptor) {
  const base::UniqueFd owner(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (!owner) return base::fail_call(errno, "process ", process);
  base::UniqueFd device =
      for_parent([&] { return static_cast<int>(syscall(SYS_pidfd_getfd, owner.get(), descriptor, 0)); });
  if (!device) return base::fail_call(errno, "cannot take descriptor ", descriptor, " of process ", process);
  std::unique_ptr<VfioFunction> function(new VfioFunction(std::move(device)));
  if (name_behind("/proc/self/fd/" + std::to_string(function->descriptor())) != kDevice)
    return fail(EINVAL, "descriptor ", descriptor, " of process ", process, " is no function of vfio-pci");
  if (const auto started = function->start(); !started) return tl::unexpected(started.error());
  return function;
}

VfioFunction::~VfioFunction() {
  if (registers_ != nullptr) {
    void* const at = const_cast<uint32_t*>(registers_);
    progress::forget_mapping_for_children(at);
    munmap(at, register_bytes_);
  }
  progress::forget_for_children(device_.get());
}

Result<void> VfioFunction::start() {
  vfio_irq_info interrupts{};
  interrupts.argsz = sizeof interrupts;
  interrupts.index = VFIO_PCI_MSIX_IRQ_INDEX;
  vfio_region_info registers{};
  registers.argsz = sizeof registers;
  registers.index = VFIO_PCI_BAR0_REGION_INDEX;
  if (ioctl(device_.get(), VFIO_DEVICE_GET_IRQ_INFO, &interrupts) != 0 ||
      ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, &registers) != 0)
    return base::fail_call(errno, "cannot look at the function of vfio-pci");
  vectors_ = interrupts.count;
  if (registers.size == 0 || (registers.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0)
    return fail(ENOTSUP, "BAR 0 of the function cannot be mapped");
  void* const mapped = mmap(nullptr, registers.size, PROT_READ | PROT_WRITE, MAP_SHARED, device_.get(),
                            static_cast<off_t>(registers.offset));
  if (mapped == MAP_FAILED) return base::fail_call(errno, "cannot map BAR 0 of the function");
  progress::blank_in_children(mapped, registers.size);
  register_bytes_ = registers.size;
  registers_ = static_cast<volatile uint32_t*>(mapped);
  return {};
}

Result<void> VfioFunction::enable_vectors() {
  vfio_region_info configuration{};
  configuration.argsz = sizeof configuration;
  configuration.index = VFIO_PCI_CONFIG_REGION_INDEX;
  if (ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, &configuration) != 0)
    return base::fail_call(errno, "cannot look at the function of vfio-pci");
  // The memory answers, and the function may send interrupts.
  const auto at = static_cast<off_t>(configuration.offset + PCI_COMMAND);
  uint16_t command = 0;
  if (pread(device_.get(), &command, sizeof command, at) != sizeof command)
    return base::fail_call(errno, "cannot read the configuration of the function");
  command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
  if (pwrite(device_.get(), &command, sizeof command, at) != sizeof command)
    return base::fail_call(errno, "cannot write the configuration of the function");
  if (vectors_ == 0) return {};
  std::vector<int32_t> none(vectors_, -1);
  std::vector<std::byte> request(sizeof(vfio_irq_set) + none.size() * sizeof none[0]);
  vfio_irq_set set{};
  set.argsz = static_cast<uint32_t>(request.size());
  set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  set.index = VFIO_PCI_MSIX_IRQ_INDEX;
  set.count = vectors_;
  std::memcpy(request.data(), &set, sizeof set);
  std::memcpy(request.data() + sizeof set, none.data(), none.size() * sizeof none[0]);
  if (ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, request.data()) != 0)
    return base::fail_call(errno, "cannot enable ", vectors_, " interrupts of the function");
  return {};
}

Result<void> VfioFunction::listen(uint32_t vector, int event) {
  if (vector >= vectors_)
    return fail(EINVAL, "the function has ", vectors_, " vectors, and vector ", vector, " is asked for");
  std::array<std::byte, sizeof(vfio_irq_set) + sizeof(int32_t)> request;
  vfio_irq_set set{};
  set.argsz = request.size();
  set.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
  set.index = VFIO_PCI_MSIX_IRQ_INDEX;
  set.start = vector;
  set.count = 1;
  std::memcpy(request.data(), &set, sizeof set);
  std::memcpy(request.data() + sizeof set, &event, sizeof event);
  if (ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, request.data()) != 0)
    return base::fail_call(errno, "cannot listen to vector ", vector);
  return {};
}

}  // namespace nupa::pool
