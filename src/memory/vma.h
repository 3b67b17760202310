// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <cstdint>
#include <vector>

namespace nupa::memory {

/// One mapping of this process as the kernel reports it.
struct Vma {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  bool plain = false;  ///< the program's anonymous memory: heap or mmap; neither the stack nor the kernel's pages
  uint64_t file_offset = 0;
  uint64_t device = 0;  ///< as makedev(3) packs it
  uint64_t inode = 0;   ///< 0: no file
};

/// The mappings that overlap [begin, end), by address. Asks the kernel by the PROCMAP_QUERY ioctl (Linux 6.11), or
/// reads the text of /proc/self/maps. Errors: those of opening that file. Any thread.
Result<std::vector<Vma>> list_vmas(uintptr_t begin, uintptr_t end);

/// The same from the text alone, for kernels without the ioctl.
Result<std::vector<Vma>> list_vmas_by_text(uintptr_t begin, uintptr_t end);

/// True if a page is present or swapped out, by its entry in /proc/self/pagemap (Documentation/admin-guide/mm/pagemap:
/// bits 63 and 62).
constexpr bool is_touched(uint64_t pagemap_entry) { return (pagemap_entry >> 62) != 0; }

/// For each page of [begin, end): true if it is present or swapped out, by /proc/self/pagemap. All true if that cannot
/// be read.
std::vector<bool> touched_pages(uintptr_t begin, uintptr_t end);

/// Number of threads of this process; INT32_MAX if the kernel does not report it.
int thread_count();

}  // namespace nupa::memory
