#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "cm/peer.h"
#include "transport/transport.h"

namespace nupa::window {

/// A peer's region as mapped into this process: the longest run of its pages that its region file backs.
class MappedRegion {
 public:
  MappedRegion(std::byte* base, uint64_t begin, uint64_t end) : base_(base), begin_(begin), end_(end) {}
  ~MappedRegion();
  MappedRegion(const MappedRegion&) = delete;
  MappedRegion& operator=(const MappedRegion&) = delete;

  /// The peer's addresses [begin, end) lie at base here. base null: nothing is mapped.
  std::byte* base() const { return base_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

 private:
  std::byte* base_;
  uint64_t begin_;
  uint64_t end_;
};

class Agent;

/// All mappings of one peer's regions, shared by the endpoints that lead to it. Any thread.
class PeerMemory {
 public:
  PeerMemory(cm::Peer& peer, Agent& agent) : peer_(peer), agent_(agent) {}
  cm::Peer& peer() const { return peer_; }
  Agent& agent() const { return agent_; }
  /// The mapping of region `index` in its present generation. Never null; may be empty.
  std::shared_ptr<MappedRegion> map(uint32_t index, uint32_t generation);

 private:
  struct Entry {
    uint32_t generation = 0;
    std::weak_ptr<MappedRegion> region;
  };
  cm::Peer& peer_;
  Agent& agent_;
  std::mutex mutex_;
  std::unordered_map<uint32_t, Entry> entries_;
};

/// A checked range of a peer's memory.
struct RemoteRange {
  uint64_t address = 0;  ///< the peer's virtual address
  uint64_t length = 0;
  const MappedRegion* region = nullptr;  ///< null: the peer is this process
  bool null_region = false;              ///< swallows writes
};

/// What a remote key opens, cached per endpoint. Calls are serialised by the queue pair's send lock.
class KeyCache {
 public:
  explicit KeyCache(std::shared_ptr<PeerMemory> memory) : memory_(std::move(memory)) {}

  /// Checks key, bounds, rights (access bits), protection domain and, for windows, the queue pair `remote_qpn`
  /// (IBTA 9.4.1.1.3, 10.6.3). False: the key does not allow it.
  bool resolve(uint32_t key, uint64_t address, uint64_t length, uint32_t rights, uint32_t pd, uint32_t remote_qpn,
               RemoteRange* range);

  PeerMemory& memory() { return *memory_; }
  const std::shared_ptr<PeerMemory>& share() const { return memory_; }

 private:
  struct Entry {
    uint32_t key = 0;
    uint32_t generation = 0;
    uint32_t pd = 0;
    uint32_t access = 0;
    uint64_t start = 0;
    uint64_t length = 0;
    uint64_t delta = 0;
    uint32_t qp_num = 0;
    bool null_region = false;
    const segment::MrShared* entry = nullptr;
    const segment::MrShared* parent = nullptr;  ///< of a window; checked with it
    uint32_t parent_key = 0;
    std::shared_ptr<MappedRegion> region;
  };
  static constexpr uint32_t kEntries = 8;

  bool load(uint32_t key, Entry* entry);

  std::shared_ptr<PeerMemory> memory_;
  std::array<Entry, kEntries> cache_;
};

/// Copies between this process's pieces and a peer's range. The last bytes of a write become visible last, as a
/// reader that polls on them expects. kSuccess, or the status the requester reports.
WcStatus write_remote(PeerMemory& memory, const RemoteRange& range, const transport::Piece* pieces, uint32_t count);
WcStatus read_remote(PeerMemory& memory, const RemoteRange& range, const transport::Piece* pieces, uint32_t count);

/// Where `range` can be reached by plain loads and stores, or null if some of it cannot.
std::byte* direct_pointer(const RemoteRange& range);

}  // namespace nupa::window
