#include "region/vma.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/unique_fd.h"

namespace nupa::region {
namespace {

/// struct procmap_query of Linux 6.11's <linux/fs.h>; Debian 12's headers are older than the kernels it runs on.
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

bool is_plain(std::string_view name, uint64_t inode) {
  if (inode != 0) return false;
  return name.empty() || name == "[heap]" || name.substr(0, 6) == "[anon:";
}

bool query(int fd, uintptr_t begin, uintptr_t end, std::vector<Vma>* vmas) {
  for (uintptr_t at = begin; at < end;) {
    char name[64] = "";
    ProcmapQuery q{};
    q.size = sizeof q;
    q.query_flags = kCoveringOrNext;
    q.query_addr = at;
    q.vma_name_size = sizeof name;
    q.vma_name_addr = reinterpret_cast<uint64_t>(name);
    if (ioctl(fd, kProcmapQuery, &q) != 0) {
      if (errno == ENOENT) return true;
      if (errno != ENAMETOOLONG) return false;
      // A long name is a file's: nothing else is wanted of it.
      q.vma_name_size = 0;
      q.vma_name_addr = 0;
      if (ioctl(fd, kProcmapQuery, &q) != 0) return false;
      std::strcpy(name, "file");
    }
    if (q.vma_start >= end) return true;
    vmas->push_back({q.vma_start, q.vma_end, (q.vma_flags & kReadable) != 0, (q.vma_flags & kWritable) != 0,
                     (q.vma_flags & kExecutable) != 0, (q.vma_flags & kShared) != 0, q.vma_offset, q.inode,
                     is_plain(q.vma_name_size == 0 ? "" : name, q.inode)});
    at = q.vma_end;
  }
  return true;
}

Result<std::vector<Vma>> parse(uintptr_t begin, uintptr_t end) {
  std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
  if (maps == nullptr) return fail(errno, "/proc/self/maps cannot be read");
  std::vector<Vma> vmas;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long from, to, offset, inode;
    char flags[5] = "";
    int name_at = 0;
    if (std::sscanf(line, "%lx-%lx %4s %lx %*s %lu %n", &from, &to, flags, &offset, &inode, &name_at) < 5) continue;
    if (from >= end) break;
    if (to <= begin) continue;
    std::string_view name(line + name_at);
    if (!name.empty() && name.back() == '\n') name.remove_suffix(1);
    vmas.push_back({from, to, flags[0] == 'r', flags[1] == 'w', flags[2] == 'x', flags[3] == 's', offset, inode,
                    is_plain(name, inode)});
  }
  return vmas;
}

}  // namespace

Result<std::vector<Vma>> list_vmas(uintptr_t begin, uintptr_t end) {
  base::UniqueFd fd(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!fd) return fail(errno, "/proc/self/maps cannot be opened");
  std::vector<Vma> vmas;
  if (query(fd.get(), begin, end, &vmas)) return vmas;
  return parse(begin, end);
}

}  // namespace nupa::region
