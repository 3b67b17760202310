// SPDX-License-Identifier: Apache-2.0
/// What ranks tell each other by datagrams: who may speak to whom, what nonsense does, and how those who are left
/// agree.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "ccl/comm/communicator.h"
#include "ccl/comm/endpoint.h"
#include "ccl/comm/links.h"
#include "ccl/comm/process_reads.h"
#include "ccl/comm/survivors.h"
#include "ccl/lane/wire_port.h"
#include "ccl/mapped/arena.h"
#include "ccl/memory/allocations.h"
#include "ccl_mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

/// Any program of this host that knows where a mailbox is.
class Stranger {
 public:
  Stranger() {
    device_ = std::move(*open_device(list_devices().front().name));
    pd_ = std::move(*device_->alloc_pd());
    cq_ = std::move(*device_->create_cq({.entries = 64}));
    QpOptions options{.type = QpType::kUd, .send_cq = cq_.get(), .recv_cq = cq_.get()};
    options.cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 128};
    qp_ = std::move(*device_->create_qp(pd_.get(), options));
    using namespace qp_attr;
    QpAttr attr;
    attr.qkey = kQkey;
    constexpr std::pair<QpState, uint32_t> kWay[] = {{QpState::kInit, kState | kPkeyIndex | kPort | qp_attr::kQkey},
                                                     {QpState::kRtr, kState},
                                                     {QpState::kRts, kState | kSqPsn}};
    for (const auto& [state, mask] : kWay) {
      attr.state = state;
      EXPECT_EQ(qp_->modify(attr, mask), 0);
    }
  }
  /// Some bytes to the mailbox of that card.
  void send(const Endpoint& to, const void* data, size_t bytes) {
    AddressVector vector{.dgid = to.card().gid};
    vector.sgid_index = to.gid_index();
    vector.hop_limit = 64;
    vector.is_global = true;
    const auto way = device_->create_ah(*pd_, vector);
    ASSERT_TRUE(way);
    const Sge sge{reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(bytes), 0};
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
    wr.flags = send_flag::kInline | send_flag::kSignaled;
    wr.remote_qpn = to.card().mailbox;
    wr.remote_qkey = kQkey;
    wr.ah = way->get();
    ASSERT_EQ(qp_->post_send(wr), 0);
    WorkCompletion completion;
    ASSERT_TRUE(comes([&] { return cq_->poll(&completion, 1) == 1; }));
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }

 private:
  static constexpr uint32_t kQkey = 0x4e55434c;  // that of all mailboxes
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<QueuePair> qp_;
};

Mail mail_to(uint32_t rank, uint64_t mark) {
  Mail mail;
  mail.communicator = kId;
  mail.to = rank;
  mail.gone = mark;
  return mail;
}

TEST(CclEndpoint, OnlyWholeMailOfItsVersionComesToTheRankOfItsCommunicator) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox first;
  Inbox other_rank;
  ASSERT_EQ(endpoint->enter(kId, 1, &first), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &other_rank), 0);
  EXPECT_EQ(endpoint->enter(kId, 1, &other_rank), EEXIST);
  Stranger stranger;
  std::byte longer[sizeof(Mail) + 8] = {};
  const Mail right = mail_to(1, 1);
  std::memcpy(longer, &right, sizeof right);
  stranger.send(*endpoint, longer, sizeof longer);
  stranger.send(*endpoint, &right, sizeof right - 1);
  Mail wrong = right;
  wrong.magic ^= 1;
  stranger.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  ++wrong.version;
  stranger.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  wrong.communicator[1] ^= 1;
  stranger.send(*endpoint, &wrong, sizeof wrong);
  wrong = right;
  wrong.to = 3;
  stranger.send(*endpoint, &wrong, sizeof wrong);
  const Mail to_other = mail_to(2, 5);
  stranger.send(*endpoint, &to_other, sizeof to_other);
  const Mail last = mail_to(1, 7);
  stranger.send(*endpoint, &last, sizeof last);
  EXPECT_TRUE(comes([&] { return !first.mails().empty() && !other_rank.mails().empty(); }));
  endpoint->leave(kId, 1);
  endpoint->leave(kId, 2);
  ASSERT_EQ(first.mails().size(), 1u);
  EXPECT_EQ(first.mails()[0].gone, 7u);
  ASSERT_EQ(other_rank.mails().size(), 1u);
  EXPECT_EQ(other_rank.mails()[0].gone, 5u);
}

