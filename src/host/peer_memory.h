// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/fence.h"
#include "base/ordered_copy.h"
#include "base/piece.h"
#include "host/peer.h"
#include "host/agent.h"

namespace nupa::host {

/// Memory of a process of this host that a transport has lent to it (TransportMemory::borrow of the core): the process
/// as the transport names it, and the place in the transport's memory.
using BorrowMemory = std::function<std::shared_ptr<std::byte>(uint64_t lent_to, uint64_t offset, uint64_t bytes)>;

/// A peer's region as mapped into this process: the longest run of its pages that its region file backs, or memory that
/// a transport has lent to it.
class MappedRegion {
 public:
  /// Unmaps the pages at the end.
  MappedRegion(std::byte* base, uint64_t begin, uint64_t end) : base_(base), begin_(begin), end_(end) {}
  MappedRegion(std::shared_ptr<std::byte> borrowed, uint64_t begin, uint64_t end)
      : borrowed_(std::move(borrowed)), base_(borrowed_.get()), begin_(begin), end_(end) {}
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  /// The address here of the peer's addresses [begin, end). Null: nothing is mapped.
  std::byte* base() const { return base_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

 private:
  const std::shared_ptr<std::byte> borrowed_;
  std::byte* base_;
  uint64_t begin_;
  uint64_t end_;
};

/// The mappings of one peer's regions, shared by the endpoints that lead to it and removed with the last of these. The
/// mappings used last are kept even if no endpoint holds them: a program that uses hundreds of regions in turn would
/// otherwise map each again, and fault in its pages, for every request. Any thread.
class PeerMemory {
 public:
  PeerMemory(host::Peer& peer, Agent& agent, BorrowMemory borrow = {})
      : peer_(peer.shared_from_this()), agent_(agent), borrow_(std::move(borrow)) {}
  host::Peer& peer() const { return *peer_; }
  Agent& agent() const { return agent_; }
  /// The mapping of region `index` in generation `generation`. Never null; may be empty.
  std::shared_ptr<MappedRegion> map(uint32_t index, uint32_t generation);

 private:
  /// A process may have tens of thousands of mappings (vm.max_map_count).
  static constexpr size_t kMostKept = 1024;
  struct Entry {
    uint32_t index = 0;
    uint32_t generation = 0;
    std::shared_ptr<MappedRegion> region;
  };
  using Entries = std::list<Entry>;

  /// Null: the system call failed.
  std::shared_ptr<MappedRegion> read_and_map(uint32_t index);

  const host::PeerRef peer_;
  Agent& agent_;
  const BorrowMemory borrow_;
  std::mutex mutex_;
  Entries kept_;  ///< the last used first
  std::unordered_map<uint32_t, Entries::iterator> places_;
};

/// The mappings of all peers that are in use. Any thread.
class PeerMemories {
 public:
  explicit PeerMemories(host::Node& node, BorrowMemory borrow = {}) : agent_(node), borrow_(std::move(borrow)) {}
  /// The mappings of a peer, shared by all endpoints that lead to it.
  std::shared_ptr<PeerMemory> of(host::Peer& peer);
  Agent& agent() { return agent_; }
  /// Number of entries, including those that are not in use any more.
  size_t known() {
    std::lock_guard lock(mutex_);
    return memories_.size();
  }

 private:
  Agent agent_;
  const BorrowMemory borrow_;  ///< empty: no transport lends memory
  std::mutex mutex_;
  std::unordered_map<host::Peer*, std::weak_ptr<PeerMemory>> memories_;
};

/// A checked range of a peer's memory.
struct RemoteRange {
  uint64_t address;   ///< the peer's virtual address
  std::byte* direct;  ///< address for plain loads and stores; null: a part of the range cannot be reached by them
  const MappedRegion* region;  ///< null: the peer is this process
  bool null_region;            ///< discards writes
};

/// The access that a remote key allows, cached per endpoint. The queue pair's send lock serializes calls.
class KeyCache {
 public:
  explicit KeyCache(std::shared_ptr<PeerMemory> memory) : memory_(std::move(memory)) {}

  /// Checks key, bounds, rights (access bits), protection domain and, for windows, the queue pair `remote_qpn` (IBTA
  /// 9.4.1.1.3, 10.6.3). With a `length` of 0, *range is not to be used. False: the key does not allow the access.
  [[gnu::always_inline]] bool resolve(uint32_t key, uint64_t address, uint64_t length, uint32_t rights, uint32_t pd,
                                      uint32_t remote_qpn, RemoteRange* range) {
    const Reach& reach = reaches_[shm::key_index(key) % kEntries];
    const uint64_t within = address - reach.first;
    if (__builtin_expect(reach.key != key || within > reach.length || length > reach.length - within ||
                             (reach.access & rights) != rights || reach.pd != pd ||
                             reach.shared->key.load(std::memory_order_acquire) != key ||
                             reach.shared->generation != reach.generation,
                         0))
      return resolve_slowly(key, address, length, rights, pd, remote_qpn, range);
    *range = {address + reach.delta, reach.base + within, reach.region, false};
    return true;
  }

