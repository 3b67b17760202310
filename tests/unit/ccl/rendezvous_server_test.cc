// SPDX-License-Identifier: Apache-2.0
/// Tests of the rendezvous protocol: requests to the server, valid or not, and its answers to a rank.
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

// ---- requests to the server -----------------------------------------------------------------------------------------

/// A rank's request, as bytes.
std::vector<std::byte> request_of(const UniqueId& id, uint64_t rendezvous, uint32_t rank, uint32_t world,
                                  const PeerInfoBytes& peer_info) {
  std::vector<std::byte> request(kRequestBytes + peer_info.size());
  write_at(&request, kMagicAt, kRendezvousMagic);
  write_at(&request, kVersionAt, kRendezvousVersion);
  write_at(&request, kSecretAt, id.secret);
  write_at(&request, kRendezvousAt, rendezvous);
  write_at(&request, kRankAt, rank);
  write_at(&request, kWorldAt, world);
  write_at(&request, kLengthAt, static_cast<uint32_t>(peer_info.size()));
  std::copy(peer_info.begin(), peer_info.end(), request.begin() + kRequestBytes);
  return request;
}

/// The answer of the server until it closes the connection. Status -1: there was no answer within the limit.
struct Received {
  int status = -1;
  std::string text;
};

Received receive_all(const base::UniqueFd& fd) {
  timeval limit{10, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  std::vector<std::byte> all;
  std::byte buffer[4096];
  while (true) {
    const ssize_t got = recv(fd.get(), buffer, sizeof buffer, 0);
    EXPECT_FALSE(got < 0 && errno == EAGAIN) << "the server neither answers nor closes";
    if (got <= 0) break;
    all.insert(all.end(), buffer, buffer + got);
  }
  if (all.size() < kAnswerBytes) return {};
  EXPECT_EQ(read_at<uint32_t>(all, 4), all.size() - kAnswerBytes);
  return {static_cast<int>(read_at<uint32_t>(all, 0)),
          {reinterpret_cast<const char*>(all.data()) + kAnswerBytes, all.size() - kAnswerBytes}};
}

TEST(CclRendezvousServer, Request_InvalidRankOrVersion_IsAnsweredWithEinval) {
  const auto root = root_with();
  struct Wrong {
    uint32_t rank, world;
  };
  for (const Wrong& wrong : {Wrong{2, 2}, Wrong{0, 0}, Wrong{UINT32_MAX, 2}, Wrong{0, kMaxRanks + 1}}) {
    const base::UniqueFd fd = connect_to_server(root->id());
    send_bytes(fd, request_of(root->id(), 0, wrong.rank, wrong.world, {}));
    const Received received = receive_all(fd);
    EXPECT_EQ(received.status, EINVAL) << wrong.rank << " of " << wrong.world;
    EXPECT_NE(received.text.find("is out of range"), std::string::npos) << received.text;
  }
  auto other = request_of(root->id(), 0, 0, 2, {});
  write_at(&other, kVersionAt, static_cast<uint16_t>(kRendezvousVersion + 1));
  const base::UniqueFd fd = connect_to_server(root->id());
  send_bytes(fd, other);
  EXPECT_EQ(receive_all(fd).status, EINVAL);
  expect_complete_rendezvous(root->id(), 2);
}

TEST(CclRendezvousServer, Request_WrongMagicLengthOrSecret_ClosesTheConnection) {
  const auto root = root_with();
  std::vector<std::vector<std::byte>> wrong(4, request_of(root->id(), 0, 0, 1, {}));
  write_at(&wrong[0], kMagicAt, kRendezvousMagic ^ 1);
  write_at(&wrong[1], kLengthAt, kMaxPeerInfoBytes + 1);
  wrong[2][kSecretAt] ^= std::byte{1};
  wrong[3][kSecretAt + 15] ^= std::byte{1};
  for (const auto& one : wrong) {
    const base::UniqueFd fd = connect_to_server(root->id());
    send_bytes(fd, one);
    EXPECT_EQ(receive_all(fd).status, -1);
  }
  // More than the longest card.
  auto longest = request_of(root->id(), 0, 0, 1, PeerInfoBytes(kMaxPeerInfoBytes));
  longest.push_back({});
  const base::UniqueFd fd = connect_to_server(root->id());
  send_bytes(fd, longest);
  EXPECT_EQ(receive_all(fd).status, -1);
  expect_complete_rendezvous(root->id(), 1);
}

TEST(CclRendezvousServer, Connection_WithoutARequest_IsClosed) {
  auto root = RendezvousServer::start(kTimeoutNs, {loopback()}, kShortNs);
  ASSERT_TRUE(root) << root.error().what();
  EXPECT_EQ(receive_all(connect_to_server((*root)->id())).status, -1);
}

/// Nanoseconds of processor time that this process has had.
int64_t processor_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * INT64_C(1'000'000'000) + t.tv_nsec;
}

TEST(CclRendezvousServer, Accept_NoDescriptorIsFree_SleepsUntilThereIsOne) {
  const auto root = root_with();
  const int next = dup(0);
  ASSERT_GE(next, 0);
  close(next);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit one_more{static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &one_more), 0);
  const base::UniqueFd fd = connect_to_server(root->id());
  const int64_t since = processor_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // sleep: the processor time of so long is measured
  const int64_t used = processor_ns() - since;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(used, 100'000'000) << "it looks at its listener again and again";
  send_bytes(fd, request_of(root->id(), 0, 0, 1, {}));
  EXPECT_EQ(receive_all(fd).status, 0);
}

