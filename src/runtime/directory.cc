// SPDX-License-Identifier: Apache-2.0
#include "runtime/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/boot_id.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/system_error.h"

namespace nupa::runtime {
namespace {

constexpr int kBacklog = 256;
/// The longest wait for the lock: hundreds of processes may start at once, and each holds it for some milliseconds on a
/// busy machine.
constexpr int64_t kLockTimeoutNs = 20'000'000'000;
/// A longer wait for the lock is logged.
constexpr int64_t kNoticeNs = 1'000'000'000;
constexpr std::string_view kNameSuffix = ".name";
constexpr std::string_view kTreePrefix = "tree-";
/// The longest name that fits a socket's address behind the path of the folder's descriptor.
constexpr size_t kLongestName = 80;

std::string file_of(const std::string& name) { return name + std::string(kNameSuffix); }

/// A socket address holds 107 characters of path, so it names the open folder's descriptor instead of the folder's
/// path.
sockaddr_un address_of(int dir, const std::string& file) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir, file.c_str());
  return address;
}

}  // namespace

std::string Directory::path_from_environment() {
  if (const char* wanted = base::text_setting("NUPA_RUNTIME_DIR"); wanted != nullptr) return wanted;
  if (const char* xdg = base::text_setting("XDG_RUNTIME_DIR"); xdg != nullptr && ::access(xdg, W_OK) == 0)
    return std::string(xdg) + "/nupa";
  const std::string name = "nupa-" + std::to_string(geteuid());
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" + name : "/tmp/" + name;
}

Result<Directory::Opened> Directory::open_folder() {
  const std::string path = path_from_environment();
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    return fail(error, "cannot create the runtime directory ", path, ": ", strerror(error), " (set NUPA_RUNTIME_DIR)");
  }
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    const int error = errno == ELOOP ? ENOTDIR : errno;
    return fail(error, "cannot open the runtime directory ", path, ": ", strerror(error));
  }
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return base::fail_call(errno, "cannot stat the runtime directory ", path);
  if (status.st_uid != geteuid())
    return fail(EPERM, "the runtime directory ", path, " belongs to user ", status.st_uid, ", not to ", geteuid());
  if ((status.st_mode & 077) != 0)
    return fail(EACCES, "the runtime directory ", path, " is open to other users: chmod 700 it");
  base::UniqueFd to_lock(openat(fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!to_lock) return base::fail_call(errno, "cannot open the runtime directory ", path, " for its lock");
  return Opened{path, std::move(fd), std::move(to_lock)};
}

Result<std::unique_ptr<Directory>> Directory::open() {
  auto opened = open_folder();
  if (!opened) return tl::unexpected(opened.error());
  return std::unique_ptr<Directory>(new Directory(std::move(*opened)));
}

bool Directory::lock() const {
  const auto locked = lock_.lock(progress::Deadline::in_ns(kNoticeNs));
  if (locked || locked.error().code() != EBUSY) return locked.has_value();
  NUPA_WARN("waiting for the lock of the runtime directory %s (is a process of this user stopped?)", path_.c_str());
  return lock_.lock(progress::Deadline::in_ns(kLockTimeoutNs - kNoticeNs)).has_value();
}

Result<void> Directory::wait_until_free() const {
  if (!lock()) return fail(EBUSY, "cannot lock the runtime directory ", path_, " (is a process of this user stopped?)");
  unlock();
  return {};
}

void Directory::unlock() const { lock_.unlock(); }

MemoryDomain Directory::domain() const {
  struct stat seen {};
  if (fstat(fd_.get(), &seen) != 0) return {};
  MemoryDomain domain = base::boot_id();
  const uint64_t parts[] = {seen.st_ino, seen.st_dev};
  static_assert(sizeof parts == sizeof domain);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(parts);
  for (size_t i = 0; i < domain.size(); ++i) domain[i] ^= bytes[i];
  return domain;
}

