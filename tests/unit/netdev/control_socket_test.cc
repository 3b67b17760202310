// SPDX-License-Identifier: Apache-2.0
// A node's control socket: who asks late, never or wrongly costs the others nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../support/loop_by_hand.h"
#include "netdev/control_socket.h"

namespace nupa::netdev {
namespace {

using progress::Deadline;
using progress::Loop;
using progress::LoopByHand;

constexpr int kLimitMs = 10'000;

class SimulatedClock final : public progress::Clock {
 public:
  int64_t now_ns() const override { return at_ns; }
  int64_t at_ns = 1;
};

class NetdevControlSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/nupa-door-test-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    if (const char* before = getenv("NUPA_RUNTIME_DIR")) before_ = before;
    setenv("NUPA_RUNTIME_DIR", (folder_ + "/run").c_str(), 1);
    loop = std::move(*Loop::open(clock));
    auto opened = ControlSocket::open(
        *loop, "lab", "n1", [this](const std::string& question) { return answer(question); }, clock);
    ASSERT_TRUE(opened) << opened.error().what();
    control_socket = std::move(*opened);
  }
  void TearDown() override {
    control_socket.reset();
    loop.reset();
    if (before_.empty())
      unsetenv("NUPA_RUNTIME_DIR");
    else
      setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
    EXPECT_EQ(std::system(("rm -r " + folder_).c_str()), 0);
  }

  /// A process that has connected and not asked yet.
  static base::UniqueFd client() {
    auto dir = runtime::Directory::open();
    auto socket = (*dir)->connect_name("net,lab,n1");
    EXPECT_TRUE(socket);
    return socket ? std::move(*socket) : base::UniqueFd();
  }
  static void ask(const base::UniqueFd& client, const std::string& question) {
    EXPECT_EQ(send(client.get(), question.data(), question.size(), MSG_NOSIGNAL), ssize_t(question.size()));
  }
  static bool is_readable(int fd, int limit_ms) {
    pollfd entry{fd, POLLIN, 0};
    return poll(&entry, 1, limit_ms) == 1;
  }
  /// All that is to be done now. False: nothing was.
  bool serve() const {
    bool some = false;
    for (int turns = 0; LoopByHand::turn(*loop, Deadline::at(0)); ++turns) {
      EXPECT_LT(turns, 1000) << "something keeps the loop awake";
      if (turns == 1000) break;
      some = true;
    }
    return some;
  }
  /// The only guest's answer, as it gets it.
  std::string answered(const std::string& text) {
    const auto one = client();
    ask(one, "status");
    answer = [&](const std::string&) { return text; };
    serve();
    return answer_to(one);
  }
  static std::string answer_to(const base::UniqueFd& client) {
    if (!is_readable(client.get(), 0)) return "(nothing)";
    const auto answer = ControlSocket::take_answer(client.get());
    return answer ? *answer : "(hung up)";
  }

  /// What is taken of an answer in a file, which comes with these descriptors, two at most.
  static Result<std::string> answer_in(const std::vector<int>& files) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    const base::UniqueFd node(pair[0]), asks(pair[1]);
    std::string text = "file";
    iovec data{text.data(), text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (!files.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
      cmsghdr* const rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), files.data(), files.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(node.get(), &header, MSG_NOSIGNAL), ssize_t(text.size()));
    return ControlSocket::take_answer(asks.get());
  }

  SimulatedClock clock;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<ControlSocket> control_socket;
  std::vector<std::string> asked;
  ControlSocket::Answer answer = [this](const std::string& question) {
    asked.push_back(question);
    return "to " + question;
  };

 private:
  std::string folder_, before_;
};

TEST_F(NetdevControlSocket, Serve_QuestionThatComesLate_IsAnswered) {
  const auto late = client();
  EXPECT_TRUE(serve()) << "a guest has come";
  EXPECT_EQ(answer_to(late), "(nothing)");
  EXPECT_FALSE(serve()) << "a guest that is silent keeps nobody awake";
  ask(late, "who");
  EXPECT_TRUE(serve()) << "the guest has asked";
  EXPECT_EQ(answer_to(late), "to who");
  EXPECT_FALSE(serve());
}

