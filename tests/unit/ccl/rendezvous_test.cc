// SPDX-License-Identifier: Apache-2.0
/// Tests of the rendezvous by a unique id.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous.h"
#include "ccl/bootstrap/kept_servers.h"
#include "rendezvous_support.h"
#include "../../support/soon.h"

namespace nupa::ccl {
namespace {

const RendezvousLimits kShortLimits{kShortNs, kShortNs};

TEST(CclUniqueId, EncodeAndDecode_IsEqual) {
  const auto root = root_with();
  const auto bytes = root->id().encode();
  const auto id = UniqueId::decode(bytes.data(), bytes.size());
  ASSERT_TRUE(id);
  EXPECT_EQ(id->secret, root->id().secret);
  EXPECT_EQ(id->port, root->id().port);
  EXPECT_EQ(id->addresses, root->id().addresses);
}

TEST(CclUniqueId, Decode_InvalidBytes_FailsWithEinval) {
  auto bytes = root_with()->id().encode();
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size() - 1).error().code(), EINVAL);
  auto none = bytes;
  none[26] = std::byte{0};
  EXPECT_EQ(UniqueId::decode(none.data(), none.size()).error().code(), EINVAL);
  none[26] = std::byte{7};
  EXPECT_EQ(UniqueId::decode(none.data(), none.size()).error().code(), EINVAL);
  bytes[0] = std::byte{0};
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size()).error().code(), EINVAL);
}

TEST(CclRendezvous, Join_AllRanks_GetAllPeerInfos) {
  for (const uint32_t world : {1u, 2u, 3u, 64u}) expect_complete_rendezvous(root_with()->id(), world);
}

TEST(CclRendezvous, ServerProcessIsKilled_ItsChildLives_ConnectionsAreClosed) {
  int port_of_root[2], connected[2], child_lives[2];
  ASSERT_EQ(pipe(port_of_root) | pipe(connected) | pipe(child_lives), 0);
  const pid_t process = fork();
  if (process == 0) {
    close(child_lives[1]);
    const auto root = root_with();
    char byte = 0;
    if (write(port_of_root[1], &root->id().port, sizeof(uint16_t)) != sizeof(uint16_t)) _exit(1);
    if (read(connected[0], &byte, 1) != 1) _exit(1);
    if (fork() == 0) {
      if (write(port_of_root[1], &byte, 1) == 1) (void)!read(child_lives[0], &byte, 1);
      _exit(0);
    }
    for (;;) pause();
  }
  UniqueId id;
  char byte = 0;
  ASSERT_EQ(read(port_of_root[0], &id.port, sizeof id.port), static_cast<ssize_t>(sizeof id.port));
  const base::UniqueFd rank = connect_to_server(id);
  ASSERT_EQ(write(connected[1], "", 1), 1);
  ASSERT_EQ(read(port_of_root[0], &byte, 1), 1);
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  pollfd ended{rank.get(), POLLIN, 0};
  constexpr int kSoonMs = 20'000;
  EXPECT_EQ(poll(&ended, 1, kSoonMs), 1);
  EXPECT_LE(recv(rank.get(), &byte, 1, MSG_DONTWAIT), 0);
  for (const int* ends : {port_of_root, connected, child_lives})
    for (const int end : {0, 1}) close(ends[end]);
}

TEST(CclRendezvous, Server_SeveralRendezvousAtATime_AllComplete) {
  const auto root = root_with();
  std::vector<std::thread> threads;
  for (uint64_t rendezvous = 0; rendezvous < 8; ++rendezvous)
    threads.emplace_back([&, rendezvous] { expect_complete_rendezvous(root->id(), 4, rendezvous << 40 | rendezvous); });
  for (auto& rendezvous : threads) rendezvous.join();
  EXPECT_EQ(join_rendezvous(root->id(), uint64_t{3} << 40 | 3, 0, 4, {}, kLongLimits).error().code(), EALREADY);
}

TEST(CclRendezvous, Rendezvous_WithMissingRanks_DoesNotDelayAnother) {
  const auto root = root_with(kShortNs);
  std::thread lonely(
      [&] { EXPECT_EQ(join_rendezvous(root->id(), 1, 0, 2, {}, kLongLimits).error().code(), ETIMEDOUT); });
  expect_complete_rendezvous(root->id(), 3, 2);
  lonely.join();
}

TEST(CclRendezvous, Join_AddressesOfTheHost_AreReachable) {
  auto root = RendezvousServer::start(kTimeoutNs);
  ASSERT_TRUE(root);
  EXPECT_EQ((*root)->id().addresses.back(), loopback());
  expect_complete_rendezvous((*root)->id(), 3);
}

