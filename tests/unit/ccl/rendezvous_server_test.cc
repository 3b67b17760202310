// SPDX-License-Identifier: Apache-2.0
/// What anybody may say to the root of a meeting, and what a root says to a rank.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "ccl/bootstrap/rendezvous_members.h"
#include "ccl/bootstrap/rendezvous.h"
#include "ccl/bootstrap/rendezvous_wire.h"
#include "rendezvous_support.h"
#include "../../support/soon.h"

namespace nupa::ccl {
namespace {

// ---- what anybody may say to a root --------------------------------------------------------------------------------

/// What a rank says, as bytes.
std::vector<std::byte> telling_of(const UniqueId& id, uint64_t rendezvous, uint32_t rank, uint32_t world,
                                  const PeerInfoBytes& peer_info) {
  std::vector<std::byte> telling(kRequestBytes + peer_info.size());
  write_at(&telling, kMagicAt, kRendezvousMagic);
  write_at(&telling, kVersionAt, kRendezvousVersion);
  write_at(&telling, kSecretAt, id.secret);
  write_at(&telling, kRendezvousAt, rendezvous);
  write_at(&telling, kRankAt, rank);
  write_at(&telling, kWorldAt, world);
  write_at(&telling, kLengthAt, static_cast<uint32_t>(peer_info.size()));
  std::copy(peer_info.begin(), peer_info.end(), telling.begin() + kRequestBytes);
  return telling;
}

/// All that the root says until it closes, or -1: nothing is said within the limit.
struct Heard {
  int status = -1;
  std::string text;
};

Heard hear(const base::UniqueFd& fd) {
  timeval limit{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::vector<std::byte> all;
  std::byte buffer[4096];
  while (true) {
    const ssize_t got = recv(fd.get(), buffer, sizeof buffer, 0);
    EXPECT_FALSE(got < 0 && errno == EAGAIN) << "the root says nothing and does not close";
    if (got <= 0) break;
    all.insert(all.end(), buffer, buffer + got);
  }
  if (all.size() < kAnswerBytes) return {};
  EXPECT_EQ(read_at<uint32_t>(all, 4), all.size() - kAnswerBytes);
  return {static_cast<int>(read_at<uint32_t>(all, 0)),
          {reinterpret_cast<const char*>(all.data()) + kAnswerBytes, all.size() - kAnswerBytes}};
}

TEST(CclRendezvousServer, InvalidRank_GetsAnError) {
  const auto root = root_with();
  struct Wrong {
    uint32_t rank, world;
  };
  for (const Wrong& wrong : {Wrong{2, 2}, Wrong{0, 0}, Wrong{UINT32_MAX, 2}, Wrong{0, kMaxRanks + 1}}) {
    const base::UniqueFd fd = stranger(root->id());
    say(fd, telling_of(root->id(), 0, wrong.rank, wrong.world, {}));
    const Heard heard = hear(fd);
    EXPECT_EQ(heard.status, EINVAL) << wrong.rank << " of " << wrong.world;
    EXPECT_NE(heard.text.find("is out of range"), std::string::npos) << heard.text;
  }
  auto other = telling_of(root->id(), 0, 0, 2, {});
  write_at(&other, kVersionAt, static_cast<uint16_t>(kRendezvousVersion + 1));
  const base::UniqueFd fd = stranger(root->id());
  say(fd, other);
  EXPECT_EQ(hear(fd).status, EINVAL);
  expect_whole_meeting(root->id(), 2);
}

TEST(CclRendezvousServer, WhoeverDoesNotSpeakItsLanguageIsSentAway) {
  const auto root = root_with();
  std::vector<std::vector<std::byte>> wrong(4, telling_of(root->id(), 0, 0, 1, {}));
  write_at(&wrong[0], kMagicAt, kRendezvousMagic ^ 1);
  write_at(&wrong[1], kLengthAt, kMaxPeerInfoBytes + 1);
  wrong[2][kSecretAt] ^= std::byte{1};
  wrong[3][kSecretAt + 15] ^= std::byte{1};
  for (const auto& one : wrong) {
    const base::UniqueFd fd = stranger(root->id());
    say(fd, one);
    EXPECT_EQ(hear(fd).status, -1);
  }
  // More than the longest card.
  auto longest = telling_of(root->id(), 0, 0, 1, PeerInfoBytes(kMaxPeerInfoBytes));
  longest.push_back({});
  const base::UniqueFd fd = stranger(root->id());
  say(fd, longest);
  EXPECT_EQ(hear(fd).status, -1);
  expect_whole_meeting(root->id(), 1);
}

TEST(CclRendezvousServer, ASilentConnectionIsClosed) {
  auto root = RendezvousServer::start(kTimeoutNs, {loopback()}, kShortNs);
  ASSERT_TRUE(root) << root.error().what();
  EXPECT_EQ(hear(stranger((*root)->id())).status, -1);
}

/// Nanoseconds of processor time that this process has had.
int64_t processor_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1'000'000'000) + t.tv_nsec;
}

TEST(CclRendezvousServer, WithoutADescriptorForARank_SleepsUntilThereIsOne) {
  const auto root = root_with();
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit one_more{static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const base::UniqueFd fd = stranger(root->id());
  const int64_t since = processor_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // sleep: the processor time of so long is measured
  const int64_t used = processor_ns() - since;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(used, 100'000'000) << "it looks at its listener again and again";
  say(fd, telling_of(root->id(), 0, 0, 1, {}));
  EXPECT_EQ(hear(fd).status, 0);
}

TEST(CclRendezvousServer, WhatIsSaidByteAfterByteIsHeard) {
  const auto root = root_with();
  const PeerInfoBytes peer_info(7, std::byte{5});
  const auto telling = telling_of(root->id(), 0, 0, 1, peer_info);
  const base::UniqueFd fd = stranger(root->id());
  for (const std::byte byte : telling) {
    say(fd, {byte});
    std::this_thread::yield();
  }
  const Heard heard = hear(fd);
  EXPECT_EQ(heard.status, 0);
  EXPECT_EQ(heard.text.size(), kNameBytes + 4 + peer_info.size());
}

TEST(CclRendezvousServer, PeerInfo_HasTheLengthThatTheRequestStates) {
  const auto root = root_with();
  auto telling = telling_of(root->id(), 0, 0, 1, PeerInfoBytes(5, std::byte{5}));
  write_at(&telling, kLengthAt, uint32_t{3});
  const base::UniqueFd fd = stranger(root->id());
  say(fd, telling);
  EXPECT_EQ(hear(fd).text.substr(kNameBytes), std::string("\3\0\0\0\5\5\5", 7));
}

TEST(CclRendezvousServer, ASecondOfOneRankLeavesTheFirstOneThere) {
  const auto root = root_with();
  const base::UniqueFd first = stranger(root->id());
  say(first, telling_of(root->id(), 0, 1, 2, PeerInfoBytes(3, std::byte{1})));
  const base::UniqueFd second = stranger(root->id());
  say(second, telling_of(root->id(), 0, 1, 2, PeerInfoBytes(4, std::byte{2})));
  const Heard heard = hear(second);
  EXPECT_EQ(heard.status, EEXIST);
  EXPECT_EQ(heard.text, "another process has joined as rank 1");
  const auto joined = join_rendezvous(root->id(), 0, 0, 2, {}, kPatient);
  ASSERT_TRUE(joined) << joined.error().what();
  EXPECT_EQ(joined->peer_infos[1], PeerInfoBytes(3, std::byte{1}));
  EXPECT_EQ(hear(first).status, 0);
}

TEST(CclRendezvousServer, RendezvousWithMissingRanks_Ends) {
  const auto root = root_with(kShortNs / 3);
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 2, {}, kPatient).error().code(), ETIMEDOUT);
  EXPECT_EQ(join_rendezvous(root->id(), 0, 1, 2, {}, kPatient).error().code(), EALREADY);
}

TEST(CclRendezvousServer, RendezvousThatAllHaveLeft_BeginsAgainWithAnotherNumberOfRanks) {
  const auto root = root_with();
  const base::UniqueFd first = stranger(root->id());
  say(first, telling_of(root->id(), 0, 0, 3, {}));
  const base::UniqueFd second = stranger(root->id());
  say(second, telling_of(root->id(), 0, 0, 3, {}));
  EXPECT_EQ(hear(second).status, EEXIST) << "the first one does not take part";
  // The root closes its end when the rank has left.
  ASSERT_EQ(shutdown(first.get(), SHUT_WR), 0);
  EXPECT_EQ(hear(first).status, -1);
  expect_whole_meeting(root->id(), 2);
}

TEST(CclRendezvousServer, LargeTablesComeWhole) {
  constexpr uint32_t kWorld = 48;
  const auto root = root_with();
  std::vector<std::thread> ranks;
  std::atomic<uint32_t> right{0};
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    ranks.emplace_back([&, rank] {
      const auto joined = join_rendezvous(root->id(), 0, rank, kWorld,
                                          PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank)), kPatient);
      ASSERT_TRUE(joined) << joined.error().what();
      for (uint32_t other = 0; other < kWorld; ++other)
        ASSERT_EQ(joined->peer_infos[other], PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(other)));
      ++right;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(right, kWorld);
}

