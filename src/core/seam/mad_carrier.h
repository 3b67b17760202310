// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Management datagrams (MADs) between the communication managers of two hosts. A transport carries them to queue pair
/// 1, the port's management interface (IBTA 3.9.4, 13.4).

#include <nupa/result.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "core/seam/device_entry.h"

namespace nupa::core {

/// A process of another host. `port` is the transport's port number; it distinguishes processes that share an address.
struct MadPeer {
  Gid address;
  uint16_t port = 0;
};

/// The interface of datagrams that do not leave by a network interface, but by a pool.
constexpr uint32_t kPoolInterface = 0xffffffff;

struct MadDatagram {
  static constexpr uint32_t kBytes = 256;

  std::array<std::byte, kBytes> bytes;
  Gid local;               ///< the address of this host
  MadPeer remote;          ///< received: the destination of an answer
  uint32_t interface = 0;  ///< index of the interface that it uses; 0: the system chooses
  /// Received: true if the sender is a NUPA process; `remote` then leads to that process.
  bool of_nupa = false;
  /// Received: the source port of the datagram; an answer to this very datagram goes there.
  uint16_t from_port = 0;
};
using MadHandler = std::function<void(const MadDatagram&)>;

/// A socket for management datagrams only. Used by one thread.
class MadSocket {
 public:
  virtual ~MadSocket() = default;
  /// Becomes readable when a datagram has arrived.
  virtual int fd() const = 0;
  /// Reads the datagrams that have arrived and calls `handler` for each.
  virtual void receive(const MadHandler& handler) = 0;
  virtual void send(const MadDatagram& datagram) = 0;
  /// Returns a process that does not exist, as its host has reported since the last call; empty: no report is left.
  virtual std::optional<MadPeer> next_refusal() = 0;
};

struct HostWay {
  uint16_t port = 0;       ///< the port where one process receives for the whole host
  uint32_t interface = 0;  ///< index of the interface that datagrams leave from; 0: the system chooses
};

/// The interface that a transport offers to the communication manager.
class MadCarrier {
 public:
  virtual ~MadCarrier() = default;

  /// Calls `handler` for each datagram that arrives for queue pair 1 from now on. Any receiving thread may call the
  /// handler; it must return soon, and send() is the only function of this object that it may call. Errors: those of
  /// threads.
  virtual Result<void> listen(MadHandler handler) = 0;
  /// Ends the calls of the handler: none runs after this returns.
  virtual void unlisten() = 0;
  /// Sends to datagram.remote. One thread at a time; that thread may run at the exit of its process. Returns false if
  /// the datagram cannot be sent now.
  virtual bool send(const MadDatagram& datagram) = 0;

  /// Returns how a datagram reaches the host at `address` while none of its processes is known. The datagram leaves
  /// from entry `gid_index` of the device's GID table.
  virtual HostWay way_to_host(const DeviceEntry& device, uint32_t gid_index, const Gid& address) const = 0;
  /// Returns whether datagrams reach the host at `address`. Where several transports carry datagrams, the first one
  /// that reaches the host is asked for the way.
  virtual bool leads_to([[maybe_unused]] const Gid& address) const { return true; }
  /// Returns whether it has given out this interface in way_to_host() or in a datagram that arrived.
  virtual bool has_interface([[maybe_unused]] uint32_t interface) const { return true; }
  /// True if this process receives the datagrams that are addressed to the host as a whole.
  virtual bool receives_for_host() const = 0;
  /// Opens a socket for the host's datagrams in a process that does not receive them otherwise. EADDRINUSE: another
  /// process receives them. Other errors are those of sockets.
  virtual Result<std::unique_ptr<MadSocket>> open_host_socket() = 0;
  /// True if NUPA processes on other hosts can be probed for whether they are alive. Constant.
  virtual bool probes() const = 0;
  /// Opens a socket for such probes. Errors: those of sockets.
  virtual Result<std::unique_ptr<MadSocket>> open_probe_socket() = 0;
};

}  // namespace nupa::core
