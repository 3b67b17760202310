/// Ranks that find each other by a unique id, and everything that may be wrong with that.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ccl/start/meeting.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kPatienceNs = 30'000'000'000;
constexpr int64_t kShortNs = 300'000'000;
const Patience kPatient{kPatienceNs, kPatienceNs};
const Patience kHasty{kShortNs, kShortNs};

Gid loopback() { return {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}; }

Card card_of(uint32_t rank) {
  // Of different lengths, the first one empty.
  Card card(rank % 100);
  for (size_t i = 0; i < card.size(); ++i) card[i] = static_cast<std::byte>(rank + i);
  return card;
}

std::unique_ptr<MeetingRoot> root_here(int64_t limit_ns = kPatienceNs) {
  auto root = MeetingRoot::start(limit_ns, {loopback()});
  EXPECT_TRUE(root) << root.error().text;
  return root ? std::move(*root) : nullptr;
}

/// A connection that is no rank's.
base::UniqueFd stranger(const UniqueId& id) {
  base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(id.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return fd;
}

void expect_whole_meeting(const UniqueId& id, uint32_t world, uint64_t meeting = 0) {
  std::vector<std::thread> ranks;
  std::atomic<uint32_t> right{0};
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      const auto cards = meet(id, meeting, rank, world, card_of(rank), kPatient);
      ASSERT_TRUE(cards) << cards.error().text;
      ASSERT_EQ(cards->cards.size(), world);
      for (uint32_t other = 0; other < world; ++other) ASSERT_EQ(cards->cards[other], card_of(other));
      ++right;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(right, world);
}

TEST(CclUniqueId, ComesBackFromItsBytes) {
  const auto root = root_here();
  const auto bytes = root->id().encode();
  const auto id = UniqueId::decode(bytes.data(), bytes.size());
  ASSERT_TRUE(id);
  EXPECT_EQ(id->secret, root->id().secret);
  EXPECT_EQ(id->port, root->id().port);
  EXPECT_EQ(id->addresses, root->id().addresses);
}

TEST(CclUniqueId, OtherBytesAreRefused) {
  auto bytes = root_here()->id().encode();
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size() - 1).error().code, EINVAL);
  auto none = bytes;
  none[26] = std::byte{0};
  EXPECT_EQ(UniqueId::decode(none.data(), none.size()).error().code, EINVAL);
  none[26] = std::byte{7};
  EXPECT_EQ(UniqueId::decode(none.data(), none.size()).error().code, EINVAL);
  bytes[0] = std::byte{0};
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size()).error().code, EINVAL);
}

TEST(CclMeeting, EachRankGetsAllCards) {
  for (const uint32_t world : {1u, 2u, 3u, 64u}) expect_whole_meeting(root_here()->id(), world);
}

TEST(CclMeeting, ARootHoldsManyMeetings) {
  const auto root = root_here();
  std::vector<std::thread> meetings;
  for (uint64_t meeting = 0; meeting < 8; ++meeting)
    meetings.emplace_back([&, meeting] { expect_whole_meeting(root->id(), 4, meeting << 40 | meeting); });
  for (auto& meeting : meetings) meeting.join();
  EXPECT_EQ(meet(root->id(), uint64_t{3} << 40 | 3, 0, 4, {}, kPatient).error().code, EALREADY);
}

TEST(CclMeeting, OneThatLacksRanksIsNotInTheWayOfAnother) {
  const auto root = root_here(kShortNs);
  std::thread lonely([&] { EXPECT_EQ(meet(root->id(), 1, 0, 2, {}, kPatient).error().code, ETIMEDOUT); });
  expect_whole_meeting(root->id(), 3, 2);
  lonely.join();
}

TEST(CclMeeting, IsFoundByTheAddressesOfTheHost) {
  auto root = MeetingRoot::start(kPatienceNs);
  ASSERT_TRUE(root);
  EXPECT_EQ((*root)->id().addresses.back(), loopback());
  expect_whole_meeting((*root)->id(), 3);
}

TEST(CclMeeting, AnAddressThatLeadsNowhereIsPassedBy) {
  Gid nowhere = loopback();
  nowhere.raw[12] = 240;  // reserved: no way leads there
  auto root = MeetingRoot::start(kPatienceNs, {nowhere, loopback()});
  ASSERT_TRUE(root);
  expect_whole_meeting((*root)->id(), 2);
}