TEST(CclRendezvousServer, AnAnswerThatDoesNotGoAtOnceGoesOnWhereItWasLeft) {
  constexpr uint32_t kWorld = 96;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    // What is not read fills a small buffer, and then the root's.
    ranks.push_back(stranger(root->id(), 4096));
    say(ranks.back(),
        telling_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank))));
  }
  std::string expected;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    expected += std::string("\0\x10\0\0", 4) + std::string(kMaxPeerInfoBytes, static_cast<char>(rank));
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    const Heard heard = hear(ranks[rank]);
    ASSERT_EQ(heard.status, 0);
    ASSERT_TRUE(heard.text.substr(kNameBytes) == expected) << rank;
  }
}

constexpr int kMostDescriptors = 1024;

/// The root of this process lets a connection in when its first bytes have come: nobody is slow to say them.
void let_in_who_speaks(const UniqueId& id) {
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    sockaddr_in6 at{};
    length = sizeof at;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &length) != 0) continue;
    if ((at.sin6_family != AF_INET6 && at.sin6_family != AF_INET) || at.sin6_port != htons(id.port)) continue;
    const int seconds = 60;
    ASSERT_EQ(setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds), 0);
    return;
  }
  FAIL() << "nobody listens at port " << id.port;
}

TEST(CclRendezvousServer, RankThatHasSentItsRequest_WaitsLongerThanASilentConnection) {
  auto root = RendezvousServer::start(kTimeoutNs, {loopback()}, kShortNs);
  ASSERT_TRUE(root) << root.error().what();
  const UniqueId& id = (*root)->id();
  ASSERT_NO_FATAL_FAILURE(let_in_who_speaks(id));
  const base::UniqueFd first = stranger(id);
  say(first, telling_of(id, 0, 0, 2, {}));
  // It came after the first one, and has only begun.
  const base::UniqueFd silent = stranger(id);
  say(silent, {std::byte{'U'}});
  EXPECT_EQ(hear(silent).status, -1);
  const base::UniqueFd second = stranger(id);
  say(second, telling_of(id, 0, 1, 2, {}));
  EXPECT_EQ(hear(second).status, 0);
  EXPECT_EQ(hear(first).status, 0);
}

