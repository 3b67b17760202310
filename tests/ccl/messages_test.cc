// SPDX-License-Identifier: Apache-2.0
/// Sends, receives and groups, among processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <random>

#include "job.h"
#include "../support/sanitizers.h"

namespace nupa::ccl {
namespace {

constexpr nupa_ccl_type kType = NUPA_CCL_INT32;

std::vector<int32_t> content(uint32_t from, uint32_t to, int32_t number, size_t length) {
  std::mt19937 random(from * 1000003 + to * 10007 + static_cast<uint32_t>(number));
  std::vector<int32_t> values(length);
  for (int32_t& value : values) value = static_cast<int32_t>(random());
  return values;
}

TEST(CclMessages, Messages_OfAnyLength_ArriveInOrder) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      // None, one, a fragment's edges with and without the header, several fragments.
                      const std::vector<size_t> lengths = {0, 1, 5, 1000, 16379, 16380, 16381, 16384, 32768, 300'000};
                      for (int turn = 0; turn < 20; ++turn)
                        for (const size_t length : lengths) {
                          const int32_t number = turn * 1000 + static_cast<int32_t>(length % 997);
                          const auto sent = content(0, 1, number, length);
                          if (rank.rank() == 0) {
                            rank.expect_ok(nupa_ccl_send(sent.data(), length, kType, 1, 7, rank.world(), nullptr),
                                           "send");
                            continue;
                          }
                          std::vector<int32_t> got(length, -1);
                          nupa_ccl_status status{};
                          rank.expect_ok(nupa_ccl_recv(got.data(), length, kType, 0, 7, rank.world(), &status, nullptr),
                                         "recv");
                          rank.expect(got == sent, "what came is not what was sent");
                          rank.expect(status.rank == 0 && status.tag == 7 && status.count == length, "status");
                        }
                    }),
            all_well(2));
}

TEST(CclMessages, Receives_ByTagInReverseOrder_GetTheirMessages) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      constexpr int32_t kMessages = 50;
                      const auto length = [](int32_t tag) { return static_cast<size_t>(tag) * 3001 % 70'000; };
                      std::vector<std::vector<int32_t>> arrays;
                      std::vector<nupa_ccl_request*> requests(kMessages);
                      if (rank.rank() == 0) {
                        for (int32_t tag = 0; tag < kMessages; ++tag) {
                          arrays.push_back(content(0, 1, tag, length(tag)));
                          rank.expect_ok(nupa_ccl_send(arrays.back().data(), arrays.back().size(), kType, 1, tag,
                                                       rank.world(), &requests[static_cast<size_t>(tag)]),
                                         "send");
                        }
                        for (auto* const request : requests) rank.expect_ok(nupa_ccl_wait(request), "wait");
                        return;
                      }
                      // The last tag first.
                      for (int32_t tag = kMessages - 1; tag >= 0; --tag) {
                        std::vector<int32_t> got(length(tag));
                        rank.expect_ok(
                            nupa_ccl_recv(got.data(), got.size(), kType, 0, tag, rank.world(), nullptr, nullptr),
                            "recv");
                        rank.expect(got == content(0, 1, tag, length(tag)), "a message of tag " + std::to_string(tag));
                      }
                    }),
            all_well(2));
}