TEST(CclMeeting, MissingRanksAreNamed) {
  const auto root = root_here(kShortNs);
  std::thread other([&] { EXPECT_EQ(meet(root->id(), 0, 4, 6, {}, kPatient).error().code, ETIMEDOUT); });
  const auto cards = meet(root->id(), 0, 1, 6, {}, kPatient);
  other.join();
  ASSERT_FALSE(cards);
  EXPECT_EQ(cards.error().code, ETIMEDOUT);
  EXPECT_EQ(cards.error().text, "the meeting of 6 ranks: missing: rank 0, 2, 3, 5");
}

TEST(CclMeeting, OneRankCannotBeTwo) {
  const auto root = root_here();
  // Whichever of the two was there first, until it gives up.
  std::thread first([&] {
    auto cards = meet(root->id(), 0, 0, 2, {}, kPatient);
    while (!cards && cards.error().code == EEXIST) cards = meet(root->id(), 0, 0, 2, {}, kPatient);
    EXPECT_TRUE(cards);
  });
  auto second = meet(root->id(), 0, 0, 2, {}, kHasty);
  while (!second && second.error().code == ETIMEDOUT) second = meet(root->id(), 0, 0, 2, {}, kHasty);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EEXIST) << second.error().text;
  EXPECT_TRUE(meet(root->id(), 0, 1, 2, {}, kPatient));
  first.join();
}

TEST(CclMeeting, RanksAgreeOnTheirNumber) {
  const auto root = root_here();
  EXPECT_EQ(meet(root->id(), 0, 2, 2, {}, kPatient).error().code, EINVAL);
  EXPECT_EQ(meet(root->id(), 0, 0, 0, {}, kPatient).error().code, EINVAL);
  // Whichever of the two was there first, until it gives up.
  std::thread first([&] {
    auto cards = meet(root->id(), 0, 0, 2, {}, kPatient);
    while (!cards && cards.error().code == EINVAL) cards = meet(root->id(), 0, 0, 2, {}, kPatient);
    EXPECT_TRUE(cards);
  });
  auto other = meet(root->id(), 0, 0, 3, {}, kHasty);
  while (!other && other.error().code == ETIMEDOUT) other = meet(root->id(), 0, 0, 3, {}, kHasty);
  EXPECT_EQ(other.error().code, EINVAL);
  EXPECT_NE(other.error().text.find("others say 2"), std::string::npos) << other.error().text;
  EXPECT_TRUE(meet(root->id(), 0, 1, 2, {}, kPatient));
  first.join();
}

TEST(CclMeeting, ARankThatGaveUpMayComeAgain) {
  const auto root = root_here();
  EXPECT_EQ(meet(root->id(), 0, 0, 2, {}, kHasty).error().code, ETIMEDOUT);
  expect_whole_meeting(root->id(), 2);
}

TEST(CclMeeting, WhoDoesNotKnowTheSecretIsNotHeard) {
  const auto root = root_here();
  UniqueId wrong = root->id();
  wrong.secret[3] ^= 1;
  EXPECT_EQ(meet(wrong, 0, 0, 2, {}, kPatient).error().code, ECONNABORTED);
  expect_whole_meeting(root->id(), 2);
}

TEST(CclMeeting, StrangersAreInNobodysWay) {
  const auto root = root_here();
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(stranger(root->id()));
  const base::UniqueFd loud = stranger(root->id());
  const std::string nonsense(100'000, 'x');
  (void)!send(loud.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  const base::UniqueFd half = stranger(root->id());
  (void)!send(half.get(), "UN", 2, MSG_NOSIGNAL);
  expect_whole_meeting(root->id(), 8);
}

TEST(CclMeeting, ARootThatGoesIsNoticed) {
  auto root = root_here();
  const UniqueId id = root->id();
  std::thread rank([&] { EXPECT_EQ(meet(id, 0, 0, 2, {}, kPatient).error().code, ECONNABORTED); });
  usleep(100'000);
  root.reset();
  rank.join();
  const int64_t began = base::now_ns();
  EXPECT_EQ(meet(id, 0, 0, 2, {}, kPatient).error().code, ECONNREFUSED);
  EXPECT_LT(base::now_ns() - began, kPatienceNs) << "nobody waits for one that is gone";
}

TEST(CclMeeting, ACardHasALimit) {
  const auto root = root_here();
  EXPECT_EQ(meet(root->id(), 0, 0, 1, Card(kMaxCardBytes + 1), kPatient).error().code, EINVAL);
  const auto cards = meet(root->id(), 0, 0, 1, Card(kMaxCardBytes, std::byte{9}), kPatient);
  ASSERT_TRUE(cards) << cards.error().text;
  EXPECT_EQ(cards->cards[0].size(), kMaxCardBytes);
}

}  // namespace
}  // namespace nupa::ccl
