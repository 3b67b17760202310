// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "ccl/reduce/reducer.h"
#include "progress/of_process.h"

namespace nupa::ccl {

/// An operator that the program has created.
struct MadeOperator {
  UserFunction function = nullptr;  ///< null: a premultiplied sum
  void* argument = nullptr;
  Type type = Type::kUint8;  ///< the factor's type
  uint64_t factor = 0;
};

/// The operators that this process has created, by number. Thread-safe.
class MadeOperators {
 public:
  static MadeOperators& all();
  /// ENOSPC: there are kMost operators.
  int add(const MadeOperator& made, uint32_t* number);
  /// Returns false if no operator has this number.
  bool remove(uint32_t number);
  std::optional<MadeOperator> find(uint32_t number);

 private:
  static constexpr uint32_t kFirst = 0x10000;
  static constexpr uint32_t kMost = 0x10000;
  progress::ForkMutex mutex_;
  std::vector<std::optional<MadeOperator>> made_;
};

}  // namespace nupa::ccl
