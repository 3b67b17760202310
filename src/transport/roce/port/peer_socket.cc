// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/port/peer_socket.h"

#include <new>

#include "base/gid.h"
#include "base/log.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kRefusalsATry = 4096;

}  // namespace

std::shared_ptr<PeerSocket> PeerSocket::open(const Gid& address, uint16_t port, uint32_t least_buffer) {
  // The kernel grants twice the requested bytes.
  auto opened = net::UdpSocket::open_address(address, port, least_buffer / 2);
  if (!opened) {
    NUPA_INFO("no separate UDP socket for a peer: %s", opened.error().what());
    return nullptr;
  }
  // A smaller buffer than was promised to the peers would lose packets.
  if (opened->buffer_bytes() < least_buffer) return nullptr;
  opened->report_refusals();
  try {
    return std::make_shared<PeerSocket>(std::move(*opened), address);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool PeerSocket::lead_to(const net::UdpAddress& where, std::shared_ptr<Peer> peer) {
  peer_.store(nullptr);
  if (auto led = socket_.lead_to(where); !led) {
    NUPA_INFO("no separate UDP socket for a peer: %s", led.error().what());
    return false;
  }
  kept_ = std::move(peer);
  turns_.fetch_add(1);
  peer_.store(kept_.get(), std::memory_order_release);
  return true;
}

bool PeerSocket::claim(const void* sender) {
  const void* holder = sender_.load(std::memory_order_acquire);
  if (holder != sender && (holder != nullptr || !sender_.compare_exchange_strong(holder, sender))) return false;
  const bool known = known_turn_ == turns_.load(std::memory_order_acquire);
  // The identifications may have been unavailable for a while only.
  const bool again = known && !usable_ && ++refusals_ % kRefusalsATry == 0;
  return known && !again ? usable_ : learn();
}

bool PeerSocket::learn() {
  known_turn_ = turns_.load(std::memory_order_acquire);
  usable_ = true;
  if (!base::is_ipv4(address_)) return true;
  std::lock_guard lock(copies_mutex_);
  const auto next = socket_.learn_identification();
  usable_ = next.has_value();
  if (usable_) identification_ = *next;
  return usable_;
}

bool PeerSocket::next_refusal(net::UdpSocket::Refusal* refusal) {
  const std::unique_lock lock(copies_mutex_, std::try_to_lock);
  return lock.owns_lock() && socket_.next_refusal(refusal);
}

void PeerSocket::release(const void* sender) {
  const void* holder = sender;
  sender_.compare_exchange_strong(holder, nullptr);
}

void PeerSocket::sent(uint32_t messages, uint32_t lost) {
  identification_ = static_cast<uint16_t>(identification_ + messages);
  // It is unknown if the kernel counted the lost messages.
  if (lost > 0) known_turn_.reset();
}

}  // namespace nupa::roce
