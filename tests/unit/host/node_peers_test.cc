// SPDX-License-Identifier: Apache-2.0
// What a process makes of others that knock at its socket: strangers, processes that break the rules, and those that
// die.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "host/node.h"
#include "fixture.h"

namespace nupa::host::test {
namespace {

constexpr std::chrono::milliseconds kMeeting{5000};

/// Remembers what it is told.
class Witness : public NodeEvents {
 public:
  void on_attention() override { ++attentions; }
  void on_peer_gone(Peer& peer) override {
    std::lock_guard lock(mutex_);
    gone_.push_back(peer.shared_from_this());
  }
  void on_payload(Peer& peer, const Payload&) override {
    std::lock_guard lock(mutex_);
    mads_.push_back(peer.shared_from_this());
  }
  std::vector<PeerRef> gone() {
    std::lock_guard lock(mutex_);
    return gone_;
  }
  void forget() {
    std::lock_guard lock(mutex_);
    gone_.clear();
    mads_.clear();
  }
  std::vector<PeerRef> mads() {
    std::lock_guard lock(mutex_);
    return mads_;
  }

  std::atomic<uint32_t> attentions{0};

 private:
  std::mutex mutex_;
  std::vector<PeerRef> gone_, mads_;
};

int error_of_next(int socket) {
  const auto ready = wait_readable(socket, kSoonMs);
  if (!ready) return ready.error().code();
  const auto received = receive_message(socket);
  return received ? 0 : received.error().code();
}

class CmNode : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = base::make_shared_file("nupa-node-test");
    ASSERT_TRUE(file);
    region_ = std::move(*file);
    // The lowest slot, so that it is none of those that tests play.
    auto node = Node::open(region_.get(), {}, witness_, [](uint32_t) { return true; });
    ASSERT_TRUE(node) << node.error().what();
    node_ = std::move(*node);
    ASSERT_TRUE(node_->serve());
  }
  void TearDown() override { node_.reset(); }

  std::string socket_path() const { return folder_.file(std::to_string(node_->slot()) + ".sock"); }
  /// A connection of a process that has said hello, and has been answered.
  base::UniqueFd enter(FakeProcess& process) {
    base::UniqueFd socket = connect_to(socket_path());
    EXPECT_TRUE(socket && process.say_hello(socket.get()));
    EXPECT_EQ(0, error_of_next(socket.get()));
    return socket;
  }
  PeerRef met(FakeProcess& process) {
    PeerRef peer;
    EXPECT_TRUE(soon([&] { return (peer = node_->find(process.header().slot)) != nullptr; }));
    return peer;
  }
  /// Whatever was sent on `socket` before has been looked at: a message of the communication manager comes after it.
  void settle(FakeProcess& process, int socket) {
    const size_t before = witness_.mads().size();
    const Payload payload{};
    ASSERT_TRUE(send_message(socket, process.message(MessageKind::kPayload), nullptr, 0, &payload));
    ASSERT_TRUE(soon([&] { return witness_.mads().size() > before; }));
  }
  void send(int socket, const Message& message, std::initializer_list<int> fds = {}) {
    ASSERT_TRUE(send_message(socket, message, fds.begin(), fds.size()));
  }

  Folder folder_;
  base::UniqueFd region_;
  Witness witness_;
  std::unique_ptr<Node> node_;
  FakeProcess process_;
};

// Meeting.

TEST_F(CmNode, AHello_IsAnsweredByAHello_AndAQuestionForAChannelByThat) {
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0u, *node_->publish_channel(channel.get()));
  const base::UniqueFd socket = connect_to(socket_path());
  ASSERT_TRUE(process_.say_hello(socket.get()));
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
  ASSERT_TRUE(process_.say_hello(socket.get()));
  const auto nothing = receive_message(socket.get());
  ASSERT_FALSE(nothing);
  EXPECT_EQ(EAGAIN, nothing.error().code());
  EXPECT_EQ(nullptr, (*node)->find(process_.header().slot));
  ASSERT_TRUE((*node)->serve());
  EXPECT_TRUE((*node)->serve()) << "once is enough";
  EXPECT_EQ(0, error_of_next(socket.get()));
  EXPECT_TRUE(soon([&] { return (*node)->find(process_.header().slot) != nullptr; }));
}