TEST(CclEndpoint, AsManyMailsAsAreSentOneAfterTheOtherCome) {
  // More than there are receives: each is posted again.
  constexpr uint64_t kMails = 600;
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox inbox;
  ASSERT_EQ(endpoint->enter(kId, 1, &inbox), 0);
  for (uint64_t i = 0; i < kMails; ++i) {
    endpoint->send(endpoint->card(), mail_to(1, i));
    ASSERT_TRUE(comes([&] { return inbox.mails().size() == i + 1; })) << i;
  }
  endpoint->leave(kId, 1);
  EXPECT_EQ(inbox.mails().back().gone, kMails - 1);
}

TEST(CclEndpoint, DatagramsOfAWrongLength_LeaveTheMailboxItsReceives) {
  constexpr uint64_t kPairs = 300;  // more than there are receives
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Inbox inbox;
  ASSERT_EQ(endpoint->enter(kId, 1, &inbox), 0);
  Stranger stranger;
  for (uint64_t i = 0; i < kPairs; ++i) {
    const Mail mail = mail_to(1, i);
    stranger.send(*endpoint, &mail, sizeof mail - 1);
    endpoint->send(endpoint->card(), mail);
    ASSERT_TRUE(comes([&] { return inbox.mails().size() == i + 1; })) << i;
  }
  endpoint->leave(kId, 1);
}

// ---- links ---------------------------------------------------------------------------------------------------------

/// The links of rank 1 of three, or of more, whose others are nobody: what is sent to them is lost.
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
    cards.assign(ranks, endpoint->card());
    auto made = endpoint->device().alloc_mr(endpoint->pd(), arena_bytes(4096) + channels.bytes(),
                                            access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead);
    ASSERT_TRUE(made);
    arena = std::move(*made);
    const Links::Places places{cards, *arena, arena_bytes(4096), channels, nullptr};
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
    made.gone = kNoRank;
    return made;
  }
  Cause ended() const { return Cause::unpacked(static_cast<const ArenaHead*>(arena->addr())->ended.load()); }

  std::shared_ptr<Endpoint> endpoint;
  std::vector<RankCard> cards;
  ChannelLayout channels{3};
  std::unique_ptr<MemoryRegion> arena;
  std::vector<Cause> causes;
  std::unique_ptr<Links> links;
};

