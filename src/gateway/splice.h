// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/connection_manager.h>
#include <nupa/device.h>

#include <atomic>
#include <memory>

#include "gateway/direction.h"
#include "gateway/mapping.h"

namespace nupa::gateway {

/// The objects that the queue pairs of one device share.
struct Side {
  Device* device = nullptr;
  ProtectionDomain* pd = nullptr;
  CompletionQueue* cq = nullptr;
};

/// Two connections that are one for the programs at their ends: "near" is the one that a program asked for, "far" the
/// one that the gateway made for it. The gateway's thread makes all calls.
class Splice {
 public:
  /// Creates the queue pairs. `near_path`: how the request came. Returns the errors of the devices.
  static Result<std::unique_ptr<Splice>> create(const Side& near, const ConnectionRoute& near_route, const Side& far,
                                                const ConnectionRoute& far_route, const ConnectionRequest& request,
                                                uint64_t window, const std::function<void()>& on_work);

  /// The request for the far program.
  ConnectionRequest far_request(const Mapping& mapping) const;
  /// The far program has accepted: connects both queue pairs. Returns an errno value.
  int connect(const ConnectionReply& reply);
  /// The reply for the near program.
  ConnectionReply near_reply(const ConnectionReply& reply) const;

  /// Moves requests in both directions, from now on.
  void begin() {
    has_begun_ = true;
    is_ready_ = true;
  }
  /// Posts what relays have taken since the last call.
  void move();
  void settle();
  void look();
  /// True if nothing is under way in either direction.
  bool is_idle() const { return to_far_->is_idle() && to_near_->is_idle(); }
  const ConnectionRoute& far_route() const { return far_.route; }

 private:
  struct End {
    ConnectionRoute route;
    uint32_t first_psn = 0;  ///< of the packets that come from its peer
    std::unique_ptr<QueuePair> qp;
  };
  Splice() = default;

  ConnectionRequest request_;
  bool has_begun_ = false;
  std::atomic<bool> is_ready_{false};  ///< a relay has something to post
  std::unique_ptr<Direction> to_far_;
  std::unique_ptr<Direction> to_near_;
  End near_;  ///< the queue pairs are destroyed before the relays that they call
  End far_;
};

}  // namespace nupa::gateway
