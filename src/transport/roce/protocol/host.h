// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The protocol's view of its queue pair, and the output for its packets.

#include "core/seam/qp_context.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

using core::Inbound;
/// The queue pair that the protocol serves. The protocol calls it only within calls of the protocol itself.
using Host = core::QpContext;

/// A part of a packet's payload in the program's memory. `data` null: zeros.
struct Fragment {
  const std::byte* data;
  uint32_t length;
};

/// The result of sending a packet.
enum class Sent : uint8_t {
  kYes,
  kNotNow,      ///< the protocol offers it again in the next transmit()
  kUnreadable,  ///< the program's memory is not mapped any more
};

/// Sends packets. The payload has to be read before the caller of the protocol releases the queue pair.
class Output {
 public:
  virtual ~Output() = default;
  virtual Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) = 0;
};

}  // namespace nupa::roce
