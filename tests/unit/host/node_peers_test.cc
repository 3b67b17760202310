// SPDX-License-Identifier: Apache-2.0
/// How processes of this host meet: hellos, channels, and messages that break the rules.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "fixture.h"
#include "host/node.h"
#include "node_peers.h"

namespace nupa::host::test {
namespace {

using Messages = std::vector<std::pair<MessageKind, uint32_t>>;

// Meeting.

TEST_F(CmNode, AHello_IsAnsweredByAHello_AndAQuestionForAChannelByThat) {
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0u, *node_->publish_channel(channel.get()));
  const base::UniqueFd socket = connect_to(socket_path());
  ASSERT_TRUE(process_.send_hello(socket.get()));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  auto hello = receive_message(socket.get());
  ASSERT_TRUE(hello);
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kHello), hello->message.kind);
  EXPECT_EQ(node_->slot(), hello->message.slot);
  EXPECT_EQ(node_->self().instance(), hello->message.instance);
  EXPECT_EQ(hello->message.instance, *reinterpret_cast<const uint64_t*>(hello->message.probe));
  EXPECT_EQ(kMaxFds, hello->fd_count);
  settle(process_, socket.get());
  const auto nothing = receive_message(socket.get());
  EXPECT_FALSE(nothing) << "a descriptor that nobody needs";
  send(socket.get(), process_.message(MessageKind::kWantChannel, 0));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  auto told = receive_message(socket.get());
  ASSERT_TRUE(told);
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kChannel), told->message.kind);
  EXPECT_EQ(0u, told->message.index);
  const uint64_t one = 1;
  uint64_t count = 0;
  ASSERT_EQ(8, ::write(told->fds[0].get(), &one, sizeof one));
  EXPECT_EQ(8, ::read(channel.get(), &count, sizeof count));
  // The doorbell that came with the hello is the one that the service thread answers.
  ASSERT_EQ(8, ::write(hello->fds[2].get(), &one, sizeof one));
  EXPECT_TRUE(soon([&] { return witness_.attentions > 0; }));
  const PeerRef peer = met(process_);
  EXPECT_EQ(std::vector<PeerRef>{peer}, node_->peers());
  node_->withdraw_channel(0);
}

TEST_F(CmNode, UntilItServes_OthersWaitAndNothingIsCalled) {
  node_.reset();
  Witness witness;
  auto node = Node::open(region_.get(), {}, witness, [](uint32_t) { return true; });
  ASSERT_TRUE(node);
  const base::UniqueFd socket = connect_to(folder_.file(std::to_string((*node)->slot()) + ".sock"));
  ASSERT_TRUE(process_.send_hello(socket.get()));
  const auto nothing = receive_message(socket.get());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(EAGAIN, nothing.error().code());
  EXPECT_EQ(nullptr, (*node)->find(process_.header().slot));
  ASSERT_TRUE((*node)->serve());
  EXPECT_TRUE((*node)->serve()) << "once is enough";
  EXPECT_EQ(0, error_of_next(socket.get()));
  EXPECT_TRUE(soon([&] { return (*node)->find(process_.header().slot) != nullptr; }));
}

TEST_F(CmNode, TheEndOfAChannel_IsReportedToThePeersThatHaveIt) {
  const base::UniqueFd socket = enter(process_);
  FakeProcess stranger(78);
  const base::UniqueFd other = enter(stranger);
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto index = node_->publish_channel(channel.get());
  ASSERT_TRUE(index);
  send(socket.get(), process_.message(MessageKind::kWantChannel, *index));
  settle(process_, socket.get());
  node_->withdraw_channel(*index);
  EXPECT_FALSE(receive_message(other.get())) << "it has not asked";
  for (const MessageKind kind : {MessageKind::kChannel, MessageKind::kChannelDestroyed}) {
    ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
    const auto told = receive_message(socket.get());
    ASSERT_TRUE(told);
    EXPECT_EQ(static_cast<uint32_t>(kind), told->message.kind);
    EXPECT_EQ(*index, told->message.index);
    EXPECT_EQ(kind == MessageKind::kChannel ? 1u : 0u, told->fd_count);
  }
}

