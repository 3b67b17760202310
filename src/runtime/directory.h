// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "progress/file_lock.h"
#include <nupa/result.h>
#include <nupa/types.h>

namespace nupa::runtime {

/// The folder in which the processes of one user find each other. It holds the sockets of services, each under its name
/// ("net,lab,a.name"), and the sockets that a derived class adds. A socket that refuses connections belongs to a dead
/// process.
class Directory {
 public:
  /// The first that applies: NUPA_RUNTIME_DIR, $XDG_RUNTIME_DIR/nupa, /dev/shm/nupa-UID, /tmp/nupa-UID.
  static std::string path_from_environment();
  /// Makes the folder if needed (mode 0700) and checks it. ENOTDIR: it is not a folder. EPERM: it belongs to another
  /// user. EACCES: it is open to other users. ENOENT, EROFS, ENOSPC: it cannot be made.
  static Result<std::unique_ptr<Directory>> open();
  virtual ~Directory() = default;

  const std::string& path() const { return path_; }
  /// Identifies this folder on the running system: equal in all processes that use it, under any path.
  MemoryDomain domain() const;

  /// Listens under a name without '/' of at most 80 characters. EEXIST: a live process has the name. EBUSY: the folder
  /// stays locked. ENAMETOOLONG: the name is not valid.
  Result<base::UniqueFd> claim_name(const std::string& name);
  /// Removes the socket of a name that this process has claimed.
  void remove_name(const std::string& name);
  /// All names that have a socket, also those of dead processes.
  std::vector<std::string> names() const;
  /// Connects to the socket of a name. ECONNREFUSED, ENOENT: no process listens there. EAGAIN: its queue is full.
  Result<base::UniqueFd> connect_name(const std::string& name) const;
  /// The file of the counts of ports (docs/design/sysfs.md).
  static constexpr std::string_view kCountersFile = "port-counts";
  /// The name of a folder of files for programs that look for an adapter. Processes share it, and no one owns it.
  static std::string name_of_tree(uint64_t hash);
  /// The files and folders that processes share and no one owns: kCountersFile, and all folders with such names, also
  /// those that a process did not finish.
  std::vector<std::string> shared() const;
  /// Removes the sockets of dead processes and returns their names. `only_look`: removes nothing.
  std::vector<std::string> sweep_names(bool only_look = false);
  /// Waits until no other process holds the folder's lock. EBUSY: one keeps it.
  Result<void> wait_until_free() const;

 protected:
  /// The folder after its checks.
  struct Opened {
    std::string path;
    base::UniqueFd fd;
    base::UniqueFd to_lock;  ///< a second open of the folder: see FileLock
  };
  /// Fails with the errors of open().
  static Result<Opened> open_folder();
  explicit Directory(Opened opened)
      : path_(std::move(opened.path)), fd_(std::move(opened.fd)), lock_(std::move(opened.to_lock)) {}

  /// Takes the folder's lock, which all processes share. False: it stays locked.
  bool lock() const;
  void unlock() const;

  int descriptor() const { return fd_.get(); }
  /// All entries but "." and "..".
  std::vector<std::string> files() const;
  /// True if the file is a socket of this user. `inode` returns its inode number.
  bool is_own_socket(const std::string& file, ino_t* inode = nullptr) const;
  static bool is_shared(const std::string& file);
  /// True if the file has a name as the sockets of services have.
  static bool is_file_of_name(const std::string& file);
  /// Connects to the socket `file`, with the errors of connect_name().
  Result<base::UniqueFd> connect_to(const std::string& file) const;
  /// Makes a socket listen as `file`, under the lock. Returns 0, or the errno of bind(2) (EADDRINUSE: the file exists)
  /// or listen(2).
  int listen_at(int socket, const std::string& file) const;

 private:
  std::string path_;
  base::UniqueFd fd_;
  mutable progress::FileLock lock_;
};

}  // namespace nupa::runtime
