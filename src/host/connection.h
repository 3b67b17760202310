// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <set>

#include "base/unique_fd.h"
#include "host/outbox.h"
#include "host/peer.h"
#include "host/wire.h"
#include "progress/loop.h"

namespace nupa::host {

/// The socket to another process, with the messages that wait for room in it. Under the node's mutex.
struct Connection {
  /// Sends a message, or keeps it until the socket has room, in order. Errors as Outbox::send().
  Result<void> send(const Message& message, int descriptor = -1, const Payload* payload = nullptr);
  /// The socket may have room: sends the messages that wait.
  void send_waiting();

  base::UniqueFd fd;
  Outbox outbox;
  PeerRef peer;  ///< null: its hello has not arrived yet
  bool observer = false;
  bool captures = false;        ///< it has this process's packets recorded
  std::set<uint32_t> channels;  ///< channels of this process whose descriptors were sent
  uint32_t asked_slot = 0;      ///< not 0: this process connected to that slot and sent its hello first
  std::unique_ptr<progress::Loop::Watch> watch;
  std::unique_ptr<progress::Loop::Timer> hello_deadline;  ///< until a process that has connected sends its hello

 private:
  void want_room(bool wanted) {
    if (watch != nullptr) watch->want_room(wanted);
  }
};

}  // namespace nupa::host
