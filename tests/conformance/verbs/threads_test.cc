// SPDX-License-Identifier: Apache-2.0
/// Threads that post, receive and poll on the same queues: each message arrives whole and once, each request completes
/// once (manual ibv_post_send: verbs are thread safe).
#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "fixture.h"
#include "../../support/sanitizers.h"

namespace nupa::test {
namespace {

const uint64_t kRounds = test::kSanitized ? 1000 : 10000;
constexpr uint64_t kPosters = 4;
constexpr uint64_t kWindow = 32;  ///< kPosters of them overfill a send queue, on purpose
constexpr uint64_t kReceives = 48;
constexpr size_t kBytes = 64;
constexpr size_t kGrh = 40;

enum Op : uint64_t { kWrite, kSend, kRead, kFetchAdd, kWriteImm, kSwap, kOps };

void fill(char* to, uint64_t id) {
  for (uint64_t i = 0; i < kBytes / 8; ++i) {
    const uint64_t word = (id + 1) * 0x9e3779b97f4a7c15 + i;
    std::memcpy(to + i * 8, &word, 8);
  }
}
bool holds(const char* from, uint64_t id) {
  char expected[kBytes];
  fill(expected, id);
  return std::memcmp(from, expected, kBytes) == 0;
}

/// One request under way.
struct Slot {
  alignas(64) char near[kBytes];
  alignas(64) char far[kBytes];
  Op op;
  uint64_t expected;            ///< of a swap: what it has to find
  std::atomic<int> pending{0};  ///< completions that are still to come, on both sides
};

struct Memory {
  Slot slots[kPosters][kWindow];
  alignas(64) char receives[kReceives][kGrh + kBytes];
  alignas(64) uint64_t sum;
  alignas(64) uint64_t swaps[kPosters];
};

class VerbsThreads : public Verbs {
 protected:
  void SetUp() override {
    Verbs::SetUp();
    memory = std::make_unique<Memory>();
    std::memset(memory->receives, 0, sizeof memory->receives);
    memory->sum = 0;
    std::memset(memory->swaps, 0, sizeof memory->swaps);
    mr = reg(memory.get(), sizeof *memory);
    ASSERT_NE(mr, nullptr);
    for (uint64_t i = 0; i < kReceives; ++i) free_receives.push_back(i);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    if (srq != nullptr) {
      EXPECT_EQ(ibv_destroy_srq(srq), 0);
    }
    if (ah != nullptr) {
      EXPECT_EQ(ibv_destroy_ah(ah), 0);
    }
    Verbs::TearDown();
  }

  Op op_of(uint64_t sequence) const { return datagram() ? kSend : static_cast<Op>(sequence % kOps); }
  bool datagram() const { return ah != nullptr; }

