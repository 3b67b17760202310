// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The engine of the pool transport: the links of this process, its queue pairs, and the turns in which records are
/// read and answers are written. An adaptive poller decides which thread takes a turn (progress/adaptive_poller.h):
/// one that polls a completion queue, or the thread nupa-pool.
///
/// Locks, from the outermost on: the poller's turn lock; a send lock (only tried within a turn); Link::mutex_,
/// links_mutex_, due_mutex_ and mads_mutex_, inside which nothing is taken. Channels are opened and closed within a
/// turn, or by a thread that holds the turn lock and no send lock.
///
/// A record whose queue pair is busy stays at the head of its channel: posts hold a send lock for microseconds and
/// never wait for room or for a turn. So a channel stands still no longer than that lock is held.

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "core/seam/mad_carrier.h"
#include "core/seam/slot_table.h"
#include "progress/adaptive_poller.h"
#include "progress/lifecycle.h"
#include "transport/pool/grants.h"
#include "transport/pool/link.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/receiver.h"

namespace nupa::pool {

class Hold;

class Engine final : public progress::PacketSource, public progress::ForkParticipant {
 public:
  /// The limits of sleep. While links exist whose peers do not ring, the thread looks at them after a pause that
  /// doubles from the shortest to the longest. Bells are looked at every kBellsNs, and every kOpeningBellsNs in the
  /// second in which a channel opens; every kQuietBellsNs without queue pairs, or if each process of the pool rings.
  static constexpr int64_t kShortestPauseNs = 20'000;
  static constexpr int64_t kLongestPauseNs = 1'000'000;
  static constexpr int64_t kBellsNs = 5'000'000;
  static constexpr int64_t kQuietBellsNs = 50'000'000;
  static constexpr int64_t kOpeningBellsNs = 200'000;
  static constexpr int64_t kOpeningNs = 1'000'000'000;
  static constexpr int64_t kBeatNs = 50'000'000;
  /// How long a revocation waits for the peers, as quiesce() does.
  static constexpr int64_t kTakeBackNs = 2'000'000'000;
  /// For this time after a record or a poll of a program, the thread does not have peers ring: it looks from time to
  /// time, as if they had no doorbells. Beside programs that keep the cores busy, a ring takes longer than a look.
  static constexpr int64_t kActiveNs = 20'000'000;

  /// Returns the time in nanoseconds, as CLOCK_MONOTONIC. Simulations bring their own.
  using Clock = int64_t (*)();
  /// Joins the pool. `pool` outlives the engine. Errors: those of Pool::join(), descriptors, fork handlers.
  static Result<std::unique_ptr<Engine>> open(Pool& pool, Description description, Clock clock = base::now_ns);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts nupa-pool. EAGAIN, ENOMEM: the thread cannot be created.
  Result<void> start() {
    poller_.expect(now_ns_());  // the first turn arms the next ones
    return poller_.start("nupa-pool");
  }
  progress::AdaptivePoller& poller() { return poller_; }
  Pool& pool() { return pool_; }
  const ProcessId& self() const { return self_; }
  Gid own_gid() const { return pool_.gid_of(pool_.host()); }

  /// Changes what this process publishes. `change` is called with a lock held. Errors: those of Pool::update().
  Result<void> describe(const std::function<void(Description&)>& change);
  /// Addresses of this host: they name a process of this host, even if another host has them, too.
  void set_own_addresses(std::vector<Gid> addresses) { own_addresses_ = std::move(addresses); }
  /// Finds the process that owns a queue pair number at an address. Any thread.
  std::optional<ProcessId> process_of(const AddressVector& vector, uint32_t qp_num);
  bool is_own(const Gid& gid) const;

  // Links.
  /// Returns the link to the process of that queue pair, which is opened if there is none; null: there is no such
  /// process, or no room for another channel. Within a turn, or without a send lock under claim().
  std::shared_ptr<Link> link_to(const AddressVector& vector, uint32_t qp_num);
  std::shared_ptr<Link> link_to(const ProcessId& process);
  /// The same for a thread without any of the engine's locks: takes the turn lock.
  std::shared_ptr<Link> claim_link(const AddressVector& vector, uint32_t qp_num);
  /// Any thread. Null: there is no link, and a turn will open it soon.
  std::shared_ptr<Link> known_link(const ProcessId& process);