std::vector<std::string> Directory::files() const {
  std::vector<std::string> names;
  const int fd = openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* list = fd < 0 ? nullptr : fdopendir(fd);
  if (list == nullptr) {
    if (fd >= 0) close(fd);
    return names;
  }
  while (const dirent* entry = readdir(list)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(list);
  return names;
}

bool Directory::is_own_socket(const std::string& file, ino_t* inode) const {
  struct stat status;
  if (fstatat(fd_.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(status.st_mode) ||
      status.st_uid != geteuid())
    return false;
  if (inode != nullptr) *inode = status.st_ino;
  return true;
}

std::string Directory::name_of_tree(uint64_t hash) {
  char name[kTreePrefix.size() + 17];
  std::snprintf(name, sizeof name, "%s%016" PRIx64, kTreePrefix.data(), hash);
  return name;
}

bool Directory::is_shared(const std::string& file) { return file == kCountersFile || file.starts_with(kTreePrefix); }

std::vector<std::string> Directory::shared() const {
  std::vector<std::string> shared = files();
  std::erase_if(shared, [](const std::string& file) { return !is_shared(file); });
  return shared;
}

bool Directory::is_file_of_name(const std::string& file) {
  return file.size() > kNameSuffix.size() && file.ends_with(kNameSuffix);
}

Result<base::UniqueFd> Directory::connect_to(const std::string& file) const {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return base::fail_call(errno, "cannot create a socket to connect to ", path_, "/", file);
  const sockaddr_un address = address_of(fd_.get(), file);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return base::fail_call(errno, "cannot connect to the socket ", path_, "/", file);
  return fd;
}

int Directory::listen_at(int socket, const std::string& file) const {
  const sockaddr_un address = address_of(fd_.get(), file);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return errno;
  if (listen(socket, kBacklog) == 0) return 0;
  const int error = errno;
  unlinkat(fd_.get(), file.c_str(), 0);
  return error;
}

Result<base::UniqueFd> Directory::claim_name(const std::string& name) {
  const std::string file = file_of(name);
  if (name.empty() || name.size() > kLongestName || name.find('/') != name.npos)
    return fail(ENAMETOOLONG, "'", name, "' is not a valid name of a socket");
  base::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return base::fail_call(errno, "cannot create a listening socket in ", path_);
  if (!lock()) return fail(EBUSY, "cannot lock the runtime directory ", path_, " (is a process of this user stopped?)");
  int error = 0;
  if (auto taken = connect_to(file); taken || taken.error().code() == EAGAIN)
    error = EEXIST;
  else if (taken.error().code() == ECONNREFUSED)
    unlinkat(fd_.get(), file.c_str(), 0);
  if (error == 0) error = listen_at(listener.get(), file);
  unlock();
  if (error != 0)
    return fail(error, path_, "/", file, ": ",
                error == EEXIST ? "a running process has this name"
                                : "cannot listen at this socket: " + std::string(strerror(error)));
  return listener;
}

void Directory::remove_name(const std::string& name) { unlinkat(fd_.get(), file_of(name).c_str(), 0); }

std::vector<std::string> Directory::names() const {
  std::vector<std::string> names;
  for (const std::string& file : files())
    if (is_file_of_name(file) && is_own_socket(file)) names.push_back(file.substr(0, file.size() - kNameSuffix.size()));
  std::sort(names.begin(), names.end());
  return names;
}

Result<base::UniqueFd> Directory::connect_name(const std::string& name) const { return connect_to(file_of(name)); }

std::vector<std::string> Directory::sweep_names(bool only_look) {
  std::vector<std::string> dead;
  if (!lock()) return dead;
  for (const std::string& name : names()) {
    auto connection = connect_name(name);
    if (connection || connection.error().code() != ECONNREFUSED) continue;
    if (!only_look) remove_name(name);
    dead.push_back(name);
  }
  unlock();
  return dead;
}

}  // namespace nupa::runtime
