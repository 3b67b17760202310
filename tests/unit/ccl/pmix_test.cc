// SPDX-License-Identifier: Apache-2.0
/// Compares the constants and types that NUPA declares for libpmix.so.2 with those of its header.
#if __has_include(<pmix.h>)
#include <gtest/gtest.h>
#include <pmix.h>

#include "ccl/bootstrap/pmix_abi.h"

namespace nupa::ccl::pmix {
namespace {

TEST(CclPmix, Constants_OfPmix_EqualThoseOfItsHeader) {
  EXPECT_EQ(kSuccess, PMIX_SUCCESS);
  EXPECT_EQ(kTimeout, PMIX_ERR_TIMEOUT);
  EXPECT_EQ(kNotFound, PMIX_ERR_NOT_FOUND);
  EXPECT_EQ(kAnyRank, PMIX_RANK_WILDCARD);
  EXPECT_EQ(kString, PMIX_STRING);
  EXPECT_EQ(kUint32, PMIX_UINT32);
  EXPECT_EQ(kGlobal, PMIX_GLOBAL);
  EXPECT_STREQ(kJobSize, PMIX_JOB_SIZE);
  EXPECT_EQ(sizeof(Process), sizeof(pmix_proc_t));
  EXPECT_EQ(offsetof(Process, rank), offsetof(pmix_proc_t, rank));
  EXPECT_GE(sizeof(Value), sizeof(pmix_value_t));
  EXPECT_EQ(sizeof(Value::type), sizeof(pmix_value_t::type));
  EXPECT_EQ(offsetof(Value, string), offsetof(pmix_value_t, data));
  EXPECT_EQ(sizeof(Status), sizeof(pmix_status_t));
}

}  // namespace
}  // namespace nupa::ccl::pmix
#endif
