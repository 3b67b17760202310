// SPDX-License-Identifier: Apache-2.0
/// Calls that look for a process of this host: answers, refusals, time limits.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <thread>

#include "fixture.h"
#include "host/node.h"
#include "node_peers.h"

namespace nupa::host::test {
namespace {

constexpr std::chrono::milliseconds kMeeting{5000};

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
    EXPECT_TRUE(process_.send_hello(socket));
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
  serve(77, [&](int socket) { EXPECT_TRUE(other.send_hello(socket)); });
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
    EXPECT_TRUE(process_.send_hello(socket)) << "its socket is still open";
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
    EXPECT_TRUE(process_.send_hello(socket));
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
    EXPECT_TRUE(other.send_hello(socket));
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
    EXPECT_TRUE(process_.send_hello(accepted.get()));
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
    if (!process_.send_hello(accepted.get())) _exit(4);
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

}  // namespace
}  // namespace nupa::host::test
