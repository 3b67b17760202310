// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The interface that a transport implements, and the part of the process that it uses. Everything of the core that a
/// transport may use is in this folder.

#include <nupa/device.h>

#include <memory>
#include <optional>
#include <shared_mutex>
#include <string_view>
#include <vector>

#include "core/seam/device_entry.h"
#include "core/seam/endpoint.h"
#include "core/seam/mad_carrier.h"
#include "core/seam/qp_context.h"
#include "core/seam/transport_memory.h"
#include "host/node.h"
#include "host/peer_memory.h"
#include "progress/poller.h"

namespace nupa::core {

class Transport;

/// The functions of the process that its transports use. Any thread.
class ProcessContext {
 public:
  virtual ~ProcessContext() = default;
  virtual host::Node& node() = 0;
  /// Access to the memory of processes of this host.
  virtual host::PeerMemories& memories() = 0;
  /// All addresses of this host, including those that no device has.
  virtual const std::vector<Gid>& host_addresses() const = 0;
  /// Returns whether another transport reaches the processes of this host. A multicast must not reach them twice.
  virtual bool host_is_covered(const Transport& asking) const = 0;
  /// Returns whether another transport delivers multicasts of `device` to other hosts. They must not get them twice.
  virtual bool network_is_covered([[maybe_unused]] const Transport& asking,
                                  [[maybe_unused]] const DeviceEntry& device) const {
    return false;
  }
  /// Counts a thread that the transport starts. `writes_memory`: the thread may write to the program's memory at any
  /// time.
  virtual void count_thread(bool writes_memory) = 0;
  /// Counts threads that write the program's memory only while they hold memory_moves() shared. They do not count as
  /// threads of the program when its memory moves. -1: a device that writes it at any time; it counts as one more.
  virtual void count_copying_threads(int threads) = 0;
  virtual std::shared_mutex& memory_moves() = 0;
  /// Has the service thread try the requests that wait, soon. Takes leaf locks only.
  virtual void try_waiting_requests() = 0;
  /// Returns whether the process has the queue pair, in any state.
  virtual bool has_queue_pair(uint32_t number) const = 0;
};

/// A transport is created before the process has a slot, and outlives all queue pairs. Any thread may call it, but
/// never with a send lock held.
class Transport {
 public:
  virtual ~Transport() = default;
  /// The name, at most eight characters. Constant.
  virtual std::string_view name() const = 0;

  // Start: the thread that opens the first device calls these, in this order.

  /// Writes the transport's part of the segment header for other processes, before they can find this process.
  virtual void describe([[maybe_unused]] shm::SegmentHeader& header) const {}
  enum class Slot : uint8_t {
    kFine,
    kTaken,   ///< another process holds a resource of this slot: try another slot
    kUnable,  ///< the transport cannot run here; the process continues without it if there is another transport
  };
  /// Returns whether this process may use the slot, which is part of its queue pair numbers.
  virtual Slot reserve([[maybe_unused]] uint32_t slot) { return Slot::kFine; }
  /// Called if no slot was available. Returns this transport's reason as an error, or success if it has none.
  virtual Result<void> explain_no_slot() const { return {}; }
  /// Starts the transport: the process has its slot, but its service thread does not run yet. `process` outlives the
  /// transport. Errors: those of sockets and threads.
  virtual Result<void> open(ProcessContext& process) = 0;

  // Further slots, for more queue pairs. One thread at a time, any time after open().

  /// Reserves what the slot needs. Returns false if another process holds it. Errors: those of sockets.
  virtual Result<bool> reserve_further([[maybe_unused]] uint32_t slot) { return true; }
  /// The process now owns the slot of the last reserve_further() call.
  virtual void extend([[maybe_unused]] uint32_t slot) {}

  // Queue pairs.

  /// Returns whether this transport reaches queue pair `qp_num` at `vector`; also true if the peer's process exists and
  /// does not answer now. May wait 100 ms for another process.
  virtual bool reaches(const AddressVector& vector, uint32_t qp_num) = 0;
  /// Creates the endpoint of an RC, UC or XRC queue pair on its way to RTR; `attr` holds the program's attributes.
  /// `may_lower_mtu`: the port shows the larger MTU of another transport, so a path MTU that does not fit is lowered
  /// and not refused. EHOSTUNREACH: no path to the peer; EINVAL: the path MTU is not supported.
  virtual Result<std::unique_ptr<Endpoint>> connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr,
                                                    bool may_lower_mtu) = 0;
  /// Creates the sender of a UD queue pair. `due`: see Endpoint.
  virtual Result<std::unique_ptr<DatagramSender>> datagrams(const DeviceEntry& device, QpContext& context,
                                                            host::DueEvent& due) = 0;
  /// A key of this process is invalid now, and no queue pair of this host uses it. Returns when no peer writes memory
  /// by it any more, or when a peer has not answered for 2 s.
  virtual void revoked([[maybe_unused]] uint32_t rkey) {}
  /// Adds a UD queue pair to a multicast group: it receives the datagrams that this transport delivers to the group.
  /// Returns 0 or an errno value.
  virtual int join([[maybe_unused]] const DeviceEntry& device, [[maybe_unused]] uint32_t qp_num,
                   [[maybe_unused]] const Gid& group) {
    return 0;
  }
  virtual void leave([[maybe_unused]] uint32_t qp_num, [[maybe_unused]] const Gid& group) {}

  // Properties. They are constant after open().

  /// The largest MTU of a device's port (IBTA 11.2.1.4).
  virtual Result<Mtu> mtu(const DeviceEntry& device) const = 0;
  /// The largest MTU on the path to a host; none: the MTU of the port. `scope`: the interface of a link-local
  /// address. Errors: those of the system's routes.
  virtual Result<std::optional<Mtu>> mtu_to([[maybe_unused]] const Gid& host, [[maybe_unused]] uint32_t scope) const {
    return std::nullopt;
  }
  /// Returns the address of this host from which the transport reaches `host`, although the system may have no route to
  /// it; none: the system's route counts.
  virtual std::optional<Gid> source_to([[maybe_unused]] const Gid& host) const { return std::nullopt; }
  /// True if it reaches all processes of this user on this host through shared memory.
  virtual bool shares_memory() const { return false; }
  /// True if it records its packets for a capture (capture/tap.h). Otherwise the core records packets that stand for
  /// the requests.
  virtual bool records_packets() const { return false; }
  /// Null: the transport needs no polling.
  virtual progress::Poller* poller() { return nullptr; }
  /// Null: the transport carries no management datagrams.
  virtual MadCarrier* mads() { return nullptr; }
  /// The memory that it lends to programs of its device. Null: it lends none.
  virtual TransportMemory* memory() { return nullptr; }
};

}  // namespace nupa::core
