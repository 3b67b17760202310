// SPDX-License-Identifier: Apache-2.0
/// Tests of the links to other ranks: which mail is accepted, which rank is probed, and how a death is detected.
#include <gtest/gtest.h>
#include <nupa/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ccl/connect/endpoint.h"
#include "ccl/connect/links.h"
#include "ccl/channel/arena.h"
#include "ccl/channel/rdma_port.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

/// The links of rank 1 of three or more. The other ranks do not exist: what is sent to them is lost.
class CclLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    open(3);
  }
  void open(uint32_t ranks) {
    links.reset();
    channels = ChannelLayout(ranks);
    peer_infos.assign(ranks, endpoint->peer_info());
    auto made = endpoint->device().alloc_mr(endpoint->pd(), arena_bytes(4096) + channels.bytes(),
                                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead);
    ASSERT_TRUE(made);
    arena = std::move(*made);
    // As Communicator has it: ranks that share no memory need wires.
    wires.reset();
    if (!peer_infos[0].shares_memory_with(peer_infos[1])) {
      auto opened = RdmaPort::open(endpoint->device(), channels.rdma_requests(), [](uint32_t) {});
      ASSERT_TRUE(opened) << opened.error().what();
      wires = std::move(*opened);
    }
    const Links::Places places{peer_infos, *arena, arena_bytes(4096), channels, wires.get()};
    links = std::make_unique<Links>(*endpoint, kId, 1, places, WaitRules{},
                                    [this](const Cause& cause) { causes.push_back(cause); });
    ASSERT_EQ(links->open(), 0);
  }
  Mail mail(MailKind kind, uint32_t from) const {
    Mail made;
    made.communicator = kId;
    made.kind = kind;
    made.from = from;
    made.to = 1;
    made.bytes = arena->length();
    made.dead = kNoRank;
    return made;
  }
  Cause ended() const { return Cause::unpacked(static_cast<const ArenaHead*>(arena->addr())->ended.load()); }

  std::shared_ptr<Endpoint> endpoint;
  std::vector<PeerInfo> peer_infos;
  ChannelLayout channels{3};
  std::unique_ptr<MemoryRegion> arena;
  std::unique_ptr<RdmaPort> wires;
  std::vector<Cause> causes;
  std::unique_ptr<Links> links;
};

TEST_F(CclLinks, OnMail_FromThisRankOrAnUnknownRank_IsIgnored) {
  for (const uint32_t from : {1u, 3u, UINT32_MAX}) {
    Mail end = mail(MailKind::kEnd, from);
    end.cause = Cause{ECONNRESET, 0}.packed();
    links->on_mail(end);
    Mail hello = mail(MailKind::kHello, from);
    hello.bytes = 1;
    links->on_mail(hello);
  }
  EXPECT_TRUE(causes.empty());
  Mail end = mail(MailKind::kEnd, 2);
  links->on_mail(end);
  EXPECT_TRUE(causes.empty()) << "an end without a cause is none";
  end.cause = Cause{ECONNRESET, 0}.packed();
  links->on_mail(end);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].error, ECONNRESET);
  EXPECT_EQ(causes[0].rank, 0u);
}

TEST_F(CclLinks, OnMail_ArenaOfAnotherLength_EndsTheCommunicator) {
  for (const MailKind kind : {MailKind::kHello, MailKind::kAnswer})
    for (const int64_t more : {-1, 1}) {
      causes.clear();
      Mail hello = mail(kind, 2);
      hello.bytes += static_cast<uint64_t>(more);
      links->on_mail(hello);
      ASSERT_EQ(causes.size(), 1u);
      EXPECT_EQ(causes[0].error, EPROTO);
      EXPECT_EQ(causes[0].rank, 2u) << "the one that differs";
    }
}

TEST_F(CclLinks, End_Twice_KeepsTheFirstCauseAndAnswersLaterMailWithIt) {
  EXPECT_TRUE(links->end({ECANCELED, 2}));
  EXPECT_FALSE(links->end({ETIMEDOUT, 0}));
  EXPECT_EQ(ended().error, ECANCELED);
  EXPECT_EQ(ended().rank, 2u);
  // The others' mail comes here, where somebody else stands for rank 2.
  Inbox peer;
  ASSERT_EQ(endpoint->enter(kId, 2, &peer), 0);
  for (const MailKind kind : {MailKind::kHello, MailKind::kAsk}) links->on_mail(mail(kind, 2));
  EXPECT_TRUE(eventually([&] { return peer.mails().size() >= 2; }));
  endpoint->leave(kId, 2);
  for (const Mail& answer : peer.mails()) {
    EXPECT_EQ(answer.kind, MailKind::kEnd);
    EXPECT_EQ(answer.from, 1u);
    EXPECT_EQ(Cause::unpacked(answer.cause).error, ECANCELED);
    EXPECT_EQ(Cause::unpacked(answer.cause).rank, 2u);
  }
}

