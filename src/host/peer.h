// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shm/qp_banks.h"
#include "shm/segment.h"

namespace nupa::host {

/// Another process of this host and user that this one is connected to, or this process itself: its segment, its region
/// file, the ways to wake it, and whether it is alive. Pointers into its segment stay valid as long as there is a
/// PeerRef, also after its death, but the segment reads as zeros soon after that. The Node keeps a PeerRef while the
/// process lives. A server has any number of peers over time, so the mappings of each are removed with its last
/// PeerRef. All calls from any thread.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  ~Peer();
  /// Its first slot, which identifies it; queue_pairs() has all of them.
  uint32_t slot() const { return slot_; }
  uint64_t instance() const { return instance_; }
  bool is_self() const { return self_; }
  /// False once its socket was closed. One load, because the data path calls it.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  /// True if it exited cleanly, with a goodbye. Its end is then no fault.
  bool has_exited_cleanly() const { return polite_.load(std::memory_order_acquire); }

  const shm::Tables& tables() const { return tables_; }
  /// Its queue pairs.
  shm::QpBanks& queue_pairs() { return queue_pairs_; }
  /// Its heap memory at `offset` (rings, piece lists).
  Result<void*> heap(uint64_t offset, uint64_t length) {
    return file_ == nullptr ? own_segment_->file().at(offset, length) : file_->at(offset, length);
  }
  /// Maps `bytes` of its region file (remapped memory) from `offset` over the mapping at `at`, readable and writable.
  /// Returns 0 or an errno value. ESRCH: it exited. ERANGE: the file is shorter.
  int map_region(void* at, uint64_t bytes, uint64_t offset);
  /// Its process number in this process's namespace; 0 if it is in a namespace that this process cannot see.
  int pid() const { return pid_; }
  /// True if process_vm_readv on it was tried and works.
  bool cma_works() const { return cma_works_; }

  /// Wakes its service thread by an eventfd. Set the attention bits before.
  void signal_wakeup_fd();
  /// Writes to the eventfd of its completion channel `index` (0-based). False: this process does not have that
  /// descriptor, and lets the node ask for it. The caller then counts the event as unsignalled, sets the attention bits
  /// and wakes the service thread.
  bool signal_channel(uint32_t index);

  static constexpr uint32_t kMaxChannels = 1 << 16;
  /// Number of completion channels of all peers whose descriptors this process holds.
  static uint32_t channels_held() { return channels_held_.load(std::memory_order_relaxed); }
  /// The largest such number is this part of the descriptors that the process may have (RLIMIT_NOFILE). Events of
  /// further channels are delivered by their owners' service threads.
  static constexpr uint32_t kPartOfDescriptors = 8;
  static uint32_t most_channels_held();

  /// Descriptors that this process holds for each peer: its socket, segment, region file and eventfd.
  static constexpr uint32_t kDescriptors = 4;
  /// The largest number of peers: their descriptors take half of those that the process may have. Further processes are
  /// reached without shared memory.
  static uint32_t most_peers();

  /// Implemented by the node, which then asks for channels. Any thread; never waits.
  class Asker {
   public:
    virtual void channels_are_wanted() = 0;

   protected:
    ~Asker() = default;
  };

  // For the node only.
  void mark_self(shm::Segment& own) {
    self_ = true;
    own_segment_ = &own;
    queue_pairs_.open(&own.file(), tables_, slot_);
  }
  void mark_polite() { polite_.store(true, std::memory_order_release); }
  /// Marks it as exited. False: it was marked already. Closes its descriptors, even if there are PeerRefs.
  bool mark_exited();
  /// Called some time after its exit: frees its memory although there are PeerRefs, such as that of an idle queue pair.
  /// Threads that still read the memory get zeros.
  void let_go();
  void set_asker(Asker* asker) { asker_.store(asker, std::memory_order_release); }
  /// Takes ownership of the descriptor, unless this is the process itself. -1: the channel was removed. Closes the
  /// descriptor if there is no memory for it.
  void set_channel(uint32_t index, int fd);
  /// The channels that were signalled and not requested yet; each is returned once.
  std::vector<uint32_t> take_wanted();
  /// Lets channels that were requested and have not come be requested again with their next event.
  void forget_asked();

 private:
  friend class PeerTable;
  /// The state of its channels, in blocks that are allocated at their first use.
  struct ChannelBlock {
    static constexpr uint32_t kChannels = 256;
    using Bits = std::array<uint64_t, kChannels / 64>;
    std::array<int, kChannels> fds;
    Bits asked{};   ///< signalled without its descriptor, until that comes
    Bits wanted{};  ///< those of `asked` that the node has not requested yet
  };
  /// The channel's block. Null: no memory, or the process exited. Any thread.
  ChannelBlock* block_of(uint32_t index);
  using Channels = std::array<std::unique_ptr<ChannelBlock>, kMaxChannels / ChannelBlock::kChannels>;
  static void close_all(Channels& channels);
  /// Marks a channel as wanted, under the channels' lock. False: it is marked already.
  bool want_channel(ChannelBlock& block, uint32_t index) const;
  static inline std::atomic<uint32_t> channels_held_{0};
  uint32_t slot_ = 0;
  uint64_t instance_ = 0;
  bool self_ = false;
  std::atomic<bool> alive_{true};
  std::atomic<bool> polite_{false};
  int pid_ = 0;
  bool cma_works_ = false;
  std::unique_ptr<shm::MappedFile> file_;
  shm::Segment* own_segment_ = nullptr;
  shm::Tables tables_;
  shm::QpBanks queue_pairs_;
  /// Held while a descriptor is used, because after its close the number may belong to another file. region_mutex_ is
  /// for uses that may take long.
  std::mutex region_mutex_;
  base::UniqueFd region_fd_;
  std::mutex channels_lock_;  ///< the same for the members below
  base::UniqueFd wakeup_fd_;
  Channels channels_;
  bool channels_closed_ = false;  ///< it exited
  std::atomic<Asker*> asker_{nullptr};
};

/// Keeps a peer and its mappings.
using PeerRef = std::shared_ptr<Peer>;

}  // namespace nupa::host
