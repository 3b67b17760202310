// SPDX-License-Identifier: Apache-2.0
#include "copy/work_queue.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "base/system_error.h"
#include "base/unique_fd.h"
#include "copy/portal.h"
#include "progress/lifecycle.h"

namespace nupa::copy {

namespace {

namespace fs = std::filesystem;

constexpr size_t kPortalBytes = 4096;
constexpr size_t kDescriptorBytes = sizeof(dsa_hw_desc);

/// The first line of an attribute; empty: it cannot be read.
std::string attribute(const fs::path& folder, const char* name) {
  std::ifstream file(folder / name);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t number_of(const std::string& text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// The reason why no process can use the queue; empty: some can.
std::string obstacle_of(const fs::path& queue) {
  if (attribute(queue, "state") != "enabled") return "not enabled (accel-config enable-wq)";
  if (const std::string type = attribute(queue, "type"); type != "user") return "its type is " + type + ", not user";
  // The queue's folder lies in that of its device.
  std::error_code error;
  const fs::path device = fs::canonical(queue, error).parent_path();
  if (error || attribute(device, "pasid_enabled") != "1")
    return "its device has no shared virtual memory (intel_iommu=on,sm_on)";
  return {};
}

std::string obstacle_here(const QueueInfo& info, const fs::path& device) {
  if (::access(device.c_str(), R_OK | W_OK) != 0) return device.string() + ": " + std::strerror(errno);
  const PortalInstructions has = portal_instructions();
  if (info.shared ? !has.enqcmd : !has.movdir64b)
    return std::string("the processor lacks ") + (info.shared ? "ENQCMD" : "MOVDIR64B");
  return {};
}

/// A work queue of /dev/dsa.
class DeviceQueue final : public WorkQueue {
 public:
  /// `portal`: null: the kernel allows no mapping, and descriptors are written to the descriptor.
  DeviceQueue(const QueueInfo& info, base::UniqueFd fd, std::byte* portal)
      : shared_(info.shared),
        max_transfer_(info.max_transfer),
        room_(static_cast<int>(info.size)),
        fd_(std::move(fd)),
        parent_only_(fd_.get()),
        portal_(portal) {}
  ~DeviceQueue() override {
    if (portal_ != nullptr) munmap(portal_, kPortalBytes);
  }

  Submitted submit(const dsa_hw_desc& descriptor) override {
    // MOVDIR64B does not return whether there was room, so a dedicated queue is never filled beyond its size.
    if (!shared_ && room_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
      room_.fetch_add(1, std::memory_order_relaxed);
      return Submitted::kFull;
    }
    fence_before_descriptor();
    if (portal_ == nullptr) return write_descriptor(descriptor);
    // Any 64 bytes of the page lead to the queue. Several threads use different ones.
    const uint32_t place = next_.fetch_add(1, std::memory_order_relaxed) % (kPortalBytes / kDescriptorBytes);
    void* const at = portal_ + place * kDescriptorBytes;
    if (shared_) return enqueue_descriptor(at, descriptor) ? Submitted::kYes : Submitted::kFull;
    move_descriptor(at, descriptor);
    return Submitted::kYes;
  }
  void ended() override {
    if (!shared_) room_.fetch_add(1, std::memory_order_relaxed);
  }
  uint64_t max_transfer() const override { return max_transfer_; }

 private:
  Submitted write_descriptor(const dsa_hw_desc& descriptor) {
    if (::write(fd_.get(), &descriptor, sizeof descriptor) == static_cast<ssize_t>(sizeof descriptor))
      return Submitted::kYes;
    const int error = errno;
    ended();
    return error == EAGAIN || error == EINTR || error == EBUSY ? Submitted::kFull : Submitted::kBroken;
  }

  const bool shared_;
  const uint64_t max_transfer_;
  std::atomic<int> room_;  ///< of a dedicated queue
  std::atomic<uint32_t> next_{0};
  const base::UniqueFd fd_;
  const progress::ParentOnly parent_only_;
  std::byte* const portal_;
};

Result<std::unique_ptr<WorkQueue>> open_queue(const QueueInfo& info, const std::string& path) {
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return base::fail_call(errno, "cannot open ", path);
  void* portal = mmap(nullptr, kPortalBytes, PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (portal == MAP_FAILED) {
    // The kernel submits for processes that may not do it themselves (INTEL-SA-01084).
    if (errno != EPERM) return base::fail_call(errno, "cannot map ", path);
    portal = nullptr;
  }
  return std::make_unique<DeviceQueue>(info, std::move(fd), static_cast<std::byte*>(portal));
}

}  // namespace

std::vector<QueueInfo> list_work_queues(const QueuePlaces& places) {
  std::vector<QueueInfo> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(places.sysfs, error)) {
    QueueInfo info;
    info.name = entry.path().filename().string();
    if (!info.name.starts_with("wq")) continue;
    // The queues of IAA devices are listed beside those of DSA devices.
    const std::string device = fs::canonical(entry.path(), error).parent_path().filename().string();
    if (error || !device.starts_with("dsa")) continue;
    info.shared = attribute(entry.path(), "mode") == "shared";
    info.size = static_cast<uint32_t>(number_of(attribute(entry.path(), "size")));
    info.max_transfer = number_of(attribute(entry.path(), "max_transfer_size"));
    info.obstacle = obstacle_of(entry.path());
    if (info.obstacle.empty()) info.obstacle = obstacle_here(info, fs::path(places.devices) / info.name);
    found.push_back(std::move(info));
  }
  std::sort(found.begin(), found.end(), [](const QueueInfo& a, const QueueInfo& b) { return a.name < b.name; });
  return found;
}

Result<std::unique_ptr<WorkQueue>> open_work_queue(bool dedicated, const QueuePlaces& places) {
  std::string obstacles;
  for (const QueueInfo& info : list_work_queues(places)) {
    std::string obstacle = info.obstacle;
    if (obstacle.empty() && !info.shared && !dedicated) obstacle = "dedicated to one process";
    if (obstacle.empty()) {
      auto opened = open_queue(info, places.devices + "/" + info.name);
      if (opened) return opened;
      obstacle = opened.error().what();
    }
    obstacles += (obstacles.empty() ? "" : "; ") + info.name + ": " + obstacle;
  }
  if (obstacles.empty()) obstacles = "this machine has no work queue of Intel DSA (" + places.sysfs + ")";
  return fail(ENODEV, obstacles);
}

}  // namespace nupa::copy