TEST_F(CclLinks, OnlyOtherRanksAreHeard) {
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

TEST_F(CclLinks, AnArenaOfAnotherLengthEndsAll) {
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

TEST_F(CclLinks, TheFirstEndStaysAndIsTheAnswerToWhateverComesLater) {
  EXPECT_TRUE(links->end({ECANCELED, 2}));
  EXPECT_FALSE(links->end({ETIMEDOUT, 0}));
  EXPECT_EQ(ended().error, ECANCELED);
  EXPECT_EQ(ended().rank, 2u);
  // The others' mail comes here, where somebody else stands for rank 2.
  Inbox peer;
  ASSERT_EQ(endpoint->enter(kId, 2, &peer), 0);
  for (const MailKind kind : {MailKind::kHello, MailKind::kAsk}) links->on_mail(mail(kind, 2));
  EXPECT_TRUE(comes([&] { return peer.mails().size() >= 2; }));
  endpoint->leave(kId, 2);
  for (const Mail& answer : peer.mails()) {
    EXPECT_EQ(answer.kind, MailKind::kEnd);
    EXPECT_EQ(answer.from, 1u);
    EXPECT_EQ(Cause::unpacked(answer.cause).error, ECANCELED);
    EXPECT_EQ(Cause::unpacked(answer.cause).rank, 2u);
  }
}

TEST_F(CclLinks, AllButTheOneThatIsGoneAreToldOfTheEnd) {
  Inbox gone;
  Inbox other;
  ASSERT_EQ(endpoint->enter(kId, 0, &gone), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &other), 0);
  EXPECT_TRUE(links->end({ECONNRESET, 0}));
  EXPECT_TRUE(comes([&] { return !other.mails().empty(); }));
  endpoint->leave(kId, 0);
  endpoint->leave(kId, 2);
  EXPECT_TRUE(gone.mails().empty());
  ASSERT_EQ(other.mails().size(), 1u);
  EXPECT_EQ(other.mails()[0].kind, MailKind::kEnd);
}

TEST_F(CclLinks, WhoeverAsksIsToldWhomThisRankWaitsFor) {
  Inbox peer;
  ASSERT_EQ(endpoint->enter(kId, 0, &peer), 0);
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(comes([&] { return peer.mails().size() == 1; }));
  links->note_long_wait_for(2);
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(comes([&] { return peer.mails().size() == 2; }));
  endpoint->leave(kId, 0);
  const auto mails = peer.mails();
  for (const Mail& one : mails) EXPECT_EQ(one.kind, MailKind::kWaits);
  EXPECT_EQ(static_cast<uint32_t>(mails[0].gone), kNoRank);
  EXPECT_EQ(mails[1].gone, 2u);
}

TEST_F(CclLinks, TheLastOneOfAChainIsWaitedFor) {
  const auto waits = [&](uint32_t from, uint64_t for_rank) {
    Mail told = mail(MailKind::kWaits, from);
    told.gone = for_rank;
    links->on_mail(told);
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

TEST_F(CclLinks, WhoHasSaidNothingForLongIsNamedItself) {
  Mail told = mail(MailKind::kWaits, 0);
  told.gone = 2;
  EXPECT_TRUE(comes([&] {
    links->on_mail(told);
    return links->last_waited_for(0) == 2;
  }));
  // It may have been stopped since.
  EXPECT_TRUE(comes([&] { return links->last_waited_for(0) == 0; }));
}

/// Else all ranks of a job that begins slowly would ask each other all the time, and be slower yet.
TEST_F(CclLinks, OnlyWhoIsLateAsksTheOthersOfAChain) {
  Inbox next;
  Inbox last;
  ASSERT_EQ(endpoint->enter(kId, 0, &next), 0);
  ASSERT_EQ(endpoint->enter(kId, 2, &last), 0);
  Mail waits = mail(MailKind::kWaits, 0);
  waits.gone = 2;
  links->probe(0, false);
  links->on_mail(waits);
  // This answer comes behind whatever was sent before.
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(comes([&] { return !next.of(MailKind::kWaits).empty(); }));
  EXPECT_EQ(next.of(MailKind::kAsk).size(), 1u);
  EXPECT_TRUE(last.mails().empty());
  links->probe(0, true);
  links->on_mail(waits);
  EXPECT_TRUE(comes([&] { return !last.of(MailKind::kAsk).empty(); }));
  // Who has gone on is not late any more.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  links->on_mail(waits);
  links->on_mail(mail(MailKind::kAsk, 0));
  EXPECT_TRUE(comes([&] { return next.of(MailKind::kWaits).size() == 2; }));
  EXPECT_EQ(last.of(MailKind::kAsk).size(), 1u);
  endpoint->leave(kId, 0);
  endpoint->leave(kId, 2);
}

/// They may all ask the same one, which has one processor at most.
TEST_F(CclLinks, OneOfManyAsksMoreSeldom) {
  for (const auto& [ranks, pause_ms] : {std::pair{3u, 50}, {80u, 500}, {400u, 1000}}) {
    open(ranks);
    Inbox next;
    ASSERT_EQ(endpoint->enter(kId, 0, &next), 0);
    const int64_t began = base::now_ns();
    while (base::now_ns() - began < 400 * kNsPerMs || next.of(MailKind::kAsk).size() < 2) {
      ASSERT_LT(base::now_ns() - began, kLimitNs);
      links->probe(0, false);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const auto most = static_cast<size_t>(1 + (base::now_ns() - began) / (pause_ms * kNsPerMs));
    endpoint->leave(kId, 0);
    EXPECT_LE(next.of(MailKind::kAsk).size(), most) << "of " << ranks;
  }
}

TEST_F(CclLinks, AProcessThatHasEndedIsSeen) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  links->probe(2, false);
  EXPECT_TRUE(causes.empty()) << "it lives";
  cards[2].process = static_cast<uint32_t>(child);
  links->probe(2, false);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].error, ECONNRESET);
  EXPECT_EQ(causes[0].rank, 2u);
  links->probe(1, false);
  EXPECT_EQ(causes.size(), 1u) << "a rank does not ask about itself";
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
  // More than the 4.3 s that are enough between hosts.
  for (const int64_t end = base::now_ns() + 4'800 * kNsPerMs; base::now_ns() < end && causes.empty();)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(causes.empty());
}

// ---- what a peer may say by its wire -------------------------------------------------------------------------------

/// A wire to rank 5, whose other end is the test.
class CclWirePort : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    Device& device = endpoint->device();
    auto made = device.alloc_mr(endpoint->pd(), layout.offset(0, LaneKind::kMessage) * kLanes,
                                access::kLocalWrite | access::kRemoteWrite);
    ASSERT_TRUE(made);
    arena = std::move(*made);
    auto opened = WirePort::open(device, layout.wire_requests(), [this](uint32_t rank) { broken.push_back(rank); });
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    ASSERT_EQ(port->grow(), 0);
    other_cq = std::move(*device.create_cq({.entries = 1024}));
    QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
    options.cap = {.max_send_wr = layout.wire_requests(),
                   .max_recv_wr = layout.wire_requests(),
                   .max_send_sge = 1,
                   .max_recv_sge = 1,
                   .max_inline_data = 0};
    qp = std::move(*device.create_qp(&endpoint->pd(), options));
    options.send_cq = options.recv_cq = other_cq.get();
    peer = std::move(*device.create_qp(&endpoint->pd(), options));
    const auto connect_to = [&](QueuePair& from, const QueuePair& to) {
      return connect(from, {.dgid = endpoint->card().gid,
                            .dest_qp_num = to.number(),
                            .access_flags = access::kRemoteWrite,
                            .sgid_index = endpoint->gid_index()});
    };
    ASSERT_EQ(connect_to(*qp, *peer), 0);
    ASSERT_EQ(connect_to(*peer, *qp), 0);
    WireLane* all[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) {
      const auto kind = static_cast<LaneKind>(i);
      auto* const channel = static_cast<std::byte*>(arena->addr()) + layout.offset(0, kind);
      lanes[i] =
          std::make_unique<WireLane>(*qp, kind, WireLane::Here{channel, arena->lkey(), endpoint->memory_lkey()},
                                     WireLane::There{reinterpret_cast<uint64_t>(channel), arena->rkey()}, 5, layout);
      all[i] = lanes[i].get();
    }
    ASSERT_EQ(port->add(*qp, 5, all), 0);
  }
  /// A message without data, whose immediate says this.
  void say(const WireNote& note) {
    SendWr wr{.opcode = Opcode::kRdmaWriteWithImm, .flags = send_flag::kSignaled};
    wr.imm_or_rkey = htonl(note.packed());
    wr.rkey = arena->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(arena->addr());
    ASSERT_EQ(peer->post_send(wr), 0);
    WorkCompletion completion;
    ASSERT_TRUE(comes([&] { return other_cq->poll(&completion, 1) == 1; }));
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }
  WireLane& lane(LaneKind kind) { return *lanes[static_cast<uint32_t>(kind)]; }

  const ChannelLayout layout{4096};
  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<MemoryRegion> arena;
  std::vector<uint32_t> broken;
  std::unique_ptr<WirePort> port;
  std::unique_ptr<CompletionQueue> other_cq;
  std::unique_ptr<QueuePair> qp;
  std::unique_ptr<QueuePair> peer;
  std::unique_ptr<WireLane> lanes[kLanes];
};

