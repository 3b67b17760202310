// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The serial arithmetic of collectives, one element at a time, which results are compared with. It shares only the
/// definition of the short floating-point formats with the library.
#include <nupa/ccl.h>

#include <cstdint>
#include <string>

namespace nupa::cli::collectives {

/// An element. Integer types use `bits`, with the sign or zeros extended. The other types use `number`, which
/// represents each of their values exactly.
struct Element {
  uint64_t bits = 0;
  double number = 0;
};

Element load(nupa_ccl_type type, const std::byte* from);
/// Integers wrap. Numbers are rounded to nearest, ties to even; 8- and 16-bit elements are converted through float32.
void store(nupa_ccl_type type, const Element& value, std::byte* to);
Element combine(nupa_ccl_type type, nupa_ccl_builtin_op op, const Element& one, const Element& other);
/// Returns the result of NUPA_CCL_AVERAGE for a sum.
Element divide(nupa_ccl_type type, const Element& sum, uint32_t ranks);

/// The distance from 1 to the next number of a floating-point type, and the type's smallest normal number.
double epsilon(nupa_ccl_type type);
double smallest_normal(nupa_ccl_type type);

/// Returns a text for people.
std::string text_of(nupa_ccl_type type, const Element& value);

}  // namespace nupa::cli::collectives
