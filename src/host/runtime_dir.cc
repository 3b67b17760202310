#include "host/runtime_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/boot_id.h"
#include "base/clock.h"
#include "base/settings.h"
#include "progress/lifecycle.h"
#include "shm/layout.h"

namespace nupa::host {
namespace {

constexpr int kBacklog = 256;
/// Hundreds of processes may start at once, each of which holds it for some milliseconds on a busy machine.
constexpr int64_t kLockPatienceNs = 20'000'000'000;
/// With more processes than that not each new one looks whether all the others live, but one in so many.
constexpr size_t kFewProcesses = 64;
constexpr int64_t kSweepOneIn = 16;
constexpr const char* kSuffix = ".sock";
constexpr std::string_view kNameSuffix = ".name";
/// What fits a socket's address behind the folder's descriptor.
constexpr size_t kLongestName = 80;

std::string file_name(uint32_t slot) { return std::to_string(slot) + kSuffix; }

/// The slot that a file name stands for, or 0.
uint32_t slot_of_name(std::string_view name) {
  if (name.size() <= 5 || name.substr(name.size() - 5) != kSuffix) return 0;
  name.remove_suffix(5);
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), slot);
  if (error != std::errc() || end != name.data() + name.size() || name[0] == '0') return 0;
  return slot >= shm::kMinSlot && slot <= shm::kMaxSlot ? slot : 0;
}

std::string file_of(const std::string& name) { return name + std::string(kNameSuffix); }

bool is_file_of_name(const std::string& file) {
  return file.size() > kNameSuffix.size() && file.ends_with(kNameSuffix);
}

/// A socket address holds 107 characters of path: go by the open folder instead of its name.
sockaddr_un address_of(int dir, const std::string& file) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", dir, file.c_str());
  return address;
}

/// `dir` is the runtime directory `path`.
Result<base::UniqueFd> connect_to(int dir, const std::string& path, const std::string& file) {
  base::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail(errno, "no socket to connect to ", path, "/", file);
  const sockaddr_un address = address_of(dir, file);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(errno, "the process of ", path, "/", file, " does not take connections");
  return fd;
}