TEST_F(CmNode, TheEndOfAChannel_IsToldToThePeersThatHaveIt) {
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
  for (const MessageKind kind : {MessageKind::kChannel, MessageKind::kChannelGone}) {
    ASSERT_TRUE(wait_readable(socket.get(), kSoonMs));
    const auto told = receive_message(socket.get());
    ASSERT_TRUE(told);
    EXPECT_EQ(static_cast<uint32_t>(kind), told->message.kind);
    EXPECT_EQ(*index, told->message.index);
    EXPECT_EQ(kind == MessageKind::kChannel ? 1u : 0u, told->fd_count);
  }
}

TEST_F(CmNode, AChannelThatIsGone_IsNotToldToAPeerThatReadsLater) {
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
  EXPECT_EQ(static_cast<uint32_t>(MessageKind::kChannelGone), told->message.kind);
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
  for (const MessageKind kind : {MessageKind::kChannel, MessageKind::kChannelGone, MessageKind::kGoodbye}) {
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
  EXPECT_NE(log.npos,
            log.find("is not let in: process " + std::to_string(getpid()) + ": its first message is not a hello"));
}

TEST_F(CmNode, AMessageOfAnotherProtocol_EndsTheConnectionOfAPeerToo) {
  const base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  Message wrong = process_.message(MessageKind::kGoodbye);
  wrong.magic ^= 1;
  send(socket.get(), wrong);
  ASSERT_TRUE(soon([&] { return witness_.gone() == std::vector<PeerRef>{peer}; }));
  EXPECT_FALSE(peer->left_politely());
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
                                      ? process_.say_hello(socket.get())
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
using Messages = std::vector<std::pair<MessageKind, uint32_t>>;

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
  send(socket.get(), process_.message(MessageKind::kChannelGone, 3));
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
  EXPECT_EQ(read_all(socket.get()), (Messages{{MessageKind::kChannelGone, 9}}));
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
  send(socket.get(), process_.message(MessageKind::kChannelGone, 0));
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
  send(socket.get(), process_.message(MessageKind::kChannelGone, Peer::kMaxChannels));
  send(socket.get(), process_.message(MessageKind::kChannelGone, 1u << 31));
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
  send(socket.get(), process_.message(MessageKind::kChannelGone, 3));
  settle(process_, socket.get());
  EXPECT_FALSE(peer->signal_channel(3));
}

TEST_F(CmNode, WithoutRoomForAChannelsDescriptor_ThePeerStaysAndIsWokenByItsDoorbell) {
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
  send(socket.get(), process_.message(MessageKind::kChannelGone, 3), {token.fd()});
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

// Deaths.

TEST_F(CmNode, AfterAGoodbye_TheEndIsNoFault) {
  base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  send(socket.get(), process_.message(MessageKind::kGoodbye));
  settle(process_, socket.get());
  EXPECT_TRUE(peer->alive()) << "a goodbye is not the end";
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  EXPECT_TRUE(peer->left_politely());
}

TEST_F(CmNode, AHangUpWithoutAGoodbye_IsADeath) {
  base::UniqueFd socket = enter(process_);
  const PeerRef peer = met(process_);
  socket.reset();
  ASSERT_TRUE(soon([&] { return !witness_.gone().empty(); }));
  EXPECT_FALSE(peer->left_politely());
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

TEST_F(CmNode, TheDeathOfAProcessWithTwoConnections_IsToldOnce) {
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

// Calls.

class CmNodeConnect : public CmNode {
 protected:
  void TearDown() override {
    if (thread_.joinable()) thread_.join();
    CmNode::TearDown();
  }
  /// A process in slot `slot`, which answers the first hello by `answer`.
  void serve(uint32_t slot, std::function<void(int socket)> answer) {
    listener_ = socket_at(folder_.file(std::to_string(slot) + ".sock"), kBacklog);
    thread_ = std::thread([this, answer] {
      const auto ready = wait_readable(listener_.get(), kSoonMs);
      ASSERT_TRUE(ready) << "nobody connects";
      const base::UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (error_of_next(accepted.get()) == 0) answer(accepted.get());
      keep_.get_future().wait_for(std::chrono::nanoseconds(kSoonNs));
    });
  }
  int error_of(uint32_t slot, std::chrono::milliseconds timeout = kMeeting) {
    const auto met = node_->connect(slot, timeout);
    return met ? 0 : met.error().code();
  }
  void finish() { keep_.set_value(); }

  base::UniqueFd listener_;
  std::promise<void> keep_;
  std::thread thread_;
};

TEST_F(CmNodeConnect, ToAProcessThatAnswers_ItIsMet) {
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0u, *node_->publish_channel(channel.get()));
  std::atomic<uint32_t> heard{0};
  serve(77, [&](int socket) {
    EXPECT_TRUE(process_.say_hello(socket));
    send(socket, process_.message(MessageKind::kWantChannel, 0));
    ASSERT_TRUE(wait_readable(socket, kSoonMs));
    const auto told = receive_message(socket);
    if (told && told->fd_count == 1) heard = told->message.kind;
  });
  const auto peer = node_->connect(77, kMeeting);
  ASSERT_TRUE(peer) << peer.error().what();
  EXPECT_EQ(77u, (*peer)->slot());
  EXPECT_EQ(*peer, *node_->connect(77, kMeeting)) << "met before";
  EXPECT_EQ(&node_->self(), node_->connect(node_->slot(), kMeeting)->get());
  EXPECT_TRUE(soon([&] { return heard == static_cast<uint32_t>(MessageKind::kChannel); }))
      << "of what was there before";
  finish();
  node_->withdraw_channel(0);
}

TEST_F(CmNodeConnect, ToAnEmptySlot_NobodyIsThere) {
  EXPECT_EQ(EHOSTUNREACH, error_of(77));
  socket_at(folder_.file("77.sock"), kBacklog);
  EXPECT_EQ(EHOSTUNREACH, error_of(77)) << "its process has died";
}

TEST_F(CmNodeConnect, AnsweredByAnotherSlot_ItIsRefused) {
  FakeProcess other(78);
  serve(77, [&](int socket) { EXPECT_TRUE(other.say_hello(socket)); });
  EXPECT_EQ(EPROTO, error_of(77));
  EXPECT_TRUE(node_->peers().empty());
  finish();
}

TEST_F(CmNodeConnect, AnsweredByNonsense_ItIsRefused) {
  serve(77, [this](int socket) { send(socket, process_.message(MessageKind::kGoodbye)); });
  EXPECT_EQ(EPROTO, error_of(77));
  finish();
}

TEST_F(CmNodeConnect, ToAProcessThatHangsUp_NobodyIsThere) {
  serve(77, [](int socket) { shutdown(socket, SHUT_RDWR); });
  EXPECT_EQ(EHOSTUNREACH, error_of(77));
  finish();
}

TEST_F(CmNodeConnect, ToAProcessThatIsStopped_ItEndsWithTheTime) {
  serve(77, [](int) {});
  EXPECT_EQ(ETIMEDOUT, error_of(77, std::chrono::milliseconds(20)));
  finish();
}

constexpr std::chrono::milliseconds kAtOnce{0};

TEST_F(CmNodeConnect, AnAnswerAfterTheTime_MeetsTheProcess) {
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_EQ(0u, *node_->publish_channel(channel.get()));
  std::promise<void> late;
  std::atomic<uint32_t> heard{0};
  serve(77, [&](int socket) {
    late.get_future().wait();
    EXPECT_TRUE(process_.say_hello(socket)) << "its socket is still open";
    send(socket, process_.message(MessageKind::kWantChannel, 0));
    ASSERT_TRUE(wait_readable(socket, kSoonMs));
    const auto told = receive_message(socket);
    if (told && told->fd_count == 1) heard = told->message.kind;
  });
  EXPECT_EQ(ETIMEDOUT, error_of(77, kAtOnce));
  late.set_value();
  const PeerRef peer = met(process_);
  ASSERT_NE(nullptr, peer);
  EXPECT_EQ(peer, *node_->connect(77, kAtOnce));
  EXPECT_TRUE(soon([&] { return heard == static_cast<uint32_t>(MessageKind::kChannel); }));
  EXPECT_TRUE(witness_.gone().empty());
  finish();
  node_->withdraw_channel(0);
}

TEST_F(CmNodeConnect, UntilItAnswers_AProcessIsAskedOnce) {
  std::promise<void> asked, late;
  serve(77, [&](int socket) {
    asked.set_value();
    late.get_future().wait();
    EXPECT_TRUE(process_.say_hello(socket));
  });
  EXPECT_EQ(ETIMEDOUT, error_of(77, kAtOnce));
  asked.get_future().wait();
  EXPECT_EQ(ETIMEDOUT, error_of(77, kAtOnce));
  pollfd more{listener_.get(), POLLIN, 0};
  EXPECT_EQ(0, ::poll(&more, 1, 0)) << "a second socket";
  late.set_value();
  const auto peer = node_->connect(77, kMeeting);
  ASSERT_TRUE(peer) << peer.error().what();
  EXPECT_EQ(*peer, node_->find(77));
  finish();
}

TEST_F(CmNodeConnect, AnAnswerOfAnotherSlotAfterTheTime_IsHungUpOn) {
  FakeProcess other(78);
  std::promise<void> late;
  std::atomic<int> error{0};
  serve(77, [&](int socket) {
    late.get_future().wait();
    EXPECT_TRUE(other.say_hello(socket));
    error = error_of_next(socket);
  });
  EXPECT_EQ(ETIMEDOUT, error_of(77, kAtOnce));
  late.set_value();
  EXPECT_TRUE(soon([&] { return error == ENOTCONN; }));
  EXPECT_TRUE(node_->peers().empty());
  finish();
}

TEST_F(CmNodeConnect, WhenTheProcessThatWasAskedHasEnded_TheNextInItsSlotIsAsked) {
  listener_ = socket_at(folder_.file("77.sock"), kBacklog);
  EXPECT_EQ(ETIMEDOUT, error_of(77, kAtOnce));
  // The service thread would see the end first.
  const base::UniqueFd event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  std::promise<void> held, seen;
  auto watch = node_->loop().watch(event.get(), [&](uint32_t) {
    uint64_t count;
    if (::read(event.get(), &count, sizeof count) != sizeof count) return;
    held.set_value();
    seen.get_future().wait();
  });
  ASSERT_TRUE(watch);
  held.get_future().wait();
  base::UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  thread_ = std::thread([this] {
    const base::UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(0, error_of_next(accepted.get()));
    EXPECT_TRUE(process_.say_hello(accepted.get()));
    keep_.get_future().wait_for(std::chrono::nanoseconds(kSoonNs));
  });
  const auto peer = node_->connect(77, kMeeting);
  EXPECT_TRUE(peer) << peer.error().what();
  seen.set_value();
  const base::UniqueFd for_the_thread = peer ? base::UniqueFd() : connect_to(folder_.file("77.sock"));
  finish();
  thread_.join();
}

TEST_F(CmNodeConnect, ByTheServiceThread_AProcessThatIsStoppedIsNotWaitedFor) {
  constexpr std::chrono::milliseconds kForEver{1'000'000};
  serve(77, [](int) {});
  int error = -1;
  EXPECT_TRUE(node_->loop().call([&] { error = error_of(77, kForEver); }, progress::Deadline::in_ms(kSoonMs)));
  EXPECT_EQ(error, ETIMEDOUT);
  finish();
  thread_.join();  // which ends the wait of one that waits
}

TEST_F(CmNodeConnect, ToAProcessOfAnotherUser_ItIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: no other user can be played";
  ASSERT_EQ(0, chmod(folder_.path().c_str(), 0777));
  Token ready;
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    const base::UniqueFd listener = socket_at(folder_.file("77.sock"), kBacklog);
    alarm(kSoonMs / 1000);
    ready.drop();
    const base::UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!process_.say_hello(accepted.get())) _exit(4);
    char nothing;
    _exit(recv(accepted.get(), &nothing, 1, 0) >= 0 && recv(accepted.get(), &nothing, 1, 0) == 0 ? 0 : 5);
  }
  ready.drop();
  ASSERT_TRUE(soon([&] { return ready.closed(); }));
  EXPECT_EQ(EACCES, error_of(77));
  EXPECT_TRUE(node_->peers().empty());
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status) << "it has heard a request and the end";
}

// The service thread.

TEST_F(CmNode, WithoutADescriptor_AcceptingPausesAndGoesOn) {
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
  const base::UniqueFd first = enter(process_);
  ASSERT_EQ(INT64_MAX, node_->loop().next_due_ns());
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
  EXPECT_TRUE(connect_by(socket.get(), socket_path()));
  // It wakes, cannot accept, and pauses. Without a pause it would wake again and again.
  EXPECT_TRUE(soon([&] { return node_->loop().next_due_ns() != INT64_MAX; }));
  EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
  FakeProcess next(78, 5);
  ASSERT_TRUE(next.say_hello(socket.get()));
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
