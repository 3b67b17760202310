// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/boot_id.h"
#include "base/unique_fd.h"
#include "transport/pool/medium/host_lock.h"
#include "transport/pool/medium/process_identity.h"
#include "transport/pool/medium/spec.h"
#include "transport/pool/medium/torn_memory.h"
#include "transport/pool/medium/vfio_function.h"

namespace nupa::pool {

/// How lines get from host to host on a medium: the policies of cache_policy.h.
enum class Caches : uint8_t { kCoherent, kFlushed, kUncached, kTorn };

/// The word for people: "coherent", "flushed", "uncached" or "torn".
const char* name_of(Caches caches);

/// A medium that this process has opened and mapped. A forked child has zeros there, and no open file.
class PoolMemory {
 public:
  /// ENOENT, EACCES, EINVAL and others: the text has the path and what to do.
  static Result<std::unique_ptr<PoolMemory>> open(const Spec& spec);
  ~PoolMemory();
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  const Spec& spec() const { return spec_; }
  Caches caches() const { return caches_; }
  /// The memory that programs load from and store to.
  Line* lines() const { return torn_ != nullptr ? torn_->lines() : shared_; }
  uint64_t bytes() const { return bytes_; }
  /// The medium itself, without the copies of kTorn.
  Line* shared() const { return shared_; }
  TornMemory* torn() const { return torn_.get(); }
  int fd() const { return fd_.get(); }
  // The kernel's part: locks, the boot, and names for this process.
  using Lock = HostLock;
  static std::array<uint8_t, 16> boot_id() { return base::boot_id(); }
  static uint64_t random_key() { return pool::random_key(); }
  static ProcessLine describe_process(uint64_t instance, uint64_t incarnation) {
    return pool::describe_process(instance, incarnation);
  }
  /// The file as locks see it.
  uint64_t file_device() const { return file_device_; }
  uint64_t file_inode() const { return file_inode_; }
  /// The file became shorter, and zeros are there now.
  bool is_lost() const;
  /// For a PCI function, its folder in sysfs.
  const std::string& pci_folder() const { return pci_folder_; }
  bool is_ivshmem() const { return is_ivshmem_; }
  /// The PCI function, if its driver is vfio-pci. Null: another process has it open, or it has another driver.
  const std::shared_ptr<VfioFunction>& function() const { return function_; }
  /// A loaded word of the medium takes this time, the shortest of some trials. Measured for devices; 0: not measured.
  double load_ns() const { return load_ns_; }

 private:
  explicit PoolMemory(const Spec& spec) : spec_(spec) {}
  Result<void> open_file();
  Result<void> open_pci();
  Result<void> open_dax();
  Result<void> map(const std::string& path, int fd);
  void unmap();
  Result<void> choose_caches();

  const Spec spec_;
  base::UniqueFd fd_;
  uint64_t bytes_ = 0;
  uint64_t file_device_ = 0;
  uint64_t file_inode_ = 0;
  Line* shared_ = nullptr;
  double load_ns_ = 0;
  std::string pci_folder_;
  bool is_ivshmem_ = false;  ///< the device is memory of the machine that the guests run on
  std::shared_ptr<VfioFunction> function_;
  Caches caches_ = Caches::kCoherent;
  std::unique_ptr<TornMemory> torn_;
};

}  // namespace nupa::pool
