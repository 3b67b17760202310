// SPDX-License-Identifier: Apache-2.0
/// Atomic operations (IBTA 9.4.5): the values that they return and store, the rights that they need, and atomicity.
#include <atomic>
#include <thread>

#include "fixture.h"
#include "../../support/sanitizers.h"

namespace nupa::test {
namespace {

const uint64_t kEach = test::kSanitized ? 500 : 1000;

class VerbsAtomics : public VerbsPair {
 protected:
  uint64_t& word(size_t offset) { return *reinterpret_cast<uint64_t*>(memory + offset); }

  ibv_send_wr atomic(ibv_wr_opcode opcode, ibv_sge* list, int entries, size_t offset, uint64_t compare_add,
                     uint64_t swap = 0) {
    ibv_send_wr wr = request(opcode, 1, list);
    wr.num_sge = entries;
    wr.wr.atomic = {address(offset), compare_add, swap, mr->rkey};
    return wr;
  }
  ibv_wc_status run(ibv_send_wr wr) {
    EXPECT_EQ(post(a, wr), 0);
    return next().status;
  }
};

TEST_F(VerbsAtomics, FetchAndAdd_ReturnsTheOldValueAndWraps) {
  make_pair();
  word(4096) = ~uint64_t{0} - 1;
  ibv_sge sge = span(0, 8);
  ASSERT_EQ(post(a, atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 1, 4096, 5)), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(word(0), ~uint64_t{0} - 1);
  EXPECT_EQ(word(4096), 3u);
}

TEST_F(VerbsAtomics, CompareAndSwap_SwapsEqualValuesOnly) {
  make_pair();
  word(4096) = 7;
  ibv_sge sge = span(0, 8);
  EXPECT_EQ(run(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, &sge, 1, 4096, 8, 9)), IBV_WC_SUCCESS);
  EXPECT_EQ(word(0), 7u);
  EXPECT_EQ(word(4096), 7u);
  ASSERT_EQ(post(a, atomic(IBV_WR_ATOMIC_CMP_AND_SWP, &sge, 1, 4096, 7, 9)), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(word(0), 7u);
  EXPECT_EQ(word(4096), 9u);
}

TEST_F(VerbsAtomics, OldValue_ListOfEntries_IsScattered) {
  make_pair();
  word(4096) = 0x0807060504030201;
  ibv_sge list[] = {span(0, 3), span(64, 4), span(128, 1)};
  EXPECT_EQ(run(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, list, 3, 4096, 0)), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(memory, 4), std::string("\1\2\3\0", 4));
  EXPECT_EQ(std::string(memory + 64, 5), std::string("\4\5\6\7\0", 5));
  EXPECT_EQ(std::string(memory + 128, 2), std::string("\10\0", 2));
}

TEST_F(VerbsAtomics, ListShorterThanAWord_IsALocalLengthError) {  // 11.6.2
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP})
    for (const int entries : {0, 1, 2}) {
      make_pair();
      word(0) = 1;
      word(4096) = 7;
      ibv_sge list[] = {span(0, entries == 1 ? 7 : 3), span(4, 4)};
      EXPECT_EQ(run(atomic(opcode, list, entries, 4096, 7, 9)), IBV_WC_LOC_LEN_ERR) << opcode << ", " << entries;
      EXPECT_EQ(word(0), 1u);
      EXPECT_EQ(word(4096), 7u) << "the peer saw the request";
    }
}

TEST_F(VerbsAtomics, ListLongerThanAWord_CompletionReportsEightBytes) {
  make_pair();
  word(4096) = 0x0807060504030201;
  ibv_sge list[] = {span(0, 5), span(64, 100)};
  ASSERT_EQ(post(a, atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, list, 2, 4096, 0)), 0);
  const ibv_wc wc = next();
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(std::string(memory + 64, 4), std::string("\6\7\10\0", 4));
}

TEST_F(VerbsAtomics, AtomicWrite_ListOfEntries_IsGathered) {
  make_pair();
  std::memcpy(memory, "abc", 3);
  std::memcpy(memory + 64, "defgh", 5);
  ibv_sge list[] = {span(0, 3), span(64, 5)};
  ibv_send_wr wr = remote(IBV_WR_ATOMIC_WRITE, 1, list, 4096);
  wr.num_sge = 2;
  EXPECT_EQ(run(wr), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(memory + 4096, 9), std::string("abcdefgh\0", 9));
}

