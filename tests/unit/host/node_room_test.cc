// SPDX-License-Identifier: Apache-2.0
// A process holds descriptors for each peer, up to a part of those that it may have. It refuses further processes, and
// neither of the two meets the other one later, since their queue pairs may be connected by another transport by then.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"
#include "host/node.h"

namespace nupa::host::test {
namespace {

constexpr std::chrono::milliseconds kRefusalTimeout{5000};
constexpr std::chrono::milliseconds kNow{0};

class Losses : public NodeEvents {
 public:
  void on_attention() override {}
  void on_peer_exit(Peer&) override { ++gone; }
  void on_payload(Peer&, const Payload&) override {}
  std::atomic<int> gone{0};
};

size_t open_descriptors() {
  size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

/// RLIMIT_NOFILE, as it was at the end.
class Limit {
 public:
  Limit() { EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &before_)); }
  ~Limit() { restore(); }
  void set(rlim_t descriptors) {
    const rlimit wanted{descriptors, before_.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &wanted));
  }
  void restore() { EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &before_)); }

 private:
  rlimit before_{};
};

class NodeRoom : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = base::make_shared_file("nupa-node-test");
    ASSERT_TRUE(file);
    region_ = std::move(*file);
    auto node = Node::open(region_.get(), {}, losses_, [](uint32_t) { return true; });
    ASSERT_TRUE(node) << node.error().what();
    node_ = std::move(*node);
    ASSERT_TRUE(node_->serve());
  }

  std::string path_of(uint32_t slot) const { return folder_.file(std::to_string(slot) + ".sock"); }
  base::UniqueFd listen_as(uint32_t slot) {
    base::UniqueFd listener = socket_at(path_of(slot), kBacklog);
    fcntl(listener.get(), F_SETFL, O_NONBLOCK);
    return listener;
  }
  base::UniqueFd hello_of(FakeProcess& process) {
    base::UniqueFd socket = connect_to(path_of(node_->slot()));
    EXPECT_TRUE(socket && process.send_hello(socket.get()));
    return socket;
  }
  /// The next message on the socket; nothing: it has ended.
  std::optional<MessageKind> answer_on(int socket) {
    if (!wait_readable(socket, kSoonMs)) return std::nullopt;
    const auto received = receive_message(socket);
    if (!received) return std::nullopt;
    return static_cast<MessageKind>(received->message.kind);
  }
  /// Gives the node as many peers as the process may have, which is a small number from now on.
  void fill() {
    // Each takes five in this process, four of the node and the other end of the socket, and the limit has eight for
    // it.
    constexpr size_t kSpare = 32;
    const size_t most = open_descriptors() + kSpare;
    limit_.set(most * 2 * Peer::kDescriptors);
    ASSERT_EQ(most, Peer::most_peers());
    for (size_t i = 0; i < most; ++i) {
      auto other = std::make_unique<FakeProcess>(static_cast<uint32_t>(1000 + i));
      sockets_.push_back(hello_of(*other));
      ASSERT_EQ(MessageKind::kHello, answer_on(sockets_.back().get()));
      if (first_ == nullptr) first_ = std::move(other);
    }
    ASSERT_TRUE(soon([&] { return node_->peers().size() == most; }));
  }
  int error_of(uint32_t slot, std::chrono::milliseconds timeout = kRefusalTimeout) {
    const auto met = node_->connect(slot, timeout);
    return met ? 0 : met.error().code();
  }
  static bool is_asked(const base::UniqueFd& listener) {
    const base::UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return static_cast<bool>(accepted);
  }

  Limit limit_;
  Folder folder_;
  base::UniqueFd region_;
  Losses losses_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<FakeProcess> first_;  ///< of those that fill() has met
  std::vector<base::UniqueFd> sockets_;
};

TEST_F(NodeRoom, ProcessThatComesWhenThereIsNoRoom_IsRefusedForGood) {
  fill();
  FakeProcess further(300);
  const base::UniqueFd listener = listen_as(300);
  const base::UniqueFd refused = hello_of(further);
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(refused.get()));
  EXPECT_EQ(std::nullopt, answer_on(refused.get()));
  EXPECT_EQ(nullptr, node_->find(300));
  // There is room again, and the two have decided.
  limit_.restore();
  EXPECT_EQ(EMFILE, error_of(300));
  EXPECT_FALSE(is_asked(listener));
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(hello_of(further).get()));
  EXPECT_EQ(sockets_.size(), node_->peers().size());
  EXPECT_EQ(0, losses_.gone);
}

TEST_F(NodeRoom, NextProcessInTheSlotOfARefusedOne_IsMet) {
  fill();
  FakeProcess further(300);
  base::UniqueFd listener = listen_as(300);
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(hello_of(further).get()));
  limit_.restore();
  listener.reset();
  std::filesystem::remove(path_of(300));
  FakeProcess next(300, 5);
  listener = listen_as(300);
  const base::UniqueFd socket = hello_of(next);
  EXPECT_EQ(MessageKind::kHello, answer_on(socket.get()));
}

