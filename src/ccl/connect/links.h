#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "ccl/channel/shm_lane.h"
#include "ccl/channel/rdma_port.h"
#include "ccl/coroutine/waiter.h"

namespace nupa::ccl {

/// A communicator's connections to the ranks that it talks to, each made when it is first wanted, on the endpoint's
/// loop. Any thread, but for what is said of the constructor.
class Links final : public MailSink {
 public:
  /// Called on the endpoint's loop, with nothing locked that a call of this class locks: all is to end.
  using OnEnd = std::function<void(const Cause&)>;

  /// What the links of a communicator lead to.
  struct Places {
    std::span<const RankCard> cards;  ///< of all ranks
    const MemoryRegion& arena;        ///< what the other ends map or write to
    size_t channels_at;               ///< from where it begins to its channels
    ChannelLayout channels;
    WirePort* wires;  ///< for ranks that share no memory with this one; null: there are none
  };

  /// All that is referred to outlives this.
  Links(Endpoint& endpoint, const CommunicatorId& id, uint32_t rank, const Places& places, const WaitRules& rules,
        OnEnd on_end);
  ~Links() override;
  /// From now on others find this rank. EEXIST: the process has it already.
  int open();

  /// Whether the other end's arena is mapped where there is a link.
  bool shares_memory_with(uint32_t rank) const { return places_.cards[rank].shares_memory_with(places_.cards[rank_]); }
  /// Begins to make the link, if nobody has.
  void want(uint32_t rank);
  /// Until the link is there.
  Wait ready(uint32_t rank);
  const ChannelLayout& channels() const { return places_.channels; }
  /// Of a link that is there: the other end's arena. Of this rank: its own.
  std::byte* arena_of(uint32_t rank) const;
  /// Of a link that is there: where that is in the other end's process.
  uint64_t arena_address_of(uint32_t rank) const { return links_[rank].peer.arena; }
  /// Of a link that is there.
  Lane& lane(uint32_t rank, LaneKind kind) { return *links_[rank].lanes[static_cast<uint32_t>(kind)]; }
  /// Other memory of a rank whose arena is mapped; null: it cannot be.
  std::shared_ptr<std::byte> map(uint32_t rank, uint32_t rkey, uint64_t address, uint64_t bytes);
  /// Checks whether a rank is alive, and calls OnEnd soon if it is not. Also asks that rank whom it waits for. With
  /// `follow` the answer leads to the next question, to the rank that it names, until a rank waits for nobody.
  void probe(uint32_t rank, bool follow);
  /// Whom this rank waits for, and has for a while; what others are told who ask. kNoRank: nobody. Of several threads
  /// the last one's is told.
  void note_long_wait_for(uint32_t rank) { waits_for_.store(rank, std::memory_order_relaxed); }
  /// Who holds up a rank: of those who wait for each other the one who waits for nobody, or does not say.
  uint32_t last_waited_for(uint32_t rank);
  /// Ends the operations of this rank and of all others: in their arenas, and by mail where there is no link. The first
  /// cause stays. True: this is it.
  bool end(const Cause& cause);
  /// Whether that rank has told this one by mail that all has ended. It may end its wires then.
  bool has_ended(uint32_t rank);
  /// After an operation has failed, before the program knows, which may free its arrays then: nothing is sent from them
  /// any more.
  void call_in_loans();

  void on_mail(const Mail& mail) override;
  void on_completion(const WorkCompletion& completion) override;

 private:
  struct Link {
    uint32_t rank = 0;
    bool wanted = false;
    bool is_told = false;         ///< the other end's numbers are known
    bool connected = false;       ///< this end is
    bool peer_connected = false;  ///< the other end said so
    bool owes_answer = false;     ///< the other end has said hello since it was told that this one is connected
    bool probing = false;
    bool has_ended = false;  ///< the other end said so
    bool follows = false;    ///< its next answer leads to a question to the rank that it waits for
    Mail peer;
    std::unique_ptr<QueuePair> qp;
    std::shared_ptr<std::byte> arena;
    std::unique_ptr<Lane> lanes[kLanes];
    std::atomic<uint32_t> ready{0};
    std::atomic<uint32_t> sleepers{0};
    uint32_t waits_for = kNoRank;  ///< as the other end said
    int64_t asked_ns = 0;          ///< when it was asked that last, and when it said so; 0: never
    int64_t heard_ns = 0;
    int64_t next_ns = 0;  ///< when something is done again
    int64_t pause_ns = 0;
  };

  Mail mail_to(MailKind kind, const Link& link) const;
  /// The links that are wanted and not there yet, as far as they go now. Sets the timer for the next look.
  void make_all(int64_t now_ns);
  /// As far as it goes now. Under the mutex.
  void advance(Link& link);
  int make(Link& link);
  int connect_to(Link& link);
  /// The local ACK timeout of the queue pair to a rank, in the code of IBTA 9.7.6.1.3.
  uint8_t ack_timeout_to(uint32_t rank) const;
  /// Lays the lanes, once both ends are connected. ENOTCONN: not yet.
  int finish(Link& link);
  void map_lanes(Link& link);
  int lay_wires(Link& link);
  /// Keeps what it says. The link is made by make_all(), soon: while mail is read no other communicator's sink can come
  /// or go.
  void hear(Link& link, const Mail& mail);
  /// Of one that is connected: says so, if the other end has asked.
  void answer(Link& link);
  /// Sends a question unless the last one was sent less than ask_pause_ns() ago.
  void ask(Link& link, bool follow);
  int64_t ask_pause_ns() const;
  void hear_wait(Link& link, const Mail& mail);
  void fail(const Cause& cause) { failure_ = failure_ ? failure_ : cause; }
  /// Without the mutex: says what has failed meanwhile.
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
  Cause told_;                   ///< by end()
  progress::Loop::Timer timer_;  ///< runs make_all(), which uses the members above: it ends before them
};

}  // namespace nupa::ccl
