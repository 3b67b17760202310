#pragma once
/// The surroundings of the engine: what it asks of the queue pair that it serves, and where its packets go.

#include "core/seam/qp_context.h"
#include "transport/roce/wire/wire.h"

namespace nupa::roce {

using core::Inbound;
/// What the engine asks of the queue pair that it serves. It calls it from within its own calls, nowhere else.
using Host = core::QpContext;

/// A part of a packet's payload in the program's memory. `data` null: zeros.
struct Fragment {
  const std::byte* data;
  uint32_t length;
};

/// What became of a packet.
enum class Sent : uint8_t {
  kYes,
  kNotNow,      ///< the engine offers it again with the next transmit()
  kUnreadable,  ///< the program's memory is not there any more
};

/// Takes packets on their way. The payload has to be read before the engine's caller lets go of the queue pair.
class Output {
 public:
  virtual ~Output() = default;
  virtual Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) = 0;
};

}  // namespace nupa::roce