TEST_F(VerbsAtomics, Atomics_WithoutTheRight_AreRefused) {  // 10.6.3.1, A19
  const struct {
    ibv_wr_opcode opcode;
    int needed;
    int others;
  } rules[] = {
      {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
      {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
      {IBV_WR_ATOMIC_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ},
      {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_WRITE},
      {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ},
  };
  for (const auto& rule : rules)
    for (const bool of_the_queue_pair : {false, true})
      for (const bool allowed : {false, true}) {
        const int rights = allowed ? rule.needed : rule.others;
        ibv_mr* region =
            reg(memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | (of_the_queue_pair ? kWholeAccess : rights));
        ASSERT_NE(region, nullptr);
        qp_access = static_cast<unsigned int>(of_the_queue_pair ? rights : kWholeAccess & ~IBV_ACCESS_MW_BIND);
        make_pair();
        ibv_sge sge = span(0, 8);
        ibv_send_wr wr = request(rule.opcode, 1, &sge);
        if (rule.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || rule.opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
          wr.wr.atomic = {address(4096), 0, 0, region->rkey};
        else
          wr.wr.rdma = {address(4096), region->rkey};
        EXPECT_EQ(run(wr), allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR)
            << "opcode " << rule.opcode << (of_the_queue_pair ? " queue pair" : " region");
      }
}

TEST_F(VerbsAtomics, WordBeyondItsRegion_IsRefused) {
  ibv_mr* odd = reg(memory + 4096, 20);
  ASSERT_NE(odd, nullptr);
  ibv_sge sge = span(0, 8);
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_WRITE})
    for (const bool within : {true, false}) {
      make_pair();
      ibv_send_wr wr = request(opcode, 1, &sge);
      const uint64_t at = address(4096 + (within ? 8 : 16));
      if (opcode == IBV_WR_ATOMIC_WRITE)
        wr.wr.rdma = {at, odd->rkey};
      else
        wr.wr.atomic = {at, 0, 0, odd->rkey};
      EXPECT_EQ(run(wr), within ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR) << opcode;
    }
}

TEST_F(VerbsAtomics, UnalignedAddress_IsRefused) {  // 9.4.5
  ibv_sge sge = span(0, 8);
  for (const ibv_wr_opcode opcode : {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_WRITE}) {
    make_pair();
    std::memset(memory, 'x', 8);
    ibv_send_wr wr = request(opcode, 1, &sge);
    if (opcode == IBV_WR_ATOMIC_WRITE)
      wr.wr.rdma = {address(4096 + 4), mr->rkey};
    else
      wr.wr.atomic = {address(4096 + 4), 0, 1, mr->rkey};
    EXPECT_EQ(run(wr), IBV_WC_REM_INV_REQ_ERR) << opcode;
    for (size_t i = 4096; i < 4096 + 16; ++i) EXPECT_EQ(memory[i], 0);
  }
}

TEST_F(VerbsAtomics, TwoQueuePairsAndAThread_AddToOneWord_NoAdditionIsLost) {  // IBV_ATOMIC_GLOB
  std::vector<std::thread> threads;
  struct Adder {
    ibv_cq* queue;
    ibv_qp* qp;
  };
  std::vector<Adder> adders;
  for (int i = 0; i < 2; ++i) {
    ibv_cq* own = ibv_create_cq(context, kQueueLength, nullptr, nullptr, 0);
    ibv_qp_init_attr attr = init();
    attr.send_cq = attr.recv_cq = own;
    ibv_qp* qp = ibv_create_qp(pd, &attr);
    connect(qp, qp);
    adders.push_back({own, qp});
  }
  std::atomic<int> wrong{0};
  std::atomic<bool> go{false};
  for (size_t index = 0; index < 2; ++index)
    threads.emplace_back([&, index] {
      while (!go.load()) std::this_thread::yield();
      ibv_sge sge = span(64 * (index + 1), 8);
      for (uint64_t i = 0; i < kEach; ++i) {
        // Every other one swaps, as a program that counts by comparing does.
        if (i % 2 == 0) {
          wrong += post(adders[index].qp, atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, 1, 4096, 1)) != 0;
          wrong += next(adders[index].queue).status != IBV_WC_SUCCESS;
          continue;
        }
        for (uint64_t expected = 0;;) {
          wrong +=
              post(adders[index].qp, atomic(IBV_WR_ATOMIC_CMP_AND_SWP, &sge, 1, 4096, expected, expected + 1)) != 0;
          wrong += next(adders[index].queue).status != IBV_WC_SUCCESS;
          if (word(64 * (index + 1)) == expected || wrong != 0) break;
          expected = word(64 * (index + 1));
        }
      }
    });
  go = true;
  for (uint64_t i = 0; i < kEach; ++i) {
    __atomic_fetch_add(&word(4096), 1, __ATOMIC_RELAXED);
    if (i % 64 == 0) std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(__atomic_load_n(&word(4096), __ATOMIC_RELAXED), 3 * kEach);
  for (const Adder& adder : adders) {
    EXPECT_EQ(ibv_destroy_qp(adder.qp), 0);
    EXPECT_EQ(ibv_destroy_cq(adder.queue), 0);
  }
}

}  // namespace
}  // namespace nupa::test
