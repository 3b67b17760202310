// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::host {

/// The bytes that follow a kPayload message. The node does not interpret them.
using Payload = std::array<std::byte, 256>;

/// The messages between processes on their sockets. Each message is one packet, and descriptors are sent with it.
///
///     kHello      segment, region file, eventfd    both sides, first; an observer sends none and gets all
///     kWantChannel                                 index: its eventfd is wanted, answered by one of the next two
///     kChannel    the channel's eventfd            index
///     kChannelDestroyed                                 index
///     kGoodbye
///     kPayload        256 bytes behind it, of the communication manager
///     kCapture     the ring of a capture, first; answered by kCaptured, or the connection ends
///     kCaptured       in place of a hello; the capture lasts until the connection ends
///     kNoRoom         in place of a hello, or when its descriptors did not fit: the two never connect
enum class MessageKind : uint32_t {
  kHello = 1,
  kObserver = 2,
  kChannel = 3,
  kChannelDestroyed = 4,
  kGoodbye = 5,
  kPayload = 6,
  kWantChannel = 7,
  kNoRoom = 8,
  kCapture = 9,
  kCaptured = 10
};

struct Message {
  uint64_t magic;
  uint32_t version;
  uint32_t kind;
  uint32_t slot;
  uint32_t index;
  uint64_t instance;
  uint64_t probe;  ///< kHello: the address of `instance` in the sender's memory, to try process_vm_readv
};
static_assert(sizeof(Message) == 40);
constexpr uint64_t kWireMagic = 0x3157494d4150554eull;  // little endian
constexpr uint32_t kWireVersion = 3;
constexpr size_t kMaxFds = 3;

struct Received {
  Message message{};
  std::array<base::UniqueFd, kMaxFds> fds;
  size_t fd_count = 0;
  bool truncated = false;  ///< this process has no room for descriptors that were sent
  Payload payload;         ///< kPayload
};

/// EAGAIN: would block. EPIPE, ECONNRESET: the peer closed the socket.
Result<void> send_message(int socket, const Message& message, const int* fds, size_t fd_count,
                          const Payload* payload = nullptr);
/// EAGAIN: no message. ENOTCONN: the peer closed the socket. EPROTO: not a message. Descriptors for which this process
/// has no room are missing: fd_count is smaller than the number sent.
Result<Received> receive_message(int socket);
/// Waits until the socket is readable. ETIMEDOUT.
Result<void> wait_readable(int socket, int timeout_ms);

/// The peer's process number (0: in a namespace that this process cannot see) and user.
struct Credentials {
  int pid = 0;
  uint32_t uid = 0;
};
Result<Credentials> peer_credentials(int socket);

}  // namespace nupa::host
