#pragma once
#include <pthread.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/seam/poller.h"
#include "core/seam/slot_table.h"
#include "base/unique_fd.h"
#include "net/udp_socket.h"
#include "progress/lifecycle.h"
#include "progress/thread.h"
#include "shm/layout.h"
#include "transport/roce/port/burst.h"
#include "transport/roce/port/groups.h"
#include "transport/roce/port/inbox.h"
#include "transport/roce/port/management.h"
#include "transport/roce/port/receive_room.h"
#include "transport/roce/protocol/reorder.h"
#include "transport/roce/port/schedule.h"
#include "transport/roce/port/shared_window.h"

namespace nupa::roce {

/// The UDP port of another process, as this one's queue pairs see it together.
struct Peer {
  explicit Peer(uint64_t bytes) : window(bytes) {}
  SharedWindow window;  ///< what its socket has room for
  uint64_t turn = 0;    ///< ReceiveRoom::count_sender; under the port's receive mutex
};

/// What the port delivers to: the engine of one queue pair. All calls but number() are made between enter() and
/// leave(), which keep the program's threads and other pollers out.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual uint32_t number() const = 0;
  /// Never waits. False: another thread holds it.
  virtual bool enter() = 0;
  virtual void leave() = 0;
  virtual void deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t now) = 0;
  /// Sends what is to be sent. `answers` false: acknowledgements may wait for the next time.
  virtual void transmit(int64_t now, Burst& burst, bool answers) = 0;
  virtual bool owes_answers() const = 0;
  virtual void on_timer(int64_t now) = 0;
  /// A packet with its number came that is damaged, or not its own. Any time.
  virtual void count_stranger() = 0;
  /// It stood first in the line of a window: sends a turn's worth.
  virtual void take_turn(SharedWindow& window, int64_t now, Burst& burst) = 0;
  /// It stands in no window's line any more. Called by the port, once, when it is removed.
  virtual void leave_lines() = 0;
  /// Whose packets it gets; null: everybody's.
  virtual Peer* peer() = 0;
  /// Where a packet's payload will probably be copied to; null: not known. Any time.
  virtual const std::byte* next_place() const { return nullptr; }
  /// Whether its packets may go there. Any time.
  virtual bool may_lead_to(const net::UdpAddress&) const { return false; }
  /// Whether a packet that was sent there (none: it is not known which) is one that waits for an answer.
  virtual bool is_under_way(const net::UdpAddress&, const std::optional<PacketName>&) const { return false; }
  /// The host says that nobody has that port.
  virtual void doubt_peer(const net::UdpAddress&) {}
  /// Packets without CRC are good as well.
  virtual bool takes_unchecked() const { return false; }
  /// When on_timer() is wanted; may be asked at any time.
  virtual int64_t deadline() const = 0;

 private:
  friend class Port;
  Earliest* timers_ = nullptr;  ///< of the channels beside it; since it was added
  // Under the port's receive mutex.
  bool touched_ = false;
  uint64_t turn_ = 0;     ///< of one without peer: as Peer::turn
  bool held_up_ = false;  ///< another thread held it when the port tried last
  Inbox inbox_;           ///< empty unless held_up_
};

/// Packets that no queue pair got, by reason; for people.
struct PortCounters {
  std::atomic<uint64_t> packets{0};
  std::atomic<uint64_t> malformed{0};
  std::atomic<uint64_t> wrong_crc{0};
  std::atomic<uint64_t> no_queue_pair{0};
  std::atomic<uint64_t> busy{0};  ///< another thread held the queue pair until its inbox was full
};

/// The UDP port of this process: its socket, its queue pairs, and the thread that serves them when nobody polls.
class Port final : public core::Poller, public progress::ForkParticipant {
 public:
  /// The port of the process in `slot`: 4791 for the first one of a host, so that standard peers reach it, else one
  /// above Linux' range of ephemeral ports (docs/roce.md).
  static constexpr uint16_t port_of_slot(uint32_t slot) {
    constexpr uint16_t kFirst = 61000;
    return slot == shm::kMinSlot ? kUdpPort : static_cast<uint16_t>(kFirst + slot);
  }
  static_assert(61000 + shm::kMaxSlot <= 65535);