TEST(CclRendezvousServer, Request_ByteByByte_IsRead) {
  const auto root = root_with();
  const PeerInfoBytes peer_info(7, std::byte{5});
  const auto request = request_of(root->id(), 0, 0, 1, peer_info);
  const base::UniqueFd fd = connect_to_server(root->id());
  for (const std::byte byte : request) {
    send_bytes(fd, {byte});
    std::this_thread::yield();
  }
  const Received received = receive_all(fd);
  EXPECT_EQ(received.status, 0);
  EXPECT_EQ(received.text.size(), kNameBytes + 4 + peer_info.size());
}

TEST(CclRendezvousServer, PeerInfo_LongerThanTheRequestStates_IsCut) {
  const auto root = root_with();
  auto request = request_of(root->id(), 0, 0, 1, PeerInfoBytes(5, std::byte{5}));
  write_at(&request, kLengthAt, uint32_t{3});
  const base::UniqueFd fd = connect_to_server(root->id());
  send_bytes(fd, request);
  EXPECT_EQ(receive_all(fd).text.substr(kNameBytes), std::string("\3\0\0\0\5\5\5", 7));
}

TEST(CclRendezvousServer, Request_SecondProcessOfOneRank_IsRejectedAndTheFirstStays) {
  const auto root = root_with();
  const base::UniqueFd first = connect_to_server(root->id());
  send_bytes(first, request_of(root->id(), 0, 1, 2, PeerInfoBytes(3, std::byte{1})));
  const base::UniqueFd second = connect_to_server(root->id());
  send_bytes(second, request_of(root->id(), 0, 1, 2, PeerInfoBytes(4, std::byte{2})));
  const Received received = receive_all(second);
  EXPECT_EQ(received.status, EEXIST);
  EXPECT_EQ(received.text, "another process has joined as rank 1");
  const auto joined = join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits);
  ASSERT_TRUE(joined) << joined.error().what();
  EXPECT_EQ(joined->peer_infos[1], PeerInfoBytes(3, std::byte{1}));
  EXPECT_EQ(receive_all(first).status, 0);
}

TEST(CclRendezvousServer, Rendezvous_MissingRanks_TimesOut) {
  const auto root = root_with(kShortNs / 3);
  EXPECT_EQ(join_rendezvous(root->id(), 0, 0, 2, {}, kLongLimits).error().code(), ETIMEDOUT);
  EXPECT_EQ(join_rendezvous(root->id(), 0, 1, 2, {}, kLongLimits).error().code(), EALREADY);
}

