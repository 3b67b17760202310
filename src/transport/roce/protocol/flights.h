// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "base/zeroed_array.h"
#include "transport/roce/protocol/bit_ring.h"

namespace nupa::roce {

/// The state of one packet of the requester.
struct Flight {
  enum class State : uint8_t {
    kIdle,     ///< not in flight; 0, so that zeroed memory holds it
    kSent,     ///< in flight
    kAwaited,  ///< a requested response that has not arrived
    kLost,     ///< to be sent or requested again
    kArrived,  ///< acknowledged, or the response has arrived
  };
  int64_t sent_ns = 0;
  uint16_t bytes = 0;
  uint16_t previous = 0;  ///< in the list of Flights
  uint16_t next = 0;      ///< in the list of Flights
  uint8_t path = 0;
  State state : 4 = State::kIdle;
  bool resent : 1 = false;
  bool by_silence : 1 = false;  ///< kLost: neither it nor others were acknowledged for a timeout
};
static_assert(sizeof(Flight) == 16);

/// The requester's scoreboard: the packets of the window by number, the lost ones among them, and those in flight on
/// each path in the order in which they were sent. A search for overtaken packets looks at the oldest ones only (RFC
/// 8985, section 6.2, asks for a list in this order).
class Flights {
 public:
  using State = Flight::State;
  static constexpr Seq kNone = 0;  ///< no packet has this number: numbers begin at 2^24 (first_seq())

  /// `used`: false allocates nothing.
  explicit Flights(bool used) : entries_(used ? kBitmapBits : 0) { lists_.fill({kEnd, kEnd}); }

  const Flight& operator[](Seq seq) const { return entries_[seq % kBitmapBits]; }
  uint32_t lost() const { return lost_; }

  /// A packet leaves, for the first time or again.
  void send(Seq seq, int64_t now, uint32_t bytes, uint32_t path, State state, bool again) {
    Flight& entry = at(seq);
    unlink(entry, seq);
    entry.sent_ns = now;
    entry.bytes = static_cast<uint16_t>(bytes);
    entry.path = static_cast<uint8_t>(path);
    entry.state = state;
    entry.resent = again;
    reported_.clear(seq);
    link(entry, seq);
  }
  void arrive(Seq seq) { change(seq, State::kArrived); }
  void lose(Seq seq, bool by_silence) {
    change(seq, State::kLost);
    at(seq).by_silence = by_silence;
    reported_.clear(seq);
  }
  /// The packet is done, or will be sent again in its turn.
  void rest(Seq seq) {
    change(seq, State::kIdle);
    reported_.clear(seq);
  }

  /// Returns the oldest packet in flight on a path with `state` kSent or kAwaited; kNone if there is none. `una`: the
  /// lowest number in use.
  Seq oldest(uint32_t path, State state, Seq una) const {
    const uint16_t first = lists_[list_of(state, path)].first;
    return first == kEnd ? kNone : una + (first - una) % kBitmapBits;
  }
  /// Returns the lowest lost packet; there must be one. The lowest goes first because the peer may have room for no
  /// other.
  Seq first_lost(Seq una) const { return lost_ones_.first(una); }

  /// Notes that the peer has the packet, so that later acknowledgements of it are skipped.
  void note_reported(Seq seq) { reported_.set(seq); }
  /// Returns the bits of the 32 packets from `from` on that the peer is known to have.
  uint32_t reported(Seq from) const { return reported_.word(from); }

 private:
  static constexpr uint16_t kEnd = UINT16_MAX;
  struct List {
    uint16_t first;
    uint16_t last;
  };

  static bool is_under_way(State state) { return state == State::kSent || state == State::kAwaited; }
  static uint32_t list_of(State state, uint32_t path) { return 2 * path + (state == State::kAwaited ? 1 : 0); }
  Flight& at(Seq seq) { return entries_[seq % kBitmapBits]; }
  void change(Seq seq, State state) {
    Flight& entry = at(seq);
    unlink(entry, seq);
    entry.state = state;
    link(entry, seq);
  }
  void link(Flight& entry, Seq seq) {
    if (entry.state == State::kLost) {
      lost_ones_.set(seq);
      ++lost_;
    }
    if (!is_under_way(entry.state)) return;
    const auto place = static_cast<uint16_t>(seq % kBitmapBits);
    List& list = lists_[list_of(entry.state, entry.path)];
    entry.previous = list.last;
    entry.next = kEnd;
    (list.last == kEnd ? list.first : entries_[list.last].next) = place;
    list.last = place;
  }
  void unlink(const Flight& entry, Seq seq) {
    if (entry.state == State::kLost) {
      lost_ones_.clear(seq);
      --lost_;
    }
    if (!is_under_way(entry.state)) return;
    List& list = lists_[list_of(entry.state, entry.path)];
    (entry.previous == kEnd ? list.first : entries_[entry.previous].next) = entry.next;
    (entry.next == kEnd ? list.last : entries_[entry.next].previous) = entry.previous;
  }

  base::ZeroedArray<Flight> entries_;
  std::array<List, 2 * kMaxPaths> lists_;
  BitRing reported_;
  BitRing lost_ones_;
  uint32_t lost_ = 0;
};

}  // namespace nupa::roce
