// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The names of types and operators for people.
#include "ccl/reduce/type.h"

namespace nupa::ccl {

inline const char* name_of(Type type) {
  constexpr const char* kNames[kTypes] = {"int8",    "uint8",   "int16",       "uint16",     "int32",
                                          "uint32",  "int64",   "uint64",      "float16",    "bfloat16",
                                          "float32", "float64", "float8_e4m3", "float8_e5m2"};
  return kNames[static_cast<size_t>(type)];
}

inline const char* name_of(Operator op) {
  constexpr const char* kNames[kOperators] = {"sum",     "product",           "min",        "max",
                                              "average", "premultiplied sum", "bit_and",    "bit_or",
                                              "bit_xor", "logical_and",       "logical_or", "logical_xor"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace nupa::ccl