TEST(CclMessages, Receive_AnyRankAndAnyTag_KeepsTheOrderOfEachSender) {
  for (const uint32_t ranks : {2u, 5u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      constexpr int32_t kMessages = 30;
      if (rank.rank() > 0) {
        for (int32_t tag = 0; tag < kMessages; ++tag) {
          const auto sent = content(rank.rank(), 0, tag, 500);
          rank.expect_ok(nupa_ccl_send(sent.data(), sent.size(), kType, 0, tag, rank.world(), nullptr), "send");
        }
        return;
      }
      std::vector<int32_t> next(rank.ranks(), 0);
      for (uint32_t i = 0; i < (rank.ranks() - 1) * kMessages; ++i) {
        std::vector<int32_t> got(500);
        nupa_ccl_status status{};
        rank.expect_ok(nupa_ccl_recv(got.data(), got.size(), kType, NUPA_CCL_ANY_RANK, NUPA_CCL_ANY_TAG, rank.world(),
                                     &status, nullptr),
                       "recv");
        rank.expect(status.rank > 0 && status.rank < rank.ranks(), "the sender");
        rank.expect(status.tag == next[status.rank]++, "the order of one rank's messages");
        rank.expect(got == content(status.rank, 0, status.tag, 500), "the received values");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST(CclMessages, AllPairs_ExchangeInOneGroup_GetTheirMessages) {
  for (const uint32_t ranks : {1u, 2u, 4u, 7u}) {
    const auto endings = run_job(ranks, [](Rank& rank) {
      for (int32_t turn = 0; turn < 10; ++turn) {
        // More than fits into the channels, in both directions, and a collective among them.
        const size_t length = turn % 2 == 0 ? 400'000 : 100;
        std::vector<std::vector<int32_t>> sent;
        std::vector<std::vector<int32_t>> got;
        for (uint32_t other = 0; other < rank.ranks(); ++other) {
          sent.push_back(content(rank.rank(), other, turn, length));
          got.emplace_back(length);
        }
        int64_t sum = 1;
        rank.expect_ok(nupa_ccl_group_start(), "group_start");
        for (uint32_t other = 0; other < rank.ranks(); ++other) {
          rank.expect_ok(nupa_ccl_send(sent[other].data(), length, kType, other, turn, rank.world(), nullptr), "send");
          rank.expect_ok(nupa_ccl_recv(got[other].data(), length, kType, other, turn, rank.world(), nullptr, nullptr),
                         "recv");
        }
        rank.expect_ok(nupa_ccl_all_reduce(&sum, &sum, 1, NUPA_CCL_INT64, NUPA_CCL_SUM, rank.world(), nullptr),
                       "all_reduce");
        nupa_ccl_request* request = nullptr;
        rank.expect_ok(nupa_ccl_group_end(turn % 3 == 0 ? &request : nullptr), "group_end");
        if (request != nullptr) rank.expect_ok(nupa_ccl_wait(request), "wait");
        for (uint32_t other = 0; other < rank.ranks(); ++other)
          rank.expect(got[other] == content(other, rank.rank(), turn, length), "the received values");
        rank.expect(sum == rank.ranks(), "sum");
      }
    });
    EXPECT_EQ(endings, all_well(ranks)) << ranks << " ranks";
  }
}

TEST(CclMessages, SendRecv_AroundARing_GetsTheNeighboursMessage) {
  EXPECT_EQ(run_job(5,
                    [](Rank& rank) {
                      const uint32_t right = (rank.rank() + 1) % 5;
                      const uint32_t left = (rank.rank() + 4) % 5;
                      for (int32_t turn = 0; turn < 50; ++turn) {
                        const auto sent = content(rank.rank(), right, turn, 100'000);
                        std::vector<int32_t> got(sent.size());
                        rank.expect_ok(nupa_ccl_sendrecv(sent.data(), sent.size(), right, 1, got.data(), got.size(),
                                                         left, 1, kType, rank.world(), nullptr),
                                       "sendrecv");
                        rank.expect(got == content(left, rank.rank(), turn, 100'000), "the received values");
                      }
                    }),
            all_well(5));
}

TEST(CclMessages, Receive_OnlyTested_Completes) {
  EXPECT_EQ(
      run_job(2,
              [](Rank& rank) {
                // The send completes after this rank's thread has received most of it.
                std::vector<int32_t> array(1'000'000, 5);
                nupa_ccl_request* request = nullptr;
                if (rank.rank() == 0) {
                  rank.expect_ok(nupa_ccl_send(array.data(), array.size(), kType, 1, 0, rank.world(), nullptr), "send");
                  rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                  return;
                }
                rank.expect_ok(nupa_ccl_recv(array.data(), array.size(), kType, 0, 0, rank.world(), nullptr, &request),
                               "recv");
                int done = 0;
                while (done == 0) {
                  usleep(1000);  // sleep: the pause between two looks
                  rank.expect_ok(nupa_ccl_test(request, &done), "test");
                }
                rank.expect_ok(nupa_ccl_wait(request), "wait");
                rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
              }),
      all_well(2));
}

TEST(CclMessages, TestOfAGroup_LastCallIsDoneFirst_IsDoneWhenAllAreDone) {
  EXPECT_EQ(run_job(1,
                    [](Rank& rank) {
                      int32_t first = 0;
                      int32_t last = 0;
                      nupa_ccl_request* request = nullptr;
                      nupa_ccl_comm* const world = rank.world();
                      rank.expect_ok(nupa_ccl_group_start(), "group_start");
                      rank.expect_ok(nupa_ccl_recv(&first, 1, kType, 0, 1, world, nullptr, nullptr), "first recv");
                      rank.expect_ok(nupa_ccl_recv(&last, 1, kType, 0, 2, world, nullptr, nullptr), "last recv");
                      rank.expect_ok(nupa_ccl_group_end(&request), "group_end");
                      // A message to the rank itself has arrived when the send returns.
                      for (const int32_t tag : {2, 1}) {
                        int done = 1;
                        rank.expect_ok(nupa_ccl_test(request, &done), "test");
                        rank.expect(done == 0, "done before tag " + std::to_string(tag) + " was sent");
                        rank.expect_ok(nupa_ccl_send(&tag, 1, kType, 0, tag, world, nullptr), "send");
                      }
                      rank.expect(first == 1 && last == 2, "the received values");
                      int done = 0;
                      rank.expect_ok(nupa_ccl_test(request, &done), "test");
                      rank.expect(done == 1, "not done");
                      rank.expect_ok(nupa_ccl_wait(request), "wait");
                    }),
            all_well(1));
}

TEST(CclMessages, BlockingGroup_WithMessagesOfTwoCommunicators_MovesBoth) {
  // More than a channel holds.
  constexpr size_t kMany = 4'000'000;
  const int kLimitSeconds = kJobLimitSeconds / 2;
  EXPECT_EQ(
      run_job(
          2,
          [](Rank& rank) {
            nupa_ccl_comm* other = nullptr;
            rank.expect_ok(nupa_ccl_comm_dup(rank.world(), &other), "dup");
            // The ranks wait for the communicators in different orders.
            std::vector<int32_t> first(kMany, 1);
            std::vector<int32_t> second(kMany, 2);
            if (rank.rank() == 0) {
              rank.expect_ok(nupa_ccl_group_start(), "group_start");
              rank.expect_ok(nupa_ccl_send(first.data(), first.size(), kType, 1, 0, rank.world(), nullptr), "send");
              rank.expect_ok(nupa_ccl_send(second.data(), second.size(), kType, 1, 0, other, nullptr), "send");
              rank.expect_ok(nupa_ccl_group_end(nullptr), "group_end");
            } else {
              rank.expect_ok(nupa_ccl_recv(first.data(), first.size(), kType, 0, 0, other, nullptr, nullptr),
                             "recv of the second one");
              rank.expect_ok(nupa_ccl_recv(second.data(), second.size(), kType, 0, 0, rank.world(), nullptr, nullptr),
                             "recv of the first one");
              rank.expect(first.front() == 2 && first.back() == 2 && second.front() == 1 && second.back() == 1,
                          "the received values");
            }
            rank.expect_ok(nupa_ccl_comm_destroy(other), "destroy");
          },
          kLimitSeconds),
      all_well(2));
}

TEST(CclMessages, Receive_ThreadCannotStart_FailsAndTakesNoMessage) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      int32_t value = 0;
                      if (rank.rank() == 0) {
                        rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "the other one has been refused");
                        for (const int32_t sent : {1, 2})
                          rank.expect_ok(nupa_ccl_send(&sent, 1, kType, 1, 7, rank.world(), nullptr), "send");
                        return;
                      }
                      // Memory for small things is there, but none for a thread's stack.
                      free(malloc(64 << 10));
                      rlimit before{};
                      getrlimit(RLIMIT_AS, &before);
                      const rlimit none{1, before.rlim_max};
                      rank.expect(setrlimit(RLIMIT_AS, &none) == 0, "setrlimit");
                      int32_t refused = 0;
                      nupa_ccl_request* request = nullptr;
                      const int error = nupa_ccl_recv(&refused, 1, kType, 0, 7, rank.world(), nullptr, &request);
                      setrlimit(RLIMIT_AS, &before);
                      rank.expect(error == EAGAIN && request == nullptr, "there was a thread");
                      rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
                      for (const int32_t sent : {1, 2}) {
                        rank.expect_ok(nupa_ccl_recv(&value, 1, kType, 0, 7, rank.world(), nullptr, nullptr), "recv");
                        rank.expect(value == sent && refused == 0, "the receive that was refused took a message");
                      }
                    }),
            all_well(2));
}

TEST(CclMessages, Receive_MessageIsLarger_FailsWithEmsgsizeAndItsLength) {
  EXPECT_EQ(
      run_job(2,
              [](Rank& rank) {
                std::vector<int32_t> array(50'000, static_cast<int32_t>(rank.rank()));
                if (rank.rank() == 0) {
                  rank.expect_ok(nupa_ccl_send(array.data(), array.size(), kType, 1, 0, rank.world(), nullptr), "send");
                  rank.expect_ok(nupa_ccl_send(array.data(), 1, kType, 1, 0, rank.world(), nullptr), "send");
                  return;
                }
                nupa_ccl_status status{};
                rank.expect(nupa_ccl_recv(array.data(), 10, kType, 0, 0, rank.world(), &status, nullptr) == EMSGSIZE,
                            "too little room");
                rank.expect(status.count == 50'000 && array[9] == 0 && array[10] == 1, "ten of them");
                // The next one is whole.
                rank.expect_ok(nupa_ccl_recv(array.data(), 1, kType, 0, 0, rank.world(), &status, nullptr), "recv");
                rank.expect(status.count == 1, "status");
              }),
      all_well(2));
}

TEST(CclMessages, Receive_FromAKilledRank_FailsWithEconnreset) {
  const auto endings = run_job(3, [](Rank& rank) {
    int32_t value = 0;
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    if (rank.rank() == 1) {
      usleep(100'000);  // sleep: the others wait for the rank by then; if they do not, they fail at once
      kill(getpid(), SIGKILL);
    }
    rank.expect(nupa_ccl_recv(&value, 1, kType, 1, 0, rank.world(), nullptr, nullptr) == ECONNRESET, "recv");
    uint32_t who = 0;
    rank.expect_ok(nupa_ccl_comm_error(rank.world(), nullptr, &who), "error");
    rank.expect(who == 1, "the rank that died");
  });
  EXPECT_EQ(endings, (Endings{0, -SIGKILL, 0}));
}

}  // namespace
}  // namespace nupa::ccl
