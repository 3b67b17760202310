#pragma once
#include <cstdint>
#include <vector>

#include <nupa/result.h>

namespace nupa::region {

/// One mapping of this process, as the kernel tells.
struct Vma {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  uint64_t file_offset = 0;
  uint64_t inode = 0;
  bool plain = false;  ///< anonymous memory of the program: heap or mmap, not the stack nor the kernel's own pages
};

/// The mappings that touch [begin, end), in order. Uses the PROCMAP_QUERY ioctl (Linux 6.11) or reads the text.
/// Errors of open and read on /proc/self/maps.
Result<std::vector<Vma>> list_vmas(uintptr_t begin, uintptr_t end);

}  // namespace nupa::region
