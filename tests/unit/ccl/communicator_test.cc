// SPDX-License-Identifier: Apache-2.0
/// Tests of a communicator whose operations wait and fail. The test acts for its other ranks.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "ccl/api/handles.h"
#include "ccl/communicator/communicator.h"
#include "ccl/communicator/derived_id.h"
#include "ccl/planner/link_speed.h"
#include "ccl/channel/rdma_port.h"
#include "ccl/channel/arena.h"
#include "ccl/diagnostics/observe.h"
#include "mail_fixture.h"

namespace nupa::ccl {
namespace {

using namespace mail_test;

constexpr size_t kSlotBytes = 4096;

CommunicatorOptions long_limit_options() {
  CommunicatorOptions options;
  options.limit_ns = 10 * kLimitNs;
  options.slot_bytes = kSlotBytes;
  options.mapped_ranks = 64;
  return options;
}

std::unique_ptr<Communicator> rank_0_of(const std::shared_ptr<Endpoint>& endpoint, std::vector<PeerInfo> peer_infos,
                                        const CommunicatorOptions& options, const CommunicatorId& id = kId) {
  auto made = Communicator::make(endpoint, id, 0, std::move(peer_infos), options);
  EXPECT_TRUE(made) << made.error().what();
  return made ? std::move(*made) : nullptr;
}

TEST(CclHandles, Group_SeveralErrors_ReportsTheFirst) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  const auto first = rank_0_of(endpoint, {endpoint->peer_info()}, long_limit_options(), {1, 1});
  const auto second = rank_0_of(endpoint, {endpoint->peer_info()}, long_limit_options(), {2, 2});
  ASSERT_TRUE(first && second);
  first->end({ECANCELED, 0});
  second->end({ETIMEDOUT, 0});
  CallGroup group;
  for (Communicator* const communicator : {first.get(), second.get()})
    group.collectives.push_back({communicator, Call{}});
  EXPECT_EQ(run_or_start(std::move(group), nullptr), ECANCELED);
  EXPECT_EQ(nupa_ccl_error_text(), first->text_of(first->ended()));
}

/// The name by which the ranks of a communicator agree on those that are left, the first time.
const CommunicatorId kShrinkId = derive(kId, UINT64_MAX, 1);

using Shrunk = Result<std::unique_ptr<Communicator>>;

/// A shrink() of rank 0, which ends with this at the latest.
class Shrinking {
 public:
  Shrinking(Endpoint& endpoint, Communicator& communicator)
      : endpoint_(endpoint),
        result_(std::async(std::launch::async, [&communicator] { return communicator.shrink(); })) {}
  ~Shrinking() {
    if (result_.valid()) leave_rank_0_out();
  }
  bool is_over() const { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Shrunk result() { return result_.get(); }
  /// Rank 1 ends it by a mail that counts rank 0 as dead. A mail may be lost.
  Shrunk leave_rank_0_out() {
    Mail end;
    end.communicator = kShrinkId;
    end.kind = MailKind::kDead;
    end.from = 1;
    EXPECT_TRUE(eventually([&] {
      endpoint_.send(endpoint_.peer_info(), end);
      return result_.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready;
    }));
    return result_.get();
  }

 private:
  Endpoint& endpoint_;
  std::future<Shrunk> result_;
};

/// Has rank 0 shrink. Returns how many ranks are dead, as its first mail to `rank` says; nullopt: it sent that rank
/// nothing.
std::optional<uint64_t> dead_ranks_sent_to(uint32_t rank, Endpoint& endpoint, Communicator& communicator) {
  Inbox inbox;
  EXPECT_EQ(endpoint.enter(kShrinkId, rank, &inbox), 0);
  Shrinking shrinking(endpoint, communicator);
  EXPECT_TRUE(eventually([&] { return shrinking.is_over() || !inbox.of(MailKind::kDeadSum).empty(); }));
  endpoint.leave(kShrinkId, rank);
  const auto sums = inbox.of(MailKind::kDeadSum);
  if (sums.empty()) return std::nullopt;
  return sums[0].dead;
}

/// Sends `answer` to each HELLO of rank 0 until the link is established.
void answer_until_linked(Endpoint& endpoint, const Inbox& inbox, const Mail& answer) {
  size_t answered = 0;
  ASSERT_TRUE(eventually([&] {
    if (answered < inbox.of(MailKind::kHello).size()) {
      ++answered;
      endpoint.send(endpoint.peer_info(), answer);
    }
    return !inbox.of(MailKind::kAnswer).empty();
  }));
}

TEST(CclCommunicator, Shrink_RankThatTimedOut_IsLeftOut) {
  const auto endpoint = endpoint_here();
  ASSERT_NE(endpoint, nullptr);
  const auto communicator = rank_0_of(endpoint, std::vector<PeerInfo>(3, endpoint->peer_info()), long_limit_options());
  ASSERT_NE(communicator, nullptr);
  communicator->end({ETIMEDOUT, 2});
  Inbox other;
  Inbox late;
  ASSERT_EQ(endpoint->enter(kShrinkId, 1, &other), 0);
  ASSERT_EQ(endpoint->enter(kShrinkId, 2, &late), 0);
  Shrinking shrinking(*endpoint, *communicator);
  EXPECT_TRUE(eventually([&] { return !other.of(MailKind::kDeadSum).empty(); }));
  // Read now: when rank 1 counts rank 0 as dead, rank 0 repeats that.
  const auto gone = other.of(MailKind::kDead);
  const auto sums = other.of(MailKind::kDeadSum);
  const auto made = shrinking.leave_rank_0_out();
  endpoint->leave(kShrinkId, 1);
  endpoint->leave(kShrinkId, 2);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ECONNABORTED);
  EXPECT_TRUE(late.mails().empty()) << "a rank that is left out gets no mail";
  for (const Mail& one : gone) EXPECT_EQ(one.dead, 2u);
  ASSERT_FALSE(sums.empty());
  EXPECT_EQ(sums[0].dead, 1u) << "how many are left out";
}

/// Rank 1 of two that share no memory. It makes progress only while the test calls it.
class CclRdmaCommunicator : public ::testing::Test {
 protected:
  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    Device& device = endpoint->device();
    auto made =
        device.alloc_mr(endpoint->pd(), kChannelsAt + layout.bytes(), access::kLocalWrite | access::kRemoteWrite);
    ASSERT_TRUE(made);
    arena = std::move(*made);
    auto opened = RdmaPort::open(device, kReceives, [this](uint32_t) { is_broken = true; });
    ASSERT_TRUE(opened);
    port = std::move(*opened);
    ASSERT_EQ(port->grow(), 0);
    QpOptions wire{.type = QpType::kRc, .send_cq = &port->cq(), .recv_cq = &port->cq()};
    wire.cap = {.max_send_wr = layout.rdma_requests(),
                .max_recv_wr = kReceives,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 0};
    qp = std::move(*device.create_qp(&endpoint->pd(), wire));
    ASSERT_EQ(endpoint->enter(kId, 1, &inbox), 0);
    std::vector<PeerInfo> peer_infos(2, endpoint->peer_info());
    peer_infos[1].memory_domain[0] ^= 1;
    CommunicatorOptions options = long_limit_options();
    options.algorithms = "broadcast=direct";
    communicator = rank_0_of(endpoint, std::move(peer_infos), options);
    ASSERT_NE(communicator, nullptr);
  }
  void TearDown() override {
    if (running.valid()) {
      communicator->end({ECANCELED, 0});
      running.wait();
    }
    set_profiler(nullptr, nullptr, nullptr);
    communicator.reset();
    if (endpoint != nullptr) endpoint->leave(kId, 1);
  }
  /// Rank 0 runs this call meanwhile.
  void run(const Call& call) {
    running = std::async(std::launch::async, [this, call] { return communicator->run(call); });
  }
  /// Answers rank 0, which wants a link, until the link is there.
  void link() {
    ASSERT_TRUE(eventually([&] { return !inbox.of(MailKind::kHello).empty(); }));
    const Mail hello = inbox.of(MailKind::kHello).front();
    ASSERT_EQ(connect(*qp, {.dgid = endpoint->peer_info().gid,
                            .dest_qp_num = hello.qp_num,
                            .access_flags = access::kRemoteWrite,
                            .sgid_index = endpoint->gid_index()}),
              0);
    RdmaChannel* all[kChannelKinds];
    for (uint32_t i = 0; i < kChannelKinds; ++i) {
      const auto kind = static_cast<ChannelKind>(i);
      auto* const here = static_cast<std::byte*>(arena->addr()) + kChannelsAt + layout.offset(0, kind);
      const RdmaChannel::There there{hello.arena + kChannelsAt + layout.offset(1, kind), hello.rkey};
      channels[i] = std::make_unique<RdmaChannel>(
          *qp, kind, RdmaChannel::Here{here, arena->lkey(), endpoint->memory_lkey()}, there, 0, layout);
      all[i] = channels[i].get();
    }
    ASSERT_EQ(port->add(*qp, 0, all), 0);
    Mail answer = hello;  // the arenas are of one length
    answer.kind = MailKind::kAnswer;
    answer.from = 1;
    answer.to = 0;
    answer.qp_num = qp->number();
    answer.rkey = arena->rkey();
    answer.arena = reinterpret_cast<uint64_t>(arena->addr());
    answer_until_linked(*endpoint, inbox, answer);
  }
  RdmaChannel& channel() { return *channels[static_cast<uint32_t>(ChannelKind::kCollective)]; }
  bool has_fragment() { return channel().can_receive().is_over(); }

