// SPDX-License-Identifier: Apache-2.0
// Watching remote processes: when each is probed, which answers count, and when a process counts as ended. Sockets are
// real, the time is the test's.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <vector>

#include "base/gid.h"
#include "cm/peer_watch.h"
#include "transport/roce/port/management.h"

namespace nupa::core {
namespace {

constexpr int kSoonMs = 20000;  // a sanitizer on a busy machine
constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1000 * kSecond;

Gid loopback(uint8_t last = 1) { return base::ipv4_gid(127, 0, 0, last); }

bool readable(int fd, int patience_ms = kSoonMs) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, patience_ms) == 1;
}

/// A process that may be asked.
class Asked {
 public:
  Asked() : socket_(*roce::ManagementSocket::open(0)) {
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    EXPECT_EQ(0, getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&name), &length));
    port = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(name).sin_port);
  }
  cm::Way way() const {
    cm::Way way;
    way.local = way.remote = loopback();
    way.port = port;
    way.of_nupa = true;
    return way;
  }
  /// The questions that have come; at least `wanted` are waited for.
  std::vector<MadDatagram> questions(size_t wanted) {
    std::vector<MadDatagram> all;
    do {
      if (wanted > 0 && !readable(socket_.fd())) break;
      socket_.receive([&](const MadDatagram& datagram) { all.push_back(datagram); });
    } while (all.size() < wanted);
    return all;
  }
  void answer(const MadDatagram& question, cm::Probe probe, Gid from = loopback()) {
    MadDatagram echo = question;
    echo.bytes = cm::write_probe(probe);
    echo.local = from;
    socket_.send(echo);
  }

  uint16_t port = 0;

 private:
  roce::ManagementSocket socket_;
};

class CorePeerWatch : public ::testing::Test {
 protected:
  int64_t ask(const std::vector<cm::Way>& ways, int64_t now) {
    return watch_->ask(ways, now, [this](const Gid& remote, uint16_t port) { ended_.emplace_back(remote, port); });
  }
  /// Asks `count` times, as long as this process runs. Returns the time of the next question.
  int64_t ask_often(const std::vector<cm::Way>& ways, int64_t now, int count) {
    for (int i = 0; i < count; ++i) now = ask(ways, now);
    return now;
  }
  /// Looks at what has come, at least at one datagram or refusal.
  void receive() {
    ASSERT_TRUE(readable(watch_->fd()));
    watch_->receive([this](const Gid& remote, uint16_t port) { ended_.emplace_back(remote, port); },
                    [this](const Gid& remote, uint16_t port) { unconfirmed_.emplace_back(remote, port); });
  }
  /// A process that answers none of so many is not silent yet.
  static constexpr int kQuestions = 31;
  using Found = std::vector<std::pair<Gid, uint16_t>>;
  static constexpr uint64_t kInstance = 0x77;

  std::unique_ptr<cm::PeerWatch> watch_ =
      std::make_unique<cm::PeerWatch>(std::make_unique<roce::ManagementSocket>(*roce::ManagementSocket::open(0)));
  Found ended_, unconfirmed_;
  Asked peer_;
};

TEST_F(CorePeerWatch, Watch_EachProcess_IsProbedOnceASecond) {
  Asked other;
  const std::vector<cm::Way> ways = {peer_.way(), other.way()};
  EXPECT_EQ(kNow + kSecond, ask(ways, kNow));
  EXPECT_EQ(kNow + kSecond, ask(ways, kNow + 1));
  EXPECT_EQ(kNow + kSecond, ask(ways, kNow + kSecond - 1));
  EXPECT_EQ(kNow + 2 * kSecond, ask(ways, kNow + kSecond));
  for (Asked* asked : {&peer_, &other}) {
    const auto questions = asked->questions(2);
    ASSERT_EQ(2u, questions.size());
    const auto probe = cm::read_probe(questions[0].bytes);
    ASSERT_TRUE(probe);
    EXPECT_FALSE(probe->is_echo);
    EXPECT_EQ(asked->port, probe->port);
    EXPECT_TRUE(questions[0].of_nupa);
  }
  EXPECT_TRUE(ended_.empty());
}

TEST_F(CorePeerWatch, Watch_NoProcess_Sleeps) {
  EXPECT_EQ(INT64_MAX, ask({}, kNow));
  ask({peer_.way()}, kNow);
  EXPECT_EQ(INT64_MAX, ask({}, kNow + 1));
}

