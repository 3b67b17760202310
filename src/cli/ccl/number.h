#pragma once
/// Serial arithmetic of collectives, one element at a time: what results are compared with. It shares nothing with the
/// library but the definition of the short floating point formats.
#include <nupa/ccl.h>

#include <cstdint>
#include <string>

namespace nupa::cli::collectives {

/// An element: of integer types `bits`, sign or zeros extended; of the others `number`, which holds each of them
/// exactly.
struct Element {
  uint64_t bits = 0;
  double number = 0;
};

Element load(nupa_ccl_type type, const std::byte* from);
/// Integers wrap; numbers are rounded to nearest, ties to even, as an element of 8 and 16 bits by way of float32.
void store(nupa_ccl_type type, const Element& value, std::byte* to);
Element combine(nupa_ccl_type type, nupa_ccl_builtin_op op, const Element& one, const Element& other);
/// What NUPA_CCL_AVERAGE makes of a sum.
Element divide(nupa_ccl_type type, const Element& sum, uint32_t ranks);

/// The distance from 1 to the next number of a floating point type, and its smallest one of full precision.
double epsilon(nupa_ccl_type type);
double smallest_normal(nupa_ccl_type type);

/// For people.
std::string text_of(nupa_ccl_type type, const Element& value);

}  // namespace nupa::cli::collectives
