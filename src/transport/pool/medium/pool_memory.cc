// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/pool_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <limits>

#include "base/clock.h"
#include "base/lowest_descriptor.h"
#include "base/memory_fault.h"
#include "base/system_error.h"
#include "progress/lifecycle.h"
#include "transport/pool/medium/layout.h"

namespace nupa::pool {
namespace {

constexpr uint64_t kDaxAlignment = 2 << 20;  ///< device-dax maps whole huge pages
/// Loads of one word of cached memory take some ns, and those of an uncached BAR or an emulated device hundreds.
constexpr double kUncachedLoadNs = 100;
constexpr uint32_t kBars = 6;
constexpr uint64_t kIsMemory = 0x200;  ///< IORESOURCE_MEM of <linux/ioport.h>
constexpr const char* kIvshmem[] = {"0x1af4", "0x1110"};

/// The first word of a file of sysfs. Empty: it cannot be read.
std::string word_of(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

/// Opens a file for reading and writing, which a forked child does not keep. -1: errno has the reason.
int open_for_parent(const std::string& path) {
  return progress::open_for_parent(
      [&] { return base::out_of_the_way(base::UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC))).release(); });
}

/// Sizes of the memory BARs by their number, 0 for others: the lines "begin end flags" of the file `resource`.
std::array<uint64_t, kBars> bar_sizes(const std::string& folder) {
  std::array<uint64_t, kBars> sizes{};
  std::ifstream file(folder + "/resource");
  std::string line;
  for (uint64_t& size : sizes) {
    uint64_t begin = 0, end = 0, flags = 0;
    if (!std::getline(file, line)) break;
    if (std::sscanf(line.c_str(), "%" SCNx64 " %" SCNx64 " %" SCNx64, &begin, &end, &flags) != 3) continue;
    if ((flags & kIsMemory) != 0 && end > begin) size = end - begin + 1;
  }
  return sizes;
}

double shortest_load_ns(const Line* line) {
  constexpr int kTrials = 16;
  constexpr int kLoads = 64;
  double shortest = std::numeric_limits<double>::infinity();
  const auto* const word = static_cast<const volatile uint64_t*>(line->words);
  for (int trial = 0; trial < kTrials; ++trial) {
    const int64_t begin = base::now_ns();
    for (int i = 0; i < kLoads; ++i) [[maybe_unused]] const uint64_t loaded = *word;
    shortest = std::min(shortest, static_cast<double>(base::now_ns() - begin) / kLoads);
  }
  return shortest;
}

}  // namespace

const char* name_of(Caches caches) {
  switch (caches) {
    case Caches::kCoherent:
      return "coherent";
    case Caches::kFlushed:
      return "flushed";
    case Caches::kUncached:
      return "uncached";
    case Caches::kTorn:
      break;
  }
  return "torn";
}

Result<std::unique_ptr<PoolMemory>> PoolMemory::open(const Spec& spec) {
  std::unique_ptr<PoolMemory> memory(new PoolMemory(spec));
  Result<void> opened;
  switch (spec.kind) {
    case MediumKind::kFile:
      opened = memory->open_file();
      break;
    case MediumKind::kPci:
      opened = memory->open_pci();
      break;
    case MediumKind::kDax:
      opened = memory->open_dax();
      break;
  }
  if (opened) opened = memory->choose_caches();
  if (!opened) return tl::unexpected(opened.error());
  return memory;
}

PoolMemory::~PoolMemory() {
  torn_.reset();
  unmap();
  if (fd_) progress::forget_for_children(fd_.get());
}

bool PoolMemory::is_lost() const { return base::has_zeros_after_fault(shared_); }

Result<void> PoolMemory::open_file() {
  const int fd = open_for_parent(spec_.name);
  if (fd < 0) {
    const int error = errno;
    return base::fail_call(error, "cannot open the pool file ", spec_.name,
                           error == ENOENT ? " (nupa pool format --size makes it)" : "");
  }
  fd_.reset(fd);
  struct stat status {};
  if (fstat(fd, &status) != 0) return base::fail_call(errno, "cannot stat the pool file ", spec_.name);
  if (!S_ISREG(status.st_mode)) return fail(EINVAL, "the pool file ", spec_.name, " is not a regular file");
  bytes_ = static_cast<uint64_t>(status.st_size) / kPageBytes * kPageBytes;
  return map(spec_.name, fd);
}