TEST_F(CclLinks, End_RankHasDied_NotifiesAllOthers) {
  Inbox gone;
  Inbox other;
  ASSERT_EQ(endpoint->enter(kId, 0, &gone), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &other), 0);
  EXPECT_TRUE(links->end({ECONNRESET, 0}));
  EXPECT_TRUE(eventually([&] { return !other.mails().empty(); }));
  endpoint->leave(kId, 0);
  endpoint->leave(kId, 2);
  EXPECT_TRUE(gone.mails().empty());
  ASSERT_EQ(other.mails().size(), 1u);
  EXPECT_EQ(other.mails()[0].kind, MailKind::kEnd);
}

TEST_F(CclLinks, Ask_IsAnsweredWithTheRankThatThisRankWaitsFor) {
  Inbox peer;
  ASSERT_EQ(endpoint->enter(kId, 0, &peer), 0);
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(eventually([&] { return peer.mails().size() == 1; }));
  links->note_long_wait_for(2);
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(eventually([&] { return peer.mails().size() == 2; }));
  endpoint->leave(kId, 0);
  const auto mails = peer.mails();
  for (const Mail& one : mails) EXPECT_EQ(one.kind, MailKind::kWaits);
  EXPECT_EQ(static_cast<uint32_t>(mails[0].dead), kNoRank);
  EXPECT_EQ(mails[1].dead, 2u);
}

TEST_F(CclLinks, LastWaitedFor_ChainOfWaitingRanks_IsItsLastRank) {
  const auto waits = [&](uint32_t from, uint64_t for_rank) {
    Mail noted = mail(MailKind::kWaits, from);
    noted.dead = for_rank;
    links->on_mail(noted);
  };
  EXPECT_EQ(links->last_waited_for(0), 0u) << "nobody has said anything";
  waits(0, 2);
  EXPECT_EQ(links->last_waited_for(0), 2u);
  waits(2, kNoRank);
  EXPECT_EQ(links->last_waited_for(0), 2u) << "it waits for nobody";
  waits(2, 0);
  EXPECT_EQ(links->last_waited_for(0), 0u) << "of a circle the next one";
  waits(2, 1);
  EXPECT_EQ(links->last_waited_for(0), 0u) << "and so where the circle goes through this rank";
  waits(2, 3);
  EXPECT_EQ(links->last_waited_for(0), 2u) << "there is no rank 3";
  waits(2, uint64_t{1} << 32);
  EXPECT_EQ(links->last_waited_for(0), 2u) << "nor one of so large a number";
  EXPECT_EQ(links->last_waited_for(kNoRank), kNoRank);
}

TEST_F(CclLinks, LastWaitedFor_ReportIsOld_IsTheRankItself) {
  Mail noted = mail(MailKind::kWaits, 0);
  noted.dead = 2;
  EXPECT_TRUE(eventually([&] {
    links->on_mail(noted);
    return links->last_waited_for(0) == 2;
  }));
  // It may have been stopped since.
  EXPECT_TRUE(eventually([&] { return links->last_waited_for(0) == 0; }));
}

/// The questions of all ranks of a job that begins slowly would make it slower yet.
TEST_F(CclLinks, Probe_OfALateRank_FollowsTheAnswersToTheEndOfTheChain) {
  open(4);
  Inbox next, second, last;
  const auto says = [&](uint32_t rank, uint32_t waits_for) {
    Mail waits = mail(MailKind::kWaits, rank);
    waits.dead = waits_for;
    links->on_mail(waits);
  };
  // Mails arrive in order: after this all that was sent before is there.
  size_t answers = 0;
  const auto flush = [&] {
    links->on_mail(mail(MailKind::kAsk, 0));
    ++answers;
    EXPECT_TRUE(eventually([&] { return next.of(MailKind::kWaits).size() == answers; }));
  };
  ASSERT_EQ(endpoint->enter(kId, 0, &next), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &second), 0);
  ASSERT_EQ(endpoint->enter(kId, 3, &last), 0);
  links->probe(0, false);
  says(0, 2);
  flush();
  EXPECT_EQ(next.of(MailKind::kAsk).size(), 1u);
  EXPECT_TRUE(second.mails().empty()) << "it is not late";
  links->probe(0, true);
  says(0, 2);
  says(2, 3);
  flush();
  EXPECT_EQ(second.of(MailKind::kAsk).size(), 1u);
  EXPECT_EQ(last.of(MailKind::kAsk).size(), 1u);
  // Two more questions later the others may be asked again, too.
  EXPECT_TRUE(eventually([&] {
    links->probe(0, false);
    return next.of(MailKind::kAsk).size() >= 3;
  }));
  says(0, 2);
  flush();
  EXPECT_EQ(second.of(MailKind::kAsk).size(), 1u) << "it is late no longer";
  for (const uint32_t rank : {0u, 2u, 3u}) endpoint->leave(kId, rank);
}

