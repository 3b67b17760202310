// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The end of an attempt to connect by an rsocket: the overlay is connected, or TCP takes over.

namespace nupa::sockets {

struct Overlay;

/// Looks at a connection that is under way. True: it has ended, well or not, or its time is over. If TCP has to take
/// over, it does: connect() of libc is called and the overlay is gone. False: it still goes on.
bool settle(int fd, Overlay* overlay);
/// Ends a connection that is under way: it has failed with `error`, which the rsocket reports.
void give_up(Overlay* overlay, int error);

/// The rsocket of a descriptor that data go over; kNone: libc's call. Waits for a connection that is under way if the
/// descriptor blocks. kLostRsocket: a parent's.
constexpr int kLostRsocket = -2;
int data_rsocket(int fd);

}  // namespace nupa::sockets
