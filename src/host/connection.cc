// SPDX-License-Identifier: Apache-2.0
#include "host/connection.h"

#include "base/log.h"

namespace nupa::host {

Result<void> Connection::send(const Message& message, int descriptor, const Payload* payload) {
  const bool had_room = outbox.size() == 0;
  auto sent = outbox.send(fd.get(), message, descriptor, payload);
  if (had_room && outbox.size() != 0) want_room(true);
  return sent;
}

void Connection::send_waiting() {
  outbox.send_waiting(fd.get());
  if (outbox.size() != 0) return;
  want_room(false);
  if (const size_t lost = outbox.take_lost(); lost != 0)
    NUPA_INFO("peer process (slot %u) reads messages again; %zu messages to it were dropped", peer->slot(), lost);
}

}  // namespace nupa::host