TEST(CclRendezvous, Join_UnreachableAddress_IsSkipped) {
  Gid nowhere = loopback();
  nowhere.raw[12] = 240;  // reserved: no way leads there
  auto root = RendezvousServer::start(kTimeoutNs, {nowhere, loopback()});
  ASSERT_TRUE(root);
  expect_complete_rendezvous((*root)->id(), 2);
}

TEST(CclRendezvous, Join_RanksAreMissing_NamesThem) {
  const auto root = root_with(kShortNs);
  std::thread other(
      [&] { EXPECT_EQ(join_rendezvous(root->id(), 0, 4, 6, {}, kLongLimits).error().code(), ETIMEDOUT); });
  const auto peer_infos = join_rendezvous(root->id(), 0, 1, 6, {}, kLongLimits);
  other.join();
  ASSERT_FALSE(peer_infos);
  EXPECT_EQ(peer_infos.error().code(), ETIMEDOUT);
  EXPECT_STREQ(peer_infos.error().what(), "rendezvous of 6 ranks: missing: rank 0, 2, 3, 5");
}

TEST(CclRendezvous, Join_RankIsTaken_FailsWithEexist) {
  const auto root = root_with();
  // Whichever of the two was there first, until it gives up.
  std::thread first([&] {
    auto peer_infos = join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits);
    while (!peer_infos && peer_infos.error().code() == EEXIST)
      peer_infos = join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits);
    EXPECT_TRUE(peer_infos);
  });
  auto second = join_rendezvous(root->id(), 0, 0, 2, {}, kShortLimits);
  while (!second && second.error().code() == ETIMEDOUT) second = join_rendezvous(root->id(), 0, 0, 2, {}, kShortLimits);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), EEXIST) << second.error().what();
  EXPECT_TRUE(join_rendezvous(root->id(), 0, 1, 2, {}, kLongLimits));
  first.join();
}

TEST(CclRendezvous, Join_NumbersOfRanksDiffer_FailsWithEinval) {
  const auto root = root_with();
  EXPECT_EQ(join_rendezvous(root->id(), 0, 2, 2, {}, kLongLimits).error().code(), EINVAL);
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 0, {}, kLongLimits).error().code(), EINVAL);
  // Whichever of the two was there first, until it gives up.
  std::thread first([&] {
    auto peer_infos = join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits);
    while (!peer_infos && peer_infos.error().code() == EINVAL)
      peer_infos = join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits);
    EXPECT_TRUE(peer_infos);
  });
  auto other = join_rendezvous(root->id(), 0, 0, 3, {}, kShortLimits);
  while (!other && other.error().code() == ETIMEDOUT) other = join_rendezvous(root->id(), 0, 0, 3, {}, kShortLimits);
  EXPECT_EQ(other.error().code(), EINVAL);
  EXPECT_NE(std::string_view(other.error().what()).find("other ranks with 2"), std::string::npos)
      << other.error().what();
  EXPECT_TRUE(join_rendezvous(root->id(), 0, 1, 2, {}, kLongLimits));
  first.join();
}

TEST(CclRendezvous, Join_AgainAfterATimeout_Succeeds) {
  const auto root = root_with();
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 2, {}, kShortLimits).error().code(), ETIMEDOUT);
  expect_complete_rendezvous(root->id(), 2);
}

TEST(CclRendezvous, Join_WrongSecret_IsRejected) {
  const auto root = root_with();
  UniqueId wrong = root->id();
  wrong.secret[3] ^= 1;
  EXPECT_EQ(join_rendezvous(wrong, 0, 0, 2, {}, kLongLimits).error().code(), ECONNABORTED);
  expect_complete_rendezvous(root->id(), 2);
}

TEST(CclRendezvous, UnknownClients_DoNotDelayRanks) {
  const auto root = root_with();
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(connect_to_server(root->id()));
  const base::UniqueFd loud = connect_to_server(root->id());
  const std::string nonsense(100'000, 'x');
  (void)!send(loud.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  const base::UniqueFd half = connect_to_server(root->id());
  (void)!send(half.get(), "UN", 2, MSG_NOSIGNAL);
  expect_complete_rendezvous(root->id(), 8);
}

TEST(CclRendezvous, Join_ServerExits_FailsAtOnce) {
  auto root = root_with();
  const UniqueId id = root->id();
  std::atomic<pid_t> thread{0};
  std::thread rank([&] {
    thread = gettid();
    EXPECT_EQ(join_rendezvous(id, 0, 0, 2, {}, kLongLimits).error().code(), ECONNABORTED);
  });
  EXPECT_TRUE(test::soon([&] { return thread != 0 && has_connection_to(id) && test::stands_still(thread); }));
  root.reset();
  rank.join();
  const int64_t began = base::now_ns();
  EXPECT_EQ(join_rendezvous(id, 0, 0, 2, {}, kLongLimits).error().code(), ECONNREFUSED);
  EXPECT_LT(base::now_ns() - began, kTimeoutNs) << "no rank waits for a server that has exited";
}

TEST(CclRendezvous, PeerInfo_BeyondTheLimit_IsRejected) {
  const auto root = root_with();
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 1, PeerInfoBytes(kMaxPeerInfoBytes + 1), kLongLimits).error().code(),
            EINVAL);
  const auto peer_infos =
      join_rendezvous(root->id(), 0, 0, 1, PeerInfoBytes(kMaxPeerInfoBytes, std::byte{9}), kLongLimits);
  ASSERT_TRUE(peer_infos) << peer_infos.error().what();
  EXPECT_EQ(peer_infos->peer_infos[0].size(), kMaxPeerInfoBytes);
}