TEST_F(NodeRoom, FurtherSlotOfARefusedProcess_IsRefused) {
  fill();
  FakeProcess further(300);
  const base::UniqueFd listener = listen_as(300);
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(hello_of(further).get()));
  limit_.restore();
  std::filesystem::create_hard_link(path_of(300), path_of(301));
  EXPECT_EQ(EMFILE, error_of(301));
  EXPECT_FALSE(is_asked(listener));
}

TEST_F(NodeRoom, ConnectingWithoutRoom_TellsTheOtherProcess) {
  fill();
  const base::UniqueFd listener = listen_as(300);
  EXPECT_EQ(EMFILE, error_of(300));
  const base::UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(accepted.get()));
  // It is not let in later, since it knows.
  limit_.restore();
  FakeProcess further(300);
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(hello_of(further).get()));
}

TEST_F(NodeRoom, ProcessThatRefusesThisOne_IsAskedOnce) {
  const base::UniqueFd listener = listen_as(300);
  FakeProcess other(300);
  // The answer comes when nobody waits for it.
  EXPECT_EQ(ETIMEDOUT, error_of(300, kNow));
  {
    const base::UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(accepted);
    EXPECT_EQ(MessageKind::kHello, answer_on(accepted.get()));
    ASSERT_TRUE(send_message(accepted.get(), other.message(MessageKind::kNoRoom), nullptr, 0));
  }
  EXPECT_TRUE(soon([&] { return error_of(300, kNow) == EMFILE; }));
  EXPECT_FALSE(is_asked(listener));
}

TEST_F(NodeRoom, RefusalThatIsWaitedFor_IsTheError) {
  const base::UniqueFd listener = listen_as(300);
  FakeProcess other(300);
  std::thread refuses([&] {
    base::UniqueFd accepted;
    ASSERT_TRUE(soon([&] {
      accepted.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return static_cast<bool>(accepted);
    }));
    ASSERT_TRUE(send_message(accepted.get(), other.message(MessageKind::kNoRoom), nullptr, 0));
  });
  EXPECT_EQ(EMFILE, error_of(300));
  refuses.join();
  EXPECT_EQ(EMFILE, error_of(300));
  EXPECT_FALSE(is_asked(listener));
}

TEST_F(NodeRoom, PeerThatCouldNotTakeTheDescriptors_IsGone) {
  FakeProcess other(300);
  const base::UniqueFd listener = listen_as(300);
  const base::UniqueFd socket = hello_of(other);
  EXPECT_EQ(MessageKind::kHello, answer_on(socket.get()));
  ASSERT_TRUE(soon([&] { return node_->find(300) != nullptr; }));
  ASSERT_TRUE(send_message(socket.get(), other.message(MessageKind::kNoRoom), nullptr, 0));
  EXPECT_TRUE(soon([&] { return losses_.gone == 1; }));
  EXPECT_EQ(EMFILE, error_of(300));
}

TEST_F(NodeRoom, PeerThatWasMetBefore_ComesAgainWithoutRoom) {
  fill();
  const base::UniqueFd again = hello_of(*first_);
  EXPECT_EQ(MessageKind::kHello, answer_on(again.get()));
}

TEST_F(NodeRoom, PeerThatGoes_MakesRoom) {
  fill();
  sockets_.pop_back();
  ASSERT_TRUE(soon([&] { return losses_.gone == 1; }));
  FakeProcess further(300);
  const base::UniqueFd socket = hello_of(further);
  EXPECT_EQ(MessageKind::kHello, answer_on(socket.get()));
}

TEST_F(NodeRoom, FullTable_RefusesInPlaceOfSilence) {
  FakeProcess further(300);
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  {  // The first connection has the node keep a descriptor for this.
    FakeProcess first(301);
    EXPECT_EQ(MessageKind::kHello, answer_on(hello_of(first).get()));
    ASSERT_TRUE(soon([&] { return losses_.gone == 1; }));
  }
  std::vector<base::UniqueFd> table;
  limit_.set(open_descriptors() + 64);
  for (int fd = dup(socket.get()); fd >= 0; fd = dup(socket.get())) table.emplace_back(fd);
  ASSERT_TRUE(connect_by(socket.get(), path_of(node_->slot())));
  // The answer may be there before the hello.
  further.send_hello(socket.get());
  EXPECT_EQ(MessageKind::kNoRoom, answer_on(socket.get()));
}

TEST_F(NodeRoom, RefusalThatComesBeforeTheHello_IsHeard) {
  constexpr uint32_t kProcesses = 64;
  std::vector<base::UniqueFd> listeners;
  for (uint32_t i = 0; i < kProcesses; ++i) listeners.push_back(listen_as(300 + i));
  FakeProcess other(300);
  std::atomic<uint32_t> turn{0};
  std::thread refuses([&] {
    for (uint32_t i = 0; i < kProcesses;) {
      const base::UniqueFd accepted(accept4(listeners[i].get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!accepted) continue;  // without a pause: it is to be faster than the hello
      EXPECT_TRUE(send_message(accepted.get(), other.message(MessageKind::kNoRoom), nullptr, 0));
      turn = ++i;
    }
  });
  for (uint32_t i = 0; i < kProcesses; ++i) {
    ASSERT_TRUE(soon([&] { return turn == i; }));
    EXPECT_EQ(EMFILE, error_of(300 + i)) << i;
  }
  refuses.join();
}

}  // namespace
}  // namespace nupa::host::test
