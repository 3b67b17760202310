// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/socket.h>

#include <cstdint>

namespace nupa::sockets {

/// True if stream sockets of this domain may become rsockets. The file NUPA_SOCKETS_CONFIG has a line `program domain
/// type protocol` for each permitted kind, as for librspreload. `*` matches everything and # begins a comment. Without
/// the file all are permitted.
bool allowed(int domain);
/// Reads the environment and that file at the start, because the program may lose them later.
void read_settings();
/// True if NUPA_SOCKETS_CONFIG or NUPA_SOCKETS_CONNECT_MS has a wrong value. The first such call prints the reason on
/// standard error. Any thread.
bool is_misconfigured();
/// How long connect() tries the rsocket before it uses TCP (NUPA_SOCKETS_CONNECT_MS).
int64_t connect_ms();

/// Records a peer without rsockets, so that it is not tried again for a while. Any thread.
void remember_plain(const sockaddr* peer, bool whole_host);
bool known_plain(const sockaddr* peer);
/// In a forked child: clears the records. The lock is new.
void forget_plain();

}  // namespace nupa::sockets
