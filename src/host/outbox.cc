// SPDX-License-Identifier: Apache-2.0
#include "host/outbox.h"

#include <cerrno>

namespace nupa::host {
namespace {

Result<void> try_to_send(int socket, const Message& message, int fd, const Payload* payload) {
  return send_message(socket, message, &fd, fd < 0 ? 0 : 1, payload);
}

bool is_of_channel(const Message& message, uint32_t index) {
  const auto kind = static_cast<MessageKind>(message.kind);
  return (kind == MessageKind::kChannel || kind == MessageKind::kChannelDestroyed) && message.index == index;
}

}  // namespace

Result<void> Outbox::send(int socket, const Message& message, int fd, const Payload* payload) {
  if (waiting_.empty()) {
    auto sent = try_to_send(socket, message, fd, payload);
    if (sent || sent.error().code() != EAGAIN) return sent;
  }
  if (payload != nullptr && waiting_.size() >= kMostMessages) {
    ++lost_;
    return fail(EAGAIN, "the peer process does not read its messages");
  }
  waiting_.push_back({message, fd, payload == nullptr ? nullptr : std::make_unique<Payload>(*payload)});
  return {};
}

void Outbox::send_waiting(int socket) {
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    const auto sent = try_to_send(socket, first.message, first.fd, first.payload.get());
    if (!sent && sent.error().code() == EAGAIN) return;
    if (!sent && (sent.error().code() == EPIPE || sent.error().code() == ECONNRESET)) return clear();
    if (!sent) ++lost_;  // no memory, or too many descriptors in flight: the next one may be sent
    waiting_.pop_front();
  }
}

void Outbox::forget_channel(uint32_t index) {
  std::erase_if(waiting_, [index](const Waiting& waiting) { return is_of_channel(waiting.message, index); });
}

}  // namespace nupa::host