  // Queue pairs.
  void add(Receiver& receiver);
  /// When this returns, no turn uses the queue pair any more. The caller must not have entered it.
  void remove(Receiver& receiver);
  /// A queue pair that belongs to a group: datagrams to the group are delivered to it. Any thread.
  void join(uint32_t qp_num, const Gid& group);
  void leave(uint32_t qp_num, const Gid& group);
  bool has_members(const Gid& group);

  // Any thread.
  void wait_for_room(Link& link, Receiver& receiver) {
    link.wait_for_room(receiver);
    // A peer that makes room does not ring.
    if (link.has_doorbells()) poller_.expect(now_ns_() + kShortestPauseNs);
  }
  /// The queue pair's deadline() has come by then.
  void expect(Receiver& receiver, int64_t deadline);
  /// Requests were written: answers will come.
  void note_posted() {
    poller_.note_traffic();
    if (dozes_.load(std::memory_order_relaxed) && dozes_.exchange(false)) poller_.expect(now_ns_());
  }

  // Memory that peers write to (grants.h).
  Grants& grants() { return grants_; }
  /// True if peers can reach memory of this process.
  bool may_grant() const { return may_grant_; }
  /// Grants a region to the peer of the link. With the send lock of the queue pair held. Without room in the channel
  /// nothing happens.
  void grant(Link& link, Grant grant);
  /// The next turn asks for these grants back. Any thread.
  void ask_back(const Grants::Which& which) {
    if (grants_.ask_back(which)) poller_.expect(now_ns_());
  }
  /// Asks for grants back, and waits for them: up to kTakeBackNs for peers that live. Any thread, without a send lock
  /// and not within a turn.
  void take_back(const Grants::Which& which);
  /// Frees memory of this process when no peer writes to it any more. Any thread.
  void free(const Block& block);
  /// Frees of that memory what can be freed by now. Any thread.
  void free_kept_blocks();

  // Datagrams to processes whose channel is not open yet.
  /// Keeps a copy that a turn writes when the channel is open, or drops when the process ends or the channel does not
  /// open within a second. Any thread. kNotNow: too many are kept, or there is no memory. kUnreadable: see
  /// Link::write().
  Link::Wrote keep_datagram(const ProcessId& to, const Record& record, const base::Piece* pieces, uint32_t count);
  bool keeps_datagrams() const { return kept_.load(std::memory_order_acquire) != 0; }

  // Management datagrams.
  /// `handler` is called within a turn; null: none any more. When this returns, the former one is not called any more.
  void set_mad_handler(core::MadHandler handler);
  /// The same for datagrams to the socket of probes.
  void set_probe_handler(core::MadHandler handler);
  /// Any thread, also one that holds locks that the handler takes. Returns false if the datagram was dropped.
  bool send_mad(const ProcessId& to, const core::MadDatagram& datagram, bool from_probe);
  /// The process that a port of an address stands for. Port 0: receiver_for_host().
  std::optional<ProcessId> mad_process(const core::MadPeer& peer);
  /// A process that receives the management datagrams for the host at an address as a whole. Processes of one host may
  /// be in several network namespaces, and each process passes on within its own one. So it is a process with that very
  /// address, and for an address of this process's own it is this process.
  std::optional<ProcessId> receiver_for_host(const Gid& address) const;
  static uint16_t mad_port_of(const ProcessId& process) { return static_cast<uint16_t>(process.record + 1); }
  /// Marks ports of sockets for probes.
  static constexpr uint16_t kProbePort = 0x8000;

  // Calls of the poller, under its lock.
  bool take_turn(progress::Receiver receiver) override;
  void finish_turns() override;
  void take_errors() override {}
  bool streams() const override { return streams_; }
  bool wakes() const override { return rings_come_; }
  bool begin_sleep(progress::Receiver receiver) override;
  void end_sleep(progress::Receiver receiver, bool ready) override;
  uint64_t packets() const override { return records_.load(std::memory_order_relaxed); }

