#pragma once
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "cm/node.h"
#include "core/device_table.h"
#include "core/index_pool.h"
#include "region/remapper.h"
#include "transport/roce/datagram_endpoint.h"
#include "transport/window/window.h"

namespace nupa::core {

class Connections;
class SuddenEnd;
class Cq;
class Qp;
class Srq;

/// What all opens of the devices in this process share: the node, the numbers, the objects by number, pending work.
/// Made by the first open, gone with the last close.
class Runtime final : public cm::NodeEvents {
 public:
  static Result<std::shared_ptr<Runtime>> acquire();
  ~Runtime() override;

  cm::Node& node() { return *node_; }
  segment::Segment& segment() { return node_->segment(); }
  const segment::Tables& tables() { return node_->segment().tables(); }
  region::Remapper& remapper() { return *remapper_; }
  window::Window& window() { return *window_; }
  /// How the memory of processes of this host is reached.
  host::PeerMemories& memories() { return *memories_; }
  /// Processes of this host and user are reached by shared memory.
  bool has_window() const { return has_window_; }
  /// Nothing but the standard is spoken on the wire.
  bool speaks_standard() const { return wire_settings_.standard; }
  /// Of this host, those too that no device has.
  const std::vector<Gid>& host_addresses() const { return own_addresses_; }
  /// The interface that packets from `source` to `peer` leave by.
  uint32_t exit_of(const DeviceEntry& device, const GidEntry& source, const Gid& peer) const;
  Connections& connections() { return *connections_; }
  /// The port's thread runs from now on, for management alone: it touches no memory of the program's. Errors of
  /// threads.
  Result<void> start_port();
  /// The UDP port; null: nothing leaves this host.
  roce::Port* port() { return port_.get(); }
  /// RC, UC, XRC: by shared memory if that leads to the peer, else by packets. EHOSTUNREACH: no address of this host
  /// stands at the source's index, or the peer's is of another family. EINVAL: packets of the path MTU do not go
  /// through the interface that leads there.
  Result<std::unique_ptr<Endpoint>> connect(const DeviceEntry& device, QpContext& context, const QpAttr& attr);
  /// UD: over shm to processes of this host and user, by packets to others, as far as there are both.
  Result<std::unique_ptr<Endpoint>> connect_datagrams(const DeviceEntry& device, QpContext& context);
  /// The queue pair hears what packets bring for a multicast group. 0, or why not: on a host without a network there
  /// may still be the window.
  int join_on_wire(const DeviceEntry& device, uint32_t qp_num, const Gid& group);
  /// The code of the port's MTU (IBTA 11.2.1.5): the largest that goes through its interfaces.
  Result<uint32_t> active_mtu(const DeviceEntry& device) const;
  /// With their GID tables as they were when the first one was opened: peers compare addresses with those.
  const std::vector<DeviceEntry>& devices() const { return devices_; }
  uint32_t slot() const { return slot_; }
  /// How this process signs claims in rings.
  uint32_t tag() const { return tag_; }

  IndexPool& qp_numbers() { return qp_numbers_; }
  IndexPool& cq_numbers() { return cq_numbers_; }
  IndexPool& srq_numbers() { return srq_numbers_; }
  IndexPool& mr_numbers() { return mr_numbers_; }
  uint32_t next_handle() { return next_handle_.fetch_add(1); }

  void enter(Qp* qp, uint32_t index);
  void enter(Cq* cq, uint32_t index);
  void enter(Srq* srq, uint32_t index);
  /// After these return the service thread no longer touches the object.
  void leave_qp(uint32_t index);
  void leave_cq(uint32_t index);
  void leave_srq(uint32_t index);
  /// Valid while the object is not destroyed, which the caller has to know. One load.
  Qp* qp_at(uint32_t index) { return qps_[index].load(std::memory_order_acquire); }
  Srq* srq_at(uint32_t index) { return srqs_[index].load(std::memory_order_acquire); }

