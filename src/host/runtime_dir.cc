// SPDX-License-Identifier: Apache-2.0
#include "host/runtime_dir.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/system_error.h"
#include "progress/lifecycle.h"
#include "shm/layout.h"

namespace nupa::host {
namespace {

/// With more processes than this, only one in kSweepOneIn new processes checks whether all the others are alive.
constexpr size_t kFewProcesses = 64;
constexpr int64_t kSweepOneIn = 16;
constexpr const char* kSuffix = ".sock";

std::string file_name(uint32_t slot) { return std::to_string(slot) + kSuffix; }

/// The slot of a file name, or 0.
uint32_t slot_of_name(std::string_view name) {
  if (name.size() <= 5 || name.substr(name.size() - 5) != kSuffix) return 0;
  name.remove_suffix(5);
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), slot);
  if (error != std::errc() || end != name.data() + name.size() || name[0] == '0') return 0;
  return slot >= shm::kMinSlot && slot <= shm::kMaxSlot ? slot : 0;
}

/// A lock of kind `type` on the byte of a key.
struct flock byte_of(uint64_t key, short type) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(key);
  range.l_len = 1;
  return range;
}

constexpr uint32_t kSlots = shm::kMaxSlot - shm::kMinSlot + 1;
/// A slot anywhere: a number that was just released may still be in use by peers.
uint32_t any_slot() { return static_cast<uint32_t>(base::now_ns() / 1000 % kSlots); }

}  // namespace

Result<std::unique_ptr<RuntimeDir>> RuntimeDir::open() {
  auto opened = open_folder();
  if (!opened) return tl::unexpected(opened.error());
  return std::unique_ptr<RuntimeDir>(new RuntimeDir(std::move(*opened)));
}

std::vector<uint32_t> RuntimeDir::list() const {
  std::vector<uint32_t> slots;
  for (const std::string& name : files())
    if (const uint32_t slot = slot_of_name(name); slot != 0 && is_own_socket(name)) slots.push_back(slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

std::vector<uint32_t> RuntimeDir::processes() const {
  std::vector<uint32_t> slots = list();
  std::set<ino_t> seen;
  std::erase_if(slots, [&](uint32_t slot) {
    ino_t inode = 0;
    return !is_own_socket(file_name(slot), &inode) || !seen.insert(inode).second;
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

std::vector<std::string> RuntimeDir::foreign_entries() const {
  std::vector<std::string> names;
  for (const std::string& name : files())
    if (!is_shared(name) && ((slot_of_name(name) == 0 && !is_file_of_name(name)) || !is_own_socket(name)))
      names.push_back(name);
  return names;
}

std::optional<RuntimeDir::SocketId> RuntimeDir::socket_id(uint32_t slot) const {
  struct stat status;
  if (fstatat(descriptor(), file_name(slot).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  // A second name changes the status time of a file, but not this one.
  return SocketId{status.st_ino, status.st_mtim.tv_sec * base::kNsPerSecond + status.st_mtim.tv_nsec};
}

Result<base::UniqueFd> RuntimeDir::connect(uint32_t slot) const { return connect_to(file_name(slot)); }

std::vector<uint32_t> RuntimeDir::sweep_locked(bool only_look) {
  std::vector<uint32_t> dead;
  for (const uint32_t slot : list()) {
    auto connection = connect(slot);
    if (connection || connection.error().code() != ECONNREFUSED) continue;
    if (!only_look) unlinkat(descriptor(), file_name(slot).c_str(), 0);
    dead.push_back(slot);
  }
  return dead;
}

std::vector<uint32_t> RuntimeDir::sweep(bool only_look) {
  // A process between bind() and listen() refuses connections, too, so both calls are made under the lock.
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
    fd.release();  // it was closed, and the number may belong to another file
}

Result<void> RuntimeDir::hold(uint64_t key, bool alone) {
  if (!lock())
    return fail(EBUSY, "cannot lock the runtime directory ", path(), " (is a process of this user stopped?)");
  int error = 0;
  if (keys_ == nullptr) {
    base::UniqueFd opened(openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened)
      keys_ = std::make_unique<Keys>(std::move(opened));
    else
      error = errno;
  }
  // A read lock needs no right to write to the folder. A write lock is only tested, not taken.
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
    return fail(
        error, "key ", key, " in ", path(),
        error == EEXIST ? " is locked by another process" : " cannot be locked: " + std::string(std::strerror(error)));
  return {};
}

void RuntimeDir::let_go(uint64_t key) {
  if (keys_ == nullptr || keys_->process != getpid()) return;
  const struct flock range = byte_of(key, F_UNLCK);
  fcntl(keys_->fd.get(), F_OFD_SETLK, &range);
}

bool RuntimeDir::is_held(uint64_t key) const {
  struct flock range = byte_of(key, F_WRLCK);
  return fcntl(descriptor(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

std::vector<uint32_t> RuntimeDir::taken_slots() {
  std::vector<uint32_t> taken = list();
  if (taken.size() > kFewProcesses && base::now_ns() / 1000 % kSweepOneIn != 0) return taken;
  sweep_locked(false);
  return list();
}

Result<RuntimeDir::Claimed> RuntimeDir::claim(const std::function<bool(uint32_t slot)>& reserve) {
  base::UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return base::fail_call(errno, "cannot create a listening socket in ", path());
  if (!lock())
    return fail(EBUSY, "cannot lock the runtime directory ", path(), " (is a process of this user stopped?)");
  const std::vector<uint32_t> taken = taken_slots();
  // Packets of standard peers reach the first slot.
  const uint32_t start = reserve ? 0 : any_slot();
  int error = ENOSPC;
  uint32_t claimed = 0;
  for (uint32_t i = 0; i < kSlots && claimed == 0; ++i) {
    const uint32_t slot = shm::kMinSlot + (start + i) % kSlots;
    if (std::binary_search(taken.begin(), taken.end(), slot) || (reserve && !reserve(slot))) continue;
    error = listen_at(listener.get(), file_name(slot));
    if (error == 0)
      claimed = slot;
    else if (error != EADDRINUSE)
      break;
  }
  unlock();
  if (claimed == 0)
    return fail(error, "no free process slot in the runtime directory ", path(), ": ", std::strerror(error));
  return Claimed{claimed, std::move(listener)};
}

Result<uint32_t> RuntimeDir::claim_further(uint32_t slot, const std::function<Result<bool>(uint32_t slot)>& reserve) {
  if (!lock())
    return fail(EBUSY, "cannot lock the runtime directory ", path(), " (is a process of this user stopped?)");
  const std::vector<uint32_t> taken = taken_slots();
  const uint32_t start = any_slot();
  Result<uint32_t> claimed = fail(ENOSPC, "no further free process slot in the runtime directory ", path());
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
    if (linkat(descriptor(), file_name(slot).c_str(), descriptor(), file_name(further).c_str(), 0) == 0) {
      claimed = further;
    } else if (const int error = errno; error != EEXIST) {
      claimed = fail(error, "cannot link the socket of slot ", slot, " in ", path(), ": ", std::strerror(error));
      break;
    }
  }
  unlock();
  return claimed;
}

void RuntimeDir::remove(uint32_t slot) { unlinkat(descriptor(), file_name(slot).c_str(), 0); }

}  // namespace nupa::host
