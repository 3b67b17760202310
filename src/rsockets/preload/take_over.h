// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The end of an attempt to connect by an rsocket: the overlay is connected, or TCP takes over.

namespace nupa::sockets {

struct Overlay;

/// Checks a connection attempt. Returns true if it has succeeded, failed or timed out. If TCP must take over, it calls
/// libc's connect() and removes the overlay. Returns false if the attempt continues.
bool settle(int fd, Overlay* overlay);
/// Ends a connection attempt, which then has failed with `error`. The rsocket reports it.
void give_up(Overlay* overlay, int error);

/// Returns the rsocket that carries a descriptor's data, kNone for libc's call, or kLostRsocket for a parent's
/// connection. Checks a connection attempt in progress.
constexpr int kLostRsocket = -2;
int data_rsocket(int fd);

}  // namespace nupa::sockets