TEST_F(CclWirePort, WhatComesIsForTheLaneThatItNames) {
  const auto size = static_cast<uint32_t>(layout.piece_bytes());
  say({LaneKind::kMessage, false, size});
  EXPECT_TRUE(comes([&] {
    port->poll();
    return lane(LaneKind::kMessage).can_receive().is_over();
  }));
  EXPECT_EQ(lane(LaneKind::kMessage).front_bytes(), size);
  EXPECT_FALSE(lane(LaneKind::kCollective).can_receive().is_over());
  for (uint32_t i = 0; i < layout.pieces(); ++i) lane(LaneKind::kCollective).send(0);
  EXPECT_FALSE(lane(LaneKind::kCollective).can_send().is_over());
  say({LaneKind::kCollective, true, 1});
  EXPECT_TRUE(comes([&] {
    port->poll();
    return lane(LaneKind::kCollective).can_send().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclWirePort, APieceThatIsLongerThanASlotBreaksTheWire) {
  say({LaneKind::kCollective, false, static_cast<uint32_t>(layout.piece_bytes()) + 1});
  EXPECT_TRUE(comes([&] {
    port->poll();
    return !broken.empty();
  }));
  EXPECT_EQ(broken, (std::vector<uint32_t>{5}));
  EXPECT_FALSE(lane(LaneKind::kCollective).can_receive().is_over());
}

TEST_F(CclWirePort, EachReceiveIsPostedAgain) {
  for (uint32_t i = 1; i <= 3 * layout.wire_requests(); ++i) {
    say({LaneKind::kCollective, true, 0});
    if (i % layout.pieces() == 0) port->poll();
  }
  say({LaneKind::kMessage, false, 3});
  EXPECT_TRUE(comes([&] {
    port->poll();
    return lane(LaneKind::kMessage).can_receive().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclWirePort, TheQueueHoldsTheCompletionsOfEachWire) {
  constexpr uint32_t kMore = 7;  // whose completions have no room in the queue of one wire
  QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
  options.cap = {.max_send_wr = 1, .max_recv_wr = layout.wire_requests(), .max_send_sge = 1, .max_recv_sge = 1};
  std::vector<std::unique_ptr<QueuePair>> more;
  QpAttr attr;
  for (uint32_t wire = 0; wire < kMore; ++wire) {
    ASSERT_EQ(port->grow(), 0);
    more.push_back(std::move(*endpoint->device().create_qp(&endpoint->pd(), options)));
    attr.state = QpState::kInit;
    ASSERT_EQ(more.back()->modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags),
              0);
    for (uint32_t i = 0; i < layout.wire_requests(); ++i) ASSERT_EQ(more.back()->post_recv({}), 0);
  }
  // In the error state all receives complete, and nobody polls.
  attr.state = QpState::kErr;
  for (const auto& wire : more) ASSERT_EQ(wire->modify(attr, qp_attr::kState), 0);
  uint32_t came = 0;
  EXPECT_TRUE(comes([&] {
    WorkCompletion completion;
    const int count = port->cq().poll(&completion, 1);
    if (count > 0) ++came;
    return count < 0 || came == kMore * layout.wire_requests();
  }));
  EXPECT_EQ(came, kMore * layout.wire_requests());
}

TEST_F(CclWirePort, TheQueueHasRoomForAllThatEachWireMayHaveUnderWay) {
  // What probes take first exceeds what rounding up the queue's length leaves at 127 wires.
  constexpr uint32_t kMost = 200;
  for (uint32_t wires = 2; wires <= kMost; ++wires) {
    ASSERT_EQ(port->grow(), 0);
    ASSERT_GE(port->cq().entries(), wires * (port->sends() + port->receives())) << wires;
  }
}

TEST_F(CclWirePort, TwoWiresThatBreakBetweenTwoPollsAreBothNamed) {
  QpOptions options{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
  options.cap = {.max_send_wr = 1, .max_recv_wr = layout.wire_requests(), .max_send_sge = 1, .max_recv_sge = 1};
  ASSERT_EQ(port->grow(), 0);
  const auto second = std::move(*endpoint->device().create_qp(&endpoint->pd(), options));
  QpAttr attr;
  attr.state = QpState::kInit;
  ASSERT_EQ(second->modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags), 0);
  std::vector<std::unique_ptr<WireLane>> second_lanes;
  WireLane* all[kLanes];
  for (uint32_t i = 0; i < kLanes; ++i) {
    second_lanes.push_back(
        std::make_unique<WireLane>(*second, static_cast<LaneKind>(i), WireLane::Here{}, WireLane::There{}, 6, layout));
    all[i] = second_lanes.back().get();
  }
  ASSERT_EQ(port->add(*second, 6, all), 0);
  attr.state = QpState::kErr;
  for (QueuePair* const wire : {qp.get(), second.get()}) ASSERT_EQ(wire->modify(attr, qp_attr::kState), 0);
  port->poll();
  std::sort(broken.begin(), broken.end());
  EXPECT_EQ(broken, (std::vector<uint32_t>{5, 6}));
}

TEST_F(CclWirePort, AWireThatThisRankEndsItselfIsNotNamed) {
  QpAttr attr;
  attr.state = QpState::kErr;
  port->drop(*qp);
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  port->poll();
  EXPECT_TRUE(broken.empty());
}

TEST_F(CclWirePort, AWireThatBreaksIsNamed) {
  QpAttr attr;
  attr.state = QpState::kErr;
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  EXPECT_TRUE(comes([&] {
    port->sleep(kNsPerMs);
    return !broken.empty();
  }));
  EXPECT_EQ(broken[0], 5u);
  port->poll();
}

TEST_F(CclWirePort, AfterTheLastPieceABreakIsNoFailure) {
  lane(LaneKind::kCollective).send(0);
  say({LaneKind::kCollective, false, 0});
  EXPECT_TRUE(comes([&] {
    port->poll();
    return lane(LaneKind::kCollective).can_receive().is_over();
  }));
  lane(LaneKind::kCollective).pop_last();
  QpAttr attr;
  attr.state = QpState::kErr;
  ASSERT_EQ(qp->modify(attr, qp_attr::kState), 0);
  EXPECT_TRUE(comes([&] {
    port->poll();
    return lane(LaneKind::kCollective).all_arrived().is_over();
  }));
  EXPECT_TRUE(broken.empty());
}

// ---- those who are left --------------------------------------------------------------------------------------------

using Gone = Survivors::Gone;

/// The sum that a rank tells of who is gone.
Mail sum_mail(MailKind kind, uint32_t from, const std::vector<uint32_t>& gone) {
  Mail mail;
  mail.communicator = kId;
  mail.kind = kind;
  mail.from = from;
  for (const uint32_t rank : gone) {
    ++mail.gone;
    mail.hash = derive({mail.hash, mail.gone}, rank, 0)[0];
  }
  return mail;
}
Mail one_mail(MailKind kind, uint32_t from, uint64_t gone) {
  Mail mail;
  mail.communicator = kId;
  mail.kind = kind;
  mail.from = from;
  mail.gone = gone;
  return mail;
}

/// Rank 0 of four, whose others are played by the test: `turn` is called each time before it decides.
class CclSurvivors : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    survivors = std::make_unique<Survivors>(*endpoint, kId, 0, std::vector<RankCard>(4, endpoint->card()));
    ASSERT_EQ(survivors->open(), 0);
  }
  /// Ends by itself after many turns, as nobody would: all are gone then.
  Outcome<Gone> agree(const std::function<void(int turn)>& turn, const Gone& known = Gone(4),
                      int64_t limit_ns = 100 * kLimitNs) {
    turns = 0;
    return survivors->agree(
        [&]() -> Gone {
          if (++turns > 200) return Gone(4, true);
          turn(turns);
          return known;
        },
        limit_ns);
  }
  void tell_sums(const std::vector<uint32_t>& ranks, const std::vector<uint32_t>& gone) {
    for (const uint32_t rank : ranks) survivors->on_mail(sum_mail(MailKind::kGoneSum, rank, gone));
  }

  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<Survivors> survivors;
  int turns = 0;
};

TEST_F(CclSurvivors, DecideOnceAllOthersHaveToldTheSame) {
  const auto gone = agree([&](int turn) {
    if (turn == 2) tell_sums({1, 2}, {});
    if (turn == 5) tell_sums({3}, {});
  });
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, Gone(4));
  EXPECT_EQ(turns, 5) << "rank 3 was waited for, and nobody else";
}

TEST_F(CclSurvivors, DoNotDecideWhileOneTellsSomethingElse) {
  const auto gone = agree([&](int turn) {
    if (turn == 1) tell_sums({1, 2}, {});
    if (turn == 2) tell_sums({3}, {2});
    if (turn == 6) tell_sums({3}, {});
  });
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, Gone(4));
  EXPECT_EQ(turns, 6);
}

TEST_F(CclSurvivors, WaitForNobodyWhoIsGone) {
  const auto gone = agree([&](int) { tell_sums({1, 3}, {2}); }, Gone{false, false, true, false});
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, (Gone{false, false, true, false}));
  EXPECT_EQ(turns, 1);
}

