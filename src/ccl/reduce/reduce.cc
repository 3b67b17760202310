#include "ccl/reduce/reduce.h"

#include "ccl/reduce/kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace nupa::ccl {
namespace {

/// Programs may have told their threads to round otherwise, or to flush what is small: ranks must not differ by that.
class UsualRounding {
 public:
#if defined(__SSE2__)
  UsualRounding() : before_(_mm_getcsr()) {
    if (before_ != kUsual) _mm_setcsr(kUsual);
  }
  ~UsualRounding() {
    if (before_ != kUsual) _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kUsual = 0x1f80;  ///< all exceptions masked, none seen
  unsigned before_;
#endif
 public:
  UsualRounding(const UsualRounding&) = delete;
  UsualRounding& operator=(const UsualRounding&) = delete;
#if !defined(__SSE2__)
  UsualRounding() = default;
#endif
};

}  // namespace

void reduce(const Reduction& reduction, void* result, const Source* sources, uint32_t count, size_t elements) {
  if (elements == 0 || count == 0) return;
  static const Kernel run = kernel();
  if (is_integer(reduction.type)) return run(reduction, result, sources, count, elements);
  const UsualRounding usual;
  run(reduction, result, sources, count, elements);
}

}  // namespace nupa::ccl
