#include "cm/introduction.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"
#include "base/shared_file.h"

namespace nupa::cm {

Result<Introduced> check_hello(int socket, Received received) {
  auto credentials = peer_credentials(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  if (credentials->uid != geteuid()) {
    NUPA_WARN("process %d of user %u refused: memory is shared with this user's own processes only", credentials->pid,
              credentials->uid);
    return fail(EACCES, "the process belongs to another user");
  }
  if (static_cast<MessageKind>(received.message.kind) == MessageKind::kHello && received.truncated)
    return fail(EMFILE, "this process has no descriptor free for another process");
  if (static_cast<MessageKind>(received.message.kind) != MessageKind::kHello || received.fd_count != kMaxFds ||
      received.message.slot < segment::kMinSlot || received.message.slot > segment::kMaxSlot)
    return fail(EPROTO, "not a hello");
  for (size_t i = 0; i < 2; ++i)
    if (!base::cannot_shrink(received.fds[i].get())) return fail(EPROTO, "a shared file without its seal");
  struct stat status;
  if (fstat(received.fds[0].get(), &status) != 0 || status.st_size < static_cast<off_t>(segment::kHeapOffset))
    return fail(EPROTO, "a segment that is too small");
  Introduced introduced;
  introduced.hello = received.message;
  introduced.credentials = *credentials;
  introduced.file = std::make_unique<segment::MappedFile>(std::move(received.fds[0]));
  auto tables = segment::map_tables(*introduced.file);
  if (!tables && tables.error().code() == ENOMEM)
    NUPA_WARN("no address space for the tables of process %d (%llu MiB; ulimit -v)", credentials->pid,
              static_cast<unsigned long long>(segment::kHeapOffset >> 20));
  if (!tables) return tl::unexpected(tables.error());
  if (tables->header->slot != received.message.slot || tables->header->instance != received.message.instance)
    return fail(EPROTO, "a segment of another process");
  introduced.tables = *tables;
  introduced.region = std::move(received.fds[1]);
  introduced.doorbell = std::move(received.fds[2]);
  return introduced;
}

bool try_cma(int pid, uint64_t probe, uint64_t expected) {
  if (pid <= 0) return false;
  uint64_t found = 0;
  iovec mine{&found, sizeof found};
  iovec theirs{reinterpret_cast<void*>(probe), sizeof found};
  return process_vm_readv(pid, &mine, 1, &theirs, 1, 0) == sizeof found && found == expected;
}

}  // namespace nupa::cm