TEST_F(CclSurvivors, TakeItFromOthersWhoIsGone) {
  const auto gone = agree([&](int turn) {
    survivors->on_mail(one_mail(MailKind::kGone, 1, 3));
    survivors->on_mail(one_mail(MailKind::kGone, 1, 4));           // there is no such rank
    survivors->on_mail(one_mail(MailKind::kGone, 1, UINT64_MAX));  // nor such a one
    if (turn == 3) tell_sums({1, 2}, {3});
  });
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, (Gone{false, false, false, true}));
  EXPECT_EQ(turns, 3);
}

TEST_F(CclSurvivors, HearNobodyWhoIsNoOtherRank) {
  const auto gone = agree([&](int turn) {
    for (const uint32_t from : {0u, 4u, UINT32_MAX}) survivors->on_mail(one_mail(MailKind::kGone, from, 2));
    if (turn == 3) tell_sums({1, 2, 3}, {});
  });
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, Gone(4));
  EXPECT_EQ(turns, 3);
}

TEST_F(CclSurvivors, ARankThatTheOthersCountIsTold) {
  const auto gone = agree([&](int turn) {
    if (turn == 2) survivors->on_mail(one_mail(MailKind::kGone, 1, 0));
  });
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ECONNABORTED);
  EXPECT_EQ(turns, 2);
}

