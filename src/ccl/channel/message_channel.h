// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ccl/channel/layout.h"
#include "ccl/coroutine/collective_task.h"

namespace nupa::ccl {

/// A channel: messages between this rank and another one, in both directions, in order, in fragments of limited size.
/// One thread at a time sends, and one receives.
class MessageChannel {
 public:
  virtual ~MessageChannel() = default;

  /// Largest size of a fragment.
  virtual size_t fragment_bytes() const = 0;
  /// Returns a Wait until there is room for a fragment.
  virtual Wait can_send() const = 0;
  /// Returns where the next fragment is to be written once there is room. The memory is free again after send().
  virtual std::byte* room() = 0;
  virtual void send(size_t bytes) = 0;
  /// Sends a fragment without a copy; there must be room for it. The data must not change until all_arrived(). Returns
  /// false and sends nothing if the channel does not support this.
  virtual bool send_zero_copy(const void* data, size_t bytes) = 0;
  /// True if data of a send_zero_copy() may still be read.
  virtual bool has_zero_copy_sends() const = 0;

  /// Returns a Wait until there is a fragment.
  virtual Wait can_receive() const = 0;
  /// Returns the oldest received fragment, which is valid until pop().
  virtual const std::byte* front() const = 0;
  virtual size_t front_bytes() const = 0;
  virtual void pop() = 0;

  /// True if anything was sent or received.
  virtual bool is_used() const = 0;
  /// Takes a fragment after which the peer sends nothing.
  virtual void pop_last() = 0;
  /// Returns a Wait until all that was sent has arrived, or until the peer needs no more.
  virtual Wait all_arrived() const = 0;
};

}  // namespace nupa::ccl
