#pragma once
#include <array>

#include "base/zeroed_array.h"
#include "transport/roce/protocol/bit_ring.h"

namespace nupa::roce {

/// What is known of one packet.
struct Flight {
  enum class State : uint8_t {
    kIdle,     ///< 0
    kSent,     ///< under way
    kAwaited,  ///< a response that was asked for
    kLost,     ///< to be sent or asked for again
    kArrived,  ///< acknowledged, or the response is here
  };
  int64_t sent_ns = 0;
  uint16_t bytes = 0;
  uint16_t previous = 0;  ///< Flights' own
  uint16_t next = 0;      ///< Flights' own
  uint8_t path = 0;
  State state : 4 = State::kIdle;
  bool resent : 1 = false;
  bool by_silence : 1 = false;  ///< kLost: nothing was heard of it, nor of others
};
static_assert(sizeof(Flight) == 16);

/// The requester's scoreboard: the packets of a window by number, those that are lost among them, and those under way
/// on each path in the order in which they were sent. Finding what was overtaken looks at the oldest ones only (RFC
/// 8985, section 6.2, asks for a list in this order).
class Flights {
 public:
  using State = Flight::State;
  static constexpr Seq kNone = 0;  ///< no packet has this number: they begin one turn up (first_seq())

  /// `used`: false makes room for nothing.
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
    told_.clear(seq);
    link(entry, seq);
  }
  void arrive(Seq seq) { change(seq, State::kArrived); }
  void lose(Seq seq, bool by_silence) {
    change(seq, State::kLost);
    at(seq).by_silence = by_silence;
    told_.clear(seq);
  }
  /// It is over, or will be sent again in its turn.
  void rest(Seq seq) {
    change(seq, State::kIdle);
    told_.clear(seq);
  }

  /// The oldest under way on a path, kSent or kAwaited; kNone: there is none. `una`: the lowest number in use.
  Seq oldest(uint32_t path, State state, Seq una) const {
    const uint16_t first = lists_[list_of(state, path)].first;
    return first == kEnd ? kNone : una + (first - una) % kBitmapBits;
  }
  /// The lowest that is lost; one is. The other end may have room for none but the one that it waits for.
  Seq first_lost(Seq una) const { return lost_ones_.first(una); }

  /// That the other end has it: so that the next acknowledgement that says the same is no news.
  void note_told(Seq seq) { told_.set(seq); }
  /// Of the 32 packets from `from` on those that it is known to have.
  uint32_t told(Seq from) const { return told_.word(from); }

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
  BitRing told_;
  BitRing lost_ones_;
  uint32_t lost_ = 0;
};

}  // namespace nupa::roce
