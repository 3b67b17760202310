// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "ccl/channel/shm_channel.h"
#include "ccl/channel/rdma_port.h"
#include "ccl/coroutine/waiter.h"

namespace nupa::ccl {

/// A communicator's connections to other ranks. Each link is made when it is first needed, on the endpoint's loop.
/// Thread-safe.
class Links final : public MailSink {
 public:
  /// Called when all operations have to end, on the endpoint's loop or by probe(), without a lock of this class.
  using OnEnd = std::function<void(const Cause&)>;

  /// The ranks and the memory that the links of a communicator connect.
  struct Places {
    std::span<const PeerInfo> peer_infos;  ///< peer info of all ranks
    const MemoryRegion& arena;             ///< this rank's arena, which peers map or write to
    size_t channels_at;                    ///< offset of the channels in the arena
    ChannelLayout channels;
    RdmaPort* rdma_port;  ///< for peers that share no memory with this rank; null: there are none
  };

  /// All objects that are passed by reference must outlive the links.
  Links(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank, const Places& places, const WaitRules& rules,
        OnEnd on_end);
  ~Links() override;
  /// Starts to receive mail, so that peers can connect. Errors: those of Endpoint::enter().
  int open();

  /// Returns whether a link to this rank maps the rank's arena. Otherwise it uses RDMA.
  bool shares_memory_with(uint32_t rank) const {
    return places_.peer_infos[rank].shares_memory_with(places_.peer_infos[rank_]);
  }
  /// Begins to make the link, unless that has begun already.
  void want(uint32_t rank);
  /// A wait until the link is ready.
  Wait ready(uint32_t rank);
  const ChannelLayout& channels() const { return places_.channels; }
  /// The mapped arena of a rank whose link is ready, or this rank's own arena. Null: no memory is shared.
  std::byte* arena_of(uint32_t rank) const;
  /// The address of the arena in the process of a rank whose link is ready.
  uint64_t arena_address_of(uint32_t rank) const { return links_[rank].peer.arena; }
  /// The channel of one kind to a rank whose link is ready.
  MessageChannel& channel(uint32_t rank, ChannelKind kind) {
    return *links_[rank].channels[static_cast<uint32_t>(kind)];
  }
  /// Maps other memory of a rank whose arena is mapped. Returns null if that is not possible.
  std::shared_ptr<std::byte> map(uint32_t rank, uint32_t rkey, uint64_t address, uint64_t bytes);
  /// Checks whether a rank is alive, and calls OnEnd soon if it is not. Also asks for which rank it waits. With
  /// `follow`, the rank in the answer is asked next, until one waits for no other.
  void probe(uint32_t rank, bool follow);
  /// Records the rank that a long wait of this rank is for, which is the answer to ranks that ask. kNoRank: none. If
  /// several threads wait, the last call counts.
  void note_long_wait_for(uint32_t rank) { waits_for_.store(rank, std::memory_order_relaxed); }
  /// Finds the rank that blocks `rank`: the last of the ranks that wait for each other, which waits for none or has not
  /// answered lately.
  uint32_t last_waited_for(uint32_t rank);
  /// Ends the operations of this rank and of all others, in the arenas that are mapped and by mail. The first cause
  /// stays. Returns whether this is the first one.
  bool end(const Cause& cause);
  /// Returns whether that rank has reported by mail that all operations end. It may then close its queue pairs.
  bool has_ended(uint32_t rank);
  /// Stops zero-copy sends. Called after an operation has failed and before its error is returned, because the program
  /// may then free its arrays.
  void cancel_zero_copy_sends();

  void on_mail(const Mail& mail) override;
  void on_completion(const WorkCompletion& completion) override;

 private:
  struct Link {
    uint32_t rank = 0;
    bool wanted = false;
    bool is_known = false;        ///< the peer's queue pair and arena are known
    bool connected = false;       ///< this side is connected
    bool peer_connected = false;  ///< the peer has reported that its side is connected
    bool owes_answer = false;     ///< the peer has sent a hello since the last answer
    bool probing = false;
    bool has_ended = false;  ///< the peer has reported that all operations end
    bool follows = false;    ///< the rank in its next answer is asked, too
    Mail peer;
    std::unique_ptr<QueuePair> qp;
    std::shared_ptr<std::byte> arena;
    std::unique_ptr<MessageChannel> channels[kChannelKinds];
    std::atomic<uint32_t> ready{0};
    std::atomic<uint32_t> sleepers{0};
    uint32_t waits_for = kNoRank;  ///< as the peer has answered
    int64_t asked_ns = 0;          ///< time of the last question; 0: none
    int64_t answered_ns = 0;       ///< time of the last answer; 0: none
    int64_t next_ns = 0;           ///< time of the next attempt
    int64_t pause_ns = 0;
  };

  Mail mail_to(MailKind kind, const Link& link) const;
  /// Advances all links that are wanted and not ready, and sets the timer for the next attempt.
  void make_all(int64_t now_ns);
  /// Makes as much of a link as is possible now. The mutex is held.
  void advance(Link& link);
  int make(Link& link);
  int connect_to(Link& link);
  /// The local ACK timeout of the queue pair to a rank, in the code of IBTA 9.7.6.1.3.
  uint8_t ack_timeout_to(uint32_t rank) const;
  /// Maps the arena of a peer that shares memory, once both sides are connected. ENOTCONN: it cannot be mapped yet.
  int finish(Link& link);
  void map_channels(Link& link);
  int connect_by_rdma(Link& link);
  /// Stores the peer's values from a mail. The timer soon runs make_all() to make the link. It is not made here,
  /// because no other communicator can enter or leave the endpoint while mail is read.
  void receive(Link& link, const Mail& mail);
  /// Reports to the peer that this side is connected, if the peer has sent a hello since the last answer.
  void answer(Link& link);
  /// Asks for which rank the peer waits, unless the last question was sent less than ask_pause_ns() ago.
  void ask(Link& link, bool follow);
  int64_t ask_pause_ns() const;
  void hear_wait(Link& link, const Mail& mail);
  void fail(const Cause& cause) { failure_ = failure_ ? failure_ : cause; }
  /// Calls OnEnd if something has failed. The mutex is not held.
  void report();

  Endpoint& endpoint_;
  const CommunicatorId id_;
  const uint32_t rank_;
  const Places places_;
  const WaitRules rules_;
  const OnEnd on_end_;
  bool entered_ = false;
  std::atomic<uint32_t> waits_for_{kNoRank};

  std::mutex mutex_;
  std::vector<Link> links_;  ///< by rank
  std::vector<uint32_t> making_;
  Cause failure_;
  Cause ended_;                  ///< the cause of the first end()
  progress::Loop::Timer timer_;  ///< ends before the members above, which make_all() uses
};

}  // namespace nupa::ccl
