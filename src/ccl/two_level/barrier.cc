#include "ccl/lane/algorithms.h"
#include "ccl/mapped/algorithms.h"
#include "ccl/two_level/algorithms.h"

namespace nupa::ccl::two_level {

Steps barrier(TwoLevelGroup& group) {
  if (const int error = co_await mapped::barrier(group.local()); error != 0) co_return error;
  if (group.local().rank() == 0)
    if (const int error = co_await lanes::barrier(*group.column()); error != 0) co_return error;
  co_return co_await mapped::barrier(group.local());
}

}  // namespace nupa::ccl::two_level