TEST(CclNextRendezvous, JoinNext_EarlierRendezvousAreOver_TakesTheNext) {
  const auto root = root_with();
  expect_complete_rendezvous(root->id(), 1, 0);
  expect_complete_rendezvous(root->id(), 1, 1);
  for (int i = 0; i < 2; ++i) {
    const auto joined = join_next_rendezvous(root->id(), 0, 1, {}, kTimeoutNs);
    ASSERT_TRUE(joined) << joined.error().what();
  }
  EXPECT_EQ(join_rendezvous(root->id(), 3, 0, 1, {}, kLongLimits).error().code(), EALREADY)
      << "they were rendezvous 2 and 3";
  EXPECT_TRUE(join_rendezvous(root->id(), 4, 0, 1, {}, kLongLimits));
  EXPECT_EQ(join_next_rendezvous(root->id(), 1, 1, {}, kTimeoutNs).error().code(), EINVAL);
}

TEST(CclNextRendezvous, JoinNext_LimitBelowTheServers_NamesTheMissingRanks) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  const auto root = root_with();
  const auto joined = join_next_rendezvous(root->id(), 0, 3, {}, kSecondNs);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ETIMEDOUT);
  EXPECT_STREQ(joined.error().what(), "rendezvous of 3 ranks: missing: rank 1, 2");
}

TEST(CclNextRendezvous, JoinNext_OneRankWasLate_SucceedsTheNextTime) {
  constexpr int64_t kSecondNs = 1'000'000'000;
  const auto root = root_with();
  EXPECT_EQ(join_next_rendezvous(root->id(), 0, 2, {}, kSecondNs).error().code(), ETIMEDOUT);
  std::thread late([&] { EXPECT_TRUE(join_next_rendezvous(root->id(), 1, 2, {}, kTimeoutNs)); });
  EXPECT_TRUE(join_next_rendezvous(root->id(), 0, 2, {}, kTimeoutNs));
  late.join();
}

TEST(CclNextRendezvous, JoinNext_RendezvousFailedHere_UsesItsNumberAgain) {
  const auto root = root_with();
  EXPECT_EQ(join_next_rendezvous(root->id(), 0, 1, PeerInfoBytes(kMaxPeerInfoBytes + 1), kTimeoutNs).error().code(),
            EINVAL);
  ASSERT_TRUE(join_next_rendezvous(root->id(), 0, 1, {}, kTimeoutNs));
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 1, {}, kLongLimits).error().code(), EALREADY) << "it was rendezvous 0";
  EXPECT_TRUE(join_rendezvous(root->id(), 1, 0, 1, {}, kLongLimits));
}

TEST(CclUniqueId, TextAndFromText_IsEqual) {
  const auto root = root_with();
  const std::string text = root->id().text();
  EXPECT_EQ(text.size(), 256u);
  const auto id = UniqueId::from_text(text);
  ASSERT_TRUE(id);
  EXPECT_EQ(id->encode(), root->id().encode());
  EXPECT_EQ(UniqueId::from_text(text.substr(1)).error().code(), EINVAL);
  EXPECT_EQ(UniqueId::from_text(text + "0").error().code(), EINVAL);
  for (const size_t at : {size_t{0}, size_t{1}, text.size() - 2, text.size() - 1}) {
    std::string wrong = text;
    wrong[at] = 'g';
    EXPECT_EQ(UniqueId::from_text(wrong).error().code(), EINVAL) << at;
  }
}

TEST(CclUniqueId, Encode_SevenAddresses_KeepsThePortAndSixAddresses) {
  UniqueId id{{}, 0x1234, std::vector<Gid>(7, loopback())};
  auto bytes = id.encode();
  EXPECT_EQ(bytes[24], std::byte{0x12}) << "in network order";
  EXPECT_EQ(bytes[25], std::byte{0x34});
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size())->addresses.size(), 6u);
  bytes[24] = bytes[25] = std::byte{};
  EXPECT_EQ(UniqueId::decode(bytes.data(), bytes.size()).error().code(), EINVAL);
}

}  // namespace
}  // namespace nupa::ccl
