// SPDX-License-Identifier: Apache-2.0
/// The responder's rules, one a row: what a request does to its requester, to the receive at the other end, to the
/// queue pair there and to its memory (IBTA 9.9.3, 9.7.4, 9.8). They are
/// the same over each transport.
#include <functional>
#include <ostream>
#include <string>

#include "fixture.h"

namespace nupa::test {
namespace {

/// Of `b`, the responder: where its receive points to, and what requests with an address reach.
constexpr size_t kReceive = 4096;
constexpr size_t kTarget = 8192;
/// The word at each of the two before, and what the requester's list has.
constexpr uint64_t kBefore = 0x0102030405060708;
constexpr uint64_t kSent = 0x1112131415161718;

/// What a rule may change before the queue pairs are connected, and how it makes its request.
class VerbsRule : public VerbsPair {
 public:
  using Verbs::initiator_depth;
  using Verbs::kNoCompletion;
  using Verbs::kNoEvent;
  using Verbs::request;
  using Verbs::responder_depth;
  using Verbs::rnr_retry;

  ibv_send_wr send() { return request(IBV_WR_SEND, 1, &list); }
  /// With an address: `offset` bytes behind kTarget, by the key of the region changed by `wrong`.
  ibv_send_wr reach(ibv_wr_opcode opcode, uint32_t wrong = 0, size_t offset = 0) {
    ibv_send_wr wr = remote(opcode, 1, &list, kTarget + offset);
    wr.wr.rdma.rkey ^= wrong;
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
      wr.wr.atomic = {address(kTarget + offset), kBefore, kSent, mr->rkey ^ wrong};
    return wr;
  }
  ibv_send_wr invalidate(uint32_t key) {
    ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, 1, &list);
    wr.invalidate_rkey = key;
    return wr;
  }
  uint32_t key() const { return mr->rkey; }