TEST_F(NetdevControlSocket, Serve_SilentClient_DoesNotDelayOthers) {
  const auto silent = client();
  const auto other = client();
  ask(other, "status");
  serve();
  EXPECT_EQ(answer_to(other), "to status");
  EXPECT_EQ(answer_to(silent), "(nothing)");
  EXPECT_EQ(asked, std::vector<std::string>{"status"});
}

TEST_F(NetdevControlSocket, Serve_WithoutADescriptorForAClient_SleepsAndTakesItLater) {
  const auto one = client();
  ask(one, "status");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  serve();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(serve()) << "the loop looks again and again";
  EXPECT_TRUE(asked.empty());
  ASSERT_NE(LoopByHand::next_due_ns(*loop), INT64_MAX);
  clock.at_ns = LoopByHand::next_due_ns(*loop);
  serve();
  EXPECT_EQ(answer_to(one), "to status");
  EXPECT_FALSE(serve());
  const auto next = client();
  EXPECT_TRUE(serve());
}

TEST_F(NetdevControlSocket, Serve_ClientThatLeaves_IsForgotten) {
  client();
  serve();
  EXPECT_FALSE(serve());
  EXPECT_TRUE(asked.empty());
}

TEST_F(NetdevControlSocket, Serve_MoreClientsAtOnceThanItKeeps_AllThatHaveAskedAreAnswered) {
  std::vector<base::UniqueFd> all;
  for (size_t i = 0; i < 2 * ControlSocket::kMaxClients; ++i) {
    all.push_back(client());
    ask(all.back(), "q");
  }
  serve();
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(answer_to(all[i]), "to q") << i;
}

TEST_F(NetdevControlSocket, Serve_MoreSilentClientsThanItKeeps_HangsUpOnTheFirst) {
  std::vector<base::UniqueFd> silent;
  for (size_t i = 0; i <= ControlSocket::kMaxClients; ++i) {
    silent.push_back(client());
    serve();
  }
  EXPECT_EQ(answer_to(silent[0]), "(hung up)");
  for (size_t i = 1; i <= ControlSocket::kMaxClients; ++i) {
    ask(silent[i], "q");
    serve();
    EXPECT_EQ(answer_to(silent[i]), "to q") << i;
  }
}

TEST_F(NetdevControlSocket, Serve_AnswerOfAnyLength_IsSentWhole) {
  for (const size_t length :
       {size_t{1}, ControlSocket::kMaxMessage - 1, ControlSocket::kMaxMessage, ControlSocket::kMaxMessage + 1,
        2 * ControlSocket::kMaxMessage, 16 * ControlSocket::kMaxMessage + 7}) {
    std::string got(length, 'a');
    for (size_t i = 0; i < length; i += 1000) got[i] = static_cast<char>('b' + i / 1000 % 20);
    got.back() = 'z';
    EXPECT_TRUE(answered(got) == got) << length;
  }
}

TEST_F(NetdevControlSocket, AnswerWaiting_QuestionWithoutAnAnswerAtOnce_IsAnsweredThen) {
  answer = [](const std::string& question) {
    return question == "status" ? std::nullopt : std::optional<std::string>("to " + question);
  };
  const auto first = client(), second = client(), third = client();
  ask(first, "status");
  ask(second, "who");
  ask(third, "status");
  serve();
  EXPECT_EQ(answer_to(first), "(nothing)");
  EXPECT_EQ(answer_to(second), "to who");
  control_socket->answer_waiting("measured");
  EXPECT_EQ(answer_to(first), "measured");
  EXPECT_EQ(answer_to(third), "measured");
  control_socket->answer_waiting("again");
  EXPECT_EQ(answer_to(first), "(hung up)");
}

TEST_F(NetdevControlSocket, Serve_ClientClosesWhileItWaits_LeavesNothingReadable) {
  auto one = client();
  ask(one, "status");
  answer = [](const std::string&) { return std::nullopt; };
  serve();
  one.reset();
  EXPECT_FALSE(serve());
  control_socket->answer_waiting("measured");
}

TEST_F(NetdevControlSocket, Serve_MoreClientsWaitThanItKeeps_HangsUpOnTheFirst) {
  answer = [](const std::string&) { return std::nullopt; };
  std::vector<base::UniqueFd> waiting;
  for (size_t i = 0; i <= ControlSocket::kMaxClients; ++i) {
    waiting.push_back(client());
    ask(waiting.back(), "status");
    serve();
  }
  EXPECT_EQ(answer_to(waiting[0]), "(hung up)");
  control_socket->answer_waiting("measured");
  for (size_t i = 1; i <= ControlSocket::kMaxClients; ++i) EXPECT_EQ(answer_to(waiting[i]), "measured") << i;
}

