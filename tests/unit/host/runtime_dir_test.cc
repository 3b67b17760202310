// SPDX-License-Identifier: Apache-2.0
// The folder where processes of one user meet: whose it may be, which entries count, and what happens to those of the
// dead.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "host/runtime_dir.h"
#include "fixture.h"
#include "progress/waiter.h"
#include "shm/layout.h"

namespace nupa::host::test {
namespace {

int error_of_open() {
  const auto dir = RuntimeDir::open();
  return dir ? 0 : dir.error().code();
}

std::string text_of_open() {
  const auto dir = RuntimeDir::open();
  return dir ? "" : dir.error().what();
}

class CmRuntimeDir : public ::testing::Test {
 protected:
  std::unique_ptr<RuntimeDir> open() {
    auto dir = RuntimeDir::open();
    EXPECT_TRUE(dir) << dir.error().what();
    return dir ? std::move(*dir) : nullptr;
  }
  /// The socket of a process that has died.
  void leave_dead(const std::string& name) { socket_at(folder_.file(name), kBacklog); }
  bool exists(const std::string& name) {
    struct stat status;
    return lstat(folder_.file(name).c_str(), &status) == 0;
  }

  Folder folder_;
};

// Whose it is.

TEST_F(CmRuntimeDir, ThatIsMissing_IsMadeForThisUserAlone) {
  const std::string path = folder_.file("made");
  setenv("NUPA_RUNTIME_DIR", path.c_str(), 1);
  const mode_t before = umask(0);
  EXPECT_EQ(0, error_of_open());
  umask(before);
  struct stat status;
  ASSERT_EQ(0, lstat(path.c_str(), &status));
  EXPECT_EQ(0700u, status.st_mode & 07777);
  EXPECT_EQ(geteuid(), status.st_uid);
}

TEST_F(CmRuntimeDir, ThatIsOpenToOthers_IsRefused) {
  for (const mode_t bit : {0001u, 0002u, 0004u, 0010u, 0020u, 0040u}) {
    ASSERT_EQ(0, chmod(folder_.path().c_str(), 0700 | bit));
    EXPECT_EQ(EACCES, error_of_open()) << std::oct << bit;
  }
  EXPECT_EQ("the runtime directory " + folder_.path() + " is open to other users: chmod 700 it", text_of_open());
  ASSERT_EQ(0, chmod(folder_.path().c_str(), 0700));
  EXPECT_EQ(0, error_of_open());
}

TEST_F(CmRuntimeDir, OfAnotherUser_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: files cannot be given away";
  ASSERT_EQ(0, chown(folder_.path().c_str(), kNobody, kNobody));
  EXPECT_EQ(EPERM, error_of_open()) << "root trusts no other user's folder either";
  EXPECT_EQ("the runtime directory " + folder_.path() + " belongs to user " + std::to_string(kNobody) + ", not to 0",
            text_of_open());
  ASSERT_EQ(0, chown(folder_.path().c_str(), 0, 0));
  EXPECT_EQ(0, error_of_open());
}

TEST_F(CmRuntimeDir, ThatIsALink_IsRefused) {
  const std::string link = folder_.file("link"), target = folder_.file("target");
  ASSERT_EQ(0, mkdir(target.c_str(), 0700));
  ASSERT_EQ(0, symlink(target.c_str(), link.c_str()));
  setenv("NUPA_RUNTIME_DIR", link.c_str(), 1);
  EXPECT_EQ(ENOTDIR, error_of_open());
}

TEST_F(CmRuntimeDir, ThatIsAFile_IsRefused) {
  const std::string path = folder_.file("file");
  std::ofstream(path).put('x');
  setenv("NUPA_RUNTIME_DIR", path.c_str(), 1);
  EXPECT_EQ(ENOTDIR, error_of_open());
  EXPECT_EQ("cannot open the runtime directory " + path + ": Not a directory", text_of_open());
}

TEST_F(CmRuntimeDir, ThatCannotBeMade_IsNamedInTheError) {
  const std::string path = folder_.file("missing/made");
  setenv("NUPA_RUNTIME_DIR", path.c_str(), 1);
  EXPECT_EQ(ENOENT, error_of_open());
  EXPECT_EQ("cannot create the runtime directory " + path + ": No such file or directory (set NUPA_RUNTIME_DIR)",
            text_of_open());
}

TEST_F(CmRuntimeDir, BelowAFolderThatIsMissing_IsAnError) {
  setenv("NUPA_RUNTIME_DIR", folder_.file("missing/deep").c_str(), 1);
  EXPECT_EQ(ENOENT, error_of_open());
}

TEST_F(CmRuntimeDir, ComesFromTheEnvironmentInOrder) {
  EXPECT_EQ(folder_.path(), RuntimeDir::path_from_environment());
  const char* const found = getenv("XDG_RUNTIME_DIR");
  const std::string before = found == nullptr ? "" : found;
  setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  EXPECT_EQ(folder_.path(), RuntimeDir::path_from_environment()) << "NUPA_RUNTIME_DIR comes first";
  setenv("NUPA_RUNTIME_DIR", "", 1);
  EXPECT_EQ(folder_.path() + "/nupa", RuntimeDir::path_from_environment());
  setenv("XDG_RUNTIME_DIR", folder_.file("missing").c_str(), 1);
  const std::string usual = "/nupa-" + std::to_string(geteuid());
  EXPECT_TRUE(RuntimeDir::path_from_environment().ends_with(usual)) << "one that cannot be written is passed over";
  setenv("XDG_RUNTIME_DIR", "", 1);
  EXPECT_TRUE(RuntimeDir::path_from_environment().ends_with(usual));
  if (found == nullptr)
    unsetenv("XDG_RUNTIME_DIR");
  else
    setenv("XDG_RUNTIME_DIR", before.c_str(), 1);
}

TEST_F(CmRuntimeDir, TheDomainIsTheFolders) {
  const auto one = open();
  const MemoryDomain first = one->domain();
  EXPECT_EQ(first, open()->domain());
  const std::string other = folder_.file("other");
  setenv("NUPA_RUNTIME_DIR", other.c_str(), 1);
  EXPECT_NE(first, open()->domain());
  const std::string alias = folder_.file("../" + folder_.path().substr(5));
  setenv("NUPA_RUNTIME_DIR", alias.c_str(), 1);
  EXPECT_EQ(first, open()->domain()) << "whatever it is called";
}

// Which entries are processes.

TEST_F(CmRuntimeDir, OnlySocketsWithTheNameOfASlotAreProcesses) {
  std::vector<base::UniqueFd> sockets;
  for (const char* name : {"1.sock", "17.sock", "4094.sock"}) sockets.push_back(socket_at(folder_.file(name), true));
  const std::vector<std::string> others = {"0.sock", "01.sock",   "4095.sock", "-3.sock",         "3x.sock",
                                           ".sock",  "5.sockets", "7",         "99999999999.sock"};
  for (const std::string& name : others) sockets.push_back(socket_at(folder_.file(name), true));
  std::ofstream(folder_.file("5.sock")).put('x');
  ASSERT_EQ(0, symlink("17.sock", folder_.file("6.sock").c_str()));
  const auto dir = open();
  EXPECT_EQ((std::vector<uint32_t>{1, 17, 4094}), dir->list());
  EXPECT_EQ(others.size() + 2, dir->foreign_entries().size());
}

TEST_F(CmRuntimeDir, ASocketOfAnotherUserIsNoProcess) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: files cannot be given away";
  const base::UniqueFd slot = socket_at(folder_.file("17.sock"), kBacklog);
  const base::UniqueFd name = socket_at(folder_.file("a.name"), kBacklog);
  const auto dir = open();
  EXPECT_EQ(1u, dir->list().size());
  EXPECT_EQ(std::vector<std::string>{"a"}, dir->names());
  EXPECT_TRUE(dir->foreign_entries().empty());
  for (const char* file : {"17.sock", "a.name"}) ASSERT_EQ(0, lchown(folder_.file(file).c_str(), kNobody, kNobody));
  EXPECT_TRUE(dir->list().empty());
  EXPECT_TRUE(dir->names().empty());
  EXPECT_EQ(2u, dir->foreign_entries().size());
}

// Slots.

TEST_F(CmRuntimeDir, TwoProcessesNeverHaveOneSlot) {
  const auto dir = open();
  const auto first = [](uint32_t) { return true; };
  std::vector<RuntimeDir::Claimed> claimed;
  for (uint32_t i = 1; i <= 5; ++i) {
    auto next = dir->claim(first);
    ASSERT_TRUE(next);
    EXPECT_EQ(i, next->slot) << "with packets the first one is wanted";
    claimed.push_back(std::move(*next));
  }
  claimed[2].listener.reset();
  auto again = dir->claim(first);
  ASSERT_TRUE(again);
  EXPECT_EQ(3u, again->slot) << "its process has died";
  EXPECT_EQ(5u, dir->list().size());
  auto any = dir->claim();
  ASSERT_TRUE(any);
  EXPECT_GT(any->slot, 0u);
  EXPECT_EQ(6u, dir->list().size());
}

TEST_F(CmRuntimeDir, FurtherSlot_IsAnotherNameOfTheProcess) {
  const auto dir = open();
  const auto claim = [&](uint32_t wanted) { return dir->claim([wanted](uint32_t slot) { return slot == wanted; }); };
  auto own = claim(5);
  auto other = claim(8);
  ASSERT_TRUE(own && other);
  const auto further = dir->claim_further(5, [](uint32_t slot) { return slot == 9 || slot == 8; });
  ASSERT_TRUE(further) << further.error().what();
  EXPECT_EQ(9u, *further) << "8 is taken";
  EXPECT_EQ((std::vector<uint32_t>{5, 8, 9}), dir->list());
  EXPECT_EQ((std::vector<uint32_t>{5, 8}), dir->processes());
  EXPECT_TRUE(dir->foreign_entries().empty());
  ASSERT_TRUE(dir->connect(9));
  base::UniqueFd came(accept4(own->listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(came) << "by the same socket";
  EXPECT_TRUE(dir->sweep().empty()) << "it lives";
  own->listener.reset();
  EXPECT_EQ((std::vector<uint32_t>{5, 9}), dir->sweep(true)) << "what is left of the dead";
  const auto again = claim(9);
  ASSERT_TRUE(again) << "a further slot of a dead process is free";
  EXPECT_EQ((std::vector<uint32_t>{8, 9}), dir->list());
}

TEST_F(CmRuntimeDir, FirstSlotOfTheHost_IsNoFurtherOne) {
  const auto dir = open();
  auto own = dir->claim([](uint32_t slot) { return slot == 5; });
  ASSERT_TRUE(own);
  std::set<uint32_t> asked;
  const auto further = dir->claim_further(5, [&](uint32_t slot) { return asked.insert(slot), false; });
  ASSERT_FALSE(further);
  EXPECT_EQ(ENOSPC, further.error().code());
  EXPECT_EQ(shm::kMaxSlot - 2, asked.size());
  EXPECT_EQ(0u, asked.count(1) + asked.count(5));
}

TEST_F(CmRuntimeDir, FurtherSlot_WhoseReservationFails_ErrorIsThat) {
  const auto dir = open();
  auto own = dir->claim([](uint32_t slot) { return slot == 5; });
  ASSERT_TRUE(own);
  int asked = 0;
  const auto further =
      dir->claim_further(5, [&](uint32_t) -> Result<bool> { return ++asked, fail(EMFILE, "no port"); });
  ASSERT_FALSE(further);
  EXPECT_EQ(EMFILE, further.error().code());
  EXPECT_STREQ("no port", further.error().what());
  EXPECT_EQ(1, asked) << "the next slot needs the same";
  EXPECT_EQ(std::vector<uint32_t>{5}, dir->list());
  EXPECT_TRUE(dir->claim_further(5, [](uint32_t) { return true; })) << "the folder is not locked";
}

TEST_F(CmRuntimeDir, ASlotThatCannotBeReservedIsLeftOut) {
  const auto dir = open();
  std::vector<uint32_t> asked;
  auto claimed = dir->claim([&](uint32_t slot) {
    asked.push_back(slot);
    return slot == 4;
  });
  ASSERT_TRUE(claimed);
  EXPECT_EQ(4u, claimed->slot);
  EXPECT_EQ((std::vector<uint32_t>{1, 2, 3, 4}), asked);
  size_t tries = 0;
  uint32_t last = 0;
  auto none = dir->claim([&](uint32_t slot) {
    ++tries;
    last = slot;
    return false;
  });
  ASSERT_FALSE(none);
  EXPECT_EQ(ENOSPC, none.error().code());
  EXPECT_EQ(shm::kMaxSlot - 1, tries) << "each but the one that is taken";
  EXPECT_EQ(shm::kMaxSlot, last);
}

TEST_F(CmRuntimeDir, Claim_WhereAFileIsInTheWay_TakesTheNextSlot) {
  const std::string file = folder_.file("1.sock");
  std::ofstream(file) << "somebody's";
  const auto dir = open();
  const auto claimed = dir->claim([](uint32_t) { return true; });
  ASSERT_TRUE(claimed) << claimed.error().what();
  EXPECT_EQ(2u, claimed->slot);
  std::string text;
  std::ifstream(file) >> text;
  EXPECT_EQ("somebody's", text) << "the file is left alone";
}

TEST_F(CmRuntimeDir, AProcessThatClaimedASlotCanBeConnectedTo) {
  const auto dir = open();
  auto claimed = dir->claim();
  ASSERT_TRUE(claimed);
  EXPECT_NE(0, fcntl(claimed->listener.get(), F_GETFL) & O_NONBLOCK);
  auto connection = dir->connect(claimed->slot);
  ASSERT_TRUE(connection);
  const base::UniqueFd accepted(accept4(claimed->listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(accepted);
  claimed->listener.reset();
  const auto refused = dir->connect(claimed->slot);
  EXPECT_EQ(ECONNREFUSED, refused.error().code());
  EXPECT_EQ(
      "cannot connect to the socket " + folder_.file(std::to_string(claimed->slot) + ".sock") + ": Connection refused",
      refused.error().what());
  dir->remove(claimed->slot);
  EXPECT_EQ(ENOENT, dir->connect(claimed->slot).error().code());
  EXPECT_TRUE(dir->list().empty());
}

TEST_F(CmRuntimeDir, ASweepRemovesTheDeadAndNobodyElse) {
  const base::UniqueFd alive = socket_at(folder_.file("2.sock"), kBacklog);
  leave_dead("1.sock");
  leave_dead("3.sock");
  leave_dead("0.sock");
  const auto dir = open();
  EXPECT_EQ((std::vector<uint32_t>{1, 3}), dir->sweep(true));
  EXPECT_TRUE(exists("1.sock") && exists("2.sock") && exists("3.sock")) << "it only looked";
  EXPECT_EQ((std::vector<uint32_t>{1, 3}), dir->sweep());
  EXPECT_FALSE(exists("1.sock") || exists("3.sock"));
  EXPECT_TRUE(exists("2.sock"));
  EXPECT_TRUE(exists("0.sock")) << "what does not belong there is left alone";
  EXPECT_TRUE(dir->sweep().empty());
}

TEST_F(CmRuntimeDir, AProcessWhoseQueueIsFullLives) {
  const base::UniqueFd full = socket_at(folder_.file("2.sock"), 0);
  const auto dir = open();
  std::vector<base::UniqueFd> connections;
  int error = 0;
  while (error == 0 && connections.size() < 100) {
    auto connection = dir->connect(2);
    if (connection)
      connections.push_back(std::move(*connection));
    else
      error = connection.error().code();
  }
  ASSERT_EQ(EAGAIN, error);
  EXPECT_TRUE(dir->sweep().empty());
  EXPECT_TRUE(exists("2.sock"));
}

TEST_F(CmRuntimeDir, WhoeverLooksForTheDead_WaitsForTheLock) {
  // A process between bind() and listen() refuses connections, too. Both happen under the lock.
  const auto dir = open();
  const base::UniqueFd lock(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(0, flock(lock.get(), LOCK_EX));
  const base::UniqueFd starting = socket_at(folder_.file("9.sock"), kNotListening);
  const base::UniqueFd service = socket_at(folder_.file("a.name"), kNotListening);
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  for (const bool names : {false, true})
    threads.emplace_back([&, names] {
      names ? dir->sweep_names() : (dir->sweep(), std::vector<std::string>());
      ++done;
    });
  // sleep: a call that does not wait would return within that time
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(0, done);
  EXPECT_EQ(0, listen(starting.get(), 8));
  EXPECT_EQ(0, listen(service.get(), 8));
  ASSERT_EQ(0, flock(lock.get(), LOCK_UN));
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(exists("9.sock"));
  EXPECT_TRUE(exists("a.name"));
}

TEST_F(CmRuntimeDir, WhoeverLooksForTheDead_WaitsForAnotherThreadOfItsProcess) {
  const auto dir = open();
  const base::UniqueFd dead = socket_at(folder_.file("9.sock"), kNotListening);
  std::atomic<bool> looked{false};
  std::thread looking;
  const auto claimed = dir->claim([&](uint32_t) {
    looking = std::thread([&] {
      dir->sweep();
      looked = true;
    });
    // sleep: a call that does not wait would return within that time
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(looked);
    return true;
  });
  EXPECT_TRUE(claimed);
  looking.join();
  EXPECT_TRUE(looked);
  EXPECT_FALSE(exists("9.sock"));
}

TEST_F(CmRuntimeDir, Claim_AChildOfAProcessThatDiedWithTheLockLives_GetsIt) {
  int told[2];
  ASSERT_EQ(0, pipe2(told, O_CLOEXEC));
  const pid_t holder = fork();
  if (holder == 0) {
    const auto dir = RuntimeDir::open();
    if (!dir) _exit(1);
    (void)(*dir)->claim([&](uint32_t) {
      if (const pid_t child = fork(); child != 0 && ::write(told[1], &child, sizeof child) != sizeof child) _exit(1);
      progress::sleep_for_ever();
      return true;
    });
  }
  pid_t child = 0;
  ASSERT_EQ(sizeof child, static_cast<size_t>(::read(told[0], &child, sizeof child)));
  ASSERT_EQ(0, kill(holder, SIGKILL));
  ASSERT_EQ(holder, waitpid(holder, nullptr, 0));
  EXPECT_TRUE(open()->claim());
  EXPECT_EQ(0, kill(child, SIGKILL));
}

TEST_F(CmRuntimeDir, TheLockIsGivenBackByEachCall) {
  const auto dir = open();
  const base::UniqueFd lock(::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto free = [&] {
    const bool is = flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
    if (is) flock(lock.get(), LOCK_UN);
    return is;
  };
  EXPECT_TRUE(dir->claim());
  EXPECT_TRUE(free());
  EXPECT_FALSE(dir->claim([](uint32_t) { return false; }));
  EXPECT_TRUE(free());
  dir->sweep();
  EXPECT_TRUE(free());
  const auto name = dir->claim_name("a");
  EXPECT_TRUE(name);
  EXPECT_TRUE(free());
  EXPECT_FALSE(dir->claim_name("a"));
  EXPECT_TRUE(free());
  dir->sweep_names();
  EXPECT_TRUE(free());
}

// Names.

TEST_F(CmRuntimeDir, ANameIsOfOneLiveProcess) {
  const auto dir = open();
  auto first = dir->claim_name("net,lab,a");
  ASSERT_TRUE(first);
  const auto taken = dir->claim_name("net,lab,a");
  EXPECT_EQ(EEXIST, taken.error().code());
  EXPECT_EQ(folder_.file("net,lab,a.name") + ": a running process has this name", taken.error().what());
  EXPECT_TRUE(dir->connect_name("net,lab,a"));
  EXPECT_EQ(std::vector<std::string>{"net,lab,a"}, dir->names());
  EXPECT_TRUE(dir->list().empty()) << "a name is no slot";
  EXPECT_TRUE(dir->foreign_entries().empty());
  first->reset();
  EXPECT_EQ(ECONNREFUSED, dir->connect_name("net,lab,a").error().code());
  auto second = dir->claim_name("net,lab,a");
  EXPECT_TRUE(second) << "its process has died";
  dir->remove_name("net,lab,a");
  EXPECT_TRUE(dir->names().empty());
}

TEST_F(CmRuntimeDir, ANameWhoseProcessIsBusyIsTaken) {
  const auto dir = open();
  const base::UniqueFd busy = socket_at(folder_.file("a.name"), 0);
  std::vector<base::UniqueFd> connections;
  for (int i = 0; i < 100; ++i) {
    auto connection = dir->connect_name("a");
    if (!connection) break;
    connections.push_back(std::move(*connection));
  }
  ASSERT_EQ(EAGAIN, dir->connect_name("a").error().code());
  EXPECT_EQ(EEXIST, dir->claim_name("a").error().code());
  EXPECT_TRUE(dir->sweep_names().empty());
  EXPECT_TRUE(exists("a.name"));
}

TEST_F(CmRuntimeDir, ANameHasOneTo80CharactersWithoutASlash) {
  const auto dir = open();
  const std::string longest(80, 'n');
  EXPECT_TRUE(dir->claim_name(longest));
  EXPECT_TRUE(exists(longest + ".name"));
  for (const std::string& name : {std::string(), std::string(81, 'n'), std::string("a/b"), std::string("../a")})
    EXPECT_EQ(ENAMETOOLONG, dir->claim_name(name).error().code()) << name;
}

// Keys.

TEST_F(CmRuntimeDir, AKeyThatAnotherHolds_CannotBeHeldAlone) {
  const auto one = open(), other = open();
  const auto error_of = [](const Result<void>& held) { return held ? 0 : held.error().code(); };
  constexpr uint64_t kKey = INT64_MAX;
  EXPECT_EQ(error_of(one->hold(kKey, true)), 0);
  const auto refused = other->hold(kKey, true);
  ASSERT_EQ(error_of(refused), EEXIST);
  EXPECT_EQ(refused.error().what(), "key 9223372036854775807 in " + one->path() + " is locked by another process");
  EXPECT_EQ(error_of(other->hold(kKey - 1, true)), 0);
  EXPECT_EQ(error_of(other->hold(kKey, false)), 0);
  one->let_go(kKey);
  EXPECT_EQ(error_of(one->hold(kKey, true)), EEXIST);
  other->let_go(kKey);
  EXPECT_EQ(error_of(one->hold(kKey, true)), 0);
  EXPECT_EQ(one->foreign_entries(), std::vector<std::string>{});
}

TEST_F(CmRuntimeDir, AKeyThatManyWantAlone_IsOfOne) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRounds = 1000;
  std::unique_ptr<RuntimeDir> dirs[kThreads];
  for (auto& dir : dirs) dir = open();
  std::atomic<int> holders[kRounds]{}, arrived[kRounds]{};
  std::vector<std::thread> threads;
  for (auto& dir : dirs)
    threads.emplace_back([&] {
      for (uint64_t round = 0; round < kRounds; ++round) {
        ++arrived[round];
        while (arrived[round] < kThreads) std::this_thread::yield();
        if (dir->hold(round, true)) ++holders[round];
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(std::begin(holders), std::end(holders), 1), static_cast<std::ptrdiff_t>(kRounds));
}

TEST_F(CmRuntimeDir, AKeyOfAProcessThatDied_IsFree_ThoughItsChildLives) {
  int begun[2], over[2];
  ASSERT_EQ(pipe(begun), 0);
  ASSERT_EQ(pipe(over), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto own = RuntimeDir::open();
    const bool held = own && (*own)->hold(7, true);
    if (fork() == 0) {
      char byte = held ? 'h' : 'f';
      if (::write(begun[1], &byte, 1) != 1) _exit(1);
      close(over[1]);
      [[maybe_unused]] const ssize_t end = ::read(over[0], &byte, 1);
      _exit(0);
    }
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(begun[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'h');
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(open()->hold(7, true));
  for (const int fd : {begun[0], begun[1], over[0], over[1]}) close(fd);
}

TEST_F(CmRuntimeDir, ASweepOfNamesRemovesTheDeadAndNobodyElse) {
  const base::UniqueFd alive = socket_at(folder_.file("b.name"), kBacklog);
  leave_dead("a.name");
  leave_dead("c.name");
  leave_dead("5.sock");
  leave_dead(".name");
  const auto dir = open();
  EXPECT_EQ((std::vector<std::string>{"a", "b", "c"}), dir->names());
  EXPECT_EQ((std::vector<std::string>{"a", "c"}), dir->sweep_names(true));
  EXPECT_TRUE(exists("a.name") && exists("c.name"));
  EXPECT_EQ((std::vector<std::string>{"a", "c"}), dir->sweep_names());
  EXPECT_FALSE(exists("a.name") || exists("c.name"));
  EXPECT_TRUE(exists("b.name") && exists("5.sock") && exists(".name"));
}

}  // namespace
}  // namespace nupa::host::test
