// SPDX-License-Identifier: Apache-2.0
/// Tests of the agreement on which ranks are left.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "ccl/communicator/communicator.h"
#include "ccl/communicator/derived_id.h"
#include "ccl/connect/endpoint.h"
#include "ccl/communicator/shrink_agreement.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

using DeadRanks = ShrinkAgreement::DeadRanks;

/// The sum of the dead ranks that a rank sends.
Mail sum_mail(MailKind kind, uint32_t from, const std::vector<uint32_t>& dead) {
  Mail mail;
  mail.communicator = kId;
  mail.kind = kind;
  mail.from = from;
  for (const uint32_t rank : dead) {
    ++mail.dead;
    mail.hash = derive({mail.hash, mail.dead}, rank, 0)[0];
  }
  return mail;
}
Mail one_mail(MailKind kind, uint32_t from, uint64_t dead) {
  Mail mail;
  mail.communicator = kId;
  mail.kind = kind;
  mail.from = from;
  mail.dead = dead;
  return mail;
}

/// Rank 0 of four, whose others are played by the test: `turn` is called each time before it decides.
class CclShrinkAgreement : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    survivors = std::make_unique<ShrinkAgreement>(*endpoint, kId, 0, std::vector<PeerInfo>(4, endpoint->peer_info()));
    ASSERT_EQ(survivors->open(), 0);
  }
  /// Ends by itself after many turns, and reports that all ranks are dead.
  Result<DeadRanks> agree(const std::function<void(int turn)>& turn, const DeadRanks& known = DeadRanks(4),
                          int64_t limit_ns = 100 * kLimitNs) {
    turns = 0;
    return survivors->agree(
        [&]() -> DeadRanks {
          if (++turns > 200) return DeadRanks(4, true);
          turn(turns);
          return known;
        },
        limit_ns);
  }
  void send_sums(const std::vector<uint32_t>& ranks, const std::vector<uint32_t>& dead) {
    for (const uint32_t rank : ranks) survivors->on_mail(sum_mail(MailKind::kDeadSum, rank, dead));
  }

  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<ShrinkAgreement> survivors;
  int turns = 0;
};

TEST_F(CclShrinkAgreement, Agree_AllOthersHaveSentTheSameSet_Decides) {
  const auto dead = agree([&](int turn) {
    if (turn == 2) send_sums({1, 2}, {});
    if (turn == 5) send_sums({3}, {});
  });
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, DeadRanks(4));
  EXPECT_EQ(turns, 5) << "it waited for rank 3 only";
}

TEST_F(CclShrinkAgreement, Agree_OneRankSendsAnotherSet_WaitsUntilAllAgree) {
  const auto dead = agree([&](int turn) {
    if (turn == 1) send_sums({1, 2}, {});
    if (turn == 2) send_sums({3}, {2});
    if (turn == 6) send_sums({3}, {});
  });
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, DeadRanks(4));
  EXPECT_EQ(turns, 6);
}

TEST_F(CclShrinkAgreement, Agree_RankKnownToBeDead_IsNotWaitedFor) {
  const auto dead = agree([&](int) { send_sums({1, 3}, {2}); }, DeadRanks{false, false, true, false});
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, (DeadRanks{false, false, true, false}));
  EXPECT_EQ(turns, 1);
}

TEST_F(CclShrinkAgreement, Agree_AnotherRankReportsADeath_IsTakenOver) {
  const auto dead = agree([&](int turn) {
    survivors->on_mail(one_mail(MailKind::kDead, 1, 3));
    survivors->on_mail(one_mail(MailKind::kDead, 1, 4));           // there is no such rank
    survivors->on_mail(one_mail(MailKind::kDead, 1, UINT64_MAX));  // nor such a one
    if (turn == 3) send_sums({1, 2}, {3});
  });
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, (DeadRanks{false, false, false, true}));
  EXPECT_EQ(turns, 3);
}

TEST_F(CclShrinkAgreement, Agree_MailFromUnknownRanks_IsIgnored) {
  const auto dead = agree([&](int turn) {
    for (const uint32_t from : {0u, 4u, UINT32_MAX}) survivors->on_mail(one_mail(MailKind::kDead, from, 2));
    if (turn == 3) send_sums({1, 2, 3}, {});
  });
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, DeadRanks(4));
  EXPECT_EQ(turns, 3);
}

TEST_F(CclShrinkAgreement, Agree_OthersCountThisRankAsDead_FailsWithEconnaborted) {
  const auto dead = agree([&](int turn) {
    if (turn == 2) survivors->on_mail(one_mail(MailKind::kDead, 1, 0));
  });
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code(), ECONNABORTED);
  EXPECT_EQ(turns, 2);
}