std::vector<std::string> names_in(int dir) {
  std::vector<std::string> names;
  const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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

/// A lock, of the kind `type`, of the byte that stands for a key.
struct flock byte_of(uint64_t key, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(key);
  range.l_len = 1;
  return range;
}

bool is_own_socket(int dir, const std::string& name, ino_t* inode = nullptr) {
  struct stat status;
  if (fstatat(dir, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(status.st_mode) ||
      status.st_uid != geteuid())
    return false;
  if (inode != nullptr) *inode = status.st_ino;
  return true;
}

constexpr uint32_t kSlots = shm::kMaxSlot - shm::kMinSlot + 1;
/// Anywhere: a number that was just given up may still be in somebody's hands.
uint32_t any_slot() { return static_cast<uint32_t>(base::now_ns() / 1000 % kSlots); }

}  // namespace

std::string RuntimeDir::path_from_environment() {
  if (const char* wanted = base::setting("NUPA_RUNTIME_DIR"); wanted != nullptr && *wanted != '\0') return wanted;
  if (const char* xdg = base::setting("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg != '\0' && ::access(xdg, W_OK) == 0)
    return std::string(xdg) + "/nupa";
  const std::string name = "nupa-" + std::to_string(geteuid());
  return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" + name : "/tmp/" + name;
}

Result<std::unique_ptr<RuntimeDir>> RuntimeDir::open() {
  const std::string path = path_from_environment();
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    return fail(error, "the runtime directory ", path, " cannot be made: ", strerror(error), "; set NUPA_RUNTIME_DIR");
  }
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    const int error = errno == ELOOP ? ENOTDIR : errno;
    return fail(error, "the runtime directory ", path,
                " is not a directory that this user can open: ", strerror(error));
  }
  struct stat status;
  if (fstat(fd.get(), &status) != 0) return fail(errno, "the runtime directory ", path, " cannot be examined");
  if (status.st_uid != geteuid())
    return fail(EPERM, "the runtime directory ", path, " belongs to user ", status.st_uid, ", not to ", geteuid());
  if ((status.st_mode & 077) != 0)
    return fail(EACCES, "the runtime directory ", path, " is open to other users: chmod 700 it");
  base::UniqueFd to_lock(openat(fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!to_lock) return fail(errno, "the runtime directory ", path, " cannot be opened for its lock");
  return std::unique_ptr<RuntimeDir>(new RuntimeDir(path, std::move(fd), std::move(to_lock)));
}

bool RuntimeDir::lock() const { return lock_.lock(progress::Deadline::in_ns(kLockPatienceNs)).has_value(); }

void RuntimeDir::unlock() const { lock_.unlock(); }

std::vector<uint32_t> RuntimeDir::list() const {
  std::vector<uint32_t> slots;
  for (const std::string& name : names_in(fd_.get()))
    if (const uint32_t slot = slot_of_name(name); slot != 0 && is_own_socket(fd_.get(), name)) slots.push_back(slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

std::vector<uint32_t> RuntimeDir::processes() const {
  std::vector<uint32_t> slots = list();
  std::set<ino_t> seen;
  std::erase_if(slots, [&](uint32_t slot) {
    ino_t inode = 0;
    return !is_own_socket(fd_.get(), file_name(slot), &inode) || !seen.insert(inode).second;
  });
  return slots;
}

std::vector<uint32_t> RuntimeDir::processes_by_age() const {
  std::vector<std::pair<int64_t, uint32_t>> made;
  for (const uint32_t slot : processes())
    if (const auto id = socket_id(slot)) made.emplace_back(id->made_ns, slot);
  std::sort(made.begin(), made.end());
  std::vector<uint32_t> slots;
  for (const auto& [at_ns, slot] : made) slots.push_back(slot);
  return slots;
}

std::vector<std::string> RuntimeDir::strangers() const {
  std::vector<std::string> names;
  for (const std::string& name : names_in(fd_.get()))
    if ((slot_of_name(name) == 0 && !is_file_of_name(name)) || !is_own_socket(fd_.get(), name)) names.push_back(name);
  return names;
}

std::optional<RuntimeDir::SocketId> RuntimeDir::socket_id(uint32_t slot) const {
  struct stat status;
  if (fstatat(fd_.get(), file_name(slot).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  // A second name changes the time of its status, not this one.
  return SocketId{status.st_ino, status.st_mtim.tv_sec * base::kNsPerSecond + status.st_mtim.tv_nsec};
}

Result<base::UniqueFd> RuntimeDir::connect(uint32_t slot) const {
  return connect_to(fd_.get(), path_, file_name(slot));
}

Result<base::UniqueFd> RuntimeDir::claim_name(const std::string& name) {
  const std::string file = file_of(name);
  if (name.empty() || name.size() > kLongestName || name.find('/') != name.npos)
    return fail(ENAMETOOLONG, "'", name, "' cannot be the name of a socket");
  base::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return fail(errno, "no socket to listen at in ", path_);
  if (!lock()) return fail(EBUSY, "the runtime directory ", path_, " stays locked");
  int error = 0;
  if (auto taken = connect_to(fd_.get(), path_, file); taken || taken.error().code() == EAGAIN)
    error = EEXIST;
  else if (taken.error().code() == ECONNREFUSED)
    unlinkat(fd_.get(), file.c_str(), 0);
  const sockaddr_un address = address_of(fd_.get(), file);
  if (error == 0 && bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    error = errno;
  if (error == 0 && listen(listener.get(), kBacklog) != 0) {
    error = errno;
    unlinkat(fd_.get(), file.c_str(), 0);
  }
  unlock();
  if (error != 0)
    return fail(error, path_, "/", file, error == EEXIST ? ": a live process has the name" : " cannot be listened at");
  return listener;
}

void RuntimeDir::remove_name(const std::string& name) { unlinkat(fd_.get(), file_of(name).c_str(), 0); }

std::vector<std::string> RuntimeDir::names() const {
  std::vector<std::string> names;
  for (const std::string& file : names_in(fd_.get()))
    if (is_file_of_name(file) && is_own_socket(fd_.get(), file))
      names.push_back(file.substr(0, file.size() - kNameSuffix.size()));
  std::sort(names.begin(), names.end());
  return names;
}

Result<base::UniqueFd> RuntimeDir::connect_name(const std::string& name) const {
  return connect_to(fd_.get(), path_, file_of(name));
}

std::vector<std::string> RuntimeDir::sweep_names(bool only_look) {
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

std::vector<uint32_t> RuntimeDir::sweep_locked(bool only_look) {
  std::vector<uint32_t> dead;
  for (const uint32_t slot : list()) {
    auto connection = connect(slot);
    if (connection || connection.error().code() != ECONNREFUSED) continue;
    if (!only_look) unlinkat(fd_.get(), file_name(slot).c_str(), 0);
    dead.push_back(slot);
  }
  return dead;
}

std::vector<uint32_t> RuntimeDir::sweep(bool only_look) {
  // A process between bind() and listen() refuses connections too: both happen under the lock.
  if (!lock()) return {};
  const std::vector<uint32_t> dead = sweep_locked(only_look);
  unlock();
  return dead;
}

RuntimeDir::Keys::Keys(base::UniqueFd opened) : fd(std::move(opened)), process(getpid()) {
  progress::close_in_children(fd.get());
}

RuntimeDir::Keys::~Keys() {
  if (process == getpid())
    progress::forget_for_children(fd.get());
  else
    fd.release();  // it was closed, and the number may be another descriptor's
}

Result<void> RuntimeDir::hold(uint64_t key, bool alone) {
  if (!lock()) return fail(EBUSY, "the runtime directory ", path_, " stays locked");
  int error = 0;
  if (keys_ == nullptr) {
    base::UniqueFd opened(openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened)
      keys_ = std::make_unique<Keys>(std::move(opened));
    else
      error = errno;
  }
  // A reader's lock needs no right to write to the folder, and a writer's is only asked for: whether it could be had.
  struct flock range = byte_of(key, F_WRLCK);
  if (error == 0 && alone) {
    if (fcntl(keys_->fd.get(), F_OFD_GETLK, &range) != 0)
      error = errno;
    else if (range.l_type != F_UNLCK)
      error = EEXIST;
  }
  range = byte_of(key, F_RDLCK);
  if (error == 0 && fcntl(keys_->fd.get(), F_OFD_SETLK, &range) != 0) error = errno;
  unlock();
  if (error != 0)
    return fail(error, "key ", key, " in ", path_, error == EEXIST ? " is held by another process" : " cannot be held");
  return {};
}

void RuntimeDir::let_go(uint64_t key) {
  if (keys_ == nullptr || keys_->process != getpid()) return;
  const struct flock range = byte_of(key, F_UNLCK);
  fcntl(keys_->fd.get(), F_OFD_SETLK, &range);
}

MemoryDomain RuntimeDir::domain() const {
  struct stat seen {};
  if (fstat(fd_.get(), &seen) != 0) return {};
  MemoryDomain domain = base::boot_id();
  const uint64_t parts[] = {seen.st_ino, seen.st_dev};
  static_assert(sizeof parts == sizeof domain);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(parts);
  for (size_t i = 0; i < domain.size(); ++i) domain[i] ^= bytes[i];
  return domain;
}

std::vector<uint32_t> RuntimeDir::taken_slots() {
  std::vector<uint32_t> taken = list();
  if (taken.size() > kFewProcesses && base::now_ns() / 1000 % kSweepOneIn != 0) return taken;
  sweep_locked(false);
  return list();
}

Result<RuntimeDir::Claimed> RuntimeDir::claim(const std::function<bool(uint32_t slot)>& reserve) {
  base::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return fail(errno, "no socket to listen at in ", path_);
  if (!lock()) return fail(EBUSY, "the runtime directory ", path_, " stays locked");
  const std::vector<uint32_t> taken = taken_slots();
  // The first one is what packets of standard peers reach.
  const uint32_t start = reserve ? 0 : any_slot();
  int error = ENOSPC;
  uint32_t claimed = 0;
  for (uint32_t i = 0; i < kSlots && claimed == 0; ++i) {
    const uint32_t slot = shm::kMinSlot + (start + i) % kSlots;
    if (std::binary_search(taken.begin(), taken.end(), slot) || (reserve && !reserve(slot))) continue;
    const sockaddr_un address = address_of(fd_.get(), file_name(slot));
    if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      error = errno;
      if (error == EADDRINUSE) continue;
      break;
    }
    if (listen(listener.get(), kBacklog) != 0) {
      error = errno;
      unlinkat(fd_.get(), file_name(slot).c_str(), 0);
      break;
    }
    claimed = slot;
  }
  unlock();
  if (claimed == 0) return fail(error, "no process slot is to be had in the runtime directory ", path_);
  return Claimed{claimed, std::move(listener)};
}

Result<uint32_t> RuntimeDir::claim_further(uint32_t slot, const std::function<Result<bool>(uint32_t slot)>& reserve) {
  if (!lock()) return fail(EBUSY, "the runtime directory ", path_, " stays locked");
  const std::vector<uint32_t> taken = taken_slots();
  const uint32_t start = any_slot();
  Result<uint32_t> claimed = fail(ENOSPC, "no further process slot is free in the runtime directory ", path_);
  for (uint32_t i = 0; i < kSlots && !claimed; ++i) {
    const uint32_t further = shm::kMinSlot + (start + i) % kSlots;
    // Standard peers reach the process in the first slot, by all its numbers.
    if (further == shm::kMinSlot || std::binary_search(taken.begin(), taken.end(), further)) continue;
    const Result<bool> reserved = reserve(further);
    if (!reserved) {
      claimed = tl::unexpected(reserved.error());
      break;
    }
    if (!*reserved) continue;
    if (linkat(fd_.get(), file_name(slot).c_str(), fd_.get(), file_name(further).c_str(), 0) == 0) {
      claimed = further;
    } else if (const int error = errno; error != EEXIST) {
      claimed = fail(error, "the socket of slot ", slot, " in ", path_, " gets no second name: ", std::strerror(error));
      break;
    }
  }
  unlock();
  return claimed;
}

void RuntimeDir::remove(uint32_t slot) { unlinkat(fd_.get(), file_name(slot).c_str(), 0); }

}  // namespace nupa::host