/// The root's end of a connection: it is in this process. Not open: it has not been let in.
int end_of_root(const base::UniqueFd& rank) {
  sockaddr_in wanted{};
  socklen_t length = sizeof wanted;
  if (getsockname(rank.get(), reinterpret_cast<sockaddr*>(&wanted), &length) != 0) return -1;
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    sockaddr_in6 peer{};
    length = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if ((peer.sin6_family == AF_INET6 || peer.sin6_family == AF_INET) && peer.sin6_port == wanted.sin_port) return fd;
  }
  return -1;
}

/// No more than a few KB of what the root says to this rank find room at a time.
void narrow_answers_to(const base::UniqueFd& rank) {
  int at_root = -1;
  ASSERT_TRUE(test::soon([&] { return (at_root = end_of_root(rank)) >= 0; }));
  const int small = 4096;
  ASSERT_EQ(setsockopt(at_root, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
}

TEST(CclRendezvousServer, AnAnswerInManyPartsIsSaidOnce) {
  constexpr uint32_t kWorld = 24;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(stranger(root->id(), 4096));
    if (rank == 0) narrow_answers_to(ranks[0]);
    say(ranks.back(),
        telling_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank))));
  }
  std::string expected;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    expected += std::string("\0\x10\0\0", 4) + std::string(kMaxPeerInfoBytes, static_cast<char>(rank));
  const size_t bytes = kAnswerBytes + kNameBytes + expected.size();
  // One that begins again says more than that, or something else.
  std::string heard(bytes + 1, '\0');
  timeval limit{10, 0};
  setsockopt(ranks[0].get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  size_t got = 0;
  while (got < heard.size()) {
    const ssize_t more = recv(ranks[0].get(), heard.data() + got, heard.size() - got, 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(heard.substr(kAnswerBytes + kNameBytes, expected.size()) == expected);
}

TEST(CclRendezvousServer, FinishingWaitsUntilAnAnswerIsSaidToItsEnd) {
  constexpr uint32_t kWorld = 16;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(stranger(root->id(), rank == 0 ? 4096 : 0));
    if (rank == 0) narrow_answers_to(ranks[0]);
    say(ranks.back(), telling_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes)));
  }
  // The meeting is over when one has been told. Rank 0 takes nothing before the root is about to finish.
  EXPECT_EQ(hear(ranks[1]).status, 0);
  std::promise<void> finishing;
  Heard heard;
  std::thread slow([&] {
    finishing.get_future().wait();
    heard = hear(ranks[0]);
  });
  finishing.set_value();
  root->finish();
  slow.join();
  EXPECT_EQ(heard.status, 0);
  EXPECT_EQ(heard.text.size(), kNameBytes + kWorld * (4 + kMaxPeerInfoBytes));
}