  int post_one(uint64_t poster, uint64_t sequence) {
    Slot& slot = memory->slots[poster][sequence % kWindow];
    const uint64_t id = poster * kRounds + sequence;
    ibv_sge sge{reinterpret_cast<uint64_t>(slot.near), kBytes, mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (sequence % 5 == 0) wr.send_flags |= IBV_SEND_SOLICITED;
    wr.wr.rdma = {reinterpret_cast<uint64_t>(slot.far), mr->rkey};
    switch (slot.op) {
      case kWrite:
        wr.opcode = IBV_WR_RDMA_WRITE;
        break;
      case kWriteImm:
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htobe32(static_cast<uint32_t>(id));
        break;
      case kSend:
        wr.opcode = IBV_WR_SEND_WITH_IMM;
        wr.imm_data = htobe32(static_cast<uint32_t>(id));
        if (datagram()) wr.wr.ud = {ah, to->qp_num, kQkey};
        break;
      case kRead:
        wr.opcode = IBV_WR_RDMA_READ;
        break;
      case kFetchAdd:
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        sge.length = 8;
        wr.wr.atomic = {reinterpret_cast<uint64_t>(&memory->sum), 1, 0, mr->rkey};
        break;
      default:
        wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
        sge.length = 8;
        wr.wr.atomic = {reinterpret_cast<uint64_t>(&memory->swaps[poster]), slot.expected, slot.expected + 1, mr->rkey};
        break;
    }
    return ibv_post_send(from, &wr, &bad);
  }

  void post_all(uint64_t poster) {
    uint64_t swaps = 0;
    for (uint64_t sequence = 0; sequence < kRounds && !stop.load(); ++sequence) {
      Slot& slot = memory->slots[poster][sequence % kWindow];
      while (slot.pending.load(std::memory_order_acquire) != 0 && !stop.load()) std::this_thread::yield();
      note_acquire(&slot.pending);
      slot.op = op_of(sequence);
      if (slot.op == kSwap) slot.expected = swaps++;
      fill(slot.op == kRead ? slot.far : slot.near, poster * kRounds + sequence);
      std::memset(slot.op == kRead ? slot.near : slot.far, 0, kBytes);
      slot.pending.store(slot.op == kSend || slot.op == kWriteImm ? 2 : 1, std::memory_order_relaxed);
      // A datagram that finds no receive is lost: one credit for each receive.
      while (datagram() && credits.fetch_sub(1) <= 0 && !stop.load()) {
        credits.fetch_add(1);
        std::this_thread::yield();
      }
      int error;
      while ((error = post_one(poster, sequence)) == ENOMEM && !stop.load()) std::this_thread::yield();
      if (error != 0) fail("post");
    }
  }

  void receive_all() {
    while (!stop.load()) {
      uint64_t index = kReceives;
      {
        std::lock_guard lock(mutex);
        if (!free_receives.empty()) {
          index = free_receives.front();
          free_receives.pop_front();
        }
      }
      if (index == kReceives) {
        std::this_thread::yield();
        continue;
      }
      ibv_sge sge{reinterpret_cast<uint64_t>(memory->receives[index]), sizeof memory->receives[index], mr->lkey};
      ibv_recv_wr wr{}, *bad = nullptr;
      wr.wr_id = index;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      int error;
      do {
        error = srq != nullptr ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(to, &wr, &bad);
      } while (error == ENOMEM && !stop.load());
      if (error != 0) fail("post receive");
      credits.fetch_add(1);
    }
  }

  void done(uint64_t id) {
    Slot& slot = memory->slots[id / kRounds][id % kRounds % kWindow];
    note_release(&slot.pending);
    if (slot.pending.fetch_sub(1, std::memory_order_acq_rel) <= 0) fail("completion of a slot that waits for none");
  }

  void note_receive(const ibv_wc& wc) {
    const uint64_t id = be32toh(wc.imm_data);
    if (id >= kPosters * kRounds) return fail("immediate data");
    if ((wc.wc_flags & IBV_WC_WITH_IMM) == 0 || wc.qp_num != to->qp_num) fail("fields of a receive");
    const char* data = memory->receives[wc.wr_id] + (datagram() ? kGrh : 0);
    if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
      data = memory->slots[id / kRounds][id % kRounds % kWindow].far;
    else if (wc.byte_len != kBytes + (datagram() ? kGrh : 0))
      fail("length of a receive");
    if (!holds(data, id)) fail("content of a receive");
    received[id].fetch_add(1);
    {
      std::lock_guard lock(mutex);
      free_receives.push_back(wc.wr_id);
    }
    done(id);
  }

  void note_send(const ibv_wc& wc) {
    const uint64_t id = wc.wr_id;
    if (id >= kPosters * kRounds) return fail("request id");
    const Slot& slot = memory->slots[id / kRounds][id % kRounds % kWindow];
    uint64_t word;
    std::memcpy(&word, slot.near, 8);
    if (wc.qp_num != from->qp_num) fail("fields of a completion");
    if (slot.op == kRead && (wc.opcode != IBV_WC_RDMA_READ || !holds(slot.near, id))) fail("read");
    if (slot.op == kWrite && (wc.opcode != IBV_WC_RDMA_WRITE || !holds(slot.far, id))) fail("write");
    if (slot.op == kSwap && (wc.opcode != IBV_WC_COMP_SWAP || word != slot.expected)) fail("swap");
    if (slot.op == kFetchAdd) {
      if (word < sums.size())
        sums[word].fetch_add(1);
      else
        fail("sum");
    }
    completed[id].fetch_add(1);
    done(id);
  }

  void note(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS) return fail(ibv_wc_status_str(wc.status));
    if ((wc.opcode & IBV_WC_RECV) != 0)
      note_receive(wc);
    else
      note_send(wc);
    total.fetch_add(1);
  }

  void poll_all() {
    std::array<ibv_wc, 8> wc;
    while (!stop.load()) {
      const int count = ibv_poll_cq(cq, static_cast<int>(wc.size()), wc.data());
      if (count < 0) fail("poll");
      for (int i = 0; i < count; ++i) note(wc[static_cast<size_t>(i)]);
      if (count == 0) std::this_thread::yield();
    }
  }

  void fail(const char* what) {
    std::lock_guard lock(mutex);
    if (faults.size() < 8) faults.emplace_back(what);
    stop = true;
  }

