// SPDX-License-Identifier: Apache-2.0
#include "memory/region_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/shared_file.h"
#include "base/system_error.h"
#include "memory/piece.h"
#include "memory/raw_mapping.h"

namespace nupa::memory {
namespace {

constexpr const char* kName = "nupa-region";
/// The file grows in large steps, because holes cost nothing. If the program lengthens a mapping of the file (realloc
/// by mremap), the mapping must not reach over the file's end, where an access raises SIGBUS.
constexpr uint64_t kGrowStep = UINT64_C(1) << 40;
constexpr uint64_t kMaxSize = UINT64_C(1) << 62;
/// The bytes behind the start of data that are taken for data. SEEK_HOLE is exact, but it walks through all the data
/// that follows, also beyond the requested end.
constexpr uint64_t kRun = 64 << 10;

}  // namespace

Result<RegionFile> RegionFile::create() {
  auto made = base::make_shared_file(kName);
  if (!made) return tl::unexpected(made.error());
  struct stat status;
  if (fstat(made->get(), &status) != 0) return base::fail_call(errno, "cannot stat the region file ", kName);
  RegionFile file;
  file.file_ = std::move(*made);
  file.device_ = status.st_dev;
  file.inode_ = status.st_ino;
  return file;
}

bool RegionFile::shows(const Vma& vma, uintptr_t address, uint64_t offset) const {
  return vma.shared && vma.inode == inode_ && vma.device == device_ && address >= vma.begin && address < vma.end &&
         vma.file_offset + (address - vma.begin) == offset;
}

Result<uint64_t> RegionFile::reserve(uint64_t length) {
  const uint64_t offset = next_offset_;
  if (offset > kMaxSize || length > kMaxSize / 4)
    return fail(EFBIG, "the region file ", kName, " is full: cannot add ", length, " bytes at offset ", offset);
  const uint64_t end = offset + length;
  if (end > size_) {
    uint64_t wanted = end + kGrowStep;
    auto grown = base::grow_shared_file(file_.get(), wanted);
    if (!grown) {
      wanted = end;
      grown = base::grow_shared_file(file_.get(), wanted);
    }
    if (!grown) return tl::unexpected(grown.error());
    size_ = wanted;
  }
  // A gap of the same length stays empty behind each part. The program may lengthen its mapping up to twofold (realloc
  // by mremap), and must not reach the next buffer then.
  next_offset_ = end + length;
  return offset;
}

int FileHandle::write(uintptr_t from, uint64_t length, uint64_t offset, bool may_touch) const {
  constexpr size_t kBatch = 512;
  uint64_t entries[kBatch];
  const base::UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap && !may_touch) return errno;
  const size_t pages = length / kPageSize;
  for (size_t first = 0; first < pages; first += kBatch) {
    const size_t count = std::min(kBatch, pages - first);
    const off_t at = static_cast<off_t>((from / kPageSize + first) * sizeof entries[0]);
    const bool told =
        pread(pagemap.get(), entries, count * sizeof entries[0], at) == static_cast<ssize_t>(count * sizeof entries[0]);
    if (!told && !may_touch) return EIO;
    for (size_t page = 0; page < count;) {
      size_t last = page;
      while (last < count && (!told || is_touched(entries[last]))) ++last;
      for (uint64_t done = (first + page) * kPageSize; done < (first + last) * kPageSize;) {
        // A system call and not pwrite(): ThreadSanitizer would report a race between this read and writers, which the
        // guard blocks.
        const ssize_t wrote = syscall(SYS_pwrite64, fd_, from + done, (first + last) * kPageSize - done, offset + done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return wrote == 0 ? EIO : errno;
        done += static_cast<uint64_t>(wrote);
      }
      page = last + 1;
    }
  }
  return 0;
}

bool FileHandle::next_data(uint64_t offset, uint64_t end, uint64_t* data, uint64_t* data_end) const {
  if (offset >= end) return false;
  off_t found = lseek(fd_, static_cast<off_t>(offset), SEEK_DATA);
  if (found < 0 && errno == ENXIO) return false;
  if (found < 0) found = static_cast<off_t>(offset);  // unknown: copying zeros is better than missing data
  if (static_cast<uint64_t>(found) >= end) return false;
  *data = static_cast<uint64_t>(found);
  *data_end = std::min(*data + kRun, end);
  return true;
}

bool FileHandle::read(std::byte* to, uint64_t length, uint64_t offset) const {
  uint64_t data = 0;
  uint64_t data_end = 0;
  for (uint64_t at = offset; next_data(at, offset + length, &data, &data_end); at = data_end) {
    while (data < data_end) {
      const ssize_t got = pread(fd_, to + (data - offset), data_end - data, static_cast<off_t>(data));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      data += static_cast<uint64_t>(got);
    }
  }
  return true;
}

void* FileHandle::map(uint64_t length, uint64_t offset, int protection, int sharing) const {
  return raw_mmap(nullptr, length, protection, sharing, fd_, static_cast<int64_t>(offset));
}

void FileHandle::punch(uint64_t offset, uint64_t length) const {
  if (length != 0) base::punch_shared_file(fd_, offset, length);
}

}  // namespace nupa::memory