TEST_F(CmNode, DestroyedChannel_IsNotReportedToAPeerThatReadsLater) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  ASSERT_NE(nullptr, peer);
  uint32_t mads = 0;
  while (node_->send_payload(*peer, Payload{})) ++mads;  // until the socket is full, and as much waits as may
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const auto index = node_->publish_channel(channel.get());
  ASSERT_TRUE(index);
  // However often it asks, one answer waits.
  for (int i = 0; i < 3; ++i) send(socket.get(), process_.message(MessageKind::kWantChannel, *index));
  settle(process_, socket.get());
  node_->withdraw_channel(*index);
  for (uint32_t i = 0; i < mads; ++i) ASSERT_EQ(0, error_of_next(socket.get())) << i;
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  const auto told = receive_message(socket.get());
  ASSERT_TRUE(told);
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kChannelDestroyed), told->message.kind);
  EXPECT_EQ(*index, told->message.index);
  EXPECT_EQ(0u, told->fd_count);
}

TEST_F(CmNode, ChannelsAreTheLowestFreeAndNoMoreThanThereAre) {
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (uint32_t i = 0; i < Peer::kMaxChannels; ++i) ASSERT_EQ(i, *node_->publish_channel(channel.get()));
  const auto beyond = node_->publish_channel(channel.get());
  ASSERT_FALSE(beyond);
  EXPECT_EQ(ENOSPC, beyond.error().code());
  EXPECT_TRUE(node_->self().signal_channel(7));
  node_->withdraw_channel(7);
  EXPECT_FALSE(node_->self().signal_channel(7));
  EXPECT_NE(-1, fcntl(channel.get(), F_GETFD)) << "it is the program's";
  EXPECT_EQ(7u, *node_->publish_channel(channel.get()));
  for (uint32_t i = 0; i < Peer::kMaxChannels; ++i) node_->withdraw_channel(i);
}

TEST_F(CmNode, WhateverIsSaidBeforeAHello_EndsTheConnection) {
  for (const MessageKind kind : {MessageKind::kChannel, MessageKind::kChannelDestroyed, MessageKind::kGoodbye}) {
    const base::UniqueFd socket = connect_to(socket_path());
    const Token token;
    send(socket.get(), process_.message(kind), {token.fd()});
    EXPECT_EQ(ENOTCONN, error_of_next(socket.get())) << static_cast<uint32_t>(kind);
  }
  const base::UniqueFd socket = connect_to(socket_path());
  const Payload payload{};
  ASSERT_TRUE(send_message(socket.get(), process_.message(MessageKind::kPayload), nullptr, 0, &payload));
  EXPECT_EQ(ENOTCONN, error_of_next(socket.get()));
  EXPECT_TRUE(witness_.mads().empty()) << "nobody has said who sends it";
  EXPECT_TRUE(node_->peers().empty());
}

TEST_F(CmNode, WhatFollowsARefusedHello_IsNotRead) {
  node_.reset();
  Witness witness;
  auto node = Node::open(region_.get(), {}, witness, [](uint32_t) { return true; });
  ASSERT_TRUE(node);
  const base::UniqueFd socket = connect_to(folder_.file(std::to_string((*node)->slot()) + ".sock"));
  // All of it is there before the service thread runs.
  send(socket.get(), process_.message(MessageKind::kGoodbye));
  send(socket.get(), process_.message(MessageKind::kGoodbye));
  Message wrong = process_.message(MessageKind::kGoodbye);
  wrong.magic ^= 1;
  send(socket.get(), wrong);
  testing::internal::CaptureStderr();
  ASSERT_TRUE((*node)->serve());
  EXPECT_EQ(ENOTCONN, error_of_next(socket.get()));
  node->reset();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(1, std::count(log.begin(), log.end(), '\n')) << log;
  EXPECT_NE(log.npos, log.find("handshake with another process failed: process " + std::to_string(getpid()) +
                               ": its first message is not a valid handshake"));
}

TEST_F(CmNode, AMessageOfAnotherProtocol_EndsTheConnectionOfAPeerToo) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  Message wrong = process_.message(MessageKind::kGoodbye);
  wrong.magic ^= 1;
  send(socket.get(), wrong);
  ASSERT_TRUE(soon([&] { return witness_.gone() == std::vector<PeerRef>{peer}; }));
  EXPECT_FALSE(peer->has_exited_cleanly());
}

TEST_F(CmNode, AnotherUser_GetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: no other user can be played";
  // Even with the folder thrown open after the start: the process itself looks who knocks.
  ASSERT_EQ(0, chmod(folder_.path().c_str(), 0777));
  ASSERT_EQ(0, chmod(socket_path().c_str(), 0777));
  for (const MessageKind kind : {MessageKind::kObserver, MessageKind::kHello})
    EXPECT_EQ(0, in_child([&] {
                if (setresuid(kNobody, kNobody, kNobody) != 0) return 1;
                const base::UniqueFd socket = connect_to(socket_path());
                if (!socket) return 2;
                const bool sent = kind == MessageKind::kHello
                                      ? process_.send_hello(socket.get())
                                      : send_message(socket.get(), process_.message(kind), nullptr, 0).has_value();
                if (!sent) return 3;
                return error_of_next(socket.get()) == ENOTCONN ? 0 : 4;
              }))
        << static_cast<uint32_t>(kind);
  EXPECT_TRUE(node_->peers().empty());
  EXPECT_EQ(nullptr, node_->find(77));
}

