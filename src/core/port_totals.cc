// SPDX-License-Identifier: Apache-2.0
#include "core/port_totals.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/shared_file.h"
#include "base/system_error.h"
#include "host/observation.h"

namespace nupa::core {
namespace {

using shm::PortCount;
using shm::PortSums;

constexpr uint64_t kFileMagic = 0x3154524f5041554eull;  // "NUAPORT1", little endian
constexpr uint64_t kFileBytes = (shm::kMaxSlot + 1) * shm::kPage;
/// The first page, of no slot, has the magic number.
constexpr off_t offset_of(uint32_t slot) { return static_cast<off_t>(slot) * static_cast<off_t>(shm::kPage); }
constexpr int kAnswerMs = 100;
/// A row that is being written is read again, this often at most.
constexpr int kReads = 8;

std::string path_in(const std::string& directory) {
  return directory + "/" + std::string(runtime::Directory::kCountersFile);
}

using RowValues = std::array<std::array<uint64_t, 32>, shm::kMaxDevices>;
static_assert(sizeof(RowValues) == sizeof(PortTotals::Row));

bool read_at(int fd, off_t offset, void* to, size_t bytes) {
  return pread(fd, to, bytes, offset) == static_cast<ssize_t>(bytes);
}

/// Two equal reads: no value is a part of an old and of a new one.
bool read_row(int fd, uint32_t slot, RowValues* row) {
  RowValues again;
  for (int i = 0; i < kReads; ++i) {
    if (!read_at(fd, offset_of(slot), row, sizeof *row) || !read_at(fd, offset_of(slot), &again, sizeof again))
      return false;
    if (*row == again) return true;
  }
  return true;
}

}  // namespace

void add_counts(const shm::QpShared& qp, const shm::StatisticsShared& block, PortSums* sums) {
  const shm::Counting counting = qp.counting.load(std::memory_order_relaxed);
  if (counting == shm::Counting::kNone) return;
  for (size_t i = 0; i < shm::kTransportCounts; ++i) (*sums)[i] += block.port.values[i].load(std::memory_order_relaxed);
  const shm::QpCounters& counters = qp.counters;
  const uint64_t rnr = counters.rnr.load(std::memory_order_relaxed);
  at(*sums, PortCount::kRnrNaks) += rnr;
  at(*sums, PortCount::kRequestErrors) += counters.errors.load(std::memory_order_relaxed);
  if (counting != shm::Counting::kByMessages) return;
  // The peer is on this device, and its port would count the same.
  const auto since = [](const std::atomic<uint64_t>& now, const std::atomic<uint64_t>& counted) {
    const uint64_t before = counted.load(std::memory_order_relaxed);
    return std::max(now.load(std::memory_order_relaxed), before) - before;
  };
  const uint64_t packets = since(counters.messages, counters.counted_messages);
  const uint64_t bytes = since(counters.bytes, counters.counted_bytes);
  at(*sums, PortCount::kXmitPackets) += packets;
  at(*sums, PortCount::kRcvPackets) += packets;
  at(*sums, PortCount::kXmitBytes) += bytes;
  at(*sums, PortCount::kRcvBytes) += bytes;
  at(*sums, PortCount::kOutOfBuffer) += rnr;
}

PortTotals::~PortTotals() {
  if (Row* const row = row_.load()) munmap(row, sizeof *row);
}

Result<void> PortTotals::open(const std::string& directory, uint32_t slot) {
  std::lock_guard lock(mutex_);
  if (is_open_) return {};
  is_open_ = true;
  const std::string path = path_in(directory);
  const base::UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_call(errno, "cannot open ", path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return base::fail_call(errno, "cannot use ", path);
  if (static_cast<uint64_t>(status.st_size) < kFileBytes)
    if (auto grown = base::grow_shared_file(file.get(), kFileBytes); !grown) return grown;
  // Pages that exist: a store to one that a full disk has no room for would raise SIGBUS.
  for (const off_t offset : {off_t{0}, offset_of(slot)})
    if (const int error = posix_fallocate(file.get(), offset, static_cast<off_t>(shm::kPage)); error != 0)
      return base::fail_call(error, "no room in ", path);
  uint64_t magic = 0;
  if (!read_at(file.get(), 0, &magic, sizeof magic)) return base::fail_call(EIO, "cannot read ", path);
  if (magic == 0 && pwrite(file.get(), &kFileMagic, sizeof kFileMagic, 0) != sizeof kFileMagic)
    return base::fail_call(EIO, "cannot write ", path);
  if (magic != 0 && magic != kFileMagic) return fail(EPROTO, path, " is not a file of this version");
  void* const at = mmap(nullptr, sizeof(Row), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), offset_of(slot));
  if (at == MAP_FAILED) return base::fail_call(errno, "cannot map ", path);
  Row* const row = static_cast<Row*>(at);
  for (size_t device = 0; device < before_.size(); ++device)
    for (size_t i = 0; i < shm::kPortCounts; ++i)
      before_[device][i] = (*row)[device][i].load(std::memory_order_relaxed);
  row_.store(row, std::memory_order_release);
  return {};
}

void PortTotals::retire(const shm::QpShared& qp, shm::StatisticsShared& block) {
  if (qp.counting.load() == shm::Counting::kNone) return;
  PortSums sums{};
  add_counts(qp, block, &sums);
  auto& kept = of_device_[qp.device.load() % shm::kMaxDevices];
  for (size_t i = 0; i < sums.size(); ++i) kept[i].fetch_add(sums[i], std::memory_order_relaxed);
  for (auto& value : block.port.values) value.store(0, std::memory_order_relaxed);
}

void PortTotals::publish(shm::QpBanks& queue_pairs, bool at_exit) {
  Row* const row = row_.load(std::memory_order_acquire);
  if (row == nullptr) return;
  std::array<PortSums, shm::kMaxDevices> sums = before_;
  for (size_t device = 0; device < sums.size(); ++device)
    for (size_t i = 0; i < shm::kPortCounts; ++i)
      sums[device][i] += of_device_[device][i].load(std::memory_order_relaxed);
  const auto visit = [&](const shm::QpBank& bank, uint32_t) {
    for (uint32_t i = 0; i < bank.count(); ++i) {
      const shm::QpShared& qp = bank.qp[i];
      if (qp.in_use.load() == 0) continue;
      add_counts(qp, bank.statistics[i], &sums[qp.device.load() % shm::kMaxDevices]);
    }
  };
  if (at_exit)
    queue_pairs.each_known(visit);
  else
    queue_pairs.each(visit);
  for (size_t device = 0; device < sums.size(); ++device)
    for (size_t i = 0; i < shm::kPortCounts; ++i) {
      std::atomic<uint64_t>& shown = (*row)[device][i];
      // A count that a thread moves from one place to another at this moment may miss in the sum.
      uint64_t before = shown.load(std::memory_order_relaxed);
      while (sums[device][i] > before && !shown.compare_exchange_weak(before, sums[device][i])) {
      }
    }
}

std::vector<PortSums> read_port_totals(host::RuntimeDir& directory) {
  // Each process writes its row before it answers.
  [[maybe_unused]] const host::Observation asked = host::observe_all(directory, kAnswerMs);
  const base::UniqueFd file(::open(path_in(directory.path()).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  uint64_t magic = 0;
  if (!file || !read_at(file.get(), 0, &magic, sizeof magic) || magic != kFileMagic) return {};
  std::vector<PortSums> sums(shm::kMaxDevices);
  off_t from = offset_of(shm::kMinSlot);
  // Most slots had no process, and their rows are holes.
  while ((from = lseek(file.get(), from, SEEK_DATA)) >= 0 && from < static_cast<off_t>(kFileBytes)) {
    const auto slot = static_cast<uint32_t>(from / static_cast<off_t>(shm::kPage));
    RowValues row;
    if (!read_row(file.get(), slot, &row)) break;
    for (size_t device = 0; device < sums.size(); ++device)
      for (size_t i = 0; i < shm::kPortCounts; ++i) sums[device][i] += row[device][i];
    from = offset_of(slot + 1);
  }
  return sums;
}

}  // namespace nupa::core
