// SPDX-License-Identifier: Apache-2.0
#pragma once
/// An rsocket that is connected to a peer made by hand.
#include "api_peer.h"

namespace nupa::rsockets_test {

class RsocketsPeer : public RsocketsApi {
 protected:
  /// The rsocket `server` with the peer as its client; the first message, which grants the second half, is taken.
  void connect_peer(int rnr_retries = 7) {
    listen_now();
    ASSERT_TRUE(peer.connect(address, rnr_retries)) << std::strerror(errno);
    server = raccept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0) << std::strerror(errno);
    first_message = peer.next_message();
    ASSERT_TRUE(first_message.has_value());
  }
  void set_listener(int level, int name, int value) { ASSERT_EQ(set_number(listener, level, name, value), 0); }
  /// Has the rsocket look at what came.
  void progress() { poll_one(server, 0, 0); }
  /// Until it has an error or end to report.
  int wait_for_end() { return poll_one(server, 0, kSoonMs); }
  int make_nonblocking(int fd) { return rfcntl(fd, F_SETFL, O_NONBLOCK); }
  int receive_error() {
    char c;
    return error_of(rrecv(server, &c, 1, 0));
  }

  Peer peer;
  std::optional<uint32_t> first_message;
};

}  // namespace nupa::rsockets_test
