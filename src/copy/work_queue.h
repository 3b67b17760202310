// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <linux/idxd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nupa/result.h>

namespace nupa::copy {

static_assert(sizeof(dsa_hw_desc) == 64 && sizeof(dsa_completion_record) == 32);

/// A work queue of an Intel Data Streaming Accelerator. It executes descriptors in any order, and writes a completion
/// record for each (Intel DSA architecture specification). Any thread.
class WorkQueue {
 public:
  enum class Submitted : uint8_t {
    kYes,
    kFull,    ///< the queue has no room now
    kBroken,  ///< the queue takes no descriptor any more
  };
  virtual ~WorkQueue() = default;
  /// Submits one descriptor. The descriptor may be changed afterwards, its completion record may not.
  virtual Submitted submit(const dsa_hw_desc& descriptor) = 0;
  /// The completion record of a descriptor was seen.
  virtual void ended() = 0;
  /// The most bytes of one descriptor.
  virtual uint64_t max_transfer() const = 0;
};

/// The places where the kernel shows work queues. Tests have others.
struct QueuePlaces {
  std::string sysfs = "/sys/bus/dsa/devices";
  std::string devices = "/dev/dsa";
};

/// A work queue that the kernel shows.
struct QueueInfo {
  std::string name;  ///< wq0.0
  bool shared = false;
  uint32_t size = 0;  ///< descriptors that it holds
  uint64_t max_transfer = 0;
  /// The reason why this process cannot use it; empty: it can.
  std::string obstacle;
};

/// All work queues of DSA devices, by name. Opens none of them.
std::vector<QueueInfo> list_work_queues(const QueuePlaces& places = {});

/// Opens the first work queue that this process may use. `dedicated`: also one that only one process can use.
/// ENODEV: there is none, with the reason; EACCES, EBUSY, ENOTSUP and the errors of open() and mmap(): that of the
/// only queue.
Result<std::unique_ptr<WorkQueue>> open_work_queue(bool dedicated, const QueuePlaces& places = {});

}  // namespace nupa::copy
