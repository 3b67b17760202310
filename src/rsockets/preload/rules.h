#pragma once
#include <sys/socket.h>

#include <cstdint>

namespace nupa::sockets {

/// Which stream sockets may become rsockets. NUPA_SOCKETS_CONFIG names a file with a line for each kind that may,
/// `program domain type protocol` as for librspreload; * stands for any, # begins a comment. Without it all may.
bool allowed(int domain);
/// Reads what the environment and that file say, which a program may drop later.
void read_settings();
/// How long a connect() tries the rsocket before it takes TCP (NUPA_SOCKETS_CONNECT_MS, 1000).
int64_t connect_ms();

/// Peers that have lately turned out to have no rsockets are not asked again for a while. Any thread.
void remember_plain(const sockaddr* peer, bool whole_host);
bool known_plain(const sockaddr* peer);
/// In a forked child: none is known, and the lock is new.
void forget_plain();

}  // namespace nupa::sockets
