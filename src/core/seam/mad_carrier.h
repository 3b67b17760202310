// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Datagrams between the communication managers of two hosts, which a transport brings to queue pair 1, the port's
/// management (IBTA 3.9.4, 13.4).

#include <nupa/result.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "core/seam/device_entry.h"

namespace nupa::core {

/// A process of another host. `port` is the transport's: it tells processes with one address apart.
struct MadPeer {
  Gid address;
  uint16_t port = 0;
};

struct MadDatagram {
  static constexpr uint32_t kBytes = 256;

  std::array<std::byte, kBytes> bytes;
  Gid local;               ///< the address of this host
  MadPeer remote;          ///< received: where answers go
  uint32_t interface = 0;  ///< by which it came or leaves; 0: the system chooses
  /// Received: its sender is a process of NUPA, and `remote` leads to that process.
  bool of_nupa = false;
  /// Received: the port that it came from, where an answer to this very datagram goes.
  uint16_t from_port = 0;
};
using MadHandler = std::function<void(const MadDatagram&)>;

/// A socket for nothing but these. One thread.
class MadSocket {
 public:
  virtual ~MadSocket() = default;
  /// Readable if something has come.
  virtual int fd() const = 0;
  /// Reads what has come.
  virtual void receive(const MadHandler& handler) = 0;
  virtual void send(const MadDatagram& datagram) = 0;
  /// A process that does not exist, as its host has said since the last call; none: no host has.
  virtual std::optional<MadPeer> next_refusal() = 0;
};

struct HostWay {
  uint16_t port = 0;       ///< where a process receives for all of the host
  uint32_t interface = 0;  ///< by which they leave; 0: the system chooses
};

/// What a transport does for the communication manager.
class MadCarrier {
 public:
  virtual ~MadCarrier() = default;

  /// `handler` gets what comes to queue pair 1 from now on. It is called by any thread that receives, must return soon
  /// and may call send() alone. Errors: those of threads.
  virtual Result<void> listen(MadHandler handler) = 0;
  /// No handler is called after this returns.
  virtual void unlisten() = 0;
  /// Sends to datagram.remote. One thread at a time, which may be at the end of its process. False: not now.
  virtual bool send(const MadDatagram& datagram) = 0;

  /// How datagrams reach the host at `address`, as long as none of its processes is known, from entry `gid_index` of a
  /// device's GID table.
  virtual HostWay way_to_host(const DeviceEntry& device, uint32_t gid_index, const Gid& address) const = 0;
  /// This process receives what comes for the host.
  virtual bool receives_for_host() const = 0;
  /// A socket that receives it, for a process that does not. EADDRINUSE: another process has it; errors of sockets.
  virtual Result<std::unique_ptr<MadSocket>> open_host_socket() = 0;
  /// Processes of NUPA on other hosts may be asked whether they live. Constant.
  virtual bool probes() const = 0;
  /// A socket to ask them by. Errors of sockets.
  virtual Result<std::unique_ptr<MadSocket>> open_probe_socket() = 0;
};

}  // namespace nupa::core