/// All ranks may ask the same one, which has one processor at most.
TEST_F(CclLinks, Probe_InALargerCommunicator_AsksLessOften) {
  for (const auto& [ranks, pause_ms] : {std::pair{3u, 50}, {80u, 500}, {400u, 1000}}) {
    open(ranks);
    Inbox next;
    ASSERT_EQ(endpoint->enter(kId, 0, &next), 0);
    const int64_t began = base::now_ns();
    EXPECT_TRUE(eventually([&] {
      links->probe(0, false);
      return next.of(MailKind::kAsk).size() >= 2;
    }));
    EXPECT_GE(base::now_ns() - began, pause_ms * kNsPerMs) << "of " << ranks;
    endpoint->leave(kId, 0);
  }
}

TEST_F(CclLinks, Probe_ProcessHasExited_EndsTheCommunicator) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  links->probe(2, false);
  EXPECT_TRUE(causes.empty()) << "it lives";
  peer_infos[2].process = static_cast<uint32_t>(child);
  links->probe(2, false);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].error, ECONNRESET);
  EXPECT_EQ(causes[0].rank, 2u);
  links->probe(1, false);
  EXPECT_EQ(causes.size(), 1u) << "a rank does not ask about itself";
}

/// Mail of all communicators is read with the sinks' mutex held: a queue pair takes long to connect where a process is
/// stopped, and no communicator could be made or end meanwhile.
TEST_F(CclLinks, Hello_WhileMailIsRead_MakesNoQueuePair) {
  QpOptions options{.type = QpType::kRc, .send_cq = &endpoint->cq(), .recv_cq = &endpoint->cq()};
  options.cap.max_send_wr = options.cap.max_recv_wr = 1;
  const auto there = endpoint->device().create_qp(&endpoint->pd(), options);
  ASSERT_TRUE(there);
  // Numbers are given out one after the other.
  const auto next_number = [&] {
    const auto made = endpoint->device().create_qp(&endpoint->pd(), options);
    return made ? (*made)->number() : 0;
  };
  Inbox peer;
  ASSERT_EQ(endpoint->enter(kId, 2, &peer), 0);
  Mail hello = mail(MailKind::kHello, 2);
  hello.qp_num = (*there)->number();
  hello.rkey = arena->rkey();
  hello.arena = reinterpret_cast<uint64_t>(arena->addr());
  uint32_t before = 0;
  uint32_t after = 0;
  // The loop does nothing else meanwhile.
  ASSERT_TRUE(endpoint->loop().call(
      [&] {
        before = next_number();
        links->on_mail(hello);
        after = next_number();
      },
      progress::Deadline::in_ns(kLimitNs)));
  EXPECT_EQ(after, before + 1);
  EXPECT_TRUE(eventually([&] { return !peer.of(MailKind::kAnswer).empty(); })) << "it is made soon after";
  endpoint->leave(kId, 2);
}

/// Among hundreds of ranks on a few cores one may take many seconds until it has connected.
TEST_F(CclLinks, Probe_OfARankThatHasNotConnectedForLong_EndsNothing) {
  QpOptions options{.type = QpType::kRc, .send_cq = &endpoint->cq(), .recv_cq = &endpoint->cq()};
  options.cap.max_send_wr = options.cap.max_recv_wr = 1;
  const auto late = endpoint->device().create_qp(&endpoint->pd(), options);
  ASSERT_TRUE(late);
  Mail hello = mail(MailKind::kHello, 2);
  hello.qp_num = (*late)->number();
  hello.rkey = arena->rkey();
  hello.arena = reinterpret_cast<uint64_t>(arena->addr());
  links->on_mail(hello);
  links->probe(2, false);
  for (const int64_t end = base::now_ns() + 4'800 * kNsPerMs; base::now_ns() < end && causes.empty();)
    // sleep: the pause between two looks; together they are more than the 4.3 s that are enough between hosts
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(causes.empty());
}

}  // namespace
}  // namespace nupa::ccl
