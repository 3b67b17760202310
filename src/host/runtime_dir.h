#pragma once
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "runtime/directory.h"
#include <nupa/result.h>

namespace nupa::host {

/// The runtime directory with what processes put there: one listening socket a process, named by its slot ("17.sock"),
/// beside the sockets of services that are found by name, and nothing else.
class RuntimeDir : public runtime::Directory {
 public:
  /// Errors of runtime::Directory::open().
  static Result<std::unique_ptr<RuntimeDir>> open();

  struct Claimed {
    uint32_t slot;
    base::UniqueFd listener;  ///< SOCK_SEQPACKET, non-blocking
  };
  /// Takes a free slot for which `reserve` (if given) says true, and listens there. ENOSPC: none is free; EBUSY: the
  /// folder stays locked.
  Result<Claimed> claim(const std::function<bool(uint32_t slot)>& reserve = {});
  /// Takes a further free slot for which `reserve` says true, never the first one of the host: another name of the
  /// socket of this process's `slot`. ENOSPC: none is free; EBUSY: the folder stays locked; EPERM, EOPNOTSUPP, EMLINK:
  /// the file system gives a socket no second name; else the error of `reserve`, which ends the search.
  Result<uint32_t> claim_further(uint32_t slot, const std::function<Result<bool>(uint32_t slot)>& reserve);
  /// Removes the socket's name of `slot`.
  void remove(uint32_t slot);

  /// Slots with a socket, dead or alive.
  std::vector<uint32_t> list() const;
  /// One slot for each process among them.
  std::vector<uint32_t> processes() const;
  /// The same, the oldest process first: servers are older than most of their clients.
  std::vector<uint32_t> processes_by_age() const;
  /// Connects to a slot's socket. ECONNREFUSED, ENOENT: nobody; EAGAIN: its queue is full.
  Result<base::UniqueFd> connect(uint32_t slot) const;
  /// What tells the socket of a slot from those of processes that had or get the slot; the same for all slots of one
  /// process. Nothing: there is none.
  struct SocketId {
    uint64_t inode;
    int64_t made_ns;
    bool operator==(const SocketId&) const = default;
  };
  std::optional<SocketId> socket_id(uint32_t slot) const;
  /// Removes the sockets of dead processes; returns their slots. `only_look`: removes nothing.
  std::vector<uint32_t> sweep(bool only_look = false);

  /// Until let_go() or its end, this object is one of those that hold `key`, a number below 2^63. A forked child is
  /// none. `alone`, which is decided for one of several that call at once: EEXIST where another object holds it, in
  /// this process or in another one. EBUSY: the folder stays locked.
  Result<void> hold(uint64_t key, bool alone);
  void let_go(uint64_t key);

  /// Entries that do not belong there (never touched).
  std::vector<std::string> strangers() const;

 private:
  explicit RuntimeDir(Opened opened) : Directory(std::move(opened)) {}
  std::vector<uint32_t> sweep_locked(bool only_look);
  /// The slots that have a socket, after those of dead processes were removed, most often.
  std::vector<uint32_t> taken_slots();

  /// The folder opened once more: each key that this object holds is a locked byte.
  struct Keys {
    explicit Keys(base::UniqueFd opened);
    ~Keys();
    base::UniqueFd fd;
    const pid_t process;
  };

  std::unique_ptr<Keys> keys_;  ///< under the lock; null: it has never held one
};

}  // namespace nupa::host
