#pragma once
#include <memory>

#include "host/peer.h"
#include "host/wire.h"

namespace nupa::host {

/// The checks of a hello: another user's process is refused (EACCES), a file that could shrink under the reader, has
/// the wrong size or names another process is nonsense (EPROTO). EMFILE: no room for its descriptors. Nothing of a
/// stranger is mapped before that.
struct Introduced {
  Message hello;
  Credentials credentials;
  std::unique_ptr<shm::MappedFile> file;
  shm::Tables tables;
  base::UniqueFd region;
  base::UniqueFd doorbell;
};
Result<Introduced> check_hello(int socket, Received received);

/// True if this process may copy from and to the memory of process `pid`, which says its number stands at `probe`.
bool try_cma(int pid, uint64_t probe, uint64_t expected);

}  // namespace nupa::host