TEST_F(CorePeerWatch, NoAnswer_ForMoreThanHalfAMinute_EndsTheProcess) {
  int64_t now = ask_often({peer_.way()}, kNow, kQuestions);
  EXPECT_EQ(kNow + kQuestions * kSecond, now);
  EXPECT_TRUE(ended_.empty());
  ASSERT_EQ(static_cast<size_t>(kQuestions), peer_.questions(kQuestions).size());
  now = ask({peer_.way()}, now);
  EXPECT_EQ((Found{{loopback(), peer_.port}}), ended_);
  EXPECT_TRUE(peer_.questions(0).empty()) << "an ended process is not probed";
  ask({peer_.way()}, now);
  EXPECT_EQ(1u, ended_.size()) << "it is reported once, and a connection to the same port starts from the beginning";
}

TEST_F(CorePeerWatch, Answer_AfterMissedProbes_RestartsTheCount) {
  int64_t now = ask_often({peer_.way()}, kNow, 20);
  peer_.answer(peer_.questions(1).at(0), {true, peer_.port, kInstance});
  receive();
  now = ask_often({peer_.way()}, now, kQuestions);
  EXPECT_TRUE(ended_.empty());
  ask({peer_.way()}, now);
  EXPECT_EQ(1u, ended_.size());
}

TEST_F(CorePeerWatch, NoAnswer_WhileThisProcessIsStopped_DoesNotCount) {
  Asked other;
  const std::vector<cm::Way> ways = {peer_.way(), other.way()};
  int64_t now = ask(ways, kNow);
  peer_.answer(peer_.questions(1).at(0), {true, peer_.port, kInstance});
  // It goes on long after the answer came, and asks before it looks at that.
  now = ask(ways, now + 3600 * kSecond);
  EXPECT_TRUE(ended_.empty());
  receive();
  now = ask_often(ways, now, kQuestions - 2);
  EXPECT_TRUE(ended_.empty());
  ask(ways, now);
  EXPECT_EQ((Found{{loopback(), other.port}}), ended_) << "it has not answered so many questions";
}

TEST_F(CorePeerWatch, NewInstance_ItsFirstThreeAnswers_AreToBeConfirmed) {
  ask({peer_.way()}, kNow);
  const auto question = peer_.questions(1).at(0);
  for (const uint64_t instance : {kInstance, kInstance + 1}) {
    unconfirmed_.clear();
    for (int i = 0; i < 5; ++i) {
      peer_.answer(question, {true, peer_.port, instance});
      receive();
    }
    EXPECT_EQ((Found(3, {loopback(), peer_.port})), unconfirmed_);
  }
}

TEST_F(CorePeerWatch, Answer_FromAnotherAddress_DoesNotCount) {
  int64_t now = ask({peer_.way()}, kNow);
  const auto question = peer_.questions(1).at(0);
  peer_.answer(question, {true, static_cast<uint32_t>(peer_.port) + 1, kInstance});
  receive();
  peer_.answer(question, {true, peer_.port, kInstance}, loopback(2));
  receive();
  peer_.answer(question, {false, peer_.port, kInstance});
  receive();
  EXPECT_TRUE(unconfirmed_.empty());
  now = ask_often({peer_.way()}, now, kQuestions - 1);
  EXPECT_TRUE(ended_.empty());
  ask({peer_.way()}, now);
  EXPECT_EQ(1u, ended_.size()) << "it has not answered itself";
}

TEST_F(CorePeerWatch, ProcessWithoutConnections_IsForgotten) {
  Asked other;
  int64_t now = ask({peer_.way(), other.way()}, kNow);
  now = ask({other.way()}, now);
  peer_.answer(peer_.questions(1).at(0), {true, peer_.port, kInstance});
  receive();
  EXPECT_TRUE(unconfirmed_.empty());
  now = ask_often({peer_.way()}, now, kQuestions);
  EXPECT_TRUE(ended_.empty()) << "its missed probes are counted from zero";
  ask({}, now);
  ask_often({peer_.way()}, now, kQuestions);
  EXPECT_TRUE(ended_.empty());
}

TEST_F(CorePeerWatch, ClosedPort_SecondRefusal_EndsTheProcess) {
  cm::Way way;
  {
    const Asked ended;
    way = ended.way();
  }
  ask({way}, kNow);
  receive();
  EXPECT_TRUE(ended_.empty()) << "one refusal may be of something else";
  ask({way}, kNow + kSecond);
  receive();
  EXPECT_EQ((Found{{loopback(), way.port}}), ended_);
}

}  // namespace
}  // namespace nupa::core