TEST_F(NetdevControlSocket, TakeAnswer_DescriptorOfAnotherKind_IsAnErrorAndClosed) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const base::UniqueFd reads(ends[0]);
  base::UniqueFd writes(ends[1]);
  const base::UniqueFd large(memfd_create("large", MFD_CLOEXEC)), empty(memfd_create("empty", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(large.get(), static_cast<off_t>(ControlSocket::kMaxAnswer + 1)), 0);
  for (const std::vector<int>& files :
       std::vector<std::vector<int>>{{writes.get()}, {writes.get(), writes.get()}, {large.get()}, {empty.get()}}) {
    const auto got = answer_in(files);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code(), EPROTO);
  }
  writes.reset();
  pollfd end{reads.get(), POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 0), 1);
  EXPECT_NE(end.revents & POLLHUP, 0) << "a descriptor that came is still open";
  ASSERT_EQ(ftruncate(large.get(), static_cast<off_t>(ControlSocket::kMaxAnswer)), 0);
  EXPECT_TRUE(answer_in({large.get()}));
  const auto without = answer_in({});
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code(), EMFILE);
}

TEST_F(NetdevControlSocket, Ask_WithoutAnAnswerInTime_TimesOut) {
  const auto got = ControlSocket::ask("lab", "n1", "who", 0);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ETIMEDOUT);
}

TEST_F(NetdevControlSocket, Ask_OfANodeThatIsNotThere_IsRefused) {
  const auto got = ControlSocket::ask("lab", "n2", "who", 0);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ENOENT);
}

TEST_F(NetdevControlSocket, Open_NameOfARunningNode_IsRefused) {
  const auto second = ControlSocket::open(*loop, "lab", "n1", answer);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), EEXIST);
}

TEST_F(NetdevControlSocket, List_NamesTheNodesOfANetworkOrOfAll) {
  const auto other = ControlSocket::open(*loop, "office", "n2", answer);
  ASSERT_TRUE(other);
  using Names = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(ControlSocket::list("lab"), (Names{{"lab", "n1"}}));
  EXPECT_EQ(ControlSocket::list("office"), (Names{{"office", "n2"}}));
  EXPECT_EQ(ControlSocket::list("").size(), 2u);
  EXPECT_TRUE(ControlSocket::list("la").empty());
}

TEST_F(NetdevControlSocket, List_SocketsOfOtherKinds_AreLeftOut) {
  auto dir = runtime::Directory::open();
  ASSERT_TRUE(dir);
  for (const char* name : {"net,lab", "other,lab,n2", "net.lab,n3"}) EXPECT_TRUE((*dir)->claim_name(name)) << name;
  using Names = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(ControlSocket::list("lab"), (Names{{"lab", "n1"}}));
  EXPECT_EQ(ControlSocket::list(""), (Names{{"lab", "n1"}}));
}

TEST_F(NetdevControlSocket, Destroyed_RemovesTheSocketAndAnswersNoMore) {
  const auto waits = ControlSocket::begin_to_ask("lab", "n1", "who");
  ASSERT_TRUE(waits);
  control_socket.reset();
  EXPECT_TRUE(ControlSocket::list("").empty());
  ASSERT_TRUE(is_readable(waits->get(), kLimitMs));
  const auto got = ControlSocket::take_answer(waits->get());
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ECONNRESET);
  EXPECT_EQ(ControlSocket::ask("lab", "n1", "who", 0).error().code(), ENOENT);
  EXPECT_TRUE(ControlSocket::open(*loop, "lab", "n1", this->answer));
}

TEST(NetdevControlSocketField, Field_InvalidMessage_IsEmpty) {
  EXPECT_EQ(ControlSocket::field(R"({"do":"who"})", "do"), "who");
  for (const char* message : {"", "{", "[]", "1", "null", R"("do")", "{}", R"({"do":1})", R"({"do":null})",
                              R"({"do":["who"]})", R"({"do":{"do":"who"}})", R"({"Do":"who"})"})
    EXPECT_EQ(ControlSocket::field(message, "do"), "") << message;
}

}  // namespace
}  // namespace nupa::netdev