TEST_F(CclSurvivors, DoNotCountThemselves) {
  const auto gone = agree([&](int) { tell_sums({1, 2, 3}, {}); }, Gone{true, false, false, false});
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, Gone(4));
}

TEST_F(CclSurvivors, TakeADecisionOnlyWhole) {
  const auto gone = agree([&](int turn) {
    if (turn == 1) {
      survivors->on_mail(one_mail(MailKind::kDecided, 1, 2));
      survivors->on_mail(one_mail(MailKind::kDecided, 1, 4));  // there is no such rank
      survivors->on_mail(sum_mail(MailKind::kDecidedSum, 1, {2, 3}));
    }
    if (turn == 3) survivors->on_mail(sum_mail(MailKind::kDecidedSum, 2, {2}));  // nothing came of this one's
    if (turn != 5) return;
    survivors->on_mail(one_mail(MailKind::kDecided, 1, 3));
    survivors->on_mail(sum_mail(MailKind::kDecidedSum, 1, {2, 3}));
  });
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, (Gone{false, false, true, true}));
  EXPECT_EQ(turns, 5);
}

TEST_F(CclSurvivors, ADecisionWithoutThisRankIsTold) {
  const auto gone = agree([&](int turn) {
    if (turn != 2) return;
    survivors->on_mail(one_mail(MailKind::kDecided, 3, 0));
    survivors->on_mail(sum_mail(MailKind::kDecidedSum, 3, {0}));
  });
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ECONNABORTED);
}

