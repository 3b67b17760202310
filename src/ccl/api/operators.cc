// SPDX-License-Identifier: Apache-2.0
#include "ccl/api/operators.h"

#include <algorithm>
#include <cerrno>

namespace nupa::ccl {

MadeOperators& MadeOperators::all() {
  static auto* const operators = new MadeOperators;  // never freed: threads may use them until exit
  return *operators;
}

int MadeOperators::add(const MadeOperator& made, uint32_t* number) {
  std::lock_guard lock(mutex_);
  auto free = std::find(made_.begin(), made_.end(), std::nullopt);
  if (free == made_.end() && made_.size() == kMost) return ENOSPC;
  if (free == made_.end()) free = made_.insert(made_.end(), std::nullopt);
  *free = made;
  *number = kFirst + static_cast<uint32_t>(free - made_.begin());
  return 0;
}

bool MadeOperators::remove(uint32_t number) {
  std::lock_guard lock(mutex_);
  const uint32_t index = number - kFirst;
  if (index >= made_.size() || !made_[index]) return false;
  made_[index].reset();
  return true;
}

std::optional<MadeOperator> MadeOperators::find(uint32_t number) {
  std::lock_guard lock(mutex_);
  const uint32_t index = number - kFirst;
  return index < made_.size() ? made_[index] : std::nullopt;
}

}  // namespace nupa::ccl
