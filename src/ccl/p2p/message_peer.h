#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "ccl/channel/lane.h"
#include "ccl/p2p/message.h"

namespace nupa::ccl {

/// The messages between this rank and one other. A message is a header and its bytes, cut into pieces as they come: the
/// first piece begins with the header.
class MessagePeer {
 public:
  using Pointer = std::shared_ptr<Message>;
  /// What the next message is for: a receive that takes it, which is not there any more for others. Null: none.
  using Match = std::function<Pointer(uint32_t source, int32_t tag)>;

  explicit MessagePeer(uint32_t rank) : rank_(rank) {}

  void set_lane(Lane* lane) { lane_ = lane; }
  bool has_lane() const { return lane_ != nullptr; }
  Lane& lane() { return *lane_; }

  void add_send(Pointer message) { sends_.push_back(std::move(message)); }
  bool has_sends() const { return !sends_.empty(); }
  /// Puts under way what there is room for. True: something was.
  bool push();
  /// Takes what has come. `keeps`: whether a message that nobody takes is kept, so that those behind it can come; else
  /// it is left where it is, and who sends has to wait. True: something came; there may be more, once kept messages
  /// were given.
  bool pull(const Match& match, const std::function<bool()>& keeps);
  bool is_coming() const { return is_coming_; }
  /// Gives a receive the oldest message that it takes, if one is kept.
  bool give_kept(Message& receive);
  /// From this rank to itself.
  void keep(const Message& send);
  /// Everything ends, what was half here too. Whoever waits is told by `finish`.
  void end(const std::function<void(Message&)>& finish);

 private:
  struct Header {
    uint64_t bytes;
    int32_t tag;
    uint8_t type;  ///< Message::type
    uint8_t unused[3];
  };
  static_assert(sizeof(Header) == 16);
  struct Kept {
    int32_t tag;
    uint8_t type;
    std::vector<std::byte> bytes;
  };

  void begin(const Match& match, const std::function<bool()>& keeps);
  void take(const std::byte* data, size_t bytes);

  const uint32_t rank_;
  Lane* lane_ = nullptr;
  std::deque<Pointer> sends_;
  // What is coming in.
  bool is_coming_ = false;
  Header header_{};
  Pointer receive_;
  size_t came_ = 0;
  std::deque<Kept> kept_;
};

}  // namespace nupa::ccl