TEST(CclRendezvousServer, Rendezvous_AllRanksHaveLeft_BeginsAgainWithAnotherNumberOfRanks) {
  const auto root = root_with();
  const base::UniqueFd first = connect_to_server(root->id());
  send_bytes(first, request_of(root->id(), 0, 0, 3, {}));
  const base::UniqueFd second = connect_to_server(root->id());
  send_bytes(second, request_of(root->id(), 0, 0, 3, {}));
  EXPECT_EQ(receive_all(second).status, EEXIST) << "the first one does not take part";
  // The root closes its end when the rank has left.
  ASSERT_EQ(shutdown(first.get(), SHUT_WR), 0);
  EXPECT_EQ(receive_all(first).status, -1);
  expect_complete_rendezvous(root->id(), 2);
}

TEST(CclRendezvousServer, Answer_LargeTable_IsCompleteAtEachRank) {
  constexpr uint32_t kWorld = 48;
  const auto root = root_with();
  std::vector<std::thread> ranks;
  std::atomic<uint32_t> right{0};
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    ranks.emplace_back([&, rank] {
      const auto joined = join_rendezvous(root->id(), 0, rank, kWorld,
                                          PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank)), kLongLimits);
      ASSERT_TRUE(joined) << joined.error().what();
      for (uint32_t other = 0; other < kWorld; ++other)
        ASSERT_EQ(joined->peer_infos[other], PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(other)));
      ++right;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(right, kWorld);
}

TEST(CclRendezvousServer, Answer_SendWouldBlock_ContinuesWhereItStopped) {
  constexpr uint32_t kWorld = 96;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    // What is not read fills a small buffer, and then the root's.
    ranks.push_back(connect_to_server(root->id(), 4096));
    send_bytes(ranks.back(),
               request_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank))));
  }
  std::string expected;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    expected += std::string("\0\x10\0\0", 4) + std::string(kMaxPeerInfoBytes, static_cast<char>(rank));
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    const Received received = receive_all(ranks[rank]);
    ASSERT_EQ(received.status, 0);
    ASSERT_TRUE(received.text.substr(kNameBytes) == expected) << rank;
  }
}

constexpr int kMostDescriptors = 1024;

/// The server of this process accepts a connection only when its first bytes have arrived.
void defer_accept(const UniqueId& id) {
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
  FAIL() << "no socket listens at port " << id.port;
}

TEST(CclRendezvousServer, Request_Sent_WaitsLongerThanASilentConnection) {
  auto root = RendezvousServer::start(kTimeoutNs, {loopback()}, kShortNs);
  ASSERT_TRUE(root) << root.error().what();
  const UniqueId& id = (*root)->id();
  ASSERT_NO_FATAL_FAILURE(defer_accept(id));
  const base::UniqueFd first = connect_to_server(id);
  send_bytes(first, request_of(id, 0, 0, 2, {}));
  // It came after the first one, and has only begun.
  const base::UniqueFd silent = connect_to_server(id);
  send_bytes(silent, {std::byte{'U'}});
  EXPECT_EQ(receive_all(silent).status, -1);
  const base::UniqueFd second = connect_to_server(id);
  send_bytes(second, request_of(id, 0, 1, 2, {}));
  EXPECT_EQ(receive_all(second).status, 0);
  EXPECT_EQ(receive_all(first).status, 0);
}

