// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "progress/file_lock.h"
#include <nupa/result.h>
#include <nupa/types.h>

namespace nupa::runtime {

/// The folder where the processes of one user find each other: sockets of services, each under its name
/// ("net,lab,a.name"), and those that a derived class adds. A socket that refuses connections belongs to a dead
/// process.
class Directory {
 public:
  /// NUPA_RUNTIME_DIR, else $XDG_RUNTIME_DIR/nupa, else /dev/shm/nupa-UID, else /tmp/nupa-UID.
  static std::string path_from_environment();
  /// Makes it if needed (mode 0700) and checks it. ENOTDIR; EPERM: another user's; EACCES: open to others;
  /// ENOENT, EROFS, ENOSPC: cannot be made.
  static Result<std::unique_ptr<Directory>> open();
  virtual ~Directory() = default;

  const std::string& path() const { return path_; }
  /// The same for all processes that use this folder on one running system, whatever they call it.
  MemoryDomain domain() const;

  /// Listens under a name without '/', of at most 80 characters. EEXIST: a live process has it; EBUSY: the folder stays
  /// locked; ENAMETOOLONG.
  Result<base::UniqueFd> claim_name(const std::string& name);
  /// Removes the socket of a name that this process has claimed.
  void remove_name(const std::string& name);
  /// Names with a socket, dead or alive.
  std::vector<std::string> names() const;
  /// Connects to the socket of a name. ECONNREFUSED, ENOENT: nobody; EAGAIN: its queue is full.
  Result<base::UniqueFd> connect_name(const std::string& name) const;
  /// Removes the sockets of dead processes; returns their names. `only_look`: removes nothing.
  std::vector<std::string> sweep_names(bool only_look = false);

 protected:
  /// The folder after its checks.
  struct Opened {
    std::string path;
    base::UniqueFd fd;
    base::UniqueFd to_lock;  ///< opened once more: see FileLock
  };
  /// Errors of open().
  static Result<Opened> open_folder();
  explicit Directory(Opened opened)
      : path_(std::move(opened.path)), fd_(std::move(opened.fd)), lock_(std::move(opened.to_lock)) {}

  /// The folder's lock, which all processes share. False: it stays locked.
  bool lock() const;
  void unlock() const;

  int descriptor() const { return fd_.get(); }
  /// All entries but "." and "..".
  std::vector<std::string> files() const;
  /// This file is a socket of this user; `inode` is its number.
  bool is_own_socket(const std::string& file, ino_t* inode = nullptr) const;
  /// The file is named as the socket of a service is.
  static bool is_file_of_name(const std::string& file);
  /// Connects to the socket `file`. Errors of connect_name().
  Result<base::UniqueFd> connect_to(const std::string& file) const;
  /// Has a socket listen as `file`, under the lock. 0, or the errno of bind(2) (EADDRINUSE: the file is there) or
  /// listen(2).
  int listen_at(int socket, const std::string& file) const;

 private:
  std::string path_;
  base::UniqueFd fd_;
  mutable progress::FileLock lock_;
};

}  // namespace nupa::runtime