  /// Runs all of it; `beside` goes on in a thread of its own until the traffic ends.
  template <class Beside>
  void run(int pollers, Beside beside) {
    uint64_t messages = 0, adds = 0;
    for (uint64_t i = 0; i < kRounds; ++i) {
      messages += op_of(i) == kSend || op_of(i) == kWriteImm;
      adds += op_of(i) == kFetchAdd;
    }
    const uint64_t expected = kPosters * (kRounds + messages);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kPosters; ++t) threads.emplace_back([this, t] { post_all(t); });
    for (int t = 0; t < 2; ++t) threads.emplace_back([this] { receive_all(); });
    for (int t = 0; t < pollers; ++t) threads.emplace_back([this] { poll_all(); });
    threads.emplace_back([&] {
      while (!stop.load()) beside();
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (total.load() < expected && !stop.load() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // sleep: the pause between two looks
    stop = true;
    for (std::thread& thread : threads) thread.join();
    for (const std::string& fault : faults) ADD_FAILURE() << fault;
    EXPECT_EQ(total.load(), expected);
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0) << "a completion too many";
    for (uint64_t id = 0; id < kPosters * kRounds; ++id) {
      const Op op = op_of(id % kRounds);
      ASSERT_EQ(completed[id].load(), 1) << id;
      ASSERT_EQ(received[id].load(), op == kSend || op == kWriteImm ? 1 : 0) << id;
    }
    EXPECT_EQ(memory->sum, kPosters * adds);
    for (uint64_t value = 0; value < kPosters * adds; ++value) ASSERT_EQ(sums[value].load(), 1) << value;
  }
  void run(int pollers) {
    // sleep: the thread beside the others does nothing
    run(pollers, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  }

  void make_pair(ibv_qp_type type) {
    from = make_qp(type);
    ibv_qp_init_attr attr = init(type);
    attr.srq = srq;
    to = keep(ibv_create_qp(pd, &attr));
    connect(from, to);
  }

  std::unique_ptr<Memory> memory;
  ibv_mr* mr = nullptr;
  ibv_qp* from = nullptr;
  ibv_qp* to = nullptr;
  ibv_srq* srq = nullptr;
  ibv_ah* ah = nullptr;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> total{0};
  std::atomic<int64_t> credits{0};
  std::mutex mutex;
  std::deque<uint64_t> free_receives;
  std::vector<std::string> faults;
  std::vector<std::atomic<int>> completed = std::vector<std::atomic<int>>(kPosters * kRounds);
  std::vector<std::atomic<int>> received = std::vector<std::atomic<int>>(kPosters * kRounds);
  std::vector<std::atomic<int>> sums = std::vector<std::atomic<int>>(kPosters * kRounds);
};

TEST_F(VerbsThreads, MixedTraffic_OnOneConnection_CompletesOnceAndWhole) {
  make_pair(IBV_QPT_RC);
  run(2);
}

TEST_F(VerbsThreads, MixedTraffic_IntoASharedReceiveQueue_CompletesOnceAndWhole) {
  ibv_srq_init_attr attr{};
  attr.attr = {kReceives, 1, 0};
  srq = ibv_create_srq(pd, &attr);
  ASSERT_NE(srq, nullptr);
  make_pair(IBV_QPT_RC);
  run(3);
}

TEST_F(VerbsThreads, Datagrams_OnOneQueuePair_ArriveOnceAndWhole) {
  ibv_ah_attr attr = path();
  ah = ibv_create_ah(pd, &attr);
  ASSERT_NE(ah, nullptr);
  make_pair(IBV_QPT_UD);
  run(2);
}

TEST_F(VerbsThreads, ResizeCq_DuringTraffic_LosesNothing) {
  make_pair(IBV_QPT_RC);
  int turn = 0;
  run(2, [&] {
    // 1,023 and 2,047 entries: always enough for what can be under way, so it has to succeed.
    const int error = ibv_resize_cq(cq, ++turn % 2 == 0 ? 1000 : 2000);
    if (error != 0) fail("resize");
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // sleep: the rate at which the queue is resized
  });
  EXPECT_GT(turn, 1);
}

TEST_F(VerbsThreads, Queries_DuringTraffic_Succeed) {
  make_pair(IBV_QPT_RC);
  run(2, [&] {
    ibv_qp_attr attr;
    ibv_qp_init_attr made;
    if (ibv_query_qp(from, &attr, IBV_QP_STATE, &made) != 0 || attr.qp_state != IBV_QPS_RTS) fail("query");
    attr = {};
    attr.min_rnr_timer = 2;
    if (ibv_modify_qp(to, &attr, IBV_QP_MIN_RNR_TIMER) != 0) fail("modify");
  });
}

}  // namespace
}  // namespace nupa::test