/// The root's end of a connection: it is in this process. Not open: it has not been let in.
int server_socket_of(const base::UniqueFd& rank) {
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

/// The server's socket buffer for this rank holds only a few KB of an answer.
void limit_send_buffer_to(const base::UniqueFd& rank) {
  int at_root = -1;
  ASSERT_TRUE(test::soon([&] { return (at_root = server_socket_of(rank)) >= 0; }));
  const int small = 4096;
  ASSERT_EQ(setsockopt(at_root, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
}

TEST(CclRendezvousServer, Answer_InManyParts_IsSentOnce) {
  constexpr uint32_t kWorld = 24;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(connect_to_server(root->id(), 4096));
    if (rank == 0) limit_send_buffer_to(ranks[0]);
    send_bytes(ranks.back(),
               request_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes, static_cast<std::byte>(rank))));
  }
  std::string expected;
  for (uint32_t rank = 0; rank < kWorld; ++rank)
    expected += std::string("\0\x10\0\0", 4) + std::string(kMaxPeerInfoBytes, static_cast<char>(rank));
  const size_t bytes = kAnswerBytes + kNameBytes + expected.size();
  // One that begins again says more than that, or something else.
  std::string received(bytes + 1, '\0');
  timeval limit{10, 0};
  setsockopt(ranks[0].get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  size_t got = 0;
  while (got < received.size()) {
    const ssize_t more = recv(ranks[0].get(), received.data() + got, received.size() - got, 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(received.substr(kAnswerBytes + kNameBytes, expected.size()) == expected);
}

TEST(CclRendezvousServer, Finish_AnswerUnderWay_WaitsUntilItIsSent) {
  constexpr uint32_t kWorld = 16;
  const auto root = root_with();
  std::vector<base::UniqueFd> ranks;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(connect_to_server(root->id(), rank == 0 ? 4096 : 0));
    if (rank == 0) limit_send_buffer_to(ranks[0]);
    send_bytes(ranks.back(), request_of(root->id(), 0, rank, kWorld, PeerInfoBytes(kMaxPeerInfoBytes)));
  }
  // The rendezvous is over when one rank has its answer. Rank 0 takes nothing before the root is about to finish.
  EXPECT_EQ(receive_all(ranks[1]).status, 0);
  std::promise<void> finishing;
  Received received;
  std::thread slow([&] {
    finishing.get_future().wait();
    received = receive_all(ranks[0]);
  });
  finishing.set_value();
  root->finish();
  slow.join();
  EXPECT_EQ(received.status, 0);
  EXPECT_EQ(received.text.size(), kNameBytes + kWorld * (4 + kMaxPeerInfoBytes));
}

TEST(CclRendezvousServer, Finish_WaitingRanks_GetNoAnswerAndThePortIsFree) {
  const UniqueId id = root_with()->id();  // the port is free again
  auto root = RendezvousServer::start_at(kShortNs, loopback(), id.port, id.secret);
  ASSERT_TRUE(root) << root.error().what();
  const base::UniqueFd waiting = connect_to_server(id);
  send_bytes(waiting, request_of(id, 0, 0, 2, {}));
  // The end of the connection that closes first keeps the port, where its data were read.
  const auto is_read = [&] {
    const int at_root = server_socket_of(waiting);
    int unread = 1;
    return at_root >= 0 && ioctl(at_root, FIONREAD, &unread) == 0 && unread == 0;
  };
  while (!is_read()) std::this_thread::yield();
  (*root)->finish();
  EXPECT_EQ(receive_all(waiting).status, -1);
  const auto again = RendezvousServer::start_at(kShortNs, loopback(), id.port, id.secret);
  EXPECT_TRUE(again) << again.error().what();
}

TEST(CclRendezvousMembers, JoinAndLeave_Ranks_UpdateTheTable) {
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

TEST(CclRendezvousMembers, Missing_MoreThanEightRanks_NamesEight) {
  RendezvousMembers nine(9, 0);
  EXPECT_EQ(nine.missing(), "missing: rank 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
  EXPECT_TRUE(nine.join(3, 9, {}));
  EXPECT_EQ(nine.missing(), "missing: rank 0, 1, 2, 4, 5, 6, 7, 8");
}

// ---- answers to a rank ----------------------------------------------------------------------------------------------

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
    std::byte request[kRequestBytes];
    EXPECT_EQ(recv(fd.get(), request, sizeof request, MSG_WAITALL), static_cast<ssize_t>(sizeof request));
    send_bytes(fd, answer);
    shutdown(fd.get(), SHUT_WR);
    (void)!recv(fd.get(), request, 1, 0);  // until the rank has closed the connection
  });
  const auto joined = join_rendezvous(id, 0, 0, 2, {}, kLongLimits);
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

TEST(CclRendezvousClient, Join_TruncatedOrInvalidAnswer_IsAnError) {
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

TEST(CclRendezvousClient, ErrorTexts_OfAFailedJoin_NameTheServer) {
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
  const auto joined = join_rendezvous(id, 0, 0, 2, {}, kLongLimits);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().what(), "cannot connect to the rendezvous server: 127.0.0.1 port " +
                                       std::to_string(id.port) + ": " + std::strerror(ECONNREFUSED));
}

}  // namespace
}  // namespace nupa::ccl
