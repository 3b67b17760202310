// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A work queue of Intel DSA in a page of memory, and a thread that executes its descriptors by the rules of the
/// architecture specification. The device reaches a page that is in memory. It reports a fault for a page that no
/// thread has touched, or that is not mapped.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "copy/portal.h"
#include "copy/work_queue.h"

namespace nupa::copy {

struct SimulatedQueueOptions {
  uint32_t size = 16;  ///< descriptors that it holds
  uint64_t max_transfer = uint64_t{2} << 20;
  bool is_held = false;  ///< executes nothing until step() or go()
};

class SimulatedQueue final : public WorkQueue {
 public:
  using Options = SimulatedQueueOptions;
  static constexpr uint64_t kPage = 4096;

  explicit SimulatedQueue(const Options& options = {}) : options_(options), held_(options.is_held) {
    pagemap_ = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    thread_ = std::thread([this] { run(); });
  }
  ~SimulatedQueue() override {
    {
      std::lock_guard lock(mutex_);
      stops_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::close(pagemap_);
  }

  // WorkQueue
  Submitted submit(const dsa_hw_desc& descriptor) override {
    std::lock_guard lock(mutex_);
    if (broken_) return Submitted::kBroken;
    if (waiting_.size() >= options_.size || refusals_ > 0) {
      if (refusals_ > 0) --refusals_;
      return Submitted::kFull;
    }
    // The portal: 64 bytes that the processor writes at once, where it can.
    fence_before_descriptor();
    if (portal_instructions().movdir64b)
      move_descriptor(&portal_, descriptor);
    else
      std::memcpy(&portal_, &descriptor, sizeof descriptor);
    fence_before_descriptor();
    waiting_.push_back(portal_);
    seen_.push_back(portal_);
    changed_.notify_all();
    return Submitted::kYes;
  }
  void ended() override {
    std::lock_guard lock(mutex_);
    ++ended_;
  }
  uint64_t max_transfer() const override { return options_.max_transfer; }

  // The test's side.
  /// Executes the newest descriptor that waits, since the device promises no order. False: there is none.
  bool step() {
    std::unique_lock lock(mutex_);
    if (waiting_.empty()) return false;
    execute_newest(lock);
    return true;
  }
  void go() {
    {
      std::lock_guard lock(mutex_);
      held_ = false;
    }
    changed_.notify_all();
  }
  /// All descriptors that were accepted, in order.
  std::vector<dsa_hw_desc> seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }
  size_t waiting() {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  uint64_t faults() {
    std::lock_guard lock(mutex_);
    return faults_;
  }
  uint64_t reported_ends() {
    std::lock_guard lock(mutex_);
    return ended_;
  }
  /// The next `count` submissions find no room.
  void refuse(uint32_t count) {
    std::lock_guard lock(mutex_);
    refusals_ = count;
  }
  /// Takes no descriptor any more.
  void break_down() {
    std::lock_guard lock(mutex_);
    broken_ = true;
  }
  /// The next descriptor ends with this status. It moves `moved` bytes, or as many as it has, and reports `moved`.
  void fail_next(uint8_t status, uint64_t moved = 0) {
    std::lock_guard lock(mutex_);
    failure_ = status;
    failure_moves_ = moved;
  }
  /// Reports a fault without progress for each access of this page until `times` faults.
  void take_away(const std::byte* page, uint32_t times) {
    std::lock_guard lock(mutex_);
    absent_ = reinterpret_cast<uintptr_t>(page) / kPage;
    absences_ = times;
  }

 private:
  bool is_present(uint64_t address) {
    if (address / kPage == absent_ && absences_ > 0) {
      --absences_;
      return false;
    }
    uint64_t entry = 0;
    constexpr uint64_t kPresent = uint64_t{1} << 63;
    const auto place = static_cast<off_t>(address / kPage * sizeof entry);
    return pread(pagemap_, &entry, sizeof entry, place) == sizeof entry && (entry & kPresent) != 0;
  }
  /// Copies by the kernel, because the test may unmap the memory meanwhile.
  static bool move(uint64_t to, uint64_t from, uint64_t length) {
    std::vector<std::byte> bytes(length);
    iovec mine{bytes.data(), length};
    iovec source{reinterpret_cast<void*>(from), length}, target{reinterpret_cast<void*>(to), length};
    return process_vm_readv(getpid(), &mine, 1, &source, 1, 0) == static_cast<ssize_t>(length) &&
           process_vm_writev(getpid(), &mine, 1, &target, 1, 0) == static_cast<ssize_t>(length);
  }
  /// The status that the rules of the specification give before anything is moved.
  uint8_t check(const dsa_hw_desc& descriptor) const {
    constexpr uint32_t kAllowed = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR | IDXD_OP_FLAG_CC;
    if (descriptor.opcode != DSA_OPCODE_MEMMOVE) return DSA_COMP_BAD_OPCODE;
    if ((descriptor.flags & ~kAllowed) != 0) return DSA_COMP_INVALID_FLAGS;
    if (descriptor.pasid != 0 || descriptor.rsvd != 0 || descriptor.priv != 0 || descriptor.rsvd1 != 0)
      return DSA_COMP_NOZERO_RESERVE;
    for (const uint8_t byte : descriptor.op_specific)
      if (byte != 0) return DSA_COMP_NOZERO_RESERVE;
    if (descriptor.xfer_size == 0 || descriptor.xfer_size > options_.max_transfer) return DSA_COMP_XFER_ERANGE;
    return DSA_COMP_SUCCESS;
  }
  void execute_newest(std::unique_lock<std::mutex>&) {
    const dsa_hw_desc descriptor = waiting_.back();
    waiting_.pop_back();
    // A record at a wrong place is not written at all.
    if (descriptor.completion_addr % sizeof(dsa_completion_record) != 0) return;
    auto& record = *reinterpret_cast<dsa_completion_record*>(descriptor.completion_addr);
    record.result = 0;
    record.bytes_completed = 0;
    record.fault_addr = 0;
    uint8_t status = check(descriptor);
    uint64_t most = descriptor.xfer_size;
    if (status == DSA_COMP_SUCCESS && failure_ != 0) {
      status = failure_;
      most = std::min(failure_moves_, most);
      failure_ = 0;
      if (move(descriptor.dst_addr, descriptor.src_addr, most))
        record.bytes_completed = static_cast<uint32_t>(failure_moves_);
    } else if (status == DSA_COMP_SUCCESS) {
      status = move_pages(descriptor, record);
    }
    __atomic_store_n(&record.status, status, __ATOMIC_RELEASE);
  }
  uint8_t move_pages(const dsa_hw_desc& descriptor, dsa_completion_record& record) {
    for (uint64_t done = 0; done < descriptor.xfer_size;) {
      const uint64_t from = descriptor.src_addr + done, to = descriptor.dst_addr + done;
      const uint64_t step = std::min({kPage - from % kPage, kPage - to % kPage, descriptor.xfer_size - done});
      const bool reads = is_present(from);
      if (!reads || !is_present(to) || !move(to, from, step)) {
        record.bytes_completed = static_cast<uint32_t>(done);
        record.fault_addr = (reads ? to : from) & ~(kPage - 1);
        ++faults_;
        return DSA_COMP_PAGE_FAULT_NOBOF | (reads ? DSA_COMP_STATUS_WRITE : 0);
      }
      done += step;
    }
    record.bytes_completed = descriptor.xfer_size;
    return DSA_COMP_SUCCESS;
  }
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stops_ || (!held_ && !waiting_.empty()); });
      if (stops_) return;
      execute_newest(lock);
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }

  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  alignas(64) dsa_hw_desc portal_{};
  std::deque<dsa_hw_desc> waiting_;
  std::vector<dsa_hw_desc> seen_;
  uint64_t faults_ = 0;
  uint64_t ended_ = 0;
  uint32_t refusals_ = 0;
  uint8_t failure_ = 0;
  uint64_t failure_moves_ = 0;
  uint64_t absent_ = 0;
  uint32_t absences_ = 0;
  bool held_;
  bool broken_ = false;
  bool stops_ = false;
  int pagemap_ = -1;
  std::thread thread_;
};

}  // namespace nupa::copy
