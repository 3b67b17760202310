// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The part of the ABI of libpmix.so.2 that this folder uses (PMIx Standard 4.0, chapter 3). Tests compare it with
/// <pmix.h> where that is installed.
#include <cstddef>
#include <cstdint>

namespace nupa::ccl::pmix {

using Status = int;
constexpr Status kSuccess = 0;
constexpr Status kTimeout = -24;
constexpr Status kNotFound = -46;

constexpr uint32_t kAnyRank = UINT32_MAX - 1;  ///< PMIX_RANK_WILDCARD: the whole job
constexpr uint16_t kString = 3;
constexpr uint16_t kUint32 = 14;
constexpr uint8_t kGlobal = 3;  ///< PMIX_GLOBAL: for ranks of this host and of others
constexpr char kJobSize[] = "pmix.job.size";

struct Process {
  char job[256];
  uint32_t rank;
};

struct Value {
  uint16_t type;
  union {
    char* string;
    uint32_t number;
    uint64_t room[7];  ///< at least the size of the library's union
  };
};

using OnValue = void (*)(Status status, const Value* value, void* argument);

}  // namespace nupa::ccl::pmix
