// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace nupa::rsockets {

/// The room that a sender waits for, and the most that a datagram with its header takes (rdma-core's number).
constexpr uint32_t kLowWater = 2048;
/// The fewest and the most requests of a queue. The upper limit follows from the messages' 16-bit sequence numbers.
constexpr uint32_t kMinRequests = 16;
constexpr uint32_t kMaxRequests = 0xfffe;
/// Entries of the send queue that are reserved for control messages.
constexpr uint32_t kControlRequests = 4;
/// The most bytes that one write carries.
constexpr uint32_t kMaxWrite = 65536;
/// Bytes of the first write of a long send. It is short so that the peer begins to copy while more is staged.
constexpr uint32_t kFirstWrite = 2048;
/// The same over RoCE, where one more message costs more than the peer gains by an early start.
constexpr uint32_t kFirstPacketWrite = 4096;
/// The largest send or receive buffer. Larger requests are reduced to it.
constexpr uint32_t kMaxBuffer = UINT32_C(1) << 30;

}  // namespace nupa::rsockets