  /// Queue pairs whose endpoint has something to go on with. `by_pollers`: threads that poll for the completions of its
  /// sends try as well, not only the service thread. Any thread.
  void add_pending(Qp* qp, bool by_pollers);
  void remove_pending(Qp* qp);
  /// Tries all pending queue pairs that complete to `cq`; for threads that poll it.
  void progress(Cq* cq);

  /// Waits until no process (this one too) is inside an operation that it began before this call, so that whatever
  /// was revoked before is not used any more. False if one did not move on for kGraceLimit (it is stopped).
  bool grace();

  /// Allocates and gives back ring memory; `exposed`: peers may have mapped it.
  Result<segment::Segment::Block> allocate(uint64_t bytes) { return segment().allocate(bytes); }
  void release(const segment::Segment::Block& block) { segment().release(block, grace()); }

  /// The identity of the XRC domain of a file (device and inode), or a private one.
  std::mutex& xrc_mutex() { return xrc_mutex_; }
  std::map<uint64_t, int>& xrc_users() { return xrc_users_; }

  void on_attention() override;
  void on_peer_gone(cm::Peer& peer) override;
  void on_mad(cm::Peer& peer, const cm::Mad& mad) override;
  int64_t on_tick(int64_t now_ns) override;

 private:
  Runtime();
  static int64_t kGraceLimitNs();
  bool grace_of(const segment::Tables& tables, cm::Peer* peer);
  void recover_from(cm::Peer& peer);
  void bury(cm::Peer& peer);
  int64_t serve_queue_pairs(int64_t now_ns);

  IndexPool qp_numbers_;
  IndexPool cq_numbers_;
  IndexPool srq_numbers_;
  IndexPool mr_numbers_;
  std::atomic<uint32_t> next_handle_{1};
  std::vector<DeviceEntry> devices_;
  uint32_t slot_ = 0;
  uint32_t tag_ = 0;

  /// Held by the service thread while it touches objects, and by whoever removes one.
  std::mutex objects_mutex_;
  std::array<std::atomic<Qp*>, segment::kMaxQp> qps_{};
  std::array<std::atomic<Cq*>, segment::kMaxCq> cqs_{};
  std::array<std::atomic<Srq*>, segment::kMaxSrq> srqs_{};
  std::atomic<uint32_t> cq_high_water_{0};
  std::atomic<uint32_t> srq_high_water_{0};

  Result<std::unique_ptr<Endpoint>> connect_wire(const DeviceEntry& device, QpContext& context, const QpAttr& attr);
  roce::Sources sources_of(const DeviceEntry& device) const;
  /// The ways of a connection from `source`: that one, other interfaces' addresses of its family, further source ports.
  std::vector<roce::Rail> rails_from(const DeviceEntry& device, const GidEntry& source, const Gid& peer) const;

  std::mutex pending_mutex_;
  std::map<Qp*, bool> pending_;  ///< and whether pollers try
  std::set<uint32_t> failed_;    ///< queue pairs whose error is still to be handled; service thread only

  /// Its thread may touch the program's memory.
  Result<void> start_port_for_queue_pairs();

  /// Before everything of the connections'.
  std::mutex connections_mutex_;

  std::mutex xrc_mutex_;
  std::map<uint64_t, int> xrc_users_;

  std::unique_ptr<region::Remapper> remapper_;
  std::unique_ptr<host::PeerMemories> memories_;
  std::unique_ptr<window::Window> window_;  ///< outlives the node's service thread, which calls it
  std::unique_ptr<cm::Node> node_;
  std::unique_ptr<roce::Port> port_;
  std::mutex port_start_mutex_;
  bool port_serves_queue_pairs_ = false;
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<SuddenEnd> sudden_end_;
  roce::WireSettings wire_settings_;
  std::vector<Gid> own_addresses_;  ///< of this host
  bool has_window_ = true;          ///< processes of this host are reached by shared memory
};

}  // namespace nupa::core