TEST(CclRendezvousServer, FinishingTellsThoseWhoWaitNothingAndFreesThePort) {
  const UniqueId id = root_with()->id();  // nobody is at its port any more
  auto root = RendezvousServer::start_at(kShortNs, loopback(), id.port, id.secret);
  ASSERT_TRUE(root) << root.error().what();
  const base::UniqueFd waiting = stranger(id);
  say(waiting, telling_of(id, 0, 0, 2, {}));
  // The end of the connection that closes first keeps the port, where its data were read.
  const auto is_read = [&] {
    const int at_root = end_of_root(waiting);
    int unread = 1;
    return at_root >= 0 && ioctl(at_root, FIONREAD, &unread) == 0 && unread == 0;
  };
  while (!is_read()) std::this_thread::yield();
  (*root)->finish();
  EXPECT_EQ(hear(waiting).status, -1);
  const auto again = RendezvousServer::start_at(kShortNs, loopback(), id.port, id.secret);
  EXPECT_TRUE(again) << again.error().what();
}

TEST(CclRendezvousMembers, KnowsWhoIsThere) {
  RendezvousMembers members(3, 77);
  EXPECT_EQ(members.deadline(), 77);
  EXPECT_TRUE(members.is_empty());
  EXPECT_TRUE(members.join(1, 3, PeerInfoBytes(1)));
  EXPECT_EQ(members.join(1, 3, PeerInfoBytes(2)).error().code(), EEXIST);
  EXPECT_EQ(members.join(2, 4, PeerInfoBytes(2)).error().code(), EINVAL);
  EXPECT_FALSE(members.is_empty() || members.is_complete());
  EXPECT_EQ(members.missing(), "missing: rank 0, 2");
  members.leave(0);
  members.leave(1);
  members.leave(1);
  EXPECT_TRUE(members.is_empty());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(members.is_complete());
    EXPECT_TRUE(members.join(rank, 3, PeerInfoBytes(rank)));
  }
  EXPECT_TRUE(members.is_complete());
  EXPECT_EQ(members.table(), std::string("\0\0\0\0\1\0\0\0\0\2\0\0\0\0\0", 15));
}

