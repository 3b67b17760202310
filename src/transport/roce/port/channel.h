// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "net/udp_socket.h"
#include "transport/roce/port/burst.h"
#include "transport/roce/port/inbox.h"
#include "transport/roce/port/deadlines.h"
#include "transport/roce/port/shared_window.h"

namespace nupa::roce {

/// The UDP port of another process, as this one's queue pairs see it together.
struct Peer {
  explicit Peer(uint64_t bytes) : window(bytes) {}
  SharedWindow window;  ///< what its socket has room for
  uint64_t turn = 0;    ///< ReceiveRoom::count_sender; under the lock of the port's turns
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
  // What the parts of the port note down about it. All but the first under the lock of the port's turns.
  friend class Demultiplexer;
  Earliest* timers_ = nullptr;  ///< of the channels beside it; since it was added
  friend class FlowWindows;
  uint64_t turn_ = 0;  ///< of one without peer: as Peer::turn
  friend class AckScheduler;
  bool touched_ = false;
  friend class Hold;
  friend class Holds;
  bool held_up_ = false;  ///< another thread held it when the port tried last
  Inbox inbox_;           ///< empty unless held_up_
};

}  // namespace nupa::roce
