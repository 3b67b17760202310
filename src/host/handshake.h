// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>

#include "host/peer.h"
#include "host/wire.h"

namespace nupa::host {

/// The handshake's data after the checks of a hello. EACCES: a process of another user. EPROTO: a file that could
/// shrink under the reader, has the wrong size or belongs to another process. EMFILE: no room for its descriptors.
/// Nothing of an unknown process is mapped before these checks.
struct Handshake {
  Message hello;
  Credentials credentials;
  std::unique_ptr<shm::MappedFile> file;
  shm::Tables tables;
  base::UniqueFd region;
  base::UniqueFd wakeup_fd;
};
Result<Handshake> check_hello(int socket, Received received);

/// True if this process may copy from and to the memory of process `pid`, which has announced that `expected` is at
/// `probe`.
bool try_cma(int pid, uint64_t probe, uint64_t expected);

}  // namespace nupa::host
