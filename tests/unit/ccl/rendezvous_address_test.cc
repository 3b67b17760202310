// SPDX-License-Identifier: Apache-2.0
/// Tests of the rendezvous at a known port or file: ranks in any order, one job after another, and missing ranks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/gid.h"
#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous_address.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr int64_t kShortNs = 1'500'000'000;
constexpr useconds_t kLateUs = 1'300'000;  // clients have given up the port once by then, and try again

PeerInfoBytes peer_info_of(uint32_t rank) { return PeerInfoBytes(rank + 1, static_cast<std::byte>(rank)); }

uint16_t free_port() {
  const base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &length), 0);
  return ntohs(any.sin_port);
}

RendezvousAddress at_port(const std::string& host = "127.0.0.1") { return {host, free_port(), "", ""}; }

Error why(const Result<RendezvousResult>& joined) { return joined ? Error{0, "no fault"} : joined.error(); }

/// A folder of this test's own.
class CclRendezvousFile : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override {
    unlink(path().c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << "something is left in " << folder_;
  }
  std::string path() const { return folder_ + "/job"; }
  RendezvousAddress place() const { return {"", 0, "", path()}; }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  bool is_there() const { return ::access(path().c_str(), F_OK) == 0; }

 private:
  std::string folder_ = testing::TempDir() + "nupa-place-XXXXXX";
};

/// The name that a rendezvous of `world` ranks gives; rank 0 joins late.
std::string run_rendezvous(const RendezvousAddress& place, uint32_t world, useconds_t late_us = 0) {
  std::vector<std::thread> ranks;
  std::vector<std::string> names(world);
  for (uint32_t rank = 0; rank < world; ++rank)
    ranks.emplace_back([&, rank] {
      if (rank == 0) usleep(late_us);  // sleep: rank 0 is late
      const auto joined = join_rendezvous_at(place, rank, world, peer_info_of(rank), kTimeoutNs);
      ASSERT_TRUE(joined) << "rank " << rank << ": " << joined.error().what();
      ASSERT_EQ(joined->peer_infos.size(), world);
      for (uint32_t other = 0; other < world; ++other) ASSERT_EQ(joined->peer_infos[other], peer_info_of(other));
      names[rank].assign(reinterpret_cast<const char*>(&joined->name), sizeof joined->name);
    });
  for (auto& rank : ranks) rank.join();
  for (const std::string& name : names) EXPECT_EQ(name, names[0]);
  EXPECT_EQ(names[0].size(), sizeof(RendezvousResult::name));
  return names[0];
}

/// Ranks 0 and 2 of 4 join: both get an error that names the missing ranks, soon after the limit.
void expect_missing_named(const RendezvousAddress& place) {
  const int64_t began = base::now_ns();
  std::vector<std::thread> ranks;
  for (const uint32_t rank : {0u, 2u})
    ranks.emplace_back([&, rank] {
      const auto joined = join_rendezvous_at(place, rank, 4, {}, kShortNs);
      ASSERT_FALSE(joined);
      EXPECT_EQ(joined.error().code(), ETIMEDOUT);
      EXPECT_NE(std::string_view(joined.error().what()).find("missing: rank 1, 3"), std::string::npos)
          << joined.error().what();
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_LT(base::now_ns() - began, kShortNs + kAnswerNs);
}

TEST(CclRendezvousAddress, Parse_ValidText_GivesHostPortKeyAndPath) {
  auto place = RendezvousAddress::parse("tcp://node-7.cluster:29500");
  ASSERT_TRUE(place) << place.error().what();
  EXPECT_EQ(place->host, "node-7.cluster");
  EXPECT_EQ(place->port, 29500);
  EXPECT_EQ(place->key, "");
  place = RendezvousAddress::parse("tcp://[fe80::1:2]:1?key=a?b:c");
  ASSERT_TRUE(place) << place.error().what();
  EXPECT_EQ(place->host, "fe80::1:2");
  EXPECT_EQ(place->port, 1);
  EXPECT_EQ(place->key, "a?b:c");
  place = RendezvousAddress::parse("file:///shared/a job");
  ASSERT_TRUE(place) << place.error().what();
  EXPECT_EQ(place->path, "/shared/a job");
}

TEST(CclRendezvousAddress, Parse_InvalidText_FailsWithEinval) {
  for (const char* text : {"", "tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://host:0", "tcp://host:65536",
                           "tcp://host:1x", "tcp://host:-1", "tcp://::1:80", "tcp://host:1?key=", "tcp://host:1?kee=a",
                           "host:1", "file://relative", "file://", "file:///folder/", "/path", "http://host:1"}) {
    const auto place = RendezvousAddress::parse(text);
    ASSERT_FALSE(place) << text;
    EXPECT_EQ(place.error().code(), EINVAL) << text;
  }
}

TEST(CclRendezvousPort, Join_RanksInAnyOrder_GetAllPeerInfos) {
  run_rendezvous(at_port(), 1);
  run_rendezvous(at_port(), 5);
  run_rendezvous(at_port(), 3, kLateUs);
}

TEST(CclRendezvousPort, Join_HostName_IsResolvedUntilTheTimeout) {
  run_rendezvous(at_port("localhost"), 3);
  const auto joined = join_rendezvous_at(at_port("no-such-name.invalid"), 1, 2, {}, kShortNs);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), EHOSTUNREACH);
  EXPECT_NE(std::string_view(joined.error().what()).find("no-such-name.invalid"), std::string::npos)
      << joined.error().what();
  // Until its limit it has come again: the name may be known only when rank 0 is there.
  EXPECT_NE(std::string_view(joined.error().what()).find("rank 0 did not join"), std::string::npos)
      << joined.error().what();
}

