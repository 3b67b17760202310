// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A node, and peers that the test plays.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <vector>

#include "fixture.h"
#include "host/node.h"

namespace nupa::host::test {

/// Remembers what it is told.
class Witness : public NodeEvents {
 public:
  void on_attention() override { ++attentions; }
  void on_peer_exit(Peer& peer) override {
    std::lock_guard lock(mutex_);
    gone_.push_back(peer.shared_from_this());
  }
  void on_payload(Peer& peer, const Payload&) override {
    std::lock_guard lock(mutex_);
    mads_.push_back(peer.shared_from_this());
  }
  Result<void> on_capture(base::UniqueFd file) override {
    if (refuses_captures) return fail(EBUSY, "refused");
    EXPECT_GE(file.get(), 0);
    ++captures;
    return {};
  }
  void on_capture_end() override { ++capture_ends; }
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
  std::atomic<uint32_t> captures{0};
  std::atomic<uint32_t> capture_ends{0};
  std::atomic<bool> refuses_captures{false};

 private:
  std::mutex mutex_;
  std::vector<PeerRef> gone_, mads_;
};

inline int error_of_next(int socket) {
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
    EXPECT_TRUE(socket && process.send_hello(socket.get()));
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

}  // namespace nupa::host::test