  /// What the steps of rank 1 need: only the channel to rank 0.
  class OneChannel final : public ChannelGroup::Provider {
   public:
    explicit OneChannel(CclRdmaCommunicator& test) : test_(test) {}
    void want(uint32_t) override {}
    Wait ready(uint32_t rank) override { return {&there_, 0, rank}; }
    MessageChannel& channel(uint32_t) override { return test_.channel(); }
    uint32_t ahead() const override { return test_.layout.ahead(); }
    bool is_used(uint32_t) const override { return true; }

   private:
    CclRdmaCommunicator& test_;
    const std::atomic<uint32_t> there_{1};
  };
  class TestHooks final : public ProgressHooks {
   public:
    explicit TestHooks(RdmaPort& port) : port_(port) {}
    Cause ended() const override { return ended_; }
    void look() override { port_.poll(); }
    void sleep(int64_t limit_ns) override { port_.sleep(limit_ns); }
    Cause on_timeout(const Wait& wait) override { return ended_ = {ETIMEDOUT, wait.rank}; }

   private:
    RdmaPort& port_;
    Cause ended_;
  };
  /// Rank 1's part of what precedes the first operation.
  int measure() {
    OneChannel way(*this);
    ChannelGroup group(1, {0, 1}, way);
    TestHooks hooks(*port);
    LinkSpeed speed{};
    CollectiveTask steps = messages::measure(group, &speed);
    return run_tasks(steps, WaitRules{}, hooks, kLimitNs);
  }