  ibv_sge list{};  ///< eight bytes
  uint32_t receive_length = 64;
  uint32_t receive_wrong = 0;  ///< what its key is changed by
  int receives = 1;
};

constexpr ibv_wc_status kUntaken = VerbsRule::kNoCompletion;  ///< nothing has taken the receive
constexpr ibv_event_type kNone = VerbsRule::kNoEvent;

struct Outcome {
  ibv_wc_status requester;
  ibv_wc_status receive = kUntaken;
  ibv_qp_state responder = IBV_QPS_RTS;
  ibv_event_type event = kNone;
  uint64_t received = kBefore;  ///< the word at kReceive
  uint64_t target = kBefore;    ///< the word at kTarget
};
/// The request was executed.
constexpr Outcome kWritten{.requester = IBV_WC_SUCCESS, .target = kSent};
constexpr Outcome kNoEffect{.requester = IBV_WC_SUCCESS};
/// The responder has stopped; its receive is flushed.
constexpr Outcome refused(ibv_wc_status status, ibv_event_type event) {
  return {status, IBV_WC_WR_FLUSH_ERR, IBV_QPS_ERR, event};
}
/// A fault of the requester's own.
constexpr Outcome local(ibv_wc_status status) { return {.requester = status}; }

struct Rule {
  const char* name;
  ibv_qp_type type;
  Outcome outcome;
  std::function<ibv_send_wr(VerbsRule&)> make;
};
std::ostream& operator<<(std::ostream& to, const Rule& rule) { return to << rule.name; }

class VerbsRules : public VerbsRule, public ::testing::WithParamInterface<Rule> {
 protected:
  uint64_t word(size_t offset) {
    uint64_t value = 0;
    std::memcpy(&value, memory + offset, sizeof value);
    return value;
  }
};

TEST_P(VerbsRules, Request_OfEachRow_HasItsOutcomeAtBothEnds) {
  const Rule& rule = GetParam();
  const Outcome& expected = rule.outcome;
  for (const size_t offset : {kReceive, kTarget}) std::memcpy(memory + offset, &kBefore, sizeof kBefore);
  std::memcpy(memory, &kSent, sizeof kSent);
  list = span(0, sizeof kSent);
  const ibv_send_wr wr = rule.make(*this);
  make_pair(rule.type);
  for (int i = 0; i < receives; ++i)
    ASSERT_EQ(post_recv(b, 7, memory + kReceive, receive_length, mr->lkey ^ receive_wrong), 0);

  ASSERT_EQ(post(a, wr), 0);
  const ibv_wc sent = next();
  EXPECT_EQ(sent.wr_id, 1u);
  EXPECT_EQ(sent.status, expected.requester) << ibv_wc_status_str(sent.status);
  EXPECT_EQ(state_of(a), sent.status == IBV_WC_SUCCESS ? IBV_QPS_RTS
                         : rule.type == IBV_QPT_UC     ? IBV_QPS_SQE
                                                       : IBV_QPS_ERR);
  catch_up();
  EXPECT_TRUE(reaches(b, expected.responder)) << state_of(b);
  if (expected.receive == kUntaken) {
    EXPECT_TRUE(stays_empty(other_cq));
  } else {
    const ibv_wc taken = next(other_cq);
    EXPECT_EQ(taken.wr_id, 7u);
    EXPECT_EQ(taken.status, expected.receive) << ibv_wc_status_str(taken.status);
  }
  if (expected.event == kNone) {
    EXPECT_EQ(next_event(0).event_type, kNone);
  } else {
    const ibv_async_event told = next_event();
    EXPECT_EQ(told.event_type, expected.event) << ibv_event_type_str(told.event_type);
    EXPECT_EQ(told.element.qp, b);
  }
  EXPECT_EQ(word(kReceive), expected.received);
  EXPECT_EQ(word(kTarget), expected.target);
}

const Rule kRules[] = {
    {"Send", IBV_QPT_RC, {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kSent}, [](auto& t) { return t.send(); }},
    {"SendUc",
     IBV_QPT_UC,
     {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kSent},
     [](auto& t) { return t.send(); }},
    {"SendThatIsTooLong",
     IBV_QPT_RC,
     {IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR, IBV_QPS_ERR},
     [](auto& t) {
       t.receive_length = 7;
       return t.send();
     }},
    {"SendThatIsTooLongUc", IBV_QPT_UC, kNoEffect,
     [](auto& t) {
       t.receive_length = 7;
       return t.send();
     }},
    // Only what is written is checked: a list may be longer than its region.
    {"SendToAReceiveThatIsLongerThanItsRegion",
     IBV_QPT_RC,
     {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kSent},
     [](auto& t) {
       t.receive_length = 1u << 30;
       return t.send();
     }},
    {"SendWithoutAReceive", IBV_QPT_RC, local(IBV_WC_RNR_RETRY_EXC_ERR),
     [](auto& t) {
       t.receives = t.rnr_retry = 0;
       return t.send();
     }},
    {"SendWithoutAReceiveUc", IBV_QPT_UC, kNoEffect,
     [](auto& t) {
       t.receives = 0;
       return t.send();
     }},
    {"SendToAReceiveWithAWrongKey",
     IBV_QPT_RC,
     {IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, IBV_EVENT_QP_FATAL},
     [](auto& t) {
       t.receive_wrong = 1;
       return t.send();
     }},
    // The requester sees nothing of it.
    {"SendToAReceiveWithAWrongKeyUc",
     IBV_QPT_UC,
     {IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_QPS_ERR, IBV_EVENT_QP_FATAL},
     [](auto& t) {
       t.receive_wrong = 1;
       return t.send();
     }},
    // The bytes are placed before the last one of them invalidates.
    {"SendThatInvalidatesARegion",
     IBV_QPT_RC,
     {IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, IBV_EVENT_QP_ACCESS_ERR, kSent},
     [](auto& t) { return t.invalidate(t.key()); }},
    {"SendThatInvalidatesNothing",
     IBV_QPT_RC,
     {IBV_WC_REM_ACCESS_ERR, IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, IBV_EVENT_QP_ACCESS_ERR, kSent},
     [](auto& t) { return t.invalidate(0); }},
    {"SendThatInvalidatesNothingUc",
     IBV_QPT_UC,
     {IBV_WC_SUCCESS, IBV_WC_MW_BIND_ERR, IBV_QPS_ERR, IBV_EVENT_QP_ACCESS_ERR, kSent},
     [](auto& t) { return t.invalidate(0); }},
    {"SendWithImmediate",
     IBV_QPT_RC,
     {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kSent},
     [](auto& t) { return t.request(IBV_WR_SEND_WITH_IMM, 1, &t.list); }},
    {"SendWithAWrongLocalKey", IBV_QPT_RC, local(IBV_WC_LOC_PROT_ERR),
     [](auto& t) {
       t.list.lkey ^= 1;
       return t.send();
     }},
    {"SendWithAWrongLocalKeyUc", IBV_QPT_UC, local(IBV_WC_LOC_PROT_ERR),
     [](auto& t) {
       t.list.lkey ^= 1;
       return t.send();
     }},

    {"Write", IBV_QPT_RC, kWritten, [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE); }},
    {"WriteUc", IBV_QPT_UC, kWritten, [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE); }},
    {"WriteByAWrongKey", IBV_QPT_RC, refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
     [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE, 1); }},
    {"WriteByAWrongKeyUc", IBV_QPT_UC, kNoEffect, [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE, 1); }},
    {"WriteOfNoBytesByAWrongKey", IBV_QPT_RC, kNoEffect,
     [](auto& t) {
       ibv_send_wr wr = t.reach(IBV_WR_RDMA_WRITE, 1);
       wr.num_sge = 0;
       return wr;
     }},
    {"WriteWithAWrongLocalKey", IBV_QPT_RC, local(IBV_WC_LOC_PROT_ERR),
     [](auto& t) {
       t.list.lkey ^= 1;
       return t.reach(IBV_WR_RDMA_WRITE);
     }},
    {"WriteWithImmediate",
     IBV_QPT_RC,
     {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kBefore, kSent},
     [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE_WITH_IMM); }},
    {"WriteWithImmediateByAWrongKey", IBV_QPT_RC, refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
     [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE_WITH_IMM, 1); }},
    {"WriteWithImmediateByAWrongKeyUc", IBV_QPT_UC, kNoEffect,
     [](auto& t) { return t.reach(IBV_WR_RDMA_WRITE_WITH_IMM, 1); }},
    // The receive's own list is not looked at.
    {"WriteWithImmediateToAReceiveWithAWrongKey",
     IBV_QPT_RC,
     {IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_QPS_RTS, kNone, kBefore, kSent},
     [](auto& t) {
       t.receive_wrong = 1;
       return t.reach(IBV_WR_RDMA_WRITE_WITH_IMM);
     }},

    {"Read", IBV_QPT_RC, kNoEffect, [](auto& t) { return t.reach(IBV_WR_RDMA_READ); }},
    {"ReadByAWrongKey", IBV_QPT_RC, refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
     [](auto& t) { return t.reach(IBV_WR_RDMA_READ, 1); }},
    {"ReadWithAWrongLocalKey", IBV_QPT_RC, local(IBV_WC_LOC_PROT_ERR),
     [](auto& t) {
       t.list.lkey ^= 1;
       return t.reach(IBV_WR_RDMA_READ);
     }},
    {"ReadBeyondTheInitiatorsDepth", IBV_QPT_RC, local(IBV_WC_LOC_QP_OP_ERR),
     [](auto& t) {
       t.initiator_depth = 0;
       return t.reach(IBV_WR_RDMA_READ);
     }},
    {"ReadBeyondTheRespondersDepth", IBV_QPT_RC, refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR),
     [](auto& t) {
       t.responder_depth = 0;
       return t.reach(IBV_WR_RDMA_READ);
     }},

    {"Atomic", IBV_QPT_RC, kWritten, [](auto& t) { return t.reach(IBV_WR_ATOMIC_CMP_AND_SWP); }},
    {"AtomicByAWrongKey", IBV_QPT_RC, refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR),
     [](auto& t) { return t.reach(IBV_WR_ATOMIC_CMP_AND_SWP, 1); }},
    {"AtomicOnAnOddAddress", IBV_QPT_RC, refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR),
     [](auto& t) { return t.reach(IBV_WR_ATOMIC_CMP_AND_SWP, 0, 4); }},
    {"AtomicWithAWrongLocalKey", IBV_QPT_RC, local(IBV_WC_LOC_PROT_ERR),
     [](auto& t) {
       t.list.lkey ^= 1;
       return t.reach(IBV_WR_ATOMIC_CMP_AND_SWP);
     }},
    {"AtomicWithAShortList", IBV_QPT_RC, local(IBV_WC_LOC_LEN_ERR),
     [](auto& t) {
       t.list.length = 4;
       return t.reach(IBV_WR_ATOMIC_CMP_AND_SWP);
     }},
};

INSTANTIATE_TEST_SUITE_P(Each, VerbsRules, ::testing::ValuesIn(kRules),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace nupa::test