TEST_F(CmNode, AnObserverOfThisUser_GetsWhatAPeerGetsAndIsNone) {
  const base::UniqueFd socket = connect_to(socket_path());
  send(socket.get(), process_.message(MessageKind::kObserver));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  const auto hello = receive_message(socket.get());
  ASSERT_TRUE(hello);
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kHello), hello->message.kind);
  EXPECT_EQ(kMaxFds, hello->fd_count);
  EXPECT_TRUE(node_->peers().empty());
}

TEST_F(CmNode, OneThatSaysNothing_IsHungUpOn) {
  const base::UniqueFd silent = connect_to(socket_path());
  const base::UniqueFd speaking = enter(process_);
  EXPECT_EQ(ENOTCONN, error_of_next(silent.get()));
  EXPECT_TRUE(met(process_)->alive()) << "whoever has said hello may be silent";
  EXPECT_TRUE(witness_.gone().empty());
}

// Channels of others.

/// The messages that wait at a socket, by their kind and index.
std::vector<std::pair<MessageKind, uint32_t>> read_all(int socket) {
  std::vector<std::pair<MessageKind, uint32_t>> messages;
  while (const auto message = receive_message(socket))
    messages.emplace_back(static_cast<MessageKind>(message->message.kind), message->message.index);
  return messages;
}

TEST_F(CmNode, EventForAChannelThatIsNotHere_AsksForItOnce) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(peer->signal_channel(3));
  EXPECT_FALSE(peer->signal_channel(64));
  Messages asked;
  ASSERT_TRUE(soon([&] {
    for (const auto& each : read_all(socket.get())) asked.push_back(each);
    return asked.size() >= 2;
  }));
  EXPECT_EQ(asked, (Messages{{MessageKind::kWantChannel, 3}, {MessageKind::kWantChannel, 64}}));
  // The owner answers that there is none. A later event may be of a new channel.
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, 3));
  settle(process_, socket.get());
  EXPECT_FALSE(peer->signal_channel(3));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  EXPECT_EQ(read_all(socket.get()), (Messages{{MessageKind::kWantChannel, 3}}));
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  send(socket.get(), process_.message(MessageKind::kChannel, 3), {channel.get()});
  settle(process_, socket.get());
  EXPECT_TRUE(peer->signal_channel(3));
}

TEST_F(CmNode, ChannelThatNeverCame_IsAskedForAgain) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  EXPECT_FALSE(peer->signal_channel(3));
  ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
  read_all(socket.get());
  Messages asked;
  EXPECT_TRUE(soon([&] {
    EXPECT_FALSE(peer->signal_channel(3));
    asked = read_all(socket.get());
    return !asked.empty();
  }));
  EXPECT_EQ(asked, (Messages{{MessageKind::kWantChannel, 3}}));
}

TEST_F(CmNode, QuestionForAChannelThatIsNotThere_IsAnsweredSo) {
  const base::UniqueFd socket = enter(process_);
  send(socket.get(), process_.message(MessageKind::kWantChannel, 9));
  send(socket.get(), process_.message(MessageKind::kWantChannel, Peer::kMaxChannels));
  settle(process_, socket.get());
  EXPECT_EQ(read_all(socket.get()), (Messages{{MessageKind::kChannelDestroyed, 9}}));
}

TEST_F(CmNode, DescriptorsOfOthersChannels_TakeAPartOfTheProcesss) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  rlimit limit{};
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
  constexpr uint32_t kMost = 16;
  const rlimit low{kMost * Peer::kPartOfDescriptors, limit.rlim_max};
  const uint32_t before = Peer::channels_held();
  ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &low));
  for (uint32_t index = 0; index < kMost + 5; ++index)
    send(socket.get(), process_.message(MessageKind::kChannel, index), {channel.get()});
  settle(process_, socket.get());
  EXPECT_EQ(kMost, Peer::channels_held());
  EXPECT_TRUE(peer->signal_channel(0));
  EXPECT_FALSE(peer->signal_channel(kMost - before));
  EXPECT_TRUE(peer->alive());
  // One that goes makes room for another one.
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, 0));
  send(socket.get(), process_.message(MessageKind::kChannel, kMost + 1), {channel.get()});
  settle(process_, socket.get());
  EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
  EXPECT_TRUE(peer->signal_channel(kMost + 1));
  EXPECT_EQ(kMost, Peer::channels_held());
}