  /// Rank 0 broadcasts a large array of these bytes, and that is ended while most of it is still to be sent.
  void fail_while_lending(std::byte value) {
    array.assign(8 << 20, value);
    Call call;
    call.operation = Operation::kBroadcast;
    call.out = array.data();
    call.elements = array.size();
    run(call);
    ASSERT_NO_FATAL_FAILURE(link());
    ASSERT_EQ(measure(), 0);
    // Rank 1 sees the first piece, and then posts no more receives: the other pieces wait in rank 0's queue.
    ASSERT_TRUE(eventually([&] {
      port->sleep(kNsPerMs);
      return has_fragment();
    }));
    communicator->end({ECANCELED, 0});
    EXPECT_EQ(running.get(), ECANCELED);
  }

  static constexpr uint32_t kReceives = 32;
  static constexpr size_t kChannelsAt = arena_bytes(kSlotBytes);
  const ChannelLayout layout{2};
  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<MemoryRegion> arena;
  bool is_broken = false;
  std::unique_ptr<RdmaPort> port;
  std::unique_ptr<QueuePair> qp;
  std::unique_ptr<RdmaChannel> channels[kChannelKinds];
  Inbox inbox;
  std::unique_ptr<Communicator> communicator;
  // Of what rank 0 runs.
  std::vector<std::byte> array;
  Event noted{};
  std::future<int> running;
};

TEST_F(CclRdmaCommunicator, Failure_ZeroCopySendsUnderWay_SendsNoMoreFromTheArray) {
  constexpr std::byte kBefore{0x5a};
  constexpr std::byte kAfter{0xa5};
  ASSERT_NO_FATAL_FAILURE(fail_while_lending(kBefore));
  std::fill(array.begin(), array.end(), kAfter);
  // Rank 1 posts receives again. What it sends itself arrives only while rank 0's queue is alive.
  channel().send(0);
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return is_broken || channel().all_arrived().is_over();
  }));
  EXPECT_TRUE(is_broken) << "rank 0's queue goes on sending";
  for (; has_fragment(); channel().pop()) EXPECT_EQ(*channel().front(), kBefore);
}

