// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <cstdint>
#include <set>
#include <shared_mutex>
#include <vector>

#include "core/object_events.h"

namespace nupa::core {

/// The work of the node's service thread for the objects of this process. It handles their attention bits, tries
/// requests that wait, continues the errors of queue pairs that were busy, and recovers what a dead process held. It
/// takes the objects' mutex. Requests may write the program's memory, so it holds `copies` shared while it tries them;
/// the caller of on_attention() holds it as well.
class ObjectService final : public ObjectEvents {
 public:
  ObjectService(host::Node& node, ObjectTables& objects, PendingRequests<Qp, CompletionSink>& pending,
                std::shared_mutex& copies)
      : node_(node), objects_(objects), pending_(pending), copies_(copies) {}

  void wake_at(int64_t at_ns) override {
    if (!tries_ || !node_.on_service_thread()) again_.set_at_latest(at_ns);
  }
  void on_attention(uint32_t kinds) override;
  void on_peer_exit(host::Peer& peer) override;
  void in_child() override;

 private:
  void wake() { wake_at(0); }
  void try_again(int64_t now_ns);
  const shm::Tables& tables() { return node_.segment().tables(); }
  void look_at(uint32_t bank);
  void recover_from(host::Peer& peer);
  /// Lets the queue pair leave a process that exited. Returns false if another thread holds the queue pair.
  bool leave(Qp& qp, host::Peer& gone);

  host::Node& node_;
  ObjectTables& objects_;
  PendingRequests<Qp, CompletionSink>& pending_;
  std::shared_mutex& copies_;
  std::atomic<bool> tries_{false};  ///< the service thread is in try_again()
  progress::Loop::Timer again_{node_.loop(), [this](int64_t now) { try_again(now); }};
  std::set<uint32_t> failed_;  ///< queue pairs whose error is still to be handled
  /// A queue pair that another thread held when process `gone` exited.
  struct Leaving {
    uint32_t index;
    host::PeerRef gone;
  };
  std::vector<Leaving> leaving_;
};

}  // namespace nupa::core