TEST_F(CclSurvivors, WhoeverSaysNothingForTheLimitIsGone) {
  // Ranks 1 and 3 speak each time, and tell what they would by then.
  const auto gone = agree(
      [&](int turn) {
        for (const uint32_t rank : {1u, 3u}) survivors->on_mail(one_mail(MailKind::kAsk, rank, 0));
        if (turn > 2) tell_sums({1, 3}, {2});
      },
      Gone(4), 100 * kNsPerMs);
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, (Gone{false, false, true, false}));
}

TEST_F(CclSurvivors, WhileThisRankIsStoppedNobodyIsSilent) {
  // A stop counts as 200 ms at most, whatever it took.
  const auto gone = agree(
      [&](int turn) {
        if (turn == 1) usleep(300'000);
        if (turn == 2) tell_sums({1, 2, 3}, {});
      },
      Gone(4), 250 * kNsPerMs);
  ASSERT_TRUE(gone);
  EXPECT_EQ(*gone, Gone(4));
}

TEST_F(CclSurvivors, TellADecisionToWhoeverStillAsks) {
  const auto gone = agree([&](int) { tell_sums({1, 3}, {2}); }, Gone{false, false, true, false});
  ASSERT_TRUE(gone);
  Inbox asking;
  ASSERT_EQ(endpoint->enter(kId, 3, &asking), 0);
  survivors->on_mail(sum_mail(MailKind::kGoneSum, 3, {}));
  const auto has = [&](MailKind kind) {
    for (const Mail& mail : asking.mails())
      if (mail.kind == kind) return true;
    return false;
  };
  EXPECT_TRUE(comes([&] { return has(MailKind::kDecidedSum); }));
  endpoint->leave(kId, 3);
  for (const Mail& mail : asking.mails()) {
    EXPECT_EQ(mail.from, 0u);
    if (mail.kind == MailKind::kDecided) {
      EXPECT_EQ(mail.gone, 2u);
    }
    if (mail.kind == MailKind::kDecidedSum) {
      EXPECT_EQ(mail.gone, 1u);
      EXPECT_EQ(mail.hash, sum_mail(MailKind::kDecidedSum, 0, {2}).hash);
    }
  }
  EXPECT_TRUE(has(MailKind::kDecided));
}

TEST(CclDerive, NamesDependOnAllThatTheyAreMadeOf) {
  const CommunicatorId id{1, 2};
  const std::vector<CommunicatorId> made = {derive(id, 1, 0),     derive(id, 0, 1),     derive(id, 2, 0),
                                            derive({2, 2}, 1, 0), derive({1, 3}, 1, 0), derive(id, 1, 1)};
  EXPECT_EQ(derive(id, 1, 0), made[0]) << "the same on all ranks";
  for (size_t a = 0; a < made.size(); ++a)
    for (size_t b = a + 1; b < made.size(); ++b) EXPECT_TRUE(made[a] != made[b] && made[a] != id) << a << " " << b;
}

// ---- memory --------------------------------------------------------------------------------------------------------

TEST(CclAllocations, AnArrayIsFoundWhereAllOfItIsInOne) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  Allocations allocations(endpoint->device(), endpoint->pd());
  constexpr size_t kBytes = 8192;
  std::byte local{};
  EXPECT_FALSE(allocations.find(&local, 1)) << "there is none";
  const auto made = allocations.allocate(kBytes);
  const auto second = allocations.allocate(kBytes);
  ASSERT_TRUE(made && second);
  auto* const memory = static_cast<std::byte*>(*made);
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(memory[i], std::byte{}) << "it is zeroed";
  const auto whole = allocations.find(memory, kBytes);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->base, reinterpret_cast<uint64_t>(memory));
  EXPECT_EQ(whole->bytes, kBytes);
  EXPECT_NE(whole->serial, 0u);
  EXPECT_TRUE(allocations.find(memory + 100, kBytes - 100));
  EXPECT_FALSE(allocations.find(memory + 100, kBytes - 99)) << "it ends behind";
  // One may lie right behind the other.
  EXPECT_FALSE(allocations.find(std::min(memory, static_cast<std::byte*>(*second)) - 1, 1)) << "it begins before";
  EXPECT_FALSE(allocations.find(std::max(memory, static_cast<std::byte*>(*second)) + kBytes, 1));
  EXPECT_FALSE(allocations.find(memory, kBytes + 1));
  EXPECT_FALSE(allocations.find(&local, 1));
  EXPECT_NE(allocations.find(*second, 1)->serial, whole->serial);
  EXPECT_FALSE(allocations.release(memory + 1)) << "nothing begins there";
  EXPECT_TRUE(allocations.release(memory));
  EXPECT_FALSE(allocations.release(memory));
  EXPECT_FALSE(allocations.find(memory, 1));
  const auto again = allocations.allocate(kBytes);
  ASSERT_TRUE(again);
  EXPECT_NE(allocations.find(*again, 1)->serial, whole->serial) << "of no other one, ever";
  EXPECT_TRUE(allocations.release(*second));
  EXPECT_TRUE(allocations.release(*again));
}

TEST(CclProcessReads, ReadAllOrSayWhyNot) {
  constexpr size_t kPage = 4096;
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 0x3c, kPage);
  ASSERT_EQ(munmap(pages + kPage, kPage), 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::vector<uint32_t> gone;
  ProcessReads reads({getpid(), child}, [&](uint32_t rank) { gone.push_back(rank); });
  std::vector<std::byte> to(2 * kPage);
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), kPage), 0);
  EXPECT_EQ(to, [&] {
    std::vector<std::byte> expected(2 * kPage);
    std::memset(expected.data(), 0x3c, kPage);
    return expected;
  }());
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), 0), 0);
  EXPECT_EQ(reads.read(0, to.data(), reinterpret_cast<uint64_t>(pages), 2 * kPage), EFAULT) << "half of it is there";
  EXPECT_EQ(reads.read(0, to.data(), 0, 1), EFAULT);
  EXPECT_TRUE(gone.empty());
  EXPECT_EQ(reads.read(1, to.data(), reinterpret_cast<uint64_t>(pages), 1), ECONNRESET);
  EXPECT_EQ(gone, (std::vector<uint32_t>{1}));
  munmap(pages, kPage);
}

}  // namespace
}  // namespace nupa::ccl
