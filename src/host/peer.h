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

/// Another process of this host and user that this one has met (or this process itself): its segment, its region
/// file, the ways to wake it, whether it lives. Pointers into its segment stay valid as long as somebody has a PeerRef,
/// also after its death, but the segment has zeros soon after that. The Node has one while the process lives: a server
/// meets any number of processes, and what it has mapped of them goes with the last PeerRef. All calls from any thread.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  ~Peer();
  /// Its first one, which names it; queue_pairs() knows them all.
  uint32_t slot() const { return slot_; }
  uint64_t instance() const { return instance_; }
  bool is_self() const { return self_; }
  /// False once its sockets hung up. One load: the data path asks.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  /// True if it said goodbye before it went (its end is then no fault).
  bool left_politely() const { return polite_.load(std::memory_order_acquire); }

  const shm::Tables& tables() const { return tables_; }
  /// Its queue pairs.
  shm::QpBanks& queue_pairs() { return queue_pairs_; }
  /// Its heap memory at `offset` (rings, piece lists).
  Result<void*> heap(uint64_t offset, uint64_t length) {
    return file_ == nullptr ? own_segment_->file().at(offset, length) : file_->at(offset, length);
  }
  /// Maps `bytes` of its region file (remapped memory) from `offset` over what is at `at`, to be read and written.
  /// errno values; ESRCH: it is gone; ERANGE: the file is shorter.
  int map_region(void* at, uint64_t bytes, uint64_t offset);
  /// Its process number as this process sees it; 0 if it is in a namespace that cannot be seen from here.
  int pid() const { return pid_; }
  /// True if process_vm_readv on it was tried and works.
  bool cma_works() const { return cma_works_; }

  /// Wakes its service thread (an eventfd write). Set the attention bits before.
  void ring_doorbell();
  /// Writes to the eventfd of its completion channel `index` (0-based). False: this process does not have that, and has
  /// the node ask for it; then count the event as unsignalled, set the attention bits and ring the doorbell.
  bool signal_channel(uint32_t index);

  static constexpr uint32_t kMaxChannels = 1 << 16;
  /// Completion channels of all peers whose descriptors this process holds.
  static uint32_t channels_held() { return channels_held_.load(std::memory_order_relaxed); }
  /// Most of them: this part of the descriptors that the process may have (RLIMIT_NOFILE). Events of further channels
  /// go by their owners' service threads.
  static constexpr uint32_t kPartOfDescriptors = 8;
  static uint32_t most_channels_held();

  /// Descriptors that this process holds for each peer: its socket, segment, region file and doorbell.
  static constexpr uint32_t kDescriptors = 4;
  /// Most peers: their descriptors take half of those that the process may have. Further processes are reached without
  /// shared memory.
  static uint32_t most_peers();

  /// The node: channels are to be asked for. Any thread; waits for nobody.
  class Asker {
   public:
    virtual void channels_are_wanted() = 0;

   protected:
    ~Asker() = default;
  };

  // For the node alone.
  void mark_self(shm::Segment& own) {
    self_ = true;
    own_segment_ = &own;
    queue_pairs_.open(&own.file(), tables_, slot_);
  }
  void mark_polite() { polite_.store(true, std::memory_order_release); }
  /// False if it was gone already. Its descriptors are closed, whoever has a PeerRef.
  bool mark_gone();
  /// Some time after it has gone: its memory is given back though somebody has a PeerRef, as an idle queue pair does;
  /// whoever still looks there sees zeros.
  void let_go();
  void set_asker(Asker* asker) { asker_.store(asker, std::memory_order_release); }
  /// Takes the descriptor over, unless this is the process itself; -1: the channel is gone. Without memory for it, it
  /// is closed.
  void set_channel(uint32_t index, int fd);
  /// The channels that were signalled and not asked for yet; each is told once.
  std::vector<uint32_t> take_wanted();
  /// What was asked for and has not come is asked for again with its next event.
  void forget_asked();

 private:
  friend class PeerTable;
  /// What is known of its channels: of so many as have been used, in blocks.
  struct ChannelBlock {
    static constexpr uint32_t kChannels = 256;
    using Bits = std::array<uint64_t, kChannels / 64>;
    std::array<int, kChannels> fds;
    Bits asked{};   ///< signalled without its descriptor, until that comes
    Bits wanted{};  ///< of these, what the node has not asked for yet
  };
  /// Its block; null without memory, or where it has gone. Any thread.
  ChannelBlock* block_of(uint32_t index);
  using Channels = std::array<std::unique_ptr<ChannelBlock>, kMaxChannels / ChannelBlock::kChannels>;
  static void close_all(Channels& channels);
  /// Under the channels' lock. False: that is known already.
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
  /// Held while a descriptor is used: when it is closed its number may become anything's. This one where the use may
  /// take its time.
  std::mutex region_mutex_;
  base::UniqueFd region_fd_;
  std::mutex channels_lock_;  ///< the same for those below
  base::UniqueFd doorbell_;
  Channels channels_;
  bool channels_closed_ = false;  ///< it has gone
  std::atomic<Asker*> asker_{nullptr};
};

/// Keeps a peer and what is mapped of it.
using PeerRef = std::shared_ptr<Peer>;

}  // namespace nupa::host
