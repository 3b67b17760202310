// SPDX-License-Identifier: Apache-2.0
// Processes that meet, fork, exit and are killed: each has a node of its own. They are forked before this process has
// any thread.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "host/node.h"
#include "fixture.h"
#include "progress/lifecycle.h"
#include "../../support/sanitizers.h"

namespace nupa::host::test {
namespace {

constexpr std::chrono::milliseconds kMeeting{10'000};

class Quiet : public NodeEvents {
 public:
  void on_attention() override {}
  void on_peer_exit(Peer&) override { ++gone; }
  void on_payload(Peer&, const Payload&) override { ++mads; }
  std::atomic<uint32_t> gone{0}, mads{0};
};

/// What a process does that a test drives: words come by a socket, and are answered when they are done.
class Process {
 public:
  explicit Process(std::function<void(Process&)> body) {
    Ends ends = make_pair(0);
    pid_ = fork();
    if (pid_ == 0) {
      ends.one.reset();
      link_ = std::move(ends.other);
      alarm(kSoonMs / 1000 * 3);  // a test that fails leaves nobody behind
      body(*this);
      _exit(::testing::Test::HasFailure() ? kFailedExpectation : 0);
    }
    link_ = std::move(ends.one);
  }
  ~Process() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    wait();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void tell(uint32_t word) { ASSERT_EQ(4, ::send(link_.get(), &word, sizeof word, MSG_NOSIGNAL)); }
  /// 0: the other side is gone, or says nothing.
  uint32_t hear() {
    uint32_t word = 0;
    if (!wait_readable(link_.get(), kSoonMs)) return 0;
    return recv(link_.get(), &word, sizeof word, 0) == 4 ? word : 0;
  }
  int wait() {
    int status = -1;
    EXPECT_EQ(pid_, waitpid(pid_, &status, 0));
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  void killed() {
    kill(pid_, SIGKILL);
    EXPECT_EQ(1000 + SIGKILL, wait());
  }
  /// When this returns each of its threads stands still.
  void stop() {
    int status = 0;
    kill(pid_, SIGSTOP);
    ASSERT_EQ(pid_, waitpid(pid_, &status, WUNTRACED));
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  void go_on() { kill(pid_, SIGCONT); }
  void close_link() { link_.reset(); }

 private:
  pid_t pid_ = 0;
  base::UniqueFd link_;
};

/// A node with what it needs. It stays until the process ends.
struct Own {
  Quiet events;
  base::UniqueFd region;
  std::unique_ptr<Node> node;
  Own() {
    auto file = base::make_shared_file("nupa-node-test");
    if (file) region = std::move(*file);
    if (auto opened = Node::open(region.get(), {}, events); opened && (*opened)->serve()) node = std::move(*opened);
  }
};

class CmProcesses : public ::testing::Test {
 protected:
  /// A process that meets the one in the slot that it is told, says its own slot, and then does `more`.
  std::unique_ptr<Process> met_process(std::function<void(Process&, Own&)> more) {
    return std::make_unique<Process>([more](Process& self) {
      auto* own = new Own;
      if (own->node == nullptr || !own->node->connect(self.hear(), kMeeting)) _exit(90);
      self.tell(own->node->slot());
      more(self, *own);
    });
  }
  void meet(Process& process) {
    here_ = std::make_unique<Own>();
    ASSERT_NE(nullptr, here_->node);
    process.tell(here_->node->slot());
    slot_ = process.hear();
    ASSERT_NE(0u, slot_);
    ASSERT_TRUE(soon([&] { return (peer_ = here_->node->find(slot_)) != nullptr; }));
  }
  bool is_gone() {
    return soon([&] { return here_->events.gone == 1; });
  }
  /// Connects to the process and sends it no message of a peer. True if the process has accepted the connection, and
  /// closes it therefore.
  bool is_accepted() {
    const base::UniqueFd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{AF_UNIX, {}};
    const std::string path = folder_.file(std::to_string(slot_) + ".sock");
    if (path.size() >= sizeof address.sun_path) return false;
    path.copy(address.sun_path, path.size());
    if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
    char none = 0;
    if (::send(connection.get(), &none, sizeof none, MSG_NOSIGNAL) != sizeof none) return false;
    return wait_readable(connection.get(), kSoonMs) && recv(connection.get(), &none, sizeof none, 0) <= 0;
  }
  bool socket_exists() {
    struct stat status;
    return lstat(folder_.file(std::to_string(slot_) + ".sock").c_str(), &status) == 0;
  }

  Folder folder_;
  std::unique_ptr<Own> here_;
  uint32_t slot_ = 0;
  PeerRef peer_;
};

TEST_F(CmProcesses, AProcessThatIsKilled_IsGoneWithoutAGoodbye) {
  auto process = met_process([](Process& self, Own&) { self.hear(); });
  meet(*process);
  process->killed();
  ASSERT_TRUE(is_gone());
  EXPECT_FALSE(peer_->has_exited_cleanly());
  EXPECT_FALSE(peer_->alive());
  EXPECT_EQ(nullptr, here_->node->find(slot_));
  here_->node.reset();
  EXPECT_FALSE(socket_exists());
}

TEST_F(CmProcesses, AProcessThatExits_SaysGoodbyeAndTakesItsSocket) {
  auto process = met_process([](Process& self, Own&) {
    self.hear();
    exit(0);
  });
  meet(*process);
  process->tell(1);
  EXPECT_EQ(0, process->wait());
  EXPECT_FALSE(socket_exists());
  ASSERT_TRUE(is_gone());
  EXPECT_TRUE(peer_->has_exited_cleanly());
}

/// Gives the socket at `from` the name `to`, as the socket of a process that has just claimed the slot.
struct Claim {
  std::string from, to;
};
void claim(void* claim) {
  const auto& names = *static_cast<Claim*>(claim);
  if (link(names.from.c_str(), names.to.c_str()) != 0) _exit(92);
}

TEST_F(CmProcesses, Exit_AnotherProcessClaimsTheSlotMeanwhile_ItKeepsItsSocket) {
  auto process = met_process([this](Process& self, Own& own) {
    auto* names = new Claim{folder_.file("other"), folder_.file(std::to_string(own.node->slot()) + ".sock")};
    // Runs after the name of the node's socket was removed, and before the node's own action.
    if (progress::at_exit(progress::ExitStage::kStreams, {claim, names}) != 0) _exit(91);
    self.hear();
    exit(0);
  });
  meet(*process);
  const base::UniqueFd other = socket_at(folder_.file("other"), kBacklog);
  process->tell(1);
  EXPECT_EQ(0, process->wait());
  ASSERT_TRUE(is_gone());
  EXPECT_TRUE(socket_exists());
}

TEST_F(CmProcesses, AProcessThatEndsWithoutExit_SaysNoGoodbye) {
  auto process = met_process([](Process& self, Own&) {
    self.hear();
    _exit(0);
  });
  meet(*process);
  process->tell(1);
  EXPECT_EQ(0, process->wait());
  ASSERT_TRUE(is_gone());
  EXPECT_FALSE(peer_->has_exited_cleanly());
}

TEST_F(CmProcesses, AProcessThatRunsItsEndBeforeExit_SaysGoodbye) {
  auto process = met_process([](Process& self, Own&) {
    self.hear();
    progress::run_exit_actions();
    _exit(0);
  });
  meet(*process);
  process->tell(1);
  EXPECT_EQ(0, process->wait());
  ASSERT_TRUE(is_gone());
  EXPECT_TRUE(peer_->has_exited_cleanly());
}

/// A signal handler.
void exit_now(int) { exit(0); }

TEST_F(CmProcesses, AProcessThatExitsInASignalHandler_EndsAndSaysGoodbye_WhateverItWasDoing) {
  // The signal comes while the program holds the node's lock, or does not: in some rounds of these it does.
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    auto process = met_process([](Process& self, Own& own) {
      self.hear();
      signal(SIGPROF, exit_now);
      const itimerval soon{{0, 0}, {0, 5000}};
      setitimer(ITIMER_PROF, &soon, nullptr);
      // It allocates nothing: a sanitizer's own exit waits for the allocator's locks.
      for (;;) own.node->find(shm::kMaxSlot);
    });
    meet(*process);
    process->tell(1);
    ASSERT_EQ(0, process->wait()) << "in round " << round << " it was ended by its alarm";
    EXPECT_FALSE(socket_exists());
    ASSERT_TRUE(is_gone());
    EXPECT_TRUE(peer_->has_exited_cleanly());
    here_.reset();
  }
}

TEST_F(CmProcesses, AParentThatDies_IsGoneThoughItsChildLives) {
  Token child_lives;
  auto process = met_process([&](Process& self, Own&) {
    self.hear();
    const pid_t child = fork();
    if (child == 0) {
      self.tell(static_cast<uint32_t>(getpid()));  // from here, so that the fork handlers of the child have run
      self.close_link();
      for (;;) pause();
    }
    self.hear();
  });
  meet(*process);
  ASSERT_TRUE(is_accepted()) << "the parent has what it keeps from its first connection on";
  process->tell(1);
  const auto child = static_cast<pid_t>(process->hear());
  ASSERT_GT(child, 0);
  child_lives.drop();
  process->killed();
  EXPECT_TRUE(is_gone()) << "a child that holds its parent's sockets would hide the death";
  EXPECT_FALSE(child_lives.closed()) << "the child lives";
  here_->node.reset();
  EXPECT_FALSE(socket_exists()) << "and does not hold the name";
  EXPECT_EQ(0, kill(child, SIGKILL));
}

TEST_F(CmProcesses, AChildThatExits_EndsNothingOfItsParents) {
  auto process = met_process([](Process& self, Own& own) {
    self.hear();
    for (const bool politely : {true, false}) {
      const pid_t child = fork();
      if (child == 0) {
        if (politely) exit(0);
        own.node.reset();
        _exit(0);
      }
      int status = -1;
      if (waitpid(child, &status, 0) != child || status != 0) _exit(80);
    }
    const Payload payload{};
    const PeerRef peer = own.node->peers().empty() ? nullptr : own.node->peers().front();
    if (peer == nullptr || !own.node->send_payload(*peer, payload)) _exit(81);
    self.tell(2);
    self.hear();
  });
  meet(*process);
  process->tell(1);
  EXPECT_EQ(2u, process->hear());
  ASSERT_TRUE(soon([&] { return here_->events.mads == 1; })) << "the parent goes on";
  EXPECT_EQ(0u, here_->events.gone);
  EXPECT_TRUE(peer_->alive());
  EXPECT_FALSE(peer_->has_exited_cleanly());
  EXPECT_TRUE(socket_exists());
  EXPECT_EQ(0u, peer_->tables().header->closing.load());
}

TEST_F(CmProcesses, AChildThatExits_SweepsNothing) {
  // It has no node: what lies in the folder is its parent's to see to, under a lock that both would hold as one.
  auto process = met_process([](Process& self, Own&) {
    self.hear();
    const pid_t child = fork();
    if (child == 0) exit(0);
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) _exit(80);
    self.tell(2);
    self.hear();
  });
  meet(*process);
  const uint32_t unmet = slot_ == 77 || here_->node->slot() == 77 ? 78 : 77;
  const std::string dead = folder_.file(std::to_string(unmet) + ".sock");
  socket_at(dead, kBacklog).reset();
  process->tell(1);
  EXPECT_EQ(2u, process->hear());
  EXPECT_TRUE(std::filesystem::exists(dead));
  process->killed();
  here_->node.reset();
  EXPECT_FALSE(std::filesystem::exists(dead)) << "a process with a node takes it away";
}

TEST_F(CmProcesses, AChild_MayHaveANodeOfItsOwn) {
  if (nupa::test::kThreadSanitizer) GTEST_SKIP() << nupa::test::kNoThreadInChild;
  auto process = met_process([](Process& self, Own&) {
    const uint32_t here = self.hear();
    const pid_t child = fork();
    if (child == 0) {
      auto* own = new Own;
      if (own->node == nullptr || !own->node->connect(here, kMeeting)) _exit(70);
      self.tell(own->node->slot());
      exit(0);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) _exit(71);
    self.hear();
  });
  meet(*process);
  process->tell(here_->node->slot());
  const uint32_t childs = process->hear();
  EXPECT_NE(0u, childs);
  EXPECT_NE(slot_, childs);
  EXPECT_TRUE(is_gone());
  EXPECT_TRUE(peer_->alive()) << "the child is gone, not its parent";
}

TEST_F(CmProcesses, CallsOnWhatAChildInherits_DoNotWaitForItsParent) {
  // Threads of the parent hold the locks, again and again, while it forks.
  auto process = met_process([](Process& self, Own& own) {
    self.hear();
    progress::Loop::Timer timer(own.node->loop(), [](int64_t) {});
    std::atomic<bool> stop{false};
    std::thread busy([&] {
      while (!stop) {
        own.node->peers();
        timer.set(INT64_MAX);
        usleep(20);  // sleep: a thread that only locks would leave fork() no turn
      }
    });
    int failures = 0;
    for (int round = 0; round < 20; ++round) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(kSoonMs / 1000);
        own.node->peers();
        timer.run_soon();
        _exit(0);
      }
      int status = -1;
      waitpid(child, &status, 0);
      failures += status == 0 ? 0 : 1;
    }
    stop = true;
    busy.join();
    self.tell(failures == 0 ? 3 : 4);
    self.hear();
  });
  meet(*process);
  process->tell(1);
  EXPECT_EQ(3u, process->hear());
}

TEST_F(CmProcesses, AProcessThatIsStoppedWhileItIsAsked_IsMetWhenItGoesOn) {
  Process stopped([](Process& self) {
    auto* own = new Own;
    self.tell(own->node == nullptr ? 0 : own->node->slot());
    const PeerRef asker = own->node->find(self.hear());
    self.tell(asker == nullptr ? 3 : own->events.gone != 0 || !asker->alive() ? 2 : 1);
    self.hear();
  });
  slot_ = stopped.hear();
  ASSERT_NE(0u, slot_);
  here_ = std::make_unique<Own>();
  ASSERT_NE(nullptr, here_->node);
  ASSERT_NO_FATAL_FAILURE(stopped.stop());
  const auto asked = here_->node->connect(slot_, std::chrono::milliseconds(0));
  ASSERT_FALSE(asked);
  EXPECT_EQ(ETIMEDOUT, asked.error().code());
  stopped.go_on();
  ASSERT_TRUE(soon([&] { return (peer_ = here_->node->find(slot_)) != nullptr; })) << "its answer comes late";
  stopped.tell(here_->node->slot());
  EXPECT_EQ(1u, stopped.hear()) << "it has not taken the one that asked for dead";
  EXPECT_TRUE(peer_->alive());
  EXPECT_EQ(0u, here_->events.gone);
  EXPECT_TRUE(here_->node->send_payload(*peer_, Payload{}));
}

TEST_F(CmProcesses, ThoseThatWereKilledUnmet_AreSweptByTheNextThatGoes) {
  // Nobody is connected to it when it dies, so that nobody sees its death.
  Process alone([](Process& self) {
    auto* own = new Own;
    self.tell(own->node == nullptr ? 0 : own->node->slot());
    self.hear();
  });
  slot_ = alone.hear();
  ASSERT_NE(0u, slot_);
  here_ = std::make_unique<Own>();
  alone.killed();
  EXPECT_TRUE(socket_exists());
  here_->node.reset();
  EXPECT_FALSE(socket_exists());
}

TEST_F(CmProcesses, ASlotUsedAgain_IsAnotherProcess) {
  // With packets each process takes the lowest slot that is free.
  const auto lowest = [](uint32_t) { return true; };
  const auto serve = [&](Process& self) {
    auto* events = new Quiet;
    auto* region = new base::UniqueFd(std::move(*base::make_shared_file("nupa-node-test")));
    auto node = Node::open(region->get(), {}, *events, lowest);
    if (!node || !(*node)->serve()) _exit(60);
    self.tell((*node)->slot());
    self.hear();
  };
  auto first = std::make_unique<Process>(serve);
  auto second = std::make_unique<Process>([&](Process& self) {
    self.hear();
    serve(self);
  });
  slot_ = first->hear();
  ASSERT_EQ(1u, slot_);
  here_ = std::make_unique<Own>();
  const auto old = here_->node->connect(slot_, kMeeting);
  ASSERT_TRUE(old);
  first->killed();
  ASSERT_TRUE(is_gone());
  second->tell(1);
  ASSERT_EQ(1u, second->hear()) << "the dead one's";
  const auto now = here_->node->connect(slot_, kMeeting);
  ASSERT_TRUE(now);
  EXPECT_NE(*old, *now);
  EXPECT_NE((*old)->instance(), (*now)->instance());
  EXPECT_TRUE((*now)->alive());
  EXPECT_FALSE((*old)->alive());
  const Payload payload{};
  EXPECT_FALSE(here_->node->send_payload(**old, payload)) << "nothing reaches another process in its place";
  EXPECT_TRUE(here_->node->send_payload(**now, payload));
}

TEST_F(CmProcesses, AtMostSoMuchAsTheTableHoldsIsShown) {
  std::vector<std::vector<Gid>> gids(shm::kMaxDevices + 2, std::vector<Gid>(shm::kMaxGids + 3));
  gids[1].resize(2);
  gids[1][1].raw[15] = 9;
  here_ = std::make_unique<Own>();
  here_->node.reset();
  bool is_described = false;
  const auto describe = [&](shm::SegmentHeader& shown) {
    is_described = true;
    shown.shares_memory = 1;
  };
  const auto reserve = [&](uint32_t) {
    EXPECT_TRUE(is_described) << "others may find the process now";
    return true;
  };
  auto node = Node::open(here_->region.get(), gids, here_->events, reserve, describe);
  ASSERT_TRUE(node);
  const shm::SegmentHeader& header = *(*node)->segment().tables().header;
  EXPECT_EQ(shm::kMaxDevices, header.device_count);
  EXPECT_EQ(shm::kMaxGids, header.devices[0].count);
  EXPECT_EQ(2u, header.devices[1].count);
  EXPECT_EQ(9, header.devices[1].gids[1].raw[15]);
  EXPECT_EQ(1u, header.shares_memory);
  EXPECT_EQ((*node)->slot(), header.slot);
  EXPECT_EQ(getpid(), header.pid);
  EXPECT_EQ(geteuid(), header.uid);
  EXPECT_EQ((*node)->self().instance(), header.instance);
  EXPECT_EQ((std::vector<uint32_t>{(*node)->slot()}), (*node)->slots());
}

}  // namespace
}  // namespace nupa::host::test