Result<void> PoolMemory::open_pci() {
  pci_folder_ = "/sys/bus/pci/devices/" + spec_.name;
  const std::string& folder = pci_folder_;
  if (::access(folder.c_str(), F_OK) != 0)
    return fail(ENODEV, "no PCI function ", spec_.name, " on this machine (lspci -D lists them)");
  if (VfioFunction::is_bound(folder)) {
    // The memory answers as long as a process has the function open.
    auto opened = VfioFunction::open(folder);
    if (!opened && opened.error().code() != EBUSY) return tl::unexpected(opened.error());
    if (opened) function_ = std::move(*opened);
  } else if (word_of(folder + "/enable") == "0") {
    return fail(ENODEV, "the PCI function ", spec_.name, " is not enabled: echo 1 > ", folder, "/enable");
  }
  const auto sizes = bar_sizes(folder);
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  const uint32_t bar = spec_.bar.value_or(static_cast<uint32_t>(largest - sizes.begin()));
  if (sizes[bar] == 0) return fail(ENODEV, "the PCI function ", spec_.name, " has no memory BAR ", bar);
  bytes_ = sizes[bar] / kPageBytes * kPageBytes;
  is_ivshmem_ = word_of(folder + "/vendor") == kIvshmem[0] && word_of(folder + "/device") == kIvshmem[1];
  const std::string path = folder + "/resource" + std::to_string(bar);
  fd_.reset(open_for_parent(path));
  if (!fd_) return base::fail_call(errno, "cannot open ", path, " (only root may, or its owner)");
  if (auto mapped = map(path, fd_.get()); !mapped) return mapped;
  load_ns_ = shortest_load_ns(shared_);
  // A BAR that is not cached is mapped with combined stores. All processes lock the plain file.
  const std::string combining = path + "_wc";
  if (load_ns_ < kUncachedLoadNs || ::access(combining.c_str(), R_OK | W_OK) != 0) return {};
  const base::UniqueFd file(::open(combining.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return base::fail_call(errno, "cannot open ", combining);
  unmap();
  if (auto mapped = map(combining, file.get()); !mapped) return mapped;
  load_ns_ = shortest_load_ns(shared_);
  return {};
}

Result<void> PoolMemory::open_dax() {
  const int fd = open_for_parent(spec_.name);
  if (fd < 0) {
    const int error = errno;
    return base::fail_call(
        error, "cannot open the pool device ", spec_.name,
        error == ENXIO ? " (it is not bound to device_dax: daxctl reconfigure-device -m devdax)" : "");
  }
  fd_.reset(fd);
  struct stat status {};
  if (fstat(fd, &status) != 0) return base::fail_call(errno, "cannot stat the pool device ", spec_.name);
  if (!S_ISCHR(status.st_mode)) return fail(EINVAL, spec_.name, " is not a character device");
  const std::string folder =
      "/sys/dev/char/" + std::to_string(major(status.st_rdev)) + ":" + std::to_string(minor(status.st_rdev));
  const std::string size = word_of(folder + "/size");
  bytes_ = std::strtoull(size.c_str(), nullptr, 0) / kDaxAlignment * kDaxAlignment;
  if (bytes_ == 0) return fail(EINVAL, spec_.name, ": ", folder, "/size gives no size of at least 2 MiB");
  if (auto mapped = map(spec_.name, fd); !mapped) return mapped;
  load_ns_ = shortest_load_ns(shared_);
  return {};
}

void PoolMemory::unmap() {
  if (shared_ == nullptr) return;
  base::forget_zero_after_fault(shared_);
  progress::forget_mapping_for_children(shared_);
  munmap(shared_, bytes_);
  shared_ = nullptr;
}

Result<void> PoolMemory::map(const std::string& path, int fd) {
  if (bytes_ == 0) return fail(EINVAL, path, " is too small for a pool (nupa pool format --size makes a file larger)");
  struct stat status {};
  if (fstat(fd_.get(), &status) != 0) return base::fail_call(errno, "cannot stat ", path);
  file_device_ = status.st_dev;
  file_inode_ = status.st_ino;
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return base::fail_call(errno, "cannot map ", bytes_, " bytes of ", path);
  progress::blank_in_children(mapped, bytes_);
  shared_ = static_cast<Line*>(mapped);
  if (const int error = base::zero_after_fault(mapped, bytes_); error != 0)
    return base::fail_call(error, "cannot watch the mapping of ", path);
  return {};
}

Result<void> PoolMemory::choose_caches() {
  const bool is_slow = load_ns_ >= kUncachedLoadNs;
  switch (spec_.coherence) {
    case Coherence::kFull:
      caches_ = Caches::kCoherent;
      return {};
    case Coherence::kNone:
      caches_ = is_slow ? Caches::kUncached : Caches::kFlushed;
      break;
    case Coherence::kAuto:
      if (spec_.kind == MediumKind::kFile || (is_ivshmem_ && !is_slow))
        caches_ = Caches::kCoherent;
      else
        caches_ = is_slow ? Caches::kUncached : Caches::kFlushed;
      return {};
  }
  if (spec_.kind != MediumKind::kFile) return {};
  caches_ = Caches::kTorn;
  auto torn = TornMemory::open(spec_.name, shared_, bytes_, spec_.host, spec_.seed);
  if (!torn) return tl::unexpected(torn.error());
  torn_ = std::move(*torn);
  return {};
}

}  // namespace nupa::pool
