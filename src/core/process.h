// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "host/node.h"
#include "core/device_table.h"
#include "core/object_events.h"
#include "core/object_tables.h"
#include "core/pending_requests.h"
#include "core/port_totals.h"
#include "core/process_service.h"
#include "core/ring_memory.h"
#include "core/slots.h"
#include "core/transports.h"
#include "core/xrc_users.h"
#include "memory/remapper.h"
#include "progress/of_process.h"

namespace nupa::core {

/// This process, shared by all opens of its devices. It has a place on the host (node, slot, memory that others reach),
/// transports, objects, the requests that wait for these, and services. It creates these parts at the first open,
/// passes the calls of the node's service thread on to them, and destroys them at the last close. The parts contain the
/// rules.
///
/// A forked child does not use its parent's Process or objects: a child that opens a device gets its own Process. Calls
/// on an inherited object fail there (ENODEV) before they take a lock, since a thread of the parent may have held it.
/// close() only releases the child's copy. The data path needs no check: the segments are blank in the child
/// (progress/lifecycle.h), so a queue pair is in RESET and a completion queue is empty.
class Process final : public host::NodeEvents, public ProcessContext, private progress::ForkParticipant {
 public:
  /// Returns the object of this process and creates it if there is none. Errors: those of settings, devices, the
  /// runtime directory and transports.
  static Result<std::shared_ptr<Process>> acquire();
  /// Returns the object of this process, or null if there is none.
  static std::shared_ptr<Process> current();
  ~Process() override;
  /// False in a forked child.
  bool is_here() const { return made_.holds(); }

  // The place on the host.
  host::Node& node() override { return *node_; }
  const shm::Tables& tables() { return node_->segment().tables(); }
  /// The tables of its queue pairs, in all slots.
  shm::QpBanks& queue_pairs() { return node_->self().queue_pairs(); }
  /// The first slot, which identifies the process to its peers.
  uint32_t slot() const { return slot_; }
  Slots& slots() { return *slots_; }
  /// The tag that marks this process's claims in rings.
  uint32_t tag() const { return tag_; }
  const std::vector<Gid>& host_addresses() const override { return own_addresses_; }
  /// The devices with their GID tables as of the first open: peers compare addresses with those.
  const std::vector<DeviceEntry>& devices() const { return devices_; }

  // Memory.
  memory::Remapper& remapper() { return *remapper_; }
  host::PeerMemories& memories() override { return *memories_; }
  RingMemory& ring_memory() { return *ring_memory_; }

  /// The transports of its queue pairs.
  Transports& transports() { return transports_; }
  /// The service that `entry` has made in this process; null: the composition root does not list `entry`.
  ProcessService* find_service(const ServiceEntry& entry);

  // The objects.
  ObjectTables& objects() { return objects_; }
  PendingRequests<Qp, CompletionSink>& pending() { return pending_; }
  XrcUsers& xrc_users() { return xrc_users_; }
  /// The counts of its queue pairs.
  PortTotals& port_totals() { return port_totals_; }
  uint32_t next_handle() { return next_handle_.fetch_add(1); }

 private:
  Process();
  // progress::ForkParticipant
  void before_fork() override {}
  void in_parent() override {}
  bool in_child() override;
  // host::NodeEvents
  void on_attention() override;
  void on_observed() override { port_totals_.publish(queue_pairs(), false); }
  void on_exit() override;
  void on_peer_exit(host::Peer& peer) override;
  void on_payload(host::Peer& peer, const host::Payload& payload) override;
  Result<void> on_capture(base::UniqueFd file) override;
  void on_capture_end() override;
  /// Waits, not for long, until a capture of all processes has found this one.
  void await_capture();
  /// Passes the number of threads that are not the program's on to the remapper.
  void report_threads();
  // ProcessContext
  bool host_is_covered(const Transport& asking) const override;
  bool network_is_covered(const Transport& asking, const DeviceEntry& device) const override {
    return transports_.cover_network_beside(asking, device);
  }
  void count_thread(bool writes_memory) override;
  void count_copying_threads(int threads) override;
  std::shared_mutex& memory_moves() override { return remapper_->copy_mutex(); }
  void try_waiting_requests() override { object_events_->wake_at(0); }
  bool has_queue_pair(uint32_t number) const override;

  const progress::OfThisProcess made_;
  std::vector<DeviceEntry> devices_;
  std::vector<Gid> own_addresses_;  ///< all addresses of this host
  uint32_t slot_ = 0;
  uint32_t tag_ = 0;
  std::atomic<uint32_t> next_handle_{1};
  std::atomic<int> quiet_threads_{0};    ///< of transports, and they write no memory of the program
  std::atomic<int> copying_threads_{0};  ///< of copy engines

  ObjectTables objects_;
  PendingRequests<Qp, CompletionSink> pending_;
  XrcUsers xrc_users_;
  PortTotals port_totals_;

  std::unique_ptr<memory::Remapper> remapper_;
  std::unique_ptr<host::PeerMemories> memories_;
  std::unique_ptr<host::Node> node_;
  std::unique_ptr<ObjectEvents> object_events_;
  std::optional<RingMemory> ring_memory_;
  Transports transports_;
  std::optional<Slots> slots_;

  struct Service {
    const ServiceEntry* entry;
    std::unique_ptr<ProcessService> service;
  };
  std::vector<Service> services_;  ///< constant once the service thread runs
};

}  // namespace nupa::core
