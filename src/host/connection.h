#pragma once
#include <memory>
#include <set>

#include "base/unique_fd.h"
#include "host/outbox.h"
#include "host/peer.h"
#include "host/wire.h"
#include "progress/loop.h"

namespace nupa::host {

/// The socket to another process, with what waits for room in it. Under the node's mutex.
struct Connection {
  /// What the socket has no room for leaves later, in order. As Outbox::send().
  Result<void> send(const Message& message, int descriptor = -1, const Payload* payload = nullptr);
  /// There may be room.
  void send_waiting();

  base::UniqueFd fd;
  Outbox outbox;
  PeerRef peer;  ///< null: it has not said hello yet
  bool observer = false;
  std::set<uint32_t> channels;  ///< of this process, whose descriptors were sent
  uint32_t asked_slot = 0;      ///< not 0: this process connected to that slot and said hello first
  std::unique_ptr<progress::Loop::Watch> watch;
  std::unique_ptr<progress::Loop::Timer> hello_deadline;  ///< of one that has connected and not said hello

 private:
  void want_room(bool wanted) {
    if (watch != nullptr) watch->want_room(wanted);
  }
};

}  // namespace nupa::host