TEST(CclRendezvousPort, Join_Ipv6Address_Succeeds) {
  const base::UniqueFd fd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  if (!fd || bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0)
    GTEST_SKIP() << "this machine has no IPv6";
  run_rendezvous(at_port("::1"), 3);
}

TEST(CclRendezvousPort, Join_TwoJobsAtOnePort_GetDifferentNames) {
  const RendezvousAddress place = at_port();
  const std::string first = run_rendezvous(place, 3);
  const std::string second = run_rendezvous(place, 2);
  EXPECT_NE(first, second) << "what is sent in one must not be taken for the other's";
}

TEST(CclRendezvousPort, Join_OneRendezvousAfterAnotherWithoutAPause_Succeeds) {
  const RendezvousAddress place = at_port();
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      for (int i = 0; i < 10; ++i) {
        const auto joined = join_rendezvous_at(place, rank, 4, peer_info_of(rank), kTimeoutNs);
        ASSERT_TRUE(joined) << "rank " << rank << ", rendezvous " << i << ": " << joined.error().what();
      }
    });
  for (auto& rank : ranks) rank.join();
}

TEST(CclRendezvousPort, Join_RanksAreMissing_NamesThem) { expect_missing_named(at_port()); }

TEST(CclRendezvousPort, Join_WithoutRankZero_TimesOut) {
  const auto joined = join_rendezvous_at(at_port(), 1, 2, {}, kShortNs);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ECONNREFUSED);
  EXPECT_NE(std::string_view(joined.error().what()).find("rank 0 did not join"), std::string::npos)
      << joined.error().what();
}

TEST(CclRendezvousPort, Join_WrongKey_IsRejected) {
  RendezvousAddress place = at_port();
  place.key = "right";
  RendezvousAddress other = place;
  other.key = "wrong";
  std::thread unknown([&] {
    const auto joined = join_rendezvous_at(other, 1, 2, {}, kTimeoutNs);
    EXPECT_EQ(why(joined).code(), ECONNABORTED);
    EXPECT_NE(std::string_view(why(joined).what()).find("key"), std::string::npos);
  });
  std::thread first([&] { EXPECT_TRUE(join_rendezvous_at(place, 0, 2, {}, kTimeoutNs)); });
  unknown.join();
  EXPECT_TRUE(join_rendezvous_at(place, 1, 2, {}, kTimeoutNs));
  first.join();
}

TEST(CclRendezvousPort, Join_RankZeroCannotListen_ReturnsTheError) {
  EXPECT_EQ(why(join_rendezvous_at(at_port("192.0.2.1"), 0, 2, {}, kShortNs)).code(), EADDRNOTAVAIL);
  const RendezvousAddress place = at_port();
  const base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in taken{};
  taken.sin_family = AF_INET;
  taken.sin_port = htons(place.port);
  taken.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&taken), sizeof taken), 0);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  EXPECT_EQ(why(join_rendezvous_at(place, 0, 2, {}, kShortNs)).code(), EADDRINUSE);
}