TEST_F(CclRdmaCommunicator, Failure_EndedByThisRank_PeerIsNotCountedAsDead) {
  ASSERT_NO_FATAL_FAILURE(fail_while_lending(std::byte{1}));
  // A message looks at the wires, also at the one that rank 0 has ended.
  communicator->messages().begin(std::make_shared<Message>(MessageTask{.peer = 1}));
  EXPECT_EQ(dead_ranks_sent_to(1, *endpoint, *communicator), 0u) << "rank 1 lives, and is asked";
}

TEST_F(CclRdmaCommunicator, WaitedNs_SeveralWaits_IsTheirSum) {
  // A rank that has waited for this long asks the other one (waiter.cc).
  constexpr int64_t kLongWaitNs = 100 * kNsPerMs;
  const auto note = [](const nupa_ccl_event* event, void* place) { *static_cast<Event*>(place) = *event; };
  ASSERT_EQ(set_profiler(nullptr, note, &noted), 0);
  run(Call{});
  // The first wait is for the link, and a long one.
  EXPECT_TRUE(eventually([&] { return !inbox.of(MailKind::kAsk).empty(); }));
  ASSERT_NO_FATAL_FAILURE(link());
  // The second one, for what rank 1 sends, begins when rank 0 has sent, and ends at once.
  EXPECT_TRUE(eventually([&] {
    port->poll();
    return has_fragment();
  }));
  communicator->end({ECANCELED, 0});
  EXPECT_EQ(running.get(), ECANCELED);
  EXPECT_STREQ(noted.operation, "barrier");
  EXPECT_GE(noted.waited_ns, kLongWaitNs) << "the first wait is forgotten";
}

/// Ranks 1 and 2 of three, none of which share memory. Rank 0 looks at its wires only where look() is called.
class CclPlayedRanks : public ::testing::Test {
 protected:
  struct Played {
    Inbox inbox;
    std::unique_ptr<QueuePair> qp;
    Mail hello;  ///< of rank 0
  };

  void SetUp() override {
    endpoint = endpoint_here();
    ASSERT_NE(endpoint, nullptr);
    cq = std::move(*endpoint->device().create_cq({.entries = 16}));
    QpOptions options{.type = QpType::kRc, .send_cq = cq.get(), .recv_cq = cq.get()};
    options.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 0};
    std::vector<PeerInfo> peer_infos(3, endpoint->peer_info());
    for (uint32_t rank = 1; rank < peer_infos.size(); ++rank) {
      peer_infos[rank].memory_domain[0] ^= static_cast<uint8_t>(rank);
      played[rank].qp = std::move(*endpoint->device().create_qp(&endpoint->pd(), options));
      ASSERT_EQ(endpoint->enter(kId, rank, &played[rank].inbox), 0);
    }
    communicator = rank_0_of(endpoint, std::move(peer_infos), long_limit_options());
    ASSERT_NE(communicator, nullptr);
  }
  void TearDown() override {
    communicator.reset();
    for (const uint32_t rank : {1u, 2u})
      if (endpoint != nullptr) endpoint->leave(kId, rank);
  }
  /// Rank 0 begins to receive a message, which looks at the wires once.
  void look() { communicator->messages().begin(std::make_shared<Message>(MessageTask{.peer = 1})); }
  void link(uint32_t rank) {
    Played& peer = played[rank];
    communicator->messages().begin(std::make_shared<Message>(MessageTask{.peer = rank}));
    ASSERT_TRUE(eventually([&] { return !peer.inbox.of(MailKind::kHello).empty(); }));
    peer.hello = peer.inbox.of(MailKind::kHello).front();
    ASSERT_EQ(connect(*peer.qp, {.dgid = endpoint->peer_info().gid,
                                 .dest_qp_num = peer.hello.qp_num,
                                 .access_flags = access::kRemoteWrite,
                                 .sgid_index = endpoint->gid_index()}),
              0);
    Mail answer = peer.hello;  // rank 0 sends nothing to the arena
    answer.kind = MailKind::kAnswer;
    answer.from = rank;
    answer.to = 0;
    answer.qp_num = peer.qp->number();
    answer_until_linked(*endpoint, peer.inbox, answer);
  }
  /// Sends a piece that is longer than a slot. When this returns it is in rank 0's queue, and breaks the wire there.
  void break_wire(uint32_t rank) {
    const Played& peer = played[rank];
    const ImmediateData too_long{ChannelKind::kCollective, false,
                                 static_cast<uint32_t>(ChannelLayout(3).fragment_bytes()) + 1};
    SendWr wr{.opcode = Opcode::kRdmaWriteWithImm, .flags = send_flag::kSignaled};
    wr.imm_or_rkey = htonl(too_long.packed());
    wr.rkey = peer.hello.rkey;
    wr.remote_addr = peer.hello.arena;
    ASSERT_EQ(peer.qp->post_send(wr), 0);
    WorkCompletion completion;
    ASSERT_TRUE(eventually([&] { return cq->poll(&completion, 1) == 1; }));
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }

  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<CompletionQueue> cq;
  Played played[3];
  std::unique_ptr<Communicator> communicator;
};

