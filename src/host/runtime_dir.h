// SPDX-License-Identifier: Apache-2.0
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

/// The runtime directory with the entries of processes: one listening socket for each, named by its slot ("17.sock"),
/// beside the sockets of services, which are found by name.
class RuntimeDir : public runtime::Directory {
 public:
  /// Fails with the errors of runtime::Directory::open().
  static Result<std::unique_ptr<RuntimeDir>> open();

  struct Claimed {
    uint32_t slot;
    base::UniqueFd listener;  ///< SOCK_SEQPACKET, non-blocking
  };
  /// Takes a free slot for which `reserve` (if given) returns true, and listens there. ENOSPC: none is free. EBUSY: the
  /// folder stays locked.
  Result<Claimed> claim(const std::function<bool(uint32_t slot)>& reserve = {});
  /// Takes a further free slot for which `reserve` returns true, never the first one of the host. The slot is another
  /// name of the socket of this process's `slot`. ENOSPC: none is free. EBUSY: the folder stays locked. EPERM,
  /// EOPNOTSUPP, EMLINK: the file system gives a socket no second name. An error of `reserve` ends the search and is
  /// returned.
  Result<uint32_t> claim_further(uint32_t slot, const std::function<Result<bool>(uint32_t slot)>& reserve);
  /// Removes the socket's name of `slot`.
  void remove(uint32_t slot);

  /// All slots that have a socket, also those of dead processes.
  std::vector<uint32_t> list() const;
  /// One slot of each process in list().
  std::vector<uint32_t> processes() const;
  /// The same, the oldest process first: servers are older than most of their clients.
  std::vector<uint32_t> processes_by_age() const;
  /// Connects to a slot's socket. ECONNREFUSED, ENOENT: no process listens there. EAGAIN: its queue is full.
  Result<base::UniqueFd> connect(uint32_t slot) const;
  /// Distinguishes the socket of a slot from those of earlier and later processes with that slot. It is the same for
  /// all slots of one process. No value: there is no socket.
  struct SocketId {
    uint64_t inode;
    int64_t made_ns;
    bool operator==(const SocketId&) const = default;
  };
  std::optional<SocketId> socket_id(uint32_t slot) const;
  /// Removes the sockets of dead processes and returns their slots. `only_look`: removes nothing.
  std::vector<uint32_t> sweep(bool only_look = false);

  /// Makes this object one of the holders of `key`, a number below 2^63, until let_go() or its destruction. A forked
  /// child is no holder. `alone`: EEXIST if another object holds the key, in this process or in another one. If several
  /// call at once, one of them succeeds. EBUSY: the folder stays locked.
  Result<void> hold(uint64_t key, bool alone);
  void let_go(uint64_t key);
  /// Returns whether another object holds the key now.
  bool is_held(uint64_t key) const;
  /// The key of a capture of this folder's processes, of which there is one at a time.
  static constexpr uint64_t kCaptureKey = (uint64_t{1} << 62) + 1;
  /// Held while a capture attaches to each process that starts.
  static constexpr uint64_t kCaptureOfAllKey = kCaptureKey + 1;

  /// Entries that do not belong there (never changed).
  std::vector<std::string> foreign_entries() const;

 private:
  explicit RuntimeDir(Opened opened) : Directory(std::move(opened)) {}
  std::vector<uint32_t> sweep_locked(bool only_look);
  /// The slots that have a socket. Removes the sockets of dead processes first, but not each time if there are many
  /// processes.
  std::vector<uint32_t> taken_slots();

  /// A second open of the folder: each key that this object holds is a locked byte.
  struct Keys {
    explicit Keys(base::UniqueFd opened);
    ~Keys();
    base::UniqueFd fd;
    const pid_t process;
  };

  std::unique_ptr<Keys> keys_;  ///< under the lock; null: this object has never held a key
};

}  // namespace nupa::host