  /// `socket`: bound already, since the port names the process. `source_ports`: from so many ports packets leave, 1 to
  /// kMaxPaths, for switches that spread flows by them. Errors: those of sockets and threads.
  static Result<std::unique_ptr<Port>> open(net::UdpSocket socket, uint32_t source_ports = 1);
  ~Port();
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Bytes that all queue pairs of one other process may have under way: what the socket holds is for all processes
  /// that send at present.
  uint32_t receive_share() const { return room_.share(); }
  /// The process at that address; the same for all who ask.
  std::shared_ptr<Peer> peer_at(const Gid& address, uint16_t port);
  /// The room for the responses to all READs of this process.
  const std::shared_ptr<SharedWindow>& response_window() const { return response_window_; }
  /// Somebody waits in the line of a window.
  void note_waiter() { anyone_waits_.store(true); }
  /// Where packets arrive.
  const net::UdpSocket& socket() const { return sockets_[0]; }
  /// For the process that small messages come from; null: none has one. Stays once it is there.
  PeerSocket* own() const { return own_shown_.load(std::memory_order_acquire); }
  /// By which they leave; the first is socket().
  const std::vector<net::UdpSocket>& sockets() const { return sockets_; }
  PacketPool& pool() { return pool_; }
  const PortCounters& counters() const { return counters_; }

  /// Starts the port's thread if it does not run yet. EAGAIN and the like: there can be no thread.
  Result<void> start();
  /// Throws std::bad_alloc.
  void add(Channel& channel);
  /// Packets to a further slot of this process arrive at `socket`. ENOMEM, ENOSPC. Throws std::bad_alloc.
  Result<void> add_socket(net::UdpSocket socket);
  /// The socket that was added last is not needed: the process did not get the slot.
  void drop_last_socket();
  /// After this returns no thread of the port touches the channel. Not to be called with the channel entered.
  void remove(Channel& channel);
  /// Datagrams to a multicast group go to the channel of that number too, by the interfaces of the addresses, which are
  /// its device's. 0, or why the group cannot be joined. A channel is attached to a group once.
  int attach(uint32_t qp_num, const Gid& group, uint32_t device, const std::vector<GidEntry>& interfaces);
  void detach(uint32_t qp_num, const Gid& group);
  /// Who gets the datagrams to queue pair 1; null: nobody any more. Called while packets are received: soon back, and
  /// without a call of the port but send_management(). After this returns the one before is not called.
  void set_management(MadHandler handler);
  /// Whether this process has a queue pair, which may not take packets yet. NUPA peers that ask for others are told so.
  /// Called while packets are received.
  using Presence = std::function<bool(uint32_t number)>;
  void set_presence(Presence has_queue_pair);
  /// Sends one, marked as NUPA's or not. One thread at a time, which may be at its very end. False: not now.
  bool send_management(const MadDatagram& datagram, bool marked);

  /// A thread of the program has nothing to do but wait: it handles what has come. Never waits for anybody.
  void poll() override;
  /// A thread of the program turns to something that takes long: what its last poll left for the next one is done.
  /// Never waits for anybody.
  void finish_poll() override;
  /// A thread of the program has armed a completion queue: it looks there once more and then sleeps. From now on
  /// packets wake the port's thread, unless others poll.
  void program_sleeps() override;
  Slept sleep(int event_fd) override;
  /// A packet was repeated: perhaps the peer's host has said why nobody answers.
  void look_for_refusals() { wants_refusals_ = true; }
  /// Something is to be sent or timed at `deadline`: the port's thread looks at it by then.
  void expect(int64_t deadline);
  /// The same of a channel, whose deadline() is that.
  void expect(const Channel& channel, int64_t deadline) {
    if (channel.timers_ != nullptr) channel.timers_->expect(deadline);
    expect(deadline);
  }
  /// The earliest of what is expected.
  int64_t wanted_at() const { return schedule_.earliest(); }
  /// Waits until no thread is inside deliver() or transmit() that was before.
  void barrier() { claim_receiving(); }
  /// For this thread's posts; null: no memory for one.
  Burst* burst();
  /// Receives bring what datagrams tell of: hop limits and flow labels.
  void tell_more();

  // fork(): the child has no thread and no port; what it closes stays open in the parent.
  void before_fork() override { claim_receiving().release(); }
  void in_parent() override { receive_mutex_.unlock(); }
  bool in_child() override;
  /// What is owed to others is sent while there is somebody to do it.
  void process_ends();