  void before_fork() override { poller_.before_fork(); }
  void in_parent() override { poller_.in_parent(); }
  bool in_child() override;
  /// Writes what is due to peers, before the process ends.
  void process_ends();
  void say_goodbye();

 private:
  Engine(Pool& pool, Clock clock) : pool_(pool), now_ns_(clock), may_grant_(pool.is_coherent()) {}

  struct Bank {
    std::array<std::atomic<Receiver*>, shm::kSlotQp> receivers{};
  };
  struct Member {
    Gid group;
    uint32_t qp_num;
  };
  struct OutDatagram {
    ProcessId to;
    Record record;
    std::vector<std::byte> payload;
    int64_t since_ns;
  };
  struct OutMad {
    ProcessId to;
    core::MadDatagram datagram;
    bool from_probe;
  };

  /// Marks that this thread takes a turn of the engine.
  class Turning {
   public:
    explicit Turning(const Engine& engine) : before_(std::exchange(t_turning, &engine)) {}
    ~Turning() { t_turning = before_; }
    Turning(const Turning&) = delete;
    Turning& operator=(const Turning&) = delete;

   private:
    const Engine* const before_;
  };

  Receiver* find(uint32_t number) const;
  /// Reads records of a link. Returns how many.
  uint32_t read(Link& link, Hold& hold, uint32_t most, TurnClock& clock);
  Payload payload_of(Link& link, const Record& record);
  enum class Taken : uint8_t { kYes, kBusy, kGarbage };
  Taken take(Link& link, const Header& header, Hold& hold, TurnClock& clock);
  Taken take_answers(Link& link, const Header& header, Hold& hold, TurnClock& clock);
  Taken take_group_datagram(Link& link, const Record& record, const Payload& payload, Hold& hold, TurnClock& clock);
  void take_mad(const Link& link, const Record& record, const std::byte* payload);
  void note_absent(Link& link, const Record& record);
  void note_owing(Receiver& receiver);
  void flush_answers();
  void serve_waiters(Hold& hold, int64_t now);
  void run_timers(Hold& hold, int64_t now);
  void seek_links(Hold& hold, int64_t now);
  bool answers_wait() const;
  /// Has the thread write the answers if the program, which goes first, does not poll again soon.
  void expect_forgotten(TurnClock& clock);
  /// A thread of this process begins to sleep on the doorbell, or ends. A full fence follows.
  void announce_sleep(bool sleeps);
  /// This process has written a record to itself.
  void wake_self();
  /// Answers offers of channels if bells have rung.
  void look_at_bells();
  /// A record waits that a turn can take.
  bool has_records() const;
  /// Heartbeat, bells, lives, searches: what a turn does from time to time.
  void keep_house(Hold& hold, int64_t now);
  void look_at_lives(Hold& hold, int64_t now);
  /// The peer of the link has ended, or has closed the channel.
  static void note_end(Link& link);
  /// The peer of the link has failed. Returns true if no queue pair was busy.
  bool fail_link(const std::shared_ptr<Link>& link, Hold& hold, bool garbage, int64_t now);
  void drop_lost_links(Hold& hold, int64_t now);
  /// Asks peers for grants, as far as there is room in their channels. Any thread.
  void ask_peers();
  /// The peer cannot be asked any more.
  void give_up(const ProcessId& peer);
  /// Frees what peers have returned, and looks for peers that have ended.
  void free_returned();
  void open_wanted(int64_t now);
  void write_kept_datagrams(int64_t now);
  void write_kept_mads();
  /// Management datagrams to this process wait, or a turn writes them just now. Any thread.
  bool keeps_mads(const ProcessId& to);
  bool write_mad(Link& link, const core::MadDatagram& datagram, bool from_probe);
  std::shared_ptr<Link> open_link(const ProcessId& process);
  /// When the thread has to take its next turn, after one that found `packets` records.
  void arm(uint32_t packets, int64_t now);
  template <class Visit>
  void each_receiver(Visit&& visit) const;
  int64_t bells_pause(int64_t now);

