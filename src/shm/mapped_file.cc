// SPDX-License-Identifier: Apache-2.0
#include "shm/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/system_error.h"

namespace nupa::shm {
namespace {

constexpr const char* kShared = "the shared file of ";

}  // namespace

MappedFile::MappedFile(base::UniqueFd fd, std::string owner) : fd_(std::move(fd)), owner_(std::move(owner)) {
  progress::close_in_children(fd_.get());
}

MappedFile::~MappedFile() {
  // In a child the descriptor's number may belong to another file by now.
  if (!made_.holds()) [[maybe_unused]]
    const int closed = fd_.release();
  close();
  for (const auto& [extent, address] : mappings_) {
    progress::forget_mapping_for_children(address);
    munmap(address, extent.second);
  }
}

void MappedFile::close() {
  if (!fd_) return;
  progress::forget_for_children(fd_.get());
  fd_.reset();
}

void MappedFile::close_file() {
  std::lock_guard lock(mutex_);
  close();
}

void MappedFile::let_go() {
  std::lock_guard lock(mutex_);
  close();
  // Uses the system call itself: ThreadSanitizer takes mmap() for a write, which would race with threads that still
  // read there.
  for (const auto& [extent, address] : mappings_)
    syscall(SYS_mmap, address, extent.second, PROT_READ | PROT_WRITE,
            MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

Result<void*> MappedFile::at(uint64_t offset, uint64_t length) {
  // One map holds windows and large objects. An object larger than a window starts at a multiple of its size, which is
  // a multiple of the window. So the two kinds never overlap with different extents for one object.
  const bool large = length > kWindow;
  const uint64_t start = large ? offset : offset & ~(kWindow - 1);
  const uint64_t span = large ? length : kWindow;
  if (!large && offset - start + length > kWindow)
    return fail(ERANGE, "an object crosses the boundary of two mappings of ", kShared, owner_, ": ", length,
                " bytes at offset ", offset);
  if (!made_.holds()) return fail(ESRCH, kShared, owner_, " belongs to the parent process");
  std::lock_guard lock(mutex_);
  // The file may end within a mapped window. An access behind its end would raise SIGBUS.
  const auto lies_within = [&] { return length <= size_ && offset <= size_ - length; };
  if (!lies_within()) {
    if (!fd_) return fail(ESRCH, kShared, owner_, " is closed: the process has exited");
    struct stat file;
    if (fstat(fd_.get(), &file) != 0) return base::fail_call(errno, "cannot stat ", kShared, owner_);
    size_ = static_cast<uint64_t>(file.st_size);
    if (!lies_within())
      return fail(ERANGE, length, " bytes at offset ", offset, " are beyond the end of ", kShared, owner_);
  }
  // The low bit of the key distinguishes a large object's mapping from the window that begins at the same offset.
  const uint64_t key = start | (large ? 1 : 0);
  // The smaller object's mapping stays: another thread may still read it after the owner has grown the object.
  auto found = mappings_.lower_bound({key, span});
  if (found == mappings_.end() || found->first.first != key) {
    if (!fd_) return fail(ESRCH, kShared, owner_, " is closed: the process has exited");
    void* address = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), static_cast<off_t>(start));
    if (address == MAP_FAILED)
      return base::fail_call(errno, "cannot map ", kShared, owner_, ": ", span, " bytes at offset ", start);
    // A core dump should contain the program's memory, and not these sparse tables.
    madvise(address, span, MADV_DONTDUMP);
    progress::blank_in_children(address, span);
    found = mappings_.emplace(Extent{key, span}, address).first;
  }
  return static_cast<std::byte*>(found->second) + (offset - start);
}

}  // namespace nupa::shm
