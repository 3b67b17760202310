#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "cm/node.h"
#include "core/device_table.h"
#include "core/object_tables.h"
#include "core/pending_requests.h"
#include "core/ring_memory.h"
#include "core/transports.h"
#include "core/xrc_users.h"
#include "region/remapper.h"

namespace nupa::core {

class Connections;

/// What all opens of the devices in this process share: the node, the numbers, the objects by number, pending work.
/// Made by the first open, gone with the last close.
class Runtime final : public cm::NodeEvents, public ProcessContext {
 public:
  static Result<std::shared_ptr<Runtime>> acquire();
  ~Runtime() override;

  cm::Node& node() override { return *node_; }
  segment::Segment& segment() { return node_->segment(); }
  const segment::Tables& tables() { return node_->segment().tables(); }
  region::Remapper& remapper() { return *remapper_; }
  host::PeerMemories& memories() override { return *memories_; }
  /// By which this process's queue pairs reach others.
  Transports& transports() { return transports_; }
  const std::vector<Poller*>& pollers() const { return pollers_; }
  const std::vector<Gid>& host_addresses() const override { return own_addresses_; }
  bool host_is_covered(const Transport& asking) const override;
  void count_thread(bool writes_memory) override;
  bool has_queue_pair(uint32_t number) const override;
  Connections& connections() { return *connections_; }
  /// With their GID tables as they were when the first one was opened: peers compare addresses with those.
  const std::vector<DeviceEntry>& devices() const { return devices_; }
  uint32_t slot() const { return slot_; }
  /// How this process signs claims in rings.
  uint32_t tag() const { return tag_; }

  uint32_t next_handle() { return next_handle_.fetch_add(1); }
  ObjectTables& objects() { return objects_; }
  PendingRequests<Qp, Cq>& pending() { return pending_; }

  RingMemory& ring_memory() { return *ring_memory_; }

  XrcUsers& xrc_users() { return xrc_users_; }

  void on_attention() override;
  void on_peer_gone(cm::Peer& peer) override;
  void on_mad(cm::Peer& peer, const cm::Mad& mad) override;
  int64_t on_tick(int64_t now_ns) override;

 private:
  Runtime();
  void recover_from(cm::Peer& peer);
  void bury(cm::Peer& peer);
  int64_t serve_queue_pairs(int64_t now_ns);

  std::atomic<uint32_t> next_handle_{1};
  std::vector<DeviceEntry> devices_;
  uint32_t slot_ = 0;
  uint32_t tag_ = 0;

  ObjectTables objects_;
  PendingRequests<Qp, Cq> pending_;
  std::set<uint32_t> failed_;  ///< queue pairs whose error is still to be handled; service thread only

  /// Before everything of the connections'.
  std::mutex connections_mutex_;

  XrcUsers xrc_users_;

  std::unique_ptr<region::Remapper> remapper_;
  std::unique_ptr<host::PeerMemories> memories_;  ///< outlives the node's service thread, which calls it
  std::unique_ptr<cm::Node> node_;
  std::optional<RingMemory> ring_memory_;
  Transports transports_;
  std::vector<Poller*> pollers_;
  std::unique_ptr<Connections> connections_;
  std::vector<Gid> own_addresses_;  ///< of this host
};

}  // namespace nupa::core
