// SPDX-License-Identifier: Apache-2.0
#include "memory/vma.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>

#include "base/system_error.h"
#include "base/unique_fd.h"
#include "memory/piece.h"

namespace nupa::memory {
namespace {

/// struct procmap_query of <linux/fs.h> since Linux 6.11. It is defined here, because a program may run on a newer
/// kernel than the headers that it was built with.
struct ProcmapQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_addr;
  uint64_t vma_start;
  uint64_t vma_end;
  uint64_t vma_flags;
  uint64_t vma_page_size;
  uint64_t vma_offset;
  uint64_t inode;
  uint32_t dev_major;
  uint32_t dev_minor;
  uint32_t vma_name_size;
  uint32_t build_id_size;
  uint64_t vma_name_addr;
  uint64_t build_id_addr;
};
static_assert(sizeof(ProcmapQuery) == 104);
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr uint64_t kReadable = 1;
constexpr uint64_t kWritable = 2;
constexpr uint64_t kExecutable = 4;
constexpr uint64_t kShared = 8;
constexpr uint64_t kCoveringOrNext = 16;

/// Long enough for every name that is checked. Names of files may be longer and are not checked.
constexpr uint32_t kNameBytes = 64;

bool is_plain(std::string_view name, uint64_t inode) {
  if (inode != 0) return false;
  return name.empty() || name == "[heap]" || name.substr(0, 6) == "[anon:";
}

bool query(int fd, uintptr_t begin, uintptr_t end, std::vector<Vma>* vmas) {
  for (uintptr_t at = begin; at < end;) {
    char name[kNameBytes] = "";
    ProcmapQuery q{};
    q.size = sizeof q;
    q.query_flags = kCoveringOrNext;
    q.query_addr = at;
    q.vma_name_size = sizeof name;
    q.vma_name_addr = reinterpret_cast<uint64_t>(name);
    bool named = true;
    if (ioctl(fd, kProcmapQuery, &q) != 0) {
      if (errno == ENOENT) return true;
      if (errno != ENAMETOOLONG) return false;
      named = false;
      q.vma_name_size = 0;
      q.vma_name_addr = 0;
      if (ioctl(fd, kProcmapQuery, &q) != 0) return errno == ENOENT;
    }
    if (q.vma_start >= end) return true;
    Vma vma;
    vma.begin = q.vma_start;
    vma.end = q.vma_end;
    vma.readable = (q.vma_flags & kReadable) != 0;
    vma.writable = (q.vma_flags & kWritable) != 0;
    vma.executable = (q.vma_flags & kExecutable) != 0;
    vma.shared = (q.vma_flags & kShared) != 0;
    vma.file_offset = q.vma_offset;
    vma.device = makedev(q.dev_major, q.dev_minor);
    vma.inode = q.inode;
    vma.plain = named && is_plain(q.vma_name_size == 0 ? "" : name, q.inode);
    vmas->push_back(vma);
    at = q.vma_end;
  }
  return true;
}

}  // namespace

Result<std::vector<Vma>> list_vmas_by_text(uintptr_t begin, uintptr_t end) {
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (maps == nullptr) return base::fail_call(errno, "cannot open /proc/self/maps");
  std::vector<Vma> vmas;
  char line[512];
  bool line_start = true;
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    std::string_view text(line);
    const bool parse = line_start;
    line_start = text.back() == '\n';
    if (!parse) continue;  // continues a long file name
    unsigned long from, to, offset, inode;
    unsigned major, minor;
    char flags[5] = "";
    int name_at = 0;
    if (std::sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &from, &to, flags, &offset, &major, &minor, &inode,
                    &name_at) < 7)
      continue;
    if (from >= end) break;
    if (to <= begin) continue;
    if (line_start) text.remove_suffix(1);
    Vma vma;
    vma.begin = from;
    vma.end = to;
    vma.readable = flags[0] == 'r';
    vma.writable = flags[1] == 'w';
    vma.executable = flags[2] == 'x';
    vma.shared = flags[3] == 's';
    vma.file_offset = offset;
    vma.device = makedev(major, minor);
    vma.inode = inode;
    vma.plain = is_plain(text.substr(std::min<size_t>(static_cast<size_t>(name_at), text.size())), inode);
    vmas.push_back(vma);
  }
  return vmas;
}

Result<std::vector<Vma>> list_vmas(uintptr_t begin, uintptr_t end) {
  base::UniqueFd fd(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!fd) return base::fail_call(errno, "cannot open /proc/self/maps");
  std::vector<Vma> vmas;
  if (query(fd.get(), begin, end, &vmas)) return vmas;
  return list_vmas_by_text(begin, end);
}

std::vector<bool> touched_pages(uintptr_t begin, uintptr_t end) {
  constexpr size_t kBatch = 512;
  const size_t count = (end - begin) / kPageSize;
  std::vector<bool> touched(count, true);
  base::UniqueFd fd(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd) return touched;
  uint64_t entries[kBatch];
  for (size_t done = 0; done < count;) {
    const size_t step = std::min(kBatch, count - done);
    const ssize_t wanted = static_cast<ssize_t>(step * sizeof entries[0]);
    const off_t at = static_cast<off_t>((begin / kPageSize + done) * sizeof entries[0]);
    if (pread(fd.get(), entries, static_cast<size_t>(wanted), at) != wanted) return touched;
    for (size_t i = 0; i < step; ++i) touched[done + i] = is_touched(entries[i]);
    done += step;
  }
  return touched;
}

int thread_count() {
  // A directory has two links, and one more for each subdirectory. Here each subdirectory is a thread.
  struct stat status;
  if (stat("/proc/self/task", &status) != 0 || status.st_nlink < 3) return INT32_MAX;
  return static_cast<int>(status.st_nlink) - 2;
}

}  // namespace nupa::memory