  Pool& pool_;
  const Clock now_ns_;
  const bool may_grant_;
  Grants grants_;
  std::mutex kept_blocks_mutex_;    ///< inside it OpenPool::mutex_ and Grants::mutex_
  std::vector<Block> kept_blocks_;  ///< a peer may write to them
  ProcessId self_;
  progress::AdaptivePoller poller_{*this};
  std::vector<Gid> own_addresses_;
  core::SlotTable<Bank> banks_;
  std::atomic<uint32_t> receivers_{0};

  std::mutex links_mutex_;  ///< leaf; links_ changes with it and the turn lock
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<ProcessId> wanted_;  ///< under links_mutex_: a turn opens these
  std::mutex describe_mutex_;      ///< held in describe(); inside it the pool's locks
  Description description_;
  std::mutex due_mutex_;  ///< leaf
  std::vector<Receiver*> due_;
  std::vector<Receiver*> due_now_;         ///< within a turn; both have room for all queue pairs
  std::vector<Receiver*> seekers_;         ///< queue pairs without a link; under due_mutex_
  std::mutex mads_mutex_;                  ///< leaf
  std::vector<OutMad> mads_;               ///< management datagrams that wait for their channels
  std::vector<ProcessId> mads_under_way_;  ///< under mads_mutex_: the peers of those that a turn writes just now
  std::vector<OutDatagram> datagrams_;     ///< under mads_mutex_
  std::atomic<size_t> kept_{0};            ///< datagrams of datagrams_, and those that a turn writes just now
  std::atomic<bool> has_work_{false};      ///< of wanted_, mads_ or datagrams_
  std::mutex groups_mutex_;                ///< leaf
  std::vector<Member> members_;

  // Within a turn.
  std::vector<Receiver*> owing_;
  std::unique_ptr<std::byte[]> payload_ = std::make_unique_for_overwrite<std::byte[]>(kMaxPartBytes);
  core::MadHandler mad_handler_;
  core::MadHandler probe_handler_;
  uint32_t next_member_ = 0;           ///< of a group datagram at a head: members before it have it
  uint32_t unanswered_ = 0;            ///< records since answers were written last
  bool quiet_ = false;                 ///< the last look found nothing
  int64_t turned_ns_ = INT64_MIN / 2;  ///< a time at which the clock was read
  int64_t house_ns_ = 0;
  int64_t beat_ns_ = 0;
  int64_t busy_ns_ = 0;                ///< when nupa-pool last found records
  uint64_t thread_records_ = 0;        ///< records_ at the last turn of nupa-pool
  bool rings_come_ = false;            ///< the thread is rung in its sleep, for each link
  bool is_rung_by_all_ = false;        ///< each process of the pool rings
  bool is_polled_ = false;             ///< a program has polled since the thread's last turn
  int64_t active_ns_ = INT64_MIN / 2;  ///< when the thread last saw that, or records
  bool is_announced_ = false;          ///< the thread has announced its sleep
  bool streams_ = false;
  std::atomic<bool> closed_{false};  ///< changes under the turn lock

  [[gnu::tls_model(
      "initial-exec")]] static thread_local constinit const Engine* t_turning;  ///< whose turn this thread takes

  std::atomic<uint32_t> sleepers_{0};  ///< threads that sleep on the doorbell
  std::atomic<bool> dozes_{false};     ///< nupa-pool sleeps for long, and nobody polls
  std::atomic<uint64_t> records_{0};
};

/// The one queue pair that a turn holds, until it takes another one, releases it, or the object is destroyed. Then the
/// queue pair is left, and the events that it raised meanwhile are sent.
class Hold {
 public:
  Hold() = default;
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  /// Returns false if another thread holds the queue pair. Waits for microseconds at most.
  bool take(Receiver& receiver);
  void release();
  bool holds(const Receiver& receiver) const { return held_ == &receiver; }

 private:
  Receiver* held_ = nullptr;
};

}  // namespace nupa::pool