TEST_F(CclRendezvousFile, Join_RanksInAnyOrder_GetAllPeerInfos) {
  run_rendezvous(place(), 1);
  EXPECT_FALSE(is_there());
  run_rendezvous(place(), 5);
  run_rendezvous(place(), 3, kLateUs);
  EXPECT_FALSE(is_there());
}

TEST_F(CclRendezvousFile, Join_TwoJobsByOneFile_GetDifferentNames) {
  EXPECT_NE(run_rendezvous(place(), 3), run_rendezvous(place(), 2));
}

TEST_F(CclRendezvousFile, Join_FileOfTheRendezvous_HasModeOwnerOnly) {
  std::thread first([&] { EXPECT_TRUE(join_rendezvous_at(place(), 0, 2, {}, kTimeoutNs)); });
  while (!is_there()) usleep(1000);
  struct stat about;
  EXPECT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  EXPECT_TRUE(join_rendezvous_at(place(), 1, 2, {}, kTimeoutNs));
  first.join();
}

TEST_F(CclRendezvousFile, Join_FileRewrittenByAnotherJob_IsNotRemoved) {
  std::thread first([&] { EXPECT_TRUE(join_rendezvous_at(place(), 0, 2, {}, kTimeoutNs)); });
  std::string text;
  while (text.size() != 2 * UniqueId::kBytes) {
    std::ifstream file(path());
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  write("another job's");
  const auto id = UniqueId::from_text(text);
  ASSERT_TRUE(id);
  EXPECT_TRUE(join_rendezvous(*id, 0, 1, 2, {}, {kTimeoutNs, kTimeoutNs}));
  first.join();
  EXPECT_TRUE(is_there());
}

TEST_F(CclRendezvousFile, Join_FileOfAServerThatHasExited_IsReplaced) {
  auto gone = RendezvousServer::start(kTimeoutNs);
  ASSERT_TRUE(gone);
  write((*gone)->id().text());
  gone->reset();
  run_rendezvous(place(), 3, kLateUs);
}

/// Another program may have got the port of a job before, and may never answer.
TEST_F(CclRendezvousFile, Join_FileNamesThePortOfAnotherProgram_IsReplaced) {
  const base::UniqueFd silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  ASSERT_EQ(listen(silent.get(), 16), 0);
  ASSERT_EQ(getsockname(silent.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  const Gid loopback = base::ipv4_gid(127, 0, 0, 1);
  write(UniqueId{{}, ntohs(at.sin_port), {loopback}}.text());
  run_rendezvous(place(), 3, kLateUs);
}

TEST_F(CclRendezvousFile, Join_FileWithoutAValidId_IsReplaced) {
  write("half of a file");
  run_rendezvous(place(), 2, kLateUs / 4);
}

TEST_F(CclRendezvousFile, Join_RanksAreMissing_NamesThem) {
  expect_missing_named(place());
  EXPECT_FALSE(is_there());
}

TEST_F(CclRendezvousFile, Join_WithoutRankZero_TimesOut) {
  const auto joined = join_rendezvous_at(place(), 1, 2, {}, kShortNs);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code(), ETIMEDOUT);
  EXPECT_NE(std::string_view(joined.error().what()).find(path() + " names no server"), std::string::npos)
      << joined.error().what();
}

TEST_F(CclRendezvousFile, Join_FileOfAnotherUser_FailsWithEacces) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  write("");
  ASSERT_EQ(chown(path().c_str(), 12345, 12345), 0);
  EXPECT_EQ(why(join_rendezvous_at(place(), 1, 2, {}, kShortNs)).code(), EACCES);
}

TEST_F(CclRendezvousFile, Join_FolderDoesNotExist_FailsWithEnoent) {
  const RendezvousAddress nowhere{"", 0, "", path() + "/none/file"};
  EXPECT_EQ(why(join_rendezvous_at(nowhere, 0, 2, {}, kShortNs)).code(), ENOENT);
}

}  // namespace
}  // namespace nupa::ccl