 private:
  static constexpr uint32_t kGroup = 64;  ///< channels whose deadlines are looked at together
  /// The channels of one slot's numbers.
  struct Bank {
    std::array<std::atomic<Channel*>, shm::kSlotQp> channels{};
    std::array<Earliest, shm::kSlotQp / kGroup> timers;  ///< by group
    std::atomic<uint32_t> high_water{0};                 ///< channels at and above were never there
  };

  /// Where packets to a further slot arrive. What its queue pairs send leaves from the first port; a refusal leaves
  /// from here, since a peer believes it of the port that it sent to.
  struct FurtherPort {
    explicit FurtherPort(net::UdpSocket opened) : socket(one(std::move(opened))), burst(socket, false) {}
    static std::vector<net::UdpSocket> one(net::UdpSocket opened) {
      std::vector<net::UdpSocket> sockets;
      sockets.push_back(std::move(opened));
      return sockets;
    }
    std::vector<net::UdpSocket> socket;  ///< in the form that a burst wants
    Burst burst;
  };

  explicit Port(std::vector<net::UdpSocket> sockets);
  /// Null: there is none.
  Channel* channel_of(uint32_t number) const {
    const Bank* const bank = banks_.of(number);
    return bank == nullptr ? nullptr : bank->channels[shm::index_of(number)].load(std::memory_order_acquire);
  }
  void serve();
  /// Under the receive mutex. True: there was something.
  bool handle(bool for_program);
  uint32_t receive(bool for_program);
  uint32_t receive_from(const net::UdpSocket& socket, bool for_program);
  /// A program that polls got a small message by the port's own socket: who sends one after the other gets a socket.
  void consider(const net::UdpSocket::Received& received);
  void lead_own(const net::UdpSocket::Received& received);
  uint32_t receive_groups();
  [[gnu::noinline]] uint32_t receive_further(bool for_program);
  void count_packets(uint32_t packets);
  /// Calls `deliver(data, length, position)` for each datagram in the buffer.
  template <class Deliver>
  void dispatch(const net::UdpSocket::Received& received, Deliver&& deliver);
  /// `port`: where it came to, as in those below.
  void segment_arrived(const std::byte* data, uint32_t length, uint32_t position,
                       const net::UdpSocket::Received& received, uint16_t port, int64_t now);
  void management_arrived(const std::byte* data, uint32_t length, uint32_t position,
                          const net::UdpSocket::Received& received, uint16_t port);
  void group_datagram_arrived(const Groups::Group& group, const std::byte* data, uint32_t length, uint32_t position,
                              const net::UdpSocket::Received& received, int64_t now);
  /// False: no packet of the protocol, or one that something has changed on its way.
  bool read(const std::byte* data, uint32_t length, uint32_t position, const net::UdpSocket::Received& received,
            uint16_t port, const Channel* channel, Packet* packet);
  void put_off_look(int64_t now);
  bool is_due() const;
  bool has_packets() const;
  /// handle() for a thread that sockets woke. They do so for refusals too, and again and again until those were taken.
  bool handle_woken(bool for_program);
  /// Takes packets for a while without sleeping. True: `event_fd` is readable.
  bool look_for(int event_fd);
  /// Whether packets wait that nobody who polls fetches; waits a little to know.
  bool left_waiting();
  /// Takes the channel, and brings what waits in its inbox. False: another thread holds it. Waits for microseconds
  /// only, and only the first time: whoever holds it is not on its way out then, and others' packets stand behind.
  bool hold(Channel* channel);
  [[gnu::cold]] bool hold_soon(Channel& channel);
  /// Enters it as soon as the other thread leaves it, if that is soon.
  bool comes_free(Channel& channel) const;
  void entered(Channel& channel);
  void release();
  /// Brings a packet, or leaves it in the inbox.
  void bring(Channel& channel, Packet& packet, const net::UdpSocket::Received& received, int64_t now);
  [[gnu::cold]] void keep(Channel& channel, const Packet& packet, const net::UdpSocket::Received& received,
                          int64_t now);
  [[gnu::cold]] void note_held_up(Channel& channel);
  /// `channel` is held again.
  [[gnu::cold]] void catch_up(Channel& channel);
  /// Another try at the channels that others held. Returns how many packets it brought.
  [[gnu::cold]] uint32_t try_held_up();
  void touch(Channel& channel);
  void answer(int64_t now, bool all);
  /// Turns for those that wait where there is room.
  void serve_waiters(int64_t now);
  void serve_line(SharedWindow& window, int64_t now);
  void run_timers(int64_t now);
  /// The earliest deadline of the group's channels, after those were called that had one.
  int64_t run_group(Bank& bank, uint32_t group, int64_t now);
  /// Tells the channels of the processes whose hosts say that they are gone.
  void take_refusals();
  void refused(const net::UdpSocket::Refusal& refusal);
  /// Calls `visit(channel)` with those that may lead there, held, until it returns false.
  template <class Visit>
  void each_to(const net::UdpAddress& to, Visit&& visit);
  /// A packet came for a queue pair that no channel has: its sender is told if the process does not have it.
  [[gnu::cold]] void absent_asked(const std::byte* data, uint32_t length, uint32_t position,
                                  const net::UdpSocket::Received& received, uint16_t port, int64_t now);
  /// What leaves from that port of this process.
  Burst& burst_from(uint16_t port);
  /// A process says that it does not have a queue pair.
  [[gnu::cold]] void absent(const Packet& packet, const net::UdpSocket::Received& received);
  void kick();
  /// After a part of a stream: waits a little for the next one without sleeping. `lock`: on the receive mutex.
  void linger(std::unique_lock<std::mutex>& lock);
  /// The receive mutex for somebody whom the port's thread, in the middle of a stream, has to make way for.
  std::unique_lock<std::mutex> claim_receiving();

