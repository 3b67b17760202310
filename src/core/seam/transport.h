// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One wire of this process: a transport's face to the core. Everything that a transport may use of the core is in this
/// folder.

#include <nupa/device.h>

#include <memory>
#include <string_view>
#include <vector>

#include "core/seam/device_entry.h"
#include "core/seam/endpoint.h"
#include "core/seam/mad_carrier.h"
#include "core/seam/qp_context.h"
#include "host/node.h"
#include "host/peer_memory.h"
#include "progress/poller.h"

namespace nupa::core {

class Transport;

/// What the process lends to its transports. Any thread.
class ProcessContext {
 public:
  virtual ~ProcessContext() = default;
  virtual host::Node& node() = 0;
  /// How the memory of processes of this host is reached.
  virtual host::PeerMemories& memories() = 0;
  /// All addresses of this host, those too that no device has.
  virtual const std::vector<Gid>& host_addresses() const = 0;
  /// Whether another transport leads to the processes of this host: a multicast is not to reach them twice.
  virtual bool host_is_covered(const Transport& asking) const = 0;
  /// A thread of the transport runs from now on. `writes_memory`: it writes to the program's memory unasked.
  virtual void count_thread(bool writes_memory) = 0;
  /// Whether it has the queue pair, in whatever state. Any thread.
  virtual bool has_queue_pair(uint32_t number) const = 0;
};

/// The transport is made before the process has a slot, and outlives all queue pairs. Calls come from any thread and
/// never with a send lock held.
class Transport {
 public:
  virtual ~Transport() = default;
  /// At most eight characters. Constant.
  virtual std::string_view name() const = 0;

  // The start, in this order, by the thread that opens the first device.

  /// Writes what other processes read about this transport, before they can find this one.
  virtual void describe([[maybe_unused]] shm::SegmentHeader& header) const {}
  enum class Slot : uint8_t {
    kFine,
    kTaken,   ///< another process has what the slot needs: try another one
    kUnable,  ///< the transport cannot run here; the process does without it if there is another
  };
  /// Whether this process may have the slot, which is part of its queue pairs' numbers.
  virtual Slot reserve([[maybe_unused]] uint32_t slot) { return Slot::kFine; }
  /// No slot was to be had. The error that says why, or none of this transport's.
  virtual Result<void> explain_no_slot() const { return {}; }
  /// The process has its slot; only its service thread does not run yet. `process` outlives the transport. Errors of
  /// sockets and threads.
  virtual Result<void> open(ProcessContext& process) = 0;

  // Further slots, for more queue pairs. One thread at a time, any time after open().

  /// Takes what the slot needs, unless another process has it. False: another process does. Errors of sockets.
  virtual Result<bool> reserve_further([[maybe_unused]] uint32_t slot) { return true; }
  /// The process has the further slot for which reserve_further() was called last.
  virtual void extend([[maybe_unused]] uint32_t slot) {}

  // Queue pairs.

  /// Whether this transport leads to queue pair `qp_num` at `vector`; true as well if its process is there and does not
  /// answer now. May wait 100 ms for another process.
  virtual bool reaches(const AddressVector& vector, uint32_t qp_num) = 0;
  /// RC, UC, XRC on the way to RTR; `attr` as the program gave it. `may_lower_mtu`: another transport has the larger
  /// MTU that the port shows, so a path MTU that does not fit is lowered, not refused. EHOSTUNREACH: nothing leads
  /// there; EINVAL: the path MTU.
  virtual Result<std::unique_ptr<Endpoint>> connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr,
                                                    bool may_lower_mtu) = 0;
  /// UD. `due`: see Endpoint.
  virtual Result<std::unique_ptr<DatagramSender>> datagrams(const DeviceEntry& device, QpContext& context,
                                                            host::DueEvent& due) = 0;
  /// A UD queue pair receives what this transport brings for a multicast group. 0 or an errno value.
  virtual int join([[maybe_unused]] const DeviceEntry& device, [[maybe_unused]] uint32_t qp_num,
                   [[maybe_unused]] const Gid& group) {
    return 0;
  }
  virtual void leave([[maybe_unused]] uint32_t qp_num, [[maybe_unused]] const Gid& group) {}

  // Properties; constant after open().

  /// The code of the largest MTU of a device's port (IBTA 11.2.1.5): 1 to 5 for 256 to 4,096 bytes.
  virtual Result<uint32_t> mtu_code(const DeviceEntry& device) const = 0;
  /// The code of the largest MTU on the way to a host; 0: that of the port. `scope`: the interface of a link-local
  /// address. Errors: those of the system's routes.
  virtual Result<uint32_t> mtu_code_to([[maybe_unused]] const Gid& host, [[maybe_unused]] uint32_t scope) const {
    return 0;
  }
  /// It leads to any process of this user on this host, by memory that they share.
  virtual bool shares_memory() const { return false; }
  /// Null: nothing to poll.
  virtual progress::Poller* poller() { return nullptr; }
  /// Null: it brings nothing to queue pair 1.
  virtual MadCarrier* mads() { return nullptr; }
};

}  // namespace nupa::core