  /// The first address of a key's region or window. Empty: there is no such key.
  std::optional<uint64_t> first_address(uint32_t key);

  /// The mapping of a key, if it was the last one resolved in its cache entry. Null: it was not, or the peer is this
  /// process.
  std::shared_ptr<MappedRegion> region_of(uint32_t key) const {
    const auto& entry = entries_[shm::key_index(key) % kEntries];
    return entry != nullptr && entry->key == key ? entry->region : nullptr;
  }

  PeerMemory& memory() { return *memory_; }
  const std::shared_ptr<PeerMemory>& share() const { return memory_; }

 private:
  /// The part of a region that plain loads and stores reach, in one cache line. Length 0: use the Entry.
  struct alignas(64) Reach {
    uint32_t key = 0;
    uint32_t generation = 0;
    uint32_t pd = 0;
    uint32_t access = 0;
    const shm::MrShared* shared = nullptr;
    uint64_t first = 0;  ///< first address in terms of the key
    uint64_t length = 0;
    uint64_t delta = 0;         ///< owner's virtual address minus key address
    std::byte* base = nullptr;  ///< the address of `first` in this process
    const MappedRegion* region = nullptr;
  };
  /// All that was read about a key.
  struct Entry {
    /// True if this entry is still valid for key `wanted`.
    bool holds(uint32_t wanted) const {
      return key == wanted && shared->key.load(std::memory_order_acquire) == wanted &&
             shared->generation == generation &&
             (parent == nullptr || parent->key.load(std::memory_order_acquire) == parent_key);
    }
    uint32_t key = 0;
    uint32_t generation = 0;
    const shm::MrShared* shared = nullptr;
    const shm::MrShared* parent = nullptr;  ///< for a window: its region, which is checked with it
    uint32_t parent_key = 0;
    uint32_t pd = 0;
    uint32_t access = 0;
    uint32_t qp_num = 0;
    uint64_t start = 0;
    uint64_t length = 0;
    uint64_t delta = 0;
    // The part that plain loads and stores reach: the peer's addresses [direct_begin, + direct_length) are at
    // direct_base here.
    uint64_t direct_begin = 0;
    uint64_t direct_length = 0;
    std::byte* direct_base = nullptr;
    bool null_region = false;
    std::shared_ptr<MappedRegion> region;
  };
  static constexpr uint32_t kEntries = 8;

  bool resolve_slowly(uint32_t key, uint64_t address, uint64_t length, uint32_t rights, uint32_t pd,
                      uint32_t remote_qpn, RemoteRange* range);
  /// Null: no such key.
  const Entry* find(uint32_t key);
  std::unique_ptr<const Entry> load(uint32_t key) const;
  static Reach reach_of(const Entry& entry);

  std::array<Reach, kEntries> reaches_;
  std::array<std::unique_ptr<const Entry>, kEntries> entries_;
  std::shared_ptr<PeerMemory> memory_;
};

WcStatus write_remote_slowly(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const base::Piece* pieces,
                             uint32_t count);
WcStatus read_remote_slowly(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const base::Piece* pieces,
                            uint32_t count);

/// Copies between this process's pieces and a peer's range of their total length. The last bytes of a write become
/// visible last, as a reader that polls on them expects. Returns kSuccess, the status that the requester reports, or
/// kNotServedYet: the peer itself has to copy, by `call`, and has not done so.
inline WcStatus write_remote(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const base::Piece* pieces,
                             uint32_t count) {
  if (__builtin_expect(count != 1 || pieces->data == nullptr || range.direct == nullptr, 0))
    return write_remote_slowly(call, memory, range, pieces, count);
  base::copy_in_order(range.direct, pieces->data, pieces->length);
  return WcStatus::kSuccess;
}
inline WcStatus read_remote(AgentCall& call, PeerMemory& memory, const RemoteRange& range, const base::Piece* pieces,
                            uint32_t count) {
  if (__builtin_expect(count != 1 || pieces->data == nullptr || range.direct == nullptr, 0))
    return read_remote_slowly(call, memory, range, pieces, count);
  // The data of a READ is announced by its completion alone, so its stores need no order. Its loads come before those
  // of the next request.
  if (pieces->length == sizeof(uint64_t))
    std::memcpy(pieces->data, range.direct, sizeof(uint64_t));  // the usual flag or counter
  else
    base::copy_block(pieces->data, range.direct, pieces->length);
  base::fence_after_reads();
  return WcStatus::kSuccess;
}

}  // namespace nupa::host