TEST_F(CclShrinkAgreement, Agree_ThisRankIsInItsOwnSet_IsNotCounted) {
  const auto dead = agree([&](int) { send_sums({1, 2, 3}, {}); }, DeadRanks{true, false, false, false});
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, DeadRanks(4));
}

TEST_F(CclShrinkAgreement, Agree_IncompleteDecision_IsIgnored) {
  const auto dead = agree([&](int turn) {
    if (turn == 1) {
      survivors->on_mail(one_mail(MailKind::kDecided, 1, 2));
      survivors->on_mail(one_mail(MailKind::kDecided, 1, 4));  // there is no such rank
      survivors->on_mail(sum_mail(MailKind::kDecidedSum, 1, {2, 3}));
    }
    if (turn == 3) survivors->on_mail(sum_mail(MailKind::kDecidedSum, 2, {2}));  // nothing came of this one's
    if (turn != 5) return;
    survivors->on_mail(one_mail(MailKind::kDecided, 1, 3));
    survivors->on_mail(sum_mail(MailKind::kDecidedSum, 1, {2, 3}));
  });
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, (DeadRanks{false, false, true, true}));
  EXPECT_EQ(turns, 5);
}

TEST_F(CclShrinkAgreement, Agree_DecisionWithoutThisRank_FailsWithEconnaborted) {
  const auto dead = agree([&](int turn) {
    if (turn != 2) return;
    survivors->on_mail(one_mail(MailKind::kDecided, 3, 0));
    survivors->on_mail(sum_mail(MailKind::kDecidedSum, 3, {0}));
  });
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code(), ECONNABORTED);
}

TEST_F(CclShrinkAgreement, Agree_RankIsSilentForTheLimit_CountsAsDead) {
  // Ranks 1 and 3 speak each time, and tell what they would by then. A look counts 200 ms at most, if this thread is
  // not let run.
  const auto dead = agree(
      [&](int turn) {
        for (const uint32_t rank : {1u, 3u}) survivors->on_mail(one_mail(MailKind::kAsk, rank, 0));
        if (turn > 2) send_sums({1, 3}, {2});
      },
      DeadRanks(4), 400 * kNsPerMs);
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, (DeadRanks{false, false, true, false}));
}

TEST_F(CclShrinkAgreement, Agree_ThisRankWasStopped_CountsNoneAsSilent) {
  // A stop counts as 200 ms at most, whatever it took.
  const auto dead = agree(
      [&](int turn) {
        if (turn == 1) usleep(500'000);  // sleep: this rank is stopped for so long
        if (turn == 2) send_sums({1, 2, 3}, {});
      },
      DeadRanks(4), 450 * kNsPerMs);
  ASSERT_TRUE(dead);
  EXPECT_EQ(*dead, DeadRanks(4));
}

TEST_F(CclShrinkAgreement, OnMail_AfterTheDecision_AnswersWithTheDecision) {
  const auto dead = agree([&](int) { send_sums({1, 3}, {2}); }, DeadRanks{false, false, true, false});
  ASSERT_TRUE(dead);
  Inbox asking;
  ASSERT_EQ(endpoint->enter(kId, 3, &asking), 0);
  survivors->on_mail(sum_mail(MailKind::kDeadSum, 3, {}));
  const auto has = [&](MailKind kind) {
    for (const Mail& mail : asking.mails())
      if (mail.kind == kind) return true;
    return false;
  };
  EXPECT_TRUE(eventually([&] { return has(MailKind::kDecidedSum); }));
  endpoint->leave(kId, 3);
  for (const Mail& mail : asking.mails()) {
    EXPECT_EQ(mail.from, 0u);
    if (mail.kind == MailKind::kDecided) {
      EXPECT_EQ(mail.dead, 2u);
    }
    if (mail.kind == MailKind::kDecidedSum) {
      EXPECT_EQ(mail.dead, 1u);
      EXPECT_EQ(mail.hash, sum_mail(MailKind::kDecidedSum, 0, {2}).hash);
    }
  }
  EXPECT_TRUE(has(MailKind::kDecided));
}

TEST(CclDerive, Derive_DifferentInputs_GiveDifferentIds) {
  const CommunicatorId id{1, 2};
  const std::vector<CommunicatorId> made = {derive(id, 1, 0),     derive(id, 0, 1),     derive(id, 2, 0),
                                            derive({2, 2}, 1, 0), derive({1, 3}, 1, 0), derive(id, 1, 1)};
  EXPECT_EQ(derive(id, 1, 0), made[0]) << "the same on all ranks";
  for (size_t a = 0; a < made.size(); ++a)
    for (size_t b = a + 1; b < made.size(); ++b) EXPECT_TRUE(made[a] != made[b] && made[a] != id) << a << " " << b;
}

}  // namespace
}  // namespace nupa::ccl