  const uint64_t serial_;  ///< no other port of this process had it
  std::vector<net::UdpSocket> sockets_;
  PacketPool pool_;
  base::UniqueFd kick_;
  std::atomic<bool> stop_{false};
  PortCounters counters_;

  std::shared_ptr<PeerSocket> own_;
  std::atomic<PeerSocket*> own_shown_{nullptr};  ///< `own_`, once it is there

  core::SlotTable<Bank> banks_;

  /// Held by whoever receives.
  std::mutex receive_mutex_;
  std::atomic<uint32_t> wanted_{0};  ///< threads that wait for it but do not receive
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::unique_ptr<Line[]> lines_;
  RouteStates routes_;
  std::byte* buffer_;  ///< in them, so that most payloads begin at a multiple of 16
  Groups groups_;
  std::vector<std::unique_ptr<FurtherPort>> further_;
  bool further_was_last_ = false;  ///< something came by one of them when they were looked at last
  uint32_t further_looks_ = 0;
  MadHandler management_;
  Presence has_queue_pair_;
  int64_t next_absence_ns_ = 0;
  std::unique_ptr<Burst> management_burst_;  ///< not the thread's: that may be gone when the process ends
  bool own_was_last_ = false;                ///< something came by own_, not by socket()
  uint32_t looks_ = 0;
  Route last_route_;
  uint32_t last_route_run_ = 0;
  Channel* held_ = nullptr;
  std::vector<Channel*> touched_;
  std::vector<Channel*> held_up_;  ///< channels that others hold
  HeldPackets held_packets_;
  int64_t next_try_ns_ = 0;  ///< after so long the port tries held_up_ again
  uint32_t caught_up_ = 0;   ///< packets out of inboxes in this turn
  uint32_t vain_polls_ = 0;
  bool wants_refusals_ = false;
  int64_t receive_ns_ = 0;     ///< when something came last
  uint32_t owed_bytes_ = 0;    ///< of a stream, not answered yet
  int64_t owed_since_ns_ = 0;  ///< the last of them
  bool streams_ = false;       ///< what came last was part of much
  ReceiveRoom room_;
  SendBacklog backlog_;  ///< of sockets_
  std::unique_ptr<Burst> burst_;

  std::shared_ptr<SharedWindow> response_window_;
  std::mutex peers_mutex_;
  std::map<std::pair<decltype(Gid::raw), uint16_t>, std::weak_ptr<Peer>> peers_;
  std::vector<std::shared_ptr<Peer>> served_;  ///< under the receive mutex
  std::atomic<bool> anyone_waits_{false};

  struct Waits;
  std::unique_ptr<Waits> waits_;  ///< what threads sleep on
  Schedule schedule_;
  std::atomic<uint64_t> polls_{0};        ///< by threads of the program
  std::atomic<uint64_t> slept_after_{0};  ///< so many of them one went to sleep; 0: none ever did
  std::atomic<bool> watches_{false};      ///< the port's thread leaves packets to those who poll
  std::atomic<bool> datagrams_{false};    ///< some queue pair is for them
  std::mutex start_mutex_;
  progress::Thread thread_;
  std::atomic<bool> running_{false};
};

}  // namespace nupa::roce
