#pragma once
#include <span>
#include <string>

#include "ccl/comm/call.h"
#include "ccl/mapped/group.h"

namespace nupa::ccl {

/// An algorithm among ranks that map each other's arenas.
struct MappedAlgorithm {
  Operation operation;
  const char* name;
  /// Arrays of this rank that it is good for, in bytes; each one knows why.
  size_t smallest;
  size_t largest;
  const char* why;
  bool (*fits)(const Call& call, const MappedGroup& group);
  Steps (*start)(MappedGroup& group, const Call& call);
};

/// All there are, in the order in which they are tried.
std::span<const MappedAlgorithm> mapped_algorithms();
/// The one that is to be used. `wanted`: the name of one, to be used wherever it fits; empty: none.
const MappedAlgorithm& choose_mapped(const Call& call, const MappedGroup& group, const std::string& wanted);

}  // namespace nupa::ccl
