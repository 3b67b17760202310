// SPDX-License-Identifier: Apache-2.0
#include "memory/write_guard.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "progress/waiter.h"

namespace nupa::memory {
namespace {

// Missing in some distributions' <linux/userfaultfd.h>.
constexpr uint64_t kFeatureProtect = UINT64_C(1) << 0;         // UFFD_FEATURE_PAGEFAULT_FLAG_WP, Linux 5.7
constexpr uint64_t kFeatureProtectShared = UINT64_C(1) << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM, Linux 5.19
constexpr uint64_t kFeatureMove = UINT64_C(1) << 16;           // UFFD_FEATURE_MOVE, Linux 6.8
constexpr int kUserModeOnly = 1;                               // UFFD_USER_MODE_ONLY, Linux 5.11
constexpr unsigned long kDeviceNew = _IO(0xAA, 0x00);          // USERFAULTFD_IOC_NEW, Linux 6.1

struct MoveRequest {
  uint64_t to;
  uint64_t from;
  uint64_t length;
  uint64_t mode;
  int64_t moved;
};
static_assert(sizeof(MoveRequest) == 40);
constexpr unsigned long kMove = _IOWR(0xAA, 0x05, MoveRequest);
constexpr uint64_t kMoveAllowHoles = UINT64_C(1) << 1;

/// Tries in which another thread may hold a page's lock, before the page counts as busy.
constexpr int kMoveRetries = 64;

base::UniqueFd open_fd(WriteGuard::Kind kind) {
  const int flags = O_CLOEXEC | O_NONBLOCK;
  if (kind == WriteGuard::Kind::kUserOnly)
    return base::UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, flags | kUserModeOnly)));
  base::UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, flags)));
  if (fd) return fd;
  base::UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device) fd.reset(ioctl(device.get(), kDeviceNew, flags));
  return fd;
}

bool handshake(int fd, uint64_t wanted, uint64_t* granted) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = wanted;
  if (ioctl(fd, UFFDIO_API, &api) != 0) return false;
  *granted = api.features;
  return true;
}

}  // namespace

WriteGuard::Kind WriteGuard::available() {
  static const Kind kind = open().kind();
  return kind;
}

WriteGuard WriteGuard::open(bool allow_move) {
  WriteGuard guard;
  for (const Kind kind : {Kind::kFull, Kind::kUserOnly}) {
    // One descriptor reports the available features, and a second one enables the wanted ones: an unknown feature is an
    // error.
    base::UniqueFd probe = open_fd(kind);
    uint64_t offered = 0;
    if (!probe || !handshake(probe.get(), 0, &offered)) continue;
    base::UniqueFd fd = open_fd(kind);
    uint64_t features = offered & (kFeatureProtect | kFeatureProtectShared | kFeatureMove);
    if (!fd || !handshake(fd.get(), features, &offered)) continue;
    guard.can_move_ = allow_move && (features & kFeatureMove) != 0;
    guard.can_protect_ = (features & kFeatureProtect) != 0;
    guard.can_protect_shared_ = (features & kFeatureProtectShared) != 0;
    if (!guard.can_move_ && !guard.can_protect_) continue;
    guard.fd_ = std::move(fd);
    guard.kind_ = kind;
    return guard;
  }
  return WriteGuard();
}

int GuardHandle::close_absent(uintptr_t begin, uint64_t length) const {
  uffdio_register request{};
  request.range = {begin, length};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  return ioctl(fd_, UFFDIO_REGISTER, &request) == 0 ? 0 : errno;
}

int GuardHandle::close_writes(uintptr_t begin, uint64_t length, bool shared) const {
  uffdio_register request{};
  request.range = {begin, length};
  // Write protection marks page table entries, and private memory has none for pages that were never touched.
  request.mode = shared ? UFFDIO_REGISTER_MODE_WP : UFFDIO_REGISTER_MODE_WP | UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(fd_, UFFDIO_REGISTER, &request) != 0) return errno;
  uffdio_writeprotect protection{};
  protection.range = {begin, length};
  protection.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  if (ioctl(fd_, UFFDIO_WRITEPROTECT, &protection) == 0) return 0;
  const int error = errno;
  open_range(begin, length);
  return error;
}

void GuardHandle::open_range(uintptr_t begin, uint64_t length) const {
  uffdio_range range{};
  range.start = begin;
  range.len = length;
  // If the closed mapping is still in place, this removes the protection, too. If it was replaced, there is nothing to
  // unregister, but threads that went to sleep before still need the wake-up.
  ioctl(fd_, UFFDIO_UNREGISTER, &range);
  ioctl(fd_, UFFDIO_WAKE, &range);
}

uint64_t GuardHandle::move(uintptr_t to, uintptr_t from, uint64_t length, int* error) const {
  uint64_t done = 0;
  *error = 0;
  for (int tries = 0; done < length;) {
    MoveRequest request{to + done, from + done, length - done, kMoveAllowHoles, 0};
    if (ioctl(fd_, kMove, &request) == 0) return length;
    const int code = errno;
    if (request.moved > 0) {
      done += static_cast<uint64_t>(request.moved);
      tries = 0;
      continue;
    }
    if (code == EAGAIN && ++tries < kMoveRetries) {
      progress::yield();
      continue;
    }
    *error = code == EAGAIN ? EBUSY : code;
    return done;
  }
  return done;
}

}  // namespace nupa::memory