TEST_F(CclPlayedRanks, Shrink_RanksWhoseQueuePairsBrokeTogether_AreNotWaitedFor) {
  for (const uint32_t rank : {1u, 2u}) ASSERT_NO_FATAL_FAILURE(link(rank));
  for (const uint32_t rank : {1u, 2u}) ASSERT_NO_FATAL_FAILURE(break_wire(rank));
  look();
  EXPECT_EQ(communicator->ended().error, ECONNRESET);
  Shrinking shrinking(*endpoint, *communicator);
  ASSERT_TRUE(eventually([&] { return shrinking.is_over(); })) << "it waits for one of them";
  const auto left = shrinking.result();
  ASSERT_TRUE(left) << left.error().what();
  EXPECT_EQ((*left)->ranks(), 1u);
}

TEST_F(CclPlayedRanks, Shrink_QueuePairThatBreaksWhileNoThreadPolls_IsNotWaitedFor) {
  for (const uint32_t rank : {1u, 2u}) ASSERT_NO_FATAL_FAILURE(link(rank));
  ASSERT_NO_FATAL_FAILURE(break_wire(1));
  look();
  EXPECT_EQ(communicator->ended().error, ECONNRESET);
  ASSERT_NO_FATAL_FAILURE(break_wire(2));
  Shrinking shrinking(*endpoint, *communicator);
  ASSERT_TRUE(eventually([&] { return shrinking.is_over(); })) << "it waits for rank 2";
  const auto left = shrinking.result();
  ASSERT_TRUE(left) << left.error().what();
  EXPECT_EQ((*left)->ranks(), 1u);
}

TEST_F(CclPlayedRanks, Shrink_RankThatSendsItsSetAlthoughItsQueuePairBreaks_IsNotLeftOut) {
  for (const uint32_t rank : {1u, 2u}) ASSERT_NO_FATAL_FAILURE(link(rank));
  ASSERT_NO_FATAL_FAILURE(break_wire(1));
  look();
  Inbox inbox;
  ASSERT_EQ(endpoint->enter(kShrinkId, 2, &inbox), 0);
  {
    Shrinking shrinking(*endpoint, *communicator);
    const auto sends_after = [&](size_t earlier) {
      Mail none;
      none.communicator = kShrinkId;
      none.kind = MailKind::kDeadSum;
      none.from = 2;
      return eventually([&] {
        endpoint->send(endpoint->peer_info(), none);
        return inbox.of(MailKind::kDeadSum).size() > earlier;
      });
    };
    ASSERT_TRUE(sends_after(0));
    ASSERT_NO_FATAL_FAILURE(break_wire(2));
    // Rank 0 looks at its wires before each mail.
    const size_t before = inbox.of(MailKind::kDeadSum).size();
    ASSERT_TRUE(sends_after(before + 1));
    EXPECT_EQ(inbox.of(MailKind::kDeadSum).back().dead, 1u) << "rank 1 only";
  }
  endpoint->leave(kShrinkId, 2);
}

TEST_F(CclPlayedRanks, RankThatHasSentItsEnd_IsNotDeadWhenItsQueuePairBreaks) {
  ASSERT_NO_FATAL_FAILURE(link(1));
  Mail end;
  end.communicator = kId;
  end.kind = MailKind::kEnd;
  end.from = 1;
  end.cause = Cause{ECANCELED, 1}.packed();
  ASSERT_TRUE(eventually([&] {
    endpoint->send(endpoint->peer_info(), end);
    return communicator->ended().error == ECANCELED;
  }));
  ASSERT_NO_FATAL_FAILURE(break_wire(1));
  look();
  EXPECT_EQ(dead_ranks_sent_to(2, *endpoint, *communicator), 0u);
}

}  // namespace
}  // namespace nupa::ccl
