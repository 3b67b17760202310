#pragma once
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"
#include <nupa/result.h>

namespace nupa::region {

/// Holds up writers of other threads to a range while its pages change place: userfaultfd write protection. A writer
/// waits inside its page fault, also one that is inside a system call, and goes on in whatever is mapped there after.
class WriteGuard {
 public:
  enum class Kind {
    kNone,      ///< the kernel gives none to this user
    kUserOnly,  ///< would let a system call of another thread fail with EFAULT
    kFull,
  };

  /// What this process may have. Tried once.
  static Kind available();

  /// Protects [begin, begin+length), pages of one mapping. EINVAL where the kernel cannot.
  static Result<std::unique_ptr<WriteGuard>> protect(uintptr_t begin, uint64_t length);
  /// Lets the waiters go; the range has been replaced.
  ~WriteGuard();

 private:
  WriteGuard(base::UniqueFd fd, uintptr_t begin, uint64_t length)
      : fd_(std::move(fd)), begin_(begin), length_(length) {}
  base::UniqueFd fd_;
  uintptr_t begin_;
  uint64_t length_;
};

}  // namespace nupa::region
