// SPDX-License-Identifier: Apache-2.0
/// How the death of a process of this host is seen.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <vector>

#include "../../support/loop_by_hand.h"
#include "fixture.h"
#include "host/node.h"
#include "node_peers.h"

namespace nupa::host::test {
namespace {

// Deaths.

TEST_F(CmNode, AfterAGoodbye_TheEndIsNoFault) {
  base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  send(socket.get(), process_.message(MessageKind::kGoodbye));
  settle(process_, socket.get());
  EXPECT_TRUE(peer->alive()) << "a goodbye is not the end";
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  EXPECT_TRUE(peer->has_exited_cleanly());
}

TEST_F(CmNode, AHangUpWithoutAGoodbye_IsADeath) {
  base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  EXPECT_FALSE(peer->has_exited_cleanly());
  EXPECT_FALSE(peer->alive());
  EXPECT_EQ(nullptr, node_->find(77));
  EXPECT_TRUE(node_->peers().empty());
  const Payload payload{};
  const auto sent = node_->send_payload(*peer, payload);
  ASSERT_FALSE(sent);
  EXPECT_EQ(EPIPE, sent.error().code());
}

TEST_F(CmNode, AProcessThatIsGone_IsKeptByItsUsersAlone) {
  base::UniqueFd socket = enter(process_);
  PeerRef kept = met(process_);
  const std::weak_ptr<Peer> known = kept;
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  witness_.forget();
  FakeProcess other(78, 5);
  const base::UniqueFd later = enter(other);
  settle(other, later.get());
  witness_.forget();
  EXPECT_EQ(1, known.use_count()) << "the node has forgotten it";
  EXPECT_EQ(77u, kept->tables().header->slot);
  kept.reset();
  EXPECT_TRUE(known.expired());
}

TEST_F(CmNode, TheDeathOfAProcessWithTwoConnections_IsReportedOnce) {
  base::UniqueFd one = enter(process_), two = enter(process_);
  const PeerRef peer = met(process_);
  EXPECT_EQ(1u, node_->peers().size());
  two.reset();
  one.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  FakeProcess other(78, 5);
  const base::UniqueFd later = enter(other);
  settle(other, later.get());
  EXPECT_EQ(std::vector<PeerRef>{peer}, witness_.gone());
}

TEST_F(CmNode, SocketOfTheDeadThatAcceptsStill_IsRemovedLater) {
  base::UniqueFd socket = enter(process_);
  const std::string name = folder_.file("77.sock");
  base::UniqueFd listener = socket_at(name, kBacklog);
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  // The next process is let in when the death has been seen to.
  FakeProcess other(78, 5);
  const base::UniqueFd later = enter(other);
  ASSERT_EQ(0, ::access(name.c_str(), F_OK));
  listener.reset();
  EXPECT_TRUE(soon([&] { return ::access(name.c_str(), F_OK) != 0; }));
}

TEST_F(CmNode, Exit_SocketOfTheDeadAcceptsStill_WaitsUntilItRefuses) {
  base::UniqueFd socket = enter(process_);
  const std::string name = folder_.file("77.sock");
  base::UniqueFd listener = socket_at(name, kBacklog);
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  std::thread kernel([&] {
    while (::access(socket_path().c_str(), F_OK) == 0) std::this_thread::yield();  // the node has begun to exit
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // sleep: longer than the looks at sockets of others
    listener.reset();
  });
  node_->stop();
  kernel.join();
  EXPECT_NE(0, ::access(name.c_str(), F_OK));
}

TEST_F(CmNode, Exit_SocketOfTheDeadNeverRefuses_EndsNevertheless) {
  base::UniqueFd socket = enter(process_);
  const std::string name = folder_.file("77.sock");
  const base::UniqueFd listener = socket_at(name, kBacklog);
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  node_->stop();
  EXPECT_EQ(0, ::access(name.c_str(), F_OK));
}

TEST_F(CmNode, TheSocketsOfTheDeadAreRemovedWhenADeathIsSeen) {
  base::UniqueFd socket = enter(process_);
  const std::string name = folder_.file("77.sock");
  socket_at(name, kNotListening);
  socket.reset();
  EXPECT_TRUE(soon([&] { return ::access(name.c_str(), F_OK) != 0; }));
  EXPECT_EQ(0, ::access(socket_path().c_str(), F_OK));
}

TEST_F(CmNode, AnotherProcessInADeadOnesSlotIsAnotherPeer) {
  base::UniqueFd first = enter(process_);
  const PeerRef old = met(process_);
  FakeProcess next(77, process_.header().instance + 1);
  const base::UniqueFd second = enter(next);
  PeerRef peer;
  ASSERT_TRUE(soon([&] { return (peer = node_->find(77)) != nullptr && peer != old; }));
  first.reset();
  ASSERT_TRUE(soon([&] { return witness_.gone() == std::vector<PeerRef>{old}; }));
  EXPECT_EQ(peer, node_->find(77)) << "the death of the old one is not its own";
  EXPECT_TRUE(peer->alive());
  const Payload payload{};
  EXPECT_TRUE(node_->send_payload(*peer, payload));
}

TEST_F(CmNode, AProcessThatWasGivenUp_IsMetAgainWhenItSaysHello) {
  const base::UniqueFd first = enter(process_);
  const PeerRef old = met(process_);
  Message wrong = process_.message(MessageKind::kGoodbye);
  wrong.magic ^= 1;
  send(first.get(), wrong);
  ASSERT_TRUE(soon([&] { return witness_.gone() == std::vector<PeerRef>{old}; }));
  const base::UniqueFd second = enter(process_);
  const PeerRef peer = met(process_);
  ASSERT_NE(nullptr, peer);
  EXPECT_NE(old, peer) << "its closed descriptors stay closed";
  EXPECT_FALSE(old->alive());
  settle(process_, second.get());
  EXPECT_EQ(peer, witness_.mads().back());
  EXPECT_TRUE(node_->send_payload(*peer, Payload{}));
}

// The service thread.

TEST_F(CmNode, WithoutADescriptor_AcceptingPausesAndGoesOn) {
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
  const base::UniqueFd first = enter(process_);
  ASSERT_EQ(INT64_MAX, progress::LoopByHand::next_due_ns(node_->loop()));
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
  EXPECT_TRUE(connect_by(socket.get(), socket_path()));
  // It wakes, cannot accept, and pauses. Without a pause it would wake again and again.
  EXPECT_TRUE(soon([&] { return progress::LoopByHand::next_due_ns(node_->loop()) != INT64_MAX; }));
  EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
  FakeProcess next(78, 5);
  ASSERT_TRUE(next.send_hello(socket.get()));
  EXPECT_EQ(0, error_of_next(socket.get())) << "when there are descriptors again it is let in";
}

TEST_F(CmNode, TheSocketGoesWithTheNode) {
  const std::string path = socket_path();
  EXPECT_EQ(0, ::access(path.c_str(), F_OK));
  const base::UniqueFd socket = enter(process_);
  shm::MappedFile segment(base::UniqueFd(dup(node_->segment().fd())));
  const auto tables = shm::map_tables(segment);
  ASSERT_TRUE(tables);
  EXPECT_EQ(0u, tables->header->closing.load());
  node_.reset();
  EXPECT_EQ(1u, tables->header->closing.load()) << "for whoever the goodbye does not reach";
  EXPECT_NE(0, ::access(path.c_str(), F_OK));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  const auto goodbye = receive_message(socket.get());
  ASSERT_TRUE(goodbye);
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kGoodbye), goodbye->message.kind);
  EXPECT_EQ(ENOTCONN, error_of_next(socket.get()));
}

}  // namespace
}  // namespace nupa::host::test