TEST(CclRendezvousMembers, NamesEightOfThoseWhoAreMissing) {
  RendezvousMembers nine(9, 0);
  EXPECT_EQ(nine.missing(), "missing: rank 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
  EXPECT_TRUE(nine.join(3, 9, {}));
  EXPECT_EQ(nine.missing(), "missing: rank 0, 1, 2, 4, 5, 6, 7, 8");
}

// ---- what anybody may say to a rank --------------------------------------------------------------------------------

/// The error of a rank of two that meets at something that answers so. `text`: of the error, without where that was.
int error_of_answer(const std::vector<std::byte>& answer, std::string* text = nullptr) {
  const base::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  const UniqueId id{{}, ntohs(at.sin_port), {loopback()}};
  std::thread answering([&] {
    const base::UniqueFd fd(accept(listener.get(), nullptr, nullptr));
    std::byte telling[kRequestBytes];
    EXPECT_EQ(recv(fd.get(), telling, sizeof telling, MSG_WAITALL), static_cast<ssize_t>(sizeof telling));
    say(fd, answer);
    shutdown(fd.get(), SHUT_WR);
    (void)!recv(fd.get(), telling, 1, 0);  // until the rank has gone
  });
  const auto joined = join_rendezvous(id, 0, 0, 2, {}, kPatient);
  answering.join();
  if (joined) {
    EXPECT_EQ(joined->peer_infos.size(), 2u);
    return 0;
  }
  if (text != nullptr) {
    const std::string root = "the rendezvous server at 127.0.0.1 port " + std::to_string(id.port);
    *text = joined.error().what();
    EXPECT_EQ(text->substr(0, root.size()), root);
    text->erase(0, std::min(root.size(), text->size()));
  }
  return joined.error().code();
}

std::vector<std::byte> answer_of(uint32_t status, uint32_t length, const std::string& body) {
  std::vector<std::byte> answer(kAnswerBytes + body.size());
  write_at(&answer, 0, status);
  write_at(&answer, 4, length);
  std::memcpy(answer.data() + kAnswerBytes, body.data(), body.size());
  return answer;
}

TEST(CclRendezvousClient, AnAnswerThatIsNotWholeIsRefused) {
  const auto whole = [](const std::string& body) {
    return error_of_answer(answer_of(0, static_cast<uint32_t>(body.size()), body));
  };
  const std::string name(kNameBytes, 'n');
  const auto peer_info = [](uint32_t said, size_t length) {
    std::string text(reinterpret_cast<const char*>(&said), sizeof said);
    return text + std::string(length, 'c');
  };
  EXPECT_EQ(whole(name + peer_info(3, 3) + peer_info(0, 0)), 0);
  EXPECT_EQ(whole(""), EPROTO);
  EXPECT_EQ(whole(name.substr(1)), EPROTO);
  EXPECT_EQ(whole(name), EPROTO) << "no cards";
  EXPECT_EQ(whole(name + peer_info(3, 3)), EPROTO) << "one card of two";
  EXPECT_EQ(whole(name + peer_info(3, 3) + std::string(3, 'x')), EPROTO) << "half of a length";
  EXPECT_EQ(whole(name + peer_info(3, 3) + peer_info(4, 3)), EPROTO) << "a card that ends before its end";
  EXPECT_EQ(whole(name + peer_info(UINT32_MAX, 3) + peer_info(0, 0)), EPROTO);
  // So much that two ranks' cards cannot be.
  const uint32_t most = kNameBytes + 2 * (kMaxPeerInfoBytes + 4);
  EXPECT_EQ(error_of_answer(answer_of(0, most + 1, "")), EPROTO);
  EXPECT_EQ(error_of_answer(answer_of(0, most, "")), ECONNABORTED) << "it ends before it is said";
  EXPECT_EQ(error_of_answer({}), ECONNABORTED);
  EXPECT_EQ(error_of_answer(answer_of(EEXIST, 4, "text")), EEXIST);
}

TEST(CclRendezvousClient, ErrorTexts_NameTheRoot) {
  std::string text;
  EXPECT_EQ(error_of_answer(answer_of(0, UINT32_MAX, ""), &text), EPROTO);
  EXPECT_EQ(text, " sent an invalid answer");
  EXPECT_EQ(error_of_answer(answer_of(0, 0, ""), &text), EPROTO);
  EXPECT_EQ(text, " sent an answer that is too short");
  EXPECT_EQ(error_of_answer({}, &text), ECONNABORTED);
  EXPECT_EQ(text, " closed the connection");
  auto root = root_with();
  const UniqueId id = root->id();
  root.reset();
  const auto joined = join_rendezvous(id, 0, 0, 2, {}, kPatient);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().what(), "cannot connect to the rendezvous server: 127.0.0.1 port " +
                                       std::to_string(id.port) + ": " + std::strerror(ECONNREFUSED));
}

}  // namespace
}  // namespace nupa::ccl
