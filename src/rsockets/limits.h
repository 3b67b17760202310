#pragma once
#include <cstdint>

namespace nupa::rsockets {

/// A sender waits for this much room, and datagrams and their header take at most this much (rdma-core's number).
constexpr uint32_t kLowWater = 2048;
/// Fewest and most requests of a queue; sequence numbers of messages have 16 bits.
constexpr uint32_t kMinRequests = 16;
constexpr uint32_t kMaxRequests = 0xfffe;
/// Of the send queue, what control messages have to themselves.
constexpr uint32_t kControlRequests = 4;
/// The most that one write carries.
constexpr uint32_t kMaxWrite = 65536;
/// The first write of a long send: the peer begins to copy while more is staged.
constexpr uint32_t kFirstWrite = 2048;
/// The same where packets carry it: a message more costs more than the peer gains by beginning early.
constexpr uint32_t kFirstPacketWrite = 4096;
/// The largest buffer: half of it goes into a message's value many times over.
constexpr uint32_t kMaxBuffer = UINT32_C(1) << 30;

}  // namespace nupa::rsockets
