// SPDX-License-Identifier: Apache-2.0
/// Tests of a process that a PMIx server started: its requests to the server, and what it does with the answers. Each
/// test runs in its own process, because a process has one server.
#ifdef NUPA_PMIX_STUB
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "../../support/ccl_pmix_stub.h"
#include "base/gid.h"
#include "ccl/bootstrap/pmix.h"
#include "ccl/bootstrap/unique_id.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kServerLimitNs = 20'000'000'000;

/// The library that stands in for libpmix, in this process and its children.
struct StubLibrary {
  StubLibrary() : handle(dlopen(NUPA_PMIX_STUB, RTLD_NOW | RTLD_GLOBAL)) {}
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(handle, name));
  }
  PmixStub& stub() const { return *find<PmixStub* (*)()>("nupa_pmix_stub")(); }
  void answer_late() const { find<void (*)()>("nupa_pmix_stub_answer_late")(); }
  void* handle;
};

/// Ends a child's play with the line where it failed.
#define CHILD_EXPECT(held) \
  if (!(held)) _exit(__LINE__ % 200 + 1)

/// 0, or what says at which line the play failed.
int play_of_child(const std::function<void(const StubLibrary&, PmixStub&)>& play) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const StubLibrary library;
    if (library.handle == nullptr) _exit(250);
    play(library, library.stub());
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST(CclPmixJob, Enter_Twice_GivesRankAndSizeAndCallsInitOnce) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.rank = 2;
              stub.ranks = 5;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              CHILD_EXPECT((*job)->rank() == 2 && (*job)->ranks() == 5);
              const auto again = PmixJob::enter();
              CHILD_EXPECT(again && *again == *job && stub.inits == 1);
            }),
            0);
}

/// Another process that has begun to ask the server may hold the lock.
TEST(CclPmixJob, Enter_ChildOfAProcessThatEntered_FailsWithEnodev) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.ranks = 2;
              CHILD_EXPECT(PmixJob::enter());
              const int status = play_of_child([](const StubLibrary&, PmixStub& inherited) {
                const auto job = PmixJob::enter();
                CHILD_EXPECT(!job && job.error().code() == ENODEV);
                CHILD_EXPECT(inherited.inits == 1);
              });
              CHILD_EXPECT(status == 0 && stub.inits == 1);
              CHILD_EXPECT(PmixJob::enter());
            }),
            0);
}

TEST(CclPmixJob, Enter_ServerRefuses_FailsWithItsText) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.init_status = -25;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(!job && job.error().code() == EIO);
              CHILD_EXPECT(std::string_view(job.error().what()) == "PMIx: PMIx_Init: the stub's error");
            }),
            0);
}

TEST(CclPmixJob, Enter_ServerHasNoSizeOfTheJob_FailsAndFinalizes) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.size_status = -1;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(!job && job.error().code() == EIO);
              CHILD_EXPECT(stub.finalizes == 1);
              // It may come to know it.
              stub.size_status = 0;
              stub.ranks = 3;
              const auto again = PmixJob::enter();
              CHILD_EXPECT(again && (*again)->ranks() == 3 && stub.inits == 2);
            }),
            0);
}

TEST(CclPmixJob, Enter_SizeIsNoNumberOfRanks_FailsWithEproto) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.ranks = 3;
              stub.size_type = 1;  // PMIX_BOOL
              const auto other = PmixJob::enter();
              CHILD_EXPECT(!other && other.error().code() == EPROTO && stub.finalizes == 1);
              stub.ranks = 0;
              stub.size_type = pmix::kUint32;
              const auto none = PmixJob::enter();
              CHILD_EXPECT(!none && none.error().code() == EPROTO && stub.finalizes == 2);
            }),
            0);
}

TEST(CclPmixJob, ExchangeServerId_RankZeroCallsTwice_PublishesItsIdOnce) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.ranks = 2;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              const auto root = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(root);
              CHILD_EXPECT(stub.puts == 1 && stub.committed_puts == 1 && stub.put_scope == pmix::kGlobal);
              CHILD_EXPECT(root->text() == stub.root && std::strlen(stub.put_key) > 0);
              const auto again = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(again && again->text() == stub.root && stub.puts == 1 && stub.gets == 0);
            }),
            0);
}

TEST(CclPmixJob, ExchangeServerId_PublishingFails_ReturnsTheErrorAndCanBeRepeated) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.ranks = 2;
              stub.put_status = -1;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              const auto root = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(!root && root.error().code() == EIO && stub.committed_puts == 0);
              stub.put_status = 0;
              CHILD_EXPECT((*job)->exchange_server_id(kServerLimitNs) && stub.committed_puts == 2);
            }),
            0);
}

/// The id of a server as rank 0 publishes it.
std::string text_of_root() {
  UniqueId id;
  id.port = 4711;
  id.addresses = {base::ipv4_gid(127, 0, 0, 1)};
  return id.text();
}

TEST(CclPmixJob, ExchangeServerId_OtherRank_AsksUntilTheIdIsPublished) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.rank = 1;
              stub.ranks = 2;
              stub.not_found = 3;
              std::strcpy(stub.root, text_of_root().c_str());
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              const auto root = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(root && root->text() == text_of_root());
              CHILD_EXPECT(stub.gets == 4 && stub.puts == 0);
              CHILD_EXPECT((*job)->exchange_server_id(kServerLimitNs) && stub.gets == 4);
            }),
            0);
}

TEST(CclPmixJob, ExchangeServerId_RankZeroDoesNotPublish_TimesOut) {
  EXPECT_EQ(play_of_child([](const StubLibrary& library, PmixStub& stub) {
              stub.rank = 1;
              stub.ranks = 2;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              stub.not_found = 1'000'000;
              auto root = (*job)->exchange_server_id(30'000'000);
              CHILD_EXPECT(!root && root.error().code() == ETIMEDOUT && stub.gets > 1);
              CHILD_EXPECT(std::string_view(root.error().what()).find("rank 0 did not join") != std::string::npos);
              stub.not_found = 0;
              stub.is_silent = true;
              root = (*job)->exchange_server_id(1'000'000);
              CHILD_EXPECT(!root && root.error().code() == ETIMEDOUT);
              // The answer arrives when no caller waits for it any more.
              library.answer_late();
            }),
            0);
}

TEST(CclPmixJob, ExchangeServerId_OtherErrors_AreReturnedAtOnce) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.rank = 1;
              stub.ranks = 2;
              const auto job = PmixJob::enter();
              CHILD_EXPECT(job);
              stub.get_status = -1;
              auto root = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(!root && root.error().code() == EIO && stub.gets == 1);
              stub.get_status = 0;
              std::strcpy(stub.root, "no root");
              root = (*job)->exchange_server_id(kServerLimitNs);
              CHILD_EXPECT(!root && root.error().code() == EINVAL);
            }),
            0);
}

TEST(CclPmixJob, Exit_OfTheProcess_FinalizesAndOfItsChildrenDoesNot) {
  EXPECT_EQ(play_of_child([](const StubLibrary&, PmixStub& stub) {
              stub.ranks = 1;
              CHILD_EXPECT(PmixJob::enter());
              stub.on_finalize = [] { _exit(77); };
              const pid_t child = fork();
              if (child == 0) exit(5);
              int status = -1;
              waitpid(child, &status, 0);
              CHILD_EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 5);
              exit(6);
            }),
            77);
}

}  // namespace
}  // namespace nupa::ccl
#endif
