// SPDX-License-Identifier: Apache-2.0
/// A whole WRITE by the rules of the responder: what each answer of its target makes of it.
#include <gtest/gtest.h>

#include <optional>

#include "core/seam/responder.h"

namespace nupa::core {
namespace {

/// Answers as the test sets it, and notes what it was asked.
struct AnsweringTarget {
  struct Receive {
    explicit operator bool() const { return false; }
  };
  struct Range {};

  Selection select(uint32_t) const { return selection; }
  bool resolve(uint32_t, uint64_t, uint64_t, uint32_t rights, Range*) {
    asked_rights = rights;
    return resolves;
  }
  WcStatus write(const Range&, const Piece*, uint32_t) {
    ++writes;
    return status;
  }
  void put_back(const Receive&) {}
  void complete(const Receive&, const Inbound&, WcStatus) {}
  void fail(std::optional<EventType> event) { failure = event; }

  Selection selection = Selection::kYes;
  bool resolves = true;
  WcStatus status = WcStatus::kSuccess;
  uint32_t asked_rights = 0;
  int writes = 0;
  std::optional<EventType> failure;
};

Verdict write_whole(AnsweringTarget& target, uint64_t length = 8) {
  std::byte bytes[8] = {};
  const Piece piece{bytes, length};
  return Responder(target, true).write(0, 1, 0, &piece, 1, length);
}

TEST(ResponderWrite, WholeWrite_EachStatusOfItsCopy_HasItsVerdict) {
  AnsweringTarget target;
  EXPECT_TRUE(write_whole(target).is_accepted());
  EXPECT_EQ(target.asked_rights, access::kRemoteWrite);
  target.status = host::kNotServedYet;
  EXPECT_TRUE(write_whole(target).is_not_served()) << "it is tried again";
  target.status = WcStatus::kRetryExcErr;
  EXPECT_TRUE(write_whole(target).is_lost()) << "its process died";
  EXPECT_FALSE(target.failure);
  target.status = WcStatus::kRemOpErr;
  const Verdict verdict = write_whole(target);
  ASSERT_TRUE(verdict.is_refused());
  EXPECT_EQ(verdict.refusal(), Refusal::kRemoteOperation);
  EXPECT_EQ(target.failure, EventType::kQpFatal);
}

TEST(ResponderWrite, WholeWrite_KeyOrQueueIsRefused_WritesNothing) {
  AnsweringTarget target;
  target.resolves = false;
  Verdict verdict = write_whole(target);
  ASSERT_TRUE(verdict.is_refused());
  EXPECT_EQ(verdict.refusal(), Refusal::kRemoteAccess);
  EXPECT_TRUE(write_whole(target, 0).is_accepted()) << "9.7.4.2: the key of an empty access is not looked at";
  target.resolves = true;
  target.selection = Selection::kLater;
  EXPECT_TRUE(write_whole(target).is_later());
  target.selection = Selection::kNone;
  verdict = write_whole(target);
  ASSERT_TRUE(verdict.is_refused());
  EXPECT_EQ(verdict.refusal(), Refusal::kInvalidRequest);
  EXPECT_EQ(target.writes, 0);
}

}  // namespace
}  // namespace nupa::core
