// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <set>

#include "core/objects.h"

namespace nupa::core {

/// An entry of the key table. It is given back by the destructor.
class KeyEntry {
 public:
  /// ENOMEM: the table is full.
  static Result<KeyEntry> take(IndexPool& numbers, const shm::Tables& tables);
  KeyEntry(KeyEntry&& other) noexcept
      : made_(other.made_), numbers_(other.numbers_), shared_(other.shared_), index_(other.index_) {
    other.numbers_ = nullptr;
  }
  KeyEntry& operator=(KeyEntry&&) = delete;
  ~KeyEntry();

  uint32_t index() const { return index_; }
  shm::MrShared& shared() const { return *shared_; }
  /// Returns a key of this entry that was not used recently.
  uint32_t fresh_key();

 private:
  KeyEntry(IndexPool& numbers, shm::MrShared& shared, uint32_t index)
      : numbers_(&numbers), shared_(&shared), index_(index) {}
  const progress::OfThisProcess made_;
  IndexPool* numbers_;
  shm::MrShared* shared_;
  uint32_t index_;
};

/// The memory and the rights of a region.
struct MrSpec {
  void* addr = nullptr;
  uint64_t length = 0;
  uint64_t iova = 0;
  uint32_t access = 0;

  /// True if the region covers all memory of the process, present and future.
  bool is_everything() const { return addr == nullptr && length == SIZE_MAX && (access & access::kOnDemand) != 0; }
};

class Dm;
class Mw;

class Mr final : public MemoryRegion {
 public:
  enum class Backing { kUser, kNull, kDm, kMapped, kAllocated };

  Mr(DeviceImpl& device, Pd& pd, KeyEntry entry, Backing backing);
  /// Publishes the region. `dm`: the memory that it is part of, for kDm and kAllocated. EFAULT, ENOMEM, EFBIG.
  Result<void> open(const MrSpec& spec, const Dm* dm);
  ~Mr() override;

  void* addr() const override { return spec_.addr; }
  uint64_t length() const override { return spec_.length; }
  uint32_t lkey() const override { return key_; }
  uint32_t rkey() const override { return key_; }
  uint32_t handle() const override { return entry_.index(); }
  int close() override;

  int reregister(uint32_t mask, Pd* pd, void* addr, size_t length, uint32_t access);
  Pd& pd() { return *pd_; }
  const MrSpec& spec() const { return spec_; }
  uint32_t index() const { return entry_.index(); }
  DeviceMemory* dm = nullptr;      ///< kDm: the device memory that the region is part of
  std::unique_ptr<Dm> own_memory;  ///< kAllocated: the memory of the region
  /// Windows bound to this region; some may have been invalidated since.
  std::set<Mw*> windows;
  /// Returns whether a window on the region is still valid. Lets go of the invalidated ones.
  bool has_live_window();

 private:
  Result<void> publish(const MrSpec& spec, const Dm* dm, bool keep_key);
  void revoke();

  DeviceImpl& device_;
  Pd* pd_;
  KeyEntry entry_;
  Backing backing_;
  MrSpec spec_;
  uint32_t key_ = 0;
  bool shared_memory_ = false;  ///< the remapper holds pages for it
  shm::Segment::Block pieces_;
  bool open_ = false;
};

class Mw final : public MemoryWindow {
 public:
  Mw(DeviceImpl& device, Pd& pd, KeyEntry entry, MwType type);
  ~Mw() override;
  uint32_t rkey() const override { return rkey_.load(); }
  uint32_t handle() const override { return entry_.index(); }
  MwType type() const override { return type_; }
  int close() override;

  /// Executes a bind posted on queue pair `qp_num` (IBTA 10.6.7.2). `new_key`: its low byte is the consumer's choice.
  WcStatus bind(uint32_t qp_num, Pd& pd, const MwBindInfo& info, uint32_t new_key);
  Pd& pd() { return pd_; }
  bool invalidated() const { return entry_.shared().key.load() == 0; }
  void let_go() { bound_ = nullptr; }

 private:
  void attach(Mr* region);

  DeviceImpl& device_;
  Pd& pd_;
  KeyEntry entry_;
  MwType type_;
  std::atomic<uint32_t> rkey_;
  Mr* bound_ = nullptr;
  bool open_ = true;
};

class Dm final : public DeviceMemory {
 public:
  /// How processes of this host map it: the piece of the remapper's file or of the lender's memory, and the owner as
  /// the lender names it.
  struct Shared {
    shm::MrPiece piece;
    uint64_t lent_to;  ///< 0: the remapper's file
  };
  /// `lender`: the transport whose memory it is. Null: it is the remapper's.
  Dm(DeviceImpl& device, const Shared& shared, uint64_t length, TransportMemory* lender);
  ~Dm() override;
  uint64_t length() const override { return length_; }
  uint32_t handle() const override { return handle_; }
  int copy_to(uint64_t offset, const void* from, size_t length) override;
  int copy_from(void* to, uint64_t offset, size_t length) override;
  int close() override;
  const Shared& shared() const { return shared_; }
  std::byte* begin() const { return reinterpret_cast<std::byte*>(shared_.piece.begin); }
  Users users;

 private:
  DeviceImpl& device_;
  const Shared shared_;
  uint64_t length_;
  TransportMemory* lender_;
  uint32_t handle_;
  bool open_ = true;
};

}  // namespace nupa::core
