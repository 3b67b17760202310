// SPDX-License-Identifier: Apache-2.0
#include "ccl/p2p/message_peer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ccl/call/arrays.h"

namespace nupa::ccl {
namespace {

void finish_receive(Message& receive, uint32_t source, int32_t tag, uint8_t type, size_t bytes) {
  if (bytes > receive.bytes) receive.error = EMSGSIZE;
  if (type != receive.type && type != Message::kNoType && receive.type != Message::kNoType) receive.error = EPROTO;
  receive.came_type = type;
  receive.peer = source;
  receive.tag = tag;
  receive.bytes = bytes;
  receive.finish();
}

}  // namespace

bool MessagePeer::push() {
  bool moved = false;
  while (!sends_.empty() && channel_->can_send().is_over()) {
    Message& message = *sends_.front();
    std::byte* const room = channel_->room();
    size_t used = 0;
    if (message.moved == 0) {
      const Header header{message.bytes, message.tag, message.type, {}};
      std::memcpy(room, &header, sizeof header);
      used = sizeof header;
    }
    const size_t length = std::min(channel_->fragment_bytes() - used, message.bytes - message.moved);
    copy_array(room + used, message.from + message.moved, length);
    channel_->send(used + length);
    message.moved += length;
    moved = true;
    if (message.moved < message.bytes) continue;
    message.finish();
    sends_.pop_front();
  }
  return moved;
}

void MessagePeer::take(const std::byte* data, size_t bytes) {
  if (receive_ != nullptr) {
    // Bytes without room are taken from the channel too, because other messages follow them.
    if (came_ < receive_->bytes) copy_array(receive_->to + came_, data, std::min(bytes, receive_->bytes - came_));
  } else {
    copy_array(kept_.back().bytes.data() + came_, data, bytes);
  }
  came_ += bytes;
  if (came_ < header_.bytes) return;
  is_coming_ = false;
  if (receive_ != nullptr) finish_receive(*receive_, rank_, header_.tag, header_.type, header_.bytes);
  receive_.reset();
}

void MessagePeer::begin(const Match& match, const std::function<bool()>& keeps) {
  std::memcpy(&header_, channel_->front(), sizeof header_);
  receive_ = match(rank_, header_.tag);
  if (receive_ == nullptr && !keeps()) return;
  if (receive_ == nullptr) kept_.push_back({header_.tag, header_.type, std::vector<std::byte>(header_.bytes)});
  is_coming_ = true;
  came_ = 0;
}

bool MessagePeer::pull(const Match& match, const std::function<bool()>& keeps) {
  bool moved = false;
  while (channel_->can_receive().is_over()) {
    size_t used = 0;
    if (!is_coming_) {
      if (channel_->front_bytes() < sizeof header_) break;  // no header; a waiting thread reports it at its time limit
      begin(match, keeps);
      if (!is_coming_) break;
      used = sizeof header_;
    }
    const size_t length = std::min(channel_->front_bytes() - used, header_.bytes - came_);
    const bool is_kept = receive_ == nullptr;
    take(channel_->front() + used, length);
    channel_->pop();
    moved = true;
    // The caller first gives this message to a receive that waits for it, before a receive takes a later message.
    if (is_kept && !is_coming_) break;
  }
  return moved;
}

bool MessagePeer::give_kept(Message& receive) {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return receive.takes(rank_, kept.tag); });
  if (found == kept_.end()) return false;
  if (is_coming_ && receive_ == nullptr && found == kept_.end() - 1) {
    // Its last bytes have not arrived yet.
    return false;
  }
  copy_array(receive.to, found->bytes.data(), std::min(found->bytes.size(), receive.bytes));
  finish_receive(receive, rank_, found->tag, found->type, found->bytes.size());
  kept_.erase(found);
  return true;
}

void MessagePeer::keep(const Message& send) {
  kept_.push_back({send.tag, send.type, {send.from, send.from + send.bytes}});
}

void MessagePeer::end(const std::function<void(Message&)>& finish) {
  for (const Pointer& send : sends_) finish(*send);
  sends_.clear();
  if (receive_ != nullptr) finish(*receive_);
  receive_.reset();
  is_coming_ = false;
  kept_.clear();
}

}  // namespace nupa::ccl
