// SPDX-License-Identifier: Apache-2.0
#include "host/handshake.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/shared_file.h"

namespace nupa::host {

Result<Handshake> check_hello(int socket, Received received) {
  auto credentials = peer_credentials(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  const auto wrong = [&](int code, const char* why) { return fail(code, "process ", credentials->pid, ": ", why); };
  if (credentials->uid != geteuid())
    return fail(EACCES, "process ", credentials->pid, " of user ", credentials->uid,
                " rejected: memory is shared only with processes of the same user");
  if (static_cast<MessageKind>(received.message.kind) == MessageKind::kHello && received.truncated)
    return wrong(EMFILE, "no free descriptor for its shared files (raise ulimit -n)");
  if (static_cast<MessageKind>(received.message.kind) != MessageKind::kHello || received.fd_count != kMaxFds ||
      received.message.slot < shm::kMinSlot || received.message.slot > shm::kMaxSlot)
    return wrong(EPROTO, "its first message is not a valid handshake");
  for (size_t i = 0; i < 2; ++i)
    if (!base::cannot_shrink(received.fds[i].get())) return wrong(EPROTO, "its shared file is not sealed");
  struct stat status;
  if (fstat(received.fds[0].get(), &status) != 0 || status.st_size < static_cast<off_t>(shm::kHeapOffset))
    return wrong(EPROTO, "its segment is too small");
  Handshake handshake;
  handshake.hello = received.message;
  handshake.credentials = *credentials;
  handshake.file =
      std::make_unique<shm::MappedFile>(std::move(received.fds[0]), "process " + std::to_string(credentials->pid));
  auto tables = shm::map_tables(*handshake.file);
  if (!tables && tables.error().code() == ENOMEM)
    return fail(ENOMEM, "no address space for the tables of process ", credentials->pid, " (", shm::kHeapOffset >> 20,
                " MiB; raise ulimit -v)");
  if (!tables) return tl::unexpected(tables.error());
  if (tables->header->slot != received.message.slot || tables->header->instance != received.message.instance)
    return wrong(EPROTO, "its segment belongs to another process");
  handshake.tables = *tables;
  handshake.region = std::move(received.fds[1]);
  handshake.wakeup_fd = std::move(received.fds[2]);
  return handshake;
}

bool try_cma(int pid, uint64_t probe, uint64_t expected) {
  if (pid <= 0) return false;
  uint64_t found = 0;
  iovec mine{&found, sizeof found};
  iovec theirs{reinterpret_cast<void*>(probe), sizeof found};
  return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == sizeof found && found == expected;
}

}  // namespace nupa::host
