#include "region/write_guard.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace nupa::region {
namespace {

// Newer than Debian 12's headers (Linux 6.1): write protection of pages never touched (Linux 6.4).
constexpr uint64_t kFeatureWpUnpopulated = 1 << 13;
constexpr uint64_t kFeatureWpShmem = 1 << 12;  // UFFD_FEATURE_WP_HUGETLBFS_SHMEM, Linux 5.19
constexpr int kUserModeOnly = 1;
constexpr unsigned long kDeviceNew = _IO(0xAA, 0x00);  // USERFAULTFD_IOC_NEW on /dev/userfaultfd, Linux 6.1
constexpr uint64_t kFeatures = UFFD_FEATURE_PAGEFAULT_FLAG_WP | kFeatureWpShmem | kFeatureWpUnpopulated;

base::UniqueFd open_full() {
  base::UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
  if (fd) return fd;
  base::UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device) fd.reset(ioctl(device.get(), kDeviceNew, O_CLOEXEC | O_NONBLOCK));
  return fd;
}

bool handshake(int fd) {
  uffdio_api api{UFFD_API, kFeatures, 0};
  return ioctl(fd, UFFDIO_API, &api) == 0;
}

WriteGuard::Kind probe() {
  base::UniqueFd fd = open_full();
  if (fd && handshake(fd.get())) return WriteGuard::Kind::kFull;
  fd.reset(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly)));
  return fd && handshake(fd.get()) ? WriteGuard::Kind::kUserOnly : WriteGuard::Kind::kNone;
}

}  // namespace

WriteGuard::Kind WriteGuard::available() {
  static const Kind kind = probe();
  return kind;
}

Result<std::unique_ptr<WriteGuard>> WriteGuard::protect(uintptr_t begin, uint64_t length) {
  base::UniqueFd fd =
      available() == Kind::kFull
          ? open_full()
          : base::UniqueFd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly)));
  if (!fd || !handshake(fd.get())) return fail(errno, "userfaultfd is not to be had");
  uffdio_register registration{};
  registration.range = {begin, length};
  registration.mode = UFFDIO_REGISTER_MODE_WP;
  if (ioctl(fd.get(), UFFDIO_REGISTER, &registration) != 0) return fail(errno, "the range cannot be guarded");
  std::unique_ptr<WriteGuard> guard(new WriteGuard(std::move(fd), begin, length));
  uffdio_writeprotect protection{{begin, length}, UFFDIO_WRITEPROTECT_MODE_WP};
  if (ioctl(guard->fd_.get(), UFFDIO_WRITEPROTECT, &protection) != 0)
    return fail(errno, "the range cannot be write protected");
  return guard;
}

WriteGuard::~WriteGuard() {
  // If the range is still the guarded mapping, lift the protection; then wake whoever waits, also where it was
  // replaced.
  uffdio_writeprotect protection{{begin_, length_}, 0};
  ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &protection);
  uffdio_range range{begin_, length_};
  ioctl(fd_.get(), UFFDIO_UNREGISTER, &range);
  ioctl(fd_.get(), UFFDIO_WAKE, &range);
}

}  // namespace nupa::region
