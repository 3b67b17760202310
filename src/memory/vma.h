#pragma once
#include <nupa/result.h>

#include <cstdint>
#include <vector>

namespace nupa::memory {

/// One mapping of this process, as the kernel tells.
struct Vma {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  bool plain = false;  ///< the program's own anonymous memory: heap or mmap; not the stack, not the
                       ///< kernel's pages
  uint64_t file_offset = 0;
  uint64_t device = 0;  ///< as makedev(3) packs it
  uint64_t inode = 0;   ///< 0: no file
};

/// The mappings that touch [begin, end), in order of address. Asks the kernel by the PROCMAP_QUERY
/// ioctl (Linux 6.11) and else reads the text of /proc/self/maps. Errors: those of opening that
/// file. Any thread.
Result<std::vector<Vma>> list_vmas(uintptr_t begin, uintptr_t end);

/// The same from the text alone, for kernels without the ioctl.
Result<std::vector<Vma>> list_vmas_by_text(uintptr_t begin, uintptr_t end);

/// Whether a page holds anything, present or swapped out, by its entry in /proc/self/pagemap
/// (Documentation/admin-guide/mm/pagemap: bits 63 and 62).
constexpr bool is_touched(uint64_t pagemap_entry) { return (pagemap_entry >> 62) != 0; }

/// Which pages of [begin, end) hold anything, present or swapped out, by /proc/self/pagemap; all,
/// if it cannot be read.
std::vector<bool> touched_pages(uintptr_t begin, uintptr_t end);

/// Threads of this process; INT32_MAX if the kernel does not tell.
int thread_count();

}  // namespace nupa::memory
