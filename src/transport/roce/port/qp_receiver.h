// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "net/udp_socket.h"
#include "transport/roce/port/transmit_batch.h"
#include "transport/roce/port/inbox.h"
#include "transport/roce/port/deadlines.h"
#include "transport/roce/port/flow_window.h"

namespace nupa::roce {

/// The UDP port of another process, which all queue pairs of this process share.
struct Peer {
  explicit Peer(uint64_t bytes) : window(bytes) {}
  FlowWindow window;  ///< room in the process's socket
  uint64_t turn = 0;  ///< for ReceiveBudget::count_sender(); under the poller's lock
};

/// A queue-pair receiver: the object that a port delivers the packets of one queue pair to. All calls except number(),
/// and those marked as "any time", are made between enter() and leave(), which exclude the program's threads and other
/// pollers.
class QpReceiver {
 public:
  virtual ~QpReceiver() = default;
  virtual uint32_t number() const = 0;
  /// Never waits. Returns false if another thread holds the queue pair.
  virtual bool enter() = 0;
  virtual void leave() = 0;
  virtual void deliver(Packet& packet, const net::UdpSocket::Received& from, int64_t now) = 0;
  /// Sends what is due. `answers` false: acknowledgements may wait for the next time.
  virtual void transmit(int64_t now, TransmitBatch& batch, bool answers) = 0;
  virtual bool owes_answers() const = 0;
  virtual void on_timer(int64_t now) = 0;
  /// Counts a packet with this number that is damaged or belongs to another sender. Any time.
  virtual void count_unexpected() = 0;
  /// The queue pair was first in the wait queue of a flow window: sends one quantum.
  virtual void take_turn(FlowWindow& window, int64_t now, TransmitBatch& batch) = 0;
  /// Leaves the wait queues of all flow windows. The port calls it once, when the queue pair is removed.
  virtual void leave_wait_queues() = 0;
  /// The process that its packets come from; null: any process.
  virtual Peer* peer() = 0;
  /// The probable place of the next packet's payload; null: not known. Any time.
  virtual const std::byte* next_place() const { return nullptr; }
  /// True if its packets may go to that address. Any time.
  virtual bool may_lead_to(const net::UdpAddress&) const { return false; }
  /// True if the packet that was sent to that address waits for an answer here. No packet: it is not known which one it
  /// was.
  virtual bool is_under_way(const net::UdpAddress&, const std::optional<PacketName>&) const { return false; }
  /// The peer's host reports that the port is closed.
  virtual void doubt_peer(const net::UdpAddress&) {}
  /// True if packets without CRC are accepted.
  virtual bool takes_unchecked() const { return false; }
  /// When on_timer() has to be called. Any time.
  virtual int64_t deadline() const = 0;

 private:
  // State of the port's classes for this queue pair. All but the first field are used under the poller's lock.
  friend class Demultiplexer;
  Earliest* timers_ = nullptr;  ///< deadlines of its group in the demultiplexer; set when it is added
  friend class FlowWindows;
  uint64_t turn_ = 0;  ///< used without a peer: as Peer::turn
  friend class AckScheduler;
  bool touched_ = false;
  friend class Hold;
  friend class Holds;
  bool held_up_ = false;  ///< another thread held it at the port's last try
  Inbox inbox_;           ///< empty unless held_up_
};

}  // namespace nupa::roce