// Messages of a peer that breaks the rules.

TEST_F(CmNode, AChannelIndexOutOfRange_IsIgnored) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  Token far, farther;
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  send(socket.get(), process_.message(MessageKind::kChannel, Peer::kMaxChannels - 1), {channel.get()});
  send(socket.get(), process_.message(MessageKind::kChannel, Peer::kMaxChannels), {far.fd()});
  send(socket.get(), process_.message(MessageKind::kChannel, UINT32_MAX), {farther.fd()});
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, Peer::kMaxChannels));
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, 1u << 31));
  settle(process_, socket.get());
  EXPECT_TRUE(peer->signal_channel(Peer::kMaxChannels - 1));
  far.drop();
  farther.drop();
  EXPECT_TRUE(far.closed() && farther.closed()) << "nothing holds their descriptors";
  EXPECT_TRUE(peer->alive());
}

TEST_F(CmNode, AChannelComesWithOneDescriptor) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  Token first, second;
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  send(socket.get(), process_.message(MessageKind::kChannel, 3), {channel.get()});
  settle(process_, socket.get());
  ASSERT_TRUE(peer->signal_channel(3));
  send(socket.get(), process_.message(MessageKind::kChannel, 3));
  send(socket.get(), process_.message(MessageKind::kChannel, 3), {first.fd(), second.fd()});
  settle(process_, socket.get());
  uint64_t count = 0;
  ASSERT_EQ(8, ::read(channel.get(), &count, sizeof count));
  EXPECT_TRUE(peer->signal_channel(3));
  EXPECT_EQ(8, ::read(channel.get(), &count, sizeof count)) << "the channel is as it was";
  first.drop();
  second.drop();
  EXPECT_TRUE(first.closed() && second.closed());
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, 3));
  settle(process_, socket.get());
  EXPECT_FALSE(peer->signal_channel(3));
}

TEST_F(CmNode, WithoutRoomForAChannelsDescriptor_ThePeerStaysAndIsWokenByItsEventfd) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  rlimit limit{};
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
  send(socket.get(), process_.message(MessageKind::kChannel, 3), {channel.get()});
  settle(process_, socket.get());
  EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
  EXPECT_TRUE(peer->alive());
  EXPECT_TRUE(witness_.gone().empty());
  EXPECT_FALSE(peer->signal_channel(3)) << "whoever completes for it rings its doorbell";
  send(socket.get(), process_.message(MessageKind::kChannel, 4), {channel.get()});
  settle(process_, socket.get());
  EXPECT_TRUE(peer->signal_channel(4)) << "the next channel finds room";
}

TEST_F(CmNode, MessagesWithoutUseForADescriptor_CloseIt) {
  const base::UniqueFd socket = enter(process_);
  Token token;
  send(socket.get(), process_.message(MessageKind::kChannelDestroyed, 3), {token.fd()});
  send(socket.get(), process_.message(static_cast<MessageKind>(99)), {token.fd()});
  settle(process_, socket.get());
  token.drop();
  EXPECT_TRUE(token.closed());
  EXPECT_TRUE(met(process_)->alive()) << "what a later version may say is no fault";
}

TEST_F(CmNode, MessagesArriveFromThePeerThatSentThem) {
  FakeProcess other(78, 5);
  const base::UniqueFd one = enter(process_), two = enter(other);
  settle(process_, one.get());
  settle(other, two.get());
  EXPECT_EQ((std::vector<PeerRef>{met(process_), met(other)}), witness_.mads());
}

TEST_F(CmNode, AMessageGoesToThePeerThatItIsFor) {
  FakeProcess other(78, 5);
  const base::UniqueFd one = enter(process_), two = enter(other);
  const auto arrives_at = [&](int socket, int elsewhere, FakeProcess& process) {
    ASSERT_TRUE(node_->send_payload(*met(process), Payload{}));
    ASSERT_TRUE(wait_readable(socket, kSoonMs));
    const auto received = receive_message(socket);
    ASSERT_TRUE(received);
    EXPECT_EQ(static_cast<uint32_t>(MessageKind::kPayload), received->message.kind);
    const auto nothing = receive_message(elsewhere);
    ASSERT_FALSE(nothing);
    EXPECT_EQ(EAGAIN, nothing.error().code());
  };
  arrives_at(one.get(), two.get(), process_);
  arrives_at(two.get(), one.get(), other);
}

}  // namespace
}  // namespace nupa::host::test
